"""Every program of a run exports for TPU and GPU, from a machine that has neither."""

import pytest

from mempo_jax.planning.programs import NAMES
from tests.planning.plan_case import lowering

PLATFORMS = ("tpu", "cuda")


@pytest.mark.parametrize("name", NAMES)
def test_it_exports_for_tpu_and_gpu_on_a_mesh(name):
    made = lowering((2, 2, 2)).export(name, PLATFORMS)
    assert made.platforms == PLATFORMS
    assert made.nr_devices == 8


@pytest.mark.parametrize("name", ["score", "accumulate", "decode"])
def test_adapters_remat_and_bfloat16_export_too(name):
    changed = lowering(
        (1, 1, 1),
        policy__lora__rank=2,
        policy__remat=True,
        policy__param_dtype="bfloat16",
        policy__compute_dtype="bfloat16",
        train__max_log_prob_gap=0.1,
    )
    made = changed.export(name, PLATFORMS)
    assert made.platforms == PLATFORMS
    assert "bf16" in made.mlir_module()

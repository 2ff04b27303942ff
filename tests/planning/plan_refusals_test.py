"""What cannot run on the named chips is refused by the planner in one line."""

import jax
import pytest

from mempo_jax.planning.devices import device
from mempo_jax.planning.memory import Estimator
from mempo_jax.planning.plan import Planner, as_json, as_text, changed
from mempo_jax.settings import ConfigError
from tests.experiments import tiny

NARROW = {"policy.param_dtype": "bfloat16", "policy.compute_dtype": "bfloat16"}
SPLIT = {"mesh.data": 1, "mesh.fsdp": 8}


@pytest.fixture
def planned(monkeypatch):
    """Plans the tiny run with changes on eight chips, without asking a compiler."""
    monkeypatch.setattr(Estimator, "made", lambda *given: 0)

    def plan(name, **changes):
        planner = Planner(device(name), jax.devices(), compiler="CPU", narrow=True)
        return planner.plan(changed(tiny.get_config().to_dict(), changes))

    return plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh.tensor": 8}, r"config\.mesh\.tensor: expected 1 or a divisor of \d+"),
        ({"mesh.tensor": 0}, r"config\.mesh: mesh axes must be at least 1"),
        ({"mesh.fsdp": -2}, r"config\.mesh: mesh axes must be at least 1"),
        (
            SPLIT | {"mesh.fsdp": 7, "sampling.slots": 7},
            r"config\.mesh\.fsdp: expected 1 or a divisor of 16",
        ),
        (
            {"mesh.sampling.tensor": 8},
            r"config\.mesh\.sampling\.tensor: expected 1 or a divisor of \d+",
        ),
        (
            SPLIT
            | {"mesh.sampling.fsdp": 7, "mesh.sampling.data": 1}
            | {"sampling.slots": 56},
            r"config\.mesh\.sampling\.fsdp: expected 1 or a divisor of 16",
        ),
        (
            {"mesh.sampling.tensor": 3},
            r"config\.mesh: fsdp x tensor = 1 x 3 must divide the 8 devices",
        ),
        ({"mesh.sampling.data": 9}, r"config\.mesh: 9 x 1 x 1 devices are to sample"),
        (
            {"mesh.sampling.devices": 8},
            r"config\.mesh: mesh\.sampling\.devices: expected fewer than the 8",
        ),
    ],
)
def test_a_mesh_that_cannot_be_names_its_field(planned, changes, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        planned("v5e-8", **changes)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("v5e-8", NARROW, "on tpu, got 'cudnn', which needs an NVIDIA GPU"),
        ("v5e-8", {}, "on tpu, got 'cudnn', which needs an NVIDIA GPU"),
        ("h100-8", {}, "with policy.compute_dtype = 'float32', got 'cudnn', which"),
        (
            "h100-8",
            NARROW | {"policy.nano.width": 36, "policy.nano.heads": 3},
            "for heads of 12, got 'cudnn', which takes multiples of 8 up to 256",
        ),
    ],
)
def test_a_kernel_that_the_chip_lacks_is_refused(planned, name, changes, message):
    with pytest.raises(ConfigError) as caught:
        planned(name, **changes, **{"policy.attention": "cudnn"})
    start = "config.policy.attention: expected 'auto' or 'xla' "
    assert str(caught.value).startswith(start + message)


@pytest.mark.parametrize(
    ("name", "attention", "changes", "kernel"),
    [
        ("h100-8", "auto", NARROW, "cudnn"),
        ("h100-8", "cudnn", NARROW, "cudnn"),
        ("h100-8", "xla", NARROW, "xla"),
        ("h100-8", "auto", {}, "xla"),
        ("v5e-8", "auto", NARROW, "xla"),
        ("v5e-8", "xla", {}, "xla"),
    ],
)
def test_the_kernel_of_the_named_chip_is_named(
    planned, name, attention, changes, kernel
):
    plan = planned(name, **changes, **{"policy.attention": attention})
    assert as_json(plan)["attention"] == kernel
    text = as_text(plan)
    assert ("cuDNN's workspace and its speed are not modelled" in text) == (
        kernel == "cudnn"
    )
    assert f"kernel   {kernel}, of the attention" in text

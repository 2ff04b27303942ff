"""Every line of the measurement of a GPU runs, on virtual devices in its place."""

import jax
import pytest

from benchmarks import gpu_check
from mempo_jax.planning.devices import CHIPS
from mempo_jax.planning.programs import NAMES


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = gpu_check._small_policy(tmp_path_factory.mktemp("policy") / "small")
    changes = gpu_check.SMALL | {"policy.path": str(folder)}
    chip = CHIPS["h200"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_check, "ROUNDS", 1)
        one = gpu_check.measure(changes, chip)
        two = gpu_check.measure_two(changes, chip)
    return {
        "device": "cpu",
        "ceilings_of": "h200",
        "jax": jax.__version__,
        "attention": gpu_check.kernel(changes),
        "rehearsal": True,
        "plan": {"error": "not asked"},
        "programs": one,
        "two_devices": two,
    }


def test_all_programs_of_a_run_are_timed(measured):
    assert tuple(measured["programs"]) == NAMES
    for name, row in measured["programs"].items():
        assert row["seconds"] > 0
        assert name == "apply" or row["tokens_per_s"] > 0
    assert measured["programs"]["decode"]["of_bandwidth"] > 0


def test_two_devices_are_timed_with_both_ways_to_split_weights(measured):
    assert set(measured["two_devices"]) == {"fsdp 2", "tensor 2"}
    for programs in measured["two_devices"].values():
        assert set(programs) == {"accumulate", "decode"}
        assert all(row["tokens_per_s"] > 0 for row in programs.values())


def test_the_arguments_lie_on_both_devices(measured):
    changes = gpu_check.SMALL | {"policy.path": "Qwen2.5-0.5B", "mesh.tensor": 2}
    settings = gpu_check.with_changes(
        gpu_check.qwen2_5_7b.get_config().to_dict(), changes
    )
    mesh = gpu_check.placement.make_mesh(1, 1, 2)
    shape, _ = gpu_check.shape_of("Qwen2.5-0.5B", "policy.path")
    lowering = gpu_check.Lowering(shape, settings, mesh)
    _, shapes, _ = lowering.call("decode")
    cache = gpu_check._array(jax.tree.leaves(shapes[1])[0])
    assert cache.devices() == set(jax.devices()[:2])
    assert cache.addressable_shards[0].data.size * 2 == cache.size


def test_the_table_has_both_parts(measured):
    text = gpu_check.table(measured)
    assert "A REHEARSAL" in text
    assert ["tensor", "2", "decode"] in [x.split()[:3] for x in text.splitlines()]
    alone = gpu_check.table(measured | {"two_devices": {}})
    assert "two devices: not measured, there is one" in alone


def test_one_device_measures_no_two(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert gpu_check.measure_two(gpu_check.SMALL, CHIPS["h200"]) == {}

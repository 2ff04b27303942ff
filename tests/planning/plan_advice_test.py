import types

import pytest

from mempo_jax.planning import plan
from mempo_jax.planning.memory import Memory
from mempo_jax.settings import ConfigError
from tests.experiments import tiny
from tests.planning.plan_case import settings_of

CONFIG = tiny.get_config().to_dict()
DEVICES, HEADS = 8, 2


def memory(settings):
    """Made up: a device's share of weights, and what programs need."""
    policy, mesh, sampling = settings.policy, settings.mesh, settings.sampling
    size = 2 if policy.param_dtype == "bfloat16" else 4
    weights = 100 * size // (mesh.fsdp * mesh.tensor)
    trained = 2 if policy.lora.rank else weights
    stays = {"parameters": weights, "optimiser": 2 * trained}
    activations = settings.train.micro_batch_tokens // (4 if policy.remat else 1)
    made = {"score": 10, "accumulate": activations, "apply": trained // 4}
    made |= {"prefill": 5 * sampling.slots, "decode": sampling.slots}
    return Memory(stays, trained, made)


def found(usable, measure=memory, **changes):
    settings = settings_of(**changes)
    config = dict(CONFIG)
    start = {name.replace("__", "."): value for name, value in changes.items()}
    for name, value in start.items():
        section, field = name.split(".")
        config[section] = config[section] | {field: value}
    return plan.find(config, measure(settings), usable, DEVICES, HEADS, measure)


def test_a_run_that_fits_is_left_alone():
    assert found(10_000).changes == {}


def test_activations_that_are_too_large_are_recomputed_first():
    made = found(1_900)
    assert made.fits
    assert made.changes == {"policy.remat": True}


def test_weights_that_are_too_large_are_split():
    made = found(1_000, policy__remat=True)
    assert made.fits
    assert set(made.changes) == {"mesh.fsdp"}


def test_a_prefill_that_is_too_large_takes_fewer_slots():
    made = found(970, sampling__slots=128, policy__remat=True, mesh__fsdp=2)
    assert made.fits
    assert "sampling.slots" in made.changes


def test_what_cannot_be_mended_says_how_far_it_got():
    made = found(1)
    assert not made.fits
    assert made.memory.peak < memory(settings_of()).peak


def test_values_that_cannot_run_are_passed_over():
    def measure(settings):
        if settings.policy.remat:
            raise ConfigError("no")
        return memory(settings)

    made = found(2_100, measure)
    assert made.fits
    assert "policy.remat" not in made.changes


def test_changes_are_checked_like_any_config():
    with pytest.raises(ConfigError, match=r"sampling\.slots"):
        plan.with_changes(CONFIG, {"sampling.slots": 0})
    assert plan.with_changes(CONFIG, {"sampling.slots": 4}).sampling.slots == 4
    assert CONFIG["sampling"]["slots"] != 4


def test_heads_of_keys_are_never_divided():
    tried = []
    settings = settings_of()
    plan.find(CONFIG, memory(settings), 1, DEVICES, HEADS, memory, tried.append)
    assert any("mesh.tensor=2" in each for each in tried)
    assert not any("mesh.tensor=4" in each for each in tried)


def axes(data, fsdp, tensor):
    return types.SimpleNamespace(data=data, fsdp=fsdp, tensor=tensor)


@pytest.mark.parametrize(
    ("mesh", "devices", "changes"),
    [
        (axes(-1, 4, 4), 8, {"mesh.fsdp": 2}),
        (axes(-1, 4, 4), 4, {"mesh.fsdp": 1}),
        (axes(-1, 1, 3), 2, {"mesh.tensor": 2}),
        (axes(2, 4, 4), 16, {"mesh.data": 1}),
        (axes(4, 2, 1), 4, {"mesh.data": 2}),
        (axes(-1, 4, 4), 7, {"mesh.fsdp": 1, "mesh.tensor": 7}),
    ],
)
def test_the_nearest_mesh_changes_little_and_keeps_tensor(mesh, devices, changes):
    assert plan.nearest_mesh(mesh, devices, lambda changes: True) == changes


def test_the_nearest_mesh_is_one_that_can_run():
    def fits(changes):
        return changes.get("mesh.tensor") == 2

    assert plan.nearest_mesh(axes(-1, 4, 4), 8, fits) == {"mesh.tensor": 2}
    assert plan.nearest_mesh(axes(-1, 4, 4), 8, lambda changes: False) is None

import pytest

from mempo_jax.planning import speed
from mempo_jax.planning.devices import device
from mempo_jax.planning.programs import known_shape
from tests.planning.plan_case import settings_of

SHAPE = known_shape("Qwen2.5-7B")
BF16 = {
    "policy__param_dtype": "bfloat16",
    "policy__compute_dtype": "bfloat16",
    "train__max_log_prob_gap": 0.1,
}


def seconds(name="v5e-16", work=None, **changes):
    settings = settings_of(**BF16 | changes)
    found, mesh = device(name), settings.mesh
    axes = {"data": found.count // mesh.fsdp, "fsdp": mesh.fsdp, "tensor": 1}
    own = axes if found.hosts == 1 else {"data": 1, "fsdp": 4, "tensor": 1}
    chips = speed.Chips(found, axes, own, False)
    work = work or speed.assumed_work(settings)
    return speed.seconds(SHAPE, settings, chips, work)


def test_parameters_of_products_are_nearly_all():
    assert speed.matrix_parameters(SHAPE) == pytest.approx(7.07e9, rel=0.01)


def test_one_row_at_a_time_is_bound_by_reading_the_weights():
    """2 bytes x 7.07e9 at 60 % of 3.35 TB/s: 7.03 ms a token."""
    work = speed.Work(1, 1, 1_000, 1, 1, 64)
    took = seconds("h100-1", work)["decode"]
    assert took == pytest.approx(7.03, rel=0.02)


def test_training_is_bound_by_products():
    """6 x 7.07e9 FLOP a token and a little attention, at 40 % of 989 TFLOP/s."""
    work = speed.Work(8, 1, 1, 1, 1_000, 64)
    assert seconds("h100-1", work)["train"] == pytest.approx(6.9, rel=0.03)
    again = seconds("h100-1", work, policy__remat=True)["train"]
    assert again == pytest.approx(6.9 * 8 / 6, rel=0.03)


def test_split_weights_travel_in_each_step_of_decoding():
    work = speed.Work(8, 1, 100, 1, 8, 64)

    def took(fsdp, chunk):
        changes = {"mesh__fsdp": fsdp, "sampling__decode_chunk": chunk}
        return seconds("v5p-8", work, **changes)["decode"]

    assert took(4, 1) > 1.5 * took(1, 1)
    assert took(4, 64) == took(4, 1)


def test_contexts_that_are_rebuilt_are_trained_on_turn_by_turn():
    settings = settings_of()
    work = speed.assumed_work(settings)
    assert (work.trajectories, work.turns, work.rows) == (8, 3, 24)
    assert speed.assumed_work(settings, 5, 7).turn_tokens == 7
    grown = speed.assumed_work(settings_of(context__rule="append"))
    assert grown.rows == 8

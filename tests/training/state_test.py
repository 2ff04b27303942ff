import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from mempo_jax.distributed import placement
from mempo_jax.training import state as module
from tests.training import step_case

TRAIN = dataclasses.replace(
    step_case.TRAIN, learning_rate=0.1, weight_decay=0.0, adam_eps=1e-8, grad_clip=1e9
)
TABLE = ((r"w$", PartitionSpec("fsdp")),)


def _optimiser(**changes):
    return module.policy_optimiser(dataclasses.replace(TRAIN, **changes))


def _rate(step, *, warmup_updates=0, decay_updates=0):
    schedule = module.learning_rate(
        0.1, warmup_updates=warmup_updates, decay_updates=decay_updates
    )
    return float(schedule(step))


def test_constant_rate():
    assert {_rate(s) for s in (0, 1, 1000)} == {0.1}


def test_warm_up_rises_from_above_zero_to_the_rate_and_stays():
    rates = [_rate(s, warmup_updates=4) for s in (0, 1, 2, 3, 4, 5, 100)]
    expected = [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_cosine_ends_at_zero():
    updates = {"warmup_updates": 2, "decay_updates": 12}
    rates = [_rate(s, **updates) for s in (2, 7, 12, 50)]
    np.testing.assert_allclose(rates, [0.1, 0.05, 0, 0], atol=1e-7)
    with pytest.raises(ValueError, match="decay_steps"):
        _rate(0, warmup_updates=12, decay_updates=12)


def test_first_adamw_step_is_minus_rate_times_sign():
    optimiser = module.policy_optimiser(TRAIN)
    params = {"w": jnp.array([1.0, 2.0, 3.0])}
    grads = {"w": jnp.array([5.0, -0.01, 0.0])}
    updates, _ = optimiser.update(grads, optimiser.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.1, 0.1, 0.0], rtol=1e-5)


def test_weight_decay_pulls_towards_zero():
    optimiser = _optimiser(weight_decay=0.5)
    params = {"w": jnp.array([2.0])}
    updates, _ = optimiser.update({"w": jnp.zeros(1)}, optimiser.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.1 * 0.5 * 2.0], rtol=1e-6)


def test_clip_bounds_the_norm_of_the_whole_gradient():
    # With eps far above the clipped gradient the step is proportional to it.
    optimiser = _optimiser(grad_clip=1.0, adam_eps=1e6)
    params = {"w": jnp.zeros(1), "v": jnp.zeros(1)}
    grads = {"w": jnp.array([30.0]), "v": jnp.array([40.0])}
    updates, _ = optimiser.update(grads, optimiser.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.1 * 0.6 / 1e6], rtol=1e-3)
    np.testing.assert_allclose(updates["v"], [-0.1 * 0.8 / 1e6], rtol=1e-3)


def test_bfloat16_parameters_get_float32_masters_and_moments():
    mesh = placement.make_mesh(1, 1, 1)
    optimiser = module.policy_optimiser(TRAIN)
    params = {"w": np.linspace(0.5, 1, 6, dtype=jnp.bfloat16).reshape(2, 3)}
    state = module.state_from_params(params, optimiser, mesh, TABLE)
    floats = [x for x in jax.tree.leaves((state.params, state.opt_state)) if x.ndim]
    assert {x.dtype for x in floats} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(state.params["w"], params["w"].astype(np.float32))


def test_initial_state_is_made_in_its_place():
    mesh = placement.make_mesh(4, 2, 1)
    optimiser = module.policy_optimiser(TRAIN)

    def init(key):
        return {"w": jax.random.normal(key, (8, 3))}

    state = module.init_state(init, jax.random.key(0), optimiser, mesh, TABLE)
    moments = optax.tree.get(state.opt_state, "mu")
    for leaf in (state.params["w"], moments["w"]):
        assert {s.data.shape for s in leaf.addressable_shards} == {(4, 3)}
    np.testing.assert_allclose(state.params["w"], init(jax.random.key(0))["w"])
    assert state.step == 0


@pytest.mark.parametrize("placed_before", [True, False])
def test_state_over_given_parameters_is_a_copy(placed_before):
    mesh = placement.make_mesh(4, 2, 1)
    optimiser = module.policy_optimiser(TRAIN)
    params = {"w": np.arange(24.0, dtype=np.float32).reshape(8, 3)}
    if placed_before:
        params = placement.place_params(params, mesh, TABLE)
    state = module.state_from_params(params, optimiser, mesh, TABLE)
    consume = jax.jit(lambda s: jax.tree.map(lambda x: x * 0, s), donate_argnums=0)
    consume(state)
    np.testing.assert_allclose(params["w"], np.arange(24.0).reshape(8, 3))

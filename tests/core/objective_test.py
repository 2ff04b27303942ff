from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.core import objective
from mempo_jax.core.objective import AGGREGATIONS, AUX_KEYS

RULES = ("clip_low", "clip_high", "dual_clip")
clipped_surrogate = jax.jit(objective.clipped_surrogate, static_argnames=RULES)
policy_objective = jax.jit(
    objective.policy_objective,
    static_argnames=(*RULES, "kl_estimator", "aggregation", "constant_length"),
)

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def _batch(rows=4, length=6, seed=0):
    rng = np.random.default_rng(seed)
    shape = (rows, length)
    log_probs = -rng.exponential(size=shape)
    return {
        "log_probs": log_probs,
        "old_log_probs": log_probs + 0.2 * rng.normal(size=shape),
        "ref_log_probs": log_probs + 0.5 * rng.normal(size=shape),
        "advantage": rng.normal(size=shape),
        "mask": rng.random(shape) < 0.6,
    }


def _loss(batch, **options):
    options = {**CLIP, "kl_coef": 0.1, **options}
    total, count, _ = policy_objective(**batch, **options)
    return total / jnp.maximum(count, 1)


def test_surrogate_hand_numbers():
    ratio = np.array([[1.0, 1.5, 1.5, 0.5, 0.5]])
    advantage = np.array([[2.0, 1.0, -1.0, 1.0, -1.0]])
    got = clipped_surrogate(np.log(ratio), np.zeros((1, 5)), advantage, **CLIP)
    np.testing.assert_allclose(got, [[2.0, 1.3, -1.5, 0.5, -0.8]], rtol=1e-6)


def test_dual_clip_bounds_the_loss_of_bad_actions_alone():
    log_ratio = np.log([[10.0, 10.0]])
    advantage = np.array([[-1.0, 1.0]])
    args = (log_ratio, np.zeros((1, 2)), advantage)
    free = clipped_surrogate(*args, **CLIP)
    held = clipped_surrogate(*args, **CLIP, dual_clip=3.0)
    np.testing.assert_allclose(free, [[-10, 1.3]], rtol=1e-5)
    np.testing.assert_allclose(held, [[-3, 1.3]], rtol=1e-5)
    with pytest.raises(ValueError, match="dual_clip"):
        clipped_surrogate(*args, **CLIP, dual_clip=0.5)


def test_on_policy_ratio_is_one_and_gradient_is_plain_policy_gradient():
    batch = _batch()
    batch["old_log_probs"] = batch["log_probs"]
    _, _, aux = policy_objective(**batch, **CLIP, kl_coef=0.0)
    np.testing.assert_allclose(aux["ratio"], aux["tokens"], rtol=1e-6)
    assert aux["clip_fraction"] == 0

    def loss(log_probs):
        return _loss({**batch, "log_probs": log_probs}, kl_coef=0.0)

    gradient = jax.grad(loss)(batch["log_probs"])
    expected = -np.where(batch["mask"], batch["advantage"], 0) / batch["mask"].sum()
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


def test_aggregations_hand_numbers():
    # Trajectory 0 spans rows 0 and 1 (3 tokens), trajectory 5 is row 2 (1 token),
    # row 3 has no counted token. On policy and without KL a token's loss is -A.
    advantage = np.array([[1.0, 2.0], [3.0, 9.0], [9.0, 8.0], [9.0, 9.0]])
    mask = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], bool)
    zeros = np.zeros((4, 2))

    def result(aggregation, **options):
        total, count, _ = policy_objective(
            zeros,
            zeros,
            zeros,
            advantage,
            mask,
            **CLIP,
            kl_coef=0.0,
            aggregation=aggregation,
            trajectory_index=np.array([0, 0, 5, 7]),
            **options,
        )
        return float(total), float(count)

    assert result("token_mean") == (-14.0, 4.0)
    np.testing.assert_allclose(result("trajectory_mean"), (-(2.0 + 8.0), 2.0))
    assert result("constant", constant_length=10) == (-14.0, 20.0)
    assert result("constant") == (-14.0, 4.0)  # two trajectories x T


def test_a_trajectory_with_more_rows_counts_once():
    zeros = np.zeros((3, 4))
    advantage = np.array([[1.0] * 4, [1.0] * 4, [-1.0] * 4])
    total, count, _ = policy_objective(
        *(zeros, zeros, zeros, advantage, np.ones((3, 4), bool)),
        **CLIP,
        kl_coef=0.0,
        aggregation="trajectory_mean",
        trajectory_index=np.array([0, 0, 1]),
    )
    assert count == 2
    np.testing.assert_allclose(total, 0, atol=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_add_to_the_whole(aggregation):
    batch = _batch()
    index = np.array([0, 1, 0, 1])  # trajectories lie across every cut
    tokens = np.zeros(2)
    np.add.at(tokens, index, batch["mask"].sum(1))
    options = {
        **CLIP,
        "kl_coef": 0.1,
        "aggregation": aggregation,
        "constant_length": 9,
    }

    def run(log_probs, rows):
        part = {name: values[rows] for name, values in batch.items()}
        part["log_probs"] = log_probs[rows]
        given = None if rows == slice(None) else tokens
        return policy_objective(
            **part,
            **options,
            trajectory_index=index[rows],
            trajectory_token_count=given,
        )

    def loss(log_probs, parts):
        results = [run(log_probs, rows) for rows in parts]
        count = sum(result[1] for result in results)
        return sum(result[0] for result in results) / jnp.maximum(count, 1), results

    @partial(jax.jit, static_argnums=0)
    def run_all(edges):
        parts = [slice(a, b) for a, b in pairwise(edges)] if edges else [slice(None)]
        grad = jax.value_and_grad(loss, has_aux=True)
        return grad(batch["log_probs"], parts)

    (whole, [(_, _, aux)]), gradient = run_all(())
    for edges in ((0, 1, 2, 3, 4), (0, 3, 4)):
        (split, results), split_gradient = run_all(edges)
        np.testing.assert_allclose(split, whole, rtol=1e-5)
        np.testing.assert_allclose(split_gradient, gradient, rtol=1e-5, atol=1e-8)
        for key in AUX_KEYS:
            total = sum(result[2][key] for result in results)
            np.testing.assert_allclose(total, aux[key], rtol=1e-5)


@pytest.mark.parametrize(
    ("aggregation", "estimator"), list(zip(AGGREGATIONS, ("k1", "k2", "k3")))
)
def test_gradient_equals_finite_differences(aggregation, estimator):
    batch = _batch(seed=3)
    options = {"aggregation": aggregation, "kl_estimator": estimator, "dual_clip": 2.0}

    def loss(log_probs):
        return _loss({**batch, "log_probs": log_probs}, **options)

    with jax.enable_x64(True):
        base = jnp.asarray(batch["log_probs"])
        exact = jax.jit(jax.grad(loss))(base)
        steps = 1e-6 * jnp.eye(base.size).reshape(-1, *base.shape)
        loss = jax.jit(loss)
        slope = np.array([loss(base + s) - loss(base - s) for s in steps]) / 2e-6
        np.testing.assert_allclose(exact.ravel(), slope, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_garbage_in_padding(aggregation):
    batch = _batch()
    options = {**CLIP, "kl_coef": 0.1, "aggregation": aggregation}

    @jax.jit
    def run(batch):
        def loss(log_probs):
            total, count, aux = policy_objective(
                **{**batch, "log_probs": log_probs}, **options, entropy=log_probs
            )
            return total / count, aux

        return jax.value_and_grad(loss, has_aux=True)(batch["log_probs"])

    clean = run(batch)
    for garbage in (np.nan, np.inf, -np.inf, 1e30):
        dirty = {
            name: np.where(batch["mask"], values, garbage) if name != "mask" else values
            for name, values in batch.items()
        }
        jax.tree.map(np.testing.assert_array_equal, run(dirty), clean)


def test_more_observation_tokens_change_nothing():
    batch = _batch()

    def longer(values, fill):
        return np.insert(values, [2, 2, 5], fill, axis=1)

    wide = {name: longer(values, -3.0) for name, values in batch.items()}
    wide["mask"] = longer(batch["mask"], False)
    for aggregation in AGGREGATIONS:
        options = {"aggregation": aggregation, "constant_length": 5}
        np.testing.assert_allclose(
            _loss(wide, **options), _loss(batch, **options), rtol=1e-6
        )


def test_nothing_counted_gives_loss_zero_and_zero_gradient():
    batch = _batch()
    batch["mask"] = np.zeros_like(batch["mask"])
    for aggregation in AGGREGATIONS:

        def loss(log_probs, aggregation=aggregation):
            return _loss(
                {**batch, "log_probs": log_probs},
                aggregation=aggregation,
                constant_length=5,
            )

        value, gradient = jax.value_and_grad(loss)(batch["log_probs"])
        assert value == 0
        assert not gradient.any()


def test_zero_advantage_gives_loss_zero_and_zero_gradient():
    batch = _batch()
    batch["advantage"] = np.zeros_like(batch["advantage"])

    def loss(log_probs):
        return _loss({**batch, "log_probs": log_probs}, kl_coef=0.0)

    value, gradient = jax.value_and_grad(loss)(batch["log_probs"])
    assert value == 0
    assert not gradient.any()


def test_kl_mask_restricts_the_penalty_but_not_the_divisor():
    batch = _batch()
    batch["advantage"] = np.zeros_like(batch["advantage"])
    batch["mask"][:] = True
    half = np.zeros_like(batch["mask"])
    half[:, :3] = True
    total, count, aux = policy_objective(**batch, **CLIP, kl_coef=0.5, kl_mask=half)
    d = batch["log_probs"] - batch["ref_log_probs"]
    kl = np.exp(-d) - 1 + d
    np.testing.assert_allclose(total, 0.5 * kl[:, :3].sum(), rtol=1e-5)
    assert count == batch["mask"].size
    np.testing.assert_allclose(aux["kl"], kl.sum(), rtol=1e-5)


def test_far_policies_stay_finite():
    batch = _batch()
    batch["old_log_probs"] = batch["log_probs"] - 1e4
    batch["ref_log_probs"] = batch["log_probs"] + 1e4

    def loss(log_probs):
        return _loss({**batch, "log_probs": log_probs})

    value, gradient = jax.value_and_grad(loss)(batch["log_probs"])
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_weighted_tokens_are_those_with_an_advantage():
    batch = _batch()
    batch["mask"][:] = True
    batch["advantage"][:, :2] = 0
    _, _, aux = policy_objective(**batch, **CLIP, kl_coef=0.1)
    assert aux["weighted_token_share"] == 4 * 4
    assert aux["tokens"] == 4 * 6


def test_unknown_choices_are_refused():
    with pytest.raises(ValueError, match="token_mean, trajectory_mean, constant"):
        _loss(_batch(), aggregation="mean")
    with pytest.raises(ValueError, match="k1, k2, k3"):
        _loss(_batch(), kl_estimator="k4")

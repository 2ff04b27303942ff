from functools import partial

import jax
import numpy as np
import pytest

from mempo_jax.core.objective import (
    AUX_KEYS,
    IMPORTANCE_KEYS,
    clipped_surrogate,
    importance_weights,
    policy_objective,
)

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def batch_of(rows=4, length=6, seed=0):
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


def test_importance_weights_hand_numbers():
    behaviour = np.log([[0.5, 0.5, 0.5, 0.5]])
    old = np.log([[0.5, 0.25, 0.75, 4.0]])
    weights, capped = importance_weights(old, behaviour, 2.0)
    np.testing.assert_allclose(weights, [[1.0, 0.5, 1.5, 2.0]], rtol=1e-6)
    assert capped.tolist() == [[False, False, False, True]]
    with pytest.raises(ValueError, match="importance_cap must be above 0"):
        importance_weights(old, behaviour, 0.0)


def test_importance_weights_of_far_samplers_stay_finite():
    far = np.array([[1e4, -1e4]])
    wide, _ = importance_weights(far, 0 * far, 1e30)
    np.testing.assert_allclose(wide, np.exp([[20.0, -20.0]]), rtol=1e-5)


def test_each_surrogate_counts_by_its_importance_and_the_kl_does_not():
    batch = batch_of(seed=5)
    mask = batch["mask"]
    gap = np.random.default_rng(6).normal(size=mask.shape)
    behaviour = np.where(mask, batch["old_log_probs"] - gap, np.nan)
    options = {**CLIP, "kl_coef": 0.1}
    total, count, aux = policy_objective(
        **batch, **options, behaviour_log_probs=behaviour, importance_cap=1.5
    )
    weight = np.minimum(np.exp(gap), 1.5)
    surrogate = clipped_surrogate(
        batch["log_probs"], batch["old_log_probs"], batch["advantage"], **CLIP
    )
    d = batch["log_probs"] - batch["ref_log_probs"]
    loss = -weight * surrogate + 0.1 * (np.exp(-d) - 1 + d)
    np.testing.assert_allclose(total, loss[mask].sum(), rtol=1e-5)
    assert count == mask.sum()
    np.testing.assert_allclose(aux["importance_weight"], weight[mask].sum(), rtol=1e-5)
    assert aux["importance_capped"] == (np.exp(gap) > 1.5)[mask].sum() > 0


def test_a_sampler_that_is_the_trainer_changes_nothing_by_its_weights():
    batch = batch_of()
    plain = policy_objective(**batch, **CLIP, kl_coef=0.1)
    weighted = policy_objective(
        **batch,
        **CLIP,
        kl_coef=0.1,
        behaviour_log_probs=batch["old_log_probs"],
        importance_cap=1.0,
    )
    assert plain[:2] == weighted[:2]
    aux = weighted[2]
    assert set(plain[2]) == set(AUX_KEYS)
    assert set(aux) == {*AUX_KEYS, *IMPORTANCE_KEYS}
    assert aux.pop("importance_weight") == aux["tokens"]
    assert aux.pop("importance_capped") == 0
    assert aux == plain[2]


def test_without_a_cap_the_sampler_is_not_looked_at():
    batch = batch_of()
    garbage = np.full_like(batch["log_probs"], np.nan)
    plain = policy_objective(**batch, **CLIP, kl_coef=0.1)
    given = policy_objective(**batch, **CLIP, kl_coef=0.1, behaviour_log_probs=garbage)
    assert plain == given


def test_no_gradient_flows_through_importance_weights():
    batch = batch_of()

    def total(old):
        return importance_weights(old, batch["behaviour_log_probs"], 5.0)[0].sum()

    batch["behaviour_log_probs"] = batch["old_log_probs"] - 0.3
    assert not jax.grad(total)(batch["old_log_probs"]).any()

    def loss(name, values):
        total, count, _ = policy_objective(
            **{**batch, name: values}, **CLIP, kl_coef=0.0, importance_cap=5.0
        )
        return total / count

    for name in ("old_log_probs", "behaviour_log_probs"):
        gradient = jax.grad(partial(loss, name))(batch["old_log_probs"])
        assert not gradient.any()


def test_a_cap_needs_what_the_sampler_said():
    with pytest.raises(ValueError, match="importance_cap needs behaviour_log_probs"):
        policy_objective(**batch_of(), **CLIP, kl_coef=0.0, importance_cap=1.0)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.core import kl_coefficient, kl_k1, kl_k2, kl_k3


def test_hand_numbers():
    log_probs, ref = np.log([[0.5, 0.2]]), np.log([[0.25, 0.4]])
    d = np.log([[2.0, 0.5]])
    np.testing.assert_allclose(kl_k1(log_probs, ref), d, rtol=1e-6)
    np.testing.assert_allclose(kl_k2(log_probs, ref), d**2 / 2, rtol=1e-6)
    np.testing.assert_allclose(kl_k3(log_probs, ref), 1 / np.exp(d) - 1 + d, rtol=1e-6)


def test_k1_and_k3_estimate_the_divergence():
    policy, ref = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    exact = (policy * np.log(policy / ref)).sum()
    for estimator in (kl_k1, kl_k3):
        values = np.asarray(estimator(np.log(policy), np.log(ref)))
        np.testing.assert_allclose((policy * values).sum(), exact, rtol=1e-5)


def test_gradient_of_k2_is_that_of_the_divergence():
    ref = jnp.log(jnp.array([0.3, 0.3, 0.4]))
    logits = jnp.array([0.4, -0.2, 0.1])

    def divergence(logits):
        log_probs = jax.nn.log_softmax(logits)
        return (jnp.exp(log_probs) * (log_probs - ref)).sum()

    def estimate(logits):
        log_probs = jax.nn.log_softmax(logits)
        chance = jax.lax.stop_gradient(jnp.exp(log_probs))
        return (chance * kl_k2(log_probs, ref)).sum()

    np.testing.assert_allclose(
        jax.grad(estimate)(logits), jax.grad(divergence)(logits), atol=1e-6
    )


def test_k3_is_zero_on_policy_and_never_negative():
    assert kl_k3(np.zeros((2, 3)), np.zeros((2, 3))).max() == 0
    d = np.concatenate([-np.logspace(-8, 1, 400), np.logspace(-8, 1, 400)])
    values = np.asarray(kl_k3(d, 0 * d), np.float64)
    assert values.min() >= 0
    exact = np.expm1(-d) + d
    np.testing.assert_allclose(values[np.abs(d) > 1e-3], exact[np.abs(d) > 1e-3], 2e-3)
    np.testing.assert_allclose(
        values[np.abs(d) < 1e-3], (d**2 / 2)[np.abs(d) < 1e-3], 1e-2
    )


@pytest.mark.parametrize("estimator", [kl_k1, kl_k2, kl_k3])
def test_far_apart_stays_finite_in_value_and_gradient(estimator):
    log_probs = jnp.array([-1e4, 0.0, -500.0])
    ref = jnp.array([0.0, -1e4, 0.0])
    value, gradient = jax.value_and_grad(lambda x: estimator(x, ref).sum())(log_probs)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("estimator", [kl_k1, kl_k2, kl_k3])
def test_gradient_equals_finite_differences(estimator):
    with jax.enable_x64(True):
        estimator, gradient = jax.jit(estimator), jax.jit(jax.grad(estimator))
        for d in (-2.0, -5e-3, 1e-3, 0.3, 3.0):
            slope = (estimator(d + 1e-6, 0.0) - estimator(d - 1e-6, 0.0)) / 2e-6
            exact = gradient(d, 0.0)
            np.testing.assert_allclose(exact, slope, rtol=1e-5, atol=1e-9)


def test_coefficient_rises_from_zero_to_target():
    values = [
        float(kl_coefficient(step, target=0.02, warmup_steps=10))
        for step in (0, 5, 10, 11, 1000)
    ]
    np.testing.assert_allclose(values, [0, 0.01, 0.02, 0.02, 0.02], rtol=1e-6)
    np.testing.assert_allclose(kl_coefficient(0, target=0.02, warmup_steps=0), 0.02)

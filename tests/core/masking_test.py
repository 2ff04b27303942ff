import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.core import masking


def test_hand_numbers():
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mask = np.array([[True, False, True], [False, False, False]])
    assert masking.masked_sum(values, mask) == 4
    assert masking.masked_mean(values, mask) == 2
    np.testing.assert_allclose(masking.masked_mean(values, mask, -1), [2, 0])
    np.testing.assert_allclose(masking.masked_max(values, mask, -1), [3, -np.inf])
    np.testing.assert_allclose(masking.masked_min(values, mask, -1), [1, np.inf])


def test_garbage_left_out_reaches_neither_value_nor_gradient():
    values = jnp.array([1.0, jnp.nan, jnp.inf, 2.0])
    mask = jnp.array([True, False, False, True])
    for reduce in (masking.masked_sum, masking.masked_mean):
        value, gradient = jax.value_and_grad(reduce)(values, mask)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert not gradient[1:3].any()


def test_half_precision_is_widened():
    values = jnp.ones(3000, jnp.bfloat16)
    total = masking.masked_sum(values, jnp.ones(3000, bool))
    assert total.dtype == jnp.float32
    assert total == 3000

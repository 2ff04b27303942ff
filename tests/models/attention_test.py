import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax._src.cudnn import fused_attention_stablehlo as fused

from mempo_jax.models import attention


@pytest.mark.parametrize(
    ("backend", "dtype", "head_dim", "expected"),
    [
        ("gpu", "bfloat16", 64, "cudnn"),
        ("gpu", "bfloat16", 128, "cudnn"),
        ("gpu", "float32", 128, "xla"),
        ("gpu", "bfloat16", 256, "xla"),
        ("gpu", "bfloat16", 20, "xla"),
        ("tpu", "bfloat16", 128, "xla"),
        ("cpu", "bfloat16", 128, "xla"),
    ],
)
def test_auto_takes_the_flash_kernel_where_it_can_run(
    backend, dtype, head_dim, expected, monkeypatch
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert attention.chosen("auto", dtype, head_dim) == expected
    assert attention.chosen("xla", dtype, head_dim) == "xla"


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="one of auto, xla, cudnn, got 'flash'"):
        attention.chosen("flash", "float32", 64)


@pytest.mark.parametrize(
    ("backend", "dtype", "head_dim", "why"),
    [
        ("gpu", "bfloat16", 128, ""),
        ("gpu", "bfloat16", 256, ""),
        ("tpu", "bfloat16", 128, "on tpu, got 'cudnn', which needs an NVIDIA GPU"),
        ("cpu", "float32", 128, "on cpu, got 'cudnn', which needs an NVIDIA GPU"),
        ("gpu", "float32", 128, "with policy.compute_dtype = 'float32', got 'cudnn'"),
        ("gpu", "bfloat16", 20, "for heads of 20, got 'cudnn', which takes multiples"),
        ("gpu", "bfloat16", 264, "for heads of 264, got 'cudnn', which takes"),
    ],
)
def test_a_named_kernel_that_cannot_run_is_refused(
    backend, dtype, head_dim, why, monkeypatch
):
    found = attention.refusal("cudnn", dtype, head_dim, backend)
    assert found.startswith(f"expected 'auto' or 'xla' {why}" if why else "")
    assert bool(found) == bool(why)
    for other in ("auto", "xla"):
        assert attention.refusal(other, dtype, head_dim, backend) == ""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert attention.refusal("cudnn", dtype, head_dim) == found


def test_what_the_flash_kernel_is_asked_for_equals_the_mask(monkeypatch):
    """With its name taken away, the same call runs on plain operations."""
    plain, asked = jax.nn.dot_product_attention, []

    def without_kernel(*arrays, implementation=None, **options):
        asked.append(implementation)
        return plain(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", without_kernel)
    keys = jax.random.split(jax.random.key(0), 3)
    heads = (4, 2, 2)
    rows = [jax.random.normal(k, (2, 6, n, 8)) for k, n in zip(keys, heads)]
    real = jnp.arange(6) < jnp.array([[6], [4]])
    got, expected = (
        attention.causal_attention(real, each)(*rows) for each in ("cudnn", "xla")
    )
    assert asked == ["cudnn", None]
    np.testing.assert_allclose(got[0], expected[0], atol=1e-6)
    np.testing.assert_allclose(got[1, :4], expected[1, :4], atol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("count", "heads"), [(1, 6), (1, 2), (3, 6)])
def test_attention_to_a_cache_equals_plain_attention(count, heads, turned):
    rng = np.random.default_rng(0)
    query = rng.normal(size=(3, count, heads, 4)).astype(np.float32)
    keys, values = rng.normal(size=(2, 3, 2, 7, 4)).astype(np.float32)
    ends = np.array([3, 7, 5])[:, None] - np.arange(count)[::-1]
    mask = (np.arange(7) < ends[..., None])[:, None]
    held = keys.swapaxes(2, 3) if turned else keys
    seen = attention.cached_attention(query, held, values, mask, turned)
    for row, token, head in np.ndindex(3, count, heads):
        own, end = head // (heads // 2), ends[row, token]
        scores = keys[row, own, :end] @ query[row, token, head] / 2
        weights = np.exp(scores) / np.exp(scores).sum()
        expected = weights @ values[row, own, :end]
        np.testing.assert_allclose(seen[row, token, head], expected, atol=1e-5)


# What cuDNN's own checks would ask of the device: a Hopper with a recent cuDNN.
@pytest.mark.parametrize(
    ("head_dim", "hopper", "kernels"), [(64, False, 2), (128, False, 2), (256, True, 2)]
)
def test_the_flash_kernel_exports_for_cuda(head_dim, hopper, kernels, monkeypatch):
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91_200)
    monkeypatch.setattr(fused, "check_compute_capability", lambda _: hopper)
    monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda _: False)

    def total(*rows):
        real = jnp.ones(rows[0].shape[:2], bool)
        made = attention.causal_attention(real, "cudnn")(*rows)
        return made.astype(jnp.float32).sum()

    query, key = (
        jax.ShapeDtypeStruct((2, 256, heads, head_dim), jnp.bfloat16)
        for heads in (8, 2)
    )
    names = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
    unchecked = [export.DisabledSafetyCheck.custom_call(name) for name in names]
    slopes = jax.jit(jax.value_and_grad(total, (0, 1, 2)))
    made = export.export(slopes, platforms=["cuda"], disabled_checks=unchecked)(
        query, key, key
    )
    assert made.mlir_module().count("custom_call @__cudnn$fmha") == kernels
    assert [x.dtype for x in made.out_avals[1:]] == [jnp.bfloat16] * 3

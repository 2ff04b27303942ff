"""What only a GPU can show. Run with ``-m gpu``; on a CPU that is a rehearsal.

scripts/gpu_check.sh runs them with jax on CUDA; JAX_PLATFORMS decides where.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.models.attention import causal_attention, chosen
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.rollout.sampler import Request
from tests.rollout import tiny
from tests.training import step_case

pytestmark = pytest.mark.gpu
ROUNDING = 0.02  # of values near 1 in bfloat16, which has 8 bits
GAP = {"float32": 1e-3, "bfloat16": 0.1}  # nats; the bounds of a run's own check


@pytest.mark.parametrize("size", [64, 128])
def test_the_flash_kernel_equals_plain_attention(size):
    """Values and gradients, grouped heads, rows with padding at their right."""
    rng = np.random.default_rng(0)
    fast = chosen("auto", jnp.bfloat16, size)
    if jax.default_backend() == "gpu":
        assert fast == "cudnn"
    query, *pair = (
        jnp.asarray(rng.normal(size=(2, 256, heads, size)), jnp.bfloat16)
        for heads in (8, 2, 2)
    )
    real = np.arange(256) < np.array([[256], [150]])
    weights = jnp.asarray(rng.normal(size=query.shape) * real[..., None, None])

    def outcome(implementation):
        def total(*given):
            made = causal_attention(jnp.asarray(real), implementation)(*given)
            return (made.astype(jnp.float32) * weights).sum(), made

        return jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(query, *pair)

    (slopes, made), (true_slopes, true) = outcome(fast), outcome("xla")
    for one, other in [(made, true), *zip(slopes, true_slopes)]:
        one, other = (np.asarray(x, np.float32)[real] for x in (one, other))
        assert np.abs(one - other).max() <= ROUNDING * max(1, np.abs(other).max())


def test_an_update_in_bfloat16_is_finite():
    config = dataclasses.replace(step_case.CONFIG, layers=2)
    model = LanguageModel(config, "bfloat16", remat=True)
    programs = step_case.build(model=model)[2]
    state = step_case.new_state(model=model)
    batches = [step_case.make_rows()]
    facts = step_case.make_trajectories()
    _, state, figures = step_case.update(state, programs, batches, facts)
    assert not figures["skipped"]
    assert float(figures["grad_norm"]) > 0
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_log_probs_are_those_that_training_computes(dtype, monkeypatch):
    model = LanguageModel(tiny.CONFIG, dtype)
    monkeypatch.setattr(tiny, "MODEL", model)
    engine = tiny.make_engine(slots=8)
    prompts = [tiny.TOKENIZER.encode("one two three")[: 2 + n % 2] for n in range(8)]
    requests = [
        Request(n, tokens, np.array([7, n], np.uint32), 24)
        for n, tokens in enumerate(prompts)
    ]
    gaps = []
    for request, made in zip(requests, engine.generate(requests, temperature=0.9)):
        tokens = [*request.tokens, *made.tokens]
        again = _scored(model, tokens)[len(request.tokens) :]
        gaps.append(np.abs(again - made.log_probs).max())
    assert max(gaps) <= GAP[dtype]


def _scored(model, tokens):
    """Log-probs of one row at the temperature of sampling, as training has them."""
    padded = np.zeros((1, tiny.LONGEST), np.int32)
    padded[0, : len(tokens)] = tokens
    mask = np.arange(tiny.LONGEST)[None] < len(tokens)
    params = tiny.make_params()
    hidden = model.hidden(params, padded, mask)
    made = tiny.shifted_log_probs(
        hidden,
        model.unembed(params).astype(hidden.dtype),
        padded,
        temperature=0.9,
        mask=mask,
    )
    return np.asarray(made)[0, : len(tokens)]

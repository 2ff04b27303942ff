"""The loop over chunks of tokens: what is computed, and with how much memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.core import log_probs as module
from tests.core.log_probs_test import B, T, V, inputs


def _ragged():
    """Counts of 0, 3 and 6 in no order, of 7 columns."""
    mask = np.zeros((B, T), bool)
    mask[1, [0, 4, 6]] = True
    mask[2, [0, 1, 2, 4, 5, 6]] = True
    return mask


@pytest.mark.parametrize("columns", [1, 2, 7])
def test_what_counts_is_scored_wherever_it_stands(columns):
    hidden, unembed, targets = inputs()
    weights = np.random.default_rng(1).normal(size=(2, B, T)).astype(np.float32)
    mask = _ragged()

    def ours(hidden, unembed, temperature):
        return module.token_log_probs_and_entropy(
            *(hidden, unembed, targets),
            temperature=temperature,
            chunk_size=columns * B,
            mask=mask,
        )

    def theirs(hidden, unembed, temperature):
        logits = hidden @ unembed / temperature
        table = jax.nn.log_softmax(logits)
        scores = jnp.take_along_axis(table, targets[..., None], -1)[..., 0]
        table = jax.lax.stop_gradient(table)  # the entropy is only reported
        entropy = -jnp.sum(jnp.exp(table) * table, -1)
        return scores * mask, entropy * mask

    def both(score):
        values, back = jax.vjp(score, hidden, unembed, 0.7)
        return values, back(tuple(weights))

    ours, theirs = (jax.jit(both, static_argnums=0)(s) for s in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours, theirs)
    assert not ours[1][0][0].any()  # a row of which nothing counts
    assert ours[1][2] != 0  # the temperature has a slope, too


@pytest.mark.parametrize(("count", "runs"), [(0, 0), (1, 1), (6, 3), (7, 4), (None, 4)])
def test_what_does_not_count_costs_no_logits(monkeypatch, count, runs):
    """The fullest row decides: 7 columns in chunks of 2, forward and backward."""
    hidden, unembed, targets = inputs()
    plain, ran = module._plain, []

    def counted(*args):
        jax.debug.callback(lambda: ran.append(1))
        return plain(*args)

    monkeypatch.setattr(module, "_plain", counted)
    mask = None if count is None else np.zeros((B, T), bool)
    if count:
        mask[1, T - count :] = True

    def total(hidden):
        given = hidden, unembed, targets
        return module.token_log_probs(*given, chunk_size=2 * B, mask=mask).sum()

    slopes = jax.jit(jax.grad(total))(hidden)
    jax.effects_barrier()
    assert len(ran) == 2 * runs
    assert np.any(slopes) == (runs > 0)


def test_long_rows_are_cut_so_that_some_can_be_left_out(monkeypatch):
    monkeypatch.setattr(module, "LEAST_LOGITS", 2 * B * V)
    sizes = [module._columns((B, n), V, 10**6, 1) for n in (2, 4, 7, 16, 160)]
    assert sizes == [2, 2, 3, 2, 20]  # 8 pieces at most, of 2 columns at least
    assert module._columns((B, 160), V, 5 * B, 1) == 5
    # Four devices share what is four times as large.
    assert module._columns((B, 160), V, 5 * B, 4) == 20
    assert module._columns((B, 16), V, 10**6, 4) == 8


def test_a_large_vocabulary_makes_smaller_chunks_and_the_same_numbers(monkeypatch):
    hidden, unembed, targets = inputs()

    def both():
        def total(hidden, unembed):  # a new one each time: traces are cached
            return module.token_log_probs(hidden, unembed, targets, chunk_size=9).sum()

        values = jax.jit(jax.value_and_grad(total, (0, 1)))(hidden, unembed)
        return values, str(jax.make_jaxpr(total)(hidden, unembed))

    whole, before = both()
    monkeypatch.setattr(module, "MOST_LOGITS", 2 * V * B)
    capped, after = both()
    assert f"[{B},3,{V}]" in before
    assert f"[{B},2,{V}]" in after
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole, capped
    )


@pytest.mark.parametrize("gradient", [False, True])
def test_memory_at_a_real_vocabulary_is_a_small_part_of_the_logits(gradient):
    """Compiled, not run: 8 x 2,048 tokens, the vocabulary of Qwen."""
    rows, length, width, vocabulary = 8, 2_048, 64, 151_936

    def score(hidden, unembed, targets):
        values = module.token_log_probs_and_entropy(hidden, unembed, targets)
        return values if not gradient else values[0].sum()

    program = jax.jit(jax.grad(score, (0, 1)) if gradient else score)
    shapes = (
        jax.ShapeDtypeStruct((rows, length, width), jnp.float32),
        jax.ShapeDtypeStruct((width, vocabulary), jnp.float32),
        jax.ShapeDtypeStruct((rows, length), jnp.int32),
    )
    used = program.lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    logits = 4 * rows * length * vocabulary
    assert used < 0.15 * logits, f"{used / logits:.3f} of the float32 logits"

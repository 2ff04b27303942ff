"""Log-probabilities of tokens from hidden states, without the [B, T, vocab] array.

Logits are made for about ``chunk_size`` tokens at a time (fewer where the vocabulary is
large, see ``MOST_LOGITS``), and again in the backward pass. Chunks run along T, so that
rows stay sharded as they are. Log-softmax is float32 whatever the model computes in.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from mempo_jax.core.masking import keep
from mempo_jax.types import Array

CHUNK_SIZE = 4096  # tokens
MOST_LOGITS = 2**26  # of one chunk, a quarter of a GB; about three copies are alive


def token_log_probs(
    hidden: Array,
    unembed: Array,
    targets: Array,
    *,
    temperature: Array | float = 1.0,
    chunk_size: int = CHUNK_SIZE,
    mask: Array | None = None,
) -> Array:
    """log softmax(hidden @ unembed / temperature)[targets]: hidden t scores targets t.

    There is no shift inside; ``shifted_log_probs`` applies the alignment rule.

    Args:
      hidden: [B, T, D], any float type.
      unembed: [D, V].
      targets: int [B, T].
      temperature: scalar > 0.
      chunk_size: tokens whose logits exist at one time, at most (but at least one
        column of B).
      mask: bool [B, T]; where False the result is 0 and no gradient flows, whatever
        ``hidden`` holds there. None counts every token.

    Returns:
      float32 [B, T].
    """
    return _scored(hidden, unembed, targets, temperature, chunk_size, mask, False)[0]


def token_log_probs_and_entropy(
    hidden: Array,
    unembed: Array,
    targets: Array,
    *,
    temperature: Array | float = 1.0,
    chunk_size: int = CHUNK_SIZE,
    mask: Array | None = None,
) -> tuple[Array, Array]:
    """``token_log_probs`` and the entropy (nats) of each distribution; two [B, T]."""
    return _scored(hidden, unembed, targets, temperature, chunk_size, mask, True)


def shifted_log_probs(
    hidden: Array,
    unembed: Array,
    tokens: Array,
    *,
    temperature: Array | float = 1.0,
    chunk_size: int = CHUNK_SIZE,
    mask: Array | None = None,
    tied: bool = False,
) -> Array:
    """log pi(tokens[b, t] | tokens[b, :t]) at index t, and 0 at index 0; [B, T].

    ``hidden[b, t]`` is the state after token t; ``mask[b, t]`` describes token t. tied:
    ``unembed`` is an embedding [V, D] turned, which a loop takes as it lies in memory.
    """
    targets, scored = _shift(tokens, mask)
    given = hidden, unembed, targets, temperature, chunk_size, scored
    result = _scored(*given, False, tied)
    return jnp.roll(result[0], 1, axis=1)


def shifted_log_probs_and_entropy(
    hidden: Array,
    unembed: Array,
    tokens: Array,
    *,
    temperature: Array | float = 1.0,
    chunk_size: int = CHUNK_SIZE,
    mask: Array | None = None,
    tied: bool = False,
) -> tuple[Array, Array]:
    """``shifted_log_probs`` and the entropy of the distribution token t came from."""
    targets, scored = _shift(tokens, mask)
    given = hidden, unembed, targets, temperature, chunk_size, scored
    result = _scored(*given, True, tied)
    return jnp.roll(result[0], 1, axis=1), jnp.roll(result[1], 1, axis=1)


def _shift(tokens: Array, mask: Array | None) -> tuple[Array, Array]:
    """Targets and mask by predicting position; the last position predicts nothing."""
    tokens = jnp.asarray(tokens)
    mask = jnp.ones(tokens.shape, bool) if mask is None else jnp.asarray(mask, bool)
    scored = jnp.roll(mask, -1, axis=1).at[:, -1].set(False)
    return jnp.roll(tokens, -1, axis=1), scored


def _scored(
    hidden, unembed, targets, temperature, chunk_size, mask, with_entropy, tied=False
):
    """Log-probs [B, T], and entropy [B, T] or zeros."""
    hidden, targets = jnp.asarray(hidden), jnp.asarray(targets)
    unembed = jnp.asarray(unembed)
    _check(hidden, unembed, targets, mask, chunk_size)
    if mask is not None:
        hidden = jnp.where(mask[..., None], hidden, jnp.zeros((), hidden.dtype))
    rows, length = targets.shape
    chunk_size = min(chunk_size, MOST_LOGITS // unembed.shape[1])
    columns = max(1, min(length, chunk_size // max(rows, 1)))
    # Chunks add to the gradient of ``wide``: in float32, whatever the weights are in.
    wide = unembed.astype(jnp.promote_types(unembed.dtype, jnp.float32))
    # The loop over chunks takes arrays in the order of their axes: a tied matrix would
    # be copied for it, beside all that the layers need.
    by_token = tied and columns < length
    wide = wide.T if by_token else wide

    def chunk(wide, hidden, targets):
        weights = wide.astype(unembed.dtype)
        weights = weights.T if by_token else weights
        return _plain(hidden, weights, targets, temperature, with_entropy)

    if columns == length:
        outputs = chunk(wide, hidden, targets)
    else:
        outputs = _over_columns(jax.checkpoint(chunk), wide, hidden, targets, columns)
    if mask is None:
        return outputs
    return tuple(keep(values, mask) for values in outputs)


def _over_columns(chunk, wide, hidden, targets, columns):
    """Runs ``chunk`` on blocks of ``columns`` tokens of every row, in turn."""
    rows, length = targets.shape
    blocks = -(-length // columns)
    extra = ((0, 0), (0, blocks * columns - length))
    hidden = jnp.pad(hidden, (*extra, (0, 0)))
    hidden = hidden.reshape(rows, blocks, columns, -1).swapaxes(0, 1)
    targets = jnp.pad(targets, extra).reshape(rows, blocks, columns).swapaxes(0, 1)
    _, outputs = lax.scan(lambda _, x: (None, chunk(wide, *x)), None, (hidden, targets))
    return tuple(
        values.swapaxes(0, 1).reshape(rows, blocks * columns)[:, :length]
        for values in outputs
    )


def _plain(hidden, unembed, targets, temperature, with_entropy):
    """The formula on one block: logits [B, C, V] exist here and nowhere else."""
    both = jnp.promote_types(hidden.dtype, unembed.dtype)
    logits = jnp.dot(  # flat: its gradient is faster on a CPU than that of an einsum
        hidden.reshape(-1, hidden.shape[-1]),
        unembed,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.promote_types(both, jnp.float32),
    ).reshape(*targets.shape, -1)
    logits = logits / jnp.asarray(temperature, logits.dtype)
    log_total = jax.nn.logsumexp(logits, axis=-1)
    # A sum over a comparison, not a gather: it fuses, and shards over the vocabulary.
    chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
    log_probs = jnp.sum(jnp.where(chosen, logits, 0), axis=-1) - log_total
    if not with_entropy:
        return log_probs, jnp.zeros_like(log_probs)
    shares = jnp.exp(logits - log_total[..., None])
    return log_probs, log_total - jnp.sum(shares * logits, axis=-1)


def _check(hidden, unembed, targets, mask, chunk_size) -> None:
    if hidden.ndim != 3 or targets.shape != hidden.shape[:2]:
        raise ValueError(
            "expected hidden [B, T, D] and targets [B, T], got shapes "
            f"{hidden.shape} and {targets.shape}"
        )
    if unembed.ndim != 2 or unembed.shape[0] != hidden.shape[-1]:
        raise ValueError(
            f"expected unembed [{hidden.shape[-1]}, vocabulary], got shape "
            f"{unembed.shape}: transpose an embedding table first"
        )
    if mask is not None and jnp.shape(mask) != targets.shape:
        raise ValueError(
            f"mask must have targets' shape {targets.shape}, got {jnp.shape(mask)}"
        )
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 token, got {chunk_size}")

"""Log-probabilities of tokens from hidden states, without the [B, T, vocab] array.

Logits are made for about ``chunk_size`` tokens at a time (fewer where the vocabulary is
large, see ``MOST_LOGITS``), and again in the backward pass. Chunks run along T, so that
rows stay sharded as they are: of each row what counts comes first, and after the
fullest row no logits are made. Log-softmax is float32 whatever the model computes in.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from mempo_jax.core.masking import keep
from mempo_jax.types import Array

CHUNK_SIZE = 4096  # tokens
MOST_LOGITS = 2**25  # of a device's chunk, 0.13 GB; about three copies are alive
# A row is cut into so many chunks where they have as many logits, so that some can be
# left out; more or smaller ones cost more than that saves.
PIECES, LEAST_LOGITS = 8, 2**20


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
    devices: int = 1,
) -> Array:
    """log pi(tokens[b, t] | tokens[b, :t]) at index t, and 0 at index 0; [B, T].

    ``hidden[b, t]`` is the state after token t; ``mask[b, t]`` describes token t. tied:
    ``unembed`` is an embedding [V, D] turned, which a loop takes as it lies in memory.
    devices: that rows and vocabulary are split over; ``chunk_size`` is for each.
    """
    targets, scored = _shift(tokens, mask)
    given = hidden, unembed, targets, temperature, chunk_size, scored
    result = _scored(*given, False, tied, devices)
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
    devices: int = 1,
) -> tuple[Array, Array]:
    """``shifted_log_probs`` and the entropy of the distribution token t came from."""
    targets, scored = _shift(tokens, mask)
    given = hidden, unembed, targets, temperature, chunk_size, scored
    result = _scored(*given, True, tied, devices)
    return jnp.roll(result[0], 1, axis=1), jnp.roll(result[1], 1, axis=1)


def _shift(tokens: Array, mask: Array | None) -> tuple[Array, Array]:
    """Targets and mask by predicting position; the last position predicts nothing."""
    tokens = jnp.asarray(tokens)
    mask = jnp.ones(tokens.shape, bool) if mask is None else jnp.asarray(mask, bool)
    scored = jnp.roll(mask, -1, axis=1).at[:, -1].set(False)
    return jnp.roll(tokens, -1, axis=1), scored


def _scored(
    hidden,
    unembed,
    targets,
    temperature,
    chunk_size,
    mask,
    with_entropy,
    tied=False,
    devices=1,
):
    """Log-probs [B, T], and entropy [B, T] or zeros."""
    hidden, targets = jnp.asarray(hidden), jnp.asarray(targets)
    unembed = jnp.asarray(unembed)
    _check(hidden, unembed, targets, mask, chunk_size)
    if mask is not None:
        hidden = jnp.where(mask[..., None], hidden, jnp.zeros((), hidden.dtype))
    columns = _columns(targets.shape, unembed.shape[1], chunk_size, devices)
    # Chunks add to the gradient of ``wide``: in float32, whatever the weights are in.
    wide = unembed.astype(jnp.promote_types(unembed.dtype, jnp.float32))
    # The loop over chunks takes arrays in the order of their axes: a tied matrix would
    # be copied for it, beside all that the layers need.
    by_token = tied and columns < targets.shape[1]
    given = wide.T if by_token else wide, jnp.asarray(temperature, wide.dtype)

    kind = unembed.dtype

    def chunk(given, hidden, targets):
        weights = given[0].astype(kind)
        weights = weights.T if by_token else weights
        return _plain(hidden, weights, targets, given[1], with_entropy)

    if columns == targets.shape[1]:
        outputs = chunk(given, hidden, targets)
    else:
        outputs = _over_columns(chunk, given, hidden, targets, mask, columns)
    if mask is None:
        return outputs
    return tuple(keep(values, mask) for values in outputs)


def _columns(
    shape: tuple[int, int], vocabulary: int, chunk_size: int, devices: int
) -> int:
    """Columns of a chunk: all that may be, or fewer where some can then be left out.

    What is split over devices is gathered for each chunk, so they share large ones.
    """
    rows, length = shape
    least = LEAST_LOGITS * devices
    pieces = min(PIECES, max(1, rows * length * vocabulary // least))
    chunk_size = min(chunk_size, MOST_LOGITS // vocabulary) * devices
    return max(1, min(-(-length // pieces), chunk_size // max(rows, 1)))


def _over_columns(chunk, given, hidden, targets, mask, columns):
    """Runs ``chunk`` on ``columns`` tokens of every row at a time.

    What counts comes first in its row, and the loop ends where the fullest row does:
    tokens that the policy did not say cost no logits.
    """
    length = targets.shape[1]
    mask = jnp.ones(targets.shape, bool) if mask is None else mask
    order = jnp.argsort(~mask, axis=1, stable=True)
    beyond = jnp.arange(length, length + -length % columns)  # read as 0, never written
    beyond = jnp.broadcast_to(beyond, (len(order), beyond.size))
    order = jnp.concatenate([order, beyond], axis=1)
    fullest = jnp.max(jnp.sum(mask, axis=1, dtype=jnp.int32), initial=0)
    needed = (fullest + columns - 1) // columns
    return _in_turn(chunk, columns, given, hidden, targets, order, needed)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _in_turn(chunk, columns, given, hidden, targets, order, needed):
    """``chunk(given, hidden, targets)`` of the first ``needed`` chunks, elsewhere 0.

    Its gradient makes each chunk's logits again. Tokens are taken from where they lie,
    chunk by chunk: no copy of all states stands beside them.
    """

    def step(n, made):
        at = lax.dynamic_slice_in_dim(order, n * columns, columns, 1)
        new = chunk(given, _taken(hidden, at), _taken(targets, at))
        return tuple(_put(whole, at, x) for whole, x in zip(made, new, strict=True))

    first = hidden[:, :1], targets[:, :1]
    kinds = jax.eval_shape(chunk, given, *first)
    nothing = tuple(jnp.zeros(targets.shape, kind.dtype) for kind in kinds)
    return lax.fori_loop(0, needed, step, nothing)


def _in_turn_forward(chunk, columns, *arrays):
    return _in_turn(chunk, columns, *arrays), arrays


def _in_turn_backward(chunk, columns, arrays, slopes):
    given, hidden, targets, order, needed = arrays

    def step(n, sums):
        at = lax.dynamic_slice_in_dim(order, n * columns, columns, 1)
        told = _taken(targets, at)
        _, back = jax.vjp(lambda *x: chunk(*x, told), given, _taken(hidden, at))
        of_given, of_hidden = back(tuple(_taken(slope, at) for slope in slopes))
        return jax.tree.map(jnp.add, sums[0], of_given), _put(sums[1], at, of_hidden)

    nothing = jax.tree.map(jnp.zeros_like, (given, hidden))
    return *lax.fori_loop(0, needed, step, nothing), None, None, None


_in_turn.defvjp(_in_turn_forward, _in_turn_backward)


@jax.vmap
def _taken(row: Array, at: Array) -> Array:
    """Of each row [T, ...] what stands at [C]; 0 beyond its end."""
    return row.at[at].get(mode="fill", fill_value=0, unique_indices=True)


@jax.vmap
def _put(row: Array, at: Array, new: Array) -> Array:
    """``_taken`` back into its place."""
    return row.at[at].set(new, mode="drop", unique_indices=True)


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

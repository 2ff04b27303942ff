"""Log-probabilities of tokens from hidden states, without the [B, T, vocab] array.

Logits exist for about ``chunk_size`` tokens at a time (fewer if the vocabulary is
large, see ``MOST_LOGITS``), and are computed again in the backward pass. Chunks run
along T, so that rows stay sharded as they are. In each row the masked-in tokens are
taken first, and no logits are made beyond the fullest row. Log-softmax is float32
whatever the model computes in.
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
# A row is cut into up to PIECES chunks of at least LEAST_LOGITS logits, so that some
# can be left out; more or smaller ones cost more than that saves.
PIECES, LEAST_LOGITS = 8, 2**20


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
    """log pi(tokens[b, t] | tokens[b, :t]) at index t, and 0 at index 0.

    Args:
      hidden: [B, T, D]; ``hidden[b, t]`` is the state after token t.
      unembed: [D, V].
      tokens: int [B, T].
      temperature: scalar > 0.
      chunk_size: tokens of one device whose logits exist at one time.
      mask: bool [B, T]; ``mask[b, t]`` describes token t. None scores every token.
      tied: whether ``unembed`` is the transpose of an embedding [V, D]; the loop over
        chunks then takes that embedding in its own memory order.
      devices: number that rows and vocabulary are split over.

    Returns:
      float32 [B, T], 0 where masked out.
    """
    targets, scored = _shift(tokens, mask)
    log_probs, _ = _scored(
        hidden, unembed, targets, temperature, chunk_size, scored, False, tied, devices
    )
    return jnp.roll(log_probs, 1, axis=1)


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
    """``shifted_log_probs`` and the entropy of the distribution token t came from.

    Gradients flow through the log-probs alone.

    Args:
      hidden, unembed, tokens, temperature, chunk_size, mask, tied, devices: as there.

    Returns:
      Log-probs and entropy (nats), two float32 [B, T].
    """
    targets, scored = _shift(tokens, mask)
    log_probs, entropy = _scored(
        hidden, unembed, targets, temperature, chunk_size, scored, True, tied, devices
    )
    return jnp.roll(log_probs, 1, axis=1), jnp.roll(entropy, 1, axis=1)


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
    """``token_log_probs`` and the entropy (nats) of each distribution.

    Gradients flow through the log-probs alone.

    Args:
      hidden, unembed, targets, temperature, chunk_size, mask: as there.

    Returns:
      Two float32 [B, T].
    """
    return _scored(hidden, unembed, targets, temperature, chunk_size, mask, True)


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
        # States of padding may be NaN, and 0 x NaN in the product's gradient is NaN.
        hidden = jnp.where(mask[..., None], hidden, jnp.zeros((), hidden.dtype))
    columns = _columns(targets.shape, unembed.shape[1], chunk_size, devices)
    # Chunks add to the gradient of ``wide``: in float32, whatever the weights are in.
    wide = unembed.astype(jnp.promote_types(unembed.dtype, jnp.float32))
    # The loop over chunks takes arrays in the order of their axes: a tied matrix would
    # be copied for it, in addition to all that the layers need.
    transposed = tied and columns < targets.shape[1]
    head = wide.T if transposed else wide, jnp.asarray(temperature, wide.dtype)
    dtype = unembed.dtype

    def chunk(head, hidden, targets):
        weights = head[0].astype(dtype)
        weights = weights.T if transposed else weights
        return _plain(hidden, weights, targets, head[1], with_entropy)

    if columns == targets.shape[1]:
        outputs = chunk(head, hidden, targets)
    else:
        outputs = _over_columns(chunk, head, hidden, targets, mask, columns)
    if mask is None:
        return outputs
    return tuple(keep(values, mask) for values in outputs)


def _columns(
    shape: tuple[int, int], vocabulary: int, chunk_size: int, devices: int
) -> int:
    """Columns of a chunk: as many as allowed, or fewer if some can then be left out.

    Arrays split over devices are gathered for each chunk, so more devices take larger
    chunks together.
    """
    rows, length = shape
    least = LEAST_LOGITS * devices
    pieces = min(PIECES, max(1, rows * length * vocabulary // least))
    chunk_size = min(chunk_size, MOST_LOGITS // vocabulary) * devices
    return max(1, min(-(-length // pieces), chunk_size // max(rows, 1)))


def _over_columns(chunk, head, hidden, targets, mask, columns):
    """Runs ``chunk`` on ``columns`` tokens of every row at a time.

    Masked-in tokens are taken first in each row, and the loop ends at the end of the
    fullest row: tokens that the policy did not sample cost no logits.
    """
    length = targets.shape[1]
    mask = jnp.ones(targets.shape, bool) if mask is None else mask
    order = jnp.argsort(~mask, axis=1, stable=True)
    beyond = jnp.arange(length, length + -length % columns)  # read as 0, never written
    beyond = jnp.broadcast_to(beyond, (len(order), beyond.size))
    order = jnp.concatenate([order, beyond], axis=1)
    fullest = jnp.max(jnp.sum(mask, axis=1, dtype=jnp.int32), initial=0)
    needed = (fullest + columns - 1) // columns
    return _chunked(chunk, columns, head, hidden, targets, order, needed)


# A gradient of its own: ``fori_loop`` with a traced bound has none, and a scan over all
# chunks would save every chunk's logits or compute those that nobody needs.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunked(chunk, columns, head, hidden, targets, order, needed):
    """``chunk(head, hidden, targets)`` on the first ``needed`` chunks, elsewhere 0.

    The gradient computes each chunk's logits again. Each chunk gathers its tokens from
    the original arrays: no reordered copy of all states is made.
    """

    def step(n, outputs):
        at = lax.dynamic_slice_in_dim(order, n * columns, columns, 1)
        new = chunk(head, _gather(hidden, at), _gather(targets, at))
        return tuple(_scatter(out, at, x) for out, x in zip(outputs, new, strict=True))

    first = hidden[:, :1], targets[:, :1]
    outputs = jax.eval_shape(chunk, head, *first)
    zeros = tuple(jnp.zeros(targets.shape, out.dtype) for out in outputs)
    return lax.fori_loop(0, needed, step, zeros)


def _chunked_forward(chunk, columns, *arrays):
    return _chunked(chunk, columns, *arrays), arrays


def _chunked_backward(chunk, columns, arrays, cotangents):
    head, hidden, targets, order, needed = arrays

    def step(n, sums):
        at = lax.dynamic_slice_in_dim(order, n * columns, columns, 1)
        chunk_targets = _gather(targets, at)
        _, vjp = jax.vjp(lambda *x: chunk(*x, chunk_targets), head, _gather(hidden, at))
        head_grad, hidden_grad = vjp(tuple(_gather(ct, at) for ct in cotangents))
        head_sum = jax.tree.map(jnp.add, sums[0], head_grad)
        return head_sum, _scatter(sums[1], at, hidden_grad)

    zeros = jax.tree.map(jnp.zeros_like, (head, hidden))
    return *lax.fori_loop(0, needed, step, zeros), None, None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)


@jax.vmap
def _gather(row: Array, at: Array) -> Array:
    """The elements ``at`` [C] of each row [T, ...]; 0 beyond its end."""
    return row.at[at].get(mode="fill", fill_value=0, unique_indices=True)


@jax.vmap
def _scatter(row: Array, at: Array, new: Array) -> Array:
    """Writes what ``_gather`` read back to its positions; drops what is beyond."""
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
    # The entropy is only reported: the gradient pass must not pay for it twice.
    logits, log_total = lax.stop_gradient((logits, log_total))
    probs = jnp.exp(logits - log_total[..., None])
    return log_probs, log_total - jnp.sum(probs * logits, axis=-1)


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

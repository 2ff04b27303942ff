"""The losses of training as functions of (model, parameters, rows): sums and counts.

``policy_loss`` is the loss of reinforcement learning: it lays advantages on tokens,
computes log-probs, and hands both to ``core.policy_objective``. Nothing is compiled
here; ``training.step`` jits these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.config import ObjectiveConfig
from mempo_jax.core import (
    CreditConfig,
    OpCredit,
    assign,
    group_advantage,
    policy_objective,
    shifted_log_probs,
    shifted_log_probs_and_entropy,
    to_tokens,
)
from mempo_jax.core.credit import is_memory_op
from mempo_jax.core.masking import masked_sum
from mempo_jax.types import Array, OpTable, Rows, Trajectories


class Model(Protocol):
    """What training needs of a model; ``models.decoder.LanguageModel`` has it."""

    def init(self, key: Array) -> Any:
        """Fresh parameters from a PRNG ``key``."""

    def hidden(self, params: Any, tokens: Array, token_mask: Array) -> Array:
        """States [B, T, D] of ``tokens`` [B, T] under ``params``; padding by mask."""

    def unembed(self, params: Any) -> Array:
        """The output matrix [D, V] in ``params``."""

    @property
    def tied(self) -> bool:
        """Whether ``unembed`` is the transpose of the embedding."""

    @property
    def devices(self) -> int:
        """Number of devices that rows and vocabulary are split over."""

    def with_rows(self, rows: Any) -> Model:
        """The same model, keeping its activations in the sharding ``rows``."""


class LossInputs(NamedTuple):
    """What the loss reads of the N trajectories of one optimiser batch.

    Attributes:
      ops: OpTable [N, K].
      credit: OpCredit [N, K].
      advantage: f32 [N], within the group.
      turn_count: int32 [N].
      token_count: f32 [N], counted tokens in the whole optimiser batch.
      valid: bool [N].
    """

    ops: OpTable
    credit: OpCredit
    advantage: Array
    turn_count: Array
    token_count: Array
    valid: Array


class Scores(NamedTuple):
    """What a policy thinks of the tokens of B rows.

    Attributes:
      log_probs: f32 [B, T], of each counted token.
      entropy: f32 [B, T], nats, of the distribution that the token was drawn from.
    """

    log_probs: Array
    entropy: Array


def counted(rows: Rows, valid: Array | None = None) -> Array:
    """Tells which tokens enter the loss; numpy in, numpy out.

    They were sampled by the policy, in a valid row of a valid trajectory, and are not
    the first of their row, which nothing predicts.

    Args:
      rows: B segments of T tokens.
      valid: bool [N], trajectories; None counts all.

    Returns:
      bool [B, T].
    """
    mask = rows.action_mask & rows.token_mask & rows.valid[:, None]
    # numpy's arange: a constant when traced, and no device call when not.
    mask = mask & (np.arange(mask.shape[1]) > 0)
    return mask if valid is None else mask & valid[rows.trajectory_index][:, None]


def count_tokens(batches: Sequence[Rows], valid: np.ndarray) -> np.ndarray:
    """Counted tokens of each trajectory over all micro-batches.

    Args:
      batches: rows of one optimiser batch, numpy.
      valid: bool, N trajectories in any shape.

    Returns:
      float32 [N].
    """
    valid = np.asarray(valid).reshape(-1)
    total = np.zeros(valid.size, np.float32)
    for rows in batches:
        # Unbuffered, since several rows of a batch can belong to one trajectory.
        np.add.at(total, rows.trajectory_index, counted(rows, valid).sum(axis=1))
    return total


def loss_inputs(
    trajectories: Trajectories,
    token_count: Array,
    *,
    objective: ObjectiveConfig,
    credit: CreditConfig,
    outcome_gate: bool,
    bonus_scale: Array | float = 1.0,
) -> LossInputs:
    """Group advantages and the credit of memory ops, from what happened.

    Args:
      trajectories: facts of N = G * S trajectories.
      token_count: f32 [N] from ``count_tokens``, over the whole optimiser batch.
      objective: gives ``advantage_*`` and ``divide_by_std``.
      credit: the modes and their constants.
      outcome_gate: see ``core.advantages.gated_normalise``.
      bonus_scale: factor of all bonuses.
    """
    # For all trajectories of the batch at once: credit compares the members of groups.
    op_credit = assign(
        trajectories.ops,
        trajectories.turn_reward,
        trajectories.turn_count,
        trajectories.valid,
        credit,
        trajectories.evidence,
    )
    advantage = advantages_of(trajectories, objective, outcome_gate)
    return LossInputs(
        ops=trajectories.ops,
        # A traced factor: it changes from step to step and must not recompile.
        credit=op_credit._replace(bonus=bonus_scale * op_credit.bonus),
        advantage=advantage.reshape(-1),
        turn_count=trajectories.turn_count,
        token_count=token_count,
        valid=trajectories.valid.reshape(-1),
    )


def advantages_of(
    trajectories: Trajectories, objective: ObjectiveConfig, outcome_gate: bool
) -> Array:
    """The advantage of each trajectory within its group.

    Args:
      trajectories: gives reward, task score and validity.
      objective: gives ``advantage_*`` and ``divide_by_std``.
      outcome_gate: see ``core.advantages.gated_normalise``.

    Returns:
      f32 [G, S].
    """
    return group_advantage(
        trajectories.reward,
        trajectories.task_score,
        trajectories.valid,
        eps=objective.advantage_eps,
        ddof=objective.advantage_ddof,
        divide_by_std=objective.divide_by_std,
        outcome_gate=outcome_gate,
    )


def score(
    model: Model, params: Any, rows: Rows, temperature: Array, logit_chunk: int
) -> Scores:
    """Log-probs and entropy of counted tokens, by the alignment rule.

    Args:
      model, params: the policy or the reference.
      rows: B segments of T tokens.
      temperature: scalar, that of sampling.
      logit_chunk: tokens whose logits exist at one time.

    Returns:
      0 where not counted.
    """
    return Scores(
        *shifted_log_probs_and_entropy(
            *_states(model, params, rows),
            rows.tokens,
            temperature=temperature,
            chunk_size=logit_chunk,
            mask=counted(rows),
            tied=model.tied,
            devices=model.devices,
        )
    )


def score_in_passes(
    model: Model,
    params: Any,
    rows: Rows,
    temperature: Array,
    logit_chunk: int,
    pass_tokens: int,
) -> Scores:
    """``score``, cut into the passes in which a gradient is computed.

    Args:
      model, params, rows, temperature, logit_chunk: as there.
      pass_tokens: see ``scan_row_chunks``.
    """

    def add_chunk(nothing: tuple, chunk: Rows) -> tuple[tuple, Scores]:
        return nothing, score(model, params, chunk, temperature, logit_chunk)

    return scan_row_chunks(add_chunk, (), rows, pass_tokens)[1]


def scan_row_chunks(
    add_chunk: Callable, sums: Any, batch: Any, tokens: int
) -> tuple[Any, Any]:
    """Applies ``add_chunk(sums, chunk)`` in turn to equal parts of a batch's rows.

    Args:
      add_chunk: adds one part to the sums, and gives its results [rows of the part,
        ...] beside them.
      sums: so far.
      batch: a tree of arrays [B, ...], the first of them [B, T].
      tokens: least size of a part, if B can be divided so; 0 for all at once.

    Returns:
      The sums, and the results [B, ...] of all parts.
    """
    rows, length = jax.tree.leaves(batch)[0].shape
    # Equal parts, or the scan would need a program for the rest.
    most = rows * length // tokens if tokens else 1
    parts = next(n for n in range(max(1, min(most, rows)), 0, -1) if rows % n == 0)
    if parts == 1:
        return add_chunk(sums, batch)
    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)

    sums, results = jax.lax.scan(add_chunk, sums, split)
    return sums, jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), results)


def token_advantage(
    rows: Rows, inputs: LossInputs, credit: CreditConfig
) -> tuple[Array, Array]:
    """The advantage of each token: weight x group advantage + bonus.

    Args:
      rows: B segments of T tokens.
      inputs: from ``loss_inputs``.
      credit: its modes weigh the tokens of no op.

    Returns:
      The advantage and the weight, two f32 [B, T].
    """
    weight, bonus = to_tokens(
        inputs.credit,
        inputs.ops,
        rows.op_id,
        rows.turn_id,
        rows.action_mask,
        rows.trajectory_index,
        inputs.turn_count,
        credit,
    )
    # One number a trajectory: weight and bonus are what tells its tokens apart.
    group_advantage = inputs.advantage[rows.trajectory_index][:, None]
    return weight * group_advantage + bonus, weight


def policy_loss(
    model: Model,
    params: Any,
    rows: Rows,
    old_log_probs: Array | None,
    ref_log_probs: Array | None,
    inputs: LossInputs,
    kl_coef: Array,
    temperature: Array,
    objective: ObjectiveConfig,
    credit: CreditConfig,
) -> tuple[Array, Array, dict[str, Array], Scores]:
    """The policy loss of one micro-batch; see ``core.policy_objective``.

    Args:
      model, params: the policy; the loss is differentiated by its parameters.
      rows: B segments of T tokens.
      old_log_probs, ref_log_probs: f32 [B, T], by the policy before the step and by the
        reference. None for the first: ``params`` are those before the step; for the
        second: no KL.
      inputs: from ``loss_inputs``, for the whole optimiser batch.
      kl_coef: scalar.
      temperature: scalar, that of sampling and of both log-probs.
      objective, credit: settings.

    Returns:
      loss_sum, count, sums for reporting, and what ``score`` would have given.
    """
    mask = counted(rows, inputs.valid)
    advantage, _ = token_advantage(rows, inputs, credit)
    # Of the same pass: entropy is reported, and another pass would cost as much again.
    log_probs, entropy = score(model, params, rows, temperature, objective.logit_chunk)
    loss_sum, count, aux = policy_objective(
        log_probs,
        old_log_probs,
        ref_log_probs,
        advantage,
        mask,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        dual_clip=objective.dual_clip or None,  # 0 in a config means off
        kl_coef=kl_coef,
        kl_estimator=objective.kl_estimator,
        kl_mask=_memory_tokens(rows, inputs) if objective.kl_scope == "ops" else None,
        aggregation=objective.aggregation,
        trajectory_index=rows.trajectory_index,
        constant_length=objective.constant_length,
        trajectory_token_count=inputs.token_count,
        # The sampler's own: they differ from the old ones if its weights were older.
        behaviour_log_probs=rows.behaviour_log_probs,
        importance_cap=objective.importance_cap or None,  # likewise
    )
    return loss_sum, count, aux, Scores(log_probs, entropy)


def supervised_loss(
    model: Model, params: Any, rows: Rows, chunk_size: int
) -> tuple[Array, Array, dict[str, Array]]:
    """Cross-entropy of action tokens at temperature 1, for the cold start.

    Args:
      model, params: the policy.
      rows: B segments of T tokens.
      chunk_size: tokens whose logits exist at one time.

    Returns:
      loss_sum, count and the sum of tokens for reporting.
    """
    mask = counted(rows)
    # Temperature 1: demonstrations were not drawn from the policy at another one.
    log_probs = shifted_log_probs(
        *_states(model, params, rows),
        rows.tokens,
        chunk_size=chunk_size,
        mask=mask,
        tied=model.tied,
        devices=model.devices,
    )
    # A float like the other sums, since the accumulator adds them all alike.
    tokens = jnp.sum(mask.astype(jnp.float32))
    return -masked_sum(log_probs, mask), tokens, {"tokens": tokens}


def _states(model: Model, params: Any, rows: Rows) -> tuple[Array, Array]:
    hidden = model.hidden(params, rows.tokens, rows.token_mask)
    # In the dtype of the states: the product is in float32 whatever its operands are.
    return hidden, model.unembed(params).astype(hidden.dtype)


def _memory_tokens(rows: Rows, inputs: LossInputs) -> Array:
    """Tokens that spell a memory op, a skipped write's included; bool [B, T]."""
    column = jnp.maximum(rows.op_id, 0)  # tokens of no op have -1, ruled out below
    kind = inputs.ops.kind[rows.trajectory_index[:, None], column]
    return (rows.op_id >= 0) & is_memory_op(kind)

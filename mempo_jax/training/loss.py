"""The losses of training as functions of (model, parameters, rows): sums and counts.

Everything here is traced by the programs of ``step``; nothing is compiled here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from mempo_jax.core import (
    AdvantageSettings,
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
from mempo_jax.core.objective import AGGREGATIONS, AUX_KEYS, IMPORTANCE_KEYS
from mempo_jax.types import Array, OpTable, Rows, Trajectories

KL_SCOPES = ("all", "ops")


class Model(Protocol):
    """What training needs of a model; ``models.LanguageModel`` is one."""

    def init(self, key: Array) -> Any: ...

    def hidden(self, params: Any, tokens: Array, token_mask: Array) -> Array: ...

    def unembed(self, params: Any) -> Array: ...

    @property
    def tied(self) -> bool: ...

    @property
    def devices(self) -> int: ...

    def with_rows(self, rows: Any) -> Model: ...


@dataclasses.dataclass(frozen=True)
class ObjectiveSettings:
    """The loss; see ``core.policy_objective``.

    dual_clip 0 and importance_cap 0 are off; kl_scope "all" counted tokens or those of
    memory "ops"; constant_length in tokens serves aggregation "constant" alone;
    logit_chunk is the number of tokens whose logits a device holds at one time.
    """

    clip_low: float
    clip_high: float
    dual_clip: float
    kl_estimator: str
    kl_scope: str
    aggregation: str
    constant_length: int
    importance_cap: float
    logit_chunk: int

    @property
    def aux_keys(self) -> tuple[str, ...]:
        """Names of the sums that ``policy_loss`` reports."""
        return AUX_KEYS + (IMPORTANCE_KEYS if self.importance_cap else ())

    def __post_init__(self) -> None:
        if self.kl_scope not in KL_SCOPES:
            raise ValueError(
                f"kl_scope must be one of {', '.join(KL_SCOPES)}; got {self.kl_scope!r}"
            )
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(
                f"aggregation must be one of {', '.join(AGGREGATIONS)}; got "
                f"{self.aggregation!r}"
            )
        if self.aggregation == "constant" and self.constant_length < 1:
            raise ValueError(
                "constant_length must be at least 1 token with aggregation 'constant', "
                f"got {self.constant_length}"
            )
        if not self.importance_cap >= 0:
            raise ValueError(
                f"importance_cap must be at least 0 (0: off), got {self.importance_cap}"
            )


class LossInputs(NamedTuple):
    """What the loss needs to know of the N trajectories of one optimiser batch.

    ops OpTable and credit OpCredit [N, K] · advantage f32 [N] · turn_count int32 [N] ·
    token_count f32 [N], counted tokens in the whole optimiser batch · valid bool [N].
    """

    ops: OpTable
    credit: OpCredit
    advantage: Array
    turn_count: Array
    token_count: Array
    valid: Array


def counted(rows: Rows, valid: Array | None = None) -> Array:
    """Tokens that enter the loss, bool [B, T]; numpy in, numpy out.

    Sampled by the policy, in a row and a trajectory that are valid, and not the first
    of the row, which nothing predicts.

    Args:
      valid: bool [N], trajectories; None counts all.
    """
    mask = rows.action_mask & rows.token_mask & rows.valid[:, None]
    mask = mask & (np.arange(mask.shape[1]) > 0)
    return mask if valid is None else mask & valid[rows.trajectory_index][:, None]


def count_tokens(batches: Sequence[Rows], valid: np.ndarray) -> np.ndarray:
    """Counted tokens of each trajectory over all micro-batches; float32 [N].

    Args:
      batches: rows of one optimiser batch, numpy.
      valid: bool, N trajectories in any shape.
    """
    valid = np.asarray(valid).reshape(-1)
    total = np.zeros(valid.size, np.float32)
    for rows in batches:
        np.add.at(total, rows.trajectory_index, counted(rows, valid).sum(axis=1))
    return total


def loss_inputs(
    trajectories: Trajectories,
    token_count: Array,
    advantage: AdvantageSettings,
    credit: CreditConfig,
    bonus_scale: Array | float = 1.0,
) -> LossInputs:
    """Group advantage and credit of ops, from what happened; bonuses x a scale."""
    t = trajectories
    worth = assign(t.ops, t.turn_reward, t.turn_count, t.valid, credit, t.evidence)
    return LossInputs(
        ops=t.ops,
        credit=worth._replace(bonus=bonus_scale * worth.bonus),
        advantage=group_advantage(t.reward, t.task_score, t.valid, advantage).reshape(
            -1
        ),
        turn_count=t.turn_count,
        token_count=token_count,
        valid=t.valid.reshape(-1),
    )


def score(
    model: Model, params: Any, rows: Rows, temperature: Array, chunk_size: int
) -> tuple[Array, Array]:
    """Log-probs and entropy of counted tokens by the alignment rule, two f32 [B, T]."""
    return shifted_log_probs_and_entropy(
        *_states(model, params, rows),
        rows.tokens,
        temperature=temperature,
        chunk_size=chunk_size,
        mask=counted(rows),
        tied=model.tied,
        devices=model.devices,
    )


def token_advantage(
    rows: Rows, inputs: LossInputs, credit: CreditConfig
) -> tuple[Array, Array]:
    """weight x group advantage + bonus, and the weight; f32 [B, T]."""
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
    group = inputs.advantage[rows.trajectory_index][:, None]
    return weight * group + bonus, weight


def policy_loss(
    model: Model,
    params: Any,
    rows: Rows,
    old_log_probs: Array,
    ref_log_probs: Array,
    inputs: LossInputs,
    kl_coef: Array,
    temperature: Array,
    objective: ObjectiveSettings,
    credit: CreditConfig,
) -> tuple[Array, Array, dict[str, Array]]:
    """(loss_sum, count, figures) of one micro-batch; see ``core.policy_objective``."""
    mask = counted(rows, inputs.valid)
    advantage, _ = token_advantage(rows, inputs, credit)
    log_probs = shifted_log_probs(
        *_states(model, params, rows),
        rows.tokens,
        temperature=temperature,
        chunk_size=objective.logit_chunk,
        mask=mask,
        tied=model.tied,
        devices=model.devices,
    )
    return policy_objective(
        log_probs,
        old_log_probs,
        ref_log_probs,
        advantage,
        mask,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        dual_clip=objective.dual_clip or None,
        kl_coef=kl_coef,
        kl_estimator=objective.kl_estimator,
        kl_mask=_memory_tokens(rows, inputs) if objective.kl_scope == "ops" else None,
        aggregation=objective.aggregation,
        trajectory_index=rows.trajectory_index,
        constant_length=objective.constant_length,
        trajectory_token_count=inputs.token_count,
        behaviour_log_probs=rows.behaviour_log_probs,
        importance_cap=objective.importance_cap or None,
    )


def supervised_loss(
    model: Model, params: Any, rows: Rows, chunk_size: int
) -> tuple[Array, Array, dict[str, Array]]:
    """Cross-entropy of action tokens at temperature 1: (loss_sum, count, figures)."""
    mask = counted(rows)
    log_probs = shifted_log_probs(
        *_states(model, params, rows),
        rows.tokens,
        chunk_size=chunk_size,
        mask=mask,
        tied=model.tied,
        devices=model.devices,
    )
    tokens = jnp.sum(mask.astype(jnp.float32))
    return -masked_sum(log_probs, mask), tokens, {"tokens": tokens}


def _states(model: Model, params: Any, rows: Rows) -> tuple[Array, Array]:
    hidden = model.hidden(params, rows.tokens, rows.token_mask)
    return hidden, model.unembed(params).astype(hidden.dtype)


def _memory_tokens(rows: Rows, inputs: LossInputs) -> Array:
    """Tokens that spell a memory op, a skipped write's included; bool [B, T]."""
    column = jnp.maximum(rows.op_id, 0)
    kind = inputs.ops.kind[rows.trajectory_index[:, None], column]
    return (rows.op_id >= 0) & is_memory_op(kind)

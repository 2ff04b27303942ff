"""What the update of a step made of each token, for the records of a run.

The numbers come from the functions that the loss itself calls; the update is not
touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.core import AdvantageSettings, CreditSettings
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.credited import TokenCredit, runs_of
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training.loss import LossInputs, loss_inputs, token_advantage
from mempo_jax.types import Array, Rows, Trajectories


class Crediting:
    """Says of trajectories what their tokens are worth in the update of a step."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        advantage: AdvantageSettings,
        credit: CreditSettings,
    ) -> None:
        self._tokenizer = tokenizer
        self._settings = {"advantage": advantage, "credit": credit}

    def warm_up(self, arrays: Trajectories) -> None:
        """Compiles for facts of this shape."""
        _worth(arrays, np.float32(1), **self._settings)

    def note(
        self,
        trajectories: Sequence[Trajectory],
        arrays: Trajectories,
        bonus_scale: float,
    ) -> None:
        """Sets ``credit`` of each trajectory, for its record; arguments as below."""
        made = self(trajectories, arrays, bonus_scale)
        for each, credit in zip(trajectories, made, strict=True):
            each.credit = credit

    def __call__(
        self,
        trajectories: Sequence[Trajectory],
        arrays: Trajectories,
        bonus_scale: float = 1.0,
    ) -> list[TokenCredit]:
        """The credit of each trajectory.

        Args:
          arrays: the facts of these trajectories that the update was given, evidence
            and all.
          bonus_scale: that of the step, see ``schedules``.
        """
        scale = np.float32(jax.device_get(bonus_scale))
        worths = jax.device_get(_worth(arrays, scale, **self._settings))
        advantage, weight, bonus, worth = map(np.asarray, worths)
        trained = np.asarray(arrays.valid).reshape(-1)
        max_ops, made = arrays.ops.kind.shape[1], []
        for n, each in enumerate(trajectories):
            ops = slice(min(len(each.log), max_ops))
            turns = slice(max_ops, max_ops + len(each.actions))
            by_op = zip(weight[n, ops], bonus[n, ops], worth[n, ops])
            credit = TokenCredit(
                float(advantage[n]),
                bool(trained[n]),
                list(by_op),
                list(zip(weight[n, turns], worth[n, turns])),
                runs_of(each.segments, each.actions, self._tokenizer, max_ops),
            )
            made.append(credit)
        return made


@partial(jax.jit, static_argnames=("advantage", "credit"))
def _worth(
    arrays: Trajectories,
    bonus_scale: Array,
    *,
    advantage: AdvantageSettings,
    credit: CreditSettings,
) -> tuple[Array, Array, Array, Array]:
    """Advantage [N]; weight, bonus and token advantage [N, K + M] of a token of each
    op, then of a token of no op in each turn. Of who does not train the last is 0, as
    its advantage and bonuses are."""
    count = arrays.ops.kind.shape[0]
    inputs = loss_inputs(arrays, jnp.zeros(count), advantage, credit, bonus_scale)
    rows = _a_token_each(inputs, arrays.turn_reward.shape[1])
    worth, weight = token_advantage(rows, inputs, credit)
    bonus = jnp.pad(inputs.credit.bonus, ((0, 0), (0, arrays.turn_reward.shape[1])))
    return inputs.advantage, weight, bonus, worth


def _a_token_each(inputs: LossInputs, max_turns: int) -> Rows:
    """A row a trajectory: a token that spells each op, then one of no op a turn."""
    count, max_ops = inputs.ops.kind.shape
    shape = (count, max_ops + max_turns)
    turns = jnp.broadcast_to(jnp.arange(max_turns), (count, max_turns))
    return Rows(
        tokens=jnp.zeros(shape, jnp.int32),
        token_mask=jnp.ones(shape, bool),
        action_mask=jnp.ones(shape, bool),
        behaviour_log_probs=jnp.zeros(shape),
        turn_id=jnp.concatenate([inputs.ops.turn, turns], axis=1),
        op_id=jnp.broadcast_to(
            jnp.r_[jnp.arange(max_ops), jnp.full(max_turns, -1)], shape
        ),
        trajectory_index=jnp.arange(count),
        valid=jnp.ones(count, bool),
    )

"""What the update of a step made of each token, for the records of a run.

The numbers come from the functions that the loss itself calls; the update is not
touched.

One group under the magnifying glass: what its outcomes say about each token.

Training does the same for many groups at once, within compiled programs; this is for
looking at it.

Scores the probes that credit needs, through the compiled program of training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.builders.engines import make_collector
from mempo_jax.builders.policies import Policy
from mempo_jax.config import ObjectiveConfig, RunConfig
from mempo_jax.core import CreditConfig
from mempo_jax.distributed.placement import to_host
from mempo_jax.envs import Task, TaskSuite
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.assemble import (
    BatchShapes,
    assemble_trajectories,
    no_evidence,
    pack,
)
from mempo_jax.rollout.collect import Job
from mempo_jax.rollout.probes import Variant, plan_probes
from mempo_jax.rollout.segments import Segment
from mempo_jax.rollout.trajectory import TokenCredit, Trajectory, runs_of
from mempo_jax.settings import ConfigError
from mempo_jax.training.loss import LossInputs, loss_inputs, token_advantage
from mempo_jax.types import Array, Evidence, Rows, Trajectories


class TokenCreditRecorder:
    """Says of trajectories what their tokens are worth in the update of a step."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        objective: ObjectiveConfig,
        credit: CreditConfig,
        *,
        outcome_gate: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._config = {
            "objective": objective,
            "credit": credit,
            "outcome_gate": outcome_gate,
        }

    def warm_up(self, arrays: Trajectories) -> None:
        """Compiles for facts of this shape."""
        _worth(arrays, np.float32(1), **self._config)

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
        worths = jax.device_get(_worth(arrays, scale, **self._config))
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


@partial(jax.jit, static_argnames=("objective", "credit", "outcome_gate"))
def _worth(
    arrays: Trajectories,
    bonus_scale: Array,
    *,
    objective: ObjectiveConfig,
    credit: CreditConfig,
    outcome_gate: bool,
) -> tuple[Array, Array, Array, Array]:
    """Advantage [N]; weight, bonus and token advantage [N, K + M] of a token of each
    op, then of a token of no op in each turn. Of who does not train the last is 0, as
    its advantage and bonuses are."""
    count = arrays.ops.kind.shape[0]
    inputs = loss_inputs(
        arrays,
        jnp.zeros(count),
        objective=objective,
        credit=credit,
        outcome_gate=outcome_gate,
        bonus_scale=bonus_scale,
    )
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


TurnText = list[tuple[str, float]]  # pieces of a text, and the advantage of each


class GroupCredit(NamedTuple):
    """advantage f32 [S], of each trajectory within the group · said, by trajectory and
    turn: the tokens that the policy sampled, as text, with the advantage of each (0
    where it does not enter the loss)."""

    advantage: np.ndarray
    said: list[list[TurnText]]


def sample_group(
    policy: Policy,
    suite: TaskSuite,
    settings: RunConfig,
    mesh: Any,
    task: Task,
) -> list[Trajectory]:
    """``sampling.group_size`` trajectories of one task, drawn as in training."""
    engine, collector = make_collector(policy, suite, settings, mesh)
    engine.set_params(policy.params)
    samples = range(settings.sampling.group_size)
    jobs = [Job(task, sample, settings.seed, "trace", 0) for sample in samples]
    return collector.run(jobs, settings.sampling)


def group_credit(
    group: Sequence[Trajectory], tokenizer: Tokenizer, settings: RunConfig
) -> GroupCredit:
    """The group's advantage, and how ``credit.modes`` lay it on the tokens.

    Raises:
      ConfigError: a mode wants probes of the policy, which are not made here.
    """
    if settings.credit.required_probes:
        raise ConfigError(
            "config.credit.modes: expected modes that need no probe of the policy, got "
            f"{', '.join(settings.credit.modes)}; see the table of modes in the README"
        )
    crediting = TokenCreditRecorder(
        tokenizer,
        settings.objective,
        settings.credit,
        outcome_gate=settings.reward.outcome_gate,
    )
    made = crediting(group, assemble_trajectories(group, 1, _shapes(settings)))
    advantage = np.array([credit.advantage for credit in made], np.float32)
    said = [_said(*pair) for pair in zip(group, made, strict=True)]
    return GroupCredit(advantage, said)


def _shapes(settings: RunConfig) -> BatchShapes:
    """Shapes of tables; no rows are made here."""
    turns = settings.sampling.max_turns
    return BatchShapes(
        length_buckets=(1,),
        micro_batch_tokens=1,
        row_multiple=1,
        max_turns=turns,
        max_ops=turns * (settings.memory.max_ops_per_turn + 1),
    )


def _said(trajectory: Trajectory, credit: TokenCredit) -> list[TurnText]:
    """By turn, each token as text with its advantage; nothing where it is unknown."""
    said: list[TurnText] = []
    for turn, (action, runs) in enumerate(zip(trajectory.actions, credit.runs)):
        pieces: TurnText = []
        at = 0
        for op, lengths in runs or ():
            row = credit.by_turn[turn] if op < 0 else credit.by_op[op]
            for length in lengths:
                pieces.append((action[at : at + length], float(row[-1])))
                at += length
        said.append(pieces)
    return said


class Prober:
    """From the trajectories of a step to ``Evidence``, with what it cost.

    needs: in the words of ``types.NEEDS``; where empty nothing is scored.
    """

    def __init__(
        self, tokenizer: Tokenizer, shapes: BatchShapes, needs: frozenset[str]
    ) -> None:
        self._tokenizer, self._shapes, self._needs = tokenizer, shapes, needs

    def __call__(
        self,
        trajectories: Sequence[Trajectory],
        valid: np.ndarray,
        score: Callable[[Rows], Array],
    ) -> tuple[Evidence, dict[str, Any]]:
        """Probes the valid ones; figures are empty where no mode needs probes.

        Args:
          valid: bool, a flag for each trajectory, in any shape.
          score: rows -> log-probs [B, T] of action tokens, by the policy that sampled.
        """
        blank = no_evidence(len(trajectories), self._shapes)
        if not self._needs:
            return blank, {}
        began = time.perf_counter()
        plan = plan_probes(
            trajectories,
            [int(n) for n in np.flatnonzero(valid.reshape(-1))],
            self._needs,
            self._tokenizer,
            self._shapes.length_buckets[-1],
        )
        scores = self._scores(plan.variants, score)
        return plan.evidence(scores, blank), {
            "probe_variants": len(plan.variants),
            "probes_skipped": plan.skipped,
            "seconds_probing": time.perf_counter() - began,
        }

    def _scores(
        self, variants: Sequence[Variant], score: Callable[[Rows], Array]
    ) -> np.ndarray:
        """Mean log-probability of the scored tokens of each variant."""
        rows = [(n, _segment(variant)) for n, variant in enumerate(variants)]
        batches = pack(rows, self._shapes, self._tokenizer.pad_id)
        made = [score(batch) for batch in batches]  # all are under way before one ends
        means = np.zeros(len(variants))
        for batch, log_probs in zip(batches, made):
            values = np.asarray(to_host(log_probs), np.float64)
            for b in np.flatnonzero(batch.valid):
                n = int(batch.trajectory_index[b])
                end = len(variants[n].tokens)
                means[n] = values[b, end - variants[n].scored : end].mean()
        return means


def _segment(variant: Variant) -> Segment:
    """A row whose gold answer counts, as what the policy says does."""
    segment, asked = Segment(), len(variant.tokens) - variant.scored
    segment.add_observation(variant.tokens[:asked], 0)
    segment.add_action(variant.tokens[asked:], [0.0] * variant.scored, 0)
    return segment

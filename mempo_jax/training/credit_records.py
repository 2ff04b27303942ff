"""Credit of tokens as a run records it, and the probes that some credit modes need.

``TokenCreditRecorder`` computes what the update of a step made of each token, with the
functions that the loss itself calls; the update is not touched. ``group_credit`` does
so for one group of trajectories, to look at it closely. ``Prober`` scores the probes of
a step with the compiled scoring program of training.
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

TurnText = list[tuple[str, float]]  # pieces of a text, and the advantage of each


class TokenCreditRecorder:
    """Computes what each token of a trajectory is worth in the update of a step."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        objective: ObjectiveConfig,
        credit: CreditConfig,
        *,
        outcome_gate: bool,
    ) -> None:
        """Computes nothing yet.

        Args:
          tokenizer: of the policy, to find the text of each token.
          objective: as the loss has it.
          credit: as the loss has it.
          outcome_gate: see ``core.advantages.gated_normalise``.
        """
        self._tokenizer = tokenizer
        self._config = {
            "objective": objective,
            "credit": credit,
            "outcome_gate": outcome_gate,
        }

    def warm_up(self, arrays: Trajectories) -> None:
        """Compiles the program before it is first needed.

        Args:
          arrays: facts of the shapes to come; their values do not matter.
        """
        _token_credit(arrays, np.float32(1), **self._config)

    def note(
        self,
        trajectories: Sequence[Trajectory],
        arrays: Trajectories,
        bonus_scale: float,
    ) -> None:
        """Sets ``credit`` of each trajectory, for its record.

        Args:
          trajectories: those to set it of.
          arrays: see ``__call__``.
          bonus_scale: see ``__call__``.
        """
        credits = self(trajectories, arrays, bonus_scale)
        for trajectory, credit in zip(trajectories, credits, strict=True):
            trajectory.credit = credit

    def __call__(
        self,
        trajectories: Sequence[Trajectory],
        arrays: Trajectories,
        bonus_scale: float = 1.0,
    ) -> list[TokenCredit]:
        """The credit of each trajectory.

        Args:
          trajectories: N of them.
          arrays: the facts of these trajectories that the update used, evidence
            included.
          bonus_scale: that of the step, from its scheduled values.
        """
        # Always a float32 scalar: a Python float would be traced as a second program.
        scale = np.float32(jax.device_get(bonus_scale))
        by_token = jax.device_get(_token_credit(arrays, scale, **self._config))
        advantage, weight, bonus, token_advantages = map(np.asarray, by_token)
        trained = np.asarray(arrays.valid).reshape(-1)
        max_ops, credits = arrays.ops.kind.shape[1], []
        for n, trajectory in enumerate(trajectories):
            # The tables leave out what a log has beyond ``max_ops``.
            ops = slice(min(len(trajectory.log), max_ops))
            turns = slice(max_ops, max_ops + len(trajectory.actions))
            by_op = zip(weight[n, ops], bonus[n, ops], token_advantages[n, ops])
            credit = TokenCredit(
                float(advantage[n]),
                bool(trained[n]),
                list(by_op),
                list(zip(weight[n, turns], token_advantages[n, turns])),
                runs_of(
                    trajectory.segments, trajectory.actions, self._tokenizer, max_ops
                ),
            )
            credits.append(credit)
        return credits


# One program for a whole step. The settings choose what is traced, hence static; the
# bonus scale changes from step to step, hence an argument.
@partial(jax.jit, static_argnames=("objective", "credit", "outcome_gate"))
def _token_credit(
    arrays: Trajectories,
    bonus_scale: Array,
    *,
    objective: ObjectiveConfig,
    credit: CreditConfig,
    outcome_gate: bool,
) -> tuple[Array, Array, Array, Array]:
    """Runs the loss's own credit on one token of each kind.

    Returns:
      Advantage [N]; then weight, bonus and token advantage [N, K + M] of a token of
      each op, followed by a token of no op in each turn. A trajectory that does not
      train has token advantages of 0, as its advantage and bonuses are 0.
    """
    count = arrays.ops.kind.shape[0]
    inputs = loss_inputs(
        arrays,
        jnp.zeros(count),  # token counts weigh the loss; no credit depends on them
        objective=objective,
        credit=credit,
        outcome_gate=outcome_gate,
        bonus_scale=bonus_scale,
    )
    rows = _one_token_each(inputs, arrays.turn_reward.shape[1])
    token_advantages, weight = token_advantage(rows, inputs, credit)
    # Tokens of no op have no bonus.
    bonus = jnp.pad(inputs.credit.bonus, ((0, 0), (0, arrays.turn_reward.shape[1])))
    return inputs.advantage, weight, bonus, token_advantages


def _one_token_each(inputs: LossInputs, max_turns: int) -> Rows:
    """One row per trajectory: a token for each op, then one of no op for each turn."""
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


class GroupCredit(NamedTuple):
    """What the outcomes of one group say about each token.

    Attributes:
      advantage: f32 [S], of each trajectory within the group.
      said: by trajectory and turn, the tokens that the policy sampled as text, with
        the advantage of each (0 if it does not enter the loss).
    """

    advantage: np.ndarray
    said: list[list[TurnText]]


def sample_group(
    policy: Policy,
    suite: TaskSuite,
    settings: RunConfig,
    mesh: Any,
    task: Task,
) -> list[Trajectory]:
    """Samples ``sampling.group_size`` trajectories of one task, as training does.

    Args:
      policy: the policy that samples.
      suite: the suite of ``task``.
      settings: of the run.
      mesh: the devices to sample on.
      task: what all of them try.
    """
    # Keyed by seed, task and sample: the same settings give the same group.
    engine, collector = make_collector(policy, suite, settings, mesh)
    engine.set_params(policy.params)
    samples = range(settings.sampling.group_size)
    # A purpose of its own: these draws are not those of any training step.
    jobs = [Job(task, sample, settings.seed, "trace", 0) for sample in samples]
    return collector.run(jobs, settings.sampling)


def group_credit(
    group: Sequence[Trajectory], tokenizer: Tokenizer, settings: RunConfig
) -> GroupCredit:
    """Computes a group's advantage, and how ``credit.modes`` spread it over tokens.

    Args:
      group: trajectories of one task.
      tokenizer: of the policy that sampled them.
      settings: of the run.

    Raises:
      ConfigError: a mode wants probes of the policy, which are not made here.
    """
    if settings.credit.required_probes:
        raise ConfigError(
            "config.credit.modes: expected modes that need no probe of the policy, got "
            f"{', '.join(settings.credit.modes)}; see the table of modes in "
            "docs/credit.md"
        )
    recorder = TokenCreditRecorder(
        tokenizer,
        settings.objective,
        settings.credit,
        outcome_gate=settings.reward.outcome_gate,
    )
    credits = recorder(group, assemble_trajectories(group, 1, _shapes(settings)))
    advantage = np.array([credit.advantage for credit in credits], np.float32)
    texts = [_turn_texts(*pair) for pair in zip(group, credits, strict=True)]
    return GroupCredit(advantage, texts)


def _shapes(settings: RunConfig) -> BatchShapes:
    """Shapes of tables; the three sizes of rows are 1, since no rows are made here."""
    turns = settings.sampling.max_turns
    return BatchShapes(
        length_buckets=(1,),
        micro_batch_tokens=1,
        row_multiple=1,
        max_turns=turns,
        # As training has it, see ``builders.engines.batch_shapes``.
        max_ops=turns * (settings.memory.max_ops_per_turn + 1),
    )


def _turn_texts(trajectory: Trajectory, credit: TokenCredit) -> list[TurnText]:
    """By turn, each token as text with its advantage; empty if it is unknown."""
    texts: list[TurnText] = []
    for turn, (action, runs) in enumerate(zip(trajectory.actions, credit.runs)):
        pieces: TurnText = []
        at = 0
        for op, lengths in runs or ():  # None if the tokens do not spell the action
            # The token advantage is the last number of either.
            row = credit.by_turn[turn] if op < 0 else credit.by_op[op]
            for length in lengths:
                pieces.append((action[at : at + length], float(row[-1])))
                at += length
        texts.append(pieces)
    return texts


class Prober:
    """Turns the trajectories of a step into ``Evidence``, and measures what it costs.

    A probe is the policy's mean log-probability of a gold answer in some context.
    """

    def __init__(
        self, tokenizer: Tokenizer, shapes: BatchShapes, needs: frozenset[str]
    ) -> None:
        """Scores nothing yet.

        Args:
          tokenizer: of the policy.
          shapes: of the rows that training uses, so that nothing new is compiled.
          needs: what to probe, in the words of ``types.NEEDS``; empty: nothing.
        """
        self._tokenizer, self._shapes, self._needs = tokenizer, shapes, needs

    def __call__(
        self,
        trajectories: Sequence[Trajectory],
        valid: np.ndarray,
        score: Callable[[Rows], Array],
    ) -> tuple[Evidence, dict[str, Any]]:
        """Probes the valid trajectories.

        Args:
          trajectories: all of the step.
          valid: bool, a flag for each trajectory, in any shape.
          score: rows -> log-probs [B, T] of action tokens, by the policy that sampled.

        Returns:
          The evidence, and metrics of the probing; these are empty if no mode needs
          probes.
        """
        # Needed also if nothing is probed, since the update takes evidence in any case.
        blank = no_evidence(len(trajectories), self._shapes)
        if not self._needs:
            return blank, {}
        began = time.perf_counter()
        plan = plan_probes(
            trajectories,
            [int(n) for n in np.flatnonzero(valid.reshape(-1))],
            self._needs,
            self._tokenizer,
            # No row is longer, so no compiled program could score a longer probe.
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
        # A list, not a generator: all are under way before the first result is read.
        scored = [score(batch) for batch in batches]
        means = np.zeros(len(variants))
        for batch, log_probs in zip(batches, scored):
            # float64, as differences of these means become evidence.
            values = np.asarray(to_host(log_probs), np.float64)
            for b in np.flatnonzero(batch.valid):
                n = int(batch.trajectory_index[b])
                end = len(variants[n].tokens)
                means[n] = values[b, end - variants[n].scored : end].mean()
        return means


def _segment(variant: Variant) -> Segment:
    """A row in which the gold answer counts as if the policy had sampled it."""
    segment, prompt = Segment(), len(variant.tokens) - variant.scored
    segment.add_observation(variant.tokens[:prompt], 0)
    segment.add_action(variant.tokens[prompt:], [0.0] * variant.scored, 0)
    return segment

"""The run loop: sample groups, score them, update, measure; one dict of metrics a step.

``Trainer.step`` is one step of GRPO in a few lines, and the methods after it are its
parts in the same order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.builders.engines import batch_shapes, make_collector
from mempo_jax.builders.policies import Policy, adapt
from mempo_jax.config import RunConfig
from mempo_jax.distributed import hosts
from mempo_jax.distributed.hosts import Stop
from mempo_jax.distributed.placement import place_params, to_host, to_local
from mempo_jax.envs import TaskSuite
from mempo_jax.evaluation.stats import step_stats
from mempo_jax.models import lora
from mempo_jax.rollout.assemble import pack
from mempo_jax.rollout.sampler import in_one_order
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training import checks
from mempo_jax.training.credit_records import Prober, TokenCreditRecorder
from mempo_jax.training.groups import Groups, GroupSampler, SampledStep, StepSampler
from mempo_jax.training.loss import Scores, count_tokens
from mempo_jax.training.state import (
    policy_optimiser,
    scheduled_values,
    state_from_params,
)
from mempo_jax.training.step import (
    Accumulator,
    RunAheadLimit,
    TrainPrograms,
    dummy_rows,
    dummy_trajectories,
)
from mempo_jax.training.step_metrics import (
    CompilationCounter,
    device_bytes,
    mean_metrics,
    scored_metrics,
)
from mempo_jax.types import Array, OpTable, Rows, TrainState, Trajectories


class ScoredRows(NamedTuple):
    """One micro-batch, and what is known of its tokens.

    Attributes:
      rows: B segments of T tokens.
      old: by the policy before the step; None until the gradient pass of the first
        update gives it.
      ref_log_probs: f32 [B, T], by the reference; None where no KL is paid.
    """

    rows: Rows
    old: Scores | None
    ref_log_probs: Array | None

    @property
    def log_probs(self) -> tuple[Rows, Array, Array | None]:
        """Rows, old and reference log-probs: what checks and dumps take."""
        return self.rows, self.old.log_probs, self.ref_log_probs


class Trainer:
    """Updates one policy on one task suite.

    Attributes:
      policy: model and tokenizer, without parameters.
      state: trained parameters, optimiser state and update counter.
      frozen: parameters that are not trained, such as the base of adapters.
      reference: parameters of the policy that the KL pulls towards; None without KL.
      engine, collector, groups: what samples.
      older: copies of the trained parameters that sample the next step, if that is
        sampled one step ahead; else None.
      programs: the compiled programs of the policy.
      in_a_row: skipped updates and empty steps in a row, until now.
    """

    def __init__(
        self,
        policy: Policy,
        suite: TaskSuite,
        settings: RunConfig,
        mesh: Any,
        reference: Policy | None = None,
        dump: Callable[[int, int, list[Any]], None] = lambda step, update, arrays: None,
        stop: Stop | None = None,
    ) -> None:
        """Places parameters on the mesh; compiles nothing yet.

        Args:
          policy: model, tokenizer and initial parameters; with ``policy.lora`` on, the
            base of the adapters that are trained.
          suite: gives the training tasks.
          settings: of the run.
          mesh: devices to train on.
          reference: another policy that the KL pulls towards, with the same vocabulary;
            None: the initial parameters of ``policy``.
          dump: receives (step, update, arrays) of an update that was not finite.
          stop: asked wherever the step can be left with its state unchanged.
        """
        self._reference_is_initial = reference is None
        policy = adapt(policy, settings, mesh, "training")
        # The state holds the parameters, and the reference those of the beginning, if
        # they are needed: a third copy here would only take memory.
        self.policy = dataclasses.replace(policy, params=None)
        self.settings, self.suite = settings, suite
        self._mesh = mesh
        self.engine, self.collector = make_collector(policy, suite, settings, mesh)
        self.optimiser = policy_optimiser(settings.train)
        self.programs = self._make_programs(policy, mesh)
        trained, self.frozen = lora.split(policy.params)
        self.state: TrainState = state_from_params(trained, self.optimiser, mesh)
        self._copied: tuple[TrainState, Any] | None = None
        # Fresh adapters do nothing: the initial policy is the base with adapters off.
        reference = policy if reference is None else reference
        self.reference: Any = None
        self._reference_programs = self.programs
        if settings.objective.kl_coef:  # else nothing would ever read it
            self.reference = place_params(reference.params, mesh)
            # A reference of another architecture needs programs of its own.
            if reference.model != policy.model:
                self._reference_programs = self._make_programs(reference, mesh)
        self._shapes = batch_shapes(settings, mesh)
        self._credit_recorder = TokenCreditRecorder(
            policy.tokenizer,
            settings.objective,
            settings.credit,
            outcome_gate=settings.reward.outcome_gate,
        )
        self._prober = Prober(
            policy.tokenizer, self._shapes, settings.credit.required_probes
        )
        self.groups = GroupSampler(self.collector, suite, settings, self._shapes)
        self._sampler = StepSampler(self.collector, self.groups)
        self._dump = dump
        self._stop = Stop() if stop is None else stop
        self._sampler.ask_between(self._stop.check_alone)
        self._copy = jax.jit(
            partial(jax.tree.map, jnp.copy),
            out_shardings=jax.tree.map(lambda leaf: leaf.sharding, self.state.params),
        )
        ahead = settings.sampling.steps_ahead > 0
        self.older = self._kept() if ahead else None
        # Saved in checkpoints, so the counts survive a restart.
        self.in_a_row = {"skipped": 0, "empty": 0}
        self._most_skipped = 0  # in a row, at most, within the last step
        self.compilations = CompilationCounter()

    def _make_programs(self, policy: Policy, mesh: Any) -> TrainPrograms:
        settings = self.settings
        return TrainPrograms(
            policy.model,
            mesh,
            self.optimiser,
            settings.objective,
            settings.credit,
            outcome_gate=settings.reward.outcome_gate,
            param_dtype=settings.policy.param_dtype,
        )

    @property
    def params(self) -> Any:
        """The policy's current parameters as it computes with them, frozen ones too."""
        return lora.join(self._trained, self.frozen)

    @property
    def _trained(self) -> Any:
        """The trained ones: the masters, or copies that are made once an update."""
        if self._copied is None or self._copied[0] is not self.state:
            self._copied = None  # freed first, so that one copy at a time exists
            self._copied = self.state, self.programs.trained(self.state)
        return self._copied[1]

    @property
    def local_params(self) -> Any:
        """The same on the devices of this process, for its engine."""
        return to_local(self.params, self._mesh)

    def to_save(self) -> Any:
        """All arrays that the run continues from."""
        return self.state if self.older is None else (self.state, self.older)

    def put_back(self, saved: Any) -> None:
        """Continues from what ``to_save`` gave.

        Args:
          saved: on the shardings of what it replaces.
        """
        if self.older is None:
            self.state = saved
        else:
            self.state, self.older = saved

    def warm_up(self) -> None:
        """Compiles every program for every shape a run can meet."""
        self.engine.set_params(self.local_params)
        self.engine.warm_up()
        dummies = dummy_trajectories(self.settings, self._shapes)
        self.groups.warm_up(dummies)
        if self.older is not None:
            self._kept()
        self._credit_recorder.warm_up(dummies)
        for length in self._shapes.length_buckets:
            rows = dummy_rows(self._shapes.rows_of(length), length)
            old, ref = self._warm_up_scores(rows)
            inputs = self.programs.loss_inputs(
                dummies, np.zeros(dummies.valid.size, np.float32)
            )
            sums = self.programs.zeros()
            # Two programs where a step makes several updates: the first computes the
            # old log-probs itself, the later ones are given them.
            for each in (None,) if old is None else (None, old):
                sums, _ = self.programs.accumulate(
                    self.params, sums, rows, each, ref, inputs, 0.0, 1.0
                )
        # Nothing was counted, so this leaves the state as it is.
        self.state, _ = self.programs.apply(self.state, sums)

    def _warm_up_scores(self, rows: Rows) -> tuple[Array | None, Array | None]:
        """Compiles what scores in a step; log-probs as a later update is given them."""
        several = self.settings.train.minibatches > 1
        old = ref = None
        if several or self.settings.credit.required_probes or self.older is not None:
            old = self.programs.score(self.params, rows, 1.0).log_probs
        if self.reference is not None:
            ref = self._reference_programs.score(self.reference, rows, 1.0).log_probs
        return old if several else None, ref

    def run(self, first: int, last: int) -> Iterator[tuple[dict, list[Trajectory]]]:
        """Runs steps ``first`` to ``last`` - 1.

        Whatever it raises, ``state`` is as it was after the last step that it yielded.

        Args:
          first: number of the first step.
          last: number of the step after the last one.

        Yields:
          Metrics and trajectories of each step.

        Raises:
          RunStopped: as ``step``, or too many skipped updates in a row.
          Stopped: ``stop`` asked for it.
        """
        try:
            for step in range(first, last):
                self._most_skipped = 0
                yield self.step(step, last=step + 1 == last)
                # After the step: between its updates no state could be continued from.
                limit = self.settings.train.max_skipped_updates
                checks.skipped_in_a_row(self._most_skipped, limit)
        finally:
            self._sampler.cancel()

    def step(
        self, step: int, *, last: bool = True
    ) -> tuple[dict[str, Any], list[Trajectory]]:
        """One step of GRPO: sample groups, probe them, score their tokens, update.

        Args:
          step: its number; tasks, samples and minibatches follow from it.
          last: whether no step follows, which might be sampled during this one.

        Returns:
          Metrics, and every trajectory that was sampled.

        Raises:
          RunStopped: too many failed trajectories, a gap between sampler and trainer,
            or a reference that is not the policy; nothing was updated.
          Stopped: ``stop`` asked for it; nothing was updated.
        """
        meter = StepMeter(self.compilations)
        sampled = self._sample(step)
        newer = self._begin_next(step, last)
        with meter.training():
            groups, probe_metrics = self._probe(sampled.groups)
            scored = self._score(self._minibatches(step, groups))
            lag = step - sampled.policy_step
            gaps = [self._check(batch, lag) for batch in scored[1:]]
            updates = []
            for number, batch in enumerate(scored):
                sums, scored[number] = self._gradient(
                    step, number, batch, groups.arrays
                )
                if number == 0:  # its gradient has just given what is checked
                    gaps.append(self._check(scored[0], lag))
                updates.append(self._apply(step, number, sums, scored[number]))
            metrics = _update_metrics(updates, scored, gaps, groups.arrays.ops)
        self.older = newer  # only now: a step that is left would be done over
        self._note(step, groups, metrics["empty_steps"])
        metrics |= step_stats(groups.sampled, self.settings.sampling.group_size)
        metrics |= groups.figures
        metrics |= meter.metrics(sampled, probe_metrics, metrics["trained_tokens"])
        metrics["policy_lag"] = lag
        return metrics, groups.sampled

    def _sample(self, step: int) -> SampledStep:
        """The groups of a step, by the current parameters or those of one before."""
        policy_step = step if self.older is None else max(0, step - 1)
        params = to_local(self._sampling_params, self._mesh)
        sampled = self._sampler.take(step, params, policy_step)
        self._stop.check()
        return sampled

    @property
    def _sampling_params(self) -> Any:
        """The parameters that sample, or sampled, the groups of this step."""
        if self.older is None:
            return self.params
        return lora.join(self.older, self.frozen)

    def _begin_next(self, step: int, last: bool) -> Any:
        """Begins to sample the next step, if that is to be; the copies that sample."""
        if self.older is None:
            return None
        newer = self._kept()
        if not last:
            self._sampler.begin(step + 1, lora.join(newer, self.frozen))
        return newer

    def _kept(self) -> Any:
        """Trained parameters that the next update leaves as they are."""
        # It donates the masters. Copies in another dtype are not part of the state.
        if self.programs.narrows:
            return self._trained
        with in_one_order(self._mesh.size):
            return self._copy(self.state.params)

    def _probe(self, groups: Groups) -> tuple[Groups, dict[str, Any]]:
        """The groups with the evidence that the credit modes need, and its cost.

        The probes are scored by the parameters that sampled, at their temperature.
        """
        temperature = self.settings.sampling.temperature

        def score(rows: Rows) -> Any:
            self._stop.check()
            return self.programs.score(self._sampling_params, rows, temperature)[0]

        trajectories, arrays = groups.trajectories, groups.arrays
        evidence, metrics = self._prober(trajectories, arrays.valid, score)
        return groups._replace(arrays=arrays._replace(evidence=evidence)), metrics

    def _minibatches(self, step: int, groups: Groups) -> list[tuple[Rows, ...]]:
        """The micro-batches of each update of a step; trajectories are shuffled."""
        valid = np.flatnonzero(groups.arrays.valid.reshape(-1))
        # Seeded by the step alone, so a continued run trains in the same order.
        seed = np.random.SeedSequence((self.settings.seed, step))
        order = np.random.default_rng(seed).permutation(valid)
        pad_id = self.policy.tokenizer.pad_id
        batches = []
        # Whole trajectories are dealt out, so all tokens of one enter the same update.
        for part in np.array_split(order, self.settings.train.minibatches):
            segments = [
                (int(n), segment)
                for n in part
                for segment in groups.trajectories[n].segments
            ]
            # A segment without an action has no token that could enter the loss.
            segments = [(n, s) for n, s in segments if any(s.is_action)]
            if segments:
                batches.append(pack(segments, self._shapes, pad_id))
        return batches

    def _score(self, batches: Sequence[Sequence[Rows]]) -> list[list[ScoredRows]]:
        """Scores what the gradient passes of a step need and do not compute themselves.

        The old policy's log-probs are those of the first update's own pass, since the
        policy has not moved yet. The reference is asked if there is a KL; in the first
        step of its warm-up, which pays none, it is compared with the policy.
        """
        limit_run_ahead = RunAheadLimit()
        temperature = self.settings.sampling.temperature

        def score(number: int, rows: Rows) -> ScoredRows:
            self._stop.check()
            old = ref = None
            if number > 0:
                old = self.programs.score(self.params, rows, temperature)
            if self.reference is not None:
                programs = self._reference_programs
                ref = programs.score(self.reference, rows, temperature)[0]
            limit_run_ahead((old, ref))
            return ScoredRows(rows, old, ref)

        return [
            [score(number, rows) for rows in batch]
            for number, batch in enumerate(batches)
        ]

    def _check(self, batch: Sequence[ScoredRows], lag: int) -> float | None:
        """Refuses to train on wrong log-probs; returns the sampler's largest gap."""
        log_probs = [scored.log_probs for scored in batch]
        if lag:
            # Older weights sampled. Some of the rows tell whether the two programs
            # agree on them; to score all would cost a pass.
            rows, temperature = batch[0].rows, self.settings.sampling.temperature
            older = self.programs.score(self._sampling_params, rows, temperature)
            log_probs = [(rows, older.log_probs, None)]
        gap = checks.log_prob_gap(log_probs, self.settings.max_log_prob_gap)
        # Only before the first update of a run: after it the policy has moved.
        if self._reference_is_initial and int(self.state.step) == 0:
            checks.reference_is_policy(log_probs)
        return gap

    def _gradient(
        self, step: int, number: int, batch: Sequence[ScoredRows], arrays: Trajectories
    ) -> tuple[Accumulator, list[ScoredRows]]:
        """The gradient of one update, and its micro-batches with the old log-probs."""
        token_count = count_tokens([scored.rows for scored in batch], arrays.valid)
        scalars = scheduled_values(step, self.settings)
        inputs = self.programs.loss_inputs(arrays, token_count, scalars.bonus_scale)
        sums, limit_run_ahead = self.programs.zeros(), RunAheadLimit()
        scored = []
        for rows, old, ref in batch:
            if number == 0:  # once an update is made, the step must be finished
                limit_run_ahead(sums)
                self._stop.check()
            sums, own = self.programs.accumulate(
                self.params,
                sums,
                rows,
                None if old is None else old.log_probs,
                ref,
                inputs,
                scalars.kl_coef,
                self.settings.sampling.temperature,
            )
            scored.append(ScoredRows(rows, own if old is None else old, ref))
        return sums, scored

    def _apply(
        self, step: int, number: int, sums: Accumulator, batch: Sequence[ScoredRows]
    ) -> dict[str, Any]:
        """One optimiser update by an accumulated gradient; its metrics."""
        self._copied = None  # of the old state, which is consumed
        self.state, device_metrics = self.programs.apply(self.state, sums)
        metrics = to_host(device_metrics)  # waits until the update is done
        metrics |= scheduled_values(step, self.settings)._asdict()
        if batch[0].ref_log_probs is None:
            metrics["kl"] = None  # nobody asked the reference
        if metrics["skipped"]:
            self.in_a_row["skipped"] += 1
            self._most_skipped = max(self._most_skipped, self.in_a_row["skipped"])
            self._dump(step, number, [to_host(scored.log_probs) for scored in batch])
        else:
            self.in_a_row["skipped"] = 0
        return metrics

    def _note(self, step: int, groups: Groups, empty: int) -> None:
        """Warns of empty steps, and notes the credit of tokens if a record is due."""
        self.in_a_row["empty"] = self.in_a_row["empty"] + 1 if empty else 0
        checks.empty_in_a_row(self.in_a_row["empty"], groups.sampled)
        if self.settings.log.records(step):
            scale = scheduled_values(step, self.settings).bonus_scale
            self._credit_recorder.note(groups.trajectories, groups.arrays, scale)


def _update_metrics(
    updates: Sequence[dict[str, Any]],
    scored: Sequence[Sequence[ScoredRows]],
    gaps: Sequence[float | None],
    ops: OpTable,
) -> dict[str, Any]:
    """Means over the updates of a step, and what scores showed before them."""
    metrics = mean_metrics(updates)
    metrics["updates"] = len(updates)
    metrics["log_prob_gap"] = max((g for g in gaps if g is not None), default=None)
    flat = [(rows.log_probs, rows.old.entropy) for batch in scored for rows in batch]
    return metrics | scored_metrics(flat, ops)


# Counts that an engine over HTTP adds to those of every engine.
SERVER_COUNTS = ("server_faults", "servers_set_aside")


class StepMeter:
    """Measures one step: seconds of its phases, tokens of the engine, compilations."""

    def __init__(self, compilations: CompilationCounter) -> None:
        """Starts counting.

        Args:
          compilations: is read now and at the end.
        """
        self._compilations = compilations
        self._compilations_before = compilations.count
        self._training_s = 0.0

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Times its block."""
        began = time.perf_counter()
        yield
        self._training_s = time.perf_counter() - began

    def metrics(
        self, sampled: SampledStep, probe_metrics: dict[str, Any], trained_tokens: int
    ) -> dict[str, Any]:
        """Seconds, tokens per second and compilations of the step.

        Every process must call it: token counts are summed over all of them.

        Args:
          sampled: what it took to sample.
          probe_metrics: what probes cost; empty if there were none.
          trained_tokens: tokens of all updates.
        """
        # Each process samples its share of the groups and counts those tokens alone.
        everyone = hosts.gather(lambda: sampled.counters)
        tokens = {n: sum(each[n] for each in everyone) for n in sampled.counters}
        sampling_s, training_s = sampled.seconds, self._training_s
        total_s = sampled.seconds_waiting + training_s
        metrics = {
            "seconds": total_s,
            "seconds_sampling": sampling_s,
            "seconds_waiting": sampled.seconds_waiting,
            "seconds_training": training_s,
            "tokens_generated_per_s": tokens["tokens_generated"] / sampling_s,
            "tokens_prefilled_per_s": tokens["tokens_prefilled"] / sampling_s,
            "tokens_fed_per_s": tokens["tokens_fed"] / sampling_s,
            "device_bytes": device_bytes(),
        } | probe_metrics
        if probe_metrics:
            metrics["probe_share"] = probe_metrics["seconds_probing"] / total_s
        metrics |= {name: tokens[name] for name in SERVER_COUNTS if name in tokens}
        metrics["tokens_trained_per_s"] = trained_tokens / training_s
        metrics["compilations"] = self._compilations.count - self._compilations_before
        return metrics

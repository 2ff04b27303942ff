"""The run loop: collect groups, score, update, measure; one dict of figures a step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training import checks
from mempo_jax.training.credit_records import Prober, TokenCreditRecorder
from mempo_jax.training.groups import GroupSampler
from mempo_jax.training.loss import count_tokens
from mempo_jax.training.state import (
    policy_optimiser,
    scheduled_values,
    state_from_params,
)
from mempo_jax.training.step import (
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
from mempo_jax.types import Evidence, Rows, TrainState, Trajectories


class Trainer:
    """Updates one policy on one task suite.

    Args:
      policy: model, tokenizer and initial parameters; with ``policy.lora`` on, the
        base of the adapters that are trained.
      reference: another policy that the KL pulls towards, with the same vocabulary;
        None: the initial parameters of ``policy``.
      dump: receives (step, update, arrays) of an update that was not finite.
      stop: asked wherever the step under way could be left with its state unchanged.
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
        self._reference_is_initial = reference is None
        policy = adapt(policy, settings, mesh, "training")
        # The parameters lie in the state, and those that it began with, where they are
        # needed, in the reference: here they would be one copy more.
        self.policy = dataclasses.replace(policy, params=None)
        self.settings, self.suite = settings, suite
        self._mesh = mesh
        self.engine, self.collector = make_collector(policy, suite, settings, mesh)
        self.optimiser = policy_optimiser(settings.train)
        self.programs = self._make_programs(policy, mesh)
        trained, self.frozen = lora.split(policy.params)
        self.state: TrainState = state_from_params(trained, self.optimiser, mesh)
        # Fresh adapters do nothing: the policy as it begins is the base, adapters off.
        reference = policy if reference is None else reference
        self.reference = place_params(reference.params, mesh)
        self._reference_programs = self.programs
        if reference.model != policy.model:
            self._reference_programs = self._make_programs(reference, mesh)
        self._shapes = batch_shapes(settings, mesh)
        self._crediting = TokenCreditRecorder(
            policy.tokenizer,
            settings.objective,
            settings.credit,
            outcome_gate=settings.reward.outcome_gate,
        )
        self._prober = Prober(policy.tokenizer, self._shapes, settings.credit.needs)
        self.groups = GroupSampler(self.collector, suite, settings, self._shapes)
        self._dump = dump
        self._stop = Stop() if stop is None else stop
        self.collector.ask_between(self._stop.check_alone)
        # Of a run, not of its process: a checkpoint holds them too.
        self.in_a_row = {"skipped": 0, "empty": 0}
        self._most_skipped = 0
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
        )

    @property
    def params(self) -> Any:
        """The policy's parameters as they stand, frozen ones included."""
        return lora.join(self.state.params, self.frozen)

    @property
    def local_params(self) -> Any:
        """The same on the devices of this process, for its engine."""
        return to_local(self.params, self._mesh)

    def warm_up(self) -> None:
        """Compiles every program for every shape a run can meet."""
        self.engine.set_params(self.local_params)
        self.engine.warm_up()
        filler = dummy_trajectories(self.settings, self._shapes)
        self.groups.warm_up(filler)
        self._crediting.warm_up(filler)
        for length in self._shapes.length_buckets:
            rows = dummy_rows(self._shapes.rows_of(length), length)
            old, _ = self.programs.score(self.params, rows, 1.0)
            self._reference_programs.score(self.reference, rows, 1.0)
            inputs = self.programs.loss_inputs(
                filler, np.zeros(filler.valid.size, np.float32)
            )
            sums = self.programs.accumulate(
                *(self.params, self.programs.zeros(), rows, old, old),
                *(inputs, 0.0, 1.0),
            )
        self.state, _ = self.programs.apply(self.state, sums)

    def run(self, first: int, last: int) -> Iterator[tuple[dict, list[Trajectory]]]:
        """Steps ``first`` to ``last`` - 1; yields figures and trajectories of each.

        Whatever it raises, ``state`` is as it was behind the last step that it yielded.

        Raises:
          RunStopped: as ``step``, or too many skipped updates in a row.
          Stopped: ``stop`` asked for it.
        """
        for step in range(first, last):
            yield self.step(step)
            # Behind the step: amid its updates no state could be continued from.
            most = self.settings.train.max_skipped_updates
            checks.skipped_in_a_row(self._most_skipped, most)

    def step(self, step: int) -> tuple[dict[str, Any], list[Trajectory]]:
        """One step: sampling, scoring, updates; figures, and all that was sampled.

        Raises:
          RunStopped: too many failed trajectories, a gap between sampler and trainer,
            or a reference that is not the policy; nothing was updated.
          Stopped: ``stop`` asked for it; nothing was updated.
        """
        began, before = time.perf_counter(), self.compilations.count
        self.engine.set_params(self.local_params)
        counters = dataclasses.asdict(self.engine.counters)
        groups = self.groups.sample(step)
        self._stop.check()
        sampled = time.perf_counter()
        evidence, probing = self._probe(groups.kept, groups.arrays)
        arrays = groups.arrays._replace(evidence=evidence)
        figures = self._update(step, groups.kept, arrays)
        ended = time.perf_counter()
        self._note_empty(figures["empty_steps"], groups.sampled)
        if self.settings.log.records(step):
            scale = scheduled_values(step, self.settings).bonus_scale
            self._crediting.note(groups.kept, arrays, scale)
        figures |= step_stats(groups.sampled, self.settings.sampling.group_size)
        figures |= groups.figures
        figures |= self._speeds(counters, sampled - began, ended - sampled)
        if probing:
            probing["probe_share"] = probing["seconds_probing"] / figures["seconds"]
        figures |= probing
        trained = figures["trained_tokens"] / figures["seconds_training"]
        figures["tokens_trained_per_s"] = trained
        figures["compilations"] = self.compilations.count - before
        return figures, groups.sampled

    def _probe(
        self, trajectories: Sequence[Trajectory], arrays: Trajectories
    ) -> tuple[Evidence, dict[str, Any]]:
        """What probes say, by the parameters that sampled, at their temperature."""
        temperature = self.settings.sampling.temperature

        def score(rows: Rows) -> Any:
            self._stop.check()
            return self.programs.score(self.params, rows, temperature)[0]

        return self._prober(trajectories, arrays.valid, score)

    def _note_empty(self, empty: int, sampled: Sequence[Trajectory]) -> None:
        self.in_a_row["empty"] = self.in_a_row["empty"] + 1 if empty else 0
        checks.empty_in_a_row(self.in_a_row["empty"], sampled)

    def _update(
        self, step: int, trajectories: Sequence[Trajectory], arrays: Trajectories
    ) -> dict[str, Any]:
        """All optimiser updates of one step, on old log-probs from before the first."""
        batches = self._minibatches(step, trajectories, arrays)
        pace = RunAheadLimit()
        made = [[self._score(rows, pace) for rows in batch] for batch in batches]
        scored = [[item for item, _ in batch] for batch in made]
        flat = [item for batch in scored for item in batch]
        gap = checks.log_prob_gap(flat, self.settings.train.max_log_prob_gap)
        if self._reference_is_initial and int(self.state.step) == 0:
            checks.reference_is_policy(flat)
        self._most_skipped = 0
        figures = [
            self._apply_batch(step, at, batch, arrays)
            for at, batch in enumerate(scored)
        ]
        merged = mean_metrics(figures)
        merged["updates"] = len(batches)
        merged["log_prob_gap"] = gap
        both = [each for batch in made for each in batch]
        return merged | scored_metrics(both, arrays.ops)

    def _minibatches(
        self, step: int, trajectories: Sequence[Trajectory], arrays: Trajectories
    ) -> list[tuple[Rows, ...]]:
        counted = np.flatnonzero(arrays.valid.reshape(-1))
        seed = np.random.SeedSequence((self.settings.seed, step))
        order = np.random.default_rng(seed).permutation(counted)
        pad_id = self.policy.tokenizer.pad_id
        batches = []
        for part in np.array_split(order, self.settings.train.minibatches):
            segments = [(int(n), s) for n in part for s in trajectories[n].segments]
            segments = [(n, s) for n, s in segments if any(s.is_action)]
            if segments:
                batches.append(pack(segments, self._shapes, pad_id))
        return batches

    def _score(
        self, rows: Rows, pace: RunAheadLimit
    ) -> tuple[tuple[Rows, Any, Any], Any]:
        """(rows, old, reference log-probs), and the entropy at each counted token."""
        self._stop.check()
        temperature = self.settings.sampling.temperature
        old, entropy = self.programs.score(self.params, rows, temperature)
        ref, _ = self._reference_programs.score(self.reference, rows, temperature)
        pace(ref)
        return (rows, old, ref), entropy

    def _apply_batch(
        self, step: int, at: int, batch: Sequence[tuple], arrays: Trajectories
    ) -> dict[str, Any]:
        settings = self.settings
        token_count = count_tokens([rows for rows, _, _ in batch], arrays.valid)
        now = scheduled_values(step, settings)
        inputs = self.programs.loss_inputs(arrays, token_count, now.bonus_scale)
        sums, pace = self.programs.zeros(), RunAheadLimit()
        for rows, old, ref in batch:
            if at == 0:  # from the first update on the step must be finished
                pace(sums)
                self._stop.check()
            sums = self.programs.accumulate(
                *(self.params, sums, rows, old, ref, inputs),
                *(now.kl_coef, settings.sampling.temperature),
            )
        self.state, device_figures = self.programs.apply(self.state, sums)
        figures = to_host(device_figures)
        figures |= now._asdict()
        if figures["skipped"]:
            self.in_a_row["skipped"] += 1
            self._most_skipped = max(self._most_skipped, self.in_a_row["skipped"])
            self._dump(step, at, [to_host(item) for item in batch])
        else:
            self.in_a_row["skipped"] = 0
        return figures

    def _speeds(
        self, before: dict[str, int], sampling_s: float, training_s: float
    ) -> dict[str, Any]:
        now = dataclasses.asdict(self.engine.counters)
        own = {name: now[name] - before[name] for name in now}
        everyone = hosts.gather(lambda: own)
        made = {name: sum(each[name] for each in everyone) for name in own}
        total = sampling_s + training_s
        return {
            "seconds": total,
            "seconds_sampling": sampling_s,
            "seconds_training": training_s,
            "tokens_generated_per_s": made["tokens_generated"] / sampling_s,
            "tokens_prefilled_per_s": made["tokens_prefilled"] / sampling_s,
            "tokens_fed_per_s": made["tokens_fed"] / sampling_s,
            "device_bytes": device_bytes(),
        }

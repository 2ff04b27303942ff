"""The run loop: collect groups, score, update, measure; one dict of figures a step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.core.divergences import kl_coefficient
from mempo_jax.envs import TaskSuite
from mempo_jax.evaluation.trajectory_stats import step_stats
from mempo_jax.models import lora
from mempo_jax.rollout.assemble import assemble_trajectories, pack
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training import checks, parts
from mempo_jax.training.adapters import adapt
from mempo_jax.training.compilations import CompilationCounter
from mempo_jax.training.figures import (
    device_bytes,
    mean_entropy,
    mean_figures,
    padding_share,
)
from mempo_jax.training.groups import GroupSampler
from mempo_jax.training.loss import count_tokens
from mempo_jax.training.probing import Prober
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.state import make_optimiser, place_params, state_from_params
from mempo_jax.training.step import Programs
from mempo_jax.types import Evidence, Rows, TrainState, Trajectories


class Trainer:
    """Updates one policy on one task suite.

    Args:
      policy: model, tokenizer and initial parameters; with ``policy.lora`` on, the
        base of the adapters that are trained.
      reference: another policy that the KL pulls towards, with the same vocabulary;
        None: the initial parameters of ``policy``.
      dump: receives (step, update, arrays) of an update that was not finite.
    """

    def __init__(
        self,
        policy: parts.Policy,
        suite: TaskSuite,
        settings: RunSettings,
        mesh: Any,
        reference: parts.Policy | None = None,
        dump: Callable[[int, int, list[Any]], None] = lambda step, update, arrays: None,
    ) -> None:
        self._reference_is_initial = reference is None
        policy = adapt(policy, settings, mesh, "training")
        self.settings, self.policy, self.suite = settings, policy, suite
        self.engine, self.collector = parts.make_collector(
            policy, suite, settings, mesh
        )
        self.optimiser = make_optimiser(parts.optimiser(settings))
        self.programs = self._make_programs(policy, mesh)
        trained, self.frozen = lora.split(policy.params)
        self.state: TrainState = state_from_params(trained, self.optimiser, mesh)
        # Fresh adapters do nothing: the policy as it begins is the base, adapters off.
        reference = policy if reference is None else reference
        self.reference = place_params(reference.params, mesh)
        self._reference_programs = self.programs
        if reference.model != policy.model:
            self._reference_programs = self._make_programs(reference, mesh)
        self._shapes = parts.shapes(settings, mesh)
        self._prober = Prober(policy.tokenizer, self._shapes, settings.credit.needs)
        self.groups = GroupSampler(self.collector, suite, settings, self._shapes)
        self._dump = dump
        self._skipped_in_a_row = self._empty_in_a_row = 0
        self.compilations = CompilationCounter()

    def _make_programs(self, policy: parts.Policy, mesh: Any) -> Programs:
        settings = self.settings
        return Programs(
            policy.model,
            mesh,
            self.optimiser,
            parts.objective(settings),
            parts.advantage(settings),
            settings.credit,
        )

    @property
    def params(self) -> Any:
        """The policy's parameters as they stand, frozen ones included."""
        return lora.join(self.state.params, self.frozen)

    def warm_up(self) -> None:
        """Compiles every program for every shape a run can meet."""
        self.engine.set_params(self.params)
        self.engine.warm_up()
        filler = self._filler()
        self.groups.warm_up(filler)
        for length in self._shapes.length_buckets:
            rows = _filler_rows(self._shapes.rows_of(length), length)
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
        """Steps ``first`` to ``last`` - 1; yields figures and trajectories of each."""
        for step in range(first, last):
            yield self.step(step)

    def step(self, step: int) -> tuple[dict[str, Any], list[Trajectory]]:
        """One step: sampling, scoring, updates; figures, and all that was sampled.

        Raises:
          RunStopped: too many failed trajectories or skipped updates in a row, a gap
            between sampler and trainer, or a reference that is not the policy.
        """
        began, before = time.perf_counter(), self.compilations.count
        self.engine.set_params(self.params)
        counters = dataclasses.asdict(self.engine.counters)
        groups = self.groups.sample(step)
        sampled = time.perf_counter()
        evidence, probing = self._probe(groups.kept, groups.arrays)
        arrays = groups.arrays._replace(evidence=evidence)
        figures = self._update(step, groups.kept, arrays)
        ended = time.perf_counter()
        self._note_empty(figures["empty_steps"], groups.sampled)
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
            return self.programs.score(self.params, rows, temperature)[0]

        return self._prober(trajectories, arrays.valid, score)

    def _note_empty(self, empty: int, sampled: Sequence[Trajectory]) -> None:
        self._empty_in_a_row = self._empty_in_a_row + 1 if empty else 0
        checks.empty_in_a_row(self._empty_in_a_row, sampled)

    def _update(
        self, step: int, trajectories: Sequence[Trajectory], arrays: Trajectories
    ) -> dict[str, Any]:
        """All optimiser updates of one step, on old log-probs from before the first."""
        batches = self._minibatches(step, trajectories, arrays)
        made = [[self._score(rows) for rows in batch] for batch in batches]
        scored = [[item for item, _ in batch] for batch in made]
        flat = [item for batch in scored for item in batch]
        gap = checks.log_prob_gap(flat, self.settings.train.max_log_prob_gap)
        if self._reference_is_initial and int(self.state.step) == 0:
            checks.reference_is_policy(flat)
        figures = [
            self._apply_batch(step, at, batch, arrays)
            for at, batch in enumerate(scored)
        ]
        merged = mean_figures(figures)
        merged["updates"] = len(batches)
        merged["log_prob_gap"] = gap
        merged["padding_share"] = padding_share(rows for rows, _, _ in flat)
        merged["entropy"] = mean_entropy(
            (item[0], entropy) for batch in made for item, entropy in batch
        )
        return merged

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

    def _score(self, rows: Rows) -> tuple[tuple[Rows, Any, Any], Any]:
        """(rows, old, reference log-probs), and the entropy at each token."""
        temperature = self.settings.sampling.temperature
        old, entropy = self.programs.score(self.params, rows, temperature)
        ref, _ = self._reference_programs.score(self.reference, rows, temperature)
        return (rows, old, ref), entropy

    def _apply_batch(
        self, step: int, at: int, batch: Sequence[tuple], arrays: Trajectories
    ) -> dict[str, Any]:
        settings = self.settings
        token_count = count_tokens([rows for rows, _, _ in batch], arrays.valid)
        inputs = self.programs.loss_inputs(arrays, token_count)
        coefficient = kl_coefficient(
            step,
            target=settings.objective.kl_coef,
            warmup_steps=settings.objective.kl_warmup_steps,
        )
        sums = self.programs.zeros()
        for rows, old, ref in batch:
            sums = self.programs.accumulate(
                *(self.params, sums, rows, old, ref, inputs),
                *(coefficient, settings.sampling.temperature),
            )
        self.state, device_figures = self.programs.apply(self.state, sums)
        figures = jax.device_get(device_figures)
        figures["kl_coef"] = coefficient
        if figures["skipped"]:
            self._skipped_in_a_row += 1
            self._dump(step, at, [jax.device_get(item) for item in batch])
            checks.skipped_in_a_row(
                self._skipped_in_a_row, settings.train.max_skipped_updates
            )
        else:
            self._skipped_in_a_row = 0
        return figures

    def _filler(self) -> Trajectories:
        size = self.settings.sampling.group_size
        count = size * self.settings.sampling.tasks_per_step
        empty = assemble_trajectories([], 1, self._shapes)

        def grow(leaf: np.ndarray) -> np.ndarray:
            if leaf.shape[:1] == (1,):
                return np.zeros((count // size, size), leaf.dtype)
            return np.zeros((count, *leaf.shape[1:]), leaf.dtype)

        return jax.tree.map(grow, empty)

    def _speeds(
        self, before: dict[str, int], sampling_s: float, training_s: float
    ) -> dict[str, Any]:
        now = dataclasses.asdict(self.engine.counters)
        made = {name: now[name] - before[name] for name in now}
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


def _filler_rows(count: int, length: int) -> Rows:
    shape = (count, length)
    whole = np.zeros(shape, np.int32)
    no = np.zeros(shape, bool)
    return Rows(
        tokens=whole,
        token_mask=no,
        action_mask=no,
        behaviour_log_probs=np.zeros(shape, np.float32),
        turn_id=whole,
        op_id=whole - 1,
        trajectory_index=np.zeros(count, np.int32),
        valid=np.zeros(count, bool),
    )

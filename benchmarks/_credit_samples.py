"""Trajectories of a policy, and the credit that training would give their writes."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import _credit_truth
from mempo_jax.builders.engines import batch_shapes, make_run_mesh
from mempo_jax.builders.policies import load_policy
from mempo_jax.config import RunConfig
from mempo_jax.core.credit import CreditConfig
from mempo_jax.envs import TaskSuite
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.settings import ConfigError
from mempo_jax.training.credit_records import Prober
from mempo_jax.training.loop import Trainer
from mempo_jax.training.loss import loss_inputs
from mempo_jax.types import Evidence, Kind, Outcome, Trajectories

FIRST_STEP = 10_000  # steps no run gets to: procedural tasks are new, stories are not
LEAST_SHARE = 10  # at least one group in so many must be fit for training


@dataclasses.dataclass
class Writes:
    """Every write that made an entry, in the groups that training would use.

    credit: name of a mode -> what the trainer lays on the write's tokens, weight x
    group advantage + bonus. own: name -> the mode's part of it, the bonus, or the
    weight where it gives none. needed, relevant: bool. group: int, from 0 on. counts of
    trajectories and ops; fates of needed writes; cost of probing for each mode.
    """

    credit: dict[str, np.ndarray]
    own: dict[str, np.ndarray]
    needed: np.ndarray
    relevant: np.ndarray
    group: np.ndarray
    counts: dict[str, float]
    fates: dict[str, int]
    cost: dict[str, dict[str, float]]


def variants(base: CreditConfig) -> dict[str, CreditConfig]:
    """The modes to compare, each alone, then in other forms, then in pairs.

    ``ops_only`` in a pair changes no write's credit, so that pairs leave it out.
    """

    def of(*modes: str, **fields) -> CreditConfig:
        return dataclasses.replace(base, modes=modes, **fields)

    plain = {"attribution_form": "bonus", "attribution_probe": "turn_reward"}
    pushed = {"counterfactual_evictions": True}
    return {
        "uniform": of("uniform"),
        "ops_only": of("ops_only"),
        "discounted": of("discounted"),
        "attribution": of("attribution", **plain),
        "answer_probability": of("answer_probability"),
        "counterfactual": of("counterfactual", **pushed),
        "attribution, as weight": of(
            "attribution", **(plain | {"attribution_form": "weight"})
        ),
        "attribution, by log-prob": of(
            "attribution", **(plain | {"attribution_probe": "answer_log_prob"})
        ),
        "counterfactual, no evictions": of(
            "counterfactual", counterfactual_evictions=False
        ),
        "discounted + attribution": of("discounted", "attribution", **plain),
        "attribution + answer_prob.": of("attribution", "answer_probability", **plain),
        "attribution + counterf.": of(
            "attribution", "counterfactual", **plain, **pushed
        ),
        "answer_prob. + counterf.": of(
            "answer_probability", "counterfactual", **pushed
        ),
    }


class Sampler:
    """Samples one policy as its training would, probes, and gives credit.

    Args:
      modes: names and settings, from ``variants``.
    """

    def __init__(
        self,
        directory: str,
        settings: RunConfig,
        suite: TaskSuite,
        modes: dict[str, CreditConfig],
    ) -> None:
        mesh = make_run_mesh(settings)
        self._policy = load_policy(directory, settings)
        self._trainer = Trainer(self._policy, suite, settings, mesh)
        self._trainer.engine.set_params(self._trainer.state.params)
        self._shapes = batch_shapes(settings, mesh)
        self._settings, self._suite, self._modes = settings, suite, modes
        self._warm = False

    def writes(self, groups: int, say: Callable[[str], None]) -> Writes:
        """Samples steps until so many groups of them are fit for training.

        Those of equal rewards are not (``sampling.drop_degenerate``): they make no
        credit that a trainer would use, and are only counted.

        Raises:
          ConfigError: hardly any group is.
        """
        tally = _Tally(self._modes)
        per_step = self._settings.sampling.tasks_per_step
        steps = -(-LEAST_SHARE * groups // per_step)
        for step in range(FIRST_STEP, FIRST_STEP + steps):
            self._step(step, tally, groups - tally.groups)
            say(f"  {tally.groups} of {groups} groups")
            if tally.groups >= groups:
                return tally.writes()
        raise ConfigError(
            f"expected {groups} groups of unequal rewards, got {tally.groups} of "
            f"{steps * per_step}: the policy is too good or too bad to learn on these "
            "tasks; give another --policy, or fewer --tasks"
        )

    def _step(self, step: int, tally: _Tally, wanted: int) -> None:
        began = time.perf_counter()
        made = self._trainer.groups.sample(step)
        tally.counts["seconds sampling"] += time.perf_counter() - began
        arrays = _first_groups(made.arrays, wanted)
        found = self._evidence(made.trajectories, arrays, tally)
        tally.add_facts(made.sampled, made.trajectories, arrays, self._suite)
        for name, credit in self._modes.items():
            inputs = loss_inputs(
                arrays._replace(evidence=found[credit.required_probes]),
                np.zeros(len(made.trajectories), np.float32),
                objective=self._settings.objective,
                credit=credit,
                outcome_gate=self._settings.reward.outcome_gate,
            )
            tally.add_credit(name, inputs, _counted(arrays))

    def _evidence(
        self, kept: Sequence[Trajectory], arrays: Trajectories, tally: _Tally
    ) -> dict[frozenset[str], Evidence]:
        """Probes once for each distinct need, and times each."""
        needs = {credit.required_probes for credit in self._modes.values()}
        if not self._warm:  # what is timed below compiles nothing
            self._probe(frozenset().union(*needs), kept, arrays)
            self._warm = True
        found = {}
        for need in sorted(needs, key=sorted):
            found[need], figures = self._probe(need, kept, arrays)
            for name, credit in self._modes.items():
                if credit.required_probes == need:
                    tally.cost[name].update(figures)
        return found

    def _probe(
        self, need: frozenset[str], kept: Sequence[Trajectory], arrays: Trajectories
    ) -> tuple[Evidence, dict]:
        trainer, temperature = self._trainer, self._settings.sampling.temperature

        def score(rows):
            return trainer.programs.score(trainer.state.params, rows, temperature)[0]

        prober = Prober(self._policy.tokenizer, self._shapes, need)
        return prober(kept, arrays.valid, score)


class _Tally:
    """Adds up the steps."""

    def __init__(self, modes: dict[str, CreditConfig]) -> None:
        self.groups = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.fates: collections.Counter[str] = collections.Counter()
        self.cost = {name: collections.Counter() for name in modes}
        self._credit, self._weight, self._bonus = (
            {n: [] for n in modes} for _ in "abc"
        )
        self._needed, self._relevant, self._group = [], [], []

    def add_facts(
        self,
        sampled: Sequence[Trajectory],
        kept: Sequence[Trajectory],
        arrays: Trajectories,
        suite: TaskSuite,
    ) -> None:
        size, counts = arrays.valid.shape[1], self.counts
        counts["trajectories sampled"] += len(sampled)
        counts["score"] += sum(t.score for t in sampled)
        valid, counted = arrays.valid.reshape(-1), _counted(arrays)
        fit = np.flatnonzero(arrays.valid.any(axis=1))
        number = {int(g): self.groups + i for i, g in enumerate(fit)}
        self.groups += len(fit)
        for n in np.flatnonzero(valid):
            trajectory = kept[n]
            seen = _credit_truth.observations(suite, trajectory.task)
            needed = _credit_truth.needed_writes(trajectory, seen)
            rest, missing = _credit_truth.unwritten(trajectory, list(needed))
            counts["trajectories"] += 1
            counts["needed observations"] += rest
            counts["never written"] += missing
            counts["duplicate writes"] += int(
                np.sum(
                    (arrays.ops.kind[n] == Kind.WRITE)
                    & (arrays.ops.outcome[n] == Outcome.DUPLICATE)
                )
            )
            for k in np.flatnonzero(counted[n]):
                record = trajectory.log[k]
                self._needed.append(k in needed)
                self._relevant.append(_credit_truth.is_relevant(trajectory, record))
                self._group.append(number[int(n) // size])
                self.fates.update([needed[k]] if k in needed else [])

    def add_credit(self, name: str, inputs, counted: np.ndarray) -> None:
        weight, bonus = (np.asarray(leaf, np.float64) for leaf in inputs.credit)
        credit = weight * np.asarray(inputs.advantage, np.float64)[:, None] + bonus
        for store, values in (
            (self._credit, credit),
            (self._weight, weight),
            (self._bonus, bonus),
        ):
            store[name].append(values[counted].round(6))  # what rounds alike is equal

    def writes(self) -> Writes:
        weight, bonus = _joined(self._weight), _joined(self._bonus)
        return Writes(
            credit=_joined(self._credit),
            own={n: b if b.any() else weight[n] for n, b in bonus.items()},
            needed=np.array(self._needed, bool),
            relevant=np.array(self._relevant, bool),
            group=np.array(self._group, int),
            counts=dict(self.counts),
            fates={fate: self.fates[fate] for fate in _credit_truth.FATES},
            cost={name: dict(cost) for name, cost in self.cost.items()},
        )


def _joined(parts_: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate(values) for name, values in parts_.items()}


def _counted(arrays: Trajectories) -> np.ndarray:
    """Writes that made an entry, in trajectories that train; bool [N, K]."""
    stored = np.isin(arrays.ops.outcome, (Outcome.NEW, Outcome.MERGED))
    valid = np.asarray(arrays.valid).reshape(-1, 1)
    return stored & (arrays.ops.kind == Kind.WRITE) & valid


def _first_groups(arrays: Trajectories, wanted: int) -> Trajectories:
    """Leaves the first groups that are fit for training, so many at most."""
    fit = arrays.valid.any(axis=1)
    return arrays._replace(valid=arrays.valid & (np.cumsum(fit) <= wanted)[:, None])

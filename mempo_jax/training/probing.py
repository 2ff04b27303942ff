"""Scores the probes that credit needs, through the compiled program of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.assemble import Shapes, no_evidence, pack
from mempo_jax.rollout.probe_plan import Variant
from mempo_jax.rollout.probes import plan_probes
from mempo_jax.rollout.segments import Segment
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training.placing import to_host
from mempo_jax.types import Array, Evidence, Rows


class Prober:
    """From the trajectories of a step to ``Evidence``, with what it cost.

    needs: in the words of ``types.NEEDS``; where empty nothing is scored.
    """

    def __init__(
        self, tokenizer: Tokenizer, shapes: Shapes, needs: frozenset[str]
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

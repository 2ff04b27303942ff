"""What is to be scored, and what the scores are evidence of: plain arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mempo_jax.types import Evidence

LEAST = 0.01  # probabilities below it differ, in logs, by much that means nothing


class Variant(NamedTuple):
    """One row to score: ids, of which the last ``scored`` are the gold answer's."""

    tokens: tuple[int, ...]
    scored: int


class LeaveOut(NamedTuple):
    """Drop from variant ``whole`` to ``without``, given to ops in these shares."""

    trajectory: int
    whole: int
    without: int
    shares: dict[int, float]


class Eviction(NamedTuple):
    """Rise from variant ``whole`` to ``restored``, if any, charged to ops."""

    trajectory: int
    whole: int
    restored: int
    shares: dict[int, float]


class Gain(NamedTuple):
    """Probability in variant ``alone`` less that in ``empty``, of one write.

    Of a rewritten block ``empty`` has the block before it.
    """

    trajectory: int
    op: int
    alone: int
    empty: int


class Rise(NamedTuple):
    """Change of the log-probability that a turn's context brought."""

    trajectory: int
    turn: int
    before: int
    after: int


Term = LeaveOut | Eviction | Gain | Rise


class Answer(NamedTuple):
    """A gold answer as the policy would spell it: the opening tag, and its own ids."""

    opening: list[int]
    ids: list[int]


@dataclasses.dataclass
class Plan:
    """Variants to score, each once, and what their scores are evidence of.

    longest: tokens of a row, at most. skipped: how often something was left out, since
    it needs a longer row or since there are no tokens for it.
    """

    longest: int
    variants: list[Variant] = dataclasses.field(default_factory=list)
    terms: list[Term] = dataclasses.field(default_factory=list)
    skipped: int = 0
    _places: dict[Variant, int] = dataclasses.field(default_factory=dict)

    def add(self, context: Sequence[int] | None, answer: Answer) -> int | None:
        """Place of a variant among all; None where it cannot be scored."""
        tokens = (*context, *answer.opening, *answer.ids) if context else ()
        if not tokens or len(tokens) > self.longest:
            self.skipped += 1
            return None
        variant = Variant(tokens, len(answer.ids))
        place = self._places.setdefault(variant, len(self.variants))
        if place == len(self.variants):
            self.variants.append(variant)
        return place

    def evidence(self, log_probs: Sequence[float], blank: Evidence) -> Evidence:
        """Fills ``blank`` (zeros, numpy) from the mean log-probability of each variant.

        Ops beyond the width of the table are left out.
        """
        probability = np.exp(np.asarray(log_probs, np.float64))
        score = np.log(np.maximum(probability, LEAST))
        for term in self.terms:
            if isinstance(term, LeaveOut):
                drop = score[term.whole] - score[term.without]
                _share(blank.leave_out[term.trajectory], term.shares, drop)
            elif isinstance(term, Eviction):
                cost = max(score[term.restored] - score[term.whole], 0.0)
                _share(blank.leave_out[term.trajectory], term.shares, -cost)
            elif isinstance(term, Gain):
                row = blank.answer_gain[term.trajectory]
                if term.op < len(row):
                    row[term.op] += probability[term.alone] - probability[term.empty]
            else:
                change = score[term.after] - score[term.before]
                blank.turn_potential[term.trajectory, term.turn :] += change
        return blank


def _share(row: np.ndarray, shares: dict[int, float], amount: float) -> None:
    for op, share in shares.items():
        if op < len(row):
            row[op] += share * amount

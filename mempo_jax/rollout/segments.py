"""Segments: the token side of a trajectory's context.

A segment holds exactly the ids that were fed and sampled, in order. It only grows; a
rebuilt context starts a new one. Each segment becomes one training row, so training
scores the ids, positions and masks that sampling used. Sampled ids are never encoded
again: a rebuilt context repeats past actions by their ids, as observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mempo_jax.envs import View
from mempo_jax.models.tokenizer import Tokenizer


@dataclasses.dataclass
class Segment:
    """Lists of equal length, one item a token; see ``types.Rows`` for meanings."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    is_action: list[bool] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    turn_id: list[int] = dataclasses.field(default_factory=list)
    op_id: list[int] = dataclasses.field(default_factory=list)

    def add_observation(self, ids: Sequence[int], turn: int) -> None:
        self.tokens += ids
        self.is_action += [False] * len(ids)
        self.log_probs += [0.0] * len(ids)
        self.turn_id += [turn] * len(ids)
        self.op_id += [-1] * len(ids)

    def add_action(
        self, ids: Sequence[int], log_probs: Sequence[float], turn: int
    ) -> None:
        self.tokens += ids
        self.is_action += [True] * len(ids)
        self.log_probs += [float(x) for x in log_probs]
        self.turn_id += [turn] * len(ids)
        self.op_id += [-1] * len(ids)


class SegmentBuilder:
    """Turns the views of one trajectory into segments."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._actions: dict[int, list[int]] = {}
        self._starts: dict[int, tuple[int, int]] = {}  # turn -> segment, offset
        self._rendered: tuple[View, list[int]] | None = None
        self.segments: list[Segment] = []
        self.tokens_total = 0
        self.tokens_peak = 0

    def measure(self, view: View) -> int:
        """Tokens that the policy would be fed for this view."""
        added = len(self._render(view))
        return added if view.fresh else len(self.segments[-1].tokens) + added

    def show(self, view: View, turn: int) -> list[int]:
        """Adds the view to the segments; returns the whole context to feed."""
        ids = self._render(view)
        if view.fresh:
            self.segments.append(Segment())
        self.segments[-1].add_observation(ids, turn)
        return self.segments[-1].tokens

    def acted(self, ids: list[int], log_probs: np.ndarray, turn: int) -> None:
        """Adds a sampled action, its ids untouched."""
        segment = self.segments[-1]
        self._starts[turn] = (len(self.segments) - 1, len(segment.tokens))
        segment.add_action(ids, log_probs, turn)
        self._actions[turn] = ids
        self.tokens_total += len(segment.tokens)
        self.tokens_peak = max(self.tokens_peak, len(segment.tokens))

    def mark_ops(self, spans: Sequence[tuple[int, tuple[int, int] | None]]) -> None:
        """Writes op ids onto tokens: item k of ``spans`` is op k's turn and span."""
        for op, (turn, span) in enumerate(spans):
            if span is None:
                continue
            segment, start = self._starts[turn]
            ids = self.segments[segment].op_id
            ids[start + span[0] : start + span[1]] = [op] * (span[1] - span[0])

    def _render(self, view: View) -> list[int]:
        if self._rendered is not None and self._rendered[0] is view:
            return self._rendered[1]
        tok = self._tokenizer
        if not view.fresh:
            ids = tok.follow(self._last_id(max(self._actions)), view.user)
        else:
            texts = [user for user, _ in view.history] + [view.user]
            messages = [{"role": "system", "content": view.system}]
            messages = messages if view.system else []
            messages.append({"role": "user", "content": texts[0]})
            ids = tok.encode(tok.prompt(messages))
            for (_, turn), text in zip(view.history, texts[1:], strict=True):
                ids = ids + self._actions[turn] + tok.follow(self._last_id(turn), text)
        self._rendered = (view, ids)
        return ids

    def _last_id(self, turn: int) -> int | None:
        action = self._actions[turn]
        return action[-1] if action else None

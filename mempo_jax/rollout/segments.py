"""Segments: the token side of a trajectory's context.

A segment holds exactly the ids that were fed and sampled, in order. It only grows; a
rebuilt context starts a new one. Each segment becomes one training row, so training
scores the ids, positions and masks that sampling used. Sampled ids are never encoded
again: a rebuilt context repeats past actions by their ids, as observation.

A chat template that drops the thoughts of earlier turns would show another context than
the one that grew. Then the next turn starts a new segment, with the history as that
template shows it; a turn without a thought to drop still continues its segment. Such a
trajectory has up to one segment per turn, each as long as the context: with n turns
about n/2 times the tokens to train on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mempo_jax.envs import View
from mempo_jax.models.tokenizer import Earlier, Tokenizer


@dataclasses.dataclass
class Segment:
    """Lists of equal length, one item per token.

    Attributes:
      tokens: ids.
      is_action: whether the policy sampled the token.
      log_probs: behaviour log-probs; 0 for observations.
      turn_id: number of the turn that showed or sampled the token.
      op_id: position of the op in the log that the token spells; -1 for none.
    """

    tokens: list[int] = dataclasses.field(default_factory=list)
    is_action: list[bool] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    turn_id: list[int] = dataclasses.field(default_factory=list)
    op_id: list[int] = dataclasses.field(default_factory=list)

    def add_observation(self, ids: Sequence[int], turn: int) -> None:
        """Appends ids that the environment's side wrote.

        Args:
          ids: the ids.
          turn: the turn that shows them.
        """
        self.tokens += ids
        self.is_action += [False] * len(ids)
        self.log_probs += [0.0] * len(ids)
        self.turn_id += [turn] * len(ids)
        self.op_id += [-1] * len(ids)

    def add_action(
        self, ids: Sequence[int], log_probs: Sequence[float], turn: int
    ) -> None:
        """Appends ids that the policy sampled.

        Args:
          ids: the ids.
          log_probs: one for each of them.
          turn: the turn that sampled them.
        """
        self.tokens += ids
        self.is_action += [True] * len(ids)
        self.log_probs += [float(x) for x in log_probs]
        self.turn_id += [turn] * len(ids)
        # Ops are known only after the whole episode: ``mark_ops`` fills these in.
        self.op_id += [-1] * len(ids)


class SegmentBuilder:
    """Turns the views of one trajectory into segments.

    Args:
      tokenizer: the policy's.

    Attributes:
      segments: what was built so far.
      tokens_total: tokens of all contexts and actions, counted at each turn.
      tokens_peak: the longest context and action.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._actions: dict[int, list[int]] = {}
        self._starts: dict[int, tuple[int, int]] = {}  # turn -> segment, offset
        self._earlier: dict[int, Earlier] = {}  # turn -> how later contexts show it
        self._worked: dict[str, Earlier] = {}  # replies of worked turns
        self._last_shown: View | None = None  # what the last turn saw, as a fresh view
        self._rendered: tuple[View, bool, list[int]] | None = None
        self.segments: list[Segment] = []
        self.tokens_total = 0
        self.tokens_peak = 0

    def measure(self, view: View) -> int:
        """Counts the tokens that the policy would be fed for ``view``."""
        continued, ids = self._render(view)
        return len(ids) + (len(self.segments[-1].tokens) if continued else 0)

    def show(self, view: View, turn: int) -> list[int]:
        """Adds a view to the segments.

        Args:
          view: what the turn shows.
          turn: its number.

        Returns:
          The whole context to feed. It is the segment's own list, which grows.
        """
        continued, ids = self._render(view)
        self._last_shown = self._as_fresh(view)
        if not continued:
            self.segments.append(Segment())
        self.segments[-1].add_observation(ids, turn)
        return self.segments[-1].tokens

    def acted(self, ids: list[int], log_probs: np.ndarray, turn: int) -> None:
        """Adds a sampled action, its ids untouched.

        Args:
          ids: as sampled.
          log_probs: one for each of them, at the sampling temperature.
          turn: its number.
        """
        segment = self.segments[-1]
        self._starts[turn] = (len(self.segments) - 1, len(segment.tokens))
        segment.add_action(ids, log_probs, turn)
        self._actions[turn] = ids
        self.tokens_total += len(segment.tokens)
        self.tokens_peak = max(self.tokens_peak, len(segment.tokens))

    def mark_ops(self, spans: Sequence[tuple[int, tuple[int, int] | None]]) -> None:
        """Writes op ids onto tokens; item k of ``spans`` is the turn of op k and its
        token span."""
        for op, (turn, span) in enumerate(spans):
            # An op without a span was not spelled by tokens of its own.
            if span is None:
                continue
            segment, start = self._starts[turn]
            ids = self.segments[segment].op_id
            ids[start + span[0] : start + span[1]] = [op] * (span[1] - span[0])

    def _render(self, view: View) -> tuple[bool, list[int]]:
        """Whether the view continues the segment, and the ids that it adds."""
        # Identity, not equality: ``measure`` and then ``show`` are called with the same
        # view, and a long context need not be encoded twice.
        if self._rendered is None or self._rendered[0] is not view:
            self._rendered = view, *self._added(view)
        return self._rendered[1:]

    def _added(self, view: View) -> tuple[bool, list[int]]:
        tok = self._tokenizer
        if view.fresh:
            return False, self._context(view)
        # The template leaves the past alone, so a turn only appends: nothing to
        # compare.
        if not tok.rewrites_past:
            return True, tok.follow(self._last_id(max(self._actions)), view.user)
        ids, fed_ids = self._context(self._as_fresh(view)), self.segments[-1].tokens
        # Compared by ids, since only equal ids make one training row of both turns.
        continued = ids[: len(fed_ids)] == fed_ids
        return continued, ids[len(fed_ids) :] if continued else ids

    def _as_fresh(self, view: View) -> View:
        """The view, with all that its segment has shown before as its history."""
        last = self._last_shown
        if view.fresh or last is None:
            return view
        history = (*last.history, (last.user, max(self._actions)))
        return View(True, last.system, history, view.user, last.examples)

    def _context(self, view: View) -> list[int]:
        """Ids of a fresh view."""
        shown = [user for user, _ in (*view.examples, *view.history)]
        first, *later = [*shown, view.user]
        messages = [{"role": "system", "content": view.system}] if view.system else []
        messages.append({"role": "user", "content": first})
        earlier = [self._worked_turn(reply) for _, reply in view.examples]
        earlier += [self._earlier_turn(turn) for _, turn in view.history]
        return self._tokenizer.encode_prompt(messages, list(zip(earlier, later)))

    def _worked_turn(self, reply: str) -> Earlier:
        """A reply that nobody sampled, as if the policy had."""
        if reply not in self._worked:
            ids = self._tokenizer.encode(reply)
            self._worked[reply] = self._tokenizer.earlier(ids)
        return self._worked[reply]

    def _earlier_turn(self, turn: int) -> Earlier:
        if turn not in self._earlier:
            # Cached by turn: every later context repeats the action.
            self._earlier[turn] = self._tokenizer.earlier(self._actions[turn])
        return self._earlier[turn]

    def _last_id(self, turn: int) -> int | None:
        action = self._actions[turn]
        return action[-1] if action else None

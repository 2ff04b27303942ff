"""Context rules: how much of the past the policy sees in each turn.

``append``   everything is kept; a trajectory is one segment.
``window``   rebuilt whenever the environment moves, with the last ``window_turns``
             turns (0: only the current observation). A recall does not move the
             environment, so its results continue the segment.
``budget``   append until ``max_context_tokens``, then rebuilt like ``window``.
``rolling``  the policy rewrites one ``<mem>`` block each turn; the next context holds
             the goal, that block and the last observation (MEM1, MemAgent).

A rebuild starts a new *segment*; a segment only ever grows. Lengths are measured by a
callable that the rollout passes in, so this module knows text and no tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from mempo_jax.memory import BLOCK

RULES = ("append", "window", "budget", "rolling")
FORMS = ("auto", "given", "short", "long")  # where the instructions come from


@dataclasses.dataclass(frozen=True)
class ContextConfig:
    """One rule and its limits.

    Attributes:
      rule: one of ``RULES``.
      window_turns: past turns that a rebuilt context shows.
      max_context_tokens: the most tokens that a turn may feed.
      write_reminder_every: turns without a write after which ``reminder`` is shown; 0
        for never.
      summary_titles: titles of entries that the status line lists.
      instructions: beginning of every context.
      instructions_form: "given" as they are; "short" or "long" as ``describe`` has
        them; "auto" is "short" with ``policy.path`` and untouched instructions.
      instruction_examples: turns of a demonstration that follow them.
      instruction_variants: other wordings of it, for the other members of a group.
      reminder: text that asks for a write.
      rolling_lines: lines that demonstrations keep in the block of rule "rolling".
    """

    rule: str
    window_turns: int
    max_context_tokens: int
    write_reminder_every: int
    summary_titles: int
    instructions: str
    instructions_form: str
    instruction_examples: int
    instruction_variants: tuple[str, ...]
    reminder: str
    rolling_lines: int

    def variant(self, number: int) -> ContextConfig:
        """Returns the settings with the instructions of one member of a group.

        Members take turns: 0 has ``instructions``, 1 the first variant, and so on.
        Other words for the same request make members act less alike.

        Args:
          number: number of the member in its group, from 0.
        """
        texts = (self.instructions, *self.instruction_variants)
        chosen = texts[number % len(texts)]
        return dataclasses.replace(self, instructions=chosen)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(
                f"config.context.rule: expected one of {RULES}, got {self.rule!r}"
            )
        if self.instructions_form not in FORMS:
            raise ValueError(
                f"config.context.instructions_form: expected one of {FORMS}, got "
                f"{self.instructions_form!r}"
            )
        counts = ("window_turns", "write_reminder_every", "summary_titles")
        for field in (*counts, "instruction_examples"):
            if getattr(self, field) < 0:
                raise ValueError(
                    f"config.context.{field}: expected >= 0, got {getattr(self, field)}"
                )
        if self.rolling_lines < 1:
            raise ValueError(
                "config.context.rolling_lines: expected at least 1, got "
                f"{self.rolling_lines}"
            )
        if not all(self.instruction_variants):
            raise ValueError(
                "config.context.instruction_variants: expected texts that are not "
                f"empty, got {self.instruction_variants!r}"
            )
        # Fewer tokens would not even hold a status line and an end of turn.
        if self.max_context_tokens < 8:
            raise ValueError(
                "config.context.max_context_tokens: expected at least 8, got "
                f"{self.max_context_tokens}"
            )


@dataclasses.dataclass(frozen=True)
class View:
    """What the policy sees in one turn.

    Attributes:
      fresh: whether this starts a new segment: ``system``, then ``history``, then
        ``user``. Otherwise only ``user`` is new, after the last action of the segment.
      system: instructions, goal and block.
      history: (user text, turn whose action answered it) of the past turns shown.
      user: text of this turn.
    """

    fresh: bool
    system: str
    history: tuple[tuple[str, int], ...]
    user: str


def block_text(block: str) -> str:
    """Returns ``block`` in its tags, as a context shows it after the goal."""
    return f"\n<{BLOCK}>{block}</{BLOCK}>"


Measure = Callable[[View], int]


class Context:
    """Applies one rule over the turns of one trajectory.

    Args:
      settings: the rule and its limits.
      goal: the environment's goal.
    """

    def __init__(self, settings: ContextConfig, goal: str) -> None:
        self._settings = settings
        parts = (settings.instructions, goal)
        self._system = "\n".join(part for part in parts if part)
        self._past: list[tuple[str, int]] = []
        self._shown: str | None = None  # the user text of the turn under way
        self.block = ""  # as the policy last rewrote it
        self.rebuilds = 0

    def view(
        self, user: str, rebuilt: str, moved: bool, measure: Measure
    ) -> View | None:
        """Returns the next view, or None if no allowed context fits.

        Args:
          user: new text of this turn, after what the policy has already seen.
          rebuilt: the text of this turn for a rebuilt context: observation and recalls.
          moved: whether the environment moved since the last turn.
          measure: tokens that a view would feed, including the segment before it.
        """
        rule = self._settings.rule
        if self._shown is not None and not self._rebuilds_now(moved):
            view = View(False, self._system, (), user)
            if self._fits(view, measure):
                return self._show(view)
            # append never drops what was shown: no room left ends the trajectory.
            if rule == "append":
                return None
            self.rebuilds += 1
        wanted = len(self._past) if rule == "append" else self._settings.window_turns
        if rule == "rolling":
            wanted = 0
        # As much history as fits, dropping the oldest turn first.
        for turns in range(min(wanted, len(self._past)), -1, -1):
            history = tuple(self._past[len(self._past) - turns :])
            view = View(True, self._system_now(), history, rebuilt)
            if self._fits(view, measure):
                return self._show(view)
        return None

    def acted(self, turn: int, block: str | None = None) -> None:
        """Records how the policy answered the shown view.

        Args:
          turn: number of the turn that answered it.
          block: the block that the answer rewrote; None if it rewrote none.
        """
        self._past.append((self._shown or "", turn))
        if block is not None:
            self.block = block

    def _rebuilds_now(self, moved: bool) -> bool:
        rule = self._settings.rule
        return (rule == "window" and moved) or rule == "rolling"

    def _system_now(self) -> str:
        if self._settings.rule != "rolling" or not self.block:
            return self._system
        return f"{self._system}{block_text(self.block)}"

    def _fits(self, view: View, measure: Measure) -> bool:
        return measure(view) <= self._settings.max_context_tokens

    def _show(self, view: View) -> View:
        self._shown = view.user
        return view

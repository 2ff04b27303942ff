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
from collections.abc import Callable, Iterable

from mempo_jax.memory import BLOCK, BankConfig, OpKind, parse_ops

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
class WorkedContext(ContextConfig):
    """A rule whose contexts begin with worked turns.

    Attributes:
      examples: (what is seen, the reply to it) of each worked turn. They are shown as
        turns of the chat, which small models follow better than a description.
    """

    examples: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls, context: ContextConfig, turns: Iterable[tuple[str, str]]
    ) -> WorkedContext:
        """Returns the settings with further worked turns.

        Args:
          context: with or without worked turns.
          turns: (what is seen, the reply to it).
        """
        values = vars(context) | {"examples": (*examples_of(context), *turns)}
        return cls(**values)


def examples_of(context: ContextConfig) -> tuple[tuple[str, str], ...]:
    """Returns the worked turns of a context, if it has any.

    Args:
      context: with or without them.
    """
    return context.examples if isinstance(context, WorkedContext) else ()


@dataclasses.dataclass(frozen=True)
class View:
    """What the policy sees in one turn.

    Attributes:
      fresh: whether this starts a new segment: ``system``, then ``examples``, then
        ``history``, then ``user``. Otherwise only ``user`` is new, after the last
        action of the segment.
      system: instructions, goal and block.
      history: (user text, turn whose action answered it) of the past turns shown.
      user: text of this turn.
      examples: (user text, reply) of worked turns, which nobody sampled.
    """

    fresh: bool
    system: str
    history: tuple[tuple[str, int], ...]
    user: str
    examples: tuple[tuple[str, str], ...] = ()


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
            examples = examples_of(self._settings)
            view = View(True, self._system_now(), history, rebuilt, examples)
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


# What a language model is told of the tags ------------------------------------------

# Whether a suite acts by <act> and ends by <answer>, where only one of them is of use.
_WAYS = {"ledger": (False, True), "babi": (True, False), "dialogue": (True, False)}
_NOTE = "<mem_write>Ann's bus is 7</mem_write>"
_THIRD_NOTE = "<mem_write>Eve's door is 31</mem_write>"
_OTHER_NOTE = "<mem_write>Tom's seat is 4</mem_write>"
_QUERY = "<mem_recall>Ann's bus</mem_recall>"
_BLOCK_NOTE = f"<{BLOCK}>Ann's bus is 7</{BLOCK}>"


def describe(context: ContextConfig, limits: BankConfig, suite: str) -> str:
    """Returns the instructions in the form ``context.instructions_form``.

    Args:
      context: form and rule.
      limits: of the bank and of a turn.
      suite: ``env.name``.
    """
    acts, answers = _WAYS.get(suite, (True, True))
    long = context.instructions_form == "long"
    lines = [*_memory_lines(context, limits, long)]
    if acts:
        lines.append(_line("<act>7</act>", "to act or reply", "the turn ends", long))
    if answers:
        why = "to give the final answer"
        lines.append(_line("<answer>7</answer>", why, "the task ends", long))
    if long:
        lines = ["Reply with tags. Text outside of tags does nothing.", *lines]
        text = "\n".join(lines)
    else:
        text = f"Reply only with tags: {' '.join(lines)}"
    return f"{text}\nThe first turns are an example. Then your own task begins."


def worked_example(
    context: ContextConfig, limits: BankConfig, suite: str
) -> list[tuple[str, str]]:
    """Returns (what is seen, the reply to it) of each turn of the worked example.

    Args:
      context: whose rule decides how a note is kept.
      limits: of the bank.
      suite: ``env.name``.
    """
    _, answers = _WAYS.get(suite, (True, True))
    end = "<answer>7</answer>" if answers else "<act>7</act>"
    question = "what is Ann's bus"
    if context.rule == "rolling":
        more = f"<{BLOCK}>Ann's bus is 7; Tom's seat is 4</{BLOCK}>"
        told = [("Ann's bus is 7", _BLOCK_NOTE), (question, end)]
        return _numbered([*told, ("Tom's seat is 4", more)])
    if not limits.enabled:
        return _numbered([(f"Ann's bus is 7; {question}", end)])
    recalled = "recalled\n0: Ann's bus is 7"
    told = [("Ann's bus is 7", _NOTE), ("Tom's seat is 4", _OTHER_NOTE)]
    asked = [(question, _QUERY), (recalled, end)]
    # At the end what most turns are, since models repeat what they saw last.
    return _numbered([*told, *asked, ("Eve's door is 31", _THIRD_NOTE)])


def _numbered(turns: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The turns with the line of status that each real turn begins with."""
    stored, numbered = 0, []
    for number, (seen, reply) in enumerate(turns):
        numbered.append((f"turn {number}/9 memory {stored}: {seen}", reply))
        stored += "<mem_write>" in reply
    return numbered


def with_examples(
    context: ContextConfig, turns: Iterable[tuple[str, str]]
) -> ContextConfig:
    """Returns the settings with worked turns of a demonstration.

    Turns that show an op not shown yet come first; those without an op are left out.

    Args:
      context: its ``instruction_examples`` is the number of turns.
      turns: (what is seen, the reply to it), of a demonstration.
    """
    chosen: list[tuple[str, str]] = []
    rest: list[tuple[str, str]] = []
    shown: set[str] = set()
    for turn in turns:
        kinds = {op.kind for op in parse_ops(turn[1])} - {OpKind.MALFORMED}
        (chosen if kinds - shown else rest if kinds else []).append(turn)
        shown |= kinds
    few = [*chosen, *rest][: context.instruction_examples]
    return WorkedContext.of(context, few)


def _memory_lines(context: ContextConfig, limits: BankConfig, long: bool) -> list[str]:
    if context.rule == "rolling":
        return [_line(_BLOCK_NOTE, "to rewrite all your notes", "", long)]
    if not limits.enabled:
        return []
    lines = [
        _line(_NOTE, "to save a fact", "", long),
        _line(_QUERY, "to look facts up", "the turn ends", long),
    ]
    if long:
        merge = '<mem_merge ids="0,1">text</mem_merge>'
        lines.append(_line(merge, "to join notes", "ids as recalled", long))
        delete = '<mem_delete ids="0"></mem_delete>'
        lines.append(_line(delete, "to forget a note", "", long))
        lines.append(f"At most {limits.max_ops_per_turn} of these tags in one turn.")
    return lines


def _line(tag: str, why: str, more: str, long: bool) -> str:
    return f"{tag} {why}{f' ({more})' if more and long else ''}{'' if long else ','}"

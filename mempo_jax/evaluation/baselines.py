"""Memory by rule: what a trained policy has to beat, in the same harness.

A rule decides what is written and recalled, a ``Reader`` what is answered; both see
only what is in the context. A rule is made anew for each trajectory, and ``run_rule``
runs it through an episode and counts tokens as if a policy had sampled its actions.

``full_history``   everything stays in the context; no memory. What remembering all
                   would score, and cost in tokens.
``no_memory``      the last turns that fit into the run's context; no memory.
``rag``            every statement is written; the best are recalled before an answer.
``rag_unlimited``  the same with a bank without a cap.
``paging``         turns are appended; above 80 % of the context its statements are
                   written, each as a memory as far as one turn may write that many;
                   the best are recalled before an answer (after MemGPT, Packer et al.
                   2023).
``paging_joined``  the same with a memory a page: its statements joined.
``rolling``        one block, rewritten each turn: the newest statements that fit into
                   half of the context (after MemAgent, Yu et al. 2025).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mempo_jax.envs import Episode, EpisodeStatus, Task, View
from mempo_jax.envs.context import ContextConfig
from mempo_jax.evaluation.baseline_readers import SPEAK, Reader, plain
from mempo_jax.memory import BLOCK, BankConfig
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.collect import failed, fault, finished, truth_of
from mempo_jax.rollout.sampler import SamplingFault
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.rollout.time_limits import call_with_limit
from mempo_jax.rollout.trajectory import Trajectory

UNBOUNDED = 10**9  # tokens
WINDOW_TURNS = 8  # that no_memory keeps, or the run's own if it keeps more
PAGE_AT = 0.8  # share of the context above which ``paging`` writes
BLOCK_SHARE = 0.5  # of the context; the block of ``rolling``
NOTE_SHARE = 0.25  # of the context; a longer note is cut, so that several fit
FRAME, LINE = 24, 4  # tokens around what is shown, and around a recalled entry
JOIN = " ; "  # between notes that share an entry


@dataclasses.dataclass(frozen=True)
class TurnView:
    """What a rule and its reader may look at in one turn.

    Attributes:
      goal: of the task.
      observation: the latest.
      index: of the observation, from 0.
      first: the observation is new; otherwise the turn before this one recalled.
      fresh: the context was rebuilt.
      recalls: number made at this observation.
      texts: what was recalled at this observation, then the observations in the
        context, oldest first.
      filled: tokens of the context, as a share of the limit.
      grown: those that this turn added, likewise.
    """

    goal: str
    observation: str
    index: int
    first: bool
    fresh: bool
    recalls: int
    texts: tuple[str, ...]
    filled: float
    grown: float


class Note(NamedTuple):
    """A statement, and the indices of the observations that it is from."""

    text: str
    observations: frozenset[int]


class Action(NamedTuple):
    """The text of a turn, and the observations of each of its writes, in order."""

    text: str
    observations: tuple[frozenset[int], ...] = ()


class Rule:
    """Writes ``notes_to_write``, recalls if ``recalls``, then acts or answers.

    Args:
      reader: notes, looks up and answers.
      limits: of the bank.
      context: rule and limits of the context.
      count_tokens: number of tokens of a text.
    """

    recalls = False  # whether an answer is preceded by recalls

    def __init__(
        self,
        reader: Reader,
        limits: BankConfig,
        context: ContextConfig,
        count_tokens: Callable[[str], int],
    ) -> None:
        self.context = context
        self._reader, self._limits, self._count = reader, limits, count_tokens
        self._longest = 1  # tokens of a note so far

    def act(self, seen: TurnView) -> Action:
        """The action of a turn.

        Args:
          seen: of this turn.
        """
        due = self._reader.queries(seen.goal, seen.observation)
        notes = self._joined(self.notes_to_write(seen), bool(due)) if seen.first else []
        writes = "".join(f"<mem_write> {note.text}</mem_write>" for note in notes)
        observations = tuple(note.observations for note in notes)
        return Action(writes + self.after_writes(seen, due), observations)

    def after_writes(self, seen: TurnView, due: Sequence[str]) -> str:
        """What follows the writes of a turn: a recall, an answer or a move.

        Args:
          seen: of this turn.
          due: what to look up before an answer; empty if no answer is due.
        """
        if not due:
            return self._reader.move(seen.goal, seen.observation)
        if self.recalls and seen.recalls < len(due):
            most = self._fitting(seen, len(due))
            return (
                f'<mem_recall k="{most}"> {due[seen.recalls] or "memory"}</mem_recall>'
            )
        return self._reader.answer(seen.goal, seen.observation, seen.texts)

    def _fitting(self, seen: TurnView, queries: int) -> int:
        """Entries of one recall of several that surely fit into the context."""
        shown = f"{self.context.instructions}\n{seen.goal}\n{seen.observation}"
        room = self.context.max_context_tokens - self._count(shown) - FRAME
        most = room // queries // (self._longest + LINE)
        return min(max(most, 1), self._limits.retrieval_top_k)

    def notes_to_write(self, seen: TurnView) -> list[Note]:
        """What to write at a new observation; nothing, unless a rule has a memory.

        Args:
          seen: of this turn.
        """
        return []

    def _noted(self, seen: TurnView) -> list[Note]:
        source = frozenset({seen.index})
        return [Note(text, source) for text in self._reader.notes(seen.observation)]

    def _joined(self, notes: list[Note], recalls: bool) -> list[Note]:
        """As many notes as a turn may write beside its recall or act.

        If there are more, neighbours are joined.
        """
        most = max(1, self._limits.max_ops_per_turn - 1)
        size = max(-(-len(notes) // most), 1)
        groups = [notes[i : i + size] for i in range(0, len(notes), size)]
        return [self._one(group) for group in groups]

    def _one(self, notes: Sequence[Note]) -> Note:
        text = JOIN.join(plain(note.text) for note in notes)
        sources = frozenset().union(*(note.observations for note in notes))
        text = text[: self._limits.max_entry_chars]
        most = int(NOTE_SHARE * self.context.max_context_tokens)
        while (tokens := self._count(text)) > most:  # several shall fit when recalled
            text = text[: min(len(text) * most // tokens, len(text) - 1)]
        self._longest = max(self._longest, tokens)
        return Note(text.strip(), sources)


class Rag(Rule):
    """Writes every statement; ``rag`` and ``rag_unlimited``."""

    recalls = True

    def notes_to_write(self, seen: TurnView) -> list[Note]:
        """Each statement of the observation."""
        return self._noted(seen)


class Paging(Rule):
    """Writes the statements in the context when it fills up; ``paging``."""

    recalls = True

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._unwritten: list[Note] = []
        self._most = 0.0  # largest share that one turn has added so far

    def notes_to_write(self, seen: TurnView) -> list[Note]:
        """Nothing until the context is nearly full, then all that is unwritten."""
        if seen.fresh:
            self._unwritten = []  # what has left the context cannot be written
        self._unwritten += self._noted(seen)
        self._most = max(self._most, seen.grown)
        if seen.filled <= PAGE_AT and seen.filled + self._most <= 1:
            return []
        page, self._unwritten = self._unwritten, []
        return page


class PagingJoined(Paging):
    """Writes a page as one memory; ``paging_joined``."""

    def notes_to_write(self, seen: TurnView) -> list[Note]:
        """As ``Paging``, joined into one note."""
        page = super().notes_to_write(seen)
        return [self._one(page)] if page else []


class Rolling(Rule):
    """Keeps the newest statements in a block of the context; ``rolling``."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._block: list[str] = []
        self._room = int(BLOCK_SHARE * self.context.max_context_tokens)

    def act(self, seen: TurnView) -> Action:
        """Adds new statements to the block, drops the oldest that do not fit."""
        new = self._reader.notes(seen.observation)
        self._block += [plain(text) for text in new]
        while self._block and self._count(JOIN.join(self._block)) > self._room:
            self._block.pop(0)
        due = self._reader.queries(seen.goal, seen.observation)
        with_block = dataclasses.replace(seen, texts=(*self._block, *seen.texts))
        block = f"<{BLOCK}> {JOIN.join(self._block)}</{BLOCK}>" if new else ""
        return Action(block + self.after_writes(with_block, due))


class Replay(Rule):
    """Writes what a policy wrote; answers are looked up and read by script.

    That shows what the policy's memory is worth, apart from how well it reads.

    Args:
      actions: of one of the policy's trajectories, by observation. Those after an
        answer that was due are not replayed.
    """

    recalls = True

    def __init__(self, *args, actions: Mapping[int, Sequence[str]]) -> None:
        super().__init__(*args)
        self._actions = {at: list(each) for at, each in actions.items()}
        self._last = False  # the policy ended the task at this observation

    def act(self, seen: TurnView) -> Action:
        """The next recorded action; once an answer is due, writes and the answer."""
        recorded = self._actions.get(seen.index, [])
        self._last |= any("<answer" in text for text in recorded)
        due = self._reader.queries(seen.goal, seen.observation, self._last)
        if not due:
            return Action(recorded.pop(0) if recorded else "")
        writes = "".join(map(_writes, recorded))
        recorded.clear()
        return Action(writes + self.after_writes(seen, due))


def _writes(action: str) -> str:
    """An action up to where it recalls, acts or answers."""
    ends = [action.find(tag) for tag in ("<mem_recall", "<act", "<answer")]
    return action[: min((end for end in ends if end >= 0), default=len(action))]


RULES: dict[str, type[Rule]] = {
    "full_history": Rule,
    "no_memory": Rule,
    "rag": Rag,
    "rag_unlimited": Rag,
    "paging": Paging,
    "paging_joined": PagingJoined,
    "rolling": Rolling,
}


def context_of(name: str, context: ContextConfig) -> ContextConfig:
    """The context rule of a baseline, within the limits of the run's own.

    Args:
      name: one of ``RULES``.
      context: of the run.
    """
    changes = {
        "full_history": {"rule": "append", "max_context_tokens": UNBOUNDED},
        "no_memory": {
            "rule": "window",
            "window_turns": max(context.window_turns, WINDOW_TURNS),
        },
        "paging": {"rule": "budget", "window_turns": 0},
        "paging_joined": {"rule": "budget", "window_turns": 0},
        "rolling": {"rule": "rolling"},
    }
    changed = changes.get(name, {"rule": "window"})
    # A rule needs no reminder, and none looks at titles.
    quiet = {"write_reminder_every": 0, "summary_titles": 0}
    return dataclasses.replace(context, **quiet, **changed)


def bank_of(name: str, config: BankConfig) -> BankConfig:
    """The bank of a baseline: the run's own, without its cap if the name says so.

    Args:
      name: one of ``RULES``.
      config: of the run.
    """
    return dataclasses.replace(config, capacity=0) if "unlimited" in name else config


@dataclasses.dataclass(frozen=True)
class ToldTrajectory:
    """A trajectory, and which observations each of its writes is about.

    Attributes:
      trajectory: of a rule or a policy.
      writes: in the order of the log; None if each write is about the observation that
        it was made on, as a policy's are.
    """

    trajectory: Trajectory
    writes: tuple[frozenset[int], ...] | None = None


Speak = Callable[[list[int], int], list[int] | None]


def run_rule(
    task: Task,
    make_episode: Callable[[], Episode],
    make_rule: Callable[[], Rule],
    tokenizer: Tokenizer,
    limit_s: float,
    speak: Speak | None = None,
) -> ToldTrajectory:
    """One trajectory of a rule.

    The tokens of its actions are those of their texts; the limits of sampling
    (``sampling.max_new_tokens``) do not bind it.

    Args:
      task: of the episode.
      make_episode: starts it.
      make_rule: makes the rule for this trajectory alone.
      tokenizer: counts tokens; the trained policy's, so that costs compare.
      limit_s: seconds for each call of the environment; after a fault of the
        environment the trajectory has failed.
      speak: (context ids, turn) -> token ids of the policy, for readers that let it
        answer. None instead of ids means that the context is too long: the trajectory
        ends as OVERFLOW. After a SamplingFault it has failed.
    """
    [episode] = call_with_limit([make_episode], limit_s)
    if isinstance(episode, Exception):
        return ToldTrajectory(failed(task, 0, fault(episode)))
    builder, rule, context = SegmentBuilder(tokenizer), make_rule(), _Context(episode)
    sources: list[frozenset[int]] = []
    failure = None
    while not episode.done and failure is None:
        view = episode.observe(builder.measure)
        if view is None:
            break
        before = builder.segments[-1].tokens if builder.segments else []
        old = 0 if view.fresh else len(before)
        size = len(builder.show(view, episode.turn))
        limit = rule.context.max_context_tokens
        seen = context.seen(view, size / limit, (size - old) / limit)
        action = rule.act(seen)
        try:
            spoken = _spoken(action.text, builder, tokenizer, episode.turn, speak)
        except SamplingFault as error:
            failure = fault(error)
            break
        if spoken is None:
            episode.status = EpisodeStatus.OVERFLOW
            break
        failure = _turn(episode, builder, spoken, limit_s)
        sources += action.observations
        if action.text.endswith(SPEAK):  # the policy may have written, too
            writes = sum(record.kind == "write" for record in episode.bank.log)
            sources += [frozenset({seen.index})] * (writes - len(sources))
    truth = truth_of(episode, failure, limit_s)
    trajectory = finished(task, 0, episode, builder, truth)
    return ToldTrajectory(trajectory, tuple(sources) if sources else None)


def _spoken(
    text: str,
    builder: SegmentBuilder,
    tokenizer: Tokenizer,
    turn: int,
    speak: Speak | None,
) -> tuple[str, list[int]] | None:
    """An action and its ids; if the text ends in SPEAK, a policy continues it."""
    text, asks = text.removesuffix(SPEAK), text.endswith(SPEAK)
    ids = [*tokenizer.encode(text)]
    if asks:
        if speak is None:
            raise ValueError(
                "a reader lets the policy answer: expected speak, got None"
            )
        more = speak([*builder.segments[-1].tokens, *ids], turn)
        if more is None:
            return None
        return text + tokenizer.decode(more), [*ids, *more]
    if not text.endswith(("</mem_recall>", "</act>", "</answer>")):
        ids.append(tokenizer.end_id)
    return text, ids


def _turn(
    episode: Episode,
    builder: SegmentBuilder,
    spoken: tuple[str, list[int]],
    limit_s: float,
) -> str | None:
    """Takes one action; returns what went wrong, if anything."""
    text, ids = spoken
    builder.acted(ids, np.zeros(len(ids)), episode.turn)
    episode.decide(text)
    [result] = call_with_limit([episode.advance], limit_s)
    return fault(result) if isinstance(result, Exception) else None


class _Context:
    """Follows which observations are in the context, and what was recalled."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._new: dict[int, str] = {}  # by turn: an observation that was new in it
        self._texts: list[str] = []
        self._index = -1

    def seen(self, view: View, filled: float, grown: float) -> TurnView:
        episode, situation = self._episode, self._episode.situation()
        first = not situation.queries  # a recall does not move the environment
        if first:
            self._new[episode.turn] = situation.observation
            self._index += 1
        if view.fresh:
            turns = [turn for _, turn in view.history]
            past = [self._new[turn] for turn in turns if turn in self._new]
            self._texts = [*past, situation.observation]
        elif first:
            self._texts.append(situation.observation)
        return TurnView(
            goal=situation.goal,
            observation=situation.observation,
            index=self._index,
            first=first,
            fresh=view.fresh and episode.turn > 0,
            recalls=len(situation.queries),
            texts=(*self._recalled(), *self._texts),
            filled=filled,
            grown=grown,
        )

    def _recalled(self) -> list[str]:
        """Texts of the entries recalled at this observation, oldest first."""
        bank, count = self._episode.bank, len(self._episode.situation().queries)
        recalls = [record for record in bank.log if record.kind == "recall"]
        ids = {
            i for record in recalls[len(recalls) - count :] for i in record.entry_ids
        }
        return [bank.entry(i).text for i in sorted(ids)]

"""The life of each memory of a trajectory, read from its op log."""

from __future__ import annotations

import dataclasses

from mempo_jax.memory.lineage import makes_entry
from mempo_jax.report.records import Record

ANSWERS = ("answer", "act")


@dataclasses.dataclass
class Life:
    """One entry, by turns.

    born: the turn that wrote it, -1 for one of an initial bank. end: the turn that
    made it a tombstone, None while it lives. fate: merged, superseded, evicted or
    deleted, "" while it lives; into: the entry that replaced it. parents: entries that
    it replaced. recalls: (turn, rank from 1, similarity of the recall's best hit).
    contexts: turns whose action had it in context through a recall. answers: those of
    them that answered. op: place in the log of what made it.
    """

    entry: int
    born: int
    text: str = ""
    title: str | None = None
    op: int | None = None
    end: int | None = None
    fate: str = ""
    into: int | None = None
    parents: tuple[int, ...] = ()
    recalls: list[tuple[int, int, float]] = dataclasses.field(default_factory=list)
    contexts: list[int] = dataclasses.field(default_factory=list)
    answers: list[int] = dataclasses.field(default_factory=list)


def lives_of(record: Record) -> list[Life]:
    """The entries of a trajectory, in the order of their ids."""
    lives: dict[int, Life] = {}
    for place, op in enumerate(record.log):
        if makes_entry(op):
            entry, *parents = op.entry_ids
            lives[entry] = Life(
                *(entry, op.turn, op.stored, op.title, place), parents=tuple(parents)
            )
            fate = "superseded" if op.supersedes else "merged"
            for parent in parents:
                _end(_known(lives, parent), op.turn, fate, entry)
        elif op.outcome == "deleted":
            for entry in op.entry_ids:
                _end(_known(lives, entry), op.turn, "deleted")
        elif op.kind == "recall":
            for rank, entry in enumerate(op.entry_ids, start=1):
                life = _known(lives, entry)
                life.recalls.append((op.turn, rank, op.similarity))
        for entry in op.evicted:
            _end(_known(lives, entry), op.turn, "evicted")
    _contexts(record, lives)
    return [lives[entry] for entry in sorted(lives)]


def _known(lives: dict[int, Life], entry: int) -> Life:
    """The life of an entry; what the log never made was there before it."""
    return lives.setdefault(entry, Life(entry, -1))


def _end(life: Life, turn: int, fate: str, into: int | None = None) -> None:
    if life.end is None:
        life.end, life.fate, life.into = turn, fate, into


def _contexts(record: Record, lives: dict[int, Life]) -> None:
    """A recall shows its hits to the next turn, and to those after it until one that
    does not recall has acted."""
    count = len(record.turns)
    recalls = {op.turn for op in record.log if op.kind == "recall"}
    answered = {op.turn for op in record.log if op.kind in ANSWERS}
    for life in lives.values():
        turns: set[int] = set()
        for turn, _, _ in life.recalls:
            last = turn + 1
            while last in recalls and last + 1 < count:
                last += 1
            turns |= set(range(turn + 1, min(last + 1, count)))
        life.contexts = sorted(turns)
        life.answers = sorted(turns & answered)

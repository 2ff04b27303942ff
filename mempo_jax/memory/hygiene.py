"""How clean a bank is: stale, unused, repeated and contradicting memories.

The measures are taken on demand. They keep nothing and count no access.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mempo_jax.memory import arguments
from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.entry import Entry, Status, full_text
from mempo_jax.memory.lexical.comparison import Verdict
from mempo_jax.memory.lexical.judge import lexical

_REPEATS_FROM = (
    0.999  # cosine from which texts repeat each other, unless they contradict
)
_NEIGHBOURS = 4  # an entry is compared with so few: pairs of all would take too long


@dataclasses.dataclass(frozen=True, slots=True)
class Hygiene:
    """Measures of one bank at one turn; shares are in [0, 1], and 0 without entries.

    Attributes:
      step: the turn.
      active: number of active entries.
      written: number of entries, tombstones included.
      staleness_mean, staleness_median: turns since an active entry was last recalled,
        or written if it never was; 0 if that was after ``step``.
      junk_share: active entries that were never recalled, over ``active``. An entry
        takes over the recalls of those that were merged into it.
      junk_written_share: entries never recalled, neither before nor after they were
        merged into others, over ``written``; so deleting junk does not hide it.
      duplicate_share: active entries that add nothing to another active entry, over
        those probed; of two equal ones both count.
      contradictions: (older id, newer id, cosine similarity) of similar active entries
        that state different values, most similar first.
      contradiction_count: all that were found, listed or not.
      probed: active entries that were compared with their neighbours, evenly spread
        over the ids. If fewer than ``active``, the share of duplicates is an estimate
        and the contradictions are a lower bound.
    """

    step: int
    active: int
    written: int
    staleness_mean: float
    staleness_median: float
    junk_share: float
    junk_written_share: float
    duplicate_share: float
    contradictions: tuple[tuple[int, int, float], ...]
    contradiction_count: int
    probed: int


def measure(
    bank,
    table,
    step: int | None = None,
    *,
    similar: float | None = None,
    own: bool = False,
    probes: int = 1000,
    listed: int = 20,
) -> Hygiene:
    """Measures how clean a bank is.

    Words decide what repeats and what contradicts (the lexical judge), whatever judge
    the bank has. Costs one pass over the entries, then ``probes`` searches and at most
    eight comparisons of texts for each: deterministic, seconds for 100,000 entries.

    Args:
      bank: the bank.
      table: its entries.
      step: turn to measure at; the last one logged if None.
      similar: cosine similarity from which different values contradict; if None the
        bank's ``merge_threshold``, or its default if the bank's is higher.
      own: count only entries written since the bank was built, forked or taken to this
        task: what this trajectory is answerable for. They are still compared with all.
      probes: most entries compared with their neighbours.
      listed: most contradictions listed.

    Raises:
      TypeError, ValueError: an argument is of another kind or out of bounds.
    """
    last = max((record.turn for record in bank.log), default=0)
    step = last if step is None else arguments.integer("hygiene: step", step, -(2**31))
    probes = arguments.integer("hygiene: probes", probes, 0)
    listed = arguments.integer("hygiene: listed", listed, 0)
    # A bank that never merges has a threshold above 1: nothing would contradict there.
    usual = min(bank.config.merge_threshold, BankConfig.merge_threshold)
    similar = (
        usual if similar is None else arguments.number("hygiene: similar", similar)
    )
    first = len(bank.initial_entries) if own else 0
    entries = bank.entries
    active = [entry for entry in entries[first:] if entry.status == Status.ACTIVE]
    ages = np.asarray([max(0, step - entry.step_accessed) for entry in active])
    used = _ever_used(entries)[first:]
    probed = _spread(active, probes)
    repeated, contradictions = _compare(probed, table, similar)
    return Hygiene(
        step=step,
        active=len(active),
        written=len(used),
        staleness_mean=float(ages.mean()) if active else 0.0,
        staleness_median=float(np.median(ages)) if active else 0.0,
        junk_share=_share(sum(e.access_count == 0 for e in active), active),
        junk_written_share=_share(used.count(False), used),
        duplicate_share=_share(repeated, probed),
        contradictions=tuple(contradictions[:listed]),
        contradiction_count=len(contradictions),
        probed=len(probed),
    )


def _ever_used(entries: list[Entry]) -> list[bool]:
    """Whether each entry, or one that it became part of, was recalled."""
    used = [entry.access_count > 0 for entry in entries]
    for entry in reversed(entries):  # what an entry became part of has a higher id
        if entry.merged_into >= 0:
            used[entry.id] |= used[entry.merged_into]
    return used


def _spread(active: list[Entry], probes: int) -> list[Entry]:
    """At most ``probes`` entries at even distances: a sample without chance."""
    if len(active) <= probes:
        return active
    places = np.arange(probes) * len(active) // max(probes, 1)
    return [active[place] for place in places]


def _compare(
    probed: list[Entry], table, similar: float
) -> tuple[int, list[tuple[int, int, float]]]:
    """How many repeat another entry; pairs that contradict, most similar first."""
    repeated, pairs = 0, {}
    for entry in probed:
        # One more than needed, as the entry finds itself.
        ids, similarities = table.index.search(entry.embedding, _NEIGHBOURS + 1)
        near = [pair for pair in zip(ids, similarities.tolist()) if pair[0] != entry.id]
        repeats = False
        for other_id, similarity in near[:_NEIGHBOURS]:
            other = table[other_id]
            older, newer = sorted((entry, other), key=lambda each: each.id)
            changed = _verdict(newer, older)
            if changed == Verdict.UPDATES and similarity >= similar:
                pairs[older.id, newer.id] = similarity
            verdict = changed if entry is newer else _verdict(entry, other)
            repeats |= verdict == Verdict.REPEATS
            repeats |= similarity >= _REPEATS_FROM and changed != Verdict.UPDATES
        repeated += repeats
    listed = [(old, new, similarity) for (old, new), similarity in pairs.items()]
    return repeated, sorted(listed, key=lambda each: (-each[2], each[0], each[1]))


def _verdict(new: Entry, old: Entry) -> Verdict:
    return lexical(full_text(new.title, new.text), full_text(old.title, old.text))


def _share(count: int, entries: list) -> float:
    return count / len(entries) if entries else 0.0

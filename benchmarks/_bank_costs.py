"""What writes to a large bank cost, and what its forks do."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks import _machine, _timing
from benchmarks._vectors import Case
from mempo_jax.memory import Bank, BankConfig


def measure(case: Case, forks: int, say: Callable[[str], None]) -> dict:
    """Forks first, then consecutive writes of all later rows, as plain data.

    Every write makes an entry: the threshold lies above any similarity, so that the
    gates run and nothing is merged.
    """
    config = BankConfig(merge_threshold=1.01)
    bank = Bank.from_texts(case.texts[: case.count], config, case.embedder)
    bank.recall(case.asked[0], step=0)
    bank._table.index.settle()  # building is timed elsewhere
    say(f"  bank of {len(bank):,} entries: {forks} forks")
    made = {"entries": len(bank), "forks": _forks(bank, case, forks)}
    say(f"  bank: {len(case.rows) - case.count:,} writes")
    made["writes"] = _writes(bank, case)
    return made


def _forks(bank: Bank, case: Case, count: int) -> dict:
    """Seconds and memory of forks with one write in each, seen in no other."""
    before = _machine.resident()
    seconds, twins, written = [], [], []
    for place in range(count):
        twin, taken = _timing.timed(lambda name=f"fork {place}": bank.fork(name))
        text = case.texts[case.count + place]
        written.append(twin.write(text, step=0).entry_id)
        twins.append(twin)
        seconds.append(taken)
    size = _machine.resident() - before
    own = all(
        twin.candidates(case.texts[case.count + place], 1) == [entry_id]
        for place, (twin, entry_id) in enumerate(zip(twins, written))
    )
    alone = len(bank) == case.count and all(
        len(twin) == case.count + 1 for twin in twins
    )
    return {
        "count": count,
        **_timing.spread(np.asarray(seconds)),
        "memory_mb": size / 1e6,
        "own_write_seen": own,
        "others_unseen": alone,
    }


def _writes(bank: Bank, case: Case) -> dict:
    """Each write, then the search for what was written, timed apart.

    ``cpu``: seconds that the writing thread was on a core, free of its waits for one.
    """
    writes, busy, searches, unseen = [], [], [], 0
    for step, text in enumerate(case.texts[case.count :]):
        start = time.thread_time()
        done, taken = _timing.timed(lambda s=step, t=text: bank.write(t, step=s))
        busy.append(time.thread_time() - start)
        found, asked = _timing.timed(lambda t=text: bank.candidates(t, 1))
        unseen += found != [done.entry_id]
        writes.append(taken)
        searches.append(asked)
    spread = _timing.spread(np.asarray(writes))
    return {
        "count": len(writes),
        **spread,
        "p95_to_p50": spread["p95_s"] / spread["p50_s"],
        "over_5x_p50": int((np.asarray(writes) > 5 * spread["p50_s"]).sum()),
        "cpu": _timing.spread(np.asarray(busy)),
        "next_search": _timing.spread(np.asarray(searches)),
        "unseen": unseen,
    }

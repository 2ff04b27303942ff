"""What the policy does with its memory."""

from __future__ import annotations

from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Finding, Seen
from mempo_jax.doctor.naming import field, number, share
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import ENOUGH, Window, differ

WRITE_ONLY = 0.5  # of the trajectories
GOOD = 0.9  # success at which a habit does no harm
NEVER = 0.05  # ops of a kind in one trajectory: one in twenty makes one
MISSED = 0.5  # of the recalls that find something
GROWN = 1.5  # times the bank of the beginning
HUGE, MANY = 3, 20  # times the bank of the beginning, entries: worth a note anyhow
FULL = 0.95  # of the capacity
JUNK = 0.5  # write precision below it: most of what is kept is of no use
SLOW_MS, SLOW_PART = 20.0, 0.1  # of a recall; of the sampling time
SLOW_EACH_MS = 50.0  # of half the recalls: an agent that is used waits for each


def memory_off(record: Record) -> Finding | None:
    """Ops are read and do nothing, by choice."""
    if record.field("memory.enabled") is not False:
        return None
    return Finding(
        "memory_off",
        NOTE,
        "The memory is turned off: operations are read and do nothing.",
        "Good for a comparison; where tasks need a memory, success stays at chance.",
        record.table.latest("success", "recall_hit_rate"),
        (f"set {field(record, 'memory.enabled')} to True",),
        may_cause=(
            *("tasks_too_hard", "recalls_find_nothing", "success_flat"),
            *("advantages_zero", "only_penalties", "no_better_than_cold_start"),
        ),
    )


def write_only(record: Record) -> Finding | None:
    """A memory that is filled and never read."""
    table = record.table
    success = table.late("success")
    before, last = table.ends("write_only_rate")
    if last is None or last.mean < WRITE_ONLY:
        before, last = (
            look("ops_per_turn/recall") for look in (table.early, table.late)
        )
        if not _writes_alone(record):
            return None
    if _rolling(record):
        return None
    fell_into = differ(before, last, 3)
    fine = success is not None and success.mean >= GOOD
    severity = NOTE if fine else PROBLEM
    return Finding(
        "write_only",
        severity,
        "Write-only collapse: "
        + (
            "next to no trajectory recalls what it writes."
            if last.metric == "ops_per_turn/recall"
            else f"{share(last.mean)} of the trajectories write and never recall."
        ),
        "The tasks are solved without looking into the memory; it is not needed here."
        if fine
        else "Writing went on while recalling was unlearnt, as when a recall costs "
        "turns and its use shows late, or when recalls found nothing useful."
        if fell_into
        else "The policy never learnt to recall, so what it writes helps nobody.",
        (
            *((before.seen("at first"),) if fell_into else ()),
            last.seen("now"),
            *table.latest("recalls_per_write", "success", "ops_per_turn/write"),
        ),
        (
            "pay for recalls that help: "
            f"{field(record, 'credit.modes')} with counterfactual, or "
            f"{field(record, 'reward.efficiency_hits')}",
            "show recalls in the demonstrations: "
            f"{field(record, 'train.cold_start_steps')}, "
            f"{field(record, 'train.demonstrations_path')}",
            f"make writes cost something: {field(record, 'reward.write_cost')} (-0.01)",
        ),
        may_cause=("success_flat", "bank_growth", "tasks_too_hard"),
    )


def _writes_alone(record: Record) -> bool:
    """By the ops of each kind: hardly a recall, and writes go on."""
    table = record.table
    recalls, writes = (
        table.late("ops_per_turn/recall"),
        table.late("ops_per_turn/write"),
    )
    turns = table.late("turns")
    if None in (recalls, writes, turns):
        return False
    return recalls.mean * turns.mean <= NEVER and writes.mean * turns.mean >= WRITE_ONLY


def memory_unused(record: Record) -> Finding | None:
    """Next to no writes, or rewrites of the block."""
    table = record.table
    kind = "rewrite" if _rolling(record) else "write"
    before, last = table.ends(f"ops_per_turn/{kind}")
    turns, success = table.late("turns"), table.late("success")
    if None in (last, before, turns, success):
        return None
    each = last.mean * turns.mean
    if each > NEVER or record.field("memory.enabled") is False:
        return None
    stopped = before.mean * turns.mean > 10 * NEVER
    fine = success.mean >= GOOD
    return Finding(
        "memory_unused",
        NOTE if fine else PROBLEM,
        f"The memory is not used: {number(each)} {kind}s in a trajectory.",
        "The tasks are solved without it."
        if fine
        else "The policy stopped writing: not to write costs nothing at once, and what "
        "it loses shows late."
        if stopped
        else "It never learnt to write; rewards cannot teach what is never tried.",
        (before.seen("at first"), last.seen("now"), success.seen()),
        (
            f"teach the form first: {field(record, 'train.cold_start_steps')}",
            f"take back what writes cost: {field(record, 'reward.write_cost')}, "
            f"{field(record, 'reward.duplicate')}, "
            f"{field(record, 'reward.efficiency_size')}",
            f"remind it: {field(record, 'context.write_reminder_every')}",
            "check that the tasks need a memory: what is asked must have left the "
            f"context ({field(record, 'context.window_turns')})",
        ),
        may_cause=("success_flat", "recalls_find_nothing", "tasks_too_hard"),
    )


def recalls_find_nothing(record: Record) -> Finding | None:
    """Most recalls come back empty."""
    table = record.table
    hits, asked = table.late("recall_hit_rate"), table.late("ops_per_turn/recall")
    turns = table.late("turns")
    if None in (hits, asked, turns) or hits.mean > MISSED:
        return None
    if asked.mean * turns.mean < NEVER:
        return None
    return Finding(
        "recalls_find_nothing",
        WARNING,
        f"Only {share(hits.mean)} of the recalls find something.",
        "The policy recalls before it has written, or its memory is empty when it "
        "asks.",
        (hits.seen(), *table.latest("bank_size", "ops_per_turn/write")),
        (
            f"check that the memory is on: {field(record, 'memory.enabled')}",
            f"show the policy how much there is: "
            f"{field(record, 'context.summary_titles')}",
            f"reward recalls that find something: "
            f"{field(record, 'reward.efficiency_hits')}",
        ),
    )


def bank_growth(record: Record) -> Finding | None:
    """The memory grows, or stays full, and it does not pay."""
    table = record.table
    first, last = table.ends("bank_size")
    ends = table.ends("success")
    if None in (first, last, *ends):
        return None
    if len(table.measured("bank_size")) < ENOUGH:
        return None  # a policy begins like that, and learns better
    capacity = record.number("memory.capacity") or 0.0
    precision = table.late("write_precision")
    full = capacity > 0 and last.mean >= FULL * capacity
    wasteful = precision is not None and precision.mean < JUNK
    grown = last.mean > GROWN * max(first.mean, 1.0) and differ(first, last, 3)
    pays = ends[1].mean > ends[0].mean and differ(*ends, 3)
    pays = pays or ends[1].mean >= GOOD
    large = grown and not full and last.mean > max(HUGE * first.mean, MANY)
    if not large and (pays or not (grown or (full and wasteful))):
        return None
    what = (
        f"The memory is full at the end of a task ({number(last.mean)} of "
        f"{number(capacity)} entries), mostly of what nobody needs."
        if full and wasteful
        else f"The memory grows, from {number(first.mean)} to {number(last.mean)} "
        "entries" + (", and so does its cost." if pays else ", and success does not.")
    )
    return Finding(
        "bank_growth",
        NOTE if pays else WARNING,
        what,
        "The policy writes whatever it sees. In a full memory each write pushes out "
        "another; in a large one what matters is hard to find.",
        (
            first.seen("at first"),
            last.seen("now"),
            *table.latest("write_precision", "ops_per_turn/write", "success"),
        ),
        (
            f"credit writes by their use: {field(record, 'credit.modes')} with "
            "attribution or counterfactual",
            f"make writes cost something: {field(record, 'reward.write_cost')} (-0.01)",
            f"reward a small memory: {field(record, 'reward.efficiency_size')} (0.1)",
            *(() if capacity else (f"bound it: {field(record, 'memory.capacity')}",)),
        ),
        may_cause=("slow_recall", "success_flat"),
    )


def slow_recall(record: Record) -> Finding | None:
    """Recalls take time that sampling waits for."""
    table = record.table
    p50, p95 = table.late("recall_ms_p50"), table.late("recall_ms_p95")
    if p50 is None or p95 is None:
        return None
    part = _recall_share(record, p50, p95)
    waited = part is None or part >= SLOW_PART
    if p95.median < SLOW_MS or not (waited or p50.median >= SLOW_EACH_MS):
        return None
    before = table.early("recall_ms_p95")
    return Finding(
        "slow_recall",
        WARNING,
        f"Recalls are slow: half take more than {number(p50.median)} ms, one in twenty "
        f"more than {number(p95.median)} ms.",
        "Searching all entries grows with the bank; an embedder that is a network "
        "costs more than the search.",
        (
            before.seen("at first", median=True),
            p95.seen("now", median=True),
            p50.seen(median=True),
            *((Seen("share of the sampling time, at least", part),) if part else ()),
            *table.latest("bank_size"),
        ),
        (
            "search by index earlier: "
            f"{field(record, 'memory.ann_threshold')} (it needs the package scann)",
            f"a cheaper embedder: {field(record, 'memory.embedder')}",
            f"fewer entries: {field(record, 'memory.capacity')}; fewer candidates: "
            f"{field(record, 'memory.oversample')}",
        ),
    )


def _rolling(record: Record) -> bool:
    return record.field("context.rule") == "rolling"


def _recall_share(record: Record, p50: Window, p95: Window) -> float | None:
    """Of the sampling time, at least; None where something is unknown.

    Of the recalls 45 % take the median or more, 5 % the other quantile or more.
    """
    table = record.table
    size = record.number("sampling.group_size")
    tasks = record.number("sampling.tasks_per_step")
    asked, turns = table.late("ops_per_turn/recall"), table.late("turns")
    seconds = table.late("seconds_sampling")
    if None in (size, tasks, asked, turns, seconds) or seconds.median <= 0:
        return None
    recalls = asked.mean * turns.mean * size * tasks
    least = 0.45 * p50.median + 0.05 * p95.median
    return recalls * least / 1e3 / seconds.median

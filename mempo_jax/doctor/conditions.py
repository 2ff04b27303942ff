"""When a diagnosis holds, and the figures that show it.

A condition takes the record of a run and returns ``Symptom``, or None. A metric that
it needs and that the run did not measure ends it: ``early``, ``late``, ``ends`` and
``third`` raise ``NotMeasured`` then, which ``examine`` takes for None. Metrics that it
can do without are read from ``run.table``.

A symptom must hurt: low entropy, few differences in a group and many groups of equal
rewards are what a solved task looks like, so most conditions ask for success as well.
KL, entropy of 16 bit models and times are judged by medians, since a single step may be
a thousand times the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from mempo_jax.doctor.findings import (
    MIN_TREND_STEPS,
    Condition,
    Figure,
    Symptom,
    mean,
    median,
)
from mempo_jax.doctor.text import number
from mempo_jax.runs import RunRecord, Window, differ
from mempo_jax.runs.directory import SUMMARY
from mempo_jax.runs.table import MIN_WINDOW

# Success: above GOOD_SUCCESS there is little left to gain, so a habit does no harm.
# Below LOW_SUCCESS silent groups are no mere convergence, at NO_SUCCESS there was never
# anything right to become sure of, and from SOLVED on tasks teach nothing more.
GOOD_SUCCESS, LOW_SUCCESS, NO_SUCCESS, SOLVED = 0.9, 0.8, 0.02, 0.95
WORTHWHILE_GAIN = 0.1  # success that no noise may hide before a run is called flat
LEARNING_STEPS = 60  # after which a run should have begun to learn
SURE = 3  # standard errors; 2 are passed by chance once in twenty looks
# Shares of groups whose members all score alike: all (an odd group may differ by a
# penalty), nearly all (with success near 0 that is no chance), most.
ALL_GROUPS, NEARLY_ALL_GROUPS, MOST_GROUPS = 0.98, 0.8, 0.7
EQUAL = 1e-9  # spread of a mean that is the same number in every step
RARE_OPS = 0.05  # operations of a kind in a trajectory: one in twenty makes one
PENALTY_FLOOR = "reward.penalty_floor"
IDLE_STEPS, IDLE_S = 20, 300  # without a new line for so long a run has stopped
STARTING_ROWS = 3  # in which compiling is part of starting


class NotMeasured(Exception):
    """A run did not measure a metric often enough to be judged by it."""


def early(run: RunRecord, metric: str) -> Window:
    """The first window of a metric, which must have been measured."""
    return needed(run.table.early(metric))


def late(run: RunRecord, metric: str) -> Window:
    """The last window of a metric, which must have been measured."""
    return needed(run.table.late(metric))


def ends(run: RunRecord, metric: str) -> tuple[Window, Window]:
    """The first and the last window of a metric, which must have been measured."""
    return early(run, metric), late(run, metric)


def third(run: RunRecord, metric: str, which: int) -> Window:
    """A third of the steps (0, 1 or 2), in which the metric must have been measured."""
    return needed(run.table.third(metric, which))


def latest(run: RunRecord, *metrics: str) -> tuple[Figure, ...]:
    """The late means of those of these metrics that were measured."""
    windows = (run.table.late(metric) for metric in metrics)
    return tuple(mean(window) for window in windows if window is not None)


def above(name: str, metric: str, limit: float, *beside: str) -> Condition:
    """The condition that the late mean of a metric is above a limit.

    Args:
      name: the name of the condition.
      metric: the name of the metric.
      limit: the limit.
      *beside: metrics whose late means are shown too.

    Returns:
      The condition; the fact ``mostly`` says that the mean is above a half.
    """

    def condition(run: RunRecord) -> Symptom | None:
        last = late(run, metric)
        if last.mean <= limit:
            return None
        return Symptom([mean(last), *latest(run, *beside)], {"mostly": last.mean > 0.5})

    condition.__name__ = name
    return condition


# --- The run itself


def no_steps(run: RunRecord) -> Symptom | None:
    if len(run.table) or run.summary:
        return None
    return Symptom([], {"starting": run.starting})


def damaged_record(run: RunRecord) -> Symptom | None:
    steps = run.table.steps
    counts = {
        "lines that cannot be read": run.broken_lines,
        "steps recorded twice": run.repeated_steps,
        "steps missing": int(np.sum(np.diff(steps) - 1)),
    }
    counts = {what: count for what, count in counts.items() if count}
    files = [f"{name} cannot be read: {why}" for name, why in run.unread.items()]
    if counts:
        return Symptom(
            [*(Figure(what, count) for what, count in counts.items())],
            {
                "rows": ", ".join(f"{count} {what}" for what, count in counts.items()),
                "files": "".join(f" {text}." for text in files),
            },
        )
    if files:
        figure = Figure("files that cannot be read", len(files))
        return Symptom([figure], {"files": "; ".join(files)})
    return None


def failed_trajectories(run: RunRecord) -> Symptom | None:
    last, sampled = late(run, "failed_trajectories"), _trajectories_per_step(run)
    if sampled is None or last.mean <= 0.05 * sampled:
        return None
    limit = run.number("sampling.max_failed_share")
    failed = last.mean / sampled
    return Symptom(
        [
            mean(last, f"of {number(sampled)} a step"),
            *setting(run, "sampling.max_failed_share"),
        ],
        {
            "failed": failed,
            "near_limit": limit is not None and failed > limit / 2,
            "errors": _most_frequent(run, run.errors.failures),
        },
    )


def unfinished(run: RunRecord) -> Symptom | None:
    table, steps = run.table, run.number("train.steps")
    if not len(table) or steps is None:
        return None
    done = int(table.steps[-1]) + 1
    ended = run.summary.get("steps", done) if run.summary else None
    if type(ended) is int and ended >= done >= steps:
        return None
    all_done = done >= steps
    if all_done and SUMMARY in run.unread:
        return None  # it was written, so the run has ended
    idle = run.idle_s is not None and run.idle_s > _patience_s(run, all_done)
    progress = f"The run has done {done} of {number(steps)} steps, and "
    if all_done:
        progress = f"All {number(steps)} steps are done, but "
    return Symptom(
        [
            Figure("steps done", done),
            Figure("seconds since the last step", round(run.idle_s or 0.0)),
        ],
        {"idle": idle, "all_done": all_done, "progress": progress},
    )


def recompilations(run: RunRecord) -> Symptom | None:
    compiled = np.nan_to_num(run.table.column("compilations")[STARTING_ROWS:])
    steps = run.table.steps[STARTING_ROWS:]
    rows = np.flatnonzero(compiled > 0)
    # A run that was continued compiles everything once more.
    if len(rows) <= max(MIN_WINDOW, 0.02 * len(compiled)):
        return None
    total = compiled.sum()
    return Symptom(
        [
            Figure("compilations", total, int(steps[rows[0]]), int(steps[rows[-1]])),
            *latest(run, "seconds"),
        ],
        {"compiling": len(rows), "steps": len(compiled), "programs": total},
    )


def slower(run: RunRecord) -> Symptom | None:
    if len(run.table) < 2 * MIN_WINDOW:
        return None
    before, now = ends(run, "seconds")
    tokens_before, tokens_now = ends(run, "tokens_per_trajectory")
    if now.median < 3 * before.median or tokens_now.mean > 1.5 * tokens_before.mean:
        return None
    return Symptom(
        [
            median(before, "at first"),
            median(now, "now"),
            *latest(run, "seconds_sampling", "seconds_training", "compilations"),
        ],
        {
            "times": now.median / before.median,
            "http": run.field("engine.kind") == "http",
        },
    )


def device_memory(run: RunRecord) -> Symptom | None:
    first, last = third(run, "device_bytes", 0), late(run, "device_bytes")
    if last.median < 1.5 * first.median:
        return None
    return Symptom([median(first), median(last)], {"times": last.median / first.median})


# --- Trajectories and operations


def longer(run: RunRecord) -> Symptom | None:
    before, now = ends(run, "tokens_per_trajectory")
    success = ends(run, "success")
    if now.mean < 1.5 * before.mean or not differ(before, now, SURE):
        return None
    if rises(*success):
        return None
    return Symptom(
        [
            mean(before, "at first"),
            mean(now, "now"),
            mean(success[1]),
            *latest(run, "turns", "truncated_rate", "ops_per_turn/act"),
        ],
        {"before": before.mean, "now": now.mean},
    )


def actions_cut(run: RunRecord) -> Symptom | None:
    last, success = late(run, "cut_turn_rate"), run.table.late("success")
    if last.mean <= 0.1:
        return None
    harmless = success is not None and success.mean >= GOOD_SUCCESS
    grave = last.mean > 0.5 and not harmless
    return Symptom(
        [mean(last), *latest(run, "cut_trajectory_rate", "malformed_rate", "success")],
        {"harmless": harmless, "grave": grave},
    )


def malformed_ops(run: RunRecord) -> Symptom | None:
    first, last = ends(run, "malformed_rate")
    if last.mean < 0.1:
        return None
    names = [f"reward_weighted/{n}" for n in ("malformed", "duplicate", "overflow")]
    paid = latest(run, *names)
    total, floor = sum(figure.value for figure in paid), setting(run, PENALTY_FLOOR)
    at_floor = bool(floor) and total <= 0.9 * floor[0].value
    return Symptom(
        [
            mean(first, "at first"),
            mean(last, "now"),
            *latest(run, "success", "kl"),
            *((*(figure for figure in paid if figure.value < 0), *floor) * at_floor),
        ],
        {
            "rose": last.mean > 2 * first.mean and differ(first, last, SURE),
            "grave": last.mean > 0.5,
            "errors": _most_frequent(run, run.errors.ops),
            "at_floor": at_floor,
            "paid": total,
        },
    )


# --- The memory


def memory_off(run: RunRecord) -> Symptom | None:
    return (
        Symptom(latest(run, "success", "recall_hit_rate"))
        if run.field("memory.enabled") is False
        else None
    )


def memory_unused(run: RunRecord) -> Symptom | None:
    kind = "rewrite" if _is_rolling(run) else "write"
    before, last = ends(run, f"ops_per_turn/{kind}")
    turns, success = late(run, "turns").mean, late(run, "success")
    if last.mean * turns > RARE_OPS or run.field("memory.enabled") is False:
        return None
    return Symptom(
        [mean(before, "at first"), mean(last, "now"), mean(success)],
        {
            "ops": last.mean * turns,
            "kind": kind,
            "stopped": before.mean * turns > 10 * RARE_OPS,
            "fine": success.mean >= GOOD_SUCCESS,
        },
    )


def write_only(run: RunRecord) -> Symptom | None:
    success = run.table.late("success")
    before, last = run.table.ends("write_only_rate")
    by_rate = last is not None and last.mean >= 0.5
    if not by_rate:  # older runs: by the operations of each kind
        turns, (before, last) = (
            late(run, "turns").mean,
            ends(run, "ops_per_turn/recall"),
        )
        writes = late(run, "ops_per_turn/write").mean * turns
        if last.mean * turns > RARE_OPS or writes < 0.5:
            return None
    if _is_rolling(run):
        return None
    fell_into = differ(before, last, SURE)
    return Symptom(
        [
            *((mean(before, "at first"),) if fell_into else ()),
            mean(last, "now"),
            *latest(run, "recalls_per_write", "success", "ops_per_turn/write"),
        ],
        {
            "by_rate": by_rate,
            "rate": last.mean,
            "fell_into": fell_into,
            "fine": success is not None and success.mean >= GOOD_SUCCESS,
        },
    )


def recalls_find_nothing(run: RunRecord) -> Symptom | None:
    hits, turns = late(run, "recall_hit_rate"), late(run, "turns").mean
    if hits.mean > 0.5 or late(run, "ops_per_turn/recall").mean * turns < RARE_OPS:
        return None
    return Symptom([mean(hits), *latest(run, "bank_size", "ops_per_turn/write")])


def merge_rate_high(run: RunRecord) -> Symptom | None:
    last = late(run, "merge_rate")
    if last.mean <= 0.3 or _writes_little(run):
        return None
    before, now = run.table.ends("success")
    helps = None not in (before, now)
    helps = helps and (now.mean >= GOOD_SUCCESS or rises(before, now))
    return Symptom(
        [mean(last), *latest(run, "duplicate_rate", "bank_size", "success")],
        {"helps": helps},
    )


def duplicate_writes(run: RunRecord) -> Symptom | None:
    last = late(run, "duplicate_rate")
    return (
        Symptom(
            [mean(last), *latest(run, "bank_size", "ops_per_turn/write", "success")]
        )
        if last.mean > 0.3 and not _writes_little(run)
        else None
    )


def bank_growth(run: RunRecord) -> Symptom | None:
    first, last = ends(run, "bank_size")
    success = ends(run, "success")
    if len(run.table.measured("bank_size")) < MIN_TREND_STEPS:
        return None  # an untrained policy fills its memory, and learns better
    capacity = run.number("memory.capacity") or 0.0
    precision = run.table.late("write_precision")
    full = capacity > 0 and last.mean >= 0.95 * capacity
    full_of_junk = full and precision is not None and precision.mean < 0.5
    grown = last.mean > 1.5 * max(first.mean, 1.0) and differ(first, last, SURE)
    pays = rises(*success) or success[1].mean >= GOOD_SUCCESS
    huge = grown and not full and last.mean > max(3 * first.mean, 20)
    if not huge and (pays or not (grown or full_of_junk)):
        return None
    return Symptom(
        [
            mean(first, "at first"),
            mean(last, "now"),
            *latest(run, "write_precision", "ops_per_turn/write", "success"),
        ],
        {
            "before": first.mean,
            "now": last.mean,
            "capacity": capacity,
            "pays": pays,
            "full_of_junk": full_of_junk,
            "bounded": bool(capacity),
        },
    )


def slow_recall(run: RunRecord) -> Symptom | None:
    p50, p95 = late(run, "recall_ms_p50"), late(run, "recall_ms_p95")
    waiting = _recall_share(run, p50, p95)
    matters = waiting is None or waiting >= 0.1 or p50.median >= 50
    if p95.median < 20 or not matters:
        return None
    share = "share of the sampling time, at least"
    return Symptom(
        [
            median(early(run, "recall_ms_p95"), "at first"),
            median(p95, "now"),
            median(p50),
            *((Figure(share, waiting),) if waiting else ()),
            *latest(run, "bank_size"),
        ],
        {"half": p50.median, "slowest": p95.median},
    )


# --- What several conditions ask


def needed(window: Window | None) -> Window:
    if window is None:
        raise NotMeasured
    return window


def setting(run: RunRecord, name: str) -> tuple[Figure, ...]:
    """A number of the config as a figure, if it is known and not 0."""
    value = run.number(name)
    return (Figure(f"config.{name}", value),) if value else ()


def rises(before: Window, after: Window) -> bool:
    return after.mean > before.mean and differ(before, after, SURE)


def _most_frequent(run: RunRecord, counts: Mapping[str, int]) -> str:
    """The most frequent errors in a sentence, "" if there are none."""
    most = Counter(counts).most_common(2)
    errors = ", ".join(f"{text!r} {count} times" for text, count in most)
    return f" In {run.errors.file} most often: {errors}." if most else ""


def _trajectories_per_step(run: RunRecord) -> float | None:
    """Resampled groups among them; None if not known."""
    size = run.number("sampling.group_size")
    tasks = run.number("sampling.tasks_per_step")
    resampled = run.table.late("groups_resampled")
    if size is None or tasks is None:
        return None
    return size * (tasks + (resampled.mean if resampled else 0.0))


def _patience_s(run: RunRecord, all_done: bool) -> float:
    """Seconds without a new line after which a run must have stopped."""
    pace = run.table.late("seconds")
    if pace is None:
        return IDLE_S
    wait = IDLE_STEPS * pace.median
    tasks, sampled = run.number("train.eval_tasks"), _trajectories_per_step(run)
    if all_done and tasks and sampled:  # the last evaluation, sampled and greedy
        wait += IDLE_STEPS * pace.median * 2 * tasks / sampled
    return max(IDLE_S, wait)


def _is_rolling(run: RunRecord) -> bool:
    return run.field("context.rule") == "rolling"


def _writes_little(run: RunRecord) -> bool:
    """Less than one write in a trajectory: a rate among writes says little then."""
    writes, turns = run.table.late("ops_per_turn/write"), run.table.late("turns")
    return None not in (writes, turns) and writes.mean * turns.mean < 1


def _recall_share(run: RunRecord, p50: Window, p95: Window) -> float | None:
    """Share of the sampling time that recalls take, at least; None if not known.

    45 % of the recalls take the median or more, 5 % the other quantile or more.
    """
    size = run.number("sampling.group_size")
    tasks = run.number("sampling.tasks_per_step")
    recalls, turns = run.table.late("ops_per_turn/recall"), run.table.late("turns")
    seconds = run.table.late("seconds_sampling")
    if None in (size, tasks, recalls, turns, seconds) or seconds.median <= 0:
        return None
    number_of_recalls = recalls.mean * turns.mean * size * tasks
    each_ms = 0.45 * p50.median + 0.05 * p95.median
    return number_of_recalls * each_ms / 1e3 / seconds.median

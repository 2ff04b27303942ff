"""The run itself: whether it ends, what it wastes, what fails in it."""

from __future__ import annotations

import numpy as np

from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Finding, Seen
from mempo_jax.doctor.naming import field, number, share
from mempo_jax.doctor.record import SUMMARY, Record

IDLE_STEPS, IDLE_S = 20, 300  # steps, and seconds, without a word: it has stopped
FAILED = 0.05  # of the trajectories
OVERFLOWED, CUT = 0.05, 0.1  # of the trajectories
MOST = 0.5  # of them: enough to explain that next to none succeeds
AT_FLOOR = 0.9  # of the penalty floor, on average


def no_steps(record: Record) -> Finding | None:
    """Nothing was recorded."""
    if len(record.table) or record.summary:
        return None
    where = (
        "The cold start had not ended when its files were written."
        if record.starting
        else "The cold start is over; compiling and the first evaluation come next."
    )
    return Finding(
        "no_steps",
        WARNING,
        "No step of training is recorded.",
        f"{where} If the run is over, the last lines of its output say why.",
        (),
        ("run the same command again: it continues",),
    )


def damaged_record(record: Record) -> Finding | None:
    """Lines or files that cannot be read, or steps that are missing or there twice."""
    steps = record.table.steps
    missing = int(np.sum(np.diff(steps) - 1)) if len(steps) else 0
    if not (record.broken_lines or record.repeated_steps or missing):
        return _damaged_files(record)
    counts = {
        "lines that cannot be read": record.broken_lines,
        "steps recorded twice": record.repeated_steps,
        "steps missing": missing,
    }
    return Finding(
        "damaged_record",
        WARNING,
        "metrics.jsonl is not whole: "
        + ", ".join(f"{n} {name}" for name, n in counts.items() if n)
        + "."
        + "".join(f" {text}." for text in unread_files(record)),
        "Another process wrote into the directory, or the file was edited or copied "
        "while it was written. The rest was read.",
        tuple(Seen(name, n) for name, n in counts.items() if n),
        ("use a directory of its own for each run",),
    )


def unread_files(record: Record) -> list[str]:
    """Each file that could not be read, with what is wrong with it."""
    return [f"{name} cannot be read: {why}" for name, why in record.unread.items()]


def _damaged_files(record: Record) -> Finding | None:
    """The metrics are whole, and files beside them are not."""
    if not record.unread:
        return None
    return Finding(
        "damaged_record",
        NOTE,
        "; ".join(unread_files(record)) + ".",
        "The run is judged by what else there is. Causes that show in these files, or "
        "in fields of the config that stand there, are not found.",
        (Seen("files that cannot be read", len(record.unread)),),
        ("copy them again from where the run was made, if they are whole there",),
    )


def unfinished(record: Record) -> Finding | None:
    """Fewer steps than the config asks for, or no summary."""
    table, steps = record.table, record.number("train.steps")
    if not len(table) or steps is None:
        return None
    done = int(table.steps[-1]) + 1
    ended = record.summary.get("steps", done) if record.summary else None
    if type(ended) is int and ended >= done >= steps:
        return None
    all_done = done >= steps
    if all_done and SUMMARY in record.unread:
        return None  # it was written, so the run has ended
    idle = record.idle_s is not None and record.idle_s > _patience(record, all_done)
    return Finding(
        "unfinished",
        WARNING if idle else NOTE,
        (
            f"All {number(steps)} steps are done, but "
            if all_done
            else f"The run has done {done} of {number(steps)} steps, and "
        )
        + (
            "nothing was written for a long time: it has stopped."
            if idle
            else "the last evaluation and summary.json are still to come."
            if all_done
            else "is under way."
        ),
        "It was stopped or killed, or training could not go on; its output says which."
        if idle
        else "What is found here is of the steps so far.",
        (
            Seen("steps done", done),
            Seen("seconds since the last step", round(record.idle_s or 0.0)),
        ),
        ("run the same command again: it continues",)
        if idle
        else ("wait; nothing is wrong with that",),
    )


def _patience(record: Record, all_done: bool) -> float:
    """Seconds without a word after which a run must have stopped."""
    pace = record.table.late("seconds")
    if pace is None:
        return IDLE_S
    wait = IDLE_STEPS * pace.median
    tasks, sampled = record.number("train.eval_tasks"), _sampled(record)
    if all_done and tasks and sampled:  # sampled and greedy
        wait += IDLE_STEPS * pace.median * 2 * tasks / sampled
    return max(IDLE_S, wait)


def failed_trajectories(record: Record) -> Finding | None:
    """Environments, tools or servers that do not answer."""
    table = record.table
    last, sampled = table.late("failed_trajectories"), _sampled(record)
    if last is None or sampled is None or last.mean <= FAILED * sampled:
        return None
    part = last.mean / sampled
    limit = record.number("sampling.max_failed_share")
    near = limit is not None and part > limit / 2
    return Finding(
        "failed_trajectories",
        PROBLEM if near else WARNING,
        f"{share(part)} of the trajectories fail.",
        "An environment, tool or server raised, took too long or gave what is no "
        "number. They are left out of their groups, which get smaller."
        + record.complaints.told(record.complaints.failures),
        (
            last.seen(f"of {number(sampled)} a step"),
            *((Seen("config.sampling.max_failed_share", limit),) if limit else ()),
        ),
        (
            "read `failure` in trajectories/: it has the error",
            f"allow more time: {field(record, 'env.step_timeout_s')}, "
            f"{field(record, 'env.tools.timeout_s')}, "
            f"{field(record, 'engine.http.timeout_s')}",
            f"try again: {field(record, 'env.tools.retries')}, "
            f"{field(record, 'engine.http.retries')}",
        ),
        may_cause=("few_groups_teach", "advantages_zero"),
    )


def overflow(record: Record) -> Finding | None:
    """Contexts that do not fit."""
    last = record.table.late("overflow_rate")
    if last is None or last.mean <= OVERFLOWED:
        return None
    return Finding(
        "overflow",
        PROBLEM if last.mean > MOST else WARNING,
        f"{share(last.mean)} of the trajectories end because their context is full.",
        "They pay reward.overflow and mostly fail.",
        (last.seen(), *record.table.latest("tokens_peak", "rebuilds", "success")),
        (
            f"raise {field(record, 'context.max_context_tokens')} (and the last of "
            "config.train.length_buckets)",
            f"rebuild the context each turn: {field(record, 'context.rule')} window",
            f"recall less at a time: {field(record, 'memory.retrieval_top_k')}",
        ),
        may_cause=("tasks_too_hard", "only_penalties", "success_flat")
        if last.mean > MOST
        else (),
    )


def truncated(record: Record) -> Finding | None:
    """Tasks that end for want of turns."""
    last = record.table.late("truncated_rate")
    if last is None or last.mean <= CUT:
        return None
    return Finding(
        "truncated",
        WARNING,
        f"{share(last.mean)} of the trajectories run out of turns.",
        "They end before the policy has answered, so whatever it did scores alike.",
        (last.seen(), *record.table.latest("turns", "success")),
        (
            f"raise {field(record, 'sampling.max_turns')}",
            "or shorten the tasks (config.env)",
        ),
        may_cause=("tasks_too_hard", "only_penalties", "success_flat")
        if last.mean > MOST
        else (),
    )


def penalties_at_floor(record: Record) -> Finding | None:
    """Penalties together are at their floor, so one more costs nothing."""
    table, floor = record.table, record.number("reward.penalty_floor")
    names = [f"reward_weighted/{n}" for n in ("malformed", "duplicate", "overflow")]
    windows = [w for name in names if (w := table.late(name)) is not None]
    paid = sum(w.mean for w in windows)
    if not floor or not windows or paid > AT_FLOOR * floor:
        return None
    return Finding(
        "penalties_at_floor",
        WARNING,
        f"Penalties are at their floor: {number(paid)} a trajectory before it.",
        "One more mistake costs nothing there, so nothing teaches the policy to make "
        "fewer.",
        (
            *(w.seen() for w in windows if w.mean < 0),
            Seen("config.reward.penalty_floor", floor),
        ),
        (
            f"lower {field(record, 'reward.penalty_floor')}, or make each penalty "
            f"smaller: {field(record, 'reward.malformed')}",
        ),
        may_cause=("malformed_ops", "success_flat"),
    )


def _sampled(record: Record) -> float | None:
    """Trajectories of a step, resampled groups among them; None if not known."""
    size = record.number("sampling.group_size")
    tasks = record.number("sampling.tasks_per_step")
    more = record.table.late("groups_resampled")
    if size is None or tasks is None:
        return None
    return size * (tasks + (more.mean if more else 0.0))

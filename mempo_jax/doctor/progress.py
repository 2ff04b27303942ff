"""Whether a run gets anywhere, and whether it keeps what it had."""

from __future__ import annotations

from mempo_jax.doctor.findings import PROBLEM, WARNING, Finding, Seen
from mempo_jax.doctor.naming import field, number
from mempo_jax.doctor.record import Record, sampled_success
from mempo_jax.doctor.table import ENOUGH, Window, differ

KEPT = 0.7  # of its best success; a run that wavers stays above
HALF = 0.5  # of it: so deep a fall needs less proof
REAL_SUCCESS = 0.1  # a best below it may be luck
FALL_ERRORS = 4  # the best of many windows is too good by one or two
GAIN = 0.1  # success that is worth having
DONE = 0.9  # success above which there is little left to gain
LITTLE = 0.02  # of success: significant, perhaps, and of no account
SURE = 3  # standard errors


def late_collapse(record: Record) -> Finding | None:
    """Success fell far below its own best, and stayed there."""
    table = record.table
    best, last = table.extreme("success"), table.late("success")
    if best is None or last is None:
        return None
    start = (sampled_success(record.cold_start) or (0.0,))[0]
    if start > best.mean:
        return _lost_at_once(record, start, last)
    if best.last_step >= last.first_step or best.mean < REAL_SUCCESS:
        return None
    errors = SURE if last.mean < HALF * best.mean else FALL_ERRORS
    if last.mean > KEPT * best.mean or not differ(best, last, errors):
        return None
    rows = table.measured("success")
    behind = rows[table.steps[rows] > best.last_step]
    n = len(last.values)
    middle = table.window("success", behind[-2 * n : -n]) or last
    if middle.mean > (1 + KEPT) / 2 * best.mean:
        return None  # so far a dip
    seen = [best.seen("its best"), last.seen("now")]
    for metric in ("kl", "entropy", "clip_fraction", "grad_norm"):
        seen += _before_and_now(record, metric, best)
    seen.sort(key=lambda each: each.first_step)  # what belongs together
    sunk = _never_rose(table.early("success"), best)
    return _collapse(record, best.mean, last.mean, seen, sunk)


def _lost_at_once(record: Record, start: float, last: Window) -> Finding | None:
    """No window was ever as good as the cold start."""
    if start < REAL_SUCCESS or last.mean > KEPT * start:
        return None
    if start - last.mean <= FALL_ERRORS * last.error:
        return None
    seen = [Seen("success_sampled of the cold start", start), last.seen("now")]
    return _collapse(record, start, last.mean, seen, sunk=True)


def _collapse(
    record: Record, best: float, last: float, seen: list[Seen], sunk: bool
) -> Finding:
    return Finding(
        "late_collapse",
        PROBLEM,
        f"Success fell from {number(best)} to {number(last)} and stayed there.",
        "It never rose: the updates made the policy worse from the first steps on."
        if sunk
        else "The policy had learnt the task and lost it. Most often updates were too "
        "large for what was left to learn, or the policy drifted far from where it "
        "began.",
        tuple(seen),
        (
            "go back: policy_best/ holds the best policy where "
            f"{field(record, 'train.checkpoint_best')} was 'success'; set it",
            f"lower {field(record, 'train.learning_rate')}, or let it fall earlier: "
            f"{field(record, 'train.decay_steps')}",
            f"raise {field(record, 'objective.kl_coef')}",
            f"fewer updates on the same samples: {field(record, 'train.minibatches')}",
        ),
        may_cause=(
            *("success_flat", "no_better_than_cold_start", "advantages_zero"),
            *("tasks_too_hard", "few_groups_teach", "reward_flat_loss_falls"),
            "only_penalties",
        ),
    )


def shaping_grows(record: Record) -> Finding | None:
    """The total reward rises while the task's own score falls."""
    table = record.table
    if len(table.measured("reward")) < ENOUGH:
        return None
    total = table.third("reward", 0), table.third("reward", 2)
    task = table.third("success", 0), table.third("success", 2)
    if None in total or None in task:
        return None
    rises = total[1].mean > total[0].mean and differ(*total, SURE)
    falls = task[1].mean < task[0].mean - LITTLE and differ(*task, SURE)
    if not (rises and falls):
        return None
    grown = []
    for name in table.columns:
        before, after = table.third(name, 0), table.third(name, 2)
        if name.startswith("reward_weighted/") and before and after:
            grown.append((after.mean - before.mean, before, after))
    most = max(grown, key=lambda each: each[0], default=None)
    seen = [*(w.seen() for w in (*total, *task))]
    seen += [w.seen("what grew most") for w in most[1:]] if most else []
    return Finding(
        "shaping_grows",
        PROBLEM,
        f"The reward rises ({number(total[0].mean)} to {number(total[1].mean)}) while "
        f"success falls ({number(task[0].mean)} to {number(task[1].mean)}).",
        "The policy is paid for something else than the task, and does that.",
        tuple(seen),
        (
            f"weaken what pays: {field(record, 'reward.efficiency_size')}, "
            f"{field(record, 'reward.efficiency_hits')}, or the penalties of "
            "config.reward",
            f"raise {field(record, 'reward.task_weight')}",
        ),
        may_cause=("late_collapse",),
    )


def no_better_than_cold_start(record: Record) -> Finding | None:
    """Held-out tasks do not show what training did."""
    ends = [
        sampled_success(record.summary.get(who)) for who in ("cold_start", "trained")
    ]
    if None in ends:
        return None
    (before, *_), (after, low, high) = ends
    last = record.table.late("success")
    worse = high < before and after - before < -LITTLE
    gap = last is not None and last.mean > high + GAIN
    unsure = low <= before < DONE and after - before < GAIN / 2
    unsure = unsure and len(record.table) >= ENOUGH
    if not (worse or gap or unsure):
        return None
    return Finding(
        "no_better_than_cold_start",
        PROBLEM if worse else WARNING,
        "On held-out tasks the trained policy is "
        f"{'worse' if worse else 'hardly better'} than the cold start: "
        f"{number(after)} against {number(before)}."
        if worse or unsure
        else "On held-out tasks the trained policy does much worse than in training: "
        f"{number(after)} against {number(last.mean)}.",
        "In training it does better than there: it learnt the training tasks, not the "
        "task."
        if gap
        else "Training did not help, or not beyond what the interval hides.",
        (
            Seen("success_sampled of the cold start", before),
            Seen("success_sampled, trained", after, remark=_interval(low, high)),
            *((last.seen("in training"),) if last else ()),
        ),
        (
            "train on more different tasks (config.env)"
            if gap
            else f"train for longer: {field(record, 'train.steps')}",
            f"measure on more tasks: {field(record, 'train.eval_tasks')}",
        ),
    )


def _never_rose(first: Window | None, best: Window) -> bool:
    return first is not None and best.mean <= first.mean + 2 * first.error


def _before_and_now(record: Record, metric: str, best: Window) -> list[Seen]:
    """The medians of a metric while success was best and at the end."""
    table = record.table
    rows = table.measured(metric)
    at = rows[
        (table.steps[rows] >= best.first_step) & (table.steps[rows] <= best.last_step)
    ]
    then, now = table.window(metric, at), table.late(metric)
    if then is None or now is None:
        return []
    return [then.seen("at its best", median=True), now.seen("now", median=True)]


def _interval(low: float, high: float) -> str:
    return f"95 % interval {number(low)} to {number(high)}"

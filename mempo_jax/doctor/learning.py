"""When a diagnosis of learning holds: updates, groups, progress.

The functions are conditions; see ``doctor.conditions`` for what they take and return.
"""

from __future__ import annotations

import math

import numpy as np

from mempo_jax.doctor.conditions import (
    ALL_GROUPS,
    EQUAL,
    GOOD_SUCCESS,
    LEARNING_STEPS,
    LOW_SUCCESS,
    MOST_GROUPS,
    NEARLY_ALL_GROUPS,
    NO_SUCCESS,
    SOLVED,
    SURE,
    WORTHWHILE_GAIN,
    early,
    ends,
    late,
    latest,
    needed,
    rises,
    setting,
    third,
)
from mempo_jax.doctor.findings import (
    MIN_TREND_STEPS,
    Figure,
    Symptom,
    mean,
    median,
)
from mempo_jax.doctor.text import number, steps_text
from mempo_jax.runs import RunRecord, Table, Window, differ, sampled_success
from mempo_jax.runs.table import MIN_WINDOW
from mempo_jax.settings import LOG_PROB_GAPS

# --- Updates: their size, KL, entropy, sampler against trainer


def non_finite_updates(run: RunRecord) -> Symptom | None:
    """Updates were skipped because they were not finite."""
    table = run.table
    skipped, updates = table.total("skipped_updates"), table.total("updates")
    if not skipped:
        return None
    rows = np.flatnonzero(np.nan_to_num(table.column("skipped_updates")) > 0)
    steps = table.steps[rows]
    recent = steps[-1] >= table.steps[-MIN_WINDOW:][0]
    most = run.number("train.max_skipped_updates")
    return Symptom(
        [
            Figure("skipped_updates", skipped, int(steps[0]), int(steps[-1])),
            *((Figure("in a row that stop the run", most),) if most else ()),
            *latest(run, "grad_norm"),
        ],
        {
            "grave": recent or not updates or skipped / updates > 0.05,
            "skipped": skipped,
            "updates": max(updates, skipped),
        },
    )


def updates_too_large(run: RunRecord) -> Symptom | None:
    """More than three tokens in twenty are clipped, at the worst."""
    table = run.table
    rows = table.measured("clip_fraction")
    # A policy that is wrecked at once gets no updates any more: then all there were.
    few = len(rows) if 0 < len(rows) < MIN_WINDOW <= len(table) else MIN_WINDOW
    windows = [
        table.best("clip_fraction"),
        table.window("clip_fraction", rows[:MIN_WINDOW], few),
    ]
    clipped = max(filter(None, windows), key=lambda w: w.mean, default=None)
    # Healthy runs clip less than a hundredth of the tokens.
    if clipped is None or clipped.mean < 0.15:
        return None
    steps = table.steps[rows]
    rows = rows[(steps >= clipped.first_step) & (steps <= clipped.last_step)]
    beside = []
    for metric in ("old_kl", "grad_norm"):
        finite = rows[np.isfinite(table.column(metric)[rows])]
        beside.append(table.window(metric, finite, least=1))
    return Symptom(
        [mean(clipped), *(median(window) for window in beside if window)],
        {
            "clipped": clipped.mean,
            "steps": steps_text(clipped.first_step, clipped.last_step),
        },
    )


def sampler_gap(run: RunRecord) -> Symptom | None:
    """Log-probs of sampler and trainer differ more than rounding explains."""
    apart, capped = _log_probs_apart(run), run.table.late("importance_capped")
    if capped is None or capped.mean < 0.2:
        return apart
    # The same cause, seen in the importance weights that hit their cap.
    figures = mean(capped), *latest(run, "importance_weight")
    if apart is None:
        figures += latest(run, "log_prob_gap")
        return Symptom(figures, {"capped": True, "http": _is_remote(run)})
    return Symptom([*apart.figures, *figures], {**apart.facts, "capped": True})


def kl_blow_up(run: RunRecord) -> Symptom | None:
    """The KL exceeds 2 nats, or half a nat with low success."""
    last, success = late(run, "kl"), run.table.late("success")
    middle = run.table.third("kl", 1)
    grown = middle is not None and last.median > 10 * max(middle.median, 1e-6)
    failing = success is not None and success.mean < LOW_SUCCESS
    # Two nats a token are another policy; half a nat is far if it brought no success.
    if last.median < 2.0 and not (grown and failing and last.median > 0.5):
        return None
    return Symptom(
        [
            median(early(run, "kl"), "at the beginning"),
            median(last, "now"),
            *latest(run, "success", "entropy"),
        ],
        {
            "kl": last.median,
            "failing": failing,
            "free": run.field("objective.kl_coef") == 0,
        },
    )


def lost_dialogue(run: RunRecord) -> Symptom | None:
    """Tokens outside memory ops are far from the reference."""
    unpaid = run.field("objective.kl_scope") == "ops"
    free, paid = run.table.late("kl_outside_ops"), run.table.late("kl_ops")
    if free is None:  # an older run: judge by the KL of all tokens
        free, paid = late(run, "kl"), None
        far = unpaid and free.median >= 0.5
    else:
        # If all tokens pay, answers that are learnt take a policy some way off.
        far = free.median >= (0.1 if unpaid else 0.5)
        far = far and (paid is None or free.median >= 3 * paid.median)
    if not far:
        return None
    success = run.table.late("success")
    good = success is not None and success.mean >= GOOD_SUCCESS
    return Symptom(
        [median(free), *((median(paid),) if paid else ()), *latest(run, "entropy")],
        {"kl": free.median, "unpaid": unpaid, "harmless": good and not unpaid},
    )


def entropy_explosion(run: RunRecord) -> Symptom | None:
    """Entropy has tripled and success has not risen."""
    first, last = ends(run, "entropy")
    before, now = ends(run, "success")
    if last.mean < 3 * first.mean or not differ(first, last, SURE):
        return None
    if now.mean > before.mean:
        return None
    figures = mean(first), mean(last), mean(now)
    return Symptom(
        [*figures, *latest(run, "malformed_rate")],
        {"before": first.mean, "now": last.mean},
    )


def entropy_collapse(run: RunRecord) -> Symptom | None:
    """Entropy has fallen to a quarter, and success is low."""
    first, last = ends(run, "entropy")
    success, silent = late(run, "success"), late(run, "degenerate_groups")
    if run.table.best("success").mean < 0.05:  # the tasks are too hard instead
        return None
    if success.mean >= LOW_SUCCESS or silent.mean < 0.5 or last.mean * 4 > first.mean:
        return None
    figures = mean(first), mean(last), mean(success), mean(silent)
    return Symptom(figures, {"before": first.mean, "now": last.mean})


# --- Groups: whether rewards tell their members apart


def silent_groups(run: RunRecord) -> Window | None:
    """Late share of the groups whose members all have the same task score."""
    for metric in ("no_outcome_groups", "degenerate_groups"):  # older runs: the second
        window = run.table.late(metric)
        if window is not None:
            return window
    return None


def constant_reward(run: RunRecord) -> Symptom | None:
    """The task score is the same in every step."""
    success = needed(run.table.whole("success"))
    if np.ptp(success.values) > EQUAL:
        return None
    if success.mean <= 0 or success.mean >= 1:  # or the tasks are too hard, or too easy
        different = run.table.late("edit_distance")
        if different is None or different.mean <= 0.05:
            return None
        if not run.field("reward.function"):
            return None
    return Symptom(
        [mean(success, "the same in every step"), *latest(run, "edit_distance")],
        {"reward": success.mean},
    )


def low_diversity(run: RunRecord) -> Symptom | None:
    """The members of a group act alike before the tasks are solved."""
    distance, success = late(run, "edit_distance"), late(run, "success")
    before, silent = run.table.early("edit_distance"), silent_groups(run)
    if distance.mean > 0.05:
        return None
    # Even a policy that has converged differs in more than a hundredth of its actions.
    same = distance.mean <= 0.01 and success.mean < SOLVED
    wasted = silent is None or silent.mean >= MOST_GROUPS
    if not same and (success.mean > LOW_SUCCESS or not wasted):
        return None
    lost = before is not None and before.mean > 0.1
    if lost and success.mean <= NO_SUCCESS:
        return None  # there was nothing right to become sure of
    return Symptom(
        [
            *((mean(before, "at the beginning"),) if lost else ()),
            mean(distance),
            *((mean(silent),) if silent else ()),
            *latest(run, "entropy", "success"),
        ],
        {
            "distance": distance.mean,
            "lost": lost,
            "all_alike": silent is None or silent.mean >= ALL_GROUPS,
        },
    )


def tasks_too_hard(run: RunRecord) -> Symptom | None:
    """Almost nothing succeeds, so that groups hold no contrast."""
    success, silent = late(run, "success"), needed(silent_groups(run))
    if success.mean > NO_SUCCESS or silent.mean < NEARLY_ALL_GROUPS:
        return None
    start = sampled_success(run.cold_start)
    best_start = max(early(run, "success").values.max(), start[0] if start else 0.0)
    if best_start > 5 * NO_SUCCESS:
        return None  # it could do them once: see late_collapse
    known = (Figure("success of the cold start", start[0]),) if start else ()
    return Symptom([mean(success), mean(silent), *known])


def tasks_too_easy(run: RunRecord) -> Symptom | None:
    """Nearly everything succeeded from the start: there is no contrast."""
    first, last = ends(run, "success")
    silent = needed(silent_groups(run))
    if silent.mean < MOST_GROUPS or min(first.mean, last.mean) < SOLVED:
        return None
    return Symptom(
        [mean(first), mean(last), mean(silent)],
        {"before": first.mean, "nearly_all": silent.mean >= NEARLY_ALL_GROUPS},
    )


def credit_reaches_no_token(run: RunRecord) -> Symptom | None:
    """Groups have advantages, but tokens get hardly any of them."""
    group, token = late(run, "group_abs_advantage"), late(run, "abs_advantage")
    if group.mean < 0.05 or token.mean > 0.02 * group.mean:
        return None
    return Symptom([mean(group), mean(token), *latest(run, "weighted_token_share")])


def only_penalties(run: RunRecord) -> Symptom | None:
    """Groups differ by penalties and costs, hardly ever by task scores."""
    outcome, equal = late(run, "no_outcome_groups"), late(run, "degenerate_groups")
    apart = outcome.mean - equal.mean  # groups told apart by something else alone
    if outcome.mean < NEARLY_ALL_GROUPS or apart < 0.5:
        return None
    if late(run, "success").mean > SOLVED:
        return None
    costs = [
        window
        for name, window in _rewards(run.table, run.table.late).items()
        if window.mean < 0 and not name.endswith("/task")
    ]
    worst = sorted(costs, key=lambda window: window.mean)[:2]
    return Symptom(
        [*(mean(window) for window in (outcome, equal, *worst))],
        {
            "silent": outcome.mean,
            "gated": run.field("reward.outcome_gate") is not False,
        },
    )


def advantages_zero(run: RunRecord) -> Symptom | None:
    """No group has a contrast: rewards are equal, or advantages 0."""
    success = late(run, "success")
    equal = run.table.late("degenerate_groups")
    all_equal = equal is not None and equal.mean >= ALL_GROUPS
    shown = equal if all_equal else None
    for metric in ("group_abs_advantage", "abs_advantage", "reward_std_in_group"):
        window = run.table.late(metric)
        if shown is None and window is not None and window.mean <= EQUAL:
            shown = window
    if shown is None:
        return None
    before = run.table.early("degenerate_groups")
    learnt = before is not None and before.mean < ALL_GROUPS
    learnt = learnt and success.mean >= SOLVED
    return Symptom(
        [mean(shown), *latest(run, "success", "abs_advantage", "empty_steps")],
        {"all_equal": all_equal, "learnt": learnt},
    )


def few_groups_teach(run: RunRecord) -> Symptom | None:
    """Most groups have no contrast, and success is neither low nor high."""
    success = late(run, "success")
    gated = run.field("reward.outcome_gate") is not False
    silent = silent_groups(run) if gated else run.table.late("degenerate_groups")
    if silent is None or not MOST_GROUPS <= silent.mean < ALL_GROUPS:
        return None
    if not NO_SUCCESS < success.mean < LOW_SUCCESS:
        return None
    return Symptom(
        [mean(silent), *latest(run, "success", "empty_steps", "edit_distance")],
        {"silent": silent.mean},
    )


# --- Progress: whether the run gets anywhere, and keeps what it had


def shaping_grows(run: RunRecord) -> Symptom | None:
    """The reward rises while success falls."""
    if len(run.table.measured("reward")) < MIN_TREND_STEPS:
        return None
    total = third(run, "reward", 0), third(run, "reward", 2)
    task = third(run, "success", 0), third(run, "success", 2)
    falls = task[1].mean < task[0].mean - 0.02 and differ(*task, SURE)
    if not (rises(*total) and falls):
        return None
    before = _rewards(run.table, lambda name: run.table.third(name, 0))
    after = _rewards(run.table, lambda name: run.table.third(name, 2))
    grown = {n: after[n].mean - before[n].mean for n in before if n in after}
    most = max(grown, key=grown.get, default=None)
    cause = (before[most], after[most]) if most else ()
    return Symptom(
        [
            *(mean(window) for window in (*total, *task)),
            *(mean(window, "what grew most") for window in cause),
        ],
        {
            "reward_before": total[0].mean,
            "reward_now": total[1].mean,
            "success_before": task[0].mean,
            "success_now": task[1].mean,
        },
    )


def late_collapse(run: RunRecord) -> Symptom | None:
    """Success has fallen far below its best, and stays there."""
    table, last = run.table, late(run, "success")
    best = needed(table.best("success"))
    start = (sampled_success(run.cold_start) or (0.0,))[0]
    if start > best.mean:
        return _collapsed_at_once(start, last)
    # A best below a tenth may be luck; a run that wavers stays above 0.7 of its best.
    if best.last_step >= last.first_step or best.mean < 0.1:
        return None
    # The best of many windows is too good by an error or two; a deep fall needs less.
    errors = SURE if last.mean < 0.5 * best.mean else 4
    if last.mean > 0.7 * best.mean or not differ(best, last, errors):
        return None
    rows = table.measured("success")
    rows = rows[table.steps[rows] > best.last_step]
    n = len(last.values)
    between = table.window("success", rows[-2 * n : -n]) or last
    if between.mean > 0.85 * best.mean:
        return None  # so far a dip
    figures = [mean(best, "its best"), mean(last, "now")]
    for metric in ("kl", "entropy", "clip_fraction", "grad_norm", "device_bytes"):
        figures += _at_best_and_now(table, metric, best)
    figures.sort(key=lambda figure: figure.first_step)  # to show them by their steps
    first = table.early("success")
    never_rose = first is not None and best.mean <= first.mean + 2 * first.error
    return Symptom(
        figures, {"best": best.mean, "now": last.mean, "never_rose": never_rose}
    )


def no_better_than_cold_start(run: RunRecord) -> Symptom | None:
    """The final evaluation shows no gain, or less than training."""
    halves = [sampled_success(run.summary.get(w)) for w in ("cold_start", "trained")]
    if None in halves:
        return None
    (before, *_), (after, low, high) = halves
    last = run.table.late("success")
    worse = high < before and after - before < -0.02
    gap = last is not None and last.mean > high + WORTHWHILE_GAIN
    unsure = low <= before < GOOD_SUCCESS and after - before < WORTHWHILE_GAIN / 2
    unsure = unsure and len(run.table) >= MIN_TREND_STEPS
    if not (worse or gap or unsure):
        return None
    interval = f"95 % interval {number(low)} to {number(high)}"
    return Symptom(
        [
            Figure("success_sampled of the cold start", before),
            Figure("success_sampled, trained", after, remark=interval),
            *((mean(last, "in training"),) if last else ()),
        ],
        {
            "worse": worse,
            "gap": gap,
            "unsure": unsure,
            "before": before,
            "after": after,
        },
    )


def learning_rate_ended(run: RunRecord) -> Symptom | None:
    """The learning rate has been 0 for a while, by its schedule."""
    decay, steps = run.number("train.decay_steps"), run.number("train.steps")
    if not decay or not steps or not len(run.table):
        return None
    idle = int(run.table.steps[-1]) + 1 - decay
    if idle <= 0.1 * decay:
        return None
    figures = setting(run, "train.decay_steps") + setting(run, "train.steps")
    return Symptom(figures, {"decay": decay, "idle": idle})


def policy_hardly_moves(run: RunRecord) -> Symptom | None:
    """After many updates the policy is still at its reference."""
    kl = run.table.late("kl_first_update") or late(run, "kl")
    updates = len(run.table.measured("grad_norm"))
    # A thousandth of a nat from the reference is as good as never moved.
    if updates < MIN_TREND_STEPS or kl.median > 1e-3:
        return None
    if late(run, "success").mean >= GOOD_SUCCESS:
        return None
    return Symptom(
        [
            median(kl),
            *latest(run, "grad_norm", "abs_advantage"),
            *setting(run, "train.learning_rate"),
        ],
        {"kl": f"{kl.median:.1e}", "updates": updates},
    )


def reward_flat_loss_falls(run: RunRecord) -> Symptom | None:
    """The loss falls while the reward stays as it was."""
    steps = len(run.table.measured("loss"))
    if steps < MIN_TREND_STEPS or not _is_flat(run, "reward"):
        return None
    first, last = third(run, "loss", 0), third(run, "loss", 2)
    fall = first.mean - last.mean
    if fall <= 0 or not differ(first, last, SURE) or fall < 0.2 * abs(first.mean):
        return None
    kl = [run.table.third("kl", which) for which in (0, 2)]
    coefficient = [run.table.third("kl_coef", which) for which in (0, 2)]
    figures = [mean(third(run, "reward", which)) for which in (0, 2)]
    figures += mean(first), mean(last)
    by_kl = None not in (*kl, *coefficient)
    if by_kl:
        before, after = (k.mean * c.mean for k, c in zip(kl, coefficient, strict=True))
        figures.append(Figure("kl_coef x kl, at first", before))
        figures.append(Figure("kl_coef x kl, now", after))
        by_kl = before - after > 0.5 * fall
    return Symptom(
        figures,
        {
            "before": first.mean,
            "now": last.mean,
            "by_kl": by_kl,
            "long": steps >= LEARNING_STEPS,
        },
    )


def success_flat(run: RunRecord) -> Symptom | None:
    """Success has not risen beyond noise."""
    steps = len(run.table.measured("success"))
    if steps < MIN_TREND_STEPS or not _is_flat(run, "success"):
        return None
    first, last = third(run, "success", 0), third(run, "success", 2)
    kl = [run.table.third("kl", which) for which in (0, 2)]
    decay = run.number("credit.bonus_decay_steps")
    without_bonus = int(run.table.steps[-1]) + 1 - decay if decay else 0
    return Symptom(
        [
            mean(first),
            mean(last),
            *(median(window) for window in kl if window),
            *latest(run, "degenerate_groups", "write_precision", "grad_norm"),
        ],
        {
            "steps": steps,
            "before": first.mean,
            "now": last.mean,
            "drifts": None not in kl and kl[1].median > 0.05,
            "long": steps >= LEARNING_STEPS,
            "decay": decay,
            "bonus_ended": without_bonus >= MIN_TREND_STEPS,
        },
    )


# --- What several conditions ask


def _is_remote(run: RunRecord) -> bool:
    return run.field("engine.kind") == "http"


def _log_probs_apart(run: RunRecord) -> Symptom | None:
    """Log-probs of sampler and trainer that come apart in the course of the run."""
    table = run.table
    rows = np.flatnonzero(  # of steps without an update nothing was compared
        (np.nan_to_num(table.column("log_prob_gap")) > 0)
        & (np.nan_to_num(table.column("updates"), nan=1.0) > 0)
    )
    n = max(MIN_WINDOW, len(rows) // 10)
    first = table.window("log_prob_gap", rows[:n])
    last = table.window("log_prob_gap", rows[-n:])
    # Float32 sums of two programs differ by less than 1e-4 nats.
    if first is None or last is None or last.median < 1e-4:
        return None
    by_dtype = LOG_PROB_GAPS.get(run.field("policy.compute_dtype"))
    limit = run.number("train.max_log_prob_gap") or by_dtype
    near = limit is not None and last.median > 0.5 * limit
    grown = last.median > 10 * first.median and differ(first, last, SURE)
    if not (near or grown):
        return None
    return Symptom(
        [
            median(first, "at first"),
            median(last, "now"),
            *((Figure("config.train.max_log_prob_gap", limit),) if limit else ()),
        ],
        {"gap": f"{last.median:.2g}", "http": _is_remote(run)},
    )


def _collapsed_at_once(start: float, last: Window) -> Symptom | None:
    """No window was ever as good as the cold start, whose success is ``start``."""
    if start < 0.1 or last.mean > 0.7 * start or start - last.mean <= 4 * last.error:
        return None
    known = Figure("success_sampled of the cold start", start)
    return Symptom(
        [known, mean(last, "now")],
        {"best": start, "now": last.mean, "never_rose": True},
    )


def _at_best_and_now(table: Table, metric: str, best: Window) -> list[Figure]:
    """The medians of a metric while success was best, and at the end."""
    rows = table.measured(metric)
    steps = table.steps[rows]
    at_best = rows[(steps >= best.first_step) & (steps <= best.last_step)]
    then, now = table.window(metric, at_best), table.late(metric)
    if then is None or now is None:
        return []
    return [median(then, "at its best"), median(now, "now")]


def _is_flat(run: RunRecord, metric: str) -> bool:
    """No rise beyond noise, and none worth having that noise could hide."""
    first, last = third(run, metric, 0), third(run, metric, 2)
    success = run.table.third("success", 2)
    if success is not None and success.mean >= GOOD_SUCCESS:
        return False
    error = math.hypot(first.error, last.error)
    gain = last.mean - first.mean
    return gain <= 2 * error and gain + 2 * error < WORTHWHILE_GAIN


def _rewards(table: Table, look) -> dict[str, Window]:
    """The weighted components of the reward as ``look`` gives their windows."""
    names = [name for name in table.columns if name.startswith("reward_weighted/")]
    return {name: window for name in names if (window := look(name)) is not None}

"""Whether updates stay within bounds: size, KL, entropy, sampler against trainer."""

from __future__ import annotations

import numpy as np

from mempo_jax.doctor.findings import PROBLEM, WARNING, Finding, Seen
from mempo_jax.doctor.naming import field, number, share, steps_text
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import SHORTEST, Window, differ

MANY_SKIPPED = 0.05  # of the updates
CLIPPED = 0.15  # of the tokens; healthy runs stay below a hundredth
ROUNDING = 1e-4  # nats; float32 sums of two programs differ by less
NEAR_LIMIT = 0.5  # of config.train.max_log_prob_gap
GAP_GROWN = 10
CAPPED = 0.2  # of the tokens: the sampler is not the trainer any more


def non_finite_updates(record: Record) -> Finding | None:
    """Updates were left out, since their loss or gradient was not finite."""
    table = record.table
    skipped, made = table.total("skipped_updates"), table.total("updates")
    if not skipped:
        return None
    part = skipped / made if made else 1.0
    rows = np.flatnonzero(np.nan_to_num(table.column("skipped_updates")) > 0)
    steps = table.steps[rows]
    recent = steps[-1] >= table.steps[-SHORTEST:][0]
    most = record.number("train.max_skipped_updates")
    return Finding(
        "non_finite_updates",
        PROBLEM if part > MANY_SKIPPED or recent else WARNING,
        f"{number(skipped)} of {number(max(made, skipped))} updates were skipped: loss "
        "or gradient was not finite.",
        "The parameters were kept from it, but something overflows: mostly updates "
        "that are too large, or 16-bit arithmetic.",
        (
            Seen("skipped_updates", skipped, int(steps[0]), int(steps[-1])),
            *((Seen("in a row that stop the run", most),) if most else ()),
            *table.latest("grad_norm"),
        ),
        (
            "look at skipped/: it holds the batches of these updates",
            f"lower {field(record, 'train.learning_rate')}",
            f"use float32: {field(record, 'policy.compute_dtype')}",
        ),
        may_cause=("late_collapse", "policy_hardly_moves", "success_flat"),
    )


def updates_too_large(record: Record) -> Finding | None:
    """Within one step the policy leaves what its samples can tell about."""
    clipped = _worst_clipping(record)
    if clipped is None or clipped.mean < CLIPPED:
        return None
    table = record.table
    rows = table.measured("clip_fraction")
    at = rows[np.isin(table.steps[rows], _steps_of(clipped))]
    beside = [_over(record, metric, at) for metric in ("old_kl", "grad_norm")]
    return Finding(
        "updates_too_large",
        PROBLEM,
        f"Updates are too large: {share(clipped.mean)} of the tokens were clipped in "
        f"{steps_text(clipped.first_step, clipped.last_step)}.",
        "A clipped token has left the range in which its advantage means something; "
        "beyond a few per cent the updates wreck more than they learn.",
        (clipped.seen(), *(w.seen(median=True) for w in beside if w)),
        (
            f"lower {field(record, 'train.learning_rate')} tenfold",
            f"let it rise slowly: {field(record, 'train.warmup_steps')}",
            f"clip gradients: {field(record, 'train.grad_clip')}",
            f"fewer updates on the same samples: {field(record, 'train.minibatches')}",
        ),
        may_cause=(
            *("late_collapse", "kl_blow_up", "entropy_collapse", "entropy_explosion"),
            *(
                "malformed_ops",
                "penalties_at_floor",
                "low_diversity",
                "success_flat",
                "advantages_zero",
            ),
            *("few_groups_teach", "no_better_than_cold_start", "tasks_too_hard"),
            *("memory_unused", "write_only", "non_finite_updates", "only_penalties"),
            *("truncated", "overflow", "reward_flat_loss_falls", "duplicate_writes"),
        ),
    )


def sampler_gap(record: Record) -> Finding | None:
    """What the sampler drew from is less and less what the trainer scores."""
    table = record.table
    where = np.flatnonzero(
        (np.nan_to_num(table.column("log_prob_gap")) > 0)
        & (np.nan_to_num(table.column("updates"), nan=1.0) > 0)
    )  # steps without an update compared nothing
    n = max(SHORTEST, len(where) // 10)
    first, last = (
        table.window("log_prob_gap", rows) for rows in (where[:n], where[-n:])
    )
    if first is None or last.median < ROUNDING:
        return None
    limit = record.number("train.max_log_prob_gap")
    near = limit is not None and last.median > NEAR_LIMIT * limit
    grown = last.median > GAP_GROWN * first.median and differ(first, last, 3)
    if not (near or grown):
        return None
    remote = record.field("engine.kind") == "http"
    return Finding(
        "sampler_gap",
        WARNING,
        "Sampler and trainer disagree more and more: "
        f"{last.median:.2g} nats on the worst token of a step.",
        "The same weights give other log-probs in the sampler. "
        + (
            "A server that keeps older weights, or computes in 16 bits, does that."
            if remote
            else "With one program and one set of weights only rounding is left: "
            "16-bit arithmetic, or logits that grow very large."
        ),
        (
            first.seen("at first", median=True),
            last.seen("now", median=True),
            *((Seen("config.train.max_log_prob_gap", limit),) if limit else ()),
        ),
        (
            *((f"send it new weights: {field(record, 'engine.http.sync')}",) * remote),
            f"weigh tokens for it: {field(record, 'objective.importance_cap')} (2.0)",
            f"compute in float32: {field(record, 'policy.compute_dtype')}",
            f"sample as training scores: {field(record, 'sampling.top_p')} 1.0, "
            f"{field(record, 'sampling.top_k')} 0",
        ),
        may_cause=("late_collapse",),
    )


def stale_sampler(record: Record) -> Finding | None:
    """Importance weights hit their cap on many tokens."""
    capped = record.table.late("importance_capped")
    if capped is None or capped.mean < CAPPED:
        return None
    return Finding(
        "stale_sampler",
        WARNING,
        f"{share(capped.mean)} of the importance weights are at their cap.",
        "What was sampled comes from a policy that is no longer the one being "
        "trained; capped weights make up for that only in part.",
        (capped.seen(), *record.table.latest("importance_weight", "log_prob_gap")),
        (
            f"send new weights to the sampler: {field(record, 'engine.http.sync')}",
            f"raise {field(record, 'objective.importance_cap')}",
        ),
        may_cause=("late_collapse", "success_flat"),
    )


def _worst_clipping(record: Record) -> Window | None:
    """The window with most clipping, or the first steps where they clipped more.

    A policy that is wrecked at once gets no updates any more; then all there were.
    """
    table = record.table
    rows = table.measured("clip_fraction")
    few = len(rows) if 0 < len(rows) < SHORTEST <= len(table) else SHORTEST
    found = [
        table.extreme("clip_fraction"),
        table.window("clip_fraction", rows[:SHORTEST], few),
    ]
    windows = [window for window in found if window is not None]
    return max(windows, key=lambda window: window.mean, default=None)


def _steps_of(window: Window) -> np.ndarray:
    return np.arange(window.first_step, window.last_step + 1)


def _over(record: Record, metric: str, rows: np.ndarray) -> Window | None:
    finite = np.isfinite(record.table.column(metric)[rows])
    return record.table.window(metric, rows[finite], 1)

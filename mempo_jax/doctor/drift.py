"""How far the policy has gone from where it began, and how sure it is of itself."""

from __future__ import annotations

from mempo_jax.doctor.findings import PROBLEM, WARNING, Finding
from mempo_jax.doctor.naming import field, number
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import Window, differ

FAR = 2.0  # nats a token from the reference: another policy altogether
SPOILT = 0.5  # nats a token: far, where it brought no success
GROWN = 10  # times the KL of the middle of the run
POOR = 0.8  # success below which a loss of entropy is no mere convergence
TRIED = 0.05  # success: where there was none, the tasks are too hard instead
SHRUNK, SWOLLEN = 4, 3  # entropy: times less, times more
FREE_KL, TIMES_PAID = 0.1, 3  # nats a token outside ops, and times that on ops


def kl_blow_up(record: Record) -> Finding | None:
    """The policy is far from the reference."""
    table = record.table
    last, success = table.late("kl"), table.late("success")
    if last is None:
        return None
    middle = table.third("kl", 1)
    grown = middle is not None and last.median > GROWN * max(middle.median, 1e-6)
    failing = success is not None and success.mean < POOR
    if last.median < FAR and not (grown and failing and last.median > SPOILT):
        return None
    off = record.field("objective.kl_coef") == 0
    return Finding(
        "kl_blow_up",
        PROBLEM if failing else WARNING,
        f"The policy is far from the reference: KL {number(last.median)} a token.",
        "Nothing pulls it back, since the coefficient is 0."
        if off
        else "It became another policy: what the first one could do besides the task "
        "is probably gone, and the k3 estimate grows exponentially with distance.",
        (
            *((table.early("kl").seen("at the beginning", median=True),)),
            last.seen("now", median=True),
            *table.latest("success", "entropy"),
        ),
        (
            f"raise {field(record, 'objective.kl_coef')}; 0.01 to 0.05 is usual",
            f"lower {field(record, 'train.learning_rate')}",
        ),
        may_cause=("late_collapse", "malformed_ops", "entropy_collapse"),
    )


def lost_dialogue(record: Record) -> Finding | None:
    """KL is paid on memory ops alone, and the rest of the language drifts."""
    if record.field("objective.kl_scope") != "ops":
        return None
    table = record.table
    free, paid = table.late("kl_outside_ops"), table.late("kl_ops")
    if free is None:
        return _perhaps_lost(record)
    if free.median < FREE_KL:
        return None
    if paid is not None and free.median < TIMES_PAID * paid.median:
        return None
    return _lost(record, (free, *((paid,) if paid else ())), free.median)


def entropy_explosion(record: Record) -> Finding | None:
    """The policy knows less and less what it wants to say."""
    table = record.table
    first, last = table.ends("entropy")
    ends = table.ends("success")
    if None in (first, last, *ends) or last.mean < SWOLLEN * first.mean:
        return None
    if not differ(first, last, 3) or ends[1].mean > ends[0].mean:
        return None
    return Finding(
        "entropy_explosion",
        PROBLEM,
        f"Entropy rose from {number(first.mean)} to {number(last.mean)} nats a token, "
        "and success did not.",
        "The policy dissolves: updates push tokens down more than others up, as many "
        "large negative advantages do.",
        (first.seen(), last.seen(), ends[1].seen(), *table.latest("malformed_rate")),
        (
            f"lower {field(record, 'train.learning_rate')}",
            f"bound what negative advantages may do: "
            f"{field(record, 'objective.dual_clip')} (3.0)",
            f"raise {field(record, 'objective.kl_coef')}",
        ),
        may_cause=("late_collapse", "malformed_ops", "success_flat"),
    )


def entropy_collapse(record: Record) -> Finding | None:
    """The policy became sure before it was right."""
    table = record.table
    first, last = table.ends("entropy")
    success, quiet = table.late("success"), table.late("degenerate_groups")
    best = table.extreme("success")
    if None in (first, last, success, quiet) or best.mean < TRIED:
        return None
    if success.mean >= POOR or quiet.mean < 0.5 or last.mean * SHRUNK > first.mean:
        return None
    return Finding(
        "entropy_collapse",
        PROBLEM,
        f"Entropy fell from {number(first.mean)} to {number(last.mean)} nats a token "
        f"at a success of {number(success.mean)}.",
        "The policy says the same whatever is drawn; it can find nothing better, "
        "since it tries nothing else.",
        (first.seen(), last.seen(), success.seen(), quiet.seen()),
        (
            f"lower {field(record, 'train.learning_rate')}",
            f"let rare tokens rise: {field(record, 'objective.clip_high')} above "
            f"clip_low, as 0.28",
            f"raise {field(record, 'objective.kl_coef')} or "
            f"{field(record, 'sampling.temperature')}",
        ),
        may_cause=(
            *("low_diversity", "advantages_zero", "few_groups_teach"),
            *("success_flat", "no_better_than_cold_start"),
        ),
    )


def _lost(record: Record, windows: tuple[Window, ...], kl: float) -> Finding:
    return Finding(
        "lost_dialogue",
        WARNING,
        f"Outside memory operations the policy has drifted: KL {number(kl)} a token, "
        "and nothing pulls it back.",
        "config.objective.kl_scope is 'ops', so only tokens of memory operations pay "
        "for distance. The rest (answers, thoughts, ordinary talk) may be lost without "
        "a sign in the reward.",
        (
            *(w.seen(median=True) for w in windows),
            *record.table.latest("entropy"),
        ),
        (
            f"set {field(record, 'objective.kl_scope')} to 'all'",
            f"raise {field(record, 'objective.kl_coef')}",
        ),
        may_cause=("late_collapse", "malformed_ops"),
    )


def _perhaps_lost(record: Record) -> Finding | None:
    """Of a run that did not record the KL outside ops: by the KL of all tokens."""
    whole = record.table.late("kl")
    if whole is None or whole.median < SPOILT:
        return None
    return _lost(record, (whole,), whole.median)

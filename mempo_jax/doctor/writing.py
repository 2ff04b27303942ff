"""What becomes of what the policy writes, and of operations that it gets wrong."""

from __future__ import annotations

from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Finding
from mempo_jax.doctor.naming import field, number, share
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import differ

GOOD = 0.9  # success at which a habit does no harm
MERGED = 0.3  # of the accepted writes
REPEATED = 0.3  # of the writes
CUT = 0.1  # of the turns
SPOILT = 0.1  # malformed operations a turn


def actions_cut(record: Record) -> Finding | None:
    """Turns that end because their tokens are spent."""
    table = record.table
    last, success = table.late("cut_turn_rate"), table.late("success")
    if last is None or last.mean <= CUT:
        return None
    harmless = success is not None and success.mean >= GOOD
    grave = last.mean > 5 * CUT and not harmless
    return Finding(
        "actions_cut",
        NOTE if harmless else PROBLEM if grave else WARNING,
        f"{share(last.mean)} of the turns end because their tokens are spent, and not "
        "where the policy ends them.",
        "An operation that is not closed by then is malformed, and what was to follow "
        "is lost. Or the policy has not learnt to end its turns, and pays for all of "
        "them in full.",
        (
            last.seen(),
            *table.latest("cut_trajectory_rate", "malformed_rate", "success"),
        ),
        (
            f"raise {field(record, 'sampling.max_new_tokens')} (and the last of "
            "config.train.length_buckets)",
            f"ask for less at a time: {field(record, 'context.instructions')}",
            f"teach the form for longer: {field(record, 'train.cold_start_steps')}",
        ),
        may_cause=(
            *("malformed_ops", "only_penalties", "tasks_too_hard", "memory_unused"),
            *("penalties_at_floor", "success_flat"),
        )
        if grave
        else ("malformed_ops",),
    )


def malformed_ops(record: Record) -> Finding | None:
    """Operations that could not be read or done."""
    table = record.table
    first, last = table.ends("malformed_rate")
    if first is None or last is None or last.mean < SPOILT:
        return None
    rose = last.mean > 2 * first.mean and differ(first, last, 3)
    told = record.complaints.told(record.complaints.ops)
    return Finding(
        "malformed_ops",
        PROBLEM if last.mean > 5 * SPOILT else WARNING,
        f"{number(last.mean)} operations a turn are malformed or fail.",
        ("The form is being unlearnt." if rose else "The form was never learnt well.")
        + told,
        (first.seen("at first"), last.seen("now"), *table.latest("success", "kl")),
        (
            f"teach the form for longer: {field(record, 'train.cold_start_steps')}",
            "give actions that are cut room to close their tags: "
            f"{field(record, 'sampling.max_new_tokens')}",
            f"let it cost more: {field(record, 'reward.malformed')}, above the floor "
            f"{field(record, 'reward.penalty_floor')}",
            f"sample less wildly: {field(record, 'sampling.temperature')}",
        ),
        may_cause=(
            *("only_penalties", "tasks_too_hard", "memory_unused"),
            "penalties_at_floor",
        )
        if last.mean > 5 * SPOILT
        else (),
    )


def merge_rate_high(record: Record) -> Finding | None:
    """Many writes melt into older entries."""
    table = record.table
    last = table.late("merge_rate")
    if last is None or last.mean <= MERGED or _writes_little(record):
        return None
    ends = table.ends("success")
    helps = None not in ends and (
        ends[1].mean >= GOOD or (ends[1].mean > ends[0].mean and differ(*ends, 3))
    )
    return Finding(
        "merge_rate_high",
        NOTE if helps else WARNING,
        f"{share(last.mean)} of the accepted writes are merged into older entries; "
        f"above {share(MERGED)} is much.",
        "Where facts change (a person moves, a price rises) merges are updates, and "
        "this is as it should be; success rises with them here."
        if helps
        else "Different facts may melt into one entry, and the older ones are then not "
        "found. Where facts do change, merges are updates and harmless: look at some.",
        (last.seen(), *table.latest("duplicate_rate", "bank_size", "success")),
        (
            f"raise {field(record, 'memory.merge_threshold')}; 0.85 to 0.9 is usual "
            "for the static embedder",
            f"judge pairs before merging: {field(record, 'memory.judge')} lexical",
            "look at merged writes with experiments.trace",
        ),
    )


def duplicate_writes(record: Record) -> Finding | None:
    """The same is written again and again."""
    table = record.table
    last = table.late("duplicate_rate")
    if last is None or last.mean <= REPEATED or _writes_little(record):
        return None
    return Finding(
        "duplicate_writes",
        WARNING,
        f"{share(last.mean)} of the writes repeat what is in the memory already.",
        "They change nothing but cost tokens and a penalty. The policy does not see "
        "what it knows, or writes down again what it has just recalled.",
        (last.seen(), *table.latest("bank_size", "ops_per_turn/write", "success")),
        (
            f"make it cost more: {field(record, 'reward.duplicate')}",
            f"show titles of what is there: {field(record, 'context.summary_titles')}",
        ),
    )


def _writes_little(record: Record) -> bool:
    """Less than one write in a trajectory: a rate among them says little."""
    written = record.table.late("ops_per_turn/write")
    turns = record.table.late("turns")
    return None not in (written, turns) and written.mean * turns.mean < 1

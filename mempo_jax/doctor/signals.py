"""Whether groups say anything: the reward must tell the members of a group apart."""

from __future__ import annotations

from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Finding
from mempo_jax.doctor.naming import field, share
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import Window

ALL = 0.98  # share that counts as all: an odd group may differ by a penalty
NEARLY_ALL = 0.8  # of silent groups: on success near 0 that is no chance
MOST = 0.7  # silent groups waste more than two thirds of what is sampled
FAILED, SOLVED = 0.02, 0.95  # success below and above which tasks say little
LEARNING = 0.8  # below it, silent groups are not just tasks that are solved
ALL_EQUAL = 1e-9  # spread of a mean that is the same number in every step


def silent(record: Record) -> Window | None:
    """Share of the groups whose members all have the same task score, at the end.

    Older runs have it for the whole reward only.
    """
    for metric in ("no_outcome_groups", "degenerate_groups"):
        window = record.table.late(metric)
        if window is not None:
            return window
    return None


def _untaught(record: Record) -> Window | None:
    """Share of the groups that teach nothing: without the gate penalties teach."""
    if record.field("reward.outcome_gate") is False:
        return record.table.late("degenerate_groups")
    return silent(record)


def only_penalties(record: Record) -> Finding | None:
    """Task scores of a group are all equal; penalties alone make the difference."""
    table = record.table
    outcome = table.late("no_outcome_groups")
    equal = table.late("degenerate_groups")
    success = table.late("success")
    if outcome is None or equal is None or success is None:
        return None
    apart = outcome.mean - equal.mean  # groups told apart by something else alone
    if outcome.mean < NEARLY_ALL or apart < 0.5 or success.mean > SOLVED:
        return None
    gated = record.field("reward.outcome_gate") is not False
    costs = [table.late(f"reward_weighted/{name}") for name in _components(record)]
    worst = sorted((c for c in costs if c and c.mean < 0), key=lambda c: c.mean)
    return Finding(
        "only_penalties",
        WARNING,
        f"In {share(outcome.mean)} of the groups the task's score tells nobody apart, "
        "and penalties alone decide who did better.",
        "The policy then learns to avoid penalties, best of all by doing nothing, and "
        "nothing about the task. "
        + (
            "The outcome gate keeps these advantages small; it cannot make them right."
            if gated
            else "Nothing keeps these advantages small: the outcome gate is off."
        ),
        (outcome.seen(), equal.seen(), *(c.seen() for c in worst[:2])),
        (
            "mend what makes all score alike first (success near 0 or 1)",
            f"keep {field(record, 'reward.outcome_gate')} on"
            if gated
            else f"turn {field(record, 'reward.outcome_gate')} on",
            f"weaken {field(record, 'reward.malformed')}, "
            f"{field(record, 'reward.duplicate')} or "
            f"{field(record, 'reward.overflow')}",
        ),
        may_cause=("success_flat", "reward_flat_loss_falls"),
    )


def advantages_zero(record: Record) -> Finding | None:
    """No group is left to learn from at all."""
    table = record.table
    success = table.late("success")
    equal = _none_left(record)
    if equal is None or success is None:
        return None
    before = table.early("degenerate_groups")
    learnt = success.mean >= SOLVED and before is not None and before.mean < ALL
    return Finding(
        "advantages_zero",
        NOTE if learnt else PROBLEM,
        "All advantages are zero"
        + (": in every group all rewards are equal." if _equal(record) else "."),
        "The tasks are solved, and nothing is left to learn from them."
        if learnt
        else "An advantage is a reward less the mean of its group; without a "
        "difference the policy gets no gradient (but for the KL).",
        (equal.seen(), *record.table.latest("success", "abs_advantage", "empty_steps")),
        ("stop here, or make the tasks harder (config.env)",)
        if learnt
        else (
            "look at success: near 0 make the tasks easier, near 1 harder (config.env)",
            f"sample other tasks in their place: "
            f"{field(record, 'sampling.max_resample_rounds')}",
            f"raise {field(record, 'sampling.group_size')} or "
            f"{field(record, 'sampling.temperature')}",
        ),
        may_cause=("success_flat",),
    )


def _equal(record: Record) -> bool:
    window = record.table.late("degenerate_groups")
    return window is not None and window.mean >= ALL


def _none_left(record: Record) -> Window | None:
    """The figure that says that no advantage is left, by whichever it shows."""
    table = record.table
    if _equal(record):
        return table.late("degenerate_groups")
    for metric in ("group_abs_advantage", "abs_advantage", "reward_std_in_group"):
        window = table.late(metric)
        if window is not None and window.mean <= ALL_EQUAL:
            return window
    return None


def few_groups_teach(record: Record) -> Finding | None:
    """Most of what is sampled is thrown away."""
    success, quiet = record.table.late("success"), _untaught(record)
    if quiet is None or success is None or not MOST <= quiet.mean < ALL:
        return None
    if not FAILED < success.mean < LEARNING:
        return None
    return Finding(
        "few_groups_teach",
        WARNING,
        f"{share(quiet.mean)} of the groups teach nothing: their members all score the "
        "same.",
        "What is sampled for them is lost, and each update rests on few tasks, so it "
        "is noisy.",
        (quiet.seen(), *record.table.latest("success", "empty_steps", "edit_distance")),
        (
            f"raise {field(record, 'sampling.group_size')}: rare successes then show "
            "up in a group",
            "sample other tasks in their place: "
            f"{field(record, 'sampling.max_resample_rounds')}",
            "choose tasks (config.env) that succeed about half the time",
        ),
    )


def credit_reaches_no_token(record: Record) -> Finding | None:
    """Groups have advantages, and next to none of it arrives at a token."""
    table = record.table
    group = table.late("group_abs_advantage")
    token = table.late("abs_advantage")
    if group is None or token is None:
        return None
    if group.mean < 0.05 or token.mean > 0.02 * group.mean:
        return None
    return Finding(
        "credit_reaches_no_token",
        PROBLEM,
        "Groups have advantages, but the credit lays next to nothing of them on "
        "tokens.",
        "The weights of config.credit are zero or tiny where the policy acted, as when "
        "ops_only meets trajectories without a memory op.",
        (group.seen(), token.seen(), *record.table.latest("weighted_token_share")),
        (
            f"change {field(record, 'credit.modes')}; uniform lays it on all tokens",
            f"raise {field(record, 'credit.other_weight')}",
        ),
        may_cause=("advantages_zero", "success_flat", "policy_hardly_moves"),
    )


def _components(record: Record) -> list[str]:
    prefix = "reward_weighted/"
    names = [name for name in record.table.columns if name.startswith(prefix)]
    return [name.removeprefix(prefix) for name in names if not name.endswith("/task")]

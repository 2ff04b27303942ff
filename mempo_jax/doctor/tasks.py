"""Why groups say nothing: tasks, their rewards, and what is tried on them."""

from __future__ import annotations

import numpy as np

from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Finding, Seen
from mempo_jax.doctor.naming import field, number, share
from mempo_jax.doctor.record import Record, sampled_success
from mempo_jax.doctor.signals import (
    ALL,
    ALL_EQUAL,
    FAILED,
    LEARNING,
    MOST,
    NEARLY_ALL,
    SOLVED,
    silent,
)

ALIKE = 0.05  # of the actions differ between members: nothing to choose from
IDENTICAL = 0.01  # even a policy that has converged differs in more


def constant_reward(record: Record) -> Finding | None:
    """The reward gives every trajectory the same number."""
    table = record.table
    whole = table.whole("success")
    if whole is None or np.ptp(whole.values) > ALL_EQUAL:
        return None
    own = record.field("reward.function")
    if whole.mean <= 0 or whole.mean >= 1:
        if not own:
            return None  # tasks that are too hard, or too easy
        distance = table.late("edit_distance")
        if distance is None or distance.mean <= ALIKE:
            return None
    cause = "a reward function that does not look at what was answered"
    return Finding(
        "constant_reward",
        PROBLEM,
        f"Every trajectory of every step got the same task reward, "
        f"{number(whole.mean)}.",
        f"A mean over many trajectories that never changes comes from {cause}, or from "
        "a task that scores all answers alike. A group of equal rewards teaches "
        "nothing.",
        (whole.seen("the same in every step"), *record.table.latest("edit_distance")),
        (
            f"call {field(record, 'reward.function')} by hand on two trajectories of "
            "which one is right: it must return two numbers",
            "look at the answers in trajectories/, or with experiments.trace",
        ),
        may_cause=(
            *("advantages_zero", "few_groups_teach", "success_flat"),
            "reward_flat_loss_falls",
        ),
    )


def low_diversity(record: Record) -> Finding | None:
    """Members of a group do the same, so their rewards cannot differ."""
    table = record.table
    distance, quiet = table.late("edit_distance"), silent(record)
    success = table.late("success")
    if distance is None or success is None or distance.mean > ALIKE:
        return None
    wasted = quiet is None or quiet.mean >= MOST
    same = distance.mean <= IDENTICAL and success.mean < SOLVED
    if not same and (success.mean > LEARNING or not wasted):
        return None
    before = table.early("edit_distance")
    lost = before is not None and before.mean > 2 * ALIKE
    if lost and success.mean <= FAILED:
        return None  # there was nothing right to become sure of
    why = (
        "It was lost in training: the policy became sure of itself too early."
        if lost
        else "It was so from the beginning: sampling leaves no choice."
    )
    return Finding(
        "low_diversity",
        PROBLEM if quiet is None or quiet.mean >= ALL else WARNING,
        f"The trajectories of a group are nearly the same: {share(distance.mean)} of "
        "their actions differ.",
        f"{why} Groups learn from members that do different things with different "
        "success.",
        (
            *((before.seen("at the beginning"),) if lost else ()),
            distance.seen(),
            *((quiet.seen(),) if quiet else ()),
            *record.table.latest("entropy", "success"),
        ),
        (
            f"raise {field(record, 'sampling.temperature')}; 0.8 to 1.0 is usual",
            "sample from all tokens: config.sampling.top_p 1.0 and "
            "config.sampling.top_k 0",
            "give the members different wordings: "
            f"{field(record, 'context.instruction_variants')}",
            *(
                (
                    f"lower {field(record, 'train.learning_rate')}, or raise "
                    f"{field(record, 'objective.kl_coef')}",
                )
                if lost
                else ()
            ),
        ),
        may_cause=("advantages_zero", "few_groups_teach", "success_flat"),
    )


def tasks_too_hard(record: Record) -> Finding | None:
    """Nobody in nearly any group solves anything."""
    success, quiet = record.table.late("success"), silent(record)
    if success is None or quiet is None:
        return None
    if success.mean > FAILED or quiet.mean < NEARLY_ALL:
        return None
    before = record.table.early("success")
    known = sampled_success(record.cold_start)
    if max(before.values.max(), known[0] if known else 0.0) > 5 * FAILED:
        return None  # it could do them once: see late_collapse
    start = (Seen("success of the cold start", known[0]),) if known else ()
    return Finding(
        "tasks_too_hard",
        PROBLEM,
        f"The policy solves next to nothing: success {number(success.mean)}.",
        "Outcomes are the only teacher. Where all members of a group fail there is no "
        "difference to learn from, however long it runs.",
        (success.seen(), quiet.seen(), *start),
        (
            "make the tasks easier first (config.env), so that one in ten "
            "trajectories succeeds",
            f"teach the form for longer: {field(record, 'train.cold_start_steps')}, "
            f"{field(record, 'train.demonstrations')}",
            f"sample more: {field(record, 'sampling.group_size')}, "
            f"{field(record, 'sampling.max_resample_rounds')}",
            f"give partial credit: {field(record, 'reward.function')}",
        ),
        may_cause=(
            *("advantages_zero", "only_penalties", "few_groups_teach"),
            *("success_flat", "reward_flat_loss_falls", "no_better_than_cold_start"),
        ),
    )


def tasks_too_easy(record: Record) -> Finding | None:
    """Everybody solves everything, from the first step on."""
    first, last = record.table.ends("success")
    quiet = silent(record)
    if quiet is None or first is None or last is None or quiet.mean < MOST:
        return None
    if min(first.mean, last.mean) < SOLVED:
        return None
    return Finding(
        "tasks_too_easy",
        WARNING if quiet.mean >= NEARLY_ALL else NOTE,
        f"The tasks were solved from the beginning: success {number(first.mean)} in "
        "the first steps.",
        "Where all members of a group succeed there is no difference to learn from.",
        (first.seen(), last.seen(), quiet.seen()),
        (
            "make the tasks harder (config.env), or the memory smaller: "
            f"{field(record, 'memory.capacity')}",
            "or be content: there is nothing left to learn here",
        ),
        may_cause=("advantages_zero",),
    )

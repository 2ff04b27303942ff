"""Runs that get nowhere: nothing is lost, and nothing is won."""

from __future__ import annotations

import math

from mempo_jax.doctor.findings import NOTE, WARNING, Finding, Seen
from mempo_jax.doctor.naming import field, number
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import ENOUGH, differ

PATIENCE = 60  # steps after which a run should have begun to learn
GAIN = 0.1  # success that no noise may hide before a run is called flat
DONE = 0.9  # success above which there is little left to gain
STILL = 1e-3  # nats a token from the reference: as good as never moved
SURE = 3  # standard errors


def learning_rate_ended(record: Record) -> Finding | None:
    """The cosine of the learning rate reached 0 before the run did."""
    decay, steps = record.number("train.decay_steps"), record.number("train.steps")
    if not decay or not steps or not len(record.table):
        return None
    idle = int(record.table.steps[-1]) + 1 - decay
    if idle <= 0.1 * decay:
        return None
    return Finding(
        "learning_rate_ended",
        WARNING,
        f"From step {number(decay)} on the learning rate is 0: {number(idle)} steps "
        "changed nothing.",
        "The cosine ends at config.train.decay_steps, the run later.",
        (Seen("config.train.decay_steps", decay), Seen("config.train.steps", steps)),
        (f"raise {field(record, 'train.decay_steps')} above train.steps, or 0",),
        may_cause=("policy_hardly_moves", "success_flat"),
    )


def bonus_ended(record: Record) -> Finding | None:
    """Credit bonuses faded before there was much to gain without them."""
    decay, last = record.number("credit.bonus_decay_steps"), len(record.table) - 1
    success = record.table.late("success")
    if not decay or last < 0 or success is None or success.mean >= DONE:
        return None
    idle = int(record.table.steps[last]) + 1 - decay
    if idle < ENOUGH:
        return None
    return Finding(
        "bonus_ended",
        NOTE,
        f"From step {number(decay)} on no memory earns a bonus: {number(idle)} steps "
        f"with the group's advantage alone, at success {number(success.mean)}.",
        "Bonuses find out what is worth keeping; they should fade once it is found.",
        (Seen("config.credit.bonus_decay_steps", decay), success.seen()),
        (f"raise {field(record, 'credit.bonus_decay_steps')}, or 0",),
        may_cause=("success_flat",),
    )


def policy_hardly_moves(record: Record) -> Finding | None:
    """Updates are made, and the policy stays what it was."""
    table = record.table
    kl = table.late("kl_first_update") or table.late("kl")
    made = table.measured("grad_norm")
    if kl is None or len(made) < ENOUGH or kl.median > STILL:
        return None
    success = table.late("success")
    if success is None or success.mean >= DONE:
        return None
    seen = (kl.seen(median=True), *table.latest("grad_norm", "abs_advantage"))
    rate = record.number("train.learning_rate")
    return Finding(
        "policy_hardly_moves",
        WARNING,
        f"After {len(made)} steps with updates the policy is where it began: KL "
        f"{kl.median:.1e}.",
        "Updates are too small to change what it does, or something holds it: a "
        "learning rate that is tiny or still warming up, or a KL that is too strong.",
        (*seen, *((Seen("config.train.learning_rate", rate),) if rate else ())),
        (
            f"raise {field(record, 'train.learning_rate')}, threefold first",
            f"look at {field(record, 'train.warmup_steps')} and "
            f"{field(record, 'train.decay_steps')}",
            f"lower {field(record, 'objective.kl_coef')}",
        ),
        may_cause=("success_flat", "no_better_than_cold_start"),
    )


def reward_flat_loss_falls(record: Record) -> Finding | None:
    """The loss says that all goes well, the reward does not."""
    table = record.table
    if len(table.measured("loss")) < ENOUGH or not _is_flat(record, "reward"):
        return None
    first, last = table.third("loss", 0), table.third("loss", 2)
    if last.mean >= first.mean or not differ(first, last, SURE):
        return None
    if first.mean - last.mean < 0.2 * abs(first.mean):
        return None
    before, after = _kl_terms(record)
    by_kl = before is not None and before - after > 0.5 * (first.mean - last.mean)
    kl = (
        (Seen("kl_coef x kl, at first", before), Seen("kl_coef x kl, now", after))
        if before is not None
        else ()
    )
    reward = [table.third("reward", which).seen() for which in (0, 2)]
    return Finding(
        "reward_flat_loss_falls",
        WARNING if len(table.measured("loss")) >= PATIENCE else NOTE,
        f"The loss fell from {number(first.mean)} to {number(last.mean)} while the "
        "reward did not rise.",
        "What fell is the KL term: the policy goes back to the reference, and the "
        "reward has no say against it."
        if by_kl
        else "Advantages of a group add up to 0, so this loss measures no progress: it "
        "is near 0 on-policy however well a run does. It falls where updates fit the "
        "samples of their own step, and nothing that lasts.",
        (*reward, first.seen(), last.seen(), *kl),
        (
            *((f"lower {field(record, 'objective.kl_coef')}",) if by_kl else ()),
            "judge by success and reward, never by the loss",
            f"more tasks a step: {field(record, 'sampling.tasks_per_step')}, and fewer "
            f"updates on them: {field(record, 'train.minibatches')}",
            f"lay credit where decisions are: {field(record, 'credit.modes')}",
        ),
        may_cause=("success_flat",),
    )


def success_flat(record: Record) -> Finding | None:
    """Many steps, and success is where it was."""
    table = record.table
    steps = len(table.measured("success"))
    if steps < ENOUGH or not _is_flat(record, "success"):
        return None
    first, last = table.third("success", 0), table.third("success", 2)
    moved = [table.third("kl", which) for which in (0, 2)]
    drift = None not in moved and moved[1].median > 0.05
    return Finding(
        "success_flat",
        WARNING if steps >= PATIENCE else NOTE,
        f"In {steps} steps success has not risen: {number(first.mean)} in the first "
        f"third, {number(last.mean)} in the last.",
        "The policy does change (its KL grows), but not towards the task: the "
        "advantages are mostly noise, or are laid on the wrong tokens."
        if drift
        else "Learning may yet begin late: with sparse outcomes it often does after "
        "some ten steps. If it does not, too little signal reaches the decisions.",
        (
            first.seen(),
            last.seen(),
            *(w.seen(median=True) for w in moved if w),
            *table.latest("degenerate_groups", "write_precision", "grad_norm"),
        ),
        (
            "lay credit on the memory operations that were used: "
            f"{field(record, 'credit.modes')} with attribution or counterfactual",
            f"more groups and larger ones: {field(record, 'sampling.tasks_per_step')}, "
            f"{field(record, 'sampling.group_size')}",
            f"change {field(record, 'train.learning_rate')}",
        ),
        may_cause=("no_better_than_cold_start",),
    )


def _is_flat(record: Record, metric: str) -> bool:
    """No rise beyond noise, and none worth having that noise could hide."""
    success = record.table.third("success", 2)
    first, last = (record.table.third(metric, which) for which in (0, 2))
    if first is None or last is None or (success and success.mean >= DONE):
        return False
    error = math.hypot(first.error, last.error)
    gain = last.mean - first.mean
    return gain <= 2 * error and gain + 2 * error < GAIN


def _kl_terms(record: Record) -> tuple[float, float] | tuple[None, None]:
    ends = [
        (record.table.third("kl", w), record.table.third("kl_coef", w)) for w in (0, 2)
    ]
    if any(None in end for end in ends):
        return None, None
    before, after = [kl.mean * coefficient.mean for kl, coefficient in ends]
    return before, after

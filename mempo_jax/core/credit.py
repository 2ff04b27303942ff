"""Credit assignment: from the table of memory ops to a weight and a bonus per token.

    token advantage = weight x group advantage + bonus

A credit mode reads the op table and what happened, and gives each op a weight and a
bonus. Several modes combine: their weights multiply, their bonuses add. A turn that
ends without any op is a decision too: its row has kind SKIP, counts as a memory op for
the weights, and never earns a bonus. Shapes use the letters of ``mempo_jax.types``.

The file goes from the parts to the whole: what a mode is, the modes one after another,
``MODES`` by name, ``CreditConfig``, ``assign`` (how modes combine) and ``to_tokens``
(how the credit of ops reaches their tokens). A new mode is a function here and an entry
in ``MODES``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from mempo_jax.core.advantages import group_normalise
from mempo_jax.core.masking import as_float, keep
from mempo_jax.types import MEMORY_KINDS, Array, Evidence, Kind, OpTable, Outcome

# Each eps is added to a standard deviation in the unit of what is normalised, so that
# differences far below it stay small instead of growing to full-size bonuses.
REWARD_EPS = 1e-4  # of reward: the default of ``group_normalise``
LOG_PROB_EPS = 0.5  # nats: below it the answers of one policy differ by noise
PROBABILITY_EPS = 0.05  # of probability: smaller gains are noise of the reader
DROP_EPS = 0.5  # nats: smaller drops are noise of the reader

# Ops whose text is probed as a memory on its own; REWRITE only occurs under "rolling".
TEXT_KINDS = (Kind.WRITE, Kind.REWRITE)
# Ops that a memory passes through from its making to the context of an answer.
ROUTED = (Kind.WRITE, Kind.MERGE, Kind.RECALL)
ATTRIBUTION_FORMS = ("bonus", "weight")
ATTRIBUTION_PROBES = ("turn_reward", "answer_log_prob")


# What a mode reads and gives ---------------------------------------------------------


class OpCredit(NamedTuple):
    """The credit of each op.

    Attributes:
      weight: f32 [N, K], factor of the group advantage; 1 in padding.
      bonus: f32 [N, K], added to the weighted advantage; 0 in padding.
    """

    weight: Array
    bonus: Array


class TrajectoryFacts(NamedTuple):
    """What a mode may read of the trajectories beside their op table.

    Attributes:
      turn_reward: f32 [N, M], task reward earned by each turn.
      turn_count: int32 [N].
      group_valid: bool [G, S].
      evidence: results of probes, 0 where nothing was probed.
    """

    turn_reward: Array
    turn_count: Array
    group_valid: Array
    evidence: Evidence


class CreditMode(NamedTuple):
    """One way of assigning credit.

    Attributes:
      ops: (OpTable, TrajectoryFacts, settings) -> OpCredit [N, K].
      non_op_weight: (turn_id [B, T], turn_count [B], settings) -> weight [B, T] of
        action tokens that belong to no op.
      required_probes: settings -> what has to be probed, in the words of
        ``types.NEEDS``.
    """

    ops: Callable[[OpTable, TrajectoryFacts, CreditConfig], OpCredit]
    non_op_weight: Callable[[Array, Array, CreditConfig], Array]
    required_probes: Callable[[CreditConfig], tuple[str, ...]]


def unit_weights(turn_id: Array, turn_count: Array, settings: CreditConfig) -> Array:
    """``CreditMode.non_op_weight`` of modes that leave tokens outside of ops alone.

    Args:
      turn_id: int [B, T].
      turn_count: int [B]; not read.
      settings: not read.

    Returns:
      Ones [B, T].
    """
    return jnp.ones(turn_id.shape)


def no_probes(settings: CreditConfig) -> tuple[str, ...]:
    """``CreditMode.required_probes`` of modes that only read what happened.

    Args:
      settings: not read.
    """
    return ()


def is_memory_op(kind: Array) -> Array:
    """Tells which kinds are decisions about memory.

    Args:
      kind: int, any shape, values of ``types.Kind``.

    Returns:
      bool, the shape of ``kind``.
    """
    return jnp.isin(jnp.asarray(kind), jnp.array(MEMORY_KINDS))


def stored_writes(ops: OpTable) -> Array:
    """Tells which ops are writes that made an entry or were merged into one.

    Args:
      ops: OpTable [N, K].

    Returns:
      bool [N, K].
    """
    outcome = jnp.asarray(ops.outcome)
    stored = (outcome == Outcome.NEW) | (outcome == Outcome.MERGED)
    return stored & (jnp.asarray(ops.kind) == Kind.WRITE)


def normalise_in_group(
    value: Array, counted: Array, facts: TrajectoryFacts, eps: float
) -> Array:
    """Z-score of each op's value among the counted ops of its group.

    (value - mean) / (population std + eps), over the ops of the group's valid
    trajectories; 0 for all if they are equal. ``objective.advantage_*`` play no part.

    Args:
      value: f32 [N, K], such as a contribution or a probed gain.
      counted: bool [N, K], the ops that are compared with each other.
      facts: gives which trajectories are valid.
      eps: in units of value; differences far below it stay small.

    Returns:
      f32 [N, K], 0 where not counted.
    """
    groups = facts.group_valid.shape[0]
    counted = counted & jnp.asarray(facts.group_valid, bool).reshape(-1, 1)
    # Trajectories of a group are contiguous, so one row holds all ops of one group.
    flat = group_normalise(
        value.reshape(groups, -1), counted.reshape(groups, -1), eps=eps
    )
    return keep(flat.reshape(value.shape), counted)


# Modes that only weigh the group advantage -------------------------------------------


def uniform(ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig) -> OpCredit:
    """Every op weighs 1: plain GRPO.

    Args:
      ops: OpTable [N, K].
      facts, settings: not read.
    """
    return _weight_only(jnp.ones(jnp.shape(ops.kind)))


def ops_only(ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig) -> OpCredit:
    """Memory ops (skipped and malformed ones too) weigh 1, others ``other_weight``.

    Args:
      ops: OpTable [N, K].
      facts: not read.
      settings: gives ``other_weight``.
    """
    return _weight_only(jnp.where(is_memory_op(ops.kind), 1.0, settings.other_weight))


def discounted(
    ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig
) -> OpCredit:
    """An op at turn t of T weighs gamma^(T - 1 - t).

    Args:
      ops: OpTable [N, K].
      facts: gives T of each trajectory.
      settings: gives ``gamma``.
    """
    return _weight_only(_discount(ops.turn, facts.turn_count, settings))


def _weight_only(weight: Array) -> OpCredit:
    return OpCredit(weight, jnp.zeros(weight.shape))


def _discount(turn: Array, turn_count: Array, settings: CreditConfig) -> Array:
    turns_left = jnp.asarray(turn_count)[:, None] - 1 - jnp.asarray(turn)
    # Filler trajectories have 0 turns: a negative power would exceed 1.
    return as_float(settings.gamma) ** jnp.maximum(turns_left, 0)


def _other_weight(turn_id: Array, turn_count: Array, settings: CreditConfig) -> Array:
    return jnp.full(turn_id.shape, settings.other_weight)


# Attribution: a write is credited with the reward that came while it was in use ------


def attribution(
    ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig
) -> OpCredit:
    """Writes earn, or pay, by the change of reward over their interval of use.

    contribution = reward of the turns after the write, up to its last use in context; 0
    for a write that was never used or stored nothing. With ``attribution_probe``
    "answer_log_prob" the reward of a turn is what it added to the log-probability of
    the gold answer, so that the contribution is potential(last use) - potential(write);
    see ``types.Evidence.turn_potential``.

    As a "bonus", contributions are normalised over all writes of the group's valid
    trajectories (population std; equal ones give 0), so that a write that was never
    used pays if another one was useful; the bonus goes to the write's tokens. As a
    "weight" on the group advantage, a write that stored something weighs |contribution|
    over the largest of its group, at least ``attribution_floor``; all else weighs 1.

    Known bias: entries recalled together earn the same, whichever held the answer, and
    a long interval earns rewards of other questions too. A recall of few entries
    (``k="1"``) keeps the first small. Entries that never came into use earn nothing,
    however useful they would have been.

    Args:
      ops: OpTable [N, K].
      facts: gives rewards, turn counts, validity and, if probed, turn potentials.
      settings: gives ``attribution_*``.
    """
    by_reward = settings.attribution_probe == "turn_reward"
    reward = facts.turn_reward
    if not by_reward:
        potential = jnp.asarray(facts.evidence.turn_potential)
        reward = jnp.diff(potential, axis=1, prepend=0)
    contribution = contributions(ops, reward, facts.turn_count)
    kind = jnp.asarray(ops.kind)
    if settings.attribution_form == "weight":
        weight = _share_of_largest(contribution, ops, facts)
        weight = jnp.maximum(weight, settings.attribution_floor)
        # The floor is for writes that stored something: all other ops keep weight 1.
        weight = jnp.where(stored_writes(ops), weight, 1.0)
        return OpCredit(weight, jnp.zeros(kind.shape))
    eps = REWARD_EPS if by_reward else LOG_PROB_EPS
    bonus = normalise_in_group(contribution, kind == Kind.WRITE, facts, eps)
    return OpCredit(jnp.ones(kind.shape), settings.attribution_weight * bonus)


def contributions(ops: OpTable, turn_reward: Array, turn_count: Array) -> Array:
    """Sums the reward of the turns in (write, last use] of each stored write.

    Args:
      ops: OpTable [N, K].
      turn_reward: f32 [N, M]; may hold anything from ``turn_count`` on.
      turn_count: int [N].

    Returns:
      f32 [N, K], 0 for what stored nothing.
    """
    turn_reward = as_float(turn_reward)
    turn = jnp.arange(turn_reward.shape[1])
    inside = (turn > jnp.asarray(ops.turn)[..., None]) & (
        turn <= jnp.asarray(ops.last_use)[..., None]
    )
    inside &= turn < jnp.asarray(turn_count)[:, None, None]
    inside &= stored_writes(ops)[..., None]
    # A mask [N, K, M], since the intervals have different lengths.
    return jnp.sum(keep(turn_reward[:, None, :], inside), axis=-1)


def _share_of_largest(
    contribution: Array, ops: OpTable, facts: TrajectoryFacts
) -> Array:
    """|contribution| over the largest of the group's writes, in [0, 1]; [N, K]."""
    groups = facts.group_valid.shape[0]
    valid = jnp.asarray(facts.group_valid, bool).reshape(-1, 1)
    size = keep(jnp.abs(contribution), stored_writes(ops) & valid).reshape(groups, -1)
    largest = jnp.max(size, axis=-1, keepdims=True)
    # If no write contributed, all sizes are 0: dividing by 1 keeps their share at 0.
    share = size / jnp.where(largest > 0, largest, 1)
    return share.reshape(contribution.shape)


def _attribution_probes(settings: CreditConfig) -> tuple[str, ...]:
    probed = settings.attribution_probe == "answer_log_prob"
    return ("turn_potential",) if probed else ()


# Answer probability: what a memory on its own does for the gold answer ---------------


def answer_probability(
    ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig
) -> OpCredit:
    """Writes earn by how much more probable they alone make the gold answer.

    gain = P(answer | question, this text as the only memory) - P(answer | question, no
    memory), P being exp of the mean log-probability of the answer's tokens under the
    policy that sampled; summed over the questions that came after the write, as the
    task's score is. It is normalised over all writes of the group's valid trajectories
    and added on the write's tokens, ``answer_probability_weight`` times.

    Source: MemPO (arXiv:2603.00680). There the memory is one block that is rewritten in
    every step, and P(answer | block) is set against the context before that block. The
    context rule "rolling" does the same here: a rewriting (REWRITE) is a write. The
    bank holds many memories: each is read alone and compared with no memory at all, so
    a fact that two memories hold counts for both. Memories are read at the turn in
    which the question was answered, since before that it was not asked.

    Known bias: says what a memory would be worth if it were found. Whether it was still
    stored and was recalled plays no part, and facts that only help together earn
    little.

    Args:
      ops: OpTable [N, K].
      facts: gives ``evidence.answer_gain`` and validity.
      settings: gives ``answer_probability_weight``.
    """
    kind = jnp.asarray(ops.kind)
    gain = jnp.asarray(facts.evidence.answer_gain)
    bonus = normalise_in_group(
        gain, jnp.isin(kind, jnp.array(TEXT_KINDS)), facts, PROBABILITY_EPS
    )
    return OpCredit(jnp.ones(kind.shape), settings.answer_probability_weight * bonus)


# Counterfactual: what the answer would have lost without a memory --------------------


def counterfactual(
    ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig
) -> OpCredit:
    """Ops earn by the drop of the gold answer's log-probability without their memory.

    The drop comes from leaving one entry out of the context in which a question was
    answered, all else being equal; it is routed to the write that made the entry, to
    the merges it went through and to the recall that showed it. Each kind of op is
    normalised on its own over the group's valid trajectories, so that writes are
    compared with writes; the bonus is ``counterfactual_weight`` times that.

    An entry that the cap had pushed out could not be in context. With
    ``counterfactual_evictions`` it is shown in place of what was recalled; what the
    answer gains is charged in equal shares to the younger writes that then filled the
    bank. So junk pays for what it drove out, and the lost write itself earns nothing.

    A probability counts as at least ``rollout.probes.LEAST``: between two answers that
    are both unknown the logarithm varies by nats and means nothing.

    Known bias: an entry that was stored but not recalled earns nothing, however needed;
    what a lost one would have added assumes that it would have been recalled. Entries
    are left out one at a time: if two hold the same, only those judged equal are left
    out together, and share.

    Args:
      ops: OpTable [N, K].
      facts: gives ``evidence.leave_out`` and validity.
      settings: gives ``counterfactual_weight``.
    """
    kind = jnp.asarray(ops.kind)
    drop = jnp.asarray(facts.evidence.leave_out)
    # Each op has one kind and is 0 in the other terms, so the sum adds nothing up.
    bonus = sum(
        normalise_in_group(drop, kind == routed, facts, DROP_EPS) for routed in ROUTED
    )
    return OpCredit(jnp.ones(kind.shape), settings.counterfactual_weight * bonus)


def _counterfactual_probes(settings: CreditConfig) -> tuple[str, ...]:
    evictions = ("evictions",) if settings.counterfactual_evictions else ()
    return ("leave_out", *evictions)


# All modes by name, and their constants ----------------------------------------------

MODES: dict[str, CreditMode] = {
    "uniform": CreditMode(uniform, unit_weights, no_probes),
    "ops_only": CreditMode(ops_only, _other_weight, no_probes),
    "discounted": CreditMode(discounted, _discount, no_probes),
    "attribution": CreditMode(attribution, unit_weights, _attribution_probes),
    "answer_probability": CreditMode(
        answer_probability, unit_weights, lambda settings: ("answer_gain",)
    ),
    "counterfactual": CreditMode(counterfactual, unit_weights, _counterfactual_probes),
}


@dataclasses.dataclass(frozen=True)
class CreditConfig:
    """Which modes are on, and their constants.

    Attributes:
      modes: names in ``MODES``, each once.
      gamma: in (0, 1], discount per turn, for ``discounted``.
      other_weight: in [0, 1], what ``ops_only`` leaves to tokens outside memory ops.
      attribution_form: "bonus" or "weight".
      attribution_probe: "turn_reward" or "answer_log_prob", the measure of change over
        an interval.
      attribution_floor: in [0, 1], least weight of form "weight".
      attribution_weight: scale of the bonus; form "weight" has none and expects 1.
      answer_probability_weight: scale of that mode's bonus.
      counterfactual_weight: scale of that mode's bonus.
      counterfactual_evictions: charges writes with what they crowded out.
      bonus_decay_steps: all bonuses fall linearly to 0 at this step; 0: no decay.
    """

    modes: tuple[str, ...]
    gamma: float
    other_weight: float
    attribution_form: str
    attribution_probe: str
    attribution_floor: float
    attribution_weight: float
    answer_probability_weight: float
    counterfactual_weight: float
    counterfactual_evictions: bool
    bonus_decay_steps: int

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            if not ok:
                got = getattr(self, field)
                raise ValueError(
                    f"config.credit.{field}: expected {expected}, got {got!r}"
                )

        known = set(self.modes) <= set(MODES)
        if not known or not self.modes or len(set(self.modes)) < len(self.modes):
            raise ValueError(
                f"config.credit.modes: expected one or more of {', '.join(MODES)}, "
                f"each once; got {list(self.modes)}"
            )
        check(0 < self.gamma <= 1, "gamma", "in (0, 1]")
        for field in ("other_weight", "attribution_floor"):
            check(0 <= getattr(self, field) <= 1, field, "0 to 1")
        for field in (
            "attribution_weight",
            "answer_probability_weight",
            "counterfactual_weight",
        ):
            ok = 0 <= getattr(self, field) < float("inf")
            check(ok, field, "at least 0 and finite")
        check(self.bonus_decay_steps >= 0, "bonus_decay_steps", "at least 0")
        forms, probes = ATTRIBUTION_FORMS, ATTRIBUTION_PROBES
        check(self.attribution_form in forms, "attribution_form", f"one of {forms}")
        check(self.attribution_probe in probes, "attribution_probe", f"one of {probes}")
        ok = self.attribution_form == "bonus" or self.attribution_weight == 1
        expected = "1 with attribution_form 'weight', which has no bonus to scale"
        check(ok, "attribution_weight", expected)

    @property
    def required_probes(self) -> frozenset[str]:
        """What the modes need probed, in the words of ``types.NEEDS``."""
        return frozenset().union(
            *(MODES[mode].required_probes(self) for mode in self.modes)
        )


# How modes combine, and how their credit reaches tokens ------------------------------


def assign(
    ops: OpTable,
    turn_reward: Array,
    turn_count: Array,
    group_valid: Array,
    settings: CreditConfig,
    evidence: Evidence | None = None,
) -> OpCredit:
    """Combines ``settings.modes`` to the credit of every op.

    A malformed or failed op, or a write that repeats, keeps its weight but never gets a
    positive bonus: it did nothing, so being better than a harmful write is no merit.

    Args:
      ops: OpTable [N, K], N = G * S, groups contiguous.
      turn_reward: f32 [N, M], task reward earned by each turn.
      turn_count: int [N].
      group_valid: bool [G, S]; an invalid trajectory gets no bonus, and its ops are not
        compared with others.
      settings: modes and their constants.
      evidence: results of probes; None if no listed mode reads any.

    Returns:
      OpCredit [N, K].

    Raises:
      ValueError: group_valid does not have one flag per trajectory.
    """
    if jnp.size(group_valid) != jnp.shape(ops.kind)[0]:
        raise ValueError(
            f"group_valid {jnp.shape(group_valid)} must have one flag for each of the "
            f"{jnp.shape(ops.kind)[0]} trajectories of the op table"
        )
    kind = jnp.asarray(ops.kind)
    if evidence is None:
        zeros = jnp.zeros(kind.shape)
        evidence = Evidence(zeros, zeros, jnp.zeros(jnp.shape(turn_reward)))
    turn_count, group_valid = jnp.asarray(turn_count), jnp.asarray(group_valid)
    facts = TrajectoryFacts(turn_reward, turn_count, group_valid, evidence)
    weight, bonus = jnp.ones(kind.shape), jnp.zeros(kind.shape)
    for mode in settings.modes:
        credit = MODES[mode].ops(ops, facts, settings)
        weight, bonus = weight * credit.weight, bonus + credit.bonus
    outcome = jnp.asarray(ops.outcome)
    # Ops that changed nothing in memory: they may pay, but never earn.
    failed = (kind == Kind.MALFORMED) | (outcome == Outcome.ERROR)
    failed |= outcome == Outcome.DUPLICATE
    bonus = jnp.where(failed, jnp.minimum(bonus, 0), bonus)
    # Padding is neutral, whatever the modes computed there.
    padding = kind == Kind.NONE
    return OpCredit(keep(weight, ~padding, 1.0), keep(bonus, ~padding))


def bonus_scale(step: Array, *, decay_steps: int) -> Array:
    """Linear decay of all bonuses: 1 at step 0, 0 from ``decay_steps`` on.

    A bonus is normalised over the ops of its kind, so a write that is right but was not
    of use this time gets a negative one beside those that were. That helps the policy
    to find out what to write, and is a bias once it has found it.

    Args:
      step: scalar, the training step.
      decay_steps: length of the decay; 0 gives 1 throughout.

    Returns:
      A scalar in [0, 1].
    """
    if decay_steps <= 0:
        return as_float(1.0)
    return 1.0 - jnp.clip(as_float(step) / float(decay_steps), 0.0, 1.0)


def to_tokens(
    credit: OpCredit,
    ops: OpTable,
    op_id: Array,
    turn_id: Array,
    action_mask: Array,
    trajectory_index: Array,
    turn_count: Array,
    settings: CreditConfig,
) -> tuple[Array, Array]:
    """Lays the credit of ops on the tokens that spelled them.

    Args:
      credit: OpCredit [N, K] from ``assign``.
      ops: OpTable [N, K].
      op_id: int [B, T], row of the trajectory's table, -1 for tokens of no op.
      turn_id: int [B, T].
      action_mask: bool [B, T].
      trajectory_index: int [B].
      turn_count: int [N].
      settings: its modes weigh the tokens of no op.

    Returns:
      weight and bonus, f32 [B, T]; both 0 where not an action.
    """
    op_id, action_mask = jnp.asarray(op_id), jnp.asarray(action_mask, bool)
    row = jnp.asarray(trajectory_index)[:, None]
    # -1 would read the last op; what is read for tokens of no op is replaced below.
    column = jnp.clip(op_id, 0, jnp.shape(ops.kind)[1] - 1)
    turns = jnp.asarray(turn_count)[jnp.asarray(trajectory_index)]
    non_op_weight = jnp.ones(op_id.shape)
    for mode in settings.modes:
        non_op_weight = non_op_weight * MODES[mode].non_op_weight(
            jnp.asarray(turn_id), turns, settings
        )
    in_op = op_id >= 0
    # A token spells an op or it does not: one of the two weights holds.
    weight = jnp.where(in_op, credit.weight[row, column], non_op_weight)
    bonus = keep(credit.bonus[row, column], in_op)
    return keep(weight, action_mask), keep(bonus, action_mask)

"""Credit assignment: from the table of memory ops to a weight and a bonus per token.

    token advantage = weight x group advantage + bonus

Modes are listed by name and combine: weights multiply, bonuses add. A turn that ends
without any op is a decision too: its row has kind SKIP, counts as a memory op for the
weights, and never earns a bonus. Letters as in ``mempo_jax.types``.

What a credit mode is: facts in, a weight and a bonus for each op out.

Answer probability: what a memory alone does for the gold answer.

Attribution: a write is worth the reward that came while it was in use.

Counterfactual: what the answer would have lost without a memory.

Modes that only weigh: the group advantage times a number for each op.

All modes by name. A new mode is a file beside this one, and an entry here.

Which modes of credit, and their constants.

Combines the modes, and lays what they say on the tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from mempo_jax.core.advantages import group_normalise
from mempo_jax.core.masking import as_float, keep
from mempo_jax.types import MEMORY_KINDS, Array, Evidence, Kind, OpTable, Outcome


class OpCredit(NamedTuple):
    """What each op is worth; both f32 [N, K], weight 1 and bonus 0 in padding."""

    weight: Array
    bonus: Array


class TrajectoryFacts(NamedTuple):
    """What happened, beside the op table.

    turn_reward f32 [N, M] · turn_count int32 [N] · group_valid bool [G, S] · evidence
    of probes, 0 where nothing was probed.
    """

    turn_reward: Array
    turn_count: Array
    group_valid: Array
    evidence: Evidence


class CreditMode(NamedTuple):
    """One way of assigning credit.

    ops: (OpTable, Facts, settings) -> OpCredit [N, K].
    others: (turn_id [B, T], turn_count [B], settings) -> weight of action tokens [B, T]
    that belong to no op.
    needs: settings -> what it wants probed, in the words of ``types.NEEDS``.
    """

    ops: Callable[[OpTable, TrajectoryFacts, CreditConfig], OpCredit]
    others: Callable[[Array, Array, CreditConfig], Array]
    needs: Callable[[CreditConfig], tuple[str, ...]]


def unit_weights(turn_id: Array, turn_count: Array, settings: CreditConfig) -> Array:
    """``Mode.others`` of a mode that says nothing about tokens outside of ops."""
    return jnp.ones(turn_id.shape)


def no_probes(settings: CreditConfig) -> tuple[str, ...]:
    """``Mode.needs`` of a mode that reads what happened alone."""
    return ()


def is_memory_op(kind: Array) -> Array:
    """Whether each kind is a memory decision; bool, the shape of ``kind``."""
    return jnp.isin(jnp.asarray(kind), jnp.array(MEMORY_KINDS))


def stored_writes(ops: OpTable) -> Array:
    """Writes that made an entry, bool [N, K]."""
    outcome = jnp.asarray(ops.outcome)
    stored = (outcome == Outcome.NEW) | (outcome == Outcome.MERGED)
    return stored & (jnp.asarray(ops.kind) == Kind.WRITE)


def normalise_in_group(
    worth: Array, counted: Array, facts: TrajectoryFacts, eps: float
) -> Array:
    """How each op's worth stands among the counted ops of its group, [N, K].

    (worth - mean) / (population std + eps) over the ops of the group's valid
    trajectories; 0 for all where they are equal, and for what is not counted. ``eps``
    is in units of worth: differences far below it stay small instead of being blown
    up to full size. ``objective.advantage_*`` play no part.

    Args:
      worth: [N, K].
      counted: bool [N, K].
    """
    groups = facts.group_valid.shape[0]
    counted = counted & jnp.asarray(facts.group_valid, bool).reshape(-1, 1)
    flat = group_normalise(
        worth.reshape(groups, -1), counted.reshape(groups, -1), eps=eps
    )
    return keep(flat.reshape(worth.shape), counted)


PROBABILITY_EPS = 0.05  # of probability: smaller gains are noise of the reader
READ = (Kind.WRITE, Kind.REWRITE)


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
    every step, and P(answer | block) is set against the context before that block: so
    it is here under the context rule "rolling", where a rewriting (REWRITE) is a write.
    Memories of the bank are many: each is read alone, against none at all, so that what
    another memory holds too still counts for both. All are read where the question was
    answered, since a question that is not yet asked cannot be answered.

    Known bias: says what a memory would be worth if it were found. Whether it was still
    stored and was recalled plays no part, and facts that only help together earn
    little.
    """
    kind = jnp.asarray(ops.kind)
    gain = jnp.asarray(facts.evidence.answer_gain)
    bonus = normalise_in_group(
        gain, jnp.isin(kind, jnp.array(READ)), facts, PROBABILITY_EPS
    )
    return OpCredit(jnp.ones(kind.shape), settings.answer_probability_weight * bonus)


ANSWER_PROBABILITY = CreditMode(
    answer_probability, unit_weights, lambda settings: ("answer_gain",)
)
REWARD_EPS = 1e-4  # in units of reward
LOG_PROB_EPS = 0.5  # nats: below it the answers of one policy differ by noise


def attribution(
    ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig
) -> OpCredit:
    """Writes earn, or pay, by the change of reward over their interval.

    contribution = reward of the turns after the write, up to its last use in context; 0
    for a write that was never used or stored nothing. With ``attribution_probe``
    "answer_log_prob" the reward of a turn is what it added to the log-probability of
    the gold answer, so that the contribution is potential(last use) - potential(write);
    see ``types.Evidence.turn_potential``.

    As a "bonus" contributions are normalised over all writes of the group's valid
    trajectories (population std; equal ones give 0), so that beside a useful write one
    that was never used pays; added on the write's tokens. As a "weight" on the group
    advantage a write that made an entry weighs |contribution| over the largest of its
    group, at least ``attribution_floor``; all else weighs 1.

    Known bias: entries recalled together earn the same, whichever held the answer, and
    a long interval earns rewards of other questions too. A recall of few entries
    (``k="1"``) keeps the first small. Entries that never came into use earn nothing,
    however useful they would have been.
    """
    by_reward = settings.attribution_probe == "turn_reward"
    reward = facts.turn_reward
    if not by_reward:
        potential = jnp.asarray(facts.evidence.turn_potential)
        reward = jnp.diff(potential, axis=1, prepend=0)
    earned = contributions(ops, reward, facts.turn_count)
    kind = jnp.asarray(ops.kind)
    if settings.attribution_form == "weight":
        weight = _share_of_largest(earned, ops, facts)
        weight = jnp.maximum(weight, settings.attribution_floor)
        weight = jnp.where(stored_writes(ops), weight, 1.0)
        return OpCredit(weight, jnp.zeros(kind.shape))
    eps = REWARD_EPS if by_reward else LOG_PROB_EPS
    bonus = normalise_in_group(earned, kind == Kind.WRITE, facts, eps)
    return OpCredit(jnp.ones(kind.shape), settings.attribution_weight * bonus)


def contributions(ops: OpTable, turn_reward: Array, turn_count: Array) -> Array:
    """Reward of turns in (write, last use], [N, K]; 0 for what stored nothing."""
    turn_reward = as_float(turn_reward)
    turn = jnp.arange(turn_reward.shape[1])
    inside = (turn > jnp.asarray(ops.turn)[..., None]) & (
        turn <= jnp.asarray(ops.last_use)[..., None]
    )
    inside &= turn < jnp.asarray(turn_count)[:, None, None]
    inside &= stored_writes(ops)[..., None]
    return jnp.sum(keep(turn_reward[:, None, :], inside), axis=-1)


def _share_of_largest(earned: Array, ops: OpTable, facts: TrajectoryFacts) -> Array:
    """|earned| over the largest among the writes of the group, in [0, 1]; [N, K]."""
    groups = facts.group_valid.shape[0]
    valid = jnp.asarray(facts.group_valid, bool).reshape(-1, 1)
    size = keep(jnp.abs(earned), stored_writes(ops) & valid).reshape(groups, -1)
    largest = jnp.max(size, axis=-1, keepdims=True)
    share = size / jnp.where(largest > 0, largest, 1)
    return share.reshape(earned.shape)


def _attribution_probes(settings: CreditConfig) -> tuple[str, ...]:
    probed = settings.attribution_probe == "answer_log_prob"
    return ("turn_potential",) if probed else ()


ATTRIBUTION = CreditMode(attribution, unit_weights, _attribution_probes)
DROP_EPS = 0.5  # nats: smaller drops are noise of the reader
ROUTED = (Kind.WRITE, Kind.MERGE, Kind.RECALL)


def counterfactual(
    ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig
) -> OpCredit:
    """Ops earn by the drop of the gold answer's log-probability without their memory.

    The drop is that of leaving one entry out of the context in which a question was
    answered, all else being equal; it is routed to the write that made the entry, to
    the merges it went through and to the recall that showed it. Each kind of op is
    normalised on its own over the group's valid trajectories, so that a write is set
    against writes; the bonus is ``counterfactual_weight`` times that.

    An entry that the cap had pushed out could not be in context. With
    ``counterfactual_evictions`` it is shown in place of what was recalled; what the
    answer gains is charged in equal shares to the younger writes that then filled the
    bank. So junk pays for what it drove out, and the lost write itself earns nothing.

    A probability counts as at least ``LEAST`` (``rollout.probe_plan``): between two
    answers that are not known its logarithm varies by nats and means nothing.

    Known bias: an entry that was stored but not recalled earns nothing, however needed;
    what a lost one would have added takes for granted that it would have been recalled.
    Entries are left out one at a time: of two that hold the same only those judged
    equal are left out together, and share.
    """
    kind = jnp.asarray(ops.kind)
    drop = jnp.asarray(facts.evidence.leave_out)
    bonus = sum(
        normalise_in_group(drop, kind == routed, facts, DROP_EPS) for routed in ROUTED
    )
    return OpCredit(jnp.ones(kind.shape), settings.counterfactual_weight * bonus)


def _counterfactual_probes(settings: CreditConfig) -> tuple[str, ...]:
    evictions = ("evictions",) if settings.counterfactual_evictions else ()
    return ("leave_out", *evictions)


COUNTERFACTUAL = CreditMode(counterfactual, unit_weights, _counterfactual_probes)


def uniform(ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig) -> OpCredit:
    """Every op weighs 1: plain GRPO."""
    return _weighted(jnp.ones(jnp.shape(ops.kind)))


def ops_only(ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig) -> OpCredit:
    """Memory ops (skipped and malformed ones too) weigh 1, others ``other_weight``."""
    return _weighted(jnp.where(is_memory_op(ops.kind), 1.0, settings.other_weight))


def discounted(
    ops: OpTable, facts: TrajectoryFacts, settings: CreditConfig
) -> OpCredit:
    """An op at turn t of T weighs gamma^(T - 1 - t)."""
    return _weighted(_discount(ops.turn, facts.turn_count, settings))


def _weighted(weight: Array) -> OpCredit:
    return OpCredit(weight, jnp.zeros(weight.shape))


def _discount(turn: Array, turn_count: Array, settings: CreditConfig) -> Array:
    left = jnp.asarray(turn_count)[:, None] - 1 - jnp.asarray(turn)
    return as_float(settings.gamma) ** jnp.maximum(left, 0)


def _other_weight(turn_id: Array, turn_count: Array, settings: CreditConfig) -> Array:
    return jnp.full(turn_id.shape, settings.other_weight)


UNIFORM = CreditMode(uniform, unit_weights, no_probes)
OPS_ONLY = CreditMode(ops_only, _other_weight, no_probes)
DISCOUNTED = CreditMode(discounted, _discount, no_probes)
MODES: dict[str, CreditMode] = {
    "uniform": UNIFORM,
    "ops_only": OPS_ONLY,
    "discounted": DISCOUNTED,
    "attribution": ATTRIBUTION,
    "answer_probability": ANSWER_PROBABILITY,
    "counterfactual": COUNTERFACTUAL,
}
FORMS = ("bonus", "weight")
PROBES = ("turn_reward", "answer_log_prob")


@dataclasses.dataclass(frozen=True)
class CreditConfig:
    """Which modes, in the words of ``MODES``, and their constants.

    gamma in (0, 1] discounts per turn; other_weight in [0, 1] is what ``ops_only``
    leaves to tokens that spell no memory op. attribution_form "bonus" or "weight";
    attribution_floor in [0, 1] is the least weight of the second; attribution_probe
    "turn_reward" or "answer_log_prob" measures the change over an interval.
    attribution_weight, answer_probability_weight and counterfactual_weight scale the
    bonus of each; attribution_form "weight" has none, and wants attribution_weight = 1.
    counterfactual_evictions charges writes with what they crowded out. All bonuses fall
    linearly to 0 at step bonus_decay_steps; 0 leaves them as they are.
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
                raise ValueError(f"credit.{field}: expected {expected}, got {got!r}")

        known = set(self.modes) <= set(MODES)
        if not known or not self.modes or len(set(self.modes)) < len(self.modes):
            raise ValueError(
                f"credit.modes: expected one or more of {', '.join(MODES)}, each once; "
                f"got {list(self.modes)}"
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
        check(self.attribution_form in FORMS, "attribution_form", f"one of {FORMS}")
        check(self.attribution_probe in PROBES, "attribution_probe", f"one of {PROBES}")
        ok = self.attribution_form == "bonus" or self.attribution_weight == 1
        expected = "1 with attribution_form 'weight', which has no bonus to scale"
        check(ok, "attribution_weight", expected)

    @property
    def needs(self) -> frozenset[str]:
        """What the modes want probed, in the words of ``types.NEEDS``."""
        return frozenset().union(*(MODES[mode].needs(self) for mode in self.modes))


def assign(
    ops: OpTable,
    turn_reward: Array,
    turn_count: Array,
    group_valid: Array,
    settings: CreditConfig,
    evidence: Evidence | None = None,
) -> OpCredit:
    """Credit of every op under ``settings.modes``.

    A malformed or failed op, or a write that repeats, keeps its weight but never gets a
    positive bonus: having done no harm among writes that did is no merit.

    Args:
      ops: OpTable [N, K], N = G * S, groups contiguous.
      turn_reward: f32 [N, M], task reward earned by each turn.
      turn_count: int [N].
      group_valid: bool [G, S]; a trajectory left out gets no bonus and gives none.
      evidence: of probes; None where no listed mode reads any.

    Returns:
      OpCredit [N, K].
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
    failed = (kind == Kind.MALFORMED) | (outcome == Outcome.ERROR)
    failed |= outcome == Outcome.DUPLICATE
    bonus = jnp.where(failed, jnp.minimum(bonus, 0), bonus)
    padding = kind == Kind.NONE
    return OpCredit(keep(weight, ~padding, 1.0), keep(bonus, ~padding))


def bonus_scale(step: Array, *, decay_steps: int) -> Array:
    """Linear decay of all bonuses: 1 at step 0, 0 from ``decay_steps`` on; a scalar.

    A bonus is normalised over the ops of its kind, so what is right but not always of
    use earns less than nothing beside what was used: a great help in finding out, and
    a bias once it is found. With ``decay_steps`` 0 it is 1 throughout.
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
      credit, ops: [N, K].
      op_id: int [B, T], row of the trajectory's table, -1 for tokens of no op.
      turn_id: int [B, T].
      action_mask: bool [B, T].
      trajectory_index: int [B].
      turn_count: int [N].

    Returns:
      weight and bonus, f32 [B, T]; both 0 where not an action.
    """
    op_id, action_mask = jnp.asarray(op_id), jnp.asarray(action_mask, bool)
    row = jnp.asarray(trajectory_index)[:, None]
    column = jnp.clip(op_id, 0, jnp.shape(ops.kind)[1] - 1)
    turns = jnp.asarray(turn_count)[jnp.asarray(trajectory_index)]
    others = jnp.ones(op_id.shape)
    for mode in settings.modes:
        others = others * MODES[mode].others(jnp.asarray(turn_id), turns, settings)
    in_op = op_id >= 0
    weight = jnp.where(in_op, credit.weight[row, column], others)
    bonus = keep(credit.bonus[row, column], in_op)
    return keep(weight, action_mask), keep(bonus, action_mask)

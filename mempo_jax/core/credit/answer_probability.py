"""Answer probability: what a memory alone does for the gold answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from mempo_jax.core.credit.base import Facts, Mode, OpCredit, among_peers, ones
from mempo_jax.types import Kind, OpTable

if TYPE_CHECKING:
    from mempo_jax.core.credit.settings import CreditSettings

EPS = 0.05  # of probability: smaller gains are noise of the reader
READ = (Kind.WRITE, Kind.REWRITE)


def answer_probability(
    ops: OpTable, facts: Facts, settings: CreditSettings
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
    bonus = among_peers(gain, jnp.isin(kind, jnp.array(READ)), facts, EPS)
    return OpCredit(jnp.ones(kind.shape), settings.answer_probability_weight * bonus)


ANSWER_PROBABILITY = Mode(answer_probability, ones, lambda settings: ("answer_gain",))

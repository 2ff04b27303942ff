"""Counterfactual: what the answer would have lost without a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from mempo_jax.core.credit.base import Facts, Mode, OpCredit, among_peers, ones
from mempo_jax.types import Kind, OpTable

if TYPE_CHECKING:
    from mempo_jax.core.credit.settings import CreditSettings

EPS = 0.5  # nats: smaller drops are noise of the reader
ROUTED = (Kind.WRITE, Kind.MERGE, Kind.RECALL)


def counterfactual(ops: OpTable, facts: Facts, settings: CreditSettings) -> OpCredit:
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
    bonus = sum(among_peers(drop, kind == routed, facts, EPS) for routed in ROUTED)
    return OpCredit(jnp.ones(kind.shape), settings.counterfactual_weight * bonus)


def _needs(settings: CreditSettings) -> tuple[str, ...]:
    evictions = ("evictions",) if settings.counterfactual_evictions else ()
    return ("leave_out", *evictions)


COUNTERFACTUAL = Mode(counterfactual, ones, _needs)

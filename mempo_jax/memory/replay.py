"""A bank from its op log."""

from __future__ import annotations

from collections.abc import Iterable

from mempo_jax.memory.bank import Bank
from mempo_jax.memory.ops import OpRecord


def replay(
    initial: Bank, log: Iterable[OpRecord], trajectory_id: str | None = None
) -> Bank:
    """``log`` applied to ``initial``: the logged bank again, bit for bit.

    Args:
      initial: the bank before the log; it is left as it is.
      log: the records, complete and in order.
      trajectory_id: source of the entries made; that of ``initial`` if None.

    Raises:
      ValueError: if a record does not fit what came before it.
    """
    name = initial.trajectory_id if trajectory_id is None else trajectory_id
    bank = initial.fork(name)
    for record in log:
        bank.apply(record)
    return bank

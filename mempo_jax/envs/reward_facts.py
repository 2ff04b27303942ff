"""What the components of a reward are counted from: the op log and the bank's size."""

from __future__ import annotations

from collections.abc import Sequence

from mempo_jax.memory import OpRecord


def penalty_counts(
    log: Sequence[OpRecord], malformed: int, overflowed: bool
) -> dict[str, int]:
    """Events of ``reward.PENALTIES`` in one trajectory."""
    return {
        "malformed": malformed,
        "duplicate": sum(r.outcome == "duplicate" for r in log),
        "overflow": int(overflowed),
        "write_cost": sum(
            r.kind == "write" and r.outcome in ("new", "merged") for r in log
        ),
    }


def efficiency_shares(
    log: Sequence[OpRecord], sizes: Sequence[int], capacity: int
) -> dict[str, float]:
    """Shares of ``reward.EFFICIENCY`` in one trajectory, each in [0, 1].

    efficiency_size: 1 - mean number of active entries / capacity; 0 for a run without a
    turn, and left out where nothing bounds the bank. efficiency_hits: share of recalls
    that found an entry; 0 without a recall, or never asking would be the sure way to a
    full share.

    Args:
      sizes: active entries after the ops of each turn.
      capacity: the most active entries; 0 for no limit.
    """
    hits = [bool(r.entry_ids) for r in log if r.kind == "recall"]
    shares = {"efficiency_hits": sum(hits) / len(hits) if hits else 0.0}
    if capacity and sizes:
        shares["efficiency_size"] = 1.0 - sum(sizes) / len(sizes) / capacity
    elif capacity:
        shares["efficiency_size"] = 0.0
    return shares

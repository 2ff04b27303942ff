"""Teaches a built-in policy to judge its writes, before it does.

A model that was never trained on language answers the judge's questions at random. Its
cold start therefore holds such questions too, about texts of the demonstrations, with
the answers that follow from the lexical judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mempo_jax.envs import derived_seed
from mempo_jax.memory import Verdict
from mempo_jax.memory.judge import make_judge
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.judge import PolicyJudge
from mempo_jax.rollout.segments import Segment

SHARE = 0.25  # judged pairs, of the segments that a cold start holds otherwise
DRAWS = 60  # of pairs, for each that is wanted: changed values are rare
Lesson = tuple[str, str, Verdict]  # new text, old text, what the new one is to the old


class Teacher:
    """The lexical judge, and a note of the texts that it was asked about."""

    def __init__(self) -> None:
        self._judge = make_judge("lexical")
        self._texts: dict[str, None] = {}  # in order, each once

    def __call__(self, new: str, old: str) -> Verdict:
        self._texts |= dict.fromkeys((new, old))
        return self._judge(new, old)

    def lessons(self, count: int, seed: int) -> list[Lesson]:
        """About ``count`` pairs: repeats, changes and new facts alike, where found."""
        texts = list(self._texts)
        rng = np.random.default_rng(derived_seed("judgements", seed))
        kinds: dict[str, list[Lesson]] = {"repeats": [], "updates": [], "new": []}
        for _ in range(DRAWS * count if texts else 0):
            most = -(-count // len(kinds))
            if all(len(found) >= most for found in kinds.values()):
                break
            one, other = rng.integers(len(texts), size=2)
            new, old = texts[one], texts[one if rng.random() < 0.1 else other]
            verdict = self._judge(new, old)
            found = kinds.get(str(verdict), kinds["new"])
            if len(found) < most:
                found.append((new, old, verdict))
        return [lesson for found in kinds.values() for lesson in found]


def segments(
    lessons: Sequence[Lesson], judge: PolicyJudge, tokenizer: Tokenizer
) -> list[Segment]:
    """Two questions a lesson, each with its answer as the policy's turn."""
    made = []
    for new, old, verdict in lessons:
        said = (verdict != Verdict.REPEATS, verdict == Verdict.UPDATES)
        for ids, yes in zip(judge.questions(new, old), said, strict=True):
            answer = [*judge.answer(yes), tokenizer.end_id]
            segment: Any = Segment()
            segment.add_observation(ids, 0)
            segment.add_action(answer, np.zeros(len(answer)), 0)
            made.append(segment)
    return made

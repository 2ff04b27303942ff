"""Teaches a built-in policy to judge its writes, before it does.

A model that was never trained on language answers the judge's questions at random. Its
cold start therefore holds such questions too, about texts of the demonstrations, with
the answers that follow from the lexical judge.

What the memory asks of the policy itself: its judge and its summaries.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mempo_jax.config import RunConfig
from mempo_jax.distributed.placement import row_multiple, row_sharding
from mempo_jax.envs import derived_seed
from mempo_jax.memory import Verdict
from mempo_jax.memory.lexical.judge import Judge, make_judge
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.policy_judge import GAP, PolicyJudge, PolicySummariser, Questions
from mempo_jax.rollout.segments import Segment

SHARE = 0.25  # judged pairs, of the segments that a cold start holds otherwise
DRAWS = 60  # of pairs, for each that is wanted: changed values are rare
JudgeExample = tuple[
    str, str, Verdict
]  # new text, old text, what the new one is to the old


class JudgeExampleRecorder:
    """The lexical judge, and a note of the texts that it was asked about."""

    def __init__(self) -> None:
        self._judge = make_judge("lexical")
        self._texts: dict[str, None] = {}  # in order, each once

    def __call__(self, new: str, old: str) -> Verdict:
        self._texts |= dict.fromkeys((new, old))
        return self._judge(new, old)

    def lessons(self, count: int, seed: int) -> list[JudgeExample]:
        """About ``count`` pairs: repeats, changes and new facts alike, where found."""
        texts = list(self._texts)
        rng = np.random.default_rng(derived_seed("judgements", seed))
        kinds: dict[str, list[JudgeExample]] = {"repeats": [], "updates": [], "new": []}
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


def judge_segments(
    lessons: Sequence[JudgeExample], judge: PolicyJudge, tokenizer: Tokenizer
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


PLACEHOLDER = re.compile(r"\{\w*\}")
JUDGE_ROWS = 16  # questions in one forward pass; four nearest entries make eight


@dataclasses.dataclass(frozen=True)
class MemoryModels:
    """Callables for the banks of a run.

    judge: None where its name in the config says it all. summarise: None where merged
    texts are cut. prefetch_verdicts: judges pairs that are about to be asked
    for, see ``Collector``. subscribers: what gets the engine's weights as well, see
    ``WeightSubscriber``.
    """

    judge: Judge | None = None
    summarise: Callable[[str, int], str] | None = None
    prefetch_verdicts: Callable[[list[tuple[str, str]]], None] | None = None
    subscribers: tuple[Any, ...] = ()

    @property
    def callables(self) -> dict[str, Any]:
        """As a ``Bank`` takes them."""
        return {"judge": self.judge, "summarise": self.summarise}


def without_policy(settings: RunConfig) -> MemoryModels:
    """Advisors for what comes before a policy, such as its demonstrations.

    The lexical judge stands for the policy, which knows nothing of its questions yet.
    """
    return MemoryModels(
        JudgeExampleRecorder() if settings.memory.judge == "policy" else None
    )


def judge_demonstrations(
    advised: MemoryModels, policy: Any, settings: RunConfig, count: int
) -> list[Segment]:
    """What teaches a built-in policy to judge, beside ``count`` segments to act.

    Empty where another judge serves, or where the policy was not made here.
    """
    judge = _judge(policy, settings, None)
    if judge is None or settings.policy.path:
        return []
    lessons = advised.judge.lessons(int(count * SHARE), settings.seed)
    return judge_segments(lessons, judge, policy.tokenizer)


def make_memory_models(policy: Any, settings: RunConfig, mesh: Any) -> MemoryModels:
    """The advisors that the config asks for, over the model of ``policy``.

    Raises:
      ConfigError: a question or an answer that the policy's tokenizer cannot serve.
    """
    judge = _judge(policy, settings, mesh)
    summarise = _summariser(policy, settings, mesh)
    return MemoryModels(
        judge,
        summarise,
        judge and judge.prefetch_verdicts,
        tuple(each for each in (judge, summarise) if each is not None),
    )


def _judge(policy: Any, settings: RunConfig, mesh: Any) -> PolicyJudge | None:
    """mesh None: one that is asked for its questions only."""
    memory, multiple = settings.memory, row_multiple(mesh) if mesh else 1
    if memory.judge != "policy":
        return None
    questions = Questions(
        adds=memory.judge_adds_prompt,
        changes=memory.judge_changes_prompt,
        yes=memory.judge_yes,
        no=memory.judge_no,
    )
    return PolicyJudge(
        policy.model,
        policy.tokenizer,
        questions,
        longest=settings.max_segment_tokens,
        rows=-(-JUDGE_ROWS // multiple) * multiple,
        row_sharding=row_sharding(mesh) if mesh else None,
    )


def _summariser(policy: Any, settings: RunConfig, mesh: Any) -> PolicySummariser | None:
    memory = settings.memory
    if memory.summarise != "policy":
        return None
    return PolicySummariser(
        policy.model,
        policy.tokenizer,
        memory.summarise_prompt,
        longest=settings.max_segment_tokens,
        most_tokens=memory.summarise_tokens,
        decode_chunk=settings.sampling.decode_chunk,
        slots=row_multiple(mesh),
        row_sharding=row_sharding(mesh),
    )


def vocabulary(settings: RunConfig) -> tuple[list[str], list[str]]:
    """Texts and words that a built-in policy must know to advise; mostly none."""
    memory = settings.memory
    texts, words = [], []
    if memory.judge == "policy":
        texts += [memory.judge_adds_prompt, memory.judge_changes_prompt]
        words += [memory.judge_yes, memory.judge_no]
    if memory.summarise == "policy":
        texts.append(memory.summarise_prompt)
    plain = [PLACEHOLDER.sub("", text) for text in texts]
    return [*plain, GAP] if plain else [], words

"""What the memory asks of the policy itself: to judge writes, and to summarise.

A model that was never trained on language answers the judge's questions at random. The
cold start of the built-in policy therefore holds such questions too, about texts of the
demonstrations, with the answers that follow from the lexical judge.
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

SHARE = 0.25  # judged pairs for each other segment of a cold start
DRAWS = 60  # random pairs tried for each that is wanted: changed values are rare
JUDGE_ROWS = 16  # questions in one forward pass; four nearest entries make eight
PLACEHOLDER = re.compile(r"\{\w*\}")
# The new text, the old text, and what the new one is to the old.
JudgeExample = tuple[str, str, Verdict]


@dataclasses.dataclass(frozen=True)
class MemoryModels:
    """Callables for the banks of a run.

    Attributes:
      judge: None if the bank makes it from its name in the config.
      summarise: None if merged texts are cut.
      prefetch_verdicts: takes pairs that will be judged soon, see ``Collector``.
      subscribers: what gets the weights of the engine too, see ``WeightSubscriber``.
    """

    judge: Judge | None = None
    summarise: Callable[[str, int], str] | None = None
    prefetch_verdicts: Callable[[list[tuple[str, str]]], None] | None = None
    subscribers: tuple[Any, ...] = ()

    @property
    def callables(self) -> dict[str, Any]:
        """The keyword arguments of a ``Bank``."""
        return {"judge": self.judge, "summarise": self.summarise}


def make_memory_models(policy: Any, settings: RunConfig, mesh: Any) -> MemoryModels:
    """The judge and summariser that the config asks for, over the policy's model.

    Args:
      policy: a ``builders.policies.Policy``.
      settings: of the run.
      mesh: of this process, over which rows are split.

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


def without_policy(settings: RunConfig) -> MemoryModels:
    """The callables before there is a policy, for demonstrations and scripted rules.

    The lexical judge replaces the policy, which knows nothing of its questions yet.

    Args:
      settings: of the run.
    """
    return MemoryModels(
        JudgeExampleRecorder() if settings.memory.judge == "policy" else None
    )


class JudgeExampleRecorder:
    """The lexical judge, which records the texts that it was asked about."""

    def __init__(self) -> None:
        self._judge = make_judge("lexical")
        self._texts: dict[str, None] = {}  # in order, each once

    def __call__(self, new: str, old: str) -> Verdict:
        self._texts |= dict.fromkeys((new, old))
        return self._judge(new, old)

    def lessons(self, count: int, seed: int) -> list[JudgeExample]:
        """Draws pairs of recorded texts, as many repeats as changes and new facts.

        Args:
          count: of pairs wanted.
          seed: of the run; decides which pairs are drawn.

        Returns:
          About ``count`` examples; fewer if the texts hold too few of a kind.
        """
        texts = list(self._texts)
        rng = np.random.default_rng(derived_seed("judgements", seed))
        kinds: dict[str, list[JudgeExample]] = {"repeats": [], "updates": [], "new": []}
        for _ in range(DRAWS * count if texts else 0):
            most = -(-count // len(kinds))
            if all(len(examples) >= most for examples in kinds.values()):
                break
            one, other = rng.integers(len(texts), size=2)
            # One pair in ten is a text with itself: random pairs hardly ever repeat.
            new, old = texts[one], texts[one if rng.random() < 0.1 else other]
            verdict = self._judge(new, old)
            examples = kinds.get(str(verdict), kinds["new"])
            if len(examples) < most:
                examples.append((new, old, verdict))
        return [example for examples in kinds.values() for example in examples]


def judge_demonstrations(
    advised: MemoryModels, policy: Any, settings: RunConfig, count: int
) -> list[Segment]:
    """Segments that teach a built-in policy to judge.

    Args:
      advised: of ``without_policy``, whose judge saw the demonstrations.
      policy: that is to learn.
      settings: of the run.
      count: number of the cold start's other segments.

    Returns:
      Empty if another judge serves, or if the policy was read from ``policy.path``.
    """
    judge = _judge(policy, settings, None)
    if judge is None or settings.policy.path:
        return []
    lessons = advised.judge.lessons(int(count * SHARE), settings.seed)
    return judge_segments(lessons, judge, policy.tokenizer)


def judge_segments(
    lessons: Sequence[JudgeExample], judge: PolicyJudge, tokenizer: Tokenizer
) -> list[Segment]:
    """Two questions of each lesson, each with its answer as the policy's turn.

    Args:
      lessons: pairs, with the verdict that the answers follow from.
      judge: words the questions.
      tokenizer: the policy's.
    """
    segments = []
    for new, old, verdict in lessons:
        answers = (verdict != Verdict.REPEATS, verdict == Verdict.UPDATES)
        for ids, yes in zip(judge.questions(new, old), answers, strict=True):
            answer = [*judge.answer(yes), tokenizer.end_id]
            segment: Any = Segment()
            segment.add_observation(ids, 0)
            # Nobody sampled the answer, so that it has no log-probs.
            segment.add_action(answer, np.zeros(len(answer)), 0)
            segments.append(segment)
    return segments


def _judge(policy: Any, settings: RunConfig, mesh: Any) -> PolicyJudge | None:
    """The policy as judge; with mesh None, one that only words its questions."""
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
        # Rounded up: rows must divide over the devices.
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
    """What a built-in policy must know to judge and to summarise; mostly nothing.

    Args:
      settings: of the run.

    Returns:
      Texts of the prompts, and words of the answers.
    """
    memory = settings.memory
    texts, words = [], []
    if memory.judge == "policy":
        texts += [memory.judge_adds_prompt, memory.judge_changes_prompt]
        words += [memory.judge_yes, memory.judge_no]
    if memory.summarise == "policy":
        texts.append(memory.summarise_prompt)
    plain = [PLACEHOLDER.sub("", text) for text in texts]
    return [*plain, GAP] if plain else [], words

"""What the memory asks of the policy itself: its judge and its summaries."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from mempo_jax.memory.judge import Judge
from mempo_jax.rollout.judge import PolicyJudge, Questions
from mempo_jax.rollout.prompting import GAP
from mempo_jax.rollout.segments import Segment
from mempo_jax.rollout.summariser import PolicySummariser
from mempo_jax.training.judgements import SHARE, Teacher, segments
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.sharding import row_multiple, row_sharding

PLACEHOLDER = re.compile(r"\{\w*\}")
JUDGE_ROWS = 16  # questions in one forward pass; four nearest entries make eight


@dataclasses.dataclass(frozen=True)
class Advisors:
    """Callables for the banks of a run.

    judge: None where its name in the config says it all. summarise: None where merged
    texts are cut. foresee: told of pairs that will be asked for, see ``Collector``.
    followers: what an engine should lead.
    """

    judge: Judge | None = None
    summarise: Callable[[str, int], str] | None = None
    foresee: Callable[[list[tuple[str, str]]], None] | None = None
    followers: tuple[Any, ...] = ()

    @property
    def callables(self) -> dict[str, Any]:
        """As a ``Bank`` takes them."""
        return {"judge": self.judge, "summarise": self.summarise}


def without_policy(settings: RunSettings) -> Advisors:
    """Advisors for what comes before a policy, such as its demonstrations.

    The lexical judge stands for the policy, which knows nothing of its questions yet.
    """
    return Advisors(Teacher() if settings.memory.judge == "policy" else None)


def judgements(
    advised: Advisors, policy: Any, settings: RunSettings, count: int
) -> list[Segment]:
    """What teaches a built-in policy to judge, beside ``count`` segments to act.

    Empty where another judge serves, or where the policy was not made here.
    """
    judge = _judge(policy, settings, None)
    if judge is None or settings.policy.path:
        return []
    lessons = advised.judge.lessons(int(count * SHARE), settings.seed)
    return segments(lessons, judge, policy.tokenizer)


def make_advisors(policy: Any, settings: RunSettings, mesh: Any) -> Advisors:
    """The advisors that the config asks for, over the model of ``policy``.

    Raises:
      ConfigError: a question or an answer that the policy's tokenizer cannot serve.
    """
    judge = _judge(policy, settings, mesh)
    summarise = _summariser(policy, settings, mesh)
    return Advisors(
        judge,
        summarise,
        judge and judge.foresee,
        tuple(each for each in (judge, summarise) if each is not None),
    )


def _judge(policy: Any, settings: RunSettings, mesh: Any) -> PolicyJudge | None:
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


def _summariser(
    policy: Any, settings: RunSettings, mesh: Any
) -> PolicySummariser | None:
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


def vocabulary(settings: RunSettings) -> tuple[list[str], list[str]]:
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

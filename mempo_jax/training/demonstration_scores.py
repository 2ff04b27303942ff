"""Scores of demonstrations, and warnings about bad ones before a policy learns them.

A cold start on demonstrations that never solve the task teaches the form of acting and
nothing else; training then waits for a first success by chance.
"""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mempo_jax.builders.suites import left_out, play_expert, task_faults
from mempo_jax.config import RunConfig
from mempo_jax.distributed import hosts
from mempo_jax.envs import EnvironmentFault, Episode, TaskSuite
from mempo_jax.envs.adapters import ADAPTERS
from mempo_jax.envs.base import described
from mempo_jax.envs.own_environments import OwnSuite
from mempo_jax.rollout.segments import Segment
from mempo_jax.settings import ConfigError

CEILING = "expert, everything remembered"  # a stage of the run's progress
CEILING_TASKS = 32  # a rough mean is enough, and each one costs a played episode
MOST_LINES = 1_000  # in a block of the context rule "rolling": as good as no limit
FEWEST = 16  # demonstrations or questions; fewer may all fail by chance
UNKNOWN_WORD = "<unk>"  # the built-in policy reads this for a word it does not know
SMALL_SHARE = 0.1  # if fewer demonstrations score anything, there is a warning


class DemonstrationScores:
    """Collects the scores of demonstrations, and warns if they are of no use.

    Attributes:
      scores: the task score of each demonstration so far.
    """

    def __init__(self, suite: TaskSuite, settings: RunConfig) -> None:
        """Begins without demonstrations.

        Args:
          suite: the tasks that are demonstrated.
          settings: of the run.
        """
        self._suite, self._settings = suite, settings
        has_expert = isinstance(suite, OwnSuite) and suite.has_expert
        self._own_expert = has_expert and not settings.train.demonstrations_path
        self.scores: list[float] = []
        self._by_category: dict[str, list[float]] = collections.defaultdict(list)
        self._longest, self._unknown = 0, ""

    @property
    def share(self) -> float:
        """Share of the demonstrations that score anything."""
        return sum(score > 0 for score in self.scores) / max(len(self.scores), 1)

    @property
    def mean(self) -> float:
        """Mean score of the demonstrations."""
        return sum(self.scores) / max(len(self.scores), 1)

    def add(self, episode: Episode, segments: Sequence[Segment] = ()) -> None:
        """Adds one demonstration that has ended.

        Args:
          episode: at its end.
          segments: its tokens, to find the longest turn; none: not measured.

        Raises:
          EnvironmentFault: the environment raised, or its score is no number in
            [0, 1].
        """
        env: Any = episode.env
        try:
            score = episode.reward().raw["task"]
            # An environment may lack either method, as games do.
            questions = env.questions() if hasattr(env, "questions") else ()
            categories = [c for q in questions for c in q.parts or (q.category,)]
            scores = getattr(env, "question_scores", tuple)()
        except EnvironmentFault:
            raise
        except Exception as error:  # foreign code may raise anything
            raise EnvironmentFault(
                f"task {episode.task.id}, at its end: {described(error)}"
            ) from error
        self.scores.append(score)
        for category, score in zip(categories, scores):
            self._by_category[category].append(score)
        for action in episode.actions:
            if UNKNOWN_WORD in action:
                self._unknown = action
        for segment in segments:
            turns = np.asarray(segment.turn_id)[np.asarray(segment.is_action, bool)]
            # Sampled tokens by turn; the 0 is for a segment without any.
            self._longest = max(self._longest, *np.bincount(turns), 0)

    def check(self, ceiling: float | None) -> None:
        """Warns if demonstrations hardly score, or are too long for the policy.

        Args:
          ceiling: what the expert scores if it remembers everything; None: unknown.

        Raises:
          ConfigError: an environment's own expert scored nothing at all, or writes more
            in a turn than the policy can.
        """
        # Only an environment of one's own brings words and lengths of its own.
        if isinstance(self._suite, OwnSuite):
            self._check_texts()
        # Scores come after the texts: few of them may all fail by chance, while a text
        # that is too long is a fault however few there are.
        count = len(self.scores)
        if count < FEWEST:
            return
        name = self._settings.env.name
        unsolved = sorted(
            f"{category} (0 of {len(scores)} questions)"
            for category, scores in self._by_category.items()
            if category and len(scores) >= FEWEST and not any(scores)
        )
        if unsolved:
            _warn(
                f"config.env.name = {name!r}: no demonstration answers a question of "
                f"{', '.join(unsolved)}; the cold start cannot show how",
            )
        if self.share >= SMALL_SHARE:
            return
        scored = sum(score > 0 for score in self.scores)
        what = f"{scored} of {count} demonstrations score anything"
        if ceiling is not None:
            what += f" (the expert scores {ceiling:.2f} if it remembers everything)"
        # The expert fails with everything in memory: no luck will mend that.
        if self._own_expert and not scored and ceiling == 0:
            raise ConfigError(
                f"config.env.name = {name!r}: {what}; mend its expert(), or set "
                "config.train.cold_start_steps=0 to train without demonstrations"
            )
        _warn(
            f"config.env.name = {name!r}: {what}; the cold start can hardly show how "
            f"the task is solved. {_remedy(self._suite)}",
        )

    def _check_texts(self) -> None:
        """Looks for unknown words and for turns above ``max_new_tokens``."""
        name, most = self._settings.env.name, self._settings.sampling.max_new_tokens
        if self._unknown:
            _warn(
                f"config.env.name = {name!r}: the built-in policy does not know a word "
                f"of {self._unknown!r} ({UNKNOWN_WORD}), which the first tasks do not "
                "show; name rare words in the environment's moves"
            )
        if self._longest <= most:
            return
        message = (
            f"config.sampling.max_new_tokens: demonstrations of {name!r} take up to "
            f"{self._longest} tokens in a turn, the policy has {most}; raise it, or "
            "say less in a turn"
        )
        if self._own_expert:
            raise ConfigError(message)
        _warn(message)


def _remedy(suite: TaskSuite) -> str:
    if isinstance(suite, OwnSuite) and not suite.has_expert:
        return "Give the environment an expert(), see docs/environments.md"
    return "Give demonstrations that do in config.train.demonstrations_path"


def _warn(message: str) -> None:
    """Warns once: several processes run the same demonstrations, one of them warns."""
    if hosts.primary():
        warnings.warn(message, stacklevel=2)


def expert_ceiling(
    suite: TaskSuite,
    settings: RunConfig,
    progress: Callable[[str, int, int, dict[str, Any]], None],
) -> float | None:
    """Mean score of the suite's expert if it writes everything and nothing is evicted.

    This measures how well the expert reads: if it fails a task with everything in
    memory, its demonstrations cannot teach that task.

    Args:
      suite: the tasks; those of split train that demonstrations begin with are played.
      settings: of the run.
      progress: called with the stage's name, tasks done, tasks in all, and the score
        of the tasks so far.

    Returns:
      The mean, or None for games, whose demonstrations move at random.
    """
    if settings.env.name in ADAPTERS:
        return None
    count = min(CEILING_TASKS, settings.train.demonstrations)
    settings = _unlimited(settings)
    played = DemonstrationScores(suite, settings)
    faults = task_faults(suite, settings, "the expert played")
    for episode in play_expert(suite, settings, count, write_rate=1.0):
        faults.tried += 1
        try:
            played.add(episode)
        except EnvironmentFault as error:
            left_out(suite, faults, error)
            continue
        figures = {"score": round(played.mean, 3)}
        progress(CEILING, len(played.scores), count, figures)
    return played.mean


def _unlimited(settings: RunConfig) -> RunConfig:
    """The same settings with a memory that evicts nothing."""
    return dataclasses.replace(
        settings,
        memory=dataclasses.replace(settings.memory, capacity=0),
        context=dataclasses.replace(settings.context, rolling_lines=MOST_LINES),
        # This reward measures entries against the capacity; a config without a
        # capacity that turns it on is refused.
        reward=dataclasses.replace(settings.reward, efficiency_size=0.0),
    )

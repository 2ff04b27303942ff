"""Demonstrations: scripted or recorded actions run through real episodes.

They make the same segments and masks as sampling does, so the cold start trains on
exactly what reinforcement learning will see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mempo_jax.envs import (
    Episode,
    ScriptedPolicy,
    Situation,
    Status,
    Task,
    derived_seed,
)
from mempo_jax.memory import closing_tags
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import Segment, SegmentBuilder
from mempo_jax.settings import ConfigError
from mempo_jax.training.demonstration_files import read_demonstrations


def demonstrate(
    episode: Episode,
    policy: ScriptedPolicy,
    tokenizer: Tokenizer,
    seed: int,
    max_turns: int | None = None,
) -> list[Segment]:
    """Runs one episode with a scripted policy; returns its segments.

    It ends with the episode, or after ``max_turns``. As in sampling, a turn ends behind
    its first closing tag, else with a stop token.
    """
    tags = closing_tags()
    rng = np.random.default_rng(seed)
    builder = SegmentBuilder(tokenizer)
    while not episode.done and episode.turn != max_turns:
        view = episode.observe(builder.measure)
        if view is None:
            break
        builder.show(view, episode.turn)
        text = policy(episode.situation(), rng)
        ends = [text.index(tag) + len(tag) for tag in tags if tag in text]
        ids = tokenizer.encode(text[: min(ends)] if ends else text)
        if stopped := not ends:
            ids = [*ids, tokenizer.end_id]
        builder.acted(ids, np.zeros(len(ids)), episode.turn)
        episode.act(tokenizer.decode(ids), tokenizer.offsets(ids), stopped)
    return builder.segments


def scripted(
    make_episode: Callable[[Task], Episode],
    tasks: Sequence[Task],
    policy: ScriptedPolicy,
    tokenizer: Tokenizer,
) -> Iterator[list[Segment]]:
    """Segments of one demonstration per task."""
    for task in tasks:
        seed = derived_seed("demonstration", task.seed, task.index)
        yield demonstrate(make_episode(task), policy, tokenizer, seed)


def recorded(
    path: str,
    find_task: Callable[[str, int], Task],
    make_episode: Callable[[Task], Episode],
    tokenizer: Tokenizer,
) -> Iterator[list[Segment]]:
    """Segments of recorded trajectories; ``demonstration_files`` has the format.

    Raises:
      ConfigError: a missing file, or a line that does not fit.
    """
    for shown in read_demonstrations(path, find_task):
        episode, actions = make_episode(shown.task), shown.actions
        policy = _replay(actions, tokenizer)
        segments = demonstrate(episode, policy, tokenizer, 0, len(actions))
        if episode.status is Status.DONE and episode.turn < len(actions):
            raise ConfigError(
                f"{shown.place}, field turns: expected at most {episode.turn}, behind "
                f"which {shown.task.id} ends, got {len(actions)}; set config.env as "
                "when it was recorded"
            )
        yield segments


def records(
    make_episode: Callable[[Task], Episode],
    tasks: Sequence[Task],
    policy: ScriptedPolicy,
    tokenizer: Tokenizer,
) -> Iterator[dict[str, Any]]:
    """What ``scripted`` runs, as lines for ``demonstration_files``."""
    for task in tasks:
        episode = make_episode(task)
        seed = derived_seed("demonstration", task.seed, task.index)
        demonstrate(episode, policy, tokenizer, seed)
        said = (_without_stop(text, tokenizer) for text in episode.actions)
        yield {
            "task": task.id,
            "seed": task.seed,
            "turns": [
                {"observation": shown, "action": action}
                for shown, action in zip(episode.observations, said, strict=False)
            ],
            "score": episode.env.score(),
        }


def _replay(actions: Sequence[str], tokenizer: Tokenizer) -> ScriptedPolicy:
    left = iter(actions)

    def policy(situation: Situation, rng: np.random.Generator) -> str:
        return _without_stop(next(left, ""), tokenizer)

    return policy


def _without_stop(text: str, tokenizer: Tokenizer) -> str:
    """The turn ends with one stop token, whichever of them was recorded."""
    stops = (tokenizer.decode([number]) for number in tokenizer.stop_ids)
    return text.removesuffix(next(filter(text.endswith, stops), ""))

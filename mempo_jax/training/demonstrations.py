"""Demonstrations: scripted or recorded actions run through real episodes.

They make the same segments and masks as sampling does, so the cold start trains on
exactly what reinforcement learning will see.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mempo_jax.envs import Episode, ScriptedPolicy, Situation, Task, derived_seed
from mempo_jax.memory import parse_ops
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import Segment, SegmentBuilder
from mempo_jax.settings import ConfigError

TURN_ENDING = ("recall", "act", "answer")


def demonstrate(
    episode: Episode, policy: ScriptedPolicy, tokenizer: Tokenizer, seed: int
) -> list[Segment]:
    """Runs one episode to its end with a scripted policy; returns its segments."""
    rng = np.random.default_rng(seed)
    builder = SegmentBuilder(tokenizer)
    while not episode.done:
        view = episode.observe(builder.measure)
        if view is None:
            break
        builder.show(view, episode.turn)
        text = policy(episode.situation(), rng)
        ids = tokenizer.encode(text)
        ops = parse_ops(text)
        stopped = not ops or ops[-1].kind not in TURN_ENDING
        if stopped:
            ids = [*ids, tokenizer.stop_ids[0]]
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
    """Segments of recorded trajectories.

    Each line of the file is an object with ``task`` ("suite/split/index") and
    ``turns``, a list of objects with ``action``: the form in which a run keeps its
    trajectories.

    Raises:
      ConfigError: a missing file or a line that does not fit, with its number.
    """
    file = pathlib.Path(path)
    if not file.is_file():
        raise ConfigError(
            f"config.train.demonstrations_path: expected a JSONL file, got {path!r}"
        )
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                _, split, index = record["task"].split("/")
                task = find_task(split, int(index))
                actions = [str(turn["action"]) for turn in record["turns"]]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{path}, line {number}: expected an object with task "
                    f"'suite/split/index' and turns [{{'action': text}}], got "
                    f"{line[:60]!r} ({type(error).__name__}: {error})"
                ) from error
            policy = _replay(actions, tokenizer)
            yield demonstrate(make_episode(task), policy, tokenizer, 0)


def _replay(actions: Sequence[str], tokenizer: Tokenizer) -> ScriptedPolicy:
    left = iter(actions)
    stop = tokenizer.decode([tokenizer.stop_ids[0]])

    def policy(situation: Situation, rng: np.random.Generator) -> str:
        return next(left, "").removesuffix(stop)

    return policy

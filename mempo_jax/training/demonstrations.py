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
from mempo_jax.memory import closing_tags
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import Segment, SegmentBuilder
from mempo_jax.settings import ConfigError


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
    trajectories. A line that has the task's ``seed`` must name that of this run.

    Raises:
      ConfigError: a missing file or a line that does not fit, with its number.
    """
    file = pathlib.Path(path)
    if not file.is_file():
        raise ConfigError(
            f"config.train.demonstrations_path: expected a JSONL file, got {path!r}"
        )
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                task, actions = _read_record(line, find_task)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{path}, line {number}: expected an object with task "
                    f"'suite/split/index' and turns [{{'action': text}}], got "
                    f"{line[:60]!r} ({type(error).__name__}: {error})"
                ) from error
            policy = _replay(actions, tokenizer)
            episode = make_episode(task)
            yield demonstrate(episode, policy, tokenizer, 0, len(actions))


def _read_record(
    line: bytes, find_task: Callable[[str, int], Task]
) -> tuple[Task, list[str]]:
    record = json.loads(line)
    _, split, index = record["task"].split("/")
    task = find_task(split, int(index))
    start = (record["task"], record.get("seed", task.seed))
    if start != (task.id, task.seed):
        raise ValueError(
            f"recorded on task {start[0]} with seed {start[1]}; this run's is "
            f"{task.id} with seed {task.seed}: set config.env and config.seed as then"
        )
    return task, [str(turn["action"]) for turn in record["turns"]]


def _replay(actions: Sequence[str], tokenizer: Tokenizer) -> ScriptedPolicy:
    left = iter(actions)
    stop = tokenizer.decode([tokenizer.stop_ids[0]])

    def policy(situation: Situation, rng: np.random.Generator) -> str:
        return next(left, "").removesuffix(stop)

    return policy

"""Demonstrations: scripted or recorded actions, run through real episodes.

They give the same segments and masks as sampling does, so the cold start trains on
exactly what reinforcement learning will see.

Recorded demonstrations are JSONL. Each line is one trajectory, a JSON object:

    {"task": "ledger/train/0", "seed": 1234, "turns": [
        {"observation": "ann bus is 7", "action": "<mem_write> ann bus 7</mem_write>"},
        {"observation": "what is ann bus", "action": "<answer> 7</answer>"}]}

``task``    suite, split and index of the task, which is played again in this run. The
            split is "train": others are held out.
``seed``    may be missing; if it is there, it must be the task's.
``turns``   at least one. ``action`` is what the policy wrote in a turn, in the action
            grammar; it may end with the stop token's text. ``observation`` is for
            people: the environment makes its own.

Other fields are ignored, so the lines that a run keeps of its training, in
``trajectories/step_*.jsonl``, fit as they are. Empty lines are skipped.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mempo_jax.envs import (
    EnvironmentFault,
    Episode,
    EpisodeStatus,
    ScriptedPolicy,
    Situation,
    Task,
    derived_seed,
)
from mempo_jax.memory import closing_tags
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import Segment, SegmentBuilder
from mempo_jax.settings import ConfigError

FIELD = "config.train.demonstrations_path"  # for errors


def raised(error: EnvironmentFault) -> None:
    """Raises ``error``: what is done with a failed demonstration by default."""
    raise error


def demonstrate(
    episode: Episode,
    policy: ScriptedPolicy,
    tokenizer: Tokenizer,
    seed: int,
    max_turns: int | None = None,
) -> list[Segment]:
    """Runs one episode with a scripted policy; returns its segments.

    As in sampling, a turn ends after its first closing tag, else with a stop token.

    Args:
      episode: at its beginning.
      policy: writes each turn.
      tokenizer: encodes what it writes.
      seed: of the policy's random choices.
      max_turns: turns after which it stops although the episode has not ended; None:
        no limit.
    """
    tags = closing_tags()
    rng = np.random.default_rng(seed)
    builder = SegmentBuilder(tokenizer)
    while not episode.done and episode.turn != max_turns:
        view = episode.observe(builder.measure)
        if view is None:  # no context has room for another turn
            break
        builder.show(view, episode.turn)
        text = policy(episode.situation(), rng)
        ends = [text.index(tag) + len(tag) for tag in tags if tag in text]
        # What follows the first closing tag would never be sampled.
        ids = tokenizer.encode(text[: min(ends)] if ends else text)
        if stopped := not ends:
            ids = [*ids, tokenizer.end_id]
        # Zeros: nothing was sampled, and the supervised loss reads no log-probs.
        builder.acted(ids, np.zeros(len(ids)), episode.turn)
        # Decoded again, so that the episode sees what the tokens spell.
        episode.act(tokenizer.decode(ids), tokenizer.offsets(ids), stopped)
    return builder.segments


def scripted(
    make_episode: Callable[[Task], Episode],
    tasks: Sequence[Task],
    policy: ScriptedPolicy,
    tokenizer: Tokenizer,
    failed: Callable[[EnvironmentFault], None] = raised,
) -> Iterator[list[Segment]]:
    """Plays one demonstration per task.

    Args:
      make_episode: begins an episode of a task.
      tasks: what to demonstrate.
      policy: the expert.
      tokenizer: of the policy to train.
      failed: told of a demonstration whose environment failed, and which is left out.

    Yields:
      The segments of each.
    """
    for task in tasks:
        # Of the task alone, so that a demonstration does not depend on those before it.
        seed = derived_seed("demonstration", task.seed, task.index)
        try:
            segments = demonstrate(make_episode(task), policy, tokenizer, seed)
        except EnvironmentFault as error:
            failed(error)
        else:
            yield segments


def recorded(
    path: str,
    find_task: Callable[[str, int], Task],
    make_episode: Callable[[Task], Episode],
    tokenizer: Tokenizer,
    failed: Callable[[EnvironmentFault], None] = raised,
) -> Iterator[list[Segment]]:
    """Plays recorded trajectories again; the module docstring has the format.

    Args:
      path: of the JSONL file.
      find_task: (split, index) -> the task of this run.
      make_episode: begins an episode of a task.
      tokenizer: of the policy to train.
      failed: as for ``scripted``.

    Yields:
      The segments of each.

    Raises:
      ConfigError: a missing file, or a line that does not fit.
    """
    for recording in read_demonstrations(path, find_task):
        actions = recording.actions
        policy = _replay(actions, tokenizer)
        try:
            episode = make_episode(recording.task)
            # Seed 0: a replay draws nothing. Its turns may end before the episode does.
            segments = demonstrate(episode, policy, tokenizer, 0, len(actions))
        except EnvironmentFault as error:
            failed(error)
            continue
        # Turns behind the end would go unplayed without a word, and less would be
        # taught than the file holds.
        if episode.status is EpisodeStatus.DONE and episode.turn < len(actions):
            raise ConfigError(
                f"{recording.place}, field turns: expected at most {episode.turn}, "
                f"behind which {recording.task.id} ends, got {len(actions)}; set "
                "config.env as when it was recorded"
            )
        yield segments


def records(
    make_episode: Callable[[Task], Episode],
    tasks: Sequence[Task],
    policy: ScriptedPolicy,
    tokenizer: Tokenizer,
) -> Iterator[dict[str, Any]]:
    """Plays what ``scripted`` plays, and yields it in the form of a recording.

    Args:
      make_episode: begins an episode of a task.
      tasks: what to demonstrate.
      policy: the expert.
      tokenizer: of the policy to train.

    Yields:
      A record of each, for ``write_demonstrations``.
    """
    for task in tasks:
        episode = make_episode(task)
        seed = derived_seed("demonstration", task.seed, task.index)
        # With the seed of ``scripted``: the file holds what a cold start would have
        # played.
        demonstrate(episode, policy, tokenizer, seed)
        actions = (_without_stop(text, tokenizer) for text in episode.actions)
        yield {
            "task": task.id,
            "seed": task.seed,
            "turns": [
                {"observation": observation, "action": action}
                for observation, action in zip(
                    episode.observations, actions, strict=False
                )
            ],
            "score": episode.env.score(),
        }


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """One recorded demonstration, checked.

    Attributes:
      place: file and line, for errors.
      task: the task that was played.
      actions: what was written in each turn, in order.
    """

    place: str
    task: Task
    actions: tuple[str, ...]


def read_demonstrations(
    path: str, find_task: Callable[[str, int], Task]
) -> Iterator[Demonstration]:
    """Streams the demonstrations of a file, so that it may be larger than memory.

    Args:
      path: of the JSONL file.
      find_task: (split, index) -> the task of this run.

    Raises:
      ConfigError: a missing file, or a line that does not fit; names the file, the line
        (from 1), the field, what was expected and what came.
    """
    check_file(path)
    # Bytes, decoded one line at a time, so that an error names its line.
    with pathlib.Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(line, f"{path}, line {number}", find_task)


def write_demonstrations(path: pathlib.Path, records: Iterable[dict[str, Any]]) -> int:
    """Writes one line for each record as it comes.

    Args:
      path: of the JSONL file; replaced if it is there.
      records: as ``records`` makes them.

    Returns:
      The number of lines.
    """
    count = 0
    # UTF-8 whatever the locale, since reading decodes that.
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            # Not as ASCII escapes: people read and edit these files.
            file.write(f"{json.dumps(record, ensure_ascii=False)}\n")
            count += 1
    return count


def check_file(path: str) -> None:
    """Checks that there is a file.

    Args:
      path: of a JSONL file of demonstrations.

    Raises:
      ConfigError: there is none.
    """
    if not pathlib.Path(path).is_file():
        raise ConfigError(f"{FIELD}: expected a JSONL file, got {path!r}")


def _replay(actions: Sequence[str], tokenizer: Tokenizer) -> ScriptedPolicy:
    """A policy that writes these actions in order, whatever it is shown."""
    remaining = iter(actions)

    def policy(situation: Situation, rng: np.random.Generator) -> str:
        return _without_stop(next(remaining, ""), tokenizer)

    return policy


def _without_stop(text: str, tokenizer: Tokenizer) -> str:
    """The text without a stop token at its end: ``demonstrate`` adds the one to use."""
    stops = (tokenizer.decode([number]) for number in tokenizer.stop_ids)
    return text.removesuffix(next(filter(text.endswith, stops), ""))


def _parse(
    line: bytes, place: str, find_task: Callable[[str, int], Task]
) -> Demonstration:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # the second: nested too deeply
        raise ConfigError(
            f"{place}: expected a JSON object in one line, got {_cut(line)} ({error})"
        ) from error
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: expected a JSON object, got {_cut(record)}")
    task = _task(record, place, find_task)
    turns = _field(record, "turns", list, "a list of turns", place)
    if not turns:
        raise ConfigError(f"{place}, field turns: expected at least one turn, got []")
    actions = []
    for at, turn in enumerate(turns):
        where = f"{place}, field turns[{at}]"
        if not isinstance(turn, dict):
            raise ConfigError(f"{where}: expected an object, got {_cut(turn)}")
        actions.append(_field(turn, "action", str, "a text", where, joint="."))
    return Demonstration(place, task, tuple(actions))


def _task(record: dict, place: str, find_task: Callable[[str, int], Task]) -> Task:
    """The task of a record, checked to be the one that was recorded."""
    name = _field(record, "task", str, "'suite/split/index'", place)
    parts = name.split("/")
    # isdigit alone accepts signs such as superscripts, which int refuses.
    if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdigit()):
        raise ConfigError(
            f"{place}, field task: expected 'suite/split/index', got {_cut(name)}"
        )
    if parts[1] != "train":
        raise ConfigError(
            f"{place}, field task: expected a task of split train, got {_cut(name)}; "
            "other tasks are held out, what is trained on them would not be"
        )
    try:
        task = find_task(parts[1], int(parts[2]))
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{place}, field task: {error}") from error
    if name != task.id:
        raise ConfigError(
            f"{place}, field task: expected a task of this run's, like {task.id}, got "
            f"{name}; set config.env.name as when it was recorded"
        )
    if record.get("seed", task.seed) != task.seed:
        raise ConfigError(
            f"{place}, field seed: expected {task.seed}, which {task.id} has in this "
            f"run, got {_cut(record['seed'])}; set config.env and config.seed as when "
            "it was recorded, or leave the field out"
        )
    return task


def _field(
    record: dict,
    name: str,
    kind: type,
    expected: str,
    place: str,
    joint: str = ", field ",
) -> Any:
    """The field of a record; ``place`` and ``joint`` begin the error's message."""
    if name not in record:
        known = ", ".join(map(str, list(record)[:8])) or "nothing"
        raise ConfigError(
            f"{place}{joint}{name}: expected {expected}, there is {_cut(known)}"
        )
    if not isinstance(record[name], kind):
        raise ConfigError(
            f"{place}{joint}{name}: expected {expected}, got {_cut(record[name])}"
        )
    return record[name]


def _cut(value: Any) -> str:
    """The value as text, short enough for an error of one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

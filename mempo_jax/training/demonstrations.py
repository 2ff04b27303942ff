"""Demonstrations: scripted or recorded actions run through real episodes.

They make the same segments and masks as sampling does, so the cold start trains on
exactly what reinforcement learning will see.

Demonstrations as JSONL: the format, read with checks and written.

One line is one trajectory, a JSON object:

    {"task": "ledger/train/0", "seed": 1234, "turns": [
        {"observation": "ann bus is 7", "action": "<mem_write> ann bus 7</mem_write>"},
        {"observation": "what is ann bus", "action": "<answer> 7</answer>"}]}

``task``    suite, split and index: the task of this run that is played again. The
            split is "train": others are held out.
``seed``    may be missing; where it stands it must be the task's.
``turns``   at least one; what the policy said in each turn, in the action grammar.
            ``action`` may end with the stop token's text. ``observation`` is for
            people: the episode shows what it shows.

Other fields are left alone: the lines that a run keeps of its training, in
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

FIELD = "config.train.demonstrations_path"


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """place: file and line, for errors. actions: of the turns, in order."""

    place: str
    task: Task
    actions: tuple[str, ...]


def check_file(path: str) -> None:
    """Raises ConfigError if there is no file at ``path``."""
    if not pathlib.Path(path).is_file():
        raise ConfigError(f"{FIELD}: expected a JSONL file, got {path!r}")


def read_demonstrations(
    path: str, find_task: Callable[[str, int], Task]
) -> Iterator[Demonstration]:
    """Streams the demonstrations of a file.

    Raises:
      ConfigError: a missing file, or a line that does not fit; names the file, the line
        (from 1), the field, what was expected and what came.
    """
    check_file(path)
    with pathlib.Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _read(line, f"{path}, line {number}", find_task)


def _read(
    line: bytes, place: str, find_task: Callable[[str, int], Task]
) -> Demonstration:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
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
    name = _field(record, "task", str, "'suite/split/index'", place)
    parts = name.split("/")
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


def write_demonstrations(path: pathlib.Path, records: Iterable[dict[str, Any]]) -> int:
    """Writes one line for each record as it comes; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(f"{json.dumps(record, ensure_ascii=False)}\n")
            count += 1
    return count


def _field(
    record: dict,
    name: str,
    kind: type,
    expected: str,
    place: str,
    joint: str = ", field ",
) -> Any:
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
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


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
        if episode.status is EpisodeStatus.DONE and episode.turn < len(actions):
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

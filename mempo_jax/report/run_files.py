"""Reads what a run wrote; its files may be missing, cut off or damaged.

Nothing here raises because of what a file holds. What cannot be read is counted.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mempo_jax.memory import OpRecord
from mempo_jax.runs import Columns, Table
from mempo_jax.settings import migrated

LATEST = 2**53  # steps from there on are not exact as floats
TOO_LARGE = 1e300  # for sums of it to be finite
Runs = tuple[tuple[int, tuple[int, ...]], ...]  # op, lengths of its tokens


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """What the directory of a run holds beside its trajectories.

    Attributes:
      name: of the directory.
      config: config.json, empty if there is none.
      metrics: metrics.jsonl by column.
      unreadable: lines of it that are no JSON object.
      summary: summary.json, None before the end of the run.
      cold_start: evaluation_cold_start.json, None before it was made.
      evaluation: evaluation.json, None if other policies were not measured.
      machine: versions and devices of the last start, from machines.json; empty if they
        were not noted.
      starts: when the run was started, and started again, in the words of the file.
    """

    name: str
    config: Mapping[str, Any]
    metrics: Table
    unreadable: int
    summary: Mapping[str, Any] | None
    cold_start: Mapping[str, Any] | None
    evaluation: Mapping[str, Any] | None
    machine: Mapping[str, Any]
    starts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class RecordedTurn:
    """One turn of a recorded trajectory.

    Attributes:
      observation: what the turn saw.
      action: what the policy said.
      reward: what the turn earned, None if it is not known.
      runs: the tokens of the action (``rollout.trajectory.TokenRun``), None if the
        record has none.
      cut: whether the action was cut by the limit of its tokens.
    """

    observation: str
    action: str
    reward: float | None
    runs: Runs | None
    cut: bool


class RecordedQuestion(NamedTuple):
    """A question of a task: the observation that asks it, the gold answer, and the
    observations that hold the answer."""

    observation: int
    answer: str
    support: frozenset[int]


@dataclasses.dataclass(frozen=True)
class RecordedCredit:
    """``rollout.trajectory.TokenCredit`` as it was recorded."""

    trained: bool
    advantage: float
    by_op: tuple[tuple[float, float, float], ...]
    by_turn: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class RecordedTrajectory:
    """One trajectory of a file.

    Attributes:
      source: name of the file, such as ``step_000010``.
      turns, log: by turn what was seen and said, and the ops in order.
      observed: by turn the index of the observation that it showed.
      questions, question_scores: of the task; empty in records without them.
      raw, weighted, total: the components of the reward and their sum.
      useful: turns that first show an observation which deserves memory.
      credit: None in records without it.
    """

    source: str
    task: str
    sample: int
    status: str
    failure: str | None
    goal: str
    turns: tuple[RecordedTurn, ...]
    answers: tuple[str, ...]
    log: tuple[OpRecord, ...]
    observed: tuple[int, ...]
    questions: tuple[RecordedQuestion, ...]
    question_scores: tuple[float, ...]
    raw: Mapping[str, float]
    weighted: Mapping[str, float]
    total: float | None
    useful: frozenset[int]
    tokens_total: int
    tokens_peak: int
    credit: RecordedCredit | None

    @property
    def score(self) -> float | None:
        """The score of the task, None if nothing was scored."""
        return self.raw.get("task")

    @property
    def outcome(self) -> str:
        """One of solved, partly, unsolved and failed."""
        if self.failure is not None or self.score is None:
            return "failed"
        if self.score >= 1:
            return "solved"
        return "partly" if self.score > 0 else "unsolved"


class Lines:
    """The JSON objects of a file of lines, one at a time.

    Attributes:
      unreadable: lines so far that are no object; the last line of a run that was
        killed may be cut off.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.unreadable = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            for line in file:
                if line.strip():
                    value = _parsed(line)
                    if value is None:
                        self.unreadable += 1
                    else:
                        yield value


def read_run(path: pathlib.Path) -> RunFiles | None:
    """Reads the directory of a run.

    Args:
      path: the directory.

    Returns:
      What it holds; None if it is not the directory of a run.

    Raises:
      OSError: a file is there and cannot be read.
      ConfigError: a newer version of mempo_jax wrote it.
    """
    config, metrics = read_object(path / "config.json"), path / "metrics.jsonl"
    there = metrics.is_file()
    if config is None and not there and not (path / "trajectories").is_dir():
        return None
    noted = read_object(path / "machines.json") or {}
    machines = _list(noted.get("machines"))
    lines = Lines(metrics)
    table = by_step(lines if there else ())
    return RunFiles(
        name=path.resolve().name,
        config=migrated(config or {}, path / "config.json"),
        metrics=table,
        unreadable=lines.unreadable,
        summary=read_object(path / "summary.json"),
        cold_start=read_object(path / "evaluation_cold_start.json"),
        evaluation=read_object(path / "evaluation.json"),
        machine=_mapping(machines[-1]) if machines else {},
        starts=tuple(filter(None, map(_text, _list(noted.get("starts"))))),
    )


def by_step(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Puts metrics in the order of their steps.

    Args:
      rows: of metrics.jsonl.

    Returns:
      Columns of numbers; of two rows of one step the later counts, and a row without a
      step does not.
    """
    columns = Columns()
    for row in rows:
        step = row.get("step")
        if type(step) is int and abs(step) < LATEST:
            columns.add(row)
    return columns.table()


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
    """Reads a file that holds one JSON object.

    Args:
      path: of the file.

    Returns:
      The object; None if there is no file, or it holds something else.
    """
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def read_record(source: str, value: Mapping[str, Any]) -> RecordedTrajectory | None:
    """Reads a trajectory from its JSON object.

    Args:
      source: name of its file, without the suffix.
      value: the object; fields of another type count as missing.

    Returns:
      The trajectory; None if the object has no turns.
    """
    turns = value.get("turns")
    if not isinstance(turns, list):
        return None
    rewards = _mapping(value.get("rewards"))
    by_turn = _list(rewards.get("by_turn"))
    ops = _list(value.get("ops"))
    log = tuple(_op(op, len(turns)) for op in ops if isinstance(op, dict))
    read = tuple(
        _turn(_mapping(turn), by_turn[n] if n < len(by_turn) else None)
        for n, turn in enumerate(turns)
    )
    observed = _observed(len(read), log)
    scores = tuple(map(number_of, _list(value.get("question_scores"))))
    return RecordedTrajectory(
        source=source,
        task=_text(value.get("task")),
        sample=_integer(value.get("sample")),
        status=_text(value.get("status")),
        failure=_optional_text(value.get("failure")),
        goal=_text(value.get("goal")),
        turns=read,
        answers=tuple(map(_text, _list(value.get("answers")))),
        log=log,
        observed=observed,
        questions=tuple(map(_question, _list(value.get("questions")))),
        question_scores=() if None in scores else scores,
        raw=_numbers(rewards.get("raw")),
        weighted=_numbers(rewards.get("weighted")),
        total=number_of(rewards.get("total")),
        useful=_useful(observed, _integers(value.get("useful_observations"))),
        tokens_total=_integer(value.get("tokens_total")),
        tokens_peak=_integer(value.get("tokens_peak")),
        credit=_credit(value.get("credit")),
    )


def number_of(value: Any) -> float | None:
    """Reads a number; records of other writers may hold NaN.

    Args:
      value: anything from JSON.

    Returns:
      The number, None if it is none or not finite.
    """
    if isinstance(value, bool | int | float):
        number = float(value) if abs(value) < TOO_LARGE else math.inf
        return number if math.isfinite(number) else None
    return None


def _observed(number: int, log: tuple[OpRecord, ...]) -> tuple[int, ...]:
    """A turn that recalls is followed by the same observation again."""
    last = {record.turn: str(record.kind) for record in log}
    observation, observed = 0, []
    for turn in range(number):
        observed.append(observation)
        observation += last.get(turn) != "recall"
    return tuple(observed)


def _useful(observed: Sequence[int], useful: Sequence[int]) -> frozenset[int]:
    """Turns that are the first to show one of these observations."""
    return frozenset(observed.index(each) for each in useful if each in observed)


def _question(value: Any) -> RecordedQuestion:
    value = _mapping(value)
    support = frozenset(_integers(value.get("support")))
    observation = value.get("observation")
    at = observation if type(observation) is int else -1
    return RecordedQuestion(at, _text(value.get("answer")), support)


def _turn(value: Mapping[str, Any], reward: Any) -> RecordedTurn:
    action = _text(value.get("action"))
    tokens = value.get("tokens")
    runs: list[tuple[int, tuple[int, ...]]] = []
    for run in _list(tokens):
        if isinstance(run, list) and len(run) == 2:
            runs.append((_integer(run[0]), tuple(map(_integer, _list(run[1])))))
    fits = sum(sum(lengths) for _, lengths in runs) == len(action)
    known = tokens is not None and fits and all(n >= 0 for _, ns in runs for n in ns)
    seen = _text(value.get("observation"))
    cut = value.get("cut") is True
    return RecordedTurn(
        seen, action, number_of(reward), tuple(runs) if known else None, cut
    )


def _op(value: Mapping[str, Any], turns: int) -> OpRecord:
    entry_ids, evicted = (_integers(value.get(n)) for n in ("entry_ids", "evicted"))
    return OpRecord(
        turn=min(max(_integer(value.get("turn")), 0), max(turns - 1, 0)),
        kind=_text(value.get("kind")),
        outcome=_text(value.get("outcome")),
        entry_ids=entry_ids,
        similarity=number_of(value.get("similarity")) or 0.0,
        error=_optional_text(value.get("error")),
        text=_text(value.get("text")),
        stored=_text(value.get("stored")),
        title=_optional_text(value.get("title")),
        k=_integer(value.get("k")),
        supersedes=value.get("supersedes") is True,
        evicted=evicted,
    )


def _credit(value: Any) -> RecordedCredit | None:
    if not isinstance(value, dict):
        return None
    advantage = number_of(value.get("advantage"))
    by_op, by_turn = _rows(value.get("ops"), 3), _rows(value.get("turns"), 2)
    if advantage is None or by_op is None or by_turn is None:
        return None
    return RecordedCredit(value.get("trained") is True, advantage, by_op, by_turn)


def _rows(value: Any, width: int) -> tuple | None:
    """Rows of ``width`` numbers, None where one is not."""
    rows = []
    for row in _list(value):
        numbers = tuple(map(number_of, _list(row)))
        if len(numbers) != width or None in numbers:
            return None
        rows.append(numbers)
    return tuple(rows)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(value: Any) -> dict[str, float]:
    read = {name: number_of(each) for name, each in _mapping(value).items()}
    return {name: number for name, number in read.items() if number is not None}


def _integers(value: Any) -> tuple[int, ...]:
    return tuple(each for each in _list(value) if type(each) is int)


def _integer(value: Any) -> int:
    return value if type(value) is int else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _optional_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

"""What a run wrote, read with patience: files may be missing, cut off or damaged.

Nothing here raises for what stands in a file. What cannot be read is counted.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from mempo_jax.memory import OpRecord

TOO_LARGE = 1e300  # for sums of it to be finite
Runs = tuple[tuple[int, tuple[int, ...]], ...]  # op, lengths of its tokens


@dataclasses.dataclass(frozen=True)
class Turn:
    """What a turn saw and said, the reward that it earned; runs: the tokens of what it
    said (``rollout.credited.Run``), None where the record has none; cut: whether that
    was cut by the limit of its tokens."""

    observation: str
    action: str
    reward: float | None
    runs: Runs | None
    cut: bool


@dataclasses.dataclass(frozen=True)
class Credit:
    """``rollout.credited.TokenCredit`` as it was recorded."""

    trained: bool
    advantage: float
    by_op: tuple[tuple[float, float, float], ...]
    by_turn: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """One trajectory of a file; ``source`` is its name, as ``step_000010``.

    useful: turns that first show an observation which deserves memory. score: of the
    task, None where nothing was scored. credit: None in records without it.
    """

    source: str
    task: str
    sample: int
    status: str
    failure: str | None
    goal: str
    turns: tuple[Turn, ...]
    answers: tuple[str, ...]
    log: tuple[OpRecord, ...]
    raw: Mapping[str, float]
    weighted: Mapping[str, float]
    total: float | None
    useful: frozenset[int]
    tokens_total: int
    tokens_peak: int
    credit: Credit | None

    @property
    def score(self) -> float | None:
        return self.raw.get("task")

    @property
    def outcome(self) -> str:
        """solved, partly, unsolved or failed."""
        if self.failure is not None or self.score is None:
            return "failed"
        if self.score >= 1:
            return "solved"
        return "partly" if self.score > 0 else "unsolved"


class Lines:
    """The JSON objects of a file of lines, one at a time.

    unreadable: lines so far that are none; the last line of a run that was killed may
    be cut off.
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


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
    """The JSON object of a file, None where there is none."""
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def read_record(source: str, value: Mapping[str, Any]) -> Record | None:
    """A trajectory from its object, None where it is none."""
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
    seen = set(map(_integer, _list(value.get("useful_observations"))))
    return Record(
        source=source,
        task=_text(value.get("task")),
        sample=_integer(value.get("sample")),
        status=_text(value.get("status")),
        failure=_optional_text(value.get("failure")),
        goal=_text(value.get("goal")),
        turns=read,
        answers=tuple(map(_text, _list(value.get("answers")))),
        log=log,
        raw=_numbers(rewards.get("raw")),
        weighted=_numbers(rewards.get("weighted")),
        total=number_of(rewards.get("total")),
        useful=_useful(len(read), log, seen),
        tokens_total=_integer(value.get("tokens_total")),
        tokens_peak=_integer(value.get("tokens_peak")),
        credit=_credit(value.get("credit")),
    )


def number_of(value: Any) -> float | None:
    """A finite number, else None: records of other writers may hold NaN."""
    if isinstance(value, bool | int | float):
        number = float(value) if abs(value) < TOO_LARGE else math.inf
        return number if math.isfinite(number) else None
    return None


def _useful(count: int, log: tuple[OpRecord, ...], seen: set[int]) -> frozenset[int]:
    """Turns that first show these observations; one that recalls is followed by the
    same observation again."""
    last = {record.turn: str(record.kind) for record in log}
    observation, turns, before = 0, [], -1
    for turn in range(count):
        if observation in seen and observation != before:
            turns.append(turn)
        before = observation
        observation += last.get(turn) != "recall"
    return frozenset(turns)


def _turn(value: Mapping[str, Any], reward: Any) -> Turn:
    action = _text(value.get("action"))
    made = value.get("tokens")
    runs: list[tuple[int, tuple[int, ...]]] = []
    for run in _list(made):
        if isinstance(run, list) and len(run) == 2:
            runs.append((_integer(run[0]), tuple(map(_integer, _list(run[1])))))
    fits = sum(sum(lengths) for _, lengths in runs) == len(action)
    known = made is not None and fits and all(n >= 0 for _, ns in runs for n in ns)
    seen = _text(value.get("observation"))
    cut = value.get("cut") is True
    return Turn(seen, action, number_of(reward), tuple(runs) if known else None, cut)


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


def _credit(value: Any) -> Credit | None:
    if not isinstance(value, dict):
        return None
    advantage = number_of(value.get("advantage"))
    by_op, by_turn = _rows(value.get("ops"), 3), _rows(value.get("turns"), 2)
    if advantage is None or by_op is None or by_turn is None:
        return None
    return Credit(value.get("trained") is True, advantage, by_op, by_turn)


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

"""What a compiled program sends between devices, counted from its own text."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import NamedTuple

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_OP = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(?:-start)?\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
# mesh['a'=4,'b'=2] {'a'}, or a part of an axis: {'a':(1)2}
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_SIZE = re.compile(r"'(\w+)'=(\d+)")
_AXIS = re.compile(r"'(\w+)'(?::\(\d+\)(\d+))?")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
_CHANNEL = re.compile(r"channel_id=(\d+)")


class Traffic(NamedTuple):
    """times an operation is carried out in one run of the program; bytes that one
    device sends in all of them, as a ring of devices would."""

    times: int
    sent: int

    def __add__(self, other: tuple) -> Traffic:
        return Traffic(self.times + other[0], self.sent + other[1])


class Operation(NamedTuple):
    """One operation of a program, and what one device sends each time.

    Attributes:
      kind: one of ``KINDS``.
      shapes: of its results.
      sent: bytes, as a ring of devices would.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    sent: int


def count(text: str) -> dict[str, Traffic]:
    """By kind, from the text of a compiled program (``compiled.as_text()``).

    A loop counts as often as it is known to run, else once.
    """
    program = _Program(text)
    made = {kind: Traffic(0, 0) for kind in KINDS}
    for operation, times in program.operations(program.entry):
        made[operation.kind] += (times, times * operation.sent)
    return made


def in_one_turn(text: str) -> list[tuple[Operation, int]]:
    """What one turn of the outermost loops sends, and how often in that turn.

    A program that decodes is one such loop, whose turns are tokens; layers may be loops
    within it, or be laid out one by one.
    """
    program = _Program(text)
    bodies, seen = [], set()

    def find(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        bodies.extend(program.bodies[name])
        for called, _ in program.calls[name]:
            if called not in program.bodies[name]:
                find(called)

    find(program.entry)
    return [each for body in bodies for each in program.operations(body)]


class _Program:
    """The computations of a program's text, by name.

    Attributes:
      entry: where it begins.
      inside: operations.
      calls: other computations that are called, and how often each time.
      bodies: those of ``calls`` that are bodies of loops.
    """

    def __init__(self, text: str) -> None:
        self.entry = ""
        self.inside: dict[str, list[Operation]] = defaultdict(list)
        self.calls: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.bodies: dict[str, list[str]] = defaultdict(list)
        name, channels = "", set()
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                name = found[1]
                self.entry = name if line.startswith("ENTRY") else self.entry
                continue
            if found := _OP.search(line):
                # An operation that others hide is repeated in all of these (the TPU's
                # compiler does so), and its channel says that it is the same.
                channel = _CHANNEL.search(line)
                if channel is None or channel[1] not in channels:
                    self.inside[name].append(_operation(found[2], found[1], line))
                channels |= {channel[1]} if channel else set()
            self._note_calls(name, line)

    def _note_calls(self, name: str, line: str) -> None:
        trips = _TRIPS.search(line)
        loop = " while(" in line
        times = int(trips[1]) if trips and loop else 1
        called = _CALLED.findall(line)
        for listed in _BRANCHES.findall(line):
            called += [each.strip().lstrip("%") for each in listed.split(",")]
        self.calls[name] += [(each, times) for each in called]
        if loop:
            self.bodies[name] += called

    def operations(self, start: str) -> list[tuple[Operation, int]]:
        """From one computation on, with how often each is carried out."""
        total: Counter = Counter()
        _visit(start, 1, self.calls, total)
        return [
            (each, times)
            for where, times in total.items()
            for each in self.inside[where]
            if each.sent  # a group of one device sends nothing
        ]


def _operation(kind: str, result: str, line: str) -> Operation:
    shapes = tuple(
        tuple(int(n) for n in dims.split(",") if n)
        for _, dims in _SHAPE.findall(result)
    )
    return Operation(kind, shapes, _sent(kind, result, line))


def _visit(name: str, times: int, calls: dict, total: Counter) -> None:
    total[name] += times
    for called, inner in calls[name]:
        _visit(called, times * inner, calls, total)


def _sent(kind: str, result: str, line: str) -> int:
    size = sum(
        _BYTES.get(dtype, 4) * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in _SHAPE.findall(result)
    )
    if kind == "collective-permute":
        return size
    group = _group(line)
    if kind == "all-reduce":
        return 2 * size * (group - 1) // group
    if kind == "reduce-scatter":
        return size * (group - 1)
    return size * (group - 1) // group


def _group(line: str) -> int:
    if found := _MESH.search(line):
        sizes = dict(_SIZE.findall(found[1]))
        axes = _AXIS.findall(found[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    if found := _IOTA.search(line):
        return int(found[2])
    if found := _GROUPS.search(line):
        return len(found[1].split(","))
    return 1

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


class Traffic(NamedTuple):
    """times an operation is carried out in one run of the program; bytes that one
    device sends in all of them, as a ring of devices would."""

    times: int
    sent: int

    def __add__(self, other: tuple) -> Traffic:
        return Traffic(self.times + other[0], self.sent + other[1])


def count(text: str) -> dict[str, Traffic]:
    """By kind, from the text of a compiled program (``compiled.as_text()``).

    A loop counts as often as it is known to run, else once.
    """
    inside: dict[str, list[tuple[str, int]]] = defaultdict(list)
    calls: dict[str, list[tuple[str, int]]] = defaultdict(list)
    name, entry = "", ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            name = found[1]
            entry = name if line.startswith("ENTRY") else entry
            continue
        if found := _OP.search(line):
            inside[name].append((found[2], _sent(found[2], found[1], line)))
        trips = _TRIPS.search(line)
        times = int(trips[1]) if trips and " while(" in line else 1
        called = _CALLED.findall(line)
        for listed in _BRANCHES.findall(line):
            called += [each.strip().lstrip("%") for each in listed.split(",")]
        calls[name] += [(each, times) for each in called]
    total: Counter = Counter()
    made = {kind: Traffic(0, 0) for kind in KINDS}
    _visit(entry, 1, calls, total)
    for where, times in total.items():
        for kind, sent in inside[where]:
            if sent:  # a group of one device sends nothing
                made[kind] += (times, times * sent)
    return made


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

"""Do more devices and more processes give the same numbers, and what do they send?

    python -m benchmarks.scaling [--quick] [--json=FILE]

Three updates of a small decoder, the same batches each time, on 1, 2, 4 and 8 virtual
CPU devices and on 2 and 4 processes: losses and parameters beside those of one device.
What devices send to each other is counted from the text of the compiled programs, loops
as often as they run: times and bytes of one device, of one update of two micro-batches
(score and accumulate twice, apply once). Its growth with the mesh can be read off.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks import _machine, _processes, _tables
from benchmarks._collectives import KINDS

# (processes, data, fsdp, tensor)
CASES = (
    (1, 1, 1, 1),
    (1, 2, 1, 1),
    (1, 1, 2, 1),
    (1, 1, 1, 2),
    (1, 4, 1, 1),
    (1, 1, 4, 1),
    (1, 8, 1, 1),
    (1, 1, 8, 1),
    (1, 2, 4, 1),
    (1, 2, 2, 2),
    (2, 2, 2, 2),
    (4, 2, 2, 2),
)
QUICK = (CASES[0], CASES[9])
TIMES = {"score": 2, "accumulate": 2, "apply": 1}
MOST = 1e-5  # that numbers may differ


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two cases only")
    parser.add_argument("--json", default="", help="a file for all figures")
    options = parser.parse_args(arguments)
    made = run(QUICK if options.quick else CASES, _say)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(made, indent=1) + "\n")
    print(table(made), flush=True)
    worst = (max(case["difference"], case["of_loss"]) for case in made["cases"])
    return 0 if all(each <= MOST for each in worst) else 1


def run(cases, say=lambda text: None) -> dict:
    """Plain data: of each case its figures, and the largest differences to the first:
    of parameters, and of losses as a share."""
    found, base = [], None
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            figures, params = _case(case, pathlib.Path(folder))
            base = base or (figures["losses"], params)
            figures["case"] = case
            figures["difference"] = _difference(params, base[1])
            figures["of_loss"] = _difference([figures["losses"]], [base[0]], True)
            say(f"{case}: {figures['difference']:.1e}, {figures['of_loss']:.1e}")
            found.append(figures)
    return {"machine": _machine.facts(), "cases": found}


def _case(case, folder: pathlib.Path) -> tuple[dict, list[np.ndarray]]:
    count, *axes = case
    devices = int(np.prod(axes)) // count
    file = folder / "params.npz"
    words = (f"--axes={','.join(map(str, axes))}", f"--params={file}")
    env = _processes.environment(folder / "compiled", devices)
    started = _processes.start("benchmarks._scaling_case", words, count, env)
    for code, _, err in (ended := _processes.finish(started)):
        if code:
            raise RuntimeError(f"case {case}: a process ended with code {code}\n{err}")
    with np.load(file) as arrays:
        params = [arrays[name] for name in arrays]
    return json.loads(ended[0][1].splitlines()[-1]), params


def _difference(made, base, relative: bool = False) -> float:
    """The largest of all numbers, or of their shares of the base's."""
    worst = 0.0
    for one, other in zip(map(np.asarray, made), map(np.asarray, base)):
        apart = np.abs(one - other)
        worst = max(worst, float((apart / np.abs(other) if relative else apart).max()))
    return worst


def sent(traffic: dict) -> dict[str, tuple[int, int]]:
    """Times and bytes of one update, by kind."""
    return {
        kind: tuple(
            sum(TIMES[name] * traffic[name][kind][place] for name in TIMES)
            for place in (0, 1)
        )
        for kind in KINDS
    }


def table(made: dict) -> str:
    head = ("processes", "data x fsdp x tensor", "parameters", "loss")
    rows = [(*head, *(f"{kind} KB" for kind in KINDS), "all KB")]
    for case in made["cases"]:
        count, *axes = case["case"]
        moved = sent(case["traffic"])
        cells = [f"{times} / {size / 1e3:,.0f}" for times, size in moved.values()]
        total = sum(size for _, size in moved.values())
        rows.append(
            (
                str(count),
                " x ".join(map(str, axes)),
                f"{case['difference']:.1e}",
                f"{case['of_loss']:.1e}",
                *cells,
                f"{total / 1e3:,.0f}",
            )
        )
    return _tables.aligned(rows)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

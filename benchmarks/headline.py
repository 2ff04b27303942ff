"""Does a trained memory beat rules, and at what cost, as tasks get longer?

    python -m benchmarks.headline --runs=10:DIR,20:DIR,40:DIR
        [--plot=docs/headline.png] [--policies=full_history,rag,paging,trained]

Each DIR is a run that experiments.evaluate has compared; the number before it is the
turns of its tasks. Prints sampled success, its 95 % interval and tokens for each policy
and length, then what the trained policy saves against full_history, and whether its
interval lies above those of the others.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._tables import aligned

HEADS = ("turns", "policy", "success, sampled", "greedy", "fed", "computed", "peak")
TOKENS = ("tokens_total", "tokens_computed", "tokens_peak")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", required=True, help="TURNS:DIR, with commas between")
    parser.add_argument("--plot", help="a picture to draw; needs matplotlib")
    parser.add_argument("--policies", default="", help="only these; all if left")
    options = parser.parse_args(arguments)
    wanted = [name for name in options.policies.split(",") if name]
    try:
        rows = read(options.runs, wanted)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: --runs={options.runs}: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    print("\n".join(verdicts(rows)))
    if options.plot:
        from mempo_jax.evaluation.plots import plot_lengths

        plot_lengths(pathlib.Path(options.plot), rows)
    return 0


def read(runs: str, wanted: Sequence[str] = ()) -> dict[int, list[dict[str, Any]]]:
    """Rows of evaluation.json by turns, shortest first."""
    found = {}
    for part in runs.split(","):
        turns, colon, directory = part.partition(":")
        if not colon or not turns.isdigit():
            raise ValueError(f"expected TURNS:DIR, got {part!r}")
        text = (pathlib.Path(directory) / "evaluation.json").read_text()
        rows = json.loads(text)["rows"]
        kept = [row for row in rows if not wanted or row["policy"] in wanted]
        found[int(turns)] = kept
    return dict(sorted(found.items()))


def table(rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    lines = [HEADS]
    for turns, each in rows.items():
        for row in each:
            low, high = row["success_sampled"]["ci95"]
            mean = row["success_sampled"]["mean"]
            lines.append(
                (
                    str(turns),
                    row["policy"],
                    f"{mean:.3f} [{low:.3f}, {high:.3f}]",
                    f"{row['success_greedy']['mean']:.3f}",
                    *(f"{row[name]['mean']:.0f}" for name in TOKENS),
                )
            )
    return aligned(lines)


def verdicts(rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[str]:
    """What the trained policy saves, and whom it beats, for each length."""
    lines = []
    for turns, each in rows.items():
        by_name = {row["policy"]: row for row in each}
        trained, full = by_name.get("trained"), by_name.get("full_history")
        if trained is None:
            continue
        if full is not None:
            saved = [
                f"{1 - trained[name]['mean'] / full[name]['mean']:.0%} {name}"
                for name in TOKENS
            ]
            lines.append(f"{turns} turns: against full_history {', '.join(saved)} less")
        for how in ("success_sampled", "success_greedy"):
            low = trained[how]["ci95"][0]
            above = [n for n, row in by_name.items() if row[how]["ci95"][1] < low]
            lines.append(
                f"{turns} turns, {how}: interval above {', '.join(above) or 'none'}"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())

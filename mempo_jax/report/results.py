"""What a run came to: before against after, and the comparison with other policies."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mempo_jax.evaluation.plots import LEARNT
from mempo_jax.evaluation.result_rows import MEASURES, Row, figure
from mempo_jax.report.markup import UNKNOWN, render
from mempo_jax.report.run_files import number_of

WHO = {"cold_start": "cold start", "trained": "trained"}
ROWS = {
    "success_sampled": "success, sampled",
    "success_greedy": "success, greedy",
    "write_precision": "write precision",
    "write_recall": "write recall",
    "tokens_total": "tokens of a task",
    "tokens_peak": "tokens at once, at most",
}
TILES = ("success_sampled", "success_greedy", "write_precision", "tokens_total")
SHARES = ("success_sampled", "success_greedy", "em", "f1")  # drawn as bars too


class Interval(NamedTuple):
    """A mean with its 95 % interval, None if that is not known."""

    mean: float
    bounds: tuple[float, float] | None

    @property
    def percent(self) -> float:
        """Of a bar."""
        return 100 * min(max(self.mean, 0.0), 1.0)

    @classmethod
    def of(cls, value: Any) -> Interval | None:
        """Reads an estimate.

        Args:
          value: from JSON, as ``evaluation.metrics.Estimate``.

        Returns:
          The estimate; None if it has no mean.
        """
        mean = number_of(_mapping(value).get("mean"))
        if mean is None:
            return None
        ends = _mapping(value).get("ci95")
        bounds = tuple(map(number_of, ends)) if isinstance(ends, list) else ()
        return cls(mean, bounds if len(bounds) == 2 and None not in bounds else None)


class Tile(NamedTuple):
    """A figure after training, or before it if there is none after."""

    name: str
    before: Interval | None
    after: Interval | None


class ResultRow(NamedTuple):
    """A line of a table; highlighted: of a policy that was trained."""

    name: str
    cells: list[Interval | None]
    highlighted: bool = False


class ResultTable(NamedTuple):
    """Rows under their heads; bars: whether a column has bars beside its figures."""

    heads: list[str]
    rows: list[ResultRow]
    bars: list[bool]


def tiles(summary: Mapping[str, Any]) -> list[Tile]:
    """Chooses the figures at the top of a page.

    Args:
      summary: summary.json, or what there is of it.

    Returns:
      Those of TILES that are known.
    """
    read = [Tile(ROWS[key], *_estimates(summary, key)) for key in TILES]
    return [tile for tile in read if tile.before or tile.after]


def before_and_after(summary: Mapping[str, Any]) -> ResultTable:
    """Compares the policy before and after training.

    Args:
      summary: summary.json, or what there is of it.

    Returns:
      A table, without rows if nothing is known.
    """
    rows = [ResultRow(words, _estimates(summary, key)) for key, words in ROWS.items()]
    return _table("held-out tasks, 95 % interval", (r for r in rows if any(r.cells)))


def categories(summary: Mapping[str, Any]) -> ResultTable:
    """Compares both by the category of the questions.

    Args:
      summary: summary.json, or what there is of it.

    Returns:
      A table of the success, sampled; without rows if there are no categories.
    """
    tables = [
        _mapping(_mapping(_mapping(summary.get(who)).get("categories")).get("sampled"))
        for who in WHO
    ]
    names = sorted({name for table in tables for name in table})
    return _table(
        "success, sampled, by kind",
        (ResultRow(n, [Interval.of(table.get(n)) for table in tables]) for n in names),
    )


def comparison(evaluation: Mapping[str, Any]) -> ResultTable:
    """Compares policies and rules.

    Args:
      evaluation: evaluation.json.

    Returns:
      A table of what was measured of any of them; without rows if nothing was.
    """
    rows = evaluation.get("rows")
    rows = [r for r in rows if isinstance(r, Mapping)] if isinstance(rows, list) else []
    measures = [m for m in MEASURES if any(Interval.of(row.get(m)) for row in rows)]
    return ResultTable(
        heads=["policy", *(MEASURES[m] for m in measures)],
        rows=[_policy_row(row, measures) for row in rows] if measures else [],
        bars=[m in SHARES for m in measures],
    )


def _policy_row(row: Mapping[str, Any], measures: Sequence[str]) -> ResultRow:
    policy = str(row.get("policy", ""))
    return ResultRow(
        policy, [Interval.of(row.get(m)) for m in measures], policy in LEARNT
    )


def _table(head: str, rows: Iterable[ResultRow]) -> ResultTable:
    return ResultTable([head, *WHO.values()], list(rows), [False] * len(WHO))


def _estimates(summary: Mapping[str, Any], key: str) -> list[Interval | None]:
    return [Interval.of(_mapping(summary.get(who)).get(key)) for who in WHO]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def comparison_html(
    rows: Sequence[Row], measures: Sequence[str] = tuple(MEASURES), caption: str = ""
) -> str:
    """Shows the rows of a comparison in a notebook.

    Args:
      rows: as ``evaluation.result_rows.row`` makes them.
      measures: columns, names out of ``evaluation.result_rows.MEASURES``.
      caption: a line above the table, "" for none.

    Returns:
      A table with its styles at each element: means, and small their 95 % intervals.

    Raises:
      KeyError: a measure that there is not.
    """
    return str(
        render(
            "notebook_comparison.html.j2",
            heads=["policy", *(MEASURES[name] for name in measures)],
            rows=[
                (row["policy"], row["policy"] in LEARNT, [row[m] for m in measures])
                for row in rows
            ],
            caption=caption,
            figure=functools.partial(figure, digits=2, unknown=UNKNOWN),
        )
    )

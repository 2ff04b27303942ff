"""Numbers as steps of a colour, so that a page names each colour once.

What is above 0 is blue, below 0 orange: told apart without seeing red or green. Steps
go by the square root, as bonuses may be many times what most tokens get.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from mempo_jax.report.choosing import Group
from mempo_jax.report.markup import element
from mempo_jax.report.records import Credit, Record

STEPS = 8  # of a colour, each way
MEASURES = {  # what tokens can be coloured by, with the letter of its class
    "advantage": ("a", "token advantage"),
    "weight": ("w", "credit weight"),
    "bonus": ("b", "bonus"),
}
# red, green, blue; the same on light and dark, since they lie over the page's own
ABOVE, BELOW = "30,110,220", "225,105,15"
STRONGEST = 0.68  # opacity


@dataclasses.dataclass(frozen=True)
class Shades:
    """What the strongest colour of each measure stands for, by its name."""

    scales: dict[str, float]

    def of(self, measure: str, value: float) -> str:
        """The class of a value, "" at 0."""
        shade = self._shade(value, self.scales[measure])
        return f"{MEASURES[measure][0]}{shade}" if shade else ""

    def classes(self, weight: float, bonus: float, advantage: float) -> str:
        """The classes of a token, or of a memory: those of the tokens that wrote it."""
        values = {"advantage": advantage, "weight": weight, "bonus": bonus}
        return " ".join(filter(None, (self.of(m, v) for m, v in values.items())))

    @staticmethod
    def _shade(value: float, scale: float) -> str:
        if not value or not scale:
            return ""
        step = max(1, round(STEPS * min(abs(value) / scale, 1.0) ** 0.5))
        return f"{'p' if value > 0 else 'n'}{step}"


def shades_of(groups: Iterable[Group]) -> Shades | None:
    """Scales over all that is shown: the 98th percentile of what is not 0. None where
    no record says what its tokens were worth."""
    known = [m.credit for g in groups for m in g.members if m.credit is not None]
    if not known:
        return None
    rows = [row for credit in known for row in _rows(credit)]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    names = ("weight", "bonus", "advantage")
    return Shades({name: _high(column) for name, column in zip(names, columns)})


def token_numbers(record: Record, op: int, turn: int) -> tuple[float, float, float]:
    """(weight, bonus, advantage) of tokens of an op, or of none (-1) in a turn."""
    credit = record.credit
    if credit is not None and 0 <= op < len(credit.by_op):
        return credit.by_op[op]
    if credit is not None and op < 0 and 0 <= turn < len(credit.by_turn):
        weight, advantage = credit.by_turn[turn]
        return weight, 0.0, advantage
    return 0.0, 0.0, 0.0


def style() -> str:
    """A rule for each class; those of the chosen measure alone apply.

    ``--deep`` is what drawings take: a thin line needs more of the colour than the
    ground behind a text.
    """
    rules = []
    for side, colour in (("p", ABOVE), ("n", BELOW)):
        for step in range(1, STEPS + 1):
            shade = f"rgba({colour},{STRONGEST * step / STEPS:.2f})"
            deep = f"rgba({colour},{0.35 + 0.65 * step / STEPS:.2f})"
            for name, (letter, _) in MEASURES.items():
                where = f"[data-colour={name}] .{letter}{side}{step}"
                rules.append(f"{where}{{background-color:{shade};--deep:{deep}}}")
    return "\n".join(rules)


def legend(shades: Shades) -> str:
    """What the colours mean, a line for each measure; the chosen one shows."""
    lines = []
    for name, (letter, told) in MEASURES.items():
        scale = shades.scales[name]
        if not scale:
            inner = f"{told}: 0 everywhere"
        else:
            below = [f"{letter}n{n}" for n in range(STEPS, 0, -2)]
            above = [f"{letter}p{n}" for n in range(2, STEPS + 1, 2)]
            shown = above if name == "weight" else [*below, "", *above]
            least = "0" if name == "weight" else f"−{scale:.2g}"
            boxes = "".join(element("i", class_=each or None) for each in shown)
            inner = (
                f"{told}: {least} {boxes} {scale:.2g} and beyond, by the square root"
            )
        lines.append(element("span", inner, class_="scale", data_measure=name))
    return element("span", "".join(lines), class_="scales")


def _rows(credit: Credit) -> list[tuple[float, float, float]]:
    others = [(weight, 0.0, worth) for weight, worth in credit.by_turn]
    return [*credit.by_op, *others]


def _high(values: Sequence[float]) -> float:
    sizes = sorted(abs(value) for value in values if value)
    return sizes[int(0.98 * (len(sizes) - 1))] if sizes else 0.0

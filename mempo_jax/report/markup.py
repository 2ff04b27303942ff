"""How texts, figures and the credit of tokens look, and the templates that use them.

Whatever a policy wrote is shown and never read as markup: every value that a template
prints is escaped, unless a template or ``Markup`` has made it.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import importlib.resources
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from mempo_jax.evaluation.result_rows import figure
from mempo_jax.report.run_files import RecordedCredit, RecordedTrajectory

LONGEST = 4_000  # characters shown of one text
UNKNOWN = "–"
# Characters that HTML forbids, by the pictures that Unicode has of them.
_PICTURES = {n: 0x2400 + n for n in range(0x20) if chr(n) not in "\n\t"} | {
    0x7F: 0x2421
}

# The colours of tokens. What is above 0 is blue, below 0 orange: these two are told
# apart without seeing red or green. They go by the square root of a number, since a
# bonus may be many times what most tokens get.
STEPS = 8  # of a colour, each way; a class for each keeps the page small
MEASURES = {  # what tokens can be coloured by: the letter of its class, and its title
    "advantage": ("a", "token advantage"),
    "weight": ("w", "credit weight"),
    "bonus": ("b", "bonus"),
}
_COMMON = 0.98  # the strongest colour is for the numbers from this quantile on


def render(template: str, **data: Any) -> Markup:
    """Fills in a template.

    Args:
      template: the name of a file in ``templates/``.
      **data: what the template names.

    Returns:
      HTML that other templates take as it is.
    """
    return Markup(_environment().get_template(template).render(data))


def asset(name: str) -> Markup:
    """Reads a file of ``templates/`` that is shown as it is: a style sheet or a script.

    Args:
      name: of the file.

    Returns:
      Its text, not to be escaped.
    """
    folder = importlib.resources.files(__package__) / "templates"
    return Markup((folder / name).read_text("utf-8"))


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        finalize=_escape,
        undefined=jinja2.StrictUndefined,
    )
    own = (brief, compact, count, cut, number, signed)
    environment.filters.update({each.__name__: each for each in own})
    return environment


def _source(name: str) -> tuple[str, str, None]:
    """A template without the layout of its lines, which must not reach the page: in
    what a policy wrote, blanks are shown. In place of a line's end there is a comment,
    so that errors name the right line; within a text or a tag, it is a blank."""
    text = re.sub(r"(?<=[>}])\n\s*|\n\s*(?=[<{])", _line_ends, asset(name))
    return re.sub(r"(?<![#\n])\n\s*", " ", text), name, None


def _line_ends(layout: re.Match[str]) -> str:
    return "{#" + "\n" * layout[0].count("\n") + "#}"


def _escape(value: Any) -> Any:
    """What a template prints; the quotes of ``html.escape`` are those that the script
    of the page reads back."""
    if value is None or hasattr(value, "__html__"):
        return "" if value is None else value
    return Markup(html.escape(clean(str(value))))


def clean(text: str) -> str:
    """Replaces what UTF-8 or HTML cannot hold: lone surrogates and control characters.

    Args:
      text: any text.

    Returns:
      The text with U+FFFD and with pictures of the control characters.
    """
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.translate(_PICTURES)


def cut(text: str, longest: int = LONGEST) -> str:
    """Cuts a text that is too long, and says how much of it is missing.

    Args:
      text: any text.
      longest: characters that stay.

    Returns:
      The text, or its beginning with a note.
    """
    if len(text) <= longest:
        return text
    return f"{clean(text[:longest])} [… {len(text) - longest:,} more characters]"


def brief(text: str, longest: int) -> str:
    """Puts a text into one short line.

    Args:
      text: any text.
      longest: characters of the line at most.

    Returns:
      The line, with an ellipsis if it was cut.
    """
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def number(value: float | None, digits: int = 2) -> str:
    """Writes a figure for reading.

    Args:
      value: None if it is not known.
      digits: after the point, of a figure below 10.

    Returns:
      The figure with a real minus; a dash if it is not known.
    """
    if value is None:
        return UNKNOWN
    shown = figure(value, digits=digits)
    return shown.replace("-", "−" if float(shown) else "")


def signed(value: float) -> str:
    """Writes a figure with its sign.

    Args:
      value: any number.

    Returns:
      Two digits after the point, a real minus, and no sign at zero.
    """
    shown = f"{value:+.2f}"
    return "0" if float(shown) == 0 else shown.replace("-", "−")


def compact(value: float) -> str:
    """Writes a figure of any size in few characters, as at an axis.

    Args:
      value: any number.

    Returns:
      Three digits, with k, M or G.
    """
    size, sign = abs(value), "−" if value < 0 else ""
    for unit, least, by in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e4, 1e3)):
        if size >= least:
            return f"{sign}{size / by:.3g}{unit}"
    return f"{sign}{size:.0f}" if size >= 1e3 else f"{sign}{size:.3g}"


def count(amount: int, noun: str) -> str:
    """Writes "1 group" or "2 groups".

    Args:
      amount: how many.
      noun: of what, in the singular.

    Returns:
      Both, in the singular or the plural.
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{amount:,} {noun if amount == 1 else plural}"


class TokenNumbers(NamedTuple):
    """What training gave to tokens: advantage = weight x the group's + bonus."""

    weight: float
    bonus: float
    advantage: float


def token_numbers(record: RecordedTrajectory, op: int, turn: int) -> TokenNumbers:
    """Looks up the credit of some tokens.

    Args:
      record: a trajectory.
      op: the place in its log of the op that the tokens spell, -1 for none.
      turn: the turn that said them.

    Returns:
      Their numbers; zeros if the record does not say.
    """
    credit = record.credit
    if credit is not None and 0 <= op < len(credit.by_op):
        return TokenNumbers(*credit.by_op[op])
    if credit is not None and op < 0 and 0 <= turn < len(credit.by_turn):
        weight, advantage = credit.by_turn[turn]
        return TokenNumbers(weight, 0.0, advantage)
    return TokenNumbers(0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class TokenColours:
    """Numbers as steps of a colour.

    Attributes:
      scales: the number that has the strongest colour, by measure.
    """

    scales: dict[str, float]

    @classmethod
    def of(cls, records: Iterable[RecordedTrajectory]) -> TokenColours | None:
        """Fits the colours to what is shown, leaving out the few largest numbers.

        Args:
          records: all trajectories of a page.

        Returns:
          The colours; None if no record has the credit of its tokens.
        """
        known = [each.credit for each in records if each.credit is not None]
        if not known:
            return None
        rows = [row for credit in known for row in _rows(credit)]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(dict(zip(TokenNumbers._fields, map(_high, columns), strict=True)))

    def shade(self, measure: str, value: float) -> str:
        """Chooses the class of a number.

        Args:
          measure: one of MEASURES.
          value: the number.

        Returns:
          A class of the page's style sheet, such as "ap8"; "" at 0.
        """
        scale = self.scales[measure]
        if not value or not scale:
            return ""
        step = max(1, round(STEPS * min(abs(value) / scale, 1.0) ** 0.5))
        return f"{MEASURES[measure][0]}{'p' if value > 0 else 'n'}{step}"

    def classes(self, numbers: TokenNumbers) -> str:
        """Chooses the classes of a token, or of a memory: those of what wrote it.

        Args:
          numbers: its credit.

        Returns:
          A class for each measure that is not 0; the page shows one at a time.
        """
        shades = (self.shade(name, getattr(numbers, name)) for name in MEASURES)
        return " ".join(filter(None, shades))


def _rows(credit: RecordedCredit) -> list[tuple[float, float, float]]:
    others = [(weight, 0.0, advantage) for weight, advantage in credit.by_turn]
    return [*credit.by_op, *others]


def _high(values: Sequence[float]) -> float:
    sizes = sorted(abs(value) for value in values if value)
    return sizes[int(_COMMON * (len(sizes) - 1))] if sizes else 0.0

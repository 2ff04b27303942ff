"""Text as HTML: whatever a policy wrote is shown, and never read as markup."""

from __future__ import annotations

import html

from mempo_jax.evaluation.table import figure

LONGEST = 4_000  # characters shown of one text
UNKNOWN = "–"
# Characters that HTML forbids, by the pictures that Unicode has of them.
_PICTURES = {n: 0x2400 + n for n in range(0x20) if chr(n) not in "\n\t"} | {
    0x7F: 0x2421
}


def clean(text: str) -> str:
    """A text that UTF-8 and HTML can hold: lone surrogates and controls replaced."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.translate(_PICTURES)


def escaped(text: str, longest: int = LONGEST) -> str:
    """A text as HTML, for elements and attributes; what is too long is cut."""
    shown = html.escape(clean(text[:longest]))
    return shown if len(text) <= longest else f"{shown} {cut_note(text, longest)}"


def cut_note(text: str, longest: int = LONGEST) -> str:
    """Says how much of a text is not shown."""
    return f"[… {len(text) - longest:,} more characters]"


def brief(text: str, longest: int) -> str:
    """A text in one short line, plain."""
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def element(name: str, inner: str = "", **attributes: object) -> str:
    """An element; inner: HTML. Attributes: plain values, without those that are None or
    False; ``_`` in a name is ``-``, one at its end is dropped."""
    return f"<{name}{_attributes(attributes)}>{inner}</{name}>"


def scroll(inner: str, label: str) -> str:
    """What may be wider than a window: moved by touch, by keys once it has focus."""
    return element(
        "div", inner, class_="scroll", tabindex=0, role="region", aria_label=label
    )


def inert(key: str, inner: str) -> str:
    """HTML that is not parsed before it is asked for. Texts within are escaped, so
    nothing in it ends the element."""
    return f'<script type="text/html" id="{key}">{inner}</script>'


def note(text: str) -> str:
    """A line of explanation."""
    return element("p", escaped(text), class_="note")


def single(name: str, **attributes: object) -> str:
    """An SVG element without anything in it."""
    return f"<{name}{_attributes(attributes)}/>"


def number(value: float | None, digits: int = 2) -> str:
    """A figure for reading; a dash where it is not known."""
    if value is None:
        return UNKNOWN
    shown = figure(value, digits=digits)
    return shown.replace("-", "−" if float(shown) else "")


def signed(value: float) -> str:
    """A figure with its sign, a real minus, and no sign at zero."""
    shown = f"{value:+.2f}"
    return "0" if float(shown) == 0 else shown.replace("-", "−")


def compact(value: float) -> str:
    """A figure of any size in few characters, as at an axis."""
    size, sign = abs(value), "−" if value < 0 else ""
    for unit, least, by in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e4, 1e3)):
        if size >= least:
            return f"{sign}{size / by:.3g}{unit}"
    return f"{sign}{size:.0f}" if size >= 1e3 else f"{sign}{size:.3g}"


def count(number: int, noun: str) -> str:
    """ "1 group", "2 groups"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _attributes(attributes: dict[str, object]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(clean(str(value)))}"'
        if value is not True
        else f" {name.rstrip('_').replace('_', '-')}"
        for name, value in attributes.items()
        if value is not None and value is not False
    )

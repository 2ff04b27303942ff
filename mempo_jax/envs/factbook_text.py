"""Factbook fields as plain passages: no HTML, no notes, one sentence a sub-field."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from mempo_jax.envs.multi_qa_records import Passage

_TAG = re.compile(r"<[^>]*>")
_NOTE = re.compile(r"(?:^|[\s;.])note(?:\s*\d+)?\s*[:\-].*", re.IGNORECASE | re.DOTALL)
_BRACKETS = re.compile(r"\s*\([^()]*\)")
MAX_SENTENCE_CHARS = 300
MAX_SENTENCES = 3  # of a passage: what is asked about stands first in its field
SKIPPED = frozenset(("time difference", "daylight saving time", "etymology", "history"))
# Fields that become passages: all that is asked about, and as many that are like it.
PASSAGES = frozenset(
    (
        *("Location", "Area", "Land boundaries", "Coastline", "Climate", "Terrain"),
        *("Elevation", "Natural resources", "Major rivers (by length in km)"),
        *("Population", "Nationality", "Ethnic groups", "Languages", "Religions"),
        *("Median age", "Life expectancy at birth", "Urbanization", "Literacy"),
        *("Major urban areas - population", "Capital", "Independence"),
        *("Government type", "National holiday", "National anthem(s)"),
        *("National symbol(s)", "National color(s)", "Legal system", "Suffrage"),
        *("Agricultural products", "Industries", "Exports - partners"),
        *("Exports - commodities", "Imports - partners", "Exchange rates"),
        *("Internet country code", "Internet users", "Airports", "Railways"),
        "Civil aircraft registration country code prefix",
    )
)


def plain(text: str) -> str:
    """Text without tags, entities, notes and extra space."""
    bare = html.unescape(_TAG.sub(" ", html.unescape(text)))
    return " ".join(_NOTE.sub("", " ".join(bare.split())).split()).rstrip(" ;")


def unbracketed(text: str) -> str:
    """Without what stands in brackets, nested ones too."""
    while (shorter := _BRACKETS.sub("", text)) != text:
        text = shorter
    return text.strip()


def folded(name: str) -> str:
    """A name for comparison: lower case, no accents, no leading article."""
    split = unicodedata.normalize("NFKD", name)
    bare = "".join(c for c in split if not unicodedata.combining(c)).lower()
    return " ".join(bare.split()).removeprefix("the ")


def field(country: Mapping[str, Any], *path: str) -> str:
    """The plain text of one field, "" where the country has none.

    Names are compared without the space around them: the source has "total ".
    """
    node: Any = country
    for part in path:
        if not isinstance(node, Mapping):
            return ""
        node = next((node[key] for key in node if key.strip() == part), None)
    return _own_text(node)


def passages(name: str, country: Mapping[str, Any]) -> Iterator[Passage]:
    """One passage for each of ``PASSAGES`` with text, "Country: Field", each once."""
    seen = set()
    for category in country.values():
        for label, node in category.items() if isinstance(category, Mapping) else ():
            title = f"{name}: {label.strip()}"
            if label.strip() not in PASSAGES or title in seen:
                continue
            if sentences := tuple(_sentences(node))[:MAX_SENTENCES]:
                seen.add(title)
                yield Passage(title, sentences)


def sentence(label: str, text: str) -> str:
    """A sub-field as it stands in a passage; ``label`` is "" for a whole field."""
    label = label.strip()
    whole = text if not label or text.startswith(f"{label}:") else f"{label}: {text}"
    if len(whole) <= MAX_SENTENCE_CHARS:
        return whole
    return whole[:MAX_SENTENCE_CHARS].rsplit(" ", 1)[0]


def _own_text(node: Any) -> str:
    text = node.get("text") if isinstance(node, Mapping) else node
    return plain(text) if isinstance(text, str) else ""


def _sentences(node: Any) -> Iterator[str]:
    if text := _own_text(node):
        yield sentence("", text)
    elif isinstance(node, Mapping):
        for label, part in node.items():
            inner = _own_text(part) if isinstance(part, Mapping) else ""
            if inner and label.strip() not in SKIPPED:
                yield sentence(label, inner)

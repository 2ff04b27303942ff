"""Questions about countries, of one and of two hops, from Factbook fields.

Only what has one short answer is asked: a field that names several, or hedges, is left
out, and so is a country or capital that shares its name with another.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mempo_jax.envs.factbook_text import field, folded, plain, sentence, unbracketed
from mempo_jax.envs.multi_qa_records import Fact, Record

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
class Asked:
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


def questions(known: Mapping[str, Country]) -> Iterator[tuple[Record, frozenset[str]]]:
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


def _single(country: Country) -> Iterator[tuple[Record, frozenset[str]]]:
    for asked in asked_fields():
        question = f"What is {asked.phrase} of {country.spoken}?"
        if (answer := _answer(country, asked)) and not _tells(question, answer):
            named = f"{country.code}/{asked.phrase}"
            support = (_fact(country, asked.path),)
            queries = (_query(country, asked.path),)
            record = Record(named, question, answer, support, "single", queries)
            yield record, frozenset({country.code})


def _two_hops(
    pair: tuple[Country, Country],
    start: str,
    path: tuple[str, ...],
    kind: str,
    looked_for: str,
) -> Iterator[tuple[Record, frozenset[str]]]:
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
        record = Record(named, question, answer, support, f"two_hop_{kind}", queries)
        yield record, frozenset({first.code, second.code})


def _answer(country: Country, asked: Asked) -> str:
    """The answer, "" where it is missing, long or not beyond doubt."""
    text = field(country.data, *asked.path)
    answer = asked.read(text).strip().rstrip(".,")
    short = 0 < len(answer.split()) <= MAX_ANSWER_WORDS
    certain = answer in text and not _DOUBT.search(answer)
    return answer if short and certain else ""


def _tells(question: str, answer: str) -> bool:
    """Whether the question holds its own answer, as of a city that is a country."""
    return folded(answer) in folded(question)


def _fact(country: Country, path: tuple[str, ...]) -> Fact:
    """The sentence of a passage that holds a field; see ``factbook_text.passages``."""
    label = path[2] if len(path) == 3 else ""
    return Fact(
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


def asked_fields() -> tuple[Asked, ...]:
    """All that is asked about a country."""
    government, people = "Government", "People and Society"
    return (
        Asked("the capital", _CAPITAL, plain),
        Asked("the highest point", ("Geography", "Elevation", "highest point"), _peak),
        Asked(
            "the mean elevation", ("Geography", "Elevation", "mean elevation"), plain
        ),
        Asked("the total area", ("Geography", "Area", "total"), unbracketed),
        Asked("the coastline length", ("Geography", "Coastline"), _coast),
        Asked("the currency", ("Economy", "Exchange rates", "Currency"), _currency),
        Asked(
            "the national anthem", (government, "National anthem(s)", "title"), _title
        ),
        Asked("the independence date", (government, "Independence"), _date),
        Asked("the government type", (government, "Government type"), plain),
        Asked("the nationality adjective", (people, "Nationality", "adjective"), _word),
        Asked("the total population", (people, "Population", "total"), unbracketed),
        Asked("the median age", (people, "Median age", "total"), unbracketed),
        Asked(
            "the life expectancy",
            (people, "Life expectancy at birth", "total population"),
            unbracketed,
        ),
        Asked(
            "the internet country code",
            ("Communications", "Internet country code"),
            _code,
        ),
        Asked(
            "the aircraft registration prefix",
            ("Transportation", "Civil aircraft registration country code prefix"),
            _word,
        ),
        Asked("the number of airports", ("Transportation", "Airports"), unbracketed),
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

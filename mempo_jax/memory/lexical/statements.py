"""Splits texts into statements and reads each as content words and flags."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from typing import NamedTuple

from mempo_jax.memory.lexical import lexicon

# A full stop after one of these, or after an initial, ends no sentence.
_STOPLESS = ("Dr", "Mr", "Mrs", "Ms", "St", "No", "Prof", r"e\.g", r"i\.e", "[A-Z]")
_NO_TITLE = "".join(rf"(?<!\b{word}\.)" for word in _STOPLESS)
_BREAK = re.compile(rf"(?<=[.!?;]){_NO_TITLE}\s+|(?<=[。！？；])|\n+")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_TITLE = re.compile(r"[^:：\n]{1,40}[:：](?=\s+\S)")
_PRONOUN = re.compile(r"(?:(?:she|he|it|they)\b|[她他它])\W*", re.I)
_CJK = "\u3040-\u30ff\u3400-\u9fff"
_LETTER = rf"[^\W\d_{_CJK}]"
# One Chinese letter | address | URL | dotted name | number | number before a unit |
# grade | code with digits | C++ | C# | word | the rest, and the signs that carry sense.
_TOKEN = re.compile(
    rf"""
    [{_CJK}]
    | [a-zA-Z0-9_.+-]{{1,64}}@[\w-]+(?:\.[\w-]+)+ | [a-zA-Z]{{2,8}}://\S*[^\s.,;)]
    | {_LETTER}+(?:\.[^\W{_CJK}]+)+
    | (?:(?<![\w.)\]])-)?\d+(?:[.,:/-]\d+)*(?![^\W_{_CJK}])
    | \d+(?:\.\d+)?(?=(?:{lexicon.UNITS})\b)
    | (?<![^\W_])[A-Z]{{1,2}}[+-](?![\w+-])
    | {_LETTER}{{1,3}}-(?=\w*\d)\w+ | (?=[a-zA-Z]*\d)[^\W{_CJK}]+(?:-\w*\d\w*)*
    | {_LETTER}+\+\+ | {_LETTER}\#
    | {_LETTER}+(?:['’]{_LETTER}+)*
    | _\w* | \w+ | [=:<>,$€£¥%°、]
    """,
    re.X,
)
# Articles and pronouns tell nothing about the form of a sentence.
_FRAME = lexicon.FILLER - lexicon.ARTICLES - lexicon.PRONOUNS
# After one of these a participle is no past: "is closed".
_PRESENT = lexicon.BE.difference(("was", "were"))
MOST_DETAILED = 48  # a statement of more words is compared word by word only
_WAS = ("was", "were")
# Before the first noun of "the mother of ann".
_BEFORE_OWNED = lexicon.ARTICLES | {""}


class Word(NamedTuple):
    """A content word and what is around it."""

    stem: str
    form: str  # as written, in lower case
    before: str  # the token before it, function words included
    after: str  # the token after it
    role: str  # the preposition that governs it, or ""
    place: int  # among all tokens
    clause: int  # conjunctions before it
    is_capital: bool
    is_owner: bool  # followed by "'s" or the like
    is_owned: bool  # "has" comes before it


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it was read.

    Attributes:
      words: stems of the content words, in order.
      details: the words in full; empty if there are more than ``MOST_DETAILED``.
      moods: negation, doubt, condition, question.
      pasts: verbs that are in the past.
      frame: function words, without articles and pronouns.
      head: number of words before the first colon, 0 without one.
      forms: all words after the heading, without signs.
      closing: the last sign.
    """

    words: tuple[str, ...]
    details: tuple[Word, ...]
    moods: frozenset[str]
    pasts: frozenset[str]
    frame: frozenset[str]
    head: int
    forms: tuple[str, ...]
    closing: str

    @property
    def body(self) -> tuple[str, ...]:
        """The words without those of the heading."""
        return self.words[self.head :]

    @property
    def subject(self) -> tuple[str, ...]:
        """The first word, with the number or letter that tells it from others."""
        # "room 12" is one subject, and so is a Chinese name of two letters.
        words = self.body[:2]
        pair = words and (words[-1][0].isdigit() or lexicon.is_cjk(words[0]))
        return words if pair else words[:1]

    @property
    def has_number(self) -> bool:
        """Whether a word of the body has a digit."""
        return any(map(str.isdigit, "".join(self.body)))

    @property
    def pointer(self) -> str:
        """A first word that points: "that" of "ann: that's great"."""
        first = self.forms[0].split("'")[0] if self.forms else ""
        return first if first in lexicon.POINTERS else ""

    @property
    def is_remark(self) -> bool:
        """Whether it is a greeting, praise, a question or the like, and no fact."""
        first = self.forms[0] if self.forms else ""
        return (
            self.closing in ("?", "!")
            or first in lexicon.INTERJECTIONS
            or (self.pointer in ("it", "that") and not self.has_number)
        )


# Cached, like all here: an entry is read again at every write that it resembles.
@functools.lru_cache(maxsize=8192)
def read(text: str) -> Statement:
    """Reads content words in order, with everything that changes what they say.

    Args:
      text: one statement.
    """
    tokens = _TOKEN.findall(lexicon.normalise_text(text))
    forms = ["", *[token.casefold() for token in tokens], ""]
    words, moods, pasts, head, start = [], [], set(), 0, 0
    clause, role, has, reorder = 0, "", False, None
    for place, token in enumerate(tokens, 1):
        before, form, after = forms[place - 1 : place + 2]
        kind = _kind(form)
        clause += kind.is_conjunction
        if form == ":" and words and not head:
            head, start = len(words), place
        if kind.may_be_mood and (mood := _mood(token, form, before, after)):
            moods.append(mood)
            continue
        if kind.may_move and words:
            reorder = _reordering(form, words, after) or reorder
        if kind.is_filler and not _is_meant(token, form, before, after):
            role = form if kind.is_preposition else role
            has = has or kind.is_having
            if form in _WAS and not lexicon.is_past(after):
                pasts.add("be")
            continue
        if not role and before in lexicon.PREPOSITIONS:
            role = before
        owner = kind.is_owner or after == "的"
        capital = token[0].isupper()
        words.append(
            Word(
                *(kind.stem, kind.form, before, after, role),
                *(place, clause, capital, owner, has),
            )
        )
        if kind.is_past and before not in _PRESENT:
            pasts.add(kind.stem)
        role, has = "", False
        if reorder:  # the word it was waiting for has just been read
            reorder(words)
            reorder = None
    closing = unicodedata.normalize("NFKC", text.rstrip()[-1:])
    if closing == "?":
        moods.append("asks")
    stems = tuple(word.stem for word in words)
    details = tuple(words) if len(words) <= MOST_DETAILED else ()
    frame = _FRAME.intersection(forms)
    body = tuple(f for f in forms[start + 1 : -1] if f[0].isalnum())
    return Statement(
        *(
            stems,
            details,
            _cancel_negations(moods),
            frozenset(pasts),
            frame,
            head,
            body,
            closing,
        )
    )


@functools.lru_cache(maxsize=8192)
def statements(text: str) -> tuple[str, ...]:
    """Splits a text into lines and sentences; empty ones are left out.

    Args:
      text: any text.
    """
    return tuple(part for part in _BREAK.split(text) if part.strip())


@functools.lru_cache(maxsize=8192)
def scoped(text: str) -> tuple[str, ...]:
    """Splits a text into statements, each with the heading or subject that it needs.

    Lines under "ann:" or after "ann: phone 17" get "ann:" put before them, up to an
    empty line; "she lives in rome" gets the first word of the statement before.

    Args:
      text: any text.
    """
    result = []
    for block in _BLANK_LINE.split(text):
        parts = statements(block)
        result += _add_subjects(parts, _heading(parts))
    return tuple(result or statements(text))


def _heading(parts: tuple[str, ...]) -> str:
    """The title before the first statement, if it is the only one in the block."""
    match = _TITLE.match(parts[0]) if len(parts) > 1 else None
    alone = match and not any(":" in part or "：" in part for part in parts[1:])
    return match[0].strip() if alone else ""


def _add_subjects(parts: tuple[str, ...], title: str) -> list[str]:
    result, heading, subject = [], "", ""
    for place, part in enumerate(parts):
        if part.rstrip().endswith((":", "：")):
            heading = part.strip()
            continue
        above = heading or (title if place else "")  # the first part holds it
        pronoun = _PRONOUN.match(part)
        if pronoun and subject and len(pronoun[0]) < len(part):
            part, above = f"{subject} {part[pronoun.end() :]}", ""
        elif words := read(part).details:
            subject = _as_written(words[0].form, part)
        result.append(f"{above} {part}" if above else part)
    return result


def _as_written(form: str, text: str) -> str:
    """The letters of ``text`` that were read as ``form``, if they can be found."""
    folded = text.casefold()
    at = folded.find(form) if len(folded) == len(text) else -1
    return text[at : at + len(form)] if at >= 0 else form


class _Kind(NamedTuple):
    """What a token is wherever it appears."""

    stem: str
    form: str
    is_filler: bool
    is_preposition: bool
    is_conjunction: bool
    is_having: bool
    is_past: bool
    is_owner: bool
    may_be_mood: bool
    may_move: bool


@functools.lru_cache(maxsize=16_384)
def _kind(form: str) -> _Kind:
    bare = form.removesuffix("'s")
    return _Kind(
        stem=lexicon.stem(bare),
        form=bare,
        is_filler=form in "=:,、" or form.split("'")[0] in lexicon.FILLER,
        is_preposition=form in lexicon.PREPOSITIONS,
        is_conjunction=form in lexicon.CONJUNCTIONS,
        is_having=form in lexicon.HAVE,
        is_past=lexicon.is_past(bare),
        is_owner=bare != form,
        may_be_mood=form == "used"
        or form.replace("'", "") in lexicon.NEGATION | lexicon.STOPPING
        or form in lexicon.MOODS,
        may_move=form in ("of", "by"),
    )


def _mood(token: str, form: str, before: str, after: str) -> str:
    """What the token makes of the statement: "not", "maybe", ... or ""."""
    bare = form.replace("'", "")
    if bare in lexicon.STOPPING:
        return "not" if after.endswith("ing") else ""
    if bare in lexicon.NEGATION:
        return "not"
    if form == "used":
        return "once" if after == "to" else ""
    is_month = token == "May" and before != ""
    return "" if is_month else lexicon.MOODS[form]


def _cancel_negations(moods: list[str]) -> frozenset[str]:
    """The moods as a set; two negations cancel out."""
    flags = set(moods)
    if "not" in flags and moods.count("not") % 2 == 0:
        flags.discard("not")
    return frozenset(flags)


def _is_meant(token: str, form: str, before: str, after: str) -> bool:
    """Whether a function word carries content here: "row A", "30 s", "it is on"."""
    if len(token) > 2:
        return False
    letter = len(token) == 1 and token.isupper() and before and token != "I"
    seconds = form == "s" and before[-1:].isdigit()
    return bool(letter or seconds or (form == "on" and not after))


def _reordering(form: str, words: list[Word], following: str):
    """Returns what to do once the next word is read, or None."""
    last = words[-1]
    if form == "of" and not following[:1].isdigit():
        return _put_owner_first if last.before in _BEFORE_OWNED else None
    passive = last.before in lexicon.BE and lexicon.is_past(last.form)
    return _put_agent_first if form == "by" and passive else None


def _put_owner_first(words: list[Word]) -> None:
    """Turns "the mother of ann" into "ann's mother"."""
    thing, owner = words[-2:]
    words[-2:] = [
        owner._replace(role=thing.role, before=thing.before, is_owner=True),
        thing._replace(role="", before="'s", after=owner.after),
    ]


def _put_agent_first(words: list[Word]) -> None:
    """Turns "the report was written by ann" into "ann wrote the report"."""
    *patient, verb, agent = words
    if agent.is_capital and agent.form not in (*lexicon.WEEKDAYS, *lexicon.MONTHS):
        words[:] = [agent._replace(role=""), verb, *patient]

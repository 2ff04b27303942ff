"""Does a text add to what a memory already says? Judges behind one call.

A similarity alone cannot tell a changed value from a repetition: "the code is 4711"
and "the code is 4712" lie at 0.97. The lexical judge compares words instead.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import re
import unicodedata
from collections.abc import Callable


class Verdict(enum.StrEnum):
    """What a new text is to an old one.

    OTHER: a fact about something else. ADDS: the same and more. UPDATES: the same
    statement with another value. REPEATS: nothing that the old one does not say.
    """

    OTHER = "other"
    ADDS = "adds"
    UPDATES = "updates"
    REPEATS = "repeats"


Judge = Callable[[str, str], Verdict]  # (new text, old text)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that carry no content of their own.
_FILLER = _words("""
    a an the this that these those there here it its is are was were be been being
    am has have had do does did will would shall should can could may might must of
    to in on at by for with from as and or but so then than now currently also just
    actually still today please note remember s i my me we our you your he she his
    her they their them which who what when where
""")
_NEGATION = _words("""
    not no never none nobody nothing neither nor without cannot isnt arent wasnt
    werent dont doesnt didnt wont cant couldnt shouldnt wouldnt hasnt havent
""")
# A value follows these: "is 17", "moved to berlin", "code: 17".
_LINKS = _words("""
    is are was were be to in at on = : equals becomes now
""")
_WORD = re.compile(r"\d+(?:[.,:/-]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)*|_\w*|\w+|[=:]")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_MAX_VALUE_WORDS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class _Statement:
    """Content words in order, the word before each, and whether it is denied."""

    words: tuple[str, ...]
    links: tuple[str, ...]
    denied: bool


def always_adds(new: str, old: str) -> Verdict:
    """The judge that passes everything: only the similarity decides."""
    del new, old
    return Verdict.ADDS


def lexical(new: str, old: str) -> Verdict:
    """Compares content words, numbers, names, negation and word order.

    A text of several statements (lines or sentences) repeats if each is repeated; it
    updates if one statement updates one of the old text.
    """
    verdicts = [_against_all(statement, old) for statement in statements(new)]
    if not verdicts or all(verdict == Verdict.REPEATS for verdict in verdicts):
        return Verdict.REPEATS
    for verdict in (Verdict.UPDATES, Verdict.ADDS):
        if verdict in verdicts:
            return verdict
    return Verdict.ADDS if Verdict.REPEATS in verdicts else Verdict.OTHER


def joined(texts: list[str]) -> str:
    """Plain concatenation, a line each, without texts that a later one contains."""
    kept = [
        text
        for place, text in enumerate(texts)
        if not any(
            _contains(later, text.strip().rstrip(".")) for later in texts[place + 1 :]
        )
    ]
    return "\n".join(kept)


def _contains(text: str, part: str) -> bool:
    """Whether ``part`` stands in ``text`` as whole words."""
    place = text.find(part)
    before, after = text[place - 1 : place], text[place + len(part) :][:1]
    return place >= 0 and not (before.isalnum() or after.isalnum())


def updated(texts: list[str]) -> str:
    """The last text, after those statements of the others that it leaves untouched."""
    *older, new = texts
    lines = [line for text in older for line in statements(text)]
    if len(lines) < 2:
        return new
    fresh = statements(new)
    kept = [
        line
        for line in lines
        if not any(
            compare(statement, line) in (Verdict.UPDATES, Verdict.REPEATS)
            for statement in fresh
        )
    ]
    return "\n".join([*kept, new])


def make_judge(name: str, judge: Judge | None = None) -> Judge:
    """The judge of that name; ``policy`` is whatever callable was passed in."""
    if judge is not None:
        return judge
    known = {"lexical": lexical, "always": always_adds}
    if name in known:
        return known[name]
    hint = "pass judge=callable(new, old) to the Bank" if name == "policy" else ""
    raise ValueError(
        f"memory.judge must be one of {[*known, 'policy']}, got {name!r}. {hint}"
    )


def statements(text: str) -> list[str]:
    """Lines and sentences of a text, empty ones left out."""
    return [part for part in _SENTENCE.split(text) if part.strip()]


def _against_all(statement: str, old: str) -> Verdict:
    rank = [Verdict.OTHER, Verdict.ADDS, Verdict.UPDATES, Verdict.REPEATS]
    verdicts = [compare(statement, line) for line in statements(old)]
    return max(verdicts, key=rank.index, default=Verdict.OTHER)


@functools.lru_cache(maxsize=8192)
def compare(new: str, old: str) -> Verdict:
    """Verdict on two single statements."""
    a, b = _read(new), _read(old)
    if not _WORD.search(new):  # signs alone: only the text itself can be compared
        return Verdict.REPEATS if new.strip() == old.strip() else Verdict.OTHER
    if a.words == b.words:
        return Verdict.REPEATS if a.denied == b.denied else Verdict.UPDATES
    if not a.words or not b.words:
        return Verdict.ADDS if a.words else Verdict.REPEATS
    if a.denied == b.denied and _is_subsequence(a.words, b.words):
        return Verdict.REPEATS
    if a.words[0] != b.words[0] and not set(b.words) <= set(a.words):
        return Verdict.OTHER
    return _compare_slots(a, b)


def _compare_slots(a: _Statement, b: _Statement) -> Verdict:
    """Verdict from the stretches in which two statements differ."""
    if sorted(a.words) == sorted(b.words):  # the same words the other way round
        return Verdict.UPDATES if a.words[0] == b.words[0] else Verdict.OTHER
    matcher = difflib.SequenceMatcher(None, b.words, a.words, autojunk=False)
    slots = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    replaced = [slot for slot in slots if slot[0] == "replace"]
    if not replaced:
        if a.denied != b.denied:
            return Verdict.UPDATES
        return Verdict.ADDS if all(s[0] == "insert" for s in slots) else Verdict.OTHER
    if all(_is_value(a, b, slot) for slot in replaced):
        return Verdict.UPDATES
    shared = len(a.words) - sum(slot[4] - slot[3] for slot in slots)
    trailing = all(slot[2] == len(b.words) for slot in replaced)
    return Verdict.ADDS if trailing and shared >= 3 else Verdict.OTHER


def _is_value(a: _Statement, b: _Statement, slot) -> bool:
    """Whether a replaced stretch is the value of the statement, not its subject."""
    _, b_start, b_end, a_start, a_end = slot
    old, new = b.words[b_start:b_end], a.words[a_start:a_end]
    if b_start == 0 or max(len(old), len(new)) > _MAX_VALUE_WORDS:
        return False
    numbers = {_number_shape(old), _number_shape(new)}
    if "mixed" in numbers and len(numbers | {"mixed"}) == 1 and b_start < 2:
        return False  # "phone 17" against "email 23" is another attribute
    before_a, before_b = a.links[a_start], b.links[b_start]
    linked = before_a in _LINKS and before_b in _LINKS
    if b_end < len(b.words):  # more follows: a value only right after "is" and the like
        return linked
    if not linked and {before_a, before_b} & _FILLER and before_a != before_b:
        return False  # "... in room 4" against "... with bob"
    single = len(old) == len(new) == 1
    return single or linked or b_start >= 2


def _number_shape(words: tuple[str, ...]) -> str:
    count = sum(word[0].isdigit() for word in words)
    return "none" if count == 0 else "all" if count == len(words) else "mixed"


@functools.lru_cache(maxsize=8192)
def _read(text: str) -> _Statement:
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    words, links, denied, before = [], [], False, ""
    for word in _WORD.findall(folded):
        bare = word.replace("'", "")
        if bare in _NEGATION:
            denied = not denied
        elif word.endswith("'s"):
            word = word[:-2]
        if bare not in _NEGATION and word not in _FILLER and word not in "=:":
            words.append(word)
            links.append(before)
        before = word
    return _Statement(tuple(words), tuple(links), denied)


def _is_subsequence(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)

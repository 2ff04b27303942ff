"""The stretches in which two statements differ, and whether they are values."""

from __future__ import annotations

import difflib

from mempo_jax.memory import lexicon, wording
from mempo_jax.memory.statements import Statement, Word

Slot = tuple[slice, slice]  # where two statements differ: (in the old, in the new)
_MAX_VALUE_WORDS = 3
_IN_VALUES = lexicon.PREPOSITIONS | {"of", "now", "a", "an", "the"}
_SAYING = lexicon.FILLER - _IN_VALUES  # what only sentences have


def slots_of(old: tuple[str, ...], new: tuple[str, ...]) -> list[Slot]:
    """The stretches that differ, in order."""
    start, least = 0, min(len(old), len(new))
    while start < least and old[start] == new[start]:
        start += 1
    end = 0
    while end < least - start and old[-1 - end] == new[-1 - end]:
        end += 1
    old_part, new_part = old[start : len(old) - end], new[start : len(new) - end]
    if not set(old_part) & set(new_part):
        where = slice(start, len(old) - end), slice(start, len(new) - end)
        return [where]
    matcher = difflib.SequenceMatcher(None, old_part, new_part, autojunk=False)
    return [
        (slice(start + i, start + j), slice(start + k, start + m))
        for kind, i, j, k, m in matcher.get_opcodes()
        if kind != "equal"
    ]


def is_bare(statement: Statement) -> bool:
    """Whether the body is a value, "4711" or "in room b12", and no sentence.

    A sentence has a verb, a pronoun or more than a few words, or it opens with a
    capital and ends with a stop.
    """
    words = statement.details[statement.head :]
    most = _MAX_VALUE_WORDS - (bool(words) and wording.is_cjk(words[0].stem))
    if statement.moods or not 0 < _weight(words) <= most:
        return False
    if any(form.split("'")[0] in _SAYING for form in statement.forms):
        return False
    tense = _tense(words[0])
    acts = len(words) > 1 or (tense == "present" and not words[0].is_capital)
    if acts and tense != "none":  # "likes jazz", "sings", but "closed" is a state
        return False
    opens_low = words[0].before == ":" and not words[0].is_capital
    is_open = statement.closing not in (".", "!", "?")
    return statement.has_number or opens_low or is_open


def is_value(a: Statement, b: Statement, slot: Slot, alone: bool) -> bool:
    """Whether a replaced stretch is the value of the statement, not its subject."""
    old, new = _widened(b, slot[0], a, slot[1])
    was, now = b.details[old], a.details[new]
    if old.start == 0 or max(_weight(was), _weight(now)) > _MAX_VALUE_WORDS:
        return False
    if was[0].is_owned != now[0].is_owned:  # "is a nurse" against "has a cat"
        return False
    place = old.start - min(a.head, b.head)
    numbers = {_number_shape(was), _number_shape(now)}
    if "mixed" in numbers and len(numbers | {"mixed"}) == 1 and place < 2:
        return False  # "phone 17" against "email 23" is another attribute
    befores = {was[0].before, now[0].before}
    linked = befores <= lexicon.LINKS
    if old.stop < len(b.words) or new.stop < len(a.words):
        return linked or (alone and _is_inner_value(a, b, old, new))
    if not linked and befores & lexicon.FILLER and len(befores) == 2:
        return False  # "... in room 4" against "... with bob"
    if wording.is_cjk(was[0].stem):
        return linked or place >= 3  # after a name of up to three letters
    single = len(was) == len(now) == 1
    return single or linked or place >= 2


def _widened(b: Statement, old: slice, a: Statement, new: slice) -> tuple[slice, slice]:
    """A slot within a Chinese word grows to the end of that word, if a link opens it.

    The letters are read one by one: "beijing" and "nanjing" share the second.
    """
    stops = []
    for statement, where in ((b, old), (a, new)):
        details, stop = statement.details, where.stop
        while (
            stop < len(details)
            and wording.is_cjk(details[stop].stem)
            and details[stop].place == details[stop - 1].place + 1
        ):
            stop += 1
        stops.append(stop)
    if b.details[old.start].before not in lexicon.LINKS or not wording.is_cjk(
        b.details[old.start].stem
    ):
        return old, new
    return slice(old.start, stops[0]), slice(new.start, stops[1])


def _weight(words: tuple[Word, ...]) -> float:
    if len(words) > 2 * _MAX_VALUE_WORDS:
        return len(words)
    return sum(0.5 if wording.is_cjk(word.stem) else 1 for word in words)


def _is_inner_value(a: Statement, b: Statement, old: slice, new: slice) -> bool:
    """Whether a replaced stretch with more behind it is a value, verb or adjective."""
    was, now = b.details[old], a.details[new]
    if max(len(was), len(now)) > 1:
        return False
    was, now = was[0], now[0]
    if was.form in lexicon.RELATIONS and now.form in lexicon.RELATIONS:
        return True
    after = was.after
    if was.before != now.before or after in lexicon.LINKS - lexicon.PREPOSITIONS:
        return False
    if was.stem[0].isdigit() and now.stem[0].isdigit():  # "has 3 cats"
        subject = b.details[old.start - 1]
        if wording.is_cjk(subject.stem):
            return old.start >= 3 and after not in lexicon.COUNTERS_OF_NAMES
        return was.before != subject.form or _is_verb(subject)
    if was.before in ("a", "an"):  # "drives a red car"
        return after == b.details[old.stop].form
    of_subject = was.before == b.details[old.start - 1].form
    return of_subject and _is_verb(was) and _is_verb(now) and _tense(was) == _tense(now)


def _is_verb(word: Word) -> bool:
    return not word.is_capital and _tense(word) != "none"


def _tense(word: Word) -> str:
    if wording.is_past(word.form):
        return "past"
    return "present" if wording.is_present(word.form) else "none"


def _number_shape(words: tuple[Word, ...]) -> str:
    count = sum(word.stem[0].isdigit() for word in words)
    return "none" if count == 0 else "all" if count == len(words) else "mixed"

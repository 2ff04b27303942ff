"""What one statement is to another, by the stretches in which their words differ."""

from __future__ import annotations

import difflib
import enum
import functools
import re

from mempo_jax.memory.lexical import lexicon
from mempo_jax.memory.lexical.statements import MOST_DETAILED, Statement, Word, read

# Where two statements differ: (in the old, in the new).
DifferingSpan = tuple[slice, slice]
_MAX_VALUE_WORDS = 3  # a longer stretch is rarely a value, but a statement of its own
# A value may hold these: "in room b12", "a nurse".
_IN_VALUES = lexicon.PREPOSITIONS | {"of", "now", "a", "an", "the"}
_SAYING = lexicon.FILLER - _IN_VALUES  # function words that only sentences have
_ANY_WORD = re.compile(r"[^\W_]")


class Verdict(enum.StrEnum):
    """What a new text is to an old one.

    OTHER: a fact about something else. ADDS: the same and more. UPDATES: the same
    statement with another value. REPEATS: nothing that the old one does not say.
    """

    OTHER = "other"
    ADDS = "adds"
    UPDATES = "updates"
    REPEATS = "repeats"


# Cached: the same pairs meet again in forks of one task.
@functools.lru_cache(maxsize=8192)
def compare(new: str, old: str) -> Verdict:
    """Judges a single statement against another.

    A remark supersedes nothing: it is no other value of what it resembles. A question
    repeats another, or is another question.

    Args:
      new: the new statement.
      old: the old statement.
    """
    verdict, sides = _compare(new, old), (read(new), read(old))
    if verdict == Verdict.UPDATES and any(side.is_remark for side in sides):
        return Verdict.OTHER
    if verdict == Verdict.ADDS and any("asks" in side.moods for side in sides):
        return Verdict.OTHER
    return verdict


def _compare(new: str, old: str) -> Verdict:
    a, b = read(new), read(old)
    if not _ANY_WORD.search(new):  # signs alone: only the text itself can be compared
        return Verdict.REPEATS if new.strip() == old.strip() else Verdict.OTHER
    if "asks" in a.moods ^ b.moods or _are_apart(a, b):
        return Verdict.OTHER
    agree = a.moods == b.moods and not _tenses_differ(a, b)
    same = Verdict.REPEATS if agree else Verdict.UPDATES
    if a.words == b.words or (agree and a.words and _contains_run(a.words, b.words)):
        return same
    if not a.words or not b.words:
        return Verdict.ADDS if a.words else Verdict.REPEATS
    if max(len(a.words), len(b.words)) > MOST_DETAILED:
        return _compare_long(a, b, agree)
    if sorted(a.words) == sorted(b.words):
        if _is_reordered(a, b):
            return same
        return Verdict.UPDATES if a.subject == b.subject else Verdict.OTHER
    if a.words[0] != b.words[0] and not (
        set(a.words) >= set(b.words) or _is_subsequence(a.words, b.words)
    ):
        return Verdict.OTHER
    return _compare_slots(a, b, agree)


def _are_apart(a: Statement, b: Statement) -> bool:
    """Whether others say it, or one says too little: "ann: i do", "ann: we can"."""
    # One heading within the other is the same one, named in full: "ann", "ann, 3 May".
    heads = set(a.words[: a.head]), set(b.words[: b.head])
    others = all(heads) and not (heads[0] <= heads[1] or heads[1] <= heads[0])
    if others or a.pointer != b.pointer:
        return True
    if len(a.body) < 2 and len(a.frame) > 1 and not a.frame <= b.frame:
        return True
    return any(
        not one.body and not (one.forms and _contains_run(one.forms, other.forms))
        for one, other in ((a, b), (b, a))
    )


def _tenses_differ(a: Statement, b: Statement) -> bool:
    differing = a.pasts ^ b.pasts
    return bool(differing) and any(
        verb == "be" or (verb in a.words and verb in b.words) for verb in differing
    )


def _is_reordered(a: Statement, b: Statement) -> bool:
    """Whether only phrases moved and no word changed its part.

    Each word keeps its preposition, and those without one keep their order, up to a
    stretch that moved from one end to the other ("x is y", "y is x").
    """
    if sorted((w.stem, w.role) for w in a.details) != sorted(
        (w.stem, w.role) for w in b.details
    ):
        return False
    bare_a, bare_b = _without_role(a), _without_role(b)
    has_roles = len(bare_a) < len(a.words)
    if bare_a == bare_b or (has_roles and len(bare_a) == 2):
        return True
    linked = any(word.after in lexicon.LINKS for word in (*a.details, *b.details))
    return (linked or len(a.words) > 2) and _is_rotation(a.body, b.body)


def _without_role(statement: Statement) -> list[str]:
    return [
        word.stem
        for word in statement.details
        if not word.role and word.form not in lexicon.PREPOSITIONS
    ]


def _is_rotation(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    return any(a[cut:] + a[:cut] == b for cut in range(1, len(a)))


def _contains_run(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    """Whether ``part`` is in ``whole`` without a gap."""
    size = len(part)
    return any(
        whole[at : at + size] == part
        for at in range(len(whole) - size + 1)
        if whole[at] == part[0]
    )


def _is_subsequence(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def _compare_long(a: Statement, b: Statement, agree: bool) -> Verdict:
    """Judges long statements: each word of one is in the other, or facts differ."""
    if agree and _is_subsequence(a.words, b.words):
        return Verdict.REPEATS
    more = agree and _is_subsequence(b.words, a.words)
    return Verdict.ADDS if more else Verdict.OTHER


def _compare_slots(a: Statement, b: Statement, agree: bool) -> Verdict:
    """Judges by the stretches in which two statements differ."""
    slots = differing_spans(b.words, a.words)
    if any(_is_about_another(b, old, a, new) for old, new in slots):
        return Verdict.OTHER
    inserted = [slot for slot in slots if slot[0].start == slot[0].stop]
    deleted = [slot for slot in slots if slot[1].start == slot[1].stop]
    replaced = len(slots) - len(inserted) - len(deleted)
    if not replaced:
        turned = any(
            span.stop < len(words) and words[span.stop - 1].form in lexicon.RELATIONS
            for words, span in (
                *((b.details, old) for old, _ in deleted),
                *((a.details, new) for _, new in inserted),
            )
        )
        if not _is_dense(a, b, deleted):
            return Verdict.OTHER
        if turned or not agree:
            return Verdict.UPDATES if _share_subject(a, b, slots) else Verdict.OTHER
        if not inserted:
            return Verdict.REPEATS
        return Verdict.OTHER if deleted else Verdict.ADDS
    changed = [s for s in slots if s not in inserted and s not in deleted]
    alone = len(slots) == 1
    if _share_subject(a, b, slots) and all(is_value(a, b, s, alone) for s in changed):
        return Verdict.UPDATES
    return Verdict.ADDS if _is_other_detail(a, b, changed) else Verdict.OTHER


def _is_about_another(b: Statement, old: slice, a: Statement, new: slice) -> bool:
    """Whether an insertion or omission makes it a statement about something else.

    "ann's sister" is not ann, and in "ann likes tea and bob likes coffee" nothing is
    said of ann and coffee.
    """
    for one, where, two, there in ((b, old, a, new), (a, new, b, old)):
        if there.start != there.stop or where.start == 0:
            continue
        before = one.details[where.start - 1]
        if before.is_owner and not two.details[there.start - 1].is_owner:
            return True
        if where.stop == len(one.words):
            continue
        gap, following = one.details[where], one.details[where.stop]
        leaps = following.clause > before.clause and len(gap) > 1
        has_number = any(word.stem[0].isdigit() for word in gap)
        numbers = has_number and following.stem[0].isdigit()
        if leaps and (gap[-1].is_capital or numbers):
            return True
        if {word.stem for word in gap} & set(two.words):
            return True
    return False


def _share_subject(a: Statement, b: Statement, slots: list[DifferingSpan]) -> bool:
    """Whether the statements under a heading have a subject in common.

    The heading is one only if bare values follow: "code: 17", but not "ann: i agree",
    and not "phones: ann 17" against "phones: bob 17".
    """
    apart = set(a.body).isdisjoint(b.body)
    for side, which in ((b, 0), (a, 1)):
        start = min(slot[which].start for slot in slots)
        if start > side.head or not side.head:
            continue
        replaced = apart or "".join(side.body)[:1].isdigit()  # "4 nights"
        if start < side.head or not (replaced and is_bare(side)):
            return False
    return True


def _is_dense(a: Statement, b: Statement, deleted: list[DifferingSpan]) -> bool:
    """Whether the words of a are near each other in b."""
    gaps = [old for old, _ in deleted if b.head < old.start and old.stop < len(b.words)]
    return sum(gap.stop - gap.start for gap in gaps) <= max(1, len(a.body) // 2)


def _is_other_detail(a: Statement, b: Statement, replaced: list[DifferingSpan]) -> bool:
    """ "... in room 4" against "... with bob": both hold."""
    ((old, new), *more) = replaced
    if more or old.stop < len(b.words) or new.stop < len(a.words):
        return False
    roles = {b.details[old.start].role, a.details[new.start].role}
    return len(roles) == 2 and "" not in roles and old.start >= 2


def differing_spans(old: tuple[str, ...], new: tuple[str, ...]) -> list[DifferingSpan]:
    """Returns the stretches in which two statements differ, in order.

    Args:
      old: stems of the old statement.
      new: stems of the new one.
    """
    # Equal ends are cut off first: most pairs differ in one stretch and need no more.
    start, least = 0, min(len(old), len(new))
    while start < least and old[start] == new[start]:
        start += 1
    end = 0
    while end < least - start and old[-1 - end] == new[-1 - end]:
        end += 1
    old_part, new_part = old[start : len(old) - end], new[start : len(new) - end]
    if not set(old_part) & set(new_part):
        span = slice(start, len(old) - end), slice(start, len(new) - end)
        return [span]
    # autojunk would ignore words that are frequent in long statements.
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

    Args:
      statement: as it was read.
    """
    words = statement.details[statement.head :]
    most = _MAX_VALUE_WORDS - (bool(words) and lexicon.is_cjk(words[0].stem))
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


def is_value(a: Statement, b: Statement, slot: DifferingSpan, alone: bool) -> bool:
    """Whether a replaced stretch is the value of the statement, not its subject.

    Args:
      a: the new statement.
      b: the old statement.
      slot: the stretch, in the old and in the new.
      alone: whether it is the only difference.
    """
    old, new = _widen_to_words(b, slot[0], a, slot[1])
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
    if lexicon.is_cjk(was[0].stem):
        return linked or place >= 3  # after a name of up to three letters
    single = len(was) == len(now) == 1
    return single or linked or place >= 2


def _widen_to_words(
    b: Statement, old: slice, a: Statement, new: slice
) -> tuple[slice, slice]:
    """Widens a slot within a Chinese word to the end of that word, if a link opens it.

    The letters are read one by one: "beijing" and "nanjing" share the second.
    """
    stops = []
    for statement, span in ((b, old), (a, new)):
        details, stop = statement.details, span.stop
        while (
            stop < len(details)
            and lexicon.is_cjk(details[stop].stem)
            and details[stop].place == details[stop - 1].place + 1
        ):
            stop += 1
        stops.append(stop)
    if b.details[old.start].before not in lexicon.LINKS or not lexicon.is_cjk(
        b.details[old.start].stem
    ):
        return old, new
    return slice(old.start, stops[0]), slice(new.start, stops[1])


def _weight(words: tuple[Word, ...]) -> float:
    """Length of a stretch in words."""
    if len(words) > 2 * _MAX_VALUE_WORDS:
        return len(words)
    # Two Chinese letters make about one word.
    return sum(0.5 if lexicon.is_cjk(word.stem) else 1 for word in words)


def _is_inner_value(a: Statement, b: Statement, old: slice, new: slice) -> bool:
    """Whether a replaced stretch with more after it is a value, verb or adjective."""
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
        if lexicon.is_cjk(subject.stem):
            return old.start >= 3 and after not in lexicon.COUNTERS_OF_NAMES
        return was.before != subject.form or _is_verb(subject)
    if was.before in ("a", "an"):  # "drives a red car"
        return after == b.details[old.stop].form
    of_subject = was.before == b.details[old.start - 1].form
    return of_subject and _is_verb(was) and _is_verb(now) and _tense(was) == _tense(now)


def _is_verb(word: Word) -> bool:
    return not word.is_capital and _tense(word) != "none"


def _tense(word: Word) -> str:
    if lexicon.is_past(word.form):
        return "past"
    return "present" if lexicon.is_present(word.form) else "none"


def _number_shape(words: tuple[Word, ...]) -> str:
    count = sum(word.stem[0].isdigit() for word in words)
    return "none" if count == 0 else "all" if count == len(words) else "mixed"

"""What one statement is to another, by the stretches in which their words differ."""

from __future__ import annotations

import enum
import functools
import re

from mempo_jax.memory import lexicon
from mempo_jax.memory.slots import Slot, is_bare, is_value, slots_of
from mempo_jax.memory.statements import MOST_DETAILED, Statement, read

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


@functools.lru_cache(maxsize=8192)
def compare(new: str, old: str) -> Verdict:
    """Verdict on two single statements.

    A remark supersedes nothing: it is no other value of what it resembles. Two
    questions are one or another.
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
    if a.words == b.words or (agree and a.words and _is_run(a.words, b.words)):
        return same
    if not a.words or not b.words:
        return Verdict.ADDS if a.words else Verdict.REPEATS
    if max(len(a.words), len(b.words)) > MOST_DETAILED:
        return _compare_wholes(a, b, agree)
    if sorted(a.words) == sorted(b.words):
        if _says_the_same_in_another_order(a, b):
            return same
        return Verdict.UPDATES if a.subject == b.subject else Verdict.OTHER
    if a.words[0] != b.words[0] and not (
        set(a.words) >= set(b.words) or _is_subsequence(a.words, b.words)
    ):
        return Verdict.OTHER
    return _compare_slots(a, b, agree)


def _are_apart(a: Statement, b: Statement) -> bool:
    """Whether others say it, or one says too little: "ann: i do", "ann: we can"."""
    heads = set(a.words[: a.head]), set(b.words[: b.head])
    others = all(heads) and not (heads[0] <= heads[1] or heads[1] <= heads[0])
    if others or a.pointer != b.pointer:
        return True
    if len(a.body) < 2 and len(a.frame) > 1 and not a.frame <= b.frame:
        return True
    return any(
        not one.body and not (one.forms and _is_run(one.forms, other.forms))
        for one, other in ((a, b), (b, a))
    )


def _tenses_differ(a: Statement, b: Statement) -> bool:
    differing = a.pasts ^ b.pasts
    return bool(differing) and any(
        verb == "be" or (verb in a.words and verb in b.words) for verb in differing
    )


def _says_the_same_in_another_order(a: Statement, b: Statement) -> bool:
    """Whether no word changed its part: only phrases moved.

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


def _is_run(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    """Whether ``part`` stands in ``whole`` without a gap."""
    size = len(part)
    return any(
        whole[at : at + size] == part
        for at in range(len(whole) - size + 1)
        if whole[at] == part[0]
    )


def _is_subsequence(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def _compare_wholes(a: Statement, b: Statement, agree: bool) -> Verdict:
    """Verdict on long statements: one in the other, word by word, or another fact."""
    if agree and _is_subsequence(a.words, b.words):
        return Verdict.REPEATS
    more = agree and _is_subsequence(b.words, a.words)
    return Verdict.ADDS if more else Verdict.OTHER


def _compare_slots(a: Statement, b: Statement, agree: bool) -> Verdict:
    """Verdict from the stretches in which two statements differ."""
    slots = slots_of(b.words, a.words)
    if any(_joins_another(b, old, a, new) for old, new in slots):
        return Verdict.OTHER
    inserted = [slot for slot in slots if slot[0].start == slot[0].stop]
    deleted = [slot for slot in slots if slot[1].start == slot[1].stop]
    replaced = len(slots) - len(inserted) - len(deleted)
    if not replaced:
        turned = any(
            where.stop < len(words) and words[where.stop - 1].form in lexicon.RELATIONS
            for words, where in (
                *((b.details, old) for old, _ in deleted),
                *((a.details, new) for _, new in inserted),
            )
        )
        if not _is_close(a, b, deleted):
            return Verdict.OTHER
        if turned or not agree:
            return Verdict.UPDATES if _is_of_same(a, b, slots) else Verdict.OTHER
        if not inserted:
            return Verdict.REPEATS
        return Verdict.OTHER if deleted else Verdict.ADDS
    changed = [s for s in slots if s not in inserted and s not in deleted]
    alone = len(slots) == 1
    if _is_of_same(a, b, slots) and all(is_value(a, b, s, alone) for s in changed):
        return Verdict.UPDATES
    return Verdict.ADDS if _is_other_detail(a, b, changed) else Verdict.OTHER


def _joins_another(b: Statement, old: slice, a: Statement, new: slice) -> bool:
    """Whether an insertion or omission makes it a statement about something else.

    "ann's sister" is not ann, and in "ann likes tea and bob likes coffee" nothing
    is said of ann and coffee.
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


def _is_of_same(a: Statement, b: Statement, slots: list[Slot]) -> bool:
    """Whether the statements under a heading have a subject in common.

    The heading is one only if bare values follow: "code: 17", but not "ann: i agree",
    and not "phones: ann 17" against "phones: bob 17".
    """
    apart = set(a.body).isdisjoint(b.body)
    for side, which in ((b, 0), (a, 1)):
        start = min(slot[which].start for slot in slots)
        if start > side.head or not side.head:
            continue
        whole = apart or "".join(side.body)[:1].isdigit()  # "4 nights"
        if start < side.head or not (whole and is_bare(side)):
            return False
    return True


def _is_close(a: Statement, b: Statement, deleted: list[Slot]) -> bool:
    """Whether the words of a stand near each other in b."""
    gaps = [old for old, _ in deleted if b.head < old.start and old.stop < len(b.words)]
    return sum(gap.stop - gap.start for gap in gaps) <= max(1, len(a.body) // 2)


def _is_other_detail(a: Statement, b: Statement, replaced: list[Slot]) -> bool:
    """ "... in room 4" against "... with bob": both hold."""
    ((old, new), *more) = replaced
    if more or old.stop < len(b.words) or new.stop < len(a.words):
        return False
    roles = {b.details[old.start].role, a.details[new.start].role}
    return len(roles) == 2 and "" not in roles and old.start >= 2

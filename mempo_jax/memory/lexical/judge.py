"""Judges: does a text add to what a memory already says?

A similarity alone cannot tell a changed value from a repetition: "the code is 4711" and
"the code is 4712" have a cosine of 0.97. The lexical judge compares words instead: the
same content words, numbers, negation and order repeat; a stretch that differs is a
changed value if it is at a place of values, and else makes it another fact.

What follows a heading ("code: 4711", "Ann: I keep bees", a title) is its value only if
it is no sentence on both sides; else the heading tells who or what it is about, and the
sentences must share their own subject. Greetings, thanks, praise, questions and
exclamations supersede nothing.

It knows word classes but no meanings, so it is still wrong here:
- Two events look like a changed value: "Ann bought a car", "Ann bought a house"; so do
  two verbs of one tense: "Karl sold the house", "Karl painted the house".
- Other words for the same are another fact: "Eve is afraid of spiders", "Eve fears
  spiders"; in a similar text a verb in other words supersedes instead of repeating.
- A changed value before the end is often a new fact beside the old one: "the user wants
  short answers", "... long answers". Nothing is lost, but both stay active.
- Upper and lower case are one: the passwords "Secret" and "secret".
- Most signs are not read: "5 + 3" and "5 - 3" are one, and so are "f(a, b)", "f(b, a)".
- "I" and "you" are one unless they come first, and so are "he" and "she" without a name
  before them.
- Both are stored side by side: "Ann: I am a nurse", "Ann: I am a teacher" (sentences
  that share no content word), "fruit: apples", "fruit: pears" (which could be verbs),
  and anything with an exclamation mark.
- Short notes under one heading that name no verb it knows look like values: "todo: buy
  milk", "todo: call Bob".
- Chinese is read letter by letter, without a dictionary: a verb that differs makes
  another fact, and so does the patient put first.
"""

from __future__ import annotations

from collections.abc import Callable

from mempo_jax.memory.lexical.comparison import Verdict, compare
from mempo_jax.memory.lexical.statements import read, scoped

Judge = Callable[[str, str], Verdict]  # (new text, old text)
# From weakest to strongest: what one old statement says outweighs the others.
_RANK = (Verdict.OTHER, Verdict.ADDS, Verdict.UPDATES, Verdict.REPEATS)
_COMPARED = 3  # old statements that a new one is compared with: see _strongest_verdict


def lexical(new: str, old: str) -> Verdict:
    """Compares content words, numbers, names, negation and word order.

    A text of several statements (lines or sentences) repeats if each is repeated; it
    updates if one statement updates one of the old text.

    Args:
      new: the new text with its title.
      old: text of an entry with its title.
    """
    lines = scoped(old)
    verdicts = [_strongest_verdict(statement, lines) for statement in scoped(new)]
    if not verdicts or all(verdict == Verdict.REPEATS for verdict in verdicts):
        return Verdict.REPEATS
    for verdict in (Verdict.UPDATES, Verdict.ADDS):
        if verdict in verdicts:
            return verdict
    return Verdict.ADDS if Verdict.REPEATS in verdicts else Verdict.OTHER


def always_adds(new: str, old: str) -> Verdict:
    """Passes everything, so that only the similarity decides.

    Args:
      new: not read.
      old: not read.
    """
    del new, old
    return Verdict.ADDS


def make_judge(name: str, judge: Judge | None = None) -> Judge:
    """Returns the judge of a name.

    Args:
      name: ``lexical``, ``always`` or ``policy``.
      judge: returned as it is if given; ``policy`` needs one.

    Raises:
      ValueError: no judge has that name, or ``policy`` comes without one.
    """
    if judge is not None:
        return judge
    known = {"lexical": lexical, "always": always_adds}
    if name in known:
        return known[name]
    hint = "pass judge=callable(new, old) to the Bank" if name == "policy" else ""
    raise ValueError(
        f"memory.judge must be one of {[*known, 'policy']}, got {name!r}. {hint}"
    )


def joined(texts: list[str]) -> str:
    """Joins texts, a line each, leaving out texts that a later one contains.

    Args:
      texts: in the order in which they were written.
    """
    parts = [
        text
        for place, text in enumerate(texts)
        if not any(
            _contains(later, text.strip().rstrip(".")) for later in texts[place + 1 :]
        )
    ]
    return "\n".join(parts)


def updated(texts: list[str]) -> str:
    """Puts the statements that an update leaves untouched before the new text.

    Args:
      texts: the old texts, then the new one.
    """
    *older, new = texts
    lines = [line for text in older for line in scoped(text)]
    if len(lines) < 2:  # the update replaces the only statement that there was
        return new
    fresh = scoped(new)
    untouched = [
        line
        for line in lines
        if not any(
            compare(statement, line) in (Verdict.UPDATES, Verdict.REPEATS)
            for statement in fresh
        )
    ]
    return "\n".join([*untouched, new])


def _strongest_verdict(statement: str, old: tuple[str, ...]) -> Verdict:
    """Returns the strongest verdict on a statement against those of the old text.

    Only the old statements that share most words with it are compared: all pairs of two
    long texts would take too long.
    """
    if statement in old:  # word for word: nothing needs to be read
        return Verdict.REPEATS
    if len(old) > _COMPARED:
        words = frozenset(read(statement).words)
        shared = [len(words.intersection(read(line).words)) for line in old]
        nearest = sorted(range(len(old)), key=shared.__getitem__, reverse=True)
        old = [old[i] for i in nearest[:_COMPARED] if shared[i] or i == nearest[0]]
    verdicts = [compare(statement, line) for line in old]
    return max(verdicts, key=_RANK.index, default=Verdict.OTHER)


def _contains(text: str, part: str) -> bool:
    """Whether ``part`` is in ``text`` as whole words."""
    place = text.find(part)
    before, after = text[place - 1 : place], text[place + len(part) :][:1]
    return place >= 0 and not (before.isalnum() or after.isalnum())

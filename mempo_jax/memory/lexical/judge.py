"""Does a text add to what a memory already says? Judges behind one call.

A similarity alone cannot tell a changed value from a repetition: "the code is 4711"
and "the code is 4712" lie at 0.97. The lexical judge compares words instead: the same
content words, numbers, negation and order repeat; a stretch that differs is a changed
value if it stands where values stand, and else makes it another fact.

What follows a heading ("code: 4711", "Ann: I keep bees", a title) is its value only if
it is no sentence on both sides; else the heading tells who or what it is about, and
the sentences must share their own subject. Greetings, thanks, praise, questions and
exclamations supersede nothing.

Where it is still wrong, as it knows word classes but no meanings:
- Two events look like a changed value: "Ann bought a car", "Ann bought a house"; so do
  two verbs of one tense: "Karl sold the house", "Karl painted the house".
- Other words for the same are another fact: "Eve is afraid of spiders", "Eve fears
  spiders"; in a similar text a verb in other words supersedes instead of repeating.
- A changed value before the end is often a new fact beside the old one: "the user wants
  short answers", "... long answers". Nothing is lost, but both stay active.
- Upper and lower case are one: the passwords "Secret" and "secret".
- Most signs are not read: "5 + 3" and "5 - 3" are one, and so are "f(a, b)", "f(b, a)".
- "I" and "you" are one but as the first word, and so are "he" and "she" without a name
  before them.
- Both stand side by side: "Ann: I am a nurse", "Ann: I am a teacher" (sentences that
  share no content word), "fruit: apples", "fruit: pears" (which could be verbs), and
  anything told with an exclamation mark.
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
_RANK = (Verdict.OTHER, Verdict.ADDS, Verdict.UPDATES, Verdict.REPEATS)
_COMPARED = 3  # statements of the old text, those that share most words


def always_adds(new: str, old: str) -> Verdict:
    """The judge that passes everything: only the similarity decides."""
    del new, old
    return Verdict.ADDS


def lexical(new: str, old: str) -> Verdict:
    """Compares content words, numbers, names, negation and word order.

    A text of several statements (lines or sentences) repeats if each is repeated; it
    updates if one statement updates one of the old text.
    """
    lines = scoped(old)
    verdicts = [_against_all(statement, lines) for statement in scoped(new)]
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
    lines = [line for text in older for line in scoped(text)]
    if len(lines) < 2:
        return new
    fresh = scoped(new)
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


def _against_all(statement: str, old: tuple[str, ...]) -> Verdict:
    """The strongest verdict against a statement of the old text.

    Of many statements only those count that share most words with the new one: all
    pairs of two long texts would take too long.
    """
    if statement in old:
        return Verdict.REPEATS
    if len(old) > _COMPARED:
        words = frozenset(read(statement).words)
        shared = [len(words.intersection(read(line).words)) for line in old]
        nearest = sorted(range(len(old)), key=shared.__getitem__, reverse=True)
        old = [old[i] for i in nearest[:_COMPARED] if shared[i] or i == nearest[0]]
    verdicts = [compare(statement, line) for line in old]
    return max(verdicts, key=_RANK.index, default=Verdict.OTHER)

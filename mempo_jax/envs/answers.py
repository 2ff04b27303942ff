"""Scores of short answers as in question answering benchmarks, and lists of answers.

``normalise_answer``, ``exact_match`` and ``token_f1`` follow SQuAD (Rajpurkar et al.
2016); ``answer_f1`` adds HotpotQA's rule for yes and no (Yang et al. 2018).
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
VERDICTS = frozenset({"yes", "no", "noanswer"})  # right or wrong, nothing in between
# "1: Paris; 2: Rome". A number counts after a separator only: "at 2: 30" has none.
_NUMBER = re.compile(r"(?:^|[;,\n])\s*\(?(\d{1,3})\s*(?:[:)]|\.(?=\s))\s*")


def normalise_answer(text: str) -> str:
    """Returns ``text`` in lower case, without punctuation, articles and extra space.

    Source: Rajpurkar et al. 2016 (SQuAD), as its evaluation and HotpotQA's do.
    """
    bare = ARTICLES.sub(" ", text.lower().translate(PUNCTUATION))
    return " ".join(bare.split())


def exact_match(prediction: str, gold: str) -> float:
    """Returns 1.0 if ``prediction`` and ``gold`` agree when normalised, else 0.0."""
    return float(normalise_answer(prediction) == normalise_answer(gold))


def token_f1(prediction: str, gold: str) -> float:
    """Returns the harmonic mean of token precision and recall, in [0, 1].

    Tokens are those of the normalised texts, and count as often as they occur. If one
    side has none, the result is 1.0 if both have none, else 0.0. Source: Rajpurkar et
    al. 2016, section 6.1.

    Args:
      prediction: the policy's answer.
      gold: the right answer.
    """
    predicted = normalise_answer(prediction).split()
    wanted = normalise_answer(gold).split()
    if not predicted or not wanted:
        return float(predicted == wanted)
    common = (collections.Counter(predicted) & collections.Counter(wanted)).total()
    return 2 * common / (len(predicted) + len(wanted))


def answer_f1(prediction: str, gold: str) -> float:
    """Returns ``token_f1``, but a yes or a no shares nothing with any other answer.

    "yes, it is" against "yes" is 0. Source: HotpotQA's evaluation (Yang et al. 2018).

    Args:
      prediction: the policy's answer.
      gold: the right answer.
    """
    sides = {normalise_answer(prediction), normalise_answer(gold)}
    if len(sides) == 2 and sides & VERDICTS:
        return 0.0
    return token_f1(prediction, gold)


def join_answers(answers: Sequence[str]) -> str:
    """Returns ``answers`` as ``1: first; 2: second``, which ``split_answers`` reads."""
    return "; ".join(f"{n}: {text}" for n, text in enumerate(answers, start=1))


def split_answers(text: str, count: int) -> tuple[str, ...]:
    """Reads the numbered answers of one text.

    Any text gives ``count`` strings. Numbers beyond ``count`` are read as part of the
    answer that contains them; of two answers to one number the later counts. A single
    answer needs no number.

    Args:
      text: the policy's answer.
      count: number of questions.

    Returns:
      ``count`` answers in order, "" for a missing one.
    """
    numbers = [m for m in _NUMBER.finditer(text) if 1 <= int(m[1]) <= count]
    if not numbers and count == 1:
        return (text.strip(),)
    answers = [""] * count
    # An answer ends where the next number begins.
    ends = [match.start() for match in numbers[1:]] + [len(text)]
    for match, end in zip(numbers, ends):
        answers[int(match[1]) - 1] = text[match.end() : end].strip(" \t\r\n;")
    return tuple(answers)

"""How an answer about a conversation is scored.

Questions about what was said: token F1 of the answer (SQuAD's normalisation; LoCoMo's
own evaluation stems words besides, which lifts its figures a little). Adversarial
questions ask about what nobody said: right is to say so, that is, to abstain.
"""

from __future__ import annotations

import re

from mempo_jax.envs.answers import exact_match, token_f1
from mempo_jax.envs.dialogue_files import ADVERSARIAL, Asked

NOT_MENTIONED = "not mentioned"  # what we write where we abstain
# An answer that contains one of these word sequences abstains, whatever else it says.
ABSTENTIONS = (
    NOT_MENTIONED,
    *("never mentioned", "was not mentioned", "no mention", "not stated", "not said"),
    *("not specified", "not discussed", "not provided", "not given", "not available"),
    *("no information", "not enough information", "insufficient information"),
    *("unknown", "not known", "i dont know", "do not know", "not sure"),
    *("unanswerable", "not answerable", "cannot be answered", "cant be answered"),
    *("cannot answer", "cant answer", "cannot say", "no answer"),
)


def abstains(answer: str) -> bool:
    """Whether an answer says that the question cannot be answered.

    Total: case, punctuation and apostrophes do not matter. An empty answer does not
    abstain; it says nothing.
    """
    bare = re.sub(r"['’`]", "", answer.lower())
    words = " ".join(re.findall(r"[^\W_]+", bare))
    return any(f" {phrase} " in f" {words} " for phrase in ABSTENTIONS)


def answer_score(given: str, asked: Asked) -> float:
    """Score in [0, 1]; an adversarial question's own answer, if any, is right too."""
    if asked.category != ADVERSARIAL:
        return token_f1(given, asked.answer)
    if abstains(given):
        return 1.0
    return exact_match(given, asked.answer) if asked.answer else 0.0


def gold_answer(asked: Asked) -> str:
    """An answer that scores 1.0."""
    return NOT_MENTIONED if asked.category == ADVERSARIAL else asked.answer

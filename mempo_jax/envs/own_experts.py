"""Experts that demonstrate acting in a user's own environment.

``CheckedExpert`` runs the environment's own ``expert`` and refuses nonsense.
``GenericExpert`` serves an environment without one. Both are blind to outcomes: they
see what the policy sees, and chance decides whether a note is written, so that
reinforcement learning is left to find out what deserves memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from mempo_jax.envs.base import Situation
from mempo_jax.memory import BankConfig, Op, OpKind, error_message, parse_ops
from mempo_jax.settings import ConfigError

WRITE_RATE = 0.5  # for both experts, if the environment names no other
UNKNOWN = "unknown"  # the generic answer when nothing was recalled
# Limits of the generic texts. Ten words with their tags and a short move fit into 16
# tokens, the default of config.sampling.max_new_tokens.
MAX_NOTE_WORDS = 10
MAX_ANSWER_WORDS = 8
_SENTENCE = re.compile(r"[^.!?\n]*[.!?\n]+|[^.!?\n]+$")
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_PUNCTUATION = ".,;:!?()\"'"
_SHOWN_CHARS = 80  # characters of a text in an error
# Words that are left out when an answer is cut out of a recalled note.
_COMMON = frozenset(
    (
        *("a", "an", "the", "is", "are", "was", "were", "be", "of", "to", "in", "on"),
        *("at", "it", "its", "and", "that", "this", "now", "has", "have"),
    )
)


class CheckedExpert:
    """The ``expert`` method of an environment, with its writes thinned out.

    Each ``<mem_write>`` is kept with probability ``write_rate``. The rest of the text
    is used as it is.

    Args:
      expert: takes a ``Situation`` and a numpy random generator, returns the text of
        one turn.
      source: names the environment in errors.
      limits: limits of a turn, against which the text is checked.
      write_rate: probability of each write, 0 to 1.
    """

    def __init__(
        self,
        expert: Callable[[Situation, np.random.Generator], str],
        source: str,
        limits: BankConfig,
        write_rate: float,
    ) -> None:
        self._expert, self._source = expert, source
        self._limits, self._write_rate = limits, write_rate

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn.

        Args:
          situation: what the policy sees.
          rng: decides which writes are kept.

        Raises:
          ConfigError: the expert raised, or returned no text, or a text with damaged
            tags or without effect.
        """
        try:
            text = self._expert(situation, rng)
        except Exception as error:  # foreign code may raise anything
            raise self._fault(
                situation,
                f"to return a text, it raised {type(error).__name__}: {error}",
            ) from error
        if not isinstance(text, str):
            raise self._fault(situation, f"a text (str), got {_cut(repr(text))}")
        return self._thinned(text, self._checked(text, situation), rng)

    def _checked(self, text: str, situation: Situation) -> list[Op]:
        ops = parse_ops(text, limits=self._limits)
        for op in ops:
            if op.error is not None:
                what = error_message(op.error, op)
                raise self._fault(
                    situation, f"well-formed tags, got {_cut(repr(text))}: {what}"
                )
        if not ops and _THOUGHT.sub("", text).strip():
            raise self._fault(
                situation,
                "an action in tags, such as <act> text</act>, or '' to do nothing, got "
                f"{_cut(repr(text))}",
            )
        return ops

    def _thinned(self, text: str, ops: list[Op], rng: np.random.Generator) -> str:
        writes = [op for op in ops if op.kind == OpKind.WRITE]
        dropped = [op for op in writes if rng.random() >= self._write_rate]
        # From the last to the first, so that the spans before it stay valid.
        for op in reversed(dropped):
            text = text[: op.span[0]] + text[op.span[1] :]
        return text

    def _fault(self, situation: Situation, what: str) -> ConfigError:
        return ConfigError(
            f"{self._source}: expert(): expected {what} (turn {situation.turn}, "
            f"observation {_cut(repr(situation.observation))})"
        )


class GenericExpert:
    """Demonstrates note-keeping and recall without knowing the task.

    It writes the first ``MAX_NOTE_WORDS`` words of an observation with probability
    ``write_rate``, and makes one of ``moves`` at random. If the observation asks
    something, it recalls with the question as the query, and then answers from the one
    memory that came back: with the move that shares most words with it, or, without
    ``moves``, with those words of it that the question lacks. An observation asks if it
    contains a question mark, or is one of ``endings``.

    It cannot reason: it fails if an answer needs two memories, a count, or a word that
    the memory does not contain. Such a task needs an ``expert`` of its own.

    Args:
      moves: texts to choose an action from; may be empty.
      endings: observations that ask although they contain no question mark.
      tag: tag of an answer that is made without ``moves``, "act" or "answer".
      write_rate: probability of a note, 0 to 1.
    """

    def __init__(
        self,
        moves: tuple[str, ...],
        *,
        endings: frozenset[str] = frozenset(),
        tag: str = "act",
        write_rate: float = WRITE_RATE,
    ) -> None:
        self._moves, self._endings, self._tag = moves, endings, tag
        self._write_rate = write_rate

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn for ``situation``, drawn with ``rng``."""
        seen = situation.observation
        question = self.question(seen)
        if question and not situation.queries:
            return f'<mem_recall k="1"> {_plain(question)}</mem_recall>'
        facts = "" if seen in self._endings else _statements(seen)
        text = ""
        if facts and rng.random() < self._write_rate:
            text = f"<mem_write> {_plain(facts)}</mem_write>"
        if not question:
            return f"{text}{self._any_move(rng)}"
        return f"{text}{self._answer(question, situation.recalled, rng)}"

    def question(self, observation: str) -> str:
        """Returns what ``observation`` asks; "" if it asks nothing."""
        if observation in self._endings:
            return observation
        sentences = _SENTENCE.findall(observation)
        return " ".join(text.strip() for text in sentences if "?" in text)

    def _any_move(self, rng: np.random.Generator) -> str:
        if not self._moves:
            return ""
        return f"<act> {self._moves[rng.integers(len(self._moves))]}</act>"

    def _answer(
        self, question: str, recalled: tuple[str, ...], rng: np.random.Generator
    ) -> str:
        best_note = recalled[0] if recalled else ""
        if self._moves:
            known = words(best_note)
            shared = [len(known & words(move)) for move in self._moves]
            best = [m for m, n in zip(self._moves, shared) if n == max(shared)]
            return f"<act> {best[rng.integers(len(best))]}</act>"
        left_out = words(question) | _COMMON
        spoken = [word.strip(_PUNCTUATION) for word in best_note.split()]
        new = [word for word in spoken if words(word) - left_out]
        answer = " ".join(new[:MAX_ANSWER_WORDS]) or UNKNOWN
        return f"<{self._tag}> {answer}</{self._tag}>"


def words(text: str) -> set[str]:
    """Returns the different words and numbers of ``text``, in lower case."""
    return set(re.findall(r"\w+", text.lower()))


def _statements(observation: str) -> str:
    """Returns the sentences of an observation that ask nothing."""
    sentences = _SENTENCE.findall(observation)
    return " ".join(text.strip() for text in sentences if "?" not in text).strip()


def _plain(text: str) -> str:
    """Returns the first words of a text, without what could be read as a tag."""
    return " ".join(re.sub(r"[<>]", " ", text).split()[:MAX_NOTE_WORDS])


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."

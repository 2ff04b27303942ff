"""The turn of one slot while it is sampled: its tokens, and where its text ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Generation(NamedTuple):
    """A sampled turn. tokens: ids, the one that ended the turn included. log_probs:
    f32 [len(tokens)] at the sampling temperature. finish: "stop" (a stop id), "tag"
    (a closing tag, however tokenised) or "length". text: ``decode(tokens)``."""

    tokens: list[int]
    log_probs: np.ndarray
    finish: str
    text: str


class Turn:
    """Collects the chunks of one turn and cuts it where it ends.

    limit: the most tokens to sample, where that is less than was asked for.
    """

    def __init__(
        self, request, tokenizer, tags: tuple[str, ...], limit: int | None = None
    ):
        self.request = request
        self.slot, self.key = request.slot, request.key
        self.context = request.tokens
        self.tokens: list[int] = []
        self._limit = request.max_new_tokens if limit is None else limit
        self._log_probs: list[np.ndarray] = []
        self._finish: str | None = None
        self._tokenizer, self._tags = tokenizer, tags

    @property
    def open(self) -> bool:
        """Whether more tokens are to be sampled."""
        return self._finish is None and self.left > 0

    @property
    def left(self) -> int:
        """Tokens until the limit."""
        return self._limit - len(self.tokens)

    @property
    def end(self) -> int:
        """Length of the context and of what has been sampled."""
        return len(self.context) + len(self.tokens)

    @property
    def last(self) -> int:
        """The last id of both, which the cache does not hold yet."""
        return self.tokens[-1] if self.tokens else self.context[-1]

    def add(self, tokens: list[int], log_probs: np.ndarray) -> None:
        """Appends a chunk, and ends the turn if it holds an end."""
        self.tokens += tokens
        self._log_probs.append(log_probs)
        end = self._end_of_tag()
        if end is not None:
            self.tokens, self._finish = self.tokens[:end], "tag"
        elif self.tokens and self.tokens[-1] in self._tokenizer.stop_ids:
            self._finish = "stop"

    def result(self) -> Generation:
        log_probs = np.concatenate([np.zeros(0, np.float32), *self._log_probs])
        return Generation(
            self.tokens,
            log_probs[: len(self.tokens)],
            self._finish or "length",
            self._tokenizer.decode(self.tokens),
        )

    def _end_of_tag(self) -> int | None:
        """Number of tokens up to the one that completes the first closing tag."""
        text = self._tokenizer.decode(self.tokens)
        ends = [text.find(tag) + len(tag) for tag in self._tags if tag in text]
        if not ends:
            return None
        offsets = self._tokenizer.offsets(self.tokens)
        reached = (i for i, (_, end) in enumerate(offsets, 1) if end >= min(ends))
        return next(reached, len(self.tokens))

"""Encodes text so that only a template's own words become control tokens.

An observation or a memory may spell ``<|im_end|>``. Read as the control token it would
end the user's turn and speak for somebody else; here it is ordinary text.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer as BackendTokenizer


class Piece(NamedTuple):
    """A part of a text. own: written by the template, which may spell controls."""

    text: str
    own: bool


def join(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


class PlainTextEncoder:
    """Ids of text in which the spelling of a control token has no power.

    control: ids that foreign text must never become. unknown: the id that the
    vocabulary gives to what it does not know, or None; it is allowed where nothing
    spells it.

    Where nothing is spelled, which is nearly always, the ids are those of the backend
    for the whole text. Otherwise the text between the true controls is encoded part by
    part; a tokenizer that writes a blank before the first word of a text may then write
    one before each part.
    """

    def __init__(
        self, backend: BackendTokenizer, control: Iterable[int], unknown: int | None
    ) -> None:
        self._backend, self._control = backend, frozenset(control)
        self._unknown = unknown
        self._unknown_text = "" if unknown is None else backend.id_to_token(unknown)

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        """Ids of the joined pieces; adds nothing of its own."""
        text = join(pieces)
        made = self._backend.encode(text, add_special_tokens=False)
        if self._control.isdisjoint(made.ids):
            return made.ids
        own, foreign = self._controls(made, text, pieces)
        if not foreign:
            return made.ids
        ids: list[int] = []
        end = 0
        for number, start, stop in own:
            ids += [*self._ordinary(text[end:start]), number]
            end = stop
        return ids + self._ordinary(text[end:])

    def _controls(self, made, text: str, pieces: Sequence[Piece]):
        """(id, start, end) of the template's controls; whether others are spelled."""
        ends = itertools.accumulate(len(piece.text) for piece in pieces)
        borders = list(zip(ends, (piece.own for piece in pieces)))
        own, foreign, at = [], False, 0
        for number, (start, stop) in zip(made.ids, made.offsets):
            if number not in self._control:
                continue
            # A special token may take the white space around it for itself.
            core = text[start:stop].find(self._backend.id_to_token(number))
            while borders[at][0] <= start + max(core, 0):
                at += 1
            if borders[at][1]:
                own.append((number, start, stop))
            elif number != self._unknown or self._unknown_text in text[start:stop]:
                foreign = True
        return own, foreign

    def _ordinary(self, text: str) -> list[int]:
        """Ids of a text without any control."""
        made = self._blind.encode(text, add_special_tokens=False)
        cuts = [0]
        for number, (start, stop) in zip(made.ids, made.offsets):
            if number not in self._control or number == self._unknown:
                continue
            if stop - start > 1:  # the vocabulary itself has the token: split it up
                cuts.append(start + 1)
        if len(cuts) == 1:
            return [n for n in made.ids if n not in self._control - {self._unknown}]
        parts = itertools.pairwise([*cuts, len(text)])
        return [n for a, b in parts for n in self._ordinary(text[a:b])]

    @functools.cached_property
    def _blind(self) -> BackendTokenizer:
        """The same tokenizer, blind to special tokens; made when it is first needed."""
        copy = BackendTokenizer.from_str(self._backend.to_str())
        copy.encode_special_tokens = True
        return copy

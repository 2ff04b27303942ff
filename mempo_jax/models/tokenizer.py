"""A Hugging Face fast tokenizer, seen as exact text pieces and one chat format.

Nothing here cleans text up: ``decode`` is exact concatenation, special tokens
included, so that spans in the text can be carried back to tokens.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from mempo_jax.models.chat import (
    ChatFormat,
    Message,
    Piece,
    PlainTextEncoder,
    common_prefix,
    is_thought,
)

_REPLACEMENT = "\ufffd"  # what decoding puts for bytes that make no character
# Stands before a template that asks for the date: text of a day cannot be resumed.
_NO_DATE = (
    "{% macro strftime_now(format) %}{{ raise_exception('it writes the date of the "
    "day, so that a run would not go on as it began; name a fixed one in "
    "config.policy.chat_template_kwargs if it takes one (date_string), or write it "
    "into the template') }}{% endmacro %}{{ '' }}"
)
Options = Sequence[tuple[str, Any]]


class Earlier(NamedTuple):
    """A sampled turn in a later context: its ids, less its closing, and what the
    template puts around them in place of what it drops."""

    before: list[Piece]
    ids: list[int]
    behind: list[Piece]


class Tokenizer:
    """Wraps a ``transformers`` fast tokenizer that has a chat template.

    extra_stop_ids: ids that end a turn besides those that the tokenizer and its
    template name. template_kwargs: (name, value) pairs that the template takes.

    Attributes: stop_ids (sorted ids that end a turn when sampled), end_id (the one that
    the template writes behind a turn, else eos), pad_id, vocab_size (ids are below it),
    rewrites_past (see ``models.chat``). Raises ValueError on a missing or unstable chat
    template.
    """

    def __init__(
        self,
        fast: PreTrainedTokenizerFast,
        extra_stop_ids: Iterable[int] = (),
        template_kwargs: Options = (),
    ):
        self._fast = fast
        self._backend = fast.backend_tokenizer
        self._backend.no_padding()
        self._backend.no_truncation()
        self._pieces: dict[int, str] = {}
        if not fast.chat_template:
            raise ValueError(
                "the tokenizer has no chat template; expected chat_template in "
                "tokenizer_config.json or a file chat_template.jinja beside it"
            )
        self._template, self._options = fast.get_chat_template(), dict(template_kwargs)
        self._check_options()
        self._special = frozenset(self._special_ids())
        unknown = self._backend.token_to_id(
            getattr(self._backend.model, "unk_token", None) or ""
        )
        self._encoder = PlainTextEncoder(self._backend, self._special, unknown)
        self._chat = ChatFormat(self._render)
        self.rewrites_past = self._chat.rewrites_past
        closing = self._encoder.encode(self._chat.following(""))[:1]
        self._closing = [n for n in closing if n in self._special]
        self.vocab_size = max(self.vocabulary().values()) + 1
        self.stop_ids = self._find_stop_ids(extra_stop_ids)
        ends = (*self._closing, fast.eos_token_id, self.stop_ids[0])
        self.end_id: int = next(number for number in ends if number is not None)
        pad = fast.pad_token_id
        self.pad_id: int = self.stop_ids[0] if pad is None else pad

    @classmethod
    def load(
        cls, directory: str | os.PathLike, template_kwargs: Options = ()
    ) -> Tokenizer:
        """Reads a tokenizer directory (tokenizer.json, tokenizer_config.json)."""
        path = Path(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (path / name).is_file():
                raise ValueError(
                    f"{path} is not a tokenizer directory: expected a file {name}; "
                    "set policy.path to a Hugging Face model directory"
                )
        try:
            fast = PreTrainedTokenizerFast.from_pretrained(str(path))
        except Exception as error:
            raise ValueError(
                f"the tokenizer in {path} cannot be read: {error}. Expected the files "
                "that save_pretrained of a fast tokenizer writes; copy them again"
            ) from error
        files = (path / "generation_config.json", path / "config.json")
        stops = [number for file in files for number in _named_stop_ids(file)]
        return cls(fast, stops, template_kwargs)

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the tokenizer as an ordinary Hugging Face directory."""
        self._fast.save_pretrained(str(directory))

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Ids of a text; adds nothing.

        control: special tokens that are spelled in it are these tokens, as in what a
        chat template writes. Else they are ordinary text, as they must be in all that
        others wrote.
        """
        return self._encoder.encode([Piece(text, control)])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids: exact concatenation, special tokens kept."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Character range of each token in ``decode(ids)``.

        With s_i = length of the common prefix of ``decode(ids[:i])`` and the whole
        text, token i covers [s_i, max(s_{i+1}, s_i + 1)): a character whose bytes are
        split over tokens belongs to each of them.
        """
        text = self.decode(ids)
        starts = self._starts_by_run(ids, text) or self._starts_by_prefix(ids, text)
        return [(a, max(b, a + 1)) for a, b in itertools.pairwise(starts)]

    def prompt(self, messages: Sequence[Message]) -> str:
        """The first context of a segment, generation prompt included."""
        return self._chat.prompt(messages)

    def encode_prompt(
        self, messages: Sequence[Message], earlier: Sequence[tuple[Earlier, str]] = ()
    ) -> list[int]:
        """Ids of a whole context, up to where the policy is to write.

        messages: a system message or none, and the first user message. earlier: the
        policy's turns since then, each with the user's text behind it. What all these
        texts spell is ordinary text; the ids of earlier turns stay as they are.
        """
        pieces, ids = self._chat.opening(messages, past=bool(earlier)), []
        for number, (turn, user_text) in enumerate(earlier, start=1):
            ids += [*self._encoder.encode([*pieces, *turn.before]), *turn.ids]
            past = number < len(earlier)
            pieces = [*turn.behind, *self._chat.following(user_text, past)]
        return ids + self._encoder.encode(pieces)

    def follow(self, last_id: int | None, user_text: str) -> list[int]:
        """Ids to append behind a sampled turn: what is left of its closing (nothing
        is repeated if the policy sampled the stop token itself) and the next prompt.

        last_id: the last sampled id, or None if nothing was sampled.
        """
        ids = self._encoder.encode(self._chat.following(user_text))
        return ids[1:] if [last_id] == self._closing else ids

    def earlier(self, ids: Sequence[int]) -> Earlier:
        """A sampled turn as it stands in a context that is rendered later.

        The ids as they are, but for what the template drops or adds there. Where this
        parts a token, the rest of that is encoded anew: no policy sampled it there.
        """
        if self._closing == list(ids[-1:]):
            ids = ids[:-1]  # the template closes the turn
        if not self.rewrites_past:
            return Earlier([], list(ids), [])
        text = self.decode(ids)
        shown = self._chat.shown(text)
        end = len(text) if shown[-1:] == text[-1:] else len(text.rstrip())
        same = common_prefix(text[:end][::-1], shown[::-1])
        start, offsets = end - same, self.offsets(ids)
        whole = [n for n, (a, b) in enumerate(offsets) if a >= start and b <= end]
        if not whole:
            return Earlier([Piece(shown, False)], [], [])
        added, first, last = shown[: len(shown) - same], whole[0], whole[-1]
        before = [
            Piece(added, is_thought(added)),
            Piece(text[start : offsets[first][0]], False),
        ]
        behind = [Piece(text[offsets[last][1] : end], False)]
        return Earlier(before, list(ids[first : last + 1]), behind)

    def vocabulary(self) -> dict[str, int]:
        """Ids by token, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def words(self) -> frozenset[str] | None:
        """The words and signs that it knows, if its tokens are words as in ``nano``;
        None if they are parts of words, which can spell any text."""
        if not isinstance(self._backend.model, WordPiece):
            return None
        tokens = (t for t in self.vocabulary() if re.fullmatch(r" ?\w+|[^\w\s]", t))
        return frozenset(token.strip() for token in tokens)

    def ids_containing(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Sorted ids of the tokens whose own piece contains one of ``texts``."""
        texts = tuple(texts)
        vocabulary = self.vocabulary()
        found = (
            number
            for token, number in vocabulary.items()
            if any(text in token for text in texts)
        )
        return tuple(sorted(found))

    def _render(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        dated = "strftime_now" in self._template
        return self._fast.apply_chat_template(
            list(messages),
            chat_template=(_NO_DATE if dated else "") + self._template,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **self._options,
        )

    def _check_options(self) -> None:
        for name in self._options:
            if not re.search(rf"\b{re.escape(name)}\b", self._template):
                raise ValueError(
                    "config.policy.chat_template_kwargs: expected names that the "
                    f"tokenizer's chat template uses, got {name!r}"
                )

    def _find_stop_ids(self, extra: Iterable[int]) -> tuple[int, ...]:
        stops = {number for number in extra if 0 <= number < self.vocab_size}
        if self._fast.eos_token_id is not None:
            stops.add(self._fast.eos_token_id)
        stops.update(self._closing)
        if not stops:
            raise ValueError(
                "the tokenizer has no token that ends a turn: expected eos_token in "
                "tokenizer_config.json, or a special token that the chat template "
                "writes behind the assistant's text"
            )
        return tuple(sorted(stops))

    def _special_ids(self) -> set[int]:
        return {
            number
            for number, token in self._fast.added_tokens_decoder.items()
            if token.special
        }

    def _piece(self, number: int) -> str:
        if number not in self._pieces:
            self._pieces[number] = self.decode([number])
        return self._pieces[number]

    def _starts_by_run(self, ids, text: str) -> list[int] | None:
        """Linear time, right whenever the text is made up of single tokens and of
        runs of tokens with partial characters (else None)."""
        starts, place = [0], 0
        partial = [_REPLACEMENT in self._piece(number) for number in ids]
        for split, run in itertools.groupby(range(len(ids)), partial.__getitem__):
            members = [ids[index] for index in run]
            if split:
                part = self.decode(members)
                inner = self._starts_by_prefix(members, part)[1:]
            else:
                part = "".join(map(self._piece, members))
                inner = itertools.accumulate(len(self._piece(n)) for n in members)
            if not text.startswith(part, place):
                return None
            starts += [place + start for start in inner]
            place += len(part)
        return starts if place == len(text) else None

    def _starts_by_prefix(self, ids, text: str) -> list[int]:
        prefixes = (self.decode(ids[:count]) for count in range(len(ids) + 1))
        return [common_prefix(prefix, text) for prefix in prefixes]


def _named_stop_ids(path: Path) -> tuple[int, ...]:
    """``eos_token_id`` of a JSON config, which may be one id or several."""
    if not path.is_file():
        return ()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stops = content.get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: expected a JSON object: {error}") from error
    listed = [] if stops is None else stops if isinstance(stops, list) else [stops]
    if not all(isinstance(number, int) for number in listed):
        raise ValueError(
            f"{path}: expected eos_token_id to be an id or a list of ids, got {stops!r}"
        )
    return tuple(listed)

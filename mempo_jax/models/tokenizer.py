"""Wraps a Hugging Face fast tokenizer: exact text of tokens, and one chat format.

Nothing here cleans text up: ``decode`` is exact concatenation, special tokens
included, so that spans of the text can be mapped back to tokens.
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

_REPLACEMENT = "\ufffd"  # decoding writes it for bytes that form no character
# Is put before a template that uses the date: a resumed run would see another text.
_NO_DATE = (
    "{% macro strftime_now(format) %}{{ raise_exception('it writes the date of the "
    "day, so that a run would not go on as it began; name a fixed one in "
    "config.policy.chat_template_kwargs if it takes one (date_string), or write it "
    "into the template') }}{% endmacro %}{{ '' }}"
)
Options = Sequence[tuple[str, Any]]


class Earlier(NamedTuple):
    """A sampled turn as a later context shows it.

    Attributes:
      before: what the template puts in place of text that it drops before the ids.
      ids: the sampled ids that stay, without the turn's closing.
      after: text after the ids, of a token that the template cuts.
    """

    before: list[Piece]
    ids: list[int]
    after: list[Piece]


class Tokenizer:
    """A ``transformers`` fast tokenizer with a chat template.

    Args:
      fast: the tokenizer.
      extra_stop_ids: ids that end a turn besides those that the tokenizer and its
        template name.
      template_kwargs: (name, value) pairs that the template takes.

    Attributes:
      stop_ids: sorted ids that end a turn when they are sampled.
      end_id: the id that the template writes after a turn, else eos.
      pad_id: id of padding.
      vocab_size: all ids are below it.
      rewrites_past: see ``models.chat``.

    Raises:
      ValueError: a missing or unstable chat template, or no id that ends a turn.
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
        """Reads a tokenizer directory.

        Args:
          directory: has tokenizer.json and tokenizer_config.json.
          template_kwargs: (name, value) pairs that the chat template takes.

        Raises:
          ValueError: files that are missing, unreadable, or do not give a usable chat.
        """
        path = Path(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (path / name).is_file():
                raise ValueError(
                    f"{path} is not a tokenizer directory: expected a file {name}; "
                    "set policy.path to a Hugging Face model directory"
                )
        try:
            fast = PreTrainedTokenizerFast.from_pretrained(str(path))
        except Exception as error:  # the tokenizers library raises plain Exception
            raise ValueError(
                f"the tokenizer in {path} cannot be read: {error}. Expected the files "
                "that save_pretrained of a fast tokenizer writes; copy them again"
            ) from error
        files = (path / "generation_config.json", path / "config.json")
        stops = [number for file in files for number in _named_stop_ids(file)]
        return cls(fast, stops, template_kwargs)

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the tokenizer as an ordinary Hugging Face directory.

        Args:
          directory: where to.
        """
        self._fast.save_pretrained(str(directory))

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Encodes a text; adds no tokens of its own.

        Args:
          text: what to encode.
          control: whether special tokens that the text spells become these tokens, as
            in a chat template's own words. Text that anybody else wrote must be encoded
            without, and they stay ordinary text.
        """
        return self._encoder.encode([Piece(text, control)])

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes by exact concatenation; special tokens stay.

        Args:
          ids: any ids of the vocabulary.
        """
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the character range of each token in ``decode(ids)``.

        With s_i = length of the common prefix of ``decode(ids[:i])`` and the whole
        text, token i covers [s_i, max(s_{i+1}, s_i + 1)): a character whose bytes are
        split over tokens belongs to each of them.

        Args:
          ids: any ids of the vocabulary.
        """
        text = self.decode(ids)
        starts = self._starts_by_run(ids, text) or self._starts_by_prefix(ids, text)
        return [(a, max(b, a + 1)) for a, b in itertools.pairwise(starts)]

    def prompt(self, messages: Sequence[Message]) -> str:
        """Renders the first context of a segment, generation prompt included.

        Args:
          messages: a system message or none, and the first user message.
        """
        return self._chat.prompt(messages)

    def encode_prompt(
        self, messages: Sequence[Message], earlier: Sequence[tuple[Earlier, str]] = ()
    ) -> list[int]:
        """Encodes a whole context, up to where the policy is to write.

        Control tokens that these texts spell stay ordinary text, and the ids of earlier
        turns stay as they were sampled.

        Args:
          messages: a system message or none, and the first user message.
          earlier: the policy's turns since then, each with the user's text after it.
        """
        pieces, ids = self._chat.opening(messages, past=bool(earlier)), []
        for number, (turn, user_text) in enumerate(earlier, start=1):
            ids += [*self._encoder.encode([*pieces, *turn.before]), *turn.ids]
            past = number < len(earlier)
            pieces = [*turn.after, *self._chat.following(user_text, past)]
        return ids + self._encoder.encode(pieces)

    def follow(self, last_id: int | None, user_text: str) -> list[int]:
        """Encodes what to append after a sampled turn: its closing and the next prompt.

        Args:
          last_id: the last sampled id, or None if nothing was sampled. If the policy
            sampled the closing itself, that is not repeated.
          user_text: the next user message.
        """
        ids = self._encoder.encode(self._chat.following(user_text))
        return ids[1:] if [last_id] == self._closing else ids

    def earlier(self, ids: Sequence[int]) -> Earlier:
        """Returns a sampled turn as a context that is rendered later shows it.

        The ids stay, except for what the template drops or adds there. If this cuts a
        token, the rest of its text is encoded anew: no policy sampled it there.

        Args:
          ids: the sampled turn, with or without its closing.
        """
        if self._closing == list(ids[-1:]):
            ids = ids[:-1]  # the template closes the turn
        if not self.rewrites_past:
            return Earlier([], list(ids), [])
        text = self.decode(ids)
        shown = self._chat.shown(text)
        # The template may strip the end and replace the beginning, so the text that
        # stays is the common end of both.
        end = len(text) if shown[-1:] == text[-1:] else len(text.rstrip())
        same = common_prefix(text[:end][::-1], shown[::-1])
        start, offsets = end - same, self.offsets(ids)
        uncut = [n for n, (a, b) in enumerate(offsets) if a >= start and b <= end]
        if not uncut:
            return Earlier([Piece(shown, False)], [], [])
        added, first, last = shown[: len(shown) - same], uncut[0], uncut[-1]
        before = [
            Piece(added, is_thought(added)),
            Piece(text[start : offsets[first][0]], False),
        ]
        after = [Piece(text[offsets[last][1] : end], False)]
        return Earlier(before, list(ids[first : last + 1]), after)

    def vocabulary(self) -> dict[str, int]:
        """Returns the id of each token, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def words(self) -> frozenset[str] | None:
        """Returns the words and signs that it knows, if tokens are words (``nano``).

        None if tokens are parts of words, which can spell any text.
        """
        if not isinstance(self._backend.model, WordPiece):
            return None
        tokens = (t for t in self.vocabulary() if re.fullmatch(r" ?\w+|[^\w\s]", t))
        return frozenset(token.strip() for token in tokens)

    def ids_containing(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Returns the sorted ids of tokens whose own spelling contains certain texts.

        Args:
          texts: to look for; one of them is enough.
        """
        texts = tuple(texts)
        vocabulary = self.vocabulary()
        matches = (
            number
            for token, number in vocabulary.items()
            if any(text in token for text in texts)
        )
        return tuple(sorted(matches))

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
        # Templates ignore unknown names silently, so a typing error would go unnoticed.
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
        """Finds where tokens start in linear time, or returns None.

        This is right if the text is made up of whole-character tokens and of runs of
        tokens with partial characters.
        """
        starts, position = [0], 0
        partial = [_REPLACEMENT in self._piece(number) for number in ids]
        for split, run in itertools.groupby(range(len(ids)), partial.__getitem__):
            members = [ids[index] for index in run]
            if split:
                part = self.decode(members)
                inner = self._starts_by_prefix(members, part)[1:]
            else:
                part = "".join(map(self._piece, members))
                inner = itertools.accumulate(len(self._piece(n)) for n in members)
            if not text.startswith(part, position):
                return None
            starts += [position + start for start in inner]
            position += len(part)
        return starts if position == len(text) else None

    def _starts_by_prefix(self, ids, text: str) -> list[int]:
        """Finds where tokens start from every prefix: quadratic, always right."""
        prefixes = (self.decode(ids[:count]) for count in range(len(ids) + 1))
        return [common_prefix(prefix, text) for prefix in prefixes]


def _named_stop_ids(path: Path) -> tuple[int, ...]:
    """Reads ``eos_token_id`` of a JSON config, which may be one id or several."""
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

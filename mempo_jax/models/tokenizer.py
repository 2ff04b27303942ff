"""A Hugging Face fast tokenizer, seen as exact text pieces and one chat format.

Nothing here cleans text up: ``decode`` is exact concatenation, special tokens
included, so that spans in the text can be carried back to tokens.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from mempo_jax.models.chat import ChatFormat, Message

_REPLACEMENT = "\ufffd"  # what decoding puts for bytes that make no character


class Tokenizer:
    """Wraps a ``transformers`` fast tokenizer that has a chat template.

    Attributes: stop_ids (sorted ids that end a turn when sampled), pad_id,
    vocab_size (ids are below it), close_text (what the template writes behind an
    assistant's text). Raises ValueError on a missing or unstable chat template.
    """

    def __init__(self, fast: PreTrainedTokenizerFast, extra_stop_ids=()):
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
        self._chat = ChatFormat(self._render)
        self._close_ids = self.encode(self._chat.close_text)
        self.vocab_size = len(fast)
        self.stop_ids = self._find_stop_ids(extra_stop_ids)
        pad = fast.pad_token_id
        self.pad_id: int = self.stop_ids[0] if pad is None else pad

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Tokenizer:
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
        return cls(fast, _generation_stop_ids(path / "generation_config.json"))

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the tokenizer as an ordinary Hugging Face directory."""
        self._fast.save_pretrained(str(directory))

    def encode(self, text: str) -> list[int]:
        """Ids of a text; adds nothing (special tokens spelled in it are parsed)."""
        return self._backend.encode(text, add_special_tokens=False).ids

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

    def continuation(self, user_text: str) -> str:
        """What the template writes behind a closed assistant turn: the user's message
        and the next generation prompt."""
        return self._chat.continuation(user_text)

    @property
    def close_text(self) -> str:
        return self._chat.close_text

    def follow(self, last_id: int | None, user_text: str) -> list[int]:
        """Ids to append behind a sampled turn: what is left of its closing (nothing
        is repeated if the policy sampled the stop token itself) and the next prompt.

        last_id: the last sampled id, or None if nothing was sampled.
        """
        close = self._chat.close_text
        if self._close_ids and last_id == self._close_ids[0]:
            close = close.removeprefix(self.decode([last_id]))
        return self.encode(close + self._chat.continuation(user_text))

    def vocabulary(self) -> dict[str, int]:
        """Ids by token, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

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
        return self._fast.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generation_prompt
        )

    def _find_stop_ids(self, extra: Sequence[int]) -> tuple[int, ...]:
        stops = {number for number in extra if 0 <= number < self.vocab_size}
        if self._fast.eos_token_id is not None:
            stops.add(self._fast.eos_token_id)
        if self._close_ids and self._close_ids[0] in self._special_ids():
            stops.add(self._close_ids[0])
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
        return [_common_prefix(prefix, text) for prefix in prefixes]


def _common_prefix(a: str, b: str) -> int:
    if b.startswith(a):
        return len(a)
    pairs = enumerate(zip(a, b))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def _generation_stop_ids(path: Path) -> tuple[int, ...]:
    """``eos_token_id`` of a generation_config.json, which may be one id or several."""
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

"""The tokenizer that a GGUF file carries: byte-level BPE, rebuilt as a fast tokenizer.

The file holds tokens with their types, merges, the name of a pre-tokenizer, the special
ids and a chat template. Pre-tokenizers are known by name only, so each has a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from mempo_jax.models.tokenizer import Options, Tokenizer

_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # values of token_type
# What ends a turn or a text, beside eos: such ids stop generation.
_ENDS = ("eot_token_id", "eom_token_id")


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    """The splitting of the GPT-4 family: contractions, words with one mark before
    them, numbers of so many digits, punctuation, line ends, other white space."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _byte_level()])


_SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _byte_level,
    "smollm": _digits_apart,
    "qwen2": lambda: _words(r"\p{N}"),
    "llama-bpe": lambda: _words(r"\p{N}{1,3}"),
}
_WHOLE_WORDS_FIRST = ("llama-bpe",)  # a word that is a token is not merged up to
_COMPOSED = ("qwen2",)  # Unicode is normalised to NFC


def build_tokenizer(
    fields: Mapping[str, Callable[[], Any]], template_kwargs: Options = ()
) -> Tokenizer:
    """A tokenizer with the chat template of the file.

    fields: name -> what reads its value.

    Raises:
      ValueError: fields that are missing, or a kind of tokenizer that is not supported.
    """
    own = {
        n.removeprefix(_PREFIX): f for n, f in fields.items() if n.startswith(_PREFIX)
    }
    _check_kind(own)
    tokens, types = own["tokens"](), own["token_type"]()
    while types and types[-1] == _UNUSED:  # filler up to the embedding's rows
        tokens.pop()
        types.pop()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_backend(tokens, types, own["merges"](), own["pre"]()),
        clean_up_tokenization_spaces=False,
        **_special(own, tokens),
    )
    template = fields.get("tokenizer.chat_template")
    fast.chat_template = template() if template else None
    return Tokenizer(fast, [own[n]() for n in _ENDS if n in own], template_kwargs)


def _check_kind(own: Mapping[str, Callable[[], Any]]) -> None:
    needed = ("model", "pre", "tokens", "token_type", "merges")
    if missing := [_PREFIX + name for name in needed if name not in own]:
        raise ValueError(f"its metadata lacks {', '.join(missing)}")
    for name, known in (("model", ("gpt2",)), ("pre", tuple(_SPLITS))):
        if (found := own[name]()) not in known:
            raise ValueError(
                f"expected {_PREFIX}{name} to be one of {', '.join(known)}, got "
                f"{found!r}; use the Hugging Face directory of this model"
            )
    if (count := len(own["tokens"]())) != len(own["token_type"]()):
        raise ValueError(f"its metadata has {count} tokens, but not as many types")


def _backend(tokens, types, merges, split: str) -> BackendTokenizer:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    backend = BackendTokenizer(
        models.BPE(vocabulary, pairs, ignore_merges=split in _WHOLE_WORDS_FIRST)
    )
    if split in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _SPLITS[split]()
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    added = [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens(added)
    return backend


def _special(own: Mapping[str, Callable[[], Any]], tokens: list[str]) -> dict[str, str]:
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    found = {}
    for ours, theirs in names.items():
        read = own.get(f"{theirs}_token_id")
        if read is not None and read() < len(tokens):
            found[f"{ours}_token"] = tokens[read()]
    return found

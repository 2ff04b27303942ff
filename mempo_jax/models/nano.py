"""The built-in small policy: its tokenizer, and the shape of its decoder.

Words are tokens, with their leading space, and so are the tags of the action grammar: a
turn of the built-in tasks then has about ten tokens, few enough for a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.tokenizer import Tokenizer

_PAD, _UNKNOWN, _END = "<pad>", "<unk>", "<|end|>"
_SPECIAL = (_PAD, _UNKNOWN, "<|system|>", "<|user|>", "<|assistant|>", _END)
# The tags of the action grammar, each one token; opening ones end before an attribute.
_TAGS = (
    "<think>",
    "</think>",
    "<mem>",
    "</mem>",
    "<mem_write>",
    '<mem_write title="',
    '">',
    "</mem_write>",
    "<mem_recall>",
    '<mem_recall k="',
    "</mem_recall>",
    '<mem_merge ids="',
    "</mem_merge>",
    '<mem_delete ids="',
    '"/>',
    "</mem_delete>",
    "<act>",
    "</act>",
    "<answer>",
    "</answer>",
)
# A word with its leading space, one punctuation mark, or one white space.
_PIECE = r" ?\w+|[^\w\s]|\s"
_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_nano(texts: Iterable[str], words: Iterable[str]) -> Tokenizer:
    """Builds a word-level tokenizer.

    Unknown words are split into the longest known parts (a number into its digits, if
    nothing longer is known), else they become <unk>.

    Args:
      texts: every piece of them becomes a token: a word with its leading space, one
        punctuation mark, or one white space.
      words: become tokens with and without a leading space.
    """
    known: set[str] = set()
    tags = re.compile("|".join(map(re.escape, (*_SPECIAL, *_TAGS))))
    for text in texts:
        for plain in tags.split(text):
            known.update(re.findall(_PIECE, plain))
    for word in (*words, *"0123456789"):
        known.update((word, f" {word}"))
    return Tokenizer(_fast_tokenizer(sorted(known)))


def nano_config(
    tokenizer: Tokenizer,
    *,
    width: int,
    layers: int,
    heads: int,
    mlp_width: int,
    max_positions: int,
) -> DecoderConfig:
    """Returns the shape of a Llama-like decoder with tied weights.

    Args:
      tokenizer: gives the vocabulary's size.
      width: of the states between layers.
      layers: number of layers.
      heads: query and key/value heads of a layer; must divide ``width``.
      mlp_width: inner width of the MLP.
      max_positions: the longest row or slot.
    """
    return DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        mlp_width=mlp_width,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        tied=True,
        qkv_bias=False,
        qk_norm=False,
        max_positions=max_positions,
    )


def _fast_tokenizer(pieces: list[str]) -> PreTrainedTokenizerFast:
    tokens = dict.fromkeys((*_SPECIAL, *_TAGS, *pieces))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    # WordPiece with an empty continuation mark is greedy longest match within a piece.
    backend = BackendTokenizer(
        models.WordPiece(vocabulary, unk_token=_UNKNOWN, continuing_subword_prefix="")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), "isolated")
    backend.decoder = decoders.Fuse()  # concatenates: spaces are in the tokens
    backend.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in _TAGS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        eos_token=_END,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _TEMPLATE
    return fast

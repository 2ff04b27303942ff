"""Reads GGUF files: the decoder's shape, tensors of any quantisation, the tokenizer.

The ``gguf`` package reads the container and dequantises. Here its names become those of
a Hugging Face checkpoint, so that a file is a ``stream.Source``. Quantised blocks never
cross rows, so parts of a tensor dequantise without the rest.

The tokenizer is byte-level BPE, rebuilt as a fast tokenizer from tokens with their
types, merges, the name of a pre-tokenizer, special ids and a chat template. The file
gives pre-tokenizers by name only, so each that is supported has a row here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
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

from mempo_jax.models import rope
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.stream import Index, Stored
from mempo_jax.models.tokenizer import Options, Tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Name -> function that reads its value: some are long, and most are never used.
Fields = Mapping[str, Callable[[], Any]]
_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
_SCALING = "rope.scaling."


def architecture(fields: Fields) -> str:
    """Reads ``general.architecture``.

    Args:
      fields: the file's metadata.

    Raises:
      ValueError: it is not one of ``ARCHITECTURES``.
    """
    name = fields["general.architecture"]() if "general.architecture" in fields else ""
    if name not in ARCHITECTURES:
        raise ValueError(
            f"expected general.architecture to be one of {', '.join(ARCHITECTURES)}, "
            f"got {name!r}"
        )
    return name


def read_config(
    fields: Fields, *, vocab_size: int, tied: bool, rope_factors: np.ndarray | None
) -> DecoderConfig:
    """Builds the decoder's shape from the metadata and what the tensors show.

    Args:
      fields: the file's metadata.
      vocab_size: rows of the embedding.
      tied: whether there is no output tensor.
      rope_factors: divisors of the rotary frequencies; None if the file has no such
        tensor.

    Raises:
      ValueError: another architecture, fields that are missing, or a setting that would
        give other logits; it names them.
    """
    family = architecture(fields)
    prefix = f"{family}."
    own = {
        n.removeprefix(prefix): f() for n, f in fields.items() if n.startswith(prefix)
    }
    if missing := [prefix + name for name in _REQUIRED if name not in own]:
        raise ValueError(f"its metadata lacks {', '.join(missing)}")
    heads, width = own["attention.head_count"], own["embedding_length"]
    head_dim = own.get("attention.key_length") or width // heads
    _refuse_unsupported(own, head_dim)
    theta = float(own.get("rope.freq_base", 10_000.0))
    return DecoderConfig(
        vocab_size=vocab_size,
        width=width,
        layers=own["block_count"],
        heads=heads,
        kv_heads=own.get("attention.head_count_kv") or heads,
        head_dim=head_dim,
        mlp_width=own["feed_forward_length"],
        rope_theta=theta,
        norm_eps=_shortest(own["attention.layer_norm_rms_epsilon"]),
        tied=tied,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        max_positions=own["context_length"],
        rope_scaling=_scaling(own, rope_factors),
    )


def _refuse_unsupported(own: Mapping[str, Any], head_dim: int) -> None:
    per_layer = [n for n, value in own.items() if isinstance(value, list)]
    # The only values that the decoder can have; a field that is absent has these.
    required = {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "expert_count": 0,
        "attention.sliding_window": 0,
    }
    wrong = [f"{n} = {own[n]}" for n, v in required.items() if own.get(n, v) != v]
    wrong += [f"{name} by layer" for name in per_layer]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)} is not supported; expected layers that are alike, "
            f"rotary positions over whole heads of {head_dim}, no experts, full "
            "attention"
        )


def _scaling(
    own: Mapping[str, Any], factors: np.ndarray | None
) -> rope.RopeScaling | None:
    kind = own.get(f"{_SCALING}type", "none")
    original = own.get(f"{_SCALING}original_context_length") or own["context_length"]
    if factors is not None:
        if kind != "none":
            raise ValueError(f"rope.scaling.type {kind!r} beside rotary factors")
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise ValueError("rope_freqs.weight has values that are no divisors")
        return rope.FactorsRope(tuple(map(float, factors)), 1.0, original)
    if kind == "none":
        factor = own.get("rope.scale_linear", 1.0)
        return None if factor == 1 else rope.LinearRope(factor)
    factor = own.get(f"{_SCALING}factor")
    if kind == "linear" and factor:
        return rope.LinearRope(factor)
    scale = own.get(f"{_SCALING}attn_factor", 1.0)
    if kind == "yarn" and factor and scale == 1.0:
        return rope.YarnRope(
            factor=factor,
            original_positions=original,
            beta_fast=own.get(f"{_SCALING}yarn_beta_fast", 32.0),
            beta_slow=own.get(f"{_SCALING}yarn_beta_slow", 1.0),
            attention_factor=rope.yarn_attention_factor(factor),
            truncate=True,
        )
    raise ValueError(
        f"rope.scaling.type {kind!r} with factor {factor} and attn_factor {scale} is "
        "not supported; expected none, linear or yarn with a factor, or rotary factors"
    )


def _shortest(value: float) -> float:
    """Reads a float32 of the file as the shortest decimal number (1e-05)."""
    return float(str(np.float32(value)))


_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # values of token_type
# What ends a turn or a text, beside eos: such ids stop generation.
_TURN_ENDS = ("eot_token_id", "eom_token_id")


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    """Splits as the GPT-4 family does: contractions, words with one mark before them,
    numbers by the pattern ``digits``, punctuation, line ends, other white space."""
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
# A word that is a token becomes it at once, even if merges would not lead there.
_WHOLE_WORDS_FIRST = ("llama-bpe",)
_COMPOSED = ("qwen2",)  # these normalise Unicode to NFC


def build_tokenizer(
    fields: Mapping[str, Callable[[], Any]], template_kwargs: Options = ()
) -> Tokenizer:
    """Builds a tokenizer with the chat template of the file.

    Args:
      fields: the file's metadata.
      template_kwargs: (name, value) pairs that the chat template takes.

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
    return Tokenizer(fast, [own[n]() for n in _TURN_ENDS if n in own], template_kwargs)


def _check_kind(own: Mapping[str, Callable[[], Any]]) -> None:
    needed = ("model", "pre", "tokens", "token_type", "merges")
    if missing := [_PREFIX + name for name in needed if name not in own]:
        raise ValueError(f"its metadata lacks {', '.join(missing)}")
    for name, known in (("model", ("gpt2",)), ("pre", tuple(_SPLITS))):
        if (value := own[name]()) not in known:
            raise ValueError(
                f"expected {_PREFIX}{name} to be one of {', '.join(known)}, got "
                f"{value!r}; use the Hugging Face directory of this model"
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
    tokens_by_role = {}
    for ours, theirs in names.items():
        read = own.get(f"{theirs}_token_id")
        if read is not None and read() < len(tokens):
            tokens_by_role[f"{ours}_token"] = tokens[read()]
    return tokens_by_role


# GGUF's names of tensors -> a checkpoint's: outside layers, and in a layer.
_ENDS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
# Tensors whose rows the Llama converter stores in another order, see ``_paired_rows``.
_PAIRED = (".self_attn.q_proj.", ".self_attn.k_proj.")


class GgufFile:
    """An open file; see ``stream.Source``.

    Args:
      path: of the file.
      reader: of the ``gguf`` package.

    Attributes:
      config: the decoder's shape.

    Raises:
      ValueError: an architecture or a setting that is not supported.
    """

    faults: tuple[str, ...] = ()

    def __init__(self, path: Path, reader: gguf.GGUFReader):
        self.where = str(path)
        self._reader_tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = {n: f.contents for n, f in reader.fields.items()}
        factors = self._reader_tensors.pop(_ROPE_FACTORS, None)
        self.config: DecoderConfig = read_config(
            self._fields,
            vocab_size=self._rows("token_embd.weight"),
            tied="output.weight" not in self._reader_tensors,
            rope_factors=None if factors is None else _floats(factors.data, factors),
        )
        self._reader_tensors = {
            _checkpoint_name(n): t for n, t in self._reader_tensors.items()
        }
        self.tensors = {
            name: Stored(tuple(map(int, t.shape[::-1])), t.tensor_type.name)
            for name, t in self._reader_tensors.items()
        }
        types = {tensor.tensor_type for tensor in self._reader_tensors.values()}
        self.usable = sorted(t.name for t in types if _dequantises(t))
        self._paired = architecture(self._fields) == "llama"

    def tokenizer(self, template_kwargs: Options = ()) -> Tokenizer:
        """Builds the tokenizer of the metadata, chat template included.

        Args:
          template_kwargs: (name, value) pairs that the chat template takes.

        Raises:
          ValueError: a tokenizer that is not supported; names the file.
        """
        try:
            return build_tokenizer(self._fields, template_kwargs)
        except Exception as error:  # the tokenizers library raises no subclass of it
            raise ValueError(f"{self.where}: {_one_line(error)}") from error

    def read(self, name: str, index: Index) -> np.ndarray:
        """Reads and dequantises part of a tensor, see ``stream.Source``.

        Args:
          name: the checkpoint's name of the tensor.
          index: the part.
        """
        tensor = self._reader_tensors[name]
        if len(index) == 1:  # a vector is one row, whose bytes are not its elements
            return _floats(tensor.data, tensor)[index]
        rows: Any = index[0]
        if self._paired and any(part in name for part in _PAIRED):
            rows = self._paired_rows(tensor.data.shape[0])[rows]
        return _floats(tensor.data[rows], tensor)[(slice(None), *index[1:])]

    def _paired_rows(self, count: int) -> np.ndarray:
        """Returns the row in the file of each of our query or key rows.

        The Llama converter interleaves the two halves of a head that rotate together.
        """
        pairs = np.arange(count).reshape(-1, self.config.head_dim // 2, 2)
        return pairs.swapaxes(1, 2).reshape(-1)

    def _rows(self, name: str) -> int:
        if name not in self._reader_tensors:
            raise ValueError(f"it lacks the tensor {name}")
        return int(self._reader_tensors[name].shape[-1])


@contextlib.contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """Opens a file, mapped into memory.

    Args:
      path: of the file.

    Raises:
      ValueError: not a file, cut off or damaged, an architecture, a quantisation or a
        setting that is not supported; the message names the file.
    """
    if not path.is_file():
        raise ValueError(f"{path} is no file; set policy.path to a .gguf file")
    try:
        reader = _Reader(path)
        if reader.byte_order != "I":
            raise ValueError("its byte order is not this machine's")
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(
            f"{path} is not a readable GGUF file ({_one_line(error)}): it is cut off, "
            "damaged or of an unknown kind; copy it again"
        ) from error
    try:
        file = GgufFile(path, reader)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise ValueError(f"{path}: {_one_line(error)}") from error
    yield file


class _Reader(gguf.GGUFReader):
    """Refuses a file that is cut off; the base class would read empty arrays."""

    def _get(self, offset, dtype, count=1, override_order=None):
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"byte {end} is wanted of {len(self.data)}")
        if isinstance(self.data, np.memmap):  # slicing the plain view is much faster
            self.data = self.data.view(np.ndarray)
        return super()._get(offset, dtype, count, override_order)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _checkpoint_name(name: str) -> str:
    """Turns "blk.3.attn_q.weight" into "model.layers.3.self_attn.q_proj.weight".

    A name without such a counterpart stays as it is, and is then reported as unused.
    """
    stem, _, kind = name.rpartition(".")
    if stem in _ENDS:
        return f"{_ENDS[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block == "blk" and number.isdecimal() and part in _LAYER:
        return f"model.layers.{number}.{_LAYER[part]}.{kind}"
    return name


def _floats(data: np.ndarray, tensor: gguf.ReaderTensor) -> np.ndarray:
    return gguf.dequantize(np.asarray(data), tensor.tensor_type)


def _dequantises(kind: gguf.GGMLQuantizationType) -> bool:
    """Tells whether ``gguf`` can turn one block of a type into floats."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True

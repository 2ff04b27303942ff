"""A decoder's shape out of the metadata of a GGUF file.

The tokenizer that a GGUF file carries: byte-level BPE, rebuilt as a fast tokenizer.

The file holds tokens with their types, merges, the name of a pre-tokenizer, the special
ids and a chat template. Pre-tokenizers are known by name only, so each has a row here.

GGUF files: metadata, tensors of any quantisation and tokenizer, as a ``Source``.

The ``gguf`` package reads the container and dequantises; here its names become those
of a Hugging Face checkpoint. Rows are stored whole, so parts of a tensor dequantise
without the rest.
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
Fields = Mapping[str, Callable[[], Any]]  # name -> what reads its value
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
    """``general.architecture``; ValueError where it is none of ours."""
    found = fields["general.architecture"]() if "general.architecture" in fields else ""
    if found not in ARCHITECTURES:
        raise ValueError(
            f"expected general.architecture to be one of {', '.join(ARCHITECTURES)}, "
            f"got {found!r}"
        )
    return found


def read_config(
    fields: Fields, *, vocab_size: int, tied: bool, rope_factors: np.ndarray | None
) -> DecoderConfig:
    """The shape that the metadata and the tensors tell together.

    vocab_size: rows of the embedding. tied: there is no output tensor. rope_factors:
    divisors of the rotary frequencies, where the file has that tensor.

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
    same = {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "expert_count": 0,
        "attention.sliding_window": 0,
    }
    wrong = [f"{n} = {own[n]}" for n, v in same.items() if own.get(n, v) != v]
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
    extra = own.get(f"{_SCALING}attn_factor", 1.0)
    if kind == "yarn" and factor and extra == 1.0:
        return rope.YarnRope(
            factor=factor,
            original_positions=original,
            beta_fast=own.get(f"{_SCALING}yarn_beta_fast", 32.0),
            beta_slow=own.get(f"{_SCALING}yarn_beta_slow", 1.0),
            attention_factor=rope.yarn_attention_factor(factor),
            truncate=True,
        )
    raise ValueError(
        f"rope.scaling.type {kind!r} with factor {factor} and attn_factor {extra} is "
        "not supported; expected none, linear or yarn with a factor, or rotary factors"
    )


def _shortest(value: float) -> float:
    """A float32 of the file as the decimal number that was meant (1e-05)."""
    return float(str(np.float32(value)))


_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # values of token_type
# What ends a turn or a text, beside eos: such ids stop generation.
_TURN_ENDS = ("eot_token_id", "eom_token_id")


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
    return Tokenizer(fast, [own[n]() for n in _TURN_ENDS if n in own], template_kwargs)


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
_PAIRED = (".self_attn.q_proj.", ".self_attn.k_proj.")


class GgufFile:
    """An open file; see ``stream.Source``. config: the decoder's shape."""

    faults: tuple[str, ...] = ()

    def __init__(self, path: Path, reader: gguf.GGUFReader):
        self.where = str(path)
        self._held = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = {n: f.contents for n, f in reader.fields.items()}
        factors = self._held.pop(_ROPE_FACTORS, None)
        self.config: DecoderConfig = read_config(
            self._fields,
            vocab_size=self._rows("token_embd.weight"),
            tied="output.weight" not in self._held,
            rope_factors=None if factors is None else _floats(factors.data, factors),
        )
        self._held = {_checkpoint_name(n): t for n, t in self._held.items()}
        self.tensors = {
            name: Stored(tuple(map(int, t.shape[::-1])), t.tensor_type.name)
            for name, t in self._held.items()
        }
        types = {tensor.tensor_type for tensor in self._held.values()}
        self.usable = sorted(t.name for t in types if _dequantises(t))
        self._paired = architecture(self._fields) == "llama"

    def tokenizer(self, template_kwargs: Options = ()) -> Tokenizer:
        """The tokenizer of the metadata, chat template included.

        template_kwargs: as for ``Tokenizer``. Raises ValueError, naming the file.
        """
        try:
            return build_tokenizer(self._fields, template_kwargs)
        except Exception as error:  # the tokenizers library raises no subclass of it
            raise ValueError(f"{self.where}: {_one_line(error)}") from error

    def read(self, name: str, index: Index) -> np.ndarray:
        tensor = self._held[name]
        if len(index) == 1:  # a vector is one row, whose bytes are not its elements
            return _floats(tensor.data, tensor)[index]
        rows: Any = index[0]
        if self._paired and any(part in name for part in _PAIRED):
            rows = self._paired_rows(tensor.data.shape[0])[rows]
        return _floats(tensor.data[rows], tensor)[(slice(None), *index[1:])]

    def _paired_rows(self, count: int) -> np.ndarray:
        """Where each of our query or key rows lies in the file: the Llama converter
        puts the two halves that rotate together side by side."""
        pairs = np.arange(count).reshape(-1, self.config.head_dim // 2, 2)
        return pairs.swapaxes(1, 2).reshape(-1)

    def _rows(self, name: str) -> int:
        if name not in self._held:
            raise ValueError(f"it lacks the tensor {name}")
        return int(self._held[name].shape[-1])


@contextlib.contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """A file mapped into memory.

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
    """Stops where the file ends: the base class goes on with empty arrays."""

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
    """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; a name that
    has no such counterpart stays as it is, and is then reported as unused."""
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
    """Whether ``gguf`` can turn one block of a type into floats."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True

"""GGUF files: metadata, tensors of any quantisation and tokenizer, as a ``Source``.

The ``gguf`` package reads the container and dequantises; here its names become those
of a Hugging Face checkpoint. Rows are stored whole, so parts of a tensor dequantise
without the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mempo_jax.models import gguf_config
from mempo_jax.models.gguf_tokenizer import build_tokenizer
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.stream import Index, Stored
from mempo_jax.models.tokenizer import Options, Tokenizer

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
        self.config: DecoderConfig = gguf_config.read_config(
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
        self._paired = gguf_config.architecture(self._fields) == "llama"

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

"""Model families on disk: the fields of config.json and the names of the tensors.

Llama, Qwen2 and Qwen3 differ little: Qwen2 has biases on query, key and value, Qwen3
has norms on the heads of query and key.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from mempo_jax.models import rope
from mempo_jax.models.layers import DecoderConfig

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


class TensorEntry(NamedTuple):
    """One parameter and the tensor that it is stored as.

    Attributes:
      path: of our parameter, joined by "/".
      name: of the checkpoint's tensor; {layer} stands for the layer's number.
      shape: of our parameter, without the axis of layers.
      turned: whether the checkpoint stores the matrix transposed.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    turned: bool

    @property
    def stacked(self) -> bool:
        """Whether the parameter has an axis of layers."""
        return "{layer}" in self.name


def read_config(directory: str | os.PathLike) -> DecoderConfig:
    """Reads the decoder's shape from config.json.

    Args:
      directory: a Hugging Face model directory.

    Raises:
      ValueError: an unreadable file, another model_type than llama, qwen2 or qwen3, a
        missing field, or a setting that would give other logits.
    """
    path = Path(directory) / "config.json"
    raw = read_json(path)
    family = raw.get("model_type")
    if family not in _ARCHITECTURES:
        raise ValueError(
            f"{path}: expected model_type to be one of {', '.join(_ARCHITECTURES)}, "
            f"got {family!r}"
        )
    required = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "rms_norm_eps",
    )
    if missing := [name for name in required if name not in raw]:
        raise ValueError(f"{path} lacks the fields {', '.join(missing)}")
    _refuse_unsupported(path, family, raw)
    heads, width = raw["num_attention_heads"], raw["hidden_size"]
    return DecoderConfig(
        vocab_size=raw["vocab_size"],
        width=width,
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or width // heads,
        mlp_width=raw["intermediate_size"],
        # 10,000 is what transformers takes if the file names no base.
        rope_theta=float(_rope(raw).get("rope_theta", 10_000.0)),
        norm_eps=float(raw["rms_norm_eps"]),
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        max_positions=raw["max_position_embeddings"],
        rope_scaling=_rope_scaling(path, raw),
    )


def config_json(
    c: DecoderConfig, stops: list[int], pad: int, dtype: str
) -> dict[str, Any]:
    """Builds the content of config.json.

    Rotary fields are spelled both as today (rope_parameters) and as in older versions
    of transformers (rope_theta, rope_scaling).

    Args:
      c: the decoder's shape.
      stops: ids that end a turn.
      pad: id of padding.
      dtype: name of the stored weights' dtype.
    """
    family = "qwen3" if c.qk_norm else "qwen2" if c.qkv_bias else "llama"
    scaling = rope.written(c.rope_scaling)
    return {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": c.vocab_size,
        "hidden_size": c.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.mlp_width,
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "rope_parameters": {**scaling, "rope_theta": c.rope_theta},
        "rope_scaling": scaling if c.rope_scaling else None,
        "tie_word_embeddings": c.tied,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": stops if len(stops) > 1 else stops[0],
        "pad_token_id": pad,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def tensor_table(c: DecoderConfig) -> list[TensorEntry]:
    """Lists all parameters of a decoder, each with the tensor that it is stored as.

    Args:
      c: the decoder's shape.
    """
    layer, ours = "model.layers.{layer}", "layers"
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    table = [
        TensorEntry(
            "embed/embedding",
            "model.embed_tokens.weight",
            (c.vocab_size, c.width),
            False,
        ),
        TensorEntry("final_norm/scale", "model.norm.weight", (c.width,), False),
    ]
    if not c.tied:
        table.append(
            TensorEntry("head/kernel", "lm_head.weight", (c.width, c.vocab_size), True)
        )
    norms = {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    }
    for own, other in norms.items():
        name = f"{layer}.{other}.weight"
        table.append(TensorEntry(f"{ours}/{own}/scale", name, (c.width,), False))
    projections = {
        "attention/query": ("self_attn.q_proj", (c.width, queries)),
        "attention/key": ("self_attn.k_proj", (c.width, keys)),
        "attention/value": ("self_attn.v_proj", (c.width, keys)),
        "attention/output": ("self_attn.o_proj", (queries, c.width)),
        "mlp/gate": ("mlp.gate_proj", (c.width, c.mlp_width)),
        "mlp/up": ("mlp.up_proj", (c.width, c.mlp_width)),
        "mlp/down": ("mlp.down_proj", (c.mlp_width, c.width)),
    }
    for own, (other, shape) in projections.items():
        name = f"{layer}.{other}"
        table.append(TensorEntry(f"{ours}/{own}/kernel", f"{name}.weight", shape, True))
        if c.qkv_bias and other[-6:] in ("q_proj", "k_proj", "v_proj"):
            bias = TensorEntry(f"{ours}/{own}/bias", f"{name}.bias", shape[1:], False)
            table.append(bias)
    if c.qk_norm:
        for own, other in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            name = f"{layer}.self_attn.{other}.weight"
            path = f"{ours}/attention/{own}/scale"
            table.append(TensorEntry(path, name, (c.head_dim,), False))
    return table


def tensor_names(entry: TensorEntry, config: DecoderConfig) -> list[str]:
    """Lists the checkpoint's names of a parameter: one, or one per layer.

    Args:
      entry: the parameter.
      config: the decoder's shape.
    """
    if not entry.stacked:
        return [entry.name]
    return [entry.name.format(layer=index) for index in range(config.layers)]


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Args:
      path: of the file.

    Raises:
      ValueError: the file cannot be read or is no JSON object; names the file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a readable JSON file: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Merges rotary settings; older files have rope_theta at top level."""
    old = {"rope_theta": raw["rope_theta"]} if "rope_theta" in raw else {}
    return {
        **old,
        **(raw.get("rope_scaling") or {}),
        **(raw.get("rope_parameters") or {}),
    }


def _rope_scaling(path: Path, raw: dict[str, Any]) -> rope.RopeScaling | None:
    longest = raw["max_position_embeddings"]
    original = raw.get("original_max_position_embeddings") or longest
    try:
        return rope.read(_rope(raw), original)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error} is not supported; expected rotary positions of rope_type "
            f"{', '.join(rope.KINDS)} with their own fields (longrope: one factor for "
            "short and long)"
        ) from error


def _refuse_unsupported(path: Path, family: str, raw: dict[str, Any]) -> None:
    wrong = {
        f"hidden_act {raw.get('hidden_act')!r}": raw.get("hidden_act", "silu")
        != "silu",
        "attention_bias": bool(raw.get("attention_bias")) and family != "qwen2",
        "mlp_bias": bool(raw.get("mlp_bias")),
        "use_sliding_window": bool(raw.get("use_sliding_window"))
        or "sliding_attention" in (raw.get("layer_types") or ()),
        "quantization_config": raw.get("quantization_config") is not None,
    }
    if named := [name for name, present in wrong.items() if present]:
        raise ValueError(
            f"{path}: {', '.join(named)} is not supported; expected silu, no extra "
            "biases, full attention, unquantised weights"
        )

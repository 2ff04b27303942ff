"""Writes tiny GGUF files as llama.cpp's converter would, from a saved directory."""

import json

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

NAMES = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    *((f"self_attn.{x}_proj", f"attn_{x}") for x in "qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    *((f"mlp.{x}_proj", f"ffn_{x}") for x in ("gate", "up", "down")),
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ("h e", "he l", "l o", "hel lo", "Ġ hello", "1 2")
LETTERS = sorted(ByteLevel.alphabet())
TOKENS = [*SPECIAL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]
FILLER = 2  # unused tokens at the end, up to the rows of the embedding
VOCABULARY = len(TOKENS) + FILLER


def write(path, directory, kinds=None, drop=(), **changes):
    """A GGUF file of the model in ``directory``.

    kinds: quantisation by the last part of our tensor names, such as {"attn_q": ...}.
    drop: metadata and tensors to leave out. changes: metadata by its name behind the
    architecture, dots as "__"; "tokenizer__" and "general__" start other names.
    """
    raw = json.loads((directory / "config.json").read_text())
    arch = raw["model_type"]
    writer = gguf.GGUFWriter(str(path), changes.pop("arch", arch))
    fields = _fields(raw, arch) | tokenizer_fields()
    for name, value in changes.items():
        name = name.replace("__", ".")
        plain = name.startswith(("tokenizer.", "general."))
        fields[name if plain else f"{arch}.{name}"] = value
    for name, value in fields.items():
        if name not in drop:
            _add(writer, name, value)
    for name, tensor in load_file(directory / "model.safetensors").items():
        if arch == "llama" and any(part in name for part in ("q_proj", "k_proj")):
            tensor = _paired(tensor, raw["head_dim"])
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        if name not in drop:
            _add_tensor(writer, name, tensor, kinds or {})
    if "rope_factors" in raw:
        factors = np.array(raw["rope_factors"], np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _paired(tensor, head_dim):
    """Rows i and i + C/2 of each head side by side."""
    halves = tensor.reshape(-1, 2, head_dim // 2, tensor.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)


def _add_tensor(writer, name, tensor, kinds):
    kind = kinds.get(name.split(".")[-2]) if tensor.ndim > 1 else None
    if kind is None:
        writer.add_tensor(name, tensor)
    elif isinstance(kind, gguf.GGMLQuantizationType):
        writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    else:
        data, kind = kind
        writer.add_tensor(name, data, raw_dtype=kind)


def _fields(raw, arch):
    own = {
        "block_count": raw["num_hidden_layers"],
        "context_length": raw["max_position_embeddings"],
        "embedding_length": raw["hidden_size"],
        "feed_forward_length": raw["intermediate_size"],
        "attention.head_count": raw["num_attention_heads"],
        "attention.head_count_kv": raw["num_key_value_heads"],
        "attention.key_length": raw["head_dim"],
        "attention.layer_norm_rms_epsilon": float(raw["rms_norm_eps"]),
        "rope.freq_base": float(raw["rope_theta"]),
        "rope.dimension_count": raw["head_dim"],
    }
    return {f"{arch}.{name}": value for name, value in own.items()}


def tokenizer_fields():
    types = [3, 3, 3, 4] + [1] * (len(TOKENS) - 4) + [5] * FILLER
    own = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*TOKENS, *(f"[PAD{n}]" for n in range(FILLER))],
        "token_type": types,
        "merges": list(MERGES),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "eot_token_id": 0,
        "padding_token_id": 0,
    }
    own = {f"tokenizer.ggml.{name}": value for name, value in own.items()}
    return own | {"tokenizer.chat_template": TEMPLATE}


def _add(writer, name, value):
    if isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    else:
        writer.add_uint32(name, value)

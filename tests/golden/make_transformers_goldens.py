"""Makes transformers_<family>.npz: tiny random models and their logits.

Needs torch and transformers (extra [parity]); the ordinary tests only read the files.
Run again, and commit the files, only when a family or its format changes; names limit
it to these:

    python tests/golden/make_transformers_goldens.py [NAME ...]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5_000.0,
}
ORIGINAL = {"original_max_position_embeddings": 8}


def scaled(kind: str, **fields) -> dict:
    theta = SHAPE["rope_theta"]
    rope = {"rope_type": kind, "rope_theta": theta, "factor": 4.0, **fields}
    return {"head_dim": 16, "rope_parameters": rope}


FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": False}),
    "qwen3": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"tie_word_embeddings": False, "head_dim": 8},
    ),
    # The same families with stretched rotary positions; 24 tokens pass the original 8.
    "llama_linear": (LlamaConfig, LlamaForCausalLM, scaled("linear")),
    "llama_llama3": (
        LlamaConfig,
        LlamaForCausalLM,
        scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
    ),
    "qwen2_yarn": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"tie_word_embeddings": True} | scaled("yarn", beta_fast=4.0, **ORIGINAL),
    ),
}


def make(family: str) -> dict[str, np.ndarray]:
    config_type, model_type, extra = FAMILIES[family]
    torch.manual_seed(0)
    model = model_type(config_type(**SHAPE, **extra)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(0.2 * torch.randn_like(parameter))
    length = 24 if "rope_parameters" in extra else 12
    tokens = torch.randint(0, SHAPE["vocab_size"], (2, length))
    with torch.no_grad():
        logits = model(tokens).logits
    weights = {f"weights/{k}": v.numpy() for k, v in model.state_dict().items()}
    if extra.get("tie_word_embeddings"):
        weights.pop("weights/lm_head.weight", None)
    config = model.config.to_dict() | {"model_type": family.partition("_")[0]}
    return {
        "config": np.array(json.dumps(config, default=str)),
        "tokens": tokens.numpy().astype(np.int32),
        "logits": logits.numpy(),
        **weights,
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or FAMILIES:
        path = Path(__file__).parent / f"transformers_{name}.npz"
        np.savez_compressed(path, **make(name))

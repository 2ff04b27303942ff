"""Makes transformers_<family>.npz: tiny random models and their logits.

Needs torch and transformers (extra [parity]); the ordinary tests only read the files.
Run again, and commit the files, only when a family or its format changes:

    python tests/golden/make_transformers_goldens.py
"""

import json
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
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": False}),
    "qwen3": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"tie_word_embeddings": False, "head_dim": 8},
    ),
}


def make(family: str) -> dict[str, np.ndarray]:
    config_type, model_type, extra = FAMILIES[family]
    torch.manual_seed(0)
    model = model_type(config_type(**SHAPE, **extra)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(0.2 * torch.randn_like(parameter))
    tokens = torch.randint(0, SHAPE["vocab_size"], (2, 12))
    with torch.no_grad():
        logits = model(tokens).logits
    weights = {f"weights/{k}": v.numpy() for k, v in model.state_dict().items()}
    if extra["tie_word_embeddings"]:
        weights.pop("weights/lm_head.weight", None)
    config = model.config.to_dict() | {"model_type": family}
    return {
        "config": np.array(json.dumps(config, default=str)),
        "tokens": tokens.numpy().astype(np.int32),
        "logits": logits.numpy(),
        **weights,
    }


if __name__ == "__main__":
    for name in FAMILIES:
        path = Path(__file__).parent / f"transformers_{name}.npz"
        np.savez_compressed(path, **make(name))

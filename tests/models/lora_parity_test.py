"""Adapters merged and alone, read by others: ``pytest -m parity`` (extra [parity])."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.models import hf, lora
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.lora import save_adapters
from tests.models.parity_test import FAMILIES, TOKENIZER, random_params, random_tokens

pytestmark = pytest.mark.parity

LORA = lora.LoraConfig(
    rank=3, alpha=7.0, targets=("query", "value", "output", "up", "down")
)


@pytest.fixture(params=["llama tied", "qwen2"])
def adapted(request):
    """Config, whole tree with adapters that act, tokens, and our logits."""
    config = FAMILIES[request.param]
    config = dataclasses.replace(config, vocab_size=TOKENIZER.vocab_size)
    base, tokens = random_params(config), random_tokens(config)
    draw = np.random.default_rng(3).normal
    fresh = lora.new_adapters(base, LORA, jax.random.key(0))
    moved = jax.tree.map(lambda x: draw(0, 0.2, x.shape).astype(x.dtype), fresh)
    params = lora.join(moved, base)
    model = LanguageModel(config, jnp.float32, lora=LORA)
    hidden = model.hidden(params, tokens, np.ones(tokens.shape, bool))
    return config, params, tokens, np.asarray(hidden @ model.unembed(params))


def logits(model, tokens):
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(tokens).long()).logits.numpy()


def test_the_merged_export_gives_transformers_the_same_logits(adapted, tmp_path):
    from transformers import AutoModelForCausalLM

    config, params, tokens, ours = adapted
    hf.save(tmp_path, config, lora.merge(params, LORA), TOKENIZER)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    np.testing.assert_allclose(logits(model, tokens), ours, atol=1e-4)


def test_peft_reads_the_adapters_alone(adapted, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config, params, tokens, ours = adapted
    hf.save(tmp_path / "base", config, lora.split(params)[1], TOKENIZER)
    folder = tmp_path / "adapters"
    save_adapters(folder, config, params, LORA, tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert np.abs(logits(base, tokens) - ours).max() > 0.1
    model = PeftModel.from_pretrained(base, folder)
    np.testing.assert_allclose(logits(model, tokens), ours, atol=1e-4)

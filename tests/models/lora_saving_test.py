import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from mempo_jax.models.lora import merge, save_adapters
from tests.models.lora_test import ALL, CONFIG, SOME, base, trained


@pytest.mark.parametrize("settings", [ALL, SOME])
def test_stored_adapters_add_up_to_the_merged_weights(settings, tmp_path):
    """What `peft` makes of the files, W + alpha/r B A, against the merged weights."""
    params = trained(settings)
    save_adapters(tmp_path, CONFIG, params, settings, "some/base")
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert said["peft_type"] == "LORA"
    assert said["base_model_name_or_path"].endswith("/some/base")
    assert len(said["target_modules"]) == len(settings.targets)
    assert len(stored) == 2 * CONFIG.layers * len(settings.targets)
    for group, own, other in (
        ("attention", "query", "self_attn.q_proj"),
        ("mlp", "down", "mlp.down_proj"),
    ):
        assert other.rpartition(".")[2] in said["target_modules"]
        before, after = (
            tree["layers"][group][own]["kernel"]
            for tree in (base(), merge(params, settings))
        )
        for layer in range(CONFIG.layers):
            key = f"base_model.model.model.layers.{layer}.{other}"
            a, b = (stored[f"{key}.lora_{side}.weight"] for side in "AB")
            change = said["lora_alpha"] / said["r"] * (b @ a).T
            np.testing.assert_allclose(after[layer], before[layer] + change, atol=1e-6)

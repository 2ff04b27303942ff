import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mempo_jax.models import families, hf, rope
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.nano import build_nano

TOKENIZER = build_nano(["a b c"], [])
LLAMA = DecoderConfig(
    vocab_size=TOKENIZER.vocab_size,
    width=8,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=6,
    mlp_width=12,
    rope_theta=1e4,
    norm_eps=1e-5,
    tied=True,
    qkv_bias=False,
    qk_norm=False,
    max_positions=32,
)
CONFIGS = {
    "llama": LLAMA,
    "one layer": dataclasses.replace(LLAMA, layers=1),
    "qwen2": dataclasses.replace(LLAMA, qkv_bias=True, tied=False),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, tied=False),
}


def random_params(config):
    draw = np.random.default_rng(0).normal
    model = LanguageModel(config, jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(size=x.shape).astype(np.float32), shapes)


@pytest.fixture
def saved(tmp_path):
    hf.save(tmp_path, LLAMA, random_params(LLAMA), TOKENIZER)
    return tmp_path


def change_weights(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def change_config(path, **fields):
    raw = json.loads((path / "config.json").read_text())
    raw.update(fields)
    raw = {name: value for name, value in raw.items() if value != "absent"}
    (path / "config.json").write_text(json.dumps(raw))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_round_trip_is_exact(config, tmp_path):
    params = random_params(config)
    hf.save(tmp_path, config, jax.tree.map(jnp.asarray, params), TOKENIZER)
    again, loaded, tokenizer = hf.load(tmp_path)
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert tokenizer.stop_ids == TOKENIZER.stop_ids
    assert not list(tmp_path.glob("*.unfinished"))


def test_sharded_weights_are_read(saved):
    tensors = load_file(saved / "model.safetensors")
    whole = hf.load_params(saved)
    (saved / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, saved / file)
    index = {name: file for file, part in files.items() for name in part}
    (saved / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index})
    )
    jax.tree.map(np.testing.assert_array_equal, hf.load(saved)[1], whole)
    (saved / "two.safetensors").unlink()
    with pytest.raises(ValueError, match=r"two\.safetensors.*missing, cut off"):
        hf.load(saved)


def test_bfloat16_weights_become_float32(saved):
    whole = hf.load_params(saved)
    tensors = load_file(saved / "model.safetensors")
    low = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}
    save_file(low, saved / "model.safetensors")
    loaded = hf.load_params(saved)
    for got, exact in zip(jax.tree.leaves(loaded), jax.tree.leaves(whole)):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, exact.astype(ml_dtypes.bfloat16))


def test_every_tensor_that_is_missing_is_named(saved):
    tensors = load_file(saved / "model.safetensors")
    for name in tensors:
        left = {other: value for other, value in tensors.items() if other != name}
        save_file(left, saved / "model.safetensors")
        with pytest.raises(ValueError, match=f"missing {name}"):
            hf.load_params(saved)


def test_all_that_does_not_fit_is_named_at_once(saved):
    def change(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(12, np.float32)
        tensors["model.layers.2.mlp.up_proj.weight"] = np.zeros((12, 8), np.float32)
        tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((12, 8), np.float32)

    change_weights(saved, change)
    with pytest.raises(ValueError, match="do not fit its config") as caught:
        hf.load(saved)
    for part in (
        "missing model.norm.weight",
        "missing model.layers.1.mlp.up_proj.weight",
        "unused model.layers.0.self_attn.q_proj.bias",
        "unused model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight has shape [12, 8], expected [8, 12]",
    ):
        assert part in str(caught.value)


def test_a_copy_of_tied_embeddings_is_one_leaf_and_another_head_is_refused(saved):
    def copy(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    change_weights(saved, copy)
    assert "head" not in hf.load_params(saved)
    change_weights(saved, lambda tensors: tensors["lm_head.weight"].__imul__(2))
    with pytest.raises(ValueError, match=r"lm_head\.weight and .* differ"):
        hf.load_params(saved)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_an_output_matrix_is_there_for_readers_that_need_one(tmp_path, name):
    config = CONFIGS[name]
    params = random_params(config)
    hf.save(tmp_path, config, params, TOKENIZER, repeat_tied=True)
    tensors = load_file(tmp_path / "model.safetensors")
    head, embedding = tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]
    assert np.array_equal(head, embedding) == config.tied
    jax.tree.map(np.testing.assert_array_equal, hf.load_params(tmp_path), params)


@pytest.mark.parametrize("damage", ["cut", "garbage", "header"])
def test_damaged_weights_give_a_clear_error(saved, damage):
    path = saved / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[:-40], "garbage": b"x" * 500, "header": b"\xff" + data[1:]}[damage]
    )
    with pytest.raises(ValueError, match="not a readable safetensors file") as caught:
        hf.load(saved)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_directory_that_lacks_a_part_is_refused_in_one_line(saved, name):
    (saved / name).unlink()
    with pytest.raises(ValueError, match=f"it lacks {name}") as caught:
        hf.load(saved)
    assert "\n" not in str(caught.value)


def test_an_empty_directory_lacks_all(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json, model.*tokenizer\.json"):
        hf.load(tmp_path)


def test_a_tokenizer_of_another_model_is_refused(saved):
    build_nano(["d e f g h"], []).save(saved)
    with pytest.raises(ValueError, match="do not belong together"):
        hf.load(saved)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"model_type": "mamba"}, "expected model_type to be one of llama"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type 'dynamic' is not one"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' without factor is not supp"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, r"factor 0\.0 is not"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, r"factor -2\.0 is not"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_size": "absent"}, "lacks the fields hidden_size"),
    ],
)
def test_configs_that_would_give_other_logits_are_refused(saved, fields, match):
    if "rope_scaling" in fields:
        change_config(saved, rope_parameters="absent")
    change_config(saved, **fields)
    with pytest.raises(ValueError, match=match):
        families.read_config(saved)


def test_older_configs_keep_theta_at_top_level(saved):
    change_config(saved, rope_parameters="absent", rope_theta=7_000)
    assert families.read_config(saved).rope_theta == 7_000.0
    change_config(saved, rope_theta="absent", rope_parameters={"rope_theta": 9_000})
    assert families.read_config(saved).rope_theta == 9_000.0


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = rope.YarnRope(4.0, 8, 32.0, 1.0, rope.yarn_attention_factor(4.0), True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "linear", "factor": 2}, rope.LinearRope(2.0)),
        (
            {"rope_type": "llama3", "original_max_position_embeddings": 8, **LLAMA3},
            rope.Llama3Rope(8.0, 1.0, 4.0, 8),
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
            YARN,
        ),
        ({"type": "default"}, None),
    ],
)
def test_rotary_scalings_are_read_in_both_spellings(saved, fields, expected):
    change_config(saved, rope_parameters="absent", rope_scaling=fields)
    assert families.read_config(saved).rope_scaling == expected
    change_config(saved, rope_scaling=None, rope_parameters=fields)
    assert families.read_config(saved).rope_scaling == expected


def test_a_rotary_scaling_is_written_in_both_spellings(tmp_path):
    config = dataclasses.replace(LLAMA, rope_scaling=YARN)
    hf.save(tmp_path, config, random_params(config), TOKENIZER)
    assert families.read_config(tmp_path) == config
    for name in ("rope_parameters", "rope_scaling"):
        change_config(tmp_path, **{name: "absent"})
        assert (families.read_config(tmp_path) == config) == (name == "rope_parameters")


def test_a_config_that_is_no_json_is_named(saved):
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not a readable JSON"):
        hf.load(saved)


def test_weights_that_are_not_finite_are_refused(saved):
    tensors = load_file(saved / "model.safetensors")
    tensors["model.norm.weight"][1] = np.nan
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"model\.norm\.weight has values that are not"
    ):
        hf.load(saved)


@pytest.mark.parametrize(
    "text", ["{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}']
)
def test_an_index_without_a_weight_map_is_named(saved, text):
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json: expected an object weight_map"):
        hf.load(saved)

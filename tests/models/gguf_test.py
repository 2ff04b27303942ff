import contextlib
import dataclasses
import json

import gguf
import jax
import numpy as np
import pytest

from mempo_jax.models import gguf as gguf_module
from mempo_jax.models import hf, rope, stream
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.families import tensor_table
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.nano import build_nano
from tests.models import gguf_case

LLAMA = DecoderConfig(
    vocab_size=gguf_case.VOCABULARY,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=64,
    rope_theta=1e5,
    norm_eps=1e-5,
    tied=True,
    qkv_bias=False,
    qk_norm=False,
    max_positions=64,
)
CONFIGS = {
    "llama": LLAMA,
    "qwen2": dataclasses.replace(LLAMA, qkv_bias=True, tied=False),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, head_dim=16),
}
TYPES = gguf.GGMLQuantizationType
TOKENIZER = build_nano(["a b c"], [])  # of the directory; GGUF files get another


def random_params(config):
    draw = np.random.default_rng(0).normal
    shapes = jax.eval_shape(LanguageModel(config, "float32").init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(size=x.shape).astype(np.float32), shapes)


def directory_of(config, path):
    hf.save(path, config, random_params(config), TOKENIZER)
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return directory_of(LLAMA, tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_unquantised_files_equal_their_directory(config, tmp_path):
    directory = directory_of(config, tmp_path / "hf")
    again, params, tokenizer = hf.load(gguf_case.write(tmp_path / "m.gguf", directory))
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, params, hf.load_params(directory))
    assert tokenizer.vocab_size == len(gguf_case.TOKENS)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        *(("F16", 1e-3), ("BF16", 0.016), ("Q8_0", 0.02)),
        *(("Q4_0", 0.4), ("Q4_1", 0.3), ("Q5_0", 0.2), ("Q5_1", 0.2)),
    ],
)
def test_quantised_tensors_come_within_their_rounding(kind, error, llama, tmp_path):
    names = ("token_embd", "attn_q", "attn_k", "attn_v", "ffn_up", "ffn_down")
    kinds = dict.fromkeys(names, TYPES[kind])
    path = gguf_case.write(tmp_path / "m.gguf", llama, kinds)
    exact, params = hf.load_params(llama), hf.load(path)[1]
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), params, exact)
    assert 0 < max(jax.tree.leaves(gaps)) < error
    assert gaps["layers"]["attention"]["output"]["kernel"] == 0


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_256_are_read_in_parts_as_in_whole(kind, tmp_path):
    config = dataclasses.replace(LLAMA, width=256, layers=1)
    rng = np.random.default_rng(1)
    kind = TYPES[kind]
    block = gguf.GGML_QUANT_SIZES[kind][1]
    data = rng.integers(0, 255, (32, block), np.uint8)
    halves = {"Q2_K": (80, 84), "Q3_K": (108, 110), "Q6_K": (208, 210)}
    start, end = halves.get(kind.name, (0, 4))
    scales = np.full((32, (end - start) // 2), 0.01, np.float16)
    data[:, start:end] = scales.view(np.uint8)  # else random bytes are NaN
    directory = directory_of(config, tmp_path / "hf")
    path = gguf_case.write(tmp_path / "m.gguf", directory, {"attn_q": (data, kind)})
    values = gguf.dequantize(data, kind)
    # In the file the two halves of a head of 8 alternate: 0, 4, 1, 5, ...
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    expected = values.reshape(4, 8, 256)[:, order].reshape(32, 256)
    with gguf_module.open_gguf(path) as file:
        name = "model.layers.0.self_attn.q_proj.weight"
        part = (slice(3, 20), slice(40, 200))
        np.testing.assert_array_equal(file.read(name, part), expected[part])
        everything = (slice(None), slice(None))
        np.testing.assert_array_equal(file.read(name, everything), expected)


def test_rotary_factors_of_the_file_become_a_scaling(llama, tmp_path):
    raw = json.loads((llama / "config.json").read_text())
    changed = tmp_path / "hf"
    changed.mkdir()
    (changed / "config.json").write_text(json.dumps(raw | {"rope_factors": [1, 2, 4]}))
    (changed / "model.safetensors").symlink_to(llama / "model.safetensors")
    with pytest.raises(ValueError, match="expected 4 rotary factors"):
        hf.load(gguf_case.write(tmp_path / "m.gguf", changed))
    factors = [1.0, 1.0, 4.0, 8.0]
    (changed / "config.json").write_text(json.dumps(raw | {"rope_factors": factors}))
    config, *_ = hf.load(gguf_case.write(tmp_path / "m.gguf", changed))
    assert config.rope_scaling == rope.FactorsRope(tuple(factors), 1.0, 64)


def test_a_file_is_cut_anywhere_and_named_in_one_line(llama, tmp_path):
    whole = gguf_case.write(tmp_path / "m.gguf", llama).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in (0, 3, 20, 300, 5_000, 12_000, len(whole) - 40):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not a readable GGUF file") as caught:
            hf.load(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_damaged_bytes_never_give_another_kind_of_error(llama, tmp_path):
    whole = gguf_case.write(tmp_path / "m.gguf", llama).read_bytes()
    path = tmp_path / "damaged.gguf"
    rng = np.random.default_rng(0)
    refused = 40
    for place in rng.integers(0, 9_000, 40):
        path.write_bytes(whole[:place] + rng.bytes(4) + whole[place + 4 :])
        with contextlib.suppress(ValueError):
            hf.load(path)
            refused -= 1
    assert refused > 10


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"arch": "phi3"}, "one of llama, qwen2, qwen3, got 'phi3'"),
        ({"drop": ("output_norm.weight",)}, r"missing model\.norm\.weight"),
        ({"drop": ("blk.1.ffn_up.weight",)}, r"missing model\.layers\.1\.mlp\.up_proj"),
        ({"drop": ("token_embd.weight",)}, r"lacks the tensor token_embd\.weight"),
        ({"drop": ("llama.block_count",)}, r"metadata lacks llama\.block_count"),
        ({"drop": ("tokenizer.ggml.merges",)}, r"lacks tokenizer\.ggml\.merges"),
        ({"drop": ("tokenizer.chat_template",)}, "no chat template"),
        ({"kinds": {"attn_q": TYPES.Q8_1}}, "has dtype Q8_1, expected one of F32"),
        ({"block_count": 3}, r"missing model\.layers\.2\.input_layernorm\.weight"),
        ({"block_count": 1}, r"unused model\.layers\.1\.input_layernorm\.weight"),
        ({"feed_forward_length": 32}, r"shape \[64, 32\], expected \[32, 32\]"),
        ({"expert_count": 4}, "expert_count = 4 is not supported"),
        ({"rope__dimension_count": 4}, r"rope\.dimension_count = 4"),
        ({"rope__scaling__type": "longrope"}, r"rope\.scaling\.type 'longrope'"),
        ({"tokenizer__ggml__model": "llama"}, "model to be one of gpt2, got 'llama'"),
        ({"tokenizer__ggml__pre": "odd"}, "pre to be one of gpt-2, .*got 'odd'"),
        ({"tokenizer__ggml__tokens": ["a"]}, "has 1 tokens, but not as many types"),
    ],
)
def test_what_does_not_fit_is_named_with_the_file(options, match, llama, tmp_path):
    options = dict(options)
    kinds = options.pop("kinds", None)
    if kinds:
        zeros = np.zeros((32, 40), np.uint8)
        kinds = {name: (zeros, kind) for name, kind in kinds.items()}
    path = gguf_case.write(tmp_path / "m.gguf", llama, kinds, **options)
    with pytest.raises(ValueError, match=match) as caught:
        hf.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "none"}, None),
        ({"type": "linear", "factor": 4.0}, rope.LinearRope(4.0)),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 16},
            rope.YarnRope(4.0, 16, 32.0, 1.0, rope.yarn_attention_factor(4.0), True),
        ),
    ],
)
def test_rotary_scalings_of_the_metadata(fields, expected, llama, tmp_path):
    changes = {f"rope__scaling__{name}": value for name, value in fields.items()}
    path = gguf_case.write(tmp_path / "m.gguf", llama, **changes)
    with gguf_module.open_gguf(path) as file:
        assert file.config.rope_scaling == expected


def test_more_tokens_than_rows_are_refused(llama, tmp_path):
    more = [*gguf_case.TOKENS, *(f"more{n}" for n in range(FILLER_AND_MORE))]
    path = gguf_case.write(
        tmp_path / "m.gguf",
        llama,
        tokenizer__ggml__tokens=more,
        tokenizer__ggml__token_type=[3] * 4 + [1] * (len(more) - 4),
    )
    with pytest.raises(ValueError, match="do not belong together"):
        hf.load(path)


FILLER_AND_MORE = gguf_case.FILLER + 1


def test_no_such_file(tmp_path):
    with pytest.raises(ValueError, match=r"none\.gguf is no file"):
        hf.load(tmp_path / "none.gguf")


def test_values_that_are_not_finite_are_named(llama, tmp_path):
    bad = np.full((64, 32), np.inf, np.float32)
    path = gguf_case.write(tmp_path / "m.gguf", llama, {"ffn_up": (bad, TYPES.F32)})
    with (
        gguf_module.open_gguf(path) as file,
        pytest.raises(ValueError, match=r"0\.mlp\.up.*not finite.*1\.mlp\.up"),
    ):
        stream.fill(file, tensor_table(LLAMA), LLAMA, np.float32, stream.as_numpy)

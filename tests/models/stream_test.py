import dataclasses
import json
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mempo_jax.distributed import placement
from mempo_jax.distributed.placement import on_mesh
from mempo_jax.models import hf, stream
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.nano import build_nano

TOKENIZER = build_nano(["a b c"], [])
CONFIG = DecoderConfig(
    vocab_size=128,
    width=16,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=64,
    rope_theta=1e4,
    norm_eps=1e-5,
    tied=False,
    qkv_bias=True,
    qk_norm=False,
    max_positions=32,
)
# Wide enough for arrays to outweigh everything else that loading allocates.
LARGE = dataclasses.replace(CONFIG, layers=16, width=64, mlp_width=512)


def random_params(config):
    draw = np.random.default_rng(0).normal
    shapes = jax.eval_shape(LanguageModel(config, "float32").init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(size=x.shape).astype(np.float32), shapes)


def sharded(path, config, params):
    """A directory with one file a layer, and one for the ends."""
    hf.save(path, config, params, TOKENIZER)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    files = {}
    for name in tensors:
        part = name.split(".")[2] if ".layers." in name else "ends"
        files[name] = f"model-{part}.safetensors"
    for file in set(files.values()):
        part = {name: tensors[name] for name, at in files.items() if at == file}
        save_file(part, path / file)
    index = json.dumps({"weight_map": files})
    (path / "model.safetensors.index.json").write_text(index)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return sharded(tmp_path_factory.mktemp("small"), CONFIG, random_params(CONFIG))


def test_no_more_than_one_parameter_stands_in_memory(tmp_path):
    params = random_params(LARGE)
    sharded(tmp_path, LARGE, params)
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
    del params
    seen = {}

    def place(path, shape, dtype, read):
        value = read(tuple(slice(None) for _ in shape))
        seen[path] = value.nbytes
        return float(value.sum())

    hf.load_params(tmp_path, place)  # imports and caches are not what is measured
    tracemalloc.start()
    hf.load_params(tmp_path, place)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sorted(seen.values()) == sorted(sizes)
    assert peak < 1.3 * max(sizes), f"{peak} bytes at once, of {sum(sizes)}"
    assert sum(sizes) > 2 * peak


def test_a_part_is_read_alone_and_equals_that_part_of_the_whole(small):
    index = {1: (slice(3, 9),), 2: (slice(1, 3), slice(4, 12)), 3: (slice(1, 3),) * 3}
    index[3] = (slice(2, 4), slice(0, 8), slice(None))
    got = hf.load_params(
        small, lambda path, shape, dtype, read: read(index[len(shape)])
    )
    whole = hf.load_params(small)
    expected = jax.tree.map(lambda leaf: leaf[index[leaf.ndim]], whole)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_every_parameter_lies_where_the_table_wants_it(small):
    mesh = placement.make_mesh(2, 2, 2)
    placed = hf.load_params(small, on_mesh(mesh))
    wanted = placement.shardings(placed, mesh)
    assert all(
        leaf.sharding.is_equivalent_to(where, leaf.ndim)
        for leaf, where in zip(jax.tree.leaves(placed), jax.tree.leaves(wanted))
    )
    jax.tree.map(np.testing.assert_array_equal, placed, hf.load_params(small))


def test_each_part_is_read_once(small):
    mesh = placement.make_mesh(2, 2, 2)
    counts, place = {}, on_mesh(mesh)

    def counting(path, shape, dtype, read):
        def counted(index):
            part = read(index)
            counts[path] = counts.get(path, 0) + part.size
            return part

        return place(path, shape, dtype, counted)

    placed = hf.load_params(small, counting)
    sizes = jax.tree.map(lambda leaf: leaf.size, placed)
    flat = jax.tree_util.tree_flatten_with_path(sizes)[0]
    assert counts == {
        jax.tree_util.keystr(path, simple=True, separator="/"): size
        for path, size in flat
    }


def test_bfloat16_parameters_are_half_as_large_and_saved_so(small, tmp_path):
    config, low, tokenizer = hf.load(small, dtype="bfloat16")
    exact = hf.load_params(small)
    for got, whole in zip(jax.tree.leaves(low), jax.tree.leaves(exact)):
        assert got.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(got, whole.astype(ml_dtypes.bfloat16))
    hf.save(tmp_path, config, low, tokenizer)
    again = hf.load_params(tmp_path, dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, again, low)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_headers_are_checked_before_any_data_is_read(small, tmp_path):
    for file in small.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    part = load_file(tmp_path / "model-1.safetensors")
    part["model.layers.1.mlp.up_proj.weight"] = np.zeros((64, 16), np.int8)
    part["model.layers.0.mlp.up_proj.weight"] = np.zeros((64, 16), np.float32)
    part["model.layers.1.input_layernorm.weight"] = np.zeros(8, np.float32)
    del part["model.layers.1.mlp.down_proj.weight"]
    save_file(part, tmp_path / "model-1.safetensors")

    def place(*arguments):
        raise AssertionError("data was asked for")

    with pytest.raises(ValueError, match="do not fit its config") as caught:
        hf.load_params(tmp_path, place)
    for part in (
        "model.layers.0.mlp.up_proj.weight is in model-0.safetensors and in "
        "model-1.safetensors",
        "missing model.layers.1.mlp.down_proj.weight",
        "model.layers.1.mlp.up_proj.weight has dtype I8, expected one of F64, F32",
        "model.layers.1.input_layernorm.weight has shape [8], expected [16]",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_missing_and_cut_shards_are_named_at_once(small, tmp_path):
    for file in small.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model-0.safetensors").unlink()
    cut = tmp_path / "model-3.safetensors"
    cut.write_bytes(cut.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model-0\.saf.*model-3\.saf") as caught:
        hf.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_values_that_are_not_finite_are_all_named(tmp_path):
    params = random_params(CONFIG)
    params["layers"]["mlp"]["up"]["kernel"][2, 0, 0] = np.nan
    params["final_norm"]["scale"][1] = np.inf
    hf.save(tmp_path, CONFIG, params, TOKENIZER)
    with pytest.raises(
        ValueError, match=r"layers\.2\.mlp\.up_proj.* model\.norm\.weight has values"
    ) as caught:
        hf.load_params(tmp_path, stream.as_numpy)
    assert "layers.1." not in str(caught.value)

"""Weights written tensor by tensor, against the library's own writer."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mempo_jax.models import hf, lora
from mempo_jax.models.safetensors_io import Planned, open_files
from tests.models.hf_test import CONFIGS, LLAMA, TOKENIZER, random_params
from tests.models.lora_test import ALL, CONFIG, trained

WEIGHTS = "model.safetensors"


def tensors_of(dtype):
    draw = np.random.default_rng(0).normal
    sizes = {"b.10": (3, 4), "b.2": (5,), "a": (2, 3, 2), "ü": (1,)}
    return {name: draw(size=size).astype(dtype) for name, size in sizes.items()}


def write(directory, tensors, **kwargs):
    planned = [Planned(name, value.shape) for name, value in tensors.items()]
    dtype = next(iter(tensors.values())).dtype
    with open_files(directory, planned, dtype, **kwargs) as files:
        for each in tuple(files.order):
            files.write(tensors[each.name])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_file_is_the_librarys_to_the_byte(dtype, tmp_path):
    tensors = tensors_of(dtype)
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    write(tmp_path, tensors)
    assert (tmp_path / WEIGHTS).read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_weights_above_a_size_are_spread_over_files_with_an_index(config, tmp_path):
    params = random_params(config)
    hf.save(tmp_path / "one", config, params, TOKENIZER)
    hf.save(tmp_path / "many", config, params, TOKENIZER, shard_bytes=1_000)
    whole = load_file(tmp_path / "one" / WEIGHTS)
    index = json.loads((tmp_path / "many" / f"{WEIGHTS}.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    count = len(files)
    assert count > 2
    assert files[0] == f"model-00001-of-{count:05d}.safetensors"
    assert {path.name for path in (tmp_path / "many").glob("*.safetensors*")} == {
        *files,
        f"{WEIGHTS}.index.json",
    }
    held = {file: load_file(tmp_path / "many" / file) for file in files}
    assert index["weight_map"].keys() == whole.keys()
    for name, file in index["weight_map"].items():
        np.testing.assert_array_equal(held[file][name], whole[name])
    sizes = [sum(x.nbytes for x in tensors.values()) for tensors in held.values()]
    assert sum(sizes) == index["metadata"]["total_size"]
    assert all(n <= 1_000 or len(t) == 1 for n, t in zip(sizes, held.values()))
    jax.tree.map(np.testing.assert_array_equal, hf.load(tmp_path / "many")[1], params)


def test_one_tensor_at_a_time_is_fetched(tmp_path):
    fetched = []

    def fetch(value, layer):
        fetched.append(value.shape if layer is None else value[layer].shape)
        return hf.fetch_whole(value, layer)

    params = random_params(LLAMA)
    hf.save(tmp_path, LLAMA, params, TOKENIZER, fetch=fetch)
    stored = load_file(tmp_path / WEIGHTS)
    assert len(fetched) == len(stored)
    assert max(map(len, fetched)) == 2, "no stack of layers"


def test_a_process_that_does_not_write_fetches_alike(tmp_path):
    orders = []
    for write in (True, False):
        order = []

        def fetch(value, layer, order=order):
            order.append((value.shape, layer))
            return hf.fetch_whole(value, layer)

        folder = tmp_path / str(write)
        params = random_params(LLAMA)
        hf.save(folder, LLAMA, params, TOKENIZER, fetch=fetch, write=write)
        orders.append(order)
    assert orders[0] == orders[1]
    assert not (tmp_path / "False").exists()


def test_adapters_are_merged_as_on_the_host(tmp_path):
    params = trained(ALL)
    hf.save(tmp_path / "one", CONFIG, params, TOKENIZER, adapters=ALL)
    hf.save(tmp_path / "two", CONFIG, lora.merge(params, ALL), TOKENIZER)
    one, two = (load_file(tmp_path / name / WEIGHTS) for name in ("one", "two"))
    for name, value in two.items():
        np.testing.assert_allclose(one[name], value, atol=1e-7)
        assert one[name].dtype == np.float32


class Fault(Exception):
    pass


class Watched(dict):
    """Tensors that note which of them were taken; the last one may not be."""

    def __init__(self, tensors, most=None):
        super().__init__(tensors)
        self.taken, self.most = [], most

    def __getitem__(self, name):
        if len(self.taken) == self.most:
            raise Fault
        self.taken.append(name)
        return super().__getitem__(name)


def test_what_the_disk_refuses_is_raised_when_all_was_asked_for(tmp_path):
    tensors = Watched(tensors_of(np.float32))
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing", tensors)
    assert len(tensors.taken) == len(tensors)


def test_a_save_that_is_cut_off_puts_nothing_in_place(tmp_path):
    tensors = Watched(tensors_of(np.float32), most=3)
    with pytest.raises(Fault):
        write(tmp_path, tensors)
    assert not (tmp_path / WEIGHTS).exists()

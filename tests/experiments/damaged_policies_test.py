"""A policy that cannot be read ends a launcher in one line, before any compilation."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments import train
from experiments.launch import launch
from mempo_jax.models import hf
from mempo_jax.models.nano import build_nano
from mempo_jax.training import run  # noqa: F401  what imports compile is not counted
from mempo_jax.training.step_metrics import CompilationCounter
from tests.experiments.process import TINY
from tests.models import gguf_case
from tests.models.gguf_test import LLAMA, random_params

TOKENIZER = build_nano(["a b c"], [])
CONFIG = dataclasses.replace(LLAMA, max_positions=80)


@pytest.fixture
def directory(tmp_path):
    hf.save(tmp_path / "policy", CONFIG, random_params(CONFIG), TOKENIZER)
    return tmp_path / "policy"


def cut(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return directory


def without_a_shard(directory):
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    save_file(tensors, directory / "one.safetensors")
    index = dict.fromkeys(tensors, "one.safetensors")
    index["model.norm.weight"] = "two.safetensors"
    text = json.dumps({"weight_map": index})
    (directory / "model.safetensors.index.json").write_text(text)
    return directory


def of_another_tokenizer(directory):
    words = [f"word{number}" for number in range(CONFIG.vocab_size)]
    build_nano(["a b c"], words).save(directory)
    return directory


def gguf_of_another_architecture(directory):
    return gguf_case.write(directory.parent / "model.gguf", directory, arch="phi3")


def cut_gguf(directory):
    path = gguf_case.write(directory.parent / "model.gguf", directory)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def in_no_package(directory):
    return "package:no_such_package/model.gguf"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "model.safetensors is not a readable safetensors file"),
        (without_a_shard, "two.safetensors is not a readable safetensors file"),
        (of_another_tokenizer, "they do not belong together"),
        (gguf_of_another_architecture, "one of llama, qwen2, qwen3, got 'phi3'"),
        (cut_gguf, "model.gguf is not a readable GGUF file"),
        (in_no_package, "`make smollm2`"),
    ],
)
def test_it_is_one_line_that_names_the_file(
    damage, message, directory, tmp_path, capsys
):
    path = damage(directory)
    options = [TINY, f"--config.policy.path={path}", f"--workdir={tmp_path / 'run'}"]
    with CompilationCounter() as compilations, pytest.raises(SystemExit) as caught:
        launch(train.main, train.OPTIONS, argv=options)
    assert compilations.count == 0
    assert caught.value.code == 2
    error = capsys.readouterr().err
    [line] = [line for line in error.splitlines() if not line.startswith("warning")]
    assert line.startswith("error: policy")
    assert message in line
    assert str(path) in line
    assert not list((tmp_path / "run").glob("*"))


def test_a_package_that_lacks_the_file(tmp_path, monkeypatch):
    (tmp_path / "holds_models").mkdir()
    (tmp_path / "holds_models" / "__init__.py").write_text("raise ImportError")
    (tmp_path / "holds_models" / "a.gguf").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    found = hf.resolve("package:holds_models/a.gguf")
    assert found == pathlib.Path(tmp_path, "holds_models", "a.gguf")
    with pytest.raises(ValueError, match=r"'holds_models' has no 'b\.gguf'"):
        hf.resolve("package:holds_models/b.gguf")
    assert np.all([hf.resolve(name) == pathlib.Path(name) for name in ("a/b", ".")])

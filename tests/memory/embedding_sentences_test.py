"""The optional sentence embedder, with a stand-in for its library; live: parity."""

import importlib.machinery
import sys
import types

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig, make_embedder

TEXTS = ["ann phone 17", "", "\ud800", "的"]


class Weights:
    """As much of a tensor as is asked for."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)

    def detach(self):
        return self

    cpu = float = detach

    def numpy(self):
        return self.values


class Pooling:
    def __init__(self, mode):
        self.pooling_mode = mode


class Model:
    """A sentence model of three numbers: letters, words, and a weight."""

    max_seq_length = 8
    pooling = "mean"
    scale = 1.0

    def __init__(self, path, device):
        assert device == "cpu"
        if "broken" in path:
            raise OSError("no config.json")
        self.batches = []

    def __iter__(self):
        return iter([Pooling(self.pooling)])

    def state_dict(self):
        return {"scale": Weights([self.scale]), "bias": Weights([[1.0, 2.0]])}

    def encode(self, texts, *, show_progress_bar, batch_size=32, convert_to_numpy=True):
        assert not show_progress_bar
        assert all(text.encode() is not None for text in texts), "surrogates are gone"
        self.batches.append((len(texts), batch_size))
        return self.rows(texts)

    def rows(self, texts):
        rows = [[len(text), len(text.split()), 0.0] for text in texts]
        return np.asarray(rows, np.float64) * self.scale


@pytest.fixture
def library(monkeypatch):
    """A module ``sentence_transformers`` whose model class a test may change."""
    module = types.ModuleType("sentence_transformers")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    module.SentenceTransformer = Model
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def make(folder, cache_size=0):
    return make_embedder(
        "sentence_transformers", model=str(folder), cache_size=cache_size
    )


def test_rows_are_unit_float32_for_any_text(library, tmp_path):
    rows = make(tmp_path).embed(TEXTS)
    assert (rows.shape, rows.dtype) == ((4, 3), np.float32)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    assert rows[1].tolist() == [1, 0, 0]  # nothing in it: some direction
    assert make(tmp_path).embed([]).shape == (0, 3)


def test_all_texts_go_to_the_model_at_once_and_only_once(library, tmp_path):
    embedder = make(tmp_path, cache_size=10)
    embedder.embed(["a", "b c", "a"])
    embedder.embed(["b c"])
    assert embedder._embedder._model.batches[1:] == [(2, 64)]


def variant(**changes):
    return type("Model", (Model,), changes)


def test_a_name_tells_models_apart_and_not_where_they_lie(library, tmp_path):
    names = []
    for place in ("one/mini", "two/mini", "one/maxi"):
        (tmp_path / place).mkdir(parents=True)
        names.append(make(tmp_path / place).name)
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("sentence_transformers:mini:")
    for other in (
        *(variant(scale=1.5), variant(pooling="cls"), variant(max_seq_length=9)),
    ):
        library.SentenceTransformer = other
        names.append(make(tmp_path / "one/mini").name)
    assert len(set(names)) == len(names) - 1


def test_banks_of_two_models_are_never_mixed(library, tmp_path):
    folder = tmp_path / "mini"
    folder.mkdir()
    one = make(folder)
    Bank.from_texts(["a cat", "two dogs"], BankConfig(), one).save(tmp_path / "bank")
    assert len(Bank.load(tmp_path / "bank", make(folder))) == 2
    library.SentenceTransformer = variant(scale=2.0)
    with pytest.raises(ValueError, match="cannot be mixed"):
        Bank.load(tmp_path / "bank", make(folder))
    with pytest.raises(ValueError, match="cannot be mixed"):
        Bank.load(tmp_path / "bank", make_embedder("hashing", dim=3))


def test_without_the_package_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'mempo_jax\[sentence-"):
        make(tmp_path)


def test_without_a_model_it_says_what_to_set(library):
    for settings in ({}, {"model": ""}):
        with pytest.raises(ValueError, match=r"set memory\.embedder_model"):
            make_embedder("sentence_transformers", **settings)
    with pytest.raises(ValueError, match=r"takes no setting \['dim'\]"):
        make_embedder("sentence_transformers", model="a", dim=3)


@pytest.mark.parametrize("name", ["/nowhere/mini", "./mini", "~/mini"])
def test_a_directory_that_is_none_is_not_looked_for_on_a_hub(library, name):
    with pytest.raises(ValueError, match="expected a model directory, got"):
        make(name)


def test_a_model_that_cannot_be_read_is_told(library, tmp_path):
    (tmp_path / "broken").mkdir()
    for model in (tmp_path / "broken", "org/broken"):
        with pytest.raises(ValueError, match=r"OSError: no config\.json"):
            make(model)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda self, texts: np.zeros(len(texts)), "one row of numbers a text"),
        (lambda self, texts: np.zeros((len(texts), 0)), "one row of numbers a text"),
        (lambda self, texts: np.full((len(texts), 3), np.nan), "finite rows"),
        (lambda self, texts: np.ones((1, 3)), r"shape \(2, 3\), got float64 \(1, 3\)"),
        (lambda self, texts: np.ones((len(texts), len(texts))), r"shape \(2, 1\)"),
    ],
)
def test_rows_that_do_not_fit_are_told(library, tmp_path, rows, message):
    library.SentenceTransformer = variant(rows=rows)
    with pytest.raises(ValueError, match=message):
        make(tmp_path).embed(["a", "b"])

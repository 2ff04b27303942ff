"""Embedders: unit rows whatever the text, deterministic, cached in bounds."""

import subprocess
import sys

import numpy as np
import pytest

from mempo_jax.memory import embedding, make_embedder
from mempo_jax.memory.embedding import importlib, load

ODD = ["", " ", "\n", "\x00", "\ud800", "😀", "!!!", "é" * 5000, "的", "a"]


@pytest.fixture(params=["hashing", "static"])
def embedder(request):
    return make_embedder(request.param)


def test_rows_are_unit_and_finite_for_any_text(embedder):
    rows = embedder.embed(ODD)
    assert (rows.shape, rows.dtype) == ((len(ODD), embedder.dim), np.float32)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(len(ODD)), abs=1e-5)
    assert embedder.embed([]).shape == (0, embedder.dim)


def test_a_text_embeds_alike_alone_and_in_any_batch(embedder):
    texts = ["ann phone 17", "a much longer text about rivers and towns", "b"]
    batch = make_embedder(embedder.name, cache_size=0).embed(texts)
    for text, row in zip(texts, batch):
        assert embedder.embed([text])[0].tobytes() == row.tobytes()


def test_hashing_is_the_same_in_another_process():
    code = (
        "from mempo_jax.memory import make_embedder;"
        "print(make_embedder('hashing').embed(['ann phone'])[0].tobytes().hex())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == (
        make_embedder("hashing").embed(["ann phone"])[0].tobytes().hex()
    )


def similarity(embedder, left, right):
    a, b = embedder.embed([left, right])
    return float(a @ b)


def test_static_knows_meanings_that_share_no_letters():
    static = make_embedder("static")
    close = similarity(static, "the physician was ill", "a doctor felt sick")
    far = similarity(static, "the physician was ill", "granite is a hard rock")
    assert close > far + 0.2


def test_static_equals_its_source():
    import wordllama  # slow to import; only this test compares with it

    folder = wordllama.__path__[0]
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    texts = ["ann phone 17", "The quick brown fox; jumps.", "naïve 😀 word"]
    ours = make_embedder("static").embed(texts)
    assert ours == pytest.approx(model.embed(texts, norm=True), abs=1e-5)


def test_static_without_its_wheel_says_what_to_do(monkeypatch):
    load.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="pip install wordllama"):
        make_embedder("static")
    load.cache_clear()


class Counting:
    name, dim = "counting", 2

    def __init__(self):
        self.asked = []

    def embed(self, texts):
        self.asked.extend(texts)
        return np.tile(np.asarray([[1, 0]], np.float32), (len(texts), 1))


def test_the_cache_asks_once_and_forgets_the_oldest():
    source = Counting()
    cached = embedding.CachedEmbedder(source, capacity=2)
    cached.embed(["a", "b"])
    cached.embed(["a"])
    assert source.asked == ["a", "b"]
    cached.embed(["c"])  # b was used longest ago
    cached.embed(["a"])
    assert source.asked == ["a", "b", "c"]
    cached.embed(["b"])
    assert source.asked == ["a", "b", "c", "b"]
    cached.embed(["d", "d"])
    assert source.asked[4:] == ["d"]
    assert len(cached._rows) == 2


def test_what_the_cache_hands_out_cannot_spoil_it():
    cached = make_embedder("hashing")
    row = cached.embed(["a"])[0]
    before = row.copy()
    if row.flags.writeable:
        row[:] = 7
    assert cached.embed(["a"])[0].tobytes() == before.tobytes()


@pytest.mark.parametrize(
    "fault",
    [
        lambda rows: rows[:0],
        lambda rows: rows[:, :1],
        lambda rows: rows * np.float32(np.nan),
        lambda rows: rows.astype(np.float64),
        lambda rows: None,
    ],
)
def test_what_does_not_fit_is_told_and_never_cached(fault):
    source = Counting()
    cached = embedding.CachedEmbedder(source, capacity=3)
    whole, source.embed = source.embed, lambda texts: fault(whole(texts))
    for texts in (["a"], ["a", "b"], ["c", "d", "a"]):
        with pytest.raises(ValueError, match="'counting': expected finite float32"):
            cached.embed(texts)
    assert not cached._rows
    source.embed = whole
    assert cached.embed(["a"]).tolist() == [[1, 0]]


def test_wrong_names_and_settings():
    with pytest.raises(ValueError, match=r"memory\.embedder"):
        make_embedder("statik")
    with pytest.raises(ValueError, match="width"):
        make_embedder("hashing", width=3)
    with pytest.raises(ValueError, match="dim"):
        make_embedder("hashing", dim=0)

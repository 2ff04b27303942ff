"""Maximal marginal relevance against its definition."""

import numpy as np
import pytest

from mempo_jax.memory.index import mmr


def unit(rows):
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_definition(similarity, vectors, k, share):
    chosen = []
    while len(chosen) < min(k, len(similarity)):

        def worth(row):
            near = max((float(vectors[row] @ vectors[c]) for c in chosen), default=None)
            penalty = 0.0 if near is None else (1 - share) * near
            return share * float(similarity[row]) - penalty

        rest = [row for row in range(len(similarity)) if row not in chosen]
        chosen.append(max(rest, key=worth))
    return chosen


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_equals_the_definition(share):
    rng = np.random.default_rng(0)
    for _ in range(20):
        vectors, query = (
            unit(rng.normal(size=(12, 5))),
            unit(rng.normal(size=(1, 5)))[0],
        )
        similarity = vectors @ query
        got = mmr(similarity, vectors, k=5, mmr_lambda=share)
        assert got == by_definition(similarity, vectors, 5, share)


def test_a_copy_waits_behind_something_else():
    vectors = unit([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    similarity = vectors @ np.asarray([0.72, 0.69, 0], np.float32)
    assert mmr(similarity, vectors, k=2, mmr_lambda=0.7) == [0, 2]
    assert mmr(similarity, vectors, k=2, mmr_lambda=1.0) == [0, 1]


def test_nothing_to_rank():
    empty = np.empty((0, 3), np.float32)
    assert mmr(np.empty(0, np.float32), empty, k=3, mmr_lambda=0.7) == []
    assert mmr(np.ones(1, np.float32), empty, k=0, mmr_lambda=0.7) == []

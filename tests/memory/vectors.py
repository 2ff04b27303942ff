"""Vectors for the tests of the index, and the search by hand."""

import importlib.util

import numpy as np
import pytest

DIM = 32
HAS_SCANN = importlib.util.find_spec("scann") is not None
needs_scann = pytest.mark.skipif(not HAS_SCANN, reason="no scann on this platform")


def clustered(count, seed):
    """Unit rows around shared centres, as texts lie: near neighbours exist."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(60, DIM))
    rows = centres[rng.integers(60, size=count)] + 0.7 * rng.normal(size=(count, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def by_hand(rows, query, n, without=()):
    order = sorted(set(range(len(rows))) - set(without), key=lambda i: -rows[i] @ query)
    return order[:n]

"""Maximal marginal relevance: similar to the query, unlike what is already chosen."""

from __future__ import annotations

import numpy as np


def mmr(
    similarity: np.ndarray, vectors: np.ndarray, *, k: int, mmr_lambda: float
) -> list[int]:
    """Chooses rows one by one, best first.

    Each step takes the row of greatest ``l * sim(query, row) - (1 - l) * max over the
    chosen of sim(row, chosen)``. Carbonell and Goldstein, SIGIR 1998.

    Args:
      similarity: float32 [n], to the query.
      vectors: float32 [n, dim], unit norm.
      k: rows wanted.
      mmr_lambda: ``l`` in [0, 1].

    Returns:
      At most ``k`` row numbers; ties go to the lower row.
    """
    count = len(similarity)
    if count == 0 or k < 1:
        return []
    relevance = mmr_lambda * similarity
    between = (1.0 - mmr_lambda) * (vectors @ vectors.T)
    chosen = [int(relevance.argmax())]
    redundancy = between[chosen[0]].copy()
    open_rows = np.zeros(count, np.float32)  # -inf takes a chosen row out
    open_rows[chosen[0]] = -np.inf
    while len(chosen) < min(k, count):
        best = int((relevance - redundancy + open_rows).argmax())
        chosen.append(best)
        open_rows[best] = -np.inf
        # A running maximum, so that a step costs n and not n times the chosen.
        np.maximum(redundancy, between[best], out=redundancy)
    return chosen

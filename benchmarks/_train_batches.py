"""What both sides of the training benchmark get, and the loop that each answers in.

Imported by environments that share nothing but Python and numpy.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

LEARNING_RATE, BETAS, EPS, DECAY, CLIP = 1e-4, (0.9, 0.99), 1e-8, 0.01, 1.0


def batch(number: int, rows: int, length: int, vocabulary: int) -> dict:
    """tokens int32 [rows, length] of ragged rows, right-padded, with their masks.

    token_mask bool: real tokens. action_mask bool: those that are trained on, about
    half. The longest row fills the length.
    """
    rng = np.random.default_rng(number)
    lengths = rng.integers(length // 2, length + 1, rows)
    lengths[0] = length
    token_mask = np.arange(length) < lengths[:, None]
    chosen = rng.random((rows, length)) < 0.5
    return {
        "tokens": rng.integers(3, vocabulary, (rows, length)).astype(np.int32),
        "token_mask": token_mask,
        "action_mask": token_mask & chosen & (np.arange(length) > 0),
    }


def pin(threads: int) -> None:
    """Keeps this process to so many cores: XLA takes a thread for each it may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def serve(
    step: Callable[[dict], float], shape: tuple[int, int, int], packages: list[str]
) -> None:
    """Answers each line "FIRST COUNT" with the seconds, the seconds of processor time
    (all threads) and the losses of these steps.

    step: takes a batch, changes the weights, and gives the loss when all is done.
    The first line out says with which versions.
    """
    say(versions={name: importlib.metadata.version(name) for name in packages})
    for line in sys.stdin:
        first, count = map(int, line.split())
        seconds, busy, losses = [], [], []
        for number in range(first, first + count):
            given = batch(number, *shape)
            start, worked = time.perf_counter(), time.process_time()
            losses.append(step(given))
            seconds.append(time.perf_counter() - start)
            busy.append(time.process_time() - worked)
        say(seconds=seconds, busy=busy, losses=losses)


def say(**what) -> None:
    print(json.dumps(what), flush=True)

"""The work of every contender, and the loop of the process that it runs in.

Imported by environments that share nothing but Python and numpy.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

PAD, STOP, FIRST = 0, 1, 3  # ids: never sampled, never sampled, first ordinary one


@dataclasses.dataclass(frozen=True)
class Work:
    """Episodes of several turns: a prompt, then before each later turn an observation.

    ``group`` episodes each have the same prompt, as samples of one task do, but each
    its own observations. All prompts begin with the same ``system`` ids. The lengths of
    the rest are drawn once, evenly from the two ranges (low, high); ids anew for each
    round. Every turn samples ``new_tokens``.
    """

    episodes: int = 32
    group: int = 8
    turns: int = 3
    new_tokens: int = 32
    system: int = 32
    prompt: tuple[int, int] = (32, 160)
    observation: tuple[int, int] = (8, 64)
    vocabulary: int = 4096

    def texts(self, number: int) -> list[list[list[int]]]:
        """Ids that are put in before each turn, [turns][episodes], of one round."""
        lengths = np.random.default_rng(0)
        ids = np.random.default_rng(number + 1)

        def draw(count: int) -> list[int]:
            return ids.integers(FIRST, self.vocabulary, count).tolist()

        system = draw(self.system)
        made = []
        for turn in range(self.turns):
            low, high = self.observation if turn else self.prompt
            same = 1 if turn else self.group
            sizes = lengths.integers(low, high + 1, -(-self.episodes // same))
            rows = [draw(size) if turn else system + draw(size) for size in sizes]
            made.append([rows[i // same] for i in range(self.episodes)])
        return made

    def longest(self, turn: int) -> int:
        """Tokens of the longest context of a turn, its new ones left out."""
        sizes = [[len(ids) for ids in row] for row in self.texts(0)[: turn + 1]]
        return int(np.sum(sizes, axis=0).max()) + turn * self.new_tokens

    @property
    def tokens(self) -> int:
        """Sampled in one round."""
        return self.episodes * self.turns * self.new_tokens


class Shape:
    """Of the random Llama that all run: 6.5 million parameters."""

    width, layers, heads, kv_heads, head_dim, mlp_width = 256, 6, 8, 4, 32, 704
    norm_eps, max_positions = 1e-5, 1024
    rope_theta = 1e6  # the only one that the Llama of google-tunix has


Play = Callable[[list[list[list[int]]]], list[list[list[int]]]]


def serve(
    make: Callable[[str, Work], Play], packages: tuple[str, ...], counts=dict
) -> None:
    """Answers one JSON object a line: rounds to play, until the input ends.

    make: from the model's directory and the work to a callable that plays one round:
    from the texts to what was sampled, [turns][episodes] lists of ids. counts: figures
    of its own, added to each answer.
    """
    work = Work(**json.loads(sys.argv[2]))
    began = time.perf_counter()
    play = make(sys.argv[1], work)
    play(work.texts(-1))  # compiles, fills pools
    _say({"versions": versions(packages), "warm_up_s": time.perf_counter() - began})
    for line in sys.stdin:
        texts = work.texts(json.loads(line)["round"])
        before = dict(counts())
        cpu, wall = time.process_time(), time.perf_counter()
        made = play(texts)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        after = {name: count - before[name] for name, count in counts().items()}
        _say({"seconds": wall, "cpu": cpu, "made": made, "counts": after})


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"python": sys.version.split()[0], **found}


def threads() -> int:
    """How many the contenders may use."""
    return len(os.sched_getaffinity(0))


def _say(answer: dict) -> None:
    print("answer " + json.dumps(answer), flush=True)

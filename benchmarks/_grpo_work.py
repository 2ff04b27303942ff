"""The work that all systems of the GRPO benchmark do, and how they report it.

Imported by environments that share nothing but Python and numpy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

PAD, STOP, UNKNOWN, FIRST = 0, 1, 2, 3  # ids; from FIRST on they are ordinary words
PROBE_LENGTH = 32  # ids whose log-probs show that all systems hold the same weights


@dataclasses.dataclass(frozen=True)
class Work:
    """One GRPO step: sample groups, score them by the reference, update once.

    Attributes:
      tasks: prompts of a step.
      group: samples of each prompt.
      prompt: tokens of a prompt.
      answer: tokens of an answer; none ends earlier.
      threads: processor cores that each system may use.
      layers: of the policy.
      vocabulary: words that it knows.
    """

    tasks: int = 4
    group: int = 8
    prompt: int = 64
    answer: int = 64
    threads: int = 2
    layers: int = 3
    vocabulary: int = 4096

    @property
    def rows(self) -> int:
        """Samples of a step."""
        return self.tasks * self.group

    def prompts(self, step: int) -> list[str]:
        """Texts of the prompts of one step, all of ``prompt`` words."""
        ids = np.random.default_rng(step).integers(
            FIRST, self.vocabulary, (self.tasks, self.prompt)
        )
        return [spell(row) for row in ids]


class Shape:
    """Of the random Qwen2 that all train, beside its layers and words."""

    width, heads, kv_heads, head_dim, mlp_width = 256, 4, 2, 64, 704
    max_positions, rope_theta, norm_eps = 256, 1e6, 1e-6


class Recipe:
    """The settings of GRPO and AdamW that all share."""

    kl_coef, clip, temperature = 0.04, 0.2, 1.0
    learning_rate, betas, eps, decay, grad_clip = 1e-6, (0.9, 0.999), 1e-8, 0.0, 1.0


def spell(ids: Any) -> str:
    """The text of some ids: one word each."""
    return " ".join(f"w{number}" for number in ids)


def even_share(text: str) -> float:
    """The reward: the share of the answer's words with an even number."""
    numbers = text.replace("w", " ").split()  # a decoder may put no spaces between
    even = sum(number.isdigit() and int(number) % 2 == 0 for number in numbers)
    return even / max(1, len(numbers))


def probe(work: Work) -> list[int]:
    """Ids of which each system reports the log-probs before it trains."""
    ids = np.random.default_rng(1).integers(FIRST, work.vocabulary, PROBE_LENGTH)
    return ids.tolist()


class Turns:
    """The steps that the benchmark asks for, one line of standard input each.

    Attributes:
      passes: forward passes over all rows, by purpose, since the step began.
      prompts: tokens of the prompt of each row.
      seconds: spent in sampling since the step began.
    """

    def __init__(self, work: Work) -> None:
        """Keeps this process to its share of the cores.

        Args:
          work: gives their number.
        """
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: work.threads])
        self._began, self._busy = 0.0, 0.0
        self.passes: Counter[str] = Counter()
        self.seconds = 0.0
        self.prompts: list[int] = []

    def ready(self, packages: tuple[str, ...], log_probs: Any, parameters: int) -> None:
        """Says with which versions, and what the policy thinks of ``probe``.

        Args:
          packages: whose versions are reported.
          log_probs: of all ids of ``probe`` but the first.
          parameters: of the policy.
        """
        found = {name: importlib.metadata.version(name) for name in packages}
        say(
            versions={"python": sys.version.split()[0], **found},
            log_probs=[float(value) for value in log_probs],
            parameters=parameters,
        )

    def begin(self) -> bool:
        """Waits to be asked for a step and starts its clock; False if none follows."""
        if not sys.stdin.readline():
            return False
        self.passes.clear()
        self.prompts = []
        self.seconds = 0.0
        self._began, self._busy = time.perf_counter(), busy_seconds()
        return True

    def end(self, answers: list[int], updates: int) -> None:
        """Stops the clock of the step and reports what was done in it.

        Args:
          answers: number of tokens of each sampled answer.
          updates: optimiser updates so far.
        """
        seconds, busy = time.perf_counter() - self._began, busy_seconds() - self._busy
        say(
            seconds=seconds,
            sampling=self.seconds,
            busy=busy,
            prompts=self.prompts,
            answers=answers,
            updates=updates,
            passes=dict(self.passes),
        )

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Counts the seconds of its block as sampling."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def counting(self, call: Callable, purpose: Callable[..., str]) -> Callable:
        """The same function, counting each call as a pass.

        Args:
          call: makes one forward pass over all rows.
          purpose: names it, from the arguments of the call.
        """

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.passes[purpose(*args, **kwargs)] += 1
            return call(*args, **kwargs)

        return counted


def busy_seconds() -> float:
    """Processor seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def say(**what: Any) -> None:
    """Prints one answer; other lines on standard output are of no concern."""
    print("answer " + json.dumps(what), flush=True)


def arguments() -> tuple[str, Work]:
    """The directory of the policy and the work, from the command line."""
    return sys.argv[1], Work(**json.loads(sys.argv[2]))

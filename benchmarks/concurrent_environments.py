"""What do environments that take their time cost a step?

    python -m benchmarks.concurrent_environments [--rounds=5]

1. Real times: 16 episodes of one turn whose environments answer after 0.1 s, and whole
   training steps of 64 trajectories of 6 turns at 0.05 s an answer, called one after
   another (``env.workers`` = 1) and at the same time, beside environments that answer
   at once. Rounds are interleaved, the first is left out. The trajectories must be the
   same in all of them.
2. A simulation with a clock of its own: 64 slots, 30 turns, 1 s an answer, decode steps
   of 10 ms. How long does a step take, and for what share of it does the device decode?
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import heapq
import time

import jax
import numpy as np

from benchmarks import _machine
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig, from_config
from mempo_jax.configs import base
from mempo_jax.distributed.placement import make_mesh
from mempo_jax.envs import StepResult
from mempo_jax.training.loop import Trainer

WORDS = ("red", "blue", "green", "black", "white", "brown")
SLOTS, TURNS, ANSWER_S = 64, 30, 1.0  # of the simulation
CHUNK, DECODE_S = 16, 0.01  # tokens of a chunk, seconds of a decode step


class Waiting:
    """An environment of so many turns whose every answer takes ``seconds``."""

    goal = "remember the colours"
    seconds, turns = 0.0, 6

    def reset(self, seed: int) -> str:
        self._seed, self._turn = seed, 0
        return self._text()

    def step(self, action: str, *, final: bool = False) -> StepResult:
        time.sleep(self.seconds)
        self._turn += 1
        done = final or self._turn >= self.turns
        return StepResult("" if done else self._text(), 0.0, done)

    def score(self) -> float:
        return float(self._seed % 2)

    def useful(self) -> frozenset[int]:
        return frozenset()

    def _text(self) -> str:
        word = WORDS[(self._seed + self._turn) % len(WORDS)]
        return f"box {self._turn} is {word}"


def settings_of(trajectories: int, workers: int) -> RunConfig:
    config = base.get_config()
    config.env.name = f"{__name__}:Waiting"
    config.env.workers = workers
    config.sampling.group_size = 8
    config.sampling.tasks_per_step = trajectories // 8
    config.sampling.slots = trajectories
    config.sampling.drop_degenerate = False
    config.sampling.max_resample_rounds = 0
    config.sampling.max_turns = 8
    config.mesh.data = 1
    return from_config(config.to_dict())


def digest(trajectories) -> str:
    sha = hashlib.sha256()
    for each in trajectories:
        sha.update(repr((each.task.id, each.sample, each.actions)).encode())
    return sha.hexdigest()


class Case:
    """A trainer, and how long its environments take."""

    def __init__(self, trajectories: int, turns: int, workers: int, seconds: float):
        self._turns, self._seconds = turns, seconds
        Waiting.seconds, Waiting.turns = 0.0, turns
        settings = settings_of(trajectories, workers)
        suite, mesh = make_suite(settings), make_mesh(1, 1, 1)
        self.trainer = Trainer(make_nano(suite, settings), suite, settings, mesh)
        self.trainer.warm_up()

    def sample(self, number: int) -> tuple[float, str]:
        """Seconds of the rollouts of step ``number``, and their digest."""
        Waiting.seconds, Waiting.turns = self._seconds, self._turns
        began = time.perf_counter()
        groups = self.trainer.groups.sample(number)
        return time.perf_counter() - began, digest(groups.sampled)

    def step(self, number: int) -> tuple[float, str]:
        """Seconds of a whole step, and the digest of its trajectories."""
        Waiting.seconds, Waiting.turns = self._seconds, self._turns
        began = time.perf_counter()
        _, sampled = self.trainer.step(number)
        return time.perf_counter() - began, digest(sampled)


def measure(title: str, cases: dict[str, Case], how: str, rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    same = True
    for number in range(rounds + 1):
        digests = set()
        for name, case in cases.items():
            if how == "sample":  # the same weights in all of them, and in each round
                case.trainer.engine.set_params(case.trainer.local_params)
            took, said = getattr(case, how)(number)
            digests.add(said)
            if number:
                seconds[name].append(took)
        same &= len(digests) == 1
    print(f"\n{title}; trajectories {'equal' if same else 'DIFFER'}")
    fastest = np.median(seconds["at once, in order"])
    for name, took in seconds.items():
        middle = np.median(took)
        spread = f"{min(took):.2f} to {max(took):.2f}"
        print(f"  {name:28} {middle:6.2f} s ({spread}), x {middle / fastest:.2f}")


@dataclasses.dataclass
class Clock:
    """Simulated seconds, and those of them in which the device decodes."""

    now: float = 0.0
    decoding: float = 0.0


def simulate(at_once: bool, seed: int = 0) -> Clock:
    """A step in which each turn samples 32 to 96 tokens, and each answer takes 1 s."""
    rng, clock = np.random.default_rng(seed), Clock()
    left = {slot: int(rng.integers(32, 97)) for slot in range(SLOTS)}  # sampling
    turns, answers = dict.fromkeys(left, 0), []
    while left or answers:
        if not left:  # nobody to decode for: the next answer is waited for
            clock.now = max(clock.now, answers[0][0])
        while answers and answers[0][0] <= clock.now:
            slot = heapq.heappop(answers)[1]
            left[slot] = int(rng.integers(32, 97))
        if not left:
            continue
        clock.now += CHUNK * DECODE_S
        clock.decoding += CHUNK * DECODE_S
        left = {slot: tokens - CHUNK for slot, tokens in left.items()}
        ended = [slot for slot, tokens in left.items() if tokens <= 0]
        # As the engine does: it gives turns back once an eighth or half has ended.
        if not at_once and len(ended) < min(SLOTS // 8, -(-len(left) // 2)):
            continue
        for slot in ended:
            del left[slot]
            turns[slot] += 1
            if turns[slot] == TURNS:
                continue
            if not at_once:
                clock.now += ANSWER_S  # one after another, and nothing decodes
            heapq.heappush(answers, (clock.now + ANSWER_S * at_once, slot))
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    facts = _machine.facts()
    print(f"jax {jax.__version__}; {facts['cores']} cores, load {_machine.load()}")
    for title, how, trajectories, turns, seconds in (
        ("rollouts of 16 episodes, 1 turn, 0.1 s an answer", "sample", 16, 1, 0.1),
        ("a step of 64 trajectories, 6 turns, 0.05 s an answer", "step", 64, 6, 0.05),
    ):
        cases = {
            "at once, in order": Case(trajectories, turns, 1, 0.0),
            "at once, 64 workers": Case(trajectories, turns, 64, 0.0),
            f"{seconds} s, in order": Case(trajectories, turns, 1, seconds),
            f"{seconds} s, 64 workers": Case(trajectories, turns, 64, seconds),
        }
        measure(title, cases, how, rounds)
    print(f"\nsimulated: {SLOTS} slots, {TURNS} turns, {ANSWER_S:g} s an answer")
    serial, pooled = simulate(False), simulate(True)
    for name, clock in (("in order", serial), ("at the same time", pooled)):
        share = clock.decoding / clock.now
        print(f"  {name:28} {clock.now:7.0f} s, device decodes {share:.0%} of it")
    print(f"  {serial.now / pooled.now:.0f} x faster")


if __name__ == "__main__":
    main()

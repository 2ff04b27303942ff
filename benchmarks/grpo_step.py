"""How long does a whole step of GRPO take, beside TRL and google-tunix?

    python -m benchmarks.grpo_step --trl=VENV/bin/python --tunix=VENV/bin/python
        [--case=large_vocabulary] [--rounds=7] [--threads=2] [--memory=plain]
        [--json=FILE]

A step samples 4 prompts x 8 answers (64 + 64 tokens) from a random Qwen2 of 3.3 million
parameters, scores them by the reference (KL coefficient 0.04) and makes one update by
AdamW, all in float32. Each system loads the same directory, runs as its users run it,
in a process and an environment of its own, and makes one step when it is asked to. They
take turns; who goes first rotates. Before, each must give the same log-probs; after
each step it says what it sampled, scored and updated, and that must be the same work.
Packages: benchmarks/requirements-grpo-trl.txt and -tunix.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from benchmarks import _machine, _tables
from benchmarks._grpo_work import Work
from benchmarks.train_step import MEMORY

CASES = {  # layers and words of the policy, 3.3 and 3.2 million parameters
    "large_vocabulary": (3, 4096),
    "small_vocabulary": (4, 1024),
}
WARM_UP = 3  # steps of each system that are left out: it compiles and fills caches
AGREE = 1e-3  # nats between the log-probs of two systems before they train
HERE = pathlib.Path(__file__).parent
SYSTEMS = ("ours", "trl", "tunix")
# What a step must consist of. Log-probs of the policy before its update are those of
# the gradient pass in each system, so "policy" is asked by none.
PASSES = {"reference": 1, "gradient": 1}


class System:
    """A process that makes one step whenever it is asked to.

    Attributes:
      name: one of ``SYSTEMS``.
      started: what it said when it was ready.
    """

    def __init__(self, name: str, process: subprocess.Popen) -> None:
        self.name, self._process = name, process
        self.started = self._answer()

    def step(self) -> dict:
        """Makes one step; its seconds and what was done."""
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict:
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(
            f"{self.name}: expected an answer, but its process ended with "
            f"{self._process.wait()}; see its messages above"
        )


def main(arguments: list[str] | None = None) -> int:
    options = options_parser().parse_args(arguments)
    figures = run(options, _say)
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def run(options: argparse.Namespace, say: Callable[[str], None]) -> dict:
    """All rounds of all systems: plain data, with a table said at the end."""
    layers, vocabulary = CASES[options.case]
    work = Work(threads=options.threads, layers=layers, vocabulary=vocabulary)
    figures = {"machine": _machine.facts(), "load_before": _machine.load()}
    figures |= {"work": dataclasses.asdict(work), "memory": options.memory}
    pythons = {"ours": sys.executable, "trl": options.trl, "tunix": options.tunix}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        given = (folder, json.dumps(dataclasses.asdict(work)))
        subprocess.run(
            [sys.executable, "-c", _SAVE, *given], check=True, cwd=HERE.parent
        )
        systems = []
        for name in SYSTEMS:
            if not pythons[name]:
                say(f"{name}: left out, as --{name} names no Python")
                continue
            process = _process(name, pythons[name], given, options)
            systems.append(System(name, stack.enter_context(process)))
            say(f"{name}: {systems[-1].started['versions']}")
        check_same_policy(systems)
        figures["started"] = {system.name: system.started for system in systems}
        figures["rounds"] = _rounds(systems, options.rounds, work, say)
    figures["load_after"] = _machine.load()
    say(table(figures))
    return figures


_SAVE = (
    "from benchmarks import _grpo_ours, _grpo_work; "
    "_grpo_ours.save_model(*_grpo_work.arguments())"
)


@contextlib.contextmanager
def _process(
    name: str, python: str, given: tuple[str, str], options: argparse.Namespace
) -> Iterator[subprocess.Popen]:
    """One system, until the block ends."""
    threads = str(options.threads)
    environment = os.environ | {"OMP_NUM_THREADS": threads, "JAX_PLATFORMS": "cpu"}
    # Nothing can be downloaded here, and nothing has to be.
    environment |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    for variable in ("XLA_FLAGS", "GLIBC_TUNABLES"):
        environment.pop(variable, None)
    environment |= MEMORY[options.memory]
    file = str(HERE / f"_grpo_{name}.py")
    script = ["-m", "benchmarks._grpo_ours"] if name == "ours" else [file]
    process = subprocess.Popen(
        [python, *script, *given],
        cwd=HERE.parent,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def check_same_policy(systems: list[System]) -> None:
    """Raises if two systems do not hold the same weights, or compute otherwise."""
    first = systems[0]
    for other in systems[1:]:
        pairs = zip(first.started["log_probs"], other.started["log_probs"], strict=True)
        worst = max(abs(a - b) for a, b in pairs)
        if worst > AGREE or first.started["parameters"] != other.started["parameters"]:
            raise RuntimeError(
                f"log-probs of {first.name} and of {other.name} differ by {worst:.2e}, "
                f"expected at most {AGREE}, and parameters "
                f"{first.started['parameters']} and {other.started['parameters']}: "
                "they do not train the same model"
            )


def check_same_work(name: str, number: int, done: dict, work: Work) -> None:
    """Raises if a step did more or less than a step of GRPO.

    Args:
      name: of the system.
      number: of the step, from 1.
      done: its answer.
      work: what was to be done.
    """
    expected = {
        "prompts": [work.prompt] * work.rows,
        "answers": [work.answer] * work.rows,
        "passes": PASSES,
        "updates": number,
    }
    for what, value in expected.items():
        if done[what] != value:
            raise RuntimeError(f"{name}: expected {what} {value}, got {done[what]}")


def _rounds(
    systems: list[System], count: int, work: Work, say: Callable[[str], None]
) -> dict[str, list[dict]]:
    """Steps of each system in turn, those of the warm-up left out."""
    rounds: dict[str, list[dict]] = {system.name: [] for system in systems}
    for number in range(1, WARM_UP + count + 1):
        first = number % len(systems)  # who goes first rotates
        for system in systems[first:] + systems[:first]:
            done = system.step()
            check_same_work(system.name, number, done, work)
            if number > WARM_UP:
                rounds[system.name].append(done)
        if number > WARM_UP:
            last = {name: f"{done[-1]['seconds']:.2f}" for name, done in rounds.items()}
            say(f"  round {number - WARM_UP}, s: {last}")
    return rounds


def table(figures: dict) -> str:
    """The figures as text.

    Args:
      figures: from ``run``.
    """
    work, machine = Work(**figures["work"]), figures["machine"]
    parameters = figures["started"]["ours"]["parameters"]
    lines = [
        f"{parameters / 1e6:.1f} M parameters, {work.layers} layers, {work.vocabulary} "
        f"words, {work.tasks} x {work.group} answers of "
        f"{work.prompt} + {work.answer} tokens, float32, {work.threads} threads, "
        f"memory: {figures['memory']}",
        f"cpu: {machine['cpu']}, {machine['cores']} cores; load before "
        f"{figures['load_before']}, after {figures['load_after']}",
        f"every step: {work.rows * work.answer} sampled tokens, passes over all rows "
        f"{PASSES}, 1 update",
    ]
    head = ("system", "median s", "fastest s", "sampling s", "the rest s", "cpu s")
    body = [(*head, "ours / it", "range", "by cpu")]
    for name, rounds in figures["rounds"].items():
        ratios = shares(figures["rounds"]["ours"], rounds, "seconds")
        by_cpu = shares(figures["rounds"]["ours"], rounds, "busy")
        seconds = [done["seconds"] for done in rounds]
        rest = [done["seconds"] - done["sampling"] for done in rounds]
        body.append(
            (
                name,
                f"{statistics.median(seconds):.3f}",
                f"{min(seconds):.3f}",
                f"{statistics.median(done['sampling'] for done in rounds):.3f}",
                f"{statistics.median(rest):.3f}",
                f"{statistics.median(done['busy'] for done in rounds):.3f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} - {max(ratios):.2f}",
                f"{statistics.median(by_cpu):.2f}",
            )
        )
    return "\n".join([*lines, _tables.aligned(body)])


def shares(ours: list[dict], theirs: list[dict], what: str) -> list[float]:
    """Our time by theirs, round by round; below 1 we are faster.

    Args:
      ours, theirs: answers of the same rounds.
      what: "seconds" by the clock, or "busy" seconds of processors.
    """
    return [a[what] / b[what] for a, b in zip(ours, theirs, strict=True)]


def options_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--trl", default="", help="a Python with TRL; '': left out")
    add("--tunix", default="", help="a Python with google-tunix; '': left out")
    add("--case", choices=sorted(CASES), default="large_vocabulary")
    add("--rounds", type=int, default=7)
    add("--threads", type=int, default=2)
    add("--memory", choices=sorted(MEMORY), default="plain", help="pages, all sides")
    add("--json", default="", help="a file for all figures")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

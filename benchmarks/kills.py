"""Is anything lost or altered when a run is killed, and does SIGTERM end it in time?

    python -m benchmarks.kills --folder=DIR [--kills=40] [--terms=20] [--variants=all]

On a config whose whole run takes seconds (tests/experiments/tiny.py), with a cold
start, every run in a process of its own, compiled programs shared through DIR:

* variants: 12 steps straight against 5, SIGKILL, and the rest: parameters, optimiser,
  metrics except times, and every sampled text must be equal, bit for bit.
* kills: SIGKILL at random moments of one run over and over, some of them while a
  checkpoint is being written, until it has ended. Its end must be that of the straight
  run, and no step may be missing or be there twice.
* terms: SIGTERM at chosen moments of every stage; the process must exit with 0 within
  30 s, and at last end as the straight run does.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import os
import pathlib
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable

from experiments import train
from experiments.launch import launch

# What a run imports as it begins; none of it may touch a device.
IMPORTED = ("experiments.progress", "experiments.summary", "mempo_jax.training.run")
STEPS, EARLY = 12, 5
GRACE_S = 30.0
VARIANTS = {
    "plain": (),  # two updates a batch
    "micro-batches": ("train.micro_batch_tokens=320",),
    "one update": ("train.minibatches=1",),
    "dynamic sampling": ("sampling.max_resample_rounds=2",),
    "LoRA": ("policy.lora.rank=4", "policy.lora.alpha=8.0"),
}
STAGES = ("demonstrations", "cold start", "compiling", "evaluating", "training")


class Child:
    """A process that this one became two with: it need not import everything anew,
    which would take longer than a run."""

    def __init__(self, work: Callable[[], None], log: pathlib.Path) -> None:
        sys.stdout.flush()
        self.pid, self.code = os.fork(), None
        if self.pid:
            return
        code = 1
        try:
            with log.open("a") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            work()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, limit_s: float = math.inf) -> int | None:
        """The exit code, None where it runs for longer than ``limit_s``."""
        end = time.monotonic() + limit_s
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.code

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@dataclasses.dataclass
class Runs:
    """Starts runs of the main job whose files lie under ``folder``."""

    folder: pathlib.Path
    again_s: float = 20.0  # that a run takes which goes on half way

    def start(self, name: str, more: tuple[str, ...] = ()) -> Child:
        words = ["--config=tests/experiments/tiny.py", f"--workdir={self.at(name)}"]
        fields = (f"train.steps={STEPS}", "train.cold_start_checkpoint_every=5", *more)
        words += [f"--config.{field}" for field in fields]

        def work() -> None:
            required = ("config", "workdir")
            launch(train.main, train.OPTIONS, required=required, argv=words)

        return Child(work, self.log(name))

    def log(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.log"

    def digest(self, name: str) -> dict[str, str]:
        """See ``digest``; in a process of its own, or no other could be forked."""
        file = self.folder / f"{name}.json"

        def write() -> None:
            from benchmarks._kills_digest import digest

            file.write_text(json.dumps(digest(self.at(name), STEPS)))

        made = Child(write, self.log(name)).wait()
        if made != 0:
            raise SystemExit(f"{name}: its end cannot be read; see {self.log(name)}")
        return json.loads(file.read_text())

    def at(self, name: str) -> pathlib.Path:
        return self.folder / name

    def finish(self, name: str, more: tuple[str, ...] = ()) -> None:
        code = self.start(name, more).wait()
        if code != 0:
            raise SystemExit(f"{name} ended with {code}; see {self.log(name)}")

    def steps(self, name: str) -> list[int]:
        """Steps in the metrics, the last line left out where it is half written."""
        file = self.at(name) / "metrics.jsonl"
        if not file.is_file():
            return []
        lines = file.read_text().split("\n")[:-1]
        return [json.loads(line)["step"] for line in lines]


def wait_for(process: Child, ready: Callable[[], bool]) -> bool:
    """Whether it became ready before the process ended."""
    while process.poll() is None:
        if ready():
            return True
        time.sleep(0.002)
    return False


def variants(runs: Runs, names: list[str]) -> None:
    """Prints a row a variant: straight against killed."""
    print(f"\n{STEPS} steps straight = {EARLY} + SIGKILL + the rest")
    for name in names:
        more, key = VARIANTS[name], name.replace(" ", "_")
        runs.finish(f"{key}_straight", more)
        process = runs.start(f"{key}_killed", more)
        killed = wait_for(
            process, lambda k=key: len(runs.steps(f"{k}_killed")) >= EARLY
        )
        process.signal(signal.SIGKILL)
        process.wait()
        stood = len(runs.steps(f"{key}_killed"))
        began = time.monotonic()
        runs.finish(f"{key}_killed", more)
        runs.again_s = time.monotonic() - began
        same = compare(runs, f"{key}_killed", f"{key}_straight")
        print(f"  {name:18} killed behind step {stood} ({killed}): {same}", flush=True)


def compare(runs: Runs, name: str, straight: str) -> str:
    ours, theirs = runs.digest(name), runs.digest(straight)
    steps = runs.steps(name)
    wrong = [key for key in theirs if ours[key] != theirs[key]]
    if steps != list(range(STEPS)):
        wrong.append(f"steps {steps}")
    return f"DIFFERENT: {', '.join(wrong)}" if wrong else "equal, bit for bit"


def kills(runs: Runs, count: int, seed: int) -> None:
    """Kills runs at random moments; a run that ended is followed by a fresh one."""
    rng, killed, ended, saving = random.Random(seed), 0, 0, 0
    name, verdicts, began = "random_0", [], time.monotonic()
    while killed < count:
        process, stood = runs.start(name), len(runs.steps(name))
        at = time.monotonic() + rng.uniform(0.0, 1.0) * runs.again_s
        amid = rng.random() < 0.5  # as a checkpoint is written, if one comes
        run = runs.at(name)

        def moment(at=at, amid=amid, run=run) -> bool:
            now = time.monotonic()
            return now > at + 5 or (now > at and (not amid or _saving(run)))

        wait_for(process, moment)
        saving += _saving(runs.at(name))
        process.signal(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            killed += 1
            if len(runs.steps(name)) == stood:  # it was struck before it trained
                runs.again_s *= 1.1
            print(f"  SIGKILL {killed}: {len(runs.steps(name))} steps", flush=True)
            continue
        verdicts.append(compare(runs, name, "plain_straight"))
        ended, runs.again_s = ended + 1, 0.8 * runs.again_s  # it was struck too late
        name = f"random_{ended}"
    runs.finish(name)
    verdicts.append(compare(runs, name, "plain_straight"))
    spent = time.monotonic() - began
    print(f"\n{killed} SIGKILLs ({saving} while a checkpoint was being written) over")
    print(
        f"{len(verdicts)} runs, {spent:.0f} s; ends: {sorted(set(verdicts))}",
        flush=True,
    )


def _saving(run: pathlib.Path) -> bool:
    return any(run.glob("*checkpoints/*.orbax-checkpoint-tmp*"))


def terms(runs: Runs, count: int, seed: int) -> None:
    """SIGTERM in each stage in turn, at a random moment of it."""
    rng, rows, ended = random.Random(seed), [], 0
    name = "termed_0"
    while len(rows) < count:
        stage = STAGES[len(rows) % len(STAGES)]
        log = runs.log(name)
        before = log.stat().st_size if log.exists() else 0
        process = runs.start(name)

        def reached(log=log, before=before, stage=stage) -> bool:
            return log.exists() and stage in log.read_text()[before:]

        if not wait_for(process, reached):
            ended, name = ended + 1, f"termed_{ended + 1}"  # it had passed that stage
            continue
        time.sleep(rng.uniform(0.0, 1.0))
        began = time.monotonic()
        process.signal(signal.SIGTERM)
        code = process.wait(2 * GRACE_S)
        process.signal(signal.SIGKILL)
        rows.append((stage, code, time.monotonic() - began))
        print(
            f"  SIGTERM, {stage:15} exit {code} after {rows[-1][2]:.1f} s", flush=True
        )
    runs.finish(name)
    good = sum(code == 0 and seconds < GRACE_S for _, code, seconds in rows)
    slowest = max(seconds for *_, seconds in rows)
    print(f"exit 0 within {GRACE_S:.0f} s: {good} of {count}, slowest {slowest:.1f} s;")
    print(f"the end of the last run: {compare(runs, name, 'plain_straight')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--terms", type=int, default=20)
    parser.add_argument("--variants", default="all", help="names, or 'plain' at least")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(args.folder.absolute() / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for module in IMPORTED:
        importlib.import_module(module)
    runs = Runs(args.folder.absolute())
    names = list(VARIANTS) if args.variants == "all" else args.variants.split(",")
    variants(runs, names)
    if args.terms:
        print()
        terms(runs, args.terms, args.seed)
    if args.kills:
        kills(runs, args.kills, args.seed)


if __name__ == "__main__":
    main()

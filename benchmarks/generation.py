"""How fast are turns of many episodes sampled, prefill included?

    python -m benchmarks.generation --torch=.venv-torch/bin/python
        --tunix=.venv-tunix/bin/python --json=FILE

One random Llama of 6.5 million parameters, written once as a Hugging Face directory, is
run by our engine, by ``transformers.generate`` on torch (whole contexts fed again each
turn, and with the cache kept) and by the sampler of google-tunix. Each has a process
and an environment of its own; they play the same rounds in turn, greedily, float32.
Packages: benchmarks/requirements-generation-torch.txt and -tunix.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from benchmarks import _machine
from benchmarks._generation_work import Work, threads

CONTENDERS = {
    "ours": ("python", "_generation_ours", ""),
    "transformers, fed again": ("torch", "_generation_torch", "fed"),
    "transformers, cache kept": ("torch", "_generation_torch", "kept"),
    "google-tunix": ("tunix", "_generation_tunix", ""),
}


class Contender:
    """A process that plays rounds when it is told to."""

    def __init__(self, name: str, python: str, model: str, work: Work) -> None:
        _, module, way = CONTENDERS[name]
        given = json.dumps(dataclasses.asdict(work))
        command = [python, "-m", f"benchmarks.{module}", model, given, way]
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.started = self._answer()

    def play(self, number: int) -> dict:
        """Seconds, CPU seconds, what was sampled, figures of its own."""
        self._process.stdin.write(json.dumps({"round": number}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict:
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(
            f"{self._name}: expected an answer, but its process ended with "
            f"{self._process.wait()}; see its messages above"
        )


def main(arguments: list[str] | None = None) -> int:
    options = options_parser().parse_args(arguments)
    work = Work(
        episodes=options.episodes, group=options.group, new_tokens=options.new_tokens
    )
    with tempfile.TemporaryDirectory() as folder:
        figures = run(options, work, folder, _say)
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def run(options: argparse.Namespace, work: Work, folder: str, say) -> dict:
    """All rounds of all contenders: plain data, tables said on the way."""
    save = [options.python, "-c", _SAVE, folder, str(work.vocabulary)]
    subprocess.run(save, check=True)
    facts, load = _machine.facts(), _machine.load()
    say(f"cpu: {facts['cpu']}, {threads()} threads each; load average: {load}")
    pythons = {name: getattr(options, CONTENDERS[name][0]) for name in CONTENDERS}
    contenders = {
        name: Contender(name, python, folder, work)
        for name, python in pythons.items()
        if python
    }
    for name, contender in contenders.items():
        say(f"{name}: {contender.started}")
    rounds = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(options.rounds):
        first = number % len(names)  # who goes first rotates
        for name in names[first:] + names[:first]:
            rounds[name].append(contenders[name].play(number))
            say(f"  round {number}, {name}: {rounds[name][-1]['seconds']:.2f} s")
    for contender in contenders.values():
        contender.close()
    rows = {
        name: row(answers, rounds["ours"], work) for name, answers in rounds.items()
    }
    figures = {"machine": facts, "work": dataclasses.asdict(work), "rows": rows}
    figures |= {"load_before": load, "load_after": _machine.load()}
    figures["started"] = {name: c.started for name, c in contenders.items()}
    figures["distinct_tokens"] = statistics.median(
        distinct(work.texts(n), a["made"]) for n, a in enumerate(rounds["ours"])
    )
    say(table(figures))
    return figures


_SAVE = (
    "import sys; from benchmarks._generation_ours import save_model; "
    "print(save_model(sys.argv[1], int(sys.argv[2])), 'parameters', flush=True)"
)


def row(answers: list[dict], ours: list[dict], work: Work) -> dict:
    """Medians over the rounds; ``faster``: of theirs over ours, round by round."""
    for answer in answers:
        sampled = sum(len(ids) for turn in answer["made"] for ids in turn)
        if sampled != work.tokens:
            raise RuntimeError(f"expected {work.tokens} sampled ids, got {sampled}")

    def faster(unit: str) -> float:
        pairs = zip(answers, ours, strict=True)
        return statistics.median(one[unit] / other[unit] for one, other in pairs)

    seconds = [answer["seconds"] for answer in answers]
    return {
        "seconds": seconds,
        "median_s": statistics.median(seconds),
        "tokens_per_s": work.tokens / statistics.median(seconds),
        "cpu_s": statistics.median(answer["cpu"] for answer in answers),
        "faster": faster("seconds"),
        "faster_cpu": faster("cpu"),
        "same_turns": agreement(answers, ours),
        "counts": answers[0]["counts"],
    }


def agreement(answers: list[dict], ours: list[dict]) -> float:
    """Share of turns whose ids are all ours; rounding may turn a near tie."""
    pairs = [
        one == other
        for answer, our in zip(answers, ours, strict=True)
        for mine, theirs in zip(answer["made"], our["made"], strict=True)
        for one, other in zip(mine, theirs, strict=True)
    ]
    return sum(pairs) / len(pairs)


def distinct(texts, made) -> int:
    """Distinct positions of all contexts: those of a common beginning count once.

    What was sampled is left out: decoding computes it.
    """
    seen, sampled = set(), set()
    for episode in range(len(texts[0])):
        context: tuple[int, ...] = ()
        for turn, rows in enumerate(texts):
            start = len(context)
            context += tuple(rows[episode])
            seen |= {context[: n + 1] for n in range(start, len(context))}
            start = len(context)
            context += tuple(made[turn][episode])
            sampled |= {context[: n + 1] for n in range(start, len(context))}
    return len(seen - sampled)


def table(figures: dict) -> str:
    lines = [
        "",
        "| | s, median | tokens/s | ours faster by | CPU s | by CPU s | same turns |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, line in figures["rows"].items():
        lines.append(
            f"| {name} | {line['median_s']:.2f} | {line['tokens_per_s']:.0f} | "
            f"{line['faster']:.2f} | {line['cpu_s']:.2f} | {line['faster_cpu']:.2f} | "
            f"{line['same_turns']:.3f} |"
        )
    counts, distinct_tokens = (
        figures["rows"]["ours"]["counts"],
        figures["distinct_tokens"],
    )
    computed = counts["tokens_prefilled"]
    lines.append(
        f"ours: {counts['tokens_fed']} context tokens given, {computed} computed, "
        f"{distinct_tokens:.0f} distinct: {computed / distinct_tokens:.2f}; "
        f"{counts['compilations']} programs compiled in a round"
    )
    return "\n".join(lines)


def options_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--python", default=sys.executable, help="Python of ours")
    add("--torch", default="", help="Python with torch and transformers; '': left out")
    add("--tunix", default="", help="Python with google-tunix; '': left out")
    add("--rounds", type=int, default=5)
    add("--episodes", type=int, default=32)
    add("--group", type=int, default=8, help="episodes of the same prompt")
    add("--new-tokens", type=int, default=32, help="sampled in each of three turns")
    add("--json", default="", help="a file for all figures")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

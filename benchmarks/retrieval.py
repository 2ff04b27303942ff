"""How fast and how exact is the index of a bank beside numpy, faiss and hnswlib?

    python -m benchmarks.retrieval --sizes=1000,10000,100000,1000000
        --out=docs/retrieval.png --json=FILE

One thread, one run: all indexes are held at once, tuned to the recall that ours
reaches, and asked in turn. Then rows are inserted in turn, and a bank is forked and
written to. Packages: benchmarks/requirements-retrieval.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

DIM = 256


def main(arguments: list[str] | None = None) -> int:
    options = options_parser().parse_args(arguments)
    _one_thread()
    began = time.monotonic()
    figures = run(options, _say)
    figures["seconds"] = round(time.monotonic() - began, 1)
    _say(
        f"\nload average after: {figures['load_after']}; {figures['seconds']} s in all"
    )
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    if options.out:
        from benchmarks import _retrieval_plot

        _retrieval_plot.save(figures["cases"], pathlib.Path(options.out))
    return 0


def run(options: argparse.Namespace, say) -> dict:
    """All cases, smallest first, then the bank: plain data, tables said on the way."""
    from benchmarks import _bank_costs, _cases, _machine, _tables, _vectors

    facts, load = _machine.facts(), _machine.load()
    figures = {"machine": facts, "load_before": load, "options": vars(options)}
    figures["cases"] = []
    say("\n".join(f"{name}: {value}" for name, value in facts.items()))
    say(f"load average before: {load}")
    plan = _cases.Plan(
        rounds=options.rounds,
        batch=options.batch,
        skipped=tuple(options.skip.split(",")),
        largest_bank=options.largest_bank,
    )
    for make in _makers(options, plan.queries):
        case = make()
        say(f"\n{case.name}")
        figures["cases"].append(_cases.measure(case, plan, say))
        say(_tables.of_case(figures["cases"][-1]))
        del case  # before the next one is made: they are large
    entries = max((n for n in options.sizes if n <= options.largest_bank), default=0)
    if entries and options.forks:
        inserts = max(options.inserts, options.forks + 1)
        case = _vectors.clustered(entries, inserts, 10, DIM, options.seed + 1)
        say("")
        figures["bank"] = _bank_costs.measure(case, options.forks, say)
        say(_tables.of_bank(figures["bank"]))
    figures["load_after"] = _machine.load()
    return figures


def _makers(options: argparse.Namespace, queries: int) -> list:
    from benchmarks import _vectors

    makers = [
        lambda n=n: _vectors.clustered(n, options.inserts, queries, DIM, options.seed)
        for n in sorted(options.sizes)
    ]
    source = f"locomo:{options.locomo}" if options.locomo else options.texts
    if source != "none":
        makers.append(
            lambda: _vectors.of_texts(
                source, options.inserts, queries, options.seed, options.made_texts
            )
        )
    return makers


def options_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sizes", type=_sizes, default=[1000, 10_000, 100_000, 1_000_000])
    add("--texts", default="made", help="made, factbook, none, or a file of lines")
    add("--made-texts", type=int, default=50_000, help="sentences of --texts=made")
    add("--locomo", default="", help="a LoCoMo file, in place of --texts")
    add("--inserts", type=int, default=10_000, help="single inserts and writes")
    add("--rounds", type=int, default=8)
    add("--batch", type=int, default=50, help="queries a round")
    add("--forks", type=int, default=64, help="forks of the bank; 0: no bank")
    add("--largest-bank", type=int, default=100_000)
    add(
        "--skip",
        default="faiss_hnsw@1000000",
        help="indexes to leave out, NAME or NAME@ROWS, by comma",
    )
    add("--seed", type=int, default=0)
    add("--out", default="", help="a PNG to write")
    add("--json", default="", help="a file for all figures")
    return parser


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _one_thread() -> None:
    """Before numpy is imported: its BLAS reads these once."""
    if "numpy" in sys.modules:
        raise RuntimeError("numpy is loaded already: expected a process of its own")
    for library in ("OMP", "OPENBLAS", "MKL", "RAYON"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Evidence recall, merging and speed of a bank on real conversations.

    python -m benchmarks.conversations --data=DIR/locomo_4.json --out=FILE.json

Reads a file in the format of LoCoMo (Maharana et al., ACL 2024): two-person
conversations over many dated sessions, and questions whose evidence is named by turn.
Every sentence is written into a bank with the default settings, in order; then every
question is recalled. Evidence recall@6 of a question is the share of its evidence turns
of which at least one sentence lives on in a recalled entry. Merges are followed: an
entry stands for all that was merged into it and for the duplicates it turned away;
*kept* counts a sentence only if the recalled entry still spells it. Questions of
category 5 (adversarial) are kept apart. Figures go to FILE.json, texts to the terminal
only. Takes about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import pathlib
import random

import numpy as np

from benchmarks._conversation_files import Conversation, read_conversations
from benchmarks._conversation_recall import (
    ADVERSE,
    Answers,
    Setting,
    Written,
    ask_all,
    recall_nearest,
    shares,
    spread,
    with_config,
    write_all,
)
from benchmarks._tables import aligned

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop", 5: "adverse"}
ENTRIES = ("sentence", "speaker", "dated")
THRESHOLDS = (0.82, 0.86, 0.90)


def by_category(reranked: Answers, nearest: Answers) -> list[dict]:
    """A row each of the ordinary questions, of each category, of the gain by MMR."""
    ordinary = reranked.category != ADVERSE
    groups = {"all but adverse": ordinary}
    groups |= {name: reranked.category == code for code, name in CATEGORIES.items()}
    rows = []
    for name, chosen in groups.items():
        row = {"questions": name, "n": int(chosen.sum())}
        gain = reranked.followed - nearest.followed
        for label, values in (
            ("mmr", reranked.followed),
            ("nearest", nearest.followed),
            ("mmr - nearest", gain),
        ):
            row[label] = spread(values[chosen])
        row["chance"] = spread(reranked.chance[chosen])[0]
        rows.append(row)
    return rows


def measure(conversations, setting: Setting) -> tuple[dict, Written, Answers, Answers]:
    """One row of figures, with the banks and the answers behind it."""
    written = write_all(conversations, setting)
    reranked = ask_all(conversations, written)
    nearest = ask_all(conversations, written, recall_nearest)
    row = dataclasses.asdict(setting)
    for name, answers in (("mmr", reranked), ("nearest", nearest)):
        row[name] = answers.mean("followed")
        row[f"{name} kept"] = answers.mean("kept")
        row[f"{name} adverse"] = answers.mean("followed", adverse=True)
    row["active"] = sum(len(bank) for bank in written.distinct())
    row["entries"] = sum(len(bank.entries) for bank in written.distinct())
    p50, p95 = np.quantile(reranked.milliseconds, [0.5, 0.95])
    row |= {"recall p50 ms": p50, "recall p95 ms": p95}
    if setting.gated:
        row["writes/s"] = len(written.events) / written.seconds
        row |= shares(written.events)
        row["unlike duplicates"] = unlike(written)
        accepted = row["new"] + row["merged"] + row["superseded"]
        row["merge rate"] = (row["merged"] + row["superseded"]) / accepted
    return row, written, reranked, nearest


def unlike(written: Written) -> float:
    """Share of the duplicates that lie below the threshold: the judge alone decided."""
    turned_away = [e for e in written.events if e.outcome == "duplicate"]
    below = [e.similarity < written.setting.merge_threshold for e in turned_away]
    return sum(below) / max(len(below), 1)


def sweep_rerank(conversations, written: Written) -> list[dict]:
    """Evidence recall by MMR weight and by number of candidates."""
    rows = []
    for weight, oversample in itertools.product((0.5, 0.7, 0.85, 1.0), (4, 8)):
        twin = with_config(written, mmr_lambda=weight, oversample=oversample)
        answers = ask_all(conversations, twin)
        row = {"entry": written.setting.entry, "mmr_lambda": weight}
        row["oversample"] = oversample
        row["recall"] = spread(answers.followed[answers.category != ADVERSE])
        rows.append(row)
    return rows


def print_table(rows: list[dict]) -> None:
    """Rows under all the columns that any of them has."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [tuple(_cell(row.get(key, "")) for key in columns) for row in rows]
    print(aligned([tuple(columns), *cells]) + "\n")


def _cell(value) -> str:
    if isinstance(value, tuple):
        mean, low, high = value
        return f"{mean:.3f} [{low:.3f}, {high:.3f}]"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def print_examples(written: Written, count: int) -> None:
    """Some writes of each outcome; new ones apart if similar to an entry."""
    threshold = written.setting.merge_threshold
    groups = collections.defaultdict(list)
    for event in written.events:
        near = event.outcome == "new" and event.nearest >= threshold
        groups["new, though similar" if near else event.outcome].append(event)
    for name, events in groups.items():
        print(f"-- {threshold}: {name} ({len(events)})")
        for event in random.Random(0).sample(events, min(count, len(events))):
            print(f"{event.similarity:.3f} | {event.other!r} | {event.text!r}")
    print()


def run(conversations: list[Conversation], examples: int = 0) -> dict:
    """Measures and prints everything; the figures as one dict without any text."""
    plain, each = Setting(), Setting(banks="each")
    row, written, reranked, nearest = measure(conversations, plain)
    report = {"by category": by_category(reranked, nearest), "settings": [row]}
    report["rerank"] = sweep_rerank(conversations, written)
    for entry in ENTRIES[1:]:
        written = write_all(conversations, Setting(entry))
        report["rerank"] += sweep_rerank(conversations, written)
    entries = [Setting(entry, banks) for banks in ("one", "each") for entry in ENTRIES]
    report["settings"] += [
        measure(conversations, setting)[0]
        for setting in [
            *entries[1:],
            *(dataclasses.replace(s, gated=False) for s in entries),
            *(dataclasses.replace(s, embedder="hashing") for s in (plain, each)),
        ]
    ]
    report["thresholds"] = []
    for threshold in THRESHOLDS:
        setting = dataclasses.replace(plain, merge_threshold=threshold)
        row, written, _, _ = measure(conversations, setting)
        report["thresholds"].append(row)
        print_examples(written, examples)
    for name, rows in report.items():
        print(name)
        print_table(rows)
    report["data"] = {
        "conversations": len(conversations),
        "sentences": sum(len(talk.sentences) for talk in conversations),
        "questions": sum(len(talk.questions) for talk in conversations),
        "evidence of no turn": sum(talk.unread for talk in conversations),
    }
    print(report["data"])
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a file in LoCoMo's format")
    parser.add_argument("--out", help="where the figures go, as JSON")
    parser.add_argument("--examples", type=int, default=10, help="of each outcome")
    options = parser.parse_args()
    report = run(read_conversations(options.data), options.examples)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

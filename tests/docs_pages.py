"""The pages of the documentation, and the blocks of code in them; see ``docs_test``."""

from __future__ import annotations

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ("README.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
TINY = (
    "env.ledger.min_turns=2",
    "env.ledger.max_turns=3",
    "env.ledger.min_delay=1",
    "memory.embedder=hashing",
    "context.max_context_tokens=64",
    "policy.nano.layers=1",
    "policy.nano.width=16",
    "policy.nano.heads=2",
    "policy.nano.mlp_width=16",
    "sampling.group_size=4",
    "sampling.tasks_per_step=2",
    "sampling.slots=8",
    "sampling.max_new_tokens=12",
    "sampling.decode_chunk=12",
    "sampling.prefill_buckets=64",
    "train.steps=2",
    "train.micro_batch_tokens=640",
    "train.length_buckets=80",
    "train.cold_start_steps=4",
    "train.cold_start_rows=16",
    "train.demonstrations=32",
    "train.eval_tasks=4",
    "log.trajectories_every=1",
)
RULES = {
    "skip": r"skip \(.+\)",
    "parse": r"parse \(.+\)",
    "fails": "fails",
    "make": "make",
    "output": "output",
    "tiny": r"tiny( \S+=\S*)*",
    "with": r"with( \S+=\S*)+",
    "file": r"file \w+\.py",
    "": "",
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page: where it begins, its language, text and comment."""

    place: str
    language: str
    text: str
    marker: str

    @property
    def rule(self) -> str:
        return self.marker.split(" ")[0]

    @property
    def overrides(self) -> list[str]:
        """Fields that the comment sets, as FIELD=VALUE."""
        words = self.marker.split(" ")[1:] if self.rule in ("tiny", "with") else []
        return [*(TINY if self.rule == "tiny" else ()), *words]


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- test: (.+?) -->\s*\Z")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page in order."""
    text, blocks = text_of(page), []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        marker = _MARKER.search(before)
        place = f"{page}:{before.count(chr(10)) + 1}"
        blocks.append(Block(place, match[1], match[2], marker[1] if marker else ""))
    return blocks


def prose_of(page: str) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", text_of(page))


def check_target(target: str, place: str) -> None:
    """A target that the Makefile has; a folder of that name is none."""
    makefile = (ROOT / "Makefile").read_text()
    rules = re.findall(r"^([a-z][a-z0-9_ -]*):(?!=)", makefile, re.MULTILINE)
    targets = {name for rule in rules for name in rule.split()}
    assert target in targets, f"{place}: the Makefile has no target {target!r}"

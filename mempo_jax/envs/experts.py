"""Any suite's expert, with one rewritten block in place of a memory bank.

The context rule "rolling" knows no writes and no recalls: what is to be kept stands in
one ``<mem>`` block, which an action replaces as a whole. What an expert would write
becomes a line of the block, and what it would recall is read from there.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from mempo_jax.envs.base import ScriptedPolicy, Situation
from mempo_jax.memory import BLOCK, BankConfig, Op, OpKind, parse_ops

_WORD = re.compile(r"\w+")


class RollingExpert:
    """Demonstrates rule "rolling"; see the module docstring.

    Blind to what is worth keeping, as the expert it wraps: the newest lines stay.

    expert: of the suite. lines: of the block, at least 1. limits: of a turn, under
    which the expert writes.
    """

    def __init__(self, expert: ScriptedPolicy, lines: int, limits: BankConfig) -> None:
        self._expert, self._lines, self._limits = expert, lines, limits

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        kept = situation.block.splitlines()
        said = self._expert(situation, rng)
        while recalls := self._ops(said, OpKind.RECALL):
            query = recalls[0].content
            situation = dataclasses.replace(
                situation,
                queries=(*situation.queries, query),
                recalled=(*situation.recalled, *_nearest(query, kept)),
            )
            said = self._expert(situation, rng)
        return self._rewritten(said, kept)

    def _rewritten(self, said: str, kept: list[str]) -> str:
        """The action with one block in place of its writes, where it has any."""
        writes = self._ops(said, OpKind.WRITE)
        if not writes:
            return said
        block = "\n".join([*kept, *map(_line, writes)][-self._lines :])
        rewrite = f"<{BLOCK}>{block}</{BLOCK}>"
        start = writes[0].span[0]
        for op in reversed(writes):
            said = said[: op.span[0]] + said[op.span[1] :]
        return f"{said[:start]}{rewrite}{said[start:]}"

    def _ops(self, said: str, kind: OpKind) -> list[Op]:
        return [op for op in parse_ops(said, limits=self._limits) if op.kind == kind]


def _line(write: Op) -> str:
    """A note in one line; a bank finds it by its title, too."""
    title = " ".join(write.args.get("title", "").split())
    text = " ".join(write.content.split())
    return text if title in text else f"{title}: {text}"


def _nearest(query: str, lines: list[str]) -> list[str]:
    """Lines that share words with the query, those with most first, newest first."""
    wanted = set(_WORD.findall(query.lower()))
    shared = [len(wanted & set(_WORD.findall(line.lower()))) for line in lines]
    order = sorted(range(len(lines)), key=lambda at: (-shared[at], -at))
    return [lines[at] for at in order if shared[at]]

"""Adapts any suite's expert to the context rule "rolling".

This rule knows no writes and no recalls: what is to be kept is in one ``<mem>`` block,
which an action replaces as a whole. What an expert would write becomes a line of the
block, and what it would recall is read from there.
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

    It does not know what is worth keeping, like the expert it wraps: the newest lines
    stay.

    Args:
      expert: the suite's expert.
      lines: lines of the block, at least 1.
      limits: limits of a turn, under which the expert writes.
    """

    def __init__(self, expert: ScriptedPolicy, lines: int, limits: BankConfig) -> None:
        self._expert, self._lines, self._limits = expert, lines, limits

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn: that of the expert, which reads the block."""
        lines = situation.block.splitlines()
        action = self._expert(situation, rng)
        # The expert speaks again with each recall answered, until it needs no more.
        while recalls := self._ops(action, OpKind.RECALL):
            query = recalls[0].content
            situation = dataclasses.replace(
                situation,
                queries=(*situation.queries, query),
                recalled=(*situation.recalled, *_nearest(query, lines)),
            )
            action = self._expert(situation, rng)
        return self._rewrite(action, lines)

    def _rewrite(self, action: str, lines: list[str]) -> str:
        """Replaces the writes of an action, if it has any, by one block."""
        writes = self._ops(action, OpKind.WRITE)
        if not writes:
            return action
        block = "\n".join([*lines, *map(_line, writes)][-self._lines :])
        rewrite = f"<{BLOCK}>{block}</{BLOCK}>"
        start = writes[0].span[0]
        # From the last to the first, so that the spans before it stay valid.
        for op in reversed(writes):
            action = action[: op.span[0]] + action[op.span[1] :]
        return f"{action[:start]}{rewrite}{action[start:]}"

    def _ops(self, action: str, kind: OpKind) -> list[Op]:
        return [op for op in parse_ops(action, limits=self._limits) if op.kind == kind]


def _line(write: Op) -> str:
    """Returns a note in one line, with its title: a bank finds it by that, too."""
    title = " ".join(write.args.get("title", "").split())
    text = " ".join(write.content.split())
    return text if title in text else f"{title}: {text}"


def _nearest(query: str, lines: list[str]) -> list[str]:
    """Returns lines that share words with the query: most words first, then newest."""
    wanted = set(_WORD.findall(query.lower()))
    shared = [len(wanted & set(_WORD.findall(line.lower()))) for line in lines]
    order = sorted(range(len(lines)), key=lambda at: (-shared[at], -at))
    return [lines[at] for at in order if shared[at]]

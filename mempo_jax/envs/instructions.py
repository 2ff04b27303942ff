"""What a language model is told about the action grammar, built in this one place.

Only what the configured run allows is mentioned: its memory tags, its ways to act, its
limit of ops. A suite that is not listed in ``_WAYS`` is told both ways to act.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from mempo_jax.envs.context import ContextConfig
from mempo_jax.memory import BLOCK, BankConfig, OpKind, parse_ops

# Whether a suite acts by <act> and ends by <answer>, where only one of them is of use.
_WAYS = {"ledger": (False, True), "babi": (True, False), "dialogue": (True, False)}
_NOTE = "<mem_write>Ann's bus is 7</mem_write>"
_QUERY = "<mem_recall>Ann's bus</mem_recall>"
_BLOCK_NOTE = f"<{BLOCK}>Ann's bus is 7</{BLOCK}>"


def describe(context: ContextConfig, limits: BankConfig, suite: str) -> str:
    """Returns the instructions in the form ``context.instructions_form``.

    Args:
      context: form and rule.
      limits: of the bank and of a turn.
      suite: ``env.name``.
    """
    acts, answers = _WAYS.get(suite, (True, True))
    long = context.instructions_form == "long"
    lines = [*_memory_lines(context, limits, long)]
    if acts:
        lines.append(_line("<act>7</act>", "to act or reply", "the turn ends", long))
    if answers:
        why = "to give the final answer"
        lines.append(_line("<answer>7</answer>", why, "the task ends", long))
    example = worked_example(context, limits, suite)
    if long:
        return "\n".join(
            [
                "Reply with tags. Text outside of tags does nothing.",
                *lines,
                *(f"Seen: {seen}\nReply: {reply}" for seen, reply in example),
            ]
        )
    pairs = " ".join(f"{seen} -> {reply}" for seen, reply in example)
    return f"Reply only with tags: {' '.join(lines)}\nExample: {pairs}"


def worked_example(
    context: ContextConfig, limits: BankConfig, suite: str
) -> list[tuple[str, str]]:
    """Returns (what is seen, the reply to it) of each turn of the worked example.

    Args:
      context: whose rule decides how a note is kept.
      limits: of the bank.
      suite: ``env.name``.
    """
    _, answers = _WAYS.get(suite, (True, True))
    end = "<answer>7</answer>" if answers else "<act>7</act>"
    question = "What is Ann's bus?"
    if context.rule == "rolling":
        return [("Ann's bus is 7.", _BLOCK_NOTE), (question, end)]
    if not limits.enabled:
        return [(f"Ann's bus is 7. {question}", end)]
    recalled = "recalled 0: Ann's bus is 7"
    return [("Ann's bus is 7.", _NOTE), (question, _QUERY), (recalled, end)]


def with_examples(
    context: ContextConfig, turns: Iterable[tuple[str, str]]
) -> ContextConfig:
    """Returns the settings with worked turns at the end of every wording.

    Turns that show an op not shown yet come first; those without an op are left out.

    Args:
      context: its ``instruction_examples`` is the number of turns.
      turns: (what is seen, the reply to it), of a demonstration.
    """
    chosen: list[tuple[str, str]] = []
    rest: list[tuple[str, str]] = []
    shown: set[str] = set()
    for turn in turns:
        kinds = {op.kind for op in parse_ops(turn[1])} - {OpKind.MALFORMED}
        (chosen if kinds - shown else rest if kinds else []).append(turn)
        shown |= kinds
    few = [*chosen, *rest][: context.instruction_examples]
    text = "".join(f"\nSeen: {seen}\nReply: {reply}" for seen, reply in few)
    return dataclasses.replace(
        context,
        instructions=context.instructions + text,
        instruction_variants=tuple(v + text for v in context.instruction_variants),
    )


def _memory_lines(context: ContextConfig, limits: BankConfig, long: bool) -> list[str]:
    if context.rule == "rolling":
        return [_line(_BLOCK_NOTE, "to rewrite all your notes", "", long)]
    if not limits.enabled:
        return []
    lines = [
        _line(_NOTE, "to save a fact", "", long),
        _line(_QUERY, "to look facts up", "the turn ends", long),
    ]
    merge = '<mem_merge ids="0,1">text</mem_merge>'
    lines.append(_line(merge, "to join notes", "ids as recalled", long))
    delete = '<mem_delete ids="0"></mem_delete>'
    lines.append(_line(delete, "to forget a note", "", long))
    if long:
        lines.append(f"At most {limits.max_ops_per_turn} of these tags in one turn.")
    return lines


def _line(tag: str, why: str, more: str, long: bool) -> str:
    return f"{tag} {why}{f' ({more})' if more and long else ''}{'' if long else ','}"

"""One recorded trajectory turn by turn: what it saw, said, did and earned."""

from __future__ import annotations

from collections.abc import Sequence

from mempo_jax.memory import OpRecord
from mempo_jax.report.lifelines import lifelines
from mempo_jax.report.markup import (
    LONGEST,
    cut_note,
    element,
    escaped,
    number,
    signed,
)
from mempo_jax.report.records import Credit, Record, Turn
from mempo_jax.report.shades import Shades, token_numbers
from mempo_jax.report.strips import FAILED, SIGNS

HEADS = ("turn", "sees", "says", "operations", "reward")


def trajectory(record: Record, shades: Shades | None) -> str:
    """All about one trajectory, HTML: rewards, memories, turns."""
    parts = [rewards(record)]
    if record.failure is not None:
        parts.append(element("p", f"Failed: {escaped(record.failure)}", class_="bad"))
    if shades is not None and record.credit is None:
        told = "No token credit was recorded for this trajectory: it is not coloured."
        parts.append(element("p", told, class_="note"))
    parts += [lifelines(record, shades), turns(record, shades)]
    return "".join(parts)


def turns(record: Record, shades: Shades | None) -> str:
    """A table: a row a turn."""
    heads = "".join(element("th", head, scope="col") for head in HEADS)
    rows = [
        _row(record, n, turn, [op for op in record.log if op.turn == n], shades)
        for n, turn in enumerate(record.turns)
    ]
    body = element("tbody", "".join(rows))
    table = f"{element('thead', element('tr', heads))}{body}"
    return element("table", table, class_="turns")


def rewards(record: Record) -> str:
    """Each component that is not 0, raw and weighted, their sum, and the answers."""
    parts = [f"reward {element('b', number(record.total))}{_components(record)}"]
    if record.credit is not None:
        same = _same_others(record.credit)
        told = f"group advantage {element('b', signed(record.credit.advantage))}"
        parts.append(told + ("" if record.credit.trained else ", not trained on"))
        parts += [f"tokens of no operation: {_numbers(*same)}"] if same else []
    answers = ", ".join(_quoted(answer) for answer in record.answers)
    parts += [f"answers: {answers or 'none'}", f"ended: {escaped(record.status)}"]
    parts.append(f"{record.tokens_total:,} tokens, {record.tokens_peak:,} at most")
    return element("p", " · ".join(parts), class_="rewards")


def _components(record: Record) -> str:
    """What the reward is made of, and what was counted but weighs nothing."""
    summed, counted = [], []
    for name in dict.fromkeys((*record.raw, *record.weighted)):
        raw, weighted = record.raw.get(name), record.weighted.get(name)
        if weighted or name == "task":
            summed.append(f"{escaped(name)} {number(weighted)} (raw {number(raw)})")
        elif raw:
            counted.append(f"{escaped(name)} {number(raw)}")
    told = f" = {' + '.join(summed)}" if summed else ""
    unweighted = element("span", f"weighs 0: {', '.join(counted)}", class_="muted")
    return told + (f" · {unweighted}" if counted else "")


def said(record: Record, place: int, shades: Shades | None) -> str:
    """What was said in a turn, its tokens coloured where they are known."""
    turn = record.turns[place]
    if turn.runs is None or record.credit is None or shades is None:
        return escaped(turn.action)
    made, at = [], 0
    for op, lengths in turn.runs:
        weight, bonus, advantage = token_numbers(record, op, place)
        tokens = []
        for length in lengths:
            if at < LONGEST:
                tokens.append(element("i", escaped(turn.action[at : at + length])))
            at += length
        made.append(
            element(
                "span",
                "".join(tokens),
                class_=f"run {shades.classes(weight, bonus, advantage)}".strip(),
                title=_sum(record.credit.advantage, weight, bonus, advantage),
            )
        )
        if at > LONGEST:
            made.append(cut_note(turn.action))
            break
    return "".join(made)


def _row(
    record: Record, n: int, turn: Turn, ops: Sequence[OpRecord], shades: Shades | None
) -> str:
    star = element("b", "★", class_="star", title="deserves memory")
    seen = escaped(turn.observation) + (f" {star}" if n in record.useful else "")
    log = {id(op): place for place, op in enumerate(record.log)}
    done = "".join(_op(record, op, log[id(op)], shades) for op in ops)
    others = _others(record, n, shades)
    cut = element("div", "cut at the token limit", class_="bad") if turn.cut else ""
    earned = "" if not turn.reward else signed(turn.reward)
    cells = (
        element("th", str(n), scope="row"),
        element("td", seen, class_="text", dir="auto"),
        element("td", said(record, n, shades), class_="text said", dir="auto"),
        element("td", done + cut + others, class_="ops"),
        element("td", earned, class_="number"),
    )
    return element("tr", "".join(cells))


def _op(record: Record, op: OpRecord, place: int, shades: Shades | None) -> str:
    kind = op.kind if op.kind in SIGNS else "other"
    words = [element("span", escaped(op.kind, 40), class_=f"chip {kind}")]
    bad = op.outcome in FAILED or op.error is not None
    told = [op.outcome] + ([op.error] if op.error else [])
    words.append(element("span", escaped(", ".join(told)), class_="bad" if bad else ""))
    if op.entry_ids:
        words.append(_entries(op))
    if op.evicted:
        words.append(f"evicts {', '.join(map(str, op.evicted))}")
    if op.similarity:
        words.append(f"similarity {op.similarity:.2f}")
    if op.stored and op.stored != op.text:
        words.append(f"stored {_quoted(op.stored)}")
    if shades is not None and record.credit is not None:
        words.append(_numbers(*token_numbers(record, place, op.turn)))
    return element("div", " ".join(words))


def _entries(op: OpRecord) -> str:
    first, *more = op.entry_ids
    if op.kind in ("write", "merge") and more:
        joint = "replaces" if op.supersedes else "from"
        return f"entry {first} {joint} {', '.join(map(str, more))}"
    noun = "entry" if not more else "entries"
    return f"{noun} {', '.join(map(str, op.entry_ids))}"


def _others(record: Record, turn: int, shades: Shades | None) -> str:
    """The numbers of tokens that spell no op, where the turn has some."""
    runs = record.turns[turn].runs or ()
    if shades is None or record.credit is None or all(op >= 0 for op, _ in runs):
        return ""
    if _same_others(record.credit):
        return ""
    numbers = _numbers(*token_numbers(record, -1, turn))
    return element("div", f"other tokens {numbers}", class_="others")


def _same_others(credit: Credit) -> tuple[float, float, float] | None:
    """The numbers of tokens that spell no op, where all turns have the same."""
    if len(set(credit.by_turn)) != 1:
        return None
    weight, advantage = credit.by_turn[0]
    return weight, 0.0, advantage


def _numbers(weight: float, bonus: float, advantage: float) -> str:
    bonus_told = f" bonus {signed(bonus)}" if bonus else ""
    told = f"weight {weight:.2g}{bonus_told} advantage {signed(advantage)}"
    return element("span", told, class_="credit")


def _sum(group: float, weight: float, bonus: float, advantage: float) -> str:
    if not advantage and (weight * group or bonus):
        return f"weight {weight:.2g}, bonus {signed(bonus)}, not trained on"
    return f"{signed(advantage)} = {weight:.2g} × {signed(group)} + {signed(bonus)}"


def _quoted(text: str) -> str:
    return element("q", escaped(text, 300), dir="auto")

"""Turns the text of one turn into ops.

Parsing never raises, whatever the text, and takes time linear in its length.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re

from mempo_jax.memory.bank_config import BankConfig
from mempo_jax.memory.ops import Op, OpError, OpKind

# An attribute list ends at the first "<" and the possessive quantifiers rule out
# backtracking: no text is scanned twice.
_TAG = re.compile(r'<(/?)([A-Za-z_]\w*+)((?:"[^"<]*+"|[^<>])*+)(>?)')
_ARGUMENT = re.compile(
    r"""\s*+([A-Za-z_]\w*+)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"']++))"""
)
_SEPARATORS = " \t\r\n/"  # one of these parts a tag name from what follows
BLOCK = "mem"  # the tag of the block that the context rule "rolling" carries along


@dataclasses.dataclass(frozen=True)
class Grammar:
    """The tag names, spelled in this one place.

    Attributes:
      write, recall, merge, delete: tags of the memory ops.
      act, answer: tags of an action and of the answer; with ``recall`` they end a turn.
      think: tag of a thought, in which no op is read.
      memory_prefix: a tag that begins so is an op, if only a malformed one.
      block: tag of memory that is rewritten as a whole; "" if there is no such op.
    """

    write: str = "mem_write"
    recall: str = "mem_recall"
    merge: str = "mem_merge"
    delete: str = "mem_delete"
    act: str = "act"
    answer: str = "answer"
    think: str = "think"
    memory_prefix: str = "mem_"
    block: str = ""

    def kinds(self) -> dict[str, str]:
        """Maps each tag name to its op kind."""
        block = {self.block: OpKind.REWRITE} if self.block else {}
        return block | {
            self.write: OpKind.WRITE,
            self.recall: OpKind.RECALL,
            self.merge: OpKind.MERGE,
            self.delete: OpKind.DELETE,
            self.act: OpKind.ACT,
            self.answer: OpKind.ANSWER,
        }


def closing_tags(grammar: Grammar | None = None) -> tuple[str, ...]:
    """Returns the tags at which generation of a turn stops.

    Args:
      grammar: tag names; the default grammar if None.
    """
    grammar = grammar or Grammar()
    return tuple(f"</{tag}>" for tag in _ending_tags(grammar))


def parse_ops(
    text: str,
    *,
    grammar: Grammar | None = None,
    limits: BankConfig | None = None,
    token_offsets=None,
) -> list[Op]:
    """Reads the ops of one turn in order of appearance, skipping prose and thoughts.

    Args:
      text: any string.
      grammar: tag names; the default grammar if None.
      limits: bounds; those of ``BankConfig()`` if None.
      token_offsets: [start, end) characters of each token, starts ascending; fills
        ``token_span`` with the tokens that overlap each op.

    Returns:
      The ops up to and including the first that ends the turn. Faults come back as ops
      of kind ``malformed`` with an ``error``; nothing is raised.
    """
    grammar = grammar or Grammar()
    limits = limits or BankConfig()
    ops = _cap_count(_scan(text, grammar, limits), grammar, limits)
    if token_offsets is None:
        return ops
    starts = [start for start, _ in token_offsets]
    ends = list(itertools.accumulate((end for _, end in token_offsets), max))
    return [
        dataclasses.replace(op, token_span=_token_span(op.span, starts, ends))
        for op in ops
    ]


def _ending_tags(grammar: Grammar) -> tuple[str, ...]:
    return (grammar.recall, grammar.act, grammar.answer)


@dataclasses.dataclass(slots=True)
class _Tag:
    """One tag in the text; ``partner`` is the index of the tag that closes it."""

    name: str
    attributes: str
    start: int
    end: int
    closing: bool
    complete: bool
    partner: int = -1

    @property
    def self_closing(self) -> bool:
        return self.complete and self.attributes.endswith("/")


def _scan(text: str, grammar: Grammar, limits: BankConfig) -> list[Op]:
    tags = _link_pairs(_drop_thoughts(_find_tags(text, grammar), grammar))
    enders = _ending_tags(grammar)
    ops, index = [], 0
    while index < len(tags):
        op, following = _read_op(text, tags, index, grammar, limits)
        ops.append(op)
        last = tags[following - 1]
        if last.closing and last.complete and last.name in enders:
            break
        index = following
    return ops


def _find_tags(text: str, grammar: Grammar) -> list[_Tag]:
    known = {*grammar.kinds(), grammar.think}
    tags = []
    for match in _TAG.finditer(text):
        slash, name, attributes, bracket = match.groups()
        memory = name.lower().startswith(grammar.memory_prefix)
        separated = not attributes or attributes[0] in _SEPARATORS
        if not (memory or (name in known and separated)):
            continue
        complete = bool(bracket)
        if complete or not (slash or name == grammar.think):
            # After an unfinished "<act" comes any prose: only the name is the tag.
            end = match.end() if complete else match.end(2)
            tags.append(
                _Tag(name, attributes, match.start(), end, bool(slash), complete)
            )
    return tags


def _drop_thoughts(tags: list[_Tag], grammar: Grammar) -> list[_Tag]:
    """Drops thoughts with all in them; a thought that never ends is ordinary text."""
    last_close = max(
        (i for i, tag in enumerate(tags) if tag.name == grammar.think and tag.closing),
        default=-1,
    )
    outside, thinking = [], False
    for index, tag in enumerate(tags):
        if tag.name == grammar.think:
            thinking = not tag.closing and (thinking or index < last_close)
        elif not thinking:
            outside.append(tag)
    return outside


def _link_pairs(tags: list[_Tag]) -> list[_Tag]:
    """Links each opening tag with its closing tag of the same name, innermost first."""
    waiting: dict[str, list[int]] = {}
    for index, tag in enumerate(tags):
        if not tag.complete or (not tag.closing and tag.self_closing):
            continue
        stack = waiting.setdefault(tag.name, [])
        if not tag.closing:
            stack.append(index)
        elif stack:
            tags[stack.pop()].partner = index
    return tags


def _read_op(text, tags, index, grammar, limits) -> tuple[Op, int]:
    """The op that starts at ``tags[index]``, and the index of the next unread tag."""
    tag = tags[index]
    kind = grammar.kinds().get(tag.name)
    last = tag.partner if tag.partner >= 0 else index
    span, following = (tag.start, tags[last].end), last + 1
    if kind is None:
        return _malformed(tag, span, OpError.UNKNOWN_TAG), following
    if tag.closing:
        return _malformed(tag, span, OpError.STRAY_CLOSING_TAG), following
    if not tag.self_closing and tag.partner < 0:
        end = tags[following].start if following < len(tags) else len(text)
        return _malformed(tag, (tag.start, end), OpError.UNCLOSED_TAG), following
    if last > index + 1:
        return _malformed(tag, span, OpError.NESTED_TAG), following
    content = text[tag.end : tags[last].start].strip() if last > index else ""
    args, error = _read_arguments(kind, tag, limits)
    error = error or _content_error(kind, content, args, limits)
    if error and error != OpError.K_OVER_CAP:
        return _malformed(tag, span, error, content), following
    return Op(kind, args, content, span, error), following


def _malformed(tag: _Tag, span, error: str, content: str = "") -> Op:
    return Op(OpKind.MALFORMED, {"tag": tag.name}, content, span, error)


def _read_arguments(
    kind: str, tag: _Tag, limits: BankConfig
) -> tuple[dict, str | None]:
    """Reads the arguments of a tag, typed, and what is wrong with them."""
    if kind in (OpKind.ACT, OpKind.ANSWER, OpKind.REWRITE):
        return {}, None
    attributes = tag.attributes[:-1] if tag.self_closing else tag.attributes
    values, position = {}, 0
    attributes = attributes.strip()
    while position < len(attributes):
        match = _ARGUMENT.match(attributes, position)
        if match is None or match[1] in values:
            return {}, OpError.BAD_ARGUMENT
        values[match[1]] = next(
            value for value in match.groups()[1:] if value is not None
        )
        position = match.end()
    allowed = {"write": "title", "recall": "k"}.get(kind, "ids")
    if values.keys() - {allowed}:
        return {}, OpError.BAD_ARGUMENT
    if allowed == "title":
        title = values.get("title", "").strip()
        return ({"title": title} if title else {}), None
    if allowed == "k":
        return _read_k(values, limits.retrieval_top_k)
    return _read_ids(values, least=2 if kind == OpKind.MERGE else 1)


def _read_k(values: dict, cap: int) -> tuple[dict, str | None]:
    if "k" not in values:
        return {}, None
    digits = values["k"].strip()
    if not (digits.isascii() and digits.isdigit()) or not digits.strip("0"):
        return {}, OpError.BAD_ARGUMENT
    digits = digits.lstrip("0")
    # int() refuses very long digit strings: lengths are compared first.
    if len(digits) > 9 or int(digits) > cap:
        return {"k": cap}, OpError.K_OVER_CAP
    return {"k": int(digits)}, None


def _read_ids(values: dict, least: int) -> tuple[dict, str | None]:
    if "ids" not in values or not values["ids"].strip():
        return {}, OpError.MISSING_ARGUMENT
    parts = values["ids"].replace(",", " ").split()
    # Twelve digits are more than any bank has; int() of far longer ones raises.
    if not parts or not all(
        part.isascii() and part.isdigit() and len(part) <= 12 for part in parts
    ):
        return {}, OpError.BAD_ARGUMENT
    ids = tuple(int(part) for part in parts)
    if len(set(ids)) < len(ids):
        return {}, OpError.DUPLICATE_ID
    return ({"ids": ids}, None) if len(ids) >= least else ({}, OpError.BAD_ARGUMENT)


def _content_error(
    kind: str, content: str, args: dict, limits: BankConfig
) -> str | None:
    if not content and kind not in (OpKind.MERGE, OpKind.DELETE, OpKind.REWRITE):
        return OpError.EMPTY_CONTENT
    if kind in (OpKind.WRITE, OpKind.MERGE):
        length = len(content) + len(args.get("title", ""))
        return OpError.TEXT_TOO_LONG if length > limits.max_entry_chars else None
    return None


def _cap_count(ops: list[Op], grammar: Grammar, limits: BankConfig) -> list[Op]:
    """Makes well-formed ops after the first ``max_ops_per_turn`` malformed."""
    tag_of = {kind: name for name, kind in grammar.kinds().items()}
    capped, count = [], 0
    for op in ops:
        count += op.kind != OpKind.MALFORMED
        if op.kind != OpKind.MALFORMED and count > limits.max_ops_per_turn:
            args = {"tag": tag_of[op.kind]}
            op = Op(OpKind.MALFORMED, args, op.content, op.span, OpError.TOO_MANY_OPS)
        capped.append(op)
    return capped


def _token_span(span, starts: list[int], ends: list[int]) -> tuple[int, int]:
    """Tokens that overlap ``span``: starts and running maxima of ends ascend."""
    first = bisect.bisect_right(ends, span[0])
    last = bisect.bisect_left(starts, span[1])
    return (first, max(first, last))

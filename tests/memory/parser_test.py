"""The parser: golden corpus of broken tags, totality, linear time, token spans."""

import json
import pathlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_jax.memory import (
    BankConfig,
    Grammar,
    OpError,
    OpKind,
    closing_tags,
    error_message,
    parse_ops,
)

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "broken_tags.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))
PIECES = [
    "<mem_write>",
    '<mem_write title="',
    '<mem_write title="t">',
    "</mem_write>",
    '<mem_recall k="',
    '">',
    "<mem_recall>",
    "</mem_recall>",
    '<mem_merge ids="1,2">',
    "</mem_merge>",
    '<mem_delete ids="1"/>',
    "<mem_x>",
    "</mem_x>",
    "<act>",
    "</act>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "<",
    ">",
    "/",
    '"',
    "9" * 5000,
    "é",
    "\ud800",
    "\x00",
    "words ",
]


def shown(op):
    start, end = op.span
    return f"{op.kind}|{op.error or ''}|{op.content}|{start}:{end}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"][:40])
def test_golden_corpus(case):
    assert [shown(op) for op in parse_ops(case["text"])] == case["ops"]


def check_total(text):
    ops = parse_ops(text)
    end = 0
    for op in ops:
        assert op.kind in set(OpKind) - {OpKind.SKIP}
        assert end <= op.span[0] < op.span[1] <= len(text)
        assert (op.kind == OpKind.MALFORMED) == (
            op.error is not None and op.error != OpError.K_OVER_CAP
        )
        assert op.error is None or error_message(op.error, op)
        end = op.span[1]
    ended = [op.kind in (OpKind.RECALL, OpKind.ACT, OpKind.ANSWER) for op in ops]
    assert not any(ended[:-1])
    good = [op for op in ops if op.kind != OpKind.MALFORMED]
    assert len(good) <= BankConfig().max_ops_per_turn


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_mixture_of_tag_pieces_parses(text):
    check_total(text)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec=None), max_size=200))
def test_any_unicode_parses(text):
    check_total(text)
    check_total(f"<mem_write>{text}")
    check_total(f'<mem_recall k="{text}">q</mem_recall>')


@pytest.mark.parametrize(
    "piece",
    [
        "<mem_write>",
        "</mem_write>",
        "<mem_write ",
        '<mem_write "',
        '<mem_write title="',
        "<think>",
        "<mem_write><think>",
        "<",
        '"',
        "<act",
        '<mem_delete ids="1',
        "<mem_write>a</mem_write>",
        "<mem_x>" + "a" * 5,
        " a=1",
    ],
)
def test_time_is_linear_in_length(piece):
    def seconds(length):
        text = "<mem_write " + piece * (length // len(piece))
        start = time.process_time()
        parse_ops(text)
        return time.process_time() - start

    small = min(seconds(15_000) for _ in range(3))
    large = min(seconds(120_000) for _ in range(2))
    assert large < 8 * small * 3 + 0.05  # a quadratic parser needs 64 times as long


def test_arguments_are_typed():
    (write,) = parse_ops('<mem_write title=" Ann ">phone 17</mem_write>')
    assert (write.args, write.content) == ({"title": "Ann"}, "phone 17")
    (recall,) = parse_ops('<mem_recall k="3">ann</mem_recall>')
    assert recall.args == {"k": 3}
    (merge,) = parse_ops('<mem_merge ids="3,7">x</mem_merge>')
    assert merge.args == {"ids": (3, 7)}


def test_k_over_the_cap_is_clamped_run_and_flagged():
    (op,) = parse_ops(f'<mem_recall k="{"9" * 5000}">q</mem_recall>')
    assert (op.kind, op.args, op.error) == (
        OpKind.RECALL,
        {"k": BankConfig().retrieval_top_k},
        OpError.K_OVER_CAP,
    )


def test_limits_come_from_the_config():
    limits = BankConfig(max_entry_chars=5, max_ops_per_turn=1)
    text = "<mem_write>12345</mem_write><mem_write>6</mem_write>"
    first, second = parse_ops(text, limits=limits)
    assert first.kind == OpKind.WRITE
    assert second.error == OpError.TOO_MANY_OPS
    (long,) = parse_ops("<mem_write>123456</mem_write>", limits=limits)
    assert long.error == OpError.TEXT_TOO_LONG


def test_the_title_counts_towards_the_length():
    limits = BankConfig(max_entry_chars=5)
    (op,) = parse_ops('<mem_write title="123">456</mem_write>', limits=limits)
    assert op.error == OpError.TEXT_TOO_LONG


def test_names_are_configurable_in_one_place():
    grammar = Grammar(write="note", act="do")
    ops = parse_ops("<note>a</note><do>b</do>", grammar=grammar)
    assert [(op.kind, op.content) for op in ops] == [("write", "a"), ("act", "b")]
    assert closing_tags(grammar) == ("</mem_recall>", "</do>", "</answer>")
    assert parse_ops("<note>a</note>") == []


def test_an_argument_may_hold_a_bracket_but_no_tag():
    (op,) = parse_ops('<mem_write title="a > b">c</mem_write>')
    assert op.args == {"title": "a > b"}


def spans(text, pieces):
    """Token spans of the ops of ``text`` cut into ``pieces``."""
    offsets, place = [], 0
    for piece in pieces:
        offsets.append((place, place + len(piece)))
        place += len(piece)
    assert "".join(pieces) == text
    return [op.token_span for op in parse_ops(text, token_offsets=offsets)]


def test_token_span_with_one_token_a_tag():
    pieces = ["hi ", "<mem_write>", "a", "</mem_write>", " ", "<act>", "go", "</act>"]
    assert spans("".join(pieces), pieces) == [(1, 4), (5, 8)]


def test_token_span_with_tags_split_over_tokens():
    pieces = ["hi", " ", "<", "mem", "_write", ">a", "</mem", "_wri", "te>", " b"]
    assert spans("".join(pieces), pieces) == [(2, 9)]


def test_a_token_glued_to_two_ops_belongs_to_both():
    pieces = ["<mem_write>a</mem_write", "><mem_write", ">b</mem_write>."]
    assert spans("".join(pieces), pieces) == [(0, 2), (1, 3)]


def test_characters_split_over_tokens_belong_with_all_their_tokens():
    text = "<act>é</act>é"
    # Both halves of a character cover it.
    offsets = [(0, 5), (5, 6), (5, 6), (6, 12), (12, 13), (12, 13)]
    (op,) = parse_ops(text, token_offsets=offsets)
    assert op.token_span == (0, 4)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
)
def test_token_span_is_every_token_that_overlaps(text, widths):
    offsets, place, turn = [], 0, 0
    while place < len(text):
        width = widths[turn % len(widths)]
        offsets.append((place, min(place + width, len(text))))
        place, turn = place + width, turn + 1
    for op in parse_ops(text, token_offsets=offsets):
        start, end = op.span
        expected = [i for i, (s, e) in enumerate(offsets) if s < end and e > start]
        assert list(range(*op.token_span)) == expected


def test_error_message_of_an_unknown_error():
    with pytest.raises(ValueError, match="odd"):
        error_message("odd")


def test_a_block_is_an_op_where_the_grammar_has_one():
    text = "<mem> a </mem><mem/><mem><act>b</act></mem><mem_x/></mem>"
    ops = parse_ops(text, grammar=Grammar(block="mem"))
    assert [shown(op) for op in ops] == [
        "rewrite||a|0:14",
        "rewrite|||14:20",
        "malformed|nested_tag||20:43",
        "malformed|unknown_tag||43:51",
        "malformed|stray_closing_tag||51:57",
    ]
    kinds = [op.kind for op in parse_ops(text)]
    assert OpKind.REWRITE not in kinds
    assert kinds[0] == OpKind.ACT
    assert OpKind.REWRITE not in Grammar().kinds().values()

"""Wrong arguments: a clear error or outcome; nothing half done, the bank valid."""

import dataclasses

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig, OpError, make_embedder

EMBEDDER = make_embedder("hashing", dim=32)
NAN = float("nan")


def bank_of(*texts, **config):
    bank = Bank(BankConfig(**config), EMBEDDER, "t")
    for step, text in enumerate(texts):
        bank.write(text, step=step)
    return bank


def call(method, *arguments, **named):
    return lambda bank: getattr(bank, method)(*arguments, **named)


def write(text="new fact", step=3, **named):
    return call("write", text, step=step, **named)


def recall(query="ann", step=3, **named):
    return call("recall", query, step=step, **named)


CALLER_FAULTS = [
    *((write(text), TypeError, "write: text") for text in (None, 7, b"ann", ["ann"])),
    *((write(title=title), TypeError, "write: title") for title in (7, b"x", ["x"])),
    *((recall(query), TypeError, "recall: query") for query in (None, 3, b"ann")),
    *((recall(k=k), TypeError, "recall: k") for k in ("2", True, 2.7, [1], NAN)),
    *((recall(k=k), ValueError, "recall: k") for k in (0, -1, np.int64(0))),
    *(
        (op(step=step), error, "step")
        for op in (write, recall)
        for step, error in (
            (-1, ValueError),
            (2**31, ValueError),
            (10**40, ValueError),
            (None, TypeError),
            (1.0, TypeError),
            (NAN, TypeError),
            ("1", TypeError),
            (True, TypeError),
        )
    ),
    *(
        (call(method, ids, step=3), TypeError, f"{method}: expected")
        for method in ("merge", "delete")
        for ids in (
            ["0", "1"],
            "0,1",
            b"01",
            [0.0, 1.0],
            [True, False],
            [0, None],
            [0, NAN],
            np.array([0.0, 1.0]),
            0,
            None,
        )
    ),
    *(
        (call("merge", [0, 1], text=t, step=3), TypeError, "merge: text")
        for t in (7, b"x")
    ),
    *(
        (call(m, [0, 1], step=-1), ValueError, f"{m}: step")
        for m in ("merge", "delete")
    ),
    *(
        (write(token_span=span), error, "token_span")
        for span, error in (
            ((3, 1), ValueError),
            ((-1, 1), ValueError),
            ((1,), TypeError),
            ((1.5, 2), TypeError),
            ("ab", TypeError),
        )
    ),
    (call("note", "rubbish", step=0), ValueError, "rubbish"),
    (call("note", "act", step=0, text=None), TypeError, "note: text"),
    (call("note", "act", step=0, error=5), TypeError, "note: error"),
    *((call("at", step), TypeError, "at: step") for step in (None, 1.5, "1", True)),
    (call("fork", None), TypeError, "trajectory_id"),
    (call("candidates", None, 3), TypeError, "candidates: query"),
    (call("candidates", "ann", -1), ValueError, "candidates: n"),
    (call("candidates", "ann", 2.0), TypeError, "candidates: n"),
    (call("hygiene", "now"), TypeError, "hygiene: step"),
    (call("hygiene", similar="much"), TypeError, "hygiene: similar"),
    (call("hygiene", similar=NAN), ValueError, "hygiene: similar"),
    (call("hygiene", probes=-1), ValueError, "hygiene: probes"),
    *(
        (call("entry", key), KeyError, "expected an id")
        for key in (True, "0", 9, -1, 0.0)
    ),
]


@pytest.mark.parametrize(("op", "error", "words"), CALLER_FAULTS)
def test_faults_of_the_caller_raise_and_change_nothing(op, error, words):
    bank = bank_of("ann phone 17", "bob email 23")
    entries, log = bank.entries, list(bank.log)
    with pytest.raises(error, match=words):
        op(bank)
    assert (bank.entries, bank.log) == (entries, log)
    bank.check_valid()


POLICY_FAULTS = [
    (write(""), OpError.EMPTY_CONTENT),
    (write(" \n\t"), OpError.EMPTY_CONTENT),
    (write("x" * 2**20), OpError.TEXT_TOO_LONG),
    (write("short", title="x" * 2000), OpError.TEXT_TOO_LONG),
    (call("merge", [0, 1], text="y" * 2**20, step=3), OpError.TEXT_TOO_LONG),
    (call("merge", [0], step=3), OpError.BAD_ARGUMENT),
    (call("merge", [0, 4], step=3), OpError.UNKNOWN_ID),  # itself, once made
    *(
        (call(method, ids, step=3), error)
        for method in ("merge", "delete")
        for ids, error in (
            ([], OpError.MISSING_ARGUMENT),
            ((), OpError.MISSING_ARGUMENT),
            ([0, 99], OpError.UNKNOWN_ID),
            ([0, -1], OpError.UNKNOWN_ID),
            ([0, 2**63], OpError.UNKNOWN_ID),
            ([0, 10**40], OpError.UNKNOWN_ID),
            ([0, 2], OpError.INACTIVE_ID),
            ([0, 3, 0], OpError.DUPLICATE_ID),
            ([1, 1], OpError.DUPLICATE_ID),
        )
    ),
]


@pytest.mark.parametrize(("op", "error"), POLICY_FAULTS)
def test_faults_of_the_policy_are_outcomes(tmp_path, op, error):
    bank = bank_of("ann phone 17", "bob email 23", "carl", "dora desk 5")
    bank.delete([2], step=2)
    entries, count = bank.entries, len(bank.log)
    result = op(bank)
    assert (result.outcome, result.error) == ("error", error)
    assert bank.entries == entries
    assert [record.error for record in bank.log[count:]] == [error]
    bank.check_valid()
    bank.save(tmp_path / "bank")  # whatever the policy named, the log can be kept
    assert Bank.load(tmp_path / "bank", EMBEDDER).log == bank.log


def test_what_is_unusual_but_right():
    bank = bank_of("ann phone 17", "bob email 23", "carl desk 5")
    assert len(bank.recall("ann", k=np.int64(2), step=np.int32(3))) == 2
    assert len(bank.recall("", step=3)) == 3
    assert len(bank.recall("x" * 2**20, step=3)) == 3
    assert bank.merge((i for i in (0, 1)), step=4).outcome == "merged"
    assert bank.delete(iter([np.int64(2)]), step=5).outcome == "deleted"
    assert bank.recall("ann", step=2**31 - 1)
    assert type(bank.log[3].turn) is int
    bank.write("dora", step=6, token_span=[np.int64(1), 4])
    assert bank.log[-1].token_span == (1, 4)
    assert bank.at(-(10**5)).entries == []
    bank.check_valid()


def test_an_entry_of_a_megabyte(tmp_path):
    bank = bank_of(max_entry_chars=2 * 2**20, merge_max_chars=2 * 2**20)
    text = "word " * (2**20 // 5)
    assert bank.write(text, step=0).outcome == "new"
    bank.recall("word", step=1)
    bank.check_valid()
    bank.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entry(0).text == text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("capacity", value) for value in (1.5, "3", None, True, -1, NAN)),
        *(("retrieval_top_k", value) for value in (0, 2.0, "6", False)),
        *(("merge_threshold", value) for value in (NAN, "x", None, 1.5, True)),
        *(("mmr_lambda", value) for value in (NAN, "x", -0.1, float("inf"))),
        ("judge", 3),
        ("judge", None),
        ("enabled", "yes"),
        ("enabled", 1),
        ("max_entry_chars", 1e3),
    ],
)
def test_settings_of_a_wrong_kind_are_refused_by_name(field, value):
    with pytest.raises(
        ValueError, match=f"BankConfig.{field} must be .*memory.{field}"
    ):
        BankConfig(**{field: value})


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((BankConfig(), None), "embedder"),
        ((BankConfig(), "hashing"), "embedder"),
        ((BankConfig(), EMBEDDER, 3), "trajectory_id"),
    ],
)
def test_a_bank_of_wrong_parts_is_refused(arguments, word):
    with pytest.raises(TypeError, match=word):
        Bank(*arguments)


def test_from_texts_of_what_is_no_text():
    for texts in ([None], ["ann", 7], [b"ann"]):
        with pytest.raises(TypeError, match="from_texts: a text"):
            Bank.from_texts(texts, BankConfig(), EMBEDDER)


def test_a_record_that_does_not_fit_changes_nothing():
    """A log that was altered, or that belongs to another bank, applied by hand."""
    bank = bank_of("ann phone 17", "bob email 23", "carl desk 5")
    other = bank.fork("u")
    other.delete([0], step=3)
    other.merge([1, 2], step=3)
    deleted, merged = other.log
    entries, log = bank.entries, list(bank.log)
    for record in (
        dataclasses.replace(deleted, entry_ids=(0, 0)),
        dataclasses.replace(deleted, entry_ids=(0, 9)),
        dataclasses.replace(merged, entry_ids=(3, 1, 1)),
        dataclasses.replace(merged, entry_ids=(3, 1, 2), evicted=(1,)),
        dataclasses.replace(merged, entry_ids=(4, 1, 2)),
        dataclasses.replace(merged, entry_ids=()),
        dataclasses.replace(merged, evicted=(3,)),
    ):
        with pytest.raises(ValueError, match="log"):
            bank.apply(record)
        assert (bank.entries, bank.log) == (entries, log)
        bank.check_valid()
    bank.delete([0], step=3)
    with pytest.raises(ValueError, match="not active"):
        bank.apply(deleted)
    assert len(bank.log) == len(log) + 1
    for vector in (np.zeros(EMBEDDER.dim, np.float32), np.ones(3, np.float32)):
        with pytest.raises(ValueError, match="unit norm"):
            bank.apply(merged, vector)
        bank.check_valid()

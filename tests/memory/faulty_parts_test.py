"""An embedder, judge or summary that breaks: a clear error, and nothing has changed."""

import numpy as np
import pytest

from mempo_jax.memory import Bank, BankConfig, Verdict, make_embedder
from mempo_jax.memory import index as index_lib

EMBEDDER = make_embedder("hashing", dim=32)


def bank_of(*texts, embedder=EMBEDDER, callables=None, **config):
    bank = Bank(BankConfig(**config), embedder, "t", **(callables or {}))
    for step, text in enumerate(texts):
        bank.write(text, step=step)
    return bank


class Faulty:
    """The hashing embedder, until it is told to break."""

    name, dim = "faulty", EMBEDDER.dim

    def __init__(self):
        self.fault = None

    def embed(self, texts):
        rows = EMBEDDER.embed(texts)
        return rows if self.fault is None else self.fault(rows)


def raises(rows):
    raise ConnectionError("the embedding server is gone")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda rows: rows[:, :-1], ValueError),
        (lambda rows: rows[0], ValueError),
        (lambda rows: rows[:0], ValueError),
        (lambda rows: np.concatenate([rows, rows]), ValueError),
        (lambda rows: rows * np.float32(np.nan), ValueError),
        (lambda rows: rows + np.float32(np.inf), ValueError),
        (lambda rows: rows * 0, ValueError),
        (lambda rows: rows * 2, ValueError),
        (lambda rows: rows.astype(np.float64), ValueError),
        (lambda rows: rows.astype(np.float16), ValueError),
        (lambda rows: rows.astype(object), ValueError),
        (lambda rows: None, ValueError),
        (lambda rows: [[1.0, 2.0], [3.0]], ValueError),
        (raises, ConnectionError),
    ],
)
def test_an_embedder_that_breaks_changes_nothing(fault, error):
    embedder = Faulty()
    bank = bank_of("ann phone 17", "bob email 23", embedder=embedder)
    entries, log = bank.entries, list(bank.log)
    embedder.fault = fault
    for method, arguments in (
        ("write", {"text": "new fact", "step": 3}),
        ("recall", {"query": "ann", "step": 3}),
        ("merge", {"ids": [0, 1], "step": 3}),
        ("candidates", {"query": "ann", "n": 1}),
    ):
        with pytest.raises(error, match=r"faulty|server is gone"):
            getattr(bank, method)(**arguments)
        assert (bank.entries, bank.log) == (entries, log)
        bank.check_valid()
    with pytest.raises(error):
        Bank.from_texts(["ann", "bob"], BankConfig(), embedder)
    embedder.fault = None
    assert bank.write("carl desk 5", step=3).outcome == "new"


@pytest.mark.parametrize("read_only", [False, True])
def test_an_embedder_may_write_over_what_it_gave(read_only):
    buffer = np.zeros((8, EMBEDDER.dim), np.float32)

    def reuse(rows):
        buffer[: len(rows)] = rows
        view = buffer[: len(rows)]
        view.setflags(write=not read_only)
        return view

    embedder = Faulty()
    embedder.fault = reuse
    bank = bank_of("ann phone 17", "bob email 23", embedder=embedder)
    bulk = Bank.from_texts(["ann phone 17", "bob email 23"], BankConfig(), embedder)
    buffer[:] = np.nan
    for each in (bank, bulk):
        each.check_valid()
        embedder.fault = None
        assert each.candidates("bob email 23", 1) == [1]
        embedder.fault = reuse
        with pytest.raises(ValueError, match="read-only"):
            each.entry(0).embedding[0] = 1


class Judge:
    def __init__(self, verdict):
        self.verdict = verdict

    def __call__(self, new, old):
        return raises(None) if self.verdict is raises else self.verdict


class BatchJudge(Judge):
    def many(self, pairs):
        return [self(new, old) for new, old in pairs]


@pytest.mark.parametrize("kind", [Judge, BatchJudge])
@pytest.mark.parametrize("verdict", ["yes", None, True, 0, raises])
def test_a_judge_that_breaks_changes_nothing(kind, verdict):
    bank = bank_of("ann phone 17", callables={"judge": kind(verdict)})
    entries, log = bank.entries, list(bank.log)
    error = ConnectionError if verdict is raises else ValueError
    with pytest.raises(error, match=r"judge|server is gone"):
        bank.write("bob email 23", step=3)
    assert (bank.entries, bank.log) == (entries, log)
    bank.check_valid()


def test_a_judge_may_answer_in_plain_words():
    bank = bank_of("ann", callables={"judge": lambda new, old: str(Verdict.REPEATS)})
    assert bank.write("bob", step=1).outcome == "duplicate"


@pytest.mark.parametrize(
    ("summarise", "error"),
    [
        (lambda text, most: None, TypeError),
        (lambda text, most: 7, TypeError),
        (lambda text, most: raises(None), ConnectionError),
    ],
)
def test_a_summary_that_fails_changes_nothing(summarise, error):
    bank = bank_of(
        "ann phone 17",
        "bob email 23",
        callables={"summarise": summarise},
        merge_max_chars=10,
    )
    entries, log = bank.entries, list(bank.log)
    with pytest.raises(error, match=r"summarise|server is gone"):
        bank.merge([0, 1], step=3)
    assert (bank.entries, bank.log) == (entries, log)
    bank.check_valid()


def test_an_index_that_cannot_follow_is_built_anew(monkeypatch):
    bank = Bank(BankConfig(), make_embedder("hashing"))
    bank.write("ann likes tea", step=0)
    bank.candidates("tea", 1)

    def refuse(self, entry_id, vector):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(index_lib.Index, "add", refuse)
        with pytest.warns(UserWarning, match="built anew"):
            bank.write("rome is a city", step=1)
    bank.check_valid()
    assert bank.candidates("rome is a city", 1) == [1]

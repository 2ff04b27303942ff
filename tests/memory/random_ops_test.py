"""Ten thousand random ops on one bank: valid throughout, and all its copies agree."""

import random
import warnings

import pytest

from mempo_jax.memory import Bank, BankConfig, make_embedder, replay

EMBEDDER = make_embedder("hashing", dim=32, cache_size=200)
NAMES = ["ann", "bob", "carl", "dora", "eve", "finn", "gus", "hana"]
THINGS = ["phone", "email", "desk", "room", "city", "dog", "is not", "prefers"]
CONFIG = {
    "retrieval_top_k": 3,
    "merge_threshold": 0.8,
    "merge_max_chars": 60,
    "max_entry_chars": 80,
}


def sentence(draw):
    words = [draw.choice(NAMES), draw.choice(THINGS), str(draw.randint(0, 60))]
    if draw.random() < 0.2:
        words += ["since", draw.choice(NAMES)]
    return " ".join(words)


def some_ids(draw, bank):
    """Mostly ids of new active entries; tombstones, unknown and repeated ones too."""
    count = len(bank._table)
    known = [entry.id for entry in bank._table.newest(8)] * 3 + [-1, count, count // 2]
    return [draw.choice(known) for _ in range(draw.randint(0, 3))]


def act(draw, bank, step):
    """One random op with arguments that a policy might give."""
    kind = draw.choices(
        ["write", "recall", "merge", "delete", "note"], [50, 25, 8, 8, 9]
    )[0]
    if kind == "write":
        known = [entry.text for entry in bank._table.newest(2)]
        text = draw.choice([sentence(draw)] * 20 + ["", " ", "long " * 30] + known)
        bank.write(text, title=draw.choice([None, None, "note"]), step=step)
    elif kind == "recall":
        hits = bank.recall(sentence(draw), k=draw.choice([None, 1, 3, 50]), step=step)
        assert all(hit.entry.status == "active" for hit in hits)
        assert len(hits) <= 3
    elif kind == "merge":
        text = draw.choice([None, sentence(draw), "x" * 200])
        bank.merge(some_ids(draw, bank), text=text, step=step)
    elif kind == "delete":
        bank.delete(some_ids(draw, bank), step=step)
    else:
        error = draw.choice([None, "nested_tag"])
        kind = "malformed" if error else "skip"
        bank.note(kind, step=step, error=error, token_span=(1, 5))


def run(bank, count, check_every, draw):
    """Ops with forks and looks back among them; entries as they stood at each step."""
    seen, forks, step = {-1: bank.entries}, [], 0
    for number in range(count):
        act(draw, bank, step)
        if number % check_every == 0:
            bank.check_valid()
        if draw.random() < 0.3:
            if draw.random() < 0.02:
                seen[step] = bank.entries
            step += 1
        if draw.random() < 0.002:
            twin = bank.fork("twin")
            for _ in range(10):
                act(draw, twin, step)
            forks.append((twin, twin.entries))
        if draw.random() < 0.001:
            past = bank.at(draw.randint(0, step))
            for _ in range(5):
                act(draw, past, step)
            past.check_valid()
    bank.check_valid()
    return seen, forks


@pytest.mark.parametrize(
    ("capacity", "count", "check_every"), [(0, 10_000, 500), (12, 600, 1)]
)
def test_a_long_life(tmp_path, capacity, count, check_every):
    config = BankConfig(capacity=capacity, **CONFIG)
    initial = Bank.from_texts(["ann phone 17", "rome"], config, EMBEDDER, "world")
    bank = initial.fork("t")
    draw = random.Random(capacity)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the merge rate
        seen, forks = run(bank, count, check_every, draw)
        again = replay(initial, bank.log, "t")
    outcomes = {record.outcome for record in bank.log}
    assert outcomes == {
        *("new", "merged", "duplicate", "recalled", "deleted", "noted", "error")
    }
    assert again.entries == bank.entries  # bit for bit, vectors included
    assert again.log == bank.log
    for step in sorted(draw.sample(sorted(seen), min(50, len(seen)))):
        assert bank.at(step).entries == seen[step]
    bank.save(tmp_path / "bank")
    loaded = Bank.load(tmp_path / "bank", EMBEDDER)
    assert (loaded.entries, loaded.log) == (bank.entries, bank.log)
    for twin, entries in forks:
        assert twin.entries == entries
        twin.check_valid()
    hits = [
        each.fork("x").recall("ann phone", step=0) for each in (bank, again, loaded)
    ]
    assert hits[0] == hits[1] == hits[2]

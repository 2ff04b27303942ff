"""Whom the cap pushes out: always whom the plain rule names."""

import random
import zlib

import numpy as np

from mempo_jax.memory import Bank, BankConfig, Status

DIM = 8


class Scattered:
    """A random direction for each text, the same whenever it comes."""

    name, dim = "scattered", DIM

    def embed(self, texts):
        rows = [
            np.random.default_rng(zlib.crc32(t.encode())).normal(size=DIM)
            for t in texts
        ]
        rows = np.asarray(rows, np.float32).reshape(len(texts), DIM)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


CONFIG = BankConfig(capacity=30, judge="always", merge_threshold=1.01)


def by_the_rule(bank, count=1):
    """The rule, spelt out: fewest accesses, then oldest access, then oldest entry."""
    order = sorted(bank.active, key=lambda e: (e.access_count, e.step_accessed, e.id))
    return tuple(entry.id for entry in order[:count])


def act(bank, draw, step):
    """One random op; a write over the cap must push out whom the rule names."""
    kind = draw.choice(["write", "write", "recall", "delete", "merge"])
    active = [entry.id for entry in bank.active]
    if kind == "write":
        full = len(bank) == bank.config.capacity
        wanted = by_the_rule(bank) if full else ()
        bank.write(f"fact {draw.random()}", step=step)
        assert bank.log[-1].evicted == wanted
        assert all(bank.entry(i).reason == "evicted" for i in wanted)
        return full
    if kind == "recall":
        bank.recall(f"fact {draw.random()}", k=draw.randint(1, 6), step=step)
    elif kind == "delete" and draw.random() < 0.3 and active:
        bank.delete([draw.choice(active)], step=step)
    elif kind == "merge" and draw.random() < 0.3 and len(active) > 1:
        bank.merge(draw.sample(active, 2), text=f"both {draw.random()}", step=step)
    return False


def test_the_queue_names_whom_the_rule_names():
    draw, evictions = random.Random(0), 0
    bank = Bank(CONFIG, Scattered(), "t")
    for number in range(1500):
        # Steps repeat, and may go backwards.
        evictions += act(bank, draw, step=max(0, number // 3 - draw.randint(0, 2)))
        if number % 100 == 0:
            bank.check_valid()
    assert evictions > 200


def test_forks_keep_their_own_order():
    draw = random.Random(1)
    banks = [Bank.from_texts([f"base {i}" for i in range(30)], CONFIG, Scattered())]
    evictions = 0
    for number in range(1200):
        evictions += act(draw.choice(banks), draw, step=number // 4)
        if number % 100 == 50:
            parent = draw.choice(banks)
            twin = parent.next_task("n") if number % 200 == 50 else parent.fork("f")
            banks.append(twin)
            past = parent.at(number // 8)
            act(past, draw, step=number // 4)
    assert evictions > 200
    assert len(banks) == 13
    for bank in banks:
        bank.check_valid()


def test_several_go_where_several_are_too_many():
    bank = Bank.from_texts(
        [f"base {i}" for i in range(50)], BankConfig(judge="always"), Scattered()
    )
    for number in range(10):
        bank.recall(f"base {number}", k=3, step=number)
    wanted = by_the_rule(bank, 20)
    assert bank._table.first_to_go(20) == wanted
    assert bank._table.first_to_go(3) == wanted[:3]  # looking takes nobody away
    bank.delete(list(wanted[:2]), step=11)
    assert bank._table.first_to_go(3) == wanted[2:5]
    assert all(bank.entry(i).status == Status.ACTIVE for i in wanted[2:])

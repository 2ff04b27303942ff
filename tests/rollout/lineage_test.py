import dataclasses

import pytest

from mempo_jax.memory import OpRecord
from mempo_jax.memory.lineage import Lineage, SameMeaning


def record(turn, kind, outcome, *ids, **more):
    return OpRecord(turn, kind, outcome, ids, **more)


def write(turn, *ids, **more):
    return record(turn, "write", "merged" if ids[1:] else "new", *ids, **more)


LOG = [
    write(0, 0, stored="a"),
    write(1, 1, stored="b"),
    record(2, "skip", "noted"),
    write(3, 2, 0, stored="a\nc"),  # joined to entry 0
    record(4, "merge", "merged", 3, 2, 1, stored="a\nc\nb"),
    write(5, 4, 3, stored="d", supersedes=True),
    write(6, 5, stored="e", evicted=(4,)),
    record(7, "delete", "deleted", 5),
    record(8, "write", "duplicate", 5),
    record(9, "write", "error"),
]


@pytest.mark.parametrize(
    ("entry", "writes", "merges"),
    [
        (0, {0}, ()),
        (2, {0, 3}, ()),
        (3, {0, 1, 3}, (4,)),
        (4, {5}, ()),  # what it superseded has no share
        (77, set(), ()),  # of an initial bank
    ],
)
def test_an_entry_is_shared_by_the_writes_it_came_from(entry, writes, merges):
    lineage = Lineage(LOG)
    shares = lineage.shares(entry)
    assert set(shares) == writes
    assert sum(shares.values()) == pytest.approx(1.0 if writes else 0.0)
    assert len(set(shares.values())) <= 1
    assert lineage.merges(entry) == merges


def test_an_update_takes_back_what_it_changes_and_leaves_the_rest_to_its_writes():
    log = [
        write(0, 0, text="ann desk is 17", stored="ann desk is 17"),
        write(1, 1, 0, text="ben bus is 20", stored="ann desk is 17\nben bus is 20"),
        write(2, 2, 1, text="ann desk is 18", stored="ben bus is 20\nann desk is 18"),
    ]
    log[2] = dataclasses.replace(log[2], supersedes=True)
    lineage = Lineage(log)
    assert lineage.shares(2) == {1: 0.5, 2: 0.5}
    assert [lineage.replaced_at(k) for k in range(3)] == [2, None, None]
    last = write(3, 3, 2, text="all is new", stored="all is new", supersedes=True)
    lineage = Lineage([*log, last])
    assert lineage.shares(3) == {3: 1.0}
    assert [lineage.replaced_at(k) for k in range(4)] == [2, 3, 3, None]


def test_entries_live_until_they_are_merged_superseded_evicted_or_deleted():
    living = [Lineage(LOG).alive(end) for end in range(len(LOG) + 1)]
    expected = [set(), {0}, {0, 1}, {0, 1}, {1, 2}, {3}, {4}, {5}, set(), set(), set()]
    assert living == expected


@pytest.mark.parametrize(
    ("write", "turn"),
    [(0, 5), (1, 5), (3, 5), (5, None), (6, 7)],
)
def test_a_text_is_taken_back_by_an_update_or_a_delete_not_by_the_cap(write, turn):
    assert Lineage(LOG).replaced_at(write) == turn


def test_evictions_and_those_who_crowded():
    log = [write(0, 0), write(1, 1), write(2, 2, evicted=(1,))]
    lineage = Lineage(log)
    assert lineage.evictions() == {1: 2}
    assert lineage.crowding(1, 3) == [2]  # entry 0 is older, it took no place
    assert lineage.crowding(0, 2) == [1]


def test_twins_must_repeat_each_other_and_are_asked_once():
    asked = []

    def repeats(new, old):
        asked.append((new, old))
        return new in old

    twins = SameMeaning(repeats)
    assert twins.same("a", "a")
    assert not asked
    for _ in range(2):
        assert not twins.same("a", "ab")
        assert not twins.same("ab", "a")
    assert len(asked) == 2


def test_twins_of_a_twin_are_twins():
    def near(new, old):
        return abs(int(new) - int(old)) <= 1

    texts = {4: "12", 5: "10", 6: "11", 7: "14", 8: "15"}
    twins = SameMeaning(near)
    assert not twins.same("10", "12")
    assert twins.of(5, texts) == twins.of(4, texts) == {4, 5, 6}
    assert twins.of(8, texts) == {7, 8}
    assert twins.of(5, {5: "10", 4: "12"}) == {5}

"""The work that all contenders share, and the sums that compare them."""

import pytest

from benchmarks import generation
from benchmarks._generation_work import FIRST, Work

SMALL = Work(
    episodes=4, group=2, turns=2, new_tokens=2, system=3, prompt=(1, 4),
    observation=(1, 3), vocabulary=50,
)  # fmt: skip


def test_rounds_differ_in_ids_and_not_in_lengths():
    one, two = SMALL.texts(0), SMALL.texts(1)
    assert one == SMALL.texts(0) != two
    assert [[len(ids) for ids in rows] for rows in one] == [
        [len(ids) for ids in rows] for rows in two
    ]
    assert min(i for rows in one for ids in rows for i in ids) >= FIRST


def test_members_of_a_group_share_a_prompt_and_all_share_its_beginning():
    prompts, observations = SMALL.texts(0)
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert prompts[0][:3] == prompts[2][:3]
    assert observations[0] != observations[1]
    longest = max(len(p) + len(o) for p, o in zip(prompts, observations))
    assert SMALL.longest(1) == longest + SMALL.new_tokens


def played(number, seconds, made=None):
    """An answer; every turn of every episode says the same two ids."""
    made = made or [[[7, 8]] * SMALL.episodes for _ in range(SMALL.turns)]
    counts = {"tokens_fed": 9, "tokens_prefilled": 5, "compilations": 0}
    return {"seconds": seconds, "cpu": 2 * seconds, "made": made, "counts": counts}


def test_rows_compare_round_by_round():
    ours = [played(0, 1.0), played(1, 2.0), played(2, 4.0)]
    theirs = [played(0, 3.0), played(1, 4.0), played(2, 4.0)]
    theirs[0]["made"] = [[[7, 8]] * 3 + [[7, 9]], [[7, 8]] * 4]
    row = generation.row(theirs, ours, SMALL)
    assert (row["median_s"], row["faster"], row["cpu_s"]) == (4.0, 2.0, 8.0)
    assert row["tokens_per_s"] == SMALL.tokens / 4.0 == 4.0
    assert row["same_turns"] == 23 / 24
    short = [played(0, 1.0, [[[7]] * 4] * 2)]
    with pytest.raises(RuntimeError, match="expected 16 sampled ids, got 8"):
        generation.row(short, short, SMALL)


def test_distinct_positions_count_common_beginnings_once_and_no_sampled_ones():
    texts = [[[1, 2, 3], [1, 2, 3], [1, 2, 4]], [[5], [5, 6], [5]]]
    made = [[[9], [9], [9]], [[8], [8], [8]]]
    # 1 2 3 | 4 and behind each of the three turns: 5 (the first two alike), 6, 5
    assert generation.distinct(texts, made) == 4 + 3
    made[0][1] = [7]  # another turn, so the second episode's 5 is its own
    assert generation.distinct(texts, made) == 4 + 4


def test_a_process_that_ends_early_is_told(tmp_path):
    (tmp_path / "broken").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "broken").chmod(0o755)
    with pytest.raises(RuntimeError, match=r"google-tunix: expected an answer.* 3"):
        generation.Contender("google-tunix", str(tmp_path / "broken"), "x", SMALL)


def test_the_table_names_all_and_what_was_computed():
    ours = [played(0, 1.0)]
    rows = {name: generation.row(ours, ours, SMALL) for name in generation.CONTENDERS}
    text = generation.table({"rows": rows, "distinct_tokens": 5})
    assert all(f"| {name} | 1.00 | 16 | 1.00" in text for name in rows)
    assert "5 computed, 5 distinct: 1.00; 0 programs compiled" in text

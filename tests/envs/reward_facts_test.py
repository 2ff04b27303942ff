import pytest

from mempo_jax.envs.reward import efficiency_shares, penalty_counts
from mempo_jax.memory import Bank, BankConfig, OpRecord
from tests.envs.scripted_env import EMBEDDER, REWARD, make_episode

WRITE = OpRecord(0, "write", "new", (0,))
TWICE = OpRecord(1, "write", "duplicate", (0,))
FOUND = OpRecord(2, "recall", "recalled", (0,))
EMPTY = OpRecord(3, "recall", "recalled", ())


def test_events_by_penalty():
    merged = OpRecord(2, "write", "merged", (1, 0))
    own_merge = OpRecord(3, "merge", "merged", (2, 1))
    log = [WRITE, TWICE, merged, own_merge, FOUND]
    assert penalty_counts(log, 3, True) == {
        "malformed": 3,
        "duplicate": 1,
        "overflow": 1,
        "write_cost": 2,
    }


def test_a_bank_that_stays_small_is_efficient():
    assert efficiency_shares([], [0, 1, 2, 1], 4)["efficiency_size"] == 0.75
    assert efficiency_shares([], [4, 4], 4)["efficiency_size"] == 0
    assert efficiency_shares([], [0], 4)["efficiency_size"] == 1
    assert efficiency_shares([], [], 4)["efficiency_size"] == 0
    assert "efficiency_size" not in efficiency_shares([], [3], 0)


@pytest.mark.parametrize(
    ("log", "share"),
    [([], 0.0), ([WRITE], 0.0), ([FOUND, WRITE], 1.0), ([FOUND, EMPTY, EMPTY], 1 / 3)],
)
def test_recalls_that_find_something_are_efficient(log, share):
    assert efficiency_shares(log, [1], 0)["efficiency_hits"] == pytest.approx(share)


def test_an_episode_reports_both():
    bank = Bank(BankConfig(capacity=4, retrieval_top_k=3), EMBEDDER, trajectory_id="x")
    episode = make_episode(bank=bank)
    for action in (
        "<mem_recall>cats</mem_recall>",
        "<mem_write>cats purr</mem_write><mem_write>the sky is blue</mem_write>",
        "<mem_recall>cats</mem_recall>",
        "<answer>gold</answer>",
    ):
        episode.observe()
        episode.act(action)
    assert episode.bank_sizes == [0, 2, 2, 2]
    reward = episode.reward()
    assert reward.raw["efficiency_size"] == pytest.approx(1 - 1.5 / 4)
    assert reward.raw["efficiency_hits"] == 0.5
    assert REWARD.efficiency_size == REWARD.efficiency_hits == 0
    assert reward.total == pytest.approx(1 + 2 * REWARD.write_cost)

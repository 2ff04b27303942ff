"""The accuracy of credit: its measures, its truth, and a small run."""

import json

import numpy as np
import pytest

from benchmarks import _credit_samples, _credit_truth, credit
from benchmarks._credit_ranks import auc, spearman, with_interval
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_episodes, make_suite
from mempo_jax.config import from_config
from mempo_jax.rollout.collect import Collector
from mempo_jax.rollout.sampler import Counters, Generation
from mempo_jax.settings import ConfigError
from mempo_jax.training import loop
from tests.experiments.tiny import get_config
from tests.rollout.at_once import AtOnce
from tests.rollout.probe_case import ANSWER, RECALL, WRITE, play

YES_NO = np.array([True, True, False, False])


def test_auc_counts_ordered_pairs_and_halves_ties():
    assert auc([3, 2, 1, 0], YES_NO) == 1
    assert auc([0, 1, 2, 3], YES_NO) == 0
    assert auc([1, 1, 1, 1], YES_NO) == 0.5
    assert auc([2, 1, 1, 0], YES_NO) == 3.5 / 4
    assert auc([3, 1, 2, 0], YES_NO) == 3 / 4
    assert np.isnan(auc([1, 2], [True, True]))


def test_spearman_is_the_correlation_of_shared_ranks():
    assert spearman([4, 3, 2, 1], [4, 3, 2, 1]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 1, 2]) == pytest.approx(-0.5)
    # ranks 4, 2.5, 2.5, 1 against 3.5, 3.5, 1.5, 1.5
    expected = np.corrcoef([4, 2.5, 2.5, 1], [3.5, 3.5, 1.5, 1.5])[0, 1]
    assert spearman([2, 1, 1, 0], YES_NO) == pytest.approx(expected)
    assert np.isnan(spearman([1, 1, 1, 1], YES_NO))


@pytest.mark.parametrize("measure", [auc, spearman])
def test_an_item_drawn_twice_counts_like_two(measure):
    rng = np.random.default_rng(0)
    values, truth = rng.integers(0, 5, 40), rng.random(40) < 0.4
    times = rng.integers(0, 4, (3, 40))
    expected = [measure(np.repeat(values, t), np.repeat(truth, t)) for t in times]
    np.testing.assert_allclose(measure(values, truth, times), expected)


def test_intervals_resample_whole_groups():
    truth, group = np.tile(YES_NO, 20), np.repeat(np.arange(20), 4)
    values = np.tile([3, 2, 1, 0, 0, 1, 2, 3], 10)  # every second group is wrong
    same = with_interval(auc, np.tile([3, 1, 2, 0], 20), truth, group)
    assert same == {"value": 0.75, "ci95": [0.75, 0.75]}
    moved = with_interval(auc, values, truth, group)
    low, high = moved["ci95"]
    assert 0.2 < low < moved["value"] < high < 0.8
    none = {"value": None, "ci95": [None, None]}
    assert with_interval(auc, values, truth & False, group) == none
    assert with_interval(spearman, values * 0, truth, group) == none
    assert with_interval(auc, values[:0], truth[:0], group[:0]) == none


@pytest.mark.parametrize(
    ("suite", "observation", "text", "answer", "holds"),
    [
        ("ledger", "ann bus is now 17", "ann bus 17", "17", True),
        ("ledger", "ann bus is 17", "ann bus 71", "17", False),
        ("ledger", "ann bus is 17", "ben bus 17", "17", False),
        ("babi", "John went to the hall.", "John now at hall", "hall", True),
        ("babi", "John went to the hall.", "Mary now at hall", "hall", False),
        ("babi", "John took the milk there.", "milk is at John", "hall", True),
        ("babi", "John dropped the milk.", "milk is at hall", "hall", True),
        ("babi", "John dropped the milk.", "milk is at office", "hall", False),
        ("babi", "John put down the milk.", "John put down the milk", "hall", True),
    ],
)
def test_a_text_carries_what_the_observation_says(
    suite, observation, text, answer, holds
):
    assert _credit_truth.carries(suite, observation, text, answer) is holds


def test_a_suite_without_idle_words_is_refused():
    with pytest.raises(ValueError, match="which words a memory may leave out"):
        _credit_truth.carries("chess", "e4", "e4", "e5")


NEEDED = WRITE.format("one two")
JUNK = WRITE.format("three four")


@pytest.mark.parametrize(
    ("script", "bank", "fate"),
    [
        ([NEEDED, JUNK, RECALL, ANSWER], {}, "answered"),
        ([NEEDED, JUNK, RECALL, "<answer> five</answer>"], {}, "wrong answer"),
        ([NEEDED, JUNK, ANSWER], {}, "not recalled"),
        ([NEEDED, JUNK, RECALL, ANSWER], {"capacity": 1}, "lost"),
        ([WRITE.format("two"), NEEDED, RECALL, ANSWER], {}, None),
    ],
)
def test_needed_writes_are_found_and_followed_to_the_answer(
    monkeypatch, script, bank, fate
):
    monkeypatch.setitem(_credit_truth.IDLE, "scripted", set())
    [trajectory] = play(script, **bank)
    seen = ["one two", "three four", "find five"]
    found = _credit_truth.needed_writes(trajectory, seen)
    assert found == ({0: fate} if fate else {})
    assert _credit_truth.unwritten(trajectory, list(found)) == (1, int(not found))
    assert _credit_truth.is_relevant(trajectory, trajectory.log[0])
    assert not _credit_truth.is_relevant(trajectory, trajectory.log[1])


class NoteTaker(AtOnce):
    """Stands for an engine: notes 3 facts in 5, recalls who is asked for, answers."""

    def __init__(self, tokenizer):
        self.tokenizer, self.slots = tokenizer, 8
        self.counters = Counters()

    def set_params(self, params):
        pass

    def generate(self, requests, *, temperature, top_p, top_k):
        return [self._one(request) for request in requests]

    def _one(self, request):
        # the turn as the episode shows it: "turn 0/30 memory 0: ann bus is 17"
        shown = self.tokenizer.decode(request.tokens).split("<|user|>")[-1]
        words = shown.split("<|end|>")[0].partition(":")[2].split()
        if words[0] == "what":
            text = f"<mem_recall> {words[2]} {words[3]}</mem_recall>"
        elif words[0] == "recalled":
            text = f"<answer> {words[-1]}</answer>"
        elif np.random.default_rng(request.key).random() < 0.6:
            text = f"<mem_write> {words[0]} {words[1]} {words[3]}</mem_write>"
        else:
            text = "<|end|>"
        ids = self.tokenizer.encode(text)
        log_probs = np.zeros(len(ids), np.float32)
        finish = "stop" if text == "<|end|>" else "tag"
        return Generation(ids, log_probs, finish, self.tokenizer.decode(ids))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A config, and an untrained policy whose place a note-taker takes."""
    config = get_config()
    config.env.ledger.min_turns = config.env.ledger.max_turns = 4
    config.memory.retrieval_top_k = 1
    settings = from_config(config.to_dict())
    suite = make_suite(settings)
    policy = make_nano(suite, settings)
    place = tmp_path_factory.mktemp("credit") / "start"
    place.mkdir()
    policy.save(place, policy.params)

    def make_collector(policy, suite, settings, mesh):
        episodes = make_episodes(suite, settings)
        engine = NoteTaker(policy.tokenizer)
        make = lambda job: episodes(job.task, f"{job.sample}")  # noqa: E731
        return engine, Collector(engine, policy.tokenizer, make, 20.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "make_collector", make_collector)
        yield config.to_dict(), str(place)


def test_a_run_judges_every_mode_on_the_same_writes(case):
    config, place = case
    lines = []
    figures = credit.run(config, [place], 3, lines.append)
    assert json.loads(json.dumps(figures)) == figures
    [made] = figures["policies"]
    assert made["counts"]["trajectories"] == 12  # three groups of four
    assert 0 < made["needed"] < made["writes"]
    assert sum(made["fates"].values()) == made["needed"]
    assert made["fates"]["answered"] > 0
    text = "\n".join(lines)
    for name, mode in made["modes"].items():
        assert name in text
        found = mode["credit"]["needed"]["auc"]
        assert found["ci95"][0] <= found["value"] <= found["ci95"][1]
    assert made["modes"]["uniform"]["own"]["needed"]["auc"]["value"] == 0.5
    assert made["modes"]["attribution"]["own"]["needed"]["auc"]["value"] > 0.9
    costs = {name: bool(mode["cost"]) for name, mode in made["modes"].items()}
    assert costs["counterfactual"]
    assert not costs["attribution"]


def test_credit_is_what_the_trainer_lays_on_the_write(case):
    config, place = case
    settings = from_config(config)
    every = _credit_samples.variants(settings.credit)
    modes = {name: every[name] for name in ("uniform", "discounted", "attribution")}
    suite = make_suite(settings)
    sampler = _credit_samples.Sampler(place, settings, suite, modes)
    writes = sampler.writes(2, lambda text: None)
    credit_, own = writes.credit, writes.own
    assert set(writes.group) == {0, 1}
    advantage = credit_["uniform"]
    assert advantage.std() > 0
    weighed = own["discounted"] * advantage
    np.testing.assert_allclose(credit_["discounted"], weighed, atol=1e-5)
    added = advantage + own["attribution"]
    np.testing.assert_allclose(credit_["attribution"], added, atol=1e-5)
    assert own["attribution"].std() > 0


def test_a_policy_without_unequal_groups_is_said(case, monkeypatch):
    config, place = case
    monkeypatch.setattr(
        NoteTaker,
        "generate",
        lambda self, requests, **_: [
            Generation(
                ids := self.tokenizer.encode("<answer> 1</answer>"),
                np.zeros(len(ids), np.float32),
                "tag",
                "<answer> 1</answer>",
            )
            for _ in requests
        ],
    )
    with pytest.raises(ConfigError, match="expected 1 groups of unequal rewards"):
        credit.run(config, [place], 1, lambda text: None)

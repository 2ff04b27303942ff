"""The GRPO benchmark compares round by round and refuses other work."""

import json
import sys

import jax
import numpy as np
import pytest

from benchmarks import _grpo_ours, _grpo_work, grpo_step
from benchmarks._grpo_work import FIRST, PAD, STOP, Work
from mempo_jax.builders.suites import make_episodes, make_suite
from mempo_jax.models import hf
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import SegmentBuilder

SMALL = Work(tasks=1, group=2, layers=1, vocabulary=64, threads=1)
DONE = {
    "prompts": [64, 64],
    "answers": [64, 64],
    "passes": {"reference": 1, "gradient": 1},
    "updates": 3,
}


class Stub:
    """A system whose steps take as many seconds as they have numbers."""

    def __init__(self, name, log):
        self.name, self._log, self._number = name, log, 0
        self.started = {"parameters": 5, "log_probs": [-1.0]}

    def step(self):
        self._number += 1
        self._log.append(self.name)
        seconds = {"seconds": self._number, "sampling": 0.5, "busy": 2 * self._number}
        return DONE | seconds | {"updates": self._number}


def test_systems_take_turns_and_the_warm_up_is_left_out():
    log, lines = [], []
    systems = [Stub(name, log) for name in grpo_step.SYSTEMS]
    rounds = grpo_step._rounds(systems, 2, SMALL, lines.append)
    first = grpo_step.WARM_UP + 1
    for done in rounds.values():
        assert [each["seconds"] for each in done] == [first, first + 1]
    assert log[:6] == ["trl", "tunix", "ours", "tunix", "ours", "trl"]
    assert len(lines) == 2
    figures = {"rounds": rounds, "started": {"ours": systems[0].started}}
    figures |= {"work": vars(SMALL), "memory": "plain", "load_before": [0, 0, 0]}
    figures |= {"machine": {"cpu": "x", "cores": 1}, "load_after": [0, 0, 0]}
    table = grpo_step.table(json.loads(json.dumps(figures)))
    assert "passes over all rows {'reference': 1, 'gradient': 1}" in table
    assert table.splitlines()[-1].split()[:4] == ["tunix", "4.500", "4.000", "0.500"]


def test_our_prompts_are_as_long_as_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), json.dumps(vars(SMALL))])
    _grpo_ours.save_model(*_grpo_work.arguments())
    settings = _grpo_ours.settings_of(*_grpo_work.arguments())
    assert settings.sampling.slots == settings.sampling.group_size == 2
    suite, tokenizer = make_suite(settings), Tokenizer.load(tmp_path)
    episode = make_episodes(suite, settings)(suite.task("train", 0), "x")
    view = episode.observe(SegmentBuilder(tokenizer).measure)
    assert len(SegmentBuilder(tokenizer).show(view, 0)) == SMALL.prompt


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("answers", [64, 12]),
        ("prompts", [64, 17]),
        ("updates", 2),
        ("passes", {"reference": 1, "policy": 1, "gradient": 1}),
    ],
)
def test_a_step_of_other_work_is_refused(name, value):
    grpo_step.check_same_work("trl", 3, DONE, SMALL)
    with pytest.raises(RuntimeError, match=f"trl: expected {name}"):
        grpo_step.check_same_work("trl", 3, DONE | {name: value}, SMALL)


class Started:
    """A system that says at its start what it is told to."""

    def __init__(self, name, log_probs, parameters=5):
        self.name = name
        self.started = {"log_probs": log_probs, "parameters": parameters}


def test_another_policy_is_refused():
    ours = Started("ours", [-1.0, -2.0])
    grpo_step.check_same_policy([ours, Started("trl", [-1.0, -2.0005])])
    for other in (Started("trl", [-1.0, -2.1]), Started("trl", [-1.0, -2.0], 6)):
        with pytest.raises(RuntimeError, match="do not train the same model"):
            grpo_step.check_same_policy([ours, other])


def test_shares_compare_round_by_round():
    ours, theirs = [{"seconds": 1}, {"seconds": 3}], [{"seconds": 2}, {"seconds": 4}]
    assert grpo_step.shares(ours, theirs, "seconds") == [0.5, 0.75]


def test_the_policy_never_ends_a_turn(tmp_path):
    _grpo_ours.save_model(str(tmp_path), SMALL)
    config, params, tokenizer = hf.load(tmp_path)
    model = LanguageModel(config, "float32")
    ids = np.random.default_rng(0).integers(FIRST, SMALL.vocabulary, (4, 128))
    hidden = jax.jit(model.hidden)(params, ids, np.ones(ids.shape, bool))
    log_probs = jax.nn.log_softmax(hidden @ model.unembed(params))
    assert log_probs[..., [PAD, STOP]].max() < -30
    assert tokenizer.stop_ids == (STOP,)
    assert tokenizer.encode(_grpo_work.spell(ids[0])) == ids[0].tolist()


def test_the_reward_reads_words_with_and_without_spaces():
    assert _grpo_work.even_share("w4w5 w10<none>w7") == _grpo_work.even_share(
        "w2w1w1w5"
    )
    assert _grpo_work.even_share("") == 0

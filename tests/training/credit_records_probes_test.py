import numpy as np
import pytest

from mempo_jax.rollout.probes import plan_probes
from mempo_jax.training.credit_records import Prober
from tests.rollout import probe_case as case
from tests.rollout import tiny
from tests.rollout.probe_case import ANSWER, RECALL, WRITE, play
from tests.rollout.tiny import TOKENIZER

NEEDS = frozenset(case.NEEDS)
SCRIPT = [WRITE.format("gold one"), WRITE.format("two three"), RECALL, ANSWER]


def score(rows):
    """The trainer's log-probs of what counts, garbage where nothing was asked."""
    out = np.full(rows.tokens.shape, np.nan)
    for b in np.flatnonzero(rows.valid):
        count = rows.token_mask[b].sum()
        out[b, :count] = tiny.score(rows.tokens[b, :count], 0.9)
    out[~rows.action_mask] = np.nan
    return out


@pytest.fixture(scope="module")
def trajectories():
    return play(SCRIPT, count=3)


def test_evidence_is_what_the_model_says_of_each_variant(trajectories):
    prober = Prober(TOKENIZER, case.SHAPES, NEEDS)
    found, figures = prober(trajectories, np.ones((1, 3), bool), score)
    plan = plan_probes(trajectories, range(3), NEEDS, TOKENIZER, 160)
    direct = [
        tiny.score(list(variant.tokens), 0.9)[-variant.scored :].mean()
        for variant in plan.variants
    ]
    expected = plan.evidence(direct, case.no_evidence(3, case.SHAPES))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert found.answer_gain.any()
    assert figures["probe_variants"] == len(plan.variants) > 3
    assert figures["probes_skipped"] == 0
    assert figures["seconds_probing"] > 0


def test_trajectories_that_do_not_count_are_not_probed(trajectories):
    prober = Prober(TOKENIZER, case.SHAPES, NEEDS)
    valid = np.array([[False, True, False]])
    found, _ = prober(trajectories, valid, score)
    probed = [bool(row.any()) for row in found.answer_gain]
    assert probed == [False, True, False]
    none, figures = prober(trajectories, valid & False, score)
    assert not any(leaf.any() for leaf in none)
    assert figures["probe_variants"] == 0


def test_nothing_is_scored_where_no_mode_asks(trajectories):
    prober = Prober(TOKENIZER, case.SHAPES, frozenset())
    found, figures = prober(trajectories, np.ones(3, bool), score=None)
    assert figures == {}
    assert [leaf.shape for leaf in found] == [(3, 12)] * 3
    assert not any(leaf.any() for leaf in found)

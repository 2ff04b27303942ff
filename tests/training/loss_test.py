import dataclasses

import jax
import numpy as np
import pytest

from mempo_jax.training import loss
from mempo_jax.types import Rows
from tests.training.step_case import CREDIT, OBJECTIVE, make_trajectories

SETTINGS = dataclasses.replace(OBJECTIVE, logit_chunk=64)


def _rows():
    shape = (4, 5)
    token_mask = np.ones(shape, bool)
    token_mask[1, 3:] = False
    return Rows(
        tokens=np.zeros(shape, np.int32),
        token_mask=token_mask,
        action_mask=np.ones(shape, bool),
        behaviour_log_probs=np.zeros(shape, np.float32),
        turn_id=np.zeros(shape, np.int32),
        op_id=np.full(shape, -1, np.int32),
        trajectory_index=np.array([0, 1, 0, 2], np.int32),
        valid=np.array([True, True, True, False]),
    )


def test_what_counts():
    rows = _rows()
    mask = loss.counted(rows)
    # Not the first token, no padding, no filler row.
    np.testing.assert_array_equal(mask.sum(1), [4, 2, 4, 0])
    only = loss.counted(rows, np.array([False, True, True]))
    np.testing.assert_array_equal(only.sum(1), [0, 2, 0, 0])


def test_tokens_are_counted_over_all_micro_batches():
    rows = _rows()
    parts = [type(rows)(*(leaf[i : i + 2] for leaf in rows)) for i in (0, 2)]
    count = loss.count_tokens(parts, np.ones((1, 4), bool))
    np.testing.assert_array_equal(count, [8, 2, 0, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl_scope": "memory"}, "kl_scope: expected .*all.*ops"),
        ({"aggregation": "mean"}, "token_mean"),
        ({"aggregation": "constant", "constant_length": 0}, "constant_length"),
        ({"importance_cap": -1.0}, "importance_cap: expected 0"),
        ({"importance_cap": float("nan")}, "importance_cap"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **change)


def test_the_scale_of_bonuses_changes_bonuses_alone():
    facts = make_trajectories()
    tokens = np.ones(facts.valid.size, np.float32)
    whole, half = (
        loss.loss_inputs(
            facts,
            tokens,
            objective=OBJECTIVE,
            credit=CREDIT,
            outcome_gate=True,
            bonus_scale=scale,
        )
        for scale in (1, 0.5)
    )
    assert np.abs(whole.credit.bonus).max() > 0
    np.testing.assert_array_equal(half.credit.bonus, whole.credit.bonus / 2)
    for a, b in zip(half, whole._replace(credit=half.credit), strict=True):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(half.credit.weight, whole.credit.weight)

import dataclasses

import pytest

from mempo_jax.types import NEEDS
from tests.core.credit_case import SETTINGS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modes": ()}, "uniform, ops_only, discounted, attribution, answer_prob"),
        ({"modes": ("discount",)}, "discount"),
        ({"modes": ("uniform", "uniform")}, "each once"),
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": 1.5}, "gamma"),
        ({"other_weight": -0.1}, "other_weight"),
        ({"attribution_weight": float("nan")}, "attribution_weight"),
        ({"answer_probability_weight": -1.0}, "answer_probability_weight"),
        ({"counterfactual_weight": float("inf")}, "counterfactual_weight"),
        ({"attribution_floor": 1.5}, "attribution_floor"),
        ({"bonus_decay_steps": -1}, "bonus_decay_steps"),
        ({"attribution_form": "sum"}, "attribution_form"),
        ({"attribution_probe": "value"}, "attribution_probe"),
        (
            {"attribution_form": "weight", "attribution_weight": 0.5},
            "attribution_weight: expected 1 with attribution_form 'weight'",
        ),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **change)


@pytest.mark.parametrize(
    ("change", "needs"),
    [
        ({"modes": ("uniform", "ops_only", "discounted", "attribution")}, ()),
        ({"modes": ("counterfactual",)}, ("leave_out", "evictions")),
        (
            {"modes": ("counterfactual",), "counterfactual_evictions": False},
            ("leave_out",),
        ),
        (
            {"modes": ("attribution",), "attribution_probe": "answer_log_prob"},
            ("turn_potential",),
        ),
        (
            {"modes": ("uniform", "answer_probability", "counterfactual")},
            ("answer_gain", "leave_out", "evictions"),
        ),
    ],
)
def test_only_what_a_listed_mode_reads_is_probed(change, needs):
    assert dataclasses.replace(SETTINGS, **change).required_probes == set(needs)
    assert set(needs) <= set(NEEDS)

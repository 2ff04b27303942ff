"""Errors and advice of a whole config."""

import pytest

from configs import base
from mempo_jax.builders.suites import reward_function
from mempo_jax.config import advice, from_config
from mempo_jax.settings import ConfigError
from tests.experiments import tiny

NOT_CALLABLE = 3


def settings(make=tiny.get_config, **changes):
    config = make()
    with config.ignore_type():
        config.update_from_flattened_dict(changes)
    return from_config(config.to_dict())


def test_a_wrong_type_is_named_by_its_path_once():
    with pytest.raises(ConfigError, match=r"^config\.memory\.capacity: expected int"):
        settings(**{"memory.capacity": None})


def test_the_defaults_ask_for_no_advice():
    assert advice(settings(base.get_config)) == []


def test_bfloat16_wants_room_in_the_gap():
    half = {"policy.compute_dtype": "bfloat16"}
    (said,) = [a for a in advice(settings(**half)) if "bfloat16" in a]
    assert said.startswith("config.train.max_log_prob_gap = 0.001: ")
    wide = advice(settings(**half, **{"train.max_log_prob_gap": 0.1}))
    assert not any("bfloat16" in a for a in wide)


def test_a_context_may_be_longer_than_what_is_fed_at_once():
    made = settings(**{"sampling.prefill_buckets": (16,)})
    assert made.context.max_context_tokens > made.sampling.prefill_buckets[-1]


@pytest.mark.parametrize("name", [":x", "x:", "x", "a:b:c"])
def test_a_reward_function_is_spelled_module_and_function(name):
    with pytest.raises(ConfigError, match=r"expected 'package.module:function'"):
        settings(**{"reward.function": name})


def test_a_reward_function_must_be_callable():
    name = f"{__name__}:NOT_CALLABLE"
    with pytest.raises(ConfigError, match="expected a function, got int"):
        reward_function(settings(**{"reward.function": name}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sampling.max_resample_rounds": 1, "sampling.drop_degenerate": False},
            r"sampling\.max_resample_rounds: expected 0 where drop_degenerate is False",
        ),
        (
            {"sampling.max_resample_rounds": -1},
            r"sampling\.max_resample_rounds: expected at least 0, got -1",
        ),
        (
            {"reward.efficiency_size": 0.1, "memory.capacity": 0},
            r"reward\.efficiency_size: expected 0 where memory\.capacity is 0",
        ),
        (
            {"reward.efficiency_size": 0.15, "reward.efficiency_hits": 0.1},
            r"at most 0\.2 .*remembering nothing would win",
        ),
        ({"objective.importance_cap": -0.5}, r"objective\.importance_cap: expected 0"),
        (
            {"objective.importance_cap": float("inf")},
            r"objective\.importance_cap: expected",
        ),
        (
            {"context.instruction_variants": ("a", "")},
            r"context\.instruction_variants: expected texts that are not empty",
        ),
        (
            {"policy.chat_template_kwargs": (("enable_thinking", False),)},
            r"policy\.chat_template_kwargs: expected \(\) where policy\.path is ''",
        ),
        (
            {
                "policy.path": "x",
                "policy.chat_template_kwargs": (("a", False), ("a", 1)),
            },
            r"policy\.chat_template_kwargs: expected each name once",
        ),
        (
            {"policy.chat_template_kwargs": ("enable_thinking",)},
            r"policy\.chat_template_kwargs\[0\]: expected a tuple",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(changes, message):
    with pytest.raises(ConfigError, match=message):
        settings(**changes)


def test_efficiency_terms_count_as_components():
    four = settings()
    assert len(four.reward.weights().active()) == 4
    assert not any("components" in line for line in advice(four))
    five = settings(**{"reward.efficiency_size": 0.05})
    [said] = [line for line in advice(five) if "components" in line]
    assert "efficiency_size" in said

"""Errors and advice of a whole config."""

import pytest

from configs import base
from mempo_jax.builders.suites import reward_function
from mempo_jax.config import ADDED_FIELDS, advice, complete_saved, from_config
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
    tight = settings(**half, **{"train.max_log_prob_gap": 0.001})
    (said,) = [a for a in advice(tight) if "bfloat16" in a]
    assert said.startswith("config.train.max_log_prob_gap = 0.001: ")
    for gap in (0.0, 1.0):
        made = settings(**half, **{"train.max_log_prob_gap": gap})
        assert not any("bfloat16" in a for a in advice(made))
        assert made.max_log_prob_gap == 1.0
    assert settings().max_log_prob_gap == 1e-3
    assert tight.max_log_prob_gap == 1e-3


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
        (
            {"objective.clip_low": 1.0},
            r"^config\.objective\.clip_low: expected above 0, below 1, got 1\.0$",
        ),
        ({"sampling.top_p": 0.9}, r"sampling\.top_p: expected 1\.0: scoring uses"),
        ({"train.steps": -1}, r"train\.steps: expected at least 0, got -1"),
        ({"train.length_buckets": (9, 9)}, r"expected ascending positive lengths"),
        ({"memory.summarise": "x"}, r"memory\.summarise: expected one of \('trun"),
        ({"policy.nano.layers": 0}, r"policy\.nano\.layers: expected at least 1"),
        ({"engine.http.timeout_s": 0.0}, r"http\.timeout_s: expected > 0 seconds"),
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
    assert len(four.reward.active()) == 4
    assert not any("components" in line for line in advice(four))
    five = settings(**{"reward.efficiency_size": 0.05})
    [said] = [line for line in advice(five) if "components" in line]
    assert "efficiency_size" in said


def test_a_config_from_before_a_field_existed_is_completed_and_it_is_said():
    saved = base.get_config().to_dict()
    del saved["train"]["adam_b1"], saved["credit"]["bonus_decay_steps"]
    with pytest.warns(UserWarning, match=r"bonus_decay_steps = 0, train\.adam_b1 = "):
        settings = from_config(complete_saved(saved, "run/config.json"))
    assert settings.train.adam_b1 == 0.9
    assert settings.credit.bonus_decay_steps == 0  # not what configs/base.py says now
    assert "adam_b1" not in saved["train"]


def leaves(fields, prefix=""):
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


WHOLE = base.get_config().to_dict()


@pytest.mark.parametrize("name", [each for each in leaves(WHOLE) if "." in each])
def test_any_field_that_a_saved_config_lacks_takes_its_default_by_name(name):
    saved = base.get_config().to_dict()
    *sections, field = name.split(".")
    part, whole = saved, WHOLE
    for section in sections:
        part, whole = part[section], whole[section]
    del part[field]
    with pytest.warns(UserWarning, match=f"they are taken as {name} = ") as said:
        completed = complete_saved(saved, "run/config.json")
    # Others may be of what the process collects just then.
    assert sum("they are taken as" in str(each.message) for each in said) == 1
    meant = ADDED_FIELDS.get(name, whole[field])
    for section in sections:
        completed = completed[section]
    assert completed[field] == meant


def test_a_section_of_new_tasks_is_added_and_a_lost_section_is_refused():
    saved = base.get_config().to_dict()
    del saved["env"]["factbook"]
    with pytest.warns(UserWarning, match=r"env\.factbook\.two_hop_share = 0\.5"):
        assert complete_saved(saved, "c") == base.get_config().to_dict()
    del saved["memory"]
    with (
        pytest.warns(UserWarning, match="factbook"),
        pytest.raises(ConfigError, match=r"config\.memory: missing"),
    ):
        from_config(complete_saved(saved, "c"))


def test_a_whole_saved_config_is_left_as_it_is(recwarn):
    saved = base.get_config().to_dict()
    assert complete_saved(saved, "run/config.json") == saved
    assert not recwarn.list

"""The config in a policy's directory: written with it, found with it."""

import json

import pytest

from mempo_jax.builders.policies import FILE, Policy, read_config
from mempo_jax.settings import ConfigError
from tests.rollout import tiny

CONFIG = {"seed": 3, "context": {"rule": "window", "instruction_variants": ("a",)}}
CONFIG["context"] |= {"instructions_form": "given", "instruction_examples": 0}


def test_a_saved_policy_holds_the_config_it_is_given(tmp_path):
    params = tiny.make_params()
    policy = Policy(tiny.CONFIG, tiny.MODEL, tiny.TOKENIZER, params)
    policy.save(tmp_path / "with", params, CONFIG)
    assert read_config(str(tmp_path / "with")) == json.loads(json.dumps(CONFIG))
    policy.save(tmp_path / "without", params)
    assert not (tmp_path / "without" / FILE).exists()


def test_the_policys_own_config_comes_before_that_of_its_run(tmp_path):
    folder = tmp_path / "policy"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"mempo_config\.json.*config\.json"):
        read_config(str(folder))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"seed": 1}))
    assert read_config(str(folder))["seed"] == 1
    (folder / FILE).write_text(json.dumps(CONFIG))
    assert read_config(str(folder))["seed"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "expected a config as JSON"), ("[]", "expected the config of a run")],
)
def test_a_damaged_config(tmp_path, text, said):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config(str(tmp_path))

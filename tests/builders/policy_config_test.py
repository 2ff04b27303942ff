"""The config in a policy's directory: written with it, found with it."""

import json

import pytest

from configs import base
from mempo_jax.builders.policies import FILE, Policy, read_config, write_config
from mempo_jax.config import from_config
from mempo_jax.settings import SAVED_VERSION, ConfigError
from tests.rollout import tiny

CONFIG = base.get_config().to_dict() | {"seed": 3}


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


def test_a_policy_of_a_newer_version_is_refused_and_an_older_one_is_completed(tmp_path):
    write_config(tmp_path, CONFIG)
    saved = json.loads((tmp_path / FILE).read_text())
    assert saved["version"] == SAVED_VERSION
    (tmp_path / FILE).write_text(json.dumps(saved | {"version": SAVED_VERSION + 1}))
    with pytest.raises(
        ConfigError, match="a newer mempo_jax saved it; install that"
    ) as e:
        read_config(str(tmp_path))
    assert "\n" not in str(e.value)
    del saved["version"], saved["memory"]["oversample"], saved["env"]["data_dir"]
    (tmp_path / FILE).write_text(json.dumps(saved))
    with pytest.warns(
        UserWarning, match=r"as env\.data_dir = '', memory\.oversample = 4"
    ):
        assert from_config(read_config(str(tmp_path))) == from_config(CONFIG)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "expected a config as JSON"), ("[]", "expected the config of a run")],
)
def test_a_damaged_config(tmp_path, text, said):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config(str(tmp_path))

import json

import jax
import pytest

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.families import config_json
from mempo_jax.planning.programs import count, known_shape, policy_shape, shape_of
from mempo_jax.settings import ConfigError
from tests.planning.plan_case import SHAPE, settings_of


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("SmolLM2-135M-Instruct", 134_515_008),
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen3-0.6B", 596_049_920),
    ],
)
def test_known_sizes_have_their_published_number_of_parameters(name, parameters):
    model = LanguageModel(known_shape(name), "float32")
    assert count(jax.eval_shape(model.init, jax.random.key(0))) == parameters


def test_a_directory_needs_no_weights(tmp_path):
    made = config_json(SHAPE, [1], 0, "float32")
    (tmp_path / "config.json").write_text(json.dumps(made))
    assert shape_of(str(tmp_path), "policy.path")[0] == SHAPE


def test_a_missing_directory_of_a_known_name_is_planned_by_its_name():
    shape, where = shape_of("nowhere/Qwen2.5-7B-Instruct", "policy.path")
    assert shape.width == 3_584
    assert where.startswith("no nowhere/Qwen2.5-7B-Instruct here")


def test_other_paths_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="the nearest of these is SmolLM2-135M"):
        shape_of("models/SmolLM2-130M", "policy.path")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="model_type"):
        shape_of(str(tmp_path), "policy.path")


def test_the_built_in_policy_has_the_shape_that_a_run_makes():
    shape, where = policy_shape(settings_of(policy__nano__layers=2))
    assert (shape.layers, shape.width, where) == (2, 16, "the built-in nano")

import pytest

from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.settings import ConfigError
from tests.envs import qa_case
from tests.experiments import tiny


def test_a_search_gets_the_limits_of_calls_and_time_for_all_its_tries(tmp_path):
    qa_case.write(tmp_path / "own.json")
    config = tiny.get_config()
    config.env.name, config.env.data_dir = "multi_qa", str(tmp_path)
    config.env.multi_qa.search = "bm25"
    config.env.multi_qa.test_share = 0.4
    config.env.tools.timeout_s, config.env.tools.retries = 4.0, 2
    suite = make_suite(from_config(config.to_dict()))
    env = suite.make(suite.task("train", 0))
    assert env._tools.longest_s == 12.0
    config.env.step_timeout_s = 12.0
    with pytest.raises(ConfigError, match=r"step_timeout_s: expected more than 12 s"):
        make_suite(from_config(config.to_dict()))

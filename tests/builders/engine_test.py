"""How a run's parts are put together: instructions by member of a group."""

import pytest

from mempo_jax.builders.engines import make_collector, make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.rollout.collect import Job
from mempo_jax.training.cold_start import demonstration_segments
from tests.experiments import tiny

VARIANTS = ("jot things down", "keep a diary")


@pytest.fixture(scope="module")
def world():
    config = tiny.get_config()
    config.context.instruction_variants = VARIANTS
    config.train.demonstrations = 5
    settings = from_config(config.to_dict())
    suite = make_suite(settings)
    return settings, suite, make_nano(suite, settings)


def first_line(make, suite, purpose, sample):
    job = Job(suite.task("train", 0), sample, 0, purpose, 0)
    return make(job).observe().system.split("\n")[0]


def test_members_of_a_group_see_variants_and_evaluation_does_not(world):
    settings, suite, policy = world
    mesh = make_run_mesh(settings)
    _, collector = make_collector(policy, suite, settings, mesh)
    make = collector.make_episode
    seen = [first_line(make, suite, "train", sample) for sample in range(5)]
    plain = settings.context.instructions
    assert seen == [plain, *VARIANTS, plain, VARIANTS[0]]
    for purpose in ("evaluate", "trace"):
        shown = {first_line(make, suite, purpose, n) for n in range(5)}
        assert shown == {plain}


def test_the_built_in_policy_knows_the_words_of_every_variant(world):
    _, _, policy = world
    for text in VARIANTS:
        assert policy.tokenizer.decode(policy.tokenizer.encode(text)) == text


def test_demonstrations_show_every_variant(world):
    settings, suite, policy = world
    made = demonstration_segments(policy, suite, settings)
    texts = [policy.tokenizer.decode(segment.tokens) for segment in made]
    for said in (settings.context.instructions, *VARIANTS):
        assert any(said in text for text in texts), said
    assert all(
        sum(said in text for said in (settings.context.instructions, *VARIANTS)) == 1
        for text in texts
    )

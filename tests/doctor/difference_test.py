"""Where two runs part."""

import pytest

from mempo_jax.doctor import differences
from tests.doctor.doctor_case import STEPS, healthy, run


def changed(metric, step, by):
    column = healthy()[metric].copy()
    column[step:] += by
    return {metric: column}


def test_equal_runs_are_the_same_whatever_time_they_took():
    [found] = differences(run(), run({"kl": None}))
    assert found.name == "runs_differ", "one of them could not measure it"
    slow = {"seconds": 9.0, "seconds_sampling": 8.0, "recall_ms_p50": 3.0}
    [found] = differences(run(), run(slow))
    assert found.name == "runs_same"
    assert f"the {STEPS} steps" in found.what


def test_the_first_figure_that_differs_and_its_step():
    other = run(changed("success", 40, 0.01) | changed("loss", 30, 0.02))
    [found] = differences(run(), other)
    assert found.name == "runs_differ"
    assert found.severity == "warning", "their configs are the same"
    assert "at step 30, in loss." in found.what
    here, there = found.seen[:2]
    assert (here.what, here.first_step, here.remark) == ("loss", 30, "here")
    assert there.value - here.value == pytest.approx(0.02)
    assert "samples are the same" in found.why


def test_rounding_is_told_from_other_arithmetic():
    small = run(changed("grad_norm", 3, 1e-7))
    [found] = differences(run(), small)
    assert "by rounding alone" in found.what
    assert "another order" in found.why
    [found] = differences(run(), run(changed("success", 3, 0.1)))
    assert "Other samples were drawn" in found.why


@pytest.mark.parametrize(
    ("metric", "by", "rounding"),
    [("bank_size", 1e-4, True), ("log_prob_gap", 2e-6, False)],
)
def test_rounding_is_measured_by_the_size_of_the_figure(metric, by, rounding):
    [found] = differences(run(), run(changed(metric, 3, by)))
    assert ("by rounding alone" in found.what) == rounding


def test_fields_that_differ_come_first_and_explain():
    other = run(changed("loss", 0, 0.1), fields={"train__learning_rate": 0.05})
    fields, runs = differences(run(), other)
    assert fields.name == "configs_differ"
    assert "config.train.learning_rate is 0.0005 here and 0.05 there" in fields.why
    assert runs.severity == "note"


def test_fields_that_one_config_lacks_are_told_apart():
    older = run()
    less = {k: v for k, v in older.config.items() if not k.startswith("engine.")}
    older = type(older)(older.table, less, {}, {})
    found = differences(run(fields={"seed": 7}), older)[0]
    assert "config.seed is 7 here and 0 there" in found.why
    assert "one of the two does not know" in found.why
    assert found.why.index("config.seed") < found.why.index("does not know")


def test_policies_that_differed_before_the_first_step():
    ours = run(cold_start={"success_sampled": {"mean": 0.4}})
    theirs = run(
        changed("success", 0, 0.1), cold_start={"success_sampled": {"mean": 0.3}}
    )
    [found] = differences(ours, theirs)
    assert "before the first step" in found.why


def test_runs_without_a_step_in_common():
    found = differences(run(), run(steps=0))[-1]
    assert found.what == "The runs have no step in common."


def test_versions_and_devices_where_both_are_known():
    machine = {"jax": "0.10.2", "devices": 1}
    ours, theirs = run(machine=machine), run(machine=machine | {"jax": "0.11"})
    found = differences(ours, theirs)
    assert [each.name for each in found] == ["machines_differ", "runs_same"]
    assert found[0].why == "jax is '0.10.2' here and '0.11' there."
    assert len(differences(ours, run())) == 1, "of one it is not known"

"""Where two runs part."""

import pytest

from mempo_jax.doctor import differences
from tests.doctor.doctor_case import STEPS, healthy, run


def changed(metric, step, by):
    column = healthy()[metric].copy()
    column[step:] += by
    return {metric: column}


def test_equal_runs_are_the_same_whatever_time_they_took():
    [finding] = differences(run(), run({"kl": None}))
    assert finding.name == "runs_differ", "one of them could not measure it"
    slow = {"seconds": 9.0, "seconds_sampling": 8.0, "recall_ms_p50": 3.0}
    [finding] = differences(run(), run(slow))
    assert finding.name == "runs_same"
    assert f"the {STEPS} steps" in finding.what


def test_the_first_figure_that_differs_and_its_step():
    other = run(changed("success", 40, 0.01) | changed("loss", 30, 0.02))
    [finding] = differences(run(), other)
    assert finding.name == "runs_differ"
    assert finding.severity == "warning", "their configs are the same"
    assert "at step 30, in loss." in finding.what
    here, there = finding.seen[:2]
    assert (here.what, here.first_step, here.remark) == ("loss", 30, "here")
    assert there.value - here.value == pytest.approx(0.02)
    assert "samples are the same" in finding.why


def test_rounding_is_distinguished_from_other_arithmetic():
    small = run(changed("grad_norm", 3, 1e-7))
    [finding] = differences(run(), small)
    assert "by rounding alone" in finding.what
    assert "another order" in finding.why
    [finding] = differences(run(), run(changed("success", 3, 0.1)))
    assert "Other samples were drawn" in finding.why


@pytest.mark.parametrize(
    ("metric", "by", "rounding"),
    [("bank_size", 1e-4, True), ("log_prob_gap", 2e-6, False)],
)
def test_rounding_is_measured_by_the_size_of_the_figure(metric, by, rounding):
    [finding] = differences(run(), run(changed(metric, 3, by)))
    assert ("by rounding alone" in finding.what) == rounding


def test_fields_that_differ_come_first_and_explain():
    other = run(changed("loss", 0, 0.1), fields={"train__learning_rate": 0.05})
    fields, runs = differences(run(), other)
    assert fields.name == "configs_differ"
    assert "config.train.learning_rate is 0.0005 here and 0.05 there" in fields.why
    assert runs.severity == "note"


def test_fields_that_one_config_lacks_are_named_apart():
    older = run()
    less = {k: v for k, v in older.config.items() if not k.startswith("engine.")}
    older = type(older)(older.table, less, {}, {})
    finding = differences(run(fields={"seed": 7}), older)[0]
    assert "config.seed is 7 here and 0 there" in finding.why
    assert "one of the two does not know" in finding.why
    assert finding.why.index("config.seed") < finding.why.index("does not know")


def test_policies_that_differed_before_the_first_step():
    ours = run(cold_start={"success_sampled": {"mean": 0.4}})
    theirs = run(
        changed("success", 0, 0.1), cold_start={"success_sampled": {"mean": 0.3}}
    )
    [finding] = differences(ours, theirs)
    assert "before the first step" in finding.why


def test_runs_without_a_step_in_common():
    finding = differences(run(), run(steps=0))[-1]
    assert finding.what == "The runs have no step in common."


def test_versions_and_devices_where_both_are_known():
    machine = {"jax": "0.10.2", "devices": 1}
    ours, theirs = run(machine=machine), run(machine=machine | {"jax": "0.11"})
    finding = differences(ours, theirs)
    assert [each.name for each in finding] == ["machines_differ", "runs_same"]
    assert finding[0].why == "jax is '0.10.2' here and '0.11' there."
    assert len(differences(ours, run())) == 1, "of one it is not known"


def test_runs_that_differ_without_a_reason_name_tools_and_readers():
    columns = changed("success", 3, 0.1)
    [finding] = differences(run(), run(columns))
    text = " ".join(finding.remedies)
    assert "versions of transformers, tokenizers and orbax-checkpoint" in text
    assert "although config.env.tools.deterministic fixes" in text
    loose = {"env__tools__deterministic": False}
    [finding] = differences(run(fields=loose), run(columns, fields=loose))
    remedy = "config.env.tools.deterministic (now False) True"
    assert any(text.endswith(remedy) for text in finding.remedies)
    assert "env.tools.deterministic" in finding.fields

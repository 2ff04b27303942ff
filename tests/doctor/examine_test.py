"""Each cause is found where it is, and not in what only looks like it."""

import ast
import pathlib

import numpy as np
import pytest

from configs import base
from mempo_jax import doctor
from mempo_jax.doctor.diagnoses import DIAGNOSES
from mempo_jax.doctor.examine import MAY_CAUSE, examine
from mempo_jax.doctor.findings import FIELD, SEVERITIES
from mempo_jax.doctor.text import SLOT
from mempo_jax.runs import ErrorCounts
from mempo_jax.settings import flatten
from tests.doctor.doctor_case import STEPS, by_name, ramp, run
from tests.doctor.near_cases import NEAR
from tests.doctor.sick_cases import SICK, flat


def cases(table):
    return [
        pytest.param(name, case, id=f"{name}-{i}")
        for name, listed in table.items()
        for i, case in enumerate(listed)
    ]


def names(case):
    return [finding.name for finding in examine(run(**case))]


def test_a_healthy_run_gives_nothing():
    assert names({}) == []


def test_every_diagnosis_has_a_case_and_a_near_miss():
    known = {diagnosis.name for diagnosis in DIAGNOSES}
    assert known == SICK.keys() == NEAR.keys()


@pytest.mark.parametrize(("name", "case"), cases(SICK))
def test_a_cause_is_found(name, case):
    assert name in names(case)


@pytest.mark.parametrize(("name", "case"), cases(NEAR))
def test_what_only_looks_like_it_is_not(name, case):
    assert name not in names(case)


@pytest.mark.parametrize(("name", "case"), cases(SICK))
def test_findings_are_whole(name, case):
    [finding] = [each for each in examine(run(**case)) if each.name == name]
    assert finding.severity in SEVERITIES
    assert finding.remedies
    assert finding.what.endswith(".")
    assert finding.why.endswith(".")
    assert "{" not in f"{finding.what}{finding.why}{finding.remedies}"
    assert finding.seen or name == "no_steps"
    known = {diagnosis.name for diagnosis in DIAGNOSES}
    assert set(finding.may_cause) <= known
    assert all(np.isfinite(figure.value) for figure in finding.seen)


def test_every_field_that_is_named_exists():
    fields = flatten(base.get_config().to_dict())
    sections = {name.rpartition(".")[0] for name in fields}
    read, named = set(), set()
    for path in pathlib.Path(doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(getattr(node, "func", None), "id", None)
            called = called or getattr(getattr(node, "func", None), "attr", None)
            if called in ("field", "number", "setting"):
                read |= {a.value for a in node.args if isinstance(a, ast.Constant)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                slots = {name for name, *_ in SLOT.findall(node.value)}
                read |= {name for name in slots if "." in name}
                named |= set(FIELD.findall(node.value))
    assert len(read) > 60, "this test no longer meets the code"
    assert read <= fields.keys()
    assert named <= fields.keys() | sections


def test_causes_come_before_what_they_explain_in_the_table():
    places = {diagnosis.name: at for at, diagnosis in enumerate(DIAGNOSES)}
    assert len(places) == len(DIAGNOSES)
    assert MAY_CAUSE.keys() <= places.keys()
    for name, effects in MAY_CAUSE.items():
        texts = effects.values() if isinstance(effects, dict) else [effects]
        for effect in " ".join(texts).split():
            assert places[name] < places[effect], (name, effect)


def test_updates_that_are_too_large_explain_contexts_that_overflow():
    columns = {"clip_fraction": 0.4, "overflow_rate": 0.7, "truncated_rate": 0.6}
    findings = by_name(run(columns))
    for name in ("overflow", "truncated"):
        assert findings[name].because_of == ("updates_too_large",)


def test_causes_come_before_what_follows_from_them():
    large = {
        "clip_fraction": np.where(np.arange(STEPS) < 6, 0.5, 0.0),
        "success": ramp(0.5, 0.0, noise=0.03),
        "degenerate_groups": ramp(0.1, 1.0),
        "no_outcome_groups": ramp(0.1, 1.0),
        "padding_share": 0.7,
    }
    findings = examine(run(large))
    assert findings[0].name == "updates_too_large"
    later = {each.name: each.because_of for each in findings}
    assert "updates_too_large" in later["late_collapse"]
    assert later["padding"] == ()
    assert findings[-1].name == "padding", "a note comes last"


def test_a_slight_cause_comes_before_the_grave_thing_that_follows():
    case = {"columns": {"success": 0.0, "no_outcome_groups": 1}}
    findings = examine(run(**case, fields={"memory__enabled": False}))
    assert [each.name for each in findings][:2] == ["memory_off", "tasks_too_hard"]
    assert findings[1].because_of == ("memory_off",)


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 5, 9, 31])
def test_any_number_of_steps(steps):
    for listed in SICK.values():
        for case in listed:
            shorter = {k: v for k, v in case.items() if k != "columns"} | {
                "columns": {
                    name: np.asarray(value)[:steps] if np.ndim(value) else value
                    for name, value in case.get("columns", {}).items()
                },
                "steps": steps,
            }
            examine(run(**shorter))


def test_missing_columns_and_values_are_no_cause():
    whole = run()
    for name in whole.table.columns:
        kept = {k: v for k, v in whole.table.columns.items() if k != name}
        less = type(whole)(type(whole.table)(whole.table.steps, kept), {}, {}, {})
        assert [f.name for f in examine(less)] == [], name
    empty = dict.fromkeys(whole.table.columns, np.nan)
    assert examine(run(empty)) == []


@pytest.mark.parametrize("junk", [None, 3, "x", [], {"mean": "x"}, {"mean": [0.5]}])
def test_a_damaged_evaluation_says_nothing(junk):
    broken = {"success_sampled": junk}
    ends = {"cold_start": broken, "trained": {"success_sampled": {"mean": 0.5}}}
    for summary in (ends, {"trained": junk}):
        findings = examine(run(summary=summary | {"steps": junk}, cold_start=broken))
        assert {finding.name for finding in findings} <= {"unfinished"}


def test_findings_quote_error_messages():
    errors = ErrorCounts(
        "f.jsonl", 8, {"no answer": 3}, {"unclosed_tag": 9, "other": 1}
    )
    sick = {"malformed_rate": 0.3, "failed_trajectories": 8}
    findings = by_name(run(sick, errors=errors))
    failed, malformed = findings["failed_trajectories"], findings["malformed_ops"]
    assert "In f.jsonl most often: 'no answer' 3 times." in failed.why
    assert "'unclosed_tag' 9 times, 'other' 1 times" in malformed.why
    without = by_name(run(sick))
    assert "most often" not in without["malformed_ops"].why


@pytest.mark.parametrize(("paid", "at_floor"), [(-0.3, False), (-0.45, True)])
def test_malformed_ops_that_cost_nothing_more(paid, at_floor):
    sick = {"malformed_rate": 0.3, "reward_weighted/malformed": paid}
    findings = by_name(run(sick))
    malformed = findings["malformed_ops"]
    assert ("Penalties are at the floor" in malformed.why) == at_floor
    lower = "lower config.reward.penalty_floor (now -0.5)"
    assert any(remedy.startswith(lower) for remedy in malformed.remedies) == at_floor
    names = [figure.what for figure in malformed.seen]
    assert ("reward_weighted/malformed" in names) == at_floor


@pytest.mark.parametrize(("decay", "ended"), [(0, False), (81, False), (80, True)])
def test_success_that_is_flat_since_bonuses_ended(decay, ended):
    fields = {"credit__bonus_decay_steps": decay}
    findings = {
        each.name: each for each in examine(run({"success": flat}, fields=fields))
    }
    named = "credit.bonus_decay_steps" in findings["success_flat"].fields
    assert named == ended


def test_weights_at_their_cap_come_with_log_probs_that_differ():
    apart = {"log_prob_gap": ramp(1e-5, 8e-4)}
    capped = {"importance_capped": 0.5, "importance_weight": 1.2}
    for columns, metrics in (
        (apart, {"log_prob_gap", "config.train.max_log_prob_gap"}),
        (capped, {"importance_capped", "importance_weight", "log_prob_gap"}),
        (apart | capped, {"config.train.max_log_prob_gap", "log_prob_gap", *capped}),
    ):
        findings = by_name(run(columns))
        gap = findings["sampler_gap"]
        assert {figure.what for figure in gap.seen} == metrics
        assert ("nats on the worst" in gap.what) == ("log_prob_gap" in columns)
        raised = any(each.startswith("raise config.objective") for each in gap.remedies)
        assert raised == ("importance_capped" in columns)

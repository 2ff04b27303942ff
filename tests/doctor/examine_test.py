"""Each cause is found where it is, and not in what only looks like it."""

import ast
import pathlib

import numpy as np
import pytest

from configs import base
from mempo_jax import doctor
from mempo_jax.doctor.examine import DIAGNOSES, examine
from mempo_jax.doctor.findings import FIELD, SEVERITIES
from mempo_jax.settings import flatten
from tests.doctor.doctor_case import STEPS, ramp, run
from tests.doctor.near_cases import NEAR
from tests.doctor.sick_cases import SICK


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
    known = {look.__name__ for look in DIAGNOSES}
    assert known == SICK.keys() == NEAR.keys()


@pytest.mark.parametrize(("name", "case"), cases(SICK))
def test_a_cause_is_found(name, case):
    assert name in names(case)


@pytest.mark.parametrize(("name", "case"), cases(NEAR))
def test_what_only_looks_like_it_is_not(name, case):
    assert name not in names(case)


@pytest.mark.parametrize(("name", "case"), cases(SICK))
def test_findings_are_whole(name, case):
    [found] = [each for each in examine(run(**case)) if each.name == name]
    assert found.severity in SEVERITIES
    assert found.remedies
    assert found.what.endswith(".")
    assert found.why.endswith(".")
    assert found.seen or name == "no_steps"
    known = {look.__name__ for look in DIAGNOSES}
    assert set(found.may_cause) <= known
    assert all(np.isfinite(seen.value) for seen in found.seen)


def test_every_field_that_is_named_exists():
    fields = flatten(base.get_config().to_dict())
    sections = {name.rpartition(".")[0] for name in fields}
    asked, told = set(), set()
    for path in pathlib.Path(doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(getattr(node, "func", None), "id", None)
            called = called or getattr(getattr(node, "func", None), "attr", None)
            if called in ("field", "number"):
                asked |= {a.value for a in node.args if isinstance(a, ast.Constant)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                told |= set(FIELD.findall(node.value))
    assert len(asked) > 40, "this test no longer meets the code"
    assert asked <= fields.keys()
    assert told <= fields.keys() | sections


def test_causes_come_before_what_follows_from_them():
    large = {
        "clip_fraction": np.where(np.arange(STEPS) < 6, 0.5, 0.0),
        "success": ramp(0.5, 0.0, noise=0.03),
        "degenerate_groups": ramp(0.1, 1.0),
        "no_outcome_groups": ramp(0.1, 1.0),
        "padding_share": 0.7,
    }
    found = examine(run(large))
    assert found[0].name == "updates_too_large"
    later = {each.name: each.because_of for each in found}
    assert "updates_too_large" in later["late_collapse"]
    assert later["padding"] == ()
    assert found[-1].name == "padding", "a note comes last"


def test_a_slight_cause_stands_before_the_grave_thing_that_follows():
    case = {"columns": {"success": 0.0, "no_outcome_groups": 1}}
    found = examine(run(**case, fields={"memory__enabled": False}))
    assert [each.name for each in found][:2] == ["memory_off", "tasks_too_hard"]
    assert found[1].because_of == ("memory_off",)


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
        said = examine(run(summary=summary | {"steps": junk}, cold_start=broken))
        assert {finding.name for finding in said} <= {"unfinished"}

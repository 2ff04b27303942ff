"""The comparison as a user starts it: its table and files, and what it refuses."""

import contextlib
import csv
import io
import json
import shutil

import pytest

from experiments import evaluate
from experiments.launch import launch
from mempo_jax.evaluation.compare import NAMES
from mempo_jax.evaluation.result_rows import MEASURES
from tests.policy_case import config, save_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture(scope="module")
def whole(run):
    """Everything compared, on four tasks: what was printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        launch(
            evaluate.main,
            evaluate.OPTIONS,
            required=("workdir",),
            argv=[f"--workdir={run}", "--tasks=4"],
        )
    assert not ended.value.code
    return out.getvalue()


def test_a_row_for_every_policy(run, whole):
    made = json.loads((run / "evaluation.json").read_text())
    assert (made["suite"], made["tasks"]) == ("ledger", 4)
    assert [each["policy"] for each in made["rows"]] == list(NAMES)
    for each in made["rows"]:
        assert set(each) >= set(MEASURES)
        assert each["failed"] == 0
        for name in MEASURES:
            assert set(each[name]) == {"mean", "ci95"}
        assert each["tokens_total"]["mean"] > each["tokens_peak"]["mean"] > 0
        assert each["tokens_total"]["mean"] >= each["tokens_computed"]["mean"]
    rows = list(csv.DictReader((run / "evaluation.csv").read_text().splitlines()))
    assert [each["policy"] for each in rows] == list(NAMES)
    for name in NAMES:
        assert name in whole
    assert "evaluation.json, evaluation.csv" in whole


def test_rules_are_run_on_the_tasks_of_the_policies(run, whole):
    made = json.loads((run / "evaluation.json").read_text())
    rows = {each["policy"]: each for each in made["rows"]}
    assert rows["full_history"]["success_sampled"]["mean"] == 1.0
    assert rows["full_history"]["em"]["mean"] == 1.0
    assert rows["trained"]["success_sampled"]["mean"] < 1.0
    assert rows["cold_start"] | {"policy": ""} != rows["trained"] | {"policy": ""}


def test_the_policy_may_answer_for_the_rules(run, tmp_path, capsys):
    asked = "--baselines=rag,paging,trained_read_by_script", "--reader=policy"
    with pytest.raises(SystemExit) as ended:
        launch(
            evaluate.main,
            evaluate.OPTIONS,
            required=("workdir",),
            argv=[f"--workdir={run}", "--tasks=4", f"--out={tmp_path}", *asked],
        )
    assert not ended.value.code
    made = json.loads((tmp_path / "evaluation.json").read_text())
    assert made["reader"] == "policy"
    rows = {each["policy"]: each for each in made["rows"]}
    assert list(rows) == ["rag", "paging", "trained"]
    # A policy that was not trained answers wrong what a script read right.
    assert rows["rag"]["success_sampled"]["mean"] == 0.0
    assert rows["rag"]["failed"] == 0
    assert "left out: trained_read_by_script" in capsys.readouterr().err


def refused(capsys, *argv):
    # Flags keep their values.
    defaults = ("--baselines=all", "--tasks=1", "--out=", "--reader=script")
    with pytest.raises(SystemExit) as caught:
        launch(
            evaluate.main,
            evaluate.OPTIONS,
            required=("workdir",),
            argv=[*defaults, *argv],
        )
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_what_is_refused(capsys, run, tmp_path):
    def said(*more):
        return refused(capsys, f"--workdir={run}", *more)

    assert "--workdir is missing" in refused(capsys, "--workdir=")
    assert "found no config.json" in refused(capsys, f"--workdir={tmp_path}")
    assert "the nearest is no_memory" in said("--baselines=rag,no_memry")
    assert "--tasks=0: expected at least 1" in said("--tasks=0")
    assert "--reader=me: expected one of" in said("--reader=me")
    assert "--out=/dev/null/x: " in said("--out=/dev/null/x")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(run / "config.json", unfinished)
    unended = refused(capsys, f"--workdir={unfinished}")
    assert "the run has not ended" in unended
    (unfinished / "policy").mkdir()
    (unfinished / "policy" / "config.json").write_text("{}")
    (unfinished / "config.json").write_text("{")
    damaged = refused(capsys, f"--workdir={unfinished}")
    assert "expected a config as JSON" in damaged
    assert "leave it out" in said("--config=configs/base.py")


def test_the_names_of_baselines():
    from mempo_jax.evaluation.compare import names_of

    assert names_of("all") == list(NAMES)
    assert names_of("rag") == ["rag", "trained"]
    assert names_of(" paging , rag ") == ["rag", "paging", "trained"]
    assert names_of("") == ["trained"]


def test_what_cannot_be_compared_is_left_out(run, tmp_path):
    from mempo_jax.config import from_config
    from mempo_jax.evaluation.compare import Comparison
    from mempo_jax.runs.run_dir import RunDir

    without = tmp_path / "run"
    shutil.copytree(run / "policy", without / "policy")
    own = config()
    own.env.name = "tests.envs.scripted_env:ScriptedEnv"
    settings = from_config(own.to_dict())
    made = Comparison(RunDir(str(without)), settings, 2, lambda *told: None)
    missing = made.missing(NAMES)
    assert "no scripted reader" in missing["rag"]
    assert "is not there" in missing["cold_start"]
    assert "trained" not in missing

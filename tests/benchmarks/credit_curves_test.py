"""The learning curves of the credit benchmark: jobs, and reading of made-up runs."""

import json

import numpy as np
import pytest

from benchmarks import _credit_runs, credit_curves


def curve(success, **fields):
    values = np.asarray(success, float)
    blank = np.full(len(values), np.nan)
    known = {"mode": "uniform", "seed": 0, "summary": None} | fields
    return _credit_runs.Curve(
        step=np.arange(len(values)),
        success=values,
        write_precision=blank,
        probe_share=blank,
        seconds=blank,
        **known,
    )


def test_a_level_is_reached_by_the_mean_of_five_steps():
    lucky = curve([0, 1, 0, 0, 0, 1, 1, 0.5, 1, 1, 1])
    assert _credit_runs.steps_to(lucky, 0.8) == 9  # mean of steps 5 to 9: 0.9
    assert _credit_runs.steps_to(lucky, 0.95) == float("inf")
    assert _credit_runs.steps_to(curve([1, 1, 1, 1]), 0.8) == float("inf")
    with_gap = curve([1, 1, np.nan, 1, 1])
    assert _credit_runs.steps_to(with_gap, 0.9) == 4


def write_run(runs, name, success, trained=None):
    place = runs / name
    place.mkdir(parents=True)
    rows = [
        {"step": i, "success": s, "write_precision": None, "probe_share": 0.25}
        for i, s in enumerate(success)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (place / "metrics.jsonl").write_text(lines + '{"step": 99, "suc')  # cut off
    if trained is not None:
        estimates = {key: {"mean": trained} for key in credit_curves.FINAL.values()}
        (place / "summary.json").write_text(json.dumps({"trained": estimates}))


def test_runs_are_read_and_summed_up_by_medians(tmp_path, capsys):
    for seed, first in enumerate((2, 6, 30)):
        success = [0.5] * first + [1.0] * (20 - first)
        write_run(tmp_path, f"uniform-{seed}", success, trained=0.1 * seed)
    for seed in range(2):
        write_run(tmp_path, f"both-{seed}", [0.5] * 20)
    arguments = [f"--runs={tmp_path}", f"--json={tmp_path / 'f.json'}"]
    assert credit_curves.main(arguments) == 0
    figures = json.loads((tmp_path / "f.json").read_text())
    assert list(figures) == ["uniform", "both"]
    assert figures["uniform"]["reached"]["0.9"] == [5, 9, None]
    assert figures["uniform"]["trained"]["sampled"] == [0.0, 0.1, 0.2]
    assert figures["both"]["trained"]["sampled"] == [None, None]
    said = capsys.readouterr().out.splitlines()
    assert said[1].split()[:7] == ["uniform", "3", "20", "8", "9", "5", "9"]
    assert "not reached" in said[2]
    assert "25.0%" in said[2]


def test_missing_runs_and_unknown_words_are_said(tmp_path, capsys):
    assert credit_curves.main([f"--runs={tmp_path}"]) == 2
    assert "--launch" in capsys.readouterr().err
    assert credit_curves.main([f"--runs={tmp_path}", "--sedes=1"]) == 2
    assert "--sedes=1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        credit_curves.main([f"--runs={tmp_path}", "--modes=magic"])


def test_jobs_share_a_cold_start_and_pass_the_config_on(tmp_path):
    extra = ["--config.train.steps=5"]
    [start] = _credit_runs.start_jobs(tmp_path, [4], "c.py", extra)
    assert f"--out={tmp_path / 'start-4'}" in start.command
    jobs = _credit_runs.run_jobs(tmp_path, ["uniform", "both"], [4], "c.py", extra)
    assert [job.name for job in jobs] == ["uniform-4", "both-4"]
    for job in jobs:
        assert f"--config.policy.path={tmp_path / 'start-4'}" in job.command
        assert {"--config=c.py", "--config.seed=4", *extra} <= set(job.command)
    assert (
        "--config.credit.modes=ops_only,attribution,counterfactual" in jobs[1].command
    )
    (tmp_path / "start-4").mkdir()
    (tmp_path / "start-4" / "config.json").write_text("{}")
    assert _credit_runs.start_jobs(tmp_path, [4], "c.py", extra) == []


def test_jobs_run_some_at_once_and_failures_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_credit_runs, "PAUSE_S", 0.01)
    said = []
    late = ("sh", "-c", "sleep 0.3; exit 1")  # ends after the third was left out
    jobs = [
        _credit_runs.Job("fine", ("true",), tmp_path / "a.log"),
        _credit_runs.Job("broken", late, tmp_path / "b.log"),
        _credit_runs.Job("alone", ("true",), tmp_path / "c.log", tmp_path / "none"),
    ]
    assert _credit_runs.launch(jobs, 2, said.append) == ["broken", "alone"]
    assert any("exit code 1" in line for line in said)

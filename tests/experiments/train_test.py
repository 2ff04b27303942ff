"""The main job, started as a user does: its files, its end, and its beginning again."""

import errno
import json
import re
import signal
import time

import jax
import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer

from experiments import train
from experiments.launch import launch
from mempo_jax.models import hf
from mempo_jax.runs.metrics_writer import read_metric_rows
from mempo_jax.training import run
from tests.experiments.process import TINY, finish, python_m, start

STEPS = 12
BRIEF = ("--config.train.cold_start_steps=4", "--config.train.eval_tasks=3")
MEASURES = {
    *("success_sampled", "success_greedy", "write_precision"),
    *("tokens_total", "tokens_peak"),
}
METRICS = {
    *("reward", "reward_raw/task", "reward_weighted/task", "reward_std_in_group"),
    *("degenerate_groups", "edit_distance", "ops_per_turn/write", "malformed_rate"),
    *("duplicate_rate", "recall_hit_rate", "bank_size", "merge_rate"),
    *("recall_ms_p50", "recall_ms_p95", "write_precision", "write_recall", "kl"),
    *("clip_fraction", "grad_norm", "abs_advantage", "log_prob_gap", "padding_share"),
    *("entropy", "tokens_generated_per_s", "tokens_prefilled_per_s", "compilations"),
    *("groups_resampled", "groups_unfilled", "resample_rounds", "write_only_rate"),
    *("recalls_per_write", "weighted_token_share", "reward_raw/efficiency_size"),
}


def words(workdir, *more):
    return (TINY, f"--workdir={workdir}", f"--config.train.steps={STEPS}", *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled):
    """A run that nothing interrupted: its directory and what it printed."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    code, out, err = python_m(compiled, "train", *words(workdir))
    assert code == 0, err
    return workdir, out, err


def test_the_files_of_a_run(whole):
    workdir, _, _ = whole
    config = json.loads((workdir / "config.json").read_text())
    assert config["train"]["steps"] == STEPS
    assert json.loads((workdir / "policy/mempo_config.json").read_text()) == config
    rows = read_metric_rows(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    first = (workdir / "metrics.jsonl").read_text().splitlines()[0]
    assert first.startswith('{"step": 0,')
    assert set(rows[-1]) >= METRICS
    assert sorted(int(p.name) for p in (workdir / "checkpoints").iterdir()) == [
        STEPS - 1,
        STEPS,
    ]
    assert any((workdir / "tensorboard").iterdir())


def test_a_run_that_is_quiet_compiles_nothing_after_its_start(whole):
    rows = read_metric_rows(whole[0] / "metrics.jsonl")
    assert [row["compilations"] for row in rows[2:]] == [0] * (STEPS - 2)
    assert max(row["log_prob_gap"] for row in rows) < 1e-4
    assert rows[0]["kl_first_update"] < 1e-6
    assert sum(row["updates"] for row in rows) > STEPS, "most steps must train"


def test_the_trajectories_of_a_run(whole):
    folder = whole[0] / "trajectories"
    names = {path.stem for path in folder.iterdir()}
    assert {"step_000000", "cold_start_sampled", "trained_greedy"} <= names
    lines = (folder / "step_000000.jsonl").read_text().splitlines()
    assert len(lines) == 8  # tasks x group size
    first = json.loads(lines[0])
    assert set(first) >= {"task", "sample", "turns", "ops", "rewards", "credit"}
    for row in read_metric_rows(whole[0] / "metrics.jsonl"):
        text = (folder / f"step_{row['step']:06d}.jsonl").read_text()
        made = [json.loads(line) for line in text.splitlines()]
        turns = [turn for r in made if r["credit"]["trained"] for turn in r["turns"]]
        tokens = sum(len(of_op) for turn in turns for _, of_op in turn["tokens"])
        assert tokens == row["trained_tokens"]


def test_the_summary_of_a_run(whole):
    workdir, out, _ = whole
    summary = json.loads((workdir / "summary.json").read_text())
    for who in ("cold_start", "trained"):
        assert set(summary[who]) >= MEASURES
        for name in MEASURES:
            assert set(summary[who][name]) == {"mean", "ci95"}
            assert len(summary[who][name]["ci95"]) == 2
    assert summary["seconds"]["train"] > 0
    for text in ("success, greedy", "gradient norm", f"--workdir={workdir}\n"):
        assert text in out


def test_nothing_but_progress_and_advice_on_the_error_stream(whole):
    lines = whole[2].replace("\r", "\n").splitlines()
    stages = ("expert", "demonstrations", "cold start")
    stages += ("compiling", "evaluating", "training")
    known = (*stages, "warning: config.sampling.group_size = 4")
    assert [x for x in lines if x.strip() and not x.startswith(known)] == []
    assert sum(line.startswith("warning") for line in lines) == 1
    assert all(any(x.startswith(stage) for x in lines) for stage in stages)


def test_the_policy_is_a_hugging_face_directory(whole):
    policy = whole[0] / "policy"
    config = AutoConfig.from_pretrained(policy)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    assert config.model_type == "llama"
    assert config.vocab_size == len(tokenizer)
    params, before = final_params(whole[0]), hf.load(str(whole[0] / "cold_start"))[1]
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), params, before)
    assert min(jax.tree.leaves(moved)) > 0, "every parameter should have been trained"


def test_the_same_command_again_does_nothing_over(whole, compiled):
    workdir, out, _ = whole
    before = (workdir / "summary.json").stat().st_mtime_ns
    code, again, err = python_m(
        compiled, "train", *words(workdir, "--config.mesh.data=1")
    )
    assert code == 0
    assert again == out
    assert "compiling" not in err
    assert "has ended; nothing is run, and mesh.data=1 not used: to go on raise" in err
    assert (workdir / "summary.json").stat().st_mtime_ns == before


def final_params(workdir):
    return hf.load(str(workdir / "policy"))[1]


def stop(process, file, number, after):
    """Sends a signal once ``file`` has ``after`` lines."""
    limit = time.monotonic() + 120
    try:
        while not file.is_file() or file.read_text().count("\n") < after:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < limit
            time.sleep(0.005)
        process.send_signal(number)
        return finish(process)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0), (signal.SIGINT, 130)],
)
def test_a_stopped_run_continues_to_the_same_end(
    whole, compiled, tmp_path, number, code
):
    workdir = tmp_path / "run"
    process = start(compiled, "train", *words(workdir))
    got, _, err = stop(process, workdir / "metrics.jsonl", number, after=3)
    assert got == code
    assert "Traceback" not in err
    if number != signal.SIGKILL:
        assert "the same command continues" in err.splitlines()[-1]
    assert not (workdir / "summary.json").exists()
    assert python_m(compiled, "train", *words(workdir))[0] == 0
    steps = [row["step"] for row in read_metric_rows(workdir / "metrics.jsonl")]
    assert steps == list(range(STEPS))
    ours, theirs = final_params(workdir), final_params(whole[0])
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


def test_sigterm_in_the_cold_start_is_one_line(compiled, tmp_path):
    endless = "--config.train.cold_start_steps=1000000"
    process = start(compiled, "train", *words(tmp_path / "run", endless))
    claimed = tmp_path / "run" / "config.json"
    code, out, err = stop(process, claimed, signal.SIGTERM, after=1)
    assert (code, out) == (0, "")
    assert err.splitlines()[-1].startswith("SIGTERM: stopped with nothing unsaved")
    assert "Traceback" not in err


def test_more_steps_continue_and_fewer_are_refused(compiled, tmp_path):
    workdir = tmp_path / "run"
    for steps, begins in ((2, 0), (3, 2)):
        said = words(workdir, f"--config.train.steps={steps}", *BRIEF)
        assert python_m(compiled, "train", *said)[0] == 0
        rows = read_metric_rows(workdir / "metrics.jsonl")
        assert len(rows) == steps > begins
    said = words(workdir, "--config.train.steps=1", *BRIEF)
    code, _, err = python_m(compiled, "train", *said)
    assert code == 2
    assert "config.train.steps: expected at least 3" in err


def test_training_that_cannot_go_on_is_one_line(compiled, tmp_path):
    said = words(tmp_path / "run", "--config.train.max_log_prob_gap=1e-30", *BRIEF)
    code, out, err = python_m(compiled, "train", *said)
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].startswith("error: log-prob gap")
    assert "Traceback" not in err


def test_a_full_disk_is_one_line(capsys, tmp_path, monkeypatch):
    def fill(*given):
        raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(run, "run", fill)
    error = refused(capsys, *words(tmp_path / "run"), code=3)
    assert "No space left on device: 'metrics.jsonl'; what was saved is kept" in error


def refused(capsys, *said, code=2):
    """The one line with which a command is refused, in this process."""
    with pytest.raises(SystemExit) as caught:
        launch(train.main, train.OPTIONS, required=("config", "workdir"), argv=said)
    assert caught.value.code == code
    lines = capsys.readouterr().err.splitlines()
    [error] = [line for line in lines if not line.startswith("warning: ")]
    return error


def test_a_policy_directory_without_weights_is_one_line(capsys, whole, tmp_path):
    config = (whole[0] / "policy" / "config.json").read_text()
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text(config)
    field = f"--config.policy.path={tmp_path / 'policy'}"
    error = refused(capsys, *words(tmp_path / "run", field))
    assert f"policy '{tmp_path / 'policy'}': " in error
    assert "safetensors" in error


def test_the_workdir_of_another_run_is_one_line(capsys, whole):
    error = refused(capsys, *words(whole[0], "--config.seed=5"))
    assert "holds a run with another config: seed is 0 there and 5 here" in error


def test_a_wrong_field_is_refused_before_jax_is_loaded(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # names what is imported
    said = words(tmp_path / "run", "--config.sampling.grup_size=4")
    code, out, err = python_m(compiled, "train", *said)
    assert (code, out) == (2, "")
    imported = re.findall(r"^import time:.*\| +(\S+)\n", err, re.MULTILINE)
    assert "ml_collections" in imported
    assert "jax" not in imported
    assert re.sub(r"^import time:.*\n", "", err, flags=re.MULTILINE) == (
        "error: config.sampling.grup_size: unknown field; the nearest is"
        " config.sampling.group_size\n"
    )
    assert not (tmp_path / "run").exists()

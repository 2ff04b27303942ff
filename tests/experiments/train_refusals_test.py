"""Commands that cannot work: one line, before anything is computed or written."""

import errno

import pytest

from experiments import train
from experiments.launch import launch
from mempo_jax.training import run
from tests.experiments.process import ROOT, TINY
from tests.experiments.train_test import refused, words


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("sampling.grup_size=8", "unknown field; the nearest is config.sampling.group"),
        ("sampling.group_size=1", "config.sampling.group_size: expected at least 2"),
        ("memory.retrieval_top_k=0", "retrieval_top_k must be >= 1, got 0"),
        ("sampling.top_k=5", "config.sampling.top_k: expected 0"),
        ("policy.path=nowhere", "policy 'nowhere': "),
        ("policy.ref_path=nowhere", "policy 'nowhere': "),
        ("policy.path=Qwen/Qwen3-0.6B", "`hf download Qwen/Qwen3-0.6B --local-dir mod"),
        ("policy.ref_path=a/b", "then set --config.policy.ref_path=models/b"),
        ("reward.function=nowhere:f", "config.reward.function = 'nowhere:f': "),
        ("train.demonstrations_path=x", "demonstrations_path: expected a JSONL file"),
        (
            "train.warmup_steps=199",
            "train.decay_steps: expected 0 or above warmup_steps",
        ),
        ("memory.judge=foo", "config.memory.judge: expected one of"),
        ("memory.embedder=foo", "config.memory.embedder: expected one of"),
        ("mesh.tensor=3", "config.mesh: fsdp x tensor = 3 must divide the number"),
        ("mesh.tensor=8", "config.mesh.tensor: expected 1 or a divisor of"),
        (
            "mesh.sampling.tensor=8",
            "config.mesh.sampling.tensor: expected 1 or a divisor of",
        ),
        ("mesh.sampling.tensor=3", "config.mesh: fsdp x tensor = 1 x 3 must divide"),
    ],
)
def test_bad_settings_are_one_line(capsys, tmp_path, field, message):
    error = refused(capsys, *words(tmp_path / "run", f"--config.{field}"))
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "run").exists(), "the corrected command must be free to run"


@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        ("gs://bucket/run", "--workdir=gs://bucket/run: expected a directory of the"),
        ("~nobody-here/run", "--workdir=~nobody-here/run: "),
        ("runs/lr=[0.1]", "expected a path without any of"),
    ],
)
def test_a_workdir_that_cannot_be_used_is_one_line(
    capsys, tmp_path, monkeypatch, workdir, message
):
    monkeypatch.chdir(tmp_path)
    config = f"--config={ROOT / TINY.removeprefix('--config=')}"
    assert message in refused(capsys, config, f"--workdir={workdir}")
    assert list(tmp_path.iterdir()) == []


def test_the_workdir_may_begin_with_the_home(tmp_path, monkeypatch):
    seen = []

    def note(settings, config, workdir, *given):
        seen.append(workdir)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run, "run", note)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        launch(
            train.main,
            train.OPTIONS,
            required=("config", "workdir"),
            argv=words("~/run"),
        )
    assert seen == [str(tmp_path / "run")]


def babi_words(tmp_path, data_dir):
    babi = ("--config.env.name=babi", "--config.env.babi.tasks=1")
    return words(tmp_path / "run", *babi, f"--config.env.data_dir={data_dir}")


def test_data_that_is_missing_or_damaged_is_one_line(capsys, tmp_path):
    error = refused(capsys, *babi_words(tmp_path, tmp_path / "nothing"))
    assert "config.env.data_dir: expected a folder with bAbI files" in error
    story = "1 Mary went to the hall.\n2 Where is Mary?\thall\t1\n"
    (tmp_path / "qa1_x_test.txt").write_text(story)
    (tmp_path / "qa1_x_train.txt").write_text(
        story + "1 Ann went to the hall.\nbroken\n"
    )
    error = refused(capsys, *babi_words(tmp_path, tmp_path))
    assert "qa1_x_train.txt, line 4: expected 'NUMBER sentence'" in error

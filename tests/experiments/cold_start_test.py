"""The demonstrations of the cold start, written as people may write them."""

import json

import pytest

from experiments import cold_start
from experiments.flags import load_config
from experiments.launch import launch
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.training.demonstrations import read_demonstrations
from tests.experiments.process import TINY


def run(*words):
    for name in ("out", "demonstrations"):
        cold_start.OPTIONS[name].value = ""
    with pytest.raises(SystemExit) as caught:
        launch(cold_start.main, cold_start.OPTIONS, argv=[TINY, *words])
    return caught.value.code


def test_demonstrations_are_written_as_a_run_reads_them(tmp_path, capsys):
    path = tmp_path / "shown.jsonl"
    count = "--config.train.demonstrations=3"
    assert run(f"--demonstrations={path}", count) == 0
    assert f"{path}: 3 demonstrations" in capsys.readouterr().out
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["task"] for line in lines] == [f"ledger/train/{n}" for n in range(3)]
    settings = from_config(load_config(TINY.partition("=")[2]).to_dict())
    find_task = make_suite(settings).task
    shown = list(read_demonstrations(str(path), find_task))
    assert [len(s.actions) for s in shown] == [len(line["turns"]) for line in lines]
    assert run(f"--demonstrations={path}") == 2
    assert "expected a new file" in capsys.readouterr().err


def test_a_place_where_nothing_can_be_written(tmp_path, capsys):
    assert run(f"--demonstrations={tmp_path}/none/shown.jsonl") == 2
    assert "--demonstrations=" in capsys.readouterr().err


def test_nowhere_to_write(capsys):
    assert run() == 2
    assert "--out is missing" in capsys.readouterr().err

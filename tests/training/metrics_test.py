"""The record of a run: order, numbers, resuming, and the optional views."""

import builtins
import json
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.runs.metrics_writer import MetricsWriter, read_metric_rows
from mempo_jax.settings import ConfigError


def open_writer(directory, **changes):
    settings = {
        "resume_step": None,
        "tensorboard": False,
        "wandb_project": "",
        "config": {"seed": 1},
    }
    return MetricsWriter(directory, **(settings | changes))


def write_steps(directory, steps, **changes):
    with open_writer(directory, **changes) as writer:
        for step in steps:
            writer.write(step, {"loss": step / 2})


def test_step_stands_first_and_numbers_are_plain(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.write(
            0,
            {
                "a": np.float32(0.5),
                "b": jnp.asarray(2.5, jnp.bfloat16),
                "c": np.int64(3),
                "d": True,
                "e": jnp.ones((1,)),
                "f": 0.1,
            },
        )
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert line.startswith('{"step": 0, ')
    row = {"step": 0, "a": 0.5, "b": 2.5, "c": 3, "d": 1, "e": 1.0, "f": 0.1}
    assert json.loads(line) == row


def test_what_is_not_finite_is_null(tmp_path):
    values = {"nan": float("nan"), "inf": -jnp.inf, "none": None, "ok": 1.0}
    with open_writer(tmp_path) as writer:
        writer.write(1, values)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    (row,) = read_metric_rows(tmp_path / "metrics.jsonl")
    assert row == {"step": 1, "nan": None, "inf": None, "none": None, "ok": 1.0}


@pytest.mark.parametrize("value", ["0.5", [1.0, 2.0], [], {"x": 1}, 1j])
def test_what_is_no_number_is_refused_and_nothing_written(tmp_path, value):
    expected = pytest.raises(TypeError, match="metric reward: expected one real number")
    with open_writer(tmp_path) as writer, expected:
        writer.write(1, {"fine": 1, "reward": value})
    assert read_metric_rows(tmp_path / "metrics.jsonl") == []


def test_a_line_is_on_disk_once_written(tmp_path):
    writer = open_writer(tmp_path)
    writer.write(0, {"loss": 1.0})
    assert read_metric_rows(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 1.0}]
    writer.close()
    writer.close()


def test_a_step_is_written_once_and_in_order(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.write(3, {})
        for step in (3, 2):
            with pytest.raises(ValueError, match=f"step {step} comes after step 3"):
                writer.write(step, {})


def test_resuming_cuts_what_came_after_and_a_torn_line(tmp_path):
    write_steps(tmp_path, range(5))
    record = tmp_path / "metrics.jsonl"
    record.write_text(record.read_text() + '{"step": 5, "lo')
    write_steps(tmp_path, [3, 4], resume_step=2)
    assert [row["step"] for row in read_metric_rows(record)] == [0, 1, 2, 3, 4]
    assert record.read_text().count("\n") == 5


def test_a_torn_line_inside_the_kept_part_goes_as_well(tmp_path):
    write_steps(tmp_path, [0])
    record = tmp_path / "metrics.jsonl"
    record.write_text(record.read_text() + '{"step": 1, "lo')
    write_steps(tmp_path, [2], resume_step=1)
    assert [row["step"] for row in read_metric_rows(record)] == [0, 2]


def test_a_new_run_starts_an_empty_record(tmp_path):
    write_steps(tmp_path, range(3))
    write_steps(tmp_path, [0])
    assert [row["step"] for row in read_metric_rows(tmp_path / "metrics.jsonl")] == [0]


def test_another_name_is_another_record(tmp_path):
    write_steps(tmp_path, [0], name="cold_start")
    assert [path.name for path in tmp_path.iterdir()] == ["cold_start.jsonl"]


def test_tensorboard_gets_the_finite_numbers(tmp_path):
    with open_writer(tmp_path, tensorboard=True) as writer:
        writer.write(7, {"reward/total": 0.25, "kl": float("nan")})
    (events,) = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"reward/total" in content
    assert b"kl" not in content


def test_no_view_is_made_unless_asked_for(tmp_path):
    write_steps(tmp_path, [0])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_wandb_missing_is_one_clear_error(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def without_wandb(name, *args, **kwargs):
        if name == "wandb":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_wandb)
    with pytest.raises(ConfigError, match=r"wandb is not installed: pip install"):
        open_writer(tmp_path, wandb_project="runs")
    open_writer(tmp_path).close()


def test_wandb_gets_config_and_numbers(tmp_path, monkeypatch):
    calls = []

    class FakeRun:
        def log(self, values, step):
            calls.append((values, step))

        def finish(self):
            calls.append("finish")

    fake = types.ModuleType("wandb")
    fake.init = lambda **settings: calls.append(settings) or FakeRun()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with open_writer(tmp_path, wandb_project="runs") as writer:
        writer.write(1, {"kl": 0.5, "bad": float("inf")})
    assert calls[0]["project"] == "runs"
    assert calls[0]["config"] == {"seed": 1}
    assert calls[1:] == [({"kl": 0.5}, 1), "finish"]

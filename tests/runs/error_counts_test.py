"""Error messages in the newest trajectories of a run."""

import json

from mempo_jax.runs import ErrorCounts, count_errors, read_trajectories


def test_errors_of_the_newest_step_are_counted(tmp_path):
    op = {"kind": "malformed", "error": "unclosed_tag"}
    good = {"failure": None, "ops": [op, op, {"kind": "write", "error": None}]}
    bad = {"failure": "TimeoutError: " + "x" * 200, "ops": []}
    lines = [json.dumps(good), json.dumps(bad), "[" * 99_999, '{"ops": 3}', '{"fail']
    lines.insert(2, "[]")
    folder = tmp_path / "trajectories"
    folder.mkdir()
    (folder / "step_000010.jsonl").write_text("\n".join(lines))
    (folder / "step_000009.jsonl").write_text(json.dumps(bad))
    (folder / "trained_greedy.jsonl").write_text(json.dumps(bad))
    got = count_errors(folder)
    assert (got.file, got.trajectories) == ("trajectories/step_000010.jsonl", 3)
    assert got.ops == {"unclosed_tag": 2}
    [(text, count)] = got.failures.items()
    assert (text[:14], len(text), count) == ("TimeoutError: ", 80, 1)
    assert count_errors(tmp_path / "nowhere") == ErrorCounts()


def test_trajectories_are_read_around_broken_lines(tmp_path):
    file = tmp_path / "step_000000.jsonl"
    file.write_text('{"task": "a"}\n[3]\n\n{"task": "b"}\n{"task": "c"}\n{"task": "d')
    assert [each["task"] for each in read_trajectories(file)] == ["a", "b", "c"]
    assert [each["task"] for each in read_trajectories(file, 2)] == ["a", "b"]

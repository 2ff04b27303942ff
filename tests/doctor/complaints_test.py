"""What the newest trajectories complain of."""

import json

from mempo_jax.doctor import examine
from mempo_jax.doctor.complaints import Complaints, read_complaints
from tests.doctor.doctor_case import run


def test_errors_of_the_newest_step_are_counted(tmp_path):
    op = {"kind": "malformed", "error": "unclosed_tag"}
    good = {"failure": None, "ops": [op, op, {"kind": "write", "error": None}]}
    bad = {"failure": "TimeoutError: " + "x" * 200, "ops": []}
    lines = [json.dumps(good), json.dumps(bad), "[" * 99_999, '{"ops": 3}', '{"fail']
    lines.insert(2, "[]")
    (tmp_path / "step_000010.jsonl").write_text("\n".join(lines))
    (tmp_path / "step_000009.jsonl").write_text(json.dumps(bad))
    (tmp_path / "trained_greedy.jsonl").write_text(json.dumps(bad))
    got = read_complaints(tmp_path)
    assert (got.file, got.trajectories) == ("trajectories/step_000010.jsonl", 3)
    assert got.ops == {"unclosed_tag": 2}
    [(text, count)] = got.failures.items()
    assert (text[:14], len(text), count) == ("TimeoutError: ", 80, 1)
    assert read_complaints(tmp_path / "nowhere") == Complaints()


def test_findings_quote_them():
    said = Complaints("f.jsonl", 8, {"no answer": 3}, {"unclosed_tag": 9, "other": 1})
    sick = {"malformed_rate": 0.3, "failed_trajectories": 8}
    found = {each.name: each for each in examine(run(sick, complaints=said))}
    failed, malformed = found["failed_trajectories"], found["malformed_ops"]
    assert "In f.jsonl most often: 'no answer' 3 times." in failed.why
    assert "'unclosed_tag' 9 times, 'other' 1 times" in malformed.why
    unsaid = {each.name: each for each in examine(run(sick))}
    assert "most often" not in unsaid["malformed_ops"].why

"""The headline over lengths: reading of comparisons, and what it says of them."""

import json

from benchmarks import headline


def row(policy, success, tokens, half=0.05):
    def estimate(mean):
        return {"mean": mean, "ci95": [mean - half, mean + half]}

    return {
        "policy": policy,
        "success_sampled": estimate(success),
        "success_greedy": estimate(success),
        "tokens_total": estimate(tokens),
        "tokens_computed": estimate(tokens),
        "tokens_peak": estimate(tokens / 10),
    }


def save(folder, *rows):
    folder.mkdir()
    (folder / "evaluation.json").write_text(json.dumps({"rows": rows}))
    return folder


def test_what_is_saved_and_who_is_beaten(tmp_path, capsys):
    long = save(
        tmp_path / "long",
        *(row("full_history", 1.0, 1000), row("rag", 0.2, 110), row("x", 0.85, 100)),
        row("trained", 0.9, 100),
    )
    short = save(tmp_path / "short", row("rag", 0.9, 50), row("trained", 0.9, 60))
    assert headline.main([f"--runs=40:{long},10:{short}"]) == 0
    out = capsys.readouterr().out
    assert out.index("10 ") < out.index("40 ")
    assert "40 turns: against full_history 90% tokens_total" in out
    assert "40 turns, success_sampled: interval above rag\n" in out
    assert "10 turns, success_sampled: interval above none" in out
    assert "0.900 [0.850, 0.950]" in out


def test_only_some_policies(tmp_path, capsys):
    made = save(tmp_path / "made", row("rag", 0.9, 50), row("trained", 0.9, 60))
    assert headline.main([f"--runs=10:{made}", "--policies=trained"]) == 0
    assert "rag" not in capsys.readouterr().out


def test_what_cannot_be_read(tmp_path, capsys):
    for runs in ("x", f"a:{tmp_path}", f"10:{tmp_path}"):
        assert headline.main([f"--runs={runs}"]) == 2
        assert capsys.readouterr().err.startswith(f"error: --runs={runs}: ")

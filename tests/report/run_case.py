"""The directory of a run, written by hand: two steps, a held-out task, nasty texts."""

import json

# What a policy may write, and a page must show as it is.
NASTY = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
RTL, LONE = "مرحبا \u202e abc", "half \ud800 a pair"
ESTIMATE = {"mean": 0.5, "ci95": [0.4, 0.6]}
MEASURED = ("success_sampled", "success_greedy", "write_precision", "tokens_total")


def op(turn, kind, outcome="noted", ids=(), **more):
    blank = {"similarity": 0.0, "error": None, "text": "", "stored": "", "title": None}
    blank |= {"k": 0, "supersedes": False, "evicted": [], "token_span": [0, 2]}
    own = {"turn": turn, "kind": kind, "outcome": outcome, "entry_ids": list(ids)}
    return blank | own | more


def log(word="one"):
    """A memory written and recalled, one replaced by an update, one evicted, one
    deleted."""
    made = {"text": f"{word} 1", "stored": f"{word} 1"}
    return [
        op(0, "write", "new", [0], **made),
        op(0, "write", "new", [1], stored="two 2", text="two 2"),
        op(1, "write", "merged", [2, 1], stored="two 3", text="two 3", supersedes=True),
        op(2, "write", "new", [3], stored="four", text="four", evicted=[2]),
        op(2, "delete", "deleted", [3]),
        op(3, "recall", "recalled", [0], similarity=0.75, k=1),
        op(4, "answer", text="1"),
    ]


ACTIONS = ("<w>one 1</w>;", "ab", NASTY, "<r>one</r>", "<a>1</a>")
SEEN = ("one is 1", RTL, LONE, "what is one", "recalled\n0: one 1")


def record(task="ledger/train/0", sample=0, score=1.0, *, credit=True, **more):
    """One trajectory of five turns; the first turn's text is three tokens of op 0 and
    one of none."""
    turns = [{"observation": o, "action": a} for o, a in zip(SEEN, ACTIONS)]
    made = {
        "task": task,
        "seed": 1,
        "sample": sample,
        "status": "done",
        "failure": None,
        "goal": "answer",
        "turns": turns,
        "answers": ["1"],
        "ops": log(),
        "rewards": {
            "total": score - 0.05,
            "raw": {"task": score, "malformed": 1.0, "write_cost": 3.0},
            "weighted": {"task": score, "malformed": -0.05, "write_cost": -0.0},
            "by_turn": [0.0, 0.0, 0.0, 0.0, score],
        },
        "useful_observations": [0],
        "questions": [{"observation": 3, "answer": "1", "support": [0]}],
        "question_scores": [score],
        "tokens_total": 1234,
        "tokens_peak": 56,
    }
    if credit:
        advantage = 1.0 if score else -1.0
        turns[0]["tokens"] = [[0, [3, 5, 4]], [-1, [1]]]
        turns[4]["tokens"] = [[6, [8]]]
        ops = [[1.0, 0.5 * advantage, 1.5 * advantage]]
        ops += [[1.0, 0.0, advantage]] * 5 + [[0.1, 0.0, 0.1 * advantage]]
        made["credit"] = {
            "trained": True,
            "advantage": advantage,
            "ops": ops,
            "turns": [[0.25, 0.25 * advantage]] * 5,
        }
    return made | more


def failed(**more):
    return record(status="failed", failure="KeyError: 'x'", rewards={}, **more)


def machines():
    """What machines.json notes of two starts on one machine."""
    versions = {"mempo_jax": "0.1.0", "commit": f"{'c0ffee' * 6}abcd-dirty"}
    versions |= {"jax": "0.10.2", "python": "3.11.7", "device": "cpu", "devices": 2}
    starts = ["2026-01-02T03:04:05+00:00", "2026-01-03T00:00:00+00:00"]
    return {"machines": [{"jax": "0.9"}, versions], "starts": starts}


def write(folder, *, steps=(0, 10), size=4, credit=True, ended=True):
    """A run of 20 steps that recorded these; returns its directory."""
    trajectories = folder / "trajectories"
    trajectories.mkdir(parents=True)
    config = {"train": {"steps": 20}, "env": {"name": "ledger"}, "seed": 0}
    config |= {"credit": {"modes": ["ops_only", "attribution"]}}
    (folder / "config.json").write_text(json.dumps(config))
    lines(folder / "metrics.jsonl", [metrics(step) for step in range(20)])
    for step in steps:
        tasks = [f"ledger/train/{step}", f"ledger/train/{step + 1}"]
        made = [
            record(task, sample, float(sample % 2), credit=credit)
            for task in tasks
            for sample in range(size)
        ]
        lines(trajectories / f"step_{step:06d}.jsonl", made)
    if ended:
        for name in ("cold_start_greedy", "trained_greedy"):
            made = [record(f"ledger/test/{n}", 0, credit=False) for n in range(2)]
            lines(trajectories / f"{name}.jsonl", made)
        figures = dict.fromkeys(MEASURED, ESTIMATE)
        summary = {"cold_start": figures, "trained": figures, "steps": 20}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def metrics(step):
    return {
        "step": step,
        "success": step / 20,
        "reward": step / 20 - 0.1,
        "kl": None if step == 3 else 0.01 * step,
        "reward_weighted/task": step / 20,
        "reward_weighted/malformed": -0.1,
        "ops_per_turn/write": 0.5,
        "own_metric": 7 + step,
    }


def lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

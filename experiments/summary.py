"""The end of a run in a few lines: cold start against trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .naming import command_line

ROWS = {
    "success_sampled": "success, sampled",
    "success_greedy": "success, greedy",
    "write_precision": "write precision",
    "write_recall": "write recall",
    "tokens_total": "tokens, total",
    "tokens_peak": "tokens, peak",
}
STAGES = {
    "cold_start": "cold start",
    "warm_up": "compiling",
    "evaluate_cold_start": "evaluation before",
    "train": "training",
    "evaluate_trained": "evaluation after",
}
FILES = {
    "policy/": "the trained policy, a Hugging Face directory",
    "cold_start/": "the policy before training",
    "metrics.jsonl": "figures of each step",
    "trajectories/": "what was said and done",
    "checkpoints/": "for continuing with the same command",
    "summary.json": "this table",
}


def table(summary: Mapping[str, Any]) -> list[str]:
    """The table of means with 95 % intervals, cold start beside trained.

    Args:
      summary: of the run, as in summary.json.
    """
    lines = [f"{'':18}{'cold start':>26}{'trained':>26}"]
    for key, name in ROWS.items():
        cells = [_cell(summary[who][key]) for who in ("cold_start", "trained")]
        lines.append(f"{name:18}{cells[0]:>26}{cells[1]:>26}")
    for who in ("cold_start", "trained"):
        failed = sum(summary[who]["failed"].values())
        if failed:
            lines.append(f"{failed} trajectories failed in the evaluation of: {who}")
    return lines


def closing(
    summary: Mapping[str, Any], last_step: Mapping[str, Any] | None, workdir: str
) -> list[str]:
    """Seconds of each stage, how to read the loss, and where everything is.

    Args:
      summary: of the run, as in summary.json.
      last_step: the last row of metrics.jsonl; None if no step was run.
      workdir: the run's directory, as it was given.
    """
    seconds = summary["seconds"]
    spent = ", ".join(
        f"{STAGES.get(name, name)} {value:.0f}" for name, value in seconds.items()
    )
    lines = [f"seconds: {spent}; together {sum(seconds.values()):.0f}"]
    if last_step is not None:
        norm = _number(last_step.get("grad_norm"))
        advantage = _number(last_step.get("abs_advantage"))
        lines += [
            f"last step: gradient norm {norm}, mean |advantage| {advantage}. A loss "
            "near 0 is normal",
            "on-policy, since advantages of a group add up to 0; these two say whether "
            "learning goes on.",
        ]
    lines.append(f"in {workdir}:")
    files, best = dict(FILES), summary.get("best_step")
    if best is not None:
        what = (
            f"the policy behind step {best}, the best by config.train.checkpoint_best"
        )
        files["policy_best/"] = what
    lines += [f"  {name:15}{what}" for name, what in files.items()]
    return lines


def next_commands(workdir: str) -> list[str]:
    """What to do after a run that has ended, as lines for a shell in this folder.

    Args:
      workdir: the run's directory, as it was given.

    Returns:
      For each command a line that says what it does, and the command below it.
    """
    run, policy = f"--workdir={workdir}", f"--policy={Path(workdir, 'policy')}"
    page = Path(workdir, "report.html")
    return [
        f"next, see the run as one page, {page}:",
        f"  {command_line('report', run)}",
        "or compare it with rules that learn nothing:",
        f"  {command_line('evaluate', run)}",
        "or talk with the policy:",
        f"  {command_line('chat', policy)}",
    ]


def _cell(estimate: Mapping[str, Any]) -> str:
    mean, (low, high) = estimate["mean"], estimate["ci95"]
    return f"{_number(mean)} [{_number(low)}, {_number(high)}]"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"

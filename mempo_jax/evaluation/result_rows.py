"""The figures of one policy or rule as a row, and rows as a table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mempo_jax.envs.answers import answer_f1, exact_match, join_answers, split_answers
from mempo_jax.evaluation.baselines import ToldTrajectory
from mempo_jax.evaluation.stats import mean_ci95, ratio_ci95
from mempo_jax.rollout.trajectory import Trajectory

Row = dict[str, Any]
# What a row holds, in order: by column, a heading of the table on screen.
MEASURES = {
    "success_sampled": "success, sampled",
    "success_greedy": "success, greedy",
    "em": "exact match",
    "f1": "token F1",
    "tokens_total": "tokens, fed",
    "tokens_computed": "tokens, computed",
    "tokens_peak": "tokens, peak",
    "write_precision": "memory precision",
    "write_recall": "memory recall",
    "recall_hit_rate": "hit rate",
    "evidence_recall": "evidence recalled",
    "staleness": "staleness, turns",
    "junk_share": "junk share",
}


def row(
    policy: str,
    sampled: Sequence[ToldTrajectory],
    greedy: Sequence[ToldTrajectory] | None = None,
) -> Row:
    """The figures of one policy.

    - success: mean task score.
    - em, f1: of the answer to each question that has a gold one, mean over the task's
      questions.
    - tokens_total: fed over all turns of a trajectory, contexts and actions;
      tokens_computed: without what the turn before had computed (prefix reuse);
      tokens_peak: the longest turn.
    - write_precision: share of writes about an observation worth remembering;
      write_recall: share of those observations that a write is about.
    - recall_hit_rate: recalls that found an entry; evidence_recall: share of what
      supports a question's answer that was recalled at the question.
    - staleness: turns since an entry was last used; junk_share: entries never recalled;
      both of the bank at the end of a task.

    Means of values that are all 0 or 1 have Wilson's interval, others a bootstrap over
    trajectories. All but success_greedy are of ``sampled``.

    Args:
      policy: its name.
      sampled: one trajectory a task.
      greedy: likewise; None for a rule, which does not sample: it has one success.

    Returns:
      Each figure as {"mean": x, "ci95": [low, high]}; x is None if there was nothing
      to measure.
    """
    trajectories = [each.trajectory for each in sampled]
    likeliest = trajectories if greedy is None else [each.trajectory for each in greedy]
    complete = [each for each in sampled if each.trajectory.failure is None]
    graded = [answer_scores(each.trajectory) for each in complete]
    writes = [_write_counts(each) for each in complete]
    needed = [_write_recall_counts(each) for each in complete]
    recalls = [_recall_counts(each.trajectory) for each in complete]
    evidence = [_evidence_counts(each) for each in complete]
    recalled = sum(count for _, count in recalls) > 0
    banks = [
        t.hygiene for t in trajectories if t.hygiene is not None and t.hygiene.active
    ]
    return {
        "policy": policy,
        "success_sampled": _mean([t.score for t in trajectories]),
        "success_greedy": _mean([t.score for t in likeliest]),
        "em": _mean([scores[0] for scores in graded if scores is not None]),
        "f1": _mean([scores[1] for scores in graded if scores is not None]),
        "tokens_total": _mean([float(t.tokens_total) for t in trajectories]),
        "tokens_computed": _mean([float(tokens_computed(t)) for t in trajectories]),
        "tokens_peak": _mean([float(t.tokens_peak) for t in trajectories]),
        "write_precision": _ratio(writes),
        "write_recall": _ratio(needed if any(n for _, n in writes) else []),
        "recall_hit_rate": _ratio(recalls),
        "evidence_recall": _ratio(evidence if recalled else []),
        "staleness": _mean([bank.staleness_mean for bank in banks]),
        "junk_share": _mean([bank.junk_share for bank in banks]),
        "failed": sum(
            each.trajectory.failure is not None for each in (*sampled, *(greedy or ()))
        ),
    }


def answer_scores(trajectory: Trajectory) -> tuple[float, float] | None:
    """Exact match and token F1, means over the questions; None without any.

    Args:
      trajectory: with its questions and their gold answers.
    """
    seen = trajectory.turn_observation
    answers: dict[int, str] = {}  # by observation, the last one
    for record in trajectory.log:
        if record.kind in ("act", "answer"):
            answers[seen[record.turn]] = record.text
    pairs: list[tuple[str, str]] = []
    for question in trajectory.questions:
        answer = answers.get(question.observation, "")
        pairs += _parted(answer, question.answer)
    if not pairs:
        return None
    em = sum(exact_match(*pair) for pair in pairs) / len(pairs)
    return em, sum(answer_f1(*pair) for pair in pairs) / len(pairs)


def _parted(answer: str, gold: str) -> list[tuple[str, str]]:
    """(answer, gold) of each of the numbered answers that one text may hold."""
    count = 0
    while True:
        parts = split_answers(gold, count + 1)
        if not all(parts) or join_answers(parts) != gold:
            break
        count += 1
    if not count:
        return [(answer, gold)]
    golds = split_answers(gold, count)
    return list(zip(split_answers(answer, count), golds, strict=True))


def tokens_computed(trajectory: Trajectory) -> int:
    """Tokens that went through the model once each prefix is reused.

    A segment is computed once; of a rebuilt one, what it shares with the beginning of
    the one before it is not computed again.

    Args:
      trajectory: with its segments.
    """
    total, before = 0, []
    for segment in trajectory.segments:
        pairs = zip(before, segment.tokens)
        same = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        )
        total += len(segment.tokens) - same
        before = segment.tokens
    return total


def told_by_writes(run: ToldTrajectory) -> list[tuple[int, frozenset[int]]]:
    """What each well-formed write in the log is about.

    Args:
      run: a trajectory, and what its writes are about.

    Returns:
      (id of the entry, or -1 if none was made; observations) of each.
    """
    trajectory = run.trajectory
    seen, rows = trajectory.turn_observation, []
    writes = [r for r in trajectory.log if r.kind == "write"]
    for number, record in enumerate(writes):
        known = run.writes is not None and number < len(run.writes)
        of = run.writes[number] if known else frozenset({seen[record.turn]})
        if record.error is None:
            rows.append((record.entry_ids[0] if record.entry_ids else -1, of))
    return rows


def _write_counts(run: ToldTrajectory) -> tuple[int, int]:
    """(useful writes, writes)."""
    useful = run.trajectory.useful
    rows = told_by_writes(run)
    return sum(bool(of & useful) for _, of in rows), len(rows)


def _write_recall_counts(run: ToldTrajectory) -> tuple[int, int]:
    """(useful observations that a write is about, useful observations)."""
    useful = run.trajectory.useful
    written = frozenset().union(*(of for _, of in told_by_writes(run)))
    return len(useful & written), len(useful)


def _recall_counts(trajectory: Trajectory) -> tuple[int, int]:
    recalls = [r for r in trajectory.log if r.kind == "recall"]
    return sum(bool(r.entry_ids) for r in recalls), len(recalls)


def _evidence_counts(run: ToldTrajectory) -> tuple[int, int]:
    """(supporting observations recalled at their question, all of them)."""
    trajectory = run.trajectory
    recalls, seen = _recalled_observations(run), trajectory.turn_observation
    by_observation: dict[int, set[int]] = {}
    for turn, observations in recalls:
        by_observation.setdefault(seen[turn], set()).update(observations)
    recalled = [
        len(q.support & by_observation.get(q.observation, set()))
        for q in trajectory.questions
    ]
    return sum(recalled), sum(len(q.support) for q in trajectory.questions)


def _recalled_observations(run: ToldTrajectory) -> list[tuple[int, frozenset[int]]]:
    """(turn, observations that the recalled entries are about) of each recall."""
    writes = iter(told_by_writes(run))
    holds: dict[int, frozenset[int]] = {}  # by entry
    recalls = []
    for record in run.trajectory.log:
        if record.kind == "write" and record.error is None:
            entry, of = next(writes)
            holds[entry] = of.union(*(holds.get(i, ()) for i in record.entry_ids))
        elif record.kind == "merge" and record.error is None and record.entry_ids:
            parents = (holds.get(i, frozenset()) for i in record.entry_ids[1:])
            holds[record.entry_ids[0]] = frozenset().union(*parents)
        elif record.kind == "recall":
            of = (holds.get(i, frozenset()) for i in record.entry_ids)
            recalls.append((record.turn, frozenset().union(*of)))
    return recalls


def _mean(values: Sequence[float]) -> dict[str, Any]:
    if all(value in (0.0, 1.0) for value in values):
        return dict(mean_ci95(values))
    return ratio_ci95(values, [1.0] * len(values))


def _ratio(counts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return ratio_ci95([part for part, _ in counts], [whole for _, whole in counts])


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV: mean, low and high of each measure, empty if unknown.

    Args:
      rows: one a policy.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("", "_low", "_high")
    heads = [f"{name}{part}" for name in MEASURES for part in parts]
    writer.writerow(["policy", *heads, "failed"])
    for each in rows:
        numbers = [
            number
            for name in MEASURES
            for number in (each[name]["mean"], *each[name]["ci95"])
        ]
        shown = ["" if n is None else f"{n:.6g}" for n in numbers]
        writer.writerow([each["policy"], *shown, each["failed"]])
    return out.getvalue()


def lines(rows: Sequence[Row]) -> list[str]:
    """The lines of the table on screen, in blocks: all measures side by side would be
    too wide.

    Args:
      rows: one a policy, which becomes one line of each block.
    """
    blocks = (
        ("success_sampled", "success_greedy", "em", "f1"),
        ("tokens_total", "tokens_computed", "tokens_peak"),
        ("write_precision", "write_recall", "recall_hit_rate"),
        ("evidence_recall", "staleness", "junk_share"),
    )
    wide = max(len(each["policy"]) for each in rows) + 1
    text = []
    for names in blocks:
        text.append(" " * wide + "".join(f"{MEASURES[name]:>24}" for name in names))
        for each in rows:
            cells = [f"{_cell(each[name]):>24}" for name in names]
            text.append(f"{each['policy']:{wide}}{''.join(cells)}")
        text.append("")
    failures = {each["policy"]: each["failed"] for each in rows if each["failed"]}
    text += [f"{n} trajectories failed: {name}" for name, n in failures.items()]
    return text


def _cell(estimate: Mapping[str, Any]) -> str:
    mean, (low, high) = estimate["mean"], estimate["ci95"]
    if mean is None:
        return "-"
    return f"{figure(mean)} [{figure(low)}, {figure(high)}]"


def figure(value: float | None, *, digits: int = 3, unknown: str = "-") -> str:
    """A figure for reading: the larger it is, the fewer digits after the point.

    Args:
      value: the figure.
      digits: after the point, of one below 10.
      unknown: the text for None.
    """
    if value is None:
        return unknown
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.{digits}f}"

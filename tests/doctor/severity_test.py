"""How grave a cause is, and which of its explanations is given."""

import numpy as np
import pytest

from mempo_jax.doctor import examine
from tests.doctor.doctor_case import by_name, ramp, run, wobble
from tests.doctor.sick_cases import ends, flat, late

ROLLING = {"context__rule": "rolling"}
PER_STEP = {"sampling__group_size": 8, "sampling__tasks_per_step": 8}
FALLS = {"reward": flat, "success": flat, "loss": ramp(0.05, 0.0, noise=0.005)}
FALLS_BY_KL = {"kl": ramp(2.5, 0.0), "kl_coef": 0.02}


def case(columns=None, fields=None, **more):
    return {"columns": columns or {}, "fields": fields or {}, **more}


# name, arguments of ``doctor_case.run``, severity, words
CASES = [
    (
        "failed_trajectories",
        case({"failed_trajectories": 8}, PER_STEP),
        "warning",
        "12 %",
    ),
    ("failed_trajectories", case({"failed_trajectories": 24}, PER_STEP), "problem", ""),
    ("overflow", case({"overflow_rate": 0.2}), "warning", "20 % of the"),
    ("overflow", case({"overflow_rate": 0.6}), "problem", "60 % of the"),
    (
        "actions_cut",
        case({"cut_turn_rate": 0.2, "success": flat}),
        "warning",
        "20 % of",
    ),
    (
        "actions_cut",
        case({"cut_turn_rate": 0.6, "success": flat}),
        "problem",
        "60 % of",
    ),
    ("actions_cut", case({"cut_turn_rate": 0.6}), "note", "60 % of the turns"),
    ("actions_cut", case({"cut_turn_rate": 0.6, "success": np.nan}), "problem", ""),
    ("malformed_ops", case({"malformed_rate": 0.3}), "warning", "never learnt"),
    ("malformed_ops", case({"malformed_rate": ramp(0.1, 0.6)}), "problem", "unlearnt"),
    (
        "non_finite_updates",
        case({"skipped_updates": late == 60}),
        "warning",
        "1 of 200",
    ),
    (
        "non_finite_updates",
        case({"skipped_updates": late == 97}),
        "problem",
        "1 of 200",
    ),
    ("kl_blow_up", case({"kl": ramp(0.1, 4.0)}), "warning", "another policy"),
    ("kl_blow_up", case({"kl": 4.0, "success": flat}), "problem", "another policy"),
    (
        "kl_blow_up",
        case({"kl": 4.0}, {"objective__kl_coef": 0.0}),
        *("warning", "the coefficient is 0"),
    ),
    (
        "sampler_gap",
        case({"log_prob_gap": ramp(1e-5, 8e-4)}),
        "warning",
        "With one program",
    ),
    (
        "sampler_gap",
        case({"log_prob_gap": ramp(1e-5, 8e-4)}, {"engine__kind": "http"}),
        *("warning", "A server"),
    ),
    (
        "sampler_gap",
        case({"log_prob_gap": 0.06}, {"train__max_log_prob_gap": 0.1}),
        *("warning", "0.06 nats"),
    ),
    ("late_collapse", case({"success": ramp(0.6, 0.1)}), "problem", "It never rose"),
    (
        "late_collapse",
        case({"success": np.where(late < 70, ramp(0.4, 0.9, noise=0.03), 0.3)}),
        *("problem", "had learnt the task and lost it"),
    ),
    (
        "low_diversity",
        case({"edit_distance": 0.0, "success": flat, "no_outcome_groups": 0.9}),
        *("warning", "from the beginning"),
    ),
    (
        "low_diversity",
        case(
            {"edit_distance": ramp(0.4, 0.0), "success": flat, "no_outcome_groups": 1}
        ),
        *("problem", "lost in training"),
    ),
    ("write_only", case({"write_only_rate": 0.8}), "note", "not needed here"),
    (
        "write_only",
        case({"write_only_rate": 0.8, "success": flat}),
        *("problem", "never learnt to recall"),
    ),
    (
        "write_only",
        case({"write_only_rate": ramp(0.0, 0.8), "success": flat}),
        *("problem", "recalling was unlearnt"),
    ),
    (
        "lost_dialogue",
        case({"kl_outside_ops": 0.4, "kl_ops": 0.02}, {"objective__kl_scope": "ops"}),
        *("warning", "nothing pulls it back. config.objective.kl_scope is 'ops'"),
    ),
    (
        "lost_dialogue",
        case({"kl_outside_ops": 0.8, "kl_ops": 0.02, "success": flat}),
        *("warning", "KL 0.8 a token. All tokens pay for distance"),
    ),
    (
        "lost_dialogue",
        case({"kl_outside_ops": 0.8, "kl_ops": 0.02}),
        *("note", "All tokens pay for distance"),
    ),
    ("memory_unused", case({"ops_per_turn/write": 0.0}), "note", "solved without it"),
    (
        "memory_unused",
        case({"ops_per_turn/write": 0.0, "success": flat}),
        *("problem", "never learnt to write"),
    ),
    (
        "memory_unused",
        case({"ops_per_turn/write": ramp(0.4, 0.0), "success": flat}),
        *("problem", "stopped writing"),
    ),
    ("memory_unused", case({"success": flat}, ROLLING), "problem", "0 rewrites in"),
    (
        "bank_growth",
        case({"bank_size": ramp(4, 400)}, {"memory__capacity": 0}),
        *("note", "so does its cost"),
    ),
    (
        "bank_growth",
        case({"bank_size": ramp(4, 40), "success": flat}, {"memory__capacity": 0}),
        *("warning", "and success does not"),
    ),
    (
        "tasks_too_easy",
        case({"success": 0.99, "no_outcome_groups": 0.95}),
        "warning",
        "",
    ),
    ("tasks_too_easy", case({"success": 0.99, "no_outcome_groups": 0.75}), "note", ""),
    ("advantages_zero", case({"degenerate_groups": ramp(0.1, 1)}), "note", "solved"),
    (
        "advantages_zero",
        case({"degenerate_groups": 1, "success": flat}),
        *("problem", "without a difference"),
    ),
    ("success_flat", case({"success": flat}), "warning", "The policy does change"),
    ("success_flat", case({"success": flat, "kl": 0.01}), "warning", "begin late"),
    (
        "success_flat",
        case({"success": 0.4 + 0.01 * wobble(40)}, steps=40),
        *("note", "In 40 steps"),
    ),
    ("reward_flat_loss_falls", case(FALLS), "warning", "measures no progress"),
    ("reward_flat_loss_falls", case(FALLS | FALLS_BY_KL), "warning", "is the KL term"),
    (
        "no_better_than_cold_start",
        case(summary=ends((0.9, 0.05), (0.41, 0.03))),
        *("problem", "is worse than the cold start: 0.41 against 0.9."),
    ),
    (
        "no_better_than_cold_start",
        case({"success": flat}, summary=ends((0.41, 0.03), (0.42, 0.03))),
        *("warning", "is hardly better than the cold start"),
    ),
    (
        "no_better_than_cold_start",
        case(summary=ends((0.3, 0.03), (0.6, 0.03))),
        *("warning", "learnt the training tasks, not the task"),
    ),
    ("unfinished", case({}, {"train__steps": 500}, idle_s=9.0), "note", "is under way"),
    (
        "unfinished",
        case({}, {"train__steps": 500}, idle_s=9e5),
        "warning",
        "has stopped",
    ),
    (
        "unfinished",
        case({}, PER_STEP | {"train__eval_tasks": 512}, summary={}, idle_s=600.0),
        *("note", "still to come"),
    ),
    (
        "unfinished",
        case({}, PER_STEP | {"train__eval_tasks": 512}, summary={}, idle_s=800.0),
        *("warning", "has stopped"),
    ),
]


def test_a_loss_that_falls_asks_for_less_kl_or_for_more():
    name = "config.objective.kl_coef"
    for columns, by_kl in ((FALLS, False), (FALLS | FALLS_BY_KL, True)):
        findings = by_name(run(columns))
        remedies = " ".join(findings["reward_flat_loss_falls"].remedies)
        assert (f"lower {name}" in remedies) == by_kl
        assert (f"raise {name}" in remedies) == (not by_kl)


@pytest.mark.parametrize(
    ("name", "arguments", "severity", "words"),
    [pytest.param(*row, id=f"{row[0]}-{n}") for n, row in enumerate(CASES)],
)
def test_severity_and_explanation(name, arguments, severity, words):
    [finding] = [each for each in examine(run(**arguments)) if each.name == name]
    assert finding.severity == severity
    assert words in f"{finding.what} {finding.why}"

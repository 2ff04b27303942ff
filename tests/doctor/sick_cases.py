"""What each diagnosis is found in: by name a list of arguments of ``doctor_case.run``:
columns, fields, the rest."""

import numpy as np

from tests.doctor.doctor_case import STEPS, ramp

flat = ramp(0.4, 0.4, noise=0.03)
late = np.arange(STEPS)
FELL = np.where(late < 70, ramp(0.4, 0.9, noise=0.03), 0.3)


def ends(before, after):
    """A summary, from two means with the half width of their intervals."""
    return {
        who: {"success_sampled": {"mean": mean, "ci95": [mean - width, mean + width]}}
        for who, (mean, width) in (("cold_start", before), ("trained", after))
    }


SICK = {
    "no_steps": [{"steps": 0, "summary": {}}],
    "damaged_record": [{"broken_lines": 2}, {"repeated_steps": 1}],
    "failed_trajectories": [{"columns": {"failed_trajectories": 8}}],
    "longer": [{"columns": {"tokens_per_trajectory": ramp(300, 600), "success": flat}}],
    "overflow": [{"columns": {"overflow_rate": 0.2}}],
    "truncated": [{"columns": {"truncated_rate": 0.4}}],
    "memory_off": [{"fields": {"memory__enabled": False}}],
    "non_finite_updates": [{"columns": {"skipped_updates": late == 60}}],
    "updates_too_large": [
        {"columns": {"clip_fraction": np.where(late < 6, 0.4, 0.0)}},
        {"columns": {"clip_fraction": ramp(0.01, 0.3)}},
        {"columns": {"clip_fraction": np.where(late < 2, 0.5, np.nan)}},  # then none
    ],
    "sampler_gap": [
        {"columns": {"log_prob_gap": ramp(1e-5, 8e-4)}},
        {"columns": {"log_prob_gap": ramp(2e-5, 4e-4)}},
        {"columns": {"importance_capped": 0.5}},
    ],
    "kl_blow_up": [
        {"columns": {"kl": ramp(0.1, 4.0)}},
        {"columns": {"kl": np.where(late < 80, 0.01, 0.9), "success": flat}},
    ],
    "lost_dialogue": [
        {
            "columns": {"kl_outside_ops": ramp(0.0, 0.4), "kl_ops": 0.02},
            "fields": {"objective__kl_scope": "ops"},
        },
        {"columns": {"kl": ramp(0.0, 0.7)}, "fields": {"objective__kl_scope": "ops"}},
        {"columns": {"kl_outside_ops": ramp(0.0, 0.8), "kl_ops": 0.02}},
    ],
    "entropy_explosion": [
        {"columns": {"entropy": ramp(0.1, 0.6, noise=0.02), "success": 0.9 - flat}},
    ],
    "entropy_collapse": [{"columns": {"success": flat}}],
    "shaping_grows": [
        {"columns": {"success": ramp(0.6, 0.3), "reward_weighted/efficiency": flat}}
    ],
    "late_collapse": [
        {"columns": {"success": FELL}},
        {"columns": {"success": ramp(0.6, 0.1, noise=0.05)}},
        {"columns": {"success": 0}, "cold_start": {"success_sampled": {"mean": 0.4}}},
    ],
    "constant_reward": [
        {"columns": {"success": 0.5, "edit_distance": 0.4, "no_outcome_groups": 1}},
        {
            "columns": {"success": 0, "edit_distance": 0.4},
            "fields": {"reward__function": "mine:score"},
        },
    ],
    "low_diversity": [
        {"columns": {"edit_distance": 0, "success": flat}},
        {
            "columns": {
                "edit_distance": 0.02,
                "degenerate_groups": 0.95,
                "no_outcome_groups": 0.95,
                "success": flat,
            }
        },
    ],
    "actions_cut": [
        {"columns": {"cut_turn_rate": 0.2, "success": flat}},
        {"columns": {"cut_turn_rate": 0.2}},  # and yet solved
    ],
    "malformed_ops": [{"columns": {"malformed_rate": 0.3}}],
    "memory_unused": [
        {"columns": {"ops_per_turn/write": ramp(0.4, 0.0), "success": flat}},
        {"fields": {"context__rule": "rolling"}},
    ],
    "write_only": [
        {"columns": {"write_only_rate": ramp(0.0, 0.8), "success": flat}},
        {"columns": {"ops_per_turn/recall": ramp(0.1, 0.0), "success": flat}},
    ],
    "recalls_find_nothing": [{"columns": {"recall_hit_rate": 0.2}}],
    "merge_rate_high": [{"columns": {"merge_rate": 0.5}}],
    "duplicate_writes": [{"columns": {"duplicate_rate": 0.6}}],
    "bank_growth": [
        {
            "columns": {"bank_size": ramp(4, 40, noise=1), "success": flat},
            "fields": {"memory__capacity": 0},
        },
        {"columns": {"bank_size": 3.95, "write_precision": 0.35, "success": flat}},
        {
            "columns": {"bank_size": ramp(4, 400)},
            "fields": {"memory__capacity": 0},
        },  # it pays, and is worth a note
    ],
    "slow_recall": [
        {
            "columns": {
                "recall_ms_p95": ramp(1, 90),
                "recall_ms_p50": ramp(1, 30),
                "seconds_sampling": 3.0,
            }
        },
        {"columns": {"recall_ms_p95": 500.0}},  # one in twenty, and all wait
    ],
    "tasks_too_hard": [{"columns": {"success": 0.004, "no_outcome_groups": 0.97}}],
    "tasks_too_easy": [{"columns": {"success": 0.99, "no_outcome_groups": 0.95}}],
    "credit_reaches_no_token": [{"columns": {"abs_advantage": 1e-4}}],
    "only_penalties": [
        {"columns": {"no_outcome_groups": 1, "degenerate_groups": 0.1, "success": 0.01}}
    ],
    "advantages_zero": [
        {"columns": {"reward_std_in_group": 0}},
        {"columns": {"abs_advantage": 0}},
        {"columns": {"degenerate_groups": 1, "no_outcome_groups": 1, "success": flat}},
    ],
    "few_groups_teach": [
        {"columns": {"no_outcome_groups": 0.85, "success": 0.2 + 0.1 * flat}}
    ],
    "learning_rate_ended": [{"fields": {"train__decay_steps": 50}}],
    "policy_hardly_moves": [{"columns": {"kl_first_update": 1e-6, "success": flat}}],
    "reward_flat_loss_falls": [
        {
            "columns": {
                "reward": flat,
                "success": flat,
                "loss": ramp(0.05, 0.0, noise=0.005),
            }
        }
    ],
    "success_flat": [{"columns": {"success": flat}}],
    "no_better_than_cold_start": [
        {"summary": ends((0.41, 0.03), (0.42, 0.03))},
        {"summary": ends((0.9, 0.05), (0.41, 0.03))},
        {"summary": ends((0.3, 0.03), (0.6, 0.03))},  # and .95 in training
    ],
    "recompilations": [{"columns": {"compilations": np.where(late % 7, 0, 1)}}],
    "device_memory": [{"columns": {"device_bytes": ramp(1e9, 4e9)}}],
    "slower": [{"columns": {"seconds": ramp(2.0, 9.0)}}],
    "padding": [{"columns": {"padding_share": 0.7}}],
    "probes_dear": [{"columns": {"probe_share": 0.8}}],
    "unfinished": [
        {"fields": {"train__steps": 500}, "summary": {}, "idle_s": 1.0},
        {"summary": {}, "idle_s": 9e5},
    ],
}

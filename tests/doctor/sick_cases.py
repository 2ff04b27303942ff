"""What each diagnosis is found in, and what only looks like it.

By name a list of arguments of ``doctor_case.run``.
"""

import numpy as np

from tests.doctor.doctor_case import STEPS, ramp, wobble

flat = ramp(0.4, 0.4, noise=0.03)
late = np.arange(STEPS)
FELL = np.where(late < 70, ramp(0.4, 0.9, noise=0.03), 0.3)


def ends(before, after):
    """A summary, from two means with the half width of their intervals."""
    return {
        who: {"success_sampled": {"mean": mean, "ci95": [mean - width, mean + width]}}
        for who, (mean, width) in (("cold_start", before), ("trained", after))
    }


BONUS_50 = {"credit__bonus_decay_steps": 50}

# what it is found in, and what it must not be found in: columns, fields, the rest
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
    ],
    "stale_sampler": [{"columns": {"importance_capped": 0.5}}],
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
    "malformed_ops": [{"columns": {"malformed_rate": 0.3}}],
    "penalties_at_floor": [
        {
            "columns": {
                "reward_weighted/malformed": -0.3,
                "reward_weighted/overflow": -0.2,
            }
        }
    ],
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
    "bonus_ended": [{"fields": BONUS_50, "columns": {"success": flat}}],
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
NEAR = {
    "no_steps": [{"steps": 1, "summary": {}}],
    "damaged_record": [{"cut_off": True}],
    "failed_trajectories": [{"columns": {"failed_trajectories": 1}}],
    "longer": [{"columns": {"tokens_per_trajectory": ramp(300, 600)}}],  # it helps
    "overflow": [{"columns": {"overflow_rate": np.where(late == 99, 0.2, 0.0)}}],
    "truncated": [{"columns": {"truncated_rate": 0.05}}],
    "memory_off": [{"columns": {"recall_hit_rate": 0.0}}],
    "non_finite_updates": [{"columns": {"grad_norm": np.nan}}],
    "updates_too_large": [
        {"columns": {"clip_fraction": np.where(late == 40, 0.9, 0.01)}},
        {"columns": {"old_kl": np.where(late == 40, 70.0, 0.001)}},
    ],
    "sampler_gap": [
        {"columns": {"log_prob_gap": ramp(2e-6, 6e-5)}},  # ten times, but rounding
        {"columns": {"log_prob_gap": np.where(late == 99, 9e-4, 1e-5)}},
        {
            "columns": {"log_prob_gap": 0.03 + 0.01 * wobble()},
            "fields": {"train__max_log_prob_gap": 0.1},
        },
    ],
    "stale_sampler": [{"columns": {"importance_capped": 0.02}}],
    "kl_blow_up": [
        {"columns": {"kl": np.where(late > 96, 50.0, 0.2)}},
        {"columns": {"kl": ramp(0.001, 0.9)}},  # far, and it brought success
    ],
    "lost_dialogue": [
        {"columns": {"kl_outside_ops": 0.4, "kl_ops": 0.02}},  # all of it is paid for
        {
            "columns": {"kl_outside_ops": 0.4, "kl_ops": 0.3},
            "fields": {"objective__kl_scope": "ops"},
        },
        {
            "columns": {"kl_outside_ops": 0.02, "kl_ops": 0.001},
            "fields": {"objective__kl_scope": "ops"},
        },
    ],
    "entropy_explosion": [{"columns": {"entropy": ramp(0.1, 0.6)}}],
    "entropy_collapse": [
        {"columns": {"success": flat, "degenerate_groups": 0.1}},
        {},  # sure and right
        {"columns": {"success": 0.01}},  # never right
    ],
    "shaping_grows": [{"columns": {"success": ramp(0.6, 0.59, noise=0.05)}}],
    "late_collapse": [
        {"columns": {"success": np.where((late > 60) & (late < 75), 0.3, 0.9)}},
        {"columns": {"success": np.where(late > 96, 0.0, ramp(0.4, 0.9, noise=0.1))}},
        {"columns": {"success": 0.15 + 0.14 * wobble()}},
        {
            "columns": {"success": flat},
            "cold_start": {"success_sampled": {"mean": 0.45}},
        },
    ],
    "constant_reward": [
        {"columns": {"success": 0}},  # too hard
        {"columns": {"success": np.where(late == 30, 0.51, 0.5)}},
    ],
    "low_diversity": [
        {"columns": {"edit_distance": 0.02, "success": flat, "no_outcome_groups": 0.3}},
        {"columns": {"edit_distance": 0.02, "degenerate_groups": 1}},  # solved
        {"columns": {"success": 0, "no_outcome_groups": 1}},  # never right
    ],
    "malformed_ops": [{"columns": {"malformed_rate": np.where(late > 97, 0.4, 0.01)}}],
    "penalties_at_floor": [{"columns": {"reward_weighted/malformed": -0.3}}],
    "memory_unused": [
        {"columns": {"ops_per_turn/write": ramp(0.4, 0.02)}},  # one in six, chosen well
        {
            "columns": {"ops_per_turn/write": 0, "ops_per_turn/rewrite": 0.9},
            "fields": {"context__rule": "rolling"},
        },
    ],
    "write_only": [
        {"columns": {"write_only_rate": 0.3, "success": flat}},
        {"columns": {"recalls_per_write": ramp(0.5, 0.05)}},  # long tasks, one recall
    ],
    "recalls_find_nothing": [
        {"columns": {"recall_hit_rate": 0.2, "ops_per_turn/recall": 0.001}},
        {"columns": {"recall_hit_rate": 0.8}},
    ],
    "merge_rate_high": [
        {"columns": {"merge_rate": 0.2}},
        {"columns": {"merge_rate": 1.0, "ops_per_turn/write": 0.01}},
    ],
    "duplicate_writes": [{"columns": {"duplicate_rate": 0.2}}],
    "bank_growth": [
        {"columns": {"bank_size": ramp(4, 11)}},  # and it pays
        {"steps": 9, "columns": {"bank_size": 3.95, "write_precision": 0.4}},  # begins
        {"columns": {"bank_size": 3.95, "success": flat}},  # full of what is needed
    ],
    "slow_recall": [
        {"columns": {"recall_ms_p95": np.where(late % 3, 0.3, 400.0)}},
        {"columns": {"recall_ms_p95": 30.0, "recall_ms_p50": 0.2}},  # now and then
    ],
    "tasks_too_hard": [
        {"columns": {"success": 0.01, "no_outcome_groups": 0.5}},
        {"columns": {"success": ramp(0.3, 0.0), "no_outcome_groups": 1}},  # fell
        {
            "columns": {"success": 0, "no_outcome_groups": 1},
            "cold_start": {"success_sampled": {"mean": 0.4}},
        },
    ],
    "tasks_too_easy": [{"columns": {"no_outcome_groups": 0.99}}],  # it learnt them
    "credit_reaches_no_token": [{"columns": {"abs_advantage": 0.02}}],
    "only_penalties": [{"columns": {"no_outcome_groups": 1, "degenerate_groups": 0.9}}],
    "advantages_zero": [{"columns": {"degenerate_groups": 0.9, "success": flat}}],
    "few_groups_teach": [{"columns": {"no_outcome_groups": 0.85}}],  # solved, mostly
    "learning_rate_ended": [{"fields": {"train__decay_steps": 95}}],
    "bonus_ended": [{"fields": BONUS_50}],  # it had learnt
    "policy_hardly_moves": [{"columns": {"kl_first_update": 1e-6}}],  # and yet solved
    "reward_flat_loss_falls": [
        {"columns": {"loss": ramp(0.05, 0.0, noise=0.005)}},
        {"columns": {"reward": flat, "success": flat, "loss": 0.01 * wobble()}},
    ],
    "success_flat": [
        {"columns": {"success": ramp(0.3, 0.45, noise=0.1)}},
        {"steps": 15, "columns": {"success": 0.4 + 0.03 * wobble(15)}},  # too few
    ],
    "no_better_than_cold_start": [
        {"summary": ends((0.41, 0.03), (0.93, 0.03))},
        {"summary": ends((0.25, 0.2), (0.5, 0.4))},  # four tasks say nothing
    ],
    "recompilations": [{"columns": {"compilations": np.where(late % 40, 0, 7)}}],
    "device_memory": [{"columns": {"device_bytes": ramp(1e9, 1.2e9)}}],
    "slower": [
        {"columns": {"seconds": np.where(late > 96, 90.0, 2.0)}},
        {"columns": {"seconds": ramp(2, 9), "tokens_per_trajectory": ramp(99, 500)}},
    ],
    "padding": [{"columns": {"padding_share": 0.4}}],
    "probes_dear": [{"columns": {"probe_share": 0.3}}],
    "unfinished": [{"idle_s": 9e9}],
}

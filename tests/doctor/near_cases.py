"""What only looks like a diagnosis: by name a list of arguments of ``doctor_case.run``:
columns, fields, the rest."""

import numpy as np

from tests.doctor.doctor_case import ramp, wobble
from tests.doctor.sick_cases import ends, flat, late

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
        {"columns": {"importance_capped": 0.02}},
    ],
    "kl_blow_up": [
        {"columns": {"kl": np.where(late > 96, 50.0, 0.2)}},
        {"columns": {"kl": ramp(0.001, 0.9)}},  # far, and it brought success
    ],
    "lost_dialogue": [
        {"columns": {"kl_outside_ops": 0.4, "kl_ops": 0.02}},  # all of it is paid for
        {"columns": {"kl_outside_ops": 0.8, "kl_ops": 0.4}},  # both drift alike
        {"columns": {"kl": ramp(0.0, 0.7)}},
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
    "actions_cut": [
        {"columns": {"cut_turn_rate": 0.08, "cut_trajectory_rate": 0.5}},
        {"columns": {"cut_turn_rate": np.where(late > 97, 0.4, 0.01)}},
    ],
    "malformed_ops": [{"columns": {"malformed_rate": np.where(late > 97, 0.4, 0.01)}}],
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
        {
            "columns": {
                "recall_ms_p95": np.where(late % 3, 0.3, 400.0),
                "seconds_sampling": 0.01,
            }
        },
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
    "only_penalties": [
        {"columns": {"no_outcome_groups": 1, "degenerate_groups": 0.9, "success": 0.2}},
        {"columns": {"no_outcome_groups": 1, "degenerate_groups": 0.1, "success": 1}},
    ],
    "advantages_zero": [{"columns": {"degenerate_groups": 0.9, "success": flat}}],
    "few_groups_teach": [{"columns": {"no_outcome_groups": 0.85}}],  # solved, mostly
    "learning_rate_ended": [{"fields": {"train__decay_steps": 95}}],
    "policy_hardly_moves": [{"columns": {"kl_first_update": 1e-6}}],  # and yet solved
    "reward_flat_loss_falls": [
        {
            "columns": {
                "loss": ramp(0.05, 0.0, noise=0.005),
                "success": ramp(0.3, 0.6, noise=0.05),
            }
        },
        {"columns": {"reward": flat, "success": flat, "loss": 0.01 * wobble()}},
    ],
    "success_flat": [
        {"columns": {"success": ramp(0.3, 0.45, noise=0.1)}},
        {"columns": {"success": ramp(0.4, 0.46, noise=0.005)}},  # slowly, and surely
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

"""Runs made of columns: a healthy one, and changes that make it sick."""

import json

import numpy as np

from configs import base
from mempo_jax.doctor import examine
from mempo_jax.runs import RunRecord, Table
from mempo_jax.settings import flatten

STEPS = 100


def config(**changes):
    """The base config by dotted name; ``train__steps=3`` changes train.steps."""
    flat = flatten(base.get_config().to_dict())
    for name, value in changes.items():
        field = name.replace("__", ".")
        assert field in flat, field
        flat[field] = value
    return flat


def ramp(begin, end, steps=STEPS, noise=0.0, seed=0):
    """A column that goes from one value to the other over the middle of the run."""
    at = np.clip((np.arange(steps) / steps - 0.2) / 0.4, 0, 1)
    return begin + (end - begin) * at + noise * wobble(steps, seed)


def wobble(steps=STEPS, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, steps)


def healthy(steps=STEPS):
    """The columns of a run that learns, as the main job does."""
    return {
        "success": np.clip(ramp(0.45, 0.95, steps, 0.08), 0, 1),
        "reward": ramp(0.44, 0.94, steps, 0.08),
        "loss": 0.01 * wobble(steps, 1),
        "kl": ramp(0.01, 0.15, steps, 0.004, 2),
        "kl_first_update": ramp(0.01, 0.15, steps, 0.004, 2),
        "kl_coef": np.full(steps, 0.02),
        "old_kl": np.full(steps, 1e-3),
        "entropy": ramp(0.09, 0.02, steps, 0.002, 3),
        "edit_distance": ramp(0.45, 0.04, steps, 0.01, 4),
        "grad_norm": 0.2 + 0.1 * wobble(steps, 5),
        "clip_fraction": np.full(steps, 0.002),
        "abs_advantage": ramp(0.5, 0.2, steps, 0.02, 6),
        "group_abs_advantage": ramp(0.6, 0.2, steps, 0.02, 6),
        "weighted_token_share": np.ones(steps),
        "degenerate_groups": ramp(0.1, 0.75, steps, 0.05, 7),
        "no_outcome_groups": ramp(0.1, 0.75, steps, 0.05, 7),
        "reward_std_in_group": ramp(0.4, 0.1, steps, 0.02, 8),
        "empty_steps": np.zeros(steps),
        "updates": np.full(steps, 2.0),
        "skipped_updates": np.zeros(steps),
        "log_prob_gap": 4e-6 + 1e-6 * wobble(steps, 9),
        "compilations": np.where(np.arange(steps) == 0, 7.0, 0.0),
        "seconds": 2.0 + 0.2 * wobble(steps, 10),
        "seconds_sampling": 1.0 + 0.1 * wobble(steps, 10),
        "padding_share": np.full(steps, 0.2),
        "probe_share": np.full(steps, 0.02),
        "device_bytes": np.full(steps, 1e9),
        "bank_size": ramp(3.5, 3.1, steps, 0.1, 11),
        "write_precision": ramp(0.4, 0.97, steps, 0.02, 12),
        "write_only_rate": np.zeros(steps),
        "recalls_per_write": ramp(0.2, 0.4, steps),
        "recall_hit_rate": np.ones(steps),
        "recall_ms_p50": np.full(steps, 0.1),
        "recall_ms_p95": np.full(steps, 0.3),
        "merge_rate": np.zeros(steps),
        "duplicate_rate": np.zeros(steps),
        "malformed_rate": np.full(steps, 0.003),
        "turns": np.full(steps, 9.0),
        "tokens_per_trajectory": np.full(steps, 320.0),
        "failed_trajectories": np.zeros(steps),
        "groups_resampled": np.zeros(steps),
        "overflow_rate": np.zeros(steps),
        "truncated_rate": np.zeros(steps),
        "cut_turn_rate": np.full(steps, 0.01),
        "cut_trajectory_rate": np.full(steps, 0.05),
        "ops_per_turn/write": np.full(steps, 0.4),
        "ops_per_turn/recall": np.full(steps, 0.1),
        "ops_per_turn/rewrite": np.zeros(steps),
        "reward_weighted/task": ramp(0.45, 0.95, steps, 0.08),
        "reward_weighted/malformed": np.full(steps, -0.002),
        "reward_weighted/duplicate": np.zeros(steps),
        "reward_weighted/overflow": np.zeros(steps),
    }


def run(columns=None, *, steps=STEPS, fields=None, **kwargs):
    """A ``RunRecord``: healthy but for these columns (a number: in all steps)."""
    metrics = healthy(steps)
    for name, value in (columns or {}).items():
        metrics[name] = np.broadcast_to(np.asarray(value, float), (steps,)).copy()
    done = {"steps": steps, "cold_start": {}, "trained": {}}
    kwargs = {"summary": done, "cold_start": {}} | kwargs
    settings = config(**({"train__steps": steps} | (fields or {})))
    return RunRecord(Table(np.arange(steps), metrics), settings, **kwargs)


def by_name(record):
    """The findings of a run by their names."""
    return {finding.name: finding for finding in examine(record)}


def write(place, rows, settings=None, end="\n"):
    """A run's directory, with these rows as its metrics."""
    place.mkdir(parents=True, exist_ok=True)
    text = "\n".join(json.dumps(row) for row in rows) + end
    (place / "metrics.jsonl").write_text(text)
    if settings is not None:
        (place / "config.json").write_text(json.dumps(settings))
    return place

"""How often does an untrained model write well-formed ops, by what it is told?

    python -m benchmarks.prompting [--tasks=16] [--rows=plain,short,long,few-shot]

The task of configs/smollm2_135m.py with its model (``make smollm2``) and without any
cold start: held-out tasks, sampled at the config's temperature by the collector of
training. "plain" is what the config said before: two words of instructions. A turn
counts as well-formed if an op of it was read without a fault. All rows have the same
tasks, seeds and limits.
"""

from __future__ import annotations

import argparse
import collections

from configs import smollm2_135m
from mempo_jax.builders.engines import make_collector, make_run_mesh
from mempo_jax.builders.policies import initial_policy
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig, from_config
from mempo_jax.evaluation.held_out import run_held_out
from mempo_jax.memory import OpKind, parse_ops

ROWS = {
    "plain": {"instructions": "use memory", "instructions_form": "given"},
    "short": {"instructions_form": "short"},
    "long": {"instructions_form": "long"},
    "few-shot": {"instructions_form": "short", "instruction_examples": 3},
}


def settings_of(row: str, tasks: int = 16) -> RunConfig:
    config = smollm2_135m.get_config()
    config.context.update(ROWS[row])
    config.context.max_context_tokens = 640  # room for all rows alike
    config.sampling.prefill_buckets = (64, 256, 640)
    config.train.length_buckets = (640 + config.sampling.max_new_tokens,)
    config.train.eval_tasks = tasks
    config.mesh.data = 1
    return from_config(config.to_dict())


def measure(row: str, tasks: int, shown: int) -> None:
    settings = settings_of(row, tasks)
    mesh = make_run_mesh(settings)
    suite = make_suite(settings)
    policy = initial_policy(suite, settings, mesh)
    engine, collector = make_collector(policy, suite, settings, mesh)
    trajectories = run_held_out(
        *(engine, collector, suite, settings, policy.params),
        greedy=False,
        stage=row,
    )
    actions = [action for each in trajectories for action in each.actions]
    read = [parse_ops(action, limits=settings.memory) for action in actions]
    kinds = collections.Counter(op.kind for ops in read for op in ops)
    well = sum(any(op.kind != OpKind.MALFORMED for op in ops) for ops in read)
    faulty = kinds[OpKind.MALFORMED]
    score = sum(each.score for each in trajectories)
    print(
        f"{row:9s} trajectories {len(trajectories)} turns {len(actions)} "
        f"well-formed {well / max(1, len(actions)):.1%} of turns, "
        f"{(kinds.total() - faulty) / max(1, len(actions)):.2f} ops and "
        f"{faulty / max(1, len(actions)):.2f} malformed a turn, {dict(kinds)}, "
        f"task score {score / max(1, len(trajectories)):.3f}",
        flush=True,
    )
    for action in actions[:shown]:
        print("   ", repr(action), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--shown", type=int, default=0, help="actions printed a row")
    options = parser.parse_args()
    for row in options.rows.split(","):
        measure(row, options.tasks, options.shown)


if __name__ == "__main__":
    main()

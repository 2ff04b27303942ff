"""No option does nothing: every field of the config is changed and seen to act.

A row of ``TABLE`` names a field, another value for it, and the probe in which it shows;
``given`` are fields that must be set for it to matter. A new field needs a row.
"""

import sys

import jax
import pytest
from ml_collections import ConfigDict

from configs import base
from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.distributed.hosts import RunStopped
from mempo_jax.settings import ConfigError
from mempo_jax.training.loop import Trainer
from tests import config_walk_engine_probes as engine_probes
from tests import config_walk_env_probes as env_probes
from tests import config_walk_kept_probes as kept_probes
from tests import config_walk_memory_probes as memory_probes
from tests import config_walk_probes as probes
from tests import config_walk_qa_probes as qa_probes
from tests.experiments import tiny

SHARED = ("engine", "cold_start", "kept_steps", "step", "slow_step", "skipping_step")

LONG = env_probes.LONG
ROOMY = LONG | {"memory.merge_threshold": 1.01, "memory.capacity": 0}
OFTEN = LONG | {"context.write_reminder_every": 1}
ADVISED = {"memory.judge": "policy", "memory.summarise": "policy"}
SENTENCES = {
    "memory.embedder": "sentence_transformers",
    "memory.embedder_model": "OTHER",
}
PROBED = {"credit.modes": ("answer_probability", "counterfactual")}
CONSTANT = {"objective.aggregation": "constant"}

DEFAULTS = {"mesh.data": 1, "log.tensorboard": False, "train.cold_start_steps": 2}
# Their other values cannot work: scoring could not follow the sampler; wandb is hidden;
# there is no GPU.
REFUSED = {
    *("sampling.top_p", "sampling.top_k"),
    *("log.wandb_project", "policy.attention"),
}
# field: (another value, probe, given)
TABLE = {
    "seed": (5, "tasks", {}),
    "context.rule": ("append", "episode", {}),
    "context.window_turns": (2, "episode", {}),
    "context.max_context_tokens": (30, "episode", LONG | {"context.rule": "append"}),
    "context.write_reminder_every": (1, "episode", LONG),
    "context.summary_titles": (0, "episode", LONG),
    "context.instructions": ("use it", "episode", {}),
    "context.instructions_form": ("long", "episode", {}),
    "context.instruction_examples": (1, "episode", {}),
    "context.instruction_variants": (("memory use",), "step", {}),
    "context.reminder": (
        "write ?",
        "episode",
        LONG | {"context.write_reminder_every": 1},
    ),
    "memory.enabled": (False, "episode", LONG),
    "memory.capacity": (1, "episode", LONG),
    "memory.retrieval_top_k": (1, "episode", ROOMY),
    "memory.oversample": (
        1,
        "episode",
        ROOMY | {"memory.retrieval_top_k": 2, "memory.mmr_lambda": 0.1},
    ),
    "memory.mmr_lambda": (0.1, "episode", ROOMY | {"memory.retrieval_top_k": 2}),
    "memory.merge_threshold": (1.01, "episode", LONG | {"memory.merge_threshold": 0.5}),
    "memory.judge": ("always", "episode", LONG),
    "memory.embedder": ("static", "episode", LONG),
    "memory.embedder_model": ("DATA", "embedder", SENTENCES),
    "memory.ann_threshold": (300, "bank", {}),
    "memory.max_entry_chars": (30, "episode", LONG),
    "memory.merge_max_chars": (10, "episode", ROOMY),
    "memory.max_ops_per_turn": (2, "episode", LONG),
    "memory.tombstone_turns": (2, "next_tasks", {"memory.capacity": 2}),
    "memory.judge_adds_prompt": ("{new} {old} code ?", "advice", ADVISED),
    "memory.judge_changes_prompt": ("{new} {old} code ?", "advice", ADVISED),
    "memory.judge_yes": ("code", "advice", ADVISED),
    "memory.judge_no": ("code", "advice", ADVISED),
    "memory.summarise": (
        "policy",
        "advice",
        ADVISED | {"memory.summarise": "truncate"},
    ),
    "memory.summarise_prompt": ("{text} code ?", "advice", ADVISED),
    "memory.summarise_tokens": (2, "advice", ADVISED),
    "reward.function": ("tests.config_walk_test:by_length", "step", {}),
    "reward.task_weight": (2.0, "episode", {}),
    "reward.malformed": (-0.1, "episode", LONG),
    "reward.duplicate": (-0.1, "episode", LONG),
    "reward.overflow": (-0.1, "episode", LONG | {"context.max_context_tokens": 8}),
    "reward.write_cost": (-0.01, "episode", LONG),
    "reward.penalty_floor": (-0.01, "episode", LONG),
    "reward.efficiency_size": (0.1, "episode", LONG),
    "reward.efficiency_hits": (0.1, "episode", LONG),
    "reward.outcome_gate": (True, "update", {}),
    "policy.path": ("POLICY", "policy", {}),
    "policy.ref_path": ("POLICY", "policy", {"policy.path": "POLICY"}),
    "policy.chat_template_kwargs": (
        (("style", "terse"),),
        "chat",
        {"policy.path": "STYLED"},
    ),
    "policy.param_dtype": ("bfloat16", "policy", {}),
    "policy.compute_dtype": ("bfloat16", "policy", {}),
    "policy.attention": ("cudnn", "policy", {}),
    "policy.remat": (True, "policy", {}),
    "policy.lora.rank": (3, "adapters", {}),
    "policy.lora.alpha": (8.0, "adapters", {"policy.lora.rank": 2}),
    "policy.lora.targets": (("up",), "adapters", {"policy.lora.rank": 2}),
    "policy.nano.layers": (2, "policy", {}),
    "policy.nano.width": (32, "policy", {}),
    "policy.nano.heads": (4, "policy", {}),
    "policy.nano.mlp_width": (24, "policy", {}),
    "sampling.group_size": (2, "step", {}),
    "sampling.tasks_per_step": (1, "step", {}),
    "sampling.temperature": (0.5, "step", {}),
    "sampling.top_p": (0.9, "tasks", {}),
    "sampling.top_k": (5, "tasks", {}),
    "sampling.max_turns": (20, "episode", {}),
    "sampling.max_new_tokens": (6, "step", {}),
    "sampling.slots": (4, "engine", {}),
    "sampling.decode_chunk": (4, "engine", {}),
    "sampling.prefill_buckets": ((32, 64), "engine", {}),
    "engine.lanes": (2, "engine", {"sampling.slots": 4, "mesh.data": 1}),
    "engine.row_buckets": ((2,), "engine", {"sampling.slots": 4, "mesh.data": 1}),
    "sampling.drop_degenerate": (False, "step", {"reward.malformed": 0.0}),
    "sampling.max_resample_rounds": (1, "step", {"reward.malformed": 0.0}),
    "env.workers": (3, "workers", {"env.name": "tests.envs.scripted_env:ScriptedEnv"}),
    "sampling.steps_ahead": (1, "step", {"objective.importance_cap": 2.0}),
    "sampling.max_failed_share": (1.0, "slow_step", {"env.step_timeout_s": 0.001}),
    "credit.modes": (("ops_only",), "update", {}),
    "credit.gamma": (0.5, "update", {"credit.modes": ("discounted",)}),
    "credit.other_weight": (0.7, "update", {"credit.modes": ("ops_only",)}),
    "credit.attribution_form": ("weight", "update", {}),
    "credit.attribution_probe": ("answer_log_prob", "update", {}),
    "credit.attribution_floor": (0.9, "update", {"credit.attribution_form": "weight"}),
    "credit.attribution_weight": (0.5, "update", {}),
    "credit.answer_probability_weight": (0.5, "update", PROBED),
    "credit.counterfactual_weight": (0.5, "update", PROBED),
    "credit.counterfactual_evictions": (False, "evidence", PROBED),
    "credit.bonus_decay_steps": (8, "update", {}),
    "objective.clip_low": (0.1, "update", {}),
    "objective.clip_high": (0.1, "update", {}),
    "objective.dual_clip": (1.1, "update", {}),
    "objective.aggregation": ("trajectory_mean", "update", {}),
    "objective.constant_length": (8, "update", CONSTANT),
    "objective.kl_coef": (0.04, "step", {}),
    "objective.kl_warmup_steps": (0, "step", {}),
    "objective.kl_estimator": ("k1", "update", {}),
    "objective.kl_scope": ("ops", "update", {}),
    "objective.importance_cap": (0.5, "update", {}),
    "objective.advantage_eps": (0.1, "update", {}),
    "objective.advantage_ddof": (1, "update", {}),
    "objective.divide_by_std": (False, "update", {}),
    "objective.logit_chunk": (16, "score_program", {}),
    "train.learning_rate": (1e-3, "optimiser", {}),
    "train.decay_steps": (3, "optimiser", {}),
    "train.warmup_steps": (2, "optimiser", {}),
    "train.weight_decay": (0.1, "optimiser", {}),
    "train.adam_b1": (0.5, "optimiser", {}),
    "train.adam_b2": (0.9, "optimiser", {}),
    "train.adam_eps": (1e-2, "optimiser", {}),
    "train.grad_clip": (0.01, "optimiser", {}),
    "train.minibatches": (1, "step", {}),
    "train.micro_batch_tokens": (320, "step", {}),
    "train.length_buckets": ((76, 80), "step", {}),
    "train.max_log_prob_gap": (1e-30, "step", {}),
    "train.max_skipped_updates": (1, "skipping_step", {}),
    "train.cold_start_steps": (3, "cold_start", {}),
    "train.cold_start_rows": (64, "cold_start", {}),
    "train.cold_start_learning_rate": (1e-3, "cold_start", {}),
    "train.demonstrations": (4, "cold_start", {}),
    "train.demonstrations_path": ("JSONL", "cold_start", {}),
    "train.eval_tasks": (3, "evaluation", {}),
    "mesh.data": (4, "mesh", {}),
    "mesh.fsdp": (2, "mesh", {}),
    "mesh.tensor": (2, "mesh", {}),
    "mesh.sampling.devices": (2, "mesh", {}),
    "mesh.sampling.data": (2, "mesh", {"mesh.data": 4}),
    "mesh.sampling.fsdp": (2, "mesh", {"mesh.data": 4}),
    "mesh.sampling.tensor": (2, "mesh", {"mesh.data": 4}),
}
TABLE |= engine_probes.ROWS | env_probes.ROWS
TABLE |= qa_probes.ROWS | kept_probes.ROWS


def by_length(trajectories):
    """A reward function of the user's own."""
    return [min(1.0, len("".join(t.actions)) / 1000) for t in trajectories]


def leaves(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_field_has_a_row():
    fields = set(leaves(base.get_config()))
    assert fields == set(TABLE), sorted(fields ^ set(TABLE))


class World:
    """What the probes share: files, a policy, and compiled programs."""

    def __init__(self, folder):
        self.folder, self.seen, self.runs = folder, {}, 0
        names = ("DATA", "OTHER", "POLICY", "STYLED", "JSONL", "QA")
        self.paths = {n: str(folder / n) for n in names}
        for name, place in (("DATA", "hall"), ("OTHER", "park")):
            (folder / name).mkdir()
            short = f"1 Mary went to the {place}.\n2 Where is Mary?\t{place}\t1\n"
            long = f"1 Ann got the milk.\n2 Ann went to the {place}.\n"
            long += "3 Where is Ann?\t" + place + "\t2\n"
            for task in (1, 2):
                text = short + long * task
                for split in ("train", "test"):
                    (folder / name / f"qa{task}_x_{split}.txt").write_text(text)
        qa_probes.write_questions(folder / "QA")
        (folder / "JSONL").write_text(
            '{"task": "ledger/train/0", "turns": [{"action": "<think> bus</think>"}]}\n'
        )
        settings = from_config(self.config({}).to_dict())
        self.mesh = make_run_mesh(settings)
        suite = make_suite(settings)
        self.policy = make_nano(suite, settings)
        shifted = jax.tree.map(lambda x: x + 1.0, self.policy.params)
        self.policy.save(folder / "POLICY", shifted)
        self.policy.save(folder / "STYLED", shifted)
        template = folder / "STYLED" / "chat_template.jinja"
        template.write_text("{{ style or '' }}" + template.read_text())
        self.owner = Trainer(self.policy, suite, settings, self.mesh)

    def lend(self, trainer):
        """Gives a trainer the compiled programs and the warm engine of this world."""
        trainer.programs = self.owner.programs
        trainer.engine = trainer.collector.engine = self.owner.engine

    def config(self, changes):
        config = tiny.get_config()
        for field, value in (DEFAULTS | changes).items():
            *path, name = field.split(".")
            section = config
            for part in path:
                section = section[part]
            with section.unlocked(), section.ignore_type():
                section[name] = (
                    self.paths.get(value, value) if str(value) == value else value
                )
        return config

    def look(self, probe, changes, monkeypatch):
        """What the probe sees in a config with these changes, or how it refuses."""
        key = probe, repr(sorted(changes.items()))
        if key not in self.seen:
            with monkeypatch.context() as patch:
                try:
                    self.seen[key] = self._look(probe, changes, patch)
                except (ConfigError, RunStopped) as error:
                    self.seen[key] = f"{type(error).__name__}: {error}"
        return self.seen[key]

    def _look(self, probe, changes, patch):
        config = self.config(changes).to_dict()
        settings = from_config(config)
        modules = (
            env_probes,
            memory_probes,
            engine_probes,
            kept_probes,
            qa_probes,
            probes,
        )
        function = next(getattr(m, probe) for m in modules if hasattr(m, probe))
        if probe == "files":
            self.runs += 1
            return function(settings, config, self.folder / f"run{self.runs}")
        if probe in SHARED:
            return function(settings, patch, self)
        return function(settings)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("walk"))


@pytest.mark.parametrize("field", TABLE)
def test_a_field_acts(world, monkeypatch, field):
    value, probe, given = TABLE[field]
    monkeypatch.setitem(sys.modules, "wandb", None)
    before = world.look(probe, given, monkeypatch)
    after = world.look(probe, given | {field: value}, monkeypatch)
    refused = [str(seen).startswith("ConfigError") for seen in (before, after)]
    assert refused == [False, field in REFUSED], after
    assert after != before, f"config.{field} = {value!r}: nothing changed in {probe}"


@pytest.mark.parametrize("probe", sorted({row[1] for row in TABLE.values()}))
def test_a_probe_sees_the_same_where_nothing_changed(world, monkeypatch, probe):
    before = world.look(probe, {}, monkeypatch)
    world.seen.clear()
    assert world.look(probe, {}, monkeypatch) == before

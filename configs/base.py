"""The main job: learn from outcomes alone which facts deserve memory.

    python -m experiments.train --config=configs/base.py --workdir=runs/base

Task `ledger`, policy `nano` (about 0.14 M parameters, trained from scratch here), a few
minutes on two CPU cores. README has the expected figures. Every default of the project
stands in this file; other configs import it and override.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0  # keys every random draw; also picks the ledger's hidden topics

    c.env = ConfigDict()
    c.env.name = "ledger"  # "ledger" | "babi"
    c.env.data_dir = ""  # folder of data files, for tasks that read files
    c.env.step_timeout_s = 30.0  # a slower environment call costs its trajectory

    c.env.ledger = ConfigDict()
    c.env.ledger.min_turns = 6  # observations of a task, the question included
    c.env.ledger.max_turns = 12
    c.env.ledger.relevant_topics = 3  # of 8; questions concern only these
    c.env.ledger.max_relevant_facts = 4  # no more of them in one task
    c.env.ledger.relevance = "hidden"  # "hidden" | "named" (the goal names them)
    c.env.ledger.min_delay = 3  # turns from the asked fact to the question
    c.env.ledger.max_delay = 40
    c.env.ledger.correction_rate = 0.0  # share of facts that correct an earlier one
    c.env.ledger.write_rate = 0.6  # demonstrations write every fact with this

    c.env.babi = ConfigDict()
    c.env.babi.tasks = (1, 2, 6)
    c.env.babi.max_train_lines = 40  # longer stories are not trained on
    c.env.babi.write_rate = 0.5

    c.context = ConfigDict()
    c.context.rule = "window"  # "append" | "window" | "budget" | "rolling"
    c.context.window_turns = 0  # past turns kept when a context is rebuilt
    c.context.max_context_tokens = 96  # fed to the policy in one turn, at most
    c.context.write_reminder_every = 4  # turns without a write; 0 turns it off
    c.context.summary_titles = 5  # titles of recent memories that are shown
    c.context.instructions = "use memory"
    c.context.instruction_variants = ()  # other wordings, for samples in turn
    c.context.reminder = "remember something ?"

    c.memory = ConfigDict()
    c.memory.enabled = True  # False: ops are read and logged but do nothing
    c.memory.capacity = 4  # active entries, 0 = no limit
    c.memory.retrieval_top_k = 6  # entries a recall returns, at most
    c.memory.oversample = 4  # candidates before reranking, per returned entry
    c.memory.mmr_lambda = 0.7  # relevance against diversity
    c.memory.merge_threshold = 0.86  # similarity above which a write may merge
    c.memory.judge = "lexical"  # "lexical" | "always" | "policy" (asks itself)
    c.memory.embedder = "static"  # "static" | "hashing" | "sentence_transformers"
    c.memory.embedder_model = ""  # local directory for "sentence_transformers"
    c.memory.ann_threshold = 10_000  # active entries above which ScaNN approximates
    c.memory.max_entry_chars = 2_000
    c.memory.merge_max_chars = 1_000
    c.memory.max_ops_per_turn = 4
    # Judge "policy": two questions about a pair, answered with one token each.
    notes = "old note: {old}\nnew note: {new}\n"
    c.memory.judge_adds_prompt = (
        notes + "Does the new note add information that the old one lacks? yes or no"
    )
    c.memory.judge_changes_prompt = (
        notes + "Does the new note give another value for the same fact? yes or no"
    )
    c.memory.judge_yes = "yes"
    c.memory.judge_no = "no"
    # Texts merged over merge_max_chars: "truncate" keeps the newest part, "policy" has
    # the policy say it shorter, and cuts where that is empty or still too long.
    c.memory.summarise = "truncate"
    c.memory.summarise_prompt = (
        "{text}\nSay this again in at most {max_chars} characters. Keep every fact."
    )
    c.memory.summarise_tokens = 48  # of one summary

    c.reward = ConfigDict()
    c.reward.function = ""  # "package.module:function" replaces the task score
    c.reward.task_weight = 1.0
    c.reward.malformed = -0.05  # each
    c.reward.duplicate = -0.02  # each
    c.reward.overflow = -0.2  # once
    c.reward.write_cost = 0.0  # each accepted write
    c.reward.penalty_floor = -0.5  # penalties of a trajectory together
    # Together at most task_weight / 5; "size" needs memory.capacity > 0.
    c.reward.efficiency_size = 0.0  # x (1 - mean active entries / capacity)
    c.reward.efficiency_hits = 0.0  # x share of recalls that found something
    c.reward.outcome_gate = True  # equal task scores make no full-size advantage

    c.policy = ConfigDict()
    c.policy.path = ""  # Hugging Face directory; "" builds and cold-starts `nano`
    c.policy.ref_path = ""  # "": the policy's own initial weights, frozen
    c.policy.compute_dtype = "float32"  # "float32" | "bfloat16"
    c.policy.remat = False  # recompute activations in the backward pass
    c.policy.nano = ConfigDict()
    c.policy.nano.layers = 3
    c.policy.nano.width = 64
    c.policy.nano.heads = 4
    c.policy.nano.mlp_width = 128

    c.sampling = ConfigDict()
    c.sampling.group_size = 8
    c.sampling.tasks_per_step = 8
    c.sampling.temperature = 0.9
    c.sampling.top_p = 1.0
    c.sampling.top_k = 0
    c.sampling.max_turns = 30
    c.sampling.max_new_tokens = 16  # of one action
    c.sampling.slots = 64  # trajectories generated at once
    c.sampling.decode_chunk = 16  # tokens between looks at the text
    c.sampling.prefill_buckets = (16, 32, 96)  # padded lengths of new context
    c.sampling.drop_degenerate = True  # groups of equal rewards do not train
    c.sampling.max_resample_rounds = 0  # another task in their place, so many times
    c.sampling.max_failed_share = 0.5  # more failed trajectories stop the run

    c.credit = ConfigDict()
    c.credit.modes = ("ops_only", "attribution")  # weights multiply, bonuses add
    c.credit.gamma = 0.95  # of `discounted`
    c.credit.other_weight = 0.1  # of `ops_only`, for tokens outside memory ops
    c.credit.attribution_form = "bonus"  # "bonus" | "weight" (of the advantage)
    # What changes over an interval: the task's reward, or the log-probability of the
    # gold answer, where the task knows one.
    c.credit.attribution_probe = "turn_reward"  # | "answer_log_prob"
    c.credit.attribution_floor = 0.1  # of form "weight": least weight of a write
    c.credit.attribution_weight = 1.0
    c.credit.answer_probability_weight = 1.0
    c.credit.counterfactual_weight = 1.0
    c.credit.counterfactual_evictions = True  # writes pay for what they crowded out

    c.objective = ConfigDict()
    c.objective.clip_low = 0.2
    c.objective.clip_high = 0.2
    c.objective.dual_clip = 0.0  # 0 = off, else > 1
    c.objective.aggregation = "token_mean"  # | "trajectory_mean" | "constant"
    c.objective.constant_length = 512  # tokens, divisor of "constant"
    c.objective.kl_coef = 0.02
    c.objective.kl_warmup_steps = 10
    c.objective.kl_estimator = "k3"
    c.objective.kl_scope = "all"  # "all" | "ops"
    # Truncated importance weights for a sampler that is not the trainer; 0 = off. With
    # one, train.max_log_prob_gap must allow for the difference.
    c.objective.importance_cap = 0.0  # the largest weight of a token
    c.objective.advantage_eps = 1e-4
    c.objective.advantage_ddof = 0  # 1: unbiased std; retune the learning rate
    c.objective.divide_by_std = True

    c.train = ConfigDict()
    c.train.steps = 110
    c.train.learning_rate = 5e-4
    c.train.warmup_steps = 0  # steps of a linear rise of the learning rate
    c.train.decay_steps = 140  # step at which a cosine would reach 0; 0 = constant
    c.train.weight_decay = 0.0
    c.train.adam_b2 = 0.99
    c.train.grad_clip = 1.0
    c.train.minibatches = 2  # optimiser updates per step
    c.train.micro_batch_tokens = 512  # padded tokens in one forward pass
    c.train.length_buckets = (32, 60, 112)
    c.train.max_log_prob_gap = 1e-3  # sampler against trainer; above it the run stops
    c.train.max_skipped_updates = 5  # non-finite, in a row; then the run stops
    c.train.cold_start_steps = 450
    c.train.cold_start_rows = 64
    c.train.cold_start_learning_rate = 5e-3
    c.train.demonstrations = 2_048  # scripted trajectories
    c.train.demonstrations_path = ""  # JSONL of trajectories instead
    c.train.checkpoint_every = 10
    c.train.checkpoints_kept = 2
    c.train.eval_tasks = 512  # held-out tasks of the summary

    c.mesh = ConfigDict()
    c.mesh.data = -1  # -1: all devices that the other axes leave
    c.mesh.fsdp = 1
    c.mesh.tensor = 1

    c.log = ConfigDict()
    c.log.tensorboard = True
    c.log.wandb_project = ""  # "" = off
    c.log.trajectories_every = 10  # steps; 0 = never
    return c

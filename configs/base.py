"""The main job: learn from outcomes alone which facts deserve memory.

    python -m experiments.train --config=configs/base.py --workdir=runs/base

Task `ledger`, policy `nano` (about 0.14 M parameters, trained from scratch here), a few
minutes on two CPU cores. README has the expected figures. Every default of the project
is in this file; other configs import it and override. The method comes first, the tasks
last; ``mempo_jax/config.py`` has the bounds of each field.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0  # keys every random draw; also picks the ledger's hidden topics

    c.sampling = ConfigDict()  # how groups of trajectories are drawn
    c.sampling.group_size = 8  # trajectories of one task, compared with each other
    c.sampling.tasks_per_step = 8  # groups of a training step
    c.sampling.temperature = 0.9
    c.sampling.top_p = 1.0  # fixed: the trainer scores under the full distribution
    c.sampling.top_k = 0  # fixed likewise
    c.sampling.max_turns = 30  # of a trajectory
    c.sampling.max_new_tokens = 16  # of one action
    c.sampling.slots = 64  # trajectories generated at once
    c.sampling.decode_chunk = 16  # tokens between looks at the text
    # Padded lengths of new context; longer ones are fed in pieces of the last. One CPU
    # feeds up to six layers with grouped heads flat instead: a call has one of a few
    # sizes, slots x the last or 1,024 tokens at most.
    c.sampling.prefill_buckets = (16, 32, 96)
    c.sampling.drop_degenerate = True  # groups of equal rewards do not train
    c.sampling.max_resample_rounds = 0  # tries to replace such groups by other tasks
    # 1 = the next step is sampled, by the weights before this step's update, while this
    # step trains. It needs objective.importance_cap (docs/machines.md).
    c.sampling.steps_ahead = 0
    c.sampling.max_failed_share = 0.5  # of the trajectories; above it the run stops

    c.credit = ConfigDict()  # what each memory op of a trajectory deserves
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
    # Step at which a linear fall of all bonuses reaches 0 (0 = never): they speed
    # discovery, but later hold back writes that are right and seldom of use.
    c.credit.bonus_decay_steps = 160

    c.objective = ConfigDict()  # advantages, and the loss that they weigh
    c.objective.clip_low = 0.2  # the ratio is clipped to 1 - clip_low ...
    c.objective.clip_high = 0.2  # ... 1 + clip_high
    c.objective.dual_clip = 0.0  # c > 1 bounds the cost of A < 0 by c |A|; 0 = off
    c.objective.aggregation = "token_mean"  # | "trajectory_mean" | "constant"
    c.objective.constant_length = 512  # tokens of a trajectory, for "constant"
    c.objective.kl_coef = 0.02  # weight of the KL to the reference policy
    c.objective.kl_warmup_steps = 10  # in which it rises from 0
    c.objective.kl_estimator = "k3"  # | "k1" | "k2"
    c.objective.kl_scope = "all"  # | "ops", tokens of memory ops alone
    # Truncated importance weights for a sampler that is not the trainer; 0 = off. With
    # one, train.max_log_prob_gap must allow for the difference.
    c.objective.importance_cap = 0.0  # the largest weight of a token
    c.objective.advantage_eps = 1e-4  # added to a group's standard deviation
    c.objective.advantage_ddof = 0  # 1: unbiased std; retune the learning rate
    c.objective.divide_by_std = True  # False: advantages are r - mean (Dr. GRPO)
    c.objective.logit_chunk = 2_048  # tokens whose logits a device holds at one time

    c.train = ConfigDict()  # steps, optimiser, cold start, checkpoints
    c.train.steps = 110  # of reinforcement learning, after the cold start
    c.train.learning_rate = 5e-4  # at its peak
    c.train.warmup_steps = 0  # steps of a linear rise of the learning rate
    c.train.decay_steps = 140  # step at which a cosine would reach 0; 0 = constant
    c.train.weight_decay = 0.0
    c.train.adam_b1 = 0.9
    c.train.adam_b2 = 0.99
    c.train.adam_eps = 1e-8
    c.train.grad_clip = 1.0  # largest norm of the gradient of all parameters
    c.train.minibatches = 2  # optimiser updates per step
    c.train.micro_batch_tokens = 512  # padded tokens in one forward pass
    # Padded lengths of rows; the last must hold max_context_tokens + max_new_tokens.
    c.train.length_buckets = (32, 60, 112)
    # Nats between the sampler's and the trainer's log-prob of a token; above it the run
    # stops. 0 = by policy.compute_dtype: 0.001 in float32, 1.0 in bfloat16.
    c.train.max_log_prob_gap = 0.0
    c.train.max_skipped_updates = 5  # non-finite, in a row; then the run stops
    c.train.cold_start_steps = 450  # supervised updates before step 0; 0 = none
    c.train.cold_start_rows = 64  # of one such update
    c.train.cold_start_learning_rate = 5e-3
    c.train.cold_start_checkpoint_every = 100
    c.train.demonstrations = 2_048  # scripted trajectories
    c.train.demonstrations_path = ""  # JSONL of trajectories instead
    c.train.checkpoint_every = 10  # steps
    c.train.checkpoints_kept = 2  # the last ones
    c.train.checkpoint_best = ""  # a metric, higher is better: its best is kept too
    c.train.eval_tasks = 512  # held-out tasks of the summary

    c.memory = ConfigDict()  # the bank of a trajectory
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
    c.memory.max_entry_chars = 2_000  # of title and text together
    c.memory.merge_max_chars = 1_000  # of merged texts; longer ones are shortened
    c.memory.max_ops_per_turn = 4  # further ones count as malformed
    # A bank that goes on from task to task drops what was deleted, merged or evicted
    # and last touched so many turns ago, or it would grow for ever; 0 = it keeps all.
    c.memory.tombstone_turns = 1_000
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
    # the policy say it shorter, and cuts if that is empty or still too long.
    c.memory.summarise = "truncate"
    c.memory.summarise_prompt = (
        "{text}\nSay this again in at most {max_chars} characters. Keep every fact."
    )
    c.memory.summarise_tokens = 48  # of one summary

    c.context = ConfigDict()  # what the policy is shown
    c.context.rule = "window"  # "append" | "window" | "budget" | "rolling"
    c.context.rolling_lines = 4  # of the block, kept by demonstrations of "rolling"
    c.context.window_turns = 0  # past turns kept when a context is rebuilt
    c.context.max_context_tokens = 96  # fed to the policy in one turn, at most
    c.context.write_reminder_every = 4  # turns without a write; 0 turns it off
    c.context.summary_titles = 5  # titles of recent memories that are shown
    c.context.instructions = "use memory"
    # "given" | "short" | "long" (the tags, with an example) | "auto": short where
    # policy.path is set and the instructions above are left as they are.
    c.context.instructions_form = "auto"
    c.context.instruction_examples = 0  # turns of the task's expert, shown after them
    c.context.instruction_variants = ()  # other wordings, for samples in turn
    c.context.reminder = "remember something ?"

    c.reward = ConfigDict()  # task score, penalties, efficiency
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

    c.policy = ConfigDict()  # the model that learns
    # Hugging Face directory, GGUF file, or "package:name/file" of an installed package;
    # "" builds and cold-starts `nano`.
    c.policy.path = ""
    c.policy.ref_path = ""  # "": the policy's own initial weights, frozen
    # What the chat template of `path` takes, e.g. (("enable_thinking", False),).
    c.policy.chat_template_kwargs = ()
    # "float32" | "bfloat16", of the parameters that passes take and that are exported.
    # What is trained is kept in float32 beside them.
    c.policy.param_dtype = "float32"
    c.policy.compute_dtype = "float32"  # "float32" | "bfloat16"
    c.policy.attention = "auto"  # "xla" | "cudnn" (GPU, bfloat16) | the faster one
    c.policy.remat = False  # recompute activations in the backward pass
    c.policy.lora = ConfigDict()
    c.policy.lora.rank = 0  # 0: all weights train; else adapters of this rank alone
    c.policy.lora.alpha = 32.0  # adapters are scaled by alpha / rank
    c.policy.lora.targets = (  # projections that have one
        *("query", "key", "value", "output"),
        *("gate", "up", "down"),
    )
    c.policy.nano = ConfigDict()  # shape of the built-in policy
    c.policy.nano.layers = 3
    c.policy.nano.width = 64
    c.policy.nano.heads = 4
    c.policy.nano.mlp_width = 128

    c.engine = ConfigDict()  # where turns are sampled
    c.engine.kind = "local"  # "local" | "http" (servers on this or other machines)
    # Groups of slots that the local engine computes at the same time: on a CPU, one a
    # core was faster for a model of 5 million parameters; `nano` gains nothing. Texts
    # then differ from those of one group by rounding alone.
    c.engine.lanes = 1  # divides sampling.slots; above 1 only on one device
    # Numbers of rows that may be computed while few slots (of a lane) are under way;
    # () = always all. Each compiles programs of its own.
    c.engine.row_buckets = ()
    c.engine.http = ConfigDict()
    # "http://host:8000", OpenAI-compatible: vLLM, SGLang. Several servers of the same
    # policy: separated by commas.
    c.engine.http.url = ""
    c.engine.http.model = ""  # the name that the server serves the policy under
    c.engine.http.api_key_env = ""  # environment variable with the key; "" = no key
    c.engine.http.timeout_s = 120.0  # of one try of one request
    c.engine.http.retries = 3  # then the request costs its trajectory
    c.engine.http.max_concurrent = 64  # requests of a process sent at the same time
    # How new weights reach the servers. "directory": they are written to sync_dir, and
    # each server is asked to read them. "adapter": as well, but only the adapters of
    # policy.lora. "none": a server keeps its own (docs/serving.md). With the last two,
    # servers must hold the weights that the run begins with: do without a cold start.
    c.engine.http.sync = "directory"  # | "adapter" | "none"
    c.engine.http.sync_dir = ""  # seen by the servers too; this program's own
    # POSTs after each writing, "/path" or "/path {json}", in which {directory} means
    # the path of sync_dir. These two are vLLM's; it must be serving sync_dir.
    c.engine.http.reload = (
        '/collective_rpc {"method": "reload_weights"}',
        "/reset_prefix_cache",
    )
    c.engine.http.reload_timeout_s = 600.0  # of one such POST

    c.mesh = ConfigDict()  # devices along each axis
    c.mesh.data = -1  # splits rows; -1: all devices that the other axes leave
    c.mesh.fsdp = 1  # splits rows and parameters
    c.mesh.tensor = 1  # splits the wide dimensions of parameters
    # Sampling may have a mesh of its own, to which the weights are moved once a step. A
    # large model then samples with fsdp = 1: otherwise its weights are gathered for
    # every token (docs/machines.md). As it is here, it has the mesh above.
    c.mesh.sampling = ConfigDict()
    c.mesh.sampling.devices = 0  # of each process, for sampling alone; 0 = all, shared
    c.mesh.sampling.data = -1  # -1: all of these that the next two leave
    c.mesh.sampling.fsdp = 0  # 0 = as in training
    c.mesh.sampling.tensor = 0  # 0 = as in training

    c.log = ConfigDict()  # written down besides the metrics
    c.log.tensorboard = True
    c.log.wandb_project = ""  # "" = off
    c.log.trajectories_every = 10  # steps; 0 = never

    c.env = ConfigDict()  # the tasks; of the sections inside, those of `name` count
    # "ledger" | "babi" | "dialogue" | "multi_qa" | "factbook", or a game: "gymnasium"
    # | "textarena" | "textworld"; "package.module:Name" for an environment of one's own
    c.env.name = "ledger"
    c.env.data_dir = ""  # folder of data files, for tasks that read files
    c.env.step_timeout_s = 30.0  # a slower environment call costs its trajectory
    # Environments of one's own, and games whose tools are not deterministic, that may
    # be called at the same time, each in a thread; 1 = one after another. The tasks
    # that come with the package answer at once, and are called in order.
    c.env.workers = 64
    c.env.tools = ConfigDict()  # calls of things outside: games, tools
    c.env.tools.timeout_s = 10.0  # of one call
    c.env.tools.retries = 1  # after a failed call; then the policy sees an error
    c.env.tools.deterministic = True  # what they draw at random depends on the task

    c.env.ledger = ConfigDict()
    c.env.ledger.min_turns = 6  # observations of a task, the question included
    c.env.ledger.max_turns = 12  # likewise
    c.env.ledger.relevant_topics = 3  # of 8; questions concern only these
    c.env.ledger.max_relevant_facts = 4  # no more of them in one task
    c.env.ledger.relevance = "hidden"  # "hidden" | "named" (the goal names them)
    c.env.ledger.min_delay = 3  # turns from the asked fact to the question
    c.env.ledger.max_delay = 40  # likewise
    c.env.ledger.correction_rate = 0.0  # share of facts that correct an earlier one
    c.env.ledger.write_rate = 0.6  # demonstrations write every fact with this
    # Before it demonstrations think of the goal's topics and the fact's; "match" says
    # too whether it is one of them (relevance "named").
    c.env.ledger.thought = "topics"  # | "match"

    c.env.babi = ConfigDict()
    c.env.babi.tasks = (1, 2, 6)  # of the 20
    c.env.babi.max_train_lines = 40  # longer stories are not trained on
    c.env.babi.write_rate = 0.5  # as for the ledger

    c.env.dialogue = ConfigDict()
    c.env.dialogue.chunk_chars = 1_200  # of a session shown in one turn; 0 = all of it
    c.env.dialogue.questions_per_task = 8  # 0 = all of a conversation
    c.env.dialogue.categories = (1, 2, 3, 4, 5)  # of the questions that are asked
    c.env.dialogue.test_share = 0.5  # of the conversations, held out
    c.env.dialogue.write_rate = 0.5  # as for the ledger

    c.env.multi_qa = ConfigDict()  # also of "factbook"
    c.env.multi_qa.objectives = 2  # questions of a task
    # Files of data_dir; "": the only one there, or a share of the training file.
    c.env.multi_qa.train_file = ""
    c.env.multi_qa.validation_file = ""
    c.env.multi_qa.test_file = ""
    c.env.multi_qa.validation_share = 0.1  # of the records (of "factbook": countries)
    c.env.multi_qa.test_share = 0.2
    c.env.multi_qa.shelf_records = 500  # records whose passages are searched together
    c.env.multi_qa.search = "fused"  # "fused" | "bm25" | "embedding"
    c.env.multi_qa.embedder = "static"  # | "hashing", of the search
    c.env.multi_qa.passages = 5  # that a search shows
    c.env.multi_qa.passage_chars = 1_000  # shown of each
    c.env.multi_qa.metric = "f1"  # | "em", mean over the questions
    c.env.multi_qa.write_rate = 1.0  # demonstrations note what supports an answer
    c.env.multi_qa.hops = 2  # searches that they make for a question, at most
    c.env.multi_qa.note_chars = 600  # of one of their notes
    c.env.multi_qa.vocabulary_words = 4_000  # whole words of `nano`; others are spelt

    c.env.factbook = ConfigDict()
    c.env.factbook.two_hop_share = 0.5  # of the questions

    c.env.adapter = ConfigDict()  # a game of gymnasium, textarena or textworld
    c.env.adapter.id = ""  # its name there, as in "Mastermind-v0"
    c.env.adapter.options = ()  # "name=value" each, for making it
    c.env.adapter.goal = ""  # shown in place of the game's rules; "" = those
    c.env.adapter.return_low = 0.0  # sum of rewards that scores 0 (a loss may be -1)
    c.env.adapter.return_high = 1.0  # and the one that scores 1
    c.env.adapter.moves = ()  # that demonstrations choose from, at random
    return c

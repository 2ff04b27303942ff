"""The table of all diagnoses: when, what is said, what helps.

A row has its condition, whose name is that of the finding; what is wrong; why; and the
remedies, the most promising first; all texts as ``findings.Text`` says. A cause comes
before what it may explain, which ``examine`` knows.
"""

from __future__ import annotations

from mempo_jax.doctor import conditions, learning
from mempo_jax.doctor.conditions import above
from mempo_jax.doctor.findings import NOTE, PROBLEM, WARNING, Diagnosis

CREDIT_USE = (
    "credit memories by their use: {credit.modes!=attribution} with attribution",
    "credit what is missed without them: {credit.modes!=counterfactual} counterfactual",
)
SAMPLE_OTHERS = "sample other tasks in their place: {sampling.max_resample_rounds}"
SAMPLE_ALL = (
    "sample from all tokens, as training scores them: {sampling.top_p!=1.0} 1.0",
    "sample from all tokens, as training scores them: {sampling.top_k!=0} 0",
)
DIAGNOSES: tuple[Diagnosis, ...] = (
    Diagnosis(
        conditions.no_steps,
        "No step of training is recorded.",
        (
            {
                "starting": "The cold start had not ended when its files were written.",
                "": "The cold start is over; compiling and the first evaluation come "
                "next.",
            },
            " If the run is over, the last lines of its output say why.",
        ),
        "run the same command again: it continues",
    ),
    Diagnosis(
        conditions.damaged_record,
        {"rows": "metrics.jsonl is not whole: {rows}.{files}", "": "{files}."},
        {
            "rows": "Another process wrote into the directory, or the file was edited "
            "or copied while it was written. The rest was read.",
            "": "The run is judged by what else there is. Causes that show in these "
            "files, or in fields of the config that stand there, are not found.",
        },
        {
            "rows": "use a directory of its own for each run",
            "": "copy them again from where the run was made, if they are whole there",
        },
        severity={"rows": WARNING, "": NOTE},
    ),
    Diagnosis(
        conditions.failed_trajectories,
        "{failed%} of the trajectories fail.",
        "An environment, tool or server raised, took too long or gave what is no "
        "number. They are left out of their groups, which get smaller.{errors}",
        "read `failure` in trajectories/: it has the error",
        "allow more time: {env.step_timeout_s}, {env.tools.timeout_s}, "
        "{engine.http.timeout_s}",
        "try again: {env.tools.retries}, {engine.http.retries}",
        severity={"near_limit": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        learning.updates_too_large,
        "Updates are too large: {clipped%} of the tokens were clipped in {steps}.",
        "A clipped token has left the range in which its advantage means something; "
        "beyond a few per cent the updates wreck more than they learn.",
        "lower {train.learning_rate} tenfold",
        "let it rise over more steps: {train.warmup_steps}",
        "clip gradients: {train.grad_clip<=0} 1.0",
        "clip gradients earlier: {train.grad_clip>0}",
        "fewer updates on the same samples: {train.minibatches>1}",
        severity=PROBLEM,
    ),
    Diagnosis(
        conditions.longer,
        "Trajectories grow from {before} to {now} tokens, and success does not.",
        "The policy wanders: nothing makes it come to an end, or it repeats what once "
        "earned a penalty less.",
        "let fewer turns do: {sampling.max_turns>1}",
        "give long trajectories no larger part in the loss: "
        "{objective.aggregation!=trajectory_mean|constant} trajectory_mean or constant",
    ),
    Diagnosis(
        above("overflow", "overflow_rate", 0.05, "tokens_peak", "rebuilds", "success"),
        "{overflow_rate%} of the trajectories end because their context is full.",
        "They pay reward.overflow and mostly fail.",
        "raise {context.max_context_tokens} (and the last of "
        "config.train.length_buckets)",
        "rebuild the context each turn: {context.rule!=window} window",
        "recall less at a time: {memory.retrieval_top_k>1}",
        severity={"mostly": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        above("truncated", "truncated_rate", 0.1, "turns", "success"),
        "{truncated_rate%} of the trajectories run out of turns.",
        "They end before the policy has answered, so whatever it did scores alike.",
        "raise {sampling.max_turns}",
        "or shorten the tasks (config.env)",
    ),
    Diagnosis(
        conditions.memory_off,
        "The memory is turned off: operations are read and do nothing.",
        "Good for a comparison; where tasks need a memory, success stays at chance.",
        "set {memory.enabled!=True} to True",
        severity=NOTE,
    ),
    Diagnosis(
        learning.non_finite_updates,
        "{skipped} of {updates} updates were skipped: loss or gradient was not finite.",
        "The parameters were kept from it, but something overflows: mostly updates "
        "that are too large, or 16-bit arithmetic.",
        "look at skipped/: it holds the batches of these updates",
        "lower {train.learning_rate}",
        "use float32: {policy.compute_dtype!=float32}",
        severity={"grave": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        learning.sampler_gap,
        {
            "gap": "Sampler and trainer disagree more and more: {gap} nats on the "
            "worst token of a step.",
            "": "{importance_capped%} of the importance weights are at their cap.",
        },
        {
            "gap": (
                "The same weights give other log-probs in the sampler. ",
                {
                    "http": "A server that keeps older weights, or computes in 16 "
                    "bits, does that.",
                    "": "With one program and one set of weights only rounding is "
                    "left: 16-bit arithmetic, or logits that grow very large.",
                },
            ),
            "": "What was sampled comes from a policy that is no longer the one being "
            "trained; capped weights make up for that only in part.",
        },
        {"http": "send it new weights: {engine.http.sync}"},
        {"capped": "raise {objective.importance_cap}"},
        {"not capped": "weigh tokens for it: {objective.importance_cap!=2.0} (2.0)"},
        "compute in float32: {policy.compute_dtype!=float32}",
        *SAMPLE_ALL,
    ),
    Diagnosis(
        learning.kl_blow_up,
        "The policy is far from the reference: KL {kl} a token.",
        {
            "free": "Nothing pulls it back, since the coefficient is 0.",
            "": "It became another policy: what the first one could do besides the "
            "task is probably gone, and the k3 estimate grows exponentially with "
            "distance.",
        },
        "raise {objective.kl_coef<0.05}; 0.01 to 0.05 is usual",
        "lower {train.learning_rate}",
        severity={"failing": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        learning.lost_dialogue,
        (
            "Outside memory operations the policy has drifted: KL {kl} a token",
            {"unpaid": ", and nothing pulls it back.", "": "."},
        ),
        {
            "unpaid": "config.objective.kl_scope is 'ops', so only tokens of memory "
            "operations pay for distance. The rest (answers, thoughts, ordinary talk) "
            "may be lost without a sign in the reward.",
            "": "All tokens pay for distance, but too little to keep what it could do.",
        },
        "set {objective.kl_scope!=all} to 'all'",
        "raise {objective.kl_coef}",
        "lower {train.learning_rate}",
        severity={"harmless": NOTE, "": WARNING},
    ),
    Diagnosis(
        learning.entropy_explosion,
        "Entropy rose from {before} to {now} nats a token, and success did not.",
        "The policy dissolves: updates push tokens down more than others up, as many "
        "large negative advantages do.",
        "lower {train.learning_rate}",
        "bound what negative advantages may do: {objective.dual_clip!=3.0} (3.0)",
        "raise {objective.kl_coef}",
        severity=PROBLEM,
    ),
    Diagnosis(
        learning.entropy_collapse,
        "Entropy fell from {before} to {now} nats a token at a success of {success}.",
        "The policy says the same whatever is drawn; it can find nothing better, since "
        "it tries nothing else.",
        "lower {train.learning_rate}",
        "let rare tokens rise: {objective.clip_high<0.28} above clip_low, as 0.28",
        "raise {objective.kl_coef} or {sampling.temperature}",
        severity=PROBLEM,
    ),
    Diagnosis(
        learning.shaping_grows,
        "The reward rises ({reward_before} to {reward_now}) while success falls "
        "({success_before} to {success_now}).",
        "The policy is paid for something else than the task, and does that.",
        "weaken what pays: {reward.efficiency_size>0}",
        "weaken what pays: {reward.efficiency_hits>0}",
        "weaken the penalties of config.reward",
        "raise {reward.task_weight}",
        severity=PROBLEM,
    ),
    Diagnosis(
        learning.late_collapse,
        "Success fell from {best} to {now} and stayed there.",
        {
            "never_rose": "It never rose: the updates made the policy worse from the "
            "first steps on.",
            "": "The policy had learnt the task and lost it. Most often updates were "
            "too large for what was left to learn, or the policy drifted far from "
            "where it began.",
        },
        "go back to policy_best/, since {train.checkpoint_best==success}",
        "set {train.checkpoint_best!=success} to 'success', to keep the best policy",
        "lower {train.learning_rate}, or let it fall earlier: {train.decay_steps}",
        "raise {objective.kl_coef}",
        "fewer updates on the same samples: {train.minibatches>1}",
        "if the device's memory ran out, fill it less: {train.micro_batch_tokens}",
        "or change its allocator: XLA_PYTHON_CLIENT_ALLOCATOR=platform",
        severity=PROBLEM,
    ),
    Diagnosis(
        learning.constant_reward,
        "Every trajectory of every step got the same task reward, {reward}.",
        "A mean over many trajectories that never changes comes from a reward function "
        "that does not look at what was answered, or from a task that scores all "
        "answers alike. A group of equal rewards teaches nothing.",
        "call {reward.function} by hand on two trajectories of which one is right: it "
        "must return two numbers",
        "look at the answers in trajectories/, or with experiments.trace",
        severity=PROBLEM,
    ),
    Diagnosis(
        learning.low_diversity,
        "The trajectories of a group are nearly the same: {distance%} of their actions "
        "differ.",
        (
            {
                "lost": "It was lost in training: the policy became sure of itself too "
                "early.",
                "": "It was so from the beginning: sampling leaves no choice.",
            },
            " Groups learn from members that do different things with different "
            "success.",
        ),
        "raise {sampling.temperature<1}; 0.8 to 1.0 is usual",
        *SAMPLE_ALL,
        "give the members more different wordings: {context.instruction_variants}",
        {"lost": "lower {train.learning_rate}, or raise {objective.kl_coef}"},
        severity={"all_alike": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        conditions.actions_cut,
        "{cut_turn_rate%} of the turns end because their tokens are spent, and not "
        "where the policy ends them.",
        "An operation that is not closed by then is malformed, and what was to follow "
        "is lost. Or the policy has not learnt to end its turns, and pays for all of "
        "them in full.",
        "raise {sampling.max_new_tokens} (and the last of config.train.length_buckets)",
        "ask for less at a time: {context.instructions}",
        "teach the form for longer: {train.cold_start_steps}",
        severity={"harmless": NOTE, "grave": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        conditions.malformed_ops,
        "{malformed_rate} operations a turn are malformed or fail.",
        (
            {
                "rose": "The form is being unlearnt.",
                "": "The form was never learnt well.",
            },
            {"at_floor": " Penalties are at the floor ({paid}), so more cost nothing."},
            "{errors}",
        ),
        "teach the form for longer: {train.cold_start_steps}",
        "give actions that are cut room to close their tags: {sampling.max_new_tokens}",
        {
            "at_floor": "lower {reward.penalty_floor}, or make each penalty smaller: "
            "{reward.malformed}",
            "": "let it cost more: {reward.malformed}, above the floor "
            "{reward.penalty_floor}",
        },
        "sample less wildly: {sampling.temperature}",
        severity={"grave": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        conditions.memory_unused,
        "The memory is not used: {ops} {kind}s in a trajectory.",
        {
            "fine": "The tasks are solved without it.",
            "stopped": "The policy stopped writing: not to write costs nothing at "
            "once, and what it loses shows late.",
            "": "It never learnt to write; rewards cannot teach what is never tried.",
        },
        "teach the form first: {train.cold_start_steps}",
        "take back what writes cost: {reward.write_cost}, {reward.duplicate}, "
        "{reward.efficiency_size}",
        "remind it more often (0 is never): {context.write_reminder_every!=1}",
        "check that the tasks need a memory: what is asked must have left the context "
        "({context.window_turns})",
        severity={"fine": NOTE, "": PROBLEM},
    ),
    Diagnosis(
        conditions.write_only,
        (
            "Write-only collapse: ",
            {
                "by_rate": "{rate%} of the trajectories write and never recall.",
                "": "next to no trajectory recalls what it writes.",
            },
        ),
        {
            "fine": "The tasks are solved without looking into the memory; it is not "
            "needed here.",
            "fell_into": "Writing went on while recalling was unlearnt, as when a "
            "recall costs turns and its use shows late, or when recalls found nothing "
            "useful.",
            "": "The policy never learnt to recall, so what it writes helps nobody.",
        },
        *CREDIT_USE,
        "pay more for recalls that find something: {reward.efficiency_hits}",
        "show recalls in the demonstrations: {train.cold_start_steps}, "
        "{train.demonstrations_path}",
        "a KL that is too loose lets recalls be unlearnt: raise {objective.kl_coef}",
        "make writes cost something: {reward.write_cost>-0.01} (-0.01)",
        severity={"fine": NOTE, "": PROBLEM},
    ),
    Diagnosis(
        conditions.recalls_find_nothing,
        "Only {recall_hit_rate%} of the recalls find something.",
        "The policy recalls before it has written, or its memory is empty when it "
        "asks.",
        "turn the memory on: {memory.enabled!=True} True",
        "show the policy more of what there is: {context.summary_titles}",
        "pay more for recalls that find something: {reward.efficiency_hits}",
    ),
    Diagnosis(
        conditions.merge_rate_high,
        "{merge_rate%} of the accepted writes are merged into older entries; above 30 "
        "% is much.",
        {
            "helps": "Where facts change (a person moves, a price rises) merges are "
            "updates, and this is as it should be; success rises with them here.",
            "": "Different facts may melt into one entry, and the older ones are then "
            "not found. Where facts do change, merges are updates and harmless: look "
            "at some.",
        },
        "raise {memory.merge_threshold<0.9}; 0.85 to 0.9 is usual",
        "judge pairs before merging: {memory.judge==always} lexical",
        "look at merged writes with experiments.trace",
        severity={"helps": NOTE, "": WARNING},
    ),
    Diagnosis(
        conditions.duplicate_writes,
        "{duplicate_rate%} of the writes repeat what is in the memory already.",
        "They change nothing but cost tokens and a penalty. The policy does not see "
        "what it knows, or writes down again what it has just recalled.",
        "make it cost more: {reward.duplicate}",
        "show more titles of what is there: {context.summary_titles}",
    ),
    Diagnosis(
        conditions.bank_growth,
        {
            "full_of_junk": "The memory is full at the end of a task ({now} of "
            "{capacity} entries), mostly of what nobody needs.",
            "": (
                "The memory grows, from {before} to {now} entries",
                {"pays": ", and so does its cost.", "": ", and success does not."},
            ),
        },
        "The policy writes whatever it sees. In a full memory each write pushes out "
        "another; in a large one what matters is hard to find.",
        *CREDIT_USE,
        "make writes cost something: {reward.write_cost>-0.01} (-0.01)",
        "reward a small memory: {reward.efficiency_size<0.1} (0.1)",
        {"not bounded": "bound it: {memory.capacity}"},
        severity={"pays": NOTE, "": WARNING},
    ),
    Diagnosis(
        conditions.slow_recall,
        "Recalls are slow: half take more than {half} ms, one in twenty more than "
        "{slowest} ms.",
        "Searching all entries grows with the bank; an embedder that is a network "
        "costs more than the search.",
        "search by index earlier: {memory.ann_threshold} (it needs the package scann)",
        "a cheaper embedder: {memory.embedder!=static|hashing} static",
        "fewer entries at a time: {memory.retrieval_top_k>1}",
        "fewer candidates: {memory.oversample>1}",
        "fewer entries: {memory.capacity}",
    ),
    Diagnosis(
        learning.tasks_too_hard,
        "The policy solves next to nothing: success {success}.",
        "Outcomes are the only teacher. Where all members of a group fail there is no "
        "difference to learn from, however long it runs.",
        "make the tasks easier first (config.env), so that one in ten is solved",
        "teach the form for longer: {train.cold_start_steps}, {train.demonstrations}",
        "sample more: {sampling.group_size}, {sampling.max_resample_rounds}",
        "give partial credit: {reward.function}",
        severity=PROBLEM,
    ),
    Diagnosis(
        learning.tasks_too_easy,
        "The tasks were solved from the beginning: success {before} in the first "
        "steps.",
        "Where all members of a group succeed there is no difference to learn from.",
        "make the tasks harder (config.env), or the memory smaller: {memory.capacity}",
        "or be content: there is nothing left to learn here",
        severity={"nearly_all": WARNING, "": NOTE},
    ),
    Diagnosis(
        learning.credit_reaches_no_token,
        "Groups have advantages, but the credit lays next to nothing of them on "
        "tokens.",
        "The weights of config.credit are zero or tiny where the policy acted, as when "
        "ops_only meets trajectories without a memory op.",
        "change {credit.modes!=uniform}; uniform lays it on all tokens",
        "raise {credit.other_weight<1}",
        severity=PROBLEM,
    ),
    Diagnosis(
        learning.only_penalties,
        "In {silent%} of the groups the task's score tells nobody apart, and penalties "
        "alone decide who did better.",
        (
            "The policy then learns to avoid penalties, best of all by doing nothing, "
            "and nothing about the task. ",
            {
                "gated": "The outcome gate keeps these advantages small; it cannot "
                "make them right.",
                "": "Nothing keeps these advantages small: the outcome gate is off.",
            },
        ),
        "mend what makes all score alike first (success near 0 or 1)",
        "turn {reward.outcome_gate!=True} on",
        "weaken {reward.malformed}, {reward.duplicate} or {reward.overflow}",
    ),
    Diagnosis(
        learning.advantages_zero,
        (
            "All advantages are zero",
            {"all_equal": ": in every group all rewards are equal.", "": "."},
        ),
        {
            "learnt": "The tasks are solved, and nothing is left to learn from them.",
            "": "An advantage is a reward less the mean of its group; without a "
            "difference the policy gets no gradient (but for the KL).",
        },
        {
            "learnt": "stop here, or make the tasks harder (config.env)",
            "": "look at success: near 0 make the tasks easier, near 1 harder "
            "(config.env)",
        },
        {"not learnt": SAMPLE_OTHERS},
        {"not learnt": "raise {sampling.group_size} or {sampling.temperature}"},
        severity={"learnt": NOTE, "": PROBLEM},
    ),
    Diagnosis(
        learning.few_groups_teach,
        "{silent%} of the groups teach nothing: their members all score the same.",
        "What is sampled for them is lost, and each update rests on few tasks, so it "
        "is noisy.",
        "raise {sampling.group_size}: rare successes then show up in a group",
        SAMPLE_OTHERS,
        "choose tasks (config.env) that succeed about half the time",
    ),
    Diagnosis(
        learning.learning_rate_ended,
        "From step {decay} on the learning rate is 0: {idle} steps changed nothing.",
        "The cosine ends at config.train.decay_steps, the run later.",
        "raise {train.decay_steps} above train.steps, or 0",
    ),
    Diagnosis(
        learning.policy_hardly_moves,
        "After {updates} steps with updates the policy is where it began: KL {kl}.",
        "Updates are too small to change what it does, or something holds it: a "
        "learning rate that is tiny or still warming up, or a KL that is too strong.",
        "raise {train.learning_rate}, threefold first",
        "look at {train.warmup_steps} and {train.decay_steps}",
        "lower {objective.kl_coef>0}",
    ),
    Diagnosis(
        learning.reward_flat_loss_falls,
        "The loss fell from {before} to {now} while the reward did not rise.",
        {
            "by_kl": "What fell is the KL term: the policy goes back to the reference, "
            "and the reward has no say against it.",
            "": "Advantages of a group add up to 0, so this loss measures no progress: "
            "it is near 0 on-policy however well a run does. It falls where updates "
            "fit the samples of their own step, and nothing that lasts.",
        },
        {"by_kl": "lower {objective.kl_coef>0}"},
        {"not by_kl": "a KL that is too loose fits noise: raise {objective.kl_coef}"},
        "judge by success and reward, never by the loss",
        "more tasks a step: {sampling.tasks_per_step}",
        "fewer updates on the same samples: {train.minibatches>1}",
        "lay credit where decisions are: {credit.modes==uniform} ops_only",
        severity={"long": WARNING, "": NOTE},
    ),
    Diagnosis(
        learning.success_flat,
        "In {steps} steps success has not risen: {before} in the first third, {now} in "
        "the last.",
        {
            "drifts": "The policy does change (its KL grows), but not towards the "
            "task: the advantages are mostly noise, or are laid on the wrong tokens.",
            "": "Learning may yet begin late: with sparse outcomes it often does after "
            "some ten steps. If it does not, too little signal reaches the decisions.",
        },
        *CREDIT_USE,
        "more groups and larger ones: {sampling.tasks_per_step}, {sampling.group_size}",
        {"bonus_ended": "pay bonuses beyond step {decay}: {credit.bonus_decay_steps}"},
        "change {train.learning_rate}",
        severity={"long": WARNING, "": NOTE},
    ),
    Diagnosis(
        learning.no_better_than_cold_start,
        {
            "worse": "On held-out tasks the trained policy is worse than the cold "
            "start: {after} against {before}.",
            "unsure": "On held-out tasks the trained policy is hardly better than the "
            "cold start: {after} against {before}.",
            "": "On held-out tasks the trained policy does much worse than in "
            "training: {after} against {success}.",
        },
        {
            "gap": "In training it does better than there: it learnt the training "
            "tasks, not the task.",
            "": "Training did not help, or not beyond what the interval hides.",
        },
        {"gap": "train on more different tasks (config.env)"},
        {"not gap": "train for longer: {train.steps}"},
        "measure on more tasks: {train.eval_tasks}",
        severity={"worse": PROBLEM, "": WARNING},
    ),
    Diagnosis(
        conditions.recompilations,
        "{compiling} of {steps} steps compiled something, {programs} programs "
        "together.",
        "Everything should be compiled before the first step. A shape that keeps "
        "changing costs seconds to minutes each time.",
        "few fixed lengths: {train.length_buckets}, {sampling.prefill_buckets}",
        "and numbers of rows: {engine.row_buckets}",
    ),
    Diagnosis(
        conditions.device_memory,
        "The device holds {times} times the bytes that it held at first.",
        "Arrays are kept from step to step, or shapes keep changing.",
        "fewer shapes: {train.length_buckets}",
        "smaller batches: {train.micro_batch_tokens}",
        "try another allocator: XLA_PYTHON_CLIENT_ALLOCATOR=platform",
    ),
    Diagnosis(
        conditions.slower,
        "Steps take {times} times as long as at first, for the same number of tokens.",
        "Something else uses the machine, or an environment or server has become slow.",
        "look at what else runs there",
        {"http": "see {engine.http.url}"},
        severity=NOTE,
    ),
    Diagnosis(
        above(
            "padding", "padding_share", 0.5, "tokens_trained_per_s", "seconds_training"
        ),
        "{padding_share%} of the tokens that training computes are padding.",
        "Rows are padded to the next of train.length_buckets, and batches filled up.",
        "put lengths closer to those that occur: {train.length_buckets}",
        "and try {train.micro_batch_tokens}",
        severity=NOTE,
    ),
    Diagnosis(
        above("probes_dear", "probe_share", 0.5, "probe_variants", "seconds"),
        "Probes of the credit take {probe_share%} of a step.",
        "They score answers with and without each memory.",
        "leave counterfactual, the dearest, out of {credit.modes==counterfactual}",
        "use modes without probes, as ops_only, in place of {credit.modes}",
        severity=NOTE,
    ),
    Diagnosis(
        conditions.unfinished,
        (
            "{progress}",
            {
                "idle": "nothing was written for a long time: it has stopped.",
                "all_done": "the last evaluation and summary.json are still to come.",
                "": "is under way.",
            },
        ),
        {
            "idle": "It was stopped or killed, or training could not go on; its output "
            "says which.",
            "": "What is found here is of the steps so far.",
        },
        {"idle": "run the same command again: it continues"},
        {"not idle": "wait; nothing is wrong with that"},
        severity={"idle": WARNING, "": NOTE},
    ),
)

"""Scripted trajectories with a question, and a reader that only believes memories."""

import numpy as np

from mempo_jax.envs import Question
from mempo_jax.memory import Bank, BankConfig
from mempo_jax.rollout.assemble import BatchShapes, no_evidence
from mempo_jax.rollout.collect import Collector
from mempo_jax.rollout.probes import plan_probes
from mempo_jax.types import NEEDS
from tests.envs.scripted_env import EMBEDDER, ScriptedEnv, context, limits, make_episode
from tests.rollout.tiny import TOKENIZER, ScriptedEngine, decoding, jobs

SHAPES = BatchShapes((60, 160), 640, 1, 12, 12)
LINES = ("one two", "three four", "find five")
ASKED = Question(observation=2, answer="gold", support=frozenset({0}))
KNOWN, UNKNOWN = 0.9, 0.1  # probability of the gold answer
WRITE, RECALL = "<mem_write> {}</mem_write>", "<mem_recall> gold</mem_recall>"
ANSWER = "<answer> gold</answer>"


class AskingEnv(ScriptedEnv):
    def __init__(self, lines=LINES, asked=(ASKED,)):
        super().__init__(lines)
        self.asked = asked

    def questions(self):
        return self.asked


def play(script, *, lines=LINES, asked=(ASKED,), count=1, rules=None, **bank):
    """Trajectories of a policy that says the texts of the script, a turn each."""
    config = {"retrieval_top_k": 3, "judge": "always", "merge_threshold": 1.01}

    def make(job):
        return make_episode(
            AskingEnv(lines, asked),
            bank=Bank(BankConfig(**config | bank), EMBEDDER, f"{job.sample}"),
            rules=rules or context(max_context_tokens=150),
            settings=limits(max_turns=12),
        )

    collector = Collector(ScriptedEngine(script), TOKENIZER, make, 20.0)
    return collector.run(jobs(count), decoding())


def plan(trajectories, needs=NEEDS, longest=160):
    places = range(len(trajectories))
    return plan_probes(trajectories, places, frozenset(needs), TOKENIZER, longest)


def texts(made):
    """What each variant shows: context, opening tag and answer."""
    return [TOKENIZER.decode(variant.tokens) for variant in made.variants]


def read(made, word="gold"):
    """Log-probs of a reader that knows the answer where a recalled line holds it.

    A line that the observation itself shows is believed too.
    """
    known = []
    for text in texts(made):
        shown = text.split("<|user|>")[-1].split("<|assistant|>")[0]
        known.append(word in shown)
    return np.log(np.where(known, KNOWN, UNKNOWN))


def evidence(trajectories, needs=NEEDS, word="gold"):
    made = plan(trajectories, needs)
    blank = no_evidence(len(trajectories), SHAPES)
    return made.evidence(read(made, word), blank)


def ops(trajectory, kind):
    """Positions in the log of the ops of a kind."""
    return [k for k, record in enumerate(trajectory.log) if record.kind == kind]

"""A small environment and episode that tests of several modules share."""

from mempo_jax.envs import (
    ContextConfig,
    Episode,
    RewardConfig,
    StepResult,
    Task,
)
from mempo_jax.memory import Bank, BankConfig, make_embedder

EMBEDDER = make_embedder("hashing")
TASK = Task("scripted", "train", 0, 0)
REWARD = RewardConfig(
    function="",
    outcome_gate=True,
    task_weight=1.0,
    malformed=-0.05,
    duplicate=-0.02,
    overflow=-0.2,
    write_cost=-0.01,
    penalty_floor=-0.5,
    efficiency_size=0.0,
    efficiency_hits=0.0,
)


class ScriptedEnv:
    """Shows its lines one a turn; the answer ``gold`` scores 1 at any time."""

    def __init__(self, lines=("one", "two", "three", "four"), gold="gold"):
        self.goal = "find gold"
        self.lines, self.gold = list(lines), gold
        self.seen = []

    def reset(self, seed):
        self.at, self.right = 0, 0.0
        return self.lines[0]

    def step(self, action, *, final=False):
        self.seen.append((action, final))
        self.at += 1
        gain = float(action.strip() == self.gold) - self.right
        self.right = max(self.right, self.right + gain) if gain > 0 else self.right
        done = final or self.at >= len(self.lines)
        text = "" if done else self.lines[self.at]
        return StepResult(text, max(gain, 0.0), done)

    def score(self):
        return self.right

    def useful(self):
        return frozenset({0})

    def questions(self):
        return ()


def context(**changes):
    settings = {
        "rule": "window",
        "window_turns": 0,
        "max_context_tokens": 10_000,
        "write_reminder_every": 0,
        "summary_titles": 2,
        "instructions": "use memory",
        "instructions_form": "given",
        "instruction_examples": 0,
        "instruction_variants": (),
        "rolling_lines": 4,
        "reminder": "remember ?",
    }
    return ContextConfig(**{**settings, **changes})


def limits(**changes):
    settings = {
        "max_turns": 30,
        "max_ops_per_turn": 4,
        "max_entry_chars": 200,
        "retrieval_top_k": 3,
    }
    return {**settings, **changes}


def make_episode(env=None, *, bank=None, settings=None, rules=None, reward=REWARD):
    """An episode on ``TASK``; ``settings`` from ``limits``, whose bounds of a turn are
    those of a bank that is made here."""
    bounds = dict(settings or limits())
    max_turns = bounds.pop("max_turns")
    if bank is None:
        bank = Bank(BankConfig(**bounds), EMBEDDER, trajectory_id="test")
    return Episode(
        env or ScriptedEnv(),
        TASK,
        bank,
        max_turns,
        rules or context(),
        reward,
    )

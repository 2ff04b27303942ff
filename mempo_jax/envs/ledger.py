"""``ledger``: facts and distractors arrive one a turn; one question comes later.

Every observation tells one fact (who, topic, value). The last one asks for the value
of one earlier fact. Questions only ever concern some of the topics. Which ones is
either a regularity of the world that only outcomes show (``relevance="hidden"``: the
same topics in every task of a world) or named by the goal of each task
(``relevance="named"``). A bank too small for all facts makes selection pay.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mempo_jax.envs.base import (
    Question,
    ScriptedPolicy,
    Situation,
    StepResult,
    Task,
    derived_seed,
)

NAMES = (
    *("ann", "ben", "cleo", "dan", "eva", "finn"),
    *("gus", "hana", "ivan", "june", "karl", "lena"),
)
TOPICS = ("phone", "desk", "badge", "locker", "room", "shoe", "bus", "seat")
VALUES = tuple(str(v) for v in range(10, 100))
RELEVANCE = ("hidden", "named")
THOUGHTS = ("topics", "match")
YES, NO = "yes", "no"
UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class LedgerConfig:
    """Shape of a task; ``min_turns`` and ``max_turns`` count observations."""

    min_turns: int
    max_turns: int
    relevant_topics: int
    max_relevant_facts: int
    relevance: str
    min_delay: int
    max_delay: int
    correction_rate: float
    write_rate: float
    thought: str

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            if not ok:
                raise ValueError(
                    f"config.env.ledger.{field}: expected {expected}, got "
                    f"{getattr(self, field)!r}"
                )

        check(self.relevance in RELEVANCE, "relevance", f"one of {RELEVANCE}")
        check(self.min_delay >= 1, "min_delay", "at least 1")
        check(self.min_delay < self.min_turns, "min_delay", "less than min_turns")
        check(self.min_delay <= self.max_delay, "max_delay", "at least min_delay")
        check(self.min_turns <= self.max_turns, "max_turns", "at least min_turns")
        check(
            1 <= self.relevant_topics < len(TOPICS),
            "relevant_topics",
            f"1 to {len(TOPICS) - 1}",
        )
        # All facts but the asked one may turn out irrelevant, and none is told twice.
        irrelevant = (len(TOPICS) - self.relevant_topics) * len(NAMES)
        most = min(len(NAMES) * len(TOPICS) // 2, irrelevant + 2)
        check(self.max_turns <= most, "max_turns", f"at most {most}")
        limit = self.relevant_topics * len(NAMES)
        check(
            1 <= self.max_relevant_facts <= limit,
            "max_relevant_facts",
            f"1 to {limit}",
        )
        check(0 <= self.correction_rate <= 1, "correction_rate", "0 to 1")
        check(0 <= self.write_rate <= 1, "write_rate", "0 to 1")
        check(self.thought in THOUGHTS, "thought", f"one of {THOUGHTS}")
        ok = self.thought == "topics" or self.relevance == "named"
        check(ok, "thought", "'topics' where relevance is 'hidden'")


@dataclasses.dataclass(frozen=True)
class LedgerFact:
    who: str
    topic: str
    value: str
    is_correction: bool = False

    def __str__(self) -> str:
        verb = "is now" if self.is_correction else "is"
        return f"{self.who} {self.topic} {verb} {self.value}"


class LedgerEnv:
    """One ledger task; see the module docstring."""

    def __init__(self, settings: LedgerConfig, world_topics: tuple[str, ...]) -> None:
        self._settings = settings
        self._world_topics = world_topics
        self.goal = ""

    def reset(self, seed: int) -> str:
        rng = np.random.default_rng(seed)
        self._topics = self._world_topics
        self.goal = "answer the question"
        if self._settings.relevance == "named":
            picked = rng.choice(
                len(TOPICS), self._settings.relevant_topics, replace=False
            )
            self._topics = tuple(TOPICS[i] for i in sorted(picked))
            self.goal = f"answer about {' , '.join(self._topics)}"
        self._facts, target = _draw_facts(rng, self._settings, self._topics)
        self._question = f"what is {target.who} {target.topic}"
        last = max(i for i, f in enumerate(self._facts) if _same_thing(f, target))
        self._gold = self._facts[last].value
        asked = Question(len(self._facts), self._gold, frozenset({last}))
        self._questions = (asked,)
        self._at, self._score = 0, 0.0
        return str(self._facts[0])

    def step(self, action: str, *, final: bool = False) -> StepResult:
        asked = self._at == len(self._facts)
        self._at += 1
        if final:
            # A guess before the question would pay as often as a fact is asked for.
            self._score = float(asked and action.strip() == self._gold)
            return StepResult("", self._score, True)
        if self._at < len(self._facts):
            return StepResult(str(self._facts[self._at]), 0.0, False)
        if self._at == len(self._facts):
            return StepResult(self._question, 0.0, False)
        return StepResult("", 0.0, True)

    def score(self) -> float:
        return self._score

    def useful(self) -> frozenset[int]:
        return frozenset(
            i for i, f in enumerate(self._facts) if f.topic in self._topics
        )

    def questions(self) -> tuple[Question, ...]:
        return self._questions


def _draw_facts(
    rng: np.random.Generator, settings: LedgerConfig, topics: tuple[str, ...]
) -> tuple[list[LedgerFact], LedgerFact]:
    """The facts of one task in order, and the fact that the question is about."""
    count = int(rng.integers(settings.min_turns, settings.max_turns + 1)) - 1
    delay = int(rng.integers(settings.min_delay, min(count, settings.max_delay) + 1))
    target_at = count - delay
    share = settings.relevant_topics / len(TOPICS)
    relevant = rng.random(count) < share
    relevant[target_at] = True
    spare = np.flatnonzero(relevant & (np.arange(count) != target_at))
    surplus = max(0, len(spare) + 1 - settings.max_relevant_facts)
    relevant[rng.permutation(spare)[:surplus]] = False
    others = [t for t in TOPICS if t not in topics]
    facts: list[LedgerFact] = []
    taken: set[tuple[str, str]] = set()
    for at, is_relevant in enumerate(relevant):
        latest = {(f.who, f.topic): f for f in facts}.values()
        pool = [f for f in latest if (f.topic in topics) == bool(is_relevant)]
        corrects = pool and rng.random() < settings.correction_rate
        if at > count - settings.min_delay:  # the answer must not arrive this late
            pool = [f for f in pool if not _same_thing(f, facts[target_at])]
        if corrects and pool:
            old = pool[int(rng.integers(len(pool)))]
            fact = LedgerFact(old.who, old.topic, _other_value(rng, old.value), True)
        else:
            fact = _new_fact(rng, topics if is_relevant else others, taken)
        taken.add((fact.who, fact.topic))
        facts.append(fact)
    return facts, facts[target_at]


def _same_thing(one: LedgerFact, other: LedgerFact) -> bool:
    return (one.who, one.topic) == (other.who, other.topic)


def _new_fact(
    rng: np.random.Generator, topics, taken: set[tuple[str, str]]
) -> LedgerFact:
    free = [(w, t) for w in NAMES for t in topics if (w, t) not in taken]
    who, topic = free[int(rng.integers(len(free)))]
    return LedgerFact(who, topic, VALUES[int(rng.integers(len(VALUES)))])


def _other_value(rng: np.random.Generator, value: str) -> str:
    rest = [v for v in VALUES if v != value]
    return rest[int(rng.integers(len(rest)))]


class LedgerSuite:
    """Procedural ledger tasks. ``seed`` fixes the world: its hidden relevant topics."""

    name = "ledger"

    def __init__(self, settings: LedgerConfig, seed: int) -> None:
        self.settings = settings
        self._seed = seed
        rng = np.random.default_rng(derived_seed("ledger-world", seed))
        picked = rng.choice(len(TOPICS), settings.relevant_topics, replace=False)
        self.world_topics = tuple(TOPICS[i] for i in sorted(picked))

    def task(self, split: str, index: int) -> Task:
        seed = derived_seed("ledger", split, index, self._seed)
        return Task(self.name, split, index, seed)

    def size(self, split: str) -> int | None:
        return None

    def make(self, task: Task) -> LedgerEnv:
        return LedgerEnv(self.settings, self.world_topics)

    def vocabulary(self) -> list[str]:
        extra = ("what", "is", "now", UNKNOWN, "answer", "about", "the", "question")
        verdicts = (YES, NO) if self.settings.thought == "match" else ()
        return [*NAMES, *TOPICS, *VALUES, *extra, *verdicts]

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        rate = self.settings.write_rate if write_rate is None else write_rate
        return LedgerExpert(rate, self.settings.thought)


class LedgerExpert:
    """Shows the form: spell the topic, then write with one probability for all topics.

    It never learns which topics matter. Where the goal names some, the thought repeats
    them before the topic, so that all stand side by side to be compared. With
    ``thought`` "match" it also says whether the topic is among them: that shows how to
    compare, which a network built from scratch cannot, and not what to do about it.
    Whether it writes has nothing to do with either. Asked, it recalls the one best
    memory and answers with the value that it finds there.
    """

    def __init__(self, write_rate: float, thought: str = "topics") -> None:
        self._write_rate, self._thought = write_rate, thought

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        words = situation.observation.split()
        if words[0] == "what":
            who, topic = words[2], words[3]
            if not situation.queries:
                thought = f"<think> {topic}</think>"
                return f'{thought}<mem_recall k="1"> {who} {topic}</mem_recall>'
            value = _look_up(situation.recalled, who, topic)
            thought = f"<think> {who} {topic} {value}</think>"
            return f"{thought}<answer> {value}</answer>"
        who, topic, value = words[0], words[1], words[-1]
        named = [word for word in situation.goal.split() if word in TOPICS]
        verdict = [YES if topic in named else NO] if self._thought == "match" else []
        thought = f"<think> {' '.join([*named, topic, *verdict])}</think>"
        if rng.random() >= self._write_rate:
            return thought
        return f"{thought}<mem_write> {who} {topic} {value}</mem_write>"


def _look_up(recalled: tuple[str, ...], who: str, topic: str) -> str:
    found = [t.split() for t in recalled]
    values = [w[-1] for w in found if len(w) >= 3 and w[:2] == [who, topic]]
    if values:
        return values[0]
    return found[0][-1] if found else UNKNOWN  # a guess: what was recalled first

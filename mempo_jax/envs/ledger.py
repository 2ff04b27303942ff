"""``ledger``: facts and distractors arrive one a turn; one question comes later.

Every observation states one fact (who, topic, value). The last one asks for the value
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
# Two digits: a value is one word of the vocabulary, and a guess is right 1 time in 90.
VALUES = tuple(str(v) for v in range(10, 100))
RELEVANCE = ("hidden", "named")  # how a task decides which topics matter
THOUGHTS = ("topics", "match")  # "match" adds a verdict: is the topic relevant?
YES, NO = "yes", "no"
UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class LedgerConfig:
    """Shape of a task; ``configs/base.py`` explains the fields.

    Attributes:
      min_turns, max_turns: bounds on the number of observations.
      relevant_topics: number of topics that questions may concern.
      max_relevant_facts: facts of these topics in one task.
      relevance: one of ``RELEVANCE``.
      min_delay, max_delay: turns between the asked fact and the question.
      correction_rate: probability that a fact corrects an earlier one.
      write_rate: probability that demonstrations write a fact.
      thought: one of ``THOUGHTS``; what the expert spells before it acts.
    """

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
        # All facts but the asked one may turn out irrelevant, and no fact comes twice.
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


class LedgerSuite:
    """Procedural ledger tasks.

    Args:
      settings: the shape of the tasks.
      seed: fixes the world, that is its hidden relevant topics, and the tasks.
    """

    name = "ledger"

    def __init__(self, settings: LedgerConfig, seed: int) -> None:
        self.settings = settings
        self._seed = seed
        rng = np.random.default_rng(derived_seed("ledger-world", seed))
        picked = rng.choice(len(TOPICS), settings.relevant_topics, replace=False)
        self.world_topics = tuple(TOPICS[i] for i in sorted(picked))

    def task(self, split: str, index: int) -> Task:
        """Returns task ``index`` of ``split``; every index has a seed of its own."""
        seed = derived_seed("ledger", split, index, self._seed)
        return Task(self.name, split, index, seed)

    def size(self, split: str) -> int | None:
        """Returns None: there are as many tasks as seeds, in each ``split``."""
        return None

    def make(self, task: Task) -> LedgerEnv:
        """Returns an environment; the seed of ``task`` is for its ``reset``."""
        return LedgerEnv(self.settings, self.world_topics)

    def vocabulary(self) -> list[str]:
        extra = ("what", "is", "now", UNKNOWN, "answer", "about", "the", "question")
        verdicts = (YES, NO) if self.settings.thought == "match" else ()
        return [*NAMES, *TOPICS, *VALUES, *extra, *verdicts]

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Returns the scripted policy, with ``write_rate`` or that of the settings."""
        rate = self.settings.write_rate if write_rate is None else write_rate
        return LedgerExpert(rate, self.settings.thought)


class LedgerEnv:
    """One ledger task; see the module docstring.

    Args:
      settings: the shape of the task.
      world_topics: the topics that questions concern if relevance is "hidden".
    """

    def __init__(self, settings: LedgerConfig, world_topics: tuple[str, ...]) -> None:
        self._settings = settings
        self._world_topics = world_topics
        self.goal = ""

    def reset(self, seed: int) -> str:
        """Draws the task from ``seed`` and returns its first fact."""
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
        question = Question(len(self._facts), self._gold, frozenset({last}))
        self._questions = (question,)
        self._at, self._score = 0, 0.0
        return str(self._facts[0])

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Shows the next observation; a ``final`` ``action`` is scored and ends it."""
        was_asked = self._at == len(self._facts)
        self._at += 1
        if final:
            # Only an answer to the question scores: a guess before it would pay as
            # often as its fact is asked about.
            self._score = float(was_asked and action.strip() == self._gold)
            return StepResult("", self._score, True)
        if self._at < len(self._facts):
            return StepResult(str(self._facts[self._at]), 0.0, False)
        if self._at == len(self._facts):
            return StepResult(self._question, 0.0, False)
        return StepResult("", 0.0, True)

    def score(self) -> float:
        """Returns 1.0 after the right answer, else 0.0."""
        return self._score

    def useful(self) -> frozenset[int]:
        """Returns the facts whose topic may be asked about."""
        return frozenset(
            i for i, f in enumerate(self._facts) if f.topic in self._topics
        )

    def questions(self) -> tuple[Question, ...]:
        """Returns the one question of the task."""
        return self._questions


@dataclasses.dataclass(frozen=True)
class LedgerFact:
    """One fact: ``topic`` of ``who`` is ``value``; a correction says "is now"."""

    who: str
    topic: str
    value: str
    is_correction: bool = False

    def __str__(self) -> str:
        verb = "is now" if self.is_correction else "is"
        return f"{self.who} {self.topic} {verb} {self.value}"


def _draw_facts(
    rng: np.random.Generator, settings: LedgerConfig, topics: tuple[str, ...]
) -> tuple[list[LedgerFact], LedgerFact]:
    """Draws the facts of one task in order, and the fact that is asked about."""
    count = int(rng.integers(settings.min_turns, settings.max_turns + 1)) - 1
    delay = int(rng.integers(settings.min_delay, min(count, settings.max_delay) + 1))
    target_at = count - delay
    share = settings.relevant_topics / len(TOPICS)
    relevant = rng.random(count) < share
    relevant[target_at] = True
    spare = np.flatnonzero(relevant & (np.arange(count) != target_at))
    # Relevant facts beyond the limit, other than the asked one, become distractors.
    surplus = max(0, len(spare) + 1 - settings.max_relevant_facts)
    relevant[rng.permutation(spare)[:surplus]] = False
    others = [t for t in TOPICS if t not in topics]
    facts: list[LedgerFact] = []
    taken: set[tuple[str, str]] = set()
    for at, is_relevant in enumerate(relevant):
        # Only the newest value of a thing can be corrected.
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
    """Whether two facts state a value of the same thing."""
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


class LedgerExpert:
    """Shows the form: spell the topic, then write with one probability for all topics.

    It never learns which topics matter. If the goal names some, the thought repeats
    them before the topic, so that all can be compared side by side. With ``thought``
    "match" it also says whether the topic is among them. That shows how to compare,
    which a network built from scratch cannot do, and not what follows from it: whether
    the expert writes depends on neither. When it is asked, it recalls the one best
    memory and answers with the value in it.

    Args:
      write_rate: probability of each note, 0 to 1.
      thought: one of ``THOUGHTS``.
    """

    def __init__(self, write_rate: float, thought: str = "topics") -> None:
        self._write_rate, self._thought = write_rate, thought

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn; ``rng`` decides whether it writes."""
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
    """Returns the value that a recalled note gives for ``who`` and ``topic``."""
    notes = [t.split() for t in recalled]
    values = [w[-1] for w in notes if len(w) >= 3 and w[:2] == [who, topic]]
    if values:
        return values[0]
    return notes[0][-1] if notes else UNKNOWN  # a guess: the first memory's value

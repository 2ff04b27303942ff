"""``multi_qa``: several questions as one task, answered with a local search.

The goal lists the questions. ``<act>search: words</act>`` shows the best passages of
the shelf. A turn without it repeats only the last query, so a passage that is needed
later has to be written. ``<answer>1: ...; 2: ...</answer>`` ends the task. If a search
fails or takes too long, an observation says so. The score is the mean of the questions'
F1 or exact match; they are reported separately by their record's kind. After MEM1 (Zhou
et al. 2025) and its multi-objective tasks.

``factbook`` asks in the same way, with records of its own, and shares the settings.
``MultiQaExpert`` demonstrates: it searches, notes what supports an answer, and recalls.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from mempo_jax.envs.answers import (
    VERDICTS,
    answer_f1,
    exact_match,
    join_answers,
    normalise_answer,
    split_answers,
)
from mempo_jax.envs.base import (
    DataError,
    Question,
    ScriptedPolicy,
    Situation,
    StepResult,
    Task,
    derived_seed,
)
from mempo_jax.envs.qa_data import (
    SPLITS,
    Passage,
    QuestionRecord,
    RecordSource,
    SupportingFact,
)
from mempo_jax.envs.search import SEARCHES, SearchTool
from mempo_jax.envs.tools import Tool, ToolConfig
from mempo_jax.memory import make_embedder

UNKNOWN = "unknown"
NOTES_RECALLED = 2  # notes that the expert recalls for each question: one a hop
_ASKED = re.compile(r"^\d+: (.*)$", re.MULTILINE)
_SEARCHES = re.compile(r"searches (\d+)")
TITLE_WORDS = 6  # words of a note's title, at most
# Normalised characters by which a sentence is recognised: a note may cut its end.
_MARK = 40
METRICS = ("f1", "em")
EMBEDDERS = ("static", "hashing")
MAX_OBJECTIVES = 32  # questions of one task, at most
PREFIX = "search:"
HINT = f"expected {PREFIX} words"
TOOLS_KEPT = 2  # search tools in memory: of one training and one held-out shelf
ECHO_CHARS = 120  # characters of the last query that an observation repeats
GOAL = "answer each question"
SCORES = {"f1": answer_f1, "em": exact_match}
ASCII = "".join(map(chr, range(33, 127)))
# Words of observations beside those of passages and queries.
OBSERVATION_WORDS = "the last for found nothing no such tool got query is empty , : ; -"


@dataclasses.dataclass(frozen=True)
class MultiQaConfig:
    """Settings of what is asked, searched, shown, scored and demonstrated.

    ``configs/base.py`` explains the fields.
    """

    objectives: int
    train_file: str
    validation_file: str
    test_file: str
    validation_share: float
    test_share: float
    shelf_records: int
    search: str
    embedder: str
    passages: int
    passage_chars: int
    metric: str
    write_rate: float
    hops: int
    note_chars: int
    vocabulary_words: int

    def files(self) -> dict[str, str]:
        """Returns the file name by split, "" if none is named."""
        return {
            "train": self.train_file,
            "validation": self.validation_file,
            "test": self.test_file,
        }

    def __post_init__(self) -> None:
        def check(ok: bool, field: str, expected: str) -> None:
            if not ok:
                raise ValueError(
                    f"config.env.multi_qa.{field}: expected {expected}, got "
                    f"{getattr(self, field)!r}"
                )

        most = MAX_OBJECTIVES
        check(1 <= self.objectives <= most, "objectives", f"1 to {most}")
        for field in ("validation_share", "test_share"):
            check(0 <= getattr(self, field) < 1, field, "a share in [0, 1)")
        left = 1 - self.validation_share
        check(self.test_share < left, "test_share", f"less than {left:g}, for training")
        check(self.search in SEARCHES, "search", f"one of {SEARCHES}")
        check(self.embedder in EMBEDDERS, "embedder", f"one of {EMBEDDERS}")
        check(self.metric in METRICS, "metric", f"one of {METRICS}")
        check(0 <= self.write_rate <= 1, "write_rate", "0 to 1")
        check(self.hops in (1, 2), "hops", "1 or 2")
        check(self.passage_chars >= 20, "passage_chars", "at least 20")
        check(self.note_chars >= 20, "note_chars", "at least 20")
        for field in ("shelf_records", "passages"):
            check(getattr(self, field) >= 1, field, "at least 1")
        check(self.vocabulary_words >= 0, "vocabulary_words", "at least 0")


class MultiQaSuite:
    """Tasks of ``objectives`` questions from one source; each epoch groups them anew.

    Tasks of one shelf follow each other, so that its search tool is built once. If
    ``objectives`` does not divide the number of questions of a shelf, its last task
    repeats some of its first. Held-out tasks are the same for every ``seed``.

    Args:
      name: name of the suite.
      source: the records and their passages.
      settings: what is asked, searched and shown.
      tools: time limit and retries of a search.
      seed: seed of the training order.

    Raises:
      DataError: a split has fewer questions than one task needs.
    """

    def __init__(
        self,
        name: str,
        source: RecordSource,
        settings: MultiQaConfig,
        tools: ToolConfig,
        seed: int,
    ) -> None:
        self.name, self.settings = name, settings
        self._source, self._call_limits, self._seed = source, tools, seed
        self._lock = threading.Lock()
        self._tools: collections.OrderedDict = collections.OrderedDict()
        by_meaning = settings.search != "bm25"
        self._embedder = make_embedder(settings.embedder) if by_meaning else None
        self._counts = {split: self._tasks_by_shelf(split) for split in SPLITS}
        for split in ("train", "test"):
            if not sum(self._counts[split]):
                raise DataError(
                    f"{name}: expected at least {settings.objectives} questions on a "
                    f"shelf for {split}, got fewer; lower config.env.multi_qa."
                    "objectives, or change test_share or shelf_records there"
                )

    def _tasks_by_shelf(self, split: str) -> list[int]:
        each = self.settings.objectives
        sizes = [
            len(self._source.numbers(split, shelf))
            for shelf in range(self._source.shelves(split))
        ]
        return [-(-size // each) if size >= each else 0 for size in sizes]

    def task(self, split: str, index: int) -> Task:
        """Returns task ``index`` of ``split``; the seed is that of the epoch's order.

        Raises:
          ValueError: no such split, none of its tasks, or a negative index.
        """
        size = self.size(split)
        if index < 0 or not size:
            raise ValueError(
                f"{self.name} task: expected index >= 0 of a split with tasks, got "
                f"{split!r} and {index}"
            )
        trains = split == "train"
        # Held-out tasks depend neither on the epoch nor on the run.
        epoch, seed = (index // size, self._seed) if trains else (0, 0)
        return Task(
            self.name, split, index, derived_seed(self.name, split, epoch, seed)
        )

    def size(self, split: str) -> int | None:
        """Returns the number of tasks of an epoch of ``split``.

        Raises:
          ValueError: no such split.
        """
        if split not in self._counts:
            raise ValueError(f"{self.name}: expected one of {SPLITS}, got {split!r}")
        return sum(self._counts[split])

    def make(self, task: Task) -> MultiQaEnv:
        """Returns an environment with the questions and the shelf of ``task``."""
        shelf, numbers = self._draw_records(task)
        records = [self._source.record(task.split, n) for n in numbers]
        tool = self._tool(task.split, shelf)
        return MultiQaEnv(records, tool, self.settings, self._call_limits)

    def _draw_records(self, task: Task) -> tuple[int, list[int]]:
        """Draws shelf and record numbers of a task, in the epoch's order."""
        counts, each = self._counts[task.split], self.settings.objectives
        at = task.index % sum(counts)
        rng = np.random.default_rng(task.seed)
        for shelf in rng.permutation(len(counts)).tolist():
            if at < counts[shelf]:
                break
            at -= counts[shelf]
        numbers = self._source.numbers(task.split, shelf)
        order = np.random.default_rng([task.seed, shelf]).permutation(len(numbers))
        # The last task of a shelf wraps around to its first questions.
        chosen = [order[(at * each + i) % len(order)] for i in range(each)]
        return shelf, [numbers[i] for i in chosen]

    def _tool(self, split: str, shelf: int) -> SearchTool:
        with self._lock:  # environments are made on threads
            key = split, shelf
            if key not in self._tools:
                self._tools[key] = self._build_tool(split, shelf)
                # Least recently used goes first: an index of a large shelf is large.
                while len(self._tools) > TOOLS_KEPT:
                    self._tools.popitem(last=False)
            self._tools.move_to_end(key)
            return self._tools[key]

    def _build_tool(self, split: str, shelf: int) -> SearchTool:
        """Returns a search of a shelf; splits of one small file share it."""
        passages = tuple(self._source.passages(split, shelf))
        for tool in self._tools.values():
            if tool.passages == passages:
                return tool
        return SearchTool(passages, self.settings.search, self._embedder)

    def vocabulary(self) -> list[str]:
        """Returns all characters of the first tasks' shelf and its commonest words.

        Any other word is spelt by its parts.
        """
        shelf, _ = self._draw_records(self.task("train", 0))
        counts = collections.Counter(
            piece
            for text in self._texts("train", shelf)
            for piece in re.findall(r"\w+|[^\w\s]", text)
        )
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        observation_words = re.findall(
            r"\w+|[^\w\s]", f"searches {HINT} {GOAL} {UNKNOWN} {OBSERVATION_WORDS}"
        )
        letters = {letter for word in counts for letter in word} | set(ASCII)
        return sorted(
            letters.union(observation_words, ranked[: self.settings.vocabulary_words])
        )

    def _texts(self, split: str, shelf: int) -> Iterator[str]:
        for number in self._source.numbers(split, shelf):
            record = self._source.record(split, number)
            yield record.question
            yield record.answer
        for passage in self._tool(split, shelf).passages:
            yield passage.title
            yield passage.text

    def expert(self, write_rate: float | None = None) -> ScriptedPolicy:
        """Returns the scripted policy, with ``write_rate`` or that of the settings."""
        s = self.settings
        rate = s.write_rate if write_rate is None else write_rate
        return MultiQaExpert(self._source.find, rate, s.hops, s.note_chars)


class MultiQaEnv:
    """One task; see the module docstring.

    Args:
      records: the questions of the task.
      tool: searches their shelf.
      settings: what is shown and scored.
      tools: time limit and retries of a search.
    """

    def __init__(
        self,
        records: Sequence[QuestionRecord],
        tool: SearchTool,
        settings: MultiQaConfig,
        tools: ToolConfig,
    ) -> None:
        self._records, self._tool, self._settings = tuple(records), tool, settings
        self._tools = tools
        questions = [f"{n}: {r.question}" for n, r in enumerate(self._records, start=1)]
        self.goal = "\n".join([GOAL, *questions])

    def reset(self, seed: int) -> str:
        """Starts the task; ``seed`` fixes the random numbers that a search may draw."""
        self._call = Tool(self._tools, seed=seed)
        self._at, self._searches = 0, 0
        self._scores = (0.0,) * len(self._records)
        self._last, self._supporting = "", set()
        return "searches 0"

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Carries out a search; a ``final`` ``action`` is graded and ends the task."""
        if final:
            self._scores = self._grade(action)
            return StepResult("", self.score(), True)
        self._at += 1
        return StepResult(self._observation_after(action.strip()), 0.0, False)

    def score(self) -> float:
        """Returns the mean score of the questions; 0 before the answer."""
        return float(np.mean(self._scores))

    def useful(self) -> frozenset[int]:
        """Returns the observations so far that showed a supporting sentence."""
        return frozenset(self._supporting)

    def questions(self) -> tuple[Question, ...]:
        """Returns all questions as one, asked by the last observation.

        One answer answers them all.
        """
        gold = join_answers([record.answer for record in self._records])
        kinds = tuple(record.kind for record in self._records)
        return (Question(self._at, gold, self.useful(), parts=kinds),)

    def question_scores(self) -> tuple[float, ...]:
        """Returns the score of each question, 0 before the answer."""
        return self._scores

    def _grade(self, action: str) -> tuple[float, ...]:
        """Scores each question of an answer."""
        answers = split_answers(action, len(self._records))
        score = SCORES[self._settings.metric]
        pairs = zip(answers, self._records, strict=True)
        return tuple(score(text, record.answer) for text, record in pairs)

    def _observation_after(self, action: str) -> str:
        """Returns the observation that follows an action; every action has one."""
        if not action:
            last = f" , the last for: {self._last}" if self._searches else ""
            return f"searches {self._searches}{last}"
        if not action.lower().startswith(PREFIX):
            return f"no such tool: {HINT} , got {_shortened(action, 40)}"
        query = " ".join(action[len(PREFIX) :].split())
        if not query:
            return f"the query is empty: {HINT}"
        self._searches += 1
        self._last = _shortened(query, ECHO_CHARS)
        head = f"searches {self._searches} , found for: {self._last}"
        result = self._call(self._tool.search, query, self._settings.passages)
        if result.error:
            return f"{head}\nthe search failed: {result.error}"
        lines = [self._show(passage) for passage in result.value]
        return "\n".join([head, *(lines or ["nothing"])])

    def _show(self, passage: Passage) -> str:
        """Returns a passage as observations show it; records if it is support."""
        text = _shortened(passage.text, self._settings.passage_chars)
        support = [f for record in self._records for f in record.support]
        if any(f.title == passage.title and f.sentence in text for f in support):
            self._supporting.add(self._at)
        return f"- {passage.title}: {text}"


def _shortened(text: str, most: int) -> str:
    """Cuts a text to ``most`` characters, between words if there are spaces."""
    if len(text) <= most:
        return text
    words = text[: most + 1].rsplit(" ", 1)[0]
    return words[:most]


class MultiQaExpert:
    """Shows the form, and the ceiling of a reader that misses nothing.

    It searches for each question, once for each passage that supports it, up to
    ``hops`` times: first by the question, then by what it noted, or by the record's own
    queries. It notes, with ``write_rate``, those sentences of the results that the
    record names as support and that it does not recall yet, up to ``note_chars``
    characters, under the names in the question. In the end it recalls by the names of
    each question. It gives the gold answer if the recalled notes hold it (for yes and
    no: if they hold a supporting sentence), else "unknown".

    Unlike the experts of other tasks it knows the truth: to see which passage supports
    an answer, and how an answer is worded, takes reading that no script does.
    ``write_rate`` below 1 leaves demonstrations something to learn.

    Args:
      find: returns the record of a question.
      write_rate: probability of each note, 0 to 1.
      hops: the most searches for one question.
      note_chars: the most characters of a note.
    """

    def __init__(
        self,
        find: Callable[[str], QuestionRecord | None],
        write_rate: float,
        hops: int,
        note_chars: int,
    ) -> None:
        self._find, self._write_rate = find, write_rate
        self._hops, self._note_chars = hops, note_chars

    def __call__(self, situation: Situation, rng: np.random.Generator) -> str:
        """Returns the text of one turn; ``rng`` decides whether it writes."""
        questions = _ASKED.findall(situation.goal)
        plan = [(text, hop) for text in questions for hop in range(self._hops_of(text))]
        status = _SEARCHES.match(situation.observation)
        done = int(status[1]) if status else len(plan)
        if "\n- " in situation.observation and 1 <= done <= len(plan):
            question, hop = plan[done - 1]
            # A note is due once per result: before any recall at the first hop, after
            # one at the next.
            not_noted = len(situation.queries) == min(hop, 1)
            # What is noted already is recalled first, so that it is not noted again.
            if hop and not situation.queries:
                return _recall(question)
            note = self._note(question, situation) if not_noted else ""
            if note and rng.random() < self._write_rate:
                return f'<mem_write title="{topic(question)}"> {note}</mem_write>'
        if done < len(plan):
            return self._search(*plan[done], situation)
        for text in questions:
            if not _recalled(text, situation):
                return _recall(text)
        answers = [self._answer(text, situation.recalled) for text in questions]
        return f"<answer> {join_answers(answers)}</answer>"

    def _hops_of(self, question: str) -> int:
        """Returns the number of searches for a question: one a supporting passage."""
        record = self._find(question)
        titles = {fact.title for fact in record.support} if record else ()
        return max(1, min(self._hops, len(titles)))

    def _search(self, question: str, hop: int, situation: Situation) -> str:
        if hop and not _recalled(question, situation):
            return _recall(question)
        record = self._find(question)
        queries = record.queries if record else ()
        query = queries[0] if queries else question
        if hop and situation.recalled:
            noted = record is not None and _holds(situation.recalled, record.support)
            query = (
                queries[hop] if noted and len(queries) > hop else situation.recalled[0]
            )
        return f"<act> search: {_plain(query).strip()}</act>"

    def _note(self, question: str, situation: Situation) -> str:
        """Returns the supporting sentences shown and not recalled yet, with titles."""
        record, observation = self._find(question), situation.observation
        if record is None:
            return ""
        parts: dict[str, list[str]] = {}
        for fact in record.support:
            shows_fact = (
                f"\n- {fact.title}: " in observation and fact.sentence in observation
            )
            if shows_fact and not _holds(situation.recalled, [fact]):
                parts.setdefault(fact.title, []).append(fact.sentence)
        texts = [
            f"{title}: {' '.join(sentences)}" for title, sentences in parts.items()
        ]
        return _plain(" ".join(texts)[: self._note_chars]).strip()

    def _answer(self, question: str, recalled: tuple[str, ...]) -> str:
        record = self._find(question)
        if record is None:
            return UNKNOWN
        gold = normalise_answer(record.answer)
        if gold in VERDICTS:
            known = _holds(recalled, record.support)
        else:
            known = f" {gold} " in f" {normalise_answer(' '.join(recalled))} "
        return record.answer if known else UNKNOWN


def _holds(recalled: Iterable[str], facts: Iterable[SupportingFact]) -> bool:
    """Whether the recalled texts contain the beginning of one of ``facts``."""
    text = normalise_answer(" ".join(recalled))
    marks = [normalise_answer(f"{f.title} {f.sentence}")[:_MARK] for f in facts]
    bare = [normalise_answer(f.sentence)[:_MARK] for f in facts]
    return any(mark in text for mark in (*marks, *bare) if mark)


def topic(question: str) -> str:
    """Returns the names and numbers of a question: title of its notes, and query.

    Args:
      question: the question's text.
    """
    words = re.findall(r"[\w.'-]*\w", question)
    # Capitals and digits; the first word has a capital in any case.
    named = [word for word in words[1:] if not word[0].islower()]
    return " ".join((named or words)[-TITLE_WORDS:])


def _recall(question: str) -> str:
    return f'<mem_recall k="{NOTES_RECALLED}"> {topic(question)}</mem_recall>'


def _recalled(question: str, situation: Situation) -> bool:
    return topic(question) in map(str.strip, situation.queries)


def _plain(text: str) -> str:
    """Returns a text without what could be read as a tag."""
    return text.replace("<", " ").replace(">", " ")

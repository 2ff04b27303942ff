"""Writes conversations into banks and recalls the evidence of their questions."""

from __future__ import annotations

import collections
import dataclasses
import math
import time

import numpy as np

from benchmarks._conversation_files import Conversation, Sentence
from mempo_jax.memory import Bank, BankConfig, Embedder, make_embedder, replay
from mempo_jax.memory.entry import full_text

ADVERSE = 5  # the category of questions that the conversation does not answer
OUTCOMES = ("new", "merged", "superseded", "duplicate", "error")
RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Setting:
    """How conversations become entries.

    entry: ``sentence`` (alone), ``speaker`` ("Ann: sentence") or ``dated`` (speaker and
    date as the title). banks: ``one`` for all conversations or ``each``. gated: False
    stores every sentence as it is, the bound that no gate can pass by much.
    """

    entry: str = "sentence"
    banks: str = "one"
    embedder: str = "static"
    merge_threshold: float = BankConfig().merge_threshold
    gated: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What came of one sentence.

    nearest: similarity to the nearest entry. other: the entry that it repeats, was
    merged into or replaced, as it stood then; of a new one the nearest. similarity: to
    ``other``.
    """

    outcome: str
    nearest: float
    similarity: float
    text: str
    other: str


@dataclasses.dataclass
class Written:
    """Banks by conversation name, where each sentence went, and how long it took.

    holders: (conversation, turn) to its (entry id, sentence) pairs, as written; ids may
    have been merged away since, see ``Bank.resolve``.
    """

    setting: Setting
    banks: dict[str, Bank]
    holders: dict[tuple[str, str], list[tuple[int, str]]]
    events: list[Event]
    seconds: float

    def distinct(self) -> list[Bank]:
        """Every bank once."""
        return list({id(bank): bank for bank in self.banks.values()}.values())


def entry_of(sentence: Sentence, how: str) -> tuple[str | None, str]:
    """Title and text of the entry that a sentence is written as."""
    if how == "dated":
        return f"{sentence.speaker}, {sentence.date}", sentence.text
    if how == "speaker":
        return None, f"{sentence.speaker}: {sentence.text}"
    return None, sentence.text


def write_all(conversations: list[Conversation], setting: Setting) -> Written:
    """Every sentence of the conversations, written in order."""
    embedder = make_embedder(setting.embedder)
    config = BankConfig(merge_threshold=setting.merge_threshold)
    done = Written(setting, {}, collections.defaultdict(list), [], 0.0)
    shared = Bank(config, embedder, "all")
    if not setting.gated:
        return _store_all(conversations, done, config, embedder)
    for talk in conversations:
        bank = shared if setting.banks == "one" else Bank(config, embedder, talk.name)
        done.banks[talk.name] = bank
        for sentence in talk.sentences:
            title, text = entry_of(sentence, setting.entry)
            started = time.perf_counter()
            result = bank.write(text, title=title, step=len(bank.log))
            done.seconds += time.perf_counter() - started
            done.holders[talk.name, sentence.turn].append((result.entry_id, text))
            done.events.append(_event(bank, full_text(title, text)))
    return done


def _store_all(conversations, done: Written, config, embedder: Embedder) -> Written:
    """The same without gates: one entry a sentence, in bulk."""
    together = done.setting.banks == "one"
    for talks in [conversations] if together else [[talk] for talk in conversations]:
        texts = []
        for talk, sentence in ((t, s) for t in talks for s in t.sentences):
            text = full_text(*entry_of(sentence, done.setting.entry))
            done.holders[talk.name, sentence.turn].append((len(texts), text))
            texts.append(text)
        bank = Bank.from_texts(texts, config, embedder)
        done.banks.update({talk.name: bank for talk in talks})
    return done


def _event(bank: Bank, text: str) -> Event:
    """The last write of ``bank``; a new entry is set beside its nearest neighbour."""
    record = bank.log[-1]
    outcome = "superseded" if record.supersedes else str(record.outcome)
    mine, ids = None, record.entry_ids
    if outcome == "new":
        near = [i for i in bank.candidates(text, 2) if i != ids[0]]
        other = bank.entry(near[0]) if near else None
        mine = bank.entry(ids[0])
    else:
        other = bank.entry(ids[-1]) if ids else None
    if other is None:
        return Event(outcome, record.similarity, record.similarity, text, "")
    row = mine.embedding if mine else bank.embedder.embed([text])[0]
    similarity = float(row @ other.embedding)
    old = full_text(other.title, other.text)
    return Event(outcome, record.similarity, similarity, text, old)


def recall_reranked(bank: Bank, query: str) -> list[int]:
    """The recall of a policy: with MMR, logged."""
    return [hit.entry.id for hit in bank.recall(query, step=len(bank.log))]


def recall_nearest(bank: Bank, query: str) -> list[int]:
    """As many entries by similarity alone."""
    return bank.candidates(query, bank.config.retrieval_top_k)


@dataclasses.dataclass
class Answers:
    """Evidence recall by question, in file order; float64 [questions]."""

    category: np.ndarray
    followed: np.ndarray
    kept: np.ndarray
    chance: np.ndarray
    milliseconds: np.ndarray

    def mean(self, name: str, adverse: bool = False) -> float:
        """Mean over the ordinary or the adversarial questions; NaN if there is none."""
        return spread(getattr(self, name)[(self.category == ADVERSE) == adverse])[0]


def ask_all(conversations, written: Written, recall=recall_reranked) -> Answers:
    """Recalls every question that has evidence, from the bank of its conversation."""
    rows = []
    for talk in conversations:
        bank = written.banks[talk.name]
        for question in talk.questions:
            if not question.evidence:
                continue
            started = time.perf_counter()
            found = recall(bank, question.text)
            spent = 1000 * (time.perf_counter() - started)
            held = [written.holders[talk.name, turn] for turn in question.evidence]
            shares = [_hits(bank, found, pairs) for pairs in held]
            followed, kept, chance = np.mean(shares, axis=0)
            rows.append((question.category, followed, kept, chance, spent))
    return Answers(*np.asarray(rows, np.float64).reshape(-1, 5).T)


def _hits(bank: Bank, found: list[int], pairs) -> tuple[bool, bool, float]:
    """Whether a turn is among ``found``, still spelled so, and the odds by chance."""
    homes = [(bank.resolve(i), text) for i, text in pairs if i >= 0]
    hits = [(home, text) for home, text in homes if home in found]
    kept = any(text.casefold() in bank.entry(i).text.casefold() for i, text in hits)
    own = len({home for home, _ in homes})
    drawn = min(bank.config.retrieval_top_k, len(bank))
    missed = math.comb(len(bank) - own, drawn) / math.comb(len(bank), drawn)
    return bool(hits), kept, 1 - missed


def spread(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % bootstrap interval over questions; NaN for none."""
    if not len(values):
        return math.nan, math.nan, math.nan
    picks = np.random.default_rng(0).integers(
        len(values), size=(RESAMPLES, len(values))
    )
    low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def shares(events: list[Event]) -> dict[str, float]:
    """Share of each outcome among all writes."""
    counts = collections.Counter(event.outcome for event in events)
    return {name: counts[name] / max(len(events), 1) for name in OUTCOMES}


def with_config(written: Written, **changes) -> Written:
    """The same banks under other settings of recall, by replaying their logs."""
    twins = {}
    for bank in written.distinct():
        config = dataclasses.replace(bank.config, **changes)
        writes = [record for record in bank.log if record.kind == "write"]
        twins[id(bank)] = replay(Bank(config, bank.embedder), writes)
    banks = {name: twins[id(bank)] for name, bank in written.banks.items()}
    return dataclasses.replace(written, banks=banks)

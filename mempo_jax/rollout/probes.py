"""Probes: the gold answer scored in contexts that differ in what memory they show.

From finished trajectories to a list of token rows to score, and from the scores to
``Evidence``. Nothing is generated. A probe is a context, the opening tag of the answer,
and the gold answer: the answer's tokens alone are scored. The policy's own thought
before an answer is no part of it, since that thought spells the value already.

What is to be scored, and what the scores are evidence of: plain arithmetic.

What a context shows of memory, and the same context with other memories shown.

Only text that the environment's side wrote is changed: the blocks of recalled entries,
or the one block that is carried along behind the goal (context rule "rolling").
Ids before and behind a block stay as they are; the block itself is encoded again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mempo_jax.envs import Question
from mempo_jax.envs.context import block_text
from mempo_jax.memory import Grammar, OpRecord, Verdict
from mempo_jax.memory.lexical.judge import lexical
from mempo_jax.memory.lineage import Lineage, SameMeaning, makes_entry
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import Segment
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.types import Evidence

LEAST = 0.01  # probabilities below it differ, in logs, by much that means nothing


class Variant(NamedTuple):
    """One row to score: ids, of which the last ``scored`` are the gold answer's."""

    tokens: tuple[int, ...]
    scored: int


class LeaveOut(NamedTuple):
    """Drop from variant ``whole`` to ``without``, given to ops in these shares."""

    trajectory: int
    whole: int
    without: int
    shares: dict[int, float]


class Eviction(NamedTuple):
    """Rise from variant ``whole`` to ``restored``, if any, charged to ops."""

    trajectory: int
    whole: int
    restored: int
    shares: dict[int, float]


class Gain(NamedTuple):
    """Probability in variant ``alone`` less that in ``empty``, of one write.

    Of a rewritten block ``empty`` has the block before it.
    """

    trajectory: int
    op: int
    alone: int
    empty: int


class Rise(NamedTuple):
    """Change of the log-probability that a turn's context brought."""

    trajectory: int
    turn: int
    before: int
    after: int


Term = LeaveOut | Eviction | Gain | Rise


class GoldAnswer(NamedTuple):
    """A gold answer as the policy would spell it: the opening tag, and its own ids."""

    opening: list[int]
    ids: list[int]


@dataclasses.dataclass
class ProbePlan:
    """Variants to score, each once, and what their scores are evidence of.

    longest: tokens of a row, at most. skipped: how often something was left out, since
    it needs a longer row or since there are no tokens for it.
    """

    longest: int
    variants: list[Variant] = dataclasses.field(default_factory=list)
    terms: list[Term] = dataclasses.field(default_factory=list)
    skipped: int = 0
    _places: dict[Variant, int] = dataclasses.field(default_factory=dict)

    def add(self, context: Sequence[int] | None, answer: GoldAnswer) -> int | None:
        """Place of a variant among all; None where it cannot be scored."""
        tokens = (*context, *answer.opening, *answer.ids) if context else ()
        if not tokens or len(tokens) > self.longest:
            self.skipped += 1
            return None
        variant = Variant(tokens, len(answer.ids))
        place = self._places.setdefault(variant, len(self.variants))
        if place == len(self.variants):
            self.variants.append(variant)
        return place

    def evidence(self, log_probs: Sequence[float], blank: Evidence) -> Evidence:
        """Fills ``blank`` (zeros, numpy) from the mean log-probability of each variant.

        Ops beyond the width of the table are left out.
        """
        probability = np.exp(np.asarray(log_probs, np.float64))
        score = np.log(np.maximum(probability, LEAST))
        for term in self.terms:
            if isinstance(term, LeaveOut):
                drop = score[term.whole] - score[term.without]
                _share(blank.leave_out[term.trajectory], term.shares, drop)
            elif isinstance(term, Eviction):
                cost = max(score[term.restored] - score[term.whole], 0.0)
                _share(blank.leave_out[term.trajectory], term.shares, -cost)
            elif isinstance(term, Gain):
                row = blank.answer_gain[term.trajectory]
                if term.op < len(row):
                    row[term.op] += probability[term.alone] - probability[term.empty]
            else:
                change = score[term.after] - score[term.before]
                blank.turn_potential[term.trajectory, term.turn :] += change
        return blank


def _share(row: np.ndarray, shares: dict[int, float], amount: float) -> None:
    for op, share in shares.items():
        if op < len(row):
            row[op] += share * amount


HEAD, NOTHING = "recalled", " nothing"  # as ``Episode`` writes them
REWRITE = "rewrite"


class RecalledList(NamedTuple):
    """One list of recalled entries in a context.

    start, end: character range. entries: (entry id, position of its recall in the log).
    """

    start: int
    end: int
    entries: tuple[tuple[int, int], ...]


class ShownContext:
    """The context that a turn's action was sampled in.

    log: of the trajectory, up to that turn. texts: of its entries, by id. goal: of the
    task, behind which a block stands.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        segment: Segment,
        start: int,
        user: str,
        log: Sequence[OpRecord],
        texts: Mapping[int, str],
        goal: str = "",
    ) -> None:
        self.ids = segment.tokens[:start]
        self._tokenizer, self._texts = tokenizer, texts
        self._text = tokenizer.decode(self.ids)
        self._offsets = tokenizer.offsets(self.ids)
        self._is_action = segment.is_action[:start]
        self._user, self._goal = self._spelled(user).strip(), self._spelled(goal)
        self._carried = next((r.text for r in reversed(log) if r.kind == REWRITE), "")
        self.blocks = self._find(_lists(log))

    def showing(self, entries: Iterable[int]) -> list[int]:
        """The context with only these of the recalled entries left in it."""
        kept = set(entries)
        blocks = [[e for e, _ in block.entries if e in kept] for block in self.blocks]
        return self._with([self._block(entries) for entries in blocks])

    def showing_alone(self, line: str) -> list[int] | None:
        """The context with this line as all that was recalled; "" for nothing.

        Where nothing was recalled the line is put behind what the turn showed; None
        where that is not found as it was written.
        """
        block = HEAD + (line or NOTHING)
        if self.blocks:
            empty = [HEAD + NOTHING] * (len(self.blocks) - 1)
            return self._with([*empty, block])
        if not line:
            return list(self.ids)
        at = self._text.rfind(self._user) if self._user else -1
        if at < 0:
            return None
        end = at + len(self._user)
        return self._edited([(end, end, f"\n{block}")])

    def carrying(self, block: str) -> list[int] | None:
        """The context with another text in the block that is carried along; "" for no
        block. None where what stands there is not found as it was written."""
        stands = self._goal
        if self._carried:
            stands += self._spelled(block_text(self._carried))
        at = self._text.find(stands) if stands else -1
        if at < 0:
            return None
        if block == self._carried:
            return list(self.ids)
        place = at + len(self._goal), at + len(stands)
        return self._edited([(*place, block_text(block) if block else "")])

    def line(self, entry: int, text: str) -> str:
        """An entry as a recall shows it."""
        return f"\n{entry}: {text}"

    def _spelled(self, text: str) -> str:
        """A text as its tokens say it again."""
        return self._tokenizer.decode(self._tokenizer.encode(text))

    def _block(self, entries: Sequence[int]) -> str:
        lines = [self.line(entry, self._texts[entry]) for entry in entries]
        return HEAD + ("".join(lines) or NOTHING)

    def _find(self, lists: Sequence[tuple[tuple[int, int], ...]]) -> list[RecalledList]:
        """The blocks that stand in the text, never inside of what the policy said.

        Recalls that found the same look the same: the last of such blocks is of the
        last of them, and so on towards the front.
        """
        known: dict[str, list[tuple[tuple[int, int], ...]]] = {}
        for listed in dict.fromkeys(lists):
            if all(e in self._texts for e, _ in listed):
                known.setdefault(self._block([e for e, _ in listed]), []).append(listed)
        blocks: list[RecalledList] = []
        for start, end in reversed(self._places(known)):
            same = known[self._text[start:end]]
            listed = same.pop() if len(same) > 1 else same[0]
            blocks.insert(0, RecalledList(start, end, listed))
        return blocks

    def _places(self, texts: Collection[str]) -> list[tuple[int, int]]:
        """Where these stand, the longest that fits each place."""
        longest_first = sorted(texts, key=len, reverse=True)
        acted = [r for r, own in zip(self._offsets, self._is_action) if own]
        found, at = [], self._text.find(HEAD)
        while at >= 0:
            fits = (text for text in longest_first if self._text.startswith(text, at))
            text = next(fits, None)
            end = at + len(HEAD if text is None else text)
            own = any(a < end and at < b for a, b in acted)
            if text is not None and not own:
                found.append((at, end))
            at = self._text.find(HEAD, end)
        return found

    def _with(self, texts: Sequence[str]) -> list[int]:
        pairs = zip(self.blocks, texts, strict=True)
        edits = [(b.start, b.end, text) for b, text in pairs]
        return self._edited([e for e in edits if self._text[e[0] : e[1]] != e[2]])

    def _edited(self, edits: Sequence[tuple[int, int, str]]) -> list[int]:
        """The ids with character ranges replaced; ranges ascend and do not overlap."""
        ids = list(self.ids)
        for start, end, new in reversed(edits):
            first = next(
                (i for i, (_, b) in enumerate(self._offsets) if b > start), len(ids)
            )
            last = first
            while last < len(self._offsets) and self._offsets[last][0] < end:
                last += 1
            if last > first:  # what shares a token with the range is kept
                before = self._text[self._offsets[first][0] : start]
                behind = self._text[end : self._offsets[last - 1][1]]
                new = before + new + behind
            ids[first:last] = self._tokenizer.encode(new)
        return ids


def _lists(log: Sequence[OpRecord]) -> list[tuple[tuple[int, int], ...]]:
    """What may have been listed: each recall's hits, and those of a run of recalls.

    A context that is rebuilt while the environment waits shows a whole run at once.
    """
    lists, run, last = [], (), -2
    for k, record in enumerate(log):
        if record.kind != "recall":
            continue
        hits = tuple((entry, k) for entry in record.entry_ids)
        run = run + hits if record.turn == last + 1 else hits
        last = record.turn
        lists += [hits, run] if run != hits else [hits]
    return lists


def plan_probes(
    trajectories: Sequence[Trajectory],
    counted: Iterable[int],
    needs: frozenset[str],
    tokenizer: Tokenizer,
    longest: int,
) -> ProbePlan:
    """What to score for some of the trajectories.

    Args:
      counted: places of the trajectories to probe.
      needs: what to probe, in the words of ``types.NEEDS``.
      longest: tokens of a row, at most.
    """
    plan, twins = ProbePlan(longest), SameMeaning(_repeats)
    for n in counted:
        probe = _Probe(plan, n, trajectories[n], tokenizer, twins)
        for question in trajectories[n].questions:
            probe.ask(question, needs)
    return plan


class _Probe:
    """Plans the probes of one trajectory."""

    def __init__(
        self,
        plan: ProbePlan,
        n: int,
        trajectory: Trajectory,
        tokenizer: Tokenizer,
        twins: SameMeaning,
    ) -> None:
        self._plan, self._n, self._t = plan, n, trajectory
        self._tokenizer, self._twins = tokenizer, twins
        self._lineage = Lineage(trajectory.log)
        self._starts = _starts(trajectory)

    def ask(self, question: Question, needs: frozenset[str]) -> None:
        """Plans what one question can tell; nothing where it was never reached."""
        seen = self._t.turn_observation
        turns = [
            turn
            for turn, observation in enumerate(seen)
            if observation == question.observation and turn in self._starts
        ]
        if not turns:
            return
        answer = spell(question, self._tokenizer)
        if not answer.ids:
            self._plan.skipped += 1
            return
        shown = self._shown(turns[-1])
        if "leave_out" in needs and any(block.entries for block in shown.blocks):
            self._leave_out(shown, answer)
        if "evictions" in needs:
            self._evictions(shown, answer, turns)
        if "answer_gain" in needs:
            self._gains(shown, answer, turns[-1])
            self._rewritings(shown, answer, turns[-1])
        if "turn_potential" in needs:
            self._rises(answer, turns)

    def _leave_out(self, shown: ShownContext, answer: GoldAnswer) -> None:
        """Each entry in context in turn, with what says the same."""
        recalls: dict[int, set[int]] = {}
        for block in shown.blocks:
            for entry, recall in block.entries:
                recalls.setdefault(entry, set()).add(recall)
        whole, left = self._plan.add(shown.ids, answer), set(recalls)
        for entry in sorted(recalls):
            if entry not in left:
                continue
            same = self._same(entry, max(recalls[entry]), set(recalls))
            left -= same
            without = self._plan.add(shown.showing(set(recalls) - same), answer)
            if whole is None or without is None:
                continue
            ops = [k for member in same for k in recalls.get(member, ())]
            shares = self._shares(same, ops)
            self._plan.terms.append(LeaveOut(self._n, whole, without, shares))

    def _evictions(
        self, shown: ShownContext, answer: GoldAnswer, turns: Sequence[int]
    ) -> None:
        """Each entry that was pushed out before, shown in place of what was recalled.

        Where the question asked nothing of memory, or the same is stored still, it did
        not matter that the entry was gone.
        """
        lineage, log, texts = self._lineage, self._t.log, self._lineage.texts
        turn = turns[-1]
        asked = any(r.kind == "recall" and r.turn in turns[:-1] for r in log)
        seen = {entry for block in shown.blocks for entry, _ in block.entries}
        stored = lineage.alive(sum(record.turn < turn for record in log))
        known = [texts[entry] for entry in (stored | seen) & set(texts)]
        for entry, at in lineage.evictions().items() if asked and shown.blocks else ():
            if log[at].turn >= turn or entry not in texts:
                continue
            if any(self._twins.same(texts[entry], text) for text in known):
                continue
            line = shown.line(entry, texts[entry])
            whole = self._plan.add(shown.ids, answer)
            restored = self._plan.add(shown.showing_alone(line), answer)
            if whole is not None and restored is not None:
                shares = _equally(lineage, lineage.crowding(entry, at + 1))
                self._plan.terms.append(Eviction(self._n, whole, restored, shares))

    def _same(self, entry: int, recall: int, shown: set[int]) -> set[int]:
        """The entry, and those that say the same: shown, or stored at the recall.

        Where one of two equal memories is left out the other answers, if it is shown,
        or would have been recalled instead: they share what both together are worth.
        """
        texts = self._lineage.texts
        others = (self._lineage.alive(recall) | shown | {entry}) & set(texts)
        return self._twins.of(entry, {other: texts[other] for other in others})

    def _shares(self, same: set[int], recalls: Sequence[int]) -> dict[int, float]:
        shares = _equally(self._lineage, sorted(same))
        for entry in sorted(same):
            for k in self._lineage.merges(entry):
                shares[k] = shares.get(k, 0.0) + 1.0 / len(same)
        return shares | {k: 1.0 / len(set(recalls)) for k in recalls}

    def _gains(self, shown: ShownContext, answer: GoldAnswer, turn: int) -> None:
        """Each write before the answer, unless its text was taken back by then."""
        for k, record in enumerate(self._t.log):
            if record.kind != "write" or not makes_entry(record) or record.turn >= turn:
                continue
            replaced = self._lineage.replaced_at(k)
            if replaced is not None and replaced < turn:
                continue
            line = shown.line(record.entry_ids[0], record.text)
            alone = self._plan.add(shown.showing_alone(line), answer)
            empty = self._plan.add(shown.showing_alone(""), answer)
            if alone is not None and empty is not None:
                self._plan.terms.append(Gain(self._n, k, alone, empty))

    def _rewritings(self, shown: ShownContext, answer: GoldAnswer, turn: int) -> None:
        """Each block before the answer against the one before it, all else the same."""
        before = ""
        for k, record in enumerate(self._t.log):
            if record.kind != REWRITE or record.turn >= turn:
                continue
            after = self._plan.add(shown.carrying(record.text), answer)
            empty = self._plan.add(shown.carrying(before), answer)
            before = record.text
            if after is not None and empty is not None:
                self._plan.terms.append(Gain(self._n, k, after, empty))

    def _rises(self, answer: GoldAnswer, turns: Sequence[int]) -> None:
        """From the turn that shows the question on, each against the one before.

        Before that the question is not known, and the turn that wrote the fact shows
        it anyway: nothing there says what memory added.
        """
        places = [self._plan.add(self._context(turn), answer) for turn in turns]
        for turn, before, after in zip(turns[1:], places, places[1:]):
            if before is not None and after is not None:
                self._plan.terms.append(Rise(self._n, turn, before, after))

    def _context(self, turn: int) -> list[int]:
        segment, start = self._starts[turn]
        return self._t.segments[segment].tokens[:start]

    def _shown(self, turn: int) -> ShownContext:
        segment, start = self._starts[turn]
        return ShownContext(
            self._tokenizer,
            self._t.segments[segment],
            start,
            self._t.observations[turn],
            [record for record in self._t.log if record.turn < turn],
            self._lineage.texts,
            self._t.goal,
        )


def spell(question: Question, tokenizer: Tokenizer) -> GoldAnswer:
    """The gold answer in the tag that answers it, a blank before it as in the tag's
    demonstrations; the closing tag is left out, for it is no part of the answer.

    Nothing where the tokenizer has no ids for it: the policy could not say it.
    """
    grammar = Grammar()
    tag = grammar.answer if question.kind == "answer" else grammar.act
    opening, closing = f"<{tag}>", f"</{tag}>"
    text = question.answer.strip()
    if not text:
        return GoldAnswer([], [])
    whole = f"{opening} {text}{closing}"
    ids = tokenizer.encode(whole)
    if tokenizer.decode(ids) != whole:
        return GoldAnswer([], [])
    begin, end = len(opening), len(opening) + 1 + len(text)
    ranges = tokenizer.offsets(ids)
    own = [i for i, (a, b) in enumerate(ranges) if a < end and b > begin]
    return GoldAnswer(ids[: own[0]], [ids[i] for i in own])


def _equally(lineage: Lineage, entries: Sequence[int]) -> dict[int, float]:
    """Shares of the writes that several entries came from, an equal part for each."""
    shares: dict[int, float] = {}
    for entry in entries:
        for k, share in lineage.shares(entry).items():
            shares[k] = shares.get(k, 0.0) + share / len(entries)
    return shares


def _starts(trajectory: Trajectory) -> dict[int, tuple[int, int]]:
    """Turn -> segment and offset of its first sampled token."""
    starts: dict[int, tuple[int, int]] = {}
    for at, segment in enumerate(trajectory.segments):
        for offset, (own, turn) in enumerate(zip(segment.is_action, segment.turn_id)):
            if own:
                starts.setdefault(turn, (at, offset))
    return starts


def _repeats(one: str, other: str) -> bool:
    return lexical(one, other) == Verdict.REPEATS

"""Probes: the gold answer scored in contexts that differ in what memory they show.

From finished trajectories to a list of token rows to score, and from the scores to
``Evidence``. Nothing is generated. A probe is a context, the opening tag of the answer,
and the gold answer; only the answer's own tokens are scored. The policy's thought
before an answer is no part of it, since that thought spells the value already.

Contexts are edited only in text that the environment's side wrote: the blocks of
recalled entries, or the one block that is carried along after the goal (context rule
"rolling"). Ids before and after a block stay as they are; the block itself is encoded
again.
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

LEAST = 0.01  # below it logs of probabilities differ by nats, which mean nothing
HEAD, NOTHING = "recalled", " nothing"  # as ``Episode`` writes them
REWRITE = "rewrite"


def plan_probes(
    trajectories: Sequence[Trajectory],
    counted: Iterable[int],
    needs: frozenset[str],
    tokenizer: Tokenizer,
    longest: int,
) -> ProbePlan:
    """Plans what to score for some of the trajectories.

    Args:
      trajectories: finished ones.
      counted: positions of those to probe.
      needs: which evidence is wanted, as named in ``types.NEEDS``.
      tokenizer: the policy's.
      longest: the most tokens of a row.
    """
    plan, twins = ProbePlan(longest), SameMeaning(_repeats)
    for n in counted:
        probe = _TrajectoryProbes(plan, n, trajectories[n], tokenizer, twins)
        for question in trajectories[n].questions:
            probe.ask(question, needs)
    return plan


class _TrajectoryProbes:
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
        self._starts = _turn_starts(trajectory)

    def ask(self, question: Question, needs: frozenset[str]) -> None:
        """Plans what one question can show; nothing if it was never reached."""
        seen = self._t.turn_observation
        turns = [
            turn
            for turn, observation in enumerate(seen)
            if observation == question.observation and turn in self._starts
        ]
        if not turns:
            return
        answer = spell(question, self._tokenizer)
        # The policy could not say it, so no score would mean anything.
        if not answer.ids:
            self._plan.skipped += 1
            return
        # The last turn on the question: what was in context as it was answered.
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
        """Leaves out each entry in context, together with those that say the same."""
        recalls: dict[int, set[int]] = {}
        for block in shown.blocks:
            for entry, recall in block.entries:
                recalls.setdefault(entry, set()).add(recall)
        as_shown, remaining = self._plan.add(shown.ids, answer), set(recalls)
        for entry in sorted(recalls):
            # It was left out with an entry of the same meaning.
            if entry not in remaining:
                continue
            same = self._same(entry, max(recalls[entry]), set(recalls))
            remaining -= same
            without = self._plan.add(shown.showing(set(recalls) - same), answer)
            if as_shown is None or without is None:
                continue
            ops = [k for member in same for k in recalls.get(member, ())]
            shares = self._shares(same, ops)
            self._plan.terms.append(LeaveOut(self._n, as_shown, without, shares))

    def _evictions(
        self, shown: ShownContext, answer: GoldAnswer, turns: Sequence[int]
    ) -> None:
        """Shows each entry that was pushed out before in place of what was recalled.

        If nothing was recalled, or the same is still stored, it did not matter.
        """
        lineage, log, texts = self._lineage, self._t.log, self._lineage.texts
        turn = turns[-1]
        recalled = any(r.kind == "recall" and r.turn in turns[:-1] for r in log)
        seen = {entry for block in shown.blocks for entry, _ in block.entries}
        stored = lineage.alive(sum(record.turn < turn for record in log))
        # What the policy still had as it answered, in the bank or in the context.
        known = [texts[entry] for entry in (stored | seen) & set(texts)]
        for entry, evicted_at in (
            lineage.evictions().items() if recalled and shown.blocks else ()
        ):
            if log[evicted_at].turn >= turn or entry not in texts:
                continue
            if any(self._twins.same(texts[entry], text) for text in known):
                continue
            # As a recall would have shown it, so that only the entry differs.
            line = shown.line(entry, texts[entry])
            # The same variant for all evicted entries: the plan scores it once.
            as_shown = self._plan.add(shown.ids, answer)
            restored = self._plan.add(shown.showing_alone(line), answer)
            if as_shown is not None and restored is not None:
                shares = _equal_shares(lineage, lineage.crowding(entry, evicted_at + 1))
                self._plan.terms.append(Eviction(self._n, as_shown, restored, shares))

    def _same(self, entry: int, recall: int, shown: set[int]) -> set[int]:
        """The entry and those that say the same: shown, or stored at the time of the
        recall.

        If one of two equal memories is left out, the other answers if it is shown, or
        would have been recalled instead: they share what both together are worth.
        """
        texts = self._lineage.texts
        # Only entries whose text is known can be compared.
        others = (self._lineage.alive(recall) | shown | {entry}) & set(texts)
        return self._twins.of(entry, {other: texts[other] for other in others})

    def _shares(self, same: set[int], recalls: Sequence[int]) -> dict[int, float]:
        shares = _equal_shares(self._lineage, sorted(same))
        for entry in sorted(same):
            for k in self._lineage.merges(entry):
                # Each merge that an entry went through earns as much as its writes
                # together.
                shares[k] = shares.get(k, 0.0) + 1.0 / len(same)
        return shares | {k: 1.0 / len(set(recalls)) for k in recalls}

    def _gains(self, shown: ShownContext, answer: GoldAnswer, turn: int) -> None:
        """Each write before the answer, unless its text was replaced by then."""
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
            # Also where this block cannot be scored: the next one is compared with it.
            before = record.text
            if after is not None and empty is not None:
                self._plan.terms.append(Gain(self._n, k, after, empty))

    def _rises(self, answer: GoldAnswer, turns: Sequence[int]) -> None:
        """Each turn from the one that shows the question on, against the turn before
        it.

        Earlier turns do not know the question, and the turn that wrote the fact shows
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


@dataclasses.dataclass
class ProbePlan:
    """Variants to score, each once, and what their scores are evidence of.

    Attributes:
      longest: the most tokens of a row.
      variants: the rows.
      terms: what the scores are evidence of.
      skipped: how often something was left out, because it needs a longer row or
        because the tokenizer cannot spell it.
    """

    longest: int
    variants: list[Variant] = dataclasses.field(default_factory=list)
    terms: list[Term] = dataclasses.field(default_factory=list)
    skipped: int = 0
    _places: dict[Variant, int] = dataclasses.field(default_factory=dict)

    def add(self, context: Sequence[int] | None, answer: GoldAnswer) -> int | None:
        """Adds a variant, unless it is there already.

        Args:
          context: ids; None if the context could not be edited.
          answer: what is scored after it.

        Returns:
          Its position among the variants; None if it cannot be scored.
        """
        tokens = (*context, *answer.opening, *answer.ids) if context else ()
        if not tokens or len(tokens) > self.longest:
            self.skipped += 1
            return None
        variant = Variant(tokens, len(answer.ids))
        # Many terms need the same variant, and a forward pass is what costs.
        place = self._places.setdefault(variant, len(self.variants))
        if place == len(self.variants):
            self.variants.append(variant)
        return place

    def evidence(self, log_probs: Sequence[float], blank: Evidence) -> Evidence:
        """Fills in the evidence that the scores give.

        Args:
          log_probs: mean log-probability of each variant.
          blank: zeros (numpy) of the right shapes; filled in place.

        Returns:
          ``blank``. Ops beyond the width of its tables are left out.
        """
        # In float64: small differences of probabilities near 1 are the evidence.
        probability = np.exp(np.asarray(log_probs, np.float64))
        # In logs, a change between two tiny probabilities would outweigh all that
        # matters.
        score = np.log(np.maximum(probability, LEAST))
        for term in self.terms:
            if isinstance(term, LeaveOut):
                drop = score[term.whole] - score[term.without]
                _add_shares(blank.leave_out[term.trajectory], term.shares, drop)
            elif isinstance(term, Eviction):
                # A restored entry that would have hurt is no credit for pushing it out.
                cost = max(score[term.restored] - score[term.whole], 0.0)
                _add_shares(blank.leave_out[term.trajectory], term.shares, -cost)
            elif isinstance(term, Gain):
                row = blank.answer_gain[term.trajectory]
                if term.op < len(row):
                    # A difference of probabilities: bounded, however little the empty
                    # context says.
                    row[term.op] += probability[term.alone] - probability[term.empty]
            else:
                change = score[term.after] - score[term.before]
                # From this turn on, since it is a potential: its steps are the turns'
                # rewards.
                blank.turn_potential[term.trajectory, term.turn :] += change
        return blank


class Variant(NamedTuple):
    """One row to score: ids, of which the last ``scored`` are the gold answer's."""

    tokens: tuple[int, ...]
    scored: int


class LeaveOut(NamedTuple):
    """The drop of the score from variant ``whole`` to ``without``, given to ops in
    shares."""

    trajectory: int
    whole: int
    without: int
    shares: dict[int, float]


class Eviction(NamedTuple):
    """The rise of the score from variant ``whole`` to ``restored``, if any, charged to
    ops."""

    trajectory: int
    whole: int
    restored: int
    shares: dict[int, float]


class Gain(NamedTuple):
    """What one write adds: the probability in variant ``alone`` less that in ``empty``.

    For a rewritten block, ``empty`` has the block before it.
    """

    trajectory: int
    op: int
    alone: int
    empty: int


class Rise(NamedTuple):
    """The change of the score that a turn's context brought."""

    trajectory: int
    turn: int
    before: int
    after: int


Term = LeaveOut | Eviction | Gain | Rise


class GoldAnswer(NamedTuple):
    """A gold answer as the policy would spell it: the opening tag, and its own ids."""

    opening: list[int]
    ids: list[int]


def _add_shares(row: np.ndarray, shares: dict[int, float], amount: float) -> None:
    for op, share in shares.items():
        if op < len(row):
            row[op] += share * amount


class ShownContext:
    """The context that a turn's action was sampled in, and edited forms of it.

    Args:
      tokenizer: the policy's.
      segment, start: the segment that holds the context, and the action's offset in it.
      user: what the turn showed.
      log, texts: the trajectory's ops up to that turn, and its entries' texts by id.
      goal: of the task, after which a carried block is put.

    Attributes:
      ids, blocks: of the context, and the recalled lists in it, in order.
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
        # The context is searched as decoded text, which may differ from the original.
        self._user, self._goal = self._as_encoded(user).strip(), self._as_encoded(goal)
        self._carried = next((r.text for r in reversed(log) if r.kind == REWRITE), "")
        self.blocks = self._find(_recall_lists(log))

    def showing(self, entries: Iterable[int]) -> list[int]:
        """Returns the context with only ``entries`` left of what was recalled."""
        shown_entries = set(entries)
        blocks = [
            [e for e, _ in block.entries if e in shown_entries] for block in self.blocks
        ]
        return self._with_blocks([self._block(entries) for entries in blocks])

    def showing_alone(self, line: str) -> list[int] | None:
        """Returns the context with one line as all that was recalled.

        If nothing was recalled, the line is put after what the turn showed.

        Args:
          line: as ``line`` returns it; "" for nothing.

        Returns:
          Ids; None if what the turn showed is not found as it was written.
        """
        block = HEAD + (line or NOTHING)
        if self.blocks:
            empty = [HEAD + NOTHING] * (len(self.blocks) - 1)
            return self._with_blocks([*empty, block])
        if not line:
            return list(self.ids)
        position = self._text.rfind(self._user) if self._user else -1
        if position < 0:
            return None
        end = position + len(self._user)
        return self._edited([(end, end, f"\n{block}")])

    def carrying(self, block: str) -> list[int] | None:
        """Returns the context with another text in the block that is carried along.

        Args:
          block: the text; "" for no block.

        Returns:
          Ids; None if the current block is not found as it was written.
        """
        current = self._goal
        if self._carried:
            current += self._as_encoded(block_text(self._carried))
        position = self._text.find(current) if current else -1
        if position < 0:
            return None
        if block == self._carried:
            return list(self.ids)
        character_range = position + len(self._goal), position + len(current)
        return self._edited([(*character_range, block_text(block) if block else "")])

    def line(self, entry: int, text: str) -> str:
        """Returns an entry's line in a recall: its id ``entry`` and its ``text``."""
        return f"\n{entry}: {text}"

    def _as_encoded(self, text: str) -> str:
        """A text as it reads after it was encoded and decoded again."""
        return self._tokenizer.decode(self._tokenizer.encode(text))

    def _block(self, entries: Sequence[int]) -> str:
        lines = [self.line(entry, self._texts[entry]) for entry in entries]
        return HEAD + ("".join(lines) or NOTHING)

    def _find(self, lists: Sequence[tuple[tuple[int, int], ...]]) -> list[RecalledList]:
        """The blocks of recalled entries in the text, never inside of the policy's own.

        Recalls with equal hits look the same: the last of such blocks belongs to the
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
        """Character ranges of these texts, the longest that fits each place."""
        longest_first = sorted(texts, key=len, reverse=True)
        acted = [r for r, in_action in zip(self._offsets, self._is_action) if in_action]
        places, start = [], self._text.find(HEAD)
        while start >= 0:
            fits = (
                text for text in longest_first if self._text.startswith(text, start)
            )
            text = next(fits, None)
            end = start + len(HEAD if text is None else text)
            # The policy may have copied a block; editing it would change what was
            # sampled.
            in_action = any(a < end and start < b for a, b in acted)
            if text is not None and not in_action:
                places.append((start, end))
            start = self._text.find(HEAD, end)
        return places

    def _with_blocks(self, texts: Sequence[str]) -> list[int]:
        pairs = zip(self.blocks, texts, strict=True)
        edits = [(b.start, b.end, text) for b, text in pairs]
        return self._edited([e for e in edits if self._text[e[0] : e[1]] != e[2]])

    def _edited(self, edits: Sequence[tuple[int, int, str]]) -> list[int]:
        """The ids with character ranges replaced; ranges ascend and do not overlap."""
        ids = list(self.ids)
        # From the back, so that earlier positions stay valid.
        for start, end, new in reversed(edits):
            first = next(
                (i for i, (_, b) in enumerate(self._offsets) if b > start), len(ids)
            )
            last = first
            while last < len(self._offsets) and self._offsets[last][0] < end:
                last += 1
            if last > first:  # what shares a token with the range is kept
                before = self._text[self._offsets[first][0] : start]
                after = self._text[end : self._offsets[last - 1][1]]
                new = before + new + after
            ids[first:last] = self._tokenizer.encode(new)
        return ids


class RecalledList(NamedTuple):
    """A list of recalled entries at a character range: (entry id, position of its
    recall)."""

    start: int
    end: int
    entries: tuple[tuple[int, int], ...]


def _recall_lists(log: Sequence[OpRecord]) -> list[tuple[tuple[int, int], ...]]:
    """What a context may list: each recall's hits, and those of several recalls in a
    row.

    A context that is rebuilt while the environment waits shows such a row at once.
    """
    lists, consecutive, last_turn = [], (), -2
    for k, record in enumerate(log):
        if record.kind != "recall":
            continue
        hits = tuple((entry, k) for entry in record.entry_ids)
        consecutive = consecutive + hits if record.turn == last_turn + 1 else hits
        last_turn = record.turn
        lists += [hits, consecutive] if consecutive != hits else [hits]
    return lists


def spell(question: Question, tokenizer: Tokenizer) -> GoldAnswer:
    """Spells the gold answer of ``question`` as the policy would; no ids if it cannot.

    A blank comes before it, as in the demonstrations of the tag. The closing tag is
    left out, since it is no part of the answer. It cannot if ``tokenizer`` has no ids
    for it.
    """
    grammar = Grammar()
    tag = grammar.answer if question.kind == "answer" else grammar.act
    opening, closing = f"<{tag}>", f"</{tag}>"
    text = question.answer.strip()
    if not text:
        return GoldAnswer([], [])
    spelled = f"{opening} {text}{closing}"
    ids = tokenizer.encode(spelled)
    if tokenizer.decode(ids) != spelled:
        return GoldAnswer([], [])
    begin, end = len(opening), len(opening) + 1 + len(text)
    ranges = tokenizer.offsets(ids)
    answer_tokens = [i for i, (a, b) in enumerate(ranges) if a < end and b > begin]
    return GoldAnswer(ids[: answer_tokens[0]], [ids[i] for i in answer_tokens])


def _equal_shares(lineage: Lineage, entries: Sequence[int]) -> dict[int, float]:
    """Shares of the writes that several entries came from, an equal part for each
    entry."""
    shares: dict[int, float] = {}
    for entry in entries:
        for k, share in lineage.shares(entry).items():
            shares[k] = shares.get(k, 0.0) + share / len(entries)
    return shares


def _turn_starts(trajectory: Trajectory) -> dict[int, tuple[int, int]]:
    """{turn: segment and offset of its first sampled token}."""
    starts: dict[int, tuple[int, int]] = {}
    for at, segment in enumerate(trajectory.segments):
        for offset, (own, turn) in enumerate(zip(segment.is_action, segment.turn_id)):
            if own:
                starts.setdefault(turn, (at, offset))
    return starts


def _repeats(one: str, other: str) -> bool:
    # The lexical judge, whichever judge the bank uses: probes must not depend on the
    # policy.
    return lexical(one, other) == Verdict.REPEATS

"""Probes: the gold answer scored in contexts that differ in what memory they show.

From finished trajectories to a list of token rows to score, and from the scores to
``Evidence``. Nothing is generated. A probe is a context, the opening tag of the answer,
and the gold answer: the answer's tokens alone are scored. The policy's own thought
before an answer is no part of it, since that thought spells the value already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mempo_jax.envs import Question
from mempo_jax.memory import Grammar, Verdict
from mempo_jax.memory.judge import lexical
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.lineage import Lineage, Twins, makes_entry
from mempo_jax.rollout.probe_plan import Answer, Eviction, Gain, LeaveOut, Plan, Rise
from mempo_jax.rollout.recalled import REWRITE, Shown
from mempo_jax.rollout.trajectory import Trajectory


def plan_probes(
    trajectories: Sequence[Trajectory],
    counted: Iterable[int],
    needs: frozenset[str],
    tokenizer: Tokenizer,
    longest: int,
) -> Plan:
    """What to score for some of the trajectories.

    Args:
      counted: places of the trajectories to probe.
      needs: what to probe, in the words of ``types.NEEDS``.
      longest: tokens of a row, at most.
    """
    plan, twins = Plan(longest), Twins(_repeats)
    for n in counted:
        probe = _Probe(plan, n, trajectories[n], tokenizer, twins)
        for question in trajectories[n].questions:
            probe.ask(question, needs)
    return plan


class _Probe:
    """Plans the probes of one trajectory."""

    def __init__(
        self,
        plan: Plan,
        n: int,
        trajectory: Trajectory,
        tokenizer: Tokenizer,
        twins: Twins,
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

    def _leave_out(self, shown: Shown, answer: Answer) -> None:
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

    def _evictions(self, shown: Shown, answer: Answer, turns: Sequence[int]) -> None:
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

    def _gains(self, shown: Shown, answer: Answer, turn: int) -> None:
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

    def _rewritings(self, shown: Shown, answer: Answer, turn: int) -> None:
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

    def _rises(self, answer: Answer, turns: Sequence[int]) -> None:
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

    def _shown(self, turn: int) -> Shown:
        segment, start = self._starts[turn]
        return Shown(
            self._tokenizer,
            self._t.segments[segment],
            start,
            self._t.observations[turn],
            [record for record in self._t.log if record.turn < turn],
            self._lineage.texts,
            self._t.goal,
        )


def spell(question: Question, tokenizer: Tokenizer) -> Answer:
    """The gold answer in the tag that answers it, a blank before it as in the tag's
    demonstrations; the closing tag is left out, for it is no part of the answer.

    Nothing where the tokenizer has no ids for it: the policy could not say it.
    """
    grammar = Grammar()
    tag = grammar.answer if question.kind == "answer" else grammar.act
    opening, closing = f"<{tag}>", f"</{tag}>"
    text = question.answer.strip()
    if not text:
        return Answer([], [])
    whole = f"{opening} {text}{closing}"
    ids = tokenizer.encode(whole)
    if tokenizer.decode(ids) != whole:
        return Answer([], [])
    begin, end = len(opening), len(opening) + 1 + len(text)
    ranges = tokenizer.offsets(ids)
    own = [i for i, (a, b) in enumerate(ranges) if a < end and b > begin]
    return Answer(ids[: own[0]], [ids[i] for i in own])


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

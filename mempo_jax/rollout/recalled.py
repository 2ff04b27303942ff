"""What a context shows of memory, and the same context with other memories shown.

Only text that the environment's side wrote is changed: the blocks of recalled entries,
or the one block that is carried along behind the goal (context rule "rolling").
Ids before and behind a block stay as they are; the block itself is encoded again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from mempo_jax.envs.context import block_text
from mempo_jax.memory import OpRecord
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import Segment

HEAD, NOTHING = "recalled", " nothing"  # as ``Episode`` writes them
REWRITE = "rewrite"


class Block(NamedTuple):
    """One list of recalled entries in a context.

    start, end: character range. entries: (entry id, position of its recall in the log).
    """

    start: int
    end: int
    entries: tuple[tuple[int, int], ...]


class Shown:
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

    def _find(self, lists: Sequence[tuple[tuple[int, int], ...]]) -> list[Block]:
        """The blocks that stand in the text, never inside of what the policy said.

        Recalls that found the same look the same: the last of such blocks is of the
        last of them, and so on towards the front.
        """
        known: dict[str, list[tuple[tuple[int, int], ...]]] = {}
        for listed in dict.fromkeys(lists):
            if all(e in self._texts for e, _ in listed):
                known.setdefault(self._block([e for e, _ in listed]), []).append(listed)
        blocks: list[Block] = []
        for start, end in reversed(self._places(known)):
            same = known[self._text[start:end]]
            listed = same.pop() if len(same) > 1 else same[0]
            blocks.insert(0, Block(start, end, listed))
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

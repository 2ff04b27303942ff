"""What one trajectory leaves behind: segments, op log, rewards, counts.

What training made of each token of a trajectory, small enough to be kept with it.

Tokens of one op share their numbers, and so do the tokens of a turn that spell no op.
So a record keeps numbers by op and by turn, and how the tokens fall to them.
"""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mempo_jax.envs import EpisodeStatus, Question, Reward, Task
from mempo_jax.memory import Hygiene, OpRecord
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.segments import Segment

DIGITS = 4  # behind the point, of a number in a record


class TokenRun(NamedTuple):
    """Tokens of a turn, next to each other, that spell one op; op -1: none.

    lengths: characters of each token. One that shares its character with the token
    before it has 0.
    """

    op: int
    lengths: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TokenCredit:
    """Numbers of one trajectory; token advantage = weight x advantage + bonus.

    advantage: of the trajectory within its group. trained: whether its tokens entered
    the loss. by_op: (weight, bonus, token advantage) of the tokens of each op, in the
    order of the log. by_turn: (weight, token advantage) of the tokens of no op, by
    turn. runs: by turn, what the policy sampled; None where its tokens do not spell
    the action.
    """

    advantage: float
    trained: bool
    by_op: list[tuple[float, float, float]]
    by_turn: list[tuple[float, float]]
    runs: list[list[TokenRun] | None]

    def to_json(self) -> dict[str, Any]:
        """The form that stands in a record: rounded, without ``runs``."""
        return {
            "trained": self.trained,
            "advantage": round(self.advantage, DIGITS),
            "ops": _rounded(self.by_op),
            "turns": _rounded(self.by_turn),
        }


def runs_of(
    segments: Sequence[Segment],
    actions: Sequence[str],
    tokenizer: Tokenizer,
    max_ops: int,
) -> list[list[TokenRun] | None]:
    """By turn, the sampled tokens as runs of one op each.

    Args:
      segments, actions: of one trajectory.
      max_ops: ops from there on have no credit of their own, see ``Shapes``.
    """
    found: list[list[TokenRun] | None] = [None] * len(actions)
    for turn, ids, ops in _sampled(segments):
        if turn < len(actions) and tokenizer.decode(ids) == actions[turn]:
            ops = [op if op < max_ops else -1 for op in ops]
            found[turn] = _runs(ops, _lengths(tokenizer, ids))
    return found


def _sampled(
    segments: Sequence[Segment],
) -> Iterator[tuple[int, list[int], list[int]]]:
    """(turn, ids, ops) of each action, in order."""
    for segment in segments:
        columns = segment.tokens, segment.is_action, segment.turn_id, segment.op_id
        acted = [(t, i, o) for i, is_action, t, o in zip(*columns) if is_action]
        for turn, items in itertools.groupby(acted, key=lambda item: item[0]):
            _, ids, ops = zip(*items)
            yield turn, list(ids), list(ops)


def _lengths(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    # Tokens that share a character overlap: the first of them shows it.
    ends = [0, *(end for _, end in tokenizer.offsets(ids))]
    return [end - begin for begin, end in itertools.pairwise(ends)]


def _runs(ops: Sequence[int], lengths: Sequence[int]) -> list[TokenRun]:
    pairs = zip(ops, lengths, strict=True)
    return [
        TokenRun(op, tuple(length for _, length in items))
        for op, items in itertools.groupby(pairs, key=lambda pair: pair[0])
    ]


def _rounded(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(float(value), DIGITS) for value in row] for row in rows]


WIDTH = 100  # columns of a trajectory as text
LABEL = 9  # of them in front of a text
INDENT = " " * LABEL


@dataclasses.dataclass(repr=False)
class Trajectory:
    """One run of one task by one policy; see the fields of ``Episode``.

    ``print`` shows what happened, turn by turn; ``repr`` stays on one line.
    """

    task: Task
    sample: int
    status: EpisodeStatus
    failure: str | None
    goal: str
    segments: list[Segment]
    log: list[OpRecord]
    observations: list[str]
    actions: list[str]
    answers: list[str]
    turn_reward: list[float]
    turn_observation: list[int]
    useful: frozenset[int]
    questions: tuple[Question, ...]
    reward: Reward | None
    bank_size: int
    rebuilds: int
    tokens_total: int
    tokens_peak: int
    seconds_recall: list[float]
    question_scores: tuple[float, ...] = ()  # of questions, or parts
    hygiene: Hygiene | None = None  # of what it wrote, at its end; texts not compared
    credit: TokenCredit | None = None  # where training noted it
    cut_turns: tuple[int, ...] = ()  # whose action was cut by the limit of its tokens

    @property
    def valid(self) -> bool:
        """Whether it votes in its group and in the loss."""
        has_action = any(any(s.is_action) for s in self.segments)
        return self.status is not EpisodeStatus.FAILED and has_action

    @property
    def score(self) -> float:
        return self.reward.raw["task"] if self.reward is not None else 0.0

    def __repr__(self) -> str:
        total = "none" if self.reward is None else f"{self.reward.total:.2f}"
        return (
            f"<Trajectory {self.task.id}, sample {self.sample}: {self.status}, "
            f"turns {len(self.actions)}, ops {len(self.log)}, reward {total}>"
        )

    def __str__(self) -> str:
        head = f"task {self.task.id}, goal: {self.goal or 'none'}; {self.status}"
        return "\n".join([*_wrapped("", head), *self.lines()])

    def lines(self) -> Iterator[str]:
        """What each turn saw, said and did to memory, and the outcome, as text.

        Returns:
          Lines of at most 100 columns.
        """
        yield from _turns(self)
        yield from _outcome(self)

    def to_json(self) -> dict[str, Any]:
        """The JSONL form that the run directory keeps."""
        reward = self.reward
        return {
            "task": self.task.id,
            "seed": self.task.seed,
            "sample": self.sample,
            "status": str(self.status),
            "failure": self.failure,
            "goal": self.goal,
            "turns": [
                {"observation": o, "action": a} | self._turn_json(turn)
                for turn, (o, a) in enumerate(zip(self.observations, self.actions))
            ],
            "answers": self.answers,
            "ops": [_op_json(record) for record in self.log],
            "rewards": {
                "total": reward.total if reward else None,
                "raw": reward.raw if reward else None,
                "weighted": reward.weighted if reward else None,
                "by_turn": self.turn_reward,
            },
            "useful_observations": sorted(self.useful),
            "questions": [
                {
                    "observation": question.observation,
                    "answer": question.answer,
                    "support": sorted(question.support),
                }
                for question in self.questions
            ],
            "question_scores": list(self.question_scores),
            "tokens_total": self.tokens_total,
            "tokens_peak": self.tokens_peak,
            **({} if self.credit is None else {"credit": self.credit.to_json()}),
        }

    def _turn_json(self, turn: int) -> dict[str, Any]:
        """Runs of tokens as (op, lengths), where they are known; cut, where it is."""
        cut = {"cut": True} if turn in self.cut_turns else {}
        runs = None if self.credit is None else self.credit.runs[turn]
        if runs is None:
            return cut
        return {"tokens": [[op, list(n)] for op, n in runs]} | cut


def _op_json(record: OpRecord) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def _turns(trajectory: Trajectory) -> Iterator[str]:
    by_turn: dict[int, list[OpRecord]] = {}
    for record in trajectory.log:
        by_turn.setdefault(record.turn, []).append(record)
    for turn, seen in enumerate(trajectory.observations):
        yield ""
        yield from _text("sees", seen)
        if turn >= len(trajectory.actions):
            continue
        yield from _text("says", trajectory.actions[turn])
        rewards = trajectory.turn_reward
        reward = rewards[turn] if turn < len(rewards) else 0.0
        for record in by_turn.get(turn, ()):
            yield from op_lines(record, reward)


def op_lines(record: OpRecord, reward: float | None = None) -> Iterator[str]:
    """An op and what came of it; reward: of its turn, None where it has none yet."""
    ids = ", ".join(str(i) for i in record.entry_ids) or "none"
    head = f"  op     turn {record.turn}, {record.kind}, {record.outcome}"
    text = f"entries {ids}"
    text += f", reward {reward:.2f}" if reward is not None else ""
    text += f", error {record.error}" if record.error else ""
    text += f", evicts {', '.join(map(str, record.evicted))}" if record.evicted else ""
    text += f': "{record.text}"' if record.text else ""
    yield from _wrapped(f"{head}, ", text)


def _outcome(trajectory: Trajectory) -> Iterator[str]:
    yield ""
    if trajectory.failure is not None:
        yield from _wrapped("  failed ", trajectory.failure)
    answers = ", ".join(repr(answer) for answer in trajectory.answers) or "no answer"
    yield from _wrapped("  end    ", f"answers: {answers}; {_reward(trajectory)}")


def _reward(trajectory: Trajectory) -> str:
    if trajectory.reward is None:
        return "no reward"
    parts = trajectory.reward.weighted.items()
    named = ", ".join(f"{name} {value + 0.0:.2f}" for name, value in parts)
    return f"reward {trajectory.reward.total:.2f} ({named})"


def _text(label: str, text: str) -> Iterator[str]:
    head = f"  {label:{LABEL - 2}}"
    for line in text.splitlines() or [""]:
        yield from _wrapped(head, line)
        head = INDENT


def _wrapped(head: str, text: str) -> list[str]:
    """``text`` behind ``head``, cut at spaces where it can be; at least one line."""
    lines = textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent=head, subsequent_indent=INDENT
    )
    return lines or [head.rstrip()]

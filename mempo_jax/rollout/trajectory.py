"""What one trajectory leaves behind: segments, op log, rewards and counts.

It may also carry what training made of each of its tokens (``TokenCredit``), in a form
that is small enough to be kept with it: tokens of one op share their numbers, and so do
the tokens of a turn that spell no op. So a record keeps numbers by op and by turn, and
how the tokens are divided among them.
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

DIGITS = 4  # after the point; keeps records small
WIDTH = 100  # columns of a trajectory as text, for terminals
# The label of a line, such as " sees ", takes this many of them.
LABEL = 9  # of them in front of a text
INDENT = " " * LABEL


@dataclasses.dataclass(repr=False)
class Trajectory:
    """One run of one task by one policy.

    ``print`` shows what happened, turn by turn; ``repr`` stays on one line.

    Attributes:
      task, sample, goal: what was run, and its number within its group.
      status, failure: how it ended, and what failed, if anything.
      segments: its tokens, one training row each.
      log: what was done to memory, in order.
      observations, actions, answers: texts, by turn and in order.
      turn_reward, turn_observation: by turn, its reward and the number of the
        observation that it answered.
      useful: observations worth remembering, as the environment says.
      questions, question_scores: as the environment says.
      reward: None if it could not be computed.
      bank_size, rebuilds: entries at the end, and how often the context was rebuilt.
      tokens_total, tokens_peak: tokens of all contexts and actions, and the most at
        once.
      seconds_recall: by recall.
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
    question_scores: tuple[float, ...] = ()  # by question, or by part of it
    hygiene: Hygiene | None = None  # of its writes, at its end; texts not compared
    credit: TokenCredit | None = None  # if training recorded it
    cut_turns: tuple[int, ...] = ()  # whose action was cut by the limit of its tokens
    policy_step: int | None = None  # the training step whose first weights sampled it

    @property
    def valid(self) -> bool:
        """Whether it counts in its group and in the loss."""
        # Without a sampled token there is nothing that the loss could train.
        has_action = any(any(s.is_action) for s in self.segments)
        return self.status is not EpisodeStatus.FAILED and has_action

    @property
    def score(self) -> float:
        """The task's own score, before weights; 0 without a reward."""
        return self.reward.raw["task"] if self.reward is not None else 0.0

    def __repr__(self) -> str:
        # Without texts: lists of trajectories are shown in notebooks and in failing
        # tests.
        total = "none" if self.reward is None else f"{self.reward.total:.2f}"
        return (
            f"<Trajectory {self.task.id}, sample {self.sample}: {self.status}, "
            f"turns {len(self.actions)}, ops {len(self.log)}, reward {total}>"
        )

    def __str__(self) -> str:
        heading = f"task {self.task.id}, goal: {self.goal or 'none'}; {self.status}"
        return "\n".join([*_wrap("", heading), *self.lines()])

    def lines(self) -> Iterator[str]:
        """Yields what each turn saw, said and did to memory, and the outcome.

        Returns:
          Lines of at most 100 columns.
        """
        yield from _turns(self)
        yield from _outcome(self)

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the run directory keeps as a line of JSON."""
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
            **({} if self.policy_step is None else {"policy_step": self.policy_step}),
            **({} if self.credit is None else {"credit": self.credit.to_json()}),
        }

    def _turn_json(self, turn: int) -> dict[str, Any]:
        """Runs of tokens as (op, lengths), if they are known; whether the action was
        cut."""
        # Absent instead of false: few turns are cut, and records hold every turn.
        cut = {"cut": True} if turn in self.cut_turns else {}
        runs = None if self.credit is None else self.credit.runs[turn]
        if runs is None:
            return cut
        return {"tokens": [[op, list(n)] for op, n in runs]} | cut


class TokenRun(NamedTuple):
    """Neighbouring tokens of a turn that spell one op, or no op.

    Attributes:
      op: position of the op in the log; -1 for none.
      lengths: characters of each token. A token that shares its character with the
        token before it has 0.
    """

    op: int
    lengths: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TokenCredit:
    """What training made of one trajectory's tokens.

    A token's advantage is weight * advantage + bonus.

    Attributes:
      advantage: of the trajectory within its group.
      trained: whether its tokens entered the loss.
      by_op: (weight, bonus, token advantage) of the tokens of each op, in the order of
        the log.
      by_turn: (weight, token advantage) of the tokens of no op, by turn.
      runs: by turn, what the policy sampled; None if its tokens do not spell the
        action.
    """

    advantage: float
    trained: bool
    by_op: list[tuple[float, float, float]]
    by_turn: list[tuple[float, float]]
    runs: list[list[TokenRun] | None]

    def to_json(self) -> dict[str, Any]:
        """Returns the form that a record keeps: rounded, without ``runs``."""
        return {
            "trained": self.trained,
            "advantage": round(self.advantage, DIGITS),
            "ops": _round_rows(self.by_op),
            "turns": _round_rows(self.by_turn),
        }


def runs_of(
    segments: Sequence[Segment],
    actions: Sequence[str],
    tokenizer: Tokenizer,
    max_ops: int,
) -> list[list[TokenRun] | None]:
    """Divides the sampled tokens of each turn into runs of one op each.

    Args:
      segments, actions: of one trajectory.
      tokenizer: the policy's.
      max_ops: ops from this position on have no credit of their own, see
        ``BatchShapes``.

    Returns:
      Runs by turn; None if the turn's tokens do not spell its action.
    """
    runs_by_turn: list[list[TokenRun] | None] = [None] * len(actions)
    for turn, ids, ops in _sampled_turns(segments):
        # Only if the ids still spell the action can runs be laid over its text.
        if turn < len(actions) and tokenizer.decode(ids) == actions[turn]:
            # As in the arrays of training: ops beyond the table count as none.
            ops = [op if op < max_ops else -1 for op in ops]
            runs_by_turn[turn] = _runs(ops, _lengths(tokenizer, ids))
    return runs_by_turn


def op_lines(record: OpRecord, reward: float | None = None) -> Iterator[str]:
    """Yields an op and what came of it as lines of text.

    Args:
      record: the op.
      reward: of its turn; None if it has none yet.
    """
    ids = ", ".join(str(i) for i in record.entry_ids) or "none"
    head = f"  op     turn {record.turn}, {record.kind}, {record.outcome}"
    text = f"entries {ids}"
    text += f", reward {reward:.2f}" if reward is not None else ""
    text += f", error {record.error}" if record.error else ""
    text += f", evicts {', '.join(map(str, record.evicted))}" if record.evicted else ""
    text += f': "{record.text}"' if record.text else ""
    yield from _wrap(f"{head}, ", text)


def _sampled_turns(
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


def _round_rows(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(float(value), DIGITS) for value in row] for row in rows]


def _op_json(record: OpRecord) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    # Tuples become lists, as they do when read back from JSON.
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


def _outcome(trajectory: Trajectory) -> Iterator[str]:
    yield ""
    if trajectory.failure is not None:
        yield from _wrap("  failed ", trajectory.failure)
    answers = ", ".join(repr(answer) for answer in trajectory.answers) or "no answer"
    yield from _wrap("  end    ", f"answers: {answers}; {_reward(trajectory)}")


def _reward(trajectory: Trajectory) -> str:
    if trajectory.reward is None:
        return "no reward"
    parts = trajectory.reward.weighted.items()
    # Adding 0.0 turns -0.0 into 0.0.
    weighted = ", ".join(f"{name} {value + 0.0:.2f}" for name, value in parts)
    return f"reward {trajectory.reward.total:.2f} ({weighted})"


def _text(label: str, text: str) -> Iterator[str]:
    head = f"  {label:{LABEL - 2}}"
    for line in text.splitlines() or [""]:
        yield from _wrap(head, line)
        head = INDENT


def _wrap(head: str, text: str) -> list[str]:
    """Puts ``text`` after ``head``, broken at spaces if possible; at least one line."""
    lines = textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent=head, subsequent_indent=INDENT
    )
    return lines or [head.rstrip()]

"""What one trajectory leaves behind: segments, op log, rewards, counts."""

from __future__ import annotations

import dataclasses
from typing import Any

from mempo_jax.envs import Question, Reward, Status, Task
from mempo_jax.memory import Hygiene, OpRecord
from mempo_jax.rollout.credited import TokenCredit
from mempo_jax.rollout.segments import Segment


@dataclasses.dataclass
class Trajectory:
    """One run of one task by one policy; see the fields of ``Episode``."""

    task: Task
    sample: int
    status: Status
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
        return self.status is not Status.FAILED and has_action

    @property
    def score(self) -> float:
        return self.reward.raw["task"] if self.reward is not None else 0.0

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

"""One trajectory as a Markov decision process: text in, observation out.

An ``Episode`` joins an environment, a memory bank of its own, the parser, the context
rule and the reward. Training, evaluation and demonstrations use this same object; it
knows nothing of tokens beyond the spans it passes on, and nothing of groups.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from mempo_jax.envs.base import (
    Environment,
    Situation,
    Task,
    described,
    shortened,
)
from mempo_jax.envs.context import Context, ContextConfig, Measure, View
from mempo_jax.envs.reward import (
    Reward,
    RewardConfig,
    compose,
    efficiency_shares,
    finite,
    penalty_counts,
)
from mempo_jax.memory import BLOCK, Bank, Grammar, Op, error_message, parse_ops

# Different faults of the last turn that the policy reads, and characters of each: a
# turn may hold many faults, and their notices must not fill the context.
MAX_NOTICES = 2
MAX_NOTICE_CHARS = 120
# Of one observation, and of a goal. A context of a million tokens holds no more, and to
# tokenise ten times as much takes as long as many turns.
MAX_TEXT_CHARS = 1_000_000


class EpisodeStatus(enum.StrEnum):
    """How a trajectory ended."""

    RUNNING = "running"
    DONE = "done"
    TRUNCATED = "truncated"  # max_turns reached
    OVERFLOW = "overflow"  # the context did not fit
    FAILED = "failed"  # a fault of the environment, the reward or the engine


class EnvironmentFault(RuntimeError):
    """The environment broke its contract; costs this trajectory only."""


class Episode:
    """One trajectory. ``observe`` and ``act`` alternate until ``done``.

    Args:
      env: the environment, not yet reset.
      task: gives the seed of the reset, and the name in errors.
      bank: an empty memory bank for this trajectory alone.
      max_turns: turns after which the trajectory is cut off.
      context: the context rule and its limits.
      reward: weights of the reward's components.

    Raises:
      EnvironmentFault: the environment could not be reset.
    """

    def __init__(
        self,
        env: Environment,
        task: Task,
        bank: Bank,
        max_turns: int,
        context: ContextConfig,
        reward: RewardConfig,
    ) -> None:
        self.task, self.bank, self.env = task, bank, env
        self._max_turns, self._reward_config = max_turns, reward
        self._context_config = context
        # The block's tag is an op under rule "rolling" only; elsewhere it is text.
        grammar = Grammar(block=BLOCK if context.rule == "rolling" else "")
        self._parse = partial(parse_ops, grammar=grammar, limits=bank.config)
        self.status = EpisodeStatus.RUNNING
        self.turn = 0
        self.turn_reward: list[float] = []
        self.turn_observation: list[int] = []  # which observation each turn answered
        self.actions: list[str] = []
        self.observations: list[str] = []  # what each turn showed
        self.answers: list[str] = []
        self.recall_seconds: list[float] = []
        self.bank_sizes: list[int] = []  # active entries after each turn's ops
        # The goal is read once: one's own environment may compute it, and fail.
        self._observation, self.goal = self._reset(env, task)
        self._context = Context(context, self.goal)
        self._observation_index = 0
        self._moved = True
        self._recalled: list[str] = []
        self._result_lines: list[str] = []
        self._queries: list[str] = []
        self._notices: list[str] = []
        self._fresh_results = ""
        self._decided: tuple[bool, Op | None] = (False, None)
        self._quiet_since = 0  # turn after the last write, or of the last reminder
        self.malformed = 0

    @property
    def done(self) -> bool:
        return self.status is not EpisodeStatus.RUNNING

    @property
    def rebuilds(self) -> int:
        """Contexts that had to be rebuilt because they did not fit any more."""
        return self._context.rebuilds

    def situation(self) -> Situation:
        """Returns what scripted policies see: observation and recalls of this turn."""
        goal, block = self.goal, self._context.block
        recalls = tuple(self._recalled), tuple(self._queries)
        return Situation(self._observation, *recalls, goal, block, self.turn)

    def observe(self, measure: Measure = lambda view: 0) -> View | None:
        """Returns what the policy sees now, or None if no context fits.

        The status is OVERFLOW then.

        Args:
          measure: number of tokens that a view would feed.
        """
        results = self._fresh_results
        # Two ops may fail alike; each fault is shown once.
        faults = list(dict.fromkeys(self._notices))[:MAX_NOTICES]
        notices = "".join(f"{notice[:MAX_NOTICE_CHARS]}\n" for notice in faults)
        status = self._status_line()
        seen = self._observation if self._moved else ""
        reminder = self._reminder()
        user = f"{status}{notices}{seen}{results}{reminder}"
        rebuilt = f"{status}{notices}{self._observation}{self._all_results()}{reminder}"
        view = self._context.view(user, rebuilt, self._moved, measure)
        if view is None:
            self.status = EpisodeStatus.OVERFLOW
        else:
            self.observations.append(view.user)
        return view

    def act(
        self,
        text: str,
        token_offsets: Sequence[tuple[int, int]] | None = None,
        stopped: bool = False,
    ) -> None:
        """Runs the ops of one action and moves on: ``decide``, then ``advance``.

        Args:
          text: the policy's action, as decoded.
          token_offsets: see ``decide``.
          stopped: see ``decide``.
        """
        self.decide(text, token_offsets, stopped)
        self.advance()

    def questions(self, text: str) -> list[tuple[str, str]]:
        """Returns what the writes of an action would ask the bank's judge at present.

        The questions of many episodes can thus be judged together. Nothing changes
        here. A write that meets an entry of the same turn may ask other questions
        later.

        Args:
          text: the policy's action.

        Returns:
          Pairs of texts: (new, old).
        """
        pairs = []
        for op in self._parse(text):
            if op.kind == "write":
                pairs += self.bank.questions(op.content, title=op.args.get("title"))
        return pairs

    def decide(
        self,
        text: str,
        token_offsets: Sequence[tuple[int, int]] | None = None,
        stopped: bool = False,
    ) -> None:
        """Runs the ops of one action on the bank; ``advance`` must follow.

        Args:
          text: the policy's action, as decoded.
          token_offsets: character range of each sampled token, for the ops' spans.
          stopped: the last token is a sampled end-of-turn token; in a turn without
            any op it spells the decision to do nothing (SKIP).
        """
        ops = self._parse(text, token_offsets=token_offsets)
        self.actions.append(text)
        blocks = [op.content for op in ops if op.kind == "rewrite"]
        self._context.acted(self.turn, blocks[-1] if blocks else None)
        self.turn_observation.append(self._observation_index)
        self._notices, self._fresh_results = [], ""
        count = len(token_offsets) if token_offsets is not None else 0
        if not ops:
            # Without an op, credit goes to the token that ended the turn.
            span = (count - 1, count) if stopped and count else None
            self.bank.note("skip", step=self.turn, token_span=span)
        final = None
        for op in ops:
            if op.kind in ("act", "answer"):
                final = op
            self._run(op)
        self.bank_sizes.append(len(self.bank))
        recalls = bool(ops) and ops[-1].kind == "recall"
        self._decided = recalls, final

    def advance(self) -> None:
        """Lets the environment answer the action that ``decide`` was given.

        Raises:
          EnvironmentFault: the environment raised, or returned a wrong type or NaN.
        """
        self._move(*self._decided)
        self.turn += 1
        if not self.done and self.turn >= self._max_turns:
            self.status = EpisodeStatus.TRUNCATED

    def reward(self) -> Reward:
        """Returns the named components and their total; the episode must have ended.

        Raises:
          RewardError: the environment's score is not one finite float in [0, 1].
          EnvironmentFault: the environment's score() raised.
        """
        try:
            score = self.env.score()
        except Exception as error:
            raise EnvironmentFault(
                f"task {self.task.id}: score() raised {described(error)}"
            ) from error
        log, capacity = self.bank.log, self.bank.config.capacity
        counts = penalty_counts(
            log, self.malformed, self.status is EpisodeStatus.OVERFLOW
        )
        shares = efficiency_shares(log, self.bank_sizes, capacity)
        return compose(score, counts, self._reward_config, efficiency=shares)

    def _run(self, op: Op) -> None:
        bank, span, turn = self.bank, op.token_span, self.turn
        error = op.error
        if op.kind == "malformed":
            bank.note("malformed", step=turn, error=op.error, token_span=span)
        elif op.kind == "write":
            title = op.args.get("title")
            result = bank.write(op.content, title=title, step=turn, token_span=span)
            error = error or result.error
            if result.outcome in ("new", "merged"):
                self._quiet_since = turn + 1
        elif op.kind == "recall":
            self._recall(op)
        elif op.kind == "merge":
            ids, text = op.args["ids"], op.content or None
            error = bank.merge(ids, text=text, step=turn, token_span=span).error
        elif op.kind == "delete":
            error = bank.delete(op.args["ids"], step=turn, token_span=span).error
        else:
            bank.note(op.kind, step=turn, token_span=span, text=op.content)
            if op.kind == "rewrite":
                self._quiet_since = turn + 1
        if error is not None:
            self.malformed += 1
            self._notices.append(f"error: {error_message(error, op)}")

    def _recall(self, op: Op) -> None:
        # Recalls are timed one by one: their latency is a metric of the rollout.
        began = time.perf_counter()
        hits = self.bank.recall(
            op.content,
            k=op.args.get("k"),
            step=self.turn,
            token_span=op.token_span,
            error=op.error,
        )
        self.recall_seconds.append(time.perf_counter() - began)
        lines = [f"\n{hit.entry.id}: {hit.entry.text}" for hit in hits]
        self._fresh_results = "recalled" + ("".join(lines) or " nothing")
        self._queries.append(op.content)
        self._recalled += [hit.entry.text for hit in hits]
        self._result_lines += lines

    def _move(self, recalls: bool, final: Op | None) -> None:
        """Moves the environment on, unless the turn ended with a recall."""
        if recalls:
            # The policy sees the results first, beside the same observation.
            self._moved = False
            self.turn_reward.append(0.0)
            return
        text = final.content if final is not None else ""
        is_answer = final is not None and final.kind == "answer"
        if final is not None:
            self.answers.append(text)
        try:
            result = self.env.step(text, final=is_answer)
            observation = self._checked_text(result.observation)
            reward = finite(result.reward, "the reward of step()")
            done = self._checked_done(result.done)
        except Exception as error:
            raise EnvironmentFault(
                f"task {self.task.id}, turn {self.turn}: the environment raised "
                f"{described(error)}"
            ) from error
        self.turn_reward.append(reward * self._reward_config.task_weight)
        self._observation = observation
        # Recalls belong to one observation; the next one starts without any.
        self._observation_index += 1
        self._moved = True
        self._recalled, self._result_lines, self._queries = [], [], []
        if done or is_answer:
            self.status = EpisodeStatus.DONE

    def _status_line(self) -> str:
        shown = self.bank.summary(self._context_config.summary_titles)
        titles = f" ({', '.join(shown.titles)})" if shown.titles else ""
        return f"turn {self.turn}/{self._max_turns} memory {shown.active}{titles}: "

    def _all_results(self) -> str:
        if not self._result_lines:
            return "" if self._moved else f"\n{self._fresh_results}"
        return f"\nrecalled{''.join(self._result_lines)}"

    def _reminder(self) -> str:
        every = self._context_config.write_reminder_every
        due = every and self._moved and self.turn - self._quiet_since >= every
        if not due:
            return ""
        self._quiet_since = self.turn
        return f" {self._context_config.reminder}"

    def _reset(self, env: Environment, task: Task) -> tuple[str, str]:
        """The first observation and the goal."""
        try:
            observation = self._checked_text(env.reset(task.seed))
            return observation, self._checked_text(env.goal, "goal")
        except Exception as error:
            raise EnvironmentFault(
                f"task {task.id}: reset({task.seed}) raised {described(error)}"
            ) from error

    @staticmethod
    def _checked_text(text: object, what: str = "observation") -> str:
        if not isinstance(text, str):
            raise TypeError(f"expected the {what} as str, got {shortened(text)}")
        if len(text) > MAX_TEXT_CHARS:
            raise ValueError(
                f"expected the {what} with at most {MAX_TEXT_CHARS:,} characters, got "
                f"{len(text):,}: no context holds more; cut it, or show it in parts"
            )
        return text

    @staticmethod
    def _checked_done(done: object) -> bool:
        # Not by its truth: the text "no" would end the task, and None never.
        if not isinstance(done, bool | np.bool_) and done not in (0, 1):
            raise TypeError(f"expected done as a bool, got {shortened(done)}")
        return bool(done)

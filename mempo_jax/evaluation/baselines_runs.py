"""Runs a rule through an episode, and counts tokens as if a policy had said it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from mempo_jax.envs import Episode, Status, Task, View
from mempo_jax.evaluation.baselines import Rule, Seen
from mempo_jax.evaluation.baselines_readers import SPEAK
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.deadline import run_all
from mempo_jax.rollout.finished import failed, fault, finished
from mempo_jax.rollout.sampler import SamplingFault
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Told:
    """A trajectory, and which observations each of its writes tells of.

    writes: in the order of the log; None where a write tells of the observation that
    it was made on, as a policy's do.
    """

    trajectory: Trajectory
    writes: tuple[frozenset[int], ...] | None = None


Speak = Callable[[list[int], int], list[int] | None]


def run_rule(
    task: Task,
    make_episode: Callable[[], Episode],
    make_rule: Callable[[], Rule],
    tokenizer: Tokenizer,
    limit_s: float,
    speak: Speak | None = None,
) -> Told:
    """One trajectory of a rule.

    The tokens of its actions are those of their texts; the limits of sampling
    (``sampling.max_new_tokens``) do not bind it.

    limit_s: seconds for each call of the environment; a fault costs the trajectory.
    speak: (context ids, turn) -> what the policy says there, for readers that let it
      answer; None where it cannot read so much, and the trajectory ends as OVERFLOW;
      a SamplingFault costs it.
    """
    [episode] = run_all([make_episode], limit_s)
    if isinstance(episode, Exception):
        return Told(failed(task, 0, fault(episode)))
    builder, rule, standing = SegmentBuilder(tokenizer), make_rule(), _Standing(episode)
    told: list[frozenset[int]] = []
    failure = None
    while not episode.done and failure is None:
        view = episode.observe(builder.measure)
        if view is None:
            break
        before = builder.segments[-1].tokens if builder.segments else []
        old = 0 if view.fresh else len(before)
        size = len(builder.show(view, episode.turn))
        limit = rule.context.max_context_tokens
        seen = standing.seen(view, size / limit, (size - old) / limit)
        action = rule.act(seen)
        try:
            said = _said(action.text, builder, tokenizer, episode.turn, speak)
        except SamplingFault as error:
            failure = fault(error)
            break
        if said is None:
            episode.status = Status.OVERFLOW
            break
        failure = _turn(episode, builder, said, limit_s)
        told += action.told
        if action.text.endswith(SPEAK):  # it may have written, too
            writes = sum(record.kind == "write" for record in episode.bank.log)
            told += [frozenset({seen.index})] * (writes - len(told))
    made = finished(task, 0, episode, builder, failure, limit_s)
    return Told(made, tuple(told) if told else None)


def _said(
    text: str,
    builder: SegmentBuilder,
    tokenizer: Tokenizer,
    turn: int,
    speak: Speak | None,
) -> tuple[str, list[int]] | None:
    """An action and its ids, of which a policy may say the end."""
    text, asks = text.removesuffix(SPEAK), text.endswith(SPEAK)
    ids = [*tokenizer.encode(text)]
    if asks:
        if speak is None:
            raise ValueError(
                "a reader lets the policy answer: expected speak, got None"
            )
        more = speak([*builder.segments[-1].tokens, *ids], turn)
        if more is None:
            return None
        return text + tokenizer.decode(more), [*ids, *more]
    if not text.endswith(("</mem_recall>", "</act>", "</answer>")):
        ids.append(tokenizer.end_id)
    return text, ids


def _turn(
    episode: Episode,
    builder: SegmentBuilder,
    said: tuple[str, list[int]],
    limit_s: float,
) -> str | None:
    """One action; what went wrong, if anything."""
    text, ids = said
    builder.acted(ids, np.zeros(len(ids)), episode.turn)
    episode.decide(text)
    [result] = run_all([episode.advance], limit_s)
    return fault(result) if isinstance(result, Exception) else None


class _Standing:
    """Which observations stand in the context, and what was recalled."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._told: dict[int, str] = {}  # by turn: an observation that was new in it
        self._texts: list[str] = []
        self._index = -1

    def seen(self, view: View, filled: float, grown: float) -> Seen:
        episode, situation = self._episode, self._episode.situation()
        first = not situation.queries  # a recall does not move the environment
        if first:
            self._told[episode.turn] = situation.observation
            self._index += 1
        if view.fresh:
            turns = [turn for _, turn in view.history]
            past = [self._told[turn] for turn in turns if turn in self._told]
            self._texts = [*past, situation.observation]
        elif first:
            self._texts.append(situation.observation)
        return Seen(
            goal=situation.goal,
            observation=situation.observation,
            index=self._index,
            first=first,
            fresh=view.fresh and episode.turn > 0,
            recalls=len(situation.queries),
            texts=(*self._recalled(), *self._texts),
            filled=filled,
            grown=grown,
        )

    def _recalled(self) -> list[str]:
        """Texts of the entries recalled at this observation, oldest first."""
        bank, count = self._episode.bank, len(self._episode.situation().queries)
        recalls = [record for record in bank.log if record.kind == "recall"]
        ids = {
            i for record in recalls[len(recalls) - count :] for i in record.entry_ids
        }
        return [bank.entry(i).text for i in sorted(ids)]

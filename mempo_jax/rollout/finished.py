"""A trajectory from an episode that has ended, however its actions were made."""

from __future__ import annotations

from mempo_jax.envs import EnvironmentFault, Episode, Status, Task
from mempo_jax.envs.reward import RewardError
from mempo_jax.rollout.deadline import HungCallError, run_all
from mempo_jax.rollout.sampler import SamplingFault
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.rollout.trajectory import Trajectory

FAULTS = (EnvironmentFault, HungCallError, RewardError, SamplingFault)


def fault(error: Exception) -> str:
    """What a trajectory says of a fault of its environment or of one request.

    Other errors are this program's own: they are raised.
    """
    if not isinstance(error, FAULTS):
        raise error
    return f"{type(error).__name__}: {error}"


def finished(
    task: Task,
    sample: int,
    episode: Episode,
    builder: SegmentBuilder,
    failure: str | None,
    limit_s: float,
) -> Trajectory:
    """The environment is asked for its score and truth, each within the limit.

    What is kept is copied: an abandoned call may wake up and go on. failure: why the
    episode could not end; None where it did.
    """
    reward = None
    if failure is None:
        [reward] = run_all([episode.reward], limit_s)
        if isinstance(reward, Exception):
            failure, reward = fault(reward), None
    # An environment that knows of no questions need not say so.
    asked = getattr(episode.env, "questions", tuple)
    scored = getattr(episode.env, "question_scores", tuple)
    truths = [episode.env.useful, asked, scored]
    useful, questions, scores = run_all(truths, limit_s)
    log = list(episode.bank.log)
    builder.mark_ops([(r.turn, r.token_span) for r in log])
    return Trajectory(
        task=task,
        sample=sample,
        status=episode.status if failure is None else Status.FAILED,
        failure=failure,
        goal=episode.env.goal,
        segments=builder.segments,
        log=log,
        observations=list(episode.observations),
        actions=list(episode.actions),
        answers=list(episode.answers),
        turn_reward=list(episode.turn_reward),
        turn_observation=list(episode.turn_observation),
        useful=frozenset() if isinstance(useful, Exception) else useful,
        questions=() if isinstance(questions, Exception) else questions,
        reward=reward,
        bank_size=len(episode.bank.active),
        rebuilds=episode.rebuilds,
        tokens_total=builder.tokens_total,
        tokens_peak=builder.tokens_peak,
        seconds_recall=list(episode.recall_seconds),
        question_scores=() if isinstance(scores, Exception) else scores,
        hygiene=episode.bank.hygiene(own=True, probes=0),
    )


def failed(task: Task, sample: int, failure: str) -> Trajectory:
    """Stands for an episode that could not even start; it never counts."""
    return Trajectory(
        task=task,
        sample=sample,
        status=Status.FAILED,
        failure=failure,
        goal="",
        segments=[],
        log=[],
        observations=[],
        actions=[],
        answers=[],
        turn_reward=[],
        turn_observation=[],
        useful=frozenset(),
        questions=(),
        reward=None,
        bank_size=0,
        rebuilds=0,
        tokens_total=0,
        tokens_peak=0,
        seconds_recall=[],
    )

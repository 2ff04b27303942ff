"""The engine that samples for a run, and the collector that drives it."""

from __future__ import annotations

from typing import Any

from mempo_jax.envs import Episode, TaskSuite
from mempo_jax.memory import closing_tags
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.sampler import Sampler
from mempo_jax.training import advisors, processes
from mempo_jax.training.advisors import Advisors
from mempo_jax.training.placing import local_mesh
from mempo_jax.training.policies import Policy
from mempo_jax.training.remote import make_http_engine
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.sharding import row_sharding
from mempo_jax.training.suites import make_episodes


def make_engine(
    policy: Policy, settings: RunSettings, mesh: Any
) -> tuple[Sampler, Advisors]:
    """The engine that ``config.engine`` asks for, and the policy as adviser of banks,
    which the engine leads; both on the devices of this process."""
    engine: Sampler
    mesh = local_mesh(mesh)
    if settings.engine.kind == "http":
        engine = make_http_engine(policy, settings)
    else:
        engine = _local_engine(policy, settings, mesh)
    advised = advisors.make_advisors(policy, settings, mesh)
    for follower in advised.followers:
        engine.lead(follower)
    return engine, advised


def make_collector(
    policy: Policy, suite: TaskSuite, settings: RunSettings, mesh: Any
) -> tuple[Sampler, Collector]:
    """The engine that ``config.engine`` asks for, and the collector that drives it."""
    engine, advised = make_engine(policy, settings, mesh)
    episodes = make_episodes(suite, settings, advised)

    def make(job: Job) -> Episode:
        name = f"{job.purpose}-{job.step}-{job.task.id}-{job.sample}"
        varied = job.purpose == "train"  # others see the instructions as they are
        return episodes(job.task, name, job.sample if varied else 0)

    limit = settings.env.step_timeout_s
    collector = Collector(engine, policy.tokenizer, make, limit, advised.foresee)
    return engine, collector


def _local_engine(policy: Policy, settings: RunSettings, mesh: Any) -> Engine:
    sampling = settings.sampling
    return Engine(
        policy.model,
        policy.tokenizer,
        slots=sampling.slots // processes.count(),
        max_length=settings.max_segment_tokens,
        prefill_buckets=sampling.prefill_buckets,
        decode_chunk=sampling.decode_chunk,
        closing_tags=closing_tags(),
        row_buckets=settings.engine.row_buckets,
        row_sharding=row_sharding(mesh),
        lanes=settings.engine.lanes,
    )

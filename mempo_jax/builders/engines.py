"""The mesh, the engine and the collector of a run, built from its config.

What cannot work is refused here, before anything is computed: a mesh that rows do not
divide over, and a server that is not the policy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from mempo_jax.builders import memory_models
from mempo_jax.builders.memory_models import MemoryModels
from mempo_jax.builders.policies import Policy, adapt
from mempo_jax.builders.suites import call_workers, make_episodes
from mempo_jax.config import RunConfig
from mempo_jax.core.log_probs import shifted_log_probs
from mempo_jax.distributed import hosts
from mempo_jax.distributed.placement import (
    connect,
    local_mesh,
    make_mesh,
    mover,
    place_params,
    row_multiple,
    row_sharding,
    sampling_mesh,
    shardings,
    slots_multiple,
    split_devices,
    to_local,
)
from mempo_jax.envs import Episode, TaskSuite
from mempo_jax.memory import closing_tags
from mempo_jax.models import lora
from mempo_jax.rollout.assemble import BatchShapes
from mempo_jax.rollout.collect import Collector, Job
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.http_client import (
    JsonClient,
    ServerError,
    check_served,
    read_call,
)
from mempo_jax.rollout.http_engine import HttpEngine
from mempo_jax.rollout.http_servers import (
    AdapterPublisher,
    DirectoryPublisher,
    Publisher,
    Servers,
)
from mempo_jax.rollout.sampler import Generation, Request, Sampler, SamplingFault
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.settings import ConfigError

FIRST_ANSWER_S = 20.0  # a server that is up lists its models at once
PROBE_TOKENS = 8  # sampled to compare log-probs, and at most as many before them
PROBE_KEY = np.array([0, 1], np.uint32)  # any key would do
PROBE_SCALE = 1.1  # makes weights that are not those which a server started with
# How large the outputs of the adapters of a probe are, against those of the matrices
# that they belong to: enough to see, in bfloat16 too, whether a server adds them.
PROBE_ADAPTED = 0.3


def make_run_mesh(settings: RunConfig) -> Any:
    """The device mesh; rows of every compiled program must divide over it.

    Args:
      settings: of the run.

    Raises:
      ConfigError: the devices, or the processes, do not allow for ``config.mesh``,
        ``config.engine`` or ``config.sampling.slots``.
    """
    axes = settings.mesh
    try:
        devices, _ = split_devices(_by_process(), axes.sampling.devices)
        mesh = make_mesh(axes.data, axes.fsdp, axes.tensor, devices=devices)
        own = make_sampling_mesh(settings, mesh)
    except ValueError as error:
        raise ConfigError(f"config.mesh: {error}") from error
    if settings.engine.kind != "local" and not axes.samples_as_it_trains:
        raise ConfigError(
            "config.mesh.sampling: expected devices = fsdp = tensor = 0 and data = -1, "
            f"as a server samples (config.engine.kind = {settings.engine.kind!r})"
        )
    if hosts.count() > 1 and settings.sampling.steps_ahead:
        raise ConfigError(
            "config.sampling.steps_ahead: expected 0 with several processes, whose "
            f"exchanges need one order, got {settings.sampling.steps_ahead}"
        )
    connect(mesh)
    multiple = slots_multiple(own)
    if settings.sampling.slots % multiple:
        raise ConfigError(
            f"config.sampling.slots: expected a multiple of {multiple}, the devices "
            f"that rows are split over, got {settings.sampling.slots}"
        )
    if settings.engine.kind == "local":
        slots = settings.sampling.slots // hosts.count()
        settings.engine.check_fits(slots, own.size)
    return mesh


def make_sampling_mesh(settings: RunConfig, mesh: Any) -> Any:
    """The mesh on which this process samples its own trajectories.

    Args:
      settings: of the run.
      mesh: of the run.

    Raises:
      ValueError: the devices do not allow for ``config.mesh.sampling``.
    """
    local = local_mesh(mesh)
    if settings.mesh.samples_as_it_trains:
        return local
    axes = settings.mesh.sampling
    own = list(local.devices.flat)
    if axes.devices:
        _, own = split_devices([jax.local_devices()], axes.devices)
    return sampling_mesh(local, own, data=axes.data, fsdp=axes.fsdp, tensor=axes.tensor)


def check_splits(policy: Policy, settings: RunConfig, mesh: Any) -> None:
    """Checks that parameters can be split as the meshes of a run want it.

    They are placed much later, after demonstrations were made and programs compiled.

    Args:
      policy: whose parameters are to be split.
      settings: of the run.
      mesh: of the run.

    Raises:
      ConfigError: an axis of ``config.mesh`` does not divide a dimension.
    """
    shardings(policy.params, mesh)
    if not settings.mesh.samples_as_it_trains:
        own = make_sampling_mesh(settings, mesh)
        shardings(policy.params, own, section="mesh.sampling")


def _by_process() -> list[list[Any]]:
    """The devices of each process."""
    return [
        [device for device in jax.devices() if device.process_index == number]
        for number in range(hosts.count())
    ]


def batch_shapes(settings: RunConfig, mesh: Any) -> BatchShapes:
    """Fixed shapes of training arrays: each new shape would compile a program.

    Args:
      settings: of the run.
      mesh: of the run; rows divide over it.
    """
    turns = settings.sampling.max_turns
    return BatchShapes(
        length_buckets=settings.train.length_buckets,
        micro_batch_tokens=settings.train.micro_batch_tokens,
        row_multiple=row_multiple(mesh),
        max_turns=turns,
        # One row more a turn for malformed ops, whose number nothing bounds.
        max_ops=turns * (settings.memory.max_ops_per_turn + 1),
    )


def make_engine(
    policy: Policy, settings: RunConfig, mesh: Any
) -> tuple[Sampler, MemoryModels]:
    """The engine that ``config.engine`` asks for, and the policy's part in the memory.

    The engine leads that part: it passes each new set of parameters on.

    Args:
      policy: whose model samples; its parameters are not set yet.
      settings: of the run.
      mesh: of the run.
    """
    engine: Sampler
    mesh = make_sampling_mesh(settings, mesh)
    if settings.engine.kind == "http":
        engine = make_http_engine(policy, settings)
    else:
        engine = _local_engine(policy, settings, mesh)
    advised = memory_models.make_memory_models(policy, settings, mesh)
    for subscriber in advised.subscribers:
        engine.subscribe(subscriber)
    return engine, advised


def make_collector(
    policy: Policy, suite: TaskSuite, settings: RunConfig, mesh: Any
) -> tuple[Sampler, Collector]:
    """The engine that ``config.engine`` asks for, and the collector that drives it.

    Args:
      policy: whose model samples.
      suite: makes the environments.
      settings: of the run.
      mesh: of the run.
    """
    check_told(policy, suite, settings)
    engine, advised = make_engine(policy, settings, mesh)
    episodes = make_episodes(suite, settings, advised)

    def make(job: Job) -> Episode:
        name = f"{job.purpose}-{job.step}-{job.task.id}-{job.sample}"
        varied = job.purpose == "train"  # others see the instructions as they are
        return episodes(job.task, name, job.sample if varied else 0)

    limit = settings.env.step_timeout_s
    collector = Collector(
        *(engine, policy.tokenizer, make, limit, advised.prefetch_verdicts),
        workers=call_workers(settings),
    )
    return engine, collector


def check_told(policy: Policy, suite: TaskSuite, settings: RunConfig) -> None:
    """Refuses built instructions that leave no room for the first turn of a task.

    Args:
      policy: whose tokenizer and chat template count.
      suite: whose first training task is shown.
      settings: of the run.

    Raises:
      ConfigError: they do not fit into ``context.max_context_tokens``.
    """
    context = settings.context
    if context.instructions_form == "given" and not context.instruction_examples:
        return
    task = suite.task("train", 0)
    # Not one that a judge would be asked in: only the first view is wanted.
    episode = make_episodes(suite, settings)(task, f"told-{task.id}")
    measured: list[int] = []

    def measure(view: Any) -> int:
        measured.append(SegmentBuilder(policy.tokenizer).measure(view))
        return measured[-1]

    if episode.observe(measure) is None:
        raise ConfigError(
            f"config.context.max_context_tokens: expected at least {measured[-1]}, the "
            f"tokens of the {context.instructions_form} instructions, "
            f"{context.instruction_examples} examples and the first turn, got "
            f"{context.max_context_tokens}; raise it with sampling.prefill_buckets and "
            "train.length_buckets, or set context.instructions_form"
        )


def _local_engine(policy: Policy, settings: RunConfig, mesh: Any) -> Engine:
    sampling = settings.sampling
    return Engine(
        policy.model,
        policy.tokenizer,
        slots=sampling.slots // hosts.count(),
        max_length=settings.max_segment_tokens,
        prefill_buckets=sampling.prefill_buckets,
        decode_chunk=sampling.decode_chunk,
        closing_tags=closing_tags(),
        row_buckets=settings.engine.row_buckets,
        row_sharding=row_sharding(mesh),
        lanes=settings.engine.lanes,
        # Without a mesh of its own it computes with the very arrays of training.
        move=None if settings.mesh.samples_as_it_trains else mover(mesh),
    )


def make_http_engine(policy: Policy, settings: RunConfig) -> HttpEngine:
    """The engine of ``config.engine.http``.

    Args:
      policy: whose tokenizer is the server's; it writes the weights that are sent.
      settings: of the run.
    """
    http = settings.engine.http
    clients = [
        JsonClient(
            url,
            api_key=http.api_key(),
            timeout_s=http.timeout_s,
            retries=http.retries,
        )
        for url in http.urls
    ]
    servers = Servers(
        clients,
        http.model,
        _make_publisher(dataclasses.replace(policy, params=None), settings),
        from_primary=hosts.from_primary,
    )
    return HttpEngine(
        servers,
        policy.tokenizer,
        slots=settings.sampling.slots // hosts.count(),
        max_length=settings.max_segment_tokens,
        vocab_size=policy.config.vocab_size,
        closing_tags=closing_tags(),
        max_concurrent=http.max_concurrent,
    )


def _make_publisher(policy: Policy, settings: RunConfig) -> Publisher | None:
    """What brings weights to servers; None if they keep those they have."""
    http = settings.engine.http
    directory = pathlib.Path(http.sync_dir)
    if settings.engine.stale:
        return None
    if http.sync == "directory":
        return DirectoryPublisher(
            directory,
            # A running server keeps its old output matrix if the files have none: a
            # matrix that is tied to the embedding is therefore written as well.
            functools.partial(policy.save, repeat_tied=True),
            [read_call(line) for line in http.reload],
            http.reload_timeout_s,
        )
    adapters = policy.model.lora
    if adapters is None:
        raise ConfigError(
            "config.engine.http.sync: expected 'directory' or 'none' for a policy "
            "without adapters, such as one that a run has saved, got 'adapter'"
        )

    def save(path: pathlib.Path, params: Any) -> None:
        base = settings.policy.path
        lora.save_adapters(path, policy.config, params, adapters, base)

    timeout_s = http.reload_timeout_s
    return AdapterPublisher(directory, save, http.model, timeout_s, hosts.from_primary)


def check_server(settings: RunConfig) -> None:
    """Asks each server for its models; does nothing for the local engine.

    It changes nothing there, so it may be done before a policy is read.

    Args:
      settings: of the run.

    Raises:
      ConfigError: a server does not answer within seconds, or serves other models.
    """
    if settings.engine.kind == "local":
        return
    http = settings.engine.http
    for url in http.urls:
        client = JsonClient(
            url,
            api_key=http.api_key(),
            timeout_s=min(http.timeout_s, FIRST_ANSWER_S),
            retries=0,
        )
        with _as_config_errors():
            check_served(client, http.model)


def check_engine(policy: Policy, settings: RunConfig, mesh: Any) -> None:
    """Tries each server before anything is computed; nothing for the local engine.

    The servers are given the policy's weights, somewhat changed: otherwise a server
    that reads none of them, or not all, could pass with the weights that it already
    has. Each samples a few tokens for each process of the run, and its log-probs of
    them are compared with the policy's.

    If they keep their weights (sync "none"), these must be the policy's before any cold
    start. A cold start would lead away from them: make it beforehand, serve its policy
    and begin with that one (policy.path, train.cold_start_steps = 0).

    Args:
      policy: with the parameters that the run begins with.
      settings: of the run.
      mesh: of the run; the policy's own log-probs are computed on a process's part.

    Raises:
      ConfigError: one cannot be reached, cannot be used, or is not the policy.
    """
    if settings.engine.kind == "local":
        return
    policy = _changed(policy, settings, mesh)
    engine = make_http_engine(policy, settings)
    context = policy.tokenizer.encode(settings.context.instructions)
    context = (context or list(policy.tokenizer.stop_ids))[:PROBE_TOKENS]
    most = min(PROBE_TOKENS, settings.sampling.max_new_tokens)
    request = Request(0, context, PROBE_KEY, most)

    def try_each() -> None:
        with engine.servers.one_by_one() as urls, _as_config_errors():
            for url in urls:
                [generation] = engine.generate(
                    [request], temperature=settings.sampling.temperature
                )
                _compare(policy, settings, local_mesh(mesh), context, generation, url)

    def check() -> None:
        with _as_config_errors():
            engine.servers.check()

    # What a process finds out about its connections, all must know.
    hosts.gather(check)
    with _as_config_errors():
        engine.set_params(policy.params, all_must=True)
    hosts.gather(try_each)


@contextlib.contextmanager
def _as_config_errors() -> Iterator[None]:
    try:
        yield
    except (ServerError, SamplingFault) as error:
        raise ConfigError(f"config.engine.http: {error}") from error


def _changed(policy: Policy, settings: RunConfig, mesh: Any) -> Policy:
    """The policy that servers are tried with, whole in each process."""
    if settings.engine.stale:
        params = place_params(policy.params, mesh)
    elif settings.engine.http.sync == "directory":
        placed = place_params(policy.params, mesh)
        params = jax.tree.map(lambda leaf: leaf * PROBE_SCALE, placed)
    else:
        policy = adapt(policy, settings, mesh, "check")
        adapters, base = lora.split(policy.params)
        std = PROBE_ADAPTED / (settings.policy.lora.rank**0.5 * policy.model.lora.scale)
        # Fresh adapters have b = 0 and do nothing, whether a server adds them or not.
        # The shardings stay, so that no device holds more than its own part.
        where = jax.tree.map(lambda leaf: leaf.sharding, adapters)
        drawn = jax.jit(lora.with_drawn_b, out_shardings=where)(adapters, std)
        params = lora.join(drawn, base)
    return dataclasses.replace(policy, params=to_local(params, mesh))


def _compare(
    policy: Policy,
    settings: RunConfig,
    mesh: Any,
    context: list[int],
    generation: Generation,
    url: str,
) -> None:
    """Raises ConfigError unless a server's log-probs are those of the policy."""
    temperature = settings.sampling.temperature
    limit = settings.max_log_prob_gap
    # Temperature 1 too: some servers report log-probs before they are scaled by it.
    own = _own_log_probs(policy, mesh, context, generation, (temperature, 1.0))
    gap, unscaled = (float(np.abs(each - generation.log_probs).max()) for each in own)
    if gap <= limit:
        return
    if unscaled <= limit:
        why = (
            f"they are those at temperature 1, where {temperature:g} was asked for; "
            "start vLLM with --logprobs-mode processed_logprobs, SGLang without "
            "SGLANG_RETURN_ORIGINAL_LOGPROB"
        )
    elif settings.engine.stale:
        why = (
            "it serves other weights than the policy's, which engine.http.sync = "
            "'none' leaves as they are: serve the weights that training begins with, "
            "or raise the limit"
        )
    elif settings.engine.http.sync == "adapter":
        why = (
            "it has not loaded the adapters that were written to engine.http.sync_dir, "
            "serves another base than policy.path, or computes in another dtype"
        )
    else:
        why = (
            "it has not read the weights that were written to engine.http.sync_dir, or "
            "not all of them (see engine.http.reload; some servers leave out an output "
            "matrix that is tied to the embedding), computes in another dtype, or "
            "changes the distribution"
        )
    raise ConfigError(
        f"config.engine.http: the log-probs of {url} differ from the policy's by up to "
        f"{gap:.3g}, at most {limit:g} may (config.train.max_log_prob_gap): {why}"
    )


def _own_log_probs(
    policy: Policy,
    mesh: Any,
    context: list[int],
    generation: Generation,
    temperatures: tuple[float, ...],
) -> list[np.ndarray]:
    """The policy's log-probs of the sampled tokens, at each temperature."""
    ids = [*context, *generation.tokens]
    # Rows must divide over the devices of a mesh.
    tokens = np.zeros((row_multiple(mesh), 2 * PROBE_TOKENS), np.int32)
    tokens[:, : len(ids)] = ids
    mask = np.broadcast_to(np.arange(2 * PROBE_TOKENS) < len(ids), tokens.shape)
    params = place_params(policy.params, mesh)
    rows = [
        jax.device_get(_score(policy.model, params, tokens, mask, temperature))[0]
        for temperature in temperatures
    ]
    return [np.asarray(row[len(context) : len(ids)]) for row in rows]


# The model is static: it holds no arrays, and equal settings make equal models.
# The temperature is traced, so that one program serves every temperature.
@functools.partial(jax.jit, static_argnums=0)
def _score(model: Any, params: Any, tokens: Any, mask: Any, temperature: Any) -> Any:
    hidden = model.hidden(params, tokens, mask)
    unembed = model.unembed(params).astype(hidden.dtype)
    return shifted_log_probs(
        hidden, unembed, tokens, temperature=temperature, mask=mask
    )

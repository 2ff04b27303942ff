"""What two processes do together in ``processes_test``; prints what it saw as JSON."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.config import from_config
from mempo_jax.distributed import hosts, placement
from mempo_jax.distributed.hosts import Interrupted, Preempted
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.settings import ConfigError
from tests.experiments import tiny
from tests.training import groups_test

SHAPES = ((2, 2, 2), (8, 1, 1), (1, 1, 8))
CONFIG = DecoderConfig(
    vocab_size=48,
    width=16,
    layers=2,
    heads=8,
    kv_heads=8,
    head_dim=4,
    mlp_width=32,
    rope_theta=1e4,
    norm_eps=1e-6,
    tied=False,
    qkv_bias=False,
    qk_norm=False,
    max_positions=64,
)


def fails_in_one(trajectories):
    """A reward function of the user's."""
    if not hosts.primary():
        raise ZeroDivisionError("a reward of this process alone")
    return [0.0 for _ in trajectories]


def raised(work):
    """The class and the text of what ``work`` raises."""
    try:
        work()
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return None


def fail_in(number, error):
    def work():
        if jax.process_index() == number:
            raise error
        return number

    return raised(lambda: hosts.gather(work))


def tell():
    large = np.arange(hosts.CHUNK // 4 + 5)  # more than one chunk of bytes
    own = {"process": jax.process_index(), "large": large * (1 + jax.process_index())}
    both = hosts.gather(lambda: own)
    return {
        "gathered": [each["process"] for each in both],
        "large": [
            bool((each["large"] == large * n).all())
            for n, each in enumerate(both, start=1)
        ],
        "agreed": [
            hosts.agree(flag)
            for flag in (False, hosts.primary(), not hosts.primary(), True)
        ],
        "shares": [hosts.share(range(n)) for n in (0, 1, 5)],
        "from_primary": hosts.from_primary(lambda: jax.process_index() + 10),
        "on_primary": hosts.on_primary(lambda: "kept"),
        "failed": fail_in(1, ValueError("odd")),
        "unfit": fail_in(0, ConfigError("no such file")),
        "stopped": fail_in(1, Preempted("now")),
        "interrupted": fail_in(0, Interrupted("now")),
    }


def sample():
    """A round of groups with a reward function that fails in one process."""
    config = tiny.get_config()
    config.reward.function = f"{__name__}:fails_in_one"
    collector = groups_test.Collector(lambda task, sample: sample % 2)
    failed = raised(lambda: groups_of(collector, config).sample(0))
    config.reward.function = ""
    groups = groups_of(collector, config).sample(0)
    return {
        "failed": failed,
        "own": sorted({job.task.index for job in collector.rounds[-1]}),
        "kept": [[t.task.index, t.sample] for t in groups.trajectories],
    }


def groups_of(collector, config):
    config.sampling.tasks_per_step = 3
    config.sampling.slots = 16
    return groups_test.sampler(collector, from_config(config.to_dict()))


def place(shape):
    """What is put on a mesh of both processes, and what comes back from it."""
    model = LanguageModel(CONFIG, jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    draw = np.random.default_rng(0).normal
    host = jax.tree.map(lambda x: draw(size=x.shape).astype(np.float32), shapes)
    mesh = placement.make_mesh(*shape)
    params = placement.put(host, placement.shardings(host, mesh))
    local = placement.to_local(params, mesh)
    kernel = params["layers"]["mlp"]["up"]["kernel"]
    own = host["layers"]["mlp"]["up"]["kernel"]
    parts_ = list(placement.pieces(params["embed"]["embedding"]))
    return {
        "local": dict(placement.local_mesh(mesh).shape),
        "back": same(placement.to_host(params), host),
        "to_local": same(jax.device_get(local), host),
        "split": list(local["head"]["kernel"].addressable_shards[0].data.shape),
        "layer": bool((placement.fetch(kernel, 1) == own[1]).all()),
        "pieces": [list(part.shape) for part in parts_],
        "whole": bool((np.concatenate(parts_) == host["embed"]["embedding"]).all()),
    }


def same(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def refuse():
    """Meshes and slots that several processes cannot share."""
    config = tiny.get_config()
    config.mesh.data = 4
    left = raised(lambda: make_run_mesh(from_config(config.to_dict())))
    config.mesh.data, config.sampling.slots = -1, 12
    slots = raised(lambda: make_run_mesh(from_config(config.to_dict())))
    return {"left": left, "slots": slots}


def main() -> None:
    options = flags.FlagValues()
    flags.DEFINE_string("coordinator", "", "", flag_values=options)
    flags.DEFINE_integer("processes", None, "", flag_values=options)
    flags.DEFINE_integer("process", None, "", flag_values=options)
    options(sys.argv)
    hosts.start(options.coordinator, options.processes, options.process)
    with hosts.leaving():
        placement.PIECE_BYTES = 1_000  # bytes; so that a small array has several
        seen = {"told": tell(), "sampled": sample(), "refused": refuse()}
        seen["placed"] = {str(shape): place(shape) for shape in SHAPES}
        sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()

import dataclasses
import functools

import jax
import numpy as np
import pytest

from mempo_jax.distributed import placement
from mempo_jax.planning.memory import NARROW, Estimator, Memory, Need, compiled
from mempo_jax.planning.programs import Lowering, device_bytes
from mempo_jax.rollout.decode import EnginePrograms
from mempo_jax.rollout.sampler import Counters
from mempo_jax.training import state as states
from tests.planning.plan_case import SHAPE, lowering, settings_of

MIB = 2**20


def meshes(settings):
    axes = settings.mesh
    return placement.make_mesh(axes.data, axes.fsdp, axes.tensor)


def estimator(compile=None, hosts=1, narrow=False):
    more = {} if compile is None else {"compile": compile}
    return Estimator(SHAPE, meshes, hosts, narrow, **more)


def lowering_of(layers, settings):
    shape = dataclasses.replace(SHAPE, layers=layers)
    return Lowering(shape, settings, meshes(settings), unroll=False)


def on_first_device(tree):
    return sum(
        np.asarray(shard.data).nbytes
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
        if shard.device == jax.devices()[0]
    )


def test_what_stays_is_what_a_run_puts_on_a_device():
    made = lowering((2, 2, 2))
    state = states.init_state(
        made.model.init, jax.random.key(0), made.optimiser, made.mesh
    )
    assert on_first_device(state) == device_bytes(made.shapes.state)
    rows = placement.row_sharding(made.mesh)
    engine = EnginePrograms(made.model, rows, Counters())
    settings = made.settings
    cache = engine.make_cache(settings.sampling.slots, settings.max_segment_tokens)
    assert on_first_device(cache) == device_bytes(made.shapes.cache)


def test_decode_cuts_no_copies_of_all_layers_out_of_their_stack():
    settings = settings_of(mesh__data=1)
    few, more = (
        compiled(lowering_of(layers, settings), "decode").made for layers in (2, 6)
    )
    assert more == pytest.approx(few, rel=0.1)


def test_a_tpu_decodes_with_a_copy_of_the_cache_in_whole_lanes():
    plain, on_tpu = (estimator(lambda *_: Need(0, 1_000)) for _ in "ab")
    on_tpu.lanes = 128
    settings = settings_of()
    apart = [each.memory(settings) for each in (plain, on_tpu)]
    cache = apart[0].stays["KV cache"]
    padding = 128 // SHAPE.head_dim
    assert apart[1].made == apart[0].made | {"decode": 1_000 + padding * cache}


def test_two_small_depths_tell_the_bytes_of_the_whole():
    asked, name = estimator(), "accumulate"
    settings = settings_of(mesh__data=1)
    continued, whole = asked.asked(settings, name), asked.whole(settings, name)
    assert continued.made == pytest.approx(whole.made, rel=0.1)
    assert continued.arguments == pytest.approx(whole.arguments, rel=0.001)
    assert asked.made(settings, name) == continued.made


def test_depths_are_continued_in_a_straight_line_and_asked_once():
    asked = []

    def compile(lowered: Lowering, name):
        asked.append((name, lowered.model.config.layers, lowered.model.unroll))
        return Need(0, 100 + 10 * lowered.model.config.layers)

    made = estimator(compile)
    for _ in range(2):
        assert made.made(settings_of(), "score") == 180
    assert asked == [("score", 2, False), ("score", 3, False)]


def test_bfloat16_is_derived_from_float32():
    asked = []

    def compile(lowered, name):
        asked.append(lowered.model.compute_dtype.name)
        return Need(0, 1_000 + 100 * lowered.model.config.layers)

    narrow = settings_of(policy__compute_dtype="bfloat16", train__max_log_prob_gap=0.1)
    share, of_layers = NARROW["score"]
    expected = 1_000 * share + 100 * SHAPE.layers * of_layers
    assert estimator(compile, narrow=True).made(narrow, "score") == expected
    assert set(asked) == {"float32"}
    whole = 1_000 + 100 * SHAPE.layers
    assert estimator(compile).made(narrow, "score") == whole
    assert asked[-1] == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "hosts", "expected"),
    [
        ({}, 1, {"parameters": 1, "optimiser": 2, "reference": 1}),
        ({"policy__lora__rank": 2}, 1, {"reference": 0}),
        ({"mesh__fsdp": 8, "mesh__data": 1}, 2, {"parameters": 1, "engine's copy": 2}),
    ],
)
def test_what_stays(changes, hosts, expected):
    """In units of the parameters of a device: two moments, a reference unless adapters
    alone train, and with several hosts weights that are split over one host only."""
    settings = settings_of(**changes)
    made = estimator(lambda *_: Need(0, 0), hosts).memory(settings)
    base = made.stays["parameters"]
    for name, units in expected.items():
        assert made.stays[name] == pytest.approx(units * base, rel=0.06), name


def test_a_server_has_the_cache_and_the_sampling_elsewhere():
    http = settings_of(
        engine__kind="http",
        engine__http__url="http://host:8000",
        engine__http__model="policy",
        engine__http__sync="none",
        objective__importance_cap=2.0,
        train__max_log_prob_gap=0.1,
        train__eval_tasks=0,
    )
    made = estimator(lambda *_: Need(0, 0), 2).memory(http)
    assert set(made.made) == {"score", "accumulate", "apply"}
    assert set(made.stays) == {"parameters", "optimiser", "reference"}


def test_a_reference_of_its_own_lies_beside_the_initial_weights():
    made = estimator(lambda *_: Need(0, 0)).memory(settings_of(), SHAPE)
    assert made.stays["reference"] == 2 * made.stays["parameters"]


def test_the_peak_is_that_of_the_program_that_needs_most():
    of = functools.partial(Memory, {"parameters": 10, "KV cache": 5}, 7)
    made = {"score": 3, "accumulate": 4, "apply": 1, "prefill": 10, "decode": 2}
    assert (of(made).peak, of(made).fullest) == (26, "accumulate")
    assert of(made | {"prefill": 12}).fullest == "prefill"


def test_split_weights_leave_each_device_its_own_rows():
    """Not the rows of all, with a part of the width."""
    wide = {"train__length_buckets": (1_024,), "train__micro_batch_tokens": 8_192}
    shape = dataclasses.replace(SHAPE, layers=2, max_positions=1_024)
    made = {}
    for fsdp in (1, 8):
        settings = settings_of(mesh__data=8 // fsdp, mesh__fsdp=fsdp, **wide)
        lowered = Lowering(shape, settings, meshes(settings), unroll=False)
        made[fsdp] = compiled(lowered, "score").made
    assert made[8] < 1.2 * made[1]

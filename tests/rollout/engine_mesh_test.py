"""An engine on a mesh of its own samples what one on the training mesh does."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.distributed import placement
from mempo_jax.models.decoder import LanguageModel
from tests.rollout import engine_case as case

# A vocabulary and heads that four devices divide.
MODEL = LanguageModel(
    dataclasses.replace(case.CONFIG, vocab_size=260, heads=4, kv_heads=4, head_dim=4),
    jnp.float32,
)
KERNEL_GATHERS = re.compile(r"= (\S+) all-gather\(")


def meshes(kind):
    devices = jax.devices()
    if kind == "own devices":
        train = placement.make_mesh(1, 4, 1, devices=devices[:4])
        return train, placement.sampling_mesh(
            train, devices[4:], data=1, fsdp=1, tensor=4
        )
    train = placement.make_mesh(1, 8, 1)
    return train, placement.sampling_mesh(train, devices, data=2, fsdp=1, tensor=4)


def on(mesh, move=None):
    rows = placement.row_sharding(mesh)
    return case.make_engine(MODEL, row_sharding=rows, row_buckets=(), move=move)


@pytest.mark.parametrize("kind", ["shared devices", "own devices"])
def test_the_same_tokens_on_both_meshes(kind):
    train, own = meshes(kind)
    params = placement.place_params(case.make_params(model=MODEL), train)
    asked = [
        case.request(slot, tokens)
        for slot, tokens in enumerate(case.prompts([5, 9, 3, 12, 7, 4, 8, 6]))
    ]
    results = []
    for engine in (on(train), on(own, placement.mover(own))):
        engine.set_params(params)
        results.append(engine.generate(asked, temperature=1.0))
    for ours, theirs in zip(*results, strict=True):
        assert ours.tokens == theirs.tokens
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-5)
    engine.warm_up()
    compilations = engine.counters.compilations
    engine.set_params(jax.tree.map(jnp.copy, params))
    engine.generate(asked, temperature=1.0)
    assert engine.counters.compilations == compilations


def test_the_same_weights_are_moved_once_and_freed_with_those_of_training():
    train, own = meshes("shared devices")
    moved = []
    move = placement.mover(own)
    engine = on(own, lambda params: moved.append(0) or move(params))
    params = placement.place_params(case.make_params(model=MODEL), train)
    engine.set_params(params)
    engine.set_params(params)
    assert len(moved) == 1
    before = embeddings()
    del params
    assert embeddings() == before - 1, "the engine keeps what training has let go"


def embeddings():
    return sum(leaf.shape == (260, 16) for leaf in jax.live_arrays())


def decode_program(mesh, params):
    """The optimised program of decode, as text."""
    engine = on(mesh)
    engine.set_params(placement.place_params(params, mesh))
    device = engine._lanes[0].device
    program = device._compiled.decode
    seen = {}

    def keep(*args, **static):
        seen["text"] = program.lower(*args, **static).compile().as_text()
        return program(*args, **static)

    device._compiled.decode = keep
    engine.generate([case.request(0, [1, 2, 3])], temperature=1.0)
    return seen["text"]


def test_tensor_alone_gathers_no_kernel_to_decode():
    """Each device multiplies with the part that it holds; fsdp has to gather."""
    train, own = meshes("shared devices")
    params = case.make_params(model=MODEL)
    layers = params["layers"]
    kernels = {
        leaf.shape[1:] for leaf in jax.tree.leaves(layers) if len(leaf.shape) == 3
    }

    def gathered(text):
        shapes = [
            each.split("[")[1].split("]")[0] for each in KERNEL_GATHERS.findall(text)
        ]
        return {
            tuple(int(n) for n in shape.split(",") if n)[-2:] for shape in shapes
        } & kernels

    assert gathered(decode_program(train, params)), "nothing to compare with"
    assert not gathered(decode_program(own, params))

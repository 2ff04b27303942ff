"""In float32 every matrix product of a run asks for float32, on whatever backend."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core

from mempo_jax.builders import engines
from mempo_jax.planning.programs import NAMES
from mempo_jax.rollout import policy_judge
from tests.planning.plan_case import lowering

HIGHEST = jax.lax.Precision.HIGHEST
# Equal heads take another kernel than grouped ones, and rows above 128 tokens a third.
CASES = {
    "short rows": {},
    "long rows": {"train__length_buckets": (256,), "train__micro_batch_tokens": 512},
    "adapters": {"policy__lora__rank": 2, "policy__remat": True},
}


def products(jaxpr):
    """Every product of two arrays in a program, those of its loops included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: isinstance(x, core.ClosedJaxpr | core.Jaxpr),
        ):
            if isinstance(value, core.ClosedJaxpr):
                yield from products(value.jaxpr)
            elif isinstance(value, core.Jaxpr):
                yield from products(value)


def found(name, **changes):
    jitted, args, static = lowering((1, 1, 1), **changes).call(name)
    traced = jitted.trace(*args, **static)
    return list(products(traced.jaxpr.jaxpr))


def check_all_ask(seen, least):
    assert len(seen) >= least, "fewer than one layer has, with the gradients' of each"
    for each in seen:
        assert {v.aval.dtype for v in each.invars} == {jnp.dtype("float32")}
        precision = each.params["precision"]
        assert precision in (HIGHEST, (HIGHEST, HIGHEST)), each


# Query, key, value, output, gate, up and down; a gradient multiplies twice for each.
LEAST = dict.fromkeys(("score", "prefill", "decode"), 7)
LEAST |= dict.fromkeys(("accumulate", "supervised"), 21)


def test_no_program_is_left_out():
    """All that multiply: those of the planner, and those of a run's training."""
    programs = {*NAMES, *lowering((1, 1, 1))._training.jitted()}
    assert programs - {"apply"} == set(LEAST)
    assert not found("apply"), "it has products now: ask of them what others are asked"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", LEAST)
def test_float32(name, case):
    # Of frozen kernels no gradient is computed, so adapters have fewer.
    least = 14 if case == "adapters" and LEAST[name] > 7 else LEAST[name]
    check_all_ask(found(name, **CASES[case]), least)


def test_float32_of_the_programs_beside_the_steps():
    """The policy as judge of the memory, and the check of a server's log-probs."""
    made = lowering((1, 1, 1))
    tokens = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    two = jax.ShapeDtypeStruct((2,), jnp.int32)
    judge = functools.partial(policy_judge.score, made.model)
    judged = jax.make_jaxpr(judge)(made.shapes.params, tokens, two, two)
    check_all_ask(list(products(judged.jaxpr)), 7)
    mask, scalar = (
        jax.ShapeDtypeStruct((2, 16), jnp.bool_),
        jax.ShapeDtypeStruct((), jnp.float32),
    )
    check = engines._score.trace(made.model, made.shapes.params, tokens, mask, scalar)
    check_all_ask(list(products(check.jaxpr.jaxpr)), 7)


def test_narrow_products_are_left_to_the_backend():
    narrow = {"policy__param_dtype": "bfloat16", "policy__compute_dtype": "bfloat16"}
    layers = [
        each
        for each in found("score", **narrow)
        if each.invars[0].aval.dtype == jnp.bfloat16
    ]
    assert len(layers) >= 7
    # The logits alone ask for more: their log-softmax is in float32.
    asking = [e for e in layers if e.params["precision"] in (HIGHEST, (HIGHEST,) * 2)]
    assert len(asking) <= 1

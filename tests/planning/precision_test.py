"""In float32 every matrix product of a run asks for float32, on whatever backend."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core

from mempo_jax.planning.programs import NAMES
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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "apply"])
def test_float32(name, case):
    seen = found(name, **CASES[case])
    assert len(seen) >= 7, "fewer than one layer has"
    for each in seen:
        assert {v.aval.dtype for v in each.invars} == {jnp.dtype("float32")}
        precision = each.params["precision"]
        assert precision in (HIGHEST, (HIGHEST, HIGHEST)), each


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

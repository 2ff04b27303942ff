"""Does step 1 pass its check where float32 products are rounded by default?

    python -m benchmarks.emulated_precision [--config=configs/base.py] [--bits=8,11]
        [--cold_start_steps=N]

Unless a product asks for more, a TPU rounds its float32 operands to 8 bits (bfloat16)
and an Ampere GPU to 11 (TF32). Here a CPU emulates both: operands of each product that
does not ask for HIGHEST are rounded before it is computed. Sums stay float32, as they
do on the chips. Nothing is said about other differences between a chip and a CPU: here
both programs add in nearly the same order, which makes gaps smaller than on a chip.
A policy that is sure of its tokens hides them too; --cold_start_steps=0 has none.

One policy is cold-started without rounding. Then the first step of the run is made for
each rounding, twice: with products of the layers that ask for nothing (before), and as
the package asks (now). What is compared is the largest difference between the sampler's
and the trainer's log-prob of a sampled token, with the bound above which a run stops.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.extend.core import primitives

from benchmarks.update_flops import load
from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import Policy, initial_policy
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig, from_config
from mempo_jax.models import attention, layers, lora
from mempo_jax.training.cold_start import cold_start
from mempo_jax.training.loop import Trainer

HIGHEST = jax.lax.Precision.HIGHEST
EXPONENT_BITS = 8  # of float32, bfloat16 and TF32 alike
FLOAT32_BITS = 24  # of the significand, with the one that is not stored
CHIPS = {8: "TPU's default", 11: "Ampere GPU's default", FLOAT32_BITS: "CPU"}
NO_BOUND = 1e3  # nats, so that a gap is measured where a run would stop


@contextlib.contextmanager
def rounded_products(bits: int) -> Iterator[None]:
    """Rounds float32 operands of products that do not ask for HIGHEST, within.

    Args:
      bits: of the rounded significand, the one that is not stored included.
    """
    product = primitives.dot_general_p
    bind = product.bind

    def rounded(left: Any, right: Any, **params: Any) -> Any:
        asks = params["precision"]
        if asks in (HIGHEST, (HIGHEST, HIGHEST)):
            return bind(left, right, **params)
        operands = (_rounded(each, bits) for each in (left, right))
        return bind(*operands, **params)

    # What was traced with other products must not be found again, here or after.
    jax.clear_caches()
    try:
        with mock.patch.object(product, "bind", rounded):
            yield
    finally:
        jax.clear_caches()


def _rounded(operand: Any, bits: int) -> Any:
    if operand.dtype != jnp.float32 or bits >= FLOAT32_BITS:
        return operand
    return jax.lax.reduce_precision(operand, EXPONENT_BITS, bits - 1)


@contextlib.contextmanager
def nothing_asked() -> Iterator[None]:
    """Lets the products of the layers ask for no precision, within."""
    with contextlib.ExitStack() as stack:
        for module in (layers, attention, lora):
            stack.enter_context(
                mock.patch.object(module, "precision_of", return_value=None)
            )
        yield


def first_gap(policy: Policy, settings: RunConfig, bits: int, asking: bool) -> float:
    """Makes the first step of a run on emulated products.

    Args:
      policy: the one to begin with.
      settings: of the run; a gap above the bound in them stops it.
      bits: see ``rounded_products``.
      asking: whether products ask for what the package lets them ask for.

    Returns:
      Nats, the largest gap between the sampler's and the trainer's log-prob.

    Raises:
      RunStopped: the gap is above the bound of ``settings``.
    """
    before = contextlib.nullcontext() if asking else nothing_asked()
    with before, rounded_products(bits):
        suite, mesh = make_suite(settings), make_run_mesh(settings)
        figures, _ = Trainer(policy, suite, settings, mesh).step(0)
        return figures["log_prob_gap"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/base.py")
    parser.add_argument("--bits", default="8,11,24", help="of the significand")
    parser.add_argument("--cold_start_steps", type=int, help="None: the config's")
    given = parser.parse_args()
    config = load(given.config)
    if given.cold_start_steps is not None:
        config.train.cold_start_steps = given.cold_start_steps
    bound = from_config(config.to_dict()).max_log_prob_gap
    config.train.max_log_prob_gap = NO_BOUND
    settings = from_config(config.to_dict())
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    policy = initial_policy(suite, settings)
    if settings.train.cold_start_steps:
        params = cold_start(policy, suite, settings, mesh)
        policy = dataclasses.replace(policy, params=jax.device_get(params))
    print(f"{given.config}, {settings.train.cold_start_steps} steps of cold start")
    print(f"jax {jax.__version__} on {jax.default_backend()}; bound {bound:g} nats")
    for bits in map(int, given.bits.split(",")):
        for asking in (False, True):
            gap = first_gap(policy, settings, bits, asking)
            what = "now" if asking else "before"
            verdict = "passes" if gap <= bound else "STOPS"
            print(
                f"{bits:2} bits ({CHIPS.get(bits, 'no chip')}), {what:6} "
                f"gap {gap:.2e}  {verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()

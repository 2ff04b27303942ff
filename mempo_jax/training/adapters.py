"""Training of adapters in place of all weights: what that makes of a policy.

An adapted policy is a ``Policy`` whose model computes with adapters and whose
parameters hold them, float32, beside the base. The base is placed once, in
``policy.param_dtype``, and never copied: sampling, scoring and the reference, which is
the same policy with adapters that do nothing yet, share it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh

from mempo_jax.envs import derived_seed
from mempo_jax.models import lora
from mempo_jax.training import sharding
from mempo_jax.training.policies import Policy
from mempo_jax.training.run_settings import RunSettings
from mempo_jax.training.state import place_params


def adapt(policy: Policy, settings: RunSettings, mesh: Mesh, purpose: str) -> Policy:
    """The policy with fresh adapters, as ``policy.lora`` asks; itself where it is off.

    Args:
      purpose: what they are for; with the run's seed it decides how they start.
    """
    made = settings.policy.lora.adapters()
    if made is None:
        return policy
    base = place_params(policy.params, mesh)
    key = jax.random.key(derived_seed("adapters", purpose, settings.seed) % 2**31)

    def fresh(key: Any) -> Any:
        return lora.new_adapters(base, made, key)

    where = sharding.shardings(jax.eval_shape(fresh, key), mesh)
    adapters = jax.jit(fresh, out_shardings=where)(key)
    return dataclasses.replace(
        policy,
        model=policy.model.with_lora(made),
        params=lora.join(adapters, base),
    )

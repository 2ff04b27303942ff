"""What only a GPU can show. Run with ``-m gpu``; on a CPU that is a rehearsal.

scripts/gpu_check.sh runs them with jax on CUDA; JAX_PLATFORMS decides where.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.distributed import placement
from mempo_jax.models.attention import causal_attention, chosen
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.rollout.sampler import Request
from tests.rollout import engine_case, tiny
from tests.training import step_case

pytestmark = pytest.mark.gpu
ROUNDING = 0.02  # of values near 1 in bfloat16, which has 8 bits
GAP = {"float32": 1e-3, "bfloat16": 0.1}  # nats; the bounds of a run's own check


@pytest.mark.parametrize("size", [64, 128])
def test_the_flash_kernel_equals_plain_attention(size):
    """Values and gradients, grouped heads, rows with padding at their right."""
    rng = np.random.default_rng(0)
    fast = chosen("auto", jnp.bfloat16, size)
    if jax.default_backend() == "gpu":
        assert fast == "cudnn"
    query, *pair = (
        jnp.asarray(rng.normal(size=(2, 256, heads, size)), jnp.bfloat16)
        for heads in (8, 2, 2)
    )
    real = np.arange(256) < np.array([[256], [150]])
    weights = jnp.asarray(rng.normal(size=query.shape) * real[..., None, None])

    def outcome(implementation):
        def total(*given):
            made = causal_attention(jnp.asarray(real), implementation)(*given)
            return (made.astype(jnp.float32) * weights).sum(), made

        return jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(query, *pair)

    (slopes, made), (true_slopes, true) = outcome(fast), outcome("xla")
    for one, other in [(made, true), *zip(slopes, true_slopes)]:
        one, other = (np.asarray(x, np.float32)[real] for x in (one, other))
        assert np.abs(one - other).max() <= ROUNDING * max(1, np.abs(other).max())


def test_an_update_in_bfloat16_is_finite():
    config = dataclasses.replace(step_case.CONFIG, layers=2)
    model = LanguageModel(config, "bfloat16", remat=True)
    programs = step_case.build(model=model)[2]
    state = step_case.new_state(model=model)
    batches = [step_case.make_rows()]
    facts = step_case.make_trajectories()
    _, state, figures = step_case.update(state, programs, batches, facts)
    assert not figures["skipped"]
    assert float(figures["grad_norm"]) > 0
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_log_probs_are_those_that_training_computes(dtype, monkeypatch):
    model = LanguageModel(tiny.CONFIG, dtype)
    monkeypatch.setattr(tiny, "MODEL", model)
    engine = tiny.make_engine(slots=8)
    prompts = [tiny.TOKENIZER.encode("one two three")[: 2 + n % 2] for n in range(8)]
    requests = [
        Request(n, tokens, np.array([7, n], np.uint32), 24)
        for n, tokens in enumerate(prompts)
    ]
    gaps = []
    for request, made in zip(requests, engine.generate(requests, temperature=0.9)):
        tokens = [*request.tokens, *made.tokens]
        again = _scored(model, tokens)[len(request.tokens) :]
        gaps.append(np.abs(again - made.log_probs).max())
    assert max(gaps) <= GAP[dtype]


@pytest.fixture
def two_devices():
    """The first two devices; with one the test is skipped, and says so."""
    if jax.device_count() < 2:
        pytest.skip("needs two devices, there is one")
    return jax.devices()[:2]


@pytest.mark.parametrize("axes", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_two_devices_make_the_update_of_one(two_devices, axes):
    """What they send each other arrives: gathers, sums and scattered sums."""
    model, outcomes = step_case.DECODER, []
    for each in ((1, 1, 1), axes):
        programs = step_case.build(each, model=model)[2]
        grads, state, figures = step_case.update(
            step_case.new_state(each, model=model),
            programs,
            [step_case.make_rows()],
            step_case.make_trajectories(),
        )
        outcomes.append(jax.device_get((grads, state.params, figures["loss"])))
    assert {d for leaf in jax.tree.leaves(grads) for d in leaf.devices()} == set(
        two_devices
    )
    one, two = outcomes
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(one[0])) > 0.1
    step_case.assert_close(two, one, 1e-4)


def test_a_mesh_of_its_own_on_two_devices_samples_what_training_computes(two_devices):
    """Weights split by fsdp are moved, by one program, to where tensor splits them."""
    config = dataclasses.replace(engine_case.CONFIG, vocab_size=260, kv_heads=2)
    model = LanguageModel(config, jnp.float32)
    train = placement.make_mesh(1, 2, 1, devices=two_devices)
    own = placement.sampling_mesh(train, two_devices, data=1, fsdp=1, tensor=2)
    engine = engine_case.make_engine(
        model,
        row_sharding=placement.row_sharding(own),
        row_buckets=(),
        move=placement.mover(own),
    )
    params = engine_case.make_params(model=model)
    engine.set_params(placement.place_params(params, train))
    requests = [
        engine_case.request(slot, tokens)
        for slot, tokens in enumerate(engine_case.prompts([5, 9, 3, 12]))
    ]
    results = engine.generate(requests, temperature=0.9)
    # As the model's own products ask: the reference computation has none of its own.
    with jax.default_matmul_precision("highest"):
        for asked, got in zip(requests, results, strict=True):
            again = engine_case.recomputed(params, asked.tokens, got.tokens, 0.9, model)
            assert np.abs(again - got.log_probs).max() <= GAP["float32"]


def _scored(model, tokens):
    """Log-probs of one row at the temperature of sampling, as training has them."""
    padded = np.zeros((1, tiny.LONGEST), np.int32)
    padded[0, : len(tokens)] = tokens
    mask = np.arange(tiny.LONGEST)[None] < len(tokens)
    params = tiny.make_params()
    hidden = model.hidden(params, padded, mask)
    made = tiny.shifted_log_probs(
        hidden,
        model.unembed(params).astype(hidden.dtype),
        padded,
        temperature=0.9,
        mask=mask,
    )
    return np.asarray(made)[0, : len(tokens)]

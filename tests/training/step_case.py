"""A small training problem for the tests of ``step``: model, programs, rows, facts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.config import ObjectiveConfig, TrainConfig
from mempo_jax.core import CreditConfig
from mempo_jax.distributed import placement
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.training import state as states
from mempo_jax.training.loss import count_tokens
from mempo_jax.training.step import TrainPrograms
from mempo_jax.types import Evidence, Kind, OpTable, Outcome, Rows, Trajectories

CONFIG = DecoderConfig(
    vocab_size=24,
    width=16,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp_width=16,
    rope_theta=1e4,
    norm_eps=1e-6,
    tied=True,
    qkv_bias=False,
    qk_norm=False,
    max_positions=32,
)
TRAIN = TrainConfig(
    steps=1,
    learning_rate=1e-2,
    warmup_steps=0,
    decay_steps=0,
    weight_decay=0.01,
    adam_b1=0.9,
    adam_b2=0.99,
    adam_eps=1e-5,
    grad_clip=1.0,
    minibatches=1,
    micro_batch_tokens=64,
    length_buckets=(16,),
    max_log_prob_gap=1e-3,
    max_skipped_updates=5,
    cold_start_steps=0,
    cold_start_rows=1,
    cold_start_learning_rate=1e-2,
    cold_start_checkpoint_every=1,
    demonstrations=1,
    demonstrations_path="",
    checkpoint_every=1,
    checkpoints_kept=1,
    checkpoint_best="",
    eval_tasks=0,
)
OBJECTIVE = ObjectiveConfig(
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    aggregation="token_mean",
    constant_length=8,
    kl_coef=0.02,
    kl_warmup_steps=0,
    kl_estimator="k3",
    kl_scope="all",
    importance_cap=0.0,
    advantage_eps=1e-4,
    advantage_ddof=0,
    divide_by_std=True,
    logit_chunk=1024,
)
CREDIT = CreditConfig(
    modes=("uniform", "attribution"),
    gamma=0.9,
    other_weight=0.1,
    attribution_form="bonus",
    attribution_probe="turn_reward",
    attribution_floor=0.1,
    attribution_weight=1.0,
    answer_probability_weight=1.0,
    counterfactual_weight=1.0,
    counterfactual_evictions=True,
    bonus_decay_steps=0,
)
DECODER = LanguageModel(CONFIG, jnp.float32)


class RunningMean:
    """A model that compiles fast: the state is the mean of the embeddings so far."""

    tied = False
    devices = 1

    def with_rows(self, rows):
        return self

    def init(self, key):
        keys = jax.random.split(key)
        shape = (CONFIG.vocab_size, CONFIG.width)
        return {
            "embed": {"embedding": jax.random.normal(keys[0], shape)},
            "head": {"kernel": 0.5 * jax.random.normal(keys[1], shape[::-1])},
        }

    def hidden(self, params, tokens, token_mask):
        seen = params["embed"]["embedding"][tokens] * token_mask[..., None]
        return jnp.cumsum(seen, 1) / (1 + jnp.arange(tokens.shape[1])[:, None])

    def unembed(self, params):
        return params["head"]["kernel"]


MODEL = RunningMean()
B, T, N, K, TEMPERATURE = 16, 12, 8, 3, 0.9


@functools.cache
def build(
    axes=(1, 1, 1),
    learning_rate=1e-2,
    aggregation="token_mean",
    model=MODEL,
    logit_chunk=1024,
):
    """Optimiser, mesh and programs, compiled once for all tests of this module."""
    mesh = placement.make_mesh(*axes)
    train = dataclasses.replace(TRAIN, learning_rate=learning_rate)
    objective = dataclasses.replace(
        OBJECTIVE, aggregation=aggregation, logit_chunk=logit_chunk
    )
    optimiser = states.policy_optimiser(train)
    programs = TrainPrograms(
        model, mesh, optimiser, objective, CREDIT, outcome_gate=True
    )
    return optimiser, mesh, programs


def new_state(axes=(1, 1, 1), learning_rate=1e-2, model=MODEL):
    optimiser, mesh, _ = build(axes, learning_rate, model=model)
    return states.init_state(model.init, jax.random.key(1), optimiser, mesh)


@jax.jit
def log_softmax(params, rows):
    """What a model says at each position, by the plain formula; [B, T, V]."""
    hidden = MODEL.hidden(params, rows.tokens, rows.token_mask)
    return jax.nn.log_softmax(hidden @ MODEL.unembed(params) / TEMPERATURE)


def make_rows(seed=0):
    """Two rows for each of N trajectories, the last trajectory's being fillers."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, T + 1, B)
    token_mask = np.arange(T) < lengths[:, None]
    index = np.arange(B, dtype=np.int32) % N
    return Rows(
        tokens=rng.integers(0, CONFIG.vocab_size, (B, T)).astype(np.int32),
        token_mask=token_mask,
        action_mask=token_mask & (rng.random((B, T)) < 0.6),
        behaviour_log_probs=np.zeros((B, T), np.float32),
        turn_id=rng.integers(0, 3, (B, T)).astype(np.int32),
        op_id=rng.integers(-1, K, (B, T)).astype(np.int32),
        trajectory_index=index,
        valid=index < N - 1,
    )


def make_trajectories(seed=0):
    rng = np.random.default_rng(seed)
    last_use = rng.integers(-1, 3, (N, K)).astype(np.int32)
    ops = OpTable(
        kind=rng.choice([Kind.WRITE, Kind.RECALL], (N, K)).astype(np.int32),
        turn=np.tile(np.arange(K, dtype=np.int32), (N, 1)),
        first_use=last_use,
        last_use=last_use,
        outcome=np.full((N, K), Outcome.NEW, np.int32),
    )
    score = rng.random((2, N // 2)).astype(np.float32)
    valid = np.ones((2, N // 2), bool)
    valid[-1, -1] = False
    return Trajectories(
        ops=ops,
        turn_reward=rng.random((N, 3)).astype(np.float32),
        turn_count=np.full(N, 3, np.int32),
        reward=score - 0.1,
        task_score=score,
        valid=valid,
        evidence=Evidence(
            answer_gain=rng.random((N, K)).astype(np.float32),
            leave_out=rng.random((N, K)).astype(np.float32),
            turn_potential=rng.random((N, 3)).astype(np.float32),
        ),
    )


def take(rows, part):
    return Rows(*(leaf[part] for leaf in rows))


def update(state, programs, batches, trajectories, old_shift=0.1):
    """One optimiser step over micro-batches; the reference is the policy itself."""
    tokens = count_tokens(batches, trajectories.valid)
    inputs = programs.loss_inputs(trajectories, tokens)
    sums = programs.zeros()
    for rows in batches:
        scores, _ = programs.score(state.params, rows, TEMPERATURE)
        old = scores + programs.place_rows(
            np.full((len(rows.valid), 1), old_shift, "f")
        )
        sums, _ = programs.accumulate(
            state.params, sums, rows, old, scores - 0.2, inputs, 0.05, TEMPERATURE
        )
    return sums.grads, *programs.apply(state, sums)


def assert_close(tree, other, atol):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=0), tree, other
    )


def assert_same_bits(tree, other):
    def bits(tree):
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]

    assert bits(tree) == bits(other)

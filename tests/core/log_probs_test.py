import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mempo_jax.core import log_probs as module

RULES = ("chunk_size",)
SHIFTED = (*RULES, "tied")
shifted_log_probs = jax.jit(module.shifted_log_probs, static_argnames=SHIFTED)
shifted_log_probs_and_entropy = jax.jit(
    module.shifted_log_probs_and_entropy, static_argnames=SHIFTED
)
token_log_probs = jax.jit(module.token_log_probs, static_argnames=RULES)
token_log_probs_and_entropy = jax.jit(
    module.token_log_probs_and_entropy, static_argnames=RULES
)

B, T, D, V = 3, 7, 5, 11


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(B, T, D)).astype(np.float32)
    unembed = rng.normal(size=(D, V)).astype(np.float32)
    return hidden, unembed, rng.integers(0, V, (B, T))


def _plain(hidden, unembed, targets, temperature=1.0):
    logits = jnp.asarray(hidden) @ jnp.asarray(unembed) / temperature
    table = jax.nn.log_softmax(logits.astype(jnp.float32))
    return jnp.take_along_axis(table, targets[..., None], -1)[..., 0]


@pytest.mark.parametrize(
    ("chunk_size", "temperature"), [(1, 1.0), (6, 0.6), (9, 1.0), (20, 0.6), (21, 1.0)]
)
def test_chunked_equals_plain_value_and_gradient(chunk_size, temperature):
    hidden, unembed, targets = inputs()
    weights = np.random.default_rng(1).normal(size=(B, T)).astype(np.float32)

    def chunked(hidden, unembed):
        return token_log_probs(
            hidden, unembed, targets, temperature=temperature, chunk_size=chunk_size
        )

    def plain(hidden, unembed):
        return _plain(hidden, unembed, targets, temperature)

    def both(score):
        values, back = jax.vjp(score, hidden, unembed)
        return values, back(weights)

    ours, theirs = (jax.jit(both, static_argnums=0)(s) for s in (chunked, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)


@pytest.mark.parametrize("score", [shifted_log_probs, shifted_log_probs_and_entropy])
def test_a_tied_matrix_gives_the_same_in_chunks(score):
    hidden, unembed, tokens = inputs()

    def both(embedding, tied):
        def scored(hidden, embedding):
            made = score(hidden, embedding.T, tokens, chunk_size=6, tied=tied)
            return jnp.stack(made) if isinstance(made, tuple) else made

        values, back = jax.vjp(scored, hidden, embedding)
        return values, back(jnp.ones_like(values))

    ours, theirs = (
        jax.jit(both, static_argnums=1)(unembed.T, t) for t in (True, False)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)
    assert np.abs(theirs[1][1]).min() > 0


def test_gradient_equals_finite_differences():
    hidden, unembed, targets = inputs()
    with jax.enable_x64(True):
        hidden = jnp.asarray(hidden, jnp.float64)

        @jax.jit
        def total(hidden):
            return token_log_probs(hidden, unembed, targets, chunk_size=4).sum()

        exact = jax.jit(jax.grad(total))(hidden)
        for at in ((0, 0, 0), (1, 3, 2), (2, 6, 4)):
            step = jnp.zeros_like(hidden).at[at].set(1e-6)
            slope = (total(hidden + step) - total(hidden - step)) / 2e-6
            np.testing.assert_allclose(exact[at], slope, rtol=1e-5)


def test_logits_of_all_tokens_never_exist_at_once():
    tokens, vocabulary = 64, 4096
    shapes = [(2, tokens, D), (D, vocabulary), (2, tokens)]
    types = [jnp.float32, jnp.float32, jnp.int32]
    args = [jax.ShapeDtypeStruct(s, t) for s, t in zip(shapes, types)]

    def peak(chunk_size):
        def total(hidden, unembed, targets):
            scores = token_log_probs(hidden, unembed, targets, chunk_size=chunk_size)
            return scores.sum()

        compiled = jax.jit(jax.grad(total, (0, 1))).lower(*args).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole = 2 * tokens * vocabulary * 4
    assert peak(16) < whole / 2 < peak(10**6)


def test_entropy_hand_numbers():
    # One-hot states select rows of the table: the distributions are known.
    table = np.log([[0.5, 0.25, 0.25], [1.0, 1e-30, 1e-30]]).astype(np.float32)
    hidden = np.eye(2, dtype=np.float32)[None]
    score, entropy = token_log_probs_and_entropy(hidden, table, np.array([[1, 0]]))
    np.testing.assert_allclose(score, [[np.log(0.25), 0]], atol=1e-6)
    np.testing.assert_allclose(entropy, [[1.5 * np.log(2), 0]], atol=1e-6)


def test_alignment_index_t_describes_token_t():
    # The state after token x says: the next token is x + 1 with probability 0.7.
    table = np.full((4, 4), 0.1)
    for token in range(4):
        table[token, (token + 1) % 4] = 0.7
    tokens = np.array([[0, 1, 2, 0], [3, 3, 0, 1]])
    hidden = np.eye(4)[tokens]
    expected = [[0, 0.7, 0.7, 0.1], [0, 0.1, 0.7, 0.7]]
    got = np.asarray(shifted_log_probs(hidden, np.log(table), tokens))
    np.testing.assert_allclose(got[:, 1:], np.log(np.array(expected)[:, 1:]), rtol=1e-5)
    assert not got[:, 0].any()
    again, entropy = shifted_log_probs_and_entropy(hidden, np.log(table), tokens)
    np.testing.assert_array_equal(again, got)
    each = -(0.7 * np.log(0.7) + 0.3 * np.log(0.1))
    np.testing.assert_allclose(entropy[:, 1:], np.full((2, 3), each), rtol=1e-5)
    assert not entropy[:, 0].any()


def test_temperature_of_sampling_gives_ratio_one():
    hidden, unembed, targets = inputs()
    sampler = jax.nn.log_softmax(hidden @ unembed / 0.6)
    sampled = jnp.take_along_axis(sampler, targets[..., None], -1)[..., 0]
    ours = token_log_probs(hidden, unembed, targets, temperature=0.6, chunk_size=4)
    np.testing.assert_allclose(np.exp(ours - sampled), 1, atol=1e-5)


def test_bfloat16_takes_its_softmax_in_float32():
    hidden, unembed, targets = inputs()
    hidden, unembed = (jnp.asarray(x * 4, jnp.bfloat16) for x in (hidden, unembed))
    wide = _plain(hidden.astype(jnp.float32), unembed.astype(jnp.float32), targets)
    for chunk_size in (6, 1000):
        ours = token_log_probs(hidden, unembed, targets, chunk_size=chunk_size)
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, wide, atol=1e-4)


def test_bfloat16_gradient_adds_up_over_chunks_in_float32():
    length = 512
    hidden = jnp.ones((1, length, 1), jnp.bfloat16)
    unembed = jnp.zeros((1, 2), jnp.bfloat16)
    targets = jnp.zeros((1, length), jnp.int32)

    def total(unembed, chunk_size):
        return token_log_probs(hidden, unembed, targets, chunk_size=chunk_size).sum()

    # Each token adds 0.5; in bfloat16 the sum of such terms stalls at 128.
    gradient = jax.jit(jax.grad(total), static_argnums=1)(unembed, 1)
    np.testing.assert_allclose(gradient.astype(jnp.float32), [[256.0, -256.0]])


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
@pytest.mark.parametrize("chunk_size", [6, 1000])
def test_garbage_in_padding(garbage, chunk_size):
    hidden, unembed, tokens = inputs()
    mask = np.ones((B, T), bool)
    mask[1, 4:] = False
    dirty, ids = hidden.copy(), tokens.copy()
    dirty[1, 3:] = garbage  # the state after the last real token predicts padding
    ids[1, 4:] = -999

    def total(hidden, unembed, ids):
        options = {"chunk_size": chunk_size, "mask": mask, "temperature": 0.9}
        score, entropy = shifted_log_probs_and_entropy(hidden, unembed, ids, **options)
        return (score + entropy).sum()

    both = jax.jit(jax.value_and_grad(total, (0, 1)))
    clean, got = both(hidden, unembed, tokens), both(dirty, unembed, ids)
    np.testing.assert_allclose(got[0], clean[0], rtol=1e-6)
    np.testing.assert_allclose(got[1][1], clean[1][1], atol=1e-6)
    assert not got[1][0][1, 3:].any()


def test_wrong_shapes_are_refused():
    hidden, unembed, targets = inputs()
    with pytest.raises(ValueError, match="hidden"):
        token_log_probs(hidden[0], unembed, targets)
    with pytest.raises(ValueError, match="transpose"):
        token_log_probs(hidden, unembed.T, targets)
    with pytest.raises(ValueError, match="mask"):
        token_log_probs(hidden, unembed, targets, mask=np.ones((B, T + 1), bool))
    with pytest.raises(ValueError, match="chunk_size"):
        token_log_probs(hidden, unembed, targets, chunk_size=0)
    assert module.CHUNK_SIZE >= 1

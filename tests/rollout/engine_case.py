"""A small model, a byte tokenizer, and reference computations for engine tests."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.sampler import Request

TAGS = ("</act>", "</answer>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer():
    """Bytes as tokens (so closing tags are several), pad id = end-of-turn id; one
    closing tag is also a token of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = BackendTokenizer(
        models.BPE({token: index for index, token in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    marks = ("<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    backend.add_tokens([AddedToken("</answer>", normalized=False)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = CHATML
    return Tokenizer(fast)


TOKENIZER = make_tokenizer()
END = TOKENIZER.stop_ids[0]
CONFIG = DecoderConfig(
    vocab_size=TOKENIZER.vocab_size,
    width=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp_width=24,
    rope_theta=1e4,
    norm_eps=1e-5,
    tied=False,
    qkv_bias=False,
    qk_norm=False,
    max_positions=128,
)
MODEL = LanguageModel(CONFIG, jnp.float32)
# On one CPU too, what is new is padded to rows of one width.
EQUAL_HEADS = LanguageModel(dataclasses.replace(CONFIG, kv_heads=2), jnp.float32)
SLOTS, LENGTH = 8, 64


def make_params(seed=0, noise=0.3, model=MODEL):
    draw = np.random.default_rng(seed).normal
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: draw(0.1, noise, x.shape).astype(x.dtype), shapes)


def make_engine(model=MODEL, **options):
    settings = {
        "slots": SLOTS,
        "max_length": LENGTH,
        "prefill_buckets": (4, 16),
        "decode_chunk": 4,
        "closing_tags": TAGS,
        "row_buckets": (2,),
        "span_buckets": (32,),
    }
    return Engine(model, TOKENIZER, **{**settings, **options})


def request(slot, tokens, turn=0, max_new_tokens=10):
    return Request(slot, tokens, np.array([turn, slot], np.uint32), max_new_tokens)


def prompts(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, length).tolist() for length in lengths]


@functools.partial(jax.jit, static_argnames="model")
def score(params, tokens, mask, temperature, model=MODEL):
    logits = model.hidden(params, tokens, mask) @ model.unembed(params)
    return jax.nn.log_softmax(logits / temperature)


def recomputed(params, context, sampled, temperature, model=MODEL):
    """Log-probs of the sampled ids from one forward pass without any cache."""
    row = np.full((1, LENGTH), END, np.int32)
    length = len(context) + len(sampled)
    row[0, :length] = [*context, *sampled]
    mask = np.arange(LENGTH)[None] < length
    scores = score(params, row, mask, temperature, model)
    return scores[0, np.arange(len(context) - 1, length - 1), sampled]


def check_log_probs(params, requests, results, temperature, model=MODEL):
    for asked, got in zip(requests, results):
        assert len(got.tokens) == len(got.log_probs) > 0
        np.testing.assert_allclose(
            got.log_probs,
            recomputed(params, asked.tokens, got.tokens, temperature, model),
            atol=1e-4,
        )


def greedy_without_cache(params, context, count):
    tokens = list(context)
    for _ in range(count):
        row = np.zeros((1, LENGTH), np.int32)
        row[0, : len(tokens)] = tokens
        mask = np.arange(LENGTH)[None] < len(tokens)
        tokens.append(int(score(params, row, mask, 1.0)[0, len(tokens) - 1].argmax()))
    return tokens[len(context) :]


def forced(texts):
    """Parameters of a model that writes ``texts[i]`` after the byte i, then loops.

    Each id's embedding is a sign pattern; with all layers silent the output matrix
    alone decides which id follows which: a model whose next-token table is known.
    """
    params = jax.tree.map(np.zeros_like, make_params())
    draw = np.random.default_rng(0)
    embedding = draw.normal(size=(CONFIG.vocab_size, CONFIG.width))
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    params["embed"]["embedding"] = embedding.astype(np.float32)
    params["final_norm"]["scale"] = np.ones(CONFIG.width, np.float32)
    head = np.zeros((CONFIG.width, CONFIG.vocab_size), np.float32)
    for ids in texts:
        for here, then in itertools.pairwise(ids):
            head[:, then] += 40 * embedding[here]
    params["head"]["kernel"] = head
    return params

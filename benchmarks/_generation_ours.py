"""Our engine, driven as a collector drives it: whoever has its turn asks again."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._generation_work import PAD, STOP, Shape, Work, serve, threads
from mempo_jax.models import hf
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.sampler import Request

_TEMPLATE = (
    "{% for m in messages %}w2 {{ m['content'] }} w1 {% endfor %}"
    "{% if add_generation_prompt %}w2 {% endif %}"
)


def save_model(directory: str, vocabulary: int, seed: int = 0) -> int:
    """Writes a random Llama as a Hugging Face directory; returns its parameters."""
    shape = {name: value for name, value in vars(Shape).items() if name[0] != "_"}
    config = DecoderConfig(
        vocab_size=vocabulary, tied=False, qkv_bias=False, qk_norm=False, **shape
    )
    params = LanguageModel(config, jnp.float32).init(jax.random.key(seed))
    params = jax.tree.map(np.array, params)
    params["head"]["kernel"][:, [PAD, STOP]] = 0  # never the likeliest
    hf.save(directory, config, params, _tokenizer(vocabulary))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _tokenizer(vocabulary: int) -> Tokenizer:
    """Words w0, w1, ...; w1 ends a turn."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, "w2"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="w1", pad_token="w0"
    )
    fast.chat_template = _TEMPLATE
    return Tokenizer(fast)


class Player:
    """See ``serve``."""

    def __init__(self, directory: str, work: Work) -> None:
        config, params, tokenizer = hf.load(directory)
        self._work, self._params = work, jax.device_put(params)
        longest = work.longest(work.turns - 1) + work.new_tokens
        self.engine = Engine(
            LanguageModel(config, jnp.float32),
            tokenizer,
            slots=work.episodes,
            max_length=longest,
            prefill_buckets=(64, 192),
            decode_chunk=work.new_tokens,
            closing_tags=("</act>", "</answer>"),
            lanes=math.gcd(work.episodes, threads()),
            span_buckets=(longest * 5 // 8, longest * 7 // 8),
        )
        self.engine.set_params(self._params)
        self.engine.warm_up()

    def __call__(self, texts):
        self.engine.set_params(self._params)  # nothing is left of the last round
        contexts = [list(ids) for ids in texts[0]]
        made = [[] for _ in texts[0]]
        self._submit(range(len(contexts)), contexts, 0)
        while ended := self.engine.wait():
            going = []
            for request, generation in ended:
                episode = request.slot
                made[episode].append(generation.tokens)
                if len(made[episode]) < len(texts):
                    more = texts[len(made[episode])][episode]
                    contexts[episode] += generation.tokens + more
                    going.append(episode)
            self._submit(going, contexts, 0)
        return [list(turn) for turn in zip(*made)]

    def _submit(self, episodes, contexts, turn: int) -> None:
        key = np.zeros(2, np.uint32)  # greedy
        requests = [
            Request(e, list(contexts[e]), key, self._work.new_tokens) for e in episodes
        ]
        self.engine.submit(requests, temperature=0.0)

    def counts(self) -> dict[str, int]:
        return vars(self.engine.counters)


if __name__ == "__main__":
    players: list[Player] = []

    def make(directory: str, work: Work) -> Player:
        players.append(Player(directory, work))
        return players[0]

    serve(make, ("jax", "flax"), lambda: players[0].counts())

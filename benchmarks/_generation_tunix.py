"""The sampler of google-tunix on its own Llama: whole contexts, left-padded.

It keeps no cache between calls. Each turn has a sampler of its own, whose cache and
prompt length are no longer than that turn needs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.llama3 import model, params

from benchmarks._generation_work import PAD, STOP, Shape, Work, serve


class Ids:
    """A tokenizer whose text is the ids themselves."""

    def encode(self, text: str) -> list[int]:
        return [int(part) for part in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        return 0  # none is put in front

    def eos_id(self) -> int:
        return STOP

    def pad_id(self) -> int:
        return PAD


class Player:
    """See ``serve``."""

    def __init__(self, directory: str, work: Work) -> None:
        config = model.ModelConfig(
            num_layers=Shape.layers,
            vocab_size=work.vocabulary,
            embed_dim=Shape.width,
            hidden_dim=Shape.mlp_width,
            num_heads=Shape.heads,
            head_dim=Shape.head_dim,
            num_kv_heads=Shape.kv_heads,
            rope_theta=int(Shape.rope_theta),  # not read: it always takes this one
            norm_eps=Shape.norm_eps,
        )
        mesh = jax.make_mesh(
            (1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
        )
        llama = params.create_model_from_safe_tensors(
            directory, config, mesh, dtype=jnp.float32
        )
        self._work, self._samplers = work, []
        for turn in range(work.turns):
            size = work.longest(turn) + work.new_tokens
            cache = CacheConfig(size, Shape.layers, Shape.kv_heads, Shape.head_dim)
            self._samplers.append(Sampler(llama, Ids(), cache))

    def __call__(self, texts):
        contexts = [[] for _ in texts[0]]
        made = []
        for turn, rows in enumerate(texts):
            contexts = [c + row for c, row in zip(contexts, rows)]
            out = self._samplers[turn](
                [" ".join(map(str, c)) for c in contexts],
                max_generation_steps=self._work.new_tokens,
                max_prompt_length=self._work.longest(turn),
                temperature=0.0,
            )
            made.append([[int(i) for i in row] for row in out.tokens])
            contexts = [c + row for c, row in zip(contexts, made[-1])]
        return made


if __name__ == "__main__":
    serve(Player, ("jax", "flax", "google-tunix"))

"""transformers.generate on torch: a left-padded batch, in one of two ways.

``fed``: every turn feeds the whole contexts again. ``kept``: the cache of a turn is
handed to the next, which feeds what is new; observations are padded on their left, so
the cache has holes, which the mask leaves out.
"""

from __future__ import annotations

import functools
import sys

import torch
from transformers import AutoModelForCausalLM

from benchmarks._generation_work import PAD, Work, serve, threads


def left_padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, [rows, longest]."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return ids, torch.tensor(mask)


class Player:
    """See ``serve``."""

    def __init__(self, directory: str, work: Work, keep: bool) -> None:
        torch.set_num_threads(threads())
        self._model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32
        ).eval()
        config = self._model.generation_config
        config.eos_token_id, config.pad_token_id = None, PAD
        self._work, self._keep = work, keep

    @torch.inference_mode()
    def __call__(self, texts):
        return self._kept(texts) if self._keep else self._fed(texts)

    def _fed(self, texts):
        contexts = [[] for _ in texts[0]]
        made = []
        for rows in texts:
            contexts = [c + row for c, row in zip(contexts, rows)]
            ids, mask = left_padded(contexts)
            made.append(self._generate(ids, mask).sequences[:, ids.shape[1] :].tolist())
            contexts = [c + row for c, row in zip(contexts, made[-1])]
        return made

    def _kept(self, texts):
        cache, made = None, []
        ids, mask = torch.zeros(2, len(texts[0]), 0, dtype=torch.long)
        for rows in texts:
            new, held = left_padded(rows)
            ids, mask = torch.cat([ids, new], 1), torch.cat([mask, held], 1)
            out = self._generate(ids, mask, past_key_values=cache)
            sampled = out.sequences[:, ids.shape[1] :]
            made.append(sampled.tolist())
            ids, cache = out.sequences, out.past_key_values
            mask = torch.cat([mask, torch.ones_like(sampled)], 1)
        return made

    def _generate(self, ids, mask, **options):
        return self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=self._work.new_tokens,
            do_sample=False,
            use_cache=True,
            return_dict_in_generate=True,
            **options,
        )


if __name__ == "__main__":
    keep = sys.argv[3] == "kept"
    serve(functools.partial(Player, keep=keep), ("torch", "transformers"))

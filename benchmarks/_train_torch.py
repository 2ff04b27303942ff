"""A process that trains with transformers on torch, eager.

    python _train_torch.py DIR B T THREADS

Run as a file, so that its environment needs neither jax nor this project.
"""

from __future__ import annotations

import sys

import _train_batches as work
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    directory, (rows, length, threads) = sys.argv[1], map(int, sys.argv[2:5])
    work.pin(threads)
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.train()
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=work.LEARNING_RATE,
        betas=work.BETAS,
        eps=work.EPS,
        weight_decay=work.DECAY,
    )

    def step(given: dict) -> float:
        tokens = torch.from_numpy(given["tokens"]).long()
        seen = torch.from_numpy(given["token_mask"]).long()
        counted = torch.from_numpy(given["action_mask"])
        targets = tokens.masked_fill(~counted, -100)[:, 1:]
        logits = model(input_ids=tokens, attention_mask=seen, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), work.CLIP)
        optimiser.step()
        optimiser.zero_grad()
        return float(loss.detach())

    shape = rows, length, model.config.vocab_size
    work.serve(step, shape, ["torch", "transformers"])


if __name__ == "__main__":
    main()

"""A process that makes steps of GRPO with TRL's ``GRPOTrainer`` on torch.

    python _grpo_trl.py DIR WORK

Run as a file, so that its environment needs neither jax nor this project.
"""

from __future__ import annotations

import itertools
import tempfile

import _grpo_work as shared
import torch
from _grpo_work import Recipe, Turns, Work
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

STEPS = 10_000  # more than anybody asks for; the last step is when input ends


class Asked(TrainerCallback):
    """Lets the trainer go on by one step whenever it is asked to."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.answers: list[int] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self._wait(control)

    def on_step_end(self, args, state, control, **kwargs):
        self._turns.end(self.answers, state.global_step)
        self._wait(control)

    def _wait(self, control) -> None:
        if not self._turns.begin():
            control.should_training_stop = True


def main() -> None:
    directory, work = shared.arguments()
    turns = Turns(work)
    torch.set_num_threads(work.threads)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    # AutoTokenizer would take Qwen2's own rules for splitting text, not the file's.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    asked = Asked(turns)

    def reward(completions, completion_ids, **others):
        asked.answers = [len(ids) for ids in completion_ids]
        return [shared.even_share(text) for text in completions]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings_of(folder, work),
            train_dataset=prompts_of(work),
            processing_class=tokenizer,
            callbacks=[asked],
        )
        count = sum(leaf.numel() for leaf in model.parameters())
        packages = ("torch", "trl", "transformers", "accelerate")
        turns.ready(packages, probed(model, work), count)
        watch(trainer, turns)
        trainer.train()


def settings_of(folder: str, work: Work) -> GRPOConfig:
    """Its defaults, but for the recipe, and for what only costs time here."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        # On by default: it saves memory and computes the forward pass twice.
        gradient_checkpointing=False,
        per_device_train_batch_size=work.rows,
        num_generations=work.group,
        max_completion_length=work.answer,
        max_steps=STEPS,
        beta=Recipe.kl_coef,
        epsilon=Recipe.clip,
        temperature=Recipe.temperature,
        loss_type="grpo",
        learning_rate=Recipe.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta1=Recipe.betas[0],
        adam_beta2=Recipe.betas[1],
        adam_epsilon=Recipe.eps,
        weight_decay=Recipe.decay,
        max_grad_norm=Recipe.grad_clip,
        logging_steps=STEPS,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
    )


def prompts_of(work: Work) -> Dataset:
    """More prompts than are needed."""
    texts = itertools.chain.from_iterable(work.prompts(step) for step in range(100))
    return Dataset.from_list([{"prompt": text} for text in texts])


def watch(trainer: GRPOTrainer, turns: Turns) -> None:
    """Counts its passes over all rows and the seconds that it samples."""
    generate = trainer._generate_single_turn

    def timed(prompt_ids, *args, **kwargs):
        turns.prompts = [len(ids) for ids in prompt_ids]
        with turns.sampling():
            return generate(prompt_ids, *args, **kwargs)

    def purpose(model, *args, **kwargs) -> str:
        if model is trainer.ref_model:
            return "reference"
        return "gradient" if torch.is_grad_enabled() else "policy"

    trainer._generate_single_turn = timed
    trainer._get_per_token_logps_and_entropies = turns.counting(
        trainer._get_per_token_logps_and_entropies, purpose
    )


def probed(model: torch.nn.Module, work: Work) -> list[float]:
    """Log-probs of all ids of ``probe`` but the first."""
    ids = torch.tensor([shared.probe(work)])
    with torch.no_grad():
        log_probs = model(ids).logits[:, :-1].log_softmax(-1)
    return log_probs.gather(2, ids[:, 1:, None])[0, :, 0].tolist()


if __name__ == "__main__":
    main()

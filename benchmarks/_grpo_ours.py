"""A process that makes steps of GRPO with mempo_jax: ``Trainer.step`` as in a run.

python -m benchmarks._grpo_ours DIR WORK
"""

from __future__ import annotations

import pathlib
import random
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _grpo_work as shared
from benchmarks._grpo_work import FIRST, PAD, STOP, UNKNOWN, Recipe, Shape, Turns, Work
from configs.base import get_config
from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import load_policy
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import RunConfig, from_config
from mempo_jax.core.log_probs import shifted_log_probs
from mempo_jax.envs import StepResult
from mempo_jax.models import hf
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.trajectory import Trajectory
from mempo_jax.training.loop import Trainer

# Of each prompt, beside the words of the observation: instructions, goal, status line
# and the template's signs. Both together must be Work.prompt tokens, which is checked.
FRAME = 11
TEMPLATE = (
    "{% for m in messages %}<none> {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<none> {% endif %}"
)
CONSTANT = 4.0  # of the channel that rules ids out, see ``save_model``


class OneTurn:
    """A task of one turn: any answer ends it."""

    goal = "go"

    def reset(self, seed: int) -> str:
        """The first and only observation; its words are drawn with ``seed``."""
        draw = random.Random(seed)
        work = shared.arguments()[1]
        ids = draw.choices(range(FIRST, work.vocabulary), k=work.prompt - FRAME)
        return shared.spell(ids)

    def step(self, action: str, *, final: bool = False) -> StepResult:
        """Ends the task."""
        return StepResult("", 0.0, True)

    def score(self) -> float:
        """Nothing: the reward function scores the answers."""
        return 0.0

    def useful(self) -> frozenset[int]:
        """No observation is worth remembering."""
        return frozenset()

    def questions(self) -> tuple:
        """There are none."""
        return ()


def reward(trajectories: Sequence[Trajectory]) -> list[float]:
    """The reward of ``_grpo_work``, as ``config.reward.function``."""
    return [shared.even_share(trajectory.actions[0]) for trajectory in trajectories]


def save_model(directory: str, work: Work) -> int:
    """Writes a random Qwen2 that never ends a turn; returns its parameters.

    With tied embeddings and no bias, ids are ruled out by a channel that no layer
    writes to: words have a large positive number there, ``PAD`` and ``STOP`` the
    opposite, so their logits are lower by more than 30.

    Args:
      directory: is made if it does not exist.
      work: gives the numbers of layers and words.
    """
    shape = {name: value for name, value in vars(Shape).items() if name[0] != "_"}
    shape |= {"layers": work.layers, "vocab_size": work.vocabulary}
    config = DecoderConfig(tied=True, qkv_bias=True, qk_norm=False, **shape)
    # One program, not one for each draw.
    params = jax.jit(LanguageModel(config, "float32").init)(jax.random.key(0))
    params = jax.tree.map(np.array, params)
    embedding = params["embed"]["embedding"]
    embedding[:, 0] = CONSTANT
    embedding[[PAD, STOP], 0] = -CONSTANT
    for block, name in (("attention", "output"), ("mlp", "down")):
        params["layers"][block][name]["kernel"][..., 0] = 0
    hf.save(pathlib.Path(directory), config, params, _tokenizer(work.vocabulary))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _tokenizer(vocabulary: int) -> Tokenizer:
    """Words w3, w4, ...; <end> ends a turn."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # No sign may begin a word: it would be found within that word.
    ids = {"<pad>": PAD, "<end>": STOP, "<none>": UNKNOWN}
    ids |= {f"w{number}": number for number in range(FIRST, vocabulary)}
    backend = Backend(models.WordLevel(ids, "<none>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", pad_token="<pad>"
    )
    fast.chat_template = TEMPLATE
    return Tokenizer(fast)


def settings_of(directory: str, work: Work) -> RunConfig:
    """configs/base.py with the work and the recipe of this comparison."""
    config = get_config()
    config.env.name = "benchmarks._grpo_ours:OneTurn"
    config.reward.function = "benchmarks._grpo_ours:reward"
    config.policy.path = directory
    config.credit.modes = ("uniform",)
    config.context.update({"max_context_tokens": work.prompt, "instructions": "go"})
    config.sampling.update(
        {
            "temperature": Recipe.temperature,
            "group_size": work.group,
            "tasks_per_step": work.tasks,
            "max_turns": 1,
            "max_new_tokens": work.answer,
            "slots": work.rows,
            "decode_chunk": work.answer,
            "prefill_buckets": (work.prompt,),
            "drop_degenerate": False,
        }
    )
    config.engine.lanes = work.threads if work.rows % work.threads == 0 else 1
    config.objective.update(
        {
            "aggregation": "trajectory_mean",
            "kl_coef": Recipe.kl_coef,
            "kl_warmup_steps": 0,
            "clip_low": Recipe.clip,
            "clip_high": Recipe.clip,
        }
    )
    length = work.prompt + work.answer
    config.train.update(
        {
            "learning_rate": Recipe.learning_rate,
            "decay_steps": 0,
            "weight_decay": Recipe.decay,
            "adam_b1": Recipe.betas[0],
            "adam_b2": Recipe.betas[1],
            "adam_eps": Recipe.eps,
            "grad_clip": Recipe.grad_clip,
            "minibatches": 1,
            "micro_batch_tokens": work.rows * length,
            "length_buckets": (length,),
        }
    )
    return from_config(config.to_dict())


def main() -> None:
    """Makes the trainer as ``training.run`` does, and answers with its steps."""
    directory, work = shared.arguments()
    turns = Turns(work)
    settings = settings_of(directory, work)
    suite, mesh = make_suite(settings), make_run_mesh(settings)
    policy = load_policy(directory, settings, mesh)
    trainer = Trainer(policy, suite, settings, mesh)
    trainer.warm_up()
    turns.ready(
        ("jax", "jaxlib", "flax", "optax"),
        probed(policy.model, trainer.params, work),
        sum(leaf.size for leaf in jax.tree.leaves(trainer.params)),
    )
    programs = trainer.programs
    programs.score = turns.counting(
        programs.score,
        lambda params, *_: "reference" if params is trainer.reference else "policy",
    )
    programs.accumulate = turns.counting(programs.accumulate, lambda *_: "gradient")
    step = 0
    while turns.begin():
        metrics, trajectories = trainer.step(step)
        turns.seconds = metrics["seconds_sampling"]
        step += 1
        actions = [trajectory.segments[0].is_action for trajectory in trajectories]
        turns.prompts = [len(each) - sum(each) for each in actions]
        turns.end([sum(each) for each in actions], int(trainer.state.step))


def probed(model: LanguageModel, params: object, work: Work) -> np.ndarray:
    """Log-probs of all ids of ``probe`` but the first."""
    ids = jnp.asarray([shared.probe(work)])
    hidden = model.hidden(params, ids, jnp.ones(ids.shape, bool))
    return np.asarray(shifted_log_probs(hidden, model.unembed(params), ids))[0, 1:]


if __name__ == "__main__":
    sys.exit(main())

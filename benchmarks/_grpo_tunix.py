"""A process that makes steps of GRPO with google-tunix: ``GRPOLearner``.

    python _grpo_tunix.py DIR WORK

Run as a file, so that its environment needs no part of this project.
"""

from __future__ import annotations

from collections.abc import Iterator

import _grpo_work as shared
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _grpo_work import PAD, STOP, Recipe, Shape, Turns, Work
from flax import nnx
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen2 import params as qwen2_params
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig

STEPS = 10_000  # more than anybody asks for; the last step is when input ends


class Words:
    """A tokenizer of the words w0, w1, ..."""

    def encode(self, text: str, **kwargs) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids: list[int], **kwargs) -> str:
        return shared.spell(ids)

    def bos_id(self) -> int:
        return PAD  # none is put in front

    def eos_id(self) -> int:
        return STOP

    def pad_id(self) -> int:
        return PAD


def main() -> None:
    directory, work = shared.arguments()
    turns = Turns(work)
    mesh = jax.make_mesh(
        (1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    # Two models: the policy changes, the reference does not.
    policy, reference = (load(directory, mesh, work) for _ in range(2))
    cluster = RLCluster(
        actor=policy,
        reference=reference,
        tokenizer=Words(),
        cluster_config=cluster_config(mesh, work),
    )
    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(
            num_generations=work.group,
            num_iterations=1,
            beta=Recipe.kl_coef,
            epsilon=Recipe.clip,
        ),
        reward_fns=reward,
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(policy, nnx.Param)))
    turns.ready(("jax", "jaxlib", "flax", "google-tunix"), probed(policy, work), count)
    answers = watch(cluster, turns)

    def batches() -> Iterator[dict]:
        # It is asked for the next batch when the step before is done.
        for step in range(STEPS):
            if not turns.begin():
                return
            yield {"prompts": np.array(work.prompts(step))}
            turns.end(answers, cluster.actor_trainer.train_steps)

    learner.train(batches())


def load(directory: str, mesh: jax.sharding.Mesh, work: Work) -> qwen2.Qwen2:
    """The policy, in float32."""
    config = qwen2.ModelConfig(
        num_layers=work.layers,
        vocab_size=work.vocabulary,
        embed_dim=Shape.width,
        hidden_dim=Shape.mlp_width,
        num_heads=Shape.heads,
        head_dim=Shape.head_dim,
        num_kv_heads=Shape.kv_heads,
        rope_theta=int(Shape.rope_theta),
        norm_eps=Shape.norm_eps,
        use_tied_embedding=True,
        dtype=jnp.float32,
        param_dtype=jnp.float32,
    )
    return qwen2_params.create_model_from_safe_tensors(
        directory, config, mesh, dtype=jnp.float32
    )


def cluster_config(mesh: jax.sharding.Mesh, work: Work) -> ClusterConfig:
    """Its defaults, but for the recipe: one mesh for all, caches of exact length."""
    adamw = optax.adamw(
        Recipe.learning_rate,
        b1=Recipe.betas[0],
        b2=Recipe.betas[1],
        eps=Recipe.eps,
        weight_decay=Recipe.decay,
    )
    return ClusterConfig(
        role_to_mesh=dict.fromkeys((Role.ACTOR, Role.REFERENCE, Role.ROLLOUT), mesh),
        rollout_engine="vanilla",
        training_config=RLTrainingConfig(
            actor_optimizer=optax.chain(
                optax.clip_by_global_norm(Recipe.grad_clip), adamw
            ),
            eval_every_n_steps=STEPS,
            max_steps=STEPS,
        ),
        rollout_config=RolloutConfig(
            max_tokens_to_generate=work.answer,
            max_prompt_length=work.prompt,
            kv_cache_size=work.prompt + work.answer,
            temperature=Recipe.temperature,
            top_p=1.0,
        ),
    )


def reward(prompts, completions, **others) -> list[float]:
    """The reward of ``_grpo_work``."""
    return [shared.even_share(text) for text in completions]


def watch(cluster: RLCluster, turns: Turns) -> list[int]:
    """Counts its passes over all rows and the seconds that it samples.

    Returns:
      The tokens of each answer of the last step, kept up to date.
    """
    generate, answers = cluster.generate, []

    def timed(*args, **kwargs):
        with turns.sampling():
            output = generate(*args, **kwargs)
        answers[:] = [len(ids) for ids in output.tokens]
        given = np.asarray(output.left_padded_prompt_tokens) != PAD
        turns.prompts = given.sum(axis=1).tolist()
        return output

    cluster.generate = timed
    for name, purpose in (
        ("get_ref_per_token_logps", "reference"),
        ("get_old_per_token_logps", "policy"),
        ("update_actor", "gradient"),
    ):
        call = getattr(cluster, name)
        setattr(cluster, name, turns.counting(call, lambda *_, p=purpose, **__: p))
    return answers


def probed(model: qwen2.Qwen2, work: Work) -> np.ndarray:
    """Log-probs of all ids of ``probe`` but the first."""
    ids = jnp.asarray([shared.probe(work)])
    count = ids.shape[1]
    earlier = jnp.tril(jnp.ones((1, count, count), bool))
    logits, _ = model(ids, jnp.arange(count)[None], None, earlier)
    log_probs = jax.nn.log_softmax(logits[:, :-1])
    return np.asarray(jnp.take_along_axis(log_probs, ids[:, 1:, None], 2))[0, :, 0]


if __name__ == "__main__":
    main()

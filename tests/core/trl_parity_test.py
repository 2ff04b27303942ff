"""Live parity with TRL's GRPO loss on torch: ``pytest -m parity`` (extra [parity]).

TRL's own method computes its loss from stored log-probs; a stand-in takes the place of
the trainer that it belongs to.
"""

import collections
import types

import jax
import numpy as np
import pytest

from mempo_jax.core import group_normalise, policy_objective
from mempo_jax.core.advantages import degenerate

pytestmark = pytest.mark.parity

LENGTH = 24
PAIRS = {
    "grpo": {"aggregation": "trajectory_mean"},
    "bnpo": {"aggregation": "token_mean"},
    "dapo": {"aggregation": "token_mean"},
    "dr_grpo": {"aggregation": "constant", "constant_length": LENGTH},
}


def batch_of(seed=0, rows=6, length=9):
    rng = np.random.default_rng(seed)
    shape = (rows, length)
    log_probs = -rng.exponential(size=shape)
    batch = {
        "log_probs": log_probs,
        "old_log_probs": log_probs + 0.3 * rng.normal(size=shape),
        "ref_log_probs": log_probs + 0.5 * rng.normal(size=shape),
        "behaviour_log_probs": log_probs + 0.5 * rng.normal(size=shape),
        "advantage": np.repeat(rng.normal(size=(rows, 1)), length, axis=1),
    }
    batch = {name: values.astype(np.float32) for name, values in batch.items()}
    lengths = rng.integers(1, length + 1, rows)
    return batch | {"mask": np.arange(length) < lengths[:, None]}


def theirs(batch, loss_type, *, low, high, beta, delta=None, cap=None):
    """TRL's loss and its gradient by the log-probs."""
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    tensors = {
        name: torch.tensor(values)
        for name, values in batch.items()
        if name != "log_probs"
    }
    log_probs = torch.tensor(batch["log_probs"], requires_grad=True)
    mask = tensors["mask"].int()
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            log_probs,
            torch.zeros_like(log_probs),
            None,
        ),
        loss_type=loss_type,
        importance_sampling_level="token",
        epsilon_low=low,
        epsilon_high=high,
        beta=beta,
        max_completion_length=LENGTH,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=cap is not None,
        vllm_importance_sampling_correction=True,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        model=types.SimpleNamespace(training=True),
        args=types.SimpleNamespace(
            delta=delta, use_bias_correction_kl=False, steps_per_generation=1
        ),
        accelerator=types.SimpleNamespace(
            num_processes=1,
            gather=lambda values: values,
            reduce=lambda values, reduction: values,
        ),
        _metrics={"train": collections.defaultdict(list)},
    )
    rows = len(mask)
    inputs = {
        "prompt_ids": torch.zeros((rows, 1), dtype=torch.long),
        "prompt_mask": torch.ones((rows, 1), dtype=torch.int),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": tensors["advantage"][:, 0],
        "old_per_token_logps": tensors["old_log_probs"],
        "ref_per_token_logps": tensors["ref_log_probs"],
        "num_items_in_batch": mask.sum(),
    }
    if cap is not None:
        drawn = tensors["old_log_probs"] - tensors["behaviour_log_probs"]
        inputs["importance_sampling_ratio"] = torch.exp(drawn).clamp(max=cap)
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.item(), log_probs.grad.numpy()


def ours(batch, loss_type, *, low, high, beta, delta=None, cap=None):
    def loss(log_probs):
        total, count, _ = policy_objective(
            **{**batch, "log_probs": log_probs},
            **PAIRS[loss_type],
            clip_low=low,
            clip_high=high,
            dual_clip=delta,
            kl_coef=beta,
            kl_estimator="k3",
            importance_cap=cap,
        )
        return total / count

    return jax.value_and_grad(loss)(batch["log_probs"])


@pytest.mark.parametrize("loss_type", PAIRS)
@pytest.mark.parametrize(
    "options",
    [
        {"low": 0.2, "high": 0.2, "beta": 0.0},
        {"low": 0.2, "high": 0.28, "beta": 0.04},
        {"low": 0.1, "high": 0.3, "beta": 0.5, "delta": 1.4},
        {"low": 0.2, "high": 0.2, "beta": 0.04, "cap": 1.5},
    ],
    ids=["plain", "kl", "dual clip", "importance"],
)
def test_the_loss_is_that_of_trl(loss_type, options):
    for seed in range(5):
        batch = batch_of(seed)
        loss, gradient = theirs(batch, loss_type, **options)
        got, got_gradient = ours(batch, loss_type, **options)
        np.testing.assert_allclose(got, loss, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(got_gradient, gradient, atol=1e-5, rtol=1e-5)


def test_the_advantage_is_that_of_trl():
    import torch
    from trl.trainer.utils import nanstd

    reward = np.random.default_rng(0).random((5, 8)).astype(np.float32)
    reward[1] = 0.5
    rows = torch.tensor(reward)
    expected = (rows - rows.mean(1, keepdim=True)) / (nanstd(rows, 1)[:, None] + 1e-4)
    with pytest.warns(UserWarning, match="learning rate"):
        got = group_normalise(reward, ddof=1, eps=1e-4)
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-5)
    assert np.asarray(degenerate(reward)).tolist() == [False, True, *[False] * 3]

"""The compiled programs of training: score, accumulate, apply.

Each is built once for a model, a mesh and settings, and compiles once for each shape of
rows. Micro-batches add (gradient sum, loss sum, count), and ``apply`` divides once at
the end, so how rows are cut into micro-batches changes nothing but memory.

Sums of one optimiser batch: how a micro-batch adds its gradient to them.

Arrays of nothing, in the shapes of a run: what its programs are compiled on.

Keeps the host from running far ahead of the devices.

Calls of compiled programs return before they have run. A step could be handed over as
a whole within milliseconds, and nobody could then leave it for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from mempo_jax.config import RunConfig
from mempo_jax.core import AdvantageSettings, CreditConfig
from mempo_jax.distributed import placement
from mempo_jax.models import lora
from mempo_jax.rollout.assemble import BatchShapes, assemble_trajectories
from mempo_jax.training import loss as losses
from mempo_jax.training.loss import LossInputs, Model, ObjectiveSettings
from mempo_jax.training.state import add_updates, fresh_state
from mempo_jax.types import Array, Rows, TrainState, Trajectories

# Of a pass on one CPU: what so many tokens make is written to memory that the pass
# before has used, and is read again while it is near. Fewer make products slower.
CPU_PASS = 1_024


class Accumulator(NamedTuple):
    """Sums over the micro-batches so far: float32 gradients, loss, count, figures."""

    grads: Any
    loss_sum: Array
    count: Array
    aux: dict[str, Array]


def add(sums: Accumulator, loss: Callable, params: Any) -> Accumulator:
    """Adds value of ``loss(params) -> (sum, count, aux)``, and the gradient by what is
    trained of ``params``."""
    trained, frozen = lora.split(params)

    def with_aux(trained):
        loss_sum, count, aux = loss(lora.join(trained, frozen))
        return loss_sum, (count, aux)

    value, grads = jax.value_and_grad(with_aux, has_aux=True)(trained)
    loss_sum, (count, aux) = value
    return jax.tree.map(jnp.add, sums, Accumulator(grads, loss_sum, count, aux))


def scan_row_chunks(
    one: Callable, sums: Accumulator, batch: Any, tokens: int
) -> Accumulator:
    """``one(sums, part)`` over equal parts of the rows of ``batch``, in turn.

    batch: a tree of arrays [B, ...], the first of them [B, T]. tokens: of a part, at
    least, where B can be divided so; 0 for all at once.
    """
    rows, length = jax.tree.leaves(batch)[0].shape
    most = rows * length // tokens if tokens else 1
    parts = next(n for n in range(max(1, min(most, rows)), 0, -1) if rows % n == 0)
    if parts == 1:
        return one(sums, batch)
    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
    return jax.lax.scan(lambda sums, part: (one(sums, part), None), sums, split)[0]


def dummy_trajectories(settings: RunConfig, shapes: BatchShapes) -> Trajectories:
    """The facts of a step's trajectories, none of them valid."""
    size = settings.sampling.group_size
    count = size * settings.sampling.tasks_per_step
    empty = assemble_trajectories([], 1, shapes)

    def grow(leaf: np.ndarray) -> np.ndarray:
        if leaf.shape[:1] == (1,):
            return np.zeros((count // size, size), leaf.dtype)
        return np.zeros((count, *leaf.shape[1:]), leaf.dtype)

    return jax.tree.map(grow, empty)


def dummy_rows(count: int, length: int) -> Rows:
    """One micro-batch [count, length] without a token."""
    shape = (count, length)
    whole = np.zeros(shape, np.int32)
    no = np.zeros(shape, bool)
    return Rows(
        tokens=whole,
        token_mask=no,
        action_mask=no,
        behaviour_log_probs=np.zeros(shape, np.float32),
        turn_id=whole,
        op_id=whole - 1,
        trajectory_index=np.zeros(count, np.int32),
        valid=np.zeros(count, bool),
    )


SHORT_S, LONG_S = 1.0, 4.0  # between two waits
LARGEST_STRIDE = 64


class RunAheadLimit:
    """Waits for a result now and then: every one where they take seconds, hardly ever
    where they take milliseconds, since the devices idle meanwhile."""

    def __init__(self) -> None:
        self._stride, self._count = 1, 0
        self._waited = time.monotonic()

    def __call__(self, result: Any) -> None:
        """Told of each result that was asked for; may wait until it is there."""
        self._count += 1
        if self._count < self._stride:
            return
        jax.block_until_ready(result)
        now = time.monotonic()
        each_s = (now - self._waited) / self._count
        self._waited, self._count = now, 0
        if each_s * self._stride < SHORT_S:
            self._stride = min(2 * self._stride, LARGEST_STRIDE)
        elif each_s * self._stride > LONG_S:
            self._stride = max(1, self._stride // 2)


class TrainPrograms:
    """The compiled programs, for one model, mesh, optimiser and settings.

    Numpy arguments are placed on the mesh here, explicitly; what is already there is
    left. ``accumulate`` and ``supervised_accumulate`` consume (donate) the accumulator
    passed to them, ``apply`` the state.

    ``params`` are always whole, what is frozen included. Gradients, accumulators and
    the state are those of what is trained: the adapters of a model that has some
    (``models.lora``), else all of it.

    pass_tokens: see ``accumulating.in_passes``; None: as is best here.
    """

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        optimiser: optax.GradientTransformation,
        objective: ObjectiveSettings,
        advantage: AdvantageSettings,
        credit: CreditConfig,
        table: placement.PartitionRules = placement.DECODER_PARTITION_RULES,
        pass_tokens: int | None = None,
    ):
        self.mesh = mesh
        if pass_tokens is None:
            alone = mesh.size == 1 and jax.default_backend() == "cpu"
            pass_tokens = CPU_PASS if alone else 0
        self._pass = pass_tokens
        self._optimiser = optimiser
        self._rows = placement.row_sharding(mesh)
        self._model = model.with_rows(self._rows) if mesh.size > 1 else model
        self._whole = placement.replicated(mesh)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        trained, _ = lora.split(shapes)
        self._params = placement.shardings(shapes, mesh, table)
        self._state = placement.shardings(
            jax.eval_shape(partial(fresh_state, optimiser=optimiser), trained),
            mesh,
            table,
        )
        self._compile(objective, advantage, credit)

    def jitted(self) -> dict[str, Any]:
        """The jitted functions by name, for lowering them without arrays."""
        return {
            "score": self._score,
            "accumulate": self._accumulate,
            "supervised": self._supervised,
            "apply": self._apply,
        }

    def place_rows(self, rows: Any) -> Any:
        """Rows, or any tree of [B, ...] arrays, split over data and fsdp."""
        for leaf in jax.tree.leaves(rows):
            placement.check_rows(leaf.shape[0], self.mesh)
        return placement.put(rows, self._rows)

    def loss_inputs(
        self,
        trajectories: Trajectories,
        token_count: Array,
        bonus_scale: float = 1.0,
    ) -> LossInputs:
        """Group advantage and credit of ops, from what happened.

        Args:
          trajectories: N = G * S of them.
          token_count: [N] from ``loss.count_tokens``, over the batches of one update.
          bonus_scale: of all bonuses, from ``core.bonus_scale``.
        """
        arrays = self._put((trajectories, token_count))
        return self._loss_inputs(*arrays, self._scalar(bonus_scale))

    def score(self, params: Any, rows: Rows, temperature: float) -> tuple[Array, Array]:
        """Log-probs of the counted tokens and entropy of what they were drawn from.

        Returns:
          Two f32 [B, T] by the alignment rule, at ``temperature``; 0 at all that does
          not count, see ``loss.counted``: logits are made for little else.
        """
        rows = self.place_rows(rows)
        return self._score(params, rows, self._scalar(temperature))

    def zeros(self) -> Accumulator:
        """An empty accumulator for ``accumulate``."""
        return self._zeros()

    def supervised_zeros(self) -> Accumulator:
        """An empty accumulator for ``supervised_accumulate``."""
        return self._supervised_zeros()

    def accumulate(
        self,
        params: Any,
        accumulator: Accumulator,
        rows: Rows,
        old_log_probs: Array,
        ref_log_probs: Array,
        inputs: LossInputs,
        kl_coef: float,
        temperature: float,
    ) -> Accumulator:
        """Adds one micro-batch of the policy objective.

        token advantage = weight x group advantage + bonus, laid on tokens from
        ``inputs`` by each row's op_id and turn_id.

        Args:
          params: the policy's.
          accumulator: from ``zeros`` or the micro-batch before; consumed.
          old_log_probs, ref_log_probs: f32 [B, T] from ``score``.
          temperature: that of sampling and of both log-probs.
        """
        arrays = self.place_rows((rows, old_log_probs, ref_log_probs))
        scalars = self._scalar(kl_coef), self._scalar(temperature)
        return self._accumulate(
            params, accumulator, *arrays, self._put(inputs), *scalars
        )

    def supervised_accumulate(
        self, params: Any, accumulator: Accumulator, rows: Rows
    ) -> Accumulator:
        """Adds one micro-batch of cross-entropy on action tokens, at temperature 1."""
        return self._supervised(params, accumulator, self.place_rows(rows))

    def apply(
        self, state: TrainState, accumulator: Accumulator
    ) -> tuple[TrainState, dict[str, Array]]:
        """One optimiser step on the accumulated gradient; ``state`` is consumed.

        Where loss or gradient is not finite (``skipped``), or nothing was counted
        (``empty``), parameters, optimiser state and step stay as they are.

        Returns:
          The state, and scalars: loss, grad_norm (before clipping), count, tokens,
          skipped, empty, and the accumulated figures as means over tokens.
        """
        return self._apply(state, accumulator)

    def _compile(
        self,
        objective: ObjectiveSettings,
        advantage: AdvantageSettings,
        credit: CreditConfig,
    ) -> None:
        model, chunk = self._model, objective.logit_chunk
        rows, whole, params = self._rows, self._whole, self._params
        sums = Accumulator(self._state.params, whole, whole, whole)

        def loss_inputs(trajectories, token_count, scale):
            given = trajectories, token_count, advantage, credit, scale
            return losses.loss_inputs(*given)

        def score(params, rows, temperature):
            return losses.score(model, params, rows, temperature, chunk)

        def accumulate(params, sums, rows, old, ref, *rest):
            def one(sums, part):
                given = *part, *rest, objective, credit
                return add(sums, lambda p: losses.policy_loss(model, p, *given), params)

            return scan_row_chunks(one, sums, (rows, old, ref), self._pass)

        def supervised(params, sums, rows):
            def one(sums, part):
                given = part, chunk
                return add(
                    sums, lambda p: losses.supervised_loss(model, p, *given), params
                )

            return scan_row_chunks(one, sums, rows, self._pass)

        self._loss_inputs = jax.jit(loss_inputs, out_shardings=whole)
        self._score = jax.jit(
            score, in_shardings=(params, rows, whole), out_shardings=rows
        )
        self._zeros, self._supervised_zeros = (
            jax.jit(partial(self._trace_zeros, keys), out_shardings=sums)
            for keys in (objective.aux_keys, ("tokens",))
        )
        self._accumulate = jax.jit(
            accumulate,
            in_shardings=(params, sums, rows, rows, rows, whole, whole, whole),
            out_shardings=sums,
            donate_argnums=1,
        )
        self._supervised = jax.jit(
            supervised,
            in_shardings=(params, sums, rows),
            out_shardings=sums,
            donate_argnums=1,
        )
        self._apply = jax.jit(
            self._trace_apply,
            in_shardings=(self._state, sums),
            out_shardings=(self._state, whole),
            donate_argnums=0,  # no result could use the gradient's memory
        )

    def _trace_zeros(self, keys: tuple[str, ...]) -> Accumulator:
        shapes = jax.eval_shape(self._model.init, jax.random.key(0))
        trained, _ = lora.split(shapes)
        grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), trained)
        return Accumulator(
            grads, jnp.zeros(()), jnp.zeros(()), {key: jnp.zeros(()) for key in keys}
        )

    def _trace_apply(self, state: TrainState, sums: Accumulator):
        divisor = jnp.maximum(sums.count, 1)
        loss = sums.loss_sum / divisor
        grads = jax.tree.map(lambda grad: grad / divisor, sums.grads)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        empty = sums.count == 0
        updates, opt_state = self._optimiser.update(
            grads, state.opt_state, state.params
        )
        new = TrainState(add_updates(state.params, updates), opt_state, state.step + 1)
        use = finite & ~empty
        state = jax.tree.map(lambda a, b: jnp.where(use, a, b), new, state)
        tokens = jnp.maximum(sums.aux["tokens"], 1)
        means = {k: v / tokens for k, v in sums.aux.items() if k != "tokens"}
        return state, means | {
            "loss": loss,
            "grad_norm": norm,
            "count": sums.count,
            "tokens": sums.aux["tokens"],
            "skipped": ~finite,
            "empty": empty,
        }

    def _scalar(self, value: Any) -> Array:
        if not isinstance(value, jax.Array):
            value = np.float32(value)
        return placement.put(value, self._whole)

    def _put(self, tree: Any) -> Any:
        return placement.put(tree, self._whole)

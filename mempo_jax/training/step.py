"""The compiled programs of training: score, accumulate, apply.

Each is built once for a model, a mesh and settings, and compiles once for each shape of
rows. Micro-batches add (gradient sum, loss sum, count), and ``apply`` divides once at
the end, so how rows are cut into micro-batches changes nothing but memory.

``TrainPrograms`` compiles the functions after it: ``accumulate_gradient`` is the step
of reinforcement learning, ``accumulate_supervised`` that of the cold start, and
``apply_update`` the update of both.
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

from mempo_jax.config import ObjectiveConfig, RunConfig
from mempo_jax.core import CreditConfig
from mempo_jax.distributed import placement
from mempo_jax.models import lora
from mempo_jax.rollout.assemble import BatchShapes, assemble_trajectories
from mempo_jax.rollout.sampler import in_one_order
from mempo_jax.training import loss as losses
from mempo_jax.training.loss import LossInputs, Model, Scores, scan_row_chunks
from mempo_jax.training.state import fresh_state
from mempo_jax.types import Array, Rows, TrainState, Trajectories

# Tokens of a pass, with or without a gradient, on one CPU: each pass reuses the memory
# of the one before, while it is still in the cache. Fewer make slower matrix products.
CPU_PASS = 1_024
SHORT_S, LONG_S = 1.0, 4.0  # between two waits: below wait less often, above more
LARGEST_STRIDE = 64  # results between two waits, so that a stop is never far away


class Accumulator(NamedTuple):
    """Sums over the micro-batches so far, all float32.

    Attributes:
      grads: gradient of loss_sum by what is trained.
      loss_sum: scalar.
      count: scalar, what loss_sum is to be divided by.
      aux: further sums for reporting, by name.
    """

    grads: Any
    loss_sum: Array
    count: Array
    aux: dict[str, Array]


class TrainPrograms:
    """The compiled programs, for one model, mesh, optimiser and settings.

    Numpy arguments are placed on the mesh here, explicitly; what is already there is
    left. ``accumulate`` and ``supervised_accumulate`` consume (donate) the accumulator
    passed to them, ``apply`` the state.

    ``params`` are always all parameters, frozen ones included. Gradients, accumulators
    and the state are those of what is trained: the adapters of a model that has some
    (``models.lora``), else everything.
    """

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        optimiser: optax.GradientTransformation,
        objective: ObjectiveConfig,
        credit: CreditConfig,
        *,
        outcome_gate: bool,
        param_dtype: Any = jnp.float32,
        partition_rules: placement.PartitionRules = placement.DECODER_PARTITION_RULES,
        pass_tokens: int | None = None,
    ):
        """Compiles nothing yet; each program compiles at its first call.

        Args:
          model: the policy, or a reference of another architecture.
          mesh: devices to run on.
          optimiser: makes updates from the gradient.
          objective, credit: settings, constants of the compiled programs.
          outcome_gate: see ``core.advantages.gated_normalise``.
          param_dtype: of the parameters that passes take, unless these are adapters.
          partition_rules: how parameters are split over the mesh.
          pass_tokens: see ``scan_row_chunks``; None: as is best on this machine.
        """
        self.mesh = mesh
        if pass_tokens is None:
            alone = mesh.size == 1 and jax.default_backend() == "cpu"
            pass_tokens = CPU_PASS if alone else 0
        self._pass_tokens = pass_tokens
        self._optimiser = optimiser
        self._rows = placement.row_sharding(mesh)
        # Pins activations to their rows, or each device might compute the rows of all.
        self._model = model.with_rows(self._rows) if mesh.size > 1 else model
        self._replicated = placement.replicated(mesh)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        trained, frozen = lora.split(shapes)
        # Adapters are small and stay float32 in every pass.
        self._narrow = None if frozen else jnp.dtype(param_dtype)
        if self._narrow == jnp.float32:
            self._narrow = None
        self._params = placement.shardings(shapes, mesh, partition_rules)
        self._state = placement.shardings(
            jax.eval_shape(partial(fresh_state, optimiser=optimiser), trained),
            mesh,
            partition_rules,
        )
        self._compile(objective, credit, outcome_gate)

    def jitted(self) -> dict[str, Any]:
        """The jitted functions by name, for lowering them without arrays."""
        return {
            "score": self._score,
            "accumulate": self._accumulate,
            "supervised": self._supervised,
            "apply": self._apply,
        }

    def place_rows(self, rows: Any) -> Any:
        """Splits rows over the axes data and fsdp of the mesh.

        Args:
          rows: any tree of arrays [B, ...].

        Raises:
          ValueError: B cannot be split evenly.
        """
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
          trajectories: facts of N = G * S trajectories.
          token_count: [N] from ``loss.count_tokens``, over the batches of one update.
          bonus_scale: factor of all bonuses, from ``core.bonus_scale``.
        """
        arrays = self._put((trajectories, token_count))
        scale = self._scalar(bonus_scale)
        with in_one_order(self.mesh.size):
            return self._loss_inputs(*arrays, bonus_scale=scale)

    def score(self, params: Any, rows: Rows, temperature: float) -> Scores:
        """Log-probs of the counted tokens, and entropy of their distributions.

        Args:
          params: all parameters of the policy or the reference.
          rows: B segments of T tokens.
          temperature: that of sampling.

        Returns:
          By the alignment rule; 0 for tokens that do not count (see ``loss.counted``),
          whose logits are hardly ever computed.
        """
        rows, temperature = self.place_rows(rows), self._scalar(temperature)
        with in_one_order(self.mesh.size):
            return self._score(params, rows, temperature)

    @property
    def narrows(self) -> bool:
        """Whether passes take copies of the masters, in another dtype."""
        return self._narrow is not None

    def trained(self, state: TrainState) -> Any:
        """The trained parameters as passes take them.

        Args:
          state: not consumed.

        Returns:
          The masters themselves, or copies of them if ``narrows``.
        """
        if not self.narrows:
            return state.params
        with in_one_order(self.mesh.size):
            return self._trained(state.params)

    def zeros(self) -> Accumulator:
        """An empty accumulator for ``accumulate``."""
        with in_one_order(self.mesh.size):
            return self._zeros()

    def supervised_zeros(self) -> Accumulator:
        """An empty accumulator for ``supervised_accumulate``."""
        return self._supervised_zeros()

    def accumulate(
        self,
        params: Any,
        accumulator: Accumulator,
        rows: Rows,
        old_log_probs: Array | None,
        ref_log_probs: Array | None,
        inputs: LossInputs,
        kl_coef: float,
        temperature: float,
    ) -> tuple[Accumulator, Scores | None]:
        """Adds one micro-batch of the policy objective.

        token advantage = weight x group advantage + bonus, laid on tokens from
        ``inputs`` by each row's op_id and turn_id.

        Args:
          params: all parameters of the policy.
          accumulator: from ``zeros`` or the micro-batch before; consumed.
          rows: B segments of T tokens.
          old_log_probs: f32 [B, T] from ``score``; None: those of ``params``, which is
            so before the first update of a step.
          ref_log_probs: f32 [B, T] from ``score``; None: there is no KL.
          inputs: from ``loss_inputs``, for the whole optimiser batch.
          kl_coef: coefficient of the KL to the reference.
          temperature: that of sampling and of both log-probs.

        Returns:
          The sums, and without ``old_log_probs`` what ``score`` would have given: this
          pass computes it anyway.
        """
        arrays = self.place_rows((rows, old_log_probs, ref_log_probs))
        scalars = self._scalar(kl_coef), self._scalar(temperature)
        inputs = self._put(inputs)
        with in_one_order(self.mesh.size):
            return self._accumulate(params, accumulator, *arrays, inputs, *scalars)

    def supervised_accumulate(
        self, params: Any, accumulator: Accumulator, rows: Rows
    ) -> Accumulator:
        """Adds one micro-batch of cross-entropy on action tokens, at temperature 1.

        Args:
          params: all parameters of the policy.
          accumulator: from ``supervised_zeros`` or the micro-batch before; consumed.
          rows: B segments of T tokens.
        """
        return self._supervised(params, accumulator, self.place_rows(rows))

    def apply(
        self, state: TrainState, accumulator: Accumulator
    ) -> tuple[TrainState, dict[str, Array]]:
        """One optimiser step on the accumulated gradient.

        If loss or gradient is not finite (``skipped``), or nothing was counted
        (``empty``), parameters, optimiser state and step stay as they are.

        Args:
          state: consumed.
          accumulator: sums of all micro-batches of the update.

        Returns:
          The state, and scalars: loss, grad_norm (before clipping), count, tokens,
          skipped, empty, and the accumulated sums as means over tokens.
        """
        with in_one_order(self.mesh.size):
            return self._apply(state, accumulator)

    def _compile(
        self, objective: ObjectiveConfig, credit: CreditConfig, outcome_gate: bool
    ) -> None:
        rows, replicated, params = self._rows, self._replicated, self._params
        # A gradient is split like the parameter it belongs to, so adding moves nothing.
        sums = Accumulator(self._state.params, replicated, replicated, replicated)
        # Bound by keyword: what jit traces are the named functions of this module.
        self._loss_inputs = jax.jit(
            partial(
                losses.loss_inputs,
                objective=objective,
                credit=credit,
                outcome_gate=outcome_gate,
            ),
            out_shardings=replicated,  # small, and every device lays it on its own rows
        )
        self._score = jax.jit(
            partial(
                losses.score_in_passes,
                self._model,
                logit_chunk=objective.logit_chunk,
                pass_tokens=self._pass_tokens,
            ),
            in_shardings=(params, rows, replicated),
            out_shardings=rows,  # read by ``accumulate`` on the device of their row
        )
        # Compiled too: made on the devices, already split, without an upload.
        self._zeros, self._supervised_zeros = (
            jax.jit(partial(zero_sums, self._model, keys), out_shardings=sums)
            for keys in (objective.aux_keys, ("tokens",))
        )
        self._accumulate = jax.jit(
            partial(
                accumulate_gradient,
                model=self._model,
                objective=objective,
                credit=credit,
                pass_tokens=self._pass_tokens,
            ),
            in_shardings=(
                *(params, sums, rows, rows, rows),
                *(replicated, replicated, replicated),
            ),
            out_shardings=(sums, rows),
            donate_argnums=1,  # the old sums' memory holds the new ones
        )
        self._supervised = jax.jit(
            partial(
                accumulate_supervised,
                model=self._model,
                logit_chunk=objective.logit_chunk,
                pass_tokens=self._pass_tokens,
            ),
            in_shardings=(params, sums, rows),
            out_shardings=sums,
            donate_argnums=1,  # as above
        )
        # One program for all copies, each made where its master is. They are narrow
        # before they are gathered or moved, which sends half as many bytes.
        self._trained = jax.jit(
            partial(jax.tree.map, lambda leaf: leaf.astype(self._narrow)),
            out_shardings=self._state.params,
        )
        self._apply = jax.jit(
            partial(apply_update, optimiser=self._optimiser),
            in_shardings=(self._state, sums),
            out_shardings=(self._state, replicated),
            donate_argnums=0,  # no result could use the gradient's memory
        )

    def _scalar(self, value: Any) -> Array:
        if not isinstance(value, jax.Array):
            value = np.float32(value)  # a Python float is weakly typed: a second trace
        return placement.put(value, self._replicated)

    def _put(self, tree: Any) -> Any:
        return placement.put(tree, self._replicated)


def accumulate_gradient(
    params: Any,
    sums: Accumulator,
    rows: Rows,
    old_log_probs: Array | None,
    ref_log_probs: Array | None,
    inputs: LossInputs,
    kl_coef: Array,
    temperature: Array,
    *,
    model: Model,
    objective: ObjectiveConfig,
    credit: CreditConfig,
    pass_tokens: int,
) -> tuple[Accumulator, Scores | None]:
    """Adds the policy loss of one micro-batch, and its gradient, to ``sums``.

    Args:
      params: all parameters of the policy, frozen ones included.
      sums: of the micro-batches so far.
      rows: B segments of T tokens.
      old_log_probs: f32 [B, T], by the policy before the step; None: by ``params``.
      ref_log_probs: f32 [B, T], by the frozen reference; None: no KL.
      inputs: group advantages and credit of the whole optimiser batch.
      kl_coef: scalar.
      temperature: scalar, that of sampling.
      model, objective, credit: constants of the compiled program.
      pass_tokens: see ``scan_row_chunks``.

    Returns:
      The sums, and the scores of ``params`` if they are the old policy's.
    """

    def add_chunk(sums: Accumulator, chunk: Any) -> tuple[Accumulator, Scores | None]:
        def loss(params: Any) -> tuple[Array, Array, dict[str, Array], Scores]:
            return losses.policy_loss(
                model,
                params,
                *chunk,
                inputs,
                kl_coef,
                temperature,
                objective,
                credit,
            )

        sums, scores = add(sums, loss, params)
        # Unused results cost nothing: the compiler drops what only they need.
        return sums, scores if old_log_probs is None else None

    batch = rows, old_log_probs, ref_log_probs
    return scan_row_chunks(add_chunk, sums, batch, pass_tokens)


def accumulate_supervised(
    params: Any,
    sums: Accumulator,
    rows: Rows,
    *,
    model: Model,
    logit_chunk: int,
    pass_tokens: int,
) -> Accumulator:
    """Adds the cross-entropy of one micro-batch, and its gradient, to ``sums``.

    Args:
      params: all parameters of the policy, frozen ones included.
      sums: of the micro-batches so far.
      rows: B segments of T tokens.
      model: constant of the compiled program.
      logit_chunk: tokens whose logits exist at one time.
      pass_tokens: see ``scan_row_chunks``.
    """

    def add_chunk(sums: Accumulator, chunk: Rows) -> tuple[Accumulator, None]:
        def loss(params: Any) -> tuple[Array, Array, dict[str, Array], None]:
            return *losses.supervised_loss(model, params, chunk, logit_chunk), None

        return add(sums, loss, params)

    return scan_row_chunks(add_chunk, sums, rows, pass_tokens)[0]


def apply_update(
    state: TrainState, sums: Accumulator, *, optimiser: optax.GradientTransformation
) -> tuple[TrainState, dict[str, Array]]:
    """One optimiser step on the accumulated gradient; see ``TrainPrograms.apply``.

    Args:
      state: before the update.
      sums: of all micro-batches of the update.
      optimiser: makes updates from the gradient.
    """
    divisor = jnp.maximum(sums.count, 1)
    loss = sums.loss_sum / divisor
    grads = jax.tree.map(lambda grad: grad / divisor, sums.grads)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    empty = sums.count == 0
    updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    new = TrainState(params, opt_state, state.step + 1)
    use = finite & ~empty
    # Chosen by where, so that a bad update leaves every leaf as it was.
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


def add(sums: Accumulator, loss: Callable, params: Any) -> tuple[Accumulator, Any]:
    """Adds the value of a loss and its gradient by what is trained.

    Args:
      sums: so far.
      loss: params -> (sum, count, aux, further results).
      params: all parameters; frozen ones get no gradient.

    Returns:
      The sums, and the further results of ``loss``.
    """
    trained, frozen = lora.split(params)

    def with_aux(trained):
        loss_sum, *others = loss(lora.join(trained, frozen))
        return loss_sum, others

    value, grads = jax.value_and_grad(with_aux, has_aux=True)(trained)
    loss_sum, (count, aux, results) = value
    new = Accumulator(grads, loss_sum, count, aux)
    return jax.tree.map(jnp.add, sums, new), results


def zero_sums(model: Model, keys: tuple[str, ...]) -> Accumulator:
    """An empty accumulator for what is trained of a model.

    Args:
      model: gives the shapes of its parameters.
      keys: names of the sums that the loss reports.
    """
    trained, _ = lora.split(jax.eval_shape(model.init, jax.random.key(0)))
    # float32 even for bfloat16 parameters: many small gradients are added to them.
    grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), trained)
    return Accumulator(
        grads, jnp.zeros(()), jnp.zeros(()), {key: jnp.zeros(()) for key in keys}
    )


def dummy_trajectories(settings: RunConfig, shapes: BatchShapes) -> Trajectories:
    """Facts in the shapes of a step's trajectories, for compiling; none is valid.

    Args:
      settings: gives the number of tasks and the group size.
      shapes: gives the widths of tables.
    """
    size = settings.sampling.group_size
    count = size * settings.sampling.tasks_per_step
    empty = assemble_trajectories([], 1, shapes)

    def grow(leaf: np.ndarray) -> np.ndarray:
        # Without trajectories [G, S] comes as [1, 0], and [N, ...] as [0, ...].
        if leaf.shape[:1] == (1,):
            return np.zeros((count // size, size), leaf.dtype)
        return np.zeros((count, *leaf.shape[1:]), leaf.dtype)

    return jax.tree.map(grow, empty)


def dummy_rows(count: int, length: int) -> Rows:
    """One micro-batch without a token, for compiling.

    Args:
      count: rows.
      length: tokens of a row.
    """
    shape = (count, length)
    zeros = np.zeros(shape, np.int32)
    nowhere = np.zeros(shape, bool)
    return Rows(
        tokens=zeros,
        token_mask=nowhere,
        action_mask=nowhere,
        behaviour_log_probs=np.zeros(shape, np.float32),
        turn_id=zeros,
        op_id=zeros - 1,
        trajectory_index=np.zeros(count, np.int32),
        valid=np.zeros(count, bool),
    )


class RunAheadLimit:
    """Keeps the host from running far ahead of the devices.

    Calls of compiled programs return before they have run: without a limit a whole step
    could be queued within milliseconds, and the process could not be stopped until the
    devices have done it, minutes later. This waits for a result now and then: for every
    one if they take seconds, hardly ever if they take milliseconds, since the devices
    idle meanwhile.
    """

    def __init__(self) -> None:
        self._stride, self._count = 1, 0
        self._waited = time.monotonic()

    def __call__(self, result: Any) -> None:
        """Counts a result that was requested, and may wait until it is there.

        Args:
          result: arrays that a compiled program returned.
        """
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

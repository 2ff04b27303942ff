"""The engine that samples turns on this process's devices, by continuous batching.

Each trajectory owns a slot, which has its own text and its own key/value cache. The
engine remembers which ids the cache of a slot holds, so a request only computes the
tokens that are new. Requests join and leave between two chunks of decode steps. What
runs together is decided by the requests alone, never by timing, so a run can be
repeated bit for bit.

Slots can be split into lanes, each with a cache of its own, that compute at the same
time. On a CPU most of a program runs on one thread (only its large matrix products are
split), so one lane per core uses the other cores too. A lane plans for its own slots
alone: contexts in different lanes share no computation.
"""

from __future__ import annotations

import concurrent.futures
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout import prefill
from mempo_jax.rollout.decode import DeviceSlots, EnginePrograms
from mempo_jax.rollout.prefill import EngineShapes
from mempo_jax.rollout.sampler import (
    Counters,
    Generation,
    HeldContexts,
    Request,
    SampledTurn,
    WeightSubscriber,
    buckets,
    check_fit,
    never,
)
from mempo_jax.rollout.time_limits import nothing


class Engine:
    """A ``sampler.Sampler`` on this process's devices.

    Args:
      model: the policy's architecture.
      tokenizer: the policy's tokenizer.
      slots: trajectories that can run at the same time.
      max_length: cache positions of a slot: the longest context and turn together.
      prefill_buckets: widths that new context tokens are padded to. If they are packed
        instead (``EnginePrograms.packed_sizes``), only the largest one counts: a call
        takes at most that many tokens for each slot, and no more than
        ``prefill.LARGEST`` in all.
      decode_chunk: decode steps between two looks at the text.
      closing_tags: texts that end a turn.
      row_buckets: numbers of rows to compute; a call takes the smallest that holds its
        requests. All slots are always one of them. Counted in each lane.
      span_buckets: numbers of cache positions to attend to, chosen in the same way.
      row_sharding: sharding of arrays [slots, ...]. Over several devices every call
        computes all rows; on one device row_buckets may be given.
      lanes: groups of slots that compute at the same time, on one device only. On CPUs
        as many as cores.
      move: parameters -> the same on the engine's devices; None: they are there.

    Attributes:
      slots, max_length: as above.
      counters: work done so far.
      between: called between two chunks; what it raises ends ``wait``.

    Raises:
      ValueError: row_buckets or lanes that do not fit the slots or the sharding.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        slots: int,
        max_length: int,
        prefill_buckets: Sequence[int],
        decode_chunk: int,
        closing_tags: Sequence[str],
        row_buckets: Sequence[int] | None = None,
        span_buckets: Sequence[int] | None = None,
        row_sharding: jax.sharding.NamedSharding | None = None,
        lanes: int = 1,
        move: Callable[[Any], Any] | None = None,
    ):
        sharded = row_sharding is not None and row_sharding.num_devices > 1
        # A subset of rows would have to be gathered across devices for every call.
        if sharded and any(rows < slots for rows in row_buckets or ()):
            raise ValueError(
                "row_buckets: expected all slots or none where rows are spread over "
                f"devices, got {tuple(row_buckets)}"
            )
        if lanes < 1 or slots % lanes or (lanes > 1 and sharded):
            raise ValueError(
                f"lanes: expected a divisor of the {slots} slots, and 1 where rows are "
                f"spread over devices, got {lanes}"
            )
        self._tokenizer, self._tags = tokenizer, tuple(closing_tags)
        self.slots, self.max_length = slots, max_length
        # ``wait`` hands over about this many ended turns at a time, so that the prefill
        # of their successors fills a row bucket of this size.
        eighth = max(1, slots // 8)
        if row_buckets is None:
            row_buckets = () if row_sharding else (eighth,)
        if span_buckets is None:
            # Half of the cache, rounded up to 8 positions: short contexts read half as
            # much.
            span_buckets = (-(-max_length // 16) * 8,)
        self.counters, self.between = Counters(), nothing
        self._compiled = EnginePrograms(model, row_sharding, self.counters)
        widths = buckets("prefill_buckets", prefill_buckets, max_length)
        shapes = EngineShapes(
            slots // lanes,
            max_length,
            buckets("row_buckets", (*row_buckets, slots), slots // lanes),
            widths,
            self._compiled.packed_sizes(slots // lanes, widths[-1]),
            buckets("span_buckets", (*span_buckets, max_length), max_length),
            decode_chunk,
        )
        # With padding, prefilling fewer rows than this costs as much as prefilling this
        # many.
        self._min_ended = shapes.rows[0] if len(shapes.rows) > 1 else eighth
        stop = _stop_ids(model.config.vocab_size, tokenizer, self._tags)
        self._lanes = [
            Lane(DeviceSlots(self._compiled, stop, shapes), first)
            for first in range(0, slots, shapes.slots)
        ]
        self._run_parallel = LaneThreads(lanes)
        self._move = jax.device_put if move is None else move
        self._given: list[weakref.ref] = []  # the arrays that ``_params`` are copies of
        self._params: Any = None
        self._decode_params: Any = None
        self._subscribers: list[WeightSubscriber] = []
        self._submitted: list[SampledTurn] = []
        self._running: list[SampledTurn] = []
        self._sampling: tuple[float, float, int] | None = None
        self._draw_parameters = self._lanes[0].device.sampling(1.0, 1.0, 0)

    def set_params(self, params: Any) -> None:
        """Uses new parameters, see ``Sampler``.

        Args:
          params: parameters of the model, on devices or on the host.

        Raises:
          RuntimeError: requests are under way.
        """
        if self._submitted or self._running:
            raise RuntimeError(
                f"set_params with {len(self._submitted) + len(self._running)} requests "
                "under way: expected none; wait for them, or cancel() them"
            )
        leaves = jax.tree.leaves(params)
        # Moving and unstacking copy all weights; the same arrays need it only once.
        if not _same_arrays(leaves, self._given):
            self._forget_params()
            # No copy for arrays that are on their devices already.
            with self._compiled.in_order():
                self._params = self._move(params)
                self._decode_params = self._compiled.for_decoding(self._params)
            # Not the arrays themselves, or training could not free old weights.
            self._given = [weakref.ref(leaf) for leaf in leaves]
        for lane in self._lanes:
            lane.set_params(self._params, self._decode_params)
        for subscriber in self._subscribers:
            subscriber.set_params(self._params)

    def _forget_params(self) -> None:
        """Drops the old weights first: two copies might not fit beside training."""
        self._params = self._decode_params = None
        for lane in self._lanes:
            lane.set_params(None, None)

    def subscribe(self, subscriber: WeightSubscriber) -> None:
        """Passes the parameters on, see ``Sampler``.

        Args:
          subscriber: whatever else runs the same policy.
        """
        self._subscribers.append(subscriber)

    def warm_up(self, *, filtered: bool = False) -> None:
        """Compiles every program that sampling can need, by running each on no rows.

        Args:
          filtered: also compile the programs for top-p and top-k.

        Raises:
          ValueError: ``set_params`` has not been called.
        """
        self._need_params()
        self._lanes[0].device.warm_up(filtered=filtered)  # the others run the same
        for subscriber in self._subscribers:
            subscriber.warm_up()

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[Generation]:
        """Samples one turn for each request, see ``Sampler``.

        Args:
          requests: at most one for each slot.
          temperature, top_p, top_k: as for ``submit``.

        Returns:
          Generations in the order of the requests.

        Raises:
          RuntimeError: other requests are under way.
        """
        if self._submitted or self._running:
            raise RuntimeError(
                "generate while other requests are under way: expected none; use "
                "submit() and wait(), or cancel() them"
            )
        self.submit(requests, temperature=temperature, top_p=top_p, top_k=top_k)
        generations: dict[int, Generation] = {}
        while ended := self.wait():
            generations |= {request.slot: generation for request, generation in ended}
        return [generations[request.slot] for request in requests]

    def submit(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        """Takes requests and returns at once, see ``Sampler``.

        Args:
          requests: each for a slot that has none under way.
          temperature, top_p, top_k: how to draw, the same for all requests under way.

        Raises:
          ValueError: a request does not fit, or the drawing differs.
        """
        self._check(requests)
        sampling = (temperature, top_p, top_k)
        if not (self._submitted or self._running):
            self._sampling = sampling
            self._draw_parameters = self._lanes[0].device.sampling(*sampling)
        if sampling != self._sampling:
            raise ValueError(
                f"expected the temperature, top_p and top_k of the requests under way, "
                f"{self._sampling}, got {sampling}; wait for those first"
            )
        for request in requests:
            room = self.max_length - len(request.tokens)
            limit = min(request.max_new_tokens, room)
            self._submitted.append(
                SampledTurn(request, self._tokenizer, self._tags, limit)
            )

    def wait(
        self, until: Callable[[], bool] = never
    ) -> list[tuple[Request, Generation]]:
        """Works until some requests have ended and returns them, see ``Sampler``.

        It returns when enough requests have ended for their successors to fill the
        smallest prefill, or when half of the running ones have.

        Args:
          until: asked between two chunks.
        """
        self._admit()
        while True:
            open_turns = [turn for turn in self._running if turn.open]
            ended = len(self._running) - len(open_turns)
            if ended >= min(self._min_ended, -(-len(self._running) // 2)) or until():
                return self._hand_over()
            # Only here: between two chunks nothing is in flight on the devices.
            self.between()
            _, top_p, top_k = self._sampling
            filtered = top_p < 1 or top_k > 0
            calls = [
                functools.partial(lane.decode, turns, self._draw_parameters, filtered)
                for lane, turns in self._by_lane(open_turns)
            ]
            self._run_parallel(calls)

    def cancel(self) -> None:
        """See ``Sampler``."""
        # The fed part of a context stays recorded as held. Sampled tokens never were
        # recorded, so a later request overwrites them.
        self._submitted, self._running = [], []

    def _hand_over(self) -> list[tuple[Request, Generation]]:
        ended = [turn for turn in self._running if not turn.open]
        self._running = [turn for turn in self._running if turn.open]
        for turn in ended:
            # Only now, since the end of the text decides which ids the slot may claim.
            self._lane(turn).ended(turn)
            self.counters.tokens_generated += len(turn.tokens)
        return [(turn.request, turn.result()) for turn in ended]

    def _admit(self) -> None:
        """Brings every new slot to all of its context but the last token."""
        if not self._submitted:
            return
        requests = [turn.request for turn in self._submitted]
        calls = [
            functools.partial(lane.admit, [turn.request for turn in turns])
            for lane, turns in self._by_lane(self._submitted)
        ]
        fed = sum(self._run_parallel(calls))
        self.counters.tokens_fed += sum(len(r.tokens) for r in requests)
        # The last id of each context is computed by the first decode step.
        self.counters.tokens_prefilled += fed + len(requests)
        self._running += self._submitted
        self._submitted = []

    def _lane(self, turn: SampledTurn) -> Lane:
        return self._lanes[turn.slot * len(self._lanes) // self.slots]

    def _by_lane(
        self, turns: Sequence[SampledTurn]
    ) -> list[tuple[Lane, list[SampledTurn]]]:
        """Lanes that have some of the turns, each with its turns."""
        groups: dict[Lane, list[SampledTurn]] = {}
        for turn in turns:
            groups.setdefault(self._lane(turn), []).append(turn)
        return list(groups.items())

    def _need_params(self) -> None:
        if self._params is None:
            raise ValueError(
                "the engine has no parameters; call set_params(params) first"
            )

    def _check(self, requests: Sequence[Request]) -> None:
        self._need_params()
        slots = [request.slot for request in requests]
        if len(set(slots)) != len(slots):
            raise ValueError(f"expected one request a slot, got the slots {slots}")
        busy = {turn.slot for turn in (*self._submitted, *self._running)} & set(slots)
        if busy:
            raise ValueError(
                f"expected slots with no request under way, got {sorted(busy)}; wait "
                "for those first"
            )
        check_fit(requests, self.slots, self.max_length)


class Lane:
    """A contiguous group of slots with one cache, and a record of what the cache holds.

    Args:
      device: the cache and the compiled programs that work on it.
      first: number of the lane's first slot among all slots of the engine.
    """

    def __init__(self, device: DeviceSlots, first: int) -> None:
        self.device, self._first = device, first
        self._held = HeldContexts(device.shapes.slots)

    def set_params(self, params: Any, decode_params: Any) -> None:
        """Uses new parameters from now on and forgets everything that is cached.

        Args:
          params: the parameters, on their devices.
          decode_params: the same parameters as ``EnginePrograms.for_decoding`` returns
            them.
        """
        self.device.set_params(params, decode_params)
        self._held = HeldContexts(self.device.shapes.slots)

    def admit(self, requests: Sequence[Request]) -> int:
        """Brings slots to all of their contexts but the last id.

        Args:
          requests: new requests, all of them for slots of this lane.

        Returns:
          Number of ids that had to be computed.
        """
        local_requests = [r._replace(slot=r.slot - self._first) for r in requests]
        reuse, shapes = self._held.reuse(local_requests), self.device.shapes
        stages = prefill.plan(local_requests, reuse, self._held.ids(), shapes)
        # Before the prefill runs: if it fails, the record claims too little, never too
        # much.
        self._held.trim(reuse)
        for stage in stages:
            # A stage's rows may build on its copies, so the copies come first.
            if stage.copies:
                self.device.copy(stage.copies, stage.end)
            self.device.prefill(stage.rows)
        self._held.feed(local_requests)
        return sum(len(row.tokens) for stage in stages for row in stage.rows)

    def decode(
        self, turns: Sequence[SampledTurn], draw_parameters: Any, filtered: bool
    ) -> None:
        """Samples one chunk of each turn and appends it to the turn.

        Args:
          turns: open turns in slots of this lane.
          draw_parameters: temperature, top-p and top-k, on the devices.
          filtered: whether top-p or top-k is on.
        """
        chunks = self.device.decode(turns, self._first, draw_parameters, filtered)
        for turn, (tokens, log_probs) in zip(turns, chunks, strict=True):
            turn.add(tokens, log_probs)

    def ended(self, turn: SampledTurn) -> None:
        """Records that the slot of an ended turn now holds what was sampled.

        Args:
          turn: the turn, cut where its text ends.
        """
        self._held.grow(turn.slot - self._first, turn.context, turn.tokens)


class LaneThreads:
    """Runs calls at the same time, each in a thread of its own.

    Args:
      threads: the most calls at a time; with 1 they run in the caller's thread.
    """

    def __init__(self, threads: int) -> None:
        self._pool = (
            concurrent.futures.ThreadPoolExecutor(threads) if threads > 1 else None
        )

    def __call__(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Returns the results in order, or raises the first error after all calls have
        ended."""
        if self._pool is None or len(calls) < 2:
            return [call() for call in calls]
        futures = [self._pool.submit(call) for call in calls]
        # An error must not leave other lanes computing while the caller cleans up.
        concurrent.futures.wait(futures)
        return [future.result() for future in futures]


def _stop_ids(
    vocab_size: int, tokenizer: Tokenizer, tags: tuple[str, ...]
) -> np.ndarray:
    """Ids that end a turn in the loop on the devices, as flags."""
    # Those whose text holds a whole closing tag do so at once; tags spelled over
    # several ids are found on the host, in ``SampledTurn``.
    stop = np.zeros(vocab_size, bool)
    stop[list(tokenizer.stop_ids)] = True
    stop[list(tokenizer.ids_containing(tags))] = True
    return stop


def _same_arrays(leaves: Sequence[Any], given: Sequence[weakref.ref]) -> bool:
    """Whether these are the very arrays that were given before."""
    # Identity, not equality: comparing values would read every weight.
    return len(leaves) == len(given) and all(
        leaf is ref() for leaf, ref in zip(leaves, given, strict=True)
    )

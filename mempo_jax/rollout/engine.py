"""Batched generation over slots, each with its own text and key/value cache.

A slot belongs to one trajectory. The engine remembers which ids a slot's cache holds;
a request then only feeds what differs. All device shapes come from small fixed sets,
so nothing compiles after ``warm_up``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout import generate as programs
from mempo_jax.rollout.slots import HeldContexts, Request, buckets, fit
from mempo_jax.rollout.turns import Generation, Turn

__all__ = ["Counters", "Engine", "Generation", "Request"]


@dataclasses.dataclass
class Counters:
    """Work done since the engine was made.

    fed: tokens of all contexts given. prefilled: context tokens really computed.
    generated: tokens sampled and returned. compilations: programs traced.
    """

    tokens_fed: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    compilations: int = 0


class Engine:
    """Samples turns for up to ``slots`` trajectories at a time.

    max_length: cache positions, so the longest context plus turn. prefill_buckets:
    widths that new context tokens are padded to. decode_chunk: decode steps between
    two looks at the text. closing_tags: texts that end a turn. row_buckets: numbers of
    rows to compute; a call takes the smallest that holds its requests (all slots are
    always one). span_buckets: numbers of cache positions to look at, alike.
    row_sharding: how arrays [slots, ...] lie on the devices; then only whole rows run.
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
    ):
        self._model, self._tokenizer = model, tokenizer
        self.slots, self.max_length = slots, max_length
        self._chunk = decode_chunk
        self._tags = tuple(closing_tags)
        self._row_sharding = row_sharding
        if row_buckets is None:
            row_buckets = () if row_sharding else (max(1, slots // 8),)
        if span_buckets is None:
            span_buckets = (-(-max_length // 16) * 8,)
        self._widths = buckets("prefill_buckets", prefill_buckets, max_length)
        self._rows = buckets("row_buckets", (*row_buckets, slots), slots)
        self._spans = buckets("span_buckets", (*span_buckets, max_length), max_length)
        self.counters = Counters()
        self._params = None
        self._held = HeldContexts(slots)
        self._followers: list = []
        self._cache = self._make_cache()
        self._stop = self._put(self._stop_mask(), whole=False)
        self._prefill = self._jit(programs.prefill, ("span",))
        self._copy = self._jit(programs.copy_rows, ("span",), model=False)
        self._decode = self._jit(programs.decode, ("steps", "span", "filtered"))

    def set_params(self, params) -> None:
        """Uses these parameters from now on and drops all that is cached."""
        # Arrays that are on their devices already stay as they are.
        self._params = jax.device_put(params)
        self._held = HeldContexts(self.slots)
        for follower in self._followers:
            follower.set_params(self._params)

    def lead(self, follower) -> None:
        """Calls its ``set_params`` and ``warm_up`` too: it runs the same policy."""
        self._followers.append(follower)

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[Generation]:
        """Samples one turn for each request, results in the order of the requests.

        temperature 0 is greedy (log-probs are then those at temperature 1). top_p 1
        and top_k 0 are off; where they are on, log-probs are still those of the whole
        distribution. A turn ends at a stop id ("stop"), behind the first closing tag
        ("tag"), or at its limit ("length"); the token that ends it is part of it.
        Raises ValueError on a request that does not fit.
        """
        self._check(requests)
        turns = [Turn(request, self._tokenizer, self._tags) for request in requests]
        self._feed(requests)
        sampling = self._put(
            programs.Sampling(
                np.float32(temperature), np.float32(top_p), np.int32(top_k)
            ),
            whole=False,
        )
        filtered = top_p < 1 or top_k > 0
        limits = {
            r.slot: min(r.max_new_tokens, self.max_length - len(r.tokens))
            for r in requests
        }
        first = 0
        while running := [t for t in turns if t.open(limits[t.slot])]:
            self._decode_chunk(running, limits, first, sampling, filtered)
            first += self._chunk
        for turn in turns:
            self._held.grow(turn.slot, turn.context, turn.tokens)
            self.counters.tokens_generated += len(turn.tokens)
        return [turn.result() for turn in turns]

    def warm_up(self, *, filtered: bool = False) -> None:
        """Compiles every program that ``generate`` can need (top-p and top-k only
        with ``filtered``), by running each on no rows; needs ``set_params`` first."""
        self._need_params()
        sampling = programs.Sampling(np.float32(1), np.float32(1), np.int32(0))
        sampling = self._put(sampling, whole=False)
        for span in self._spans:
            for count in self._rows:
                # A width may exceed the span: what is fed then fills it in part.
                for narrower, width in itertools.pairwise((0, *self._widths)):
                    if narrower < span:
                        self._run_prefill([], count, width, span)
                for flag in (False, True) if filtered else (False,):
                    self._run_decode([], {}, count, span, 0, sampling, flag)
            self._run_copy({}, span)
        jax.block_until_ready(self._cache)
        for follower in self._followers:
            follower.warm_up()

    def _feed(self, requests: Sequence[Request]) -> None:
        """Brings every slot to all of its context but the last token."""
        plan = self._held.plan(requests)
        self.counters.tokens_fed += sum(len(r.tokens) for r in requests)
        self.counters.tokens_prefilled += len(requests)
        while rows := plan.next_rows(self._widths):
            ends = [start + len(part) for _, start, part in rows]
            longest = max(len(part) for _, _, part in rows)
            self.counters.tokens_prefilled += sum(len(part) for _, _, part in rows)
            self._run_prefill(
                rows,
                fit(self._rows, len(rows)),
                fit(self._widths, longest),
                fit(self._spans, max(ends)),
            )
        if plan.copies:
            self._run_copy(plan.copies, fit(self._spans, plan.longest_copy))
        self._held.feed(requests)

    def _decode_chunk(self, running, limits, first, sampling, filtered) -> None:
        left = {turn.slot: limits[turn.slot] - first for turn in running}
        steps = {slot: min(count, self._chunk) for slot, count in left.items()}
        end = max(len(t.context) + first + steps[t.slot] for t in running)
        span = fit(self._spans, min(end, self.max_length))
        count = fit(self._rows, len(running))
        out = self._run_decode(running, steps, count, span, first, sampling, filtered)
        for index, turn in enumerate(running):
            row = turn.slot if count == self.slots else index
            number = out.counts[row]
            turn.add(out.tokens[row, :number].tolist(), out.log_probs[row, :number])

    def _run_prefill(self, rows, count: int, width: int, span: int) -> None:
        tokens = np.zeros((count, width), np.int32)
        start = np.full(count, span, np.int32)
        slots = np.full(count, self.slots, np.int32)
        whole = count == self.slots
        for index, (slot, first, part) in enumerate(rows):
            index = slot if whole else index
            slots[index], start[index] = slot, first
            tokens[index, : len(part)] = part
        arrays = self._put((None if whole else slots, tokens, start), whole=whole)
        with jax.transfer_guard("disallow"):
            self._cache = self._prefill(self._params, self._cache, *arrays, span=span)

    def _run_copy(self, copies: dict[int, int], span: int) -> None:
        source = np.arange(self.slots, dtype=np.int32)
        for slot, origin in copies.items():
            source[slot] = origin
        source = self._put(source, whole=True)
        with jax.transfer_guard("disallow"):
            self._cache = self._copy(self._cache, source, span=span)

    def _run_decode(
        self, running, steps, count, span, first, sampling, filtered
    ) -> programs.Decoded:
        token, position, limit = np.zeros((3, count), np.int32)
        keys = np.zeros((count, 2), np.uint32)
        slots = np.full(count, self.slots, np.int32)
        whole = count == self.slots
        for index, turn in enumerate(running):
            index = turn.slot if whole else index
            slots[index], limit[index] = turn.slot, steps[turn.slot]
            token[index] = turn.tokens[-1] if turn.tokens else turn.context[-1]
            position[index] = len(turn.context) - 1 + len(turn.tokens)
            keys[index] = turn.key
        rows = (None if whole else slots, token, position, limit, keys)
        rows = self._put(rows, whole=whole)
        first = self._put(np.int32(first), whole=False)
        with jax.transfer_guard("disallow"):
            self._cache, out = self._decode(
                self._params,
                self._cache,
                self._stop,
                *rows,
                first,
                sampling,
                steps=self._chunk,
                span=span,
                filtered=filtered,
            )
            return jax.device_get(out)

    def _jit(self, function, static: tuple[str, ...], model: bool = True):
        """Compiles a program that takes the cache, gives it back, and is counted."""
        bound = functools.partial(function, self._model) if model else function

        @functools.wraps(function)
        def counted(*args, **kwargs):
            self.counters.compilations += 1
            return self._pin(bound(*args, **kwargs))

        return jax.jit(
            counted, static_argnames=static, donate_argnums=1 if model else 0
        )

    def _pin(self, result):
        """Keeps arrays [slots, ...] where they were, or the next call would compile."""
        if self._row_sharding is None:
            return result
        return jax.lax.with_sharding_constraint(result, self._row_sharding)

    def _put(self, tree, *, whole: bool):
        sharding = self._row_sharding
        if sharding is not None and not whole:
            sharding = jax.sharding.NamedSharding(
                sharding.mesh, jax.sharding.PartitionSpec()
            )
        return jax.device_put(tree, sharding)

    def _make_cache(self):
        make = functools.partial(self._model.init_cache, self.slots, self.max_length)
        return jax.jit(make, out_shardings=self._row_sharding)()

    def _stop_mask(self) -> np.ndarray:
        mask = np.zeros(self._model.config.vocab_size, bool)
        mask[list(self._tokenizer.stop_ids)] = True
        mask[list(self._tokenizer.ids_containing(self._tags))] = True
        return mask

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
        for request in requests:
            if not 0 <= request.slot < self.slots:
                raise ValueError(
                    f"expected a slot in 0 ... {self.slots - 1}, got {request.slot}"
                )
            if not 0 < len(request.tokens) <= self.max_length:
                raise ValueError(
                    f"slot {request.slot}: expected a context of 1 to "
                    f"{self.max_length} tokens, got {len(request.tokens)}; end or "
                    "rebuild the context earlier, or raise max_length"
                )

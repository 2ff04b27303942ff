"""The policy says a merged memory shorter: greedy, on an engine of its own.

The slots of running trajectories are not touched. A summary depends on the parameters
and the text alone: nothing that was computed for another is used again.
"""

from __future__ import annotations

import jax
import numpy as np

from mempo_jax.memory import parse_ops
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.engine import Engine, Generation, Request
from mempo_jax.rollout.prompting import Prompt
from mempo_jax.settings import ConfigError

MOST_KEPT = 1_000  # summaries; an agent that never learns would keep them for ever
_THINK, _THOUGHT = "<think>", "</think>"


class PolicySummariser:
    """Callable (text, most characters) -> a shorter text, or "" where it has none.

    template: with {text} and, if wanted, {max_chars}. longest: most tokens of question
    and answer together; a longer text loses its middle. most_tokens: of the answer.
    slots, row_sharding, decode_chunk: as for the engine; one slot is used.

    Raises:
      ConfigError: a template that cannot serve, or no room for it beside the answer.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        template: str,
        *,
        longest: int,
        most_tokens: int,
        decode_chunk: int,
        slots: int = 1,
        row_sharding: jax.sharding.NamedSharding | None = None,
    ) -> None:
        if most_tokens >= longest:
            raise ConfigError(
                f"config.memory.summarise_tokens: expected less than {longest} (config."
                "context.max_context_tokens + sampling.max_new_tokens), got "
                f"{most_tokens}"
            )
        self._prompt = Prompt(
            tokenizer,
            template,
            field="config.memory.summarise_prompt",
            texts=("text",),
            others=("max_chars",),
            longest=longest - most_tokens,
        )
        self._tokenizer, self._most_tokens = tokenizer, most_tokens
        self._engine = Engine(
            model,
            tokenizer,
            slots=slots,
            max_length=longest,
            prefill_buckets=(longest,),
            decode_chunk=decode_chunk,
            closing_tags=(),
            row_buckets=(slots,),
            span_buckets=(longest,),
            row_sharding=row_sharding,
        )
        self._params = None
        self._said: dict[tuple[str, int], str] = {}

    def set_params(self, params) -> None:
        """Summarises with these from now on; what was said before is forgotten."""
        self._engine.set_params(params)
        self._params = params
        self._said = {}

    def warm_up(self) -> None:
        """Compiles all that a summary can need."""
        self._engine.warm_up()

    def __call__(self, text: str, max_chars: int) -> str:
        key = text, max_chars
        if key not in self._said:
            if len(self._said) >= MOST_KEPT:
                self._said = {}
            self._said[key] = plain(self._generated(text, max_chars))
        return self._said[key]

    def _generated(self, text: str, max_chars: int) -> str:
        ids = self._prompt.encode(text=text, max_chars=str(max_chars))
        # The engine forgets: a prefix kept from another text, computed in another
        # shape, could change the last bits and so a token.
        self._engine.set_params(self._params)
        request = Request(0, ids, np.zeros(2, np.uint32), self._most_tokens)
        [made] = self._engine.generate([request], temperature=0.0)
        return self._without_stop(made)

    def _without_stop(self, made: Generation) -> str:
        tokens = made.tokens[:-1] if made.finish == "stop" else made.tokens
        return self._tokenizer.decode(tokens)


def plain(text: str) -> str:
    """The text without thoughts and without what the parser takes for ops.

    A memory that spelled an op could be acted out when it is copied. Empty where
    nothing is left, or where what is left makes an op again.
    """
    text = text.rpartition(_THOUGHT)[2].partition(_THINK)[0]
    kept, end = [], 0
    for op in parse_ops(text):
        kept.append(text[end : op.span[0]])
        end = max(end, op.span[1])
    text = " ".join("".join([*kept, text[end:]]).split())
    return "" if parse_ops(text) else text

"""What is asked of an OpenAI-compatible completions server, and what it answers.

The form is that of vLLM and of newer SGLang: prompts as token ids, and sampled ids in
the answer (``return_token_ids``, or log-prob entries named "token_id:17"). Text is
never turned back into ids: it may have been spelled with others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.http_client import ServerError, ServerFaultError
from mempo_jax.rollout.slots import Request

ID_PREFIX = "token_id:"
NO_IDS = (
    "the server sent no token ids. It must know return_token_ids (a recent vLLM or "
    "SGLang does), or be started so that log-prob entries are named by id (vLLM: "
    "--return-tokens-as-token-ids)"
)
NO_LOG_PROBS = (
    "the server sent no log-prob for each sampled token. It must serve `logprobs` in "
    "/v1/completions (vLLM: --max-logprobs of at least 1)"
)


class Sampling(NamedTuple):
    """How tokens are drawn; temperature 0 is greedy, top_p 1 and top_k 0 are off."""

    temperature: float
    top_p: float
    top_k: int


class Answer(NamedTuple):
    """tokens and their f32 log-probs as sampled, before anything is cut off; finish:
    "stop" or "length", as the server has it; computed: prompt tokens that it computed,
    not taken from a cache, as far as it says."""

    tokens: list[int]
    log_probs: np.ndarray
    finish: str
    computed: int


def seed_of(key: np.ndarray) -> int:
    """A seed below 2^63 (the most that servers take) from the key of a turn."""
    high, low = (int(word) for word in key)
    return (high << 32 | low) & (2**63 - 1)


def request_body(
    request: Request,
    sampling: Sampling,
    *,
    model: str,
    max_tokens: int,
    tags: Sequence[str],
    stop_ids: Sequence[int],
) -> dict[str, Any]:
    """The body of one request.

    Everything that shapes the distribution is said, because servers fill in what is
    not from the model's own generation_config.json.
    """
    return {
        "model": model,
        "prompt": list(request.tokens),
        "max_tokens": max_tokens,
        "n": 1,
        "stream": False,
        "seed": seed_of(request.key),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stop": list(tags),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(stop_ids),
        "no_stop_trim": True,  # SGLang: the token that ends a turn stays in the ids
        # Tags may be special tokens, and a stop text is looked for in the text.
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def read_answer(
    content: Any, prompt: Sequence[int], *, vocab_size: int, max_tokens: int
) -> Answer:
    """Checks and takes apart one answer.

    Raises:
      ServerError: it lacks ids or log-probs, or they cannot be of this policy.
      ServerFaultError: the server gave this one request up.
    """
    choice = _only_choice(content)
    if (finish := choice.get("finish_reason")) not in ("stop", "length"):
        raise ServerFaultError(f"the server ended the request with {finish!r}")
    _check_prompt(choice, content, prompt)
    tokens = _tokens(choice)
    log_probs = _log_probs(choice, len(tokens))
    wrong = [t for t in tokens if not 0 <= t < vocab_size]
    if wrong:
        raise ServerError(
            f"the server sampled the id {wrong[0]}, expected ids below {vocab_size}: "
            "it serves another model or another vocabulary than config.policy"
        )
    if not 1 <= len(tokens) <= max_tokens:
        raise ServerError(
            f"expected 1 to {max_tokens} sampled ids (max_tokens), got {len(tokens)}"
        )
    return Answer(tokens, log_probs, finish, _computed(content, len(prompt)))


def end_at_stop(answer: Answer, tokenizer: Tokenizer) -> Answer:
    """Drops what a server sampled behind the first stop id."""
    ends = (i for i, t in enumerate(answer.tokens, 1) if t in tokenizer.stop_ids)
    end = next(ends, len(answer.tokens))
    return answer._replace(tokens=answer.tokens[:end], log_probs=answer.log_probs[:end])


def _only_choice(content: Any) -> Mapping[str, Any]:
    choices = content.get("choices") if isinstance(content, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1:
        got = "none" if not isinstance(choices, list) else len(choices)
        raise ServerError(
            f"expected one choice in the answer (n = 1), got {got}; is "
            "config.engine.http.url an OpenAI-compatible /v1/completions server?"
        )
    if not isinstance(choices[0], Mapping):
        raise ServerError(f"expected an object as choice, got {choices[0]!r:.80}")
    return choices[0]


def _check_prompt(choice: Mapping, content: Mapping, prompt: Sequence[int]) -> None:
    """The ids that the server says it read are those that were sent."""
    read = choice.get("prompt_token_ids")
    if read is not None and read != list(prompt):
        raise ServerError(
            f"the server read {len(read)} prompt ids that are not the {len(prompt)} "
            "sent: it cuts prompts off or adds to them"
        )
    usage = content.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    if isinstance(counted, int) and counted != len(prompt):
        raise ServerError(
            f"the server counts {counted} prompt tokens where {len(prompt)} were sent: "
            "it cuts prompts off or adds to them"
        )


def _tokens(choice: Mapping[str, Any]) -> list[int]:
    tokens = choice.get("token_ids")
    if tokens is None:
        names = _entries(choice).get("tokens")
        names = names if isinstance(names, list) else []
        parts = [str(name).removeprefix(ID_PREFIX) for name in names]
        spelled = all(str(name).startswith(ID_PREFIX) for name in names)
        if not names or not spelled or not all(part.isdecimal() for part in parts):
            raise ServerError(NO_IDS)
        return [int(part) for part in parts]
    if not isinstance(tokens, list) or not all(type(t) is int for t in tokens):
        raise ServerError(f"expected a list of ids in token_ids, got {tokens!r:.80}")
    return tokens


def _log_probs(choice: Mapping[str, Any], count: int) -> np.ndarray:
    values = _entries(choice).get("token_logprobs")
    if not isinstance(values, list) or any(type(v) not in (int, float) for v in values):
        raise ServerError(NO_LOG_PROBS)
    if len(values) != count:
        raise ServerError(
            f"{count} ids came with {len(values)} log-probs; the server must leave the "
            "token that ends a turn in both (SGLang: it must know no_stop_trim)"
        )
    bad = [v for v in values if not (math.isfinite(v) and v <= 1e-3)]
    if bad:
        raise ServerError(f"expected log-probs of at most 0, got {bad[0]}")
    return np.asarray(values, np.float32)


def _entries(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    entries = choice.get("logprobs")
    return entries if isinstance(entries, Mapping) else {}


def _computed(content: Mapping[str, Any], count: int) -> int:
    usage = content.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return count - cached if isinstance(cached, int) else count

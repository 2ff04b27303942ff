"""One question to the policy as a user message, cut to the positions it has.

What is asked about may be longer than the model can read: then the middle of those
texts goes, never a word of the question.

The policy as the judge of its own writes: yes against no in one forward pass.

Nothing is generated. A verdict depends on the parameters and the two texts alone: each
question is computed in an array of one fixed shape that its length alone decides, so
neither the batch it came in nor its place there shows in it.

The policy says a merged memory shorter: greedy, on an engine of its own.

The slots of running trajectories are not touched. A summary depends on the parameters
and the text alone: nothing that was computed for another is used again.
"""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.memory import Verdict, parse_ops
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.engine import Engine
from mempo_jax.rollout.sampler import Generation, Request, buckets, fit
from mempo_jax.settings import ConfigError

GAP = " ... "  # stands for what was cut out


class Prompt:
    """A template with named fields, rendered through the chat template as token ids.

    field: the config field that holds the template, for errors. texts: fields that
    may be cut. others: short fields that the template may have and that never are.
    longest: most tokens.

    Raises:
      ConfigError: the template lacks one of ``texts``, has another field, or leaves no
        room for them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        *,
        field: str,
        texts: tuple[str, ...],
        longest: int,
        others: tuple[str, ...] = (),
    ) -> None:
        check_template(template, field, texts, others)
        self._tokenizer, self._template = tokenizer, template
        self._longest, self._texts = longest, texts
        bare = len(self._encode(dict.fromkeys((*texts, *others), GAP)))
        if bare >= longest:
            raise ConfigError(
                f"{field}: expected a question of less than {longest} tokens "
                "(config.context.max_context_tokens + sampling.max_new_tokens, less "
                f"what is generated), got {bare} without the texts it is about"
            )

    def encode(self, **values: str) -> list[int]:
        """Ids of the whole context, at most ``longest``, up to where the policy writes.

        values: of all fields. Those that may be cut share the room evenly; what a
        short one leaves goes to the others.
        """
        # Half of a surrogate pair is no text to a tokenizer.
        values = {k: v.encode("utf-8", "replace").decode() for k, v in values.items()}
        ids = self._encode(values)
        if len(ids) <= self._longest:
            return ids
        gaps = values | dict.fromkeys(self._texts, GAP)
        pieces = {name: self._tokenizer.encode(values[name]) for name in self._texts}
        lengths = {name: len(piece) for name, piece in pieces.items()}
        room = self._longest - len(self._encode(gaps))
        while room > 0:
            shares = share(lengths, room)
            kept = {
                name: self._middle_cut(values[name], piece, shares[name])
                for name, piece in pieces.items()
            }
            ids = self._encode(values | kept)
            if len(ids) <= self._longest:
                return ids
            # Tokens merge and split at the cuts: the count is known only afterwards.
            room -= max(1, len(ids) - self._longest)
        return self._encode(gaps)

    def _encode(self, values: Mapping[str, str]) -> list[int]:
        text = self._template.format(**values)
        message = {"role": "user", "content": text}
        return self._tokenizer.encode_prompt([message])

    def _middle_cut(self, text: str, ids: list[int], room: int) -> str:
        if len(ids) <= room:
            return text
        head = room - room // 2
        tail = ids[len(ids) - room // 2 :]
        decode = self._tokenizer.decode
        return f"{decode(ids[:head])}{GAP}{decode(tail)}"


def share(lengths: Mapping[str, int], room: int) -> dict[str, int]:
    """How much of ``room`` each of these lengths gets: evenly, none more than it is."""
    shares: dict[str, int] = {}
    for left, name in enumerate(sorted(lengths, key=lengths.__getitem__)):
        each = (room - sum(shares.values())) // (len(lengths) - left)
        shares[name] = min(lengths[name], each)
    return shares


def check_template(
    template: str, field: str, needed: tuple[str, ...], allowed: tuple[str, ...] = ()
) -> None:
    """ConfigError unless the fields of ``template`` are ``needed`` or ``allowed``."""
    expected = f"a text with {', '.join(f'{{{name}}}' for name in needed)}"
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"{field}: expected {expected}, got {error}") from error
    names = [name for _, name, _, _ in parts if name is not None]
    plain = not any(spec or conversion for _, _, spec, conversion in parts)
    fits = set(needed) <= set(names) <= {*needed, *allowed}
    if not (fits and plain):
        raise ConfigError(f"{field}: expected {expected}, got {template!r}")


Pair = tuple[str, str]  # new text, old text
MOST_VERDICTS_KEPT = (
    50_000  # verdicts; an agent that never learns would keep them for ever
)
_REPLACEMENT = "\ufffd"  # what decoding puts for bytes that make no character


@dataclasses.dataclass(frozen=True)
class Questions:
    """What is asked, with {new} and {old}, and the two words that answer it.

    Only the first token of each word counts.
    """

    adds: str
    changes: str
    yes: str
    no: str


class PolicyJudge:
    """Asks of a pair whether the new text adds to the old, and whether it changes it.

    Changes: UPDATES. Adds only: ADDS. Neither: REPEATS. OTHER, a fact about something
    else, is never said: the bank takes any verdict but REPEATS as such where the texts
    are dissimilar, and merges similar ones where the new one adds.

    longest: most tokens of a question; what is longer loses the middle of its texts.
    rows: questions computed at a time, always. row_sharding: as for the engine.

    Raises:
      ConfigError: a question or an answer word that cannot serve.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        questions: Questions,
        *,
        longest: int,
        rows: int,
        row_sharding: jax.sharding.NamedSharding | None = None,
    ) -> None:
        self._tokenizer, self._row_sharding = tokenizer, row_sharding
        self._rows = rows
        self._widths = buckets("widths", (-(-longest // 16) * 8, longest), longest)
        self._prompts = tuple(
            Prompt(
                tokenizer,
                getattr(questions, name),
                field=f"config.memory.judge_{name}_prompt",
                texts=("new", "old"),
                longest=longest,
            )
            for name in ("adds", "changes")
        )
        self._words = questions.yes, questions.no
        answers = answer_ids(tokenizer, questions)
        self._answers = self._put(np.asarray(answers, np.int32), split=False)
        self._program = jax.jit(functools.partial(score, model))
        self._params = None
        self._verdicts: dict[Pair, Verdict] = {}

    def set_params(self, params) -> None:
        """Judges with these from now on; what was judged before is forgotten."""
        # Arrays that are on their devices already stay as they are.
        self._params = jax.device_put(params)
        self._verdicts = {}

    def warm_up(self) -> None:
        """Compiles all that judging can need."""
        for width in self._widths:
            self._margins([], width)

    def __call__(self, new: str, old: str) -> Verdict:
        return self.many([(new, old)])[0]

    def many(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A verdict for each pair, those that are not known yet judged together."""
        self.prefetch_verdicts(pairs)
        return [self._verdicts[pair] for pair in pairs]

    def prefetch_verdicts(self, pairs: Iterable[Pair]) -> None:
        """Judges pairs that are about to be asked for, all together."""
        if len(self._verdicts) > MOST_VERDICTS_KEPT:
            self._verdicts = {}
        asked = list(dict.fromkeys(pairs))
        unknown = [pair for pair in asked if pair not in self._verdicts]
        contexts = [ids for pair in unknown for ids in self.questions(*pair)]
        answers = self._yes(contexts)
        for place, pair in enumerate(unknown):
            adds, changes = answers[2 * place : 2 * place + 2]
            self._verdicts[pair] = verdict(adds, changes)

    def questions(self, new: str, old: str) -> list[list[int]]:
        """Ids of both contexts: does it add, does it change."""
        return [prompt.encode(new=new, old=old) for prompt in self._prompts]

    def answer(self, yes: bool) -> list[int]:
        """Ids of the whole word that says so."""
        return self._tokenizer.encode(self._words[0 if yes else 1])

    def _yes(self, contexts: list[list[int]]) -> np.ndarray:
        """bool [N]: whether yes is likelier than no behind each context."""
        yes = np.zeros(len(contexts), bool)
        for width in self._widths:
            members = [
                place
                for place, ids in enumerate(contexts)
                if fit(self._widths, len(ids)) == width
            ]
            for first in range(0, len(members), self._rows):
                some = members[first : first + self._rows]
                margins = self._margins([contexts[place] for place in some], width)
                yes[some] = margins[: len(some)] > 0
        return yes

    def _margins(self, contexts: list[list[int]], width: int) -> np.ndarray:
        """f32 [rows]: logit of yes less logit of no; rows past the contexts: noise."""
        if self._params is None:
            raise ValueError("the judge has no parameters; call set_params(params)")
        tokens = np.zeros((self._rows, width), np.int32)
        lengths = np.ones(self._rows, np.int32)
        for row, ids in enumerate(contexts):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        arrays = self._put((tokens, lengths), split=True)
        with jax.transfer_guard("disallow"):
            out = self._program(self._params, *arrays, self._answers)
            margins = np.asarray(jax.device_get(out))
        if not np.isfinite(margins[: len(contexts)]).all():
            raise FloatingPointError(
                "the policy's judgement of a memory is not finite: its parameters are "
                "broken; go back to an earlier checkpoint"
            )
        return margins

    def _put(self, tree, *, split: bool):
        sharding = self._row_sharding
        if sharding is not None and not split:
            whole = jax.sharding.PartitionSpec()
            sharding = jax.sharding.NamedSharding(sharding.mesh, whole)
        return jax.device_put(tree, sharding)


def verdict(adds: bool, changes: bool) -> Verdict:
    """What two answers say together."""
    if changes:
        return Verdict.UPDATES
    return Verdict.ADDS if adds else Verdict.REPEATS


def score(
    model: LanguageModel,
    params,
    tokens: jax.Array,
    lengths: jax.Array,
    answers: jax.Array,
) -> jax.Array:
    """f32 [B]: how much likelier (in logits) the first answer id is than the second.

    tokens int32 [B, T], right-padded; lengths int32 [B], at least 1; answers int32 [2].
    """
    mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
    hidden = model.hidden(params, tokens, mask)
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
    # In the dtype of the states, as where turns are sampled and scored.
    words = model.unembed(params)[:, answers].astype(last.dtype)
    logits = jnp.dot(
        last,
        words,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return logits[:, 0] - logits[:, 1]


def answer_ids(tokenizer: Tokenizer, questions: Questions) -> tuple[int, int]:
    """First token id of yes and of no.

    Raises:
      ConfigError: the tokenizer does not know a word, or both begin alike.
    """
    words = {"yes": questions.yes, "no": questions.no}
    ids = [_first_id(tokenizer, word, name) for name, word in words.items()]
    if ids[0] == ids[1]:
        raise ConfigError(
            "config.memory.judge_yes and judge_no: expected words that begin with "
            f"different tokens, got {words['yes']!r} and {words['no']!r}, which both "
            f"begin with {tokenizer.decode(ids[:1])!r}"
        )
    return ids[0], ids[1]


def _first_id(tokenizer: Tokenizer, word: str, name: str) -> int:
    ids = tokenizer.encode(word)
    piece = tokenizer.decode(ids[:1])
    # A character split over tokens shows as a replacement sign.
    known = bool(piece.strip()) and word.strip().startswith(piece.strip())
    if not (known or _REPLACEMENT in piece):
        raise ConfigError(
            f"config.memory.judge_{name}: expected a word that the policy's tokenizer "
            f"knows, got {word!r}, which it reads as {piece!r}"
        )
    return ids[0]


MOST_SUMMARIES_KEPT = (
    1_000  # summaries; an agent that never learns would keep them for ever
)
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
            if len(self._said) >= MOST_SUMMARIES_KEPT:
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

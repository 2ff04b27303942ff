"""The policy as the judge of its own writes, and as the one that shortens merged
memories.

A judgement generates nothing: it compares the logits of yes and no in one forward pass.
A verdict depends on the parameters and the two texts alone. Each question is computed
in an array of one fixed shape that its length alone decides, so neither the batch that
it came in nor its place there changes the verdict.

A summary is generated greedily, on an engine of its own, so the slots of running
trajectories are not touched. It depends on the parameters and the text alone: nothing
that was computed for another text is used again.

Both put one question to the policy as a user message. If the texts in question are
longer than the model can read, their middle is cut out, never a word of the question.
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
from mempo_jax.rollout.sampler import Generation, Request, buckets, fit, in_one_order
from mempo_jax.settings import ConfigError

GAP = " ... "  # shown in place of what was cut out
Pair = tuple[str, str]  # new text, old text
# An agent that never learns would keep its verdicts for ever.
MOST_VERDICTS_KEPT = 50_000
# Fewer, as summaries are texts.
MOST_SUMMARIES_KEPT = 1_000
_REPLACEMENT = "\ufffd"  # what decoding puts for bytes that make no character
_THINK, _THOUGHT = "<think>", "</think>"


class PolicyJudge:
    """Asks the policy whether a new text adds to an old one, and whether it changes it.

    Changes: UPDATES. Adds only: ADDS. Neither: REPEATS. OTHER, a fact about something
    else, is never a verdict: the bank takes any verdict but REPEATS as OTHER if the
    texts are dissimilar, and merges similar ones if the new one adds.

    Args:
      model: the policy's architecture.
      tokenizer: the policy's.
      questions: what is asked.
      longest: the most tokens of a question; a longer one loses the middle of its
        texts.
      rows: questions computed at a time, always.
      row_sharding: as for the engine.

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
        self._devices = 1 if row_sharding is None else row_sharding.mesh.size
        self._rows = rows
        # Two widths: half of the longest question, rounded up to 8, and all of it.
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
        # Nothing is donated: parameters and answer ids serve every call.
        self._program = jax.jit(functools.partial(score, model))
        self._params = None
        self._verdicts: dict[Pair, Verdict] = {}

    def set_params(self, params) -> None:
        """Judges with new parameters from now on, and forgets earlier verdicts.

        Args:
          params: parameters of the model.
        """
        # No copy for arrays that are on their devices already.
        self._params = jax.device_put(params)
        self.forget()

    def forget(self) -> None:
        """Forgets all verdicts, and with them the texts that they were about."""
        self._verdicts = {}

    def warm_up(self) -> None:
        """Compiles every program that judging can need."""
        for width in self._widths:
            self._margins([], width)

    def __call__(self, new: str, old: str) -> Verdict:
        """Returns the verdict on one pair, ``new`` text against ``old``."""
        return self.many([(new, old)])[0]

    def many(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Returns a verdict for each pair; unknown ones are judged together.

        Args:
          pairs: (new text, old text).
        """
        self.prefetch_verdicts(pairs)
        return [self._verdicts[pair] for pair in pairs]

    def prefetch_verdicts(self, pairs: Iterable[Pair]) -> None:
        """Judges pairs that are about to be asked for, all together.

        Args:
          pairs: (new text, old text).
        """
        if len(self._verdicts) > MOST_VERDICTS_KEPT:
            self._verdicts = {}
        distinct = list(dict.fromkeys(pairs))
        unknown = [pair for pair in distinct if pair not in self._verdicts]
        contexts = [ids for pair in unknown for ids in self.questions(*pair)]
        answers = self._yes(contexts)
        for place, pair in enumerate(unknown):
            adds, changes = answers[2 * place : 2 * place + 2]
            self._verdicts[pair] = verdict(adds, changes)

    def questions(self, new: str, old: str) -> list[list[int]]:
        """Returns the ids of both contexts: does ``new`` add to ``old``, does it change
        it."""
        return [prompt.encode(new=new, old=old) for prompt in self._prompts]

    def answer(self, yes: bool) -> list[int]:
        """Returns the ids of the whole word for ``yes`` true or false."""
        return self._tokenizer.encode(self._words[0 if yes else 1])

    def _yes(self, contexts: list[list[int]]) -> np.ndarray:
        """bool [N]: whether yes is likelier than no after each context."""
        yes = np.zeros(len(contexts), bool)
        # By width, never by what else is asked: the shape may change the last bits of a
        # logit.
        for width in self._widths:
            members = [
                place
                for place, ids in enumerate(contexts)
                if fit(self._widths, len(ids)) == width
            ]
            for first in range(0, len(members), self._rows):
                batch = members[first : first + self._rows]
                margins = self._margins([contexts[place] for place in batch], width)
                yes[batch] = margins[: len(batch)] > 0
        return yes

    def _margins(self, contexts: list[list[int]], width: int) -> np.ndarray:
        """f32 [rows]: logit of yes less logit of no; other rows are noise."""
        if self._params is None:
            raise ValueError("the judge has no parameters; call set_params(params)")
        # Always all rows, so that a full and a nearly empty batch run the same program.
        tokens = np.zeros((self._rows, width), np.int32)
        # Length 1, since the last position of an empty row does not exist.
        lengths = np.ones(self._rows, np.int32)
        for row, ids in enumerate(contexts):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        arrays = self._put((tokens, lengths), split=True)
        # Every input was put on the devices on purpose: an implicit transfer is an
        # error.
        with jax.transfer_guard("disallow"):
            with in_one_order(self._devices):
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
            # What has no rows is needed whole by every device.
            replicated = jax.sharding.PartitionSpec()
            sharding = jax.sharding.NamedSharding(sharding.mesh, replicated)
        return jax.device_put(tree, sharding)


@dataclasses.dataclass(frozen=True)
class Questions:
    """What is asked, with {new} and {old}, and the two words that answer it.

    Only the first token of each word counts.

    Attributes:
      adds: asks whether the new text adds to the old one.
      changes: asks whether the new text changes what the old one says.
      yes, no: the words that answer.
    """

    adds: str
    changes: str
    yes: str
    no: str


def verdict(adds: bool, changes: bool) -> Verdict:
    """Combines the answers to both questions.

    Args:
      adds: whether the new text adds to the old one.
      changes: whether it changes what the old one says.
    """
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
    """Returns how much likelier (in logits) the first answer id is than the second.

    Args:
      model, params: the policy.
      tokens: int32 [B, T], right-padded.
      lengths: int32 [B], at least 1.
      answers: int32 [2].

    Returns:
      f32 [B].
    """
    mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
    hidden = model.hidden(params, tokens, mask)
    # Only the last position, and below only two words: no logits of the vocabulary.
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
    # In the dtype of the states, as when turns are sampled and scored.
    words = model.unembed(params)[:, answers].astype(last.dtype)
    logits = jnp.dot(
        last,
        words,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return logits[:, 0] - logits[:, 1]


def answer_ids(tokenizer: Tokenizer, questions: Questions) -> tuple[int, int]:
    """Returns the first token ids of yes and of no.

    Args:
      tokenizer: the policy's.
      questions: names both words.

    Raises:
      ConfigError: the tokenizer does not know a word, or both begin with the same
        token.
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


class PolicySummariser:
    """A callable (text, most characters) -> a shorter text, or "" if the policy has
    none.

    Args:
      model: the policy's architecture.
      tokenizer: the policy's.
      template: with {text} and, if wanted, {max_chars}.
      longest: the most tokens of question and answer together; a longer text loses its
        middle.
      most_tokens: the most tokens of the answer.
      decode_chunk, slots, row_sharding: as for the engine; one slot is used.

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
            # One shape for each program, so that the same text is always computed
            # alike.
            row_buckets=(slots,),
            span_buckets=(longest,),
            row_sharding=row_sharding,
        )
        self._params = None
        self._summaries: dict[tuple[str, int], str] = {}

    def set_params(self, params) -> None:
        """Summarises with new parameters from now on, and forgets earlier summaries.

        Args:
          params: parameters of the model.
        """
        self._engine.set_params(params)
        self._params = params
        self._summaries = {}

    def warm_up(self) -> None:
        """Compiles every program that a summary can need."""
        self._engine.warm_up()

    def __call__(self, text: str, max_chars: int) -> str:
        """Returns a shorter form of ``text`` that aims at ``max_chars`` characters."""
        key = text, max_chars
        if key not in self._summaries:
            if len(self._summaries) >= MOST_SUMMARIES_KEPT:
                self._summaries = {}
            self._summaries[key] = plain(self._generated(text, max_chars))
        return self._summaries[key]

    def _generated(self, text: str, max_chars: int) -> str:
        ids = self._prompt.encode(text=text, max_chars=str(max_chars))
        # The engine forgets: a prefix kept from another text, computed in another
        # shape, could change the last bits and so a token.
        self._engine.set_params(self._params)
        # A key of zeros: at temperature 0 nothing is drawn.
        request = Request(0, ids, np.zeros(2, np.uint32), self._most_tokens)
        [generation] = self._engine.generate([request], temperature=0.0)
        return self._without_stop(generation)

    def _without_stop(self, generation: Generation) -> str:
        tokens = (
            generation.tokens[:-1] if generation.finish == "stop" else generation.tokens
        )
        return self._tokenizer.decode(tokens)


def plain(text: str) -> str:
    """Removes thoughts from a text, and what the parser takes for ops.

    A memory that spelled an op could be acted out when it is copied.

    Args:
      text: what the policy wrote.

    Returns:
      "" if nothing is left, or if what is left makes an op again.
    """
    text = text.rpartition(_THOUGHT)[2].partition(_THINK)[0]
    plain_parts, end = [], 0
    for op in parse_ops(text):
        plain_parts.append(text[end : op.span[0]])
        end = max(end, op.span[1])
    text = " ".join("".join([*plain_parts, text[end:]]).split())
    return "" if parse_ops(text) else text


class Prompt:
    """A template with named fields, rendered through the chat template as token ids.

    Args:
      tokenizer: the policy's.
      template: the text, with fields in braces.
      field: the config field that holds the template, for errors.
      texts: fields that may be cut.
      longest: the most tokens.
      others: short fields that the template may have and that are never cut.

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
        # With gaps in place of the texts, which is how the most heavily cut question
        # looks.
        bare = len(self._encode(dict.fromkeys((*texts, *others), GAP)))
        if bare >= longest:
            raise ConfigError(
                f"{field}: expected a question of less than {longest} tokens "
                "(config.context.max_context_tokens + sampling.max_new_tokens, less "
                f"what is generated), got {bare} without the texts it is about"
            )

    def encode(self, **values: str) -> list[int]:
        """Returns the ids of the whole context, up to the point at which the policy
        writes.

        Args:
          values: a text for every field. Those that may be cut share the room evenly;
            what a short one leaves goes to the others.

        Returns:
          At most ``longest`` ids.
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
            cut_texts = {
                name: self._middle_cut(values[name], piece, shares[name])
                for name, piece in pieces.items()
            }
            ids = self._encode(values | cut_texts)
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
    """Divides room among texts: evenly, but none gets more than its own length.

    Args:
      lengths: length of each text, by name.
      room: what is to be divided.
    """
    shares: dict[str, int] = {}
    # Shortest first, so that what it leaves over is shared by those that follow.
    for left, name in enumerate(sorted(lengths, key=lengths.__getitem__)):
        each = (room - sum(shares.values())) // (len(lengths) - left)
        shares[name] = min(lengths[name], each)
    return shares


def check_template(
    template: str, field: str, needed: tuple[str, ...], allowed: tuple[str, ...] = ()
) -> None:
    """Checks which fields a template has.

    Args:
      template: the text.
      field: the config field that holds it, for errors.
      needed: fields that it must have.
      allowed: fields that it may have.

    Raises:
      ConfigError: a field is missing or unknown, or has a format of its own.
    """
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

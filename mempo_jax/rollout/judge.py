"""The policy as the judge of its own writes: yes against no in one forward pass.

Nothing is generated. A verdict depends on the parameters and the two texts alone: each
question is computed in an array of one fixed shape that its length alone decides, so
neither the batch it came in nor its place there shows in it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mempo_jax.memory import Verdict
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.prompting import Prompt
from mempo_jax.rollout.slots import buckets, fit
from mempo_jax.settings import ConfigError

Pair = tuple[str, str]  # new text, old text
MOST_KEPT = 50_000  # verdicts; an agent that never learns would keep them for ever
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
        self.foresee(pairs)
        return [self._verdicts[pair] for pair in pairs]

    def foresee(self, pairs: Iterable[Pair]) -> None:
        """Judges pairs that are about to be asked for, all together."""
        if len(self._verdicts) > MOST_KEPT:
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

"""One question to the policy as a user message, cut to the positions it has.

What is asked about may be longer than the model can read: then the middle of those
texts goes, never a word of the question.
"""

from __future__ import annotations

import string
from collections.abc import Mapping

from mempo_jax.models.tokenizer import Tokenizer
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

"""A chat template, reduced to what a growing context needs.

A trajectory's context only grows: a prompt, then sampled ids, then what the template
puts between an assistant turn and the next one. This is what the template itself would
render when it is *prefix-stable*: rendering more messages never changes what stood.

Some templates are not: they drop the thoughts of earlier turns, or write an empty
thought before what is to be said and not before what was said. Those have
``rewrites_past``: a context that they would render otherwise starts a new segment. A
template that changes anything else is refused here, at start.

The template only ever sees placeholders and the policy's own text. Other text is put in
their place afterwards, so it can neither steer the template nor pass for its words.

Encodes text so that only a template's own words become control tokens.

An observation or a memory may spell ``<|im_end|>``. Read as the control token it would
end the user's turn and speak for somebody else; here it is ordinary text.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer as BackendTokenizer


class Piece(NamedTuple):
    """A part of a text. own: written by the template, which may spell controls."""

    text: str
    own: bool


def join(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


class PlainTextEncoder:
    """Ids of text in which the spelling of a control token has no power.

    control: ids that foreign text must never become. unknown: the id that the
    vocabulary gives to what it does not know, or None; it is allowed where nothing
    spells it.

    Where nothing is spelled, which is nearly always, the ids are those of the backend
    for the whole text. Otherwise the text between the true controls is encoded part by
    part; a tokenizer that writes a blank before the first word of a text may then write
    one before each part.
    """

    def __init__(
        self, backend: BackendTokenizer, control: Iterable[int], unknown: int | None
    ) -> None:
        self._backend, self._control = backend, frozenset(control)
        self._unknown = unknown
        self._unknown_text = "" if unknown is None else backend.id_to_token(unknown)

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        """Ids of the joined pieces; adds nothing of its own."""
        text = join(pieces)
        made = self._backend.encode(text, add_special_tokens=False)
        if self._control.isdisjoint(made.ids):
            return made.ids
        own, foreign = self._controls(made, text, pieces)
        if not foreign:
            return made.ids
        ids: list[int] = []
        end = 0
        for number, start, stop in own:
            ids += [*self._ordinary(text[end:start]), number]
            end = stop
        return ids + self._ordinary(text[end:])

    def _controls(self, made, text: str, pieces: Sequence[Piece]):
        """(id, start, end) of the template's controls; whether others are spelled."""
        ends = itertools.accumulate(len(piece.text) for piece in pieces)
        borders = list(zip(ends, (piece.own for piece in pieces)))
        own, foreign, at = [], False, 0
        for number, (start, stop) in zip(made.ids, made.offsets):
            if number not in self._control:
                continue
            # A special token may take the white space around it for itself.
            core = text[start:stop].find(self._backend.id_to_token(number))
            while borders[at][0] <= start + max(core, 0):
                at += 1
            if borders[at][1]:
                own.append((number, start, stop))
            elif number != self._unknown or self._unknown_text in text[start:stop]:
                foreign = True
        return own, foreign

    def _ordinary(self, text: str) -> list[int]:
        """Ids of a text without any control."""
        made = self._blind.encode(text, add_special_tokens=False)
        cuts = [0]
        for number, (start, stop) in zip(made.ids, made.offsets):
            if number not in self._control or number == self._unknown:
                continue
            if stop - start > 1:  # the vocabulary itself has the token: split it up
                cuts.append(start + 1)
        if len(cuts) == 1:
            return [n for n in made.ids if n not in self._control - {self._unknown}]
        parts = itertools.pairwise([*cuts, len(text)])
        return [n for a, b in parts for n in self._ordinary(text[a:b])]

    @functools.cached_property
    def _blind(self) -> BackendTokenizer:
        """The same tokenizer, blind to special tokens; made when it is first needed."""
        copy = BackendTokenizer.from_str(self._backend.to_str())
        copy.encode_special_tokens = True
        return copy


Message = dict[str, str]
Render = Callable[[Sequence[Message], bool], str]
_REPLY = "reply-text"
_THOUGHT_REPLY = "<think>\nthought-text\n</think>\n\nreply-text"
_ROLES = (("system", "user"), ("user",))
_CUTS = (str, str.strip, str.lstrip, str.rstrip)
_THOUGHT = re.compile(r"\A.*?</think>|<think>.*?</think>|</?think>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class _Frame:
    """What stands around the contents, for one list of first roles.

    heads: before each content. now: behind the user's text where the policy is to
    write. past: the same before what it wrote. between: from there to the next user's
    text.
    """

    heads: tuple[str, ...]
    now: str
    past: str
    between: str


class ChatFormat:
    """What to write around sampled text.

    render: ``(messages, with_generation_prompt) -> text``.
    Attribute rewrites_past: see the module docstring.
    Raises ValueError, saying which rendering differs, on a template that changes what
    stood in any other way.
    """

    def __init__(self, render: Render):
        self._render = render
        self._frames = {roles: self._frame(roles) for roles in _ROLES}
        first, other = self._frames.values()
        if (first.now, first.past, first.between) != (
            *(other.now, other.past, other.between),
        ):
            raise _unstable(
                "what follows the first user message depends on a system message",
                other.now + other.past + other.between,
                first.now + first.past + first.between,
            )
        self._now, self._between = first.now, first.between
        self._past = self._start_of_past(first)
        self._cuts = {
            role: self._cut_of(roles, role) for roles in _ROLES for role in roles
        }
        self.rewrites_past = False
        replies = (_REPLY, _THOUGHT_REPLY)
        if not all(self._agrees(reply)[0] for reply in replies):
            self.rewrites_past = True
            self._check_rewriting(replies)

    def prompt(self, messages: Sequence[Message]) -> str:
        """The whole first context, up to where the policy starts to write."""
        return join(self.opening(messages))

    def opening(self, messages: Sequence[Message], past: bool = False) -> list[Piece]:
        """The first context: a system message or none, and a user message.

        past: the policy's turn behind it is an earlier one, to be repeated, not the
        one that it is about to write.
        """
        roles = tuple(message["role"] for message in messages)
        if roles not in self._frames:
            raise ValueError(
                f"a context starts with the roles {' or '.join(map(str, _ROLES))}, "
                f"got {roles}; later messages are appended"
            )
        pieces = []
        for head, message in zip(self._frames[roles].heads, messages):
            cut = self._cuts[message["role"]]
            pieces += [Piece(head, True), Piece(cut(message["content"]), False)]
        return [*pieces, Piece(self._past if past else self._now, True)]

    def following(self, user_text: str, past: bool = False) -> list[Piece]:
        """What follows the policy's text: its closing, and the next user message.

        past: as for ``opening``, of the policy's next turn.
        """
        return [
            Piece(self._between, True),
            Piece(self._cuts["user"](user_text), False),
            Piece(self._past if past else self._now, True),
        ]

    def shown(self, reply: str) -> str:
        """The policy's text as the template shows it once it is an earlier turn.

        As it is where the template cannot render it.
        """
        body = self._body(reply)
        fits = body is not None and body.startswith(self._past)
        return body[len(self._past) :] if fits else reply

    def _body(self, reply: str) -> str | None:
        """All between a first user's text and the closing of an earlier reply."""
        asked, next_text = _message("user", 1), _message("user", 2)
        [head] = self._frames[("user",)].heads
        before = head + asked["content"]
        behind = self._between + next_text["content"] + self._now
        try:
            text = self._text([asked, _message("assistant", reply), next_text])
        except ValueError:
            return None
        if not (text.startswith(before) and text.endswith(behind)):
            return None
        return text[len(before) : len(text) - len(behind)]

    def _start_of_past(self, frame: _Frame) -> str:
        """What stands before an earlier reply whatever it is.

        The rest, up to where the policy writes or wrote, is a thought or part of one.
        """
        body = self._body(_THOUGHT_REPLY)
        if body is None:
            raise _unstable(
                "a reply with a thought changes what follows it", _THOUGHT_REPLY, ""
            )
        start = frame.now
        for text in (frame.past, body):
            start = start[: common_prefix(start, text)]
        if not all(is_thought(t[len(start) :]) for t in (frame.now, frame.past)):
            raise _unstable(
                "a past reply is introduced otherwise", frame.now, frame.past
            )
        return start

    def _text(self, messages: Sequence[Message]) -> str:
        try:
            return self._render(messages, True)
        except Exception as error:
            roles = [message["role"] for message in messages]
            raise ValueError(
                f"the tokenizer's chat template cannot render the roles {roles}: "
                f"{error}. Expected a template for system, user and assistant "
                "messages; set another chat_template in tokenizer_config.json"
            ) from error

    def _frame(self, roles: Sequence[str]) -> _Frame:
        first = [_message(role, 1) for role in roles]
        begin = self._text(first)
        contents = [message["content"] for message in first]
        *heads, now = _split(begin, contents)
        next_text = _message("user", 2)
        longer = self._text([*first, _message("assistant", _REPLY), next_text])
        parts = _split(longer, [*contents, _REPLY, next_text["content"]])
        if parts[: len(heads)] != heads:
            raise _unstable("a second user message changes the text", begin, longer)
        *_, past, between, again = parts
        if again != now:
            raise _unstable("a later prompt to write differs", now, again)
        return _Frame(tuple(heads), now, past, between)

    def _cut_of(self, roles: Sequence[str], role: str) -> Callable[[str], str]:
        """What the template does to white space around this role's text."""
        messages, frame = [_message(each, 1) for each in roles], self._frames[roles]
        padded = " \n " + _message(role, 1)["content"] + " \n "
        messages[roles.index(role)]["content"] = padded
        rendered = self._text(messages)
        for cut in _CUTS:
            contents = [cut(message["content"]) for message in messages]
            expected = "".join(h + c for h, c in zip(frame.heads, contents)) + frame.now
            if rendered == expected:
                return cut
        raise _unstable(f"the text of the {role} is changed", expected, rendered)

    def _agrees(self, reply: str) -> tuple[bool, str, str]:
        """Three turns put together, against the template's rendering of them."""
        messages = [_message(role, 1) for role in _ROLES[0]]
        text = join(self.opening(messages, past=self.rewrites_past))
        said = self.shown(reply) if self.rewrites_past else reply
        for number in (2, 3):
            user = _message("user", number)
            messages += [_message("assistant", reply), user]
            past = self.rewrites_past and number == 2
            text += said + join(self.following(user["content"], past))
        rendered = self._text(messages)
        return text == rendered, text, rendered

    def _check_rewriting(self, replies: Sequence[str]) -> None:
        for reply in replies:
            same, text, rendered = self._agrees(reply)
            if not same:
                raise _unstable(
                    f"the reply {reply!r} is rendered differently later", text, rendered
                )
            said = self.shown(reply)
            if said != reply and _bare(said) != _REPLY:
                raise _unstable("an earlier reply is changed", reply, said)


def _message(role: str, what: int | str) -> Message:
    """A message of the assistant with this text, or one that holds a placeholder."""
    if role == "assistant":
        return {"role": role, "content": str(what)}
    return {"role": role, "content": f"{role}-text-{what}"}


def _split(text: str, contents: Sequence[str]) -> list[str]:
    """The parts of a rendering around its contents, each of which stands in it once."""
    parts, rest = [], text
    for content in contents:
        if text.count(content) != 1 or content not in rest:
            raise _unstable("a message is not rendered exactly once", content, text)
        before, _, rest = rest.partition(content)
        parts.append(before)
    return [*parts, rest]


def common_prefix(a: str, b: str) -> int:
    """Characters that both texts begin with."""
    if b.startswith(a):
        return len(a)
    pairs = enumerate(zip(a, b))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def _bare(text: str) -> str:
    """The text without thoughts, of which the first may have begun before it."""
    return _THOUGHT.sub("", text).strip()


def is_thought(text: str) -> bool:
    """Whether the text is an empty thought, part of one, or white space."""
    return not re.sub(r"</?think>", "", text).strip()


def _unstable(why: str, expected: str, got: str) -> ValueError:
    same = common_prefix(expected, got)
    return ValueError(
        f"the chat template is not prefix-stable: {why}. From character {same} on, "
        f"appending gives {expected[same : same + 60]!r} and the template gives "
        f"{got[same : same + 60]!r}. Training would score a context that was never "
        "sampled. Set a chat_template in tokenizer_config.json that keeps earlier "
        "turns as they were, but for their thoughts"
    )

"""Reduces a chat template to what a growing context needs, and encodes its texts.

A trajectory's context only grows: a prompt, then sampled ids, then what the template
puts between an assistant turn and the next one. The template itself would render the
same if it is *prefix-stable*: rendering more messages never changes earlier text.

Some templates are not: they drop the thoughts of earlier turns, or write an empty
thought before the turn to be written and not before earlier ones. Those have
``rewrites_past``: a context that they would render otherwise starts a new segment. A
template that changes anything else is refused here, at start.

The template only ever sees placeholders and the policy's own text. Other text is put in
their place afterwards, so it can neither steer the template nor pass for its words.

Only a template's own words become control tokens. An observation or a memory may spell
``<|im_end|>``, which as the control token would end the user's turn and let the text
speak for somebody else; ``PlainTextEncoder`` encodes it as ordinary text.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer as BackendTokenizer

Message = dict[str, str]
Render = Callable[[Sequence[Message], bool], str]
# Placeholders for replies; ``_split`` refuses a template that writes them itself.
_REPLY = "reply-text"
_THOUGHT_REPLY = "<think>\nthought-text\n</think>\n\nreply-text"
_ROLES = (("system", "user"), ("user",))
# What templates do to white space around a text.
_CUTS = (str, str.strip, str.lstrip, str.rstrip)
_THOUGHT = re.compile(r"\A.*?</think>|<think>.*?</think>|</?think>", re.DOTALL)


class Piece(NamedTuple):
    """A part of a text; ``own`` if the template wrote it, which may spell controls."""

    text: str
    own: bool


class ChatFormat:
    """Knows what to write around sampled text, learnt from renderings of placeholders.

    Args:
      render: ``(messages, with_generation_prompt) -> text``.

    Attributes:
      rewrites_past: see the module docstring.

    Raises:
      ValueError: a template that changes earlier text in any other way; says which
        rendering differs.
    """

    def __init__(self, render: Render):
        self._render = render if _knows_system(render) else _without_system(render)
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
        """Renders the whole first context, up to where the policy starts to write.

        Args:
          messages: a system message or none, and a user message.
        """
        return join(self.opening(messages))

    def opening(self, messages: Sequence[Message], past: bool = False) -> list[Piece]:
        """Renders the first context as pieces.

        Args:
          messages: a system message or none, and a user message.
          past: whether the policy's turn after it is an earlier one, to be repeated,
            and not the one that it is about to write.

        Raises:
          ValueError: messages of other roles.
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
        """Renders what follows the policy's text: its closing, and a user message.

        Args:
          user_text: the content of that message.
          past: as for ``opening``, of the policy's next turn.
        """
        return [
            Piece(self._between, True),
            Piece(self._cuts["user"](user_text), False),
            Piece(self._past if past else self._now, True),
        ]

    def shown(self, reply: str) -> str:
        """Returns the policy's text as the template shows it in an earlier turn.

        Args:
          reply: the text; returned unchanged if the template cannot render it.
        """
        body = self._body(reply)
        fits = body is not None and body.startswith(self._past)
        return body[len(self._past) :] if fits else reply

    def _body(self, reply: str) -> str | None:
        """Renders an earlier reply: all between a first user's text and its closing."""
        first, second = _message("user", 1), _message("user", 2)
        [head] = self._frames[("user",)].heads
        before = head + first["content"]
        after = self._between + second["content"] + self._now
        try:
            text = self._text([first, _message("assistant", reply), second])
        except ValueError:
            return None
        if not (text.startswith(before) and text.endswith(after)):
            return None
        return text[len(before) : len(text) - len(after)]

    def _start_of_past(self, frame: _Frame) -> str:
        """Finds the text before an earlier reply that is the same for every reply.

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
        """Finds what the template does to white space around this role's text."""
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
        """Compares three turns put together with the template's rendering of them.

        Returns:
          Whether they are equal, the text put together, and the rendering.
        """
        messages = [_message(role, 1) for role in _ROLES[0]]
        text = join(self.opening(messages, past=self.rewrites_past))
        past_reply = self.shown(reply) if self.rewrites_past else reply
        for number in (2, 3):
            user = _message("user", number)
            messages += [_message("assistant", reply), user]
            past = self.rewrites_past and number == 2
            text += past_reply + join(self.following(user["content"], past))
        rendered = self._text(messages)
        return text == rendered, text, rendered

    def _check_rewriting(self, replies: Sequence[str]) -> None:
        for reply in replies:
            same, text, rendered = self._agrees(reply)
            if not same:
                raise _unstable(
                    f"the reply {reply!r} is rendered differently later", text, rendered
                )
            shown = self.shown(reply)
            if shown != reply and _bare(shown) != _REPLY:
                raise _unstable("an earlier reply is changed", reply, shown)


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The template's text around the contents, for one list of first roles.

    Attributes:
      heads: before each content.
      now: after the user's text if the policy is about to write.
      past: the same before a turn that it wrote earlier.
      between: from the end of that turn to the next user's text.
    """

    heads: tuple[str, ...]
    now: str
    past: str
    between: str


class PlainTextEncoder:
    """Encodes text so that the spelling of a control token has no power in it.

    If no foreign text spells a control, which is nearly always, the ids are those of
    the backend for the whole text. Otherwise the text between the template's controls
    is encoded part by part; a tokenizer that writes a blank before the first word of a
    text may then write one before each part.

    Args:
      backend: the tokenizer.
      control: ids that foreign text must never become.
      unknown: the id that the vocabulary gives to unknown text, or None; it is allowed
        unless the text spells it.
    """

    def __init__(
        self, backend: BackendTokenizer, control: Iterable[int], unknown: int | None
    ) -> None:
        self._backend, self._control = backend, frozenset(control)
        self._unknown = unknown
        self._unknown_text = "" if unknown is None else backend.id_to_token(unknown)

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        """Encodes the joined pieces; adds no tokens of its own.

        Args:
          pieces: in order; controls are allowed only in the template's own ones.
        """
        text = join(pieces)
        encoding = self._backend.encode(text, add_special_tokens=False)
        if self._control.isdisjoint(encoding.ids):
            return encoding.ids
        own, foreign = self._controls(encoding, text, pieces)
        if not foreign:
            return encoding.ids
        ids: list[int] = []
        end = 0
        for number, start, stop in own:
            ids += [*self._ordinary(text[end:start]), number]
            end = stop
        return ids + self._ordinary(text[end:])

    def _controls(self, encoding, text: str, pieces: Sequence[Piece]):
        """Returns (id, start, end) of the template's controls, and whether other text
        spells any."""
        ends = itertools.accumulate(len(piece.text) for piece in pieces)
        borders = list(zip(ends, (piece.own for piece in pieces)))
        own, foreign, at = [], False, 0
        for number, (start, stop) in zip(encoding.ids, encoding.offsets):
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
        """Encodes a text without any control."""
        encoding = self._blind.encode(text, add_special_tokens=False)
        cuts = [0]
        for number, (start, stop) in zip(encoding.ids, encoding.offsets):
            if number not in self._control or number == self._unknown:
                continue
            if stop - start > 1:  # the vocabulary itself has the token: split it up
                cuts.append(start + 1)
        if len(cuts) == 1:
            return [n for n in encoding.ids if n not in self._control - {self._unknown}]
        parts = itertools.pairwise([*cuts, len(text)])
        return [n for a, b in parts for n in self._ordinary(text[a:b])]

    @functools.cached_property
    def _blind(self) -> BackendTokenizer:
        """A copy of the tokenizer, blind to special tokens; built when first needed."""
        copy = BackendTokenizer.from_str(self._backend.to_str())
        copy.encode_special_tokens = True
        return copy


def join(pieces: Iterable[Piece]) -> str:
    """Returns the text of all pieces.

    Args:
      pieces: in order.
    """
    return "".join(piece.text for piece in pieces)


def common_prefix(a: str, b: str) -> int:
    """Counts the characters that both texts begin with.

    Args:
      a: one text.
      b: the other text.
    """
    if b.startswith(a):
        return len(a)
    pairs = enumerate(zip(a, b))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def is_thought(text: str) -> bool:
    """Tells whether a text is an empty thought, part of one, or white space.

    Args:
      text: what a template adds or drops before a reply.
    """
    return not re.sub(r"</?think>", "", text).strip()


def _knows_system(render: Render) -> bool:
    """Tells whether a template shows a system message at all."""
    messages = [_message("system", 1), _message("user", 1)]
    try:
        return messages[0]["content"] in render(messages, True)
    except Exception:  # a template may raise what it likes
        try:
            render(messages[1:], True)
        except Exception:
            return True  # it fails without one too: that is what is to be reported
        return False


def _without_system(render: Render) -> Render:
    """Renders a system message as the beginning of the first user message."""

    def rendered(messages: Sequence[Message], generate: bool) -> str:
        if messages and messages[0]["role"] == "system":
            first, user, *rest = messages
            text = f"{first['content']}\n\n{user['content']}"
            messages = [{"role": "user", "content": text}, *rest]
        return render(messages, generate)

    return rendered


def _message(role: str, what: int | str) -> Message:
    """Builds a message of the assistant with this text, or one with a placeholder."""
    if role == "assistant":
        return {"role": role, "content": str(what)}
    return {"role": role, "content": f"{role}-text-{what}"}


def _split(text: str, contents: Sequence[str]) -> list[str]:
    """Returns the parts of a rendering around its contents, each in it exactly once."""
    parts, rest = [], text
    for content in contents:
        if text.count(content) != 1 or content not in rest:
            raise _unstable("a message is not rendered exactly once", content, text)
        before, _, rest = rest.partition(content)
        parts.append(before)
    return [*parts, rest]


def _bare(text: str) -> str:
    """Removes thoughts from a text; the first may have begun before it."""
    return _THOUGHT.sub("", text).strip()


def _unstable(why: str, expected: str, got: str) -> ValueError:
    same = common_prefix(expected, got)
    return ValueError(
        f"the chat template is not prefix-stable: {why}. From character {same} on, "
        f"appending gives {expected[same : same + 60]!r} and the template gives "
        f"{got[same : same + 60]!r}. Training would score a context that was never "
        "sampled. Set a chat_template in tokenizer_config.json that keeps earlier "
        "turns as they were, but for their thoughts"
    )

"""A chat template, reduced to what an append-only context needs.

A trajectory's context only grows: a prompt, then sampled ids, then the text that the
template puts between a closed assistant turn and the next one. This is only the same
text that the template itself would render when the template is *prefix-stable*:
rendering more messages never changes what was rendered before. Some templates are not
(they drop earlier thoughts, or write an empty one); those are refused here, at start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Message = dict[str, str]
Render = Callable[[Sequence[Message], bool], str]

_SYSTEM = {"role": "system", "content": "system-text"}
_REPLIES = ("reply-text", "<think>\nthought-text\n</think>\n\nreply-text")


def _user(number: int) -> Message:
    return {"role": "user", "content": f"user-text-{number}"}


class ChatFormat:
    """What to write around sampled text.

    render: ``(messages, with_generation_prompt) -> text``.
    Raises ValueError, saying which rendering differs, on a template that is not
    prefix-stable.
    """

    def __init__(self, render: Render):
        self._render = render
        first = [_SYSTEM, _user(1)]
        begin = self.prompt(first)
        self.close_text = self._after_reply(first, begin, _REPLIES[0])
        self._before, self._behind = self._between(first, begin)
        self._strips = self._trims_user_text()
        for reply in _REPLIES:
            self._check_stable(first, begin, reply)

    def prompt(self, messages: Sequence[Message]) -> str:
        """The whole first context, up to where the policy starts to write."""
        try:
            return self._render(messages, True)
        except Exception as error:
            roles = [message["role"] for message in messages]
            raise ValueError(
                f"the tokenizer's chat template cannot render the roles {roles}: "
                f"{error}. Expected a template for system, user and assistant "
                "messages; set another chat_template in tokenizer_config.json"
            ) from error

    def continuation(self, user_text: str) -> str:
        """What follows a closed assistant turn, up to where the policy writes again."""
        text = user_text.strip() if self._strips else user_text
        return self._before + text + self._behind

    def _after_reply(self, messages, begin: str, reply: str) -> str:
        closed = self._closed(messages, reply)
        if not closed.startswith(begin + reply):
            raise _unstable(
                "a reply is not rendered right behind the generation prompt",
                begin + reply,
                closed,
            )
        return closed[len(begin + reply) :]

    def _closed(self, messages, reply: str) -> str:
        return self._render([*messages, _assistant(reply)], False)

    def _between(self, first, begin: str) -> tuple[str, str]:
        so_far = begin + _REPLIES[0] + self.close_text
        longer = self.prompt([*first, _assistant(_REPLIES[0]), _user(2)])
        if not longer.startswith(so_far):
            raise _unstable("a second user message changes the text", so_far, longer)
        around = longer[len(so_far) :].split(_user(2)["content"])
        if len(around) != 2:
            raise _unstable(
                "a user message is not rendered exactly once",
                _user(2)["content"],
                longer[len(so_far) :],
            )
        return around[0], around[1]

    def _trims_user_text(self) -> bool:
        text = self.prompt([_SYSTEM, {"role": "user", "content": "  user-text  "}])
        return "  user-text  " not in text

    def _check_stable(self, first, begin: str, reply: str) -> None:
        """Three turns, appended piece by piece, against the template's rendering."""
        messages, text = list(first), begin
        for number in (2, 3):
            what = f"turn {number} after the reply {reply!r}"
            messages += [_assistant(reply), _user(number)]
            text += reply + self.close_text
            text += self.continuation(_user(number)["content"])
            rendered = self.prompt(messages)
            if rendered != text:
                raise _unstable(f"{what} is rendered differently", text, rendered)


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _unstable(why: str, expected: str, got: str) -> ValueError:
    same = 0
    while same < min(len(expected), len(got)) and expected[same] == got[same]:
        same += 1
    return ValueError(
        f"the chat template is not prefix-stable: {why}. From character {same} on, "
        f"appending gives {expected[same : same + 60]!r} and the template gives "
        f"{got[same : same + 60]!r}. Training would score a context that was never "
        "sampled. Set a chat_template in tokenizer_config.json that keeps earlier "
        "turns as they were (drops no thought, adds none)"
    )

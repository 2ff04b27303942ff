import pytest

from mempo_jax.models.chat import ChatFormat


def chatml(messages, generation_prompt):
    parts = [f"<{m['role']}>{m['content']}<end>\n" for m in messages]
    return "".join(parts) + ("<assistant>" if generation_prompt else "")


def drops_thoughts(messages, generation_prompt):
    """As Qwen3's does: thoughts of all but the last reply are removed."""
    kept = [
        {**m, "content": m["content"].split("</think>\n\n")[-1]}
        if m["role"] == "assistant" and m is not messages[-1]
        else m
        for m in messages
    ]
    return chatml(kept, generation_prompt)


def adds_thoughts(messages, generation_prompt):
    empty = "<think>\n\n</think>\n\n"
    kept = [
        {**m, "content": empty + m["content"]} if m["role"] == "assistant" else m
        for m in messages
    ]
    return chatml(kept, generation_prompt)


def counts_messages(messages, generation_prompt):
    return f"{len(messages)}" + chatml(messages, generation_prompt)


def hides_users(messages, generation_prompt):
    kept = [m for m in messages if m["role"] != "user" or m is messages[1]]
    return chatml(kept, generation_prompt)


def test_appending_pieces_equals_rendering():
    chat = ChatFormat(chatml)
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]
    text = chat.prompt(messages) + "reply" + chat.close_text + chat.continuation("v")
    messages += [
        {"role": "assistant", "content": "reply"},
        {"role": "user", "content": "v"},
    ]
    assert text == chatml(messages, True)
    assert chat.close_text == "<end>\n"


@pytest.mark.parametrize(
    "render", [drops_thoughts, adds_thoughts, counts_messages, hides_users]
)
def test_a_template_that_rewrites_what_stood_is_refused(render):
    with pytest.raises(ValueError, match="not prefix-stable") as caught:
        ChatFormat(render)
    assert "chat_template" in str(caught.value)


def test_the_refusal_shows_where_the_texts_part():
    with pytest.raises(ValueError, match=r"appending gives '<think>.*gives 'reply"):
        ChatFormat(drops_thoughts)


def test_a_template_that_trims_user_text_is_followed():
    def trims(messages, generation_prompt):
        kept = [{**m, "content": m["content"].strip()} for m in messages]
        return chatml(kept, generation_prompt)

    assert ChatFormat(trims).continuation(" v ") == "<user>v<end>\n<assistant>"
    assert ChatFormat(chatml).continuation(" v ") == "<user> v <end>\n<assistant>"


def test_a_template_that_fails_is_named():
    def no_system(messages, generation_prompt):
        if messages[0]["role"] == "system":
            raise TypeError("System role not supported")
        return chatml(messages, generation_prompt)

    with pytest.raises(ValueError, match=r"cannot render the roles.*not supported"):
        ChatFormat(no_system)

import pytest

from mempo_jax.models.chat import ChatFormat, join
from mempo_jax.models.tokenizer import Tokenizer
from tests.models import chat_families
from tests.models.chat_families import FAMILIES, FAST, REWRITING, rendered

THOUGHT = "<think>\nIt is in the hall.\n</think>\n\n"
STABLE = sorted(set(FAMILIES) - set(REWRITING))


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


def changes_replies(messages, generation_prompt):
    """Earlier replies in capitals."""
    kept = [
        {**m, "content": m["content"].upper()}
        if m["role"] == "assistant" and m is not messages[-1]
        else m
        for m in messages
    ]
    return chatml(kept, generation_prompt)


def keeps_one_thought(messages, generation_prompt):
    """Drops the thoughts of all but the newest reply."""
    kept, newer = [], 0
    for m in reversed(messages):
        text = m["content"]
        if m["role"] == "assistant":
            text = text.split("</think>\n\n")[-1] if newer else text
            newer += 1
        kept.insert(0, {**m, "content": text})
    return chatml(kept, generation_prompt)


def counts_messages(messages, generation_prompt):
    return f"{len(messages)}" + chatml(messages, generation_prompt)


def marks_the_newest(messages, generation_prompt):
    text = chatml(messages, generation_prompt)
    return text.removesuffix("<assistant>") + "<assistant><!>"


def doubles_spaces(messages, generation_prompt):
    kept = [{**m, "content": m["content"].replace(" ", "  ")} for m in messages]
    return chatml(kept, generation_prompt)


def notes_thoughts(messages, generation_prompt):
    kept = [
        {**m, "content": m["content"].replace("</think>\n\n", "</think>\n\nSo: ")}
        if m["role"] == "assistant" and m is not messages[-1]
        else m
        for m in messages
    ]
    return chatml(kept, generation_prompt)


def hides_users(messages, generation_prompt):
    kept = [m for m in messages if m["role"] != "user" or m is messages[1]]
    return chatml(kept, generation_prompt)


def test_appending_pieces_equals_rendering():
    chat = ChatFormat(chatml)
    messages = conversation("reply")
    text = chat.prompt(messages[:2]) + "reply" + join(chat.following("v"))
    assert text == chatml(messages, True)
    assert join(chat.following("v")) == "<end>\n<user>v<end>\n<assistant>"
    assert not chat.rewrites_past


def conversation(*replies, system="s"):
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "u"})
    for reply in replies:
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": "v"})
    return messages


@pytest.mark.parametrize(
    "render",
    [
        changes_replies,
        keeps_one_thought,
        counts_messages,
        marks_the_newest,
        doubles_spaces,
        notes_thoughts,
        hides_users,
    ],
)
def test_a_template_that_rewrites_what_stood_is_refused(render):
    with pytest.raises(ValueError, match="not prefix-stable") as caught:
        ChatFormat(render)
    assert "chat_template" in str(caught.value)


def test_the_refusal_shows_where_the_texts_part():
    with pytest.raises(ValueError, match=r"From character 0 on.*'2<.*gives '4<"):
        ChatFormat(counts_messages)


def test_a_prompt_that_differs_later_is_refused_as_such():
    def hurries(messages, generation_prompt):
        return chatml(messages, True) + ("quick: " if len(messages) > 3 else "")

    with pytest.raises(ValueError, match="a later prompt to write differs"):
        ChatFormat(hurries)


@pytest.mark.parametrize("render", [drops_thoughts, adds_thoughts])
def test_a_template_that_changes_thoughts_alone_can_be_followed(render):
    chat = ChatFormat(render)
    assert chat.rewrites_past
    said = "<think>\nwhy\n</think>\n\nyes"
    messages = conversation(said, said)
    text = join(chat.opening(messages[:2], past=True)) + chat.shown(said)
    text += join(chat.following("v", past=True)) + chat.shown(said)
    assert text + join(chat.following("v")) == render(messages, True)
    assert chat.prompt(messages[:2]) == render(messages[:2], True)


def test_what_the_template_cannot_render_stays_as_it_was_said():
    def fails(messages, generation_prompt):
        if any("odd" in m["content"] for m in messages):
            raise TypeError("odd")
        return drops_thoughts(messages, generation_prompt)

    assert ChatFormat(fails).shown("<think>odd</think>\n\n.").endswith("</think>\n\n.")


@pytest.mark.parametrize("cut", [str.strip, str.lstrip, str.rstrip])
def test_a_template_that_trims_texts_is_followed(cut):
    def trims(messages, generation_prompt):
        kept = [{**m, "content": cut(m["content"])} for m in messages]
        return chatml(kept, generation_prompt)

    followed = join(ChatFormat(trims).following(" v "))
    assert followed == f"<end>\n<user>{cut(' v ')}<end>\n<assistant>"
    padded = [{"role": "system", "content": " s "}, {"role": "user", "content": " u "}]
    assert ChatFormat(trims).prompt(padded) == trims(padded, True)
    assert " v " in join(ChatFormat(chatml).following(" v "))


def test_a_template_that_fails_is_named():
    def no_user(messages, generation_prompt):
        if any(message["role"] == "user" for message in messages):
            raise TypeError("user role not supported")
        return chatml(messages, generation_prompt)

    with pytest.raises(ValueError, match=r"cannot render the roles.*not supported"):
        ChatFormat(no_user)


def test_a_context_that_starts_otherwise_is_refused():
    with pytest.raises(ValueError, match=r"starts with the roles.*got \('assistant'"):
        ChatFormat(chatml).prompt([{"role": "assistant", "content": "x"}])


def grown(tokenizer, messages):
    """A conversation put together from ids, as segments are; ids of the replies."""
    users = [m["content"] for m in messages if m["role"] == "user"]
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    start = messages[: 1 + (messages[0]["role"] == "system")]
    kept = [[*tokenizer.encode(text), tokenizer.stop_ids[0]] for text in said]
    turns = [tokenizer.earlier(ids) for ids in kept]
    return tokenizer.encode_prompt(start, list(zip(turns, users[1:]))), kept


@pytest.mark.parametrize("system", ["Use your memory.\nAnn's key", " x ", "", "é…\n"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_grown_ids_are_those_of_the_whole_rendering(name, system):
    tokenizer = FAMILIES[name]
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "Where is the key?"})
    for reply, text in (
        ("hello", "\n\n  turn 2/20\n"),
        (f"{THOUGHT}The key is here.", "日本 4711…"),
        ("hello <answer>4711</answer>", " now?\n\n"),
    ):
        ids, replies = grown(tokenizer, messages)
        whole = tokenizer.encode(rendered(name, messages), control=True)
        assert tokenizer.decode(ids) == tokenizer.decode(whole)
        if name in STABLE:
            assert ids == whole
            assert all(is_within(reply, ids) for reply in replies)
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": text})


def is_within(some, ids):
    return any(ids[n : n + len(some)] == some for n in range(len(ids)))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_what_the_template_does_is_known(name):
    tokenizer = FAMILIES[name]
    assert tokenizer.rewrites_past == (name in REWRITING)
    plain = tokenizer.prompt([{"role": "user", "content": "hello"}])
    assert plain == rendered(name, [{"role": "user", "content": "hello"}])
    bos = FAST[name].bos_token
    assert bos is None or plain.count(bos) == 1


def test_a_default_system_text_is_the_templates_own():
    said = FAMILIES["chatml"].prompt([{"role": "user", "content": "hello"}])
    assert said.startswith("<|im_start|>system\nYou are helpful.<|im_end|>\n")


def test_a_template_that_writes_the_date_needs_a_fixed_one():
    with pytest.raises(ValueError, match=r"date of the day.*chat_template_kwargs"):
        Tokenizer(FAST["headers"])
    dated = Tokenizer(FAST["headers"], (), (("date_string", "1 May 1999"),))
    prompt = [{"role": "user", "content": "hello"}]
    assert "Today: 1 May 1999\n" in dated.prompt(prompt)
    assert "Today: 26 Jul 2024\n" in FAMILIES["headers"].prompt(prompt)


def test_an_option_that_the_template_does_not_know_is_refused():
    with pytest.raises(ValueError, match=r"chat_template_kwargs.*'enable_thinkin'"):
        Tokenizer(FAST["no_thinking"], (), (("enable_thinkin", False),))


def later(tokenizer, ids):
    """The ids of a turn as a later context shows them, its closing left out."""
    turn = tokenizer.earlier(ids)
    around = [tokenizer._encoder.encode(p) for p in (turn.before, turn.after)]
    return [*around[0], *turn.ids, *around[1]]


def test_a_dropped_thought_leaves_the_sampled_ids_behind_it():
    tokenizer = FAMILIES["drops_thoughts"]
    answer = [tokenizer.encode(c)[0] for c in "hello"]  # not as it would be encoded
    ids = [*tokenizer.encode(THOUGHT), *answer, tokenizer.stop_ids[0]]
    assert later(tokenizer, ids) == answer
    assert later(tokenizer, ids[:-1]) == answer
    assert later(tokenizer, [*answer, tokenizer.stop_ids[0]]) == answer
    assert later(tokenizer, []) == []
    assert later(FAMILIES["chatml"], ids) == ids[:-1]


def test_a_token_that_the_end_of_a_thought_parts_is_encoded_anew():
    template = chat_families.DROPS_THOUGHTS.replace(".lstrip('\\n')", "[1:]")
    tokenizer = Tokenizer(chat_families.chatml(template, chat_families.THOUGHTS))
    answer = [tokenizer.encode(c)[0] for c in "hello"]
    [breaks] = tokenizer.encode("\n\n")
    ids = [*tokenizer.encode("<think>x</think>"), breaks, *answer]
    assert later(tokenizer, ids) == [*tokenizer.encode("\n"), *answer]


def test_a_blank_that_a_template_trims_parts_the_last_token():
    template = chat_families.DROPS_THOUGHTS.replace(
        "m.content }}", "m.content.strip() }}"
    )
    tokenizer = Tokenizer(chat_families.chatml(template, chat_families.THOUGHTS))
    answer = [tokenizer.encode(c)[0] for c in "hello"]
    ids = [*answer, *tokenizer.encode(".\n")]
    assert later(tokenizer, ids) == [*answer, *tokenizer.encode(".")]


@pytest.mark.parametrize("name", ["keeps_opened", "keeps_closed"])
def test_an_empty_thought_that_a_template_adds_stands_before_the_sampled_ids(name):
    tokenizer = FAMILIES[name]
    ids = [tokenizer.encode(c)[0] for c in "hello"]
    asked, empty = [{"role": "user", "content": "x"}], "<think>\n\n</think>\n\n"
    whole = tokenizer.encode_prompt(asked, [(tokenizer.earlier(ids), "y")])
    head = tokenizer.encode("assistant\n" + empty, control=True)
    at = next(n for n in range(len(whole)) if whole[n : n + len(head)] == head)
    assert whole[at + len(head) :][: len(ids)] == ids

"""A question fits the model whatever it is about, and stays whole."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_jax.models.tokenizer import Tokenizer
from mempo_jax.rollout.policy_judge import GAP, Prompt, check_template, share
from mempo_jax.settings import ConfigError
from tests.models.tokenizer_test import byte_level
from tests.rollout.tiny import TOKENIZER, WORDS

BYTES = Tokenizer(byte_level())

END = "\ngold memory<|end|><|assistant|>"
TEMPLATE = "use {old}\nfind {new}\ngold memory"


def prompt(longest=40, template=TEMPLATE, **options):
    options = {"field": "config.memory.x", "texts": ("new", "old"), **options}
    return Prompt(TOKENIZER, template, longest=longest, **options)


def read(ids):
    return TOKENIZER.decode(ids)


def test_a_short_question_is_a_user_message_as_the_template_renders_it():
    ids = prompt().encode(new="one", old="two three")
    assert read(ids) == (
        "<|user|>use two three\nfind one\ngold memory<|end|><|assistant|>"
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_is_too_long_loses_its_middle_and_never_the_question(seed):
    draw = random.Random(seed)

    def words(most):
        return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))

    made, new, old = prompt(), words(60), words(60)
    ids = made.encode(new=new, old=old)
    text = read(ids)
    assert len(ids) <= 40
    assert text.startswith("<|user|>use ")
    assert text.endswith(END)
    shown = text.removeprefix("<|user|>use ").removesuffix(END)
    shown_old, shown_new = shown.split("\nfind ")
    for whole, shown in ((old, shown_old), (new, shown_new)):
        head, *tail = shown.split(GAP)
        assert whole.startswith(head)
        assert whole.endswith(tail[0] if tail else head)
    if len(ids) < 30:
        assert (shown_old, shown_new) == (old, new)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_bytes_as_tokens_are_cut_as_well(new, old):
    made = Prompt(
        *(BYTES, "{old}\n+ {new}\n?"), field="x", texts=("new", "old"), longest=120
    )
    ids = made.encode(new=new, old=old)
    text = BYTES.decode(ids)
    assert len(ids) <= 120
    assert text.startswith("<|im_start|>user\n")
    assert text.endswith("\n?<|im_end|>\n<|im_start|>assistant\n")


def test_half_a_surrogate_pair_is_read_as_some_sign():
    assert "find <unk>\n" in read(prompt().encode(new="\ud800", old="two"))


def test_a_short_text_stays_whole_beside_a_long_one():
    text = read(prompt().encode(new="one two three", old="four " * 500))
    assert "find one two three\n" in text
    assert GAP in text


def test_room_is_shared_evenly_and_what_is_left_goes_on():
    assert share({"a": 100, "b": 100}, 50) == {"a": 25, "b": 25}
    assert share({"a": 100, "b": 5}, 50) == {"a": 45, "b": 5}
    assert share({"a": 3, "b": 5}, 50) == {"a": 3, "b": 5}


def test_a_question_that_leaves_no_room_is_refused():
    with pytest.raises(ConfigError, match=r"config\.memory\.x: .* less than 12 tokens"):
        prompt(longest=12)


@pytest.mark.parametrize(
    "template", ["{new}", "{new} {old} {other}", "{new} {old} {", "{new:3} {old}", ""]
)
def test_a_template_with_other_fields_is_refused(template):
    with pytest.raises(ConfigError, match=r"config\.memory\.x: expected a text with"):
        check_template(template, "config.memory.x", ("new", "old"))


def test_further_fields_may_be_named():
    check_template("{text}", "x", ("text",), ("max_chars",))
    check_template("{text} {max_chars}", "x", ("text",), ("max_chars",))

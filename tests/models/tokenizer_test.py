import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from mempo_jax.models.nano import build_nano
from mempo_jax.models.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(template=CHATML, **special):
    """Bytes as tokens, and "</" glued into one: closing tags are several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "</"])}
    backend = BackendTokenizer(models.BPE(vocabulary, merges=[("<", "/")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    marks = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    special = special or {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    fast.chat_template = template
    return fast


TOKENIZER = Tokenizer(byte_level())


def control(text):
    return TOKENIZER.encode(text, control=True)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_any_text_survives_and_offsets_cover_it(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    offsets = TOKENIZER.offsets(ids)
    covered = {at for start, end in offsets for at in range(start, end)}
    assert covered >= set(range(len(text)))
    assert offsets == offsets_by_definition(ids)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=30))
def test_offsets_of_any_ids_follow_the_definition(ids):
    assert TOKENIZER.offsets(ids) == offsets_by_definition(ids)


def offsets_by_definition(ids):
    text = TOKENIZER.decode(ids)
    starts = []
    for count in range(len(ids) + 1):
        part, same = TOKENIZER.decode(ids[:count]), 0
        while same < min(len(part), len(text)) and part[same] == text[same]:
            same += 1
        starts.append(same)
    return [(a, max(b, a + 1)) for a, b in itertools.pairwise(starts)]


def test_bytes_of_one_character_all_cover_it():
    ids = TOKENIZER.encode("aé</b")
    assert TOKENIZER.offsets(ids) == [(0, 1), (1, 2), (1, 2), (2, 4), (4, 5)]


def test_sampled_ids_that_the_tokenizer_would_not_choose_keep_their_text():
    slash = TOKENIZER.encode("/")
    ids = [*TOKENIZER.encode("<"), *slash, *TOKENIZER.encode("act>")]
    assert TOKENIZER.decode(ids) == "</act>"
    assert TOKENIZER.encode("</act>") != ids
    assert TOKENIZER.offsets(ids)[:2] == [(0, 1), (1, 2)]


def test_stop_and_pad_ids():
    end = control("<|im_end|>")
    assert list(TOKENIZER.stop_ids) == end
    assert TOKENIZER.pad_id == end[0]
    other = Tokenizer(byte_level(eos_token="<|endoftext|>", pad_token="<|endoftext|>"))
    assert set(other.stop_ids) == {*end, *control("<|endoftext|>")}


def test_a_turn_is_closed_as_the_template_does_it_whatever_else_stops():
    first = TOKENIZER.encode("a")[0]
    several = Tokenizer(byte_level(), [first])
    assert several.stop_ids[0] == first
    assert [several.end_id] == control("<|im_end|>")
    bare = byte_level(
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    assert [Tokenizer(bare, [first]).end_id] == control("<|im_end|>")  # its eos


def test_a_sampled_stop_token_is_not_repeated_by_what_follows():
    end = TOKENIZER.stop_ids[0]
    rest = "\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.follow(end, "hello") == control(rest)
    for last in (TOKENIZER.encode("x")[0], None):
        whole = control(f"<|im_end|>{rest}")
        assert TOKENIZER.follow(last, "hello") == whole


def test_ids_are_below_the_vocabulary_size_even_with_gaps():
    content = json.loads(byte_level().backend_tokenizer.to_str())
    content["model"]["vocab"]["</"] = 300
    fast = PreTrainedTokenizerFast(
        tokenizer_object=BackendTokenizer.from_str(json.dumps(content)),
        eos_token="<|im_end|>",
    )
    fast.chat_template = CHATML
    assert len(fast) < Tokenizer(fast).vocab_size == 301


def test_ids_containing_finds_glued_tokens():
    found = TOKENIZER.ids_containing(["</"])
    assert [TOKENIZER.decode([number]) for number in found] == ["</"]
    assert TOKENIZER.ids_containing(["</act>"]) == ()


def test_a_vocabulary_of_words_is_known_and_one_of_parts_spells_all():
    words = build_nano(["where is the key?"], ["ann", "42"]).words()
    assert {"where", "key", "ann", "42", "?", "7"} <= words
    assert not [word for word in words if "<" in word or word != word.strip()]
    assert "zebra" not in words
    assert TOKENIZER.words() is None


def test_saved_and_loaded_it_is_the_same(tmp_path):
    TOKENIZER.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    text = "a é </act><|im_end|>\n "
    assert again.encode(text) == TOKENIZER.encode(text)
    assert again.decode(again.encode(text)) == text
    assert again.stop_ids == TOKENIZER.stop_ids
    assert again.pad_id == TOKENIZER.pad_id
    assert again.follow(None, "x") == TOKENIZER.follow(None, "x")


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_stop_ids_of_the_configs_count(tmp_path, file):
    TOKENIZER.save(tmp_path)
    more = control("<|endoftext|>") + list(TOKENIZER.stop_ids)
    config = tmp_path / file
    config.write_text(json.dumps({"eos_token_id": more}))
    assert set(Tokenizer.load(tmp_path).stop_ids) == set(more)


def test_options_of_the_template_are_passed_on(tmp_path):
    Tokenizer(byte_level("{{ style or '' }}" + CHATML)).save(tmp_path)
    said = [{"role": "user", "content": "x"}]
    plain = Tokenizer.load(tmp_path).prompt(said)
    styled = Tokenizer.load(tmp_path, (("style", "terse"),)).prompt(said)
    assert styled == "terse" + plain


def test_a_directory_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a file tokenizer\.json"):
        Tokenizer.load(tmp_path)
    TOKENIZER.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_without_template_or_end_it_is_refused():
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer(byte_level(template=None))
    plain = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    plain += "{% if add_generation_prompt %}assistant: {% endif %}"
    with pytest.raises(ValueError, match="no token that ends a turn"):
        Tokenizer(byte_level(template=plain, unk_token="</"))


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": "x"}'])
def test_a_damaged_generation_config_is_named(tmp_path, text):
    TOKENIZER.save(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"generation_config\.json: expected"):
        Tokenizer.load(tmp_path)

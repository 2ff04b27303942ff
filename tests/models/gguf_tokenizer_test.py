import functools

import pytest

from mempo_jax.models.gguf import build_tokenizer
from mempo_jax.models.tokenizer import Tokenizer
from tests.models import gguf_case


def fields(**changes):
    known = gguf_case.tokenizer_fields()
    known |= {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return {n: functools.partial(lambda v: v, value) for n, value in known.items()}


@functools.cache
def pieces(split, text):
    tokenizer = build_tokenizer(fields(pre=split))
    return [tokenizer.decode([number]) for number in tokenizer.encode(text)]


def test_special_ids_and_chat_come_from_the_file():
    tokenizer = build_tokenizer(fields())
    assert tokenizer.stop_ids == (0, 2)  # eos, and the other id that ends a turn
    assert tokenizer.pad_id == 0
    assert tokenizer.vocab_size == len(gguf_case.TOKENS)
    prompt = tokenizer.prompt([{"role": "user", "content": "hello"}])
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(prompt, control=True)
    assert ids[0] == gguf_case.TOKENS.index("<|im_start|>")
    assert ids.count(2) == 1


def test_merges_are_used_and_any_text_comes_back():
    assert pieces("gpt-2", "hello hello 12") == ["hello", " hello", " ", "12"]
    text = "naïve 日本 🙂\t\n  two  <tool> <|im_end|>"
    tokenizer = build_tokenizer(fields())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("split", "digits"),
    [("smollm", ["1", "2"]), ("qwen2", ["1", "2"]), ("llama-bpe", ["12"])],
)
def test_pre_tokenizers_differ_in_how_they_split_numbers(split, digits):
    assert pieces(split, "hello12")[1:] == digits


def test_a_whole_word_that_is_a_token_is_taken_first_where_the_kind_says_so():
    without = fields(pre="llama-bpe", merges=["h e"])
    assert len(build_tokenizer(without).encode("hello")) == 1
    without = fields(pre="qwen2", merges=["h e"])
    assert len(build_tokenizer(without).encode("hello")) > 1


@pytest.mark.parametrize(
    ("split", "seen"), [("qwen2", "\u00e9"), ("smollm", "e\u0301")]
)
def test_qwen_composes_accents(split, seen):
    tokenizer = build_tokenizer(fields(pre=split))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == seen


def test_it_is_saved_and_read_as_an_ordinary_tokenizer(tmp_path):
    tokenizer = build_tokenizer(fields())
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    text = "hello 12 <tool>é"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.vocabulary() == tokenizer.vocabulary()
    assert again.vocab_size == tokenizer.vocab_size

import pytest

from mempo_jax.memory.parser import Grammar, closing_tags
from mempo_jax.models.nano import build_nano, nano_config
from mempo_jax.models.tokenizer import Tokenizer

TEXTS = ["Ann's phone is 4711. Day 3/20\nWhat now?", "<think>about it</think>"]
TURN = '<mem_write title="Ann phone">Ann\'s phone is 4711.</mem_write>'


def pieces(tokenizer, text):
    return [tokenizer.decode([number]) for number in tokenizer.encode(text)]


def test_words_and_tags_are_single_tokens():
    tokenizer = build_nano(TEXTS, ["red"])
    expected = ['<mem_write title="', "Ann", " phone", '">', "Ann", "'", "s"]
    expected += [" phone", " is", " 4711", ".", "</mem_write>"]
    assert pieces(tokenizer, TURN) == expected
    assert pieces(tokenizer, "red red") == ["red", " red"]


@pytest.mark.parametrize(
    "text",
    [
        TURN,
        *TEXTS,
        "red blue\n\n red",
        '<mem_delete ids="3,12"/>',
        '<mem_recall k="4">phone</mem_recall>',
        "<answer>red</answer><|end|>",
        "<act>red</act>",
        "<mem>red</mem>",
    ],
)
def test_known_text_survives_exactly(text):
    tokenizer = build_nano([*TEXTS, "3,12"], ["red", "blue", "phone"])
    assert tokenizer.decode(tokenizer.encode(text, control=True)) == text


def test_unknown_numbers_become_digits_and_unknown_words_unk():
    tokenizer = build_nano(TEXTS, [])
    assert pieces(tokenizer, " 4712") == [" 4", "7", "1", "2"]
    assert pieces(tokenizer, "zebra") == ["<unk>"]


def test_the_vocabulary_does_not_depend_on_the_order_of_its_sources(tmp_path):
    one = build_nano(TEXTS, ["red", "blue"])
    two = build_nano(TEXTS[::-1], ["blue", "red"])
    assert one.encode(TURN + " red") == two.encode(TURN + " red")
    one.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode(TURN) == one.encode(TURN)
    assert loaded.vocab_size == one.vocab_size


def test_the_chat_costs_two_tokens_a_message():
    tokenizer = build_nano(TEXTS, ["red"])
    said = [{"role": "system", "content": "red"}, {"role": "user", "content": "red"}]
    prompt = tokenizer.prompt(said)
    assert prompt == "<|system|>red<|end|><|user|>red<|end|><|assistant|>"
    assert tokenizer.encode_prompt(said) == tokenizer.encode(prompt, control=True)
    assert len(tokenizer.encode_prompt(said)) == 7
    assert tokenizer.decode(tokenizer.stop_ids) == "<|end|>"


def test_the_decoder_fits_the_tokenizer():
    tokenizer = build_nano(TEXTS, ["red"])
    config = nano_config(
        tokenizer, width=64, layers=2, heads=4, mlp_width=96, max_positions=128
    )
    assert config.vocab_size == tokenizer.vocab_size
    assert (config.head_dim, config.mlp_width, config.tied) == (16, 96, True)


def test_every_tag_of_the_grammar_is_one_token():
    tokenizer, grammar = build_nano([], []), Grammar()
    tags = [*grammar.kinds(), grammar.think]
    spelled = [f"<{t}>" for t in tags if t not in (grammar.merge, grammar.delete)]
    spelled += [f"</{t}>" for t in tags] + [*closing_tags()]
    spelled += [f'<{grammar.merge} ids="', f'<{grammar.delete} ids="', '"/>', '">']
    spelled += [f'<{grammar.recall} k="', f'<{grammar.write} title="']
    assert [len(tokenizer.encode(tag)) for tag in spelled] == [1] * len(spelled)

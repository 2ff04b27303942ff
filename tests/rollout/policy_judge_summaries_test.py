"""The policy's summaries: greedy, bounded, free of tags, the same in any order."""

import jax
import numpy as np
import pytest

from mempo_jax.distributed.placement import make_mesh, place_params, row_sharding
from mempo_jax.memory import Bank, BankConfig
from mempo_jax.rollout import policy_judge
from mempo_jax.rollout.policy_judge import PolicySummariser, plain
from mempo_jax.settings import ConfigError
from mempo_jax.training.step_metrics import CompilationCounter
from tests.envs.scripted_env import EMBEDDER
from tests.rollout.policy_judge_test import PAIRS
from tests.rollout.policy_judge_test import make_params as varied_params
from tests.rollout.tiny import MODEL, TOKENIZER

TEXTS = [f"{new} and {old}" for new, old in PAIRS[:16]]


def new_summariser(template="find {text} gold", **options):
    options = {"longest": 64, "most_tokens": 6, "decode_chunk": 6, **options}
    return PolicySummariser(MODEL, TOKENIZER, template, **options)


@pytest.fixture(scope="module")
def summarise():
    made = new_summariser()
    made.set_params(varied_params())
    made.warm_up()
    return made


def greedy(text, count):
    """The plain way: the likeliest token behind the whole context, again and again."""
    asked = [{"role": "user", "content": f"find {text} gold"}]
    ids = TOKENIZER.encode_prompt(asked)
    params, said = varied_params(), []
    while len(said) < count and (not said or said[-1] not in TOKENIZER.stop_ids):
        tokens = np.zeros((1, 64), np.int32)
        tokens[0, : len(ids)] = ids
        mask = np.arange(64)[None] < len(ids)
        hidden = hidden_states(params, tokens, mask)[len(ids) - 1]
        said.append(int(np.argmax(hidden @ np.asarray(MODEL.unembed(params)))))
        ids.append(said[-1])
    return TOKENIZER.decode([n for n in said if n not in TOKENIZER.stop_ids])


@jax.jit
def hidden_states(params, tokens, mask):
    return MODEL.hidden(params, tokens, mask)[0]


def test_a_summary_is_what_greedy_generation_says(summarise, monkeypatch):
    monkeypatch.setattr(policy_judge, "plain", lambda text: text)
    said = [summarise(text, 100) for text in TEXTS[:6]]
    assert said == [greedy(text, 6) for text in TEXTS[:6]]
    assert len(set(said)) > 1
    summarise.set_params(varied_params())


def test_order_and_what_was_said_before_do_not_show(summarise):
    forwards = [summarise(text, 100) for text in TEXTS]
    summarise.set_params(varied_params())
    assert [summarise(text, 100) for text in TEXTS[::-1]] == forwards[::-1]


def test_nothing_compiles_after_the_warm_up(summarise):
    summarise("one", 100)
    with CompilationCounter() as counter:
        for text in (*TEXTS, "gold " * 500, ""):
            summarise(text, 99)
    assert counter.count == 0


def test_a_summary_is_made_once_until_the_parameters_change(summarise, monkeypatch):
    asked = []
    plainly = summarise._generated
    monkeypatch.setattr(
        summarise, "_generated", lambda *key: asked.append(key) or plainly(*key)
    )
    for _ in range(2):
        summarise("one", 50)
    summarise("one", 51)
    summarise.set_params(varied_params(1))
    summarise("one", 50)
    summarise.set_params(varied_params())
    assert asked == [("one", 50), ("one", 51), ("one", 50)]


def test_a_mesh_of_eight_devices_says_the_same(summarise):
    mesh = make_mesh(4, 2, 1)
    spread = new_summariser(slots=8, row_sharding=row_sharding(mesh))
    spread.set_params(place_params(varied_params(), mesh))
    spread.warm_up()
    with CompilationCounter() as counter:
        made = [spread(text, 100) for text in TEXTS[:4]]
    assert counter.count == 0
    assert made == [summarise(text, 100) for text in TEXTS[:4]]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (" ann phone\n17 ", "ann phone 17"),
        ("<think>well</think> ann", "ann"),
        ("ann <think>well", "ann"),
        ("well</think> ann", "ann"),
        ("<mem_write>ann</mem_write> phone <act>go</act> 17", "phone 17"),
        ("<mem_write>never closed", ""),
        ('<mem_delete ids="3"/>', ""),
        ("ann</mem_write>", "ann"),
        ("<a<act>x</act>ct>ann", ""),
        ("<mem_write>a</mem_write>" * 9 + "b", "b"),
        ("", ""),
    ],
)
def test_no_op_is_left_in_a_summary(said, kept):
    assert plain(said) == kept


def test_a_bank_cuts_where_a_summary_is_empty_or_still_too_long():
    for said, stored in (("in short", "in short"), ("", "gold"), ("x" * 99, "gold")):
        config = BankConfig(merge_max_chars=8)
        bank = Bank(config, EMBEDDER, summarise=lambda text, most, said=said: said)
        bank.write("one two", step=0)
        bank.write("find gold", step=0)
        bank.merge([0, 1], step=1)
        assert [entry.text for entry in bank.active] == [stored]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "find it"}, r"summarise_prompt: expected a text with {text}"),
        ({"template": "{text} {old}"}, "summarise_prompt: expected a text with"),
        ({"most_tokens": 64}, "summarise_tokens: expected less than 64"),
        ({"most_tokens": 58}, "summarise_prompt: expected a question of less than 6"),
    ],
)
def test_what_cannot_serve_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        new_summariser(**options)

"""What the instructions say about the grammar is what the parser reads."""

import dataclasses
import json
import re

import numpy as np
import pytest

from configs import base
from mempo_jax.builders.engines import check_told
from mempo_jax.builders.policies import make_nano
from mempo_jax.builders.suites import make_episodes, make_suite
from mempo_jax.config import complete_saved, from_config
from mempo_jax.envs.context import (
    View,
    WorkedContext,
    describe,
    with_examples,
    worked_example,
)
from mempo_jax.memory import BLOCK, BankConfig, Grammar, parse_ops
from mempo_jax.models.chat import ChatFormat
from mempo_jax.rollout.segments import SegmentBuilder
from mempo_jax.settings import ConfigError
from tests.envs.scripted_env import context
from tests.rollout.engine_case import TOKENIZER

MEMORY = {"write", "recall"}
ALL = MEMORY | {"merge", "delete"}  # the long form alone
TAG = re.compile(r"<(\w+)[^<>]*>[^<>]*</\1>")


def kinds(text, **settings):
    grammar = Grammar(block=BLOCK if settings.get("rule") == "rolling" else "")
    # One by one: the parser stops at the first tag that ends a turn.
    found = [match.group() for match in TAG.finditer(text)]
    return [op.kind for one in found for op in parse_ops(one, grammar=grammar)]


@pytest.mark.parametrize("form", ["short", "long"])
@pytest.mark.parametrize(
    ("suite", "settings", "limits", "told"),
    [
        ("ledger", {}, {}, MEMORY | {"answer"}),
        ("babi", {}, {}, MEMORY | {"act"}),
        ("multi_qa", {}, {}, MEMORY | {"act", "answer"}),
        ("a.module:Own", {}, {"enabled": False}, {"act", "answer"}),
        ("ledger", {"rule": "rolling"}, {}, {"rewrite", "answer"}),
    ],
)
def test_only_what_the_run_allows_is_told(form, suite, settings, limits, told):
    shown = context(instructions_form=form, **settings)
    text = describe(shown, BankConfig(**limits), suite)
    told |= ALL if form == "long" and told >= MEMORY else set()
    assert set(kinds(text, **settings)) == told


@pytest.mark.parametrize(
    ("suite", "rule", "enabled", "expected"),
    [
        ("ledger", "window", True, ["write", "write", "recall", "answer", "write"]),
        ("babi", "append", True, ["write", "write", "recall", "act", "write"]),
        ("ledger", "rolling", True, ["rewrite", "answer", "rewrite"]),
        ("ledger", "window", False, ["answer"]),
    ],
)
def test_the_example_is_read_as_it_is_meant(suite, rule, enabled, expected):
    limits = BankConfig(enabled=enabled)
    turns = worked_example(context(rule=rule), limits, suite)
    assert [kind for _, reply in turns for kind in kinds(reply, rule=rule)] == expected


def test_the_limit_of_ops_is_the_configured_one():
    shown = context(instructions_form="long")
    assert "At most 3 of" in describe(shown, BankConfig(max_ops_per_turn=3), "ledger")


def test_examples_show_other_ops_first():
    turns = [
        ("a", "<mem_write>a</mem_write>"),
        ("b", "nothing"),
        ("c", "<mem_write>c</mem_write>"),
        ("d", "<answer>d</answer>"),
    ]
    plain = context(instruction_variants=("other",), instruction_examples=2)
    shown = with_examples(WorkedContext.of(plain, [("z", "y")]), turns)
    assert shown.examples == (("z", "y"), turns[0], turns[3])
    assert shown.variant(1).examples == shown.examples


def config(**fields):
    made = base.get_config()
    made.context.update({k: v for k, v in fields.items() if k != "path"})
    made.policy.path = fields.get("path", "")
    return made.to_dict()


def test_a_language_model_is_told_and_nano_is_not(tmp_path):
    model = str(tmp_path / "model")
    assert from_config(config()).context.instructions == "use memory"
    told = from_config(config(path=model)).context.instructions
    assert "<mem_write>" in told
    assert from_config(config(path=model, instructions="x")).context.instructions == "x"


@pytest.mark.parametrize(("before", "told"), [("", False), ("somewhere", True)])
def test_an_exported_policy_keeps_its_form(tmp_path, before, told):
    saved = config(path=before)
    (tmp_path / "mempo_config.json").write_text(json.dumps(saved))
    text = from_config(config(path=str(tmp_path))).context.instructions
    assert ("<mem_write>" in text) == told


def test_an_older_run_keeps_its_words():
    saved = config(path="model")
    del saved["context"]["instructions_form"], saved["context"]["instruction_examples"]
    with pytest.warns(UserWarning, match="instructions_form"):
        settings = from_config(complete_saved(saved, "old"))
    assert settings.context.instructions == "use memory"


def test_the_expert_of_the_task_gives_the_examples():
    settings = from_config(config(instruction_examples=2))
    suite = make_suite(settings)
    view = make_episodes(suite, settings)(suite.task("test", 0), "x").observe()
    assert len(view.examples) == 2
    assert all(kinds(reply) for _, reply in view.examples)


def test_examples_are_turns_of_the_chat_that_nobody_trains_on():
    examples = (("seen 1", "<answer>one</answer>"), ("seen 2", "two"))
    builder = SegmentBuilder(TOKENIZER)
    context_ids = list(builder.show(View(True, "told", (), "now", examples), 0))
    text = TOKENIZER.decode(context_ids)
    parts = ["told", "seen 1", "<answer>one</answer>", "seen 2", "two", "now"]
    assert [text.count(part) for part in parts] == [1] * 6
    assert sorted(parts, key=text.index) == parts
    builder.acted(TOKENIZER.encode("three"), np.zeros(5), 0)
    # A context that only grows keeps them, and one that is rebuilt shows them again.
    builder.show(View(False, "told", (), "next"), 1)
    assert len(builder.segments) == 1
    again = builder.show(View(True, "told", (("now", 0),), "next", examples), 1)
    assert again[: len(context_ids)] == context_ids
    assert not any(any(s.is_action[: len(context_ids)]) for s in builder.segments)


def test_every_wording_explains_the_tags():
    told = from_config(config(path="model", instruction_variants=("other",))).context
    assert [text.count("<mem_write>") for text in told.instruction_variants] == [1]
    assert told.instruction_variants[0].endswith("other")


def test_instructions_without_room_are_refused():
    settings = from_config(config())
    suite = make_suite(settings)
    policy = make_nano(suite, settings)
    check_told(policy, suite, settings)
    long = from_config(config(instructions_form="long"))
    with pytest.raises(ConfigError, match="max_context_tokens: expected at least"):
        check_told(policy, suite, long)
    roomy = dataclasses.replace(long.context, max_context_tokens=4_000)
    bucket = dataclasses.replace(long.train, length_buckets=(5_000,))
    check_told(policy, suite, dataclasses.replace(long, context=roomy, train=bucket))


def gemma(messages, generate):
    """Like Gemma's template: no system role."""
    if messages[0]["role"] == "system":
        raise ValueError("System role not supported")
    names = {"user": "user", "assistant": "model"}
    turns = [
        f"<turn>{names[m['role']]}\n{m['content'].strip()}<end>\n" for m in messages
    ]
    return "".join(turns) + ("<turn>model\n" if generate else "")


def test_without_a_system_role_the_first_user_turn_is_told():
    messages = [
        {"role": "system", "content": "told"},
        {"role": "user", "content": "seen"},
    ]
    text = ChatFormat(gemma).prompt(messages)
    assert text == "<turn>user\ntold\n\nseen<end>\n<turn>model\n"

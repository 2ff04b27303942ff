import numpy as np

from mempo_jax.envs import View
from mempo_jax.models.nano import build_nano
from mempo_jax.rollout.segments import SegmentBuilder
from tests.rollout.tiny import TOKENIZER

END = TOKENIZER.stop_ids[0]


def fresh(user, history=(), system="use memory"):
    return View(True, system, tuple(history), user)


def more(user):
    return View(False, "use memory", (), user)


def act(builder, text, turn, stop=True):
    ids = TOKENIZER.encode(text) + [END] * stop
    builder.acted(ids, -np.arange(1.0, len(ids) + 1), turn)
    return ids


def lists(segment):
    return (
        segment.tokens,
        segment.is_action,
        segment.log_probs,
        segment.turn_id,
        segment.op_id,
    )


def test_a_segment_grows_by_what_was_fed_and_sampled():
    builder = SegmentBuilder(TOKENIZER)
    first = list(builder.show(fresh("one"), 0))
    assert TOKENIZER.decode(first) == (
        "<|system|>use memory<|end|><|user|>one<|end|><|assistant|>"
    )
    ids = act(builder, " gold", 0)
    shown = list(builder.show(more("two"), 1))
    [segment] = builder.segments
    assert shown == segment.tokens
    assert TOKENIZER.decode(shown[len(first) + len(ids) :]) == (
        "<|user|>two<|end|><|assistant|>"
    )
    assert segment.is_action == [False] * len(first) + [True, True] + [False] * 4
    assert segment.log_probs[len(first) :][:2] == [-1.0, -2.0]
    assert segment.log_probs[: len(first)] == [0.0] * len(first)
    assert segment.turn_id == [0] * (len(first) + 2) + [1] * 4
    assert len({len(each) for each in lists(segment)}) == 1


def test_a_turn_close_that_was_not_sampled_is_no_action():
    builder = SegmentBuilder(TOKENIZER)
    start = len(builder.show(fresh("one"), 0))
    ids = act(builder, "<act> gold</act>", 0, stop=False)
    context = builder.show(more("two"), 1)
    closing = start + len(ids)
    assert context[closing] == END
    assert not builder.segments[0].is_action[closing]
    assert builder.segments[0].is_action[closing - 1]
    assert builder.segments[0].turn_id[closing] == 1


def test_a_sampled_stop_token_is_an_action_and_stands_once():
    builder = SegmentBuilder(TOKENIZER)
    start = len(builder.show(fresh("one"), 0))
    act(builder, " gold", 0, stop=True)
    context = builder.show(more("two"), 1)
    assert context[start + 1] == END
    assert context[start + 2] != END
    assert builder.segments[0].is_action[start + 1]


def test_sampled_ids_stay_where_the_tokenizer_prefers_others():
    tokenizer = build_nano([], ["hello", "he", "llo", "one"])
    split = [*tokenizer.encode("he"), *tokenizer.encode("llo")]
    assert tokenizer.encode(tokenizer.decode(split)) != split
    builder = SegmentBuilder(tokenizer)
    start = len(builder.show(fresh("one", system=""), 0))
    builder.acted(split, np.zeros(2), 0)
    builder.show(more("one"), 1)
    assert builder.segments[0].tokens[start : start + 2] == split
    builder.acted(split, np.zeros(2), 1)
    again = builder.show(fresh("one", [("one", 0), ("one", 1)], system=""), 2)
    assert sum(again[i : i + 2] == split for i in range(len(again))) == 2


def test_a_rebuilt_context_repeats_past_actions_as_observation():
    builder = SegmentBuilder(TOKENIZER)
    builder.show(fresh("one"), 0)
    first = act(builder, "<act> gold</act>", 0, stop=False)
    builder.show(more("two"), 1)
    second = act(builder, " find", 1)
    context = list(builder.show(fresh("three", [("one", 0), ("two", 1)]), 2))
    assert TOKENIZER.decode(context) == (
        "<|system|>use memory<|end|><|user|>one<|end|><|assistant|><act> gold</act>"
        "<|end|><|user|>two<|end|><|assistant|> find<|end|>"
        "<|user|>three<|end|><|assistant|>"
    )
    assert len(builder.segments) == 2
    assert not any(builder.segments[1].is_action)
    assert set(builder.segments[1].turn_id) == {2}
    third = act(builder, " gold", 2)
    sampled = [t for s in builder.segments for t, a in zip(s.tokens, s.is_action) if a]
    assert sampled == first + second + third


def test_measure_says_what_the_policy_will_be_fed():
    builder = SegmentBuilder(TOKENIZER)
    view = fresh("one")
    assert builder.measure(view) == len(builder.show(view, 0))
    act(builder, " gold", 0)
    view, other = more("two three"), fresh("four", [("one", 0)])
    assert builder.measure(other) != builder.measure(view)
    assert builder.measure(view) == len(builder.show(view, 1))
    assert len(builder.segments) == 1  # measuring adds nothing


def test_no_system_text_no_system_message():
    builder = SegmentBuilder(TOKENIZER)
    ids = builder.show(fresh("one", system=""), 0)
    assert TOKENIZER.decode(ids) == "<|user|>one<|end|><|assistant|>"


def test_ops_are_marked_in_the_segment_where_they_were_sampled():
    builder = SegmentBuilder(TOKENIZER)
    start = len(builder.show(fresh("one"), 0))
    act(builder, "<mem_write> one</mem_write> two", 0)
    again = len(builder.show(fresh("two", [("one", 0)]), 1))
    act(builder, " gold", 1)
    builder.mark_ops([(0, (0, 3)), (0, None), (1, (1, 2))])
    first, second = builder.segments
    assert first.op_id == [-1] * start + [0, 0, 0, -1, -1]
    assert second.op_id == [-1] * again + [-1, 2]


def test_tokens_are_counted_as_fed():
    builder = SegmentBuilder(TOKENIZER)
    builder.show(fresh("one"), 0)
    act(builder, " gold", 0)
    first = len(builder.segments[0].tokens)
    builder.show(fresh("two"), 1)
    act(builder, " gold", 1)
    second = len(builder.segments[1].tokens)
    assert builder.tokens_total == first + second
    assert builder.tokens_peak == max(first, second)

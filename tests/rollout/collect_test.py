import collections

import numpy as np
import pytest

from mempo_jax.envs import EpisodeStatus, Task
from mempo_jax.memory import closing_tags
from mempo_jax.rollout.collect import PURPOSES, Job
from tests.envs.scripted_env import context
from tests.rollout.tiny import (
    TOKENIZER,
    ScriptedEngine,
    decoding,
    jobs,
    make_collector,
    make_engine,
    score,
)

RULES = {
    "append": context(rule="append", max_context_tokens=120),
    "window 0": context(rule="window", window_turns=0, max_context_tokens=120),
    "window 2": context(rule="window", window_turns=2, max_context_tokens=120),
    "budget": context(rule="budget", window_turns=1, max_context_tokens=70),
    "rolling": context(rule="rolling", max_context_tokens=120),
}
RECALL = "<mem_write> one</mem_write><mem_recall> one</mem_recall>"


@pytest.fixture(scope="module")
def engine():
    return make_engine()


def largest_gap(trajectories, temperature):
    gaps = [0.0]
    for trajectory in trajectories:
        for segment in trajectory.segments:
            gap = score(segment.tokens, temperature) - np.array(segment.log_probs)
            gaps += np.abs(gap[np.array(segment.is_action)]).tolist()
    return max(gaps)


@pytest.mark.parametrize("rule", RULES)
def test_the_trainer_scores_what_the_sampler_saw(engine, rule):
    temperature = 0.7 if rule == "append" else 1.0
    collector = make_collector(engine, RULES[rule])
    made = collector.run(jobs(16), decoding(temperature))
    assert largest_gap(made, temperature) < 1e-4
    assert largest_gap(made, temperature + 0.2) > 1e-2  # the check can fail
    kinds = collections.Counter(str(r.kind) for t in made for r in t.log)
    assert min(kinds[k] for k in ("malformed", "skip", "write", "recall")) > 0
    assert all(t.valid and not t.failure for t in made)
    counts = [len(t.segments) for t in made]
    if rule == "append":
        assert set(counts) == {1}
        assert any(t.status is EpisodeStatus.OVERFLOW for t in made)
    else:
        assert max(counts) > 2  # contexts were rebuilt


@pytest.mark.parametrize("rule", RULES)
def test_each_sampled_token_is_an_action_exactly_once(engine, rule):
    before = engine.counters.tokens_generated
    made = make_collector(engine, RULES[rule]).run(jobs(8), decoding())
    actions = 0
    for trajectory in made:
        by_turn = collections.defaultdict(list)
        for segment in trajectory.segments:
            lists = (segment.is_action, segment.log_probs, segment.turn_id)
            assert {len(each) for each in lists} == {len(segment.tokens)}
            for token, is_action, log_prob, turn in zip(segment.tokens, *lists):
                assert is_action or log_prob == 0
                by_turn[turn] += [token] if is_action else []
        actions += sum(map(len, by_turn.values()))
        texts = [TOKENIZER.decode(by_turn[t]) for t in range(len(trajectory.actions))]
        assert texts == trajectory.actions
    assert actions == engine.counters.tokens_generated - before


def test_turns_that_the_limit_cut_are_told(engine):
    made = make_collector(engine).run(jobs(16), decoding(max_new_tokens=7))
    told = []
    for trajectory in made:
        turns = trajectory.to_json()["turns"]
        for turn, text in enumerate(trajectory.actions):
            tokens = sampled(trajectory, turn)
            closed = any(tag in text for tag in closing_tags())
            ended = closed or tokens[-1] in TOKENIZER.stop_ids
            assert ended or len(tokens) == 7
            told.append(turn in trajectory.cut_turns)
            assert told[-1] == (not ended) == turns[turn].get("cut", False)
    assert 5 < sum(told) < len(told) - 5


def sampled(trajectory, turn):
    return [
        token
        for segment in trajectory.segments
        for token, acted, at in zip(segment.tokens, segment.is_action, segment.turn_id)
        if acted and at == turn
    ]


def test_op_ids_point_at_the_tokens_that_spell_the_op(engine):
    made = make_collector(engine, RULES["window 0"]).run(jobs(16), decoding())
    seen = collections.Counter()
    for trajectory in made:
        for k, record in enumerate(trajectory.log):
            spelled = [
                (token, turn, is_action)
                for s in trajectory.segments
                for token, turn, is_action, op in zip(
                    s.tokens, s.turn_id, s.is_action, s.op_id
                )
                if op == k
            ]
            text = TOKENIZER.decode([token for token, _, _ in spelled])
            assert all(turn == record.turn and act for _, turn, act in spelled)
            if record.kind == "skip":
                assert text in ("<|end|>", "")
            elif record.kind == "write":
                assert text.startswith("<mem_write>")
                assert text.endswith("</mem_write>")
            seen[str(record.kind)] += bool(spelled)
    assert min(seen[k] for k in ("skip", "write", "malformed", "recall")) > 0


def ids(trajectory):
    return [segment.tokens for segment in trajectory.segments]


def test_a_trajectory_can_be_replayed_alone_and_in_any_order(engine):
    collector = make_collector(engine, RULES["window 2"])
    plan = jobs(12)
    made = collector.run(plan, decoding())
    backwards = collector.run(plan[::-1], decoding())[::-1]
    assert [ids(t) for t in backwards] == [ids(t) for t in made]
    for number in (0, 7, 11):
        [alone] = collector.run([plan[number]], decoding())
        assert ids(alone) == ids(made[number])
        assert alone.log == made[number].log
        assert alone.sample == number
        np.testing.assert_allclose(
            np.concatenate([s.log_probs for s in alone.segments]),
            np.concatenate([s.log_probs for s in made[number].segments]),
            atol=1e-5,
        )


def test_members_of_a_group_are_different_samples_and_steps_new_noise(engine):
    collector = make_collector(engine)
    texts = [t.actions[0] for t in collector.run(jobs(8), decoding())]
    assert len(set(texts)) == 8
    later = [t.actions[0] for t in collector.run(jobs(8, step=1), decoding())]
    assert not set(texts) & set(later)


def test_greedy_members_are_equal(engine):
    made = make_collector(engine).run(jobs(4), decoding(temperature=0.0))
    assert len({str(ids(t)) for t in made}) == 1


def test_keys_differ_in_every_part_of_the_job():
    def key(seed=0, purpose="train", step=0, index=0, sample=0, turn=0):
        job = Job(Task("s", "train", index, 0), sample, seed, purpose, step)
        return tuple(job.turn_key(turn).tolist())

    changed = [key(**{part: 1}) for part in ("seed", "step", "index", "sample", "turn")]
    changed += [key(purpose=purpose) for purpose in PURPOSES]
    assert len(set(changed)) == len(changed)
    assert key() == key()
    assert np.asarray(
        Job(Task("s", "t", 0, 0), 0, 0, "train", 0).turn_key(0)
    ).dtype == (np.uint32)


def test_results_keep_the_order_of_jobs_and_are_told_once():
    seen = []
    collector = make_collector(ScriptedEngine(["<act> gold</act>"], slots=3))
    made = collector.run(jobs(10), decoding(), seen.append)
    assert [t.sample for t in made] == list(range(10))
    assert sorted(t.sample for t in seen) == list(range(10))
    assert collector.run([], decoding()) == []


def context_lengths(rules, script):
    engine = ScriptedEngine(script, slots=1)
    [made] = make_collector(engine, rules).run(jobs(1), decoding())
    return made, [len(tokens) for tokens in engine.contexts]


@pytest.mark.parametrize(("room", "kept"), [(0, True), (1, True), (-1, False)])
def test_a_recall_result_that_exactly_fills_the_context(room, kept):
    script = [RECALL, "<answer> gold</answer>"]
    roomy, lengths = context_lengths(context(rule="append"), script)
    assert roomy.status is EpisodeStatus.DONE
    limit = lengths[1] + room
    made, lengths = context_lengths(
        context(rule="append", max_context_tokens=limit), script
    )
    assert made.status is (EpisodeStatus.DONE if kept else EpisodeStatus.OVERFLOW)
    assert len(lengths) == len(made.actions) == (2 if kept else 1)
    [segment] = made.segments
    assert len(segment.tokens) == (
        len(roomy.segments[0].tokens)
        if kept
        else len(TOKENIZER.encode(RECALL)) + lengths[0]
    )
    sizes = {
        len(getattr(segment, n))
        for n in ("is_action", "log_probs", "turn_id", "op_id", "tokens")
    }
    assert len(sizes) == 1
    assert made.reward.weighted["overflow"] == (0 if kept else -0.2)
    assert made.valid


@pytest.mark.parametrize("rule", ["window", "budget", "rolling"])
def test_the_system_text_is_in_every_context_or_the_run_overflows(rule):
    statuses = set()
    for limit in range(20, 60, 4):
        engine = ScriptedEngine([RECALL, "<mem> one</mem>", "two"], slots=1)
        rules = context(rule=rule, window_turns=2, max_context_tokens=limit)
        [made] = make_collector(engine, rules).run(jobs(1), decoding())
        statuses.add(made.status)
        for tokens in engine.contexts:
            assert len(tokens) <= limit
            assert TOKENIZER.decode(tokens).startswith(
                "<|system|>use memory\nfind gold"
            )
    assert {EpisodeStatus.OVERFLOW} < statuses


def test_a_trajectory_that_never_had_room_does_not_count():
    engine = ScriptedEngine(["one"])
    rules = context(rule="window", max_context_tokens=8)
    [made] = make_collector(engine, rules).run(jobs(1), decoding())
    assert (made.status, made.valid, made.segments) == (
        EpisodeStatus.OVERFLOW,
        False,
        [],
    )


def test_token_figures_count_what_was_fed_and_sampled():
    engine = ScriptedEngine(["one two", "<answer> gold</answer>"])
    [made] = make_collector(engine).run(jobs(1), decoding())
    sizes = [len(s.tokens) for s in made.segments]
    assert made.tokens_total == sum(sizes)
    assert made.tokens_peak == max(sizes)

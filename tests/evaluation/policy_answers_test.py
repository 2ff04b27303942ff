"""Rules that leave the answer to a policy: what it is shown, and what it may do."""

import pytest

from mempo_jax.envs import EpisodeStatus
from mempo_jax.evaluation.baseline_readers import LedgerReader, PolicyAnswers
from mempo_jax.evaluation.baselines import Replay
from mempo_jax.evaluation.result_rows import told_by_writes
from mempo_jax.rollout.sampler import SamplingFault
from tests.evaluation.baseline_case import run, suite, tokenizer


def reader():
    return PolicyAnswers(LedgerReader())


def answer_of(index):
    task = suite().task("test", index)
    env = suite().make(task)
    env.reset(task.seed)
    return env.questions()[0].answer


def speaking(text, shown):
    def speak(context, turn):
        shown.append((tokenizer().decode(context), turn))
        return [*tokenizer().encode(text), tokenizer().end_id]

    return speak


def test_the_policy_answers_in_the_context_that_the_rule_leaves():
    shown = []
    speak = speaking(f"<answer> {answer_of(0)}</answer>", shown)
    made = run("rag_unlimited", reader=reader(), speak=speak).trajectory
    assert made.score == 1.0
    [(context, turn)] = shown
    assert turn == len(made.turn_reward) - 1
    assert "recalled" in context
    assert answer_of(0) in context
    assert context.endswith("<|assistant|>")
    wrong = run("rag", reader=reader(), speak=speaking("<answer> 1</answer>", []))
    assert wrong.trajectory.score == 0.0


def test_it_may_write_and_recall_on_its_own():
    said = iter(
        [
            "<mem_write> ann bus 10</mem_write><mem_recall> ann</mem_recall>",
            f"<answer> {answer_of(0)}</answer>",
        ]
    )
    told = run(
        "rag",
        reader=reader(),
        speak=lambda context, turn: tokenizer().encode(next(said)),
    )
    assert told.trajectory.score == 1.0
    last = max(told.trajectory.turn_observation)
    written = [of for _, of in told_by_writes(told)]
    assert written[-1] == frozenset({last})
    assert written.count(written[-1]) == 1


def test_what_it_cannot_read_is_an_overflow():
    made = run("full_history", reader=reader(), speak=lambda context, turn: None)
    assert made.trajectory.status == EpisodeStatus.OVERFLOW
    assert made.trajectory.score == 0.0


def test_a_request_that_fails_costs_this_trajectory_alone():
    def speak(context, turn):
        raise SamplingFault("the server is gone")

    made = run("rag", reader=reader(), speak=speak).trajectory
    assert made.status == EpisodeStatus.FAILED
    assert made.failure == "SamplingFault: the server is gone"


@pytest.mark.parametrize("character", ["\0", "\x1a", "\ufffd", "\uffff"])
def test_nothing_that_was_sampled_asks_it_to_speak(character):
    shown = []
    said = {0: [f"<think> {character}</think> {character}"]}
    run("rag", rule=Replay, actions=said, speak=speaking("<answer> 1</answer>", shown))
    assert not shown


def test_somebody_has_to_speak():
    with pytest.raises(ValueError, match="expected speak, got None"):
        run("rag", reader=reader())

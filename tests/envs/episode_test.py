import pytest

from mempo_jax.envs import EpisodeStatus
from mempo_jax.memory import Bank, BankConfig
from tests.envs.scripted_env import EMBEDDER, ScriptedEnv, context, limits, make_episode


def offsets(text):
    """One token a character."""
    return [(i, i + 1) for i in range(len(text))]


def play(episode, *actions):
    """Shows and acts; the texts shown."""
    shown = []
    for action in actions:
        shown.append(episode.observe().user)
        episode.act(action, offsets(action))
    return shown


def kinds(episode):
    return [(str(r.kind), r.turn) for r in episode.bank.log]


def test_the_policy_sees_goal_memory_counter_and_observation():
    episode = make_episode(settings=limits(max_turns=7))
    play(episode, '<mem_write title="colour">the key is red</mem_write>')
    view = episode.observe()
    assert view.system == "use memory\nfind gold"
    assert view.user == "turn 1/7 memory 1 (colour): two"
    assert "red" not in view.user


def test_ops_run_in_order_and_the_environment_moves_once():
    env = ScriptedEnv()
    episode = make_episode(env)
    play(
        episode,
        "<mem_write>alpha 1</mem_write> so <mem_write>beta 2</mem_write>"
        '<mem_delete ids="0"/><act>go</act>',
    )
    assert [k for k, _ in kinds(episode)] == ["write", "write", "delete", "act"]
    assert [e.text for e in episode.bank.active] == ["beta 2"]
    assert env.seen == [("go", False)]
    assert episode.observe().user.endswith(": two")


def test_a_recall_gives_results_and_holds_the_environment():
    env = ScriptedEnv()
    episode = make_episode(env)
    shown = play(
        episode,
        "<mem_write>alpha is 1</mem_write><mem_recall>alpha</mem_recall>",
        "<act>go</act>",
        "",
    )
    assert shown[0].endswith(": one")
    assert shown[1] == "turn 1/30 memory 1: recalled\n0: alpha is 1"
    assert shown[2] == "turn 2/30 memory 1: two"
    assert env.seen == [("go", False), ("", False)]
    assert episode.turn_observation == [0, 0, 1]
    assert episode.turn_reward == [0.0, 0.0, 0.0]


def test_an_empty_bank_recalls_nothing():
    shown = play(make_episode(), "<mem_recall>alpha</mem_recall>", "")
    assert shown[1] == "turn 1/30 memory 0: recalled nothing"


def test_a_rebuilt_context_repeats_observation_and_results_with_ids():
    episode = make_episode(rules=context(rule="rolling"))
    shown = play(
        episode,
        "<mem_write>alpha is 1</mem_write>",
        "<mem_recall>alpha</mem_recall>",
        "<mem_recall>gamma</mem_recall>",
        "",
    )
    assert shown[2] == "turn 2/30 memory 1: two\nrecalled\n0: alpha is 1"
    assert shown[3].startswith("turn 3/30 memory 1: two\nrecalled\n0: alpha is 1\n0: ")
    empty = play(
        make_episode(rules=context(rule="rolling")), "<mem_recall>a</mem_recall>", ""
    )
    assert empty[1] == "turn 1/30 memory 0: one\nrecalled nothing"


def test_rewriting_the_block_is_an_op_with_a_span_of_its_own():
    episode = make_episode(rules=context(rule="rolling"))
    block = "<mem> key is red </mem>"
    play(episode, f"so {block}", "", f"{block}<mem></mem><act>go</act>")
    assert kinds(episode) == [
        *(("rewrite", 0), ("skip", 1)),
        *(("rewrite", 2), ("rewrite", 2), ("act", 2)),
    ]
    first, _, _, emptied, _ = episode.bank.log
    assert (first.text, first.token_span) == ("key is red", (3, 3 + len(block)))
    assert emptied.text == ""
    assert "<mem>" not in episode.observe().system
    assert len(episode.bank) == episode.malformed == 0


def test_a_block_that_is_never_closed_is_malformed_and_changes_nothing():
    episode = make_episode(rules=context(rule="rolling"))
    play(episode, "<mem>key is red</mem>", "<mem>never closed")
    assert kinds(episode) == [("rewrite", 0), ("malformed", 1)]
    view = episode.observe()
    assert view.system.endswith("\n<mem>key is red</mem>")
    assert "<mem> was never closed" in view.user


def test_a_block_counts_as_remembering():
    rules = context(rule="rolling", write_reminder_every=2)
    episode = make_episode(rules=rules)
    shown = play(episode, "<mem>key is red</mem>", "", "", "")
    assert [text.endswith(rules.reminder) for text in shown] == [False] * 3 + [True]


@pytest.mark.parametrize("rule", ["append", "window", "budget"])
def test_without_the_rolling_rule_a_block_is_text_like_any_other(rule):
    episode = make_episode(rules=context(rule=rule))
    play(episode, "<mem>key is red</mem>", "<mem>open")
    assert kinds(episode) == [("skip", 0), ("skip", 1)]


def test_scripted_policies_see_what_the_learner_sees():
    episode = make_episode()
    play(episode, "<mem_write>alpha is 1</mem_write>", "<mem_recall>alpha</mem_recall>")
    situation = episode.situation()
    assert situation.observation == "two"
    assert situation.recalled == ("alpha is 1",)
    assert situation.queries == ("alpha",)
    play(episode, "<act>go</act>")
    assert episode.situation().recalled == episode.situation().queries == ()


def test_memory_that_is_off_has_no_effect():
    bank = Bank(BankConfig(enabled=False), EMBEDDER)
    episode = make_episode(bank=bank)
    shown = play(episode, "<mem_write>a</mem_write><mem_recall>a</mem_recall>", "")
    assert shown[1] == "turn 1/30 memory 0: recalled nothing"
    assert episode.malformed == 0


def test_a_turn_without_any_op_is_a_skip_spelled_by_the_stop_token():
    episode = make_episode()
    episode.observe()
    episode.act("nothing.E", offsets("nothing.E"), stopped=True)
    [record] = episode.bank.log
    assert (record.kind, record.turn, record.token_span) == ("skip", 0, (8, 9))
    episode.observe()
    episode.act("cut off", offsets("cut off"), stopped=False)
    assert episode.bank.log[1].token_span is None
    episode.observe()
    episode.act("<mem_write>a</mem_write>E", offsets("<mem_write>a</mem_write>E"), True)
    assert [str(r.kind) for r in episode.bank.log] == ["skip", "skip", "write"]


def test_ops_carry_the_tokens_that_spell_them():
    episode = make_episode()
    text = "so <mem_write>a</mem_write> <act>go</act>"
    episode.observe()
    episode.act(text, offsets(text))
    spans = [r.token_span for r in episode.bank.log]
    assert [text[a:b] for a, b in spans] == [
        "<mem_write>a</mem_write>",
        "<act>go</act>",
    ]


def test_only_what_was_answered_scores():
    episode = make_episode(ScriptedEnv(["one", "two"]))
    shown = play(
        episode,
        "gold <mem_write>gold</mem_write><mem_recall>gold</mem_recall>",
        "<think>gold</think> gold",
        "<answer>silver</answer>",
    )
    assert "gold" in shown[1]
    assert (episode.status, episode.reward().raw["task"]) == (EpisodeStatus.DONE, 0.0)


def test_nothing_said_with_the_answer_in_memory_scores_nothing():
    bank = Bank.from_texts(["the answer is gold"], BankConfig(), EMBEDDER)
    episode = make_episode(ScriptedEnv(["one"]), bank=bank)
    play(episode, "")
    assert episode.done
    assert episode.reward().total == 0


def test_task_rewards_by_turn_add_up_to_the_score():
    episode = make_episode(ScriptedEnv())
    play(episode, "", "<act>gold</act>", "<act>gold</act>", "")
    assert episode.turn_reward == [0.0, 1.0, 0.0, 0.0]
    assert episode.reward().raw["task"] == 1.0


def test_penalties_count_duplicates_and_writes():
    episode = make_episode()
    same = "<mem_write>the lamp is green</mem_write>"
    play(episode, same, same, "<answer>gold</answer>")
    reward = episode.reward()
    assert (reward.raw["duplicate"], reward.raw["write_cost"]) == (1, 1)
    assert reward.total == pytest.approx(1 - 0.02 - 0.01)


def test_turns_are_limited():
    episode = make_episode(ScriptedEnv(["x"] * 9), settings=limits(max_turns=3))
    play(episode, "", "<mem_recall>x</mem_recall>", "")
    assert (episode.status, episode.turn) == (EpisodeStatus.TRUNCATED, 3)


def test_a_context_that_does_not_fit_ends_as_overflow_and_pays_once():
    episode = make_episode(rules=context(rule="append", max_context_tokens=8))
    play(episode, "")
    assert episode.observe(lambda view: 9) is None
    assert episode.status is EpisodeStatus.OVERFLOW
    assert episode.reward().weighted["overflow"] == -0.2


@pytest.mark.parametrize(("size", "kept"), [(99, True), (100, True), (101, False)])
def test_a_recall_result_that_exactly_fills_the_context_is_kept(size, kept):
    rules = context(rule="append", max_context_tokens=100)
    episode = make_episode(rules=rules)
    play(episode, "<mem_recall>x</mem_recall>")
    view = episode.observe(lambda view: size)
    assert (view is not None) == kept
    assert episode.done != kept


def reminders(episode, *actions):
    return ["remember ?" in text for text in play(episode, *actions)]


def test_the_reminder_comes_after_so_many_turns_without_a_write():
    def episode():
        return make_episode(
            ScriptedEnv(["x"] * 30), rules=context(write_reminder_every=3)
        )

    write, recall = "<mem_write>note</mem_write>", "<mem_recall>x</mem_recall>"
    quiet = reminders(episode(), *[""] * 8)
    assert [i for i, shown in enumerate(quiet) if shown] == [3, 6]
    wrote = reminders(episode(), "", "", write, "", "", "", "")
    assert [i for i, shown in enumerate(wrote) if shown] == [6]
    # Due where only recalled text is shown: it comes with the next observation.
    late = reminders(episode(), "", "", recall, recall, "", "", "", "")
    assert [i for i, shown in enumerate(late) if shown] == [5]
    assert not any(reminders(make_episode(ScriptedEnv(["x"] * 30)), *[""] * 12))


def test_no_episode_sees_the_bank_of_another():
    origin = Bank.from_texts(["shared start"], BankConfig(), EMBEDDER)
    episodes = [make_episode(bank=origin.fork(f"t{i}")) for i in range(8)]
    for number, episode in enumerate(episodes):
        play(episode, f"<mem_write>secret {'abcdefgh'[number]} lamp</mem_write>")
    for number, episode in enumerate(episodes):
        shown = play(episode, "<mem_recall>secret lamp</mem_recall>", "")[1]
        found = {c for c in "abcdefgh" if f"secret {c} " in shown}
        assert found == {"abcdefgh"[number]}
    assert [e.text for e in origin.entries] == ["shared start"]


def test_an_action_is_decided_by_the_memory_and_then_moves_the_environment():
    env = ScriptedEnv()
    episode = make_episode(env)
    episode.observe()
    episode.decide("<mem_write>one</mem_write><act>go</act>")
    assert [entry.text for entry in episode.bank.active] == ["one"]
    assert (env.seen, episode.turn) == ([], 0)
    episode.advance()
    assert (env.seen, episode.turn) == ([("go", False)], 1)


def test_what_its_writes_would_ask_is_told_and_changes_nothing():
    episode = make_episode()
    episode.observe()
    assert episode.questions("<mem_write>one</mem_write>") == []
    episode.act('<mem_write title="a">one</mem_write><mem_write>two</mem_write>')
    log = list(episode.bank.log)
    asked = episode.questions(
        '<mem_write title="b">six</mem_write><mem_delete ids="0"/><mem_write>'
        "seven</mem_write><mem_write></mem_write><mem_recall>one</mem_recall>"
    )
    assert sorted(asked) == [
        *[("b: six", "a: one"), ("b: six", "two")],
        *[("seven", "a: one"), ("seven", "two")],
    ]
    assert episode.bank.log == log
    assert episode.turn == 1

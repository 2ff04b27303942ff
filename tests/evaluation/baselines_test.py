"""Rules of memory: what each keeps, and that none sees more than its context."""

import pytest

from mempo_jax.envs import EpisodeStatus
from mempo_jax.evaluation.baseline_readers import LedgerReader
from mempo_jax.evaluation.baselines import RULES, Note, Replay, TurnView, context_of
from mempo_jax.evaluation.result_rows import told_by_writes
from tests.evaluation.baseline_case import make_rule, run, settings, tokenizer

COUNT = 6


class Watching(LedgerReader):
    """Keeps what it was shown for each answer."""

    def __init__(self):
        self.shown = []

    def answer(self, goal, observation, texts):
        self.shown += texts
        return super().answer(goal, observation, texts)


def scores(name, **more):
    return [run(name, index, **more).trajectory.score for index in range(COUNT)]


def test_who_keeps_everything_answers_everything():
    assert scores("full_history") == [1.0] * COUNT
    assert scores("rag_unlimited") == [1.0] * COUNT


def test_what_left_the_window_or_the_bank_is_gone():
    # The asked fact came first or second; four memories hold the last four of them.
    assert scores("no_memory") == [0.0] * COUNT
    assert scores("rag") == [0.0] * COUNT
    assert scores("rag", s=settings(capacity=20)) == [1.0] * COUNT


def test_paging_moves_what_the_context_cannot_hold():
    roomy = settings(capacity=20)
    assert scores("paging", s=roomy) == [1.0] * COUNT
    made = run("paging", s=roomy).trajectory
    assert made.rebuilds > 1
    assert made.status is EpisodeStatus.DONE
    turns = [record.turn for record in made.log if record.kind == "write"]
    assert len(set(turns)) < len(turns), "a page is several statements of one turn"


def test_a_joined_page_is_one_memory():
    made = run("paging_joined", s=settings(capacity=20)).trajectory
    turns = [record.turn for record in made.log if record.kind == "write"]
    assert len(set(turns)) == len(turns) > 1
    assert " ; " in next(r.text for r in made.log if r.kind == "write")


def test_a_rolling_block_holds_the_newest_statements():
    made = run("rolling").trajectory
    blocks = [record.text for record in made.log if record.kind == "rewrite"]
    sizes = [len(tokenizer().encode(block)) for block in blocks]
    assert max(sizes) <= settings().context.max_context_tokens // 2
    assert blocks[-1].split(" ; ")[-1] not in blocks[-2]
    assert blocks[0] not in blocks[-1], "the oldest goes first"
    assert scores("rolling", s=settings(context_tokens=400)) == [1.0] * COUNT


@pytest.mark.parametrize("name", RULES)
def test_a_reader_sees_only_what_the_policy_would(name):
    reader = Watching()
    made = run(name, s=settings(capacity=6), reader=reader).trajectory
    assert made.failure is None
    assert reader.shown, "it was asked"
    context = " ".join(tokenizer().decode(made.segments[-1].tokens).split())
    for text in reader.shown:
        assert " ".join(text.split()) in context


@pytest.mark.parametrize("name", RULES)
def test_the_limit_of_the_context_binds_every_rule_but_full_history(name):
    made = run(name).trajectory
    limit = settings().context.max_context_tokens
    fed = [sum(not a for a in segment.is_action) for segment in made.segments]
    assert (max(fed) <= limit) == (name != "full_history")
    assert not any(record.error for record in made.log)


def test_the_tokens_of_a_rule_are_those_of_its_texts():
    made = run("full_history").trajectory
    [segment] = made.segments
    assert made.tokens_peak == len(segment.tokens)
    turns = range(len(made.actions))
    ends = [
        max(i for i, at in enumerate(segment.turn_id) if at == turn) for turn in turns
    ]
    assert made.tokens_total == sum(end + 1 for end in ends)


def test_a_page_tells_of_the_turns_that_it_was_made_of():
    told = run("paging", s=settings(capacity=20))
    trajectory, facts = told.trajectory, {}
    for turn, shown in enumerate(trajectory.observations):
        facts[trajectory.turn_observation[turn]] = shown.split(": ")[-1].split()
    rows = told_by_writes(told)
    assert len(rows) > 4
    texts = [record.text for record in trajectory.log if record.kind == "write"]
    for text, (_, of) in zip(texts, rows, strict=True):
        told = [f"{facts[at][0]} {facts[at][1]} {facts[at][-1]}" for at in sorted(of)]
        assert text == " ; ".join(told)


def test_more_statements_than_ops_share_writes():
    rule = make_rule("rag", settings())
    notes = [Note(f"fact {n}", frozenset({n})) for n in range(7)]
    joined = rule._joined(notes, True)
    assert len(joined) == settings().memory.max_ops_per_turn - 1
    assert joined[0].text == "fact 0 ; fact 1 ; fact 2"
    assert joined[0].observations == {0, 1, 2}


def test_a_replay_writes_what_was_written_and_reads_by_script():
    rag = run("rag", s=settings(capacity=20)).trajectory
    said = dict(enumerate([[text] for text in rag.actions]))
    last = max(said)
    said[last - 1] = ["<mem_write> x</mem_write><mem_recall> nonsense</mem_recall>"]
    said[last - 1] += ["<answer> 0</answer>"]
    del said[last]
    again = run("rag", s=settings(capacity=20), rule=Replay, actions=said).trajectory
    assert again.score == 1.0
    writes = [record.text for record in again.log if record.kind == "write"]
    assert writes == [r.text for r in rag.log if r.kind == "write"] + ["x"]
    assert [r.text for r in again.log if r.kind == "recall"] == [
        r.text for r in rag.log if r.kind == "recall"
    ]


def test_an_environment_that_fails_costs_its_trajectory():
    class Broken:
        goal = ""

        def reset(self, seed):
            return "ann phone is 23"

        def step(self, action, *, final=False):
            raise KeyError("broken")

        def score(self):
            return 0.0

        def useful(self):
            return frozenset()

    made = run("rag", env=Broken()).trajectory
    assert made.status is EpisodeStatus.FAILED
    assert "KeyError" in made.failure
    Broken.reset = lambda self, seed: 1 / 0
    assert "ZeroDivisionError" in run("rag", env=Broken()).trajectory.failure


def test_rules_are_not_reminded():
    context = settings().context
    assert context.write_reminder_every
    for name in RULES:
        assert context_of(name, context).write_reminder_every == 0


def test_what_was_recalled_is_read_oldest_first():
    reader = Watching()
    made = run("rag_unlimited", reader=reader).trajectory
    order = [record.text for record in made.log if record.kind == "write"]
    *recalled, _ = reader.shown
    places = [order.index(text) for text in recalled]
    assert len(places) > 2
    assert places == sorted(places)


def test_what_left_the_context_unwritten_is_lost_to_paging():
    rule = make_rule("paging", settings())

    def kept(word, index, filled, fresh=False):
        text = f"ann {word} is 23"
        made = TurnView("", text, index, True, fresh, 0, (text,), filled, 0.1)
        return [note.text for note in rule.notes_to_write(made)]

    assert kept("desk", 0, 0.2) == []
    assert kept("shoe", 1, 0.3, fresh=True) == []
    assert kept("seat", 2, 0.85) == ["ann shoe 23", "ann seat 23"]
    assert kept("room", 3, 0.5) == []
    assert kept("bus", 4, 0.95) == ["ann room 23", "ann bus 23"]

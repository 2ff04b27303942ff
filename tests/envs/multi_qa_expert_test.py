import numpy as np
import pytest

from mempo_jax.envs import Situation
from mempo_jax.envs.multi_qa import MultiQaExpert, MultiQaSuite, topic
from mempo_jax.envs.qa_data import FileSource, QuestionRecord, SupportingFact
from mempo_jax.memory import Bank, BankConfig, make_embedder
from tests.envs import qa_case
from tests.envs.multi_qa_test import TOOLS, settings
from tests.envs.scripted_env import EMBEDDER, context, limits, make_episode

RNG = np.random.default_rng(0)
RIVER = QuestionRecord(
    "r",
    "Which river passes Ada's town?",
    "the River Arden",
    (
        SupportingFact("Ada", "Ada lives in Aldmoor."),
        SupportingFact("Aldmoor", "It is on the River Arden."),
    ),
    "bridge",
)
LARGE = QuestionRecord(
    "l", "Is Dunmere large?", "no", (SupportingFact("Dunmere", "It is tiny."),), ""
)
BOOK = {record.question: record for record in (RIVER, LARGE)}
GOAL = f"answer each question\n1: {RIVER.question}\n2: {LARGE.question}"


def act(observation, recalled=(), queries=(), *, hops=2, write_rate=1.0, goal=GOAL):
    expert = MultiQaExpert(BOOK.get, write_rate, hops, 200)
    return expert(Situation(observation, recalled, queries, goal), RNG)


def test_it_searches_notes_and_searches_by_its_note():
    asked = RIVER.question
    recall, query = '<mem_recall k="2"> Ada\'s</mem_recall>', " Ada's"
    assert act("searches 0") == f"<act> search: {asked}</act>"
    found = (
        "searches 1 , found for: x\n- Ada: Ada lives in Aldmoor. She paints.\n- B: b"
    )
    assert (
        act(found)
        == '<mem_write title="Ada\'s"> Ada: Ada lives in Aldmoor.</mem_write>'
    )
    assert act("searches 1 , the last for: x") == recall
    note = "Ada: Ada lives in Aldmoor."
    searched = act("searches 1 , the last for: x", (note,), (query,))
    assert searched == f"<act> search: {note}</act>"
    # of the second search it notes what it does not know yet
    found = "searches 2 , found for: x\n- Ada: Ada lives in Aldmoor."
    assert act(found) == recall
    assert act(found, (note,), (query,)) == f"<act> search: {LARGE.question}</act>"
    found += "\n- Aldmoor: It is on the River Arden."
    written = act(found, (note,), (query,))
    assert written.endswith("> Aldmoor: It is on the River Arden.</mem_write>")


def test_a_note_bears_the_names_in_its_question():
    assert topic("Is the Arden longer than the Dore?") == "Arden Dore"
    assert topic("Who ran in 1904?") == "1904"
    assert topic('What do "Red <Sea> Kings" sell?') == "Red Sea Kings"
    assert topic("what is it ?") == "what is it"
    assert len(topic("Do A B C D E F G H I know?").split()) == 6


def test_a_question_with_one_passage_is_searched_once():
    assert act("searches 2 , x").startswith(f"<act> search: {LARGE.question}")
    recall = '<mem_recall k="2"> Ada\'s</mem_recall>'
    assert act("searches 3 , the last for: x") == recall
    assert act("searches 2 , x", hops=1) == recall


def test_it_answers_what_it_recalls_and_no_more():
    queries = (" Ada's", " Dunmere")
    last = "searches 3 , the last for: x"
    for recalled, expected in (
        (("It is on the River Arden.", "It is tiny."), "1: the River Arden; 2: no"),
        (("It is on the River Ardennes.", "It is tiny."), "1: unknown; 2: no"),
        (("Aldmoor: river arden", "no"), "1: the River Arden; 2: unknown"),
        ((), "1: unknown; 2: unknown"),
    ):
        assert act(last, recalled, queries) == f"<answer> {expected}</answer>"


def test_it_writes_as_often_as_it_is_told():
    found = "searches 3 , found for: x\n- Dunmere: It is tiny."
    written = ["mem_write" in act(found, write_rate=0.5) for _ in range(400)]
    assert abs(np.mean(written) - 0.5) < 0.13  # 5 standard errors
    assert "mem_recall" in act(found, write_rate=0.0)


def test_no_text_of_others_can_open_a_tag():
    goal = GOAL.replace("Ada's", "<mem_delete>")
    assert act("searches 0", goal=goal).count("<") == 2  # its own two


def run(suite, split, index, embedder=EMBEDDER, **bank):
    """Score, turns and op log of the expert in a whole episode with a real bank."""
    task = suite.task(split, index)
    config = BankConfig(retrieval_top_k=6, **bank)
    episode = make_episode(
        suite.make(task),
        bank=Bank(config, embedder, trajectory_id="expert"),
        settings=limits(max_turns=200, retrieval_top_k=6, max_entry_chars=2_000),
        rules=context(max_context_tokens=10**6),
    )
    expert, rng = suite.expert(), np.random.default_rng(index)
    while not episode.done:
        assert episode.observe() is not None
        episode.act(expert(episode.situation(), rng))
    assert episode.malformed == 0
    return episode


def make_suite(path, seed=0, **changes):
    chosen = settings(**changes)
    shares = chosen.validation_share, chosen.test_share
    source = FileSource({"train": path}, shares, chosen.shelf_records)
    return MultiQaSuite("multi_qa", source, chosen, TOOLS, seed)


@pytest.mark.parametrize("search", ["bm25", "fused"])
def test_it_solves_our_own_questions(tmp_path, search):
    path = qa_case.write(tmp_path / "own.json")
    halves = {"objectives": 4, "test_share": 0.5, "validation_share": 0.0}
    suite = make_suite(path, search=search, **halves)
    episodes = [run(suite, split, 0) for split in ("train", "test")]
    # a recall may bring another person's river in the place of the right one
    assert min(episode.env.score() for episode in episodes) >= 0.75
    for episode in episodes:
        writes = [r for r in episode.bank.log if r.kind == "write"]
        assert all(r.outcome == "new" for r in writes)
        useful = episode.env.useful()
        assert {episode.turn_observation[r.turn] for r in writes} <= useful
    silent = make_suite(path, write_rate=0.0, **halves)
    assert run(silent, "train", 0).env.score() == 0


@pytest.mark.data
@pytest.mark.parametrize("objectives", [2, 4])
def test_its_ceiling_on_the_official_file(data_dir, objectives):
    path = data_dir / "hotpotqa" / "hotpot_dev_distractor_60.json"
    suite = make_suite(
        path,
        objectives=objectives,
        search="fused",
        embedder="static",
        passages=5,
        passage_chars=1_000,
        note_chars=600,
        validation_share=0.0,
        test_share=0.5,
    )
    static = make_embedder("static")
    scores = [
        run(suite, split, index, static).env.score()
        for split in ("train", "test")
        for index in range(suite.size(split))
    ]
    assert np.mean(scores) >= 0.75  # measured about .82

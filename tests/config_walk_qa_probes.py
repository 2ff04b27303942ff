"""Rows and probes of the config fields of ``multi_qa`` and ``factbook``."""

from unittest import mock

import numpy as np

from mempo_jax.builders import suites
from mempo_jax.builders.suites import make_suite
from tests.config_walk_probes import demonstrations
from tests.envs import qa_case

QA = {
    "env.name": "multi_qa",
    "env.data_dir": "QA",
    "env.multi_qa.train_file": "main.json",
    "env.multi_qa.passages": 3,
    "env.multi_qa.validation_share": 0.2,
    "env.multi_qa.test_share": 0.4,
}
WHOLE = {"env.multi_qa.validation_share": 0.0, "env.multi_qa.test_share": 0.5}
FACTBOOK = WHOLE | {
    "env.name": "factbook",
    "env.multi_qa.objectives": 1,
    "env.multi_qa.search": "bm25",
}
# field: (another value, probe, given)
ROWS = {
    "env.multi_qa.objectives": (1, "questions", QA),
    "env.multi_qa.train_file": ("second.jsonl", "questions", QA),
    "env.multi_qa.validation_file": ("second.jsonl", "questions", QA),
    "env.multi_qa.test_file": ("second.jsonl", "questions", QA),
    "env.multi_qa.validation_share": (0.4, "questions", QA),
    "env.multi_qa.test_share": (0.5, "questions", QA),
    "env.multi_qa.shelf_records": (8, "questions", QA),
    "env.multi_qa.search": ("bm25", "questions", QA),
    "env.multi_qa.embedder": ("hashing", "questions", QA),
    "env.multi_qa.passages": (1, "questions", QA),
    "env.multi_qa.passage_chars": (30, "questions", QA),
    "env.multi_qa.metric": ("em", "questions", QA),
    "env.multi_qa.write_rate": (0.0, "questions", QA),
    "env.multi_qa.hops": (1, "questions", QA),
    "env.multi_qa.note_chars": (25, "questions", QA),
    "env.multi_qa.vocabulary_words": (3, "questions", QA),
    "env.factbook.two_hop_share": (0.0, "countries", FACTBOOK),
}


def write_questions(folder):
    """Two question files in a folder."""
    folder.mkdir()
    qa_case.write(folder / "main.json")
    changed = [qa_case.record(at, _id=f"second{at}") for at in range(9)]
    qa_case.write(folder / "second.jsonl", changed, lines=True)


def questions(settings):
    """What is asked, found and scored in the first tasks, and the expert's words."""
    suite = make_suite(settings)
    shown = [suite.vocabulary(), demonstrations(settings)]
    for split in ("train", "validation", "test"):
        if suite.size(split) == 0:
            continue
        for task in [suite.task(split, n) for n in range(4)]:
            env = suite.make(task)
            shown += [env.reset(task.seed), env.goal, suite.size(split)]
            shown.append(env.step(f"search: {env.goal[-30:]} boats").observation)
            shown.append(env.step("search: the river at a mill").observation)
            gold = env.questions()[0].answer
            shown.append(env.step(f"{gold} indeed", final=True).reward)
    return shown


def countries(settings):
    """What is asked about countries of our own."""
    with mock.patch.object(suites, "read_package", return_value=qa_case.COUNTRIES):
        suite = make_suite(settings)
    tasks = [suite.task("train", n) for n in range(suite.size("train") or 8)]
    return np.array([suite.make(task).goal for task in tasks]).tolist()

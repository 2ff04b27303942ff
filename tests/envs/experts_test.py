"""The expert of the context rule "rolling"."""

import numpy as np

from mempo_jax.envs import Situation
from mempo_jax.envs.experts import RollingExpert
from mempo_jax.envs.ledger import LedgerExpert
from mempo_jax.memory import BankConfig

RNG = np.random.default_rng(0)
LIMITS = BankConfig(max_ops_per_turn=4, max_entry_chars=100)
RECALL = '<mem_recall k="2"> the key</mem_recall>'


def situation(observation, block=""):
    return Situation(observation, (), (), "answer the question", block)


def test_what_would_be_written_becomes_a_line_and_the_newest_lines_stay():
    expert = RollingExpert(LedgerExpert(write_rate=1.0), 2, LIMITS)
    first = expert(situation("ann bus is 10"), RNG)
    assert first == "<think> bus</think><mem>ann bus 10</mem>"
    third = expert(situation("cleo bus is 12", "ann bus 10\nben shoe 11"), RNG)
    assert third == "<think> bus</think><mem>ben shoe 11\ncleo bus 12</mem>"


def test_without_a_write_the_block_stays_as_it_is():
    expert = RollingExpert(LedgerExpert(write_rate=0.0), 2, LIMITS)
    said = expert(situation("ann bus is 10", "ben shoe 11"), RNG)
    assert said == "<think> bus</think>"


def test_asked_it_answers_from_the_block():
    expert = RollingExpert(LedgerExpert(write_rate=1.0), 4, LIMITS)
    asked = situation("what is ben shoe", "ann shoe 10\nben shoe 11\nben bus 12")
    assert expert(asked, RNG) == "<think> ben shoe 11</think><answer> 11</answer>"
    nothing = expert(situation("what is ben shoe"), RNG)
    assert nothing.endswith("<answer> unknown</answer>")


def test_lines_that_share_most_words_are_read_first_and_the_newest_of_equals():
    seen = []

    def suite_expert(now, rng):
        if not now.queries:
            return RECALL
        seen.append((now.queries, now.recalled))
        return "<answer>x</answer>"

    block = "a key\nthe sea\nthe key was red\nnothing of it\nthe key is blue"
    assert RollingExpert(suite_expert, 9, LIMITS)(situation("?", block), RNG)
    lines = "the key is blue", "the key was red", "the sea", "a key"
    assert seen == [(("the key",), lines)]


def test_several_writes_make_one_block_where_the_first_stood_and_an_act_stays_behind():
    said = "<think>x</think><mem_write>one\n of  it</mem_write> and "
    said += "<mem_write>two</mem_write><act>go</act>"
    made = RollingExpert(lambda now, rng: said, 3, LIMITS)(situation("?", "old"), RNG)
    block = "<mem>old\none of it\ntwo</mem>"
    assert made == f"<think>x</think>{block} and <act>go</act>"


def test_a_title_leads_its_line_so_that_it_is_found_by_it():
    made = []
    for note in ("the river Ivel", "at Ines Calder's"):
        said = f'<mem_write title="Ines Calder">{note}</mem_write>'
        expert = RollingExpert(lambda now, rng, said=said: said, 1, LIMITS)
        made.append(expert(situation("?"), RNG))
    assert made == [
        "<mem>Ines Calder: the river Ivel</mem>",
        "<mem>at Ines Calder's</mem>",
    ]


def test_many_and_long_notes_become_lines_where_the_run_allows_them():
    notes = ["a", "b", "c", "d", "e" * 2_500]
    said = "".join(f"<mem_write>{note}</mem_write>" for note in notes)
    wide = BankConfig(max_ops_per_turn=8, max_entry_chars=4_000)
    made = RollingExpert(lambda now, rng: said, 9, wide)(situation("?"), RNG)
    assert made == "<mem>" + "\n".join(notes) + "</mem>"

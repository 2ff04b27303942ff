"""Probes of the block that the context rule "rolling" carries along."""

import dataclasses

import numpy as np

from mempo_jax.rollout.assemble import no_evidence
from tests.envs.scripted_env import context
from tests.rollout import probe_case as case
from tests.rollout.probe_case import ANSWER, ASKED, play

GAIN = case.KNOWN - case.UNKNOWN


def blocks(*said, line="find five"):
    """Gains of a policy that says these blocks, then answers."""
    script = [*(f"<mem>{text}</mem>" for text in said), ANSWER]
    asked = dataclasses.replace(ASKED, observation=len(said))
    [trajectory] = play(
        script,
        lines=(*["one two"] * len(said), line),
        asked=(asked,),
        rules=context(rule="rolling", max_context_tokens=150),
    )
    made = case.plan([trajectory], ("answer_gain",))
    shown = [text.partition("<mem>")[2].split("</mem>")[0] for text in case.texts(made)]
    known = ["gold" in text for text in shown]
    scores = np.log(np.where(known, case.KNOWN, case.UNKNOWN))
    gain = made.evidence(scores, no_evidence(1, case.SHAPES)).answer_gain[0]
    assert [r.kind for r in trajectory.log] == ["rewrite"] * len(said) + ["answer"]
    return case.texts(made), gain[: len(said) + 1]


def test_a_rewritten_block_earns_by_what_it_adds_to_the_one_before():
    texts, gain = blocks("gold one", "gold one two", "three")
    np.testing.assert_allclose(gain, [GAIN, 0, -GAIN, 0], rtol=1e-5)
    assert sum("<mem>" not in text for text in texts) == 1
    assert len(texts) == 4  # no block, and each of three
    heads = {text.split("<mem>")[0] for text in texts if "<mem>" in text}
    tails = {text.split("</mem>")[-1] for text in texts if "<mem>" in text}
    assert len(heads) == len(tails) == 1


def test_a_block_that_was_emptied_stands_nowhere():
    _, gain = blocks("gold one", "")
    np.testing.assert_allclose(gain, [GAIN, -GAIN, 0], rtol=1e-5)


def test_a_block_of_unknown_words_is_read_as_it_was_shown():
    _, gain = blocks("gold zebra", "zebra two")
    np.testing.assert_allclose(gain, [GAIN, -GAIN, 0], rtol=1e-5)

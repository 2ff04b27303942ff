"""What a record says of each token is what the loss laid on it."""

import json

import jax
import numpy as np
import pytest

from mempo_jax.builders.engines import batch_shapes, make_run_mesh
from mempo_jax.config import from_config
from mempo_jax.rollout.assemble import assemble_trajectories, pack
from mempo_jax.training.credit_records import TokenCreditRecorder
from mempo_jax.training.loss import count_tokens, counted, loss_inputs, token_advantage
from mempo_jax.training.state import advantage_settings
from tests.policy_case import config
from tests.rollout import tiny

WRITE, RECALL = "<mem_write> one two</mem_write>", "<mem_recall> one</mem_recall>"
SCRIPTS = [
    (WRITE, RECALL, "<answer> gold</answer>"),
    (WRITE, RECALL, "<answer> five</answer>"),
    (WRITE, "", "<answer> gold</answer>"),
    ("", "<mem_write> six", "<answer> two</answer>"),
]
SCALE = 0.75  # of the bonuses in this step
MODES = [
    ("ops_only", "attribution"),
    ("discounted", "counterfactual"),
]


def settings_of(modes):
    made = config()
    made.credit.modes, made.credit.other_weight = modes, 0.25
    made.sampling.group_size, made.sampling.tasks_per_step = 4, 2
    return from_config(made.to_dict())


@pytest.fixture(scope="module")
def played():
    """Two groups of four; of the second all rewards are equal."""
    made = []
    for sample, script in enumerate([*SCRIPTS, *(SCRIPTS[0],) * 4]):
        collector = tiny.make_collector(tiny.ScriptedEngine(script), turns=3)
        made += collector.run([tiny.jobs(8)[sample]], tiny.decoding())
    return made


def facts(played, settings):
    """As the run loop hands them to its updates: with probes, a group left out."""
    shapes = batch_shapes(settings, make_run_mesh(settings))
    arrays = assemble_trajectories(played, 2, shapes)
    gain = np.linspace(-1, 1, arrays.ops.kind.size, dtype=np.float32)
    probed = gain.reshape(arrays.ops.kind.shape)
    evidence = arrays.evidence._replace(leave_out=probed, answer_gain=probed)
    trained = np.array([[True], [False]])
    return shapes, arrays._replace(valid=arrays.valid & trained, evidence=evidence)


def in_the_loss(played, shapes, arrays, settings):
    """By trajectory, (weight, token advantage) of each sampled token, as rows have
    them: 0 where it does not count."""
    segments = [(n, s) for n, each in enumerate(played) for s in each.segments]
    batches = pack(segments, shapes, tiny.TOKENIZER.pad_id)
    count = count_tokens(batches, arrays.valid)

    @jax.jit
    def inputs_of(arrays):
        advantage, credit = advantage_settings(settings), settings.credit
        return loss_inputs(arrays, count, advantage, credit, SCALE)

    @jax.jit
    def on_tokens(rows, inputs):
        return token_advantage(rows, inputs, settings.credit)

    inputs = inputs_of(arrays)
    found = [{} for _ in played]
    for rows in batches:
        worth, weight = map(np.asarray, on_tokens(rows, inputs))
        worth = np.where(counted(rows, np.asarray(inputs.valid)), worth, 0)
        for b, t in zip(*np.nonzero(rows.action_mask), strict=True):
            key = int(rows.turn_id[b, t])
            pair = float(weight[b, t]), float(worth[b, t])
            found[rows.trajectory_index[b]].setdefault(key, []).append(pair)
    return found, np.asarray(inputs.advantage)


def in_the_record(record):
    """The same, from the JSON of one trajectory alone."""
    credit, found = record["credit"], {}
    for turn, made in enumerate(record["turns"]):
        for op, lengths in made.get("tokens", []):
            weight, worth = (
                (credit["ops"][op][0], credit["ops"][op][2])
                if op >= 0
                else credit["turns"][turn]
            )
            found.setdefault(turn, []).extend([(weight, worth)] * len(lengths))
    return found


@pytest.mark.parametrize("modes", MODES, ids="+".join)
def test_a_record_has_the_numbers_of_the_loss(played, modes):
    settings = settings_of(modes)
    shapes, arrays = facts(played, settings)
    crediting = TokenCreditRecorder(
        tiny.TOKENIZER, advantage_settings(settings), settings.credit
    )
    crediting.note(played, arrays, SCALE)
    expected, advantage = in_the_loss(played, shapes, arrays, settings)
    records = [json.loads(json.dumps(each.to_json())) for each in played]
    assert len({w for turns in expected for ps in turns.values() for w, _ in ps}) > 1
    for n, record in enumerate(records):
        assert record["credit"]["trained"] == (n < 4)
        np.testing.assert_allclose(
            record["credit"]["advantage"], advantage[n], atol=6e-5
        )
        made = in_the_record(record)
        assert made.keys() == expected[n].keys()
        for turn, pairs in expected[n].items():
            np.testing.assert_allclose(made[turn], pairs, atol=6e-5)
    bonus = [row[1] for each in records[:4] for row in each["credit"]["ops"]]
    assert any(bonus)
    assert not any(
        pair[1] for n in range(4, 8) for ps in expected[n].values() for pair in ps
    )

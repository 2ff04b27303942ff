"""The training benchmark runs, on our side alone, and notices other work."""

import json

import numpy as np
import pytest

from benchmarks import _train_batches, train_step


def test_our_side_runs_and_learns_what_it_is_given(tmp_path):
    file = tmp_path / "figures.json"
    words = ["--case=tiny", "--rounds=2", "--steps=1", f"--json={file}"]
    words += ["--memory", "huge"]
    lines = []
    options = train_step.options_parser().parse_args(words)
    figures = train_step.run(options, lines.append)
    assert json.loads(json.dumps(figures)) == figures
    side = figures["sides"]["ours"]
    assert len(side["seconds"]) == len(side["busy"]) == 2
    assert len(side["losses"]) == train_step.WARM_UP + 2
    assert side["losses"][0] == pytest.approx(np.log(64), abs=0.5)
    assert "tiny: 0.0 M parameters, 2 x 16 tokens" in lines[0]
    assert "steps, memory: huge" in lines[0]
    assert "1.00 x" in lines[0]


def test_losses_that_differ_are_refused():
    train_step._check_same([1.0, 2.0], [1.0, 2.0005], "torch")
    with pytest.raises(RuntimeError, match=r"differ by 1\.00e-01"):
        train_step._check_same([1.0, 2.0], [1.0, 2.1], "torch")


def test_batches_are_ragged_and_the_same_everywhere():
    one, again, other = (_train_batches.batch(n, 4, 20, 50) for n in (1, 1, 2))
    for name in one:
        np.testing.assert_array_equal(one[name], again[name])
    assert not np.array_equal(one["tokens"], other["tokens"])
    lengths = one["token_mask"].sum(axis=1)
    assert lengths.max() == 20 > lengths.min() >= 10
    assert not (one["action_mask"] & ~one["token_mask"]).any()
    assert not one["action_mask"][:, 0].any()

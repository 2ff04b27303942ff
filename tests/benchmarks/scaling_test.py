"""What is counted from a program's text; the benchmark itself runs by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import _collectives, scaling
from mempo_jax.distributed.placement import make_mesh

SIZE, ROUNDS = 24, 5
TEXT = """
%body (x: f32[8]) -> f32[8] {
  %r = bf16[4,8]{1,0} reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}
}
%other (x: f32[8]) -> f32[8] {
  %p = (f32[8]{0}, f32[2]{0}) all-gather(%x), replica_groups=[2,4]<=[8]
  %one = f32[8]{0} all-reduce(%x), replica_groups={{0},{1}}
  %m = f32[8]{0} all-to-all(%x), replica_groups=mesh['a'=4,'b'=2] {'b','a':(1)2}
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %w = f32[8] while(%x), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %c = f32[8] conditional(%x), branch_computations={%other, %other}
  %s = f32[8]{0} collective-permute-start(%x), source_target_pairs={{0,1}}
  %d = f32[8]{0} collective-permute-done(%s)
}
"""


def test_loops_count_as_often_as_they_run():
    made = _collectives.count(TEXT)
    assert made["reduce-scatter"] == (3, 3 * (2 * 32) * 3)
    assert made["all-gather"] == (2, 2 * (40 * 3 // 4))
    assert made["collective-permute"] == (1, 32)
    assert made["all-to-all"] == (2, 2 * (32 * 3 // 4))
    assert made["all-reduce"] == (0, 0), "a group of one sends nothing"


def test_a_sum_over_devices_is_found_in_a_real_program():
    mesh = make_mesh(4, 1, 1)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())

    @functools.partial(jax.jit, in_shardings=(rows, whole), out_shardings=whole)
    def summed(x, weights):
        def add(weights, _):
            return jnp.tanh(weights + (x @ weights).sum(0)), None

        return jax.lax.scan(add, weights, None, length=ROUNDS)[0]

    shapes = np.zeros((8, SIZE), np.float32), np.zeros((SIZE, SIZE), np.float32)
    made = _collectives.count(summed.lower(*shapes).compile().as_text())
    times, sent = made["all-reduce"]
    assert times == ROUNDS
    assert sent == pytest.approx(ROUNDS * 2 * 4 * SIZE * 3 / 4)


def test_the_table_adds_the_programs_of_one_update():
    nothing = dict.fromkeys(_collectives.KINDS, (0, 0))
    score = nothing | {"all-gather": (3, 1_000)}
    traffic = {"score": score, "accumulate": score, "apply": nothing}
    assert scaling.sent(traffic)["all-gather"] == (12, 4_000)
    case = {
        "case": (2, 1, 4, 1),
        "difference": 2e-7,
        "of_loss": 0.0,
        "traffic": traffic,
    }
    [head, row] = scaling.table({"cases": [case]}).splitlines()
    assert "all-gather KB" in head
    assert "1 x 4 x 1" in row
    assert "12 / 4" in row

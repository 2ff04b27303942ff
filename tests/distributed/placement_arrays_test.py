"""Arrays on the devices of one process; ``processes_test`` has those of several."""

import jax
import numpy as np
import pytest

from mempo_jax.distributed import placement

STACK = np.arange(3 * 8 * 4, dtype=np.float32).reshape(3, 8, 4)


@pytest.fixture(params=["numpy", "one device", "eight devices"])
def stack(request):
    if request.param == "numpy":
        return STACK
    if request.param == "one device":
        return jax.device_put(STACK)
    mesh = placement.make_mesh(2, 2, 2)
    where = jax.sharding.PartitionSpec(None, "fsdp", "tensor")
    return jax.device_put(STACK, jax.sharding.NamedSharding(mesh, where))


def test_a_layer_or_all_is_fetched(stack):
    np.testing.assert_array_equal(placement.fetch(stack, 1), STACK[1])
    np.testing.assert_array_equal(placement.fetch(stack, None), STACK)


def test_pieces_in_order_are_the_whole(stack, monkeypatch):
    monkeypatch.setattr(placement, "PIECE_BYTES", 2 * STACK[0].nbytes)
    parts = list(placement.pieces(stack))
    assert [len(part) for part in parts] == [2, 1]
    np.testing.assert_array_equal(np.concatenate(parts), STACK)
    np.testing.assert_array_equal(placement.fetch(stack, None), STACK)


def test_a_scalar_is_one_piece():
    [part] = placement.pieces(np.float32(3))
    assert part == 3


def test_with_one_process_all_stays_as_it_is():
    mesh = placement.make_mesh(8, 1, 1)
    params = {"w": jax.device_put(STACK)}
    assert placement.local_mesh(mesh) is mesh
    assert placement.to_local(params, mesh) is params
    assert placement.slots_multiple(mesh) == 8
    placement.connect(mesh)

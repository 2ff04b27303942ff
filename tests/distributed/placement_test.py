import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from mempo_jax.distributed import placement
from mempo_jax.models.decoder import LanguageModel
from mempo_jax.models.layers import DecoderConfig
from mempo_jax.settings import ConfigError
from mempo_jax.training.step_metrics import CompilationCounter

CONFIG = DecoderConfig(
    vocab_size=48,
    width=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    mlp_width=32,
    rope_theta=1e4,
    norm_eps=1e-6,
    tied=False,
    qkv_bias=True,
    qk_norm=True,
    max_positions=64,
)


def _shapes(**changes):
    values = {**vars(CONFIG), **changes}
    model = LanguageModel(DecoderConfig(**values), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0))


def _struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_minus_one_takes_all_remaining_devices():
    mesh = placement.make_mesh(-1, 2, 1)
    assert dict(mesh.shape) == {"data": 4, "fsdp": 2, "tensor": 1}
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert placement.make_mesh(1, 1, 1).size == 1
    assert placement.make_mesh(-1, 1, 1, devices=jax.devices()[:3]).size == 3


@pytest.mark.parametrize("axes", [(0, 1, 1), (-2, 1, 1), (1, 0, 1), (-1, 1, -1)])
def test_axes_below_one_are_refused(axes):
    with pytest.raises(ValueError, match="at least 1"):
        placement.make_mesh(*axes)


def test_meshes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="must divide"):
        placement.make_mesh(-1, 3, 1)
    with pytest.raises(ValueError, match="needs 16 devices, there are 8"):
        placement.make_mesh(4, 4, 1)


@pytest.mark.parametrize(
    ("train", "asked", "expected"),
    [
        ((1, 8, 1), {"fsdp": 1, "tensor": 4}, (2, 1, 4)),
        ((1, 4, 2), {"fsdp": 1}, (4, 1, 2)),
        ((2, 4, 1), {"data": 1, "fsdp": 1, "tensor": 2}, (1, 1, 2)),
        ((2, 2, 2), {}, (2, 2, 2)),
    ],
)
def test_sampling_may_have_other_axes(train, asked, expected):
    mesh = placement.make_mesh(*train)
    axes = {"data": -1, "fsdp": 0, "tensor": 0} | asked
    own = placement.sampling_mesh(mesh, list(mesh.devices.flat), **axes)
    assert own.devices.shape == expected
    first = list(mesh.devices.flat)[: own.size]
    assert list(own.devices.flat) == first, (
        "another order could not be moved to at once"
    )


def test_sampling_may_have_devices_of_its_own():
    everything = jax.devices()
    train, sample = placement.split_devices([everything], 2)
    assert (train, sample) == (everything[:6], everything[6:])
    train, sample = placement.split_devices([everything[:4], everything[4:]], 1)
    assert train == [*everything[:3], *everything[4:7]]
    assert sample == everything[3:4], "of one process alone"
    assert placement.split_devices([everything], 0) == (everything, everything)
    with pytest.raises(ValueError, match="fewer than the 8 devices"):
        placement.split_devices([everything], 8)


def test_sampling_meshes_that_do_not_fit_are_refused():
    mesh = placement.make_mesh(1, 8, 1)
    devices = list(mesh.devices.flat)
    for axes in ((-1, 3, 1), (-1, 0, 2), (3, 2, 2), (-2, 1, 1), (0, 1, 1)):
        asked = dict(zip(("data", "fsdp", "tensor"), axes, strict=True))
        with pytest.raises(ValueError, match=r"change mesh\.sampling"):
            placement.sampling_mesh(mesh, devices, **asked)


@pytest.mark.parametrize("apart", [False, True])
def test_parameters_move_to_the_sampling_mesh(apart):
    devices = jax.devices()
    train, sample = placement.split_devices([devices], 4 if apart else 0)
    mesh = placement.make_mesh(1, 4, 1, devices=train[:4])
    own = placement.sampling_mesh(
        mesh, sample[:4], data=1, fsdp=1, tensor=4 if not apart else 2
    )
    wide = DecoderConfig(**{**vars(CONFIG), "kv_heads": 4})
    model = LanguageModel(wide, jnp.float32)
    params = model.init(jax.random.key(0))
    placed = placement.place_params(params, mesh)
    move = placement.mover(own)
    moved = move(placed)
    for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(moved)):
        np.testing.assert_array_equal(before, after)
        assert after.sharding.mesh == own
    assert "tensor" in str(moved["head"]["kernel"].sharding.spec)
    with CompilationCounter() as counter:
        move(jax.tree.map(lambda leaf: leaf + 1, placed))
        again = counter.count
        move(placed)
    assert counter.count == again, "compiled for each move"


def test_every_parameter_of_the_decoder_has_a_row_and_none_is_left_whole():
    for tied in (True, False):
        found = placement.shardings(_shapes(tied=tied), placement.make_mesh(2, 2, 2))
        for path, leaf in jax.tree.leaves_with_path(found):
            whole = "norm" in jax.tree_util.keystr(path)
            assert bool(tuple(leaf.spec)) != whole, path
    layers = found["layers"]
    assert layers["mlp"]["down"]["kernel"].spec == PartitionSpec(None, "tensor", "fsdp")
    assert found["embed"]["embedding"].spec == PartitionSpec("tensor", "fsdp")


def test_moments_follow_the_table_of_their_parameters():
    mesh = placement.make_mesh(2, 2, 2)
    params = _shapes()
    state = {"count": _struct(), "inner": [{"mu": params, "nu": params}]}
    found = placement.shardings(state, mesh)
    assert found["inner"][0]["nu"] == placement.shardings(params, mesh)
    assert found["count"].spec == PartitionSpec()


def test_all_parameters_without_a_row_are_named():
    tree = {"embed": {"embedding": _struct(4, 4)}, "odd": _struct(4), "new": _struct(4)}
    with pytest.raises(ValueError, match=r"matches new, odd: add a row"):
        placement.shardings(tree, placement.make_mesh(1, 1, 1))


def test_the_first_matching_row_decides():
    table = ((r"a/w$", PartitionSpec("fsdp")), (r"w$", PartitionSpec()))
    mesh = placement.make_mesh(4, 2, 1)
    found = placement.shardings({"a": {"w": _struct(4)}, "w": _struct(4)}, mesh, table)
    assert found["a"]["w"].spec == PartitionSpec("fsdp")
    assert found["w"].spec == PartitionSpec()


def test_a_dimension_that_does_not_divide_is_refused_unless_the_axis_is_one():
    shapes = _shapes(vocab_size=49)
    placement.shardings(shapes, placement.make_mesh(4, 2, 1))
    message = r"^config\.mesh\.tensor: expected 1 or a divisor of 49,.*got 2$"
    with pytest.raises(ConfigError, match=message) as caught:
        placement.shardings(shapes, placement.make_mesh(4, 1, 2))
    assert "it splits embed/embedding of shape (49, " in str(caught.value)


def test_what_the_mesh_of_sampling_does_not_divide_names_that_section():
    move = placement.mover(placement.make_mesh(1, 1, 2))
    params = jax.tree.map(lambda x: np.zeros(x.shape), _shapes(vocab_size=49))
    with pytest.raises(ConfigError, match=r"^config\.mesh\.sampling\.tensor: "):
        move(params)


def test_a_row_with_too_many_dimensions_is_refused():
    table = ((r"w$", PartitionSpec(None, "fsdp")),)
    with pytest.raises(ValueError, match="correct the table"):
        placement.shardings({"w": _struct(4)}, placement.make_mesh(4, 2, 1), table)


def test_rows_are_split_over_data_and_fsdp():
    mesh = placement.make_mesh(2, 2, 2)
    rows = jax.device_put(np.zeros((8, 3)), placement.row_sharding(mesh))
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 3)}
    assert placement.row_multiple(mesh) == 4
    placement.check_rows(8, mesh)
    with pytest.raises(ValueError, match="multiple of data x fsdp = 4, got 6"):
        placement.check_rows(6, mesh)

import pytest

from mempo_jax.planning.devices import CHIPS, device
from mempo_jax.settings import ConfigError


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "topology"),
    [
        ("v5e-1", 1, 1, "v5e:1x1"),
        ("v5e-8", 8, 1, "v5e:2x4"),
        ("v5e-16", 16, 4, "v5e:4x4"),
        ("v5p-8", 4, 1, "v5p:2x2x1"),
        ("V4-32", 16, 4, "v4:4x2x2"),
        ("v6e-64", 64, 16, "v6e:8x8"),
        ("h100-8", 8, 1, None),
        ("a100-40gb-16", 16, 2, None),
    ],
)
def test_a_name_gives_chips_and_hosts(name, chips, hosts, topology):
    found = device(name)
    assert (found.count, found.hosts) == (chips, hosts)
    if topology:
        assert found.topology == topology


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("v5x-8", "chips: v4, v5e"),
        ("v5e", "a chip and a count"),
        ("v5e-0", "at least 1 behind v5e- .it counts chips., got 0"),
        ("v5p-3", "a multiple of 2 behind v5p- .it counts TensorCores., got 3"),
        ("h100-0", "got 0"),
    ],
)
def test_other_names_are_refused(name, why):
    with pytest.raises(ConfigError, match=why):
        device(name)


def test_numbers_are_in_their_units():
    """A slip of a thousand would show."""
    for chip in CHIPS.values():
        assert 15 * 2**30 < chip.memory < 150 * 2**30
        assert 1e14 < chip.peak < 1e15
        assert 8e11 < chip.bandwidth < 5e12
        assert 1e11 < chip.link < chip.bandwidth

import importlib.util
import os
import types

import pytest
from jax.experimental import topologies

from mempo_jax.planning.devices import CHIPS, device, tpu_devices
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


@pytest.fixture
def asked(monkeypatch):
    """What the TPU's compiler is asked for, and of how many chips it then speaks."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    seen = {"count": 16}

    def describe(**options):
        seen["options"] = options
        return types.SimpleNamespace(devices=range(seen["count"]))

    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    return seen


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v5e-16", {"topology_name": "v5e:4x4"}),
        ("v5p-32", {"topology_name": "v5p:4x2x2"}),
        # Else a v4 chip is two devices to the compiler, and one to a run.
        ("v4-32", {"topology_name": "v4:4x2x2", "chip_config_name": "megacore"}),
    ],
)
def test_the_tpu_compiler_gets_one_device_a_chip(asked, name, options):
    assert len(tpu_devices(device(name))) == 16
    assert asked["options"] == {"platform": "tpu"} | options
    assert os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"


def test_other_chips_and_counts_have_no_tpu_compiler(asked):
    with pytest.raises(ConfigError, match="expected a TPU in --device, got h100-8"):
        tpu_devices(device("h100-8"))
    asked["count"] = 32
    with pytest.raises(ConfigError, match="expected 16 devices in v5e:4x4, got 32"):
        tpu_devices(device("v5e-16"))


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None, reason="the compiler is here"
)
def test_a_missing_compiler_names_the_extra(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(ConfigError, match=r"install the extra \[tpu\]$"):
        tpu_devices(device("v5e-16"))

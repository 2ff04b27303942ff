"""Sections become dataclasses, or an error that names the field and the remedy."""

import dataclasses
from typing import Literal

import pytest

from mempo_jax.settings import (
    SAVED_VERSION,
    ConfigError,
    flatten,
    migrated,
    nearest,
    section,
    with_version,
)


@dataclasses.dataclass(frozen=True)
class Lora:
    rank: int


@dataclasses.dataclass(frozen=True)
class Sampling:
    group_size: int
    temperature: float
    greedy: bool
    path: str
    modes: tuple[str, ...]
    span: tuple[int, float]
    kind: Literal["a", "b"]
    limit: int | None
    lora: Lora


GOOD = {
    "group_size": 8,
    "temperature": 1,
    "greedy": False,
    "path": "",
    "modes": ("x", "y"),
    "span": (1, 2),
    "kind": "b",
    "limit": None,
    "lora": {"rank": 4},
}


def build(**changes):
    return section(Sampling, {"sampling": GOOD | changes}, "sampling")


def test_builds_with_whole_numbers_as_floats():
    built = build()
    assert built == Sampling(
        8, 1.0, False, "", ("x", "y"), (1, 2.0), "b", None, Lora(4)
    )
    assert isinstance(built.temperature, float)
    assert isinstance(built.span[1], float)


def test_lists_read_from_json_count_as_tuples():
    assert build(modes=["x"]).modes == ("x",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_size": "eight"}, r"\.group_size: expected int, got 'eight'"),
        ({"group_size": 8.0}, r"\.group_size: expected int, got 8\.0"),
        ({"group_size": True}, r"\.group_size: expected int, got True"),
        ({"temperature": True}, r"\.temperature: expected float, got True"),
        ({"temperature": float("nan")}, r"\.temperature: expected float, got nan"),
        ({"greedy": 0}, r"\.greedy: expected bool, got 0"),
        ({"path": None}, r"\.path: expected str, got None"),
        ({"modes": "uniform"}, r"\.modes: expected a tuple of str, got 'uniform'"),
        ({"modes": ("x", 3)}, r"\.modes\[1\]: expected str, got 3"),
        ({"span": (1,)}, r"\.span: expected 2 values, got \(1,\)"),
        ({"kind": "c"}, r"\.kind: expected one of 'a', 'b', got 'c'"),
        ({"limit": "x"}, r"\.limit: expected int or None, got 'x'"),
        ({"lora": 3}, r"\.lora: expected a section, got 3"),
        ({"lora": {"rnk": 3}}, r"\.lora\.rnk: unknown field; the nearest is .*\.rank"),
        (
            {"grup_size": 1},
            r"\.grup_size: unknown field; the nearest is config\.sampling\.group_size",
        ),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(change, message):
    with pytest.raises(ConfigError, match=r"^config\.sampling" + message):
        build(**change)


def test_a_missing_field_and_a_missing_section_are_named():
    short = {key: value for key, value in GOOD.items() if key != "limit"}
    with pytest.raises(ConfigError, match=r"^config\.sampling\.limit: missing"):
        section(Sampling, {"sampling": short}, "sampling")
    with pytest.raises(ConfigError, match=r"^config\.sampling: .* is config\.sampler"):
        section(Sampling, {"sampler": {}, "train": {}}, "sampling")


def test_nested_sections_are_found_by_a_dotted_name():
    config = {"policy": {"lora": {"rank": 2}}}
    assert section(Lora, config, "policy.lora") == Lora(2)
    with pytest.raises(ConfigError, match=r"^config\.policy\.lora\.rank: expected int"):
        section(Lora, {"policy": {"lora": {"rank": "2"}}}, "policy.lora")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sampling.grop_size", "sampling.group_size"),
        ("group_size", "sampling.group_size"),
        ("train.group_size", "sampling.group_size"),
        ("tran.steps", "train.steps"),
        ("seeds", "seed"),
        ("train.gpu", None),
        ("beam_width", None),
    ],
)
def test_nearest_prefers_the_last_part(name, expected):
    names = ["sampling.group_size", "sampling.temperature", "train.steps", "seed"]
    assert nearest(name, names) == expected


def test_nearest_of_nothing():
    assert nearest("x", []) is None


def test_fields_by_dotted_name():
    config = {"seed": 1, "env": {"name": "x", "babi": {"tasks": (1, 2)}}, "reward": {}}
    flat = {"seed": 1, "env.name": "x", "env.babi.tasks": [1, 2]}
    assert flatten(config) == flat


@pytest.mark.parametrize(
    "version", [0, -1, True, "2", 2.0, None, [2], SAVED_VERSION + 1]
)
def test_a_version_that_is_not_ours_is_refused_in_one_line(version):
    newer = type(version) is int and version > SAVED_VERSION
    said = "a newer mempo_jax saved it" if newer else "it is damaged"
    with pytest.raises(
        ConfigError, match=f"run/config.json: expected .*{said}"
    ) as error:
        migrated({"version": version}, "run/config.json")
    assert "\n" not in str(error.value)


def test_a_renamed_field_keeps_its_value_and_is_named(monkeypatch, recwarn):
    renamed = {"train.rate": "train.learning_rate", "bank.size": "memory.caps.active"}
    monkeypatch.setattr("mempo_jax.settings.RENAMED_FIELDS", renamed)
    old = {"train": {"rate": 0.1, "steps": 3}, "bank": {"size": 4}, "seed": 1}
    new = {"train": {"learning_rate": 0.1, "steps": 3}, "bank": {}, "seed": 1}
    new["memory"] = {"caps": {"active": 4}}
    assert migrated(old, "c.json") == new
    assert [str(each.message) for each in recwarn.list] == [
        "c.json was saved before some fields were renamed: train.rate is now "
        "train.learning_rate, bank.size is now memory.caps.active"
    ]
    assert migrated(with_version(new), "c.json") == new
    assert len(recwarn.list) == 1
    # A value under the new name is never replaced by a leftover of the old one.
    assert migrated({"train": {"rate": 1, "learning_rate": 2}}, "c")["train"] == {
        "learning_rate": 2
    }

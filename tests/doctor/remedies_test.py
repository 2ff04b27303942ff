"""Remedies: what they name, and that none sets what is set already."""

import re

import numpy as np
import pytest

from mempo_jax.doctor.diagnoses import DIAGNOSES
from mempo_jax.doctor.text import SLOT, advise
from tests.doctor.doctor_case import STEPS, by_name, ramp, run
from tests.doctor.sick_cases import FELL, SICK, flat


def texts():
    for diagnosis in DIAGNOSES:
        for remedy in diagnosis.remedies:
            options = remedy.values() if isinstance(remedy, dict) else [remedy]
            yield from options


def test_a_remedy_that_names_a_value_compares_it():
    plain = r"(?:\{[a-z_]+\.[a-z0-9_.]+\}|config\.[a-z0-9_.]+\.[a-z0-9_]+)"
    value = r" (?:to |with )?(?:\(?-?\d|'|True|False|static|window|ops_only|lexical)"
    compared = [text for text in texts() if any(slot[2] for slot in SLOT.findall(text))]
    assert len(compared) > 20
    assert [text for text in texts() if re.search(plain + value, text)] == []


@pytest.mark.parametrize(
    ("text", "field", "value", "useful"),
    [
        ("set {objective.kl_scope!=all} to 'all'", "objective__kl_scope", "ops", True),
        ("set {objective.kl_scope!=all} to 'all'", "objective__kl_scope", "all", False),
        ("{memory.embedder!=static|hashing}", "memory__embedder", "hashing", False),
        ("{memory.embedder!=static|hashing}", "memory__embedder", "other", True),
        ("{credit.modes!=attribution}", "credit__modes", ["attribution"], False),
        ("{credit.modes!=attribution}", "credit__modes", ["ops_only"], True),
        ("{credit.modes==attribution}", "credit__modes", ["uniform"], False),
        ("{train.minibatches>1}", "train__minibatches", 1, False),
        ("{train.minibatches>1}", "train__minibatches", 2, True),
        ("{reward.write_cost>-0.01}", "reward__write_cost", -0.01, False),
        ("{train.grad_clip<=0}", "train__grad_clip", 0.0, True),
        ("{objective.clip_high<0.28}", "objective__clip_high", 0.28, False),
        ("{sampling.top_p!=1.0}", "sampling__top_p", 1.0, False),
        ("{memory.enabled!=True}", "memory__enabled", True, False),
        ("{train.minibatches>1}", "train__minibatches", "many", True),
    ],
)
def test_a_remedy_that_is_followed_already_is_left_out(text, field, value, useful):
    record = run(fields={field: value})
    name = field.replace("__", ".", 1)
    shown = f"config.{name} (now {value!r})"
    expected = SLOT.sub(lambda slot: shown, text) if useful else ""
    assert advise(text, {}, record) == expected


def test_without_a_config_every_remedy_is_given():
    record = run()
    unknown = type(record)(record.table, {}, {}, {})
    text = "set {objective.kl_scope!=all} to 'all'"
    assert advise(text, {}, unknown) == "set config.objective.kl_scope to 'all'"


def test_credit_modes_that_are_on_are_not_advised():
    for modes in (["ops_only"], ["attribution"], ["attribution", "counterfactual"]):
        record = run({"success": flat}, fields={"credit__modes": modes})
        remedies = " ".join(by_name(record)["success_flat"].remedies)
        for mode in ("attribution", "counterfactual"):
            advised = re.search(rf"\(now .*?\) (?:with )?{mode}", remedies)
            assert bool(advised) == (mode not in modes), (modes, mode)


@pytest.mark.parametrize(
    ("name", "case", "words"),
    [
        ("reward_flat_loss_falls", SICK["reward_flat_loss_falls"][0], "KL that is too"),
        ("write_only", SICK["write_only"][0], "raise config.objective.kl_coef (now"),
        (
            "slow_recall",
            SICK["slow_recall"][0],
            "memory.retrieval_top_k (now 6)",
        ),
        ("late_collapse", SICK["late_collapse"][0], "config.train.micro_batch_tokens"),
        ("late_collapse", SICK["late_collapse"][0], "XLA_PYTHON_CLIENT_ALLOCATOR"),
        ("device_memory", SICK["device_memory"][0], "XLA_PYTHON_CLIENT_ALLOCATOR"),
        ("probes_dear", SICK["probes_dear"][0], "in place of config.credit.modes"),
        ("lost_dialogue", SICK["lost_dialogue"][2], "raise config.objective.kl_coef"),
    ],
)
def test_remedies_that_are_named(name, case, words):
    remedies = by_name(run(**case))[name].remedies
    assert any(words in remedy for remedy in remedies)


def test_late_collapse_shows_the_memory_of_the_device():
    columns = {"success": FELL, "device_bytes": np.linspace(1e9, 4e9, STEPS)}
    findings = by_name(run(columns, fields={"train__steps": 500}, idle_s=9e5))
    before, now = (
        figure.value
        for figure in findings["late_collapse"].seen
        if figure.what == "device_bytes"
    )
    assert now > 1.2 * before
    assert "device_memory" in findings["unfinished"].because_of


def test_write_only_collapse_explains_a_reward_that_stays():
    columns = {"loss": ramp(0.05, 0.0, noise=0.005), "reward": flat, "success": flat}
    findings = by_name(run(columns | {"write_only_rate": 0.8}))
    assert "write_only" in findings["reward_flat_loss_falls"].because_of

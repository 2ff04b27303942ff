import dataclasses
import json

from mempo_jax.planning import plan as plan_module
from mempo_jax.planning import speed
from mempo_jax.planning.devices import GIB, device
from mempo_jax.planning.memory import Memory

MEMORY = Memory(
    {"parameters": 2 * GIB, "optimiser": 4 * GIB},
    GIB,
    {"score": GIB, "accumulate": 20 * GIB, "apply": 0, "prefill": 0, "decode": 0},
)
PLAN = plan_module.RunPlan(
    device=device("v5e-16"),
    shape="models/x/config.json",
    parameters=1_234_567,
    axes={"data": 1, "fsdp": 16, "tensor": 1},
    memory=MEMORY,
    narrowed=True,
    compiler="CPU",
    work=speed.Work(8, 3, 16, 100, 24, 128),
    seconds={"decode": 2.0, "train": 3.0},
)
SMALLER = dataclasses.replace(MEMORY, made=MEMORY.made | {"accumulate": GIB})


def test_what_does_not_fit_is_said_with_what_to_change():
    found = plan_module.Found(
        {"policy.remat": True, "sampling.prefill_buckets": (64, 128)}, SMALLER, True
    )
    text = plan_module.as_text(dataclasses.replace(PLAN, found=found))
    assert "DOES NOT FIT: 27.00 GiB, 171% of the 15.8 GiB" in text
    assert "--config.policy.remat=True --config.sampling.prefill_buckets=64,128" in text
    assert "then it fits: 8.00 GiB" in text
    [most] = [line for line in text.splitlines() if "<- most" in line]
    assert most.split()[:3] == ["in", "train", "step"]
    assert "16 chips of 15.8 GiB, 4 hosts; mesh data 1 x fsdp 16 x tensor 1" in text
    assert "bfloat16 is derived" in text
    assert "a step  about 5.00 s: decode 2.00, train 3.00" in text


def test_what_fits_says_so():
    text = plan_module.as_text(
        dataclasses.replace(PLAN, memory=SMALLER, narrowed=False)
    )
    assert "fits: 8.00 GiB" in text
    assert "change" not in text
    assert "derived" not in text


def test_a_gpu_that_is_nearly_full_needs_more_than_jax_takes():
    full = dataclasses.replace(MEMORY, made=MEMORY.made | {"accumulate": 60 * GIB})
    plan = dataclasses.replace(PLAN, device=device("h100-8"), memory=full)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92" in plan_module.as_text(plan)


def test_a_check_shows_how_far_off_the_small_depths_were():
    checked = dataclasses.replace(PLAN, checked={"score": (11 * GIB, 10 * GIB)})
    assert "+10.0%" in plan_module.as_text(checked)


def test_json_holds_the_same():
    found = plan_module.Found({"policy.remat": True}, SMALLER, True)
    made = json.loads(
        json.dumps(plan_module.as_json(dataclasses.replace(PLAN, found=found)))
    )
    assert made["sum"] == MEMORY.peak
    assert not made["fits"]
    assert made["change"] == {"policy.remat": True}
    assert made["then"] == {"sum": SMALLER.peak, "fits": True}

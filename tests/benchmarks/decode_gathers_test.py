"""What a decode step sends is read from a program's text, and of the real compiler."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import pytest

from benchmarks import decode_gathers
from benchmarks._collectives import Operation, count, in_one_turn
from mempo_jax.distributed import placement
from tests.experiments.process import ROOT

# As the TPU's compiler writes it: a gather that is hidden behind other work is repeated
# in each of its parts, with one channel.
TEXT = """
%part.1 (x: bf16[8,32]) -> bf16[32,32] {
  %g = bf16[32,32]{1,0:T(8,128)} all-gather(%x), channel_id=7, replica_groups=[1,4]<=[4]
}
%part.2 (x: bf16[8,32]) -> bf16[32,32] {
  %h = bf16[32,32]{1,0:T(8,128)} all-gather(%x), channel_id=7, replica_groups=[1,4]<=[4]
}
%layer (x: bf16[8,32]) -> bf16[32,32] {
  %l = bf16[1,64,32]{2,1,0} all-gather(%x), channel_id=8, replica_groups=[1,4]<=[4]
}
%more (x: bf16[8,32]) -> pred[] {
  %m = pred[4] all-gather(%x), channel_id=9, replica_groups=[1,4]<=[4]
}
%step (x: bf16[8,32]) -> bf16[32,32] {
  %a = bf16[32,32] fusion(%x), kind=kCustom, calls=%part.1
  %b = bf16[32,32] fusion(%x), kind=kCustom, calls=%part.2
  %w = bf16[32] while(%x), body=%layer, backend_config={"known_trip_count":{"n":"3"}}
  %r = bf16[4,32] all-reduce(%x), channel_id=10, replica_groups=[1,4]<=[4]
}
ENTRY %main (x: bf16[8,32]) -> bf16[32,32] {
  %before = bf16[96,32] all-gather(%x), channel_id=11, replica_groups=[1,4]<=[4]
  %w = bf16[32,32] while(%x), condition=%more, body=%step
}
"""


def test_one_turn_has_what_is_in_the_loop_and_each_operation_once():
    found = in_one_turn(TEXT)
    assert sorted(found) == [
        (Operation("all-gather", ((1, 64, 32),), 64 * 32 * 2 * 3 // 4), 3),
        (Operation("all-gather", ((4,),), 3), 1),
        (Operation("all-gather", ((32, 32),), 32 * 32 * 2 * 3 // 4), 1),
        (Operation("all-reduce", ((4, 32),), 2 * 4 * 32 * 2 * 3 // 4), 1),
    ]
    assert count(TEXT)["all-gather"].times == 1 + 1 + 3 + 1


def test_kernels_are_known_by_their_shape():
    mesh = placement.make_mesh(1, 4, 1)
    params = {
        "kernel": jax.ShapeDtypeStruct((3, 64, 32), "float32"),
        "bias": jax.ShapeDtypeStruct((3, 32), "float32"),
        "scale": jax.ShapeDtypeStruct((32,), "float32"),
    }
    kernels = decode_gathers.kernel_shapes(params, mesh)

    def is_one(*shape):
        plain = decode_gathers.plain(Operation("all-gather", (shape,), 1))
        return any(each in kernels for each in plain)

    assert is_one(1, 64, 32)
    assert is_one(32, 64), "turned"
    assert is_one(3, 64, 32), "all layers at once"
    assert is_one(16, 32), "a part that is passed on"
    assert not is_one(4, 1, 32)
    assert not is_one(32)


def test_the_two_cases_differ_in_sampling_alone():
    first, second = decode_gathers.cases(4).values()
    assert second == first | {"mesh.sampling.fsdp": 1, "mesh.sampling.tensor": 4}


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU's compiler (extra [tpu]), and no TPU",
)
def test_the_tpu_compiler_gathers_no_kernel_with_tensor_alone(tmp_path):
    """Two layers of Qwen2.5-7B on the four chips of a host; about a minute."""
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.decode_gathers", "--layers=2"]
    done = subprocess.run(
        [*command, f"--json={file}"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    trains, own = json.loads(file.read_text()).values()
    # Seven kernels in each layer, and the output matrix.
    assert trains["kernels"] == 2 * 7 + 1
    assert trains["kernel_bytes"] > 1e9
    assert (own["kernels"], own["kernel_bytes"]) == (0, 0)
    assert 0 < own["other_bytes"] < 2e6


def test_without_the_compiler_it_is_one_line(capsys):
    assert decode_gathers.main(["--device=h100-8"]) == 2
    assert "expected a TPU in --device, got h100-8" in capsys.readouterr().err

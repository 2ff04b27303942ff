"""What a run needs of named hardware, told without that hardware.

    python -m experiments.plan --config=configs/qwen2_5_7b.py --device=v5e-16
    python -m experiments.plan --config=configs/qwen2_5_7b.py --device=h100-8
        [--json] [--check] [--compiler=tpu] [--turns=N] [--turn_tokens=N]
        [--config.FIELD=VALUE ...]

If the config's mesh does not fit the number of chips, the nearest mesh that does is
planned, and a line says which overrides a run there needs.

Bytes on each device, whether they fit, what to change where they do not, and how long a
step may take. Devices: v4, v5e, v5p, v6e, a100, a100-40gb, h100, h200, and a count (of
TensorCores for v4 and v5p, two a chip, as in Google Cloud's names). No weights are
read: config.json is enough, and sizes that are well known need no file at all.

--compiler=tpu asks the TPU's own compiler, which the extra [tpu] installs and which
needs no TPU; it takes many minutes.
"""

import json
import os
import sys

from absl import flags

from .flags import Command, new_options
from .launch import launch

OPTIONS = new_options()
flags.DEFINE_string(
    "device", None, "chip and count, as in v5e-16 or h100-8", flag_values=OPTIONS
)
flags.DEFINE_bool("json", False, "print JSON", flag_values=OPTIONS)
flags.DEFINE_bool(
    "check", False, "compile at the whole depth as well", flag_values=OPTIONS
)
flags.DEFINE_enum(
    "compiler", "cpu", ("cpu", "tpu"), "which compiler is asked", flag_values=OPTIONS
)
flags.DEFINE_integer(
    "turns", 0, "of a trajectory; 0: assumed", lower_bound=0, flag_values=OPTIONS
)
flags.DEFINE_integer(
    "turn_tokens",
    0,
    "sampled in a turn; 0: assumed",
    lower_bound=0,
    flag_values=OPTIONS,
)
XLA_FLAGS = "--xla_force_host_platform_device_count={}"  # read when jax starts


def main(command: Command) -> int:
    """Prints the plan of a run.

    Args:
      command: the parsed command line.

    Returns:
      The exit code.
    """
    from mempo_jax.planning.devices import device as read_device
    from mempo_jax.planning.devices import tpu_devices

    options = command.options
    device = read_device(options.device)
    # As many pretended devices as the hardware has, so that shardings are real.
    device_flag = XLA_FLAGS.format(device.count)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {device_flag}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"

    from mempo_jax.planning import plan as plan_module
    from mempo_jax.planning.plan import Planner

    by_tpu = options.compiler == "tpu"
    planner = Planner(
        device,
        tpu_devices(device) if by_tpu else _cpu_devices(),
        compiler=options.compiler.upper(),
        narrow=not by_tpu,
        note=_note,
    )
    plan = planner.plan(
        command.config.to_dict(),
        turns=options.turns,
        turn_tokens=options.turn_tokens,
        check=options.check,
    )
    if options.json:
        print(json.dumps(plan_module.as_json(plan), indent=1))
    else:
        print(plan_module.as_text(plan))
    return 0


def _cpu_devices():
    import jax

    return jax.devices()


def _note(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    launch(main, OPTIONS, required=("config", "device"))

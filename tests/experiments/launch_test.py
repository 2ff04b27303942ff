"""What a launcher says on its error stream, beside its progress bars."""

import logging
import subprocess
import sys
import warnings

import pytest

from experiments.flags import Command, load_config, new_options
from experiments.launch import advise, launch
from experiments.progress import Bars
from mempo_jax.config import from_config
from tests.experiments.process import ROOT

CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("[!_]*.py"))


def lines_of(capsys, main):
    """The lines on the error stream of a launcher that runs ``main``."""
    with pytest.raises(SystemExit):
        launch(main, new_options(), required=(), argv=())
    return capsys.readouterr().err.replace("\r", "\n").splitlines()


def test_a_warning_is_a_line_of_its_own_beside_a_bar(capsys):
    def main(command):
        bars = Bars()
        bars("training", 1, 3, {})
        warnings.warn("all rewards\nwere equal", stacklevel=2)
        bars("training", 3, 3, {})

    before = warnings.showwarning
    lines = lines_of(capsys, main)
    assert "warning: all rewards were equal" in lines
    assert not [x for x in lines if ".py:" in x or "UserWarning" in x]
    assert warnings.showwarning is before


def test_a_warning_of_one_text_is_shown_once(capsys):
    def main(command):
        warnings.warn("retune the learning rate", stacklevel=1)
        warnings.warn("retune the learning rate", stacklevel=2)
        warnings.warn("another", stacklevel=1)

    lines = lines_of(capsys, main)
    assert lines == ["warning: retune the learning rate", "warning: another"]


def test_steps_are_shown_in_seconds_a_step(capsys):
    def main(command):
        bars = Bars()
        for stage, total in (("training", 2), ("cold start", 2), ("compiling", 1)):
            for done in range(total + 1):
                bars(stage, done, total, {"loss": 1})

    lines = lines_of(capsys, main)
    for stage in ("training", "cold start"):
        last = [x for x in lines if x.startswith(stage)][-1]
        assert "2/2" in last
        assert "s/step, loss=1]" in last
        assert "step/s" not in last
    last = [x for x in lines if x.startswith("compiling")][-1]
    assert last.endswith("loss=1]")
    assert "/s" not in last, "a single program has no speed"


def test_what_jax_says_of_another_device_is_a_plain_line(capsys):
    def main(command):
        log = logging.getLogger("jax._src.xla_bridge")
        log.warning("An NVIDIA GPU may be present on this machine, but a ...")
        log.warning("something else")

    lines = lines_of(capsys, main)
    assert [x for x in lines if "NVIDIA" in x] == [
        "warning: this computes on the CPU; for the NVIDIA GPU that may be present "
        "install the extra [cuda13], or [cuda12] with an older driver"
    ]


def advice_on(capsys, file, **changes):
    config = load_config(str(file))
    config.update_from_flattened_dict(changes)
    options = new_options()
    options(["launcher", f"--config={file}"])
    advise(from_config(config.to_dict()), Command(config, changes, options))
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_this_project_is_not_warned_of(capsys, name):
    assert advice_on(capsys, ROOT / "configs" / name) == []


def test_overrides_and_configs_of_others_are_warned_of(capsys, tmp_path):
    shipped = ROOT / "configs" / "dialogue.py"
    [line] = advice_on(capsys, shipped, **{"sampling.max_turns": 500})
    assert line.startswith("warning: config.sampling.max_turns = 500: 20 to 40 is")
    own = tmp_path / "own.py"
    own.write_text(shipped.read_text())
    [line] = advice_on(capsys, own)
    assert line.startswith("warning: config.sampling.max_turns = 400: 20 to 40 is")


def test_nothing_is_said_of_pytorch():
    code = "from mempo_jax import Agent"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

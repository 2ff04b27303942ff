"""A progress bar for each stage of long work, on the error stream."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

LOG_INTERVAL_S = 10  # between two lines if the output is no terminal
OPTIMISER_STAGES = ("cold start", "training")  # count steps; others count other things
# A step takes seconds: "2 s/step" is easier to read than "0.5 steps/s".
SECONDS_A_STEP = (
    "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_inv_fmt}{postfix}]"
)
WITHOUT_RATE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"


class Bars:
    """A ``Progress``: call it, or close it; one stage shows one bar at a time."""

    def __init__(self) -> None:
        self._stage = ""
        self._bar: tqdm | None = None

    def __call__(
        self, stage: str, done: int, total: int, figures: dict[str, Any]
    ) -> None:
        """Moves the bar of a stage.

        Args:
          stage: its name; a new one opens a new bar.
          done, total: how far it is.
          figures: shown beside the bar.
        """
        if self._bar is None or stage != self._stage:
            self._open(stage, total, done)
        self._bar.set_postfix(figures, refresh=False)
        self._bar.update(done - self._bar.n)
        if done == total:
            self.close()

    def close(self) -> None:
        """Leaves the bar of the present stage as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _open(self, stage: str, total: int, done: int) -> None:
        self.close()
        watched = sys.stderr.isatty()
        self._stage = stage
        in_steps = stage in OPTIMISER_STAGES
        shape = SECONDS_A_STEP if in_steps else WITHOUT_RATE if total == 1 else None
        self._bar = tqdm(
            desc=stage,
            total=total,
            initial=done,  # what an earlier process did must not count for the speed
            mininterval=0.1 if watched else LOG_INTERVAL_S,
            dynamic_ncols=watched,
            unit="step" if in_steps else "",
            bar_format=shape,
        )

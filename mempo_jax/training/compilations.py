"""Counts what XLA compiles, so that a run can show that nothing recompiles."""

from __future__ import annotations

from typing import Any

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
    """Programs compiled in this process, and the seconds it took, since it was made.

    Programs read from a persistent compilation cache count too: they are new to the
    process. Close it when done, or use it in a ``with`` block.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def close(self) -> None:
        """Stops counting."""
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def __enter__(self) -> CompilationCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, event: str, seconds: float, **_: Any) -> None:
        if event == _EVENT:
            self.count += 1
            self.seconds += seconds

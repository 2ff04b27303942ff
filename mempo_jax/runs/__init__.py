"""What a run leaves on disk, read back whatever state it is in; numpy only."""

from mempo_jax.runs.directory import (
    RunRecord,
    read_config,
    read_object,
    read_run,
    sampled_success,
)
from mempo_jax.runs.metrics import Columns, Metrics, read_metrics
from mempo_jax.runs.records import (
    ErrorCounts,
    JsonLines,
    count_errors,
    read_trajectories,
    trajectory_files,
)
from mempo_jax.runs.table import Table, Window, differ

__all__ = [
    "Columns",
    "ErrorCounts",
    "JsonLines",
    "Metrics",
    "RunRecord",
    "Table",
    "Window",
    "count_errors",
    "differ",
    "read_config",
    "read_metrics",
    "read_object",
    "read_run",
    "read_trajectories",
    "sampled_success",
    "trajectory_files",
]

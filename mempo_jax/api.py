"""What scripts and notebooks use: runs, policies, groups, and how they are shown.

    from mempo_jax.api import from_config, run
    summary = run(from_config(config), config, "runs/mine")

The names here stay when the modules that they come from are moved. Pictures need
matplotlib (extra [plots]) when they are drawn.
"""

from mempo_jax.agent import Agent, TextTask
from mempo_jax.builders.engines import make_run_mesh
from mempo_jax.builders.policies import load_policy
from mempo_jax.builders.suites import make_suite
from mempo_jax.config import from_config
from mempo_jax.evaluation.compare import compare
from mempo_jax.evaluation.plots import curves_figure, rows_figure
from mempo_jax.report.results import comparison_html
from mempo_jax.report.turns import trajectory_html
from mempo_jax.runs.metrics_writer import read_metric_rows
from mempo_jax.runs.run_dir import RunDir
from mempo_jax.training.credit_records import group_credit, sample_group
from mempo_jax.training.run import run

__all__ = [
    "Agent",
    "RunDir",
    "TextTask",
    "compare",
    "comparison_html",
    "curves_figure",
    "from_config",
    "group_credit",
    "load_policy",
    "make_run_mesh",
    "make_suite",
    "read_metric_rows",
    "rows_figure",
    "run",
    "sample_group",
    "trajectory_html",
]

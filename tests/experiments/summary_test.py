"""The table that a run prints at its end."""

from experiments.summary import closing, table

MEASURES = (
    *("success_sampled", "success_greedy", "write_precision", "write_recall"),
    *("tokens_total", "tokens_peak"),
)


def test_the_table_stands_with_figures_that_are_not_known():
    nothing = {"mean": None, "ci95": [None, None]}
    half = {"mean": 0.5, "ci95": [0.4, 0.6]}
    summary = {
        "cold_start": dict.fromkeys(MEASURES, nothing) | {"failed": {"sampled": 0}},
        "trained": dict.fromkeys(MEASURES, half) | {"failed": {"sampled": 2}},
        "seconds": {"train": 61.4},
    }
    lines = table(summary)
    assert lines[1].split() == [
        *("success,", "sampled", "-", "[-,", "-]", "0.500", "[0.400,", "0.600]")
    ]
    assert "2 trajectories failed" in lines[-1]
    said = "\n".join(closing(summary, None, "here"))
    assert "training 61" in said
    assert "gradient norm" not in said


def test_the_best_policy_is_named_where_there_is_one():
    nothing = {"mean": None, "ci95": [None, None]}
    ends = dict.fromkeys(MEASURES, nothing)
    summary = {"cold_start": ends, "trained": ends, "seconds": {"train": 1.0}}
    assert "policy_best" not in "\n".join(closing(summary, None, "here"))
    said = "\n".join(closing(summary | {"best_step": 40}, None, "here"))
    assert "policy_best/   the policy behind step 40, the best by" in said

"""Figures of credit as aligned text."""

from __future__ import annotations

from benchmarks._credit_truth import MEANING
from benchmarks._tables import aligned

BASE = "discounted"  # the mode that others are set against


def of_policy(policy: dict) -> str:
    """Counts, where needed writes could not be credited, modes, cost of probes."""
    return "\n\n".join(
        [_counts(policy), _fates(policy), _modes(policy), _costs(policy)]
    )


def _counts(policy: dict) -> str:
    c = policy["counts"]
    success = c["score"] / c["trajectories sampled"]
    return (
        f"{c['trajectories']:.0f} trajectories fit for training of "
        f"{c['trajectories sampled']:.0f} sampled, mean score {success:.3f} of all; "
        f"{policy['writes']} writes that made an entry, "
        f"{_share(policy['needed'], policy['writes'])} needed, "
        f"{_share(policy['relevant'], policy['writes'])} relevant; "
        f"{c['duplicate writes']:.0f} duplicates left out"
    )


def _fates(policy: dict) -> str:
    counts, needed = policy["counts"], policy["needed"]
    rest = counts["needed observations"]
    lines = [
        f"observations that hold an answer: {rest:.0f}, never written "
        f"{_share(counts['never written'], rest)}",
        f"needed writes: {needed}",
    ]
    for fate, count in policy["fates"].items():
        lines.append(f"  {_share(count, needed):>6}  {fate}: {MEANING[fate]}")
    return "\n".join(lines)


def _modes(policy: dict) -> str:
    head = (
        *("mode", "AUC of credit", "95 %", "above", "Spearman", "95 %"),
        *("AUC own", "95 %", "Spearman", "relevant: AUC", "own", ""),
    )
    rows = [head]
    for name, mode in policy["modes"].items():
        credit, own = mode["credit"]["needed"], mode["own"]["needed"]
        broad, broad_own = mode["credit"]["relevant"], mode["own"]["relevant"]
        rows.append(
            (
                name,
                *_pair(credit["auc"]),
                _above(policy, credit["auc"]),
                *_pair(credit["spearman"]),
                *_pair(own["auc"]),
                _number(own["spearman"]["value"]),
                _number(broad["auc"]["value"]),
                _number(broad_own["auc"]["value"]),
                "",
            )
        )
    note = f"above: the whole interval lies above that of {BASE}"
    return f"{aligned(rows)}\n{note}"


def _above(policy: dict, estimate: dict) -> str:
    base = policy["modes"][BASE]["credit"]["needed"]["auc"]["ci95"][1]
    low = estimate["ci95"][0]
    return "yes" if None not in (base, low) and low > base else "no"


def _costs(policy: dict) -> str:
    sampling = policy["counts"]["seconds sampling"]
    rows = [("probes", "rows", "too long", "seconds", "of sampling", "")]
    for name, mode in policy["modes"].items():
        cost = mode["cost"]
        if cost:
            rows.append(
                (
                    name,
                    f"{cost['probe_variants']}",
                    f"{cost['probes_skipped']}",
                    f"{cost['seconds_probing']:.2f}",
                    _share(cost["seconds_probing"], sampling),
                    "",
                )
            )
    return f"{aligned(rows)}\nsampling: {sampling:.1f} s"


def _pair(estimate: dict) -> tuple[str, str]:
    low, high = estimate["ci95"]
    return _number(estimate["value"]), f"{_number(low)}-{_number(high)}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"

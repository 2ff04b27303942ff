"""Held-out tasks, baselines by rule, and figures with confidence intervals."""

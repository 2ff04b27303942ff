"""Scores of answers and trajectories, with confidence intervals."""

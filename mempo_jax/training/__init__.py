"""A training run: state, step, sharding, checkpoints, metrics, loop."""

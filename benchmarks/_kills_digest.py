"""The end of a run in a few figures, for ``kills``: all that may not differ."""

from __future__ import annotations

import hashlib
import json
import pathlib

import numpy as np
import orbax.checkpoint as ocp

TIMES = ("seconds", "per_s", "_ms_", "device_bytes", "compilations", "probe_share")


def digest(run: pathlib.Path, steps: int) -> dict[str, str]:
    """What must be equal of two runs of so many steps, by name: SHA-256 of its bits."""
    arrays, rows = hashlib.sha256(), []
    state = ocp.StandardCheckpointer().restore(
        run / "checkpoints" / str(steps) / "state"
    )
    for leaf in _leaves(state):
        arrays.update(np.asarray(leaf).tobytes())
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.append({k: v for k, v in row.items() if not any(t in k for t in TIMES)})
    texts = [_texts(file) for file in sorted((run / "trajectories").iterdir())]
    weights = (run / "policy" / "model.safetensors").read_bytes()
    return {
        "parameters and optimiser": arrays.hexdigest(),
        "exported weights": hashlib.sha256(weights).hexdigest(),
        "metrics": _hash(rows),
        "samples": _hash(texts),
    }


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [] if tree is None else [tree]


def _texts(file: pathlib.Path):
    made = [json.loads(line) for line in file.read_text().splitlines()]
    return file.name, [(t["task"], t["sample"], t["turns"]) for t in made]


def _hash(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

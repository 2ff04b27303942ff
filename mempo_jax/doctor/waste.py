"""What costs time or memory and teaches nothing."""

from __future__ import annotations

import numpy as np

from mempo_jax.doctor.findings import NOTE, WARNING, Finding, Seen
from mempo_jax.doctor.naming import field, number, share
from mempo_jax.doctor.record import Record
from mempo_jax.doctor.table import SHORTEST, differ

START = 3  # rows in which compiling is part of starting
RECOMPILING = 0.02  # of the later steps; a run that was continued compiles once more
PADDED = 0.5  # of the trained tokens
SLOWER, SAME_WORK = 3, 1.5  # times the seconds for at most so many times the tokens
MORE_BYTES = 1.5
PROBING = 0.5  # of a step
LONGER = 1.5  # times the tokens of the beginning


def recompilations(record: Record) -> Finding | None:
    """Programs are compiled amid training."""
    table = record.table
    made = np.nan_to_num(table.column("compilations")[START:])
    steps = table.steps[START:]
    hit = np.flatnonzero(made > 0)
    if len(hit) <= max(SHORTEST, RECOMPILING * len(made)):
        return None
    return Finding(
        "recompilations",
        WARNING,
        f"{len(hit)} of {len(made)} steps compiled something, {number(made.sum())} "
        "programs together.",
        "Everything should be compiled before the first step. A shape that keeps "
        "changing costs seconds to minutes each time.",
        (
            Seen("compilations", made.sum(), int(steps[hit[0]]), int(steps[hit[-1]])),
            *table.latest("seconds"),
        ),
        (
            f"few fixed lengths: {field(record, 'train.length_buckets')}, "
            f"{field(record, 'sampling.prefill_buckets')}",
            f"and numbers of rows: {field(record, 'engine.row_buckets')}",
        ),
        may_cause=("slower",),
    )


def padding(record: Record) -> Finding | None:
    """More padding than text."""
    last = record.table.late("padding_share")
    if last is None or last.mean <= PADDED:
        return None
    return Finding(
        "padding",
        NOTE,
        f"{share(last.mean)} of the tokens that training computes are padding.",
        "Rows are padded to the next of train.length_buckets, and batches filled up.",
        (last.seen(), *record.table.latest("tokens_trained_per_s", "seconds_training")),
        (
            "put lengths closer to those that occur: "
            f"{field(record, 'train.length_buckets')}",
            f"and try {field(record, 'train.micro_batch_tokens')}",
        ),
    )


def slower(record: Record) -> Finding | None:
    """Steps take much longer than they did, for the same work."""
    table = record.table
    if len(table) < 2 * SHORTEST:
        return None
    times = table.ends("seconds")
    work = table.ends("tokens_per_trajectory")
    if None in times or None in work:
        return None
    if times[1].median < SLOWER * times[0].median:
        return None
    if work[1].mean > SAME_WORK * work[0].mean:
        return None
    return Finding(
        "slower",
        NOTE,
        f"Steps take {number(times[1].median / times[0].median)} times as long as at "
        "first, for the same number of tokens.",
        "Something else uses the machine, or an environment or server has become slow.",
        (
            times[0].seen("at first", median=True),
            times[1].seen("now", median=True),
            *table.latest("seconds_sampling", "seconds_training", "compilations"),
        ),
        ("look at what else runs there", f"see {field(record, 'engine.http.url')}")
        if record.field("engine.kind") == "http"
        else ("look at what else runs there",),
    )


def device_memory(record: Record) -> Finding | None:
    """The device's memory fills up from step to step."""
    first, last = (
        record.table.third("device_bytes", 0),
        record.table.late("device_bytes"),
    )
    if first is None or last is None or last.median < MORE_BYTES * first.median:
        return None
    return Finding(
        "device_memory",
        WARNING,
        f"The device holds {number(last.median / first.median)} times the bytes that "
        "it held at first.",
        "Arrays are kept from step to step, or shapes keep changing.",
        (first.seen(median=True), last.seen(median=True)),
        (
            f"fewer shapes: {field(record, 'train.length_buckets')}",
            f"smaller batches: {field(record, 'train.micro_batch_tokens')}",
        ),
    )


def probes_dear(record: Record) -> Finding | None:
    """Credit takes more time than training."""
    last = record.table.late("probe_share")
    if last is None or last.mean <= PROBING:
        return None
    return Finding(
        "probes_dear",
        NOTE,
        f"Probes of the credit take {share(last.mean)} of a step.",
        "They score answers with and without each memory.",
        (last.seen(), *record.table.latest("probe_variants", "seconds")),
        (f"a cheaper one of {field(record, 'credit.modes')}: attribution",),
    )


def longer(record: Record) -> Finding | None:
    """Trajectories grow, and it does not help."""
    table = record.table
    size = table.ends("tokens_per_trajectory")
    success = table.ends("success")
    if None in size or None in success:
        return None
    if size[1].mean < LONGER * size[0].mean or not differ(*size, 3):
        return None
    if success[1].mean > success[0].mean and differ(*success, 3):
        return None
    return Finding(
        "longer",
        WARNING,
        f"Trajectories grow from {number(size[0].mean)} to {number(size[1].mean)} "
        "tokens, and success does not.",
        "The policy wanders: nothing makes it come to an end, or it repeats what once "
        "earned a penalty less.",
        (
            size[0].seen("at first"),
            size[1].seen("now"),
            success[1].seen(),
            *table.latest("turns", "truncated_rate", "ops_per_turn/act"),
        ),
        (
            f"let fewer turns do: {field(record, 'sampling.max_turns')}",
            "give long trajectories no larger part in the loss: "
            f"{field(record, 'objective.aggregation')} trajectory_mean or constant",
        ),
        may_cause=("truncated", "overflow"),
    )

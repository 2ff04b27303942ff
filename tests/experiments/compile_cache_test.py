"""Compiled programs beside the runs: found again, moved, left out, and damaged."""

import contextlib
import os
import warnings

import jax
import jax.numpy as jnp
import pytest

from experiments import compile_cache

HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv(compile_cache.VARIABLE, raising=False)


def entries(folder):
    return sorted(folder.rglob("*-cache")) if folder.exists() else []


def compute(choice, run):
    """Compiles a program anew; returns its result and how often it was found."""
    hits = []

    def listen(event, **named):
        hits.extend([event] if event == HIT else [])

    jax.clear_caches()
    jax.monitoring.register_event_listener(listen)
    with contextlib.ExitStack() as stack:
        stack.callback(jax.monitoring.unregister_event_listener, listen)
        stack.enter_context(compile_cache.kept(choice, run))
        result = jax.jit(lambda x: jnp.sin(x) * 3)(jnp.arange(4.0))
    return result.tolist(), len(hits)


def test_a_program_is_found_beside_the_run_and_gives_the_same_bits(tmp_path):
    without, hits = compute("off", tmp_path / "run")
    assert (hits, list(tmp_path.iterdir())) == (0, [])
    before = jax.config.jax_compilation_cache_dir
    first, hits = compute("", tmp_path / "run")
    assert hits == 0
    assert entries(tmp_path / ".jax_cache")
    again, hits = compute("", tmp_path / "another_run")
    assert hits > 0
    assert without == first == again
    assert jax.config.jax_compilation_cache_dir == before


def test_the_folder_may_be_another(tmp_path, monkeypatch):
    compute(str(tmp_path / "moved"), tmp_path / "runs" / "a")
    assert entries(tmp_path / "moved")
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path / "jax"))
    compute("", tmp_path / "runs" / "a")
    assert not (tmp_path / "runs").exists(), "jax's own variable goes first"


def test_an_entry_that_was_cut_off_is_made_again(tmp_path):
    result, _ = compute("", tmp_path / "run")
    files = entries(tmp_path)
    whole = [file.read_bytes() for file in files]
    for file, content in zip(files, whole):
        file.write_bytes(content[: len(content) // 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, hits = compute("", tmp_path / "run")
    assert (again, hits) == (result, 0)
    assert [len(file.read_bytes()) > len(c) // 2 for file, c in zip(files, whole)] == [
        True
    ] * len(files)


@pytest.mark.parametrize("reason", ["a file", "no right"])
def test_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path, capsys, monkeypatch, reason
):
    expected, _ = compute("off", tmp_path / "run")
    if reason == "a file":
        (tmp_path / ".jax_cache").write_text("")
    else:
        monkeypatch.setattr(os, "access", lambda *given: False)
    result, _ = compute("", tmp_path / "run")
    assert result == expected
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: compiled programs are not kept: ")
    assert "--compile_cache" in line

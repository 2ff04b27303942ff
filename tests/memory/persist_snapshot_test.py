"""Saves that are cut off, fail or meet: whoever loads gets the old bank or the new."""

import errno
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from mempo_jax.memory import Bank, BankConfig, make_embedder, persist
from mempo_jax.memory.persist import _bank_files, _write_part

EMBEDDER = make_embedder("hashing", dim=16)
SCRIPT = pathlib.Path(__file__).with_name("killed_saves.py")
ROOT = pathlib.Path(__file__).parents[2]


def bank_of(*texts):
    return Bank.from_texts(texts, BankConfig(), EMBEDDER, "t")


def texts_in(folder):
    return [entry.text for entry in Bank.load(folder, EMBEDDER).entries]


@pytest.fixture
def folder():
    """In memory where that can be had: hundreds of saves wait for a disk otherwise."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as place:
        yield pathlib.Path(place) / "bank"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_hundred_kills_leave_the_old_bank_or_the_new(folder):
    seen = run("kill", folder, 200)
    assert seen["whole"] == 200
    assert min(seen["old"], seen["new"]) > 20  # the kills fell on both sides
    assert seen["cut_off"] > 20  # and within saves
    bank_of("after").save(folder)
    assert len(os.listdir(folder)) == 4  # nothing is left of them


def test_first_saves_that_are_killed_leave_no_bank_or_a_whole_one(folder):
    seen = run("kill_first", folder, 60)
    assert seen["whole"] == 60
    assert min(seen["none"], seen["new"]) > 0


def test_a_reader_in_another_process_sees_a_whole_bank_at_any_moment(folder):
    seen = run("read", folder, 300)
    assert seen["whole"] == 300
    assert min(seen["old"], seen["new"]) > 5


def test_saves_by_two_processes_end_with_one_whole_bank(folder):
    seen = run("race", folder, 60)
    assert (seen["none"], seen["failed"]) == (0, 0)
    assert min(seen["old"], seen["new"]) > 0
    assert seen["last"] in ("old", "new")
    assert len(os.listdir(folder)) == 4


WRITING = ["open", "_write_part", "fsync", "replace"]


def fail_at(monkeypatch, point, number):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    if point == "open":
        monkeypatch.setattr(pathlib.Path, "open", fails)
    elif point == "_write_part":
        real = _write_part

        def fails_half_way(path, chunks):
            if "embeddings" not in path.name:
                return real(path, chunks)
            path.write_bytes(b"half")
            return fails()

        monkeypatch.setattr(persist, "_write_part", fails_half_way)
    else:
        monkeypatch.setattr(os, point, fails)


@pytest.mark.parametrize("point", WRITING)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_save_that_fails_says_so_and_leaves_what_was_there(
    tmp_path, monkeypatch, point, number
):
    folder = tmp_path / "bank"
    bank_of("old").save(folder)
    names = sorted(os.listdir(folder))
    fail_at(monkeypatch, point, number)
    with pytest.raises(OSError, match="not saved") as caught:
        bank_of("new").save(folder)
    assert caught.value.errno == number
    assert str(folder) in str(caught.value)
    monkeypatch.undo()
    assert texts_in(folder) == ["old"]
    assert sorted(os.listdir(folder)) == names
    bank_of("new").save(folder)
    assert texts_in(folder) == ["new"]


def test_a_failed_first_save_leaves_no_bank(tmp_path, monkeypatch):
    fail_at(monkeypatch, "_write_part", errno.ENOSPC)
    with pytest.raises(OSError, match="not saved"):
        bank_of("new").save(tmp_path / "bank")
    with pytest.raises(FileNotFoundError, match="found none"):
        texts_in(tmp_path / "bank")


@pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="names of open files need /proc"
)
def test_files_reach_the_disk_before_they_are_named(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (
            events.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))),
            fsync(handle),
        )[1],
    )
    monkeypatch.setattr(
        os, "replace", lambda *names: (events.append("replace"), replace(*names))[1]
    )
    bank_of("a").save(tmp_path / "bank")
    at = events.index("replace")
    kinds = [name.split(".")[0] for name in events[:at]]
    assert {"entries", "log", "embeddings", "meta"} <= set(kinds)
    assert kinds[-1] == "bank"  # the directory, after all its files
    assert events[at + 1 :] == ["bank"]
    assert tmp_path.name in kinds  # and the directory that holds it


def test_what_a_live_save_is_writing_is_not_taken_away(tmp_path, monkeypatch):
    """Without locks, as on some network file systems, only old files are removed."""
    folder, real = tmp_path / "bank", _write_part
    bank_of("old").save(folder)
    monkeypatch.setattr(persist, "fcntl", None)

    def meets_another(path, chunks):
        monkeypatch.setattr(persist, "_write_part", real)
        done = real(path, chunks)
        bank_of("other").save(folder)
        return done

    monkeypatch.setattr(persist, "_write_part", meets_another)
    bank_of("new").save(folder)
    assert texts_in(folder) == ["new"]


def test_a_first_save_that_ends_while_it_is_looked_for_is_found(tmp_path, monkeypatch):
    folder, listed = tmp_path / "bank", _bank_files
    folder.mkdir()

    def save_first(place):
        monkeypatch.setattr(persist, "_bank_files", listed)
        bank_of("new").save(folder)
        return listed(place)

    monkeypatch.setattr(persist, "_bank_files", save_first)
    assert texts_in(folder) == ["new"]


def test_a_first_save_that_ends_meanwhile_does_not_stop_another(tmp_path, monkeypatch):
    folder, listed = tmp_path / "bank", os.listdir
    folder.mkdir()

    def save_after(place):
        monkeypatch.setattr(os, "listdir", listed)
        names = listed(place)
        bank_of("other").save(folder)
        return names

    monkeypatch.setattr(os, "listdir", save_after)
    bank_of("mine").save(folder)
    assert texts_in(folder) == ["mine"]

"""Saving and loading: complete, checksummed, never half done."""

import json
import os
import pathlib

import pytest

from mempo_jax.memory import Bank, BankConfig, BankFileError, make_embedder

EMBEDDER = make_embedder("hashing", dim=16)


def busy_bank():
    config = BankConfig(capacity=3, merge_threshold=0.5)
    bank = Bank.from_texts(["ann phone 17", "rome"], config, EMBEDDER).fork("t")
    bank.write("bob lives in oslo \ud800 é\x00", title="bob", step=0, token_span=(1, 4))
    bank.write("ann phone 18", step=1)
    bank.recall("ann", step=2)
    bank.write("the sky is blue", step=3)
    bank.write("rivers run north", step=3)
    bank.merge([0], step=4)
    return bank


def test_a_loaded_bank_is_the_saved_one(tmp_path):
    bank = busy_bank()
    bank.save(tmp_path / "bank")
    loaded = Bank.load(tmp_path / "bank", EMBEDDER)
    loaded.check_valid()
    assert loaded.entries == bank.entries
    assert loaded.log == bank.log
    assert (loaded.config, loaded.trajectory_id) == (bank.config, "t")
    assert loaded.merge_rate == bank.merge_rate
    assert loaded.at(1).entries == bank.at(1).entries
    assert loaded.write("glass is hard", step=5) == bank.write("glass is hard", step=5)


def test_an_empty_bank_survives(tmp_path):
    Bank(BankConfig(), EMBEDDER, "t").save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == []


FILES = ["meta.json", "entries.jsonl", "log.jsonl", "embeddings.npy"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "altered", "missing", "empty"])
def test_a_damaged_file_is_named(tmp_path, name, damage):
    busy_bank().save(tmp_path / "bank")
    path = tmp_path / "bank" / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(BankFileError, match=name):
        Bank.load(tmp_path / "bank", EMBEDDER)


def test_the_directory_holds_these_files_and_nothing_else(tmp_path):
    busy_bank().save(tmp_path / "bank")
    assert sorted(os.listdir(tmp_path / "bank")) == sorted(FILES)
    assert os.listdir(tmp_path) == ["bank"]


def test_a_new_save_replaces_the_old(tmp_path):
    bank = busy_bank()
    bank.save(tmp_path / "bank")
    bank.write("glass is hard", step=6)
    bank.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == bank.entries


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_save_cut_off_leaves_the_previous_one(tmp_path, monkeypatch, call):
    bank = busy_bank()
    bank.save(tmp_path / "bank")
    before = bank.entries
    bank.write("glass is hard", step=6)
    rename, calls = pathlib.Path.rename, []

    def fragile(self, target):
        calls.append(target)
        if len(calls) == call:
            raise OSError("power cut")
        return rename(self, target)

    if call == 3:  # cut off while writing, before any rename
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError()))
    monkeypatch.setattr(pathlib.Path, "rename", fragile)
    with pytest.raises(OSError, match=r"power cut|^$"):
        bank.save(tmp_path / "bank")
    monkeypatch.undo()
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == before
    bank.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == bank.entries


def test_another_embedder_is_refused(tmp_path):
    busy_bank().save(tmp_path / "bank")
    for other in (make_embedder("hashing", dim=32), make_embedder("static")):
        with pytest.raises(ValueError, match="'hashing' of dimension 16"):
            Bank.load(tmp_path / "bank", other)


def test_another_version_is_refused(tmp_path):
    busy_bank().save(tmp_path / "bank")
    path = tmp_path / "bank" / "meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {"version": 99}))
    with pytest.raises(BankFileError, match="version 99"):
        Bank.load(tmp_path / "bank", EMBEDDER)


def test_no_bank_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Bank.load(tmp_path / "nowhere", EMBEDDER)


def test_what_is_no_bank_is_not_replaced(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    file.write_text("mine")
    for place in (folder, file):
        with pytest.raises(BankFileError, match="expected a new directory"):
            busy_bank().save(place)
    assert (folder / "notes.txt").read_text() == file.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]

"""Saving and loading: complete, checksummed, never half done."""

import hashlib
import json
import os

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


def test_a_loaded_bank_searches_its_active_entries_alone(tmp_path):
    bank = Bank.from_texts(["ann", "bob", "carl"], BankConfig(), EMBEDDER).fork("t")
    bank.write("dora", step=0)
    bank.delete([3], step=1)
    bank.save(tmp_path / "bank")
    loaded = Bank.load(tmp_path / "bank", EMBEDDER)
    assert loaded.candidates("dora", 9) == bank.candidates("dora", 9)
    assert sorted(loaded.candidates("dora", 9)) == [0, 1, 2]
    loaded.check_valid()


def test_an_empty_bank_survives(tmp_path):
    Bank(BankConfig(), EMBEDDER, "t").save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == []


KINDS = ["meta", "entries", "log", "embeddings"]


def the_file(folder, kind):
    (path,) = [each for each in folder.iterdir() if each.name.split(".")[0] == kind]
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["cut", "altered", "missing", "empty", "last byte"])
def test_a_damaged_file_is_named(tmp_path, kind, damage):
    busy_bank().save(tmp_path / "bank")
    path = the_file(tmp_path / "bank", kind)
    data = path.read_bytes()
    middle = len(data) // 2
    if damage == "missing":
        path.unlink()
    elif damage == "altered":
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        path.write_bytes(data[: {"cut": middle, "empty": 0, "last byte": -1}[damage]])
    with pytest.raises(BankFileError, match=path.name):
        Bank.load(tmp_path / "bank", EMBEDDER)


def test_every_flipped_byte_is_noticed(tmp_path):
    busy_bank().fork("é").save(tmp_path / "bank")  # \u00E9 would mean the same
    for kind in KINDS:
        path = the_file(tmp_path / "bank", kind)
        data = path.read_bytes()
        escaped = [data.find(b"00e9") + 2] if kind == "meta" else []
        for place in [*range(0, len(data), 97), *escaped]:
            for bit in (1, 32):
                changed = bytes([data[place] ^ bit])
                path.write_bytes(data[:place] + changed + data[place + 1 :])
                with pytest.raises(BankFileError, match=path.name):
                    Bank.load(tmp_path / "bank", EMBEDDER)
        path.write_bytes(data)


def test_the_directory_holds_these_files_and_nothing_else(tmp_path):
    for _ in range(2):
        busy_bank().save(tmp_path / "bank")
        kinds = [name.split(".")[0] for name in os.listdir(tmp_path / "bank")]
        assert sorted(kinds) == sorted(KINDS)
    assert os.listdir(tmp_path) == ["bank"]


def test_a_new_save_replaces_the_old(tmp_path):
    bank = busy_bank()
    bank.save(tmp_path / "bank")
    loaded = Bank.load(tmp_path / "bank", EMBEDDER)
    loaded.write("glass is hard", step=6)
    loaded.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == loaded.entries


def test_a_path_may_be_spelt_in_several_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bank = busy_bank()
    for spelling in ("~/some/bank", "~/some/bank/", "some/../some/bank/"):
        bank.write(f"new fact {spelling}", step=9)
        bank.save(spelling)
        for place in (spelling, tmp_path / "some" / "bank"):
            assert Bank.load(place, EMBEDDER).entries == bank.entries
    assert os.listdir(tmp_path) == ["some"]
    assert os.listdir(tmp_path / "some") == ["bank"]
    with pytest.raises(TypeError):
        bank.save(None)


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
    with pytest.raises(BankFileError, match=r"meta\.json.*version 99"):
        Bank.load(tmp_path / "bank", EMBEDDER)
    with pytest.raises(BankFileError, match="another place"):
        busy_bank().save(tmp_path / "bank")  # it would be lost


def test_a_bank_of_version_1_is_still_read(tmp_path):
    """Version 1 had the same files under fixed names."""
    bank, folder = busy_bank(), tmp_path / "bank"
    bank.save(folder)
    meta = json.loads((folder / "meta.json").read_text())
    del meta["checksum"]
    for name in list(meta["sha256"]):
        kind, _, suffix = name.split(".")
        (folder / name).rename(folder / f"{kind}.{suffix}")
        meta["sha256"][f"{kind}.{suffix}"] = meta["sha256"].pop(name)
    meta["version"] = 1
    sums = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta | {"checksum": sums}, indent=1))
    assert Bank.load(folder, EMBEDDER).entries == bank.entries
    bank.save(folder, replace=True)  # it never was a bank of version 1
    assert len(os.listdir(folder)) == 4
    assert Bank.load(folder, EMBEDDER).log == bank.log


def test_settings_that_are_not_known_are_refused(tmp_path):
    busy_bank().save(tmp_path / "bank")
    path = tmp_path / "bank" / "meta.json"
    meta = json.loads(path.read_text())
    del meta["checksum"]
    meta["config"]["colour"] = "blue"
    sums = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(meta | {"checksum": sums}, indent=1))
    with pytest.raises(BankFileError, match="colour"):
        Bank.load(tmp_path / "bank", EMBEDDER)


def test_no_bank_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Bank.load(tmp_path / "nowhere", EMBEDDER)


def test_what_is_no_bank_is_not_replaced(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    file.write_text("mine")
    other = tmp_path / "other" / "meta.json"  # some other program's
    other.parent.mkdir()
    other.write_text('{"mine": 1}')
    for place in (folder, file, other.parent):
        with pytest.raises(BankFileError, match="expected a new directory"):
            busy_bank().save(place)
    assert (folder / "notes.txt").read_text() == file.read_text() == "mine"
    assert other.read_text() == '{"mine": 1}'
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "other"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_bank_may_be_saved_over(tmp_path, kind):
    bank = busy_bank()
    bank.save(tmp_path / "bank")
    the_file(tmp_path / "bank", kind).write_bytes(b"{")
    bank.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == bank.entries
    assert len(os.listdir(tmp_path / "bank")) == 4


def test_a_file_added_to_a_saved_bank_is_left_alone(tmp_path):
    bank = busy_bank()
    bank.save(tmp_path / "bank")
    (tmp_path / "bank" / "notes.txt").write_text("mine")
    bank.save(tmp_path / "bank")
    assert Bank.load(tmp_path / "bank", EMBEDDER).entries == bank.entries
    assert (tmp_path / "bank" / "notes.txt").read_text() == "mine"

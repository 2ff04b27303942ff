"""Several processes, or banks, that save to one directory: nothing is lost unsaid."""

import os
import subprocess
import sys
import threading
import time

import pytest

from mempo_jax.memory import Bank, BankConfig, BankConflictError, make_embedder, persist

EMBEDDER = make_embedder("hashing", dim=16)
OTHER = """
import sys
from mempo_jax.memory import Bank, BankConfig, BankConflictError, make_embedder
embedder = make_embedder("hashing", dim=16)
bank = Bank.load(sys.argv[1], embedder)
print("loaded", flush=True)
for line in sys.stdin:
    bank.write(line.strip(), step=len(bank.log))
    try:
        bank.save(sys.argv[1])
        print("saved", flush=True)
    except BankConflictError as error:
        print("refused", str(error).count(chr(10)), flush=True)
"""


def texts(folder):
    return [entry.text for entry in Bank.load(folder, EMBEDDER).entries]


@pytest.fixture
def folder(tmp_path):
    bank = Bank(BankConfig(), EMBEDDER, "t")
    bank.write("the first of all", step=0)
    bank.save(tmp_path / "bank")
    return tmp_path / "bank"


def other_process(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "loaded\n"

    def write(text):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        return process.stdout.readline().split()

    return process, write


def test_of_two_processes_the_second_save_is_refused(folder):
    process, write = other_process(folder)
    with process:
        ours = Bank.load(folder, EMBEDDER)
        ours.write("ann phone is 23", step=1)
        ours.save(folder)
        assert write("ben has a desk") == ["refused", "0"]
        assert texts(folder) == ["the first of all", "ann phone is 23"]
        ours.write("rivers run north", step=2)
        ours.save(folder)  # it goes on: what is there is its own
        assert write("glass is hard") == ["refused", "0"]
        process.stdin.close()
    assert texts(folder)[1:] == ["ann phone is 23", "rivers run north"]


def test_the_other_way_round(folder):
    ours = Bank.load(folder, EMBEDDER)
    process, write = other_process(folder)
    with process:
        assert write("ben has a desk") == ["saved"]
        ours.write("ann phone is 23", step=1)
        with pytest.raises(
            BankConflictError, match="another process or bank has saved"
        ):
            ours.save(folder)
        ours.save(folder.parent / "elsewhere")
        assert write("glass is hard") == ["saved"]
        process.stdin.close()
    assert texts(folder) == ["the first of all", "ben has a desk", "glass is hard"]
    assert texts(folder.parent / "elsewhere")[1:] == ["ann phone is 23"]
    ours.save(folder, replace=True)
    assert texts(folder)[1:] == ["ann phone is 23"]


KINSHIP = {
    "the same": lambda bank: bank,
    "a fork": lambda bank: bank.fork("u"),
    "the next task": lambda bank: bank.next_task("u"),
    "the past": lambda bank: bank.at(0),
}


@pytest.mark.parametrize("kin", KINSHIP)
def test_what_comes_of_a_bank_may_replace_it(folder, kin, recwarn):
    bank = Bank.load(folder, EMBEDDER)
    twin = KINSHIP[kin](bank)
    twin.write("rivers run north", step=1)
    twin.save(folder)
    assert texts(folder)[-1] == "rivers run north"
    assert not recwarn.list
    if twin is not bank:
        bank.write("glass is hard", step=1)
        with pytest.raises(BankConflictError):
            bank.save(folder)


def test_a_bank_that_was_never_there_says_what_it_replaces(folder, recwarn):
    fresh = Bank(BankConfig(), EMBEDDER, "t")
    with pytest.warns(UserWarning, match="was not loaded from, is replaced"):
        fresh.save(folder)
    fresh.save(folder)
    Bank(BankConfig(), EMBEDDER, "t").save(folder, replace=True)
    assert not recwarn.list
    assert texts(folder) == []


def test_spellings_of_one_path_are_one_directory(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    ours = Bank.load("bank", EMBEDDER)
    link = folder.parent / "link"
    link.symlink_to(folder)
    theirs = Bank.load(link, EMBEDDER)
    theirs.write("ben has a desk", step=1)
    theirs.save(f"{folder}/../bank/")
    for path in ("bank", link, folder):
        with pytest.raises(BankConflictError):
            ours.save(path)


def test_a_directory_that_was_emptied_is_free(folder):
    bank = Bank.load(folder, EMBEDDER)
    for name in os.listdir(folder):
        (folder / name).unlink()
    bank.save(folder)
    assert texts(folder) == ["the first of all"]


def test_who_holds_a_directory_may_save_there_and_others_wait(folder):
    bank, order = Bank.load(folder, EMBEDDER), []
    other = Bank.load(folder, EMBEDDER)

    def save_other():
        try:
            other.save(folder, replace=True)
        finally:
            order.append("other")

    with persist.held(folder):
        thread = threading.Thread(target=save_other)
        thread.start()
        for number in range(3):
            bank.write(f"fact {number} of a kind", step=number)
            bank.save(folder)
            time.sleep(0.02)
        order.append("ours")
    thread.join()
    assert order == ["ours", "other"]
    assert texts(folder) == ["the first of all"]


def test_one_that_is_held_for_too_long_is_named(folder, monkeypatch):
    monkeypatch.setattr(persist, "_LOCK_WAIT_S", 0.1)
    bank, raised = Bank.load(folder, EMBEDDER), []

    def save():
        try:
            bank.save(folder)
        except OSError as error:
            raised.append(str(error))

    with persist.held(folder):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
    [text] = raised
    assert "another process has kept it locked" in text
    assert str(folder) in text
    bank.save(folder)


def test_a_directory_is_made_to_be_held_and_foreign_ones_are_refused(tmp_path):
    with persist.held(tmp_path / "new" / "bank"):
        assert os.listdir(tmp_path / "new" / "bank") == []
    (tmp_path / "notes.txt").write_text("mine")
    refused = pytest.raises(persist.BankFileError, match="expected a new directory")
    with refused, persist.held(tmp_path):
        pass

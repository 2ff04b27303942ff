"""Run by snapshot_test: saves in children that are killed, or raced, at random moments.

Its own process with numpy alone, so that forking is cheap and safe. Prints counts.
"""

import json
import os
import pathlib
import random
import signal
import sys
import time
from multiprocessing import shared_memory

from mempo_jax.memory import Bank, BankConfig, make_embedder

EMBEDDER = make_embedder("hashing", dim=64)
OLD, NEW = (
    Bank.from_texts([f"{name} {i}" for i in range(count)], BankConfig(), EMBEDDER, name)
    for name, count in (("old", 40), ("new", 90))
)


def state(folder):
    """old or new; raises if the bank there is neither, none if there is no bank."""
    try:
        bank = Bank.load(folder, EMBEDDER)
    except FileNotFoundError:
        return "none"
    bank.check_valid()
    wanted = {"old": OLD, "new": NEW}[bank.trajectory_id]
    assert bank.entries == wanted.entries
    return bank.trajectory_id


def child(work):
    """Forks a process that does ``work``; its exit status says how that went."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def alternate(folder, done=None):
    turn = 0
    while True:
        (NEW, OLD)[turn % 2].save(folder, replace=True)
        turn += 1
        if done is not None:
            done.buf[0] = 1


def kill(folder, times):
    """Kills a saving process again and again, at random moments."""
    draw, seen = random.Random(0), {"old": 0, "new": 0, "none": 0, "cut_off": 0}
    start = time.perf_counter()
    NEW.save(folder, replace=True)
    OLD.save(folder, replace=True)
    usual = time.perf_counter() - start
    done = shared_memory.SharedMemory(create=True, size=1)
    for _ in range(times):
        done.buf[0] = 0
        pid = child(lambda: alternate(folder, done))
        while not done.buf[0]:  # its first save is over: moments count from there
            time.sleep(0.0002)
        time.sleep(draw.uniform(0, 2 * usual))
        end(pid)
        seen[state(folder)] += 1
        seen["cut_off"] += len(os.listdir(folder)) > 4
    done.close()
    done.unlink()
    return {**seen, "whole": seen["old"] + seen["new"]}


def kill_first(folder, times):
    """Kills first saves, each into a directory of its own."""
    draw, seen = random.Random(0), {"old": 0, "new": 0, "none": 0}
    start = time.perf_counter()
    NEW.save(folder / "warm")
    usual = time.perf_counter() - start
    for number in range(times):
        place = folder / str(number)
        pid = child(lambda place=place: NEW.save(place, replace=True))
        time.sleep(draw.uniform(0, 6 * usual))
        end(pid)
        seen[state(place)] += 1
        NEW.save(place, replace=True)
        assert state(place) == "new"
    return {**seen, "whole": seen["none"] + seen["new"]}


def read(folder, times):
    """Loads while another process saves without a pause."""
    seen = {"old": 0, "new": 0, "none": 0}
    OLD.save(folder, replace=True)
    pid = child(lambda: alternate(folder))
    for _ in range(times):
        seen[state(folder)] += 1
    end(pid)
    return {**seen, "whole": seen["old"] + seen["new"]}


def race(folder, times):
    """Two processes save into one directory; a third loads until both are done."""

    def save(bank):
        for _ in range(times):
            bank.save(folder, replace=True)

    seen = {"old": 0, "new": 0, "none": 0}
    OLD.save(folder, replace=True)
    pids, failed = [child(lambda bank=bank: save(bank)) for bank in (OLD, NEW)], 0
    while pids:
        seen[state(folder)] += 1
        for pid in list(pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                pids.remove(pid)
                failed += status != 0
    return {**seen, "last": state(folder), "failed": failed}


if __name__ == "__main__":
    what, where, count = sys.argv[1:]
    works = {"kill": kill, "kill_first": kill_first, "read": read, "race": race}
    sys.stdout.write(json.dumps(works[what](pathlib.Path(where), int(count))))

"""Python's collector, which may run in any thread at any moment, beside h5py's lock."""

import subprocess
import sys

SCRIPT = """
import gc, sys, threading, weakref
import h5py
from h5py._objects import phil
from h5stream.storage.stores import requests

gc.disable()  # but for what is asked for below
path = sys.argv[1]
h5py.File(path, "w").close()


def garbage():
    file = h5py.File(path)
    cycle = [file.id]
    cycle.append(cycle)
    return weakref.ref(file.id)


async def collect():
    return gc.collect()


def fetch():
    with phil:  # as h5py does while it reads
        found.extend(requests().run([collect()]))


left, found = garbage(), []
reader = threading.Thread(target=fetch, daemon=True)
reader.start()
reader.join(20)
assert found == [0], "the thread that fetches waits for the one that waits for it"
assert left() is not None
requests().run([collect()])
assert left() is None, "what was left is never collected"
assert gc.get_freeze_count() < 2000  # since Python 3.12 those few that never die count
"""


def test_the_thread_that_fetches_collects_nothing_while_another_has_the_lock(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "a.h5"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

"""A file at which libhdf5 crashes ends a child, and is an error here."""

import multiprocessing
import os
import signal
import struct
import time

import h5py
import numpy as np
import pytest
from support import forking
from support.forking import end_now

from h5stream.errors import IsolatedProcessError
from h5stream.workers.processes import in_child


@pytest.fixture
def crashing(tmp_path):
    """A file with a dataset whose type is said to be that of the dataset itself: libhdf5 goes round without end."""
    path = tmp_path / "crash.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["type"] = np.dtype("i4")
        file.create_dataset("x", (5,), file["type"])
        file["y"] = np.arange(5)
        own, other = (h5py.h5o.get_info(file[name].id).addr for name in ("x", "type"))
    content = bytearray(path.read_bytes())
    place = content.index(struct.pack("<Q", other), own)
    content[place : place + 8] = struct.pack("<Q", own)
    path.write_bytes(content)
    return path


def test_inspect_says_that_a_file_makes_libhdf5_crash_and_fails(crashing):
    ended = forking.run("from h5stream.cli.app import main; main()", "inspect", crashing)
    assert ended.returncode == 2
    assert "ended by SIGSEGV" in ended.stderr
    assert repr(str(crashing)) in ended.stderr
    assert "makes libhdf5 crash" in ended.stderr


def test_a_child_is_ended_where_its_result_is_no_longer_waited_for():
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_child("sleeping", time.sleep, 60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not multiprocessing.active_children()


def test_what_the_function_prints_does_not_come_between():
    ended = forking.run("from h5stream.workers.processes import in_child\nprint(in_child('', print, 'said'))")
    assert (ended.stdout, ended.stderr.strip()) == ("None\n", "said")


@pytest.mark.parametrize(
    ("function", "argument", "said"), [(os.abort, (), "ended by SIGABRT"), (end_now, (7,), "gone with status 7")]
)
def test_how_a_child_ended_is_told(function, argument, said):
    with pytest.raises(IsolatedProcessError, match=f"ending: .*{said}"):
        in_child("ending", function, *argument)

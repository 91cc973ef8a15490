"""A worker, whatever it does and however it was started: heard, watched, and gone in the end."""

from __future__ import annotations

import os
import queue
import signal
import warnings

import numpy as np
import psutil
import pytest
import torch

from h5stream.errors import IsolatedProcessError, LoaderClosedError
from h5stream.workers.memory import pack, unpack
from h5stream.workers.worker import Worker

# Those that import torch anew are slow; test_sample_workers.py has one by default.
METHODS = ["fork", *(pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver"))]


class Doubling:
    """Gives tensors of so many elements, twice the number that it is told."""

    def __init__(self, parent):
        self.parent = parent

    def handle(self, number):
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.parent.send((os.getpid(), pack(torch.full((4096,), 2.0 * number), self.parent.memory)))

    def close(self):
        pass


def failing(parent):
    raise ZeroDivisionError("at the beginning")


def started(make, method="spawn"):
    heard = queue.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads alive is what is asked for
        worker = Worker(make, lambda _, message: heard.put(message), whose="a test", way_out="Try again", method=method)
    return worker, heard


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_answers_and_its_end_is_told_however_it_was_started(method):
    worker, heard = started(Doubling, method)
    for number in range(5):
        worker.post(number)
    answers = [heard.get(timeout=60) for _ in range(5)]
    tensors = [unpack(packed, worker.memory) for _, packed in answers]
    assert {pid for pid, _ in answers} == {worker.pid} != {os.getpid()}
    worker.post(-1)
    gone = heard.get(timeout=60)
    assert isinstance(gone, IsolatedProcessError)
    assert "of a test was ended by SIGKILL" in str(gone)
    assert not worker.usable
    worker.end()
    assert [float(tensor[-1]) for tensor in tensors] == [0, 2, 4, 6, 8], "what was borrowed outlives the worker"
    assert not psutil.pid_exists(worker.pid) or psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_ends_when_its_parent_hangs_up(method):
    worker, heard = started(Doubling, method)
    worker.post(1)
    heard.get(timeout=60)
    worker.end()
    assert isinstance(heard.get(timeout=60), LoaderClosedError)
    assert not psutil.pid_exists(worker.pid)


def test_what_is_given_back_is_written_again():
    worker, heard = started(Doubling, "fork")
    places = set()
    for number in range(50):
        worker.post(number)
        tensor = unpack(heard.get(timeout=60)[1], worker.memory)
        places.add(tensor.data_ptr())
        assert np.all(tensor.numpy() == 2 * number)
        del tensor
    worker.end()
    assert len(places) <= 2


def test_a_worker_that_cannot_begin_says_why():
    worker, heard = started(failing, "fork")
    gone = heard.get(timeout=60)
    assert isinstance(gone, ZeroDivisionError)
    assert "in failing" in str(gone.__cause__)
    worker.end()

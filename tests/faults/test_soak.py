"""The soak program: each of its rounds does what its name says, and growth of any kind fails it."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import logging
import os
import random
import sys
import threading
import time

import numpy as np
import pytest

from tools import soak


@pytest.fixture(autouse=True)
def quiet(caplog):
    """As the program itself; and kept log records would be growth."""
    caplog.set_level(logging.ERROR, "h5stream")


STILL = soak.Sample(elapsed_s=0, resident_nbytes=10**9, heap_nbytes=10**8, blocks=10**6, descriptors=9, threads=1)


def samples(count=40, **growth):
    """Give samples over time, of which some figures grow by so much each."""
    return [
        dataclasses.replace(
            STILL, elapsed_s=float(k), **{name: getattr(STILL, name) + int(k * by) for name, by in growth.items()}
        )
        for k in range(count)
    ]


def run(*acts, rounds=60):
    """Play so many rounds, a minute's by a clock that moves a second a round."""
    ticks = itertools.count()
    return soak.soak((rounds + 1) / 60, 0, acts or soak.ACTS, lambda: float(next(ticks)))


def test_what_stays_passes_and_what_wanders_too():
    assert soak.grown(samples()) == []
    wandering = samples()
    wandering[35] = dataclasses.replace(STILL, elapsed_s=35.0, heap_nbytes=10**9, resident_nbytes=10**10)
    assert soak.grown(wandering) == []
    assert soak.grown(samples(1)) == []


@pytest.mark.parametrize(
    ("name", "by", "words"),
    [
        ("resident_nbytes", 8 << 20, "resident memory by"),
        ("heap_nbytes", 1 << 20, "heap in use by"),
        ("blocks", 2000, "Python's blocks by"),
        ("descriptors", 0.1, "descriptors by"),
        ("threads", 0.1, "threads by"),
    ],
)
def test_what_grows_is_named(name, by, words):
    (found,) = soak.grown(samples(**{name: by}))
    assert found.startswith(words)


def test_growth_that_only_warms_up_passes():
    warm = [dataclasses.replace(one, heap_nbytes=10**8 + min(k, 9) * 10**7) for k, one in enumerate(samples())]
    assert soak.grown(warm) == []


def test_rounds_that_leak_fail(monkeypatch):
    """A megabyte of the C library's, a descriptor and a thread a round, and a thousand objects of Python's."""
    libc, ended, kept = ctypes.CDLL(None), threading.Event(), []
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]

    def leak(one):
        block = libc.malloc(1 << 20)
        ctypes.memset(block, 1, 1 << 20)
        thread = threading.Thread(target=ended.wait, daemon=True)
        thread.start()
        kept.append((block, thread, os.open(os.devnull, os.O_RDONLY), [str(k) for k in range(2000)]))
        return "leaked"

    monkeypatch.setattr(soak, "SAMPLES", 12)  # to collect garbage among all that pytest holds takes a while
    monkeypatch.setattr(soak, "SLACK", {**soak.SLACK, "resident_nbytes": ("resident memory", 1 << 20)})
    try:
        done, measured = run(leak, rounds=60)
    finally:
        ended.set()
        for block, thread, descriptor, _ in kept:
            libc.free(block)
            thread.join()
            os.close(descriptor)
    assert done.total() == 60
    assert {what.split()[1] for what in done} == {"leaked"}
    found = " ".join(soak.grown(measured))
    for words, _ in soak.SLACK.values():
        assert words in found


def test_rounds_do_what_they_are_for(monkeypatch):
    """Resumes go on in the middle of an epoch, and files are damaged where a checksum tells, of every kind."""
    monkeypatch.setattr(soak, "SAMPLES", 12)
    done, measured = run(rounds=100)
    assert done.total() == 100
    kinds, acts = ({what.split()[k] for what in done} for k in (0, 1))
    assert kinds == set(soak.KINDS)
    assert {"whole", "aborted", "resumed", "damaged"} <= acts
    assert len(measured) == soak.SAMPLES


def never(k, sample):
    return b"wrong"


@pytest.mark.parametrize("kind", soak.KINDS)
def test_a_wrong_value_of_any_field_ends_the_run(tmp_path, monkeypatch, kind):
    """What is held to have been written is changed, one field at a time."""
    monkeypatch.setattr(soak, "PROCESS_SHARE", 0)
    one = soak.Round(tmp_path, random.Random(5), kind)
    assert one.whole_epochs() == "whole"
    for name, held in dict(one.kind.held).items():
        wrong = [b"wrong"] * one.kind.count
        one.kind.held[name] = ~held if isinstance(held, np.ndarray) else wrong if isinstance(held, list) else never
        with pytest.raises(AssertionError, match=f"wrong bytes of '{name}'"):
            one.whole_epochs()
        one.kind.held[name] = held


def test_a_sample_that_comes_twice_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(soak.Round, "check", lambda self, batch: [(0,), (0,)])
    with pytest.raises(AssertionError, match="lost or repeated"):
        soak.Round(tmp_path, random.Random(0), "rows").whole_epochs()


def test_the_exit_status_tells(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["soak.py", "--minutes", "1"])
    monkeypatch.setenv("H5STREAM_CATALOGUE", "1")  # the program sets it, and other tests must not see that
    ticks = itertools.count(0, 30)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(soak.soak, "__defaults__", ((soak.Round.abort,), time.monotonic))
    assert soak.main() == 1
    assert "never rows resumed: run longer" in capsys.readouterr().out

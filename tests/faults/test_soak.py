"""The soak program: each of its rounds does what its name says, and growth of any kind fails it."""

import dataclasses
import itertools
import logging
import random

import pytest

from tools import soak


@pytest.fixture(autouse=True)
def quiet(caplog):
    """As the program itself; and kept log records would be growth."""
    caplog.set_level(logging.ERROR, "h5stream")


STILL = soak.Sample(
    elapsed_s=0, resident_nbytes=10**9, heap_nbytes=10**8, blocks=10**6, descriptors=9, connections=0, threads=1
)


def samples(count=40, **growth):
    """Give samples over time, of which some figures grow by so much each."""
    return [
        dataclasses.replace(
            STILL, elapsed_s=float(k), **{name: getattr(STILL, name) + int(k * by) for name, by in growth.items()}
        )
        for k in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "by", "words"),
    [
        ("resident_nbytes", 8 << 20, "resident memory by"),
        ("heap_nbytes", 1 << 20, "heap in use by"),
        ("blocks", 2000, "Python's blocks by"),
        ("descriptors", 0.1, "descriptors by"),
        ("connections", 2, "connections by"),
        ("threads", 0.1, "threads by"),
    ],
)
def test_what_grows_is_named(name, by, words):
    (found,) = soak.grown(samples(**{name: by}))
    assert found.startswith(words)


class InTurn(dict):
    """The kinds of samples, of which each round can choose the next."""

    def __init__(self, kinds):
        super().__init__(kinds)
        self.turns = itertools.cycle(kinds)

    def __iter__(self):
        yield next(self.turns)


def test_rounds_do_what_they_are_for(monkeypatch):
    """Resumes go on in the middle of an epoch, and files are damaged where a checksum tells, of every kind."""
    monkeypatch.setattr(soak, "SAMPLES", 6)
    monkeypatch.setattr(soak, "PROCESS_SHARE", 0)
    monkeypatch.setattr(soak, "KINDS", InTurn(soak.KINDS))
    ticks = itertools.count()  # a minute's rounds by a clock that moves a second a round
    done, measured = soak.soak(12 / 60, 2, soak.ACTS, lambda: float(next(ticks)))
    assert done.total() == 11
    kinds, acts = ({what.split()[k] for what in done} for k in (0, 1))
    assert kinds == set(soak.KINDS.keys())
    assert {"whole", "aborted", "resumed", "damaged"} <= acts
    assert len(measured) == soak.SAMPLES


def test_a_sample_that_comes_twice_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(soak.Round, "check", lambda self, batch: [(0,), (0,)])
    with pytest.raises(AssertionError, match="lost or repeated"):
        soak.Round(tmp_path, random.Random(0), "rows").whole_epochs()

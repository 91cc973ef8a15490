"""Fakes around a `Run`: they read nothing and record everything."""

import contextlib
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from h5stream.engine.plan import Placement
from h5stream.engine.ragged import RaggedMemory
from h5stream.engine.run import Run
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.order.epoch import Window

BATCH = 4
UNCHANGED = SimpleNamespace(check_unchanged=lambda: None)


@dataclass
class Reader:
    """Reads nothing; notes which tasks were carried out, after running what the test hooked in."""

    hook: object = None
    carried: list = field(default_factory=list)
    tasks_of_a_window: int = 1

    ragged_memory = RaggedMemory()

    @property
    def layout(self):
        return SimpleNamespace(fields=(), row_nbytes=0, datasets=(), files=(UNCHANGED,), files_of=lambda rows: (0,))

    def filling(self, order, first_batch):
        return None

    def accepted(self, placement, stopped):
        return placement

    def load(self):
        pass

    def plan(self, placement, task_nbytes):
        for cut in np.array_split(np.arange(len(placement)), min(self.tasks_of_a_window, len(placement))):
            yield Task(self, placement[cut])

    def tools(self, tally=None, stopped=None):
        return SimpleNamespace(tally=tally)


@dataclass
class Task:
    """Some rows, which land by being noted."""

    reader: Reader
    placement: Placement
    keeps: bool = False

    @property
    def rows(self):
        return self.placement.rows

    def apart(self, task):
        yield task

    def land(self, destination, tools):
        if self.reader.hook is not None:
            self.reader.hook(self)
        self.reader.carried.append(self)


class Windows:
    """An order of windows of given lengths over rows 0, 1, 2 ..., in batches of `BATCH`."""

    def __init__(self, *lengths):
        self.lengths, self.given = lengths, 0
        self.rows = sum(lengths)
        self.batches = -(-self.rows // BATCH)

    def batch_size_of(self, batch):
        return min(BATCH, self.rows - batch * BATCH)

    def windows(self, first_batch=0):
        start = 0
        for length in self.lengths:
            rows = np.arange(start, start + length)
            rows = rows[rows >= first_batch * BATCH]
            start += length
            if len(rows):
                self.given += 1
                yield Window(rows=rows, batch=rows // BATCH, within=rows % BATCH)


class Ring(SlotRing):
    def __init__(self):
        super().__init__(4096, allocate=lambda nbytes: np.zeros(nbytes, dtype=np.uint8))
        self.taken, self.returned = 0, 0

    def take(self):
        self.taken += 1
        return super().take()

    def give_back(self, slot):
        self.returned += 1
        super().give_back(slot)


def numbers(run):
    taken = []
    while (batch := run.next_batch(30)) is not None:
        taken.append((batch.number, batch.rows))
    return taken


def failing_at(*rows, error=ZeroDivisionError):
    def hook(task):
        if set(rows) & set(task.rows.tolist()):
            raise error(str(rows))

    return hook


def until_error(run, kind):
    """Give the batches before the error, and the error."""
    arrived = []

    def take_all():
        while True:
            arrived.append(run.next_batch(30).number)

    with pytest.raises(kind) as caught:
        take_all()
    return arrived, caught.value


@contextlib.contextmanager
def starting():
    """Give a function that starts runs; they are stopped at the end, and no thread may be left."""
    runs = []

    def start(order, *, hook=None, threads=2, max_open=4, ring=None, reader_options=None, **options):
        reader = Reader(hook, **(reader_options or {}))
        given = (reader, order, ring or Ring())
        slot_format = SlotFormat(rows=BATCH, offsets=(), nbytes=128)
        run = Run(*given, slot_format, threads=threads, max_open_batches=max_open, **options)
        run.test_reader = reader
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.stop()
    assert [t.name for t in threading.enumerate() if t.name.startswith("h5stream-reader")] == []

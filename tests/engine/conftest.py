from __future__ import annotations

import threading

import pytest
from run_fakes import BATCH, Carrier, Kept, Ring

from h5stream.engine.executor import Run
from h5stream.engine.slots import SlotFormat


@pytest.fixture
def start():
    runs = []

    def start(order, *, hook=None, threads=2, max_open=4, ring=None, kept_options=None, **options):
        carrier = Carrier(hook)
        run = Run(
            carrier,
            Kept(carrier, **(kept_options or {})),
            order,
            ring or Ring(),
            SlotFormat(rows=BATCH, offsets=(), nbytes=128),
            threads=threads,
            max_open_batches=max_open,
            **options,
        )
        run.test_carrier = carrier
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.stop()
    assert [t.name for t in threading.enumerate() if "h5stream-reader" in t.name] == []

"""When `isolation="process"` pays: training loops and transforms that hold the GIL, and one that does not.

Epochs of both kinds run in turns, and the median of the ratios is what counts: the machine's speed drifts. Work is
counted in turns of a Python loop, calibrated once, so that a neighbour who takes the processor does not shorten it.
"""

from __future__ import annotations

import functools
import statistics
import time

import pytest

from bench import cases
from h5stream import H5StreamLoader

PAIRS = 3
STEP_MS = (0, 5, 20, 50)
"""Milliseconds of Python a batch: none, a logger's, bookkeeping in Python, augmentation in Python."""


def turns_per_ms():
    turns = 200_000
    return turns / min(cases.seconds_of(functools.partial(hold_the_gil, turns)) for _ in range(5)) / 1000


def hold_the_gil(turns):
    for _ in range(turns):
        pass


def transform_in_python(turns, batch):
    hold_the_gil(turns)
    return batch


def epoch_s(loader, turns, sleep_s=0.0):
    """Give the seconds of an epoch whose steps run so many turns of Python, and then wait as for a GPU."""
    began = time.perf_counter()
    rows = 0
    for _, y in loader:
        rows += len(y)
        hold_the_gil(turns)
        if sleep_s:
            time.sleep(sleep_s)
    assert rows == cases.ROWS
    return time.perf_counter() - began


def compare(benchmark, path, turns, sleep_s=0.0, **options):
    """Run epochs of threads and of a process in turns; note the median of their ratios, and both their times."""
    loaders = {
        isolation: H5StreamLoader(
            path, cases.BATCH, shuffle=True, fields=list(cases.FIELDS), isolation=isolation, **options
        )
        for isolation in ("thread", "process")
    }
    taken = {"thread": [], "process": []}
    for loader in loaders.values():
        epoch_s(loader, 0)  # starts the child, and touches the slots

    def pair():
        for isolation, loader in loaders.items():
            taken[isolation].append(epoch_s(loader, turns, sleep_s))

    benchmark.group = "isolation"
    benchmark.pedantic(pair, rounds=PAIRS, iterations=1)
    for loader in loaders.values():
        loader.close()
    ratios = [a / b for a, b in zip(taken["thread"], taken["process"], strict=True)]
    benchmark.extra_info.update(
        gain=statistics.median(ratios),
        ratios=[round(ratio, 3) for ratio in ratios],
        thread_s=statistics.median(taken["thread"]),
        process_s=statistics.median(taken["process"]),
    )


@pytest.mark.parametrize("step_ms", STEP_MS)
def test_a_training_loop_that_holds_the_gil(benchmark, bench_file, step_ms):
    turns = int(step_ms * turns_per_ms())
    compare(benchmark, bench_file("gzip4_shuffle"), turns)
    benchmark.extra_info.update(step_ms=step_ms, work_s=64 * step_ms / 1000)


def test_a_transform_that_holds_the_gil(benchmark, bench_file):
    """10 ms of Python in `transform`, beside a step that waits for a GPU for as long."""
    turns = int(10 * turns_per_ms())
    transform = functools.partial(transform_in_python, turns)
    compare(benchmark, bench_file("gzip4_shuffle"), 0, sleep_s=0.01, transform=transform)
    benchmark.extra_info.update(transform_ms=10, step_ms=10)

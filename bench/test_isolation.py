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
LOOPS = (
    ("gzip4_shuffle", 0),
    ("gzip4_shuffle", 20),
    ("gzip4_shuffle", 50),
    ("one_row_per_chunk", 50),
)
"""File and milliseconds of Python a batch. One row a chunk is where the readers themselves run much Python."""


def turns_per_ms():
    turns = 200_000
    return turns / min(cases.seconds_of(functools.partial(hold_the_gil, turns)) for _ in range(5)) / 1000


def hold_the_gil(turns):
    for _ in range(turns):
        pass


def transform_in_python(turns, batch):
    hold_the_gil(turns)
    return batch


def epoch_s(loader, turns):
    """Give the seconds of an epoch whose steps run so many turns of Python."""
    began = time.perf_counter()
    rows = 0
    for _, y in loader:
        rows += len(y)
        hold_the_gil(turns)
    assert rows == len(loader.dataset)
    return time.perf_counter() - began


def compare(benchmark, path, turns, **options):
    """Run epochs of threads and of a process in turns; note the median of their ratios, and both their times."""
    loaders = {
        isolation: H5StreamLoader(
            path, cases.BATCH, shuffle=True, fields=list(cases.FIELDS), isolation=isolation, keep="never", **options
        )
        for isolation in ("thread", "process")
    }
    taken = {"thread": [], "process": []}
    for loader in loaders.values():
        epoch_s(loader, 0)  # starts the child, and touches the slots

    def pair():
        for isolation, loader in loaders.items():
            taken[isolation].append(epoch_s(loader, turns))

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


@pytest.mark.parametrize(("kind", "step_ms"), LOOPS)
def test_a_training_loop_that_holds_the_gil(benchmark, bench_file, kind, step_ms):
    turns = int(step_ms * turns_per_ms())
    compare(benchmark, bench_file(kind), turns)
    benchmark.extra_info.update(kind=kind, step_ms=step_ms)


def transform_that_waits(seconds, batch):
    time.sleep(seconds)
    return batch


@pytest.mark.parametrize("kind", ["python", "waits"])
def test_a_transform_of_20_ms_beside_as_long_a_step(benchmark, bench_file, kind):
    """Python in both; and waiting in the transform, which shows what is gained where a processor is free for it."""
    turns = int(20 * turns_per_ms())
    slow = (
        functools.partial(transform_in_python, turns)
        if kind == "python"
        else functools.partial(transform_that_waits, 0.02)
    )
    compare(benchmark, bench_file("gzip4_shuffle"), turns, batch_transform=slow)
    benchmark.extra_info.update(transform=kind)

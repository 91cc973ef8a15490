"""Every program of the gallery: its own reader under a DataLoader with 2 workers, and ours with 2 threads, in turns.

    python -m pytest bench/test_gallery.py --benchmark-enable --benchmark-json=gallery.json -s
    python tools/bench_report.py gallery.json --save bench/results/gallery.json

Each turn is a process of its own: the seconds from making the loader to its first batch, and behind that an epoch or
more, or what comes of it in three seconds. Files are in the page cache. Ours keeps nothing that it has decoded, since
real files are larger than memory, but where the program itself reads all into memory first.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import time

import pytest

from bench.child import disk_nbytes, warm
from bench.tree_memory import tree_nbytes
from examples.gallery import PROGRAMS

ROUNDS = int(os.environ.get("H5STREAM_BENCH_ROUNDS", 3))
WARM_S, AT_LEAST_S, AT_MOST_S, WORKERS = 0.7, 1.0, 3.0, 2


def theirs(program, folder):
    return program(folder).loader(WORKERS)


def ours(program, folder):
    keep = "auto" if program.in_memory else "never"
    return program.ours(folder, batch_size=program.batch, shuffle=True, num_workers=WORKERS, keep=keep)


def endless(loader):
    while True:
        yield from loader


def measure(program, folder, make, pipe):
    start = time.perf_counter()
    loader = make(program, folder)
    batches = endless(loader)
    next(batches)
    first_s = time.perf_counter() - start
    while time.perf_counter() - start < first_s + WARM_S:
        next(batches)
    start, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < AT_LEAST_S or (count < len(loader) and seconds < AT_MOST_S):
        next(batches)
        count += 1
    pipe.send({"first_s": first_s, "samples_per_s": len(loader.dataset) * count / len(loader) / seconds})
    pipe.recv()


def in_a_process(program, folder, make):
    """Measure in a forked process; add the most memory that it and its workers took."""
    context, base = multiprocessing.get_context("fork"), tree_nbytes()
    here, there = context.Pipe()
    process = context.Process(target=measure, args=(program, folder, make, there))
    process.start()
    there.close()
    peak = base
    while not here.poll(0.2):
        peak = max(peak, tree_nbytes())
    found = here.recv() | {"memory_nbytes": max(peak, tree_nbytes()) - base}
    here.send("done")
    process.join()
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_readers(benchmark, name, bench_folder, monkeypatch):
    monkeypatch.setenv("H5STREAM_CATALOGUE", "0")
    program, folder = PROGRAMS[name], bench_folder / f"gallery-{name}"
    folder.mkdir()
    program.make(folder, program.size)
    warm(folder)
    turns = [(in_a_process(program, folder, ours), in_a_process(program, folder, theirs)) for _ in range(ROUNDS)]
    benchmark.pedantic(lambda: None, rounds=1)
    benchmark.group, figures = "gallery", {}
    for side, found in zip(("ours", "theirs"), zip(*turns, strict=True), strict=True):
        for key in ("samples_per_s", "first_s", "memory_nbytes"):
            figures[f"{side}_{key}"] = statistics.median(one[key] for one in found)
    ratios = [one["samples_per_s"] / other["samples_per_s"] for one, other in turns]
    figures["ratio"], figures["spread"] = statistics.median(ratios), [min(ratios), max(ratios)]
    benchmark.extra_info.update(program=name, samples=len(program(folder)), disk_nbytes=disk_nbytes(folder), **figures)
    print(f"\n{name}: {figures['ours_samples_per_s']:,.0f} samples/s, {figures['ratio']:.1f} times "
          f"{figures['theirs_samples_per_s']:,.0f}; first batch {figures['ours_first_s']:.2f} / "
          f"{figures['theirs_first_s']:.2f} s; {figures['ours_memory_nbytes'] / 2**20:,.0f} / "
          f"{figures['theirs_memory_nbytes'] / 2**20:,.0f} MiB; {disk_nbytes(folder) >> 20} MiB on disk")  # fmt: skip
    shutil.rmtree(folder)

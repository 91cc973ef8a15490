"""Figures that are not rates: first batch, memory, the index of a million chunks, the share of the decode limit."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import h5py
import numpy as np

from bench import cases
from h5stream.storage.open.opening import open_layout

# In a process of its own: what counts is what a training script sees, not what this one holds already.
_CHILD = """
import json, sys, time
from h5stream import H5StreamLoader
from h5stream.baseline.measure import measure_epoch
start = time.perf_counter()
loader = H5StreamLoader(sys.argv[1], 8192, shuffle=True, fields=["x", "y"])
opened = time.perf_counter() - start
m = measure_epoch("ours", loader)
print(json.dumps({"open_s": opened, "first_batch_s": m.first_batch_s, "peak_bytes": m.peak_nbytes,
                  "rows_per_s": m.rows_per_s, "memory_budget": loader.memory_budget}))
"""


def test_first_batch_and_memory(benchmark, bench_file):
    path = bench_file("gzip4_shuffle")
    benchmark.group = "promises"
    figures = []

    def run():
        output = subprocess.run([sys.executable, "-c", _CHILD, path], check=True, capture_output=True, text=True)
        figures.append(json.loads(output.stdout))

    benchmark.pedantic(run, rounds=3, iterations=1)
    benchmark.extra_info.update(
        first_batch_s=max(f["open_s"] + f["first_batch_s"] for f in figures),
        peak_mb=max(f["peak_bytes"] for f in figures) / 1e6,
        over_budget_mb=max(f["peak_bytes"] - f["memory_budget"] for f in figures) / 1e6,
        cold_rows_per_s=min(f["rows_per_s"] for f in figures),
    )


def test_index_of_a_million_chunks(benchmark, bench_folder):
    path = bench_folder / "million_chunks.h5"
    if not path.exists():
        with h5py.File(path, "w", libver="latest") as file:
            file.create_dataset("x", data=np.arange(1_000_000, dtype="i1"), chunks=(1,))
    benchmark.group = "promises"
    layout = benchmark.pedantic(lambda: open_layout(str(path), "x"), rounds=3, iterations=1)
    index = layout.datasets[0][0].index
    assert len(index.numbers) == 1_000_000
    benchmark.extra_info.update(index_s=benchmark.stats["max"])


AT_REST_S = 1.0
"""So long after an epoch the first windows of the next are read ahead, in any case."""


def test_decode_limit_and_ours_in_turn(benchmark, bench_file):
    """Measure the share of the decode limit by pairs of runs, which the machine's speed drifts little between."""
    path, spec = bench_file("gzip4_shuffle"), cases.FILES["gzip4_shuffle"]
    ours, limit = cases.ours(path, spec), cases.decode_limit(path, spec)
    ours(), limit()
    shares = []
    benchmark.group = "promises"

    def measure() -> None:
        time.sleep(AT_REST_S)
        limit_s = cases.seconds_of(limit)
        ours()  # whose first windows are read already
        shares.append(limit_s / cases.seconds_of(ours))

    benchmark.pedantic(measure, rounds=11, iterations=1)
    benchmark.extra_info.update(share_of_decode_limit=float(np.median(shares)), shares=[round(s, 3) for s in shares])

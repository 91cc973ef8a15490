"""What `H5Dataset.statistics` takes beside a sequential epoch of the same fields that only looks at batches."""

from __future__ import annotations

import os
import statistics
import time

import pytest

from bench import cases
from h5stream import H5Dataset, H5StreamLoader

PAIRS = 5


@pytest.mark.parametrize("axis", [None, -1], ids=["whole", "columns"])
@pytest.mark.parametrize("kind", ["gzip4_shuffle", "unfiltered"])
def test_statistics_run_at_the_rate_of_a_sequential_epoch(benchmark, bench_file, kind, axis, monkeypatch):
    monkeypatch.setenv("H5STREAM_CATALOGUE", "0")
    dataset = H5Dataset(bench_file(kind), list(cases.FIELDS))
    axes = None if axis is None else {cases.FIELDS[0]: axis}
    dataset.statistics(axis=axes)
    with H5StreamLoader(dataset, cases.BATCH, keep="never") as loader:
        cases.stream(loader)
        cases.stream(loader)
        epochs, passes = [], []
        for pair in range(PAIRS):
            for which in (0, 1) if pair % 2 else (1, 0):
                began = time.perf_counter()
                cases.stream(loader) if which else dataset.statistics(axis=axes)
                (epochs if which else passes).append(time.perf_counter() - began)
    benchmark.pedantic(dataset.statistics, kwargs={"axis": axes}, rounds=1)
    ratios = [epoch / one for epoch, one in zip(epochs, passes, strict=True)]
    nbytes = len(dataset) * dataset.layout.row_nbytes
    benchmark.extra_info.update(
        kind=kind,
        axis=str(axis),
        epoch_s=statistics.median(epochs),
        statistics_s=statistics.median(passes),
        statistics_bytes_per_s=nbytes / statistics.median(passes),
        ratio=statistics.median(ratios),
        ratios=ratios,
    )


def test_a_second_call_reads_nothing(benchmark, bench_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = bench_file("gzip4_shuffle")
    os.utime(path, (1e9, 1e9))  # a file that changed just now is not kept
    H5Dataset(path, list(cases.FIELDS)).statistics()
    dataset = H5Dataset(path, list(cases.FIELDS))
    monkeypatch.setattr("h5stream.dataset.statistics.read_through", lambda *_: pytest.fail("it was read again"))
    benchmark.pedantic(dataset.statistics, rounds=3)

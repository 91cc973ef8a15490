"""What a batch and the start of an epoch cost on a file of 10 MB, beside NumPy arrays in RAM behind a stock DataLoader.

Promised: under 100 us a batch of 32 or 256 rows of 1 KiB, and in steady state 5 ms from ``iter(loader)`` to the first
batch.
"""

from __future__ import annotations

import statistics
import time

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from h5stream import H5StreamLoader

ROWS, COLUMNS = 10_000, 256
BATCH_S, START_S = 100e-6, 5e-3
EPOCHS = 15

FILES = {"unfiltered": {}, "gzip4_shuffle": {"chunks": (256, COLUMNS), "compression": 4, "shuffle": True}}


class InMemory(Dataset):
    """The file, read once; a batch is one fancy index, and `collate_fn` passes it on."""

    def __init__(self, path):
        with h5py.File(path) as file:
            self.x, self.y = file["x"][()], file["y"][()]

    def __len__(self):
        return len(self.y)

    def __getitems__(self, rows):
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])


@pytest.fixture(scope="module", params=sorted(FILES))
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / f"{request.param}.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.random.default_rng(0).random((ROWS, COLUMNS), "f4"), **FILES[request.param])
        file["y"] = np.arange(ROWS)
    return str(path)


def seconds_of_an_epoch(loader):
    """Give the seconds to the first batch, of each batch after it, and of the epoch for each batch."""
    began_s = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first_s = time.perf_counter()
    batches = sum(1 for _ in iterator)
    now_s = time.perf_counter()
    return first_s - began_s, (now_s - first_s) / max(1, batches), (now_s - began_s) / (1 + batches)


@pytest.mark.parametrize("batch", [32, 256])
def test_a_batch_and_the_start_of_an_epoch(benchmark, path, batch):
    rival = DataLoader(InMemory(path), batch, shuffle=True, collate_fn=lambda batch: batch)
    with H5StreamLoader(path, batch, shuffle=True, fields=["x", "y"]) as loader:
        for either in (loader, rival):
            seconds_of_an_epoch(either)
        # In turns, so that what else the machine does meets both.
        pairs = [(seconds_of_an_epoch(loader), seconds_of_an_epoch(rival)) for _ in range(EPOCHS)]
        benchmark.pedantic(seconds_of_an_epoch, args=(loader,), rounds=5)
    (start_s, batch_s, share_s), (rival_start_s, rival_batch_s, rival_share_s) = np.median(pairs, axis=0).tolist()
    least_start_s, least_batch_s, least_share_s = np.min(pairs, axis=0)[0].tolist()
    benchmark.extra_info.update(
        batch=batch,
        start_ms=1e3 * start_s,
        batch_us=1e6 * batch_s,
        least_start_ms=1e3 * least_start_s,
        least_batch_us=1e6 * least_batch_s,
        epoch_us_a_batch=1e6 * share_s,
        least_epoch_us_a_batch=1e6 * least_share_s,
        rival_epoch_us_a_batch=1e6 * rival_share_s,
        rival_start_ms=1e3 * rival_start_s,
        rival_batch_us=1e6 * rival_batch_s,
        median_ratio=statistics.median(theirs[2] / ours[2] for ours, theirs in pairs),
    )
    # What else the machine does must not decide: the least of all epochs is held against the promise.
    assert least_start_s < START_S
    assert least_batch_s < BATCH_S

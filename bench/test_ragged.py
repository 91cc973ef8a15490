"""Ragged samples by offsets, against the same bytes as plain rows: events of 400 rows of three fields, on average.

    python -m pytest bench/test_ragged.py --benchmark-enable --benchmark-json=ragged.json -s

Both are shuffled epochs with the same budget and as many readers, in turns. Events are rows of three datasets of
float32, and a fourth says the bounds; a plain row is 1,200 float32 of one dataset. What an event costs beside its bytes
is what is measured: it is three spans, none of which begins where a cache line does.
"""

from __future__ import annotations

import statistics
import warnings

import h5py
import numpy as np
import pytest

from bench import cases
from h5stream import Bounds, Field, H5StreamLoader
from h5stream.errors import WeakShuffleWarning

ROUNDS = 9
EVENTS, MEAN, AT_ONCE = 160_000, 400, 10_000
GZIP_EVENTS = 40_000
NAMES = "pmt", "time", "charge"
GZIP = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
BUDGET, GZIP_BUDGET = "768MiB", "256MiB"  # less than what is stored, so that nothing stays decoded
OF_PLAIN = {"packed": 0.7, "pad": 0.4}
"""What an epoch's bytes a second are to be of plain rows', by form; of padded ones the bytes that are stored count."""


def write_events(path, events: int, stored: dict) -> None:
    rng = np.random.default_rng(0)
    bounds = np.append(0, np.cumsum(rng.poisson(MEAN, events)))
    whole = len(NAMES) * MEAN
    with h5py.File(path, "w") as file:
        for name in NAMES:
            given = {"chunks": (1 << 18,), **stored} if stored else {}
            hits = file.create_dataset(name, (int(bounds[-1]),), "f4", **given)
            for low in range(0, len(hits), 1 << 22):
                hits[low : low + (1 << 22)] = some(rng, min(1 << 22, len(hits) - low))
        given = {"chunks": ((1 << 18) // whole, whole), **stored} if stored else {}
        rows = file.create_dataset("rows", (events, whole), "f4", **given)
        for low in range(0, events, AT_ONCE):
            count = min(AT_ONCE, events - low)
            rows[low : low + count] = some(rng, count * whole).reshape(count, whole)
        file["bounds"], file["label"] = bounds, np.arange(events)


def some(rng: np.random.Generator, count: int) -> np.ndarray:
    """Give values that a filter finds something in."""
    return (rng.random(count, "f4") * 100).astype("i4").astype("f4")


@pytest.fixture(scope="module")
def events_file(bench_folder):
    def file_of(events: int, stored: dict) -> str:
        path = bench_folder / f"events-{events}-{'gzip' if stored else 'none'}.h5"
        if not path.exists():
            write_events(path, events, stored)
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
        return str(path)

    return file_of


@pytest.mark.parametrize("stored", [GZIP, {}], ids=["gzip", "none"])
@pytest.mark.parametrize("form", OF_PLAIN)
def test_an_epoch_of_events(benchmark, events_file, form, stored):
    events = GZIP_EVENTS if stored else EVENTS
    path = events_file(events, stored)
    ragged = {name: Field(name, lookup=Bounds("bounds"), ragged=form) for name in NAMES}
    given = {"shuffle": True, "memory_budget": GZIP_BUDGET if stored else BUDGET, "num_workers": cases.THREADS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakShuffleWarning)
        loaders = [
            H5StreamLoader(path, 256, fields={**fields, "label": "label"}, keep="never", **given)
            for fields in (ragged, {"rows": "rows"})
        ]

    def epoch_of(loader: H5StreamLoader) -> None:
        for _ in loader:
            pass

    ours = loaders[0]
    for loader in loaders:
        epoch_of(loader)
    pairs = [tuple(cases.seconds_of(lambda one=one: epoch_of(one)) for one in loaders) for _ in range(ROUNDS)]
    benchmark.pedantic(epoch_of, (ours,), rounds=1)
    for loader in loaders:
        loader.close()
    ours_s = statistics.median(pair[0] for pair in pairs)
    of_plain = statistics.median(theirs / mine for mine, theirs in pairs)
    with h5py.File(path) as file:
        nbytes = sum(file[name].size * file[name].dtype.itemsize for name in NAMES)
        of_plain *= nbytes / (file["rows"].size * file["rows"].dtype.itemsize)
    benchmark.group = "ragged"
    benchmark.extra_info.update(
        case=form,
        stored="gzip" if stored else "none",
        samples=events,
        samples_per_s=events / ours_s,
        gb_per_s=nbytes / ours_s / 1e9,
        of_plain=of_plain,
    )
    print(f"\n{form}, {'gzip' if stored else 'none'}: {nbytes / ours_s / 1e9:.2f} GB/s, {of_plain:.2f} of plain rows")
    assert of_plain >= OF_PLAIN[form]

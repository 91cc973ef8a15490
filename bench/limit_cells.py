"""How near ours comes to what limits it: one cell in a process of its own, ours and the limit in turns.

python -m bench.limit_cells "gzip-4 + shuffle" FILE

Prints the cell's figures as JSON. An older commit measures itself with its own file of this name; see
`bench/test_limits.py`.
"""

from __future__ import annotations

import inspect
import json
import mmap
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import cases
from bench.child import warm_memory
from bench.rivals import ram_loader
from h5stream import H5StreamLoader

OTHER_ROWS, OTHER_COLUMNS, OTHER_CHUNK_ROWS = 393_216, 192, 1400
"""A file of another make: chunks that divide neither its rows nor batches, and blocks of 1.05 MB."""

GZIP: dict[str, Any] = {"compression": "gzip", "compression_opts": 4}
STEP_S = 0.02
"""A training step."""

EPOCHS = 3
"""That are timed together."""

IDLE_S = 0.2
"""Until whatever is read ahead is read, at the least: where the first window is the file, that is an epoch."""

Figures = dict[str, list[float]]


def _other(path: Path, chunks: Any, filters: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (OTHER_ROWS, OTHER_COLUMNS), "f4", chunks=chunks, **filters)
        y = file.create_dataset("y", (OTHER_ROWS,), "i8", chunks=(OTHER_CHUNK_ROWS,))
        for start in range(0, OTHER_ROWS, 1 << 16):
            stop = min(start + (1 << 16), OTHER_ROWS)
            x[start:stop] = cases.sample_rows(rng, stop - start)[:, :OTHER_COLUMNS]
            y[start:stop] = np.arange(start, stop)


def _many_files(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(2)
    for number in range(100):
        with h5py.File(folder / f"{number:03}.h5", "w") as file:
            file.create_dataset("x", data=cases.sample_rows(rng, 2000), chunks=(500, 256), shuffle=True, **GZIP)
            file["y"] = np.arange(2000)


def _images(path: Path) -> None:
    rng = np.random.default_rng(3)
    smooth = rng.normal(size=(20_000, 32, 32, 3)).cumsum(axis=1).cumsum(axis=2)
    with h5py.File(path, "w") as file:
        images = np.clip(128 + 4 * smooth, 0, 255).astype(np.uint8)
        file.create_dataset("x", data=images, chunks=(1, 32, 32, 3), **GZIP)
        file["y"] = np.arange(len(images))


def _counts(path: Path) -> None:
    """Write what a seismometer counts: 290,011 traces of 600 int16, gzip 6 without the shuffle filter."""
    rng, rows, width = np.random.default_rng(4), 290_011, 600
    seconds = np.arange(width, dtype=np.float32)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (rows, width), "i2", chunks=(777, width), compression="gzip", compression_opts=6)
        file.create_dataset("y", data=rng.permutation(rows), chunks=(20_000,), **GZIP)
        for start in range(0, rows, 777 * 8):
            some = (min(777 * 8, rows - start), 1)
            since = np.maximum(0, seconds - rng.integers(50, width - 200, some).astype(np.float32))
            ringing = np.exp(-since / 90) * np.sin(6.28 * rng.uniform(0.01, 0.12, some).astype(np.float32) * since)
            x[start : start + some[0]] = np.round(
                rng.gamma(2.0, 60.0, some) * ringing + rng.normal(120, 9, ringing.shape)
            )


def _stations(path: Path) -> None:
    """Write what stations report: 962,352 rows of 45 rounded float64, gzip 1 and shuffle, chunks of 2,345."""
    rng, rows, columns = np.random.default_rng(5), 962_352, 45
    middle, spread, digits = rng.uniform(-20, 1000, columns), rng.uniform(0.5, 30, columns), rng.integers(1, 4, columns)
    filters: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (rows, columns), "f8", chunks=(2345, columns), **filters)
        file.create_dataset("y", data=rng.integers(0, 300, rows), dtype="i4", chunks=(50_000,), **filters)
        for start in range(0, rows, 23_450):
            walk = rng.normal(0, 0.02, (min(23_450, rows - start), columns)).cumsum(axis=0)
            values = middle + spread * (walk + rng.normal(0, 0.1, walk.shape))
            x[start : start + len(walk)] = np.round(values * 10.0**digits) / 10.0**digits


WRITERS: dict[str, Callable[[Path], object]] = {
    **{kind: spec.write for kind, spec in cases.FILES.items()},
    "other_gzip": lambda path: _other(path, (OTHER_CHUNK_ROWS, OTHER_COLUMNS), GZIP | {"shuffle": True}),
    "other_unfiltered": lambda path: _other(path, (OTHER_CHUNK_ROWS, OTHER_COLUMNS), {}),
    "other_guessed": lambda path: _other(path, True, GZIP),
    "counts": _counts,
    "stations": _stations,
    "many_files": _many_files,
    "images": _images,
}


def loader_of(path: Path, keep: str = "never", batch: int = cases.BATCH) -> H5StreamLoader:
    """Open a loader; `keep` is left out of an older commit's, which kept nothing."""
    known = inspect.signature(H5StreamLoader.__init__).parameters
    source: Any = sorted(map(str, path.iterdir())) if path.is_dir() else str(path)
    more = {"keep": keep} if "keep" in known else {}
    return H5StreamLoader(source, batch, shuffle=True, fields=["x", "y"], **more)


def rows_of(loader: Any) -> int:
    """Stream an epoch."""
    return sum(len(y) for _, y in loader)


def steady_s(loader: H5StreamLoader) -> float:
    """Give the seconds of an epoch among others: each is begun while the one before it ends, the first one here too.

    Nothing is read once this returns: not the next epoch, which would take from what is measured then and give to ours.
    """
    loader.set_epoch(0)
    rows_of(loader)
    seconds = cases.seconds_of(lambda: [rows_of(loader) for _ in range(EPOCHS)]) / EPOCHS
    time.sleep(max(IDLE_S, 1.5 * seconds))
    return seconds


def in_turns(cell: Cell, loader: H5StreamLoader, limit: Callable[[], object], limits: int = 1) -> Figures:
    """Time epochs and what limits them in turns, after some of each; the limit's are so many times an epoch's rows."""
    steady_s(loader)
    limit()
    pairs = [(steady_s(loader), cases.seconds_of(limit) * limits) for _ in range(cell.rounds)]
    return {
        "ours_s": [mine for mine, _ in pairs],
        "limit_s": [theirs for _, theirs in pairs],
        "ratio": [theirs / mine for mine, theirs in pairs],
    }


def of_the_work(limit: Callable[[str, Any], Callable[[], int]]) -> Callable[[Cell, Path], Figures]:
    """Compare epochs that keep nothing with a limit of `bench.cases`."""

    def measure(cell: Cell, path: Path) -> Figures:
        with loader_of(path) as loader:
            rows = rows_of(loader)
            return in_turns(cell, loader, limit(str(path), cases.FileKind(write=print, rows=rows)))

    return measure


def of_the_array(cell: Cell, path: Path) -> Figures:
    """Compare with the same rows in memory, behind a stock `DataLoader` that takes a batch at a time."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found: dict[str, list[Any]] = {"x": [], "y": []}
    for name in files:
        with h5py.File(name) as file:
            for one, parts in found.items():
                parts.append(file[one][()])
    rival = ram_loader([np.concatenate(parts) for parts in found.values()], cell.batch)
    del found
    with loader_of(path, cell.keep, cell.batch) as loader:
        return in_turns(cell, loader, lambda: rows_of(rival))


def of_naive(cell: Cell, path: Path) -> Figures:
    """Compare with a row for each ``__getitem__``, in as many workers as there are processors."""
    kind = cases.FILES["one_row_per_chunk"]
    parts = kind.rows // (kind.naive_batches * cases.BATCH)
    with loader_of(path, cell.keep) as loader:
        return in_turns(cell, loader, cases.naive(str(path), kind), parts)


def first_batch(cell: Cell, path: Path) -> Figures:
    """Time the first batch of this process, the opening of the file included; called for many processes."""
    warm_memory()
    found = []
    for _ in range(2):
        began = time.perf_counter()
        with loader_of(path) as loader:
            next(iter(loader))
            found.append(time.perf_counter() - began)
    return {"ours_s": found[:1], "again_s": found[1:]}


def first_epoch(cell: Cell, path: Path) -> Figures:
    """Compare the first epoch of this process with later ones that decode as well; called for many processes."""
    warm_memory()
    began = time.perf_counter()
    with loader_of(path, cell.keep) as loader:
        opened = time.perf_counter() - began
        first = cases.seconds_of(lambda: rows_of(loader))
        held = loader.held_nbytes
    with loader_of(path) as loader:
        rows_of(loader)
        steady = statistics.median(cases.seconds_of(lambda: rows_of(loader)) for _ in range(4))
    figures = {"ours_s": first, "ratio": steady / first, "open_s": opened, "held_mib": held / 2**20}
    return {name: [value] for name, value in (figures | {"touching_s": touching_s(held)}).items()}


def touching_s(nbytes: int) -> float:
    """Give what as many threads take to touch as much memory, on huge pages as ours."""
    mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    memory, share = np.frombuffer(mapped, dtype=np.uint8), -(-nbytes // cases.THREADS)

    def work(thread: int) -> None:
        memory[thread * share : (thread + 1) * share : 4096] = 1

    return cases.seconds_of(lambda: cases.in_threads(work, nbytes))


def waiting(cell: Cell, path: Path) -> Figures:
    """Give what share of an epoch the loop waits for the first batch of epochs 2 on, behind steps of `STEP_S`."""
    found: Figures = {"ours_s": [], "ratio": [], "all_waiting": []}
    with loader_of(path, cell.keep) as loader:
        for epoch in range(cell.rounds + 1):
            waits, began = [], time.perf_counter()
            batches = iter(loader)
            asked = began
            for _ in batches:
                waits.append(time.perf_counter() - asked)
                time.sleep(STEP_S)
                asked = time.perf_counter()
            whole = time.perf_counter() - began
            if epoch > 0:
                found["ours_s"].append(waits[0])
                found["ratio"].append(waits[0] / whole)
                found["all_waiting"].append((sum(waits) + time.perf_counter() - asked) / whole)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is compared with what.

    Attributes
    ----------
    file : str
        One of `WRITERS`.
    against : str
        What the ratio is to.
    measure : callable
        Gives the figures, ``ratio`` among them.
    least, most : float or None
        What the median of the ratios is to be.
    keep : str
        As the loader takes it.
    batch, rounds, processes : int
        Rows of a batch, rounds in turns, processes.
    """

    file: str
    against: str
    measure: Callable[[Cell, Path], Figures] = field(repr=False)
    least: float | None = None
    most: float | None = None
    keep: str = "never"
    batch: int = cases.BATCH
    rounds: int = 5
    processes: int = 1


_DECODING, _COPYING = of_the_work(cases.decode_limit), of_the_work(cases.threaded_copy)
_ARRAY = "an array in RAM"
_FIRST: dict[str, Any] = {"measure": first_epoch, "against": "the later epochs", "processes": 3, "least": 0.7}
_WAITING: dict[str, Any] = {"measure": waiting, "against": "the whole epoch", "most": 0.01}
_DECODED: dict[str, Any] = {"measure": _DECODING, "against": "only inflating"}
_SOON: dict[str, Any] = {"measure": first_batch, "against": "seconds", "most": 0.2, "processes": 3}
CELLS = {
    "gzip-4 + shuffle, 1 KiB rows": Cell(file="gzip4_shuffle", least=0.95, **_DECODED),
    "gzip-4 + shuffle, other file": Cell(file="other_gzip", least=0.9, **_DECODED),
    "unfiltered": Cell(file="unfiltered", measure=_COPYING, against="a threaded copy", least=0.8),
    "unfiltered, other file": Cell(file="other_unfiltered", measure=_COPYING, against="a threaded copy", least=0.7),
    "unfiltered, beside an array": Cell(file="unfiltered", measure=of_the_array, against=_ARRAY, least=4),
    "gzip that fits, epochs 2 on": Cell(
        file="gzip4_shuffle", measure=of_the_array, against=_ARRAY, least=3, keep="auto"
    ),
    "h5py's chunks, 8192 x 4": Cell(file="guessed_gzip", least=0.9, **_DECODED),
    "h5py's chunks, 6144 x 3": Cell(file="other_guessed", least=0.9, **_DECODED),
    "h5py's chunks, 8192 x 4, first batch": Cell(file="guessed_gzip", **_SOON),
    "h5py's chunks, 6144 x 3, first batch": Cell(file="other_guessed", **_SOON),
    "one 2 KiB row a chunk": Cell(file="one_row_per_chunk", measure=of_naive, against="naive", least=9, rounds=5),
    "first epoch, gzip": Cell(file="gzip4_shuffle", **_FIRST),
    "first epoch, unfiltered": Cell(file="unfiltered", **_FIRST),
    "first epoch, other gzip": Cell(file="other_gzip", **_FIRST),
    "first epoch, gzip that fits": Cell(file="gzip4_shuffle", keep="auto", **_FIRST),
    "first epoch, other gzip that fits": Cell(file="other_gzip", keep="auto", **_FIRST),
    "start of epochs 2 on, gzip": Cell(file="gzip4_shuffle", **_WAITING),
    "start of epochs 2 on, unfiltered": Cell(file="unfiltered", **_WAITING),
    "start of epochs 2 on, h5py's chunks": Cell(file="guessed_gzip", **_WAITING),
    **{
        f"{what}, {make}": Cell(file=make, **given)
        for make in ("counts", "stations")
        for what, given in {
            "gzip": {"least": 0.9, **_DECODED},
            "gzip that fits, epochs 2 on": {"measure": of_the_array, "against": _ARRAY, "least": 3, "keep": "auto"},
            "first epoch, gzip that fits": {"keep": "auto", **_FIRST},
        }.items()
    },
    "batches of 32": Cell(file="unfiltered", measure=of_the_array, against=_ARRAY, batch=32, rounds=5),
    "batches of 64": Cell(file="unfiltered", measure=of_the_array, against=_ARRAY, batch=64, rounds=5),
    "one image of 3 KiB a chunk": Cell(file="images", **_DECODED),
    "100 files of 2,000 rows": Cell(file="many_files", measure=of_the_array, against=_ARRAY),
}


def main() -> int:
    """Print a cell's figures as JSON."""
    name, path = sys.argv[1:]
    cell = CELLS[name]
    print(json.dumps(cell.measure(cell, Path(path))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

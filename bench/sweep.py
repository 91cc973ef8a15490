"""Ours beside the naive loader and the tuned one, one thing varied at a time, each cell in a process of its own.

python -m bench.sweep --quick --out bench/results/sweep-quick.json

The rivals are given more than they have: their rate in one process times the number of processors, as if workers
cost nothing. They are stopped after a few seconds: their rate does not depend on how long they run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.child import run_child, warm
from bench.machine import describe
from bench.rivals import TunedDataset
from bench.sweep_cells import AXES, MIB, Cell, cells, write
from h5stream import H5StreamLoader
from h5stream.base import limits
from h5stream.baseline import NaiveDataset

NBYTES = {"quick": 16 * MIB, "full": 128 * MIB}
SECONDS = {"quick": 1.0, "full": 3.0}
LIMIT_S = 110.0
"""Of a cell; most take 20, and gzip-9 alone a minute to write on a busy machine."""

NAIVE_BATCH = 32
"""Rows; small, so that a slow cell can be stopped in time. What the naive loader does is by the row."""

PATIENCE = 3
"""A rival that has not given a batch after so many times its seconds is stopped, and what that proves is noted."""

START_S = 9.0
"""Seconds of a cell beside the timed ones: writing its file, starting Python, a first epoch, the check."""


class TimeIsOverError(Exception):
    """A rival gave no batch in time."""


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `TimeIsOverError` in this thread when the time is over; a read that HDF5 is in is waited for."""

    def stop(number: int, frame: object) -> None:
        raise TimeIsOverError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def drop(path: Path) -> None:
    """Drop a file from the page cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def ours(path: Path, cell: Cell, seconds: float) -> dict[str, Any]:
    """Give rows a second: the median of the epochs after the first, and the slowest and fastest of them."""
    loader = H5StreamLoader(
        path,
        cell.batch_rows,
        shuffle=True,
        fields=cell.names,
        num_workers=cell.threads or None,
        window=cell.window,
        keep="never",  # what is measured is decoding
    )
    rates: list[float] = []
    over = 0.0  # the clock starts behind the first epoch, which also loads kernels and touches memory
    with loader:
        while len(rates) < 2 or (time.perf_counter() < over and len(rates) < 50):
            if cell.cold:
                drop(path)
            start = time.perf_counter()
            rows = sum(len(batch[0]) for batch in loader)
            rates.append(rows / (time.perf_counter() - start))
            over = over or time.perf_counter() + seconds
        check(path, cell, loader)
    steady = rates[1:]
    return {
        "rows": rows,
        "ours": round(float(np.median(steady))),
        "spread": [round(min(steady)), round(max(steady))],
        "epochs": len(steady),
    }


def check(path: Path, cell: Cell, loader: Any) -> None:
    """Stream an epoch that is not timed, and compare each field's total with what was written.

    Raises
    ------
    ValueError
        If they differ.
    """
    totals = [0] * cell.fields
    for batch in loader:
        for number, values in enumerate(batch):
            totals[number] += int(values.view(torch.int32).sum(dtype=torch.int64))
    with h5py.File(path, "r") as file:
        wrong = [name for name, total in zip(cell.names, totals, strict=True) if file[name].attrs["total"] != total]
    if wrong:
        raise ValueError(f"bytes differ from what was written: {', '.join(wrong)}")


def rival(name: str, path: Path, cell: Cell, seconds: float) -> dict[str, Any]:
    """Give rows a second of one process times the processors, and whether that is only a bound from above."""
    kind, batch_rows = {"naive": (NaiveDataset, NAIVE_BATCH), "tuned": (TunedDataset, cell.batch_rows)}[name]
    loader = DataLoader(kind(str(path), cell.names), batch_size=batch_rows, shuffle=True)
    if cell.cold:
        drop(path)
    rows, start = 0, time.perf_counter()
    taken = seconds
    with contextlib.suppress(TimeIsOverError), stopped_after(PATIENCE * seconds):
        for batch in loader:
            rows, taken = rows + len(batch[0]), time.perf_counter() - start
            if taken > seconds:
                break
    if rows:
        return {name: round(rows / taken * limits.cpus())}
    taken = time.perf_counter() - start
    return {name: round(batch_rows / taken * limits.cpus()), f"{name}_at_most": True}


def measure_cell(cell: Cell, size: str, folder: Path, *, rivals: bool) -> dict[str, Any]:
    """Write the file where it is not there yet, and time all."""
    path = folder / cell.file
    if not path.exists():
        partial = path.with_suffix(".partial")  # a cell that is stopped while it writes must leave no file to others
        write(partial, cell, NBYTES[size])
        partial.rename(path)
    if not cell.cold:
        warm(path)
    found = ours(path, cell, SECONDS[size])
    if rivals:
        found |= rival("naive", path, cell, SECONDS[size]) | rival("tuned", path, cell, SECONDS[size])
    return found


def estimate_s(size: str) -> float:
    """Give about how many seconds the sweep takes."""
    listed = [cell for _, _, cell in cells()]
    return len(listed) * (START_S + SECONDS[size]) + len({cell.rivals_key for cell in listed}) * 3 * SECONDS[size]


def run(size: str, axes: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Measure cell by cell; the rivals once for each file, batch size and state of the page cache."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for axis, value, cell in cells():
        if axis not in axes:
            continue
        options = ["--cell", json.dumps(asdict(cell)), "--folder", str(folder)]
        options += ["--quick"] * (size == "quick") + ["--no-rivals"] * (cell.rivals_key in known)
        found = run_child(["bench.sweep", *options], LIMIT_S)
        if found.error:
            yield {"axis": axis, "value": value, "error": found.error}
        else:
            figures = ("naive", "naive_at_most", "tuned", "tuned_at_most")
            known.setdefault(cell.rivals_key, {key: found.result[key] for key in figures if key in found.result})
            yield {"axis": axis, "value": value} | found.result | known[cell.rivals_key]
        if cell.file != Cell().file:
            (folder / cell.file).unlink(missing_ok=True)


def main() -> int:
    """Run all cells, or with --cell one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cell", help="JSON; used by the runner itself")
    parser.add_argument("--no-rivals", action="store_true", help="used by the runner itself")
    parser.add_argument("--axis", choices=list(AXES), action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    size = "quick" if given.quick else "full"
    if given.cell:
        found = measure_cell(Cell(**json.loads(given.cell)), size, given.folder, rivals=not given.no_rivals)
        print(json.dumps(found))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="h5stream-sweep-", dir=given.folder))
    results = []
    try:
        for result in run(size, given.axis or list(AXES), folder):
            results.append(result)
            print(result, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        told = {"base": asdict(Cell()), "file_nbytes": NBYTES[size], "results": results}
        given.out.write_text(json.dumps(describe() | told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

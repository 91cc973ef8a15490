"""One peer, measured in this process: ``python -m bench.peers.measure`` is what the runner starts for each.

The last line of what it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.protocol import BATCH_ROWS
from bench.peers.registry import by_name
from bench.peers.source import sums_path
from bench.tree_memory import tree_nbytes
from h5stream.baseline.measure import row_sums

KEPT_BATCHES = 2
MOST_EPOCHS = 5
LEAST_ROUNDS = 3  # whole epochs, or parts of one for a loader that brings no whole one in the time


class Checker:
    """Compares batches with the source, row by row, and adds up a checksum that no order changes.

    The sum of a row and its label are multiplied, so that rows that changed places with one another's labels
    do not cancel out.
    """

    def __init__(self, sums: Any) -> None:
        self.sums = sums
        self.seen = np.zeros(len(sums), dtype=bool)
        self.checksum = 0

    def add(self, x: Any, y: Any) -> None:
        """Check a batch.

        Raises
        ------
        ValueError
            If a row came twice, or has not the source's bytes.
        """
        labels = np.asarray(y).reshape(-1)
        if self.seen[labels].any() or len(np.unique(labels)) != len(labels):
            raise ValueError("a row came twice in an epoch")
        found = row_sums(np.ascontiguousarray(x))
        if (found != self.sums[labels]).any():
            raise ValueError("bytes differ from the source's")
        self.seen[labels] = True
        self.checksum = (self.checksum + checksum_of(found, labels)) % 2**64

    @property
    def rows(self) -> int:
        """Rows that were right."""
        return int(self.seen.sum())


def checksum_of(sums: Any, labels: Any) -> int:
    """Give one number for rows in any order.

    Examples
    --------
    >>> a, b = np.array([5, 7], dtype=np.uint64), np.array([0, 1])
    >>> checksum_of(a, b) == checksum_of(a[::-1], b[::-1])
    True
    """
    return int((sums * (2 * labels.astype(np.uint64) + np.uint64(1))).sum(dtype=np.uint64))


def timed_epoch(loader: Iterable[Any], deadline: float, keep: int = 0, together: int = 1) -> dict[str, Any]:
    """Stream an epoch, or what of it fits; gives rows, seconds, whether it was all, and the first batches.

    It is cut off behind a multiple of `together` batches: where workers fill so many side by side, stopping sooner
    would leave out the rows of those that are nearly done.
    """
    start = time.perf_counter()
    rows = batches = 0
    first = seconds = 0.0
    kept, complete = [], True
    for x, y in loader:
        seconds = time.perf_counter() - start
        first = first or seconds
        rows, batches = rows + len(y), batches + 1
        if len(kept) < keep:
            kept.append((x, y))
        if time.perf_counter() > deadline and batches >= KEPT_BATCHES and batches % together == 0:
            complete = False
            break
    if complete:
        seconds = time.perf_counter() - start
    return {"rows": rows, "seconds": seconds, "first_s": first, "complete": complete, "kept": kept}


def check(loader: Iterable[Any], kept: list[Any], sums: Any, *, whole: bool) -> Checker:
    """Check the batches that were kept, or a whole epoch."""
    checker = Checker(sums)
    for x, y in loader if whole else kept:
        checker.add(x, y)
    if whole and checker.rows != len(sums):
        raise ValueError(f"{len(sums) - checker.rows} rows did not come in an epoch")
    return checker


def measure(name: str, source: Path, path: Path, seconds: float, most_epochs: int = MOST_EPOCHS) -> dict[str, Any]:
    """Open a peer, time its epochs, check its bytes."""
    peer = by_name(name)
    peer.load()
    sums = np.load(sums_path(source))
    base = tree_nbytes()
    start = time.perf_counter()
    loader = peer.open(path, peer.batch_rows)
    opened = time.perf_counter() - start
    deadline = start + opened + seconds
    first = timed_epoch(loader, deadline, KEPT_BATCHES, peer.together)
    epochs = [first]
    while first["complete"] and (
        len(epochs) < min(LEAST_ROUNDS, most_epochs) or (len(epochs) < most_epochs and time.perf_counter() < deadline)
    ):
        epochs.append(timed_epoch(loader, float("inf")))
    while not first["complete"] and len(epochs) < LEAST_ROUNDS:
        epochs.append(timed_epoch(loader, time.perf_counter() + seconds, together=peer.together))
    # Memory counts up to here; the last look is ours, because short epochs end between two looks from outside.
    print(json.dumps({"timed": True, "base": base, "last": tree_nbytes()}), flush=True)
    whole = first["complete"] and first["seconds"] < seconds
    checker = check(loader, first["kept"], sums, whole=whole)
    return {
        "open_s": opened,
        # Where batches are smaller than asked, the first one of full size takes as many times as long.
        "first_batch_s": opened + first["first_s"] * BATCH_ROWS / peer.batch_rows,
        "batch_rows": peer.batch_rows,
        "rates": [epoch["rows"] / epoch["seconds"] for epoch in epochs],
        "rows": first["rows"],
        "whole_epoch": first["complete"],
        "checked_rows": checker.rows,
        "checksum": f"{checker.checksum:016x}" if whole else "",
    }


def prepare(name: str, source: Path, folder: Path) -> dict[str, Any]:
    """Convert, timed."""
    peer = by_name(name)
    peer.load()
    start = time.perf_counter()
    path = peer.prepare(source, folder)
    return {"convert_s": time.perf_counter() - start, "path": str(path)}


def main() -> None:
    """Do what is asked and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prepare", "measure", "both"])
    parser.add_argument("peer")
    parser.add_argument("source", type=Path)
    parser.add_argument("place", type=Path, help="the folder to convert into, or what to read")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    if given.what == "prepare":
        result = prepare(given.peer, given.source, given.place)
    elif given.what == "both":  # a check rather than a measurement: one epoch, in one process
        made = prepare(given.peer, given.source, given.place)
        result = measure(given.peer, given.source, Path(made["path"]), given.seconds, most_epochs=1)
    else:
        result = measure(given.peer, given.source, given.place, given.seconds)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

"""Stream random files with random settings for a while, with checksums, and fail on growth.

    python tools/soak.py --minutes 30

Each round makes a file, streams it with random settings, and now and then breaks off, drops the iterator, damages a
chunk or resumes from a state; every batch is compared with what was written. Memory, descriptors and threads are
printed over time; the run fails if they grow after the first quarter, or at the first wrong byte.
"""

from __future__ import annotations

import argparse
import collections
import gc
import logging
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import psutil

from h5stream import H5StreamLoader
from h5stream.errors import CorruptChunkError

GROWTH_NBYTES = 64 << 20
"""Memory that may be added after the first quarter; what a round takes itself is a few MB."""

FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"compression": "lzf", "fletcher32": True},
    {"scaleoffset": 0},
    dict(hdf5plugin.LZ4()),
    dict(hdf5plugin.Zstd()),
    dict(hdf5plugin.Blosc()),
    dict(hdf5plugin.Bitshuffle()),
)


class Round:
    """One file and what is done with it."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        # A name of its own: a loader that ended with an error may hold the last one until the next collection.
        self.rng, self.path = rng, str(folder / f"{rng.getrandbits(60):x}.h5")
        self.rows, columns = rng.randint(1, 30_000), rng.choice([1, 4, 33])
        self.x = np.random.default_rng(rng.getrandbits(32)).integers(0, 1000, (self.rows, columns), dtype="i4")
        chunks = (rng.randint(1, min(self.rows, 2000)), rng.randint(1, columns))
        storage = rng.choice(FILTERS)
        with h5py.File(self.path, "w", libver=rng.choice(["earliest", "latest"])) as file:
            file.create_dataset("x", data=self.x, chunks=chunks if storage or rng.random() < 0.5 else None, **storage)
            file["row"] = np.arange(self.rows)

    def loader(self, **options: Any) -> H5StreamLoader:
        """Make a loader with settings of this round."""
        rng = self.rng
        settings: dict[str, Any] = {
            "batch_size": rng.randint(1, 4000),
            "shuffle": rng.random() < 0.8,
            "seed": rng.getrandbits(20),
            "num_workers": rng.randint(0, 3),
            "window": rng.choice(["auto", "all", rng.randint(1, 5000)]),
            "persistent_workers": rng.random() < 0.5,
        }
        settings["batch_size"] = max(settings["batch_size"], self.rows // 200)
        return H5StreamLoader(self.path, fields=["x", "row"], **settings, **options)

    def check(self, batch: Any) -> list[int]:
        """Compare a batch with what was written; give its rows."""
        x, row = batch
        assert x.numpy().tobytes() == self.x[row.numpy()].tobytes(), f"wrong bytes in {self.path}"
        rows: list[int] = row.tolist()
        return rows

    def whole_epochs(self) -> None:
        """Two epochs, every row once in each."""
        with self.loader() as loader:
            for _ in range(2):
                rows = [row for batch in loader for row in self.check(batch)]
                assert sorted(rows) == list(range(self.rows)), f"rows lost or repeated in {self.path}"

    def abort(self) -> None:
        """Break off anywhere, by several ways of leaving."""
        loader = self.loader()
        for _ in range(5):
            iterator = iter(loader)
            for _ in range(self.rng.randint(0, 5)):
                batch = next(iterator, None)
                if batch is not None:
                    self.check(batch)
            if self.rng.random() < 0.5:
                loader.close()

    def resume(self) -> None:
        """Break off, take the state, and go on in another loader: every row once."""
        if not hasattr(H5StreamLoader, "state_dict"):
            return self.abort()
        state_of_rng = self.rng.getstate()
        loader: Any = self.loader()
        rows: list[int] = []
        for batch in loader:
            rows += self.check(batch)
            if self.rng.random() < 0.3:
                break
        state = loader.state_dict()
        self.rng.setstate(state_of_rng)
        twin: Any = self.loader()
        twin.load_state_dict(state)
        if len(rows) < self.rows:
            rows += [row for batch in twin for row in self.check(batch)]
        assert sorted(rows) == list(range(self.rows)), f"rows lost or repeated over a resume in {self.path}"
        return None

    def damage(self) -> None:
        """Damage a byte where a checksum tells: an error or fewer rows, and the rows that come are right."""
        with h5py.File(self.path, "r") as file:
            dataset = file["x"]
            checked = dataset.compression == "gzip" or dataset.fletcher32
            place = dataset.id.get_chunk_info(0) if dataset.chunks else None
        if place is None or not checked:
            return self.abort()
        with open(self.path, "r+b") as raw:
            raw.seek(place.byte_offset + place.size // 2)
            byte = raw.read(1)[0]
            raw.seek(-1, os.SEEK_CUR)
            raw.write(bytes([byte ^ 0x10]))
        try:
            for batch in self.loader(on_error=self.rng.choice(["raise", "skip"])):
                self.check(batch)
        except CorruptChunkError:
            pass
        return None


KINDS = ("whole_epochs", "abort", "resume", "damage")


def measure() -> tuple[int, int, int]:
    """Give resident bytes, descriptors and threads, once what is over is gone."""
    gc.collect()
    process = psutil.Process()
    return int(process.memory_info().rss), int(process.num_fds()), threading.active_count()


def soak(minutes: float, seed: int) -> int:
    """Run for so long; give the exit status."""
    began, rng = time.monotonic(), random.Random(seed)
    done: collections.Counter[str] = collections.Counter()
    settled: tuple[int, int, int] | None = None
    next_line = 0.0
    with tempfile.TemporaryDirectory() as folder:
        while (elapsed := time.monotonic() - began) < 60 * minutes:
            kind = rng.choice(KINDS)
            one = Round(Path(folder), rng)
            getattr(one, kind)()
            os.remove(one.path)
            done[kind] += 1
            if settled is None and elapsed > 15 * minutes:
                settled = measure()
            if elapsed >= next_line:
                report(elapsed, measure(), done)
                next_line = elapsed + max(2.0, 3 * minutes)
    now = measure()
    report(time.monotonic() - began, now, done)
    return verdict(settled or now, now)


def report(elapsed: float, now: tuple[int, int, int], done: collections.Counter[str]) -> None:
    """Print one line."""
    kinds = ", ".join(f"{done[kind]} {kind}" for kind in KINDS)
    print(f"{elapsed:7.0f} s  {now[0] / 1e6:7.1f} MB  {now[1]:3} fds  {now[2]:2} threads  {kinds}", flush=True)


def verdict(settled: tuple[int, int, int], now: tuple[int, int, int]) -> int:
    """Say whether anything grew since the first quarter."""
    grown = [
        name
        for name, before, after, slack in zip(
            ("memory", "descriptors", "threads"), settled, now, (GROWTH_NBYTES, 0, 0), strict=True
        )
        if after > before + slack
    ]
    print(f"grown: {', '.join(grown)}" if grown else "nothing has grown; every byte was right", flush=True)
    return 1 if grown else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Stream random files, and fail on growth or a wrong byte.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("h5stream").setLevel(logging.ERROR)  # damaged chunks are warned of, as they should be
    sys.exit(soak(arguments.minutes, arguments.seed))

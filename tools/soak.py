"""Stream random files with random settings for a while, with checksums, and fail on growth.

    python tools/soak.py --minutes 30

Each round makes a file, streams it with random settings, and now and then breaks off, drops the iterator, damages a
chunk or resumes from a state; every batch is compared with what was written. Memory, descriptors and threads are
printed over time; the run fails if any of them grew, or at the first wrong byte.

Resident memory alone does not tell a leak from holes between what is in use: glibc keeps freed memory, and rounds of
random sizes leave ever other holes. So before each measurement what is free is given back (``malloc_trim``, and
libhdf5's own free lists), and what the C library counts as in use is measured too, and Python's blocks: of these a
few bytes a round show within minutes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import gc
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import psutil

from h5stream import H5StreamLoader
from h5stream.errors import CorruptChunkError

SAMPLES = 40
"""Measurements in a run; each is the sum of all rounds since the last, so more tell no more."""

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


ISOLATED_SHARE = 0.01
"""Of the loaders, read in a child process; few, because each takes a second or two to start."""


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
            "isolation": "process" if rng.random() < ISOLATED_SHARE else "thread",
        }
        settings["batch_size"] = max(settings["batch_size"], self.rows // 200)
        return H5StreamLoader(self.path, fields=["x", "row"], **settings, **options)

    def check(self, batch: Any) -> list[int]:
        """Compare a batch with what was written; give its rows."""
        x, row = batch
        assert x.numpy().tobytes() == self.x[row.numpy()].tobytes(), f"wrong bytes in {self.path}"
        rows: list[int] = row.tolist()
        return rows

    def whole_epochs(self) -> str:
        """Two epochs, every row once in each."""
        with self.loader() as loader:
            for _ in range(2):
                rows = [row for batch in loader for row in self.check(batch)]
                assert sorted(rows) == list(range(self.rows)), f"rows lost or repeated in {self.path}"
        return "whole"

    def abort(self) -> str:
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
        return "aborted"

    def resume(self) -> str:
        """Break off, take the state, and go on in another loader: every row once."""
        state_of_rng = self.rng.getstate()
        loader, rows = self.loader(), []
        for batch in loader:
            rows += self.check(batch)
            if self.rng.random() < 0.3:
                break
        state = json.loads(json.dumps(loader.state_dict()))
        self.rng.setstate(state_of_rng)  # so that the other loader has the same settings
        twin = self.loader()
        twin.load_state_dict(state)
        in_the_middle = len(rows) < self.rows
        if in_the_middle:
            rows += [row for batch in twin for row in self.check(batch)]
        assert sorted(rows) == list(range(self.rows)), f"rows lost or repeated over a resume in {self.path}"
        return "resumed" if in_the_middle else "whole"

    def damage(self) -> str:
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
        with contextlib.suppress(CorruptChunkError):
            for batch in self.loader(on_error=self.rng.choice(["raise", "skip"])):
                self.check(batch)
        return "damaged"


Act = Callable[[Round], str]
ACTS: tuple[Act, ...] = (Round.whole_epochs, Round.abort, Round.resume, Round.damage)


# --- measuring ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the process holds, once what is over is gone.

    Attributes
    ----------
    elapsed_s : float
        Since the run began.
    resident_nbytes : int
        After free memory was given back.
    heap_nbytes : int
        In use of the C library's heap; 0 where it does not tell.
    blocks : int
        Python's small blocks in use.
    descriptors, threads : int
        Open, and running.
    """

    elapsed_s: float
    resident_nbytes: int
    heap_nbytes: int
    blocks: int
    descriptors: int
    threads: int


SLACK: Mapping[str, tuple[str, int]] = {
    "resident_nbytes": ("resident memory", 64 << 20),
    "heap_nbytes": ("heap in use", 8 << 20),
    "blocks": ("Python's blocks", 20_000),
    "descriptors": ("descriptors", 0),
    "threads": ("threads", 0),
}
"""What may be added between the halves of a run: of resident memory the holes, of the rest what is met for the first
time late (measured in 8,000 rounds: 0.3 MB of heap, 2 MB once where a table of Python's doubled, and 200 blocks)."""

_HEAP_FIELDS = [
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
]


class _HeapInfo(ctypes.Structure):
    """Source: ``mallinfo(3)``."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _HEAP_FIELDS)


def _give_back_what_is_free() -> None:
    gc.collect()
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "/libhdf5-" in line or "/libhdf5.so" in line}
    for library in libraries:  # the free lists are libhdf5's own, and grow until they have seen it all
        ctypes.CDLL(library).H5garbage_collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


def _heap_in_use() -> int:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = _HeapInfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def measure(elapsed_s: float) -> Sample:
    """Give what the process holds."""
    _give_back_what_is_free()
    process = psutil.Process()
    return Sample(
        elapsed_s=elapsed_s,
        resident_nbytes=int(process.memory_info().rss),
        heap_nbytes=_heap_in_use(),
        blocks=sys.getallocatedblocks(),
        descriptors=int(process.num_fds()),
        threads=threading.active_count(),
    )


def grown(samples: Sequence[Sample]) -> list[str]:
    """Name what grew: the median of the last half against that of the quarter before it.

    The first quarter is warming up. Medians, because what a single round holds comes and goes.
    """
    end = samples[-1].elapsed_s
    before = [one for one in samples if end / 4 <= one.elapsed_s < end / 2] or list(samples[:1])
    after = [one for one in samples if one.elapsed_s >= end / 2]
    found = []
    for name, (words, slack) in SLACK.items():
        old, new = (statistics.median(getattr(one, name) for one in part) for part in (before, after))
        if new > old + slack:
            found.append(f"{words} by {new - old:,.0f}")
    return found


# --- running --------------------------------------------------------------------------------------------------


def soak(
    minutes: float, seed: int, acts: Sequence[Act] = ACTS, clock: Callable[[], float] = time.monotonic
) -> tuple[collections.Counter[str], list[Sample]]:
    """Run for so long; give what was done how often, and what was measured.

    Raises
    ------
    AssertionError
        At the first wrong byte, or row that is lost or repeated.
    """
    began, rng = clock(), random.Random(seed)
    done: collections.Counter[str] = collections.Counter()
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        while (elapsed := clock() - began) < 60 * minutes:
            done[play(Path(folder), rng, acts)] += 1
            if elapsed >= len(samples) * 60 * minutes / SAMPLES:
                samples.append(measure(elapsed))
                report(samples[-1], done)
    return done, samples


def play(folder: Path, rng: random.Random, acts: Sequence[Act]) -> str:
    """Play one round and give what became of it; nothing of it is left."""
    one = Round(folder, rng)
    try:
        return rng.choice(acts)(one)
    finally:
        os.remove(one.path)


def report(one: Sample, done: collections.Counter[str]) -> None:
    """Print one line."""
    memory = f"{one.resident_nbytes / 1e6:6.1f} MB resident, {one.heap_nbytes / 1e6:.3f} MB of heap"
    others = f"{one.blocks:,} blocks, {one.descriptors} fds, {one.threads} threads"
    counts = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    print(f"{one.elapsed_s:6.0f} s  {memory}, {others}; {counts}", flush=True)


def main() -> int:
    """Run as the command line says; give the exit status."""
    parser = argparse.ArgumentParser(description="Stream random files, and fail on growth or a wrong byte.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("h5stream").setLevel(logging.ERROR)  # damaged chunks are warned of, as they should be
    done, samples = soak(arguments.minutes, arguments.seed)
    missing = {"whole", "aborted", "resumed", "damaged"} - set(done)
    failures = [f"grown: {one}" for one in grown(samples)] + [f"never {what}: run longer" for what in sorted(missing)]
    print("\n".join(failures) or f"{done.total():,} rounds: nothing has grown; every byte was right", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

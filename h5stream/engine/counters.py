"""Counters of each thread of a pass, and their sums.

Counting costs two readings of the clock a chunk (for small chunks: a read), and four a batch; under 0.1 us each.
"""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.statistics import LoaderStatistics, statistics_of
from h5stream.storage.source.stores import NOTHING, StoreUsage

clock = time.perf_counter_ns
"""Nanoseconds; all moments and durations of this module are of this clock."""

NEWEST_WAITS = 4096
"""Newest waits that the 95th percentile is taken of: 32 KiB, however long the epoch."""


_NO_COUNTS = np.zeros(kernels.COUNTS, dtype=np.int64)


@dataclass(slots=True)
class Tally:
    """One thread's counters.

    # Guarantees: written by one thread, or `native` by the pool while that is locked; any other may read, and sees
    # whole numbers, though not all of one moment.
    """

    read_bytes: int = 0
    reads: int = 0
    decoded_bytes: int = 0
    chunks: int = 0
    h5py_bytes: int = 0
    memory_bytes: int = 0
    read_ns: int = 0
    decode_ns: int = 0
    scatter_ns: int = 0
    copy_ns: int = 0
    h5py_ns: int = 0
    plan_ns: int = 0
    native: NDArray[np.int64] = field(default_factory=_NO_COUNTS.copy)
    """What kernels counted, which count on without Python."""

    def add(self, other: Tally) -> None:
        """Count what another thread counted."""
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.native += other.native

    def read(self, since: int, nbytes: int, reads: int = 1) -> None:
        """Count the time since a moment as reading so many bytes."""
        self.read_ns += clock() - since
        self.read_bytes += nbytes
        self.reads += reads

    def used(self, nbytes: int, reads: int = 1) -> None:
        """Count bytes that were read and need no decoding."""
        self.chunks += reads
        self.decoded_bytes += nbytes

    def decoded(self, since: int, nbytes: int, chunks: int = 1) -> int:
        """Count chunks that were decoded since a moment, and return that of its end."""
        ended = clock()
        self.decode_ns += ended - since
        self.decoded_bytes += nbytes
        self.chunks += chunks
        return ended

    def in_all(self, name: str) -> int:
        """Return one of the counters, with what kernels counted of it."""
        number = _COUNTED_BY_KERNELS.get(name)
        count: int = getattr(self, name)
        return count if number is None else count + int(self.native[number])

    def via_h5py(self, since: int, nbytes: int) -> int:
        """Count rows that h5py read since a moment, and return that of its end."""
        ended = clock()
        self.h5py_ns += ended - since
        self.h5py_bytes += nbytes
        return ended

    def scattered(self, since: int) -> None:
        """Count the time since a moment as scattering."""
        self.scatter_ns += clock() - since


_NAMES = tuple(field.name for field in fields(Tally) if field.name != "native")

_COUNTED_BY_KERNELS = {
    "reads": 0,
    "read_bytes": 1,
    "read_ns": 2,
    "chunks": 5,
    "decoded_bytes": 6,
    "decode_ns": 7,
    "scatter_ns": 8,
    "memory_bytes": 9,
}
"""The place of each counter in `Tally.native`; see `kernels.COUNTS`."""


@dataclass(slots=True)
class HandedOver:
    """Counts of the batches that a pass handed over, and of the waits for them."""

    rows: int = 0
    batches: int = 0
    asks: int = 0
    ready: int = 0  # batches that were ready when one was asked for, added up
    starved: int = 0  # times that none was
    wait_ns: int = 0
    longest_ns: int = 0  # the longest wait
    waits: collections.deque[int] = field(default_factory=lambda: collections.deque(maxlen=NEWEST_WAITS))
    transform_ns: int = 0


class RunCounters:
    """The counters of one pass over an order.

    # Guarantees: `asked`, `gave`, `waited` and `finished` are called by the consumer alone, `tally` by
    # whoever counts, once; `snapshot` by anyone at any time. Nothing here takes a lock.
    """

    def __init__(self, *, threads: int, ready_limit: int, row_nbytes: int, from_stores: bool = False) -> None:
        self.threads, self.ready_limit, self.row_nbytes = max(1, threads), ready_limit, row_nbytes
        self.from_stores = from_stores
        self.created, self.of_stores = clock(), [NOTHING]
        self.began: int | None = None
        self.first: int | None = None
        self.ended: int | None = None
        self.tallies: list[Tally] = []
        self.over = HandedOver()
        self.skipped_rows = 0
        self.skipped_chunks: dict[str, None] = {}

    def tally(self) -> Tally:
        """Return counters to one thread."""
        self.tallies.append(tally := Tally())
        return tally

    def skip(self, chunk: str) -> bool:
        """Note a corrupt chunk, in any thread; return whether it is the first."""
        first = not self.skipped_chunks
        self.skipped_chunks.setdefault(chunk)
        return first

    def begin(self) -> RunCounters:
        """Note that the iteration begins; the readers may have begun before."""
        self.began = clock()
        return self

    def end(self) -> None:
        """Note that the iteration is over; only the first call counts."""
        if self.ended is None:
            self.ended = clock()

    def asked(self, ready: int) -> int:
        """Note how many batches are ready when one is asked for, and return the moment."""
        over = self.over
        over.asks += 1
        over.ready += ready
        over.starved += not ready
        self.ready_limit = max(self.ready_limit, ready)  # a window may have more batches
        return clock()

    def gave(self, rows: int) -> None:
        """Count a batch that is handed over."""
        over = self.over
        over.rows += rows
        over.batches += 1

    def waited(self, since: int) -> None:
        """Count the wait for a batch since a moment."""
        waited, over = clock() - since, self.over
        over.wait_ns += waited
        over.longest_ns = max(over.longest_ns, waited)
        over.waits.append(waited)

    def finished(self, since: int) -> None:
        """Count the time since a moment as making a batch out of a filled slot."""
        ended = clock()
        self.over.transform_ns += ended - since
        if self.first is None:
            self.first = ended

    def snapshot(self, ahead: StoreUsage = NOTHING) -> LoaderStatistics:
        """Add up the counts so far; `ahead` has the requests to stores for the next epoch."""
        now, total = self.ended if self.ended is not None else clock(), Tally()
        for tally in self.tallies.copy():
            total.add(tally)
        return statistics_of(self, total, now, ahead)

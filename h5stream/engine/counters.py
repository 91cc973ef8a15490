"""Counters of a run: each thread counts for itself, and they are added up when they are asked for.

Cost: two readings of the clock a chunk (for small chunks: a read), and four a batch; under 0.1 us each.
"""

from __future__ import annotations

import collections
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from h5stream.engine.statistics import LoaderStatistics

clock = time.perf_counter_ns
"""Nanoseconds; all moments and durations of this module are of this clock."""

NEWEST_WAITS = 4096
"""Newest waits that the 95th percentile is taken of: 32 KiB, however long the epoch."""


@dataclass(slots=True)
class Tally:
    """One thread's counters.

    # Guarantees: written by one thread; any other may read, and sees whole numbers, though not all of one moment.
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

    def read(self, since: int, nbytes: int, reads: int = 1) -> None:
        """Count the time since a moment as reading so many bytes."""
        self.read_ns += clock() - since
        self.read_bytes += nbytes
        self.reads += reads

    def read_in_part(self, since: int, reads: int, nbytes: int, read_ns: int) -> None:
        """Count what was read since a moment without decoding, and the rest of the time as scattering."""
        self.reads += reads
        self.read_bytes += nbytes
        self.read_ns += read_ns
        self.used(nbytes, reads)
        self.scatter_ns += clock() - since - read_ns

    def used(self, nbytes: int, reads: int = 1) -> None:
        """Count bytes that were read and need no decoding."""
        self.chunks += reads
        self.decoded_bytes += nbytes

    def decoded(self, since: int, nbytes: int, chunks: int = 1, other_ns: int = 0) -> int:
        """Count chunks that were decoded since a moment, less time of other work, and return that of its end."""
        ended = clock()
        self.decode_ns += ended - since - other_ns
        self.decoded_bytes += nbytes
        self.chunks += chunks
        return ended

    def via_h5py(self, since: int, nbytes: int) -> int:
        """Count rows that h5py read since a moment, and return that of its end."""
        ended = clock()
        self.h5py_ns += ended - since
        self.h5py_bytes += nbytes
        return ended

    def scattered(self, since: int) -> int:
        """Count the time since a moment as scattering, and return that of its end."""
        ended = clock()
        self.scatter_ns += ended - since
        return ended


_NAMES = tuple(field.name for field in fields(Tally))
_counts: Callable[[Tally], tuple[int, ...]] = operator.attrgetter(*_NAMES)


class RunCounters:
    """The counters of one pass over an order.

    # Guarantees: `asked`, `gave`, `waited` and `finished` are called by the consumer alone, `tally` by each
    # reader once; `snapshot` by anyone at any time. Nothing here takes a lock.
    """

    def __init__(self, *, threads: int, ready_limit: int, row_nbytes: int) -> None:
        self._threads, self._ready_limit, self._row_nbytes = max(1, threads), ready_limit, row_nbytes
        self._created = clock()
        self._began: int | None = None
        self._first: int | None = None
        self._ended: int | None = None
        self._tallies: list[Tally] = []
        self._rows = self._batches = self._asks = self._starved = self._ready = 0
        self._wait_ns = self._longest_ns = self._transform_ns = 0
        self._waits: collections.deque[int] = collections.deque(maxlen=NEWEST_WAITS)
        self.skipped_rows = 0
        self._skipped_chunks: dict[str, None] = {}

    def tally(self) -> Tally:
        """Return counters to one thread."""
        self._tallies.append(tally := Tally())
        return tally

    def add(self, tally: Tally | None) -> None:
        """Take over what was counted elsewhere."""
        if tally is not None:
            self._tallies.append(tally)

    def skip(self, chunk: str) -> bool:
        """Note a corrupt chunk, by any thread; tells whether it is the first."""
        first = not self._skipped_chunks
        self._skipped_chunks.setdefault(chunk)
        return first

    def totals(self) -> tuple[int, ...]:
        """Return what all tallies counted together, for another process to show with `Tally.become`."""
        return tuple(map(sum, zip(*map(_counts, [Tally(), *self._tallies]), strict=True)))

    @property
    def skipped_chunks(self) -> tuple[str, ...]:
        """The corrupt chunks that were met."""
        return tuple(self._skipped_chunks.copy())

    def begin(self) -> RunCounters:
        """Note that the iteration begins; the readers may have begun before."""
        self._began = clock()
        return self

    def end(self) -> None:
        """Note that the iteration is over; only the first call counts."""
        if self._ended is None:
            self._ended = clock()

    def asked(self, ready: int) -> int:
        """Note how many batches are ready when one is asked for, and return the moment."""
        self._asks += 1
        self._ready += ready
        self._starved += not ready
        return clock()

    def gave(self, rows: int) -> None:
        """Count a batch that is handed over."""
        self._rows += rows
        self._batches += 1

    def waited(self, since: int) -> None:
        """Count the wait for a batch since a moment."""
        waited = clock() - since
        self._wait_ns += waited
        self._longest_ns = max(self._longest_ns, waited)
        self._waits.append(waited)

    def finished(self, since: int) -> None:
        """Count the time since a moment as making a batch out of a filled slot."""
        ended = clock()
        self._transform_ns += ended - since
        if self._first is None:
            self._first = ended

    def snapshot(self) -> LoaderStatistics:
        """Add up what was counted so far."""
        now = self._ended if self._ended is not None else clock()
        began = now if self._began is None else self._began
        # Copying a deque runs no Python code, so that no thread can change it meanwhile.
        waits = sorted(self._waits.copy())
        asks = max(1, self._asks)
        totals: dict[str, Any] = dict(zip(_NAMES, self.totals(), strict=True))
        return LoaderStatistics(
            rows=self._rows,
            batches=self._batches,
            elapsed_s=(now - began) * 1e-9,
            first_batch_s=None if self._first is None else (self._first - began) * 1e-9,
            wait_s=self._wait_ns * 1e-9,
            wait_p95_s=waits[(95 * len(waits) - 1) // 100] * 1e-9 if waits else 0.0,
            wait_max_s=self._longest_ns * 1e-9,
            transform_s=self._transform_ns * 1e-9,
            delivered_bytes=self._rows * self._row_nbytes,
            **{n: total for n, total in totals.items() if not n.endswith("_ns")},
            **{f"{n[:-3]}_s": total * 1e-9 for n, total in totals.items() if n.endswith("_ns")},
            threads=self._threads,
            running_s=0.0 if self._began is None else (now - self._created) * 1e-9,
            ready_mean=self._ready / asks,
            ready_limit=self._ready_limit,
            starved_share=self._starved / asks,
            skipped_rows=self.skipped_rows,
            skipped_chunks=self.skipped_chunks,
        )

"""Statistics of a loader: the counters of each thread, and their sums.

Counting costs two readings of the clock a chunk (for small chunks: a read), and four a batch; under 0.1 us each.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import ShownAsText, text_of_bytes
from h5stream.compiled import _native as kernels
from h5stream.storage.source.stores import NOTHING, StoreUsage, store_usage

LEAST_TOLD = 0.01
"""Share of the time from which what was spent in transforms is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatistics(ShownAsText):
    """Statistics of a loader's newest iteration.

    Times of the readers are wall time added over all of them: where there are more threads than processors,
    waiting for a processor is in them.

    Attributes
    ----------
    rows, batches : int
        Handed over.
    elapsed_s : float
        Seconds from ``iter(loader)`` to the end of the epoch, or to now.
    first_batch_s : float or None
        Seconds from ``iter(loader)`` to the first batch. High: the first window is large or its storage slow, and
        was not read during the epoch before, as it is where epochs follow one another. None before there is one.
    wait_s, wait_p95_s, wait_max_s : float
        Seconds that the asking thread waited for a filled batch: in all, 95th percentile of the newest 4,096,
        and longest. High: the readers are the limit. Near 0: they are ahead. With ``num_workers=0`` reading
        itself is in them.
    transform_s : float
        Seconds in which the asking thread made tensors, collated and transformed, in all. High beside
        `wait_s`: Python is the limit, not the files.
    delivered_bytes : int
        Bytes of the rows handed over; values of variable length are not in it.
    read_bytes, reads : int
        Bytes fetched from files, and calls that did. Few bytes a read: many small chunks, or scattered rows.
    decoded_bytes, chunks : int
        Bytes and number of the chunks that were decoded; where nothing has to be, of the reads that were used.
    requests, requested_bytes : int
        Requests for this epoch's rows that this process made of object stores, and bytes that it asked for.
        Few bytes a request: small chunks that lie scattered; `stage_to` copies whole objects.
    ahead_requests, ahead_bytes : int
        Requests and bytes so far for the first window of the epoch that follows, which counts them once it begins.
        From a store it is read ahead from the second epoch on, or with ``persistent_workers=True``.
    cached_bytes : int
        Bytes for this epoch's rows that the folder of ``H5Dataset(cache=)`` had, in pages of 4 KiB.
    process_requests, process_bytes : int
        Requests and their bytes since this process began, also those that opened the files; 0 where the loader reads
        local files.
    h5py_bytes : int
        Bytes of rows that came through h5py, under its lock. High: `h5stream inspect` says why.
    memory_bytes : int
        Bytes of rows that were in memory already: small fields, and what stays once it is decoded (``keep=``).
    threads : int
        Readers; with ``num_workers=0`` the asking thread is the one.
    running_s : float
        Seconds that the readers were there; longer than `elapsed_s` if they read ahead of the epoch.
    read_s, decode_s, scatter_s, copy_s, h5py_s, plan_s : float
        Seconds spent in each kind of work, added over the threads; see the shares, such as `read_busy`. `copy_s` is
        the device's own time, between events around each copy of a slot to it; 0 on the host.
    ready_mean : float
        Batches that were ready when one was asked for, on average. Near 0: the consumer waits for each. Near
        `ready_limit`: the readers wait for the consumer.
    ready_limit : int
        Batches that may be filled or ready at a time.
    starved_share : float
        Share of the batches, 0 to 1, that were not ready when asked for. High: the consumer is faster.
    skipped_rows : int
        Rows left out by ``on_error="skip"``, of the batches handed over so far. Not 0: copy the file again.
    skipped_chunks : tuple of str
        The corrupt chunks that were met, by file, dataset and coordinates.

    Examples
    --------
    >>> import h5py, os, tempfile
    >>> from h5stream import H5StreamLoader
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = [[1.0, 2.0]] * 10
    >>> with H5StreamLoader(path, batch_size=4) as loader:
    ...     epoch = list(loader)
    ...     statistics = loader.stats()
    >>> statistics.rows, statistics.batches, statistics.delivered_bytes, statistics.read_bytes
    (10, 3, 160, 160)
    """

    rows: int = 0
    batches: int = 0
    elapsed_s: float = 0.0
    first_batch_s: float | None = None
    wait_s: float = 0.0
    wait_p95_s: float = 0.0
    wait_max_s: float = 0.0
    transform_s: float = 0.0
    delivered_bytes: int = 0
    read_bytes: int = 0
    reads: int = 0
    decoded_bytes: int = 0
    chunks: int = 0
    requests: int = 0
    requested_bytes: int = 0
    ahead_requests: int = 0
    ahead_bytes: int = 0
    cached_bytes: int = 0
    process_requests: int = 0
    process_bytes: int = 0
    h5py_bytes: int = 0
    memory_bytes: int = 0
    threads: int = 1
    running_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    scatter_s: float = 0.0
    copy_s: float = 0.0
    h5py_s: float = 0.0
    plan_s: float = 0.0
    ready_mean: float = 0.0
    ready_limit: int = 0
    starved_share: float = 0.0
    skipped_rows: int = 0
    skipped_chunks: tuple[str, ...] = ()

    @property
    def rows_per_s(self) -> float:
        """Rows handed over a second, the consumer's own work included."""
        return self.rows / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def wait_mean_s(self) -> float:
        """Seconds that a batch was waited for, on average. High beside the step's time: input-bound."""
        return self.wait_s / self.batches if self.batches else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the time, 0 to 1, that the asking thread waited for batches or transformed them.

        Under 0.05 the job is not input-bound; over 0.2 it strongly is.
        """
        return min(1.0, (self.wait_s + self.transform_s) / self.elapsed_s) if self.elapsed_s else 0.0

    @property
    def read_amplification(self) -> float | None:
        """Bytes decoded for each byte handed over; None before there is one.

        1 is right. High: chunks are decoded for few of their rows (a sampler of the user's own, wide chunks
        across columns), or a window was read that was not taken. Below 1: small fields were kept in memory.
        """
        decoded = self.decoded_bytes + self.h5py_bytes
        return decoded / self.delivered_bytes if self.delivered_bytes else None

    @property
    def read_bytes_per_s(self) -> float | None:
        """Bytes a second of one thread while it reads, page cache included; None if nothing was read.

        Under about 5e8: storage. Over 3e9: the page cache, or tmpfs.
        """
        return self.read_bytes / self.read_s if self.read_s else None

    @property
    def decode_bytes_per_s(self) -> float | None:
        """Decoded bytes a second of one thread while it decodes; None if nothing was.

        About 1.3e9 is right for gzip; much less: expensive filters, tiny chunks, too many threads.
        """
        return self.decoded_bytes / self.decode_s if self.decode_s else None

    @property
    def read_busy(self) -> float:
        """Share of the readers' time spent reading, 0 to 1. The highest of the shares and high: storage limits."""
        return self._share(self.read_s)

    @property
    def decode_busy(self) -> float:
        """Share of the readers' time spent decoding, 0 to 1. High: filters limit; more threads or a cheaper filter."""
        return self._share(self.decode_s)

    @property
    def scatter_busy(self) -> float:
        """Share of the readers' time spent writing rows to their places, 0 to 1. High: memory limits.

        A first epoch takes longer: its slots are memory that the system hands out page by page.
        """
        return self._share(self.scatter_s)

    @property
    def h5py_busy(self) -> float:
        """Share of the readers' time spent in h5py, 0 to 1. High: its lock limits, and threads do not help."""
        return self._share(self.h5py_s)

    @property
    def plan_busy(self) -> float:
        """Share of the readers' time spent planning windows, 0 to 1. High: tiny rows or chunks."""
        return self._share(self.plan_s)

    @property
    def copy_busy(self) -> float:
        """Share of the time spent in copies to a device, 0 to 1; 0 on the host. High: the bus limits.

        Copies are timed on the device, and counted once they are seen to be done, without waiting for them.
        """
        return min(1.0, self.copy_s / self.running_s) if self.running_s else 0.0

    @property
    def idle(self) -> float:
        """Share of the readers' time without work, 0 to 1. High: they wait for the consumer, or for the epoch."""
        busy = self.read_s + self.decode_s + self.scatter_s + self.h5py_s + self.plan_s
        return max(0.0, 1.0 - self._share(busy))

    def _share(self, seconds: float) -> float:
        whole = self.threads * self.running_s
        return min(1.0, seconds / whole) if whole else 0.0

    def __str__(self) -> str:
        amplification = self.read_amplification
        transformed = self.transform_s / self.elapsed_s if self.elapsed_s else 0.0
        transform = f"tensors, batch_transform and collate_fn: {self.transform_s:.2f} s, {transformed:.0%} of the time"
        text = f"object stores: {self.requests:,} requests for {text_of_bytes(self.requested_bytes)}"
        text += f", {text_of_bytes(self.cached_bytes)} from the cache" * bool(self.cached_bytes)
        ahead = f", and {self.ahead_requests:,} for {text_of_bytes(self.ahead_bytes)} for the epoch that follows"
        text += ahead * bool(self.ahead_requests)
        since = f"{self.process_requests:,} for {text_of_bytes(self.process_bytes)}"
        text += f"; {since} since the process began, to open files as well" * bool(self.process_requests)
        skipped = f"{self.skipped_rows:,} rows skipped: {len(self.skipped_chunks)} corrupt chunk(s)"
        return "\n".join(
            (
                f"{self.rows:,} rows in {self.batches:,} batches, {self.elapsed_s:.2f} s, "
                f"{self.rows_per_s:,.0f} rows/s",
                f"wait per batch: mean {1e3 * self.wait_mean_s:.1f} ms, p95 {1e3 * self.wait_p95_s:.1f} ms, "
                f"max {1e3 * self.wait_max_s:.1f} ms; first batch "
                + ("n/a" if self.first_batch_s is None else f"{1e3 * self.first_batch_s:.0f} ms"),
                f"read {text_of_bytes(self.read_bytes)}, decoded {text_of_bytes(self.decoded_bytes)}, "
                f"taken from memory {text_of_bytes(self.memory_bytes)}, amplification "
                + ("n/a" if amplification is None else f"{amplification:.2f}"),
                f"{self.threads} reader(s): read {self.read_busy:.0%}, decode {self.decode_busy:.0%}, "
                f"scatter {self.scatter_busy:.0%}, h5py {self.h5py_busy:.0%}, plan {self.plan_busy:.0%}, "
                f"idle {self.idle:.0%}; copy {self.copy_busy:.0%}",
                f"ready when asked: {self.ready_mean:.1f} of at most {self.ready_limit}; "
                f"{self.starved_share:.0%} of the batches were not",
                *([text] if self.requests or self.process_requests else []),
                *([transform] if transformed >= LEAST_TOLD else []),
                *([skipped] if self.skipped_rows else []),
            )
        )


_HIGHEST = ("wait_p95_s", "wait_max_s", "threads", "ready_limit", "process_requests", "process_bytes")
_OF_BATCHES = ("ready_mean", "starved_share")


def combined(snapshots: Sequence[LoaderStatistics]) -> LoaderStatistics:
    """Return the statistics of several epochs of one loader as if they were one.

    Sums are added. `first_batch_s` is added too, so that its share of `elapsed_s` stays what it is;
    `wait_p95_s` is the highest of them, which the common one does not exceed. What was read ahead is that of the
    newest, since the others' is in the epoch that followed.
    """
    batches = max(1, sum(s.batches for s in snapshots))
    shares: dict[str, Any] = {
        **{name: getattr(snapshots[-1], name) for name in ("ahead_requests", "ahead_bytes") if snapshots},
        "skipped_chunks": tuple(dict.fromkeys(name for s in snapshots for name in s.skipped_chunks)),
    }
    for name in (f.name for f in fields(LoaderStatistics) if f.name not in shares):
        values = [getattr(s, name) or 0 for s in snapshots]
        if name in _OF_BATCHES:
            shares[name] = sum(value * s.batches for value, s in zip(values, snapshots, strict=True)) / batches
        else:
            shares[name] = max(values) if name in _HIGHEST else sum(values)
    return LoaderStatistics(**shares)


# --- how it is counted ---


clock = time.perf_counter_ns
"""Nanoseconds; all moments and durations of this module are of this clock."""

NEWEST_WAITS = 4096
"""Newest waits that the 95th percentile is taken of: 32 KiB, however long the epoch."""


@dataclass(slots=True)
class Tally:
    """One thread's counters.

    # Guarantees: written by one thread, or `native` by the pool while that is locked; any other may read, and sees
    # whole numbers, though not all of one moment.
    """

    rows: int = 0
    batches: int = 0
    wait_ns: int = 0
    transform_ns: int = 0
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
    native: NDArray[np.int64] = field(default_factory=lambda: np.zeros(kernels.COUNTS, dtype=np.int64))
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


class RunCounters:
    """The counters of one pass over an order.

    # Guarantees: `asked`, `gave`, `waited` and `finished` are called by the consumer alone, `tally` by
    # whoever counts, once; `snapshot` by anyone at any time. Nothing here takes a lock.
    """

    def __init__(self, *, threads: int, ready_limit: int, row_nbytes: int, from_stores: bool = False) -> None:
        self._threads, self._ready_limit, self._row_nbytes = max(1, threads), ready_limit, row_nbytes
        self._from_stores = from_stores
        self._created, self.of_stores = clock(), [NOTHING]
        self._began: int | None = None
        self._first: int | None = None
        self._ended: int | None = None
        self._tallies: list[Tally] = []
        self._own = self.tally()  # the consumer's
        self._asks = self._starved = self._ready = self._longest_ns = 0
        self._waits: collections.deque[int] = collections.deque(maxlen=NEWEST_WAITS)
        self.skipped_rows = 0
        self._skipped_chunks: dict[str, None] = {}

    def tally(self) -> Tally:
        """Return counters to one thread."""
        self._tallies.append(tally := Tally())
        return tally

    def add(self, tally: Tally | None) -> None:
        """Include the counts of another tally."""
        if tally is not None:
            self._tallies.append(tally)

    def skip(self, chunk: str) -> bool:
        """Note a corrupt chunk, in any thread; return whether it is the first."""
        first = not self._skipped_chunks
        self._skipped_chunks.setdefault(chunk)
        return first

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
        self._ready_limit = max(self._ready_limit, ready)  # a window may have more batches
        self._starved += not ready
        return clock()

    def gave(self, rows: int) -> None:
        """Count a batch that is handed over."""
        self._own.rows += rows
        self._own.batches += 1

    def waited(self, since: int) -> None:
        """Count the wait for a batch since a moment."""
        waited = clock() - since
        self._own.wait_ns += waited
        self._longest_ns = max(self._longest_ns, waited)
        self._waits.append(waited)

    def finished(self, since: int) -> None:
        """Count the time since a moment as making a batch out of a filled slot."""
        ended = clock()
        self._own.transform_ns += ended - since
        if self._first is None:
            self._first = ended

    def snapshot(self, ahead: StoreUsage = NOTHING) -> LoaderStatistics:
        """Add up the counts so far; `ahead` has the requests to stores for the next epoch."""
        now = self._ended if self._ended is not None else clock()
        began = now if self._began is None else self._began
        # Copying a deque runs no Python code, so that no thread can change it meanwhile.
        waits = sorted(self._waits.copy())
        asks, (requests,) = max(1, self._asks), self.of_stores
        in_all = store_usage() if self._from_stores else NOTHING
        total = Tally()
        for tally in self._tallies.copy():
            total.add(tally)
        counted: dict[str, Any] = {name: total.in_all(name) for name in _NAMES}
        return LoaderStatistics(
            elapsed_s=(now - began) * 1e-9,
            first_batch_s=None if self._first is None else (self._first - began) * 1e-9,
            wait_p95_s=waits[(95 * len(waits) - 1) // 100] * 1e-9 if waits else 0.0,
            wait_max_s=self._longest_ns * 1e-9,
            delivered_bytes=total.rows * self._row_nbytes,
            **{name: count for name, count in counted.items() if not name.endswith("_ns")},
            **{f"{name[:-3]}_s": count * 1e-9 for name, count in counted.items() if name.endswith("_ns")},
            requests=requests.requests,
            requested_bytes=requests.nbytes,
            ahead_requests=ahead.requests,
            ahead_bytes=ahead.nbytes,
            cached_bytes=requests.cached_nbytes,
            process_requests=in_all.requests,
            process_bytes=in_all.nbytes,
            threads=self._threads,
            running_s=0.0 if self._began is None else (now - self._created) * 1e-9,
            ready_mean=self._ready / asks,
            ready_limit=self._ready_limit,
            starved_share=self._starved / asks,
            skipped_rows=self.skipped_rows,
            skipped_chunks=tuple(self._skipped_chunks.copy()),
        )

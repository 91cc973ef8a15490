"""Statistics of a loader: what the counters of its threads add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from h5stream.base.texts import ShownAsText, counted, text_of_bytes
from h5stream.storage.source.stores import NOTHING, StoreUsage, store_usage

if TYPE_CHECKING:
    from h5stream.engine.counters import RunCounters, Tally

LEAST_TOLD = 0.01
"""Share of the time from which what was spent in transforms is printed."""

_LEAST_BATCHES = 10
"""Batches from which the share that was not ready is printed: of fewer, the first, which never is, decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatistics(ShownAsText):
    """Statistics of a loader's newest iteration.

    Times of the readers are wall time added over all of them: where there are more threads than processors,
    waiting for a processor is in them.

    Attributes
    ----------
    rows, batches : int
        Handed over.
    epochs : int
        Iterations that these are the statistics of: 1, or several that `diagnose` adds up.
    elapsed_s : float
        Seconds from ``iter(loader)`` to the end of the epoch, or to now.
    first_batch_s : float or None
        Seconds from ``iter(loader)`` to the first batch. High: the first window is large or its storage slow, and
        was not read during the epoch before, as it is where epochs follow one another. None before there is one.
        Of several epochs the mean.
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
        Bytes and number of the chunks that were decoded; for unfiltered data, of the reads instead.
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
        Lifetime of the reader threads, in seconds; longer than `elapsed_s` if they read ahead of the epoch.
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
    epochs: int = 1
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
        text = f"object stores: {counted(self.requests, 'request')} for {text_of_bytes(self.requested_bytes)}"
        text += f", {text_of_bytes(self.cached_bytes)} from the cache" * bool(self.cached_bytes)
        ahead = f", and {self.ahead_requests:,} for {text_of_bytes(self.ahead_bytes)} for the epoch that follows"
        text += ahead * bool(self.ahead_requests)
        starved = f"; {self.starved_share:.0%} of the batches were not" * (self.batches >= _LEAST_BATCHES)
        since = f"{self.process_requests:,} for {text_of_bytes(self.process_bytes)}"
        text += f"; {since} since the process began, to open files as well" * bool(self.process_requests)
        skipped = f"{counted(self.skipped_rows, 'row')} skipped: {counted(len(self.skipped_chunks), 'corrupt chunk')}"
        return "\n".join(
            (
                f"{counted(self.rows, 'row')} in {counted(self.batches, 'batch', 'batches')}, {self.elapsed_s:.2f} s, "
                f"{self.rows_per_s:,.0f} rows/s",
                f"wait per batch: mean {1e3 * self.wait_mean_s:.1f} ms, p95 {1e3 * self.wait_p95_s:.1f} ms, "
                f"max {1e3 * self.wait_max_s:.1f} ms; first batch "
                + ("n/a" if self.first_batch_s is None else f"{1e3 * self.first_batch_s:.1f} ms")
                + f", the mean of {self.epochs:,} epochs" * (self.epochs > 1),
                f"read {text_of_bytes(self.read_bytes)}, decoded {text_of_bytes(self.decoded_bytes)}, "
                f"taken from memory {text_of_bytes(self.memory_bytes)}, amplification "
                + ("n/a" if amplification is None else f"{amplification:.2f}"),
                f"{counted(self.threads, 'reader')}: read {self.read_busy:.0%}, decode {self.decode_busy:.0%}, "
                f"scatter {self.scatter_busy:.0%}, h5py {self.h5py_busy:.0%}, plan {self.plan_busy:.0%}, "
                f"idle {self.idle:.0%}; copy {self.copy_busy:.0%}",
                f"ready when asked: {self.ready_mean:.1f} of at most {self.ready_limit}{starved}",
                *([text] if self.requests or self.process_requests else []),
                *([transform] if transformed >= LEAST_TOLD else []),
                *([skipped] if self.skipped_rows else []),
            )
        )


def statistics_of(counters: RunCounters, total: Tally, now: int, ahead: StoreUsage) -> LoaderStatistics:
    """Return the statistics of a pass up to a moment, of what its threads have counted in all."""
    began = now if counters.began is None else counters.began
    over, (requests,) = counters.over, counters.of_stores
    # Copying a deque runs no Python code, so that no thread can change it meanwhile.
    waits, asks = sorted(over.waits.copy()), max(1, over.asks)
    in_all = store_usage() if counters.from_stores else NOTHING
    return LoaderStatistics(
        rows=over.rows,
        batches=over.batches,
        elapsed_s=(now - began) * 1e-9,
        first_batch_s=None if counters.first is None else (counters.first - began) * 1e-9,
        wait_s=over.wait_ns * 1e-9,
        wait_p95_s=waits[(95 * len(waits) - 1) // 100] * 1e-9 if waits else 0.0,
        wait_max_s=over.longest_ns * 1e-9,
        transform_s=over.transform_ns * 1e-9,
        delivered_bytes=over.rows * counters.row_nbytes,
        read_bytes=total.in_all("read_bytes"),
        reads=total.in_all("reads"),
        decoded_bytes=total.in_all("decoded_bytes"),
        chunks=total.in_all("chunks"),
        requests=requests.requests,
        requested_bytes=requests.nbytes,
        ahead_requests=ahead.requests,
        ahead_bytes=ahead.nbytes,
        cached_bytes=requests.cached_nbytes,
        process_requests=in_all.requests,
        process_bytes=in_all.nbytes,
        h5py_bytes=total.h5py_bytes,
        memory_bytes=total.in_all("memory_bytes"),
        threads=counters.threads,
        running_s=0.0 if counters.began is None else (now - counters.created) * 1e-9,
        read_s=total.in_all("read_ns") * 1e-9,
        decode_s=total.in_all("decode_ns") * 1e-9,
        scatter_s=total.in_all("scatter_ns") * 1e-9,
        copy_s=total.copy_ns * 1e-9,
        h5py_s=total.h5py_ns * 1e-9,
        plan_s=total.plan_ns * 1e-9,
        ready_mean=over.ready / asks,
        ready_limit=counters.ready_limit,
        starved_share=over.starved / asks,
        skipped_rows=counters.skipped_rows,
        skipped_chunks=tuple(counters.skipped_chunks.copy()),
    )


_HIGHEST = ("wait_p95_s", "wait_max_s", "threads", "ready_limit", "process_requests", "process_bytes")
_OF_BATCHES = ("ready_mean", "starved_share")


def combined(snapshots: Sequence[LoaderStatistics]) -> LoaderStatistics:
    """Return the statistics of several epochs of one loader as if they were one.

    Sums are added. `first_batch_s` is the mean, since each epoch waits for one; `wait_p95_s` is the highest of them,
    which the common one does not exceed. What was read ahead is that of the newest, since the others' is in the epoch
    that followed.
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
    shares["first_batch_s"] = _mean_of([(s.first_batch_s, s.epochs) for s in snapshots])
    return LoaderStatistics(**shares)


def _mean_of(values: Sequence[tuple[float | None, int]]) -> float | None:
    """Return the mean of values, each of so many epochs; None if there is none."""
    present = [(value, count) for value, count in values if value is not None]
    return sum(value * count for value, count in present) / sum(count for _, count in present) if present else None

"""What a shuffled batch costs: bytes read and decoded by one row a time through h5py, and by h5stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.advice.listing import DatasetEntry
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.landing.chunks import Chunks, ChunkTask
from h5stream.engine.landing.resident import datasets_to_keep
from h5stream.engine.landing.unfiltered import reach_of
from h5stream.engine.plan import Placement
from h5stream.order.epoch import EpochOrder
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DIRECT, DatasetPart, SampleLayout
from h5stream.storage.source import LOCAL_GAP_NBYTES

PLANNED_CHUNKS = 400_000
"""Chunks that are planned at most, about a second of work; of longer epochs, evenly spaced windows are taken."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost:
    """What one batch costs, averaged over an epoch."""

    chunks: float
    """Chunks that are fetched for it."""
    read_nbytes: float
    decoded_nbytes: float
    """Bytes read from the file, and bytes that filters give."""
    read_amplification: float | None
    """Bytes read for each stored byte of the batch's own rows: 1 is ideal, 1,000 means that 999 of 1,000 bytes are read
    for nothing. None where nothing is stored."""
    decode_amplification: float | None
    """The same for decoded bytes. None where there is nothing to decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCost:
    """What an epoch takes from one dataset."""

    path: str
    """The dataset."""
    chunks: float
    """Chunks that are fetched; one that several windows need counts for each."""
    times_read: float
    """How often each stored chunk is fetched in an epoch: 1 is ideal."""
    read_nbytes: float
    decoded_nbytes: float
    """Bytes read from the file, and bytes that filters give."""
    gap_nbytes: float = 0.0
    """Of the bytes read, those that lie between chunks and are read along: cheaper than another system call."""
    kept: bool = False
    """Whether it is small enough to be read once and kept in memory; later epochs then cost nothing."""


def batch_cost(costs: Sequence[DatasetCost], entries: Sequence[DatasetEntry], batch_rows: int) -> BatchCost:
    """Average what an epoch takes from each dataset, and how they are stored, over its batches."""
    share = batch_rows / max(1, entries[0].rows or 0)
    read, decoded = sum(c.read_nbytes for c in costs), sum(c.decoded_nbytes for c in costs)
    stored = sum(e.stored_nbytes for e in entries)
    filtered = sum(e.written_nbytes for e in entries if e.filters)
    return BatchCost(
        chunks=share * sum(c.chunks for c in costs),
        read_nbytes=share * read,
        decoded_nbytes=share * decoded,
        read_amplification=read / stored if stored else None,
        decode_amplification=decoded / filtered if filtered else None,
    )


# --- one row at a time ------------------------------------------------------------------------------------


def cached_share(entry: DatasetEntry) -> float:
    """Return the part of a dataset's chunks that h5py's chunk cache can hold: what random rows find there.

    A chunk larger than the cache is never held.
    """
    if not entry.chunks:
        return 0.0
    return min(1.0, min(entry.cache_nbytes // max(1, entry.chunk_nbytes), entry.cache_chunks) / entry.chunks)


def naive_cost(entry: DatasetEntry) -> DatasetCost:
    """Estimate what an epoch costs that asks h5py for single rows in random order, in one process.

    For each row libhdf5 reads and decodes every chunk that the row lies in, unless its chunk cache happens to
    hold it. Contiguous data, and unfiltered chunks larger than the cache, are read row by row instead.

    Notes
    -----
    Source: HDF5 User Guide, "Chunking in HDF5", on the raw data chunk cache (``H5Pset_chunk_cache``).
    """
    rows = entry.rows or 0
    fits = entry.chunk_nbytes <= entry.cache_nbytes
    if not entry.chunks or not (entry.filters or fits):
        return DatasetCost(
            path=entry.path,
            chunks=rows * entry.chunks_across,
            times_read=1.0,
            read_nbytes=min(entry.stored_nbytes, entry.raw_nbytes),
            decoded_nbytes=0,
        )
    stored = entry.chunks if entry.stored_chunks is None else entry.stored_chunks
    # At least once each: the first time there is nothing in the cache. Chunks never written cost nothing.
    times = max(1.0, rows * entry.chunks_across * (1 - cached_share(entry)) / entry.chunks)
    return DatasetCost(
        path=entry.path,
        chunks=times * stored,
        times_read=times,
        read_nbytes=times * entry.stored_nbytes,
        decoded_nbytes=times * stored * entry.chunk_nbytes if entry.filters else 0,
    )


# --- h5stream ---------------------------------------------------------------------------------------------


def stream_costs(
    layout: SampleLayout, order: EpochOrder, entries: Sequence[DatasetEntry], *, memory_budget: int
) -> tuple[DatasetCost, ...]:
    """Plan the first epoch's reads with the engine's own plan, and add them up for each dataset of the layout.

    The memory budget decides which datasets are kept.
    """
    kept = datasets_to_keep(layout, memory_budget)
    costs = []
    for number, (parts, entry) in enumerate(zip(layout.datasets, entries, strict=True)):
        if number in kept:
            whole = Ranges(begins=np.zeros(1, dtype=np.int64), ends=np.array([layout.rows], dtype=np.int64))
            total = planned(parts[0], [whole], entry)
        else:
            windows, scale = _some_windows(order, parts[0])
            total = planned(parts[0], windows, entry) * scale
        stored = _stored_chunks(parts[0])
        costs.append(
            DatasetCost(
                path=entry.path,
                chunks=float(total[0]),
                times_read=float(total[0]) / stored if stored else 0.0,
                read_nbytes=float(total[1]),
                decoded_nbytes=float(total[2]),
                gap_nbytes=float(total[3]),
                kept=number in kept,
            )
        )
    return tuple(costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Runs of rows: begins and ends, ascending."""

    begins: Ints
    ends: Ints


def _stored_chunks(part: DatasetPart) -> int:
    if part.index is None:
        return -(-part.rows // part.chunk_rows)
    wanted = {piece.number for piece in part.pieces}
    across = part.index.columns
    if len(wanted) == across:
        return len(part.index.numbers)
    return int(np.isin(part.index.numbers % across, list(wanted)).sum())


def _some_windows(order: EpochOrder, part: DatasetPart) -> tuple[list[Ranges], float]:
    """Return the epoch's windows, or evenly spaced ones of a long epoch and what stands for how many."""
    count = len(order.window_edges) - 1
    chunks = max(order.blocks.count, -(-part.rows // part.chunk_rows) * len(part.pieces))
    taken = min(count, max(1, count * PLANNED_CHUNKS // max(1, chunks)))
    # The last of each stretch: the first windows of an epoch are small and not like the others.
    numbers = [(k + 1) * count // taken - 1 for k in range(taken)]
    windows = [Ranges(begins=begins, ends=ends) for begins, ends in map(order.window_ranges, numbers)]
    rows = sum(int((w.ends - w.begins).sum()) for w in windows)
    return windows, order.rows / max(1, rows)


def planned(part: DatasetPart, windows: Sequence[Ranges], entry: DatasetEntry) -> NDArray[np.float64]:
    """Add up chunks, bytes read and bytes decoded over windows."""
    if not part.pieces:  # rows without elements
        return np.zeros(4)
    if part.access == DIRECT:
        return _read_in_part(part, windows)
    total = np.zeros(4)
    for window in windows:
        rows = _rows_at_edges(window, part)
        nothing = np.zeros_like(rows)
        placement = Placement(rows=rows, batch=nothing, within=nothing)
        if part.index is None:
            total += _through_h5py(placement, part, entry)
            continue
        for task in Chunks(part, (), ChunkTask, LOCAL_GAP_NBYTES).plan(placement, TASK_NBYTES):
            chunks, fetched = int((task.entry != MISSING).sum()), sum(task.ranges().nbytes)
            total += chunks, fetched, chunks * part.chunk_nbytes, fetched - int(task.nbytes.sum())
    return total


def _read_in_part(part: DatasetPart, windows: Sequence[Ranges]) -> NDArray[np.float64]:
    """Count what is read where nothing is decoded: rows, not chunks; the latter as if rows of one came together."""
    reach, rows, along, stretches = reach_of(part), 0, 0, 0
    for window in windows:
        between = window.begins[1:] - window.ends[:-1]
        near = between[(between + 1) * reach.stride - int(reach.extents[:, 2].min()) <= LOCAL_GAP_NBYTES]
        rows += int((window.ends - window.begins).sum())
        along += int(near.sum())
        stretches += len(window.begins) - len(near)
    nbytes = reach.nbytes_of(rows + along, stretches)
    share = _stored_chunks(part) / max(1, len(part.pieces) * -(-part.rows // part.chunk_rows))
    chunks = len(part.pieces) * rows / part.chunk_rows
    return share * np.array([chunks, nbytes, 0, max(0, nbytes - rows * reach.row_nbytes)])


def _rows_at_edges(window: Ranges, part: DatasetPart) -> Ints:
    """Return the first and last row of each chunk in each run: all that a plan's reads depend on."""
    size = part.chunk_rows
    first = -(-window.begins // size)
    counts = np.maximum(0, (window.ends - 1) // size - first + 1)
    starts = np.cumsum(counts) - counts
    edges = (np.repeat(first - starts, counts) + np.arange(int(counts.sum()), dtype=np.int64)) * size
    before = edges[~np.isin(edges, window.begins)] - 1
    return np.unique(np.concatenate([window.begins, window.ends - 1, edges, before]))


def _through_h5py(placement: Placement, part: DatasetPart, entry: DatasetEntry) -> tuple[float, float, float, float]:
    """Give chunks, bytes read, bytes decoded, and bytes between chunks of rows that h5py reads.

    Libhdf5 decodes whole chunks; what they take in the file is known on average only.
    """
    ours, edges, numbers = placement.in_chunks(part)
    spans = ours.rows[edges[1:] - 1] - ours.rows[edges[:-1]] + 1
    raw = len(numbers) * part.chunk_nbytes if entry.filters else int(spans.sum()) * part.stored_row_nbytes
    share = entry.stored_nbytes / max(1, entry.raw_nbytes)
    return len(numbers), raw * min(1.0, share), raw if entry.filters else 0, 0

"""What shuffled batches of some fields cost: by one row at a time through h5py, and by the engine's own plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.advice.layout_advice import Advice, budget_advice, layout_advice
from h5stream.advice.listing import DatasetEntry, describe_dataset
from h5stream.engine.budget import Sizing
from h5stream.engine.footprint import TASK_NBYTES, Footprint
from h5stream.engine.landing.chunks import Chunks
from h5stream.engine.landing.kept import datasets_to_keep
from h5stream.engine.landing.unfiltered import reach_of
from h5stream.engine.plan import Placement
from h5stream.errors import BudgetError, H5StreamError
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings
from h5stream.order.quality import forecast
from h5stream.storage.codecs import DecodeError
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart, SampleLayout
from h5stream.storage.source import LOCAL_GAP_NBYTES, SourceIdentity
from h5stream.units import count_text, counted, names_text, text_of_bytes

PLANNED_CHUNKS = 400_000
"""Chunks that are planned at most, about a second of work; of longer epochs, evenly spaced windows are taken."""

ASSUMED_BYTES_PER_S = 1e9
"""Bytes a second that one thread reads, or decodes where no rate was measured: a fast disk, and gzip."""

KINDS_EXPLAINED = 4
"""Kinds of datasets that get a sentence."""

# Below this an amplification is edge chunks and rounding, and not worth a sentence.
_NOTABLE = 1.05

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost:
    """What one batch costs, averaged over an epoch."""

    chunks: float  # chunks that are fetched for it
    read_nbytes: float
    decoded_nbytes: float  # bytes read from the file, and bytes that filters give
    read_amplification: float | None
    """Bytes read for each stored byte of the batch's own rows: 1 is ideal, 1,000 means that 999 of 1,000 bytes are read
    for nothing. None where nothing is stored."""
    decode_amplification: float | None  # the same for decoded bytes. None where there is nothing to decode


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCost:
    """What an epoch takes from one dataset."""

    path: str
    chunks: float  # chunks that are fetched; one that several windows need counts for each
    times_read: float  # how often each stored chunk is fetched in an epoch: 1 is ideal
    read_nbytes: float
    decoded_nbytes: float  # bytes read from the file, and bytes that filters give
    gap_nbytes: float = 0.0
    """Of the bytes read, those that lie between chunks and are read along: cheaper than another system call."""
    kept: bool = False  # whether it is small enough to be read once and kept in memory; later epochs then cost nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """How the first epoch is cut and mixed."""

    block_rows: int
    blocks: int  # rows of a block, the unit of the coarse shuffle, and blocks of the file
    window_rows: int
    windows: int
    """Rows of the largest window, which are shuffled with one another, and windows of the epoch. The first ones are
    smaller, so that the first batch comes early."""
    blocks_per_window: int  # distinct blocks in the largest window: what matters for learning. High is good
    blocks_per_batch: float
    blocks_per_batch_full: float  # distinct blocks in a batch, and what a full shuffle would give
    mixing_score: float
    """1 where batch means of the row number scatter as under a full shuffle, towards 0 where each batch sees one
    stretch of the file. A low score harms only where neighbouring rows resemble each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    """What comes before an epoch's first batch."""

    window_rows: int  # rows of the first window: its batches come when all of it is read
    read_nbytes: float
    decoded_nbytes: float  # bytes to read, and bytes that filters give of them, in the first epoch
    seconds: float
    """About how long that takes in the first epoch of a process; where epochs follow one another, the later ones' first
    window is read during the epoch before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """What shuffled batches of some fields cost."""

    fields: tuple[str, ...]
    chosen_by: str
    """``"named"`` by the user, ``"root"`` for the root's datasets, ``"rows"`` for the largest group of equal rows."""
    rows: int
    row_nbytes: int  # rows of an epoch, and bytes of one in a batch
    batch_size: int
    batch_rows: int  # as asked for, and rows that a full batch really has
    batch_nbytes: int
    needed_read_nbytes: float
    needed_decoded_nbytes: float
    """What the batch's own rows take in the file, and once decoded: the least that any reader could do."""
    naive: BatchCost
    ours: BatchCost  # a batch read one row at a time through h5py, and by h5stream, both averaged over the first epoch
    datasets: tuple[DatasetCost, ...]  # an epoch of h5stream's, dataset by dataset
    shuffle: Shuffle
    memory_nbytes: int
    memory_budget: int
    threads: int  # bytes that slots, windows and scratch take at most; what they may take; reader threads
    kept_rows_nbytes: int  # of it, decoded rows that stay there, so that later epochs gather them
    decode_rows_per_s: float | None
    """Rows a second that undoing filters allows on all threads, timed on some of the file's own chunks. An upper limit:
    reading and copying come on top. None where nothing is decoded in every epoch."""
    first_batch: FirstBatch  # what must be read before the first batch, and about how long that takes
    notice: str  # said where the budget makes the window smaller than wished
    naive_words: tuple[str, ...]
    our_words: tuple[str, ...]  # the arithmetic, a step a line


def cost_sample(
    layout: SampleLayout,
    entries: Sequence[DatasetEntry],
    *,
    fields: tuple[str, ...],
    chosen_by: str,
    batch_size: int,
    memory_budget: int,
    threads: int,
) -> tuple[SampleCost, tuple[Advice, ...]]:
    """Work out what shuffled batches of a layout cost, and what of its storage costs more than it must.

    Where the budget is too small, the one that would do is taken, and advised.
    """
    stored = _stored_as(layout, entries)
    size, too_small = _window_size(layout, batch_size, memory_budget, threads)
    budget = too_small.needed if too_small else memory_budget
    order = _order_of(layout, batch_size, size)
    batch_rows = min(batch_size, layout.rows)
    costs, rates = stream_costs(layout, order, stored, memory_budget=budget), _decode_rates(layout)
    shuffle = _shuffle(order, min(layout.block_rows[0], layout.rows))
    ours, naive = batch_cost(costs, stored, batch_rows), batch_cost([naive_cost(e) for e in stored], stored, batch_rows)
    sample = SampleCost(
        fields=fields,
        chosen_by=chosen_by,
        rows=layout.rows,
        row_nbytes=layout.row_nbytes,
        batch_size=batch_size,
        batch_rows=batch_rows,
        batch_nbytes=batch_rows * layout.row_nbytes,
        needed_read_nbytes=sum(e.stored_nbytes for e in stored) * batch_rows / layout.rows,
        needed_decoded_nbytes=sum(e.written_nbytes for e in stored if e.filters) * batch_rows / layout.rows,
        naive=naive,
        ours=ours,
        datasets=costs,
        shuffle=shuffle,
        memory_nbytes=size.needed_nbytes,
        memory_budget=budget,
        kept_rows_nbytes=size.kept_rows_nbytes,
        threads=size.threads,
        decode_rows_per_s=_decode_rows_per_s(layout.rows, costs, rates, threads),
        first_batch=predict_first_batch(costs, rates, order, threads),
        notice=size.notice,
        naive_words=naive_in_words(stored),
        our_words=ours_in_words(stored, costs, order, leading=layout.leading[0].path),
    )
    advice = layout_advice(
        stored,
        costs,
        rates,
        block_rows=shuffle.block_rows,
        batch_rows=batch_rows,
        # A window of all rows is as good as it gets, however few blocks there are.
        blocks_per_window=shuffle.blocks_per_window if size.window_rows < layout.rows else shuffle.blocks,
        blocks=shuffle.blocks,
    )
    return sample, budget_advice(too_small) + advice


def _stored_as(layout: SampleLayout, entries: Sequence[DatasetEntry]) -> tuple[DatasetEntry, ...]:
    """Return the layout's datasets as they are stored, in its order; a soft link's may not be listed."""
    by_path = {entry.path: entry for entry in entries}
    first, external = [parts[0] for parts in layout.datasets], layout.allow_external
    return tuple(
        (by_path.get(part.path) if part.file == 0 else None)
        or describe_dataset(layout.files[part.file].path, part.path, allow_external=external)
        for part in first
    )


def _window_size(
    layout: SampleLayout, batch_size: int, budget: int, threads: int
) -> tuple[Footprint, BudgetError | None]:
    """Size the window as the loader would; where the budget is too small, with the one that would do."""
    error, batch_size = None, min(batch_size, layout.rows)  # as the loader has slots
    while True:
        # With more memory more is kept, so what a refusal names is asked for again.
        try:
            sizing = Sizing(layout=layout, batch_rows=batch_size, memory_budget=budget, threads=threads)
            size = sizing.fitting("auto")
        except BudgetError as refused:
            error = BudgetError(str(refused), needed=refused.needed, budget=error.budget if error else budget)
            budget = refused.needed
        else:
            return size, error


def _order_of(layout: SampleLayout, batch_size: int, size: Footprint) -> EpochOrder:
    """Return the first epoch's order."""
    rows, first_rows = size.window_rows, size.first_window_rows
    settings = OrderSettings(batch_size=batch_size, window_rows=rows, first_window_rows=first_rows)
    return EpochOrder(make_blocks(layout.file_starts, layout.block_rows), settings)


def _shuffle(order: EpochOrder, block_rows: int) -> Shuffle:
    quality = forecast(order)
    windows = len(order.window_edges) - 1
    return Shuffle(
        block_rows=block_rows,
        blocks=order.blocks.count,
        window_rows=int(np.diff(order.window_edges).max()),
        windows=windows,
        blocks_per_window=max(len(order.window_ranges(number)[0]) for number in range(windows)),
        blocks_per_batch=quality.blocks_per_batch,
        blocks_per_batch_full=quality.blocks_per_batch_full,
        mixing_score=quality.score,
    )


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


def _decode_rates(layout: SampleLayout) -> tuple[float | None, ...]:
    """Time each dataset's filters, all together for a second at most."""
    seconds = min(0.05, 1.0 / len(layout.datasets))
    return tuple(decode_rate(parts[0], layout.files[parts[0].file], seconds=seconds) for parts in layout.datasets)


def _decode_rows_per_s(
    rows: int, costs: Sequence[DatasetCost], rates: Sequence[float | None], threads: int
) -> float | None:
    streamed = [(cost, rate) for cost, rate in zip(costs, rates, strict=True) if rate and not cost.kept]
    seconds = sum(cost.decoded_nbytes / rate for cost, rate in streamed)
    if sum(cost.decoded_nbytes for cost, _ in streamed) < rows:
        return None  # hardly anything was ever written, which says nothing about the rest
    return threads * rows / seconds if seconds else None


def predict_first_batch(
    costs: Sequence[DatasetCost], rates: Sequence[float | None], order: EpochOrder, threads: int
) -> FirstBatch:
    """Predict the time to the first batch, from an epoch's costs and each dataset's decoded bytes a second and thread.

    What is kept is read in whole first, by one thread; where no rate was measured, one is assumed.
    """
    window_rows = int(order.window_edges[1] - order.window_edges[0])
    read = decoded = seconds = 0.0
    for cost, rate in zip(costs, rates, strict=True):
        share, hands = (1.0, 1) if cost.kept else (window_rows / max(1, order.rows), max(1, threads))
        read, decoded = read + share * cost.read_nbytes, decoded + share * cost.decoded_nbytes
        work_s = cost.read_nbytes / ASSUMED_BYTES_PER_S + cost.decoded_nbytes / (rate or ASSUMED_BYTES_PER_S)
        seconds += share * work_s / hands
    return FirstBatch(window_rows=window_rows, read_nbytes=read, decoded_nbytes=decoded, seconds=seconds)


def decode_rate(part: DatasetPart, identity: SourceIdentity, *, chunks: int = 8, seconds: float = 0.05) -> float | None:
    """Time how fast one thread undoes the filters of a dataset, on some of its own chunks."""
    index = part.index
    if part.access != DECODED or index is None or len(index.numbers) == 0:
        return None
    source, scratch = identity.open(), DecodeScratch()
    spent = done = 0.0
    count = len(index.numbers)
    try:
        # The first is not timed: a running epoch has its buffers and its code in place.
        for turn, place in enumerate([0, *sorted({k * count // chunks for k in range(chunks)})]):
            # This thread's own time: what else runs here says nothing about the file.
            begin = time.thread_time()
            stored = scratch.buffer("read", int(index.nbytes[place]))
            source.read_many((int(index.offset[place]),), (stored.data,))
            mask = int(index.filter_mask[place])
            part.pipeline.decode(stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=scratch)
            if turn:
                done += part.chunk_nbytes
                spent += time.thread_time() - begin
            if spent > seconds:
                break
    except (DecodeError, H5StreamError):
        return None
    finally:
        source.close()
    return done / spent if spent else None


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
        for task in Chunks(part, (), LOCAL_GAP_NBYTES).plan(placement, TASK_NBYTES):
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
    """Count what h5py reads: whole chunks are decoded; what they take in the file is known on average only."""
    ours, edges, numbers = placement.in_chunks(part)
    spans = ours.rows[edges[1:] - 1] - ours.rows[edges[:-1]] + 1
    raw = len(numbers) * part.chunk_nbytes if entry.filters else int(spans.sum()) * part.stored_row_nbytes
    share = entry.stored_nbytes / max(1, entry.raw_nbytes)
    return len(numbers), raw * min(1.0, share), raw if entry.filters else 0, 0


# --- in words -------------------------------------------------------------------------------------------


def naive_in_words(entries: Sequence[DatasetEntry]) -> tuple[str, ...]:
    """Say what one row at a time costs; datasets that are stored alike share a sentence."""
    lines = [f"{names_text(n)}: {text}" for text, n in _alike((e.path, _naive(e)) for e in entries)]
    if len(lines) > KINDS_EXPLAINED:
        lines[KINDS_EXPLAINED:] = [f"and likewise for {len(lines) - KINDS_EXPLAINED:,} more kinds of datasets"]
    if any(cached_share(entry) for entry in entries):
        lines.append(
            'that is with the dataset kept open: file["x"][i] opens it anew, with an empty cache, for each row'
        )
    return tuple(lines)


def _alike(sentences: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    by_text: dict[str, list[str]] = {}
    for name, text in sentences:
        if text:
            by_text.setdefault(text, []).append(name)
    return list(by_text.items())


def _naive(entry: DatasetEntry) -> str:
    if not entry.chunks:
        return "not chunked, so a row is read by itself"
    across, chunk, row = entry.chunks_across, text_of_bytes(entry.chunk_nbytes), text_of_bytes(entry.row_nbytes)
    if not entry.filters and entry.chunk_nbytes > entry.cache_nbytes:
        return "chunks without a filter and larger than h5py's cache, so a row is read by itself"
    verb = "decoded" if entry.filters else "read"
    pieces = f"a chunk of {chunk} is" if across == 1 else f"{across:,} chunks of {chunk} are"
    times = across * entry.chunk_nbytes / max(1, entry.row_nbytes)
    more = f", {count_text(times)} times as much" if times > _NOTABLE else ""
    return f"{pieces} {verb} for one row of {row}{more}; {_cache(entry)}"


def _cache(entry: DatasetEntry) -> str:
    share, cache = cached_share(entry), text_of_bytes(entry.cache_nbytes)
    if share == 1:
        held = "it, so it" if entry.chunks == 1 else f"all {entry.chunks:,} of them, so each"
        return f"but h5py's chunk cache ({cache}) holds {held} is fetched once in each worker"
    if share == 0:
        return f"none fits h5py's chunk cache ({cache})"
    return f"h5py's chunk cache ({cache}) spares that for {share:.1%} of the rows, as it holds so many of the chunks"


def ours_in_words(
    entries: Sequence[DatasetEntry], costs: Sequence[DatasetCost], order: EpochOrder, *, leading: str
) -> tuple[str, ...]:
    """Say what h5stream does instead, and what of it is not ideal."""
    block_rows = int(order.blocks.edges[1])
    lines = []
    chunks, batches = sum(cost.chunks for cost in costs if not cost.kept), counted(order.batches, "batch", "batches")
    if chunks:
        lines.append(
            "each chunk is fetched once for all its rows that a window holds: "
            f"{count_text(chunks)} fetched / {batches} = {count_text(chunks / order.batches)} a batch"
        )
    kept = [cost.path for cost in costs if cost.kept]
    if kept:
        lines.append(f"{names_text(kept)}: small, so read once and kept in memory; later epochs read nothing of it")
    both = list(zip(entries, costs, strict=True))
    for describe in (_straddling(block_rows, leading), _beyond):
        found = _alike((entry.path, describe(entry, cost)) for entry, cost in both)
        lines += [f"{names_text(names)}: {text}" for text, names in found]
    return (*lines, *_gaps(costs))


def _straddling(block_rows: int, leading: str) -> Callable[[DatasetEntry, DatasetCost], str]:
    def describe(entry: DatasetEntry, cost: DatasetCost) -> str:
        if cost.kept or cost.times_read < _NOTABLE:
            return ""
        return (
            f"chunks of {entry.chunk_rows or 0:,} rows lie across blocks of {block_rows:,} (the chunks of {leading}), "
            f"so each is fetched {cost.times_read:.2f} times an epoch"
        )

    return describe


def _beyond(entry: DatasetEntry, cost: DatasetCost) -> str:
    """Say where chunks hold more than the data: whole chunks are stored and decoded."""
    whole = entry.chunks * entry.chunk_nbytes
    if not cost.decoded_nbytes or whole < _NOTABLE * entry.raw_nbytes:
        return ""
    return f"chunks reach beyond the data, so {whole / max(1, entry.raw_nbytes):.2f} times as much is decoded"


def _gaps(costs: Sequence[DatasetCost]) -> Iterator[str]:
    read, gaps = sum(cost.read_nbytes for cost in costs), sum(cost.gap_nbytes for cost in costs)
    if gaps > (_NOTABLE - 1) * read:
        share = f"{gaps / read:.0%}"
        yield f"{share} of the bytes read lie between small chunks; reading on is cheaper than another system call"

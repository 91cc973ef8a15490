"""Costs of shuffled batches, read row by row and by h5stream, and properties of the layout that cost too much.

For rows, costs follow from the windows of a loader; for other samples, a window and some single samples are read.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.advice.listing import REFUSED, DatasetEntry, describe_dataset
from h5stream.base import limits
from h5stream.base.names import is_address
from h5stream.base.texts import count_text, counted, names_text, text_of_bytes
from h5stream.dataset.dataset import H5Dataset, read_counted
from h5stream.engine.counters import Tally
from h5stream.engine.footprint import Footprint
from h5stream.engine.plan.unfiltered import RowTable
from h5stream.engine.reader import default_threads
from h5stream.engine.sizing import Sizing
from h5stream.errors import H5StreamError
from h5stream.order.epoch import EpochOrder, OrderSettings
from h5stream.order.quality import forecast, is_weak
from h5stream.samples.ragged import DENSE, STACKED
from h5stream.storage.decode.filters import DecodeError, DecodeScratch
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.layout.access import DECODED, DIRECT, VIA_H5PY
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.event_loop import CONCURRENCY
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.one_file import LOCAL_GAP_NBYTES
from h5stream.storage.source.stores import is_unsigned

PLANNED_CHUNKS = (
    400_000  # the most chunks to plan, about a second of work; for longer epochs, only some windows are planned
)
_RANGES, _RANGE_NBYTES = 8, 1 << 20  # ranges of an object to time a store with
ASSUMED_BYTES_PER_S = 1e9  # rate of one thread that reads, or decodes if no rate was measured
KINDS_EXPLAINED = 4  # kinds of datasets that get a sentence each
_NOTABLE = 1.05  # below this an amplification is edge chunks and rounding, and not worth a sentence

# Below this, finding, fetching and handing over a chunk costs more than decoding it (50 us at 1.3 GB/s).
TINY_NBYTES = 64 * 1024
HUGE_NBYTES = 16 * 1024 * 1024  # above this, a window of 1 GiB holds fewer than 64 chunks to shuffle
MANY_CHUNKS = 256  # fewer chunks cost too little to mention, however small they are
MANY_ACROSS = 8  # a row in so many chunks costs a lookup and a copy in each
STRADDLING = 1.5  # fetches of each chunk per epoch above which different chunk lengths are mentioned
SLOW_DECODE = 400e6  # bytes a second of one thread; gzip gives about 1.3e9, lz4 1.8e9, bzip2 well under 1e8

ALONE = 32  # samples that are read one at a time
PIECE_NBYTES = 32 << 20  # bytes of a window's samples that are read at a time
SECONDS = 3.0  # the longest time to read a window; the rest is assumed to cost the same

EVERY_EPOCH, ONCE = "every epoch", "first batch"

Ints = NDArray[np.int64]
Runs = tuple[Ints, Ints]  # runs of rows: begins and ends, ascending


class FetchCost(NamedTuple):
    """Chunks and bytes that are fetched."""

    chunks: float = 0.0
    read_nbytes: float = 0.0  # from the file
    decoded_nbytes: float = 0.0  # output of filters
    gap_nbytes: float = 0.0  # the part of `read_nbytes` between chunks: cheaper than another system call

    @classmethod
    def sum(cls, every: Iterable[FetchCost]) -> FetchCost:
        """Return the sum of several costs."""
        return cls(*map(sum, zip(*every, strict=True)))

    def times(self, factor: float) -> FetchCost:
        """Return the cost multiplied by a factor."""
        return FetchCost(*(factor * one for one in self))


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The average cost of a batch in an epoch."""

    chunks: float  # fetched chunks
    read_nbytes: float  # from the file
    decoded_nbytes: float  # output of filters
    read_amplification: float | None  # bytes read per stored byte of its rows: 1 is ideal. None if they have none
    decode_amplification: float | None  # the same for decoded bytes. None if there is nothing to decode

    @classmethod
    def of(cls, taken: FetchCost, least: FetchCost) -> BatchCost:
        """Return the cost of what is fetched, compared to the least possible cost."""
        return cls(
            taken.chunks,
            taken.read_nbytes,
            taken.decoded_nbytes,
            taken.read_nbytes / least.read_nbytes if least.read_nbytes else None,
            taken.decoded_nbytes / least.decoded_nbytes if least.decoded_nbytes else None,
        )


@dataclass(frozen=True, slots=True)
class DatasetCost:
    """The cost of reading one dataset for an epoch."""

    path: str
    chunks: float  # fetched chunks, counted once per window that needs them
    times_read: float  # how often each stored chunk is fetched in an epoch: 1 is ideal
    read_nbytes: float  # from the file
    decoded_nbytes: float  # output of filters
    gap_nbytes: float  # the part of `read_nbytes` between chunks: cheaper than another system call
    kept: bool  # whether it is small enough to be read once and kept in memory; later epochs then cost nothing

    @property
    def taken(self) -> FetchCost:
        """The total cost of fetching it."""
        return FetchCost(self.chunks, self.read_nbytes, self.decoded_nbytes, self.gap_nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """Blocks, windows and mixing of the first epoch."""

    block_rows: int  # rows of a block, the unit of the coarse shuffle
    blocks: int  # of the file
    window_rows: int  # rows of the largest window, which are shuffled with one another; the first ones are smaller
    windows: int  # of the epoch
    blocks_per_window: int  # distinct blocks in the largest window: what matters for learning. High is good
    blocks_per_batch: float  # distinct blocks in a batch
    blocks_per_batch_full: float  # what a full shuffle would give
    mixing_score: float
    """1 if batch means of the row number scatter as under a full shuffle, towards 0 if each batch sees one stretch of
    the file. A low score only harms if neighbouring rows resemble each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    """The cost before the first batch of a process; later first windows are read during the epoch before."""

    window_rows: int  # rows of the first window, which must be read before its batches come
    read_nbytes: float  # to read
    decoded_nbytes: float  # output of filters
    seconds: float  # estimated duration


class StoredDataset(NamedTuple):
    """A dataset, its cost per epoch, and the decoding rate of one thread in bytes per second."""

    entry: DatasetEntry
    cost: DatasetCost
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatch:
    """The size of a full batch."""

    size: int  # rows, as asked for
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Memory and threads of a loader."""

    memory_nbytes: int  # the most memory for slots, windows and scratch
    memory_budget: int  # the limit for these
    kept_rows_nbytes: int  # the part of the memory for decoded rows that later epochs reuse
    threads: int  # decoding threads
    notice: str  # a note if the budget makes the window smaller than wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """Costs of shuffled batches of some fields."""

    fields: tuple[str, ...]
    chosen_by: str  # "named" by the user, "root" for the root's datasets, "rows" for the largest group of equal rows
    rows: int  # of an epoch
    row_nbytes: int  # of one in a batch
    batch: FullBatch
    needed: FetchCost  # stored and decoded bytes of the batch's own rows: the least that any reader could read
    naive: BatchCost  # a batch read one row at a time through h5py
    ours: BatchCost  # by h5stream, averaged over the first epoch
    datasets: tuple[DatasetCost, ...]  # an epoch of h5stream's, dataset by dataset
    shuffle: Shuffle
    resources: Resources
    decode_rows_per_s: float | None
    """Rows per second that all threads can decode, timed on some of the file's own chunks: an upper limit, without
    reading and copying. None unless each epoch decodes."""
    first_batch: FirstBatch
    naive_words: tuple[str, ...]
    our_words: tuple[str, ...]  # the derivation, one step per line

    def to_dict(self) -> dict[str, object]:
        """Return it as plain containers for JSON, on one level."""
        plain = asdict(self)
        batch, resources = plain.pop("batch"), plain.pop("resources")
        plain |= {f"batch_{name}": value for name, value in batch.items()} | resources
        del plain["needed"]
        return plain | {
            "needed_read_nbytes": self.needed.read_nbytes,
            "needed_decoded_nbytes": self.needed.decoded_nbytes,
        }


@dataclass(frozen=True, slots=True)
class Advice:
    """A property of the layout that costs more than necessary."""

    key: str  # a stable name of the rule
    fields: tuple[str, ...]  # the datasets that it is about
    problem: str  # what is wrong, with its number
    way_out: str
    costs: str = EVERY_EPOCH  # or ONCE, for datasets that are read once and kept in memory
    repack: bool = False  # whether ``h5stream repack`` removes it


def cost_sample(
    dataset: H5Dataset,
    entries: Sequence[DatasetEntry],
    fields: tuple[str, ...],
    chosen_by: str,
    batch_size: int,
    memory_budget: int,
    threads: int | None,
) -> tuple[SampleCost, tuple[Advice, ...]]:
    """Compute the cost of shuffled batches of rows, with a budget that suffices, and advice to lower it."""
    layout, batch_rows = dataset.layout, min(batch_size, dataset.layout.rows)  # as in the loader's slots
    size, order = _windows(dataset, batch_size, memory_budget, threads)
    stored = _stored(dataset, entries, order, size.kept)
    every, share = [one.entry for one in stored], batch_rows / layout.rows
    heap = sum(part.rows * part.heap.row_nbytes for part, *_ in layout.datasets if part.heap is not None)
    read, decoded = (sum(e.stored_nbytes for e in every), sum(e.written_nbytes for e in every if e.filters))
    needed, naive = FetchCost(0, heap + read, decoded).times(share), [_naive(entry) for entry in every]
    one_by_one = FetchCost.sum([FetchCost(read_nbytes=heap), *(taken for taken, _ in naive)])
    together = FetchCost.sum(one.cost.taken for one in stored)
    shuffle, threads = _shuffle(order), min(size.threads, limits.cpus() if layout.is_far else size.threads)
    sample = SampleCost(
        fields=fields,
        chosen_by=chosen_by,
        rows=layout.rows,
        row_nbytes=layout.row_nbytes,
        batch=FullBatch(size=batch_size, rows=batch_rows, nbytes=batch_rows * layout.row_nbytes),
        needed=needed,
        naive=BatchCost.of(one_by_one.times(share), needed),
        ours=BatchCost.of(together.times(share), needed),
        datasets=tuple(one.cost for one in stored),
        shuffle=shuffle,
        resources=Resources(
            memory_nbytes=size.needed_nbytes,
            memory_budget=size.memory_budget,
            kept_rows_nbytes=size.kept_rows_nbytes,
            threads=threads,
            notice=size.notice,
        ),
        decode_rows_per_s=_decode_rows_per_s(layout.rows, stored, threads),
        first_batch=_first_batch(stored, order, threads, layout),
        naive_words=_naive_words(every, [text for _, text in naive]),
        our_words=tuple(_our_words([one.cost for one in stored], order.batches, is_far=layout.is_far)),
    )
    # A window of all rows is ideal, however few blocks there are.
    is_few = size.window_rows < layout.rows and is_weak(shuffle.blocks_per_window, shuffle.blocks)
    advice = [*_layout_advice(stored, shuffle, batch_rows, is_few)]
    if size.memory_budget > memory_budget:
        may, least = text_of_bytes(memory_budget), text_of_bytes(size.memory_budget)
        problem = f"the loader may take {may} here and would refuse: it needs {least}"
        way_out = f"pass memory_budget={size.memory_budget} or more, or a smaller batch_size"
        advice.insert(0, Advice("budget_too_small", (), problem, way_out))
    return sample, tuple(advice)


def _windows(
    dataset: H5Dataset, batch_size: int, memory_budget: int, threads: int | None
) -> tuple[Footprint, EpochOrder]:
    """Return the footprint and the order of a loader, with a larger budget if the given one is too small."""
    size = Sizing(
        layout=dataset.layout,
        batch_rows=min(batch_size, len(dataset)),
        memory_budget=memory_budget,
        most_budget=sys.maxsize,
        threads=threads or default_threads(dataset.layout),
        threads_asked=threads is not None,
    ).fitting("auto")
    blocks = dataset.blocks_for(True, seed=0)
    rows, first_rows = size.window_rows, size.first_window_rows
    return size, EpochOrder(
        blocks, OrderSettings(batch_size=batch_size, window_rows=rows, first_window_rows=first_rows)
    )


def _stored(
    dataset: H5Dataset, entries: Sequence[DatasetEntry], order: EpochOrder, kept: Collection[int]
) -> list[StoredDataset]:
    """Return the stored form and first-epoch cost of each dataset; `kept` numbers those that stay in memory."""
    layout, by_path, stored = dataset.layout, {entry.path: entry for entry in entries}, list[StoredDataset]()
    for number, (part, *_) in enumerate(layout.datasets):
        source, whole = layout.files[part.file], (np.zeros(1, dtype=np.int64), np.array([part.rows]))
        entry = by_path.get(part.path) if part.file == 0 else None  # the target of a soft link may not be listed
        entry = entry or describe_dataset(source.path, part.path, allow_external=layout.allow_external)
        windows, scale = ([whole], 1.0) if number in kept else _some_windows(order, part)
        chunks = _fetched(part, *whole, entry).chunks
        if part.access == DIRECT and part.pieces:
            taken = _read_in_part(part, windows, chunks)
        else:
            taken = FetchCost.sum(_fetched(part, begins, ends, entry) for begins, ends in windows)
        fetched, read, decoded, gaps = taken.times(scale)
        cost = DatasetCost(entry.path, fetched, fetched / max(1, chunks), read, decoded, gaps, number in kept)
        stored.append(
            StoredDataset(entry, cost, decode_rate(part, source, seconds=min(0.05, 1.0 / len(layout.datasets))))
        )
    return stored


def _shuffle(order: EpochOrder) -> Shuffle:
    quality, windows = forecast(order), len(order.window_edges) - 1
    return Shuffle(
        block_rows=int(order.blocks.edges[1]),
        blocks=order.blocks.count,
        window_rows=int(np.diff(order.window_edges).max()),
        windows=windows,
        blocks_per_window=max(len(order.window_ranges(number)[0]) for number in range(windows)),
        blocks_per_batch=quality.blocks_per_batch,
        blocks_per_batch_full=quality.blocks_per_batch_full,
        mixing_score=quality.score,
    )


def _decode_rows_per_s(rows: int, stored: Sequence[StoredDataset], threads: int) -> float | None:
    streamed = [(cost.decoded_nbytes, rate) for _, cost, rate in stored if rate and not cost.kept]
    # Too little written data does not represent the rest.
    enough = sum(nbytes for nbytes, _ in streamed) >= max(1, rows)
    return threads * rows / sum(nbytes / rate for nbytes, rate in streamed) if enough else None


def store_rate(identity: SourceIdentity) -> tuple[float, float]:
    """Time a store: return the seconds until a small range arrives, and the rate of several larger ranges together."""
    source, size = identity.open(), sum(identity.file_sizes)
    nbytes = min(_RANGE_NBYTES, size // _RANGES)

    def took(offsets: Sequence[int], nbytes: int) -> float:
        begin = time.perf_counter()
        source.read_many(offsets, [memoryview(bytearray(nbytes)) for _ in offsets])
        return time.perf_counter() - begin

    wait_s = min(took([0], min(8, size)) for _ in range(2))
    seconds = took([k * (size // _RANGES) for k in range(_RANGES)], nbytes)
    return wait_s, _RANGES * nbytes / max(seconds - wait_s, seconds / 10)


def _first_batch(stored: Sequence[StoredDataset], order: EpochOrder, threads: int, layout: SampleLayout) -> FirstBatch:
    """Predict the time to the first batch; kept datasets are read whole first, by one thread."""
    window_rows = int(order.window_edges[1] - order.window_edges[0])
    read = decoded = seconds = 0.0
    store = next((store_rate(one) for one in layout.files if is_address(one.path)), None)
    for _, cost, rate in stored:
        share, hands = (1.0, 1) if cost.kept else (window_rows / max(1, order.rows), max(1, threads))
        read, decoded = read + share * cost.read_nbytes, decoded + share * cost.decoded_nbytes
        work_s = cost.decoded_nbytes / (rate or ASSUMED_BYTES_PER_S)
        if store is None:
            work_s += cost.read_nbytes / ASSUMED_BYTES_PER_S
        else:  # requests wait concurrently, and share the bandwidth
            seconds += store[0] * max(1.0, share * cost.chunks / CONCURRENCY) + share * cost.read_nbytes / store[1]
        seconds += share * work_s / hands
    return FirstBatch(window_rows=window_rows, read_nbytes=read, decoded_nbytes=decoded, seconds=seconds)


def decode_rate(part: DatasetPart, identity: SourceIdentity, *, chunks: int = 8, seconds: float = 0.05) -> float | None:
    """Time the decoding of a dataset in one thread, on some of its own chunks."""
    index = part.index
    if part.access != DECODED or index is None or len(index.numbers) == 0:
        return None
    source, scratch, times = identity.open(), DecodeScratch(), list[float]()
    try:
        for place in [0, *sorted({k * len(index.numbers) // chunks for k in range(chunks)})]:
            # The time of this thread alone, without other work on this machine.
            begin = time.thread_time()
            stored, mask = scratch.buffer("read", int(index.nbytes[place])), int(index.filter_mask[place])
            source.read_many((int(index.offset[place]),), (stored.data,))
            part.pipeline.decode(stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=scratch)
            times.append(time.thread_time() - begin)
            if sum(times[1:]) > seconds:
                break
    except (DecodeError, H5StreamError):
        return None
    finally:
        source.close()
    # The first is not counted: a running epoch has warm buffers and code.
    return (len(times) - 1) * part.chunk_nbytes / sum(times[1:]) if sum(times[1:]) else None


# --- one row at a time ------------------------------------------------------------------------------------


def _cached_share(entry: DatasetEntry) -> float:
    """Return the share of chunks that fit into h5py's chunk cache; chunks larger than the cache are never cached."""
    cached = min(entry.cache.nbytes // max(1, entry.chunk_nbytes), entry.cache.chunks)
    return min(1.0, cached / entry.chunks) if entry.chunks else 0.0


def _naive(entry: DatasetEntry) -> tuple[FetchCost, str]:
    """Estimate the cost of reading single rows in random order through h5py, and describe it."""
    across = entry.chunks_across
    chunks = (entry.rows or 0) * across
    if not entry.chunks or (not entry.filters and entry.chunk_nbytes > entry.cache.nbytes):
        why = "chunks without a filter and larger than h5py's cache" if entry.chunks else "not chunked"
        nbytes = entry.stored_nbytes if entry.variable_length else min(entry.stored_nbytes, entry.raw_nbytes)
        return FetchCost(chunks, nbytes), f"{why}, so a row is read by itself"
    # Each chunk is fetched at least once, as the cache begins empty. Chunks never written cost nothing.
    share = _cached_share(entry)
    times = max(1.0, chunks * (1 - share) / entry.chunks)
    fetched = times * (entry.chunks if entry.stored_chunks is None else entry.stored_chunks)
    chunk, row, cache = map(text_of_bytes, (entry.chunk_nbytes, entry.row_nbytes, entry.cache.nbytes))
    pieces = f"{across:,} chunks of {chunk} are" if across > 1 else f"a chunk of {chunk} is"
    more = across * entry.chunk_nbytes / max(1, entry.row_nbytes)
    much = f", {count_text(more)} times as much" if more > _NOTABLE else ""
    cache_note = (
        f"h5py's chunk cache ({cache}) holds {share:.1%} of the chunks, and spares that for as many of the rows"
    )
    if share in (0, 1):
        cache_note = (
            f"h5py's chunk cache ({cache}) holds {'all, so each is fetched once a worker' if share else 'none'}"
        )
    words = f"{pieces} {'decoded' if entry.filters else 'read'} for one row of {row}{much}; {cache_note}"
    return FetchCost(fetched, times * entry.stored_nbytes, fetched * entry.chunk_nbytes * bool(entry.filters)), words


# --- h5stream ---------------------------------------------------------------------------------------------


def _some_windows(order: EpochOrder, part: DatasetPart) -> tuple[list[Runs], float]:
    """Return the windows of the epoch, or evenly spaced ones of a long epoch, and the factor for the whole."""
    count = len(order.window_edges) - 1
    chunks = max(order.blocks.count, -(-part.rows // part.chunk_rows) * len(part.pieces))
    taken = min(count, max(1, count * PLANNED_CHUNKS // max(1, chunks)))
    # The last of each stretch, since the first windows of an epoch are atypically small.
    windows = [order.window_ranges((k + 1) * count // taken - 1) for k in range(taken)]
    return windows, order.rows / max(1, sum(int((ends - begins).sum()) for begins, ends in windows))


def _fetched(part: DatasetPart, begins: Ints, ends: Ints, entry: DatasetEntry) -> FetchCost:
    """Return the cost of one window: each chunk with any of its rows is fetched once."""
    if not part.pieces:  # rows without elements
        return FetchCost()
    steps = np.zeros(-(-part.rows // part.chunk_rows) + 1, dtype=np.int64)
    np.add.at(steps, begins // part.chunk_rows, 1)
    np.add.at(steps, (ends - 1) // part.chunk_rows + 1, -1)
    holds, index = steps.cumsum()[:-1] > 0, part.index
    if part.heap is not None:  # with the addresses of values, which were read when the file was opened
        rows = int((ends - begins).sum())
        address_nbytes, decoded = (rows / part.rows * nbytes for nbytes in (entry.stored_nbytes, entry.raw_nbytes))
        return FetchCost(int(holds.sum()), rows * part.heap.row_nbytes + address_nbytes, decoded * bool(entry.filters))
    if index is None:
        # h5py decodes whole chunks, whose stored size is only known on average.
        chunks, filtered = int(holds.sum()), bool(entry.filters)
        raw = chunks * part.chunk_nbytes if filtered else int((ends - begins).sum()) * part.stored_row_nbytes
        share = min(1.0, entry.stored_nbytes / max(1, entry.raw_nbytes))
        return FetchCost(chunks, raw * share, raw * filtered)
    columns = np.isin(np.arange(index.columns), [piece.number for piece in part.pieces])
    needed = np.flatnonzero(holds[index.numbers // index.columns] & columns[index.numbers % index.columns])
    needed = needed[np.argsort(index.offset[needed])]
    offset, nbytes = index.offset[needed], index.nbytes[needed]
    between = offset[1:] - offset[:-1] - nbytes[:-1]
    gaps = int(between[between <= LOCAL_GAP_NBYTES].sum())
    return FetchCost(len(needed), int(nbytes.sum()) + gaps, len(needed) * part.chunk_nbytes, gaps)


def _read_in_part(part: DatasetPart, windows: Sequence[Runs], stored_chunks: float) -> FetchCost:
    """Return the cost if rows are read without decoding; each row counts as its share of the chunks."""
    table, rows, along, stretches = RowTable.of(part), 0, 0, 0
    for begins, ends in windows:
        between = begins[1:] - ends[:-1]
        near = between[(between + 1) * table.stride - int(table.extents[:, 2].min()) <= LOCAL_GAP_NBYTES]
        rows, along = rows + int((ends - begins).sum()), along + int(near.sum())
        stretches += len(begins) - len(near)
    nbytes = table.nbytes_of(rows + along, stretches)
    share = stored_chunks / max(1, len(part.pieces) * -(-part.rows // part.chunk_rows))
    chunks = len(part.pieces) * rows / part.chunk_rows
    return FetchCost(chunks, nbytes, 0, max(0, nbytes - rows * table.row_nbytes)).times(share)


# --- in words -------------------------------------------------------------------------------------------


def _naive_words(entries: Sequence[DatasetEntry], texts: Sequence[str]) -> tuple[str, ...]:
    """Describe the cost of reading row by row; datasets that are stored the same way share a sentence."""
    by_text = defaultdict[str, list[str]](list)
    for entry, text in zip(entries, texts, strict=True):
        by_text[text].append(entry.path)
    lines = [f"{names_text(names)}: {text}" for text, names in by_text.items()]
    if len(lines) > KINDS_EXPLAINED:
        lines[KINDS_EXPLAINED:] = [f"and likewise for {len(lines) - KINDS_EXPLAINED:,} more kinds of datasets"]
    opened = 'that is with the dataset kept open: file["x"][i] opens it anew, with an empty cache, for each row'
    return (*lines, *([opened] if any(map(_cached_share, entries)) else []))


def _our_words(costs: Sequence[DatasetCost], batches: int, *, is_far: bool) -> Iterator[str]:
    """Describe the cost of reading with h5stream."""
    streamed = [cost for cost in costs if not cost.kept]
    if chunks := sum(cost.chunks for cost in streamed):
        per_batch = (
            f"{count_text(chunks)} fetched / {counted(batches, 'batch', 'batches')} = {count_text(chunks / batches)}"
        )
        yield f"each chunk is fetched once for all its rows that a window holds: {per_batch} a batch"
    if kept := [cost.path for cost in costs if cost.kept]:
        yield f"{names_text(kept)}: small, so read once and kept in memory; later epochs read nothing of it"
    if is_far and (again := sum(cost.read_nbytes for cost in streamed)):
        yield (
            f"later epochs request up to {text_of_bytes(again)} from the store again; H5Dataset(..., cache=) keeps it "
            "in a folder on a local disk"
        )


# --- advice ---------------------------------------------------------------------------------------------


_SIZE = "chunks of about 1 MiB"

# Problems of a dataset in the order of messages: the way out, and whether repacking solves it.
RULES = {
    "through_h5py, values": (
        "store the values one behind the other, and beside them where each begins: lookup=Bounds(...) takes that",
        False,
    ),
    "variable_length": ("store integer codes beside a table of names, which come as a tensor", False),
    "through_h5py": ("store it as plain numbers in chunks of about 1 MiB with lz4", True),
    "row_per_chunk": (_SIZE, True),
    "tiny_chunks": (_SIZE, True),
    "huge_chunks": (_SIZE, True),
    "split_rows": ("chunks that hold whole rows", True),
    "straddling_chunks": ("the same number of rows in the chunks of all fields, or whole multiples", True),
    "slow_filter": ("lz4, which gives about 1.7 GiB/s, or gzip with shuffle, 1.2 GiB/s", True),
}


def _broken(one: StoredDataset, block_rows: int, batch_rows: int) -> Iterator[tuple[str, str]]:
    """Yield the rules that a dataset breaks, with a description."""
    entry, cost, rate = one
    chunk, rows, across = text_of_bytes(entry.chunk_nbytes), entry.chunk_rows or 0, entry.chunks_across
    if entry.variable_length and not (entry.is_numbers_of_any_length or entry.clues.image):
        yield "variable_length", f"{entry.dtype}: values are looked up one by one, and a batch is a list, not a tensor"
        return
    if entry.variable_length or entry.access == VIA_H5PY:
        if entry.access == VIA_H5PY and (entry.variable_length or entry.layout != "compact"):
            why = f"read through h5py, under its lock and with one thread, because: {entry.reason}"
            yield f"through_h5py{', values' * entry.variable_length}", why
        return
    is_tiny = entry.chunk_nbytes < TINY_NBYTES
    if is_tiny and entry.chunks >= MANY_CHUNKS:
        a_batch = count_text(cost.chunks * batch_rows / max(1, entry.rows or 0))
        size = f"every row is a chunk of its own ({chunk})" if rows == 1 else f"{entry.chunks:,} chunks of {chunk}"
        cheap = f"below {text_of_bytes(TINY_NBYTES)} finding and fetching a chunk costs as much as decoding it"
        yield "row_per_chunk" if rows == 1 else "tiny_chunks", f"{size}, {a_batch} a batch; {cheap}"
    if entry.filters and entry.chunk_nbytes > HUGE_NBYTES:
        memory_note = f"{rows:,} rows have to be in memory for any one of them, and few fit a window"
        yield "huge_chunks", f"chunks of {chunk}: one thread decodes each, {memory_note}"
    # Chunks of one row have been reported already, and nothing is gained if a single row fills chunks.
    if across >= MANY_ACROSS and rows != 1 and entry.row_nbytes <= HUGE_NBYTES:
        yield "split_rows", f"each row is cut into {across:,} chunks, and put together from as many places"
    if entry.filters and cost.times_read > STRADDLING:
        blocks = f"the blocks of {block_rows:,} rows that are shuffled"
        times = f"so each is decoded {cost.times_read:.2f} times an epoch"
        yield "straddling_chunks", f"its chunks of {rows:,} rows lie across {blocks}, {times}"
    if rate is not None and rate < SLOW_DECODE and not is_tiny:
        yield "slow_filter", f"{entry.filters} gives {text_of_bytes(rate)}/s a thread here (timed on its own chunks)"


def _layout_advice(
    stored: Sequence[StoredDataset], shuffle: Shuffle, batch_rows: int, is_few: bool
) -> Iterator[Advice]:
    """Yield advice about the layout, with the largest dataset as the example; costs of every epoch come first."""
    together = defaultdict[tuple[str, bool], list[tuple[DatasetEntry, str]]](list)
    for one in stored:
        for rule, problem in _broken(one, shuffle.block_rows, batch_rows):
            together[rule, one.cost.kept].append((one.entry, problem))
    for kept in (False, True):
        for rule, (way_out, repack) in RULES.items():
            if members := together[rule, kept]:
                largest, problem = max(members, key=lambda member: member[0].raw_nbytes)
                if len({problem for _, problem in members}) > 1:
                    problem = f"{largest.path}, for one: {problem}"
                fields, costs = tuple(entry.path for entry, _ in members), ONCE if kept else EVERY_EPOCH
                yield Advice(rule.split(",")[0], fields, problem, way_out, costs, repack)
        if is_few and not kept:
            leading = max((one.entry for one in stored), key=lambda entry: entry.row_nbytes)
            chunks = f"chunks of {text_of_bytes(leading.chunk_nbytes or leading.row_nbytes)}"
            contents = f"a window holds {shuffle.blocks_per_window:,} of {shuffle.blocks:,} blocks ({chunks})"
            problem = f"{contents}, so the rows of a batch come from few stretches of the file"
            way_out = "a larger window= and memory_budget=, or smaller chunks"
            yield Advice("few_blocks", (leading.path,), problem, way_out, repack=leading.chunk_nbytes > HUGE_NBYTES)


def repack_command(path: str, advice: Sequence[Advice], paths: Collection[str], entries: Sequence[DatasetEntry]) -> str:
    """Return the command that writes a better layout if some advice asks for it; else an empty text."""
    if not any(one.repack for one in advice):
        return ""
    compress = "lz4" if any(entry.filters for entry in entries if entry.path in paths) else "none"
    source = PurePath(path.rpartition("/")[2] if is_address(path) else path)
    target = source.with_name(f"{source.stem}.repacked{source.suffix}")
    arguments = f"--chunk-bytes 1MiB --compress {compress}{' --anonymous' * is_unsigned(path)}"
    return f"h5stream repack {shlex.quote(path)} {shlex.quote(str(target))} {arguments}"


# --- samples other than rows: some are read, and the work is counted ---------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesCost:
    """Costs of shuffled batches of samples."""

    text: str  # what a sample is, as the user wrote it
    samples: int  # of an epoch
    sample_nbytes: int
    left_out: int  # segments shorter than a sample, or objects that lack a field
    asked: int  # objects that were opened through HDF5, because their headers were not understood
    batch_samples: int
    batch_nbytes: int
    window_samples: int  # samples of the largest window, which are shuffled together
    shapes: dict[str, str] = field(default_factory=dict)  # the shapes of a sample, by field
    alone: BatchCost
    ours: BatchCost  # alone, ours: the cost of a batch read one sample at a time, and by h5stream


def cost_samples(
    dataset: H5Dataset, text: str, *, batch_size: int, memory_budget: int, threads: int | None
) -> SamplesCost:
    """Read a window of a shuffled epoch, and some single samples, and count the work."""
    layout, batch_samples = dataset.layout, min(batch_size, len(dataset))
    _, order = _windows(dataset, batch_samples, memory_budget, threads)
    windows, batch_nbytes = np.diff(order.window_edges), batch_samples * layout.row_nbytes
    numbers = np.sort(order.outputs(int(windows.argmax()))[0])
    single = np.random.default_rng(0).permutation(numbers)[:ALONE]
    pieces = min(len(numbers), 1 + len(numbers) * layout.row_nbytes // PIECE_NBYTES)
    alone, by_window = (
        BatchCost.of(_counted(dataset, read).times(batch_samples), FetchCost(0, batch_nbytes, batch_nbytes))
        for read in (np.array_split(single, len(single)), np.array_split(numbers, pieces))
    )
    names = layout.shape.keys or [field.name for field in layout.fields]
    fields = [field for k, field in enumerate(layout.fields) if k not in layout.laid_dense]
    flat = len(names) == len(fields)
    return SamplesCost(
        text=text,
        samples=len(dataset),
        sample_nbytes=layout.row_nbytes,
        left_out=0 if layout.space is None else layout.space.left_out,
        asked=layout.asked,
        batch_samples=batch_samples,
        batch_nbytes=batch_nbytes,
        window_samples=int(windows.max()),
        shapes={str(names[k] if flat else field.name): _shape_text(field) for k, field in enumerate(fields)},
        alone=alone,
        ours=by_window,
    )


def _shape_text(field: FieldLayout) -> str:
    """Return the shape and type of a sample's field."""
    dense = [field.ragged.wanted] if field.ragged is not None and field.ragged.form == DENSE else []
    several = ["n"] if field.kind == "ragged" and not dense and field.ragged and field.ragged.form != STACKED else []
    return f"{' x '.join(map(str, (*several, *dense, *field.row_shape))) or '1'} {shown(field.dtype)}"


def _counted(dataset: H5Dataset, pieces: Sequence[Ints]) -> FetchCost:
    """Read samples piece by piece; return the chunks, bytes read and bytes decoded per sample."""
    tally, until, done = Tally(), time.monotonic() + SECONDS, 0
    # In random order, so that a part represents the whole.
    for k in np.random.default_rng(0).permutation(len(pieces)).tolist():
        read_counted(dataset, pieces[k], tally)
        done += len(pieces[k])
        if time.monotonic() > until:
            break
    chunks, read, decoded = (tally.in_all(name) for name in ("chunks", "read_bytes", "decoded_bytes"))
    return FetchCost(chunks, read, decoded + tally.h5py_bytes).times(1 / done)


def almost_as_long(entries: Sequence[DatasetEntry], sample_paths: Collection[str]) -> Iterator[Advice]:
    """Yield advice about a dataset beside those of the sample that lacks, or has, a few rows more."""
    inside = {entry.path: entry for entry in entries if entry.path in sample_paths and entry.rows}
    for entry in entries:
        group, rows = entry.path.rpartition("/")[0], entry.rows or 0
        beside = [one for path, one in inside.items() if path.rpartition("/")[0] == group]
        if beside and entry.path not in inside and entry.access != REFUSED and not entry.clues.role:
            first, other = beside[0], beside[0].rows or 0
            if other != rows and 10 * abs(other - rows) <= max(other, rows):
                problem = f"it has {counted(rows, 'row')}, and {first.path} {other:,}, so they do not pair"
                way_out = "write both with one length, or look one up by the other's rows: Field(NAME, lookup=ROWS)"
                yield Advice("unlike_lengths", (entry.path,), problem, way_out)

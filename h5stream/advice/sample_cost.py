"""What shuffled batches of some fields cost: the engine's own arithmetic, put together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from h5stream.advice.batch_cost import BatchCost, DatasetCost, batch_cost, naive_cost, stream_costs
from h5stream.advice.cost_in_words import naive_in_words, ours_in_words
from h5stream.advice.layout_advice import Advice, budget_advice, layout_advice
from h5stream.advice.listing import DatasetEntry, describe_dataset
from h5stream.device.kept import device_nbytes
from h5stream.engine.budget import Sizing
from h5stream.engine.footprint import Footprint
from h5stream.errors import BudgetError, H5StreamError
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder, OrderSettings
from h5stream.order.quality import forecast
from h5stream.storage.codecs import DecodeError
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.layout import DECODED, DatasetPart, SampleLayout
from h5stream.storage.source import SourceIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """How the first epoch is cut and mixed."""

    block_rows: int
    blocks: int
    """Rows of a block, the unit of the coarse shuffle, and blocks of the file."""
    window_rows: int
    windows: int
    """Rows of the largest window, which are shuffled with one another, and windows of the epoch. The first ones are
    smaller, so that the first batch comes early."""
    blocks_per_window: int
    """Distinct blocks in the largest window: what matters for learning. High is good."""
    blocks_per_batch: float
    blocks_per_batch_full: float
    """Distinct blocks in a batch, and what a full shuffle would give."""
    mixing_score: float
    """1 where batch means of the row number scatter as under a full shuffle, towards 0 where each batch sees one
    stretch of the file. A low score harms only where neighbouring rows resemble each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """What shuffled batches of some fields cost."""

    fields: tuple[str, ...]
    """The fields."""
    chosen_by: str
    """``"named"`` by the user, ``"root"`` for the root's datasets, ``"rows"`` for the largest group of equal rows."""
    rows: int
    row_nbytes: int
    """Rows of an epoch, and bytes of one in a batch."""
    batch_size: int
    batch_rows: int
    """As asked for, and rows that a full batch really has."""
    batch_nbytes: int
    """Bytes of a full batch."""
    needed_read_nbytes: float
    needed_decoded_nbytes: float
    """What the batch's own rows take in the file, and once decoded: the least that any reader could do."""
    naive: BatchCost
    ours: BatchCost
    """A batch read one row at a time through h5py, and by h5stream, both averaged over the first epoch."""
    datasets: tuple[DatasetCost, ...]
    """An epoch of h5stream's, dataset by dataset."""
    shuffle: Shuffle
    """How rows are mixed."""
    memory_nbytes: int
    memory_budget: int
    threads: int
    """Bytes that slots, windows and scratch take at most; what they may take; reader threads."""
    kept_rows_nbytes: int
    """Of it, decoded rows that stay there, so that later epochs gather them."""
    device_nbytes: int
    """What all samples would take on a device, if they stayed there; 0 where they cannot."""
    decode_rows_per_s: float | None
    """Rows a second that undoing filters allows on all threads, timed on some of the file's own chunks. An upper limit:
    reading and copying come on top. None where nothing is decoded in every epoch."""
    first_batch: FirstBatch
    """What must be read before the first batch, and about how long that takes."""
    notice: str
    """Said where the budget makes the window smaller than wished."""
    naive_words: tuple[str, ...]
    our_words: tuple[str, ...]
    """The arithmetic, a step a line."""


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
        device_nbytes=device_nbytes(layout, layout.rows),
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


ASSUMED_BYTES_PER_S = 1e9
"""Bytes a second that one thread reads, or decodes where no rate was measured: a fast disk, and gzip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    """What comes before an epoch's first batch."""

    window_rows: int
    """Rows of the first window: its batches come when all of it is read."""
    read_nbytes: float
    decoded_nbytes: float
    """Bytes to read, and bytes that filters give of them, in the first epoch."""
    seconds: float
    """About how long that takes in the first epoch of a process; where epochs follow one another, the later ones' first
    window is read during the epoch before."""


def predict_first_batch(
    costs: Sequence[DatasetCost], rates: Sequence[float | None], order: EpochOrder, threads: int
) -> FirstBatch:
    """Predict the time to the first batch, from an epoch's costs and each dataset's decoded bytes a second and thread.

    What is kept is read in whole first, by one thread; where no rate was measured, one is assumed.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> from h5stream.order.epoch import OrderSettings
    >>> settings = OrderSettings(batch_size=4, window_rows=500, first_window_rows=100)
    >>> order = EpochOrder(make_blocks((0, 1000), (10,)), settings)
    >>> gzip = DatasetCost(path="x", chunks=1000, times_read=1.0, read_nbytes=5e8, decoded_nbytes=1e9)
    >>> found = predict_first_batch([gzip], [2e9], order, threads=2)
    >>> found.window_rows, found.decoded_nbytes, round(found.seconds, 3)
    (100, 100000000.0, 0.05)
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

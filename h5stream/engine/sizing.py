"""Memory that a layout needs, and the windows and the rows in memory that its budget has room for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.base.names import Names
from h5stream.base.texts import counted
from h5stream.engine import footprint
from h5stream.engine.footprint import (
    CHUNK_PLAN_NBYTES,
    SCRATCH_SHARE,
    Footprint,
    RaggedBytes,
    Scratch,
    Shape,
    least_that_fits,
    size_window,
)
from h5stream.engine.kinds.ragged import SHARES_NBYTES
from h5stream.engine.plan.kept import format_of, is_decoded, is_fetched
from h5stream.engine.plan.tasks import TASK_NBYTES
from h5stream.engine.plan.unfiltered import RowTable
from h5stream.errors import BudgetError
from h5stream.order.blocks import block_rows, longest_block, most_blocks
from h5stream.order.epoch import BatchLimit, OrderSettings
from h5stream.order.places import place_nbytes
from h5stream.order.quality import is_weak
from h5stream.order.shares import POOL_BATCHES
from h5stream.order.weights import PlannedDraws
from h5stream.samples.ragged import DENSE
from h5stream.samples.space import neighbours
from h5stream.storage.layout.access import DECODED, DIRECT, VIA_H5PY
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.local import FilesIdentity
from h5stream.storage.source.remote import REQUEST_NBYTES

_log = logging.getLogger("h5stream")

_Parts = tuple[DatasetPart, ...]

# What Python and NumPy take, in bytes; `footprint` has the rest.

BLOCK_NBYTES = 72  # for each block of the data, in the lines of two epochs
OBJECT_NBYTES = 144  # for a text, beside its bytes: an object of Python, and its place in a list
TENSOR_NBYTES = 640  # for a value of several numbers, beside these: a tensor of its own, and its place in a list
SPAN_PLAN_NBYTES = 64  # for each span that is planned
CUT_NBYTES = 40  # for each sample of a line that is cut by their lengths, most of it for a moment

RAGGED_WAYS_OUT = (
    ". A few long samples make all batches large: Field(..., ragged=Ragged(crop=Crop(...))) cuts them, "
    "draw=Sized(rows) puts fewer of them in a batch"
)
"""What else helps where samples are of unlike lengths."""

DRAWN_SAMPLES = 4096
"""Samples by which it is guessed how many rows a function looks up."""

DRAWN_EPOCHS = 2
"""Epochs whose drawn samples are held: the one under way, and the one that is read ahead."""

KEEP_NBYTES = 16 * 1024 * 1024
KEEP_SHARE = 8
"""Largest dataset that is read once, in bytes as batches hold it; all take at most one part in so many of the budget.
"""

LEAST_SHARE = 8
"""A dataset is kept in part only if one part in so many of it fits."""

GATHERED_NBYTES = 4 * 1024 * 1024
"""Bytes of batches that are gathered at a time where all data is in memory: enough to share the cost of a window, few
enough to come at once (batches of 256 rows of 1 KiB: 161 us each with 1 MiB, 108 with 4)."""

LEAST_WINDOW_SHARE = 4
"""Where less window lets all decoded rows stay in memory, this part of it is enough: it still mixes well."""

GATHERED = ((128 * 1024 * 1024, 2), (64 * 1024 * 1024, 8))
"""Bytes of batches that are gathered at a time from decoded rows that stay in memory, at most, and one part in how many
of those; the first that fits. A thread that plans a window has to wait for those that run Python: few windows are best
(`bench/results/many-cores.json` has cells of kept rows)."""

LEAST_READ_NBYTES = 256
"""Bytes of a row for each read that it takes, at least, for rows to be read one by one."""

LEAST_OPEN = 8
"""Batches that must fit where their size is not known, so that reading ahead is worth its name."""


# --- what of a layout is counted ---


def scratch_of(layout: SampleLayout) -> Scratch:
    """Return the scratch of a reader thread: a read, whose last chunk may be large, and three decoded chunks."""
    largest_stored = largest_chunk = largest_dataset = through_h5py = 0
    for parts in layout.datasets:
        for part in parts:
            if part.targets and layout.fields[part.targets[0].field].images is not None:
                largest_stored = max(largest_stored, TASK_NBYTES, layout.fields[part.targets[0].field].row_nbytes)
            largest_dataset = max(largest_dataset, part.rows * part.stored_row_nbytes)
            if part.heap is not None:
                largest_stored = max(largest_stored, part.heap.room_nbytes)
                continue
            if part.access == DIRECT:
                largest_stored = max(largest_stored, part.stored_element_nbytes)
                continue
            largest_chunk = max(largest_chunk, part.chunk_nbytes if part.index is None or part.pipeline.filters else 0)
            through_h5py = max(through_h5py, part.chunk_nbytes if part.access == VIA_H5PY else 0)
            if part.index is not None and len(part.index.nbytes):
                largest_stored = max(largest_stored, int(part.index.nbytes.max()))
    reading = max(1, min(TASK_NBYTES, largest_dataset + largest_stored) + largest_stored)
    # What h5py reads is each thread's own.
    decoding = 3 * max(0, largest_chunk - through_h5py)
    return Scratch(reading + 3 * largest_chunk, decoding, limits.cpus() if layout.is_far else sys.maxsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedField:
    """The ragged field by whose rows batches are cut."""

    number: int
    samples: int  # of a batch, at most
    limit: BatchLimit  # how they are cut


def shape_of(
    layout: SampleLayout,
    kept: tuple[int, ...] = (),
    selected: NDArray[np.int64] | None = None,
    limited: LimitedField | None = None,
    draws: PlannedDraws | None = None,
) -> Shape:
    """Return what of a layout decides how much memory an epoch takes, beside datasets that are kept in memory."""
    rows = draws.count if draws is not None else layout.samples if selected is None else len(selected)
    read, planned = list[_Parts](), list[_Parts]()  # of all that is not kept, what takes a plan for each chunk
    for number, parts in enumerate(layout.datasets):
        if parts[0].targets and number not in kept:
            read.append(parts)
            if layout.has_boxes or parts[0].along or any(part.access != DIRECT for part in parts):
                planned.append(parts)
    number_nbytes = place_nbytes(max(layout.rows, layout.samples))
    ragged, place = tuple(_ragged_bytes(layout, limited)), max(place_nbytes(rows), number_nbytes)
    chunks_a_row = sum([_chunks_a_row(layout, parts, rows) for parts in planned])
    fixed = _data_nbytes(layout, selected) + min(SHARES_NBYTES, math.ceil(rows * sum([one.mean for one in ragged])))
    fixed += format_of(layout, {n: layout.rows_of(n) for n in kept}).nbytes if kept else 0
    fixed += 0 if limited is None else rows * CUT_NBYTES
    # What is drawn of selected rows is looked up in these.
    fixed += 0 if draws is None else draws.nbytes + rows * (DRAWN_EPOCHS + (selected is not None)) * number_nbytes
    field_nbytes, objects_nbytes, has_ragged = [], 0, False
    for field in layout.fields:
        field_nbytes.append(field.row_nbytes)
        has_ragged = has_ragged or field.ragged is not None
        if field.kind == "object":
            objects_nbytes += field.places * _object_nbytes(field)
    return Shape(
        rows=rows,
        field_nbytes=tuple(field_nbytes),
        block_rows=longest_block(layout),
        scratch=scratch_of(layout),
        # Row, batch and place there, and its place in its chunk for each dataset.
        plan_row_nbytes=(3 + len(planned)) * place + chunks_a_row * CHUNK_PLAN_NBYTES + _span_nbytes(layout, planned),
        place_nbytes=place,
        fixed_nbytes=fixed,
        objects_nbytes=objects_nbytes,
        seam_rows=_seam_rows(layout, planned),
        anywhere=not planned and _rows_anywhere(read) and not has_ragged,
        ragged=ragged,
        room=0 if limited is None else limited.samples,
    )


def _ragged_bytes(layout: SampleLayout, limited: LimitedField | None) -> Iterator[RaggedBytes]:
    """Yield the bytes of samples of each field whose samples have some of their own."""
    for number, one in layout.ragged.items():
        field = layout.fields[number]
        nbytes = one.lengths * field.placed_nbytes
        if field.dtype.kind == "O":
            row_nbytes = math.ceil(layout.datasets[one.dataset][0].stored_row_nbytes)
            nbytes += one.lengths * (_object_nbytes(field) + row_nbytes)
        size = _bytes_of(nbytes, field)
        if one.draw is not None:
            drawn = nbytes[one.draw.of(np.linspace(0, layout.samples - 1, DRAWN_SAMPLES).astype(np.int64), 0, 0)]
            size = replace(size, mean=float(drawn.mean()), deviation=float(drawn.std()))
        if limited is not None and limited.limit.bucketed:
            ascending = np.sort(nbytes)  # as many of the longest as are sorted with one another
            sizes = [-(-len(nbytes) >> power) for power in range(POOL_BATCHES.bit_length())]
            size = replace(size, longest=tuple(float(ascending[len(nbytes) - few :].mean()) for few in sizes))
        if limited is not None and limited.limit.rows and one.counts is layout.ragged[limited.number].counts:
            size = replace(size, limit=limited.limit.rows * field.placed_nbytes)
        yield size
    for field in layout.fields:
        if field.kind == "object" and field.images is not None:
            mean, most = field.images.mean_nbytes, field.images.most_nbytes
            yield RaggedBytes(mean=mean, deviation=most - mean, most=int(most))
    for number, field in layout.listed:
        every = [part.heap.nbytes_of_rows(part.rows) for part in layout.datasets[number] if part.heap]
        yield _bytes_of(np.concatenate(every) * field.places, field)


def _object_nbytes(field: FieldLayout) -> int:
    """Return the bytes of a value of variable length, beside its items."""
    return OBJECT_NBYTES if field.items is None and field.images is None else TENSOR_NBYTES


def _bytes_of(nbytes: NDArray[np.int64], field: FieldLayout) -> RaggedBytes:
    form, most = None if field.ragged is None else field.ragged.form, int(nbytes.max())
    arranged = most if form == "pad" else 0
    if field.ragged is not None and form == DENSE:
        arranged = field.ragged.wanted * field.placed_nbytes
    return RaggedBytes(mean=float(nbytes.mean()), deviation=float(nbytes.std()), most=most, arranged=arranged)


def _span_nbytes(layout: SampleLayout, planned: Iterable[_Parts]) -> float:
    """Return the bytes that planning takes for a sample's spans, for each kind of steps and each dataset."""
    nbytes = 0.0
    if layout.lookups:
        spans = (one.mean_rows if one.listed is not None else 1.0 for one in layout.lookups if one.counts is not None)
        nbytes = 2.0 * SPAN_PLAN_NBYTES * sum(spans)
    if layout.segments is None:
        return nbytes
    for steps in {field.take.steps for field in layout.fields if field.take.steps is not None}:
        nbytes += len(neighbours(steps)[0]) * SPAN_PLAN_NBYTES
    for parts in planned:
        steps = layout.fields[parts[0].targets[0].field].take.steps or (0,)
        cuts = len(neighbours(steps)[0]) + len(steps) / min(part.chunk_rows for part in parts)
        nbytes += cuts * SPAN_PLAN_NBYTES
    return nbytes


def _chunks_a_row(layout: SampleLayout, parts: _Parts, rows: int) -> float:
    """Return about how many chunks of a dataset are planned for a sample."""
    is_boxed = layout.has_boxes or not any(parts is one for one in layout.aligned)
    if not (is_boxed and parts[0].along):
        chunks = sum(-(-part.rows // part.chunk_rows) * len(part.pieces) for part in parts)
        return min(chunks / rows, len(parts[0].pieces))
    touched = 1.0
    for along, chunk, elements in zip(parts[0].along, parts[0].grid_shape, parts[0].shape, strict=True):
        touched *= min(1 + along.span / chunk, -(-elements // chunk))
    return touched


def _data_nbytes(layout: SampleLayout, selected: NDArray[np.int64] | None) -> int:
    """Return the bytes of chunk indexes, of blocks, of samples that are no rows, and of the selected ones."""
    nbytes, names = most_blocks(layout) * BLOCK_NBYTES, set[Names]()
    for parts in layout.datasets:
        for part in parts:
            if (index := part.index) is not None:
                nbytes += index.numbers.nbytes + index.offset.nbytes + index.nbytes.nbytes + index.filter_mask.nbytes
            if part.heap is not None:
                nbytes += part.heap.nbytes
            if part.objects is not None and isinstance(part.objects.paths, Names):
                names.add(part.objects.paths)
    for lookup in layout.lookups:
        nbytes += lookup.nbytes
    for text in names:
        nbytes += text.nbytes
    nbytes += 0 if layout.space is None else layout.space.nbytes
    return nbytes + (0 if selected is None else selected.nbytes)


def _seam_rows(layout: SampleLayout, planned: Iterable[_Parts]) -> int:
    """Return the rows of the longest chunk that is decoded, and that the edges of blocks may cut."""
    if layout.has_boxes:
        return 0
    sizes, longest = block_rows(layout), 0
    for parts in planned:
        for part, rows in zip(parts, sizes, strict=True) if len(parts) == len(sizes) else ():
            if part.access == DECODED and rows % part.chunk_rows:
                longest = max(longest, part.chunk_rows)
    return longest


def _rows_anywhere(datasets: Iterable[_Parts]) -> bool:
    """Return whether rows that need no decoding can be read one by one: reads must not be for a few bytes."""
    reads = nbytes = 0
    for parts in datasets:
        unlike = {
            (part.shape[1:], part.grid_shape[1:], *(target.leaf for target in part.targets)): part
            for part in parts
            if part.pieces
        }
        reads += max((len(RowTable.of(part).extents) for part in unlike.values()), default=0)
        nbytes += parts[0].stored_row_nbytes
    return nbytes >= reads * LEAST_READ_NBYTES


# --- the choice ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The settings that decide the window size; an automatic one is that of the default budget if it fits."""

    layout: SampleLayout
    batch_rows: int  # of most batches, where they are cut by `limited`
    memory_budget: int
    threads: int
    most_budget: int = 0  # may be taken instead where an automatic window does not fit a budget that nobody chose
    threads_asked: bool = True  # whether the user gave their number
    selected: NDArray[np.int64] | None = None  # the rows of an epoch, if not all
    shuffle: bool = True
    whole_windows: bool = False  # whether windows are read whole, whatever rows cost
    limited: LimitedField | None = None  # what batches are cut by
    keep: bool = True  # whether rows may stay in memory once they are decoded
    draws: PlannedDraws | None = None  # what draws the samples of an epoch, if it does not take each once
    plain: SampleLayout | None = None  # the fields as the user opened them, without what is added or copied
    # of each choice of kept datasets
    shapes: dict[tuple[int, ...], Shape] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def _keeps_rows(self) -> bool:
        """Whether decoded rows may stay: of few samples chunks would stay whole, most of them for nothing."""
        return self.keep and (self.selected is None or 2 * len(self.selected) >= self.layout.samples)

    @property
    def most_rows(self) -> int:
        """Rows of a batch, at most."""
        return max(self.batch_rows, 0 if self.limited is None else self.limited.samples)

    def choose(self, window: int | str) -> Footprint:
        """Return the windows that `fitting` returns, and log how they differ from the requested ones."""
        size = self.fitting(window)
        notices = [size.notice] if size.notice else []
        if self.threads_asked and size.threads < self.threads:
            notices.append(
                f"num_workers={self.threads}: {counted(size.threads, 'reader thread')}, since each needs "
                f"{size.scratch_nbytes // max(1, size.threads):,} bytes of scratch within memory_budget="
                f"{size.memory_budget:,}; the order of the rows does not depend on it, and a larger budget gives more"
            )
        if size.memory_budget > self.memory_budget:
            notices.append(
                f"memory_budget: {size.memory_budget:,} bytes instead of the default of {self.memory_budget:,}, since "
                f"batches of {size.batch_nbytes:,} bytes and what reads them need as much. Pass memory_budget= to say "
                f"so, or take a smaller batch_size{RAGGED_WAYS_OUT if self.layout.ragged else ''}"
            )
        for notice in notices:
            _log.warning("%s", notice)
        return size

    def fitting(self, window: int | str) -> Footprint:
        """Return windows that the budget has room for; a `BudgetError` names the number that would do."""
        within = functools.partial(self._within, window)
        size = least_that_fits(within, self.memory_budget, self.most_budget * (window == "auto"))
        if not size.fits:
            raise self._too_large(size, window)
        return size

    def budget_for(self, window: int) -> int:
        """Return the least budget that has room for windows of so many rows; 0 where this one has."""
        try:
            self.fitting(window)
        except BudgetError as error:
            return error.needed
        return 0

    def _too_large(self, size: Footprint, window: int | str) -> BudgetError:
        """Return the error for a footprint that does not fit."""
        return BudgetError(
            f"memory_budget={size.memory_budget:,} bytes is too small for window={window!r}: batches of "
            f"{size.batch_nbytes:,} bytes, plans of {size.plan_nbytes:,}, {size.scratch_nbytes:,} of scratch and what "
            f"is kept need {size.needed_nbytes:,}. Pass memory_budget={size.needed_nbytes} or more, a smaller window "
            "or a smaller batch_size" + (RAGGED_WAYS_OUT if self.layout.ragged else ""),
            needed=size.needed_nbytes,
            budget=size.memory_budget,
        )

    def with_room(self, window: int | str) -> Sizing:
        """Return the sizing for the largest batches that fit: pages that nobody writes to take no memory."""
        sizing = replace(self, most_budget=self.memory_budget)
        while sizing.batch_rows > 1:
            with contextlib.suppress(BudgetError):
                size = sizing.fitting(window)
                # Not how many are open: fewer are where the data have fewer, or where they are gathered.
                if size.max_open_batches + (size.memory_budget - size.needed_nbytes) // size.batch_nbytes >= LEAST_OPEN:
                    break
            sizing = replace(sizing, batch_rows=sizing.batch_rows // 2)
        return sizing

    def taken_over(self, size: Footprint, settings: OrderSettings) -> Footprint:
        """Return the window size for settings from a state that differ from those of `size`."""
        rows, first_rows = settings.window_rows, settings.first_window_rows
        if (rows, first_rows) == (size.window_rows, size.first_window_rows):
            return size
        sizing = replace(self, threads=size.threads)
        sized = functools.partial(sizing._sized, size.kept, rows)
        new = least_that_fits(sized, self.memory_budget, self.most_budget)
        if not new.fits:
            raise self._too_large(new, rows)
        if size.kept_rows:
            new = self._keeping(new)
        first_batches = new.batches_at_once or first_rows // self.batch_rows + 2
        return replace(
            new, window_rows=rows, first_window_rows=first_rows, wished_rows=rows, first_batches=first_batches
        )

    def _sized(self, kept: tuple[int, ...], window: int | str, budget: int, most_rows: int | None = None) -> Footprint:
        """Size windows beside cached datasets; if all are cached, batches are gathered row by row instead."""
        if kept not in self.shapes:
            self.shapes[kept] = shape_of(self.layout, kept, self.selected, self.limited, self.draws)
        size = size_window(
            self.shapes[kept],
            batch_size=self.batch_rows,
            window=window,
            memory_budget=budget,
            threads=self.threads,
            shuffle=self.shuffle,
            most_rows=most_rows,
        )
        is_whole = len(kept) == len(self.layout.datasets) and not self.whole_windows and not size.batches_at_once
        return replace(size.gathering(GATHERED_NBYTES) if is_whole and size.fits else size, kept=kept)

    def _within(self, window: int | str, budget: int) -> Footprint:
        """Return the footprint that fits a budget, for the requested windows or those of the default budget."""
        if not self.threads_asked:  # a machine of 200 processors must not need 200 threads' scratch
            threads = min(self.threads, scratch_of(self.layout).threads_in(budget // SCRATCH_SHARE))
            return replace(self, threads=threads, threads_asked=True)._within(window, budget)
        if window != "auto" or not self.shuffle or self.whole_windows:
            return self._first(window, None, budget)
        if is_plain := self.plain is None or self.plain is self.layout:
            plain = replace(self, keep=True)
        else:
            plain = replace(self, keep=True, layout=self.plain, shapes={})
        default = least_that_fits(functools.partial(plain._first, window, None), footprint.DEFAULT_BUDGET)
        if is_plain and self.keep and budget == default.memory_budget:
            return default
        wished = default.window_rows
        size = self._first(window, wished, budget)
        if size.window_rows == wished or not size.fits:
            return size
        # Windows are as they are wished for if the batches come of data in memory, so that none is held.
        unbounded = replace(self, threads=size.threads)
        for kept in dict.fromkeys((size.kept, ())):
            large = replace(unbounded._sized(kept, window, sys.maxsize, wished), memory_budget=budget)
            gathered = [large] if large.batches_at_once else self._gathered(large) if self._keeps_rows else ()
            for size_of_all in gathered:
                if size_of_all.fits:
                    return size_of_all
        return replace(size, wished_rows=wished, wished_nbytes=default.memory_budget)

    def _first(self, window: int | str, most_rows: int | None, budget: int) -> Footprint:
        """Return the first candidate of windows and cached datasets that fits the budget, or else the smallest."""
        for kept in dict.fromkeys((datasets_to_keep(self.layout, budget), ())):
            size = self._sized(kept, window, budget, most_rows)
            if size.fits:
                # Keeping is only worth memory that nothing else needs.
                return self._keeping(size, window, most_rows) if self._keeps_rows else size
        return size

    def _keeping(self, size: Footprint, window: int | str = 0, most_rows: int | None = None) -> Footprint:
        """Return windows that fit with decoded rows that stay: all, gathered; all, beside a smaller window; some."""
        budget, layout = size.memory_budget, self.layout
        if self.shuffle and not self.whole_windows:
            for gathered in self._gathered(size):
                if gathered.fits:
                    return gathered
        every = rows_to_keep(layout, size.kept, sys.maxsize) if window == "auto" and self.shuffle else {}
        if every and size.needed_nbytes > (room := budget - format_of(layout, every).nbytes):
            least = size.window_rows if size.window_rows == most_rows else size.window_rows / LEAST_WINDOW_SHARE
            smaller = self._sized(size.kept, window, room, most_rows)
            mixes = smaller.window_rows >= least and (self._is_weak(size) or not self._is_weak(smaller))
            size = replace(smaller, memory_budget=budget) if smaller.fits and mixes else size
        # What has come from a store is held once more while it is copied.
        coming = 2 * REQUEST_NBYTES * size.threads if layout.is_far else 0
        rows = rows_to_keep(layout, size.kept, max(0, budget - size.needed_nbytes - coming), fetched=True)
        keeping = size.keeping(rows, format_of(layout, rows).nbytes) if rows else size
        return keeping if keeping.fits else size

    def _is_weak(self, size: Footprint) -> bool:
        """Return whether a window holds so few blocks that the loader warns of it."""
        shape = self.shapes[size.kept]
        window, blocks = round(size.window_rows / shape.block_rows), round(shape.rows / shape.block_rows)
        return size.window_rows < shape.rows and is_weak(window, blocks)

    def _gathered(self, size: Footprint) -> Iterator[Footprint]:
        """Yield the footprint with all data in memory and a few batches gathered at a time, if that is possible."""
        layout, rows = self.layout, rows_to_keep(self.layout, size.kept, sys.maxsize)
        if not rows or layout.ragged or len(size.kept) + len(rows) < len(layout.datasets):
            return
        for number in rows:
            for part in layout.datasets[number]:
                if part.rows and not is_decoded(part):
                    return
        nbytes = format_of(layout, rows).nbytes
        large = [max(GATHERED_NBYTES, min(most, nbytes // share)) for most, share in GATHERED]
        for at_once in dict.fromkeys([*large, GATHERED_NBYTES]):
            yield size.gathering(at_once).keeping(rows, nbytes)


# --- which datasets, and how many of their rows, stay in memory ---


def datasets_to_keep(layout: SampleLayout, memory_budget: int) -> tuple[int, ...]:
    """Choose the datasets that are read once, smallest first while they fit."""
    if layout.has_boxes:
        return ()
    chosen, budget = [], memory_budget // KEEP_SHARE
    for nbytes, _, number in _sizes(layout, ("ragged",)):
        if nbytes > min(KEEP_NBYTES, budget):
            break
        chosen.append(number)
        budget -= nbytes
    return tuple(chosen)


def rows_to_keep(
    layout: SampleLayout, numbers: tuple[int, ...], nbytes: int, *, fetched: bool = False
) -> dict[int, int]:
    """Choose the other datasets, smallest first, and their rows that stay in memory once they are decoded.

    With `fetched` also of those that come as they are from a store: such rows have no part in how large windows are,
    so that the order is that of a local file.
    """
    chosen: dict[int, int] = {}
    for wanted, row_nbytes, number in () if layout.has_boxes else _sizes(layout, (), fetched=fetched):
        if number in numbers or not row_nbytes:
            continue
        parts = layout.datasets[number]
        has_images = any(layout.fields[target.field].images is not None for target in parts[0].targets)
        if has_images or not any(is_decoded(part) or (fetched and is_fetched(layout, part)) for part in parts):
            continue
        fitting = min(wanted, nbytes)
        if fitting and fitting * LEAST_SHARE >= wanted:
            chosen[number] = fitting // row_nbytes
            nbytes -= fitting
    return chosen


def _sizes(layout: SampleLayout, without: tuple[str, ...], *, fetched: bool = False) -> list[tuple[int, int, int]]:
    """Return the bytes of each dataset that may be kept, and of a row; ascending, without some kinds of fields.

    With `fetched` also those of many objects in stores, each of which would take a request in every epoch.
    """
    sizes, leading = list[tuple[int, int, int]](), layout.leading
    for number, parts in enumerate(layout.datasets):
        row_nbytes, may_stay = 0, not parts[0].along
        for target in parts[0].targets:
            field = layout.fields[target.field]
            row_nbytes += field.placed_nbytes
            may_stay = may_stay and field.kind not in without and field.dtype.kind != "O"
        # That one of many small files has changed is seen by reading it, which costs a request if it is in a store.
        for part in parts if may_stay and parts is leading else ():
            file = layout.files[part.file]
            if isinstance(file, FilesIdentity) and not (fetched and len(file.far) == len(file.sizes)):
                may_stay = False
        if may_stay:
            sizes.append((layout.rows_of(number) * row_nbytes, row_nbytes, number))
    return sorted(sizes)

"""The bytes that settings need, and the windows that a budget has room for."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.base.names import Names
from h5stream.base.texts import as_bytes
from h5stream.engine.kinds.ragged import PADDING_SHARE, SHARES_NBYTES
from h5stream.engine.plan.kept import format_of, is_decoded
from h5stream.engine.plan.tasks import TASK_NBYTES
from h5stream.engine.plan.to_keep import GATHERED_NBYTES, datasets_to_keep, rows_to_keep
from h5stream.engine.plan.unfiltered import RowTable
from h5stream.engine.slots import PAGE_NBYTES, packed
from h5stream.errors import BudgetError, OptionError
from h5stream.order.blocks import block_rows, longest_block, most_blocks
from h5stream.order.line import POOL_BATCHES, BatchLimit, OrderSettings
from h5stream.order.places import place_nbytes
from h5stream.order.weights import PlannedDraws
from h5stream.samples.ragged import DENSE
from h5stream.samples.space import neighbours
from h5stream.storage.layout.layout import DECODED, DIRECT, VIA_H5PY, DatasetPart, FieldLayout, SampleLayout
from h5stream.storage.source.remote import REQUEST_NBYTES

_log = logging.getLogger("h5stream")

WindowRows = int | Literal["auto", "all"]

DEFAULT_BUDGET = 2 * 1024**3
"""Bytes, or a quarter of the machine's memory if that is less: two windows of 1,024 blocks of 1 MiB. What is free
at the moment must not matter: it would choose the window, and with it the order of the rows."""

SCRATCH_SHARE = 4
"""An automatic window leaves scratch one part in so many of the budget, however many threads there are."""

LEAST_SCRATCH_SHARE = 16
"""That part where the window is known, so that a column more beside the data, or a little less memory, leaves it."""

AT_ONCE_NBYTES = 8 * 1024 * 1024
"""Bytes of batches that are read together where rows cost the same wherever they lie, if that is more."""

# What Python and NumPy take, in bytes.

CHUNK_PLAN_NBYTES = 160  # for each chunk of a window that is planned: eight numbers, twice as they are sorted
SPAN_PLAN_NBYTES = 64  # for each span that is planned
BLOCK_NBYTES = 72  # for each block of the data, in the lines of two epochs
OBJECT_NBYTES = 144  # for a text, beside its bytes: an object of Python, and its place in a list
TENSOR_NBYTES = 640  # for a value of several numbers, beside these: a tensor of its own, and its place in a list
OPEN_NBYTES = 640  # for a batch that is filled or waits: the batch, its slot, arrays of its memory
SAMPLER_ROW_NBYTES = 48  # for each row of a sampler's window: which, where it goes, and both sorted by batch
CUT_NBYTES = 40  # for each sample of a line that is cut by their lengths, most of it for a moment

SAMPLER_NBYTES = 1024 * 1024 * 1024
"""Bytes that a sampler's window may take. Not by the machine: the window chooses the order."""

RAGGED_WAYS_OUT = (
    ". A few long samples make all batches large: Field(..., ragged=Ragged(crop=Crop(...))) cuts them, "
    "draw=Sized(rows) puts fewer of them in a batch"
)
"""What else helps where samples are of unlike lengths."""

DRAWN_SAMPLES = 4096
"""Samples by which it is guessed how many rows a function looks up."""

DRAWN_EPOCHS = 2
"""Epochs whose drawn samples are held: the one under way, and the one that is read ahead."""

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

# How many rows windows have: by the data alone, so that whoever streams it again gets the same order.

AUTO_BLOCKS = 1024
AUTO_BATCHES = 4
"""Blocks and batches of an automatic window, at least: for learning the number of distinct blocks in it matters."""

AUTO_NBYTES = 256 * 1024 * 1024
AUTO_ROWS = 1024 * 1024
"""An automatic window takes this much where its blocks are small: 1,024 blocks of 32 or 128 rows, 3 or 12 % of a
sorted file, left a loss that ten seeds could tell from a full shuffle's (docs/shuffling-results.md)."""

FIRST_BLOCKS = 64
FIRST_NBYTES = 64 * 1024 * 1024
FIRST_ROWS = 1024 * 1024
"""The same of an epoch's first window, which is read in under 0.1 s; later ones double."""

FILE_ORDER_NBYTES = 32 * 1024 * 1024
SEAM_SHARE = 4
"""Bytes of a window that is not shuffled, at least; and how many times as long it is as the longest chunk that its
edges cut, and that is decoded twice so."""


def check_window(window: object) -> None:
    """Raise `OptionError` if a value is no window size."""
    number = isinstance(window, int) and not isinstance(window, bool) and window > 0
    if not number and window not in ("auto", "all"):
        raise OptionError(f"window= takes a positive number of rows, 'auto' or 'all', not {window!r}")


def rows_of_two(*, window_rows: int, first_window_rows: int, rows: int) -> int:
    """Return the rows of two windows that follow one another, at most: of an epoch, and of its end and the next one."""
    sizes: list[int] = []
    rest, size = rows, first_window_rows
    while rest and sizes[-2:] != [window_rows] * 2:  # once they have grown, what is left are such windows, and a rest
        sizes.append(min(size, rest))
        rest, size = rest - sizes[-1], min(2 * size, window_rows)
    return max(map(sum, itertools.pairwise([*sizes, min(first_window_rows, rows)])), default=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBytes:
    """The bytes that samples have of a ragged field."""

    mean: float
    deviation: float
    most: int
    arranged: int = 0  # of a sample at most once it is filled up, or dense; 0 where it stays as it is read
    limit: int = sys.maxsize  # of a batch, padded or not, where batches are cut by it
    # mean of all samples, of the largest half, quarter and so on, where like are batched
    longest: tuple[float, ...] = ()

    def of(self, samples: int) -> int:
        """Return the bytes that a batch of so many samples takes: few batches in ten thousand take more."""
        likely = math.ceil(samples * self.mean + 4 * math.sqrt(samples) * self.deviation)
        likely += likely // PADDING_SHARE if self.is_padded else 0
        return min(samples * self.most, max(likely, self.most), self.limit)

    def largest(self, samples: int, batches: int) -> int:
        """Return the bytes that the largest of so many batches takes."""
        longest = self.longest[: batches.bit_length() + 1]
        return max(self.of(samples), min(math.ceil(samples * longest[-1]), self.limit) if longest else 0)

    def padded(self, samples: int) -> int:
        """Return the bytes that they take once they are filled up, or dense."""
        return min(samples * self.arranged, self.limit) if self.is_padded else samples * self.arranged

    @property
    def is_padded(self) -> bool:
        """Whether all samples of a batch are filled up to as many rows as the largest of it has."""
        return 0 < self.arranged == self.most


class Scratch(NamedTuple):
    """The scratch memory of reader threads."""

    nbytes: int  # of one thread
    decoding_nbytes: int = 0  # what of that is lent to those that decode
    lent: int = sys.maxsize  # to how many at a time

    def of(self, threads: int) -> int:
        """Return the bytes of so many threads."""
        return threads * self.nbytes - max(0, threads - self.lent) * self.decoding_nbytes

    def threads_in(self, nbytes: int) -> int:
        """Return how many threads share so many bytes; at least one."""
        if (fitting := nbytes // self.nbytes) >= self.lent:
            fitting = (nbytes - self.lent * self.decoding_nbytes) // (self.nbytes - self.decoding_nbytes)
        return max(1, fitting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The properties of the data that decide how much memory an epoch takes."""

    rows: int  # of an epoch
    field_nbytes: tuple[int, ...]  # for each field, of a row in a slot
    block_rows: int  # of the longest block
    scratch: Scratch
    # that the plan of a window takes for each of its rows while it is made; most of it stays
    plan_row_nbytes: float = 16.0
    place_nbytes: int = 4  # of the number of a row, or of a place
    fixed_nbytes: int = 0  # that are taken whatever the windows are: chunk indexes, blocks, datasets that are kept
    objects_nbytes: int = 0  # of a sample's values of variable length, beside their items
    seam_rows: int = 0  # of the longest chunk that is decoded anew where the edge of a window cuts it
    anywhere: bool = False  # whether rows cost about the same one by one, so that "all" need not fit into memory
    ragged: tuple[RaggedBytes, ...] = ()
    room: int = 0  # samples that a slot has room for, where a batch may have more than most have

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a batch; of ragged fields the mean."""
        return sum(self.field_nbytes) + round(sum(each.mean for each in self.ragged))

    def _rows_in(self, rows: int, nbytes: int) -> int:
        return min(rows, nbytes // max(1, self.row_nbytes))

    def wished_rows(self, window: int | str, batch_size: int) -> int:
        """Return the rows of a window as it was asked for, whatever memory there is."""
        check_window(window)
        auto = max(AUTO_BATCHES * batch_size, AUTO_BLOCKS * self.block_rows, self._rows_in(AUTO_ROWS, AUTO_NBYTES))
        return self.rows if window == "all" else min(self.rows, auto if window == "auto" else int(window))

    def file_order_rows(self, batch_size: int) -> int:
        """Return the rows of a window of an epoch in file order, which has no say in the order: a few batches."""
        in_bytes = self._rows_in(FIRST_ROWS, FILE_ORDER_NBYTES)
        return max(AUTO_BATCHES * batch_size, self.block_rows, in_bytes, SEAM_SHARE * self.seam_rows)

    def first_rows(self, batch_size: int) -> int:
        """Return the rows of an epoch's first window, where windows are not smaller anyway."""
        return max(batch_size, FIRST_BLOCKS * self.block_rows, self._rows_in(FIRST_ROWS, FIRST_NBYTES))

    def plan_nbytes(self, window_rows: int) -> int:
        """Return the bytes of the plans of one window that is read and one that comes next."""
        return math.ceil(min(2 * window_rows, self.rows) * self.plan_row_nbytes)

    def batch_nbytes(self, batch_size: int) -> int:
        """Return the bytes of a batch, in its slot and outside of it."""
        # Slots are used again: sooner or later each has held as many samples as it has room for.
        _, nbytes = packed(each * max(batch_size, self.room) for each in self.field_nbytes)
        outside = self.objects_nbytes * batch_size + sum(each.of(batch_size) for each in self.ragged)
        return -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES + outside

    def held_nbytes(self, batch_size: int, window_rows: int) -> int:
        """Return the bytes that the training loop holds: the largest batch of a window and the next one, padded."""
        largest = sum(one.largest(batch_size, window_rows // batch_size) - one.of(batch_size) for one in self.ragged)
        largest += sum(one.padded(batch_size) for one in self.ragged)
        return 2 * (self.batch_nbytes(batch_size) + largest)

    def batches_of(self, window_rows: int, batch_size: int) -> int:
        """Return the batches that a window may touch, at most those of an epoch if all have one size."""
        touched = math.ceil(min(window_rows, self.rows) / batch_size) + 1
        return touched if self.room else min(touched, math.ceil(self.rows / batch_size))

    def two_nbytes(self, window_rows: int, batch_size: int) -> int:
        """Return the bytes of two windows with all that goes with them, but for what Python knows of open batches."""
        slots = 2 * self.batches_of(window_rows, batch_size) * self.batch_nbytes(batch_size)
        return slots + self.plan_nbytes(window_rows) + self.held_nbytes(batch_size, window_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The rows of a window, the datasets that are cached, and the memory for both: a candidate, or the choice."""

    window_rows: int
    first_window_rows: int  # of an epoch's first window
    wished_rows: int  # of an automatic window, for which there may be no room
    first_batches: int  # that are read together at first
    max_open_batches: int  # slots that the engine may fill or hold ready at a time
    memory_budget: int
    needed_nbytes: int  # what this takes at most: all of those below
    threads: int  # those that were asked for, or as many as there is scratch for
    batch_nbytes: int  # of one; two more than `max_open_batches` are counted, which the training loop holds
    plan_nbytes: int  # of two windows
    scratch_nbytes: int  # of all threads
    kept: tuple[int, ...] = ()  # datasets that are read once and stay in memory
    kept_rows: tuple[tuple[int, int], ...] = ()  # datasets that stay once they are decoded, and how many of their rows
    kept_rows_nbytes: int = 0
    wished_nbytes: int = 0  # a budget that has room for `wished_rows`, where this one has not
    batches_at_once: int = 0  # that are gathered; 0 where windows are read whole

    @property
    def fits(self) -> bool:
        """Whether the budget has room for it."""
        return self.needed_nbytes <= self.memory_budget

    @property
    def notice(self) -> str:
        """The warning if the wished window did not fit; otherwise empty."""
        if self.window_rows >= self.wished_rows:
            return ""
        smaller = f"window: {self.window_rows:,} rows instead of {self.wished_rows:,}, so that two windows "
        enough = f"memory_budget={self.wished_nbytes}" if self.wished_nbytes else "more"
        return (
            f"{smaller}and their plans fit memory_budget={self.memory_budget:,} bytes. Rows come in another order "
            f"than with {enough}; pass that, or window={self.window_rows} for this order with any budget"
        )

    def gathering(self, nbytes: int) -> Footprint:
        """Return the same with batches of so many bytes gathered at a time, in place of whole windows."""
        at_once = max(1, min(self.max_open_batches // 2, nbytes // self.batch_nbytes))
        batches = min(self.max_open_batches, 2 * at_once)
        needed = self.needed_nbytes - (self.max_open_batches - batches) * self.batch_nbytes
        return replace(
            self, batches_at_once=at_once, first_batches=at_once, max_open_batches=batches, needed_nbytes=needed
        )

    def keeping(self, rows: Mapping[int, int], nbytes: int) -> Footprint:
        """Return the same with rows that stay in memory once they are decoded, of so many bytes."""
        needed = self.needed_nbytes + nbytes
        return replace(self, kept_rows=tuple(rows.items()), kept_rows_nbytes=nbytes, needed_nbytes=needed)


def size_window(
    shape: Shape,
    *,
    batch_size: int,
    window: int | str,
    memory_budget: int,
    threads: int,
    shuffle: bool = True,
    most_rows: int | None = None,
) -> Footprint:
    """Return windows that fit the budget with all else, as they are asked for or automatic; or the least that does not.

    The number of threads has no say in an automatic window, which is part of the order: those that do not fit are left
    out. Without `shuffle` a window is a few batches at most. `most_rows` are those of an automatic window, once known.
    """
    ways = _ways(shape, batch_size, window, memory_budget, shuffle, most_rows)
    return first_that_fits(_fitted(shape, way, batch_size, memory_budget, threads) for way in ways)


def first_that_fits(sizes: Iterable[Footprint]) -> Footprint:
    """Return the first that its budget has room for, or the last, which needs least."""
    for size in sizes:
        if size.fits:
            break
    return size


def least_that_fits(sized: Callable[[int], Footprint], budget: int, most: int = sys.maxsize) -> Footprint:
    """Return the largest footprint that fits a budget, or the smallest if none does; one beyond `most` stays."""
    while not (size := sized(budget)).fits and size.needed_nbytes <= most:
        budget = size.needed_nbytes
    return size


class _WindowChoice(NamedTuple):
    """One way to read an epoch."""

    rows: int  # of a window
    first: int  # rows of the first window
    held: int  # rows of a window, with what it shares with the next
    slots: tuple[int, int]  # the least and the most
    is_auto: bool = False  # whether a part of the budget is left to scratch
    gathers: bool = False  # a few batches at a time


def _ways(
    shape: Shape, batch_size: int, window: int | str, memory_budget: int, shuffle: bool, most_rows: int | None
) -> Iterator[_WindowChoice]:
    """Yield the ways to read an epoch, the best first."""
    rows = shape.wished_rows(window, batch_size)
    if window == "auto" and most_rows is not None:
        rows = min(rows, most_rows)
    if not shuffle:
        rows = min(rows, shape.file_order_rows(batch_size))
        window = "auto" if window == "all" else window

    def room(share: int) -> int:
        return memory_budget - max(memory_budget // share, shape.scratch.nbytes) - shape.fixed_nbytes

    def whole(rows: int) -> _WindowChoice:
        """Return windows of so many rows that are read whole."""
        first = rows if window == "all" else min(rows, shape.first_rows(batch_size))
        # A window ends at a block's edge, and its last batch may go on in the next.
        held = rows if window == "auto" else min(rows + shape.block_rows, shape.rows)
        together = rows_of_two(window_rows=rows, first_window_rows=first, rows=shape.rows)
        # A batch of each may go on in the next window; and no more than the end of one epoch and the next one.
        most = min(math.ceil(together / batch_size) + 4, 2 * math.ceil(shape.rows / batch_size))
        least = shape.batches_of(held, batch_size)
        return _WindowChoice(rows, first, held, (least, max(least, most)), is_auto=window == "auto")

    if window == "auto":
        if shape.two_nbytes(rows, batch_size) > room(SCRATCH_SHARE if most_rows is None else LEAST_SCRATCH_SHARE):
            rows = _most_rows(shape, rows, batch_size, room(SCRATCH_SHARE))
        yield whole(rows)
        if most_rows is not None or not shuffle:
            # What is known of each open batch has no say in the window, and may be what does not fit beside it.
            yield whole(min(shape.block_rows, rows))
        return
    yield whole(rows)
    if window == "all" and shape.anywhere:
        # What is read in file order is faster by half; this is for what does not fit so.
        most = 2 * max(AUTO_BATCHES, AT_ONCE_NBYTES // (shape.batch_nbytes(batch_size) + OPEN_NBYTES))
        yield _WindowChoice(rows, rows, rows, (2, most), gathers=True)


def _fitted(shape: Shape, windows: _WindowChoice, batch_size: int, memory_budget: int, threads: int) -> Footprint:
    """Return the footprint with as many slots and threads as fit the budget, or the smallest one."""
    scratch, slot = shape.scratch, shape.batch_nbytes(batch_size) + OPEN_NBYTES
    held, (least, most) = windows.held, windows.slots
    plan = math.ceil(held * 3 * shape.place_nbytes) if windows.gathers else shape.plan_nbytes(held)
    fixed = shape.fixed_nbytes + shape.held_nbytes(batch_size, held) + plan
    spare = max(0, memory_budget - fixed - least * slot - scratch.nbytes)
    threads = min(threads, scratch.threads_in(spare + scratch.nbytes))
    threads = min(threads, scratch.threads_in(memory_budget // SCRATCH_SHARE)) if windows.is_auto else threads
    all_scratch = scratch.of(max(1, threads))
    batches = min(least + (spare - all_scratch + scratch.nbytes) // slot, most)
    at_once = batches // 2 if windows.gathers else 0
    return Footprint(
        window_rows=windows.rows,
        first_window_rows=windows.first,
        wished_rows=windows.rows,
        first_batches=at_once or windows.first // batch_size + 2,
        max_open_batches=2 * at_once or batches,
        memory_budget=memory_budget,
        needed_nbytes=fixed + all_scratch + (2 * at_once or batches) * slot,
        threads=threads,
        batch_nbytes=slot,
        plan_nbytes=plan,
        scratch_nbytes=all_scratch,
        batches_at_once=at_once,
    )


def _most_rows(shape: Shape, wished: int, batch_size: int, room: int) -> int:
    """Return the rows of a window, in whole blocks, such that two windows fit."""
    sizes = range(batch_size, wished + 1, batch_size)
    rows = max(1, bisect.bisect_right(sizes, room, key=lambda rows: shape.two_nbytes(rows, batch_size))) * batch_size
    return wished if rows >= wished else max(min(shape.block_rows, wished), rows // shape.block_rows * shape.block_rows)


def size_order(shape: Shape, *, batch_size: int, window: int | str, shuffle: bool) -> tuple[int, int]:
    """Return the rows of a window, and of an epoch's first, of an order that is only listed, as a sampler does."""
    rows = shape.wished_rows(window, batch_size)
    if not shuffle:
        rows = min(rows, replace(shape, seam_rows=0).file_order_rows(batch_size))
    elif window == "auto":
        fitting = SAMPLER_NBYTES // SAMPLER_ROW_NBYTES // shape.block_rows * shape.block_rows
        rows = min(rows, max(shape.block_rows, fitting))
    return rows, rows if window == "all" else min(rows, shape.first_rows(batch_size))


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
    read = [parts for number, parts in enumerate(layout.datasets) if parts[0].targets and number not in kept]
    planned = [one for one in read if layout.has_boxes or one[0].along or any(part.access != DIRECT for part in one)]
    ragged, number_nbytes = tuple(_ragged_bytes(layout, limited)), place_nbytes(max(layout.rows, layout.samples))
    place = max(place_nbytes(rows), number_nbytes)
    fixed = _data_nbytes(layout, selected) + min(SHARES_NBYTES, math.ceil(rows * sum(one.mean for one in ragged)))
    fixed += format_of(layout, {n: layout.rows_of(n) for n in kept}).nbytes if kept else 0
    fixed += 0 if limited is None else rows * CUT_NBYTES
    # What is drawn of selected rows is looked up in these.
    fixed += 0 if draws is None else draws.nbytes + rows * (DRAWN_EPOCHS + (selected is not None)) * number_nbytes
    chunks_a_row = sum(_chunks_a_row(layout, parts, rows) for parts in planned)
    return Shape(
        rows=rows,
        field_nbytes=tuple(field.row_nbytes for field in layout.fields),
        block_rows=longest_block(layout),
        scratch=scratch_of(layout),
        # Row, batch and place there, and its place in its chunk for each dataset.
        plan_row_nbytes=(3 + len(planned)) * place + chunks_a_row * CHUNK_PLAN_NBYTES + _span_nbytes(layout, planned),
        place_nbytes=place,
        fixed_nbytes=fixed,
        objects_nbytes=sum(field.places * _object_nbytes(field) for field in layout.fields if field.kind == "object"),
        seam_rows=_seam_rows(layout, planned),
        anywhere=not planned and _rows_anywhere(read) and not any(field.ragged for field in layout.fields),
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


def _span_nbytes(layout: SampleLayout, planned: Iterable[tuple[DatasetPart, ...]]) -> float:
    """Return the bytes that planning takes for a sample's spans, for each kind of steps and each dataset."""
    spans = (one.mean_rows if one.listed is not None else 1.0 for one in layout.lookups if one.counts is not None)
    nbytes = 2.0 * SPAN_PLAN_NBYTES * sum(spans)
    if layout.segments is None:
        return nbytes
    for steps in {field.steps for field in layout.fields if field.steps is not None}:
        nbytes += len(neighbours(steps)[0]) * SPAN_PLAN_NBYTES
    for parts in planned:
        steps = layout.fields[parts[0].targets[0].field].steps or (0,)
        cuts = len(neighbours(steps)[0]) + len(steps) / min(part.chunk_rows for part in parts)
        nbytes += cuts * SPAN_PLAN_NBYTES
    return nbytes


def _chunks_a_row(layout: SampleLayout, parts: tuple[DatasetPart, ...], rows: int) -> float:
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
    indexes = [part.index for parts in layout.datasets for part in parts if part.index is not None]
    index = sum(i.numbers.nbytes + i.offset.nbytes + i.nbytes.nbytes + i.filter_mask.nbytes for i in indexes)
    blocks = most_blocks(layout)
    index += sum(one.nbytes for one in layout.lookups)
    index += sum(part.heap.nbytes for parts in layout.datasets for part in parts if part.heap is not None)
    index += 0 if layout.space is None else layout.space.nbytes
    names = {part.objects for parts in layout.datasets for part in parts if isinstance(part.objects, Names)}
    index += sum(text.nbytes for text in names)
    return index + blocks * BLOCK_NBYTES + (0 if selected is None else selected.nbytes)


def _seam_rows(layout: SampleLayout, planned: Iterable[tuple[DatasetPart, ...]]) -> int:
    """Return the rows of the longest chunk that is decoded, and that the edges of blocks may cut."""
    if layout.has_boxes:
        return 0
    sizes = block_rows(layout)
    cut = (
        part.chunk_rows
        for parts in planned
        if len(parts) == len(sizes)
        for part, rows in zip(parts, sizes, strict=True)
        if part.access == DECODED and rows % part.chunk_rows
    )
    return max(cut, default=0)


def _rows_anywhere(datasets: Iterable[tuple[DatasetPart, ...]]) -> bool:
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
                f"num_workers={self.threads}: {size.threads} reader thread(s), since each needs "
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

        def sized(budget: int) -> Footprint:
            threads = self.threads
            if not self.threads_asked:  # a machine of 200 processors must not need 200 threads' scratch
                threads = min(threads, scratch_of(self.layout).threads_in(budget // SCRATCH_SHARE))
            return replace(self, threads=threads)._within(budget, window)

        return self._checked(least_that_fits(sized, self.memory_budget, self.most_budget * (window == "auto")), window)

    def budget_for(self, window: int) -> int:
        """Return the least budget that has room for windows of so many rows; 0 where this one has."""
        try:
            self.fitting(window)
        except BudgetError as error:
            return error.needed
        return 0

    def _checked(self, size: Footprint, window: int | str) -> Footprint:
        """Raise `BudgetError` if a footprint does not fit."""
        if size.fits:
            return size
        raise BudgetError(
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
        new = least_that_fits(
            lambda budget: sizing._sized(size.kept, rows, budget), self.memory_budget, self.most_budget
        )
        new = self._checked(new, rows)
        if size.kept_rows:
            new = first_that_fits(self._keeping(new))
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

    def _within(self, budget: int, window: int | str) -> Footprint:
        """Return the footprint that fits a budget, for the requested windows or those of the default budget."""
        if window != "auto" or not self.shuffle or self.whole_windows:
            return self._first(window, budget)
        if is_plain := self.plain is None or self.plain is self.layout:
            plain = replace(self, keep=True)
        else:
            plain = replace(self, keep=True, layout=self.plain, shapes={})
        default = least_that_fits(lambda nbytes: plain._first(window, nbytes), DEFAULT_BUDGET)
        if is_plain and self.keep and budget == default.memory_budget:
            return default
        wished = default.window_rows
        size = self._first(window, budget, wished)
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

    def _first(self, window: int | str, budget: int, most_rows: int | None = None) -> Footprint:
        """Return the first candidate of windows and cached datasets that fits the budget."""

        def ways() -> Iterator[Footprint]:
            # Keeping is only worth memory that nothing else needs.
            for kept in dict.fromkeys((datasets_to_keep(self.layout, budget), ())):
                size = self._sized(kept, window, budget, most_rows)
                if size.fits and self._keeps_rows:
                    yield from self._keeping(size, window, most_rows)
                yield size

        return first_that_fits(ways())

    def _keeping(self, size: Footprint, window: int | str = 0, most_rows: int | None = None) -> Iterator[Footprint]:
        """Yield windows with decoded rows that stay: all, gathered; all, beside a smaller window; some; none."""
        budget, layout = size.memory_budget, self.layout
        if self.shuffle and not self.whole_windows:
            yield from self._gathered(size)
        every = rows_to_keep(layout, size.kept, sys.maxsize) if window == "auto" and self.shuffle else {}
        if every and size.needed_nbytes > (room := budget - format_of(layout, every).nbytes):
            least = size.window_rows if size.window_rows == most_rows else size.window_rows / LEAST_WINDOW_SHARE
            smaller = self._sized(size.kept, window, room, most_rows)
            size = replace(smaller, memory_budget=budget) if smaller.fits and smaller.window_rows >= least else size
        # What has come from a store is held once more while it is copied.
        coming = 2 * REQUEST_NBYTES * size.threads if layout.is_far else 0
        rows = rows_to_keep(layout, size.kept, max(0, budget - size.needed_nbytes - coming), fetched=True)
        yield size.keeping(rows, format_of(layout, rows).nbytes if rows else 0)
        yield size

    def _gathered(self, size: Footprint) -> Iterator[Footprint]:
        """Yield the footprint with all data in memory and a few batches gathered at a time, if that is possible."""
        layout, rows = self.layout, rows_to_keep(self.layout, size.kept, sys.maxsize)
        decoded = all(is_decoded(part) or part.rows == 0 for number in rows for part in layout.datasets[number])
        if not rows or not decoded or layout.ragged or len(size.kept) + len(rows) < len(layout.datasets):
            return
        nbytes = format_of(layout, rows).nbytes
        large = (max(GATHERED_NBYTES, min(most, nbytes // share)) for most, share in GATHERED)
        for at_once in dict.fromkeys([*large, GATHERED_NBYTES]):
            yield size.gathering(at_once).keeping(rows, nbytes)


def default_budget(total_nbytes: int) -> int:
    """Return the budget of a loader that was given none, on a machine with so much memory."""
    return min(DEFAULT_BUDGET, total_nbytes // 4)


def check_budget(memory_budget: int | str) -> int:
    """Return a budget in bytes: of a positive number, or of a text such as ``"4GiB"``."""
    nbytes = as_bytes(memory_budget, name="memory_budget=")
    if nbytes < 1:
        raise OptionError(f"memory_budget= takes at least a byte, not {memory_budget!r}")
    return nbytes

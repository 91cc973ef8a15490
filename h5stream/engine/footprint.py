"""The bytes that settings need, and the windows that a budget has room for."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from h5stream.base.texts import as_bytes, counted
from h5stream.engine.kinds.ragged import PADDING_SHARE
from h5stream.engine.slots import PAGE_NBYTES, packed
from h5stream.errors import OptionError

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
OPEN_NBYTES = 640  # for a batch that is filled or waits: the batch, its slot, arrays of its memory
SAMPLER_ROW_NBYTES = 48  # for each row of a sampler's window: which, where it goes, and both sorted by batch

SAMPLER_NBYTES = 1024 * 1024 * 1024
"""Bytes that a sampler's window may take. Not by the machine: the window chooses the order."""

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
        mean = sum([one.mean for one in self.ragged]) if self.ragged else 0
        return sum(self.field_nbytes) + round(mean)

    def wished_rows(self, window: int | str, batch_size: int) -> int:
        """Return the rows of a window as it was asked for, whatever memory there is."""
        check_window(window)
        in_bytes = min(AUTO_ROWS, AUTO_NBYTES // max(1, self.row_nbytes))
        auto = max(AUTO_BATCHES * batch_size, AUTO_BLOCKS * self.block_rows, in_bytes)
        return self.rows if window == "all" else min(self.rows, auto if window == "auto" else int(window))

    def file_order_rows(self, batch_size: int) -> int:
        """Return the rows of a window of an epoch in file order, which has no say in the order: a few batches."""
        in_bytes = min(FIRST_ROWS, FILE_ORDER_NBYTES // max(1, self.row_nbytes))
        return max(AUTO_BATCHES * batch_size, self.block_rows, in_bytes, SEAM_SHARE * self.seam_rows)

    def first_rows(self, batch_size: int) -> int:
        """Return the rows of an epoch's first window, where windows are not smaller anyway."""
        in_bytes = min(FIRST_ROWS, FIRST_NBYTES // max(1, self.row_nbytes))
        return max(batch_size, FIRST_BLOCKS * self.block_rows, in_bytes)

    def plan_nbytes(self, window_rows: int) -> int:
        """Return the bytes of the plans of one window that is read and one that comes next."""
        return math.ceil(min(2 * window_rows, self.rows) * self.plan_row_nbytes)

    def batch_nbytes(self, batch_size: int) -> int:
        """Return the bytes of a batch, in its slot and outside of it."""
        # Slots are used again: sooner or later each has held as many samples as it has room for.
        rows, outside = max(batch_size, self.room), self.objects_nbytes * batch_size
        _, nbytes = packed([row_nbytes * rows for row_nbytes in self.field_nbytes])
        for one in self.ragged:
            outside += one.of(batch_size)
        return -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES + outside

    def held_nbytes(self, batch_size: int, window_rows: int) -> int:
        """Return the bytes that the training loop holds: the largest batch of a window and the next one, padded."""
        largest = 0
        for one in self.ragged:
            largest += one.largest(batch_size, window_rows // batch_size) - one.of(batch_size) + one.padded(batch_size)
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
    most_threads: int = 1  # that there is scratch for

    @property
    def thread_nbytes(self) -> int:
        """The scratch of one thread."""
        return self.scratch_nbytes // max(1, self.threads)

    @property
    def fits(self) -> bool:
        """Whether the budget has room for it."""
        return self.needed_nbytes <= self.memory_budget

    @property
    def notice(self) -> str:
        """The warning if the wished window did not fit; otherwise empty."""
        if self.window_rows >= self.wished_rows:
            return ""
        smaller = f"window: {counted(self.window_rows, 'row')} instead of {self.wished_rows:,}, so that two windows "
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
    rows = shape.wished_rows(window, batch_size)
    if window == "auto" and most_rows is not None:
        rows = min(rows, most_rows)
    if not shuffle:
        rows = min(rows, shape.file_order_rows(batch_size))
        window = "auto" if window == "all" else window
    candidates: list[_Candidate] = []
    if window == "auto":
        room, scratch = memory_budget - shape.fixed_nbytes, shape.scratch.nbytes
        share = SCRATCH_SHARE if most_rows is None else LEAST_SCRATCH_SHARE
        if shape.two_nbytes(rows, batch_size) > room - max(memory_budget // share, scratch):
            rows = _most_rows(shape, rows, batch_size, room - max(memory_budget // SCRATCH_SHARE, scratch))
        candidates.append(_whole(shape, rows, batch_size, window))
        if most_rows is not None or not shuffle:
            # What is known of each open batch has no say in the window, and may be what does not fit beside it.
            candidates.append(_whole(shape, min(shape.block_rows, rows), batch_size, window))
    else:
        candidates.append(_whole(shape, rows, batch_size, window))
        if window == "all" and shape.anywhere:
            # What is read in file order is faster by half; this is for what does not fit so.
            most = 2 * max(AUTO_BATCHES, AT_ONCE_NBYTES // (shape.batch_nbytes(batch_size) + OPEN_NBYTES))
            candidates.append(_Candidate(rows, rows, rows, (2, most), gathers=True))
    for windows in candidates:
        size = _needed(shape, windows, batch_size, memory_budget, threads)
        if size.fits:
            break
    return size


def least_that_fits(sized: Callable[[int], Footprint], budget: int, most: int = sys.maxsize) -> Footprint:
    """Return the largest footprint that fits a budget, or the smallest if none does; one beyond `most` stays."""
    while not (size := sized(budget)).fits and size.needed_nbytes <= most:
        budget = size.needed_nbytes
    return size


class _Candidate(NamedTuple):
    """Sizes of windows that an epoch may be read in."""

    rows: int  # of a window
    first: int  # rows of the first window
    held: int  # rows of a window, with what it shares with the next
    slots: tuple[int, int]  # the least and the most
    is_auto: bool = False  # whether a part of the budget is left to scratch
    gathers: bool = False  # a few batches at a time


def _whole(shape: Shape, rows: int, batch_size: int, window: int | str) -> _Candidate:
    """Return windows of so many rows that are read whole."""
    first = rows if window == "all" else min(rows, shape.first_rows(batch_size))
    # A window ends at a block's edge, and its last batch may go on in the next.
    held = rows if window == "auto" else min(rows + shape.block_rows, shape.rows)
    together = rows_of_two(window_rows=rows, first_window_rows=first, rows=shape.rows)
    # A batch of each may go on in the next window; and no more than the end of one epoch and the next one.
    most = min(math.ceil(together / batch_size) + 4, 2 * math.ceil(shape.rows / batch_size))
    least = shape.batches_of(held, batch_size)
    return _Candidate(rows, first, held, (least, max(least, most)), is_auto=window == "auto")


def _needed(shape: Shape, windows: _Candidate, batch_size: int, memory_budget: int, threads: int) -> Footprint:
    """Return the footprint of windows with as many slots and threads as fit the budget, or the smallest one."""
    scratch, slot = shape.scratch, shape.batch_nbytes(batch_size) + OPEN_NBYTES
    held, (least, most) = windows.held, windows.slots
    plan = math.ceil(held * 3 * shape.place_nbytes) if windows.gathers else shape.plan_nbytes(held)
    fixed = shape.fixed_nbytes + shape.held_nbytes(batch_size, held) + plan
    spare = max(0, memory_budget - fixed - least * slot - scratch.nbytes)
    most_threads = scratch.threads_in(spare + scratch.nbytes)
    if windows.is_auto:
        most_threads = min(most_threads, scratch.threads_in(memory_budget // SCRATCH_SHARE))
    threads = min(threads, most_threads)
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
        most_threads=most_threads,
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


def default_budget(total_nbytes: int) -> int:
    """Return the budget of a loader that was given none, on a machine with so much memory."""
    return min(DEFAULT_BUDGET, total_nbytes // 4)


def check_budget(memory_budget: int | str) -> int:
    """Return a budget in bytes: of a positive number, or of a text such as ``"4GiB"``."""
    nbytes = as_bytes(memory_budget, name="memory_budget=")
    if nbytes < 1:
        raise OptionError(f"memory_budget= takes at least a byte, not {memory_budget!r}")
    return nbytes

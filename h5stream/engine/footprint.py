"""The bytes that settings need, and the windows that a budget has room for: numbers in, numbers out."""

from __future__ import annotations

import bisect
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from h5stream.errors import OptionError
from h5stream.order.epoch import EpochOrder, Order, RegroupedOrder
from h5stream.order.places import place_nbytes

WindowRows = int | Literal["auto", "all"]

DEFAULT_BUDGET = 2 * 1024**3
"""Bytes, or a quarter of the machine's memory if that is less: two windows of 1,024 blocks of 1 MiB. What is free
at the moment must not matter: it would choose the window, and with it the order of the rows."""

FIELD_ALIGNMENT = 128
"""Bytes: two cache lines, so that neither rows of two fields nor a GPU's transactions straddle."""

PAGE_NBYTES = 4096

TASK_NBYTES = 2 * 1024 * 1024
"""Decoded bytes of one task: a few chunks, so that threads meet rarely and still share a window evenly."""

COPIED_TASK_NBYTES = 8 * 1024 * 1024
"""Bytes of one task that decodes nothing, which takes about as long: a thread that comes back for another has to wait
until those that run Python let it."""

SCRATCH_SHARE = 4
"""An automatic window leaves scratch one part in so many of the budget (and one thread's scratch at least), however
many threads there are: their number must not choose the window."""

LEAST_SCRATCH_SHARE = 16
"""That part where the window is known, so that a column more beside the data, or a little less memory, leaves it."""

AT_ONCE_NBYTES = 8 * 1024 * 1024
"""Bytes of batches that are read together where rows cost the same wherever they lie, if that is more."""

CHUNK_PLAN_NBYTES = 160
"""Bytes that the plan takes for each chunk of a window while it is made: eight numbers, sorted into another eight,
and what they are sorted and cut by. Half of it stays."""

BLOCK_NBYTES = 72
"""Bytes that an order takes for each block of the data: its edge, its place on the lines of two epochs, and what these
are made of."""

OBJECT_NBYTES = 72
"""Bytes of a value of variable length, at the least: what Python takes to know of one."""

OPEN_NBYTES = 640
"""Bytes that Python takes to know of a batch that is filled or waits: the batch, its slot, arrays of its memory."""

SAMPLER_NBYTES = 1024 * 1024 * 1024
"""Bytes that a window of a sampler may take, which has no slots and no budget of its own. Not by the machine: the
window chooses the order."""

SAMPLER_ROW_NBYTES = 48
"""Bytes that it takes for each row: which row, where it goes, and both sorted by batch."""


PADDING_SHARE = 4
"""Samples that are padded are read to where they lie in the end if that takes no more than one part in so many beside
them: they are not copied then, but take more as long as the batch waits."""


RAGGED_WAYS_OUT = (
    ". A few long samples make all batches large: Field(..., ragged=Ragged(crop=Crop(...))) cuts them, "
    "draw=Sized(rows) puts fewer of them in a batch"
)
"""What else helps where samples are of unlike lengths."""

SHARES_NBYTES = 8 * 1024 * 1024
"""Bytes of ragged rows that lie in one memory, of batches that follow one another: taken at once, and on huge pages.
It is used again once the last of them is dropped."""

# How many rows an automatic window has: by the data alone, so that whoever streams it again gets the same order.

AUTO_BLOCKS = 1024
"""Blocks of an automatic window, at least: what matters for learning is the number of distinct blocks in it."""

AUTO_BATCHES = 4
"""Batches of an automatic window, at least."""

AUTO_NBYTES = 256 * 1024 * 1024
AUTO_ROWS = 1024 * 1024
"""An automatic window takes this much where its blocks are small. 1,024 blocks of 32 or 128 rows, 3 or 12 % of a
sorted file, left a loss that ten seeds could tell from a full shuffle's (docs/shuffling-results.md)."""

FIRST_BLOCKS = 64
"""Blocks of an epoch's first window, at least; later windows double. At 1 MiB a block it is read in under 0.1 s."""

FIRST_NBYTES = 64 * 1024 * 1024
FIRST_ROWS = 1024 * 1024
"""An epoch's first window is this large where blocks are small: as quickly read, and better mixed."""

FILE_ORDER_NBYTES = 32 * 1024 * 1024
"""Bytes of a window that is not shuffled, at least: enough tasks to go round, and nothing is gained by more."""

SEAM_SHARE = 4
"""Such a window is this many times as long as the longest chunk that its edges cut, and that is decoded twice so."""


def check_window(window: object) -> None:
    """Refuse what is no size of a window."""
    number = isinstance(window, int) and not isinstance(window, bool) and window > 0
    if not number and window not in ("auto", "all"):
        raise OptionError(f"window= takes a positive number of rows, 'auto' or 'all', not {window!r}")


def rows_of_two(*, window_rows: int, first_window_rows: int, rows: int) -> int:
    """Return the rows of two windows that follow one another, at most: of an epoch, and of its end and the next one."""
    sizes: list[int] = []
    left, size = rows, first_window_rows
    while left and sizes[-2:] != [window_rows] * 2:  # once they have grown, what is left are such windows, and a rest
        sizes.append(min(size, left))
        left, size = left - sizes[-1], min(2 * size, window_rows)
    return max(map(sum, itertools.pairwise([*sizes, min(first_window_rows, rows)])), default=rows)


def packed(nbytes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Return where stretches of so many bytes begin, one behind the other and aligned, and the bytes of all.

    Examples
    --------
    >>> packed([1024, 8])
    ((0, 1024), 1152)
    """
    ends = itertools.accumulate((-(-each // FIELD_ALIGNMENT) * FIELD_ALIGNMENT for each in nbytes), initial=0)
    *begins, end = ends
    return tuple(begins), max(end, FIELD_ALIGNMENT)


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
        some = self.longest[: batches.bit_length() + 1]
        return max(self.of(samples), min(math.ceil(samples * some[-1]), self.limit) if some else 0)

    def padded(self, samples: int) -> int:
        """Return the bytes that they take once they are filled up, or dense."""
        return min(samples * self.arranged, self.limit) if self.is_padded else samples * self.arranged

    @property
    def is_padded(self) -> bool:
        """Whether all samples of a batch are filled up to as many rows as the largest of it has."""
        return 0 < self.arranged == self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of the data decides how much memory an epoch takes."""

    rows: int  # of an epoch
    field_nbytes: tuple[int, ...]  # for each field, of a row in a slot
    block_rows: int  # of the longest block
    scratch_nbytes: int  # of one reader thread
    planned: int = 1  # datasets of which each row is planned in every window
    chunks_a_row: float = 0.0  # of these datasets: 0.001 where a chunk has a thousand rows
    kept_nbytes: int = 0  # small datasets that stay in memory
    data_nbytes: int = 0  # known of the data while it is open: chunk indexes, selected rows, blocks
    largest_row: int = 0  # the largest number of a row that occurs
    objects: int = 0  # fields whose values are of variable length
    seam_rows: int = 0  # of the longest chunk that is decoded anew where the edge of a window cuts it
    span_nbytes: float = 0.0  # of the plan for each sample that is several rows
    anywhere: bool = False  # whether rows cost about the same one by one, so that "all" need not fit into memory
    ragged: tuple[RaggedBytes, ...] = ()
    room: int = 0  # samples that a slot has room for, where a batch may have more than most have

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a batch; of ragged fields the mean."""
        return sum(self.field_nbytes) + round(sum(each.mean for each in self.ragged))

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

    @property
    def place_nbytes(self) -> int:
        """Bytes of the number of a row, or of a place."""
        return place_nbytes(max(self.rows, self.largest_row))

    @property
    def fixed_nbytes(self) -> int:
        """Bytes that are taken whatever the windows are."""
        shared = min(SHARES_NBYTES, math.ceil(self.rows * sum(one.mean for one in self.ragged)))
        return self.kept_nbytes + self.data_nbytes + shared

    @property
    def plan_row_nbytes(self) -> float:
        """Bytes that the plan of a window takes for each of its rows while it is made; most of it stays.

        Row, batch and place there, and its place in its chunk for each dataset.
        """
        return (3 + self.planned) * self.place_nbytes + self.chunks_a_row * CHUNK_PLAN_NBYTES + self.span_nbytes

    def plan_nbytes(self, window_rows: int) -> int:
        """Return the bytes of the plans of one window that is read and one that comes next."""
        return math.ceil(min(2 * window_rows, self.rows) * self.plan_row_nbytes)

    def batch_nbytes(self, batch_size: int) -> int:
        """Return the bytes of a batch: of its slot, and of what does not lie in one."""
        ragged = sum(each.of(batch_size) for each in self.ragged)
        # Slots are used again: sooner or later each has held as many samples as it has room for.
        _, nbytes = packed(each * max(batch_size, self.room) for each in self.field_nbytes)
        return -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES + self.objects * OBJECT_NBYTES * batch_size + ragged

    def held_nbytes(self, batch_size: int, window_rows: int) -> int:
        """Return the bytes of what the training loop holds, of windows of so many rows, padding included.

        That is the largest batch of a window, and the next, which it is given before it drops that one.
        """
        batches = window_rows // batch_size
        more = sum(
            one.largest(batch_size, batches) - one.of(batch_size) + one.padded(batch_size) for one in self.ragged
        )
        return 2 * (self.batch_nbytes(batch_size) + more)

    def batches_of(self, window_rows: int, batch_size: int) -> int:
        """Return the batches that a window of so many rows may touch: no more than an epoch has, if they are alike."""
        touched = math.ceil(min(window_rows, self.rows) / batch_size) + 1
        return touched if self.room else min(touched, math.ceil(self.rows / batch_size))

    def two_nbytes(self, window_rows: int, batch_size: int) -> int:
        """Return the bytes of two windows with all that goes with them, but for what Python knows of open batches."""
        slots = 2 * self.batches_of(window_rows, batch_size) * self.batch_nbytes(batch_size)
        return slots + self.plan_nbytes(window_rows) + self.held_nbytes(batch_size, window_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """How much is read together, what stays in memory, and what that takes: a candidate, or the one that was chosen.

    Windows are read whole, and shuffled on their way into the batches' slots; unless a few batches are gathered at a
    time, since rows cost the same wherever they lie.
    """

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
        """What to warn of where there was no room for the wished window; else empty."""
        if self.window_rows >= self.wished_rows:
            return ""
        smaller = f"window: {self.window_rows:,} rows instead of {self.wished_rows:,}, so that two windows "
        enough = f"memory_budget={self.wished_nbytes}" if self.wished_nbytes else "more"
        return (
            f"{smaller}and their plans fit memory_budget={self.memory_budget:,} bytes. Rows come in another order "
            f"than with {enough}; pass that, or window={self.window_rows} for this order with any budget"
        )

    def engine_order(self, order: EpochOrder) -> Order:
        """Return the order in which the engine fills slots."""
        if order.first_row is None and not self.batches_at_once:
            return order
        return RegroupedOrder(order, self.batches_at_once or None)

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

    Examples
    --------
    >>> shape = Shape(rows=30_000_000, field_nbytes=(4,), block_rows=1 << 18, scratch_nbytes=4 << 20)
    >>> size = size_window(shape, batch_size=8192, window="auto", memory_budget=256 << 20, threads=2)
    >>> size.window_rows, size.fits
    (4980736, True)
    """
    windows = _windows(shape, batch_size, window, memory_budget, shuffle, most_rows)
    sizes = [_fitted(shape, one, batch_size, memory_budget, threads) for one in windows]
    return next((size for size in sizes if size.fits), min(sizes, key=lambda size: size.needed_nbytes))


def least_that_fits(sized: Callable[[int], Footprint], budget: int, most: int = sys.maxsize) -> Footprint:
    """Return what a budget has room for, or the least budget that would do; what needs more than the `most` as it is.

    With more memory more may be kept, so what does not fit is asked for again.
    """
    while not (size := sized(budget)).fits and size.needed_nbytes <= most:
        budget = size.needed_nbytes
    return size


class _Windows(NamedTuple):
    """One way to read an epoch."""

    rows: int  # of a window
    first: int  # rows of the first window
    held: int  # rows of a window, with what it shares with the next
    plan_nbytes: int
    slots: tuple[int, int]  # the least and the most
    is_auto: bool = False  # whether a part of the budget is left to scratch
    gathers: bool = False  # a few batches at a time


def _windows(
    shape: Shape, batch_size: int, window: int | str, memory_budget: int, shuffle: bool, most_rows: int | None
) -> Iterator[_Windows]:
    """Yield the ways to read an epoch, the best first."""
    rows = shape.wished_rows(window, batch_size)
    if window == "auto" and most_rows is not None:
        rows = min(rows, most_rows)
    if not shuffle:
        rows = min(rows, shape.file_order_rows(batch_size))
        window = "auto" if window == "all" else window

    def room(share: int) -> int:
        return memory_budget - max(memory_budget // share, shape.scratch_nbytes) - shape.fixed_nbytes

    def whole(rows: int) -> _Windows:
        """Return windows of so many rows that are read whole."""
        first = rows if window == "all" else min(rows, shape.first_rows(batch_size))
        # A window ends at a block's edge, and its last batch may go on in the next.
        held = rows if window == "auto" else min(rows + shape.block_rows, shape.rows)
        together = rows_of_two(window_rows=rows, first_window_rows=first, rows=shape.rows)
        # A batch of each may go on in the next window; and no more than the end of one epoch and the next one.
        most = min(math.ceil(together / batch_size) + 4, 2 * math.ceil(shape.rows / batch_size))
        least = shape.batches_of(held, batch_size)
        return _Windows(rows, first, held, shape.plan_nbytes(held), (least, max(least, most)), window == "auto")

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
        yield _Windows(rows, rows, rows, math.ceil(rows * 3 * shape.place_nbytes), (2, most), gathers=True)


def _fitted(shape: Shape, windows: _Windows, batch_size: int, memory_budget: int, threads: int) -> Footprint:
    """Return what is taken by as many slots and threads as the budget has room for; the least where it has none."""
    scratch, slot = shape.scratch_nbytes, shape.batch_nbytes(batch_size) + OPEN_NBYTES
    fixed = shape.fixed_nbytes + shape.held_nbytes(batch_size, windows.held) + windows.plan_nbytes
    least, most = windows.slots
    left = max(0, memory_budget - fixed - least * slot - scratch)
    threads = min(threads, 1 + left // scratch)
    threads = threads_in(scratch, threads, memory_budget) if threads and windows.is_auto else threads
    all_scratch = max(1, threads) * scratch
    batches = min(least + (left - all_scratch + scratch) // slot, most)
    batches = batches // 2 * 2 if windows.gathers else batches
    return Footprint(
        window_rows=windows.rows,
        first_window_rows=windows.first,
        wished_rows=windows.rows,
        first_batches=batches // 2 if windows.gathers else windows.first // batch_size + 2,
        max_open_batches=batches,
        memory_budget=memory_budget,
        needed_nbytes=fixed + all_scratch + batches * slot,
        threads=threads,
        batch_nbytes=slot,
        plan_nbytes=windows.plan_nbytes,
        scratch_nbytes=all_scratch,
        batches_at_once=batches // 2 if windows.gathers else 0,
    )


def threads_in(scratch_nbytes: int, threads: int, memory_budget: int) -> int:
    """Return as many of these threads as share the part of a budget that is for scratch; at least one."""
    return max(1, min(threads, max(memory_budget // SCRATCH_SHARE, scratch_nbytes) // scratch_nbytes))


def _most_rows(shape: Shape, wished: int, batch_size: int, room: int) -> int:
    """Return the rows of a window of which two fit, in whole blocks, because a window ends at a block's edge.

    They are a batch at least, or all: a smaller window fills as many batches.
    """
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

"""The bytes that settings need, and the windows that a budget allows: one arithmetic for whoever asks, and pure.

The loader, `ChunkBatchSampler`, ``h5stream inspect`` and ``h5stream suggest`` all ask `size_window`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeGuard, TypeVar

from h5stream.errors import BudgetError
from h5stream.order.epoch import CutOrder, EpochOrder, Order
from h5stream.order.file_order import FileOrder
from h5stream.order.places import place_nbytes
from h5stream.order.regrouped import RegroupedOrder
from h5stream.order.transfer import TransferOrder
from h5stream.order.windows import AUTO_BATCHES, file_order_rows, first_rows, rows_of_two, wished_rows

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
    ". A few long samples make all batches large: Field(..., max_length=) or crop=Crop(...) cuts them, "
    "max_batch_rows= or bucket= puts fewer of them in a batch"
)
"""What else helps where samples are of unlike lengths."""

SHARES_NBYTES = 8 * 1024 * 1024
"""Bytes of ragged rows that lie in one memory, of batches that follow one another: taken at once, and on huge pages.
It is used again once the last of them is dropped."""


def packed_nbytes(field_nbytes: Sequence[int], rows: int) -> int:
    """Give the bytes of a slot that holds so many rows of fields, in whole pages as slots are.

    Examples
    --------
    >>> packed_nbytes([1024, 8], 8192)
    8454144
    """
    packed = sum(-(-nbytes * rows // FIELD_ALIGNMENT) * FIELD_ALIGNMENT for nbytes in field_nbytes)
    return -(-max(packed, FIELD_ALIGNMENT) // PAGE_NBYTES) * PAGE_NBYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBytes:
    """The bytes that samples have of a ragged field.

    Attributes
    ----------
    mean, deviation : float
        Of a sample.
    most : int
        Of the largest.
    arranged : int
        What a sample takes at most once it is filled up, or dense; 0 where it stays as it is read.
    limit : int or None
        Of a batch, where batches are cut by it, padded or not.
    longest : tuple of float
        Mean of all samples, of the largest half, quarter and so on, where batches are of samples of like lengths; the
        largest batch of so many.
    """

    mean: float
    deviation: float
    most: int
    arranged: int = 0
    limit: int | None = None
    longest: tuple[float, ...] = ()

    def of(self, samples: int) -> int:
        """Give the bytes that a batch of so many samples takes: few batches in ten thousand take more."""
        likely = math.ceil(samples * self.mean + 4 * math.sqrt(samples) * self.deviation)
        likely += likely // PADDING_SHARE if self.is_padded else 0
        return self._limited(min(samples * self.most, max(likely, self.most)))

    def largest(self, samples: int, batches: int) -> int:
        """Give the bytes that the largest of so many batches takes."""
        some = self.longest[: batches.bit_length() + 1]
        return max(self.of(samples), self._limited(math.ceil(samples * some[-1])) if some else 0)

    def padded(self, samples: int) -> int:
        """Give the bytes that they take once they are filled up, or dense."""
        return self._limited(samples * self.arranged) if self.is_padded else samples * self.arranged

    @property
    def is_padded(self) -> bool:
        """Whether all samples of a batch are filled up to as many rows as the largest of it has."""
        return 0 < self.arranged == self.most

    def _limited(self, nbytes: int) -> int:
        return nbytes if self.limit is None else min(nbytes, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of the data and the process decides how much memory an epoch takes.

    Attributes
    ----------
    rows : int
        Rows of an epoch.
    field_nbytes : tuple of int
        For each field, the bytes of a row in a slot.
    block_rows : int
        Rows of a block; of the longest, where they differ.
    scratch_nbytes : int
        What one reader thread needs.
    planned : int
        Datasets of which each row is planned in every window.
    chunks_a_row : float
        Chunks of these for each row: 0.001 where a chunk has a thousand.
    kept_nbytes : int
        Small datasets that stay in memory.
    data_nbytes : int
        What is known of the data as long as it is open: chunk index, selected rows, blocks.
    largest_row : int
        The largest number of a row that occurs.
    objects : int
        Fields whose values are of variable length.
    seam_rows : int
        Rows of the longest chunk that is decoded anew where the edge of a window cuts it; 0 where blocks cut none.
    span_nbytes : float
        What the plan takes of spans for each sample, where a sample is several rows.
    anywhere : bool
        Whether rows can be read one by one at about the same cost, so that ``"all"`` need not fit into memory.
    ragged : tuple of RaggedBytes
        What samples have of each ragged field.
    room : int
        Samples that a slot has room for, where a batch may have more than most have.
    """

    rows: int
    field_nbytes: tuple[int, ...]
    block_rows: int
    scratch_nbytes: int
    planned: int = 1
    chunks_a_row: float = 0.0
    kept_nbytes: int = 0
    data_nbytes: int = 0
    largest_row: int = 0
    objects: int = 0
    seam_rows: int = 0
    span_nbytes: float = 0.0
    anywhere: bool = False
    ragged: tuple[RaggedBytes, ...] = ()
    room: int = 0

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a batch; of ragged fields the mean."""
        return sum(self.field_nbytes) + round(sum(each.mean for each in self.ragged))

    @property
    def place_nbytes(self) -> int:
        """Bytes of the number of a row, or of a place."""
        return place_nbytes(max(self.rows, self.largest_row))

    @property
    def plan_row_nbytes(self) -> float:
        """Bytes that the plan of a window takes for each of its rows while it is made; most of it stays.

        Row, batch and place there, and its place in its chunk for each dataset.
        """
        place = self.place_nbytes
        return (3 + self.planned) * place + self.chunks_a_row * CHUNK_PLAN_NBYTES + self.span_nbytes

    def plan_nbytes(self, window_rows: int) -> int:
        """Give the bytes of the plans of one window that is read and one that comes next."""
        return math.ceil(min(2 * window_rows, self.rows) * self.plan_row_nbytes)

    def batch_nbytes(self, batch_size: int) -> int:
        """Give the bytes of a batch: of its slot, and of what does not lie in one."""
        ragged = sum(each.of(batch_size) for each in self.ragged)
        # Slots are used again: sooner or later each has held as many samples as it has room for.
        packed = packed_nbytes(self.field_nbytes, max(batch_size, self.room))
        return packed + self.objects * OBJECT_NBYTES * batch_size + ragged

    def held_nbytes(self, batch_size: int, window_rows: int) -> int:
        """Give the bytes of a batch when it is handed over: the largest of a window, with what is padded then."""
        batches = window_rows // batch_size
        more = sum(
            one.largest(batch_size, batches) - one.of(batch_size) + one.padded(batch_size) for one in self.ragged
        )
        return self.batch_nbytes(batch_size) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """How much is read together, and what that takes; a kind for each way of reading.

    Attributes
    ----------
    window_rows, first_window_rows : int
        Rows of a window, and of an epoch's first.
    wished_rows : int
        Rows of an automatic window, for which the budget may have no room.
    wished_nbytes : int
        A budget that has room for them, where this one has not.
    slot_rows : int
        Rows of a slot: those of a batch, unless slots cross to a device's window.
    max_open_batches : int
        Slots that the engine may fill or hold ready at a time.
    memory_budget, needed_nbytes : int
        Bytes that were allowed, and those that this takes at most: all of those below.
    threads : int
        Reader threads: those that were asked for, or as many as there is scratch for.
    batch_nbytes : int
        One batch. Two more than `max_open_batches` are counted: what the training loop holds from one to the next.
    plan_nbytes, scratch_nbytes, kept_nbytes, data_nbytes : int
        Plans of two windows; scratch of all threads; kept datasets; what is known of the data while it is open.
    kept : tuple of int
        Which datasets are kept in memory.
    kept_rows : tuple of (int, int)
        Which datasets stay in memory once they are decoded, and how many of their rows.
    kept_rows_nbytes : int
        The bytes of these, which `kept_nbytes` counts too.
    """

    window_rows: int
    first_window_rows: int
    wished_rows: int
    slot_rows: int
    max_open_batches: int
    memory_budget: int
    needed_nbytes: int
    threads: int
    batch_nbytes: int
    plan_nbytes: int
    scratch_nbytes: int
    kept_nbytes: int
    data_nbytes: int
    kept: tuple[int, ...] = ()
    kept_rows: tuple[tuple[int, int], ...] = ()
    kept_rows_nbytes: int = 0
    wished_nbytes: int = 0

    @property
    def notice(self) -> str:
        """Says so if the budget made the window smaller than wished; else empty."""
        if self.window_rows >= self.wished_rows:
            return ""
        enough = f"memory_budget={self.wished_nbytes}" if self.wished_nbytes else "more"
        return (
            f"window: {self.window_rows:,} rows instead of {self.wished_rows:,}, so that two windows and their plans "
            f"fit memory_budget={self.memory_budget:,} bytes. Rows come in another order than with {enough}; pass "
            f"that, or window={self.window_rows} for this order with any budget"
        )

    @property
    def first_slots(self) -> int:
        """Slots that an epoch's first window fills."""
        return self.first_window_rows // self.slot_rows + 2

    def engine_order(self, order: CutOrder, first_batch: int) -> tuple[Order, int]:
        """Give the order in which the engine fills slots, and the slot that `first_batch` needs first."""
        return (FileOrder(order) if _is_in_file_order(order) else order), first_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWindow(Footprint):
    """Windows are read whole, and shuffled on their way into the batches' slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredBatches(Footprint):
    """A few batches are read at a time, since rows cost the same wherever they lie.

    Attributes
    ----------
    batches_at_once : int
        How many.
    """

    batches_at_once: int

    @property
    def first_slots(self) -> int:
        """Slots that are read together at first."""
        return self.batches_at_once

    def engine_order(self, order: CutOrder, first_batch: int) -> tuple[Order, int]:
        """Give the same batches, a few at a time."""
        if _is_in_file_order(order):
            return FileOrder(order, self.batches_at_once), first_batch
        return RegroupedOrder(order, self.batches_at_once), first_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow(Footprint):
    """Windows lie on a device, which shuffles; slots bring them there in the order of the file."""

    @property
    def notice(self) -> str:
        """Says so if the device made the window smaller than wished; else empty."""
        if self.window_rows >= self.wished_rows:
            return ""
        return (
            f"window: {self.window_rows:,} rows instead of {self.wished_rows:,}, so that two windows fit a quarter of "
            "the device's memory. Rows come in another order than on a larger one; pass "
            f"window={self.window_rows} for this order on any device"
        )

    @property
    def slots_at_once(self) -> int:
        """Slots that are read together."""
        return max(1, min(4, self.max_open_batches // 3))

    def engine_order(self, order: CutOrder, first_batch: int) -> tuple[Order, int]:
        """Give slots of rows as the file has them, from the window of the first batch on."""
        transfer = TransferOrder(order, slot_rows=self.slot_rows, slots_at_once=self.slots_at_once)
        return transfer, transfer.first_slot(first_batch)


def _is_in_file_order(order: Order) -> TypeGuard[EpochOrder]:
    return isinstance(order, EpochOrder) and order.is_in_file_order


Kind = TypeVar("Kind", bound=Footprint)


def changed_into(kind: type[Kind], footprint: Footprint, **changes: Any) -> Kind:
    """Give a footprint of another kind that is alike but for some changes."""
    return kind(**{field.name: getattr(footprint, field.name) for field in fields(Footprint)} | changes)


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
    """Size the windows so that everything fits the budget.

    The number of threads, and what memory is free, have no say in the size of an automatic window: it is part of the
    order. Threads that do not fit are left out instead.

    Parameters
    ----------
    shape : Shape
        The data.
    batch_size : int
        Rows of a batch.
    window : int, "auto" or "all"
        Rows of a window as asked for; without `shuffle` the most, since a few batches do there.
    memory_budget : int
        Bytes allowed.
    threads : int
        Reader threads; 0 reads in the thread that asks.
    shuffle : bool
        Whether windows are shuffled.
    most_rows : int, optional
        Rows of an automatic window, which then is smaller only where the budget has no room for it.

    Raises
    ------
    BudgetError
        If it does not fit; names the number that would do.
    OptionError
        If `window` is none of the three.

    Examples
    --------
    >>> shape = Shape(rows=30_000_000, field_nbytes=(4,), block_rows=1 << 18, scratch_nbytes=4 << 20)
    >>> size = size_window(shape, batch_size=8192, window="auto", memory_budget=256 << 20, threads=2)
    >>> size.window_rows, size.needed_nbytes <= 256 << 20
    (4980736, True)
    """
    wished = wished_rows(
        window, rows=shape.rows, batch_size=batch_size, block_rows=shape.block_rows, row_nbytes=shape.row_nbytes
    )
    if window == "auto" and most_rows is not None:
        wished = min(wished, most_rows)
    if not shuffle:
        few = file_order_rows(
            batch_size=batch_size,
            block_rows=shape.block_rows,
            row_nbytes=shape.row_nbytes,
            seam_rows=shape.seam_rows,
        )
        wished, window = min(wished, few), "auto" if window == "all" or window == "auto" else window
    sizer = _Sizer(
        shape, batch_size, memory_budget, threads, SCRATCH_SHARE if most_rows is None else LEAST_SCRATCH_SHARE
    )
    return sizer.automatic(wished) if window == "auto" else sizer.as_asked(wished, window)


def size_order(shape: Shape, *, batch_size: int, window: int | str, shuffle: bool) -> tuple[int, int]:
    """Give the rows of a window, and of an epoch's first, of an order that is only listed, as a sampler does."""
    given = {"batch_size": batch_size, "block_rows": shape.block_rows, "row_nbytes": shape.row_nbytes}
    rows = wished_rows(window, rows=shape.rows, **given)
    if not shuffle:
        rows = min(rows, file_order_rows(**given, seam_rows=0))
    elif window == "auto":
        fitting = SAMPLER_NBYTES // SAMPLER_ROW_NBYTES // shape.block_rows * shape.block_rows
        rows = min(rows, max(shape.block_rows, fitting))
    return rows, rows if window == "all" else min(rows, first_rows(**given))


@dataclass(frozen=True, slots=True)
class _Sizer:
    """The arithmetic of `size_window`."""

    shape: Shape
    batch_size: int
    budget: int
    threads: int
    scratch_share: int

    @property
    def slot(self) -> int:
        return self.shape.batch_nbytes(self.batch_size)

    @property
    def open_slot(self) -> int:
        """Bytes of a batch that is open; what is known of it has no say in the window, and so in the order."""
        return self.slot + OPEN_NBYTES

    @property
    def fixed(self) -> int:
        """Bytes that are taken whatever the windows are."""
        shape = self.shape
        shared = min(SHARES_NBYTES, math.ceil(shape.rows * sum(one.mean for one in shape.ragged)))
        return shape.kept_nbytes + shape.data_nbytes + shared

    def _held(self, rows: int) -> int:
        """Give the bytes of what the training loop holds of windows of so many rows.

        That is a batch, and the next, which it is given before it drops that one.
        """
        return 2 * self.shape.held_nbytes(self.batch_size, rows)

    def automatic(self, wished: int) -> Footprint:
        """Size windows of as many rows as are wished for, or as fit twice."""
        rows = wished
        if self._twice(wished) > self._share(self.scratch_share):
            rows = self._most_rows(self._share(SCRATCH_SHARE), wished)
        return self._sized(rows, rows, "auto", min(rows, self._first_rows()))

    def _share(self, scratch_share: int) -> int:
        """Return the bytes that windows may take."""
        return self.budget - max(self.budget // scratch_share, self.shape.scratch_nbytes) - self.fixed

    def as_asked(self, wished: int, window: int | str) -> Footprint:
        """Size windows of exactly so many rows; a global shuffle of rows that lie anywhere needs its order alone."""
        # A window ends at a block's edge, and its last batch may go on in the next.
        must_hold = min(wished + self.shape.block_rows, self.shape.rows)
        first = wished if window == "all" else min(wished, self._first_rows())
        try:
            return self._sized(wished, must_hold, window, first)
        except BudgetError:
            if window == "all" and self.shape.anywhere and (size := self._piecewise()):
                return size
            raise

    def _first_rows(self) -> int:
        shape = self.shape
        return first_rows(batch_size=self.batch_size, block_rows=shape.block_rows, row_nbytes=shape.row_nbytes)

    def _least_slots(self, rows: int) -> int:
        return math.ceil(min(rows, self.shape.rows) / self.batch_size) + 1

    def _twice(self, rows: int) -> int:
        """Give the bytes of two windows of so many rows, with their plans and what is held of them."""
        return 2 * self._least_slots(rows) * self.slot + self.shape.plan_nbytes(rows) + self._held(rows)

    def _most_rows(self, share: int, wished: int) -> int:
        """Give the rows of a window of which two fit, in whole blocks, because a window ends at a block's edge."""
        block_rows = self.shape.block_rows
        low, high = 0, wished // self.batch_size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._twice(middle * self.batch_size) <= share else (low, middle - 1)
        least = self.batch_size
        if low == 0 and 2 * self.slot + self.shape.plan_nbytes(least) + self._held(least) <= share:
            low = 1  # two windows of a batch each, if they do not begin inside one
        return max(min(block_rows, wished), low * self.batch_size // block_rows * block_rows)

    def _sized(self, rows: int, must_hold: int, window: int | str, first: int) -> Footprint:
        shape, slot = self.shape, self.open_slot
        plan, fixed = shape.plan_nbytes(must_hold), self.fixed + self._held(must_hold)
        least = self._least_slots(must_hold)
        needed = fixed + plan + least * slot + shape.scratch_nbytes
        if needed > self.budget:
            raise self._too_small(window, needed)
        threads = self._threads_in(self.budget - needed, window)
        scratch = max(1, threads) * shape.scratch_nbytes
        affordable = (self.budget - fixed - plan - scratch) // slot
        together = rows_of_two(window_rows=rows, first_window_rows=first, rows=shape.rows)
        # A batch of each may go on in the next window; and no more than the end of one epoch and the next one.
        most = min(math.ceil(together / self.batch_size) + 4, 2 * math.ceil(shape.rows / self.batch_size))
        most = max(least, most)
        taken = self._taken(int(min(affordable, most)), threads, plan, fixed)
        return HostWindow(window_rows=rows, first_window_rows=first, wished_rows=rows, **taken)

    def _threads_in(self, spare: int, window: int | str) -> int:
        """Give as many of the threads as have scratch beside what is needed with one."""
        scratch = self.shape.scratch_nbytes
        fitting = 1 + spare // scratch
        if window == "auto":
            fitting = min(fitting, max(1, max(self.budget // SCRATCH_SHARE, scratch) // scratch))
        return min(self.threads, fitting)

    def _too_small(self, window: int | str, needed: int) -> BudgetError:
        shape = self.shape
        return BudgetError(
            f"memory_budget={self.budget:,} bytes is too small for window={window!r}: batches of {self.open_slot:,} "
            f"bytes, plans of {shape.plan_row_nbytes:,.0f} bytes a row, {shape.scratch_nbytes:,} bytes of scratch and "
            f"what is kept need {needed:,}. Pass memory_budget={needed} or more, a smaller window or a smaller "
            "batch_size" + (RAGGED_WAYS_OUT if shape.ragged else ""),
            needed=needed,
            budget=self.budget,
        )

    def _piecewise(self) -> GatheredBatches | None:
        """Size an exact global shuffle that reads a few batches at a time; None if not even that fits."""
        shape, slot = self.shape, self.open_slot
        # What is read in file order is faster by half; this is for what does not fit so.
        plan = math.ceil(shape.rows * 3 * shape.place_nbytes)
        fixed = self.fixed + self._held(shape.rows)
        spare = self.budget - fixed - plan - shape.scratch_nbytes - 2 * slot
        if spare < 0:
            return None
        threads = min(self.threads, 1 + spare // shape.scratch_nbytes)
        affordable = (self.budget - fixed - plan - max(1, threads) * shape.scratch_nbytes) // slot
        at_once = min(affordable // 2, max(AUTO_BATCHES, AT_ONCE_NBYTES // slot))
        rows, taken = shape.rows, self._taken(2 * at_once, threads, plan, fixed)
        return GatheredBatches(
            window_rows=rows, first_window_rows=rows, wished_rows=rows, batches_at_once=at_once, **taken
        )

    def _taken(self, batches: int, threads: int, plan: int, fixed: int) -> dict[str, Any]:
        """Give what of a footprint says what is taken."""
        scratch = max(1, threads) * self.shape.scratch_nbytes
        return {
            "slot_rows": self.batch_size,
            "max_open_batches": batches,
            "memory_budget": self.budget,
            "needed_nbytes": fixed + plan + scratch + batches * self.open_slot,
            "threads": threads,
            "batch_nbytes": self.open_slot,
            "plan_nbytes": plan,
            "scratch_nbytes": scratch,
            "kept_nbytes": self.shape.kept_nbytes,
            "data_nbytes": self.shape.data_nbytes,
        }

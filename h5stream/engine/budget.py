"""What of a layout is counted for `h5stream.engine.footprint`, and what gives way to what within a budget."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.footprint import (
    BLOCK_NBYTES,
    DEFAULT_BUDGET,
    RAGGED_WAYS_OUT,
    TASK_NBYTES,
    Footprint,
    RaggedBytes,
    Shape,
    least_that_fits,
    size_window,
    threads_in,
)
from h5stream.engine.landing.kept import (
    GATHERED_NBYTES,
    datasets_to_keep,
    format_of,
    is_decoded,
    rows_to_keep,
)
from h5stream.engine.landing.unfiltered import reach_of
from h5stream.errors import BudgetError, OptionError
from h5stream.order.chunks import block_rows, longest_block
from h5stream.order.line import OrderSettings
from h5stream.order.places import place_nbytes
from h5stream.order.sized import POOL_BATCHES
from h5stream.order.weights import PlannedDraws
from h5stream.samples.ragged import DENSE
from h5stream.samples.space import neighbours
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart, FieldLayout, SampleLayout
from h5stream.storage.names import Names
from h5stream.units import as_bytes

_log = logging.getLogger("h5stream")

SPAN_PLAN_NBYTES = 64
"""What a span takes while it is planned: first row, length, sample and place in 64 bits, sorted, then in 32."""

CUT_NBYTES = 40
"""What it takes to cut a line by the lengths of samples, for each of them: lengths, their sums, what they are sorted
by; most of it for a moment."""

DRAWN_EPOCHS = 2
"""Epochs whose drawn samples are held: the one under way, and the one that is read ahead."""

LEAST_WINDOW_SHARE = 4
"""An automatic window is one part in so many of what the budget has room for, at least, where less would let all
decoded rows stay in memory. From there on an epoch costs copies alone; a window of a quarter still mixes well."""

MOST_GATHERED_NBYTES = 32 * 1024 * 1024
GATHERED_SHARE = 8
"""Bytes of batches that are gathered at a time from decoded rows that stay in memory, at most, and one part in how many
of those: twice as much is open. Epochs of 512 MiB in batches of 8 MiB took 55 to 70 ms with one of them at a time, 42
to 49 with 32 MiB, little less with 64, and 28 to 33 with windows of the whole file, which hold as much once more."""

LEAST_READ_NBYTES = 256
"""Bytes of a row for each read that it takes, at least, for rows to be read one by one: shorter reads cost their
system call, half a microsecond, and little else."""


LEAST_OPEN = 8
"""Batches that must fit where their size is not known, so that reading ahead is worth its name."""


def scratch_nbytes(layout: SampleLayout) -> int:
    """Return the bytes of scratch that one reader thread may need.

    A read of one task, the last chunk of which may be large, two decode buffers, one unshuffled copy, one of a member.
    What need not be decoded is read by pieces of a task's size.
    """
    largest_stored = largest_chunk = largest_dataset = 0
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
            if part.index is not None and len(part.index.nbytes):
                largest_stored = max(largest_stored, int(part.index.nbytes.max()))
    return max(1, min(TASK_NBYTES, largest_dataset + largest_stored) + largest_stored + 3 * largest_chunk)


def threads_within(layout: SampleLayout, threads: int, memory_budget: int) -> int:
    """Return as many threads, where nobody chose their number, as share the scratch of a budget; at least one."""
    return threads_in(scratch_nbytes(layout), threads, memory_budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedField:
    """The ragged field by whose rows batches are cut."""

    number: int
    rows: int | None  # of a batch, at most; None where only samples of like lengths come together
    samples: int  # of a batch, at most
    bucketed: bool  # whether samples of like lengths come together


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
    drawn = DRAWN_EPOCHS + (selected is not None)  # whose rows are looked up by what was drawn
    planned = [parts for parts in read if layout.has_boxes or any(part.access != DIRECT for part in parts)]
    return Shape(
        rows=rows,
        field_nbytes=tuple(field.row_nbytes for field in layout.fields),
        block_rows=longest_block(layout),
        scratch_nbytes=scratch_nbytes(layout),
        planned=len(planned),
        chunks_a_row=sum(_chunks_a_row(layout, parts, rows) for parts in planned),
        kept_nbytes=format_of(layout, {n: layout.rows_of(n) for n in kept}).nbytes if kept else 0,
        data_nbytes=_data_nbytes(layout, selected)
        + (0 if limited is None else rows * CUT_NBYTES)
        + (0 if draws is None else draws.nbytes + rows * drawn * place_nbytes(max(layout.rows, layout.samples))),
        largest_row=max(layout.rows, layout.samples),
        objects=sum(field.kind == "object" for field in layout.fields),
        seam_rows=_seam_rows(layout, planned),
        span_nbytes=_span_nbytes(layout, planned),
        anywhere=not planned and _rows_anywhere(read) and not any(field.ragged for field in layout.fields),
        ragged=tuple(_ragged_bytes(layout, limited)),
        room=0 if limited is None else limited.samples,
    )


def _ragged_bytes(layout: SampleLayout, limited: LimitedField | None) -> Iterator[RaggedBytes]:
    """Yield the bytes of samples of each field whose samples have some of their own."""
    for number, one in layout.ragged.items():
        assert one.counts is not None
        field = layout.fields[number]
        nbytes = one.counts * field.placed_nbytes
        found = _bytes_of(nbytes, field)
        if limited is not None and limited.bucketed:
            ascending = np.sort(nbytes)  # as many of the longest as are sorted with one another
            some = [-(-len(nbytes) >> power) for power in range(POOL_BATCHES.bit_length())]
            found = replace(found, longest=tuple(float(ascending[len(nbytes) - few :].mean()) for few in some))
        if limited is not None and limited.rows is not None and one.counts is layout.ragged[limited.number].counts:
            found = replace(found, limit=limited.rows * field.placed_nbytes)
        yield found
    for field in layout.fields:
        if field.kind == "object" and field.images is not None:
            mean, most = field.images.mean_nbytes, field.images.most_nbytes
            yield RaggedBytes(mean=mean, deviation=most - mean, most=int(most))
    for number, field in layout.listed:
        every = [part.heap.nbytes_of_rows(part.rows) for part in layout.datasets[number] if part.heap]
        yield _bytes_of(np.concatenate(every), field)


def _bytes_of(nbytes: NDArray[np.int64], field: FieldLayout) -> RaggedBytes:
    form, most = None if field.ragged is None else field.ragged.form, int(nbytes.max())
    arranged = most if form == "pad" else 0
    if field.ragged is not None and form == DENSE:
        arranged = field.ragged.wanted * field.placed_nbytes
    return RaggedBytes(mean=float(nbytes.mean()), deviation=float(nbytes.std()), most=most, arranged=arranged)


def _span_nbytes(layout: SampleLayout, planned: Iterable[tuple[DatasetPart, ...]]) -> float:
    """Return what the plan takes of a sample's spans while it is made: of each kind of steps, and each dataset."""
    nbytes = 2.0 * SPAN_PLAN_NBYTES * sum(one.counts is not None for one in layout.lookups)
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
    if not layout.has_boxes or not parts[0].along:
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
    blocks = sum(-(-part.rows // rows) for part, rows in zip(layout.leading, block_rows(layout), strict=True))
    index += sum(one.nbytes for one in layout.lookups)
    index += sum(part.heap.nbytes for parts in layout.datasets for part in parts if part.heap is not None)
    index += 0 if layout.space is None else layout.space.nbytes
    names = {part.objects for parts in layout.datasets for part in parts if isinstance(part.objects, Names)}
    index += sum(each.nbytes for each in names)
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


_Sized = Callable[[tuple[int, ...], int], Footprint]
"""Sizes windows beside some datasets that are kept in memory, within a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the size of windows depends on.

    An automatic window is the one of the default budget: it is part of the order, which the data and the size of a
    batch decide alone. Only a budget that has no room for it makes it smaller.
    """

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

    @property
    def _keeps_rows(self) -> bool:
        """Whether decoded rows may stay: of few samples chunks would stay whole, most of them for nothing."""
        return self.keep and (self.selected is None or 2 * len(self.selected) >= self.layout.samples)

    @property
    def most_rows(self) -> int:
        """Rows of a batch, at most."""
        return max(self.batch_rows, 0 if self.limited is None else self.limited.samples)

    def choose(self, window: int | str) -> Footprint:
        """Return windows as `fitting` does, and log what came out unlike what was asked for."""
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
        """Return windows that the budget has room for; a `BudgetError` names the number that would do.

        A batch that `DataLoader` would take must not fail for a budget that nobody chose: there an automatic window
        takes what it needs at least.
        """
        shapes = self._shapes()

        def sized(budget: int) -> Footprint:
            # A machine of 200 processors must not need 200 threads' scratch.
            threads = self.threads if self.threads_asked else threads_within(self.layout, self.threads, budget)
            return replace(self, threads=threads)._within(budget, window, shapes)

        return self._checked(least_that_fits(sized, self.memory_budget, self.most_budget * (window == "auto")), window)

    def _checked(self, size: Footprint, window: int | str) -> Footprint:
        """Refuse what does not fit."""
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
        """Return the sizing where nobody says how large batches are: for the largest that the budget has room for.

        Slots are mapped, and what no row is written to takes no memory: room costs nothing but the budget's account.
        """
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
        """Return the size of windows for settings that a state brought, where they are not those of `size`."""
        rows, first_rows = settings.window_rows, settings.first_window_rows
        if (rows, first_rows) == (size.window_rows, size.first_window_rows):
            return size
        sized = replace(self, threads=size.threads)._sized(self._shapes(), rows)
        new = least_that_fits(lambda budget: sized(size.kept, budget), self.memory_budget, self.most_budget)
        new = self._checked(new, rows)
        if size.kept_rows:
            new = _first_that_fits(self._candidates(new))
        first_batches = new.batches_at_once or first_rows // self.batch_rows + 2
        return replace(
            new, window_rows=rows, first_window_rows=first_rows, wished_rows=rows, first_batches=first_batches
        )

    def _shapes(self) -> Callable[[tuple[int, ...]], Shape]:
        """Return what counts the data beside datasets that are kept, each choice of them once."""
        return functools.cache(lambda kept: shape_of(self.layout, kept, self.selected, self.limited, self.draws))

    def _sized(
        self, shapes: Callable[[tuple[int, ...]], Shape], window: int | str, most_rows: int | None = None
    ) -> _Sized:
        """Return what sizes windows; where all data is kept, batches are gathered: rows cost the same anywhere."""

        def sized(kept: tuple[int, ...], budget: int) -> Footprint:
            size = size_window(
                shapes(kept),
                batch_size=self.batch_rows,
                window=window,
                memory_budget=budget,
                threads=self.threads,
                shuffle=self.shuffle,
                most_rows=most_rows,
            )
            is_whole = len(kept) == len(self.layout.datasets) and not self.whole_windows and not size.batches_at_once
            return replace(size.gathering(GATHERED_NBYTES) if is_whole and size.fits else size, kept=kept)

        return sized

    def _within(self, budget: int, window: int | str, shapes: Callable[[tuple[int, ...]], Shape]) -> Footprint:
        """Return what a budget has room for, of windows as asked for or like those of the default budget."""
        if window != "auto" or not self.shuffle or self.whole_windows:
            return self._first(self._sized(shapes, window), budget, may_shrink=window == "auto" and self.shuffle)
        layout = self.layout if self.plain is None else self.plain
        is_plain, plain = layout is self.layout, replace(self, layout=layout, keep=True)
        like = plain._sized(shapes if is_plain else plain._shapes(), window)
        default = least_that_fits(lambda nbytes: plain._first(like, nbytes), DEFAULT_BUDGET)
        if is_plain and self.keep and budget == default.memory_budget:
            return default
        wished = default.window_rows
        size = self._first(self._sized(shapes, window, wished), budget, wished)
        if size.window_rows == wished or not size.fits:
            return size
        # Windows are as they are wished for if the batches come of data in memory, so that none is held.
        unbounded = replace(self, threads=size.threads)._sized(shapes, window, wished)
        for kept in dict.fromkeys((size.kept, ())):
            large = replace(unbounded(kept, sys.maxsize), memory_budget=budget)
            gathered = large if large.batches_at_once else self._gathered(large) if self._keeps_rows else None
            if gathered is not None and gathered.fits:
                return gathered
        return replace(size, wished_rows=wished, wished_nbytes=default.memory_budget)

    def _first(self, sized: _Sized, budget: int, most_rows: int | None = None, *, may_shrink: bool = True) -> Footprint:
        """Return the first that a budget has room for of windows, and of what is kept in memory beside them."""
        size = sized(datasets_to_keep(self.layout, budget), budget)
        if size.kept and not size.fits:  # keeping is only worth memory that nothing else needs
            size = sized((), budget)
        if not self._keeps_rows or not size.fits:
            return size
        return _first_that_fits(self._candidates(size, sized if may_shrink else None, most_rows))

    def _candidates(
        self, size: Footprint, sized: _Sized | None = None, most_rows: int | None = None
    ) -> Iterator[Footprint]:
        """Yield windows and the decoded rows that stay in memory beside them, the best first.

        That is all rows, gathered from there; all beside a window that is not much smaller; as many as fit; none.
        """
        budget, layout = size.memory_budget, self.layout
        if self.shuffle and not self.whole_windows and (gathered := self._gathered(size)) is not None:
            yield gathered
        every = rows_to_keep(layout, size.kept, sys.maxsize) if sized is not None else {}
        if sized is not None and every and size.needed_nbytes > (room := budget - format_of(layout, every).nbytes):
            least = size.window_rows if size.window_rows == most_rows else size.window_rows / LEAST_WINDOW_SHARE
            smaller = sized(size.kept, room)
            size = replace(smaller, memory_budget=budget) if smaller.fits and smaller.window_rows >= least else size
        rows = rows_to_keep(layout, size.kept, budget - size.needed_nbytes)
        yield size.keeping(rows, format_of(layout, rows).nbytes if rows else 0)
        yield size

    def _gathered(self, size: Footprint) -> Footprint | None:
        """Return the same with all data in memory, of which a few batches are gathered at a time, if that can be."""
        layout, rows = self.layout, rows_to_keep(self.layout, size.kept, sys.maxsize)
        decoded = all(is_decoded(part) or part.rows == 0 for number in rows for part in layout.datasets[number])
        if not rows or not decoded or layout.ragged or len(size.kept) + len(rows) < len(layout.datasets):
            return None
        nbytes = format_of(layout, rows).nbytes
        at_once = max(GATHERED_NBYTES, min(MOST_GATHERED_NBYTES, nbytes // GATHERED_SHARE))
        return size.gathering(at_once).keeping(rows, nbytes)


def _first_that_fits(candidates: Iterable[Footprint]) -> Footprint:
    return next(size for size in candidates if size.fits)


def _rows_anywhere(datasets: Iterable[tuple[DatasetPart, ...]]) -> bool:
    """Tell whether rows that need no decoding can be read one by one: reads must not be for a few bytes."""
    reads = nbytes = 0
    for parts in datasets:
        reads += max((len(reach_of(part).extents) for part in parts if part.pieces), default=0)
        nbytes += parts[0].stored_row_nbytes
    return nbytes >= reads * LEAST_READ_NBYTES


def default_budget(total_nbytes: int) -> int:
    """Return the budget of a loader that was given none, on a machine with so much memory.

    Examples
    --------
    >>> default_budget(4 << 30) >> 20
    1024
    """
    return min(DEFAULT_BUDGET, total_nbytes // 4)


def check_budget(memory_budget: int | str) -> int:
    """Return a budget in bytes: of a positive number, or of a text such as ``"4GiB"``."""
    nbytes = as_bytes(memory_budget, name="memory_budget=")
    if nbytes < 1:
        raise OptionError(f"memory_budget= takes at least a byte, not {memory_budget!r}")
    return nbytes

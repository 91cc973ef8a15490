"""What streaming a layout takes of memory: its numbers for `h5stream.engine.footprint`, and what gives way to what."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.footprint import (
    BLOCK_NBYTES,
    DEFAULT_BUDGET,
    RAGGED_WAYS_OUT,
    SCRATCH_SHARE,
    TASK_NBYTES,
    DeviceWindow,
    Footprint,
    GatheredBatches,
    Kind,
    RaggedBytes,
    Shape,
    changed_into,
    packed_nbytes,
    size_window,
)
from h5stream.engine.landing.in_memory import format_of
from h5stream.engine.landing.kept import is_decoded, rows_to_keep
from h5stream.engine.landing.mapped import can_be_mapped
from h5stream.engine.landing.resident import GATHERED_NBYTES, datasets_to_keep, resident_format
from h5stream.engine.landing.unfiltered import reach_of
from h5stream.errors import BudgetError, OptionError
from h5stream.order.epoch import OrderSettings
from h5stream.order.places import place_nbytes
from h5stream.order.sized import POOL_BATCHES
from h5stream.order.transfer import transfer_rows
from h5stream.order.weights import PlannedDraws
from h5stream.order.windows import first_rows
from h5stream.samples.box_space import BoxSpace
from h5stream.samples.space import SequenceSpace
from h5stream.samples.spans import neighbours
from h5stream.samples.stretches import DENSE
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


def scratch_nbytes(layout: SampleLayout) -> int:
    """Give the bytes of scratch that one reader thread may need.

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


def block_rows_of(layout: SampleLayout) -> int:
    """Give the rows of a block; of the longest, where they differ."""
    chunks = layout.looked_up_chunks()
    return max(layout.block_rows) if chunks is None else int(np.bincount(chunks).max())


def first_rows_of(layout: SampleLayout, batch_size: int) -> int:
    """Give the rows of an epoch's first window, where windows are not smaller anyway."""
    return first_rows(batch_size=batch_size, block_rows=block_rows_of(layout), row_nbytes=layout.row_nbytes)


def device_window_rows(device_nbytes: int, row_nbytes: int) -> int:
    """Give the rows of an automatic device window: two of them in a quarter of the device's memory.

    Of all of it, because what is free at the moment must not choose the order.
    """
    return max(1, device_nbytes // 8 // max(1, row_nbytes + 8))


def threads_within(layout: SampleLayout, threads: int, memory_budget: int) -> int:
    """Give as many of these threads as share the part of a budget that is for scratch; at least one.

    For the number that nobody chose: a machine of 200 processors must not need 200 threads' scratch.
    """
    scratch = scratch_nbytes(layout)
    return max(1, min(threads, max(memory_budget // SCRATCH_SHARE, scratch) // scratch))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedField:
    """The ragged field by whose rows batches are cut.

    Attributes
    ----------
    number : int
        The field's.
    rows : int or None
        Rows of a batch, at most; None where only samples of like lengths come together.
    samples : int
        Samples of a batch, at most.
    bucketed : bool
        Whether samples of like lengths come together.
    """

    number: int
    rows: int | None
    samples: int
    bucketed: bool


def shape_of(
    layout: SampleLayout,
    kept: tuple[int, ...] = (),
    selected: NDArray[np.int64] | None = None,
    limited: LimitedField | None = None,
    draws: PlannedDraws | None = None,
) -> Shape:
    """Give what of a layout decides how much memory an epoch takes.

    Parameters
    ----------
    layout : SampleLayout
        The fields.
    kept : tuple of int
        Datasets that are kept in memory.
    selected : ndarray of int64, optional
        The rows of an epoch, if not all.
    limited : LimitedField, optional
        What batches are cut by.
    draws : PlannedDraws, optional
        What draws the samples of an epoch, if it does not take each once.
    """
    rows = _epoch_rows(layout, selected, draws)
    read = [
        parts
        for number, parts in enumerate(layout.datasets)
        if parts[0].targets and number not in kept and not can_be_mapped(layout, number)
    ]
    drawn = DRAWN_EPOCHS + (selected is not None)  # whose rows are looked up by what was drawn
    is_boxed = isinstance(layout.space, BoxSpace)
    planned = [parts for parts in read if is_boxed or any(part.access != DIRECT for part in parts)]
    return Shape(
        rows=rows,
        field_nbytes=tuple(field.row_nbytes for field in layout.fields),
        block_rows=block_rows_of(layout),
        scratch_nbytes=scratch_nbytes(layout),
        planned=len(planned),
        chunks_a_row=sum(_chunks_a_row(layout, parts, rows) for parts in planned),
        kept_nbytes=resident_format(layout, kept).nbytes if kept else 0,
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


def _epoch_rows(layout: SampleLayout, selected: NDArray[np.int64] | None, draws: PlannedDraws | None) -> int:
    """Give the samples of an epoch."""
    if draws is not None:
        return draws.count
    return layout.samples if selected is None else len(selected)


def _ragged_bytes(layout: SampleLayout, limited: LimitedField | None) -> Iterator[RaggedBytes]:
    for number, one in layout.ragged.items():
        assert one.counts is not None
        field = layout.fields[number]
        found = _bytes_of(one.counts * field.placed_nbytes, field)
        if limited is not None and limited.bucketed:
            found = replace(found, longest=tuple(_means_of_longest(one.counts * field.placed_nbytes)))
        if limited is not None and limited.rows is not None and one.counts is layout.ragged[limited.number].counts:
            found = replace(found, limit=limited.rows * field.placed_nbytes)
        yield found
    for field in layout.fields:
        if field.kind == "object" and field.images is not None:
            mean, most = field.images.mean_nbytes, field.images.most_nbytes
            yield RaggedBytes(mean=mean, deviation=most - mean, most=int(most))
    for number, field in layout.listed:
        parts = layout.datasets[number]
        every = [part.heap.nbytes_of_rows(part.rows) for part in parts if part.heap]
        yield _bytes_of(np.concatenate(every), field)


def _means_of_longest(lengths: NDArray[np.int64]) -> Iterator[float]:
    """Give the mean of all, of the longest half, quarter and so on: one of as many as are sorted with one another."""
    ascending = np.sort(lengths)
    for power in range(POOL_BATCHES.bit_length()):
        yield float(ascending[len(lengths) - (-(-len(lengths) >> power)) :].mean())


def _bytes_of(nbytes: NDArray[np.int64], field: FieldLayout) -> RaggedBytes:
    return RaggedBytes(
        mean=float(nbytes.mean()),
        deviation=float(nbytes.std()),
        most=int(nbytes.max()),
        arranged=_arranged_nbytes(field, int(nbytes.max())),
    )


def _arranged_nbytes(field: FieldLayout, most_nbytes: int) -> int:
    if field.ragged is None or field.ragged.form not in ("pad", DENSE):
        return 0
    return most_nbytes if field.ragged.form == "pad" else field.ragged.wanted * field.placed_nbytes


def _span_nbytes(layout: SampleLayout, planned: Iterable[tuple[DatasetPart, ...]]) -> float:
    """Give what the plan takes of a sample's spans while it is made: of each kind of steps, and of each dataset cut."""
    nbytes = 2.0 * SPAN_PLAN_NBYTES * sum(one.counts is not None for one in layout.lookups)
    if not isinstance(layout.space, SequenceSpace):
        return nbytes
    for steps in {field.steps for field in layout.fields if field.steps is not None}:
        nbytes += len(neighbours(steps)[0]) * SPAN_PLAN_NBYTES
    for parts in planned:
        steps = layout.fields[parts[0].targets[0].field].steps or (0,)
        cuts = len(neighbours(steps)[0]) + len(steps) / min(part.chunk_rows for part in parts)
        nbytes += cuts * SPAN_PLAN_NBYTES
    return nbytes


def _chunks_a_row(layout: SampleLayout, parts: tuple[DatasetPart, ...], rows: int) -> float:
    """Give about how many chunks of a dataset are planned for a sample."""
    if not isinstance(layout.space, BoxSpace) or not parts[0].along:
        return min(_chunks(parts) / rows, len(parts[0].pieces))
    touched = 1.0
    for along, chunk, elements in zip(parts[0].along, parts[0].grid_shape, parts[0].shape, strict=True):
        touched *= min(1 + along.span / chunk, -(-elements // chunk))
    return touched


def _chunks(parts: Iterable[DatasetPart]) -> int:
    return sum(-(-part.rows // part.chunk_rows) * len(part.pieces) for part in parts)


def _data_nbytes(layout: SampleLayout, selected: NDArray[np.int64] | None) -> int:
    """Give the bytes of chunk indexes, of blocks, of samples that are no rows, and of the selected ones."""
    indexes = [part.index for parts in layout.datasets for part in parts if part.index is not None]
    index = sum(i.numbers.nbytes + i.offset.nbytes + i.nbytes.nbytes + i.filter_mask.nbytes for i in indexes)
    blocks = sum(-(-part.rows // rows) for part, rows in zip(layout.leading, layout.block_rows, strict=True))
    index += sum(one.nbytes for one in layout.lookups)
    index += sum(part.heap.nbytes for parts in layout.datasets for part in parts if part.heap is not None)
    index += 0 if layout.space is None else layout.space.nbytes
    names = {id(part.objects): part.objects for parts in layout.datasets for part in parts}
    index += sum(each.nbytes for each in names.values() if isinstance(each, Names))
    return index + blocks * BLOCK_NBYTES + (0 if selected is None else selected.nbytes)


def _seam_rows(layout: SampleLayout, planned: Iterable[tuple[DatasetPart, ...]]) -> int:
    """Give the rows of the longest chunk that is decoded, and that the edges of blocks may cut."""
    if isinstance(layout.space, BoxSpace):
        return 0
    cut = (
        part.chunk_rows
        for parts in planned
        if len(parts) == len(layout.block_rows)
        for part, block_rows in zip(parts, layout.block_rows, strict=True)
        if part.access == DECODED and block_rows % part.chunk_rows
    )
    return max(cut, default=0)


def size_for(
    layout: SampleLayout,
    *,
    selected: NDArray[np.int64] | None = None,
    memory_budget: int,
    batch_size: int,
    window: int | str,
    threads: int,
    shuffle: bool = True,
    whole_windows: bool = False,
    limited: LimitedField | None = None,
    keep: bool = True,
    draws: PlannedDraws | None = None,
    plain: SampleLayout | None = None,
) -> Footprint:
    """Choose the datasets that are kept, size the windows with what is left, and keep decoded rows in what then is.

    An automatic window is the one of the default budget: it is part of the order, which the data and the size of a
    batch decide alone. Only a budget that has no room for it makes it smaller.

    Parameters are those of `shape_of` and `h5stream.engine.footprint.size_window`, whether windows are read whole
    whatever rows cost, whether decoded rows may be kept, and the layout as the user opened it: what is added to it, or
    where its files were copied to, does not choose the window.

    Raises
    ------
    BudgetError
        If it does not fit; names the number that would do.
    """
    plain = layout if plain is None else plain
    chooser = _Chooser(
        layout=layout,
        shape=functools.cache(lambda kept: shape_of(layout, kept, selected, limited, draws)),
        batch_size=batch_size,
        window=window,
        threads=threads,
        shuffle=shuffle,
        whole_windows=whole_windows,
        keep=keep and _may_keep(layout, selected),
    )
    if window != "auto" or not shuffle or whole_windows:
        return chooser.choose(memory_budget)
    default = default_size(
        plain, selected=selected, batch_size=batch_size, threads=threads, limited=limited, draws=draws
    )
    if plain is layout and keep and memory_budget == default.memory_budget:
        return default
    return replace(chooser, most_rows=default.window_rows).choose_like(default, memory_budget)


def default_size(
    layout: SampleLayout,
    *,
    selected: NDArray[np.int64] | None,
    batch_size: int,
    threads: int,
    limited: LimitedField | None,
    draws: PlannedDraws | None,
) -> Footprint:
    """Return the automatic windows that the default budget has room for, or the least budget that would do.

    Parameters are those of `size_for`.
    """
    chooser = _Chooser(
        layout=layout,
        shape=functools.cache(lambda kept: shape_of(layout, kept, selected, limited, draws)),
        batch_size=batch_size,
        threads=threads,
        keep=_may_keep(layout, selected),
    )
    budget = DEFAULT_BUDGET
    while True:
        try:
            return chooser.choose(budget)
        except BudgetError as error:  # with more memory more is kept, so it is asked again
            budget = error.needed


def _may_keep(layout: SampleLayout, selected: NDArray[np.int64] | None) -> bool:
    """Tell whether decoded rows may stay: of few samples chunks would stay whole, most of them for nothing."""
    return selected is None or 2 * len(selected) >= layout.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chooser:
    """The arguments of `size_for`, without the budget."""

    layout: SampleLayout
    shape: Callable[[tuple[int, ...]], Shape]
    batch_size: int
    threads: int
    keep: bool
    window: int | str = "auto"
    shuffle: bool = True
    whole_windows: bool = False
    most_rows: int | None = None

    def choose_like(self, default: Footprint, budget: int) -> Footprint:
        """Return what a budget has room for, of windows like those of the default one; say if it has none for them."""
        size = self.choose(budget)
        wished = default.window_rows
        if size.window_rows == wished:
            return size
        if (gathered := self._without_windows(size)) is not None:
            return gathered
        return replace(size, wished_rows=wished, wished_nbytes=default.memory_budget)

    def choose(self, budget: int) -> Footprint:
        """Return what a budget has room for."""
        for kept in (datasets_to_keep(self.layout, budget), ()):
            try:
                size = _with_kept(self.layout, kept, self._sized(kept, budget, self.threads), self.whole_windows)
                if not self.keep:
                    return size
                if self.shuffle and not self.whole_windows and (gathered := _gathered_from_kept(self.layout, size)):
                    return gathered
                if self.window == "auto" and self.shuffle:
                    size = self._with_room_for_all(size)
                return _with_kept_rows(self.layout, size)
            except BudgetError:  # keeping is only worth memory that nothing else needs
                if not kept:
                    raise
        raise AssertionError("the loop ends with nothing kept")

    def _sized(self, kept: tuple[int, ...], budget: int, threads: int) -> Footprint:
        return size_window(
            self.shape(kept),
            batch_size=self.batch_size,
            window=self.window,
            memory_budget=budget,
            threads=threads,
            shuffle=self.shuffle,
            most_rows=self.most_rows,
        )

    def _without_windows(self, size: Footprint) -> GatheredBatches | None:
        """Return windows as they are wished for if the batches come of data in memory, so that none is held."""
        for kept in (size.kept, ()) if size.kept else ((),):
            large = self._sized(kept, sys.maxsize, size.threads)
            large = _with_kept(self.layout, kept, replace(large, memory_budget=size.memory_budget), whole_windows=False)
            if isinstance(large, GatheredBatches):
                gathered: GatheredBatches | None = large
            else:
                gathered = _gathered_from_kept(self.layout, large) if self.keep else None
            if gathered is not None and gathered.needed_nbytes <= size.memory_budget:
                return gathered
        return None

    def _with_room_for_all(self, size: Footprint) -> Footprint:
        """Take a smaller automatic window where beside that all decoded rows stay, and it is not much smaller."""
        rows = rows_to_keep(self.layout, size.kept, sys.maxsize)
        room = size.memory_budget - (format_of(self.layout, rows).nbytes if rows else 0)
        if not rows or size.needed_nbytes <= room:
            return size
        least = size.window_rows if size.window_rows == self.most_rows else size.window_rows / LEAST_WINDOW_SHARE
        with contextlib.suppress(BudgetError):
            smaller = self._sized(size.kept, room, size.threads)
            if smaller.window_rows >= least:
                return replace(smaller, memory_budget=size.memory_budget, kept=size.kept)
        return size


def _gathered_from_kept(layout: SampleLayout, size: Footprint) -> GatheredBatches | None:
    """Let all data stay in memory, of which a few batches are gathered at a time; None where that cannot be."""
    rows = rows_to_keep(layout, size.kept, sys.maxsize)
    decoded = all(is_decoded(part) or part.rows == 0 for number in rows for part in layout.datasets[number])
    if not rows or not decoded or layout.ragged or len(size.kept) + len(rows) < len(layout.datasets):
        return None
    nbytes = format_of(layout, rows).nbytes
    gathered = _gathered(size, max(GATHERED_NBYTES, min(MOST_GATHERED_NBYTES, nbytes // GATHERED_SHARE)))
    if gathered.needed_nbytes + nbytes > size.memory_budget:
        return None
    return _keeping(gathered, rows, nbytes)


def _with_kept_rows(layout: SampleLayout, size: Footprint) -> Footprint:
    """Keep as many decoded rows as the budget has room for."""
    rows = rows_to_keep(layout, size.kept, size.memory_budget - size.needed_nbytes)
    nbytes = format_of(layout, rows).nbytes if rows else 0
    return size if size.needed_nbytes + nbytes > size.memory_budget else _keeping(size, rows, nbytes)


def _keeping(size: Kind, rows: dict[int, int], nbytes: int) -> Kind:
    return replace(
        size,
        kept_rows=tuple(rows.items()),
        kept_rows_nbytes=nbytes,
        kept_nbytes=size.kept_nbytes + nbytes,
        needed_nbytes=size.needed_nbytes + nbytes,
    )


def _with_kept(layout: SampleLayout, kept: tuple[int, ...], size: Footprint, whole_windows: bool) -> Footprint:
    """Note what is kept; where that is all data, a few batches are gathered at a time: rows cost the same anywhere."""
    if whole_windows or isinstance(size, GatheredBatches) or len(kept) < len(layout.datasets):
        return replace(size, kept=kept)
    return _gathered(replace(size, kept=kept), GATHERED_NBYTES)


def _gathered(size: Footprint, nbytes: int) -> GatheredBatches:
    """Gather batches of so many bytes at a time in place of whole windows."""
    at_once = max(1, min(size.max_open_batches // 2, nbytes // size.batch_nbytes))
    batches = min(size.max_open_batches, 2 * at_once)
    needed = size.needed_nbytes - (size.max_open_batches - batches) * size.batch_nbytes
    return changed_into(GatheredBatches, size, batches_at_once=at_once, max_open_batches=batches, needed_nbytes=needed)


def _rows_anywhere(datasets: Iterable[tuple[DatasetPart, ...]]) -> bool:
    """Tell whether rows that need no decoding can be read one by one: reads must not be for a few bytes."""
    reads = nbytes = 0
    for parts in datasets:
        reads += max((len(reach_of(part).extents) for part in parts if part.pieces), default=0)
        nbytes += parts[0].stored_row_nbytes
    return nbytes >= reads * LEAST_READ_NBYTES


def default_budget(total_nbytes: int) -> int:
    """Give the budget of a loader that was given none, on a machine with so much memory.

    Examples
    --------
    >>> default_budget(4 << 30) >> 20
    1024
    """
    return min(DEFAULT_BUDGET, total_nbytes // 4)


def check_budget(memory_budget: int | str) -> int:
    """Give a budget in bytes: of a positive number, or of a text such as ``"4GiB"``."""
    nbytes = as_bytes(memory_budget, name="memory_budget=")
    if nbytes < 1:
        raise OptionError(f"memory_budget= takes at least a byte, not {memory_budget!r}")
    return nbytes


LEAST_SLOTS = 6
"""Slots of a device window, at least: two that are read together while two cross and two are ready."""


LEAST_OPEN = 8
"""Batches that must fit where their size is not known, so that reading ahead is worth its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the size of windows depends on.

    Attributes
    ----------
    layout : SampleLayout
        The fields.
    selected : ndarray of int64 or None
        The rows of an epoch, if not all.
    batch_rows : int
        Rows of a batch; of most, where batches are cut by `limited`.
    memory_budget : int
        Bytes for slots, windows, plans and scratch.
    most_budget : int
        Bytes that may be taken instead where an automatic window does not fit: more than `memory_budget` only where
        nobody chose that.
    threads : int
        Reader threads.
    threads_asked : bool
        Whether the user gave their number.
    shuffle : bool
        Whether windows are shuffled.
    device_nbytes : int or None
        Memory of the device that holds the windows; None where they lie on the host.
    whole_windows : bool
        Whether windows are read whole, whatever rows cost.
    limited : LimitedField or None
        What batches are cut by.
    keep : bool
        Whether rows may stay in memory once they are decoded.
    draws : PlannedDraws or None
        What draws the samples of an epoch, if it does not take each once.
    stays_on_device : bool
        Whether all samples stay on a device, which shuffles them.
    plain : SampleLayout or None
        The fields as the user opened them, where they are not the same.
    """

    layout: SampleLayout
    selected: NDArray[np.int64] | None
    batch_rows: int
    memory_budget: int
    most_budget: int
    threads: int
    threads_asked: bool
    shuffle: bool
    device_nbytes: int | None = None
    whole_windows: bool = False
    limited: LimitedField | None = None
    keep: bool = True
    draws: PlannedDraws | None = None
    stays_on_device: bool = False
    plain: SampleLayout | None = None

    @property
    def _is_on_device(self) -> bool:
        return self.device_nbytes is not None or self.stays_on_device

    @property
    def most_rows(self) -> int:
        """Rows of a batch, at most."""
        return max(self.batch_rows, 0 if self.limited is None else self.limited.samples)

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return _epoch_rows(self.layout, self.selected, self.draws)

    def choose(self, window: int | str) -> Footprint:
        """Size the windows that were asked for, and say what came out unlike it.

        A batch that `DataLoader` would take must not fail for a budget that nobody chose: there an automatic window
        takes what it needs at least.

        Raises
        ------
        BudgetError
            If it does not fit.
        """
        size = self._chosen(window)
        self._say_what_was_chosen(size)
        return size

    def _chosen(self, window: int | str) -> Footprint:
        host_window = "auto" if self._is_on_device else window
        budget = self.memory_budget
        while True:
            # A machine of 200 processors must not need 200 threads' scratch.
            threads = self.threads if self.threads_asked else threads_within(self.layout, self.threads, budget)
            try:
                size = size_for(
                    self.layout,
                    selected=self.selected,
                    batch_size=self.batch_rows,
                    window=host_window,
                    memory_budget=budget,
                    threads=threads,
                    shuffle=self.shuffle,
                    whole_windows=self.whole_windows or self._is_on_device,
                    limited=self.limited,
                    keep=self.keep,
                    draws=self.draws,
                    plain=self.plain,
                )
            except BudgetError as error:
                if host_window != "auto" or error.needed > self.most_budget:
                    raise
                budget = error.needed
            else:
                return self._on_device(size, window) if self._is_on_device else size

    def with_room(self, window: int | str) -> Sizing:
        """Give the sizing where nobody says how large batches are: for the largest that the budget has room for.

        Slots are mapped, and what no row is written to takes no memory: room costs nothing but the budget's account.

        Raises
        ------
        BudgetError
            If there is not even room for batches of one row.
        """
        sizing = replace(self, most_budget=self.memory_budget)
        while sizing.batch_rows > 1:
            with contextlib.suppress(BudgetError):
                size = sizing._chosen(window)
                # Not how many are open: fewer are where the data have fewer, or where they are gathered.
                if size.max_open_batches + (size.memory_budget - size.needed_nbytes) // size.batch_nbytes >= LEAST_OPEN:
                    break
            sizing = replace(sizing, batch_rows=sizing.batch_rows // 2)
        return sizing

    def _on_device(self, size: Footprint, window: int | str) -> DeviceWindow:
        """Size a device window: by its own rows, or by what the device could give; where all stays, as on the host."""
        layout = self.layout
        wished = self.rows if window == "all" else window if isinstance(window, int) else self._automatic_rows(size)
        window_rows = min(self.rows, wished)
        if window == "auto" and self.device_nbytes is not None:
            window_rows = min(window_rows, device_window_rows(self.device_nbytes, layout.row_nbytes))
        # As for a host window of so many rows, so that the order is the same.
        first = window_rows if window == "all" else min(window_rows, first_rows_of(layout, self.batch_rows))
        slots, slot_rows = self._slots_in(size.max_open_batches, block_rows_of(layout))
        wished = min(self.rows, wished) if self.shuffle else window_rows
        rows = {"window_rows": window_rows, "first_window_rows": first, "wished_rows": wished}
        return changed_into(DeviceWindow, size, max_open_batches=slots, slot_rows=slot_rows, **rows)

    def _automatic_rows(self, size: Footprint) -> int:
        """Return the rows of an automatic window: those of a loader without a device, so that the order is the same."""
        if not self.shuffle:  # they have no say in the order
            return size.window_rows if self.device_nbytes is None else self.rows
        return default_size(
            self.layout if self.plain is None else self.plain,
            selected=self.selected,
            batch_size=self.batch_rows,
            threads=self.threads,
            limited=self.limited,
            draws=self.draws,
        ).window_rows

    def _slots_in(self, batches: int, block_rows: int) -> tuple[int, int]:
        """Cut the memory of so many batches into slots of whole blocks, if that gives enough; say of how many rows."""
        layout = self.layout
        slot_rows = transfer_rows(self.batch_rows, block_rows, layout.row_nbytes, self.rows)
        row_nbytes = [field.row_nbytes for field in layout.fields]
        batch_nbytes, slot_nbytes = (packed_nbytes(row_nbytes, rows) for rows in (self.batch_rows, slot_rows))
        slots = batches * batch_nbytes // slot_nbytes
        return (batches, self.batch_rows) if slots < min(batches, LEAST_SLOTS) else (slots, slot_rows)

    def taken_over(self, size: Footprint, settings: OrderSettings) -> Footprint:
        """Give the size of windows for settings that a state brought, where they are not those of `size`.

        Raises
        ------
        BudgetError
            If they do not fit.
        """
        rows, first_rows = settings.window_rows, settings.first_window_rows
        if (rows, first_rows) == (size.window_rows, size.first_window_rows):
            return size
        layout, kept_rows = self.layout, size.kept_rows
        if not self._is_on_device:
            size = _with_kept(layout, size.kept, self._of_rows(rows, size), self.whole_windows)
            if kept_rows:
                may_gather = self.shuffle and not self.whole_windows
                size = (may_gather and _gathered_from_kept(layout, size)) or _with_kept_rows(layout, size)
        return replace(size, window_rows=rows, first_window_rows=first_rows, wished_rows=rows)

    def _of_rows(self, rows: int, size: Footprint) -> Footprint:
        shape = shape_of(self.layout, size.kept, self.selected, self.limited, self.draws)
        given: dict[str, Any] = {"batch_size": self.batch_rows, "window": rows, "threads": size.threads}
        given["shuffle"] = self.shuffle
        try:
            return size_window(shape, memory_budget=self.memory_budget, **given)
        except BudgetError as error:
            if error.needed > self.most_budget:
                raise
            return size_window(shape, memory_budget=error.needed, **given)

    def _say_what_was_chosen(self, size: Footprint) -> None:
        """Log what is unlike what was asked for: a smaller window, fewer threads, more memory than by default."""
        budget = size.memory_budget
        if size.notice:
            _log.warning("%s", size.notice)
        if self.threads_asked and size.threads < self.threads:
            _log.warning(
                "num_workers=%d: %d reader thread(s), since each needs %s bytes of scratch within memory_budget=%s; "
                "the order of the rows does not depend on it, and a larger budget gives more",
                self.threads,
                size.threads,
                f"{size.scratch_nbytes // max(1, size.threads):,}",
                f"{budget:,}",
            )
        if budget > self.memory_budget:
            _log.warning(
                "memory_budget: %s bytes instead of the default of %s, since batches of %s bytes and what reads them "
                "need as much. Pass memory_budget= to say so, or take a smaller batch_size%s",
                f"{budget:,}",
                f"{self.memory_budget:,}",
                f"{size.batch_nbytes:,}",
                RAGGED_WAYS_OUT if self.layout.ragged else "",
            )

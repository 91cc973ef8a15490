"""Reads rows of a layout: chooses how each part is read, plans windows, and holds open files."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.ma  # `np.unique` would when it is first called: in a thread perhaps, while another one forks
import torch
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.engine.counters import Tally
from h5stream.engine.kinds.encoded import EncodedRows, padded_bytes
from h5stream.engine.kinds.heap import HeapRows
from h5stream.engine.kinds.ragged import RaggedMemory, lend
from h5stream.engine.kinds.samples import OtherKinds
from h5stream.engine.plan.chunks import ChunkFields, plan_chunks
from h5stream.engine.plan.decoding import plan_through_h5py
from h5stream.engine.plan.far import FarRows, decoding_scratch, land_together
from h5stream.engine.plan.keeping import Keeping
from h5stream.engine.plan.kept import Kept, keeping_of
from h5stream.engine.plan.single_rows import SingleRows
from h5stream.engine.plan.tasks import (
    GOING_ON,
    TASK_NBYTES,
    Bringing,
    Destination,
    OwnScratch,
    Placement,
    Task,
    Tools,
    Way,
)
from h5stream.engine.plan.unfiltered import UnfilteredRows
from h5stream.errors import H5StreamError
from h5stream.order.epoch import RegroupedOrder
from h5stream.order.places import Places, narrowed
from h5stream.order.window import Order, Window
from h5stream.storage.file.h5py_reader import H5pyReader
from h5stream.storage.layout.access import DIRECT, VIA_H5PY
from h5stream.storage.layout.layout import FieldLayout, SampleLayout, TakenRows
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.identity import ByteSource
from h5stream.storage.source.remote import READERS

ASKING_ROWS = 65_536
"""Rows of an epoch that the asking thread gathers by itself where all data is in memory: waking another costs more. The
order of more rows takes milliseconds, which readers work out ahead."""


def default_threads(layout: SampleLayout) -> int:
    """Return how many threads read where nobody chose their number."""
    return max(READERS, limits.cpus()) if layout.is_far else limits.cpus()


def way_of(part: DatasetPart, fields: tuple[FieldLayout, ...], source: ByteSource) -> Way:
    """Choose how the rows of a part land, once: after this nothing asks what kind of data they are."""
    number = part.targets[0].field
    if (images := fields[number].images) is not None:
        if part.heap is not None:
            heap = HeapRows(part, part.heap, fields)
            return EncodedRows(part, fields[number], images, heap.of, heap.in_file_order).plan
        raw = replace(fields[number], images=None, take=TakenRows(), dtype=np.dtype(np.uint8), row_shape=part.shape[1:])
        plain = tuple(raw if k == number else field for k, field in enumerate(fields))
        bytes_of = functools.partial(padded_bytes, part, len(fields), way_of(part, plain, source))
        return EncodedRows(part, fields[number], images, bytes_of).plan
    if part.access != VIA_H5PY and part.heap is not None:
        return HeapRows(part, part.heap, fields, has_descriptor=source.has_descriptor).plan
    return bringing_of(part, fields, source)


def bringing_of(
    part: DatasetPart, fields: tuple[FieldLayout, ...], source: ByteSource, keep: Keeping | None = None
) -> Bringing:
    """Choose what brings rows that may stay in memory."""
    if part.access == VIA_H5PY:
        return functools.partial(plan_through_h5py, part, fields, keep)
    if part.access == DIRECT:
        is_near = source.has_descriptor and keep is None
        return UnfilteredRows(part, source.gap_nbytes) if is_near else FarRows(part, source, keep)
    return functools.partial(plan_chunks, part, ChunkFields(part), source.gap_nbytes, keep)


class RowReader:
    """Plans tasks over a layout's datasets, and provides threads with the tools for them.

    # Guarantees: any number of threads may plan and carry tasks out. The layout is immutable; how a part lands may be
    worked out twice, with the same result; scratch belongs to the calling thread. Pickling carries the layout only.

    The datasets `small` are read once, by `load`. `kept_rows` says how many rows of which others stay in memory once
    they are decoded; none where a dataset takes what another loader keeps, None where not even that.
    """

    def __init__(
        self, layout: SampleLayout, kept_rows: Mapping[int, int] | None = None, small: tuple[int, ...] = ()
    ) -> None:
        self.layout, self.kept_rows, self.small = layout, kept_rows, small
        # Changed together, so that who plans meanwhile notes no way of what was kept.
        self._kept: tuple[Kept | None, dict[tuple[int, int], Way]] = None, {}
        self._small: Kept | None = None
        self._loading = threading.Lock()
        self.sources: tuple[ByteSource, ...] = ()
        for identity in layout.files:
            self.sources += (identity.open(),)
        self._h5py, self.is_far, self.row_nbytes = H5pyReader(layout), layout.is_far, layout.row_nbytes
        self._datasets: list[int] = []  # those that have elements: rows without any need no task
        is_plain = not (layout.space or layout.columns or layout.lookups)
        is_unfiltered, has_rows, are_simple, has_ragged = is_plain, True, True, False
        for number, parts in enumerate(layout.datasets):
            has_elements = False
            for part in parts:
                has_elements = has_elements or bool(part.pieces)
                has_rows = has_rows and bool(part.pieces)
                reads_direct = part.access == DIRECT and self.sources[part.file].has_descriptor
                is_unfiltered = is_unfiltered and reads_direct
            if has_elements:
                self._datasets.append(number)
        for field in layout.fields:
            is_unfiltered = is_unfiltered and not field.images
            are_simple = are_simple and field.kind == "array" and field.is_as_stored
            has_ragged = has_ragged or field.kind == "ragged"
        self._unfiltered = is_unfiltered
        self._single = SingleRows(layout, self.sources) if is_unfiltered and are_simple and has_rows else None
        self.ragged_memory = RaggedMemory() if has_ragged else None
        self._kinds = None if is_plain else OtherKinds(layout, self.sources, self._datasets)
        self.acceptance = None if self._kinds is None else self._kinds.acceptance_of(self._carry_out)
        self._decoders = decoding_scratch() if self.is_far else None
        self.own = OwnScratch()

    def __reduce__(self) -> tuple[object, ...]:
        return RowReader, (self.layout, self.kept_rows, self.small)

    def close(self) -> None:
        """Close the files; a later task opens them again."""
        for source in self.sources:
            source.close()
        self._h5py.close()
        self._decoders = decoding_scratch() if self.is_far else None

    def accepted(self, placement: Placement) -> Placement:
        """Return a window's samples again, with others in place of those that the user's function refuses."""
        if self.acceptance is None:
            return placement
        placement = placement.each_row()
        numbers = self.acceptance.numbers(placement.rows.astype(np.int64))
        ascending = np.argsort(numbers, kind="stable")
        return replace(placement[ascending], rows=narrowed(numbers[ascending]))

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Plan what brings a window's samples."""
        if self._kinds is None:
            return self.plan_rows(placement, task_nbytes, self._datasets)
        return self._kinds.plan(placement, task_nbytes, self.plan_rows)

    def plan_rows(self, placement: Placement, task_nbytes: int, datasets: Sequence[int]) -> Iterator[Task]:
        """Plan the reads of rows of some datasets, where each row or span has its own place."""
        for kept in (self._small, self._kept[0]):
            if kept is None:
                continue
            cached, missing = list[int](), list[int]()
            for number in datasets:
                (cached if kept.has(number, placement) else missing).append(number)
            if cached:
                yield from kept.gathered(cached, placement, task_nbytes)
            datasets = missing
        if datasets:
            placement = placement.ascending()
        for dataset in datasets:
            for part, rows in placement.of_parts(self.layout.datasets[dataset]):
                yield from self._way(dataset, part)(rows, task_nbytes)

    def _way(self, dataset: int, part: int) -> Way:
        """Return how rows of a part land: worked out once, and again where rows begin to stay in memory."""
        keeping, ways = self._kept
        if (way := ways.get((dataset, part))) is None:
            one, fields = self.layout.datasets[dataset][part], self.layout.fields
            keep = None if keeping is None else keeping.keeping(dataset, part)
            if keeping is None or keep is None:
                way = way_of(one, fields, self.sources[one.file])
            else:
                way = keeping.way(dataset, keep, bringing_of(one, fields, self.sources[one.file], keep))
            ways[dataset, part] = way
        return way

    def filling(self, order: Order, first_batch: int) -> Iterator[Task] | None:
        """Return what decodes all that stays in memory, window by window; None where batches do not wait for that."""
        if not self.kept_rows or not isinstance(order, RegroupedOrder) or not order.is_gathered:
            return None
        if (keeping := self._kept[0]) is not None and keeping.is_filled:
            return None
        return self._fill_tasks(order.whole.rows_of_windows(first_batch))

    def _fill_tasks(self, windows: Iterator[Places]) -> Iterator[Task]:
        for rows in windows:
            zeros = np.zeros(len(rows), dtype=rows.dtype)  # which take no memory as long as nobody writes to them
            nowhere = Placement(rows=rows, batch=zeros, within=zeros)
            for task in self.plan(nowhere, TASK_NBYTES):
                if task.kept is not None:
                    yield task

    def load(self, tally: Tally) -> None:
        """Read the small datasets, once.

        What cannot be read in whole is streamed instead, so that an error finds the batches it concerns.

        # Guarantees: under `_loading`, by whichever thread calls first.
        """
        with self._loading:
            if self._small is not None or not self.small:
                return
            rows: dict[int, int] = {}
            for number in self.small:
                rows[number] = self.layout.rows_of(number)
            kept = Kept(self.layout, rows)
            try:
                for number in self.small:
                    if number in self._datasets:
                        tasks = self.plan_rows(kept.every_row(number), TASK_NBYTES, [number])
                        self._land(tasks, kept.destination, tally)
            except H5StreamError:
                self.small = ()
            else:
                kept.is_whole, self._small = True, kept

    @property
    def needs_no_thread(self) -> bool:
        """Whether all is in memory already, and is so little that a batch is gathered faster than a thread is woken."""
        is_whole = len(self.small) == len(self.layout.datasets)
        return self._small is not None and is_whole and self.layout.rows <= ASKING_ROWS

    @property
    def plans_ahead(self) -> bool:
        """Whether plans are independent of rows that are still to be cached."""
        keeping = self._kept[0]
        return not self.kept_rows or (keeping is not None and keeping.is_filled)

    @property
    def kept_nbytes(self) -> int:
        """Bytes of memory for rows that stay there once they are decoded."""
        keeping = self._kept[0]
        return 0 if keeping is None else keeping.nbytes

    def keep(self) -> None:
        """Begin to cache rows, if any are to be cached; called while nothing is planned."""
        if self.kept_rows is not None and self._kept[0] is None:
            self._kept = keeping_of(self.layout, self.kept_rows), {}

    def change_kept(self, rows: Mapping[int, int]) -> None:
        """Cache other rows than before, if any may be; planned tasks keep theirs."""
        if self.kept_rows is not None and rows != self.kept_rows:
            self.kept_rows, self._kept = rows, (None, {})

    def trim(self, *, decoded: bool = True) -> None:
        """Release memory for later use, and with `decoded` cached rows; planned tasks keep theirs."""
        if self.ragged_memory is not None:
            self.ragged_memory.trim()
        self._decoders = decoding_scratch() if self.is_far else None
        if decoded and self._kept[0] is not None:
            self._kept = None, {}

    def tools(self, tally: Tally | None = None, stop: NDArray[np.int32] = GOING_ON) -> Tools:
        """Return the calling thread's tools: its scratch, counters and flag to stop."""
        decoders = self._decoders
        # The main thread, which Ctrl-C may interrupt wherever it is, borrows nothing.
        if decoders is not None and threading.current_thread() is threading.main_thread():
            decoders = None
        return Tools(self.sources, self._h5py, self.own.scratch, tally or Tally(), decoders, stop)

    def read(self, window: Window, destination: Destination, tally: Tally | None = None) -> None:
        """Plan the reads of one window, its rows ascending, and carry them out in the calling thread."""
        placement = self.accepted(Placement.of(window))
        tasks = self._in_turn(placement) if self._unfiltered else self.plan(placement, TASK_NBYTES)
        self._carry_out(tasks, destination, tally)

    def _in_turn(self, placement: Placement) -> Iterator[Task]:
        """Return one task for each part: one thread alone has nothing of smaller ones."""
        for dataset in self._datasets:
            for part, rows in placement.of_parts(self.layout.datasets[dataset]):
                yield cast(UnfilteredRows, self._way(dataset, part)).task(rows)

    def _carry_out(self, tasks: Iterable[Task], destination: Destination, tally: Tally | None = None) -> None:
        if self._kinds is not None:
            tasks = list(tasks)
            shares = (task.shared.share for task in tasks)
            destination = replace(
                destination, ragged=lend(shares, destination.objects, destination.row_nbytes, RaggedMemory().take)
            )
        self._land(tasks, destination, tally)

    def _land(self, tasks: Iterable[Task], destination: Destination, tally: Tally | None = None) -> None:
        """Carry tasks out: one after the other, or where each waits for a store, beside one another."""
        if self.is_far:
            tasks = [*tasks]
            if len(tasks) > 1:
                land_together(tasks, destination, self.tools, tally)
                return
        tools = self.tools(tally)
        for task in tasks:
            task.land(destination, tools)

    def single(self, first: int, count: int = 0) -> list[torch.Tensor] | None:
        """Read one or `count` rows to a tensor for each field; None if they need more than that, or fail."""
        return None if self._single is None else self._single.read(first, count, self.own)

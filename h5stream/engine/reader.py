"""Reads rows of a layout: chooses how each part is read, plans windows, and holds open files."""

from __future__ import annotations

import bisect
import contextvars
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from queue import LifoQueue, SimpleQueue
from typing import Any, cast

import numpy as np
import numpy.ma  # `np.unique` would when it is first called: in a thread perhaps, while another one forks
import torch
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.engine.assemble import tensor_of
from h5stream.engine.counters import Tally
from h5stream.engine.kinds.boxes import Acceptance, BoxesOfParts, boxes_of
from h5stream.engine.kinds.columns import padding, plan_columns
from h5stream.engine.kinds.encoded import EncodedRows, padded_bytes
from h5stream.engine.kinds.heap import HeapRows
from h5stream.engine.kinds.ragged import RaggedMemory, lend
from h5stream.engine.kinds.samples import placed_spans, stretched
from h5stream.engine.kinds.sparse import dense_rows
from h5stream.engine.plan.chunks import ChunkFields, plan_chunks, plan_through_h5py
from h5stream.engine.plan.keeping import Keeping
from h5stream.engine.plan.kept import Kept, keeping_of
from h5stream.engine.plan.tasks import GOING_ON, TASK_NBYTES, Bringing, Destination, Placement, Task, Tools, Way
from h5stream.engine.plan.unfiltered import UnfilteredRows
from h5stream.errors import H5StreamError
from h5stream.order.epoch import Order, RegroupedOrder, Window
from h5stream.order.places import Places, narrowed
from h5stream.samples.space import Steps
from h5stream.storage.decode.filters import DecodeScratch
from h5stream.storage.file.h5py_reader import H5pyReader
from h5stream.storage.layout.layout import DIRECT, VIA_H5PY, DatasetPart, FieldLayout, Lookup, SampleLayout
from h5stream.storage.source.identity import ByteSource, SourceIdentity
from h5stream.storage.source.remote import READERS
from h5stream.storage.source.stores import cancelled_on_exit, raise_if_stopped

ASKING_ROWS = 65_536
"""Rows of an epoch that the asking thread gathers by itself where all data is in memory: waking another costs more. The
order of more rows takes milliseconds, which readers work out ahead."""


def default_threads(layout: SampleLayout) -> int:
    """Return how many threads read where nobody chose their number."""
    return max(READERS, limits.cpus()) if layout.is_far else limits.cpus()


def decoders_of(layout: SampleLayout) -> LifoQueue[DecodeScratch] | None:
    """Return scratch to be shared by decoding threads if most threads wait for a store; otherwise None.

    The last one that came back goes first: few threads fill few of them.
    """
    if not layout.is_far:
        return None
    lent: LifoQueue[DecodeScratch] = LifoQueue()
    for _ in range(limits.cpus()):
        lent.put(DecodeScratch())
    return lent


def way_of(part: DatasetPart, fields: tuple[FieldLayout, ...], source: ByteSource) -> Way:
    """Choose how the rows of a part land, once: after this nothing asks what kind of data they are."""
    number = part.targets[0].field
    if fields[number].images is not None:
        if part.heap is not None:
            return EncodedRows(part, fields[number], HeapRows(part, fields).of).plan
        raw = replace(fields[number], images=None, steps=None, dtype=np.dtype(np.uint8), row_shape=part.shape[1:])
        plain = tuple(raw if k == number else field for k, field in enumerate(fields))
        bytes_of = functools.partial(padded_bytes, part, len(fields), way_of(part, plain, source))
        return EncodedRows(part, fields[number], bytes_of).plan
    if part.access != VIA_H5PY and part.heap is not None:
        return HeapRows(part, fields, has_descriptor=source.has_descriptor).plan
    return bringing_of(part, fields, source)


def bringing_of(
    part: DatasetPart, fields: tuple[FieldLayout, ...], source: ByteSource, keep: Keeping | None = None
) -> Bringing:
    """Choose what brings rows that may stay in memory."""
    if part.access == VIA_H5PY:
        return functools.partial(plan_through_h5py, part, fields, keep)
    if part.access == DIRECT:
        return UnfilteredRows(part, source.gap_nbytes, source.has_descriptor, keep)
    return functools.partial(plan_chunks, part, ChunkFields(part), source.gap_nbytes, keep)


def _by_their_rows(layout: SampleLayout, lookups: Iterable[Lookup]) -> list[tuple[list[Lookup], bool, bool]]:
    """Return ragged datasets by samples with the same rows; whether those are values; whether they are padded."""
    datasets: dict[tuple[int, bool, bool, bool], list[Lookup]] = {}
    for one in lookups:
        if one.counts is not None:
            part = layout.datasets[one.dataset][0]
            filled = [layout.fields[target.field].ragged for target in part.targets]
            has_objects = any(layout.fields[target.field].dtype.kind == "O" for target in part.targets)
            is_padded = all(one is not None and one.form == "pad" for one in filled)
            how = part.heap is not None and not has_objects, is_padded, has_objects
            datasets.setdefault((id(one.counts), *how), []).append(one)
    return [(of_one, are_values, is_padded) for (_, are_values, is_padded, _), of_one in datasets.items()]


class _OwnScratch(threading.local):
    """Buffers of each thread."""

    def __init__(self) -> None:
        self.scratch = DecodeScratch()


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
        self.sources: tuple[ByteSource, ...] = tuple(identity.open() for identity in layout.files)
        self._h5py, self.is_far, self.row_nbytes = H5pyReader(layout), layout.is_far, layout.row_nbytes
        # Rows without elements need no task.
        self._datasets = [n for n, parts in enumerate(layout.datasets) if any(part.pieces for part in parts)]
        # Datasets of which samples take rows in one way are planned together.
        self._by_steps: dict[tuple[Steps | None, str, str | float | None], list[int]] = {}
        self._lookups = [(one, narrowed(one.rows)) for one in layout.lookups if one.counts is None]
        self.ragged_memory = RaggedMemory()
        self._dense = dense_rows(layout, self.sources)
        laid = {dataset for matrix in self._dense for dataset in matrix.datasets}
        self._ragged = _by_their_rows(layout, [one for one in layout.lookups if one.dataset not in laid])
        for dataset in self._datasets:
            is_boxed = layout.has_boxes and bool(layout.datasets[dataset][0].along)  # not where a row is an image
            if dataset < len(layout.aligned) and not is_boxed:
                self._by_steps.setdefault(layout.steps_of(dataset), []).append(dataset)
        self._boxes: dict[int, list[tuple[NDArray[np.int64], BoxesOfParts]]] = {}
        asks = layout.space is not None and layout.space.accept is not None
        self._acceptance = Acceptance(layout, self._plan_boxes, self._carry_out) if asks else None
        is_plain = not (layout.space or layout.columns or layout.lookups or any(f.images for f in layout.fields))
        self._unfiltered = is_plain and all(
            part.access == DIRECT and self.sources[part.file].has_descriptor
            for parts in layout.datasets
            for part in parts
        )
        self._decoders = decoders_of(layout)
        self._thread = _OwnScratch()
        are_simple = all(field.kind == "array" and field.is_as_stored for field in layout.fields)
        has_rows = all(part.pieces for parts in layout.datasets for part in parts)
        self._reads_singly = self._unfiltered and are_simple and has_rows
        # By part, as they are asked for: files of very many groups have a part for each.
        self._singly: dict[int, tuple[list[UnfilteredRows], list[SourceIdentity]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RowReader, (self.layout, self.kept_rows, self.small)

    def close(self) -> None:
        """Close the files; a later task opens them again."""
        for source in self.sources:
            source.close()
        self._h5py.close()
        self._decoders = decoders_of(self.layout)

    def accepted(self, placement: Placement) -> Placement:
        """Return a window's samples again, with others in place of those that the user's function refuses."""
        if self._acceptance is None:
            return placement
        placement = placement.each_row()
        numbers = self._acceptance.numbers(placement.rows.astype(np.int64))
        ascending = np.argsort(numbers, kind="stable")
        return replace(placement[ascending], rows=narrowed(numbers[ascending]))

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Plan what brings a window's samples."""
        layout = self.layout
        if layout.has_boxes:
            aligned = [number for number in self._datasets if number < len(layout.aligned)]
            every = [number for number in aligned if layout.datasets[number][0].along]
            yield from self._plan_boxes(placement.each_row(), every, task_nbytes)
        for (steps, at, pad), datasets in self._by_steps.items():
            rows, outside = placement, None
            if layout.space is not None and not layout.has_boxes:
                rows, outside = placed_spans(placement.each_row(), steps, at, layout.space, pad, layout.rows)
            if len(rows):
                yield from self.plan_rows(rows, task_nbytes, datasets)
            if outside is not None:
                fields = [target.field for n in datasets for target in layout.datasets[n][0].targets]
                yield padding(layout, outside, fields)
        for lookup, table in self._lookups:
            samples, draw, datasets = placement.each_row(), lookup.draw, [lookup.dataset]
            of = table[samples.rows] if draw is None else narrowed(draw.of(samples.rows, *samples.drawn))
            if layout.datasets[lookup.dataset][0].along:  # objects, each of a shape of its own
                nowhere = np.zeros((len(of), 0), dtype=np.int64)
                yield from self._plan_parts(samples, of, nowhere, datasets, task_nbytes)
            else:
                yield from self.plan_rows(replace(samples, rows=of), task_nbytes, datasets)
        for lookups, are_values, is_padded in self._ragged:
            datasets = [one.dataset for one in lookups]
            filled = (target.field for dataset in datasets for target in layout.datasets[dataset][0].targets)
            rows = stretched(placement.each_row(), lookups[0], filled, are_values, is_padded)
            if len(rows) and any(n in self._datasets for n in datasets):
                yield from self.plan_rows(rows, task_nbytes, datasets)
            elif len(rows):  # rows without elements are counted all the same
                yield padding(layout, rows, ())
        for matrix in self._dense:
            yield from matrix.plan(placement, task_nbytes)
        yield from plan_columns(layout, placement)

    def _plan_boxes(
        self, placement: Placement, datasets: Sequence[int], task_nbytes: int = TASK_NBYTES
    ) -> Iterator[Task]:
        """Plan what brings some datasets' boxes."""
        assert self.layout.space is not None
        space = self.layout.space
        yield from self._plan_parts(placement, *space.boxes_of(placement.rows), datasets, task_nbytes, space.pad)

    def _plan_parts(
        self,
        placement: Placement,
        of: NDArray[Any],
        origins: NDArray[np.int64],
        datasets: Sequence[int],
        task_nbytes: int,
        pad: str | float | None = None,
    ) -> Iterator[Task]:
        """Plan what brings boxes of datasets' parts, by the number of the part and the origin of each."""
        for dataset in datasets:
            if dataset not in self._boxes:
                gaps = [source.gap_nbytes for source in self.sources]
                boxes_like = functools.partial(BoxesOfParts, fields=self.layout.fields, pad=pad, gaps=gaps)
                self._boxes[dataset] = boxes_of(self.layout.datasets[dataset], boxes_like)
            for volumes, boxes in self._boxes[dataset]:
                place = np.minimum(np.searchsorted(volumes, of), len(volumes) - 1)
                inside = np.flatnonzero(volumes[place] == of)
                if len(inside):
                    yield from boxes.plan(placement[inside], place[inside], origins[inside], task_nbytes)

    def plan_rows(self, placement: Placement, task_nbytes: int, datasets: Sequence[int]) -> Iterator[Task]:
        """Plan the reads of rows of some datasets, where each row or span has its own place."""
        datasets = [n for n in datasets if n in self._datasets]
        for kept in (self._small, self._keeping):
            cached = [n for n in datasets if kept is not None and kept.has(n, placement)]
            if kept is not None and cached:
                yield from kept.gathered(cached, placement, task_nbytes)
                datasets = [n for n in datasets if n not in cached]
        if datasets:
            placement = placement.ascending()
        for dataset in datasets:
            for part, rows in placement.of_parts(self.layout.datasets[dataset]):
                yield from self._way(dataset, part)(rows, task_nbytes)

    def _way(self, dataset: int, part: int) -> Way:
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

    @property
    def _keeping(self) -> Kept | None:
        return self._kept[0]

    def filling(self, order: Order, first_batch: int) -> Iterator[Task] | None:
        """Return what decodes all that stays in memory, window by window; None where batches do not wait for that."""
        if not self.kept_rows or not isinstance(order, RegroupedOrder) or not order.is_gathered:
            return None
        if self._keeping is not None and self._keeping.is_filled:
            return None
        return self._fill_tasks(order.whole.rows_of_windows(first_batch))

    def _fill_tasks(self, windows: Iterator[Places]) -> Iterator[Task]:
        for rows in windows:
            zeros = np.zeros(len(rows), dtype=rows.dtype)  # which take no memory as long as nobody writes to them
            nowhere = Placement(rows=rows, batch=zeros, within=zeros)
            for task in self.plan(nowhere, TASK_NBYTES):
                if task.kept is not None:
                    yield task

    def load(self) -> Tally | None:
        """Read the small datasets, once; gives what that took, and None once they are there.

        What cannot be read in whole is streamed instead, so that an error finds the batches it concerns.

        # Guarantees: under `_loading`, by whichever thread calls first.
        """
        with self._loading:
            if self._small is not None or not self.small:
                return None
            tally, kept = Tally(), Kept(self.layout, {n: self.layout.rows_of(n) for n in self.small})
            try:
                for number in self.small:
                    self._land(self.plan_rows(kept.every_row(number), TASK_NBYTES, [number]), kept.destination, tally)
            except H5StreamError:
                self.small = ()
            else:
                kept.is_whole, self._small = True, kept
            return tally

    @property
    def needs_no_thread(self) -> bool:
        """Whether all is in memory already, and is so little that a batch is gathered faster than a thread is woken."""
        is_whole = len(self.small) == len(self.layout.datasets)
        return self._small is not None and is_whole and self.layout.rows <= ASKING_ROWS

    @property
    def plans_ahead(self) -> bool:
        """Whether plans are independent of rows that are still to be cached."""
        return not self.kept_rows or (self._keeping is not None and self._keeping.is_filled)

    @property
    def kept_nbytes(self) -> int:
        """Bytes of memory for rows that stay there once they are decoded."""
        return 0 if self._keeping is None else self._keeping.nbytes

    def keep(self) -> None:
        """Begin to cache rows, if any are to be cached; called while nothing is planned."""
        if self.kept_rows is not None and self._keeping is None:
            self._kept = keeping_of(self.layout, self.kept_rows), {}

    def trim(self, *, decoded: bool = True) -> None:
        """Release memory for later use, and with `decoded` cached rows; planned tasks keep theirs."""
        self.ragged_memory.trim()
        self._decoders = decoders_of(self.layout)
        if decoded and self._keeping is not None:
            self._kept = None, {}

    def tools(self, tally: Tally | None = None, stop: NDArray[np.int32] = GOING_ON) -> Tools:
        """Return the calling thread's tools: its scratch, counters and flag to stop."""
        # The main thread, which Ctrl-C may interrupt wherever it is, borrows nothing.
        is_main = threading.current_thread() is threading.main_thread()
        decoders = None if is_main else self._decoders
        return Tools(self.sources, self._h5py, self.scratch, tally or Tally(), decoders, stop)

    @property
    def scratch(self) -> DecodeScratch:
        """The calling thread's buffers."""
        return self._thread.scratch

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
        if self._ragged or self._dense:
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
                self._land_together(tasks, destination, tally)
                return
        tools = self.tools(tally)
        for task in tasks:
            task.land(destination, tools)

    def _land_together(self, tasks: Sequence[Task], destination: Destination, tally: Tally | None) -> None:
        """Carry tasks out in threads, which all end with the first error."""
        waiting, ended, failed = iter(tasks), SimpleQueue[Tally | None](), list[BaseException]()

        def land() -> None:
            tools = self.tools()
            try:
                for task in waiting:
                    raise_if_stopped()
                    task.land(destination, tools)
                ended.put(tools.tally)
            except BaseException as error:
                failed.append(error)
                ended.put(None)

        # Not of `concurrent.futures`, whose threads Python's exit waits for before it stops those that read.
        threads = list[threading.Thread]()
        try:
            with cancelled_on_exit():
                for _ in tasks[:READERS]:
                    carry = contextvars.copy_context().run
                    threads.append(threading.Thread(target=carry, args=(land,), name="h5stream-far", daemon=True))
                    threads[-1].start()
                for _ in threads:
                    if (one := ended.get()) is None:
                        raise failed[0]
                    if tally is not None:
                        tally.add(one)
        finally:
            for thread in threads:
                if thread.is_alive():  # not all are, after Ctrl-C
                    thread.join()
            failed.clear()  # each knows the frames it came through, and those know all of them

    # --- single rows: a plan, a slot and a batch around one cost ten times what reading it does ---

    def _ways_singly(self, part: int) -> tuple[list[UnfilteredRows], list[SourceIdentity]]:
        """Return the readers of single rows for a part of each dataset, and their files."""
        if (reading := self._singly.get(part)) is None:
            ways = [cast(UnfilteredRows, self._way(number, part)) for number in range(len(self.layout.datasets))]
            reading = ways, [self.layout.files[file] for file in {way.part.file for way in ways}]
            self._singly[part] = reading
        return reading

    def single(self, first: int, count: int = 0) -> list[torch.Tensor] | None:
        """Read one or `count` rows to a tensor for each field; None if they need more than that, or fail."""
        layout = self.layout
        place = bisect.bisect_right(layout.file_starts, first) - 1
        if not self._reads_singly or (count and first + count > layout.file_starts[place + 1]):
            return None
        ways, files = self._ways_singly(place)
        values = [np.empty((count or 1, *field.row_shape), field.dtype) for field in layout.fields]
        for way in ways:
            try:
                if not way.read(first, values, self.sources[way.part.file], self):
                    return None  # the ordinary way says why, or gets over it
            except OSError:
                return None
        for identity in files:
            identity.check_unchanged()
        return [tensor_of(value if count else value.reshape(value.shape[1:])) for value in values]

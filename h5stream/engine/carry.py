"""Carrying out a task: read, decode, hand over to the scatter."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.counters import Tally, clock
from h5stream.engine.emit import Emitter, Sink
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.gathering import SideBySide, Stack
from h5stream.engine.mapping import GatherTask, MappedDatasets
from h5stream.engine.plan import Task, counted_from, plan_window, rows_of_parts
from h5stream.engine.single import SingleRows
from h5stream.engine.unfiltered import RowsTask, UnfilteredDatasets
from h5stream.errors import CorruptChunkError
from h5stream.order.epoch import Window
from h5stream.storage.codecs import DecodeError, NotAskedError
from h5stream.storage.fallback import H5pyReader
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DECODED, VIA_H5PY, SampleLayout
from h5stream.storage.source import FileBytes

Bytes = NDArray[np.uint8]
FileTask = Task | GatherTask | RowsTask


class Carrier:
    """Carries tasks out, for any number of threads.

    # Guarantees: `carry` may run in many threads at once. The layout and the programs are immutable;
    # scratch belongs to the calling thread. Pickling carries the layout only.

    Parameters
    ----------
    layout : SampleLayout
        The fields and their files.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self.layout = layout
        self.sources = tuple(FileBytes(identity) for identity in layout.files)
        self.fallback = H5pyReader(layout)
        self.emitter = Emitter(layout)
        self.mapped = MappedDatasets(layout, self.emitter)
        self.unfiltered = UnfilteredDatasets(layout, self.sources)
        self.single = SingleRows(layout, self.sources, self.unfiltered)
        self._thread = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["layout"])  # type: ignore[misc]

    def close(self) -> None:
        """Close the files; a later task opens them again."""
        for source in self.sources:
            source.close()
        self.mapped.close()
        self.fallback.close()

    def plan(self, window: Window, first_batch: int, skip: tuple[int, ...], task_nbytes: int) -> list[FileTask]:
        """Plan the reads of a window, of all datasets but those in `skip`."""
        gathered = self.mapped.plan(window, first_batch, skip, task_nbytes)
        others = tuple(
            parts for n, parts in enumerate(self.layout.datasets) if n not in skip and n not in self.mapped.numbers
        )
        if not others:
            return list(gathered)
        plan = self.unfiltered.plan
        planned = plan_window(others, window, first_batch=first_batch, task_nbytes=task_nbytes, unfiltered=plan)
        return [*gathered, *planned]

    def read(self, window: Window, sink: Sink) -> None:
        """Plan the reads of one window, its rows ascending, and carry them out in the calling thread.

        Raises
        ------
        H5StreamError
            As for `carry`.
        """
        if not self.unfiltered.has_all or self.mapped.numbers:
            for task in self.plan(window, 0, (), TASK_NBYTES):
                self.carry(task, sink)
            return
        window = counted_from(window, 0)
        for parts in self.layout.datasets:
            for part, low, high in rows_of_parts(parts, window.rows):
                if part.pieces:
                    rows, batch, within = (each[low:high] for each in (window.rows, window.batch, window.within))
                    ours = RowsTask(part=part, rows=rows, batch=batch, within=within)
                    self.unfiltered.carry(ours, sink, self.scratch, Tally())

    @property
    def scratch(self) -> DecodeScratch:
        """The calling thread's buffers."""
        try:
            return self._thread.scratch  # type: ignore[no-any-return]
        except AttributeError:
            self._thread.scratch = DecodeScratch()
            return self._thread.scratch  # type: ignore[no-any-return]

    def carry(
        self, task: FileTask, sink: Sink, *, stopped: Callable[[], bool] = lambda: False, tally: Tally | None = None
    ) -> None:
        """Read, decode and scatter the chunks of a task.

        Parameters
        ----------
        task : Task, GatherTask or RowsTask
            The chunks, or the rows of a mapped or unfiltered file.
        sink : Sink
            Where their rows go.
        stopped : callable, optional
            Asked between chunks; once it says True the rest is left undone.
        tally : Tally, optional
            The calling thread's counters.

        Raises
        ------
        CorruptChunkError, TruncatedFileError, SourceChangedError, SourceError
            Named by file, dataset, chunk and byte.
        """
        tally = Tally() if tally is None else tally
        if isinstance(task, GatherTask):
            began = clock()
            self.mapped.carry(task, sink)
            tally.scattered(began)
            return
        if isinstance(task, RowsTask):
            self.unfiltered.carry(task, sink, self.scratch, tally)
            return
        if task.part.access == VIA_H5PY:
            self._carry_via_h5py(task, sink, stopped, tally)
            return
        programs = self.emitter.programs_of(task.part)
        if Stack.pays(task.part):
            self._carry_stack(task, sink, stopped, tally)
            return
        beside = SideBySide(programs[0], task, sink, self.scratch) if SideBySide.pays(programs) else None
        for start, stop in itertools.pairwise(task.run.tolist()):
            if stopped():
                return
            self._carry_run(task, sink, start, stop, beside, tally)
        if beside is not None:
            began = clock()
            beside.flush()
            tally.scattered(began)

    # --- chunks read from the file ----------------------------------------------------------------------

    def _carry_run(
        self,
        task: Task,
        sink: Sink,
        start: int,
        stop: int,
        beside: SideBySide | None,
        tally: Tally,
    ) -> None:
        """Fetch neighbouring chunks with one read, decode and scatter each."""
        if task.place[start] == MISSING:
            self._fill(task, sink, start, stop, tally)
            return
        scratch, decoded = self.scratch, task.part.access == DECODED
        base = int(task.offset[start])
        fetched = scratch.buffer("read", int(task.offset[stop - 1] + task.nbytes[stop - 1]) - base)
        mark = tally.fetch(self.sources[task.part.file], base, fetched)
        for k in range(start, stop):
            at = int(task.offset[k]) - base
            stored = fetched[at : at + int(task.nbytes[k])]
            data, shuffled = self._decode(task, k, stored) if decoded else (stored, 0)
            mark = tally.decoded(mark, data.nbytes)
            if beside is None or data.nbytes != task.part.chunk_nbytes:
                self.emitter.emit(task, sink, k, data, shuffled, scratch)
            else:
                beside.add(k, data, shuffled)
            mark = tally.scattered(mark)

    def _fill(self, task: Task, sink: Sink, start: int, stop: int, tally: Tally) -> None:
        began = clock()
        for k in range(start, stop):
            self.emitter.emit_fill(task, sink, k)
        tally.scattered(began)

    def _carry_stack(self, task: Task, sink: Sink, stopped: Callable[[], bool], tally: Tally) -> None:
        """Decode small chunks one after the other into a stack, and scatter them with one call."""
        stack = Stack(self.emitter, task, sink, self.scratch)
        source, pipeline = self.sources[task.part.file], task.part.pipeline
        offset, nbytes, place = task.offset.tolist(), task.nbytes.tolist(), task.place.tolist()
        index, raw_nbytes, scratch = task.part.index, task.part.chunk_nbytes, self.scratch
        assert index is not None
        # The mask of a missing chunk is never looked at; a dataset of which nothing was written has none at all.
        masks = index.filter_mask[task.place].tolist() if len(index.numbers) else [0] * len(place)
        began, counted_ns, chunks = clock(), tally.read_ns + tally.scatter_ns, 0
        for start, stop in itertools.pairwise(task.run.tolist()):
            if stopped():
                return
            if place[start] == MISSING:
                self._fill(task, sink, start, stop, tally)
                continue
            base = offset[start]
            fetched = scratch.buffer("read", offset[stop - 1] + nbytes[stop - 1] - base)
            tally.fetch(source, base, fetched)
            chunks += stop - start
            for k in stack.inflate(fetched, base, start, stop):
                at = offset[k] - base
                stored = fetched[at : at + nbytes[k]]
                if nbytes[k] == raw_nbytes:  # perhaps an edge chunk that was left unfiltered
                    data, shuffled = self._decode(task, k, stored)
                    stack.add(k, data, shuffled)
                    continue
                try:
                    _, shuffled = pipeline.decode(
                        stored,
                        filter_mask=masks[k],
                        raw_nbytes=raw_nbytes,
                        scratch=scratch,
                        out=stack.place_for(k, raw_nbytes),
                    )
                except DecodeError as error:
                    stack.add(k, self._ask_h5py(task, k, error), 0)
                else:
                    stack.keep(k, shuffled)
        # What was neither reading nor filling was decoding: the clock is not read for every small chunk.
        other_ns = tally.read_ns + tally.scatter_ns - counted_ns
        mark = tally.stacked(began, chunks, chunks * raw_nbytes, other_ns)
        stack.flush()
        tally.scattered(mark)

    def _decode(self, task: Task, k: int, stored: Bytes) -> tuple[Bytes, int]:
        part, index = task.part, task.part.index
        assert index is not None
        mask = int(index.filter_mask[task.place[k]])
        if stored.nbytes == part.chunk_nbytes and part.may_be_unfiltered(task.place[k : k + 1])[0]:
            return self.fallback.chunk(part, int(task.number[k])), 0
        try:
            return part.pipeline.decode(stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=self.scratch)
        except DecodeError as error:
            return self._ask_h5py(task, k, error), 0

    def _ask_h5py(self, task: Task, k: int, error: DecodeError) -> Bytes:
        """Let libhdf5 judge bytes that do not decode here: it is the oracle, also of what is corrupt."""
        part, index = task.part, task.part.index
        assert index is not None
        identity = self.layout.files[part.file]
        identity.check_unchanged()
        number = int(task.number[k])
        if not isinstance(error, NotAskedError):
            with contextlib.suppress(CorruptChunkError):
                return self.fallback.chunk(part, number)
        chunk, offset = index.coordinates(number), int(index.offset[task.place[k]])
        raise CorruptChunkError(
            f"{identity.path!r}, dataset {part.path!r}: chunk {chunk} at byte {offset} "
            f"({int(index.nbytes[task.place[k]])} bytes) is corrupt: {error}. Copy the file again from its source.",
            file=identity.path,
            field=part.path,
            chunk=chunk,
            byte_offset=offset,
        ) from error

    # --- rows read through h5py -------------------------------------------------------------------------

    def _carry_via_h5py(self, task: Task, sink: Sink, stopped: Callable[[], bool], tally: Tally) -> None:
        part, placement = task.part, task.placement
        for k in range(len(task.number)):
            if stopped():
                return
            low, high = int(task.low[k]), int(task.high[k])
            first, last = int(placement.in_rows[low]), int(placement.in_rows[high - 1])
            start = int(task.number[k]) * part.chunk_rows + first
            mark = clock()
            rows = self.fallback.rows(part, start, last - first + 1)
            mark = tally.via_h5py(mark, rows.nbytes)
            self.emitter.emit_rows(task, sink, k, rows, first)
            tally.scattered(mark)

"""Values of variable length: their addresses are known since the file was opened, and one kernel reads and copies them.

h5py reads values that are damaged or of an unknown kind.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from h5stream.base.cancel import raise_if_stopped
from h5stream.compiled import _native as kernels
from h5stream.engine.counters import clock
from h5stream.engine.kinds.values import object_value
from h5stream.engine.plan.failing import row_by_row
from h5stream.engine.plan.tasks import (
    NONE,
    TASK_NBYTES,
    Bytes,
    Destination,
    Ints,
    Native,
    Placement,
    Task,
    Tools,
    cut_by,
    descriptor_of,
)
from h5stream.engine.plan.unfiltered import READ_COST_NBYTES
from h5stream.engine.slots import address_of
from h5stream.errors import CorruptChunkError
from h5stream.order.places import is_ascending
from h5stream.storage.decode.columns import columns_of
from h5stream.storage.layout.heap import HeapValues
from h5stream.storage.layout.layout import FieldLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.one_file import LOCAL_GAP_NBYTES


class HeapRows:
    """The rows of a dataset part of values of variable length."""

    def __init__(
        self, part: DatasetPart, heap: HeapValues, fields: tuple[FieldLayout, ...], *, has_descriptor: bool = False
    ) -> None:
        self._part, self._layout = part, fields[part.targets[0].field]
        self._heap, self._values_a_row = heap, max(1, heap.address.size // max(1, part.rows))
        self._is_packed = self._layout.kind == "ragged" and not self._layout.is_listed
        is_as_stored = self._layout.placed_nbytes == heap.base.itemsize
        # What a native plan finds values by; None where none reads them.
        self._index = heap.index if has_descriptor and self._is_packed and is_as_stored else None

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Cut rows of the part, ascending, into tasks of about as many bytes."""
        placement = self.in_file_order(placement.each_row())
        rows = self._rows_of(placement)
        if self._values_a_row == 1:
            work = self._heap.nbytes_of(rows)
        else:
            work = self._heap.nbytes_of_rows(self._part.rows)[rows]
        if self._index is not None:
            plan = self._plan(placement, self._index)
            for cut in cut_by(work + READ_COST_NBYTES // 64, task_nbytes):
                yield self._native(plan, placement, cut.start, cut.stop)
            return
        land = self._land_ragged if self._is_packed else self._land_lists
        for cut in cut_by(work + READ_COST_NBYTES // 64, min(task_nbytes, TASK_NBYTES)):
            yield Task(shared=placement[cut], bring=land, apart=row_by_row)

    def in_file_order(self, placement: Placement) -> Placement:
        """Return rows in the order of their values in the file, so that no two tasks read the same stretch."""
        if self._values_a_row > 1:
            return placement
        address = self._heap.address[self._rows_of(placement)]
        return placement if is_ascending(address) else placement[np.argsort(address, kind="stable")]

    def _plan(self, placement: Placement, index: NDArray[np.uint32]) -> kernels.Plan:
        """Return the native plan for rows, in file order."""
        heap, file = self._heap, self._heap.superblock
        crop = self._layout.form.crop
        most = sys.maxsize if crop is None else crop.length * heap.base.itemsize
        return kernels.plan_heap(
            file.file_nbytes,
            file.length_nbytes,
            heap.base.itemsize,
            most,
            heap.room_nbytes,
            LOCAL_GAP_NBYTES,
            heap.address,
            index,
            heap.length,
            self._part.row_start,
            placement.rows,
            placement.batch,
            placement.within,
        )

    def _native(self, plan: kernels.Plan, placement: Placement, low: int, high: int) -> Task:
        field = self._part.targets[0].field

        def rest(unit: int) -> Task:
            """Return what brings the rows from one on, and asks h5py for those that cannot be read here."""
            return Task(shared=placement[unit:high], bring=self._land_ragged, apart=row_by_row)

        def bring(_: Placement, destination: Destination, tools: Tools) -> None:
            descriptor = descriptor_of(tools.sources[self._part.file])
            done = tools.land(part, NONE, descriptor.number, destination)
            if done < high:
                raise_if_stopped()
                self._land_ragged(placement[done:high], destination, tools)

        part = Native(plan, low, high, (field,), self._part.file)
        own = np.array([low]), np.array([high])
        return Task(
            shared=placement, own=own, bring=bring, apart=lambda _: row_by_row(rest(low)), native=part, rest=rest
        )

    def _rows_of(self, placement: Placement) -> Ints:
        return placement.rows.astype(np.int64) - self._part.row_start

    def _land_ragged(self, placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read the values to their places."""
        rows, field, item = self._rows_of(placement), self._part.targets[0].field, self._heap.base.itemsize
        wanted, crop = self._heap.nbytes_of(rows), self._layout.form.crop
        if crop is not None:
            wanted = np.minimum(wanted, crop.length * item)
        targets = destination.ragged[field][placement.batch] + placement.within.astype(np.int64) * item
        for k in self._read(rows, targets, wanted, tools):
            value = self._ask(int(rows[k]), tools)
            promised = int(self._heap.length[rows[k]])
            if len(value) != promised:
                raise self._damaged(int(rows[k]), f"it has {len(value):,} items, and {promised:,} are promised", tools)
            native = np.ascontiguousarray(value, dtype=self._layout.dtype).view(np.uint8)
            ctypes.memmove(int(targets[k]), address_of(native), int(wanted[k]))

    def _land_lists(self, placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read the values, and put them in the batches' lists."""
        shape = self._part.shape
        every = np.arange(self._heap.address.size).reshape(shape) if len(shape) > 1 else None
        rows, field = self._rows_of(placement), self._part.targets[0].field
        chosen = rows if every is None else columns_of(every[rows], self._part.columns)
        values = self._values(chosen, rows, tools)
        since = clock()
        destination.put(field, placement, map(object_value, values))
        tools.tally.scattered(since)

    def _values(self, chosen: Ints, rows: Ints, tools: Tools) -> list[object] | NDArray[np.object_]:
        """Return the values of rows as h5py would."""
        flat, base = chosen.reshape(-1), self._heap.base
        memory, edges, failed = self._read_all(flat, tools)
        cuts = [*itertools.pairwise((edges // base.itemsize).tolist())]
        values: list[object]
        if self._heap.is_text:
            text = memory.tobytes()
            if b"\0" in text:  # where a string ends, to libhdf5
                values = [text[low:high].split(b"\0", 1)[0] for low, high in cuts]
            else:
                values = [text[low:high] for low, high in cuts]
        else:
            items = memory.view(base)
            values = [items[low:high] for low, high in cuts]
        shaped: list[object] | NDArray[np.object_] = values
        if chosen.ndim > 1:
            shaped = np.empty(chosen.shape, dtype=object)
            for k, value in enumerate(values):
                shaped.flat[k] = value
        for row in np.unique(failed // max(1, len(flat) // max(1, len(rows)))).tolist():
            shaped[row] = self._ask(int(rows[row]), tools)
        return shaped

    def of(self, placement: Placement, tools: Tools) -> Iterator[Bytes]:
        """Return the bytes of one value after the other, each good until the next."""
        rows = self._rows_of(placement)
        memory, edges, failed = self._read_all(rows, tools)
        failed_rows = set(failed.tolist())
        for k, (low, high) in enumerate(itertools.pairwise(edges.tolist())):
            if k in failed_rows:
                yield np.frombuffer(bytes(self._ask(int(rows[k]), tools)), dtype=np.uint8)
            else:
                yield memory[low:high]

    def _read_all(self, chosen: Ints, tools: Tools) -> tuple[Bytes, Ints, Ints]:
        """Return values one behind the other, where each begins and the last ends, and which are to be asked for."""
        wanted = self._heap.nbytes_of(chosen)
        edges = np.append(0, np.cumsum(wanted))
        memory = np.empty(int(edges[-1]), dtype=np.uint8)
        return memory, edges, self._read(chosen, address_of(memory) + edges[:-1], wanted, tools)

    def _read(self, chosen: Ints, targets: Ints, wanted: Ints, tools: Tools) -> Ints:
        """Copy values to memory; gives those that h5py must be asked for."""
        began, heap = clock(), self._heap
        room = tools.scratch.buffer("read", heap.room_nbytes)
        failed, (nbytes, ranges) = heap.read(tools.sources[self._part.file], chosen, targets, wanted, room)
        tools.tally.read(began, nbytes, ranges)
        if self._layout.images is None:  # else it is counted as decoded
            tools.tally.used(nbytes, ranges)
        return np.flatnonzero(failed)

    def _ask(self, row: int, tools: Tools) -> bytes | np.ndarray:
        """Ask h5py for a row."""
        source = tools.sources[self._part.file]
        source.identity.check_unchanged()
        numbers = np.arange(row * self._values_a_row, (row + 1) * self._values_a_row)
        if (at := self._heap.endless_at(source, numbers)) >= 0:
            raise self._damaged(row, f"in its collection, at byte {at:,}, an object has no bytes at all", tools)
        since = clock()
        if self._part.objects is not None:
            value: bytes | np.ndarray = tools.h5py.bytes_of(self._part, row)
        else:
            value = self._part.targets[0].taken(tools.h5py.rows(self._part, row, 1))[0]
        tools.tally.via_h5py(since, int(self._heap.row_nbytes))
        return value

    def _damaged(self, row: int, why: str, tools: Tools) -> CorruptChunkError:
        path = tools.sources[self._part.file].identity.path
        return CorruptChunkError(
            f"{path!r}, dataset {self._part.path!r}: the value of row {row:,} is damaged: {why}. Copy the file again "
            "from its source.",
            file=path,
            field=self._part.path,
            chunk=(row,),
        )

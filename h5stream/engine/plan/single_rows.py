"""Rows that are read at once, for which a plan, a slot and a batch would cost ten times what reading does."""

from __future__ import annotations

import bisect
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.changes import tensor_of
from h5stream.engine.plan.tasks import GOING_ON, NONE, OwnScratch, Placement, descriptor_of
from h5stream.engine.plan.unfiltered import UnfilteredRows
from h5stream.engine.slots import address_of
from h5stream.storage.decode.filters import DecodeScratch
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.identity import ByteSource, SourceIdentity


class SingleRows:
    """Reads single rows of a layout whose fields all come as they are stored, from files with descriptors.

    # Guarantees: any thread may read; how a part is read may be worked out twice, with the same result.
    """

    def __init__(self, layout: SampleLayout, sources: Sequence[ByteSource]) -> None:
        self._layout, self._sources = layout, sources
        # By part, as they are asked for: files of very many groups have a part for each.
        self._of_parts: dict[int, tuple[list[_PartRows], list[SourceIdentity]]] = {}

    def read(self, first: int, count: int, own: OwnScratch) -> list[torch.Tensor] | None:
        """Read one or `count` rows to a tensor for each field; None if they need more than that, or fail."""
        layout = self._layout
        place = bisect.bisect_right(layout.file_starts, first) - 1
        if count and first + count > layout.file_starts[place + 1]:
            return None
        if (reading := self._of_parts.get(place)) is None:
            parts = [datasets[place] for datasets in layout.datasets]
            files = [layout.files[file] for file in {part.file for part in parts}]
            reading = [_PartRows(part, self._sources[part.file]) for part in parts], files
            self._of_parts[place] = reading
        values = [np.empty((count or 1, *field.row_shape), field.dtype) for field in layout.fields]
        for rows in reading[0]:
            try:
                if not rows.read(first, values, own):
                    return None  # the ordinary way says why, or gets over it
            except OSError:
                return None
        for identity in reading[1]:
            identity.check_unchanged()
        return [tensor_of(value if count else value.reshape(value.shape[1:])) for value in values]


class _PartRows:
    """Reads rows of a dataset part to arrays."""

    def __init__(self, part: DatasetPart, source: ByteSource) -> None:
        self._source, self._rows = source, UnfilteredRows(part, source.gap_nbytes, source.has_descriptor)
        self._table = table = self._rows.table
        # The chunk across a row, the first byte and the bytes of a row that is one run in it, if all are written.
        is_run = len(table.runs) == 1 and table.runs[0, 3] == table.runs[0, 5] == 1
        are_written = not len(table.numbers) and len(table.offsets) > 0
        self._run: list[int] | None = table.extents[0, :3].tolist() if is_run and are_written else None
        self._offsets: Sequence[int] = memoryview(table.offsets)  # type: ignore[arg-type]  # quicker to look into

    def read(self, first: int, values: Sequence[NDArray[np.generic]], own: OwnScratch) -> bool:
        """Read consecutive rows to an array for each field of the layout; return whether all were read."""
        value, done = values[self._rows.fields[0]], 0
        count, descriptor = len(value), descriptor_of(self._source)
        table = self._table
        chunk, inside = divmod(first - table.row_start, table.chunk_rows)
        if self._run is None or (count > 1 and not table.whole_rows):
            return self._read_spans(first, count, values, own.scratch)
        across, begin, nbytes = self._run
        while done < count:
            rows = min(count - done, table.chunk_rows - inside)
            at = self._offsets[chunk * table.across + across] + inside * table.stride + begin
            if os.preadv(descriptor.number, [value[done : done + rows]], at) != rows * nbytes:
                return False
            chunk, inside, done = chunk + 1, 0, done + rows
        return True

    def _read_spans(
        self, first: int, count: int, values: Sequence[NDArray[np.generic]], scratch: DecodeScratch
    ) -> bool:
        """Read rows that are not one run of bytes as spans of a plan of their own."""
        zero, rows, table = np.zeros(1, dtype=np.int64), self._rows, self._table
        placement = Placement(rows=np.array([first]), counts=np.array([count]), batch=zero, within=zero)
        is_one = (first - table.row_start) % table.chunk_rows + count <= table.chunk_rows
        if not (is_one and rows.takes_spans and (table.whole_rows or count <= rows.most_rows)):
            cut = rows.cut(placement)
            placement = replace(cut, within=cut.rows - first)
        offsets = np.array([address_of(values[field]) for field in rows.fields])
        row_nbytes = np.array([values[field].nbytes // count for field in rows.fields])
        descriptor, counts = descriptor_of(self._source), np.zeros(kernels.COUNTS, dtype=np.int64)
        plan, spans, where = table.plan(placement), len(placement), (zero, offsets, row_nbytes)
        address = scratch.native.address
        return kernels.land(plan, 0, spans, descriptor.number, NONE, *where, address, GOING_ON, counts) == spans

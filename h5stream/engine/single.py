"""A row, or consecutive rows, of data that need no decoding: few reads, and no plan.

A plan, a slot and a batch around one row cost ten times what reading it does, and twice that for some thousand rows of
a few bytes. Who asks for single rows or slices asks for many, so the common case goes without them; everything else is
read as a batch.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from h5stream.engine.landing.unfiltered import EXTENT_NBYTES, Reach, UnfilteredRows
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.layout import DatasetPart, SampleLayout
from h5stream.storage.source import ByteSource, Descriptor

MOST_READS = 64
"""Reads, at most, that are done one by one from Python."""


class _Reads(NamedTuple):
    """What is read of a row of a part, for the one field that it fills."""

    part: DatasetPart
    reach: Reach
    offsets: Any  # where each chunk begins; quicker to look into than an array
    # the chunk across the row, first byte in the chunk's row, first in the field's row, bytes
    pieces: tuple[tuple[int, int, int, int], ...]


class SingleRows:
    """Reads single rows, and consecutive ones, where all that takes is plain reads.

    # Guarantees: immutable; any thread may read.
    """

    def __init__(
        self, layout: SampleLayout, sources: Sequence[ByteSource], rows_of: Callable[[int, int], UnfilteredRows] | None
    ) -> None:
        self._layout, self._sources = layout, sources
        self._forms = [(field.row_shape, field.dtype) for field in layout.fields]
        self._reads: list[list[_Reads] | None] = []
        if rows_of is not None and all(
            field.kind == "array" and field.cast is None and field.normalise is None for field in layout.fields
        ):
            in_turn = enumerate(zip(*layout.datasets, strict=True))
            self._reads = [_reads_of(parts, number, rows_of) for number, parts in in_turn]

    def read(self, first: int, count: int = 0, scratch: DecodeScratch | None = None) -> list[torch.Tensor] | None:
        """Read a row, or `count` of them, a tensor for each field; None where it is not that simple, or fails."""
        place = bisect.bisect_right(self._layout.file_starts, first) - 1
        reads = self._reads[place] if self._reads else None
        if reads is None or (count and first + count > self._layout.file_starts[place + 1]):
            return None
        values: list[Any] = [None] * len(self._forms)
        for each in reads:
            shape, dtype = self._forms[each.reach.fields[0]]
            if scratch is None:
                value: Any = np.empty(shape, dtype)
                is_read = self._read_row(value, each, first)
            else:
                value = np.empty((count, *shape), dtype)
                is_read = self._read_rows(value, each, first, scratch)
            if not is_read:
                return None  # the ordinary way says why, or gets over it
            values[each.reach.fields[0]] = torch.from_numpy(value)
        for file in {each.part.file for each in reads}:
            self._layout.files[file].check_unchanged()
        return values

    def _read_row(self, value: Any, each: _Reads, row: int) -> bool:
        descriptor, reach = self._descriptor(each).number, each.reach
        chunk, within = divmod(row - each.part.row_start, reach.chunk_rows)
        memory = value.reshape(-1).view(np.uint8) if len(each.pieces) > 1 else value
        for number, begin, into, nbytes in each.pieces:
            at = each.offsets[chunk * reach.across + number] + within * reach.stride + begin
            target = memory[into : into + nbytes] if len(each.pieces) > 1 else memory
            if not _read(descriptor, target, at, nbytes):
                return False
        return True

    def _read_rows(self, value: Any, each: _Reads, first: int, scratch: DecodeScratch) -> bool:
        if len(each.pieces) > 1 or each.reach.stride - each.pieces[0][3] > each.reach.gap_nbytes:
            few = len(value) * len(each.pieces) <= MOST_READS
            return few and all(self._read_row(value[k : k + 1], each, first + k) for k in range(len(value)))
        return self._read_to(value, each, first, scratch)

    def _read_to(self, value: Any, each: _Reads, first: int, scratch: DecodeScratch) -> bool:
        descriptor, reach, row_start = self._descriptor(each), each.reach, each.part.row_start
        ((number, begin, _, nbytes),) = each.pieces
        # One element a row, of a width that NumPy copies fast where there is one.
        rows = value.reshape(-1).view(_WIDTHS.get(nbytes, f"V{nbytes}"))
        room = max(1, EXTENT_NBYTES // reach.stride) if nbytes < reach.stride else len(rows)
        done = 0
        while done < len(rows):
            chunk, within = divmod(first + done - row_start, reach.chunk_rows)
            some = min(len(rows) - done, reach.chunk_rows - within, room)
            at = each.offsets[chunk * reach.across + number] + within * reach.stride + begin
            span = (some - 1) * reach.stride + nbytes
            ours = rows[done : done + some]
            target = ours.view(np.uint8) if nbytes == reach.stride else scratch.buffer("read", span)
            if not _read(descriptor.number, target, at, span):
                return False
            if nbytes < reach.stride:
                ours[:] = np.ndarray(some, rows.dtype, target.data, 0, (reach.stride,))
            done += some
        return True

    def _descriptor(self, each: _Reads) -> Descriptor:
        descriptor = self._sources[each.part.file].descriptor()
        assert descriptor is not None  # else there were no reads to choose from
        return descriptor


_WIDTHS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def _read(descriptor: int, target: Any, offset: int, nbytes: int) -> bool:
    try:
        return os.preadv(descriptor, [target], offset) == nbytes
    except OSError:
        return False


def _reads_of(
    parts: Sequence[DatasetPart], number: int, rows_of: Callable[[int, int], UnfilteredRows]
) -> list[_Reads] | None:
    """Return what is read of a row of part `number` of all datasets; None where it is not that simple."""
    found = []
    for dataset, part in enumerate(parts):
        reach = rows_of(dataset, number).reach if part.pieces else None
        if reach is None or not _is_plain(reach):
            return None
        numbers, begins, spans, run, _ = reach.extents.T
        pieces = zip(*(each.tolist() for each in (numbers, begins, reach.runs[run, 1], spans)), strict=True)
        offsets: Any = memoryview(reach.offsets)  # type: ignore[arg-type]
        found.append(_Reads(part, reach, offsets, tuple(pieces)))
    return found


def _is_plain(reach: Reach) -> bool:
    """Tell whether each read of a row is one run of one field's bytes, and every chunk is there."""
    return (
        len(reach.fields) == 1
        and len(reach.extents) == len(reach.runs) <= MOST_READS
        and bool((reach.runs[:, 3] == 1).all() and (reach.runs[:, 5] == 1).all())
        and len(reach.numbers) == 0
        and len(reach.offsets) > 0
    )

"""One row of data that need no decoding: a read for each field, straight into its tensor.

A plan, a slot and a batch around one row cost ten times what reading it does, and who asks for single rows asks for
many. So the common case goes without them; everything else is read as a batch of one row.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from h5stream.engine.unfiltered import Reach, UnfilteredDatasets
from h5stream.storage.layout import DatasetPart, SampleLayout
from h5stream.storage.source import FileBytes

MOST_READS = 64
"""Reads of a row, at most, that are done one by one from Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reads:
    """What is read of a row of a part, for the one field that it fills.

    Attributes
    ----------
    file, field, row_start, chunk_rows, stride : int
        As in the part and its `Reach`.
    offsets : memoryview of int64
        Where each chunk begins; quicker to look into than an array.
    across : int
        Chunks that a row crosses.
    pieces : tuple of (int, int, int, int)
        The chunk across the row, first byte in the chunk's row, first in the field's row, bytes.
    """

    file: int
    field: int
    row_start: int
    chunk_rows: int
    stride: int
    offsets: Any
    across: int
    pieces: tuple[tuple[int, int, int, int], ...]


class SingleRows:
    """Reads single rows where all that takes is plain reads.

    # Guarantees: immutable; any thread may read.

    Parameters
    ----------
    layout : SampleLayout
        The fields and their files.
    sources : sequence of FileBytes
        The files' bytes.
    unfiltered : UnfilteredDatasets
        What knows how rows lie.
    """

    def __init__(self, layout: SampleLayout, sources: Sequence[FileBytes], unfiltered: UnfilteredDatasets) -> None:
        self._layout, self._sources = layout, sources
        self._forms = [(field.row_shape, field.dtype) for field in layout.fields]
        plain = unfiltered.has_all and all(field.kind == "array" and field.cast is None for field in layout.fields)
        in_turn = zip(*layout.datasets, strict=True) if plain else ()
        self._reads = [_reads_of(parts, unfiltered) for parts in in_turn]

    def read(self, row: int) -> list[torch.Tensor] | None:
        """Read a row, a tensor for each field; None where it is not that simple, or does not succeed.

        Parameters
        ----------
        row : int
            Its number in the whole sequence of rows.
        """
        place = bisect.bisect_right(self._layout.file_starts, row) - 1
        reads = self._reads[place] if self._reads else None
        if reads is None:
            return None
        values: list[Any] = [None] * len(self._forms)
        for each in reads:
            descriptor = self._sources[each.file].descriptor()
            chunk, within = divmod(row - each.row_start, each.chunk_rows)
            value: Any = np.empty(*self._forms[each.field])
            memory = value.reshape(-1).view(np.uint8) if len(each.pieces) > 1 else value
            for number, begin, into, nbytes in each.pieces:
                at = each.offsets[chunk * each.across + number] + within * each.stride + begin
                target = memory[into : into + nbytes] if len(each.pieces) > 1 else memory
                if not _read(descriptor.number, target, at, nbytes):
                    return None  # the ordinary way says why, or gets over it
            values[each.field] = torch.from_numpy(value)
        for file in {each.file for each in reads}:
            self._layout.files[file].check_unchanged()
        return values


def _read(descriptor: int, target: Any, offset: int, nbytes: int) -> bool:
    try:
        return os.preadv(descriptor, [target], offset) == nbytes
    except OSError:
        return False


def _reads_of(parts: Sequence[DatasetPart], unfiltered: UnfilteredDatasets) -> list[_Reads] | None:
    found = []
    for part in parts:
        reach = unfiltered.reach(part) if part.pieces else None
        if reach is None or not _is_plain(reach):
            return None
        _, begins, spans, first, _ = reach.extents.T
        found.append(
            _Reads(
                file=part.file,
                field=reach.fields[0],
                row_start=part.row_start,
                chunk_rows=part.chunk_rows,
                stride=reach.stride,
                offsets=memoryview(reach.offsets),  # type: ignore[arg-type]
                across=reach.across,
                pieces=tuple(
                    zip(
                        *(each.tolist() for each in (reach.extents[:, 0], begins, reach.runs[first, 1], spans)),
                        strict=True,
                    )
                ),
            )
        )
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

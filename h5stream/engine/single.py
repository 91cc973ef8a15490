"""A row, or consecutive rows, of data that need no decoding: few reads, and no plan.

A plan, a slot and a batch around one row cost ten times what reading it does, and twice that for some thousand rows of
a few bytes. Who asks for single rows or slices asks for many, so they go without these; all else is read as a batch.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from h5stream.engine.landing.unfiltered import UnfilteredRows
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.layout import SampleLayout
from h5stream.storage.source import ByteSource


class OwnScratch(threading.local):
    """Buffers of each thread."""

    def __init__(self) -> None:
        self.scratch = DecodeScratch()


class SingleRows:
    """Reads single rows, and consecutive ones, of data that need no decoding.

    # Guarantees: immutable; any thread may read.
    """

    def __init__(
        self,
        layout: SampleLayout,
        sources: Sequence[ByteSource],
        rows_of: Callable[[int, int], UnfilteredRows] | None,
        own: OwnScratch,
    ) -> None:
        self._layout, self._sources, self._own = layout, sources, own
        self._forms = [(field.row_shape, field.dtype) for field in layout.fields]
        are_simple = (field.kind == "array" and field.cast is field.normalise is None for field in layout.fields)
        self._ways: list[list[UnfilteredRows]] = []  # by part, of each dataset
        if rows_of is not None and all(are_simple) and all(part.pieces for parts in layout.datasets for part in parts):
            places, datasets = range(len(layout.datasets[0])), range(len(layout.datasets))
            self._ways = [[rows_of(dataset, place) for dataset in datasets] for place in places]
            self._files = [[layout.files[n] for n in {way.part.file for way in ways}] for ways in self._ways]

    def read(self, first: int, count: int = 0) -> list[torch.Tensor] | None:
        """Read a row, or `count` of them, a tensor for each field; None where it is not that simple, or fails."""
        place = bisect.bisect_right(self._layout.file_starts, first) - 1
        if not self._ways or (count and first + count > self._layout.file_starts[place + 1]):
            return None
        values = [np.empty((count or 1, *shape), dtype) for shape, dtype in self._forms]
        for way in self._ways[place]:
            try:
                if not way.read(first, values, self._sources[way.part.file], self._own):
                    return None  # the ordinary way says why, or gets over it
            except OSError:
                return None
        for identity in self._files[place]:
            identity.check_unchanged()
        return [torch.from_numpy(value if count else value.reshape(value.shape[1:])) for value in values]

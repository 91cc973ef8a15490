"""Rows that stay in memory as batches hold them: small datasets, and what fits of the others once it is decoded.

Small datasets, such as labels, are read once: their chunks rarely line up with the blocks. Of the others a chunk that
is decoded for the first time lands in memory whole, and from there in the batches that want some of it; where not all
of a dataset fits, that is its first rows, of which each window has its share. Loaders of one process share it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import operator
import os
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from h5stream.base.cancel import raise_if_stopped
from h5stream.base.leases import Living
from h5stream.compiled import _native as kernels
from h5stream.engine.plan.keeping import Keeping
from h5stream.engine.plan.tasks import NONE, Bringing, Destination, Native, Placement, Task, Tools, Way
from h5stream.engine.slots import SlotFormat, address_of, map_memory, packed
from h5stream.order.places import Places, is_ascending, pieces
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.layout.access import DECODED, DIRECT, VIA_H5PY
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.remote import GAP_NBYTES

LEAST_TASK_NBYTES = 2 * 1024 * 1024
"""Bytes of one task that gathers rows: below it many threads wait for each other's Python rather than copy."""

ASKED_FOR_NBYTES = 16
CACHED_NBYTES = 8 * 1024 * 1024
"""Rows of this many bytes are asked for ahead in any order, shorter ones where they are not ascending and all of them
take more than a cache holds. Rows of 8 bytes, two threads, 256 MiB, nanoseconds: ascending 4.8 in place of 2.5, in
random order 5.6 in place of 9.7; of 4 MiB in random order 2.6 in place of 1.4."""


def is_decoded(part: DatasetPart) -> bool:
    """Return whether rows of a part have to be decoded."""
    return part.access in (DECODED, VIA_H5PY) and part.chunk_rows > 0 and part.rows > 0


def is_fetched(layout: SampleLayout, part: DatasetPart) -> bool:
    """Return whether rows of a part have to be fetched from a store.

    Those of a large chunk come without the rows beside them, and all of it may be much more than is wanted.
    """
    if part.access != DIRECT or not (part.chunk_rows > 0 and part.rows > 0):
        return False
    return layout.is_far and (part.chunk_rows == 1 or part.chunk_nbytes <= GAP_NBYTES)


def format_of(layout: SampleLayout, rows: Mapping[int, int]) -> SlotFormat:
    """Return how so many rows of some datasets are packed."""
    nbytes = [0] * len(layout.fields)
    for number, count in rows.items():
        for target in layout.datasets[number][0].targets:
            nbytes[target.field] = layout.fields[target.field].placed_nbytes * count
    return SlotFormat(layout.rows, *packed(nbytes))


class Kept:
    """Rows of some datasets in memory, each field's one behind the other as batches hold them, and which are there.

    # Guarantees: any thread may fill, ask and copy. Who fills a chunk writes the bytes that any other would write, and
    says so when all of it is there. Memory is touched as it is filled.
    """

    def __init__(self, layout: SampleLayout, rows: Mapping[int, int], named: Hashable = None) -> None:
        self.rows, self.layout, self.process = rows, layout, os.getpid()
        self.named = named  # what of it others may share
        # Packed as one batch of all rows, so that the ordinary plan fills it.
        self._format = format_of(layout, rows)
        self.nbytes = self._format.nbytes  # that there is room for
        self._memory = map_memory(self.nbytes)
        # The memory as a batch that rows are brought to: its first, at the place of their number.
        self.destination = Destination.of_batch(self._memory, self._format, layout.fields)
        self.is_whole = False  # whether all of its rows were read
        self._chunks: dict[int, _Chunks] = {}
        for number, count in rows.items():
            self._chunks[number] = _Chunks(layout, layout.datasets[number], count)

    @property
    def is_filled(self) -> bool:
        """Whether all that there is room for is there."""
        return all(each.filled.all() for each in self._chunks.values())

    def every_row(self, number: int) -> Placement:
        """Return all rows of a dataset, as a span of each part, or of each object in it."""
        spans = []
        for part in self.layout.datasets[number]:
            begins, lengths = part.spans
            spans.append((part.row_start + begins, lengths))
        first, counts = np.concatenate(spans, axis=1)
        return Placement.by_number(first[counts > 0], counts[counts > 0])

    def has(self, number: int, placement: Placement) -> bool:
        """Return whether rows of a dataset, in any order, are all there; spans only where all of the dataset is."""
        chunks = self._chunks.get(number)
        if chunks is None or self.is_whole:
            return chunks is not None
        if chunks.is_all and chunks.filled.all():
            return True
        return placement.counts is None and chunks.have(placement.rows)

    def gathered(self, numbers: Sequence[int], placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Cut rows of datasets that are there, in any order, into tasks of about as many bytes."""
        for plan, row_nbytes in self._copies(numbers, placement):
            step = max(1, max(LEAST_TASK_NBYTES, task_nbytes) // max(1, row_nbytes))
            step = step if placement.counts is None else placement.step_of(step)
            for low in range(0, len(placement), step):
                part = plan._replace(first=low, last=min(low + step, len(placement)))
                own = np.array([part.first]), np.array([part.last])
                # It keeps the memory, which `trim` may release.
                yield Task(shared=placement, own=own, bring=functools.partial(self._copy, part), native=part)

    def _copies(self, numbers: Sequence[int], placement: Placement) -> list[tuple[Native, int]]:
        """Plan copies of rows of some datasets to their places; gives the bytes that each copies of a row as well.

        One plan brings all fields but ragged ones, which have places of their own.
        """
        together: dict[int, tuple[list[int], int]] = {}  # by a ragged field, or -1: the fields, and how many rows
        for number in numbers:
            for target in self.layout.datasets[number][0].targets:
                key = target.field if self.layout.fields[target.field].kind == "ragged" else -1
                fields, rows = together.get(key, ([], sys.maxsize))
                together[key] = [*fields, target.field], min(rows, self.rows[number])
        copies = []
        may_ask = placement.counts is None
        where = placement.rows, placement.lengths, placement.batch, placement.within
        for fields, rows in together.values():
            _, offsets, nbytes = self.destination.of_fields(fields)
            # No cache holds rows that lie anywhere: they are asked for ahead.
            is_far = may_ask and self.nbytes > CACHED_NBYTES and bool((nbytes < ASKED_FOR_NBYTES).any())
            is_far = is_far and not is_ascending(placement.rows)
            is_asked_for = (may_ask & ((nbytes >= ASKED_FOR_NBYTES) | is_far)).astype(np.int64)
            plan = kernels.plan_memory(address_of(self._memory) + offsets, nbytes, is_asked_for, rows, *where)
            copies.append((Native(plan, 0, len(placement), tuple(fields), None), int(nbytes.sum())))
        return copies

    def _copy(self, part: Native, _: Placement, destination: Destination, tools: Tools) -> None:
        if tools.land(part, NONE, -1, destination) < part.last:
            raise_if_stopped()

    # --- how rows of datasets land, of which those of chunks that were decoded before are here ---

    def keeping(self, number: int, place: int) -> Keeping | None:
        """Return what keeps the chunks of a part of a dataset; None if none of them stays here."""
        filled = self._chunks[number].of_part.get(place) if number in self._chunks else None
        if filled is None:
            return None
        part = self.layout.datasets[number][place]
        return Keeping(part, self.destination, filled, functools.partial(self._copy_wanted, number))

    def _copy_wanted(self, number: int, placement: Placement, destination: Destination, tools: Tools) -> None:
        for plan, _ in self._copies([number], placement):
            self._copy(plan, placement, destination, tools)

    def way(self, number: int, keep: Keeping, bring: Bringing) -> Way:
        """Return how rows of a part land: from here, or by what brings and keeps those that are missing."""
        return functools.partial(self._plan, number, keep, bring)

    def _plan(
        self, number: int, keep: Keeping, bring: Bringing, placement: Placement, task_nbytes: int
    ) -> Iterator[Task]:
        """Cut rows of a part, ascending, into tasks of about as many bytes."""
        part = keep.part
        placement = placement.cut_every(part.chunk_rows, part.row_start).ascending()
        _, edges, chunks = placement.in_chunks(part)
        inside = chunks < len(keep.filled)  # what lies behind is not kept
        missing = np.ones(len(chunks), dtype=np.bool_)
        missing[inside] = ~keep.filled[chunks[inside]]  # asked once: it may be there a moment later
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(missing)) + 1, [len(chunks)]]).tolist()
        for low, high in itertools.pairwise(cuts):
            if low < high and not missing[low]:
                yield from self.gathered([number], placement[edges[low] : edges[high]], task_nbytes)
        if missing.any():
            yield from bring(placement, task_nbytes, missing)


def keeping_of(layout: SampleLayout, rows: Mapping[int, int]) -> Kept | None:
    """Return a cache for some datasets: that of another loader of this process, or a new one.

    # Guarantees: called by any thread; two that begin at once may keep the same rows each.
    """
    candidates = list(_SHARED)
    if not (candidates or rows):
        return None
    named = _named(layout)
    for kept in candidates:
        is_alike = kept.layout.datasets is layout.datasets or (named is not None and kept.named == named)
        if (
            is_alike
            and kept.process == os.getpid()
            and all(kept.rows.get(number, 0) >= count for number, count in rows.items())
        ):
            return kept
    if not rows:
        return None
    kept = Kept(layout, rows, named)
    _SHARED.add(kept)
    return kept


_SHARED: Living[Kept] = Living()


FROM_THE_FILE = frozenset({"via", "pipeline", "objects", "meaning", "others"})
"""What `DatasetPart` and `Target` have of the file, which its name and the dataset's path tell already, or as words."""

_PLAIN = ("file", "path", "rows", "row_start", "access", "chunk_rows", "stored_element_nbytes", "dtype_text", "shape")
_plain_of = operator.attrgetter(*_PLAIN)
_others = [f.name for f in dataclasses.fields(DatasetPart) if f.name not in FROM_THE_FILE and f.name not in _PLAIN]
_others_of = operator.attrgetter(*_others)


def _named(layout: SampleLayout) -> Hashable:
    """Return a key for datasets and fields, equal if their rows are equal; None for objects."""
    parts = [part for every in layout.datasets for part in every]
    if any(part.objects is not None for part in parts):
        return None
    fields = tuple((f.kind, shown(f.dtype), f.row_shape, f.placed_nbytes) for f in layout.fields)
    return layout.files, fields, tuple((_plain_of(part), _key_of(_others_of(part))) for part in parts)


def _key_of(value: object) -> Hashable:
    """Return what is equal where values are equal; arrays by a digest of their bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, list | tuple):
        return tuple(map(_key_of, value))
    if isinstance(value, np.dtype | slice):
        return str(value)
    if not dataclasses.is_dataclass(value):
        return value
    names = (f.name for f in dataclasses.fields(value) if f.name not in FROM_THE_FILE)
    return tuple(_key_of(getattr(value, name)) for name in names)


class _Chunks:
    """Which chunks of a dataset are there, those of one part behind those of the other."""

    def __init__(self, layout: SampleLayout, parts: tuple[DatasetPart, ...], rows: int) -> None:
        # For each part: whether its chunks stay, how many of them, its first row and its rows, the rows of a chunk.
        columns = np.zeros((5, len(parts)), dtype=np.int64)
        for k, part in enumerate(parts):
            stays_here, chunk_rows, inside = is_decoded(part) or is_fetched(layout, part), max(1, part.chunk_rows), 0
            if stays_here:
                inside = max(0, min(part.rows, rows - part.row_start))
                inside = -(-inside // chunk_rows) if inside == part.rows else inside // chunk_rows
            columns[:, k] = stays_here, inside, part.row_start, part.rows, chunk_rows
        stays, counts, self._starts, part_rows, self._lengths = columns
        self._edges = np.append(0, np.cumsum(counts))  # where the chunks of each part begin in `filled`
        self.filled = np.zeros(self._edges[-1], dtype=np.bool_)
        self.of_part: dict[int, NDArray[np.bool_]] = {}
        for k in np.flatnonzero(stays).tolist():
            self.of_part[k] = self.filled[self._edges[k] : self._edges[k + 1]]
        self.is_all = bool((counts * self._lengths >= part_rows).all())  # whether there is room for all of them

    def have(self, rows: Places) -> bool:
        """Return whether the chunks of all these rows are there."""
        for piece in pieces(len(rows)):
            of = np.searchsorted(self._starts, rows[piece], side="right") - 1 if len(self._starts) > 1 else 0
            chunk = self._edges[of] + (rows[piece] - self._starts[of]) // self._lengths[of]
            if not ((chunk < self._edges[of + 1]).all() and self.filled[chunk].all()):
                return False
        return True

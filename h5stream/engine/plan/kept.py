"""Rows that stay in memory as batches hold them: small datasets, and what fits of the others once it is decoded.

Small datasets, such as labels, are read once: their chunks rarely line up with the blocks. Of the others a chunk that
is decoded for the first time lands in memory whole, and from there in the batches that want some of it; where not all
of a dataset fits, that is its first rows, of which each window has its share. Loaders of one process share it.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from h5stream.base.leases import Living
from h5stream.compiled import _native as kernels
from h5stream.engine.plan.keeping import Keeping
from h5stream.engine.plan.tasks import NONE, Bringing, Destination, Native, Placement, Task, Tools, Way
from h5stream.engine.plan.to_keep import format_of, is_decoded, is_fetched
from h5stream.engine.slots import address_of, map_memory
from h5stream.order.places import Places, is_ascending, pieces
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.layout.layout import DatasetPart, SampleLayout
from h5stream.storage.source.stores import raise_if_stopped

LEAST_TASK_NBYTES = 2 * 1024 * 1024
"""Bytes of one task that gathers rows: below it many threads wait for each other's Python rather than copy."""

ASKED_FOR_NBYTES = 16
CACHED_NBYTES = 8 * 1024 * 1024
"""Rows of this many bytes are asked for ahead in any order, shorter ones where they are not ascending and all of them
take more than a cache holds. Rows of 8 bytes, two threads, 256 MiB, nanoseconds: ascending 4.8 in place of 2.5, in
random order 5.6 in place of 9.7; of 4 MiB in random order 2.6 in place of 1.4."""


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
        self._row_nbytes = tuple(field.placed_nbytes for field in layout.fields)
        self._memory = map_memory(self._format.nbytes)
        self.is_whole = False  # whether all of its rows were read
        self._chunks = {number: _Chunks(layout, layout.datasets[number], count) for number, count in rows.items()}
        self._filled = {(n, k): there for n, each in self._chunks.items() for k, there in each.of_part.items()}

    @property
    def nbytes(self) -> int:
        """Bytes that there is room for."""
        return self._format.nbytes

    @property
    def is_filled(self) -> bool:
        """Whether all that there is room for is there."""
        return all(each.filled.all() for each in self._chunks.values())

    @property
    def destination(self) -> Destination:
        """The memory as a batch that rows are brought to: its first, at the place of their number."""
        return Destination.of_batch(self._memory, self._format, self.layout.fields)

    def every_row(self, number: int) -> Placement:
        """Return all rows of a dataset, as a span of each part, or of each object in it."""
        spans = [(part.row_start + part.spans[0], part.spans[1]) for part in self.layout.datasets[number]]
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
        for fields in self._together(self.layout.datasets[n][0] for n in numbers):
            row_nbytes = max(1, sum(self._row_nbytes[field] for field in fields))
            step = placement.step_of(max(1, max(LEAST_TASK_NBYTES, task_nbytes) // row_nbytes))
            plan = self._copies(fields, placement)
            for low in range(0, len(placement), step):
                yield self._copying(plan, placement, low, min(low + step, len(placement)))

    def _together(self, parts: Iterable[DatasetPart]) -> list[tuple[int, ...]]:
        """Group the fields of some datasets by the copies that bring them: ragged fields have places of their own."""
        fields = [target.field for part in parts for target in part.targets]
        ragged = [(field,) for field in fields if self.layout.fields[field].kind == "ragged"]
        others = tuple(field for field in fields if (field,) not in ragged)
        return ragged + ([others] if others else [])

    def _copies(self, fields: tuple[int, ...], placement: Placement) -> Native:
        """Plan copies of rows of some fields to their places."""
        nbytes = np.array([self._row_nbytes[field] for field in fields], dtype=np.int64)
        sources = address_of(self._memory) + np.array([self._format.offsets[field] for field in fields])
        # No cache holds rows that lie anywhere: they are asked for ahead.
        may_ask = placement.counts is None
        is_far = may_ask and bool((nbytes < ASKED_FOR_NBYTES).any()) and self._is_far(placement)
        is_asked_for = (may_ask & ((nbytes >= ASKED_FOR_NBYTES) | is_far)).astype(np.int64)
        where = placement.rows, placement.lengths, placement.batch, placement.within
        plan = kernels.plan_memory(sources, nbytes, is_asked_for, self._rows_of(fields), *where)
        return Native(plan, 0, len(placement), fields, None)

    def _rows_of(self, fields: Sequence[int]) -> int:
        """Return how many rows there is room for of all these fields."""
        counts = [
            count for n, count in self.rows.items() for t in self.layout.datasets[n][0].targets if t.field in fields
        ]
        return min(counts)

    def _copying(self, plan: Native, placement: Placement, low: int, high: int) -> Task:
        """Return the task that copies some of the rows; it keeps the memory, which `trim` may release."""
        part = plan._replace(first=low, last=high)
        own = np.array([low]), np.array([high])
        return Task(shared=placement, own=own, bring=functools.partial(self._copy, part), native=part)

    def _copy(self, part: Native, _: Placement, destination: Destination, tools: Tools) -> None:
        if tools.land(part, NONE, -1, destination) < part.last:
            raise_if_stopped()

    def _is_far(self, placement: Placement) -> bool:
        """Return whether no cache holds the rows that come next."""
        return self.nbytes > CACHED_NBYTES and not is_ascending(placement.rows)

    # --- how rows of datasets land, of which those of chunks that were decoded before are here ---

    def keeping(self, number: int, place: int) -> Keeping | None:
        """Return what keeps the chunks of a part of a dataset; None if none of them stays here."""
        filled = self._filled.get((number, place))
        if filled is None:
            return None
        part = self.layout.datasets[number][place]
        return Keeping(part, self.destination, filled, functools.partial(self._copy_wanted, part))

    def _copy_wanted(self, part: DatasetPart, placement: Placement, destination: Destination, tools: Tools) -> None:
        for fields in self._together([part]):
            self._copy(self._copies(fields, placement), placement, destination, tools)

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
    named = _named(layout)
    for kept in _SHARED:
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


def _named(layout: SampleLayout) -> Hashable:
    """Return a key for datasets and fields, equal if their rows are equal; None for objects."""
    parts = [part for every in layout.datasets for part in every]
    if any(len(part.objects) or part.object_edges is not None for part in parts):
        return None
    dtypes = [shown(field.dtype) for field in layout.fields]
    return layout.files, tuple(
        (
            (part.file, part.path, part.rows, part.row_start, part.chunk_rows, str(part.columns)),
            tuple((t.field, t.member, t.stacked, dtypes[t.field]) for t in part.targets),
        )
        for part in parts
    )


class _Chunks:
    """Which chunks of a dataset are there, those of one part behind those of the other."""

    def __init__(self, layout: SampleLayout, parts: tuple[DatasetPart, ...], rows: int) -> None:
        is_kept = [is_decoded(part) or is_fetched(layout, part) for part in parts]
        counts = [max(0, _whole_chunks(part, rows)) * one for part, one in zip(parts, is_kept, strict=True)]
        # Of each part where its chunks begin in `filled`, its first row, and the rows of a chunk.
        self._edges = np.append(0, np.cumsum(counts))
        self._starts = np.array([part.row_start for part in parts])
        self._lengths = np.array([max(1, part.chunk_rows) for part in parts])
        self.filled = np.zeros(self._edges[-1], dtype=np.bool_)
        cuts = enumerate(itertools.pairwise(self._edges.tolist()))
        self.of_part = {k: self.filled[low:high] for k, (low, high) in cuts if is_kept[k]}
        # Whether there is room for all of them.
        self.is_all = bool((np.array(counts) * self._lengths >= [part.rows for part in parts]).all())

    def have(self, rows: Places) -> bool:
        """Return whether the chunks of all these rows are there."""
        for piece in pieces(len(rows)):
            of = np.searchsorted(self._starts, rows[piece], side="right") - 1 if len(self._starts) > 1 else 0
            chunk = self._edges[of] + (rows[piece] - self._starts[of]) // self._lengths[of]
            if not ((chunk < self._edges[of + 1]).all() and self.filled[chunk].all()):
                return False
        return True


def _whole_chunks(part: DatasetPart, rows: int) -> int:
    """Return how many of a part's chunks are within the first rows of a dataset."""
    inside = min(part.rows, rows - part.row_start)
    return -(-inside // part.chunk_rows) if inside == part.rows else inside // part.chunk_rows

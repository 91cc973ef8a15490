"""Rows of an uncompressed sparse matrix, made dense while they are read.

Values and their columns are read into a core's own cache, and from there the wanted ones go to a row of the batch:
read to memory first, as ragged rows else are, each would cross it three times. What is compressed, kept in memory or
mostly wanted goes that way all the same: chunks are decoded once for all of their rows, and a dense row that is longer
than what is stored of it is made late.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.kinds.ragged import Share, is_widened, refuse_column
from h5stream.engine.plan.tasks import Destination, Native, Placement, Task, Tools
from h5stream.engine.plan.unfiltered import EXTENT_NBYTES, RowTable, read_until_sound
from h5stream.samples.lookup import Lookup
from h5stream.samples.ragged import DENSE, Ragged
from h5stream.storage.decode.small_floats import name_of
from h5stream.storage.layout.access import DIRECT
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.identity import ByteSource

Ways = tuple[RowTable, ...]
"""How the values and the columns of one file lie."""


class DenseRows:
    """A sparse matrix whose rows are made dense while they are read.

    # Guarantees: immutable; any thread may plan.
    """

    def __init__(
        self,
        layout: SampleLayout,
        lookup: Lookup,
        datasets: tuple[int, int],
        places: NDArray[np.int32],
        ways: Sequence[Ways],
    ) -> None:
        self.datasets = datasets
        field = layout.datasets[datasets[0]][0].targets[0].field
        self.field, self.lookup, self.places = field, lookup, places
        self.dtype, self.index = (_native(layout, number) for number in (field, field + 1))
        self.columns_name = layout.fields[field + 1].name
        self.is_wanted = (self.places >= 0).astype(np.uint8)
        # In steps of 16, so that what lies behind the values, and behind their columns, is aligned too.
        self.room = -(-EXTENT_NBYTES // (self.dtype.itemsize + self.index.itemsize) // 16) * 16
        self._wanted, self._parts = (
            layout.fields[field].form.wanted,
            [*zip(layout.datasets[datasets[0]], ways, strict=True)],
        )

    def plan(self, samples: Placement, task_nbytes: int) -> Iterator[Task]:
        """Cut samples into tasks that read about as many bytes."""
        samples, lookup = samples.each_row(), self.lookup
        rows, counts = lookup.stretches(samples.rows, samples.drawn)
        # Places are the first elements of dense rows, one behind the other in each batch's share.
        share, within = Share.of([self.field], samples.batch, samples.within, np.full(len(rows), self._wanted))
        placement = Placement(rows=rows, batch=samples.batch, within=within, counts=counts, share=share).ascending()
        value_nbytes = self.dtype.itemsize + self.index.itemsize
        for number, of_part in placement.of_parts(tuple(part for part, _ in self._parts)):
            plan, step = self._plan(*self._parts[number], of_part), max(1, task_nbytes // value_nbytes)
            for low in range(0, len(of_part), of_part.step_of(step)):
                yield self._task(
                    plan, of_part, self._parts[number][0], low, min(low + of_part.step_of(step), len(of_part))
                )

    def _plan(self, part: DatasetPart, ways: Ways, placement: Placement) -> kernels.Plan:
        """Say as data what reads rows of a part and lays them in their places."""
        values, columns = ways
        return kernels.plan_dense(
            values.offsets,
            values.chunk_rows,
            columns.offsets,
            columns.chunk_rows,
            part.row_start,
            self.room,
            np.zeros(0, self.dtype),
            np.zeros(0, self.index),
            self.places,
            self.is_wanted,
            self._wanted,
            placement.rows,
            placement.lengths,
            placement.batch,
            placement.within,
        )

    def _task(self, plan: kernels.Plan, placement: Placement, part: DatasetPart, low: int, high: int) -> Task:
        native = Native(plan, low, high, (self.field,), part.file)
        return Task(
            shared=placement,
            own=(np.array([low]), np.array([high])),
            bring=functools.partial(self._read, part.file, native),
            apart=lambda _: (self._task(plan, placement, part, k, k + 1) for k in range(low, high)),
            native=native,
            rest=lambda _: self._task(plan, placement, part, low, high),
        )

    def _read(self, file: int, native: Native, _: Placement, destination: Destination, tools: Tools) -> None:
        """Read rows and lay them in their places."""
        source = tools.sources[file]

        def refuse(wrong: int) -> None:
            refuse_column(wrong, len(self.places), f"{source.identity.path!r}, {self.columns_name!r}")

        read_until_sound(native, source, destination, tools, refuse)


def _native(layout: SampleLayout, field: int) -> np.dtype:
    one = layout.fields[field]
    return one.dtype if one.ragged is not None and one.ragged.form == DENSE else np.dtype(f"i{one.placed_nbytes}")


def dense_rows(layout: SampleLayout, sources: Sequence[ByteSource]) -> list[DenseRows]:
    """Return the sparse matrices whose rows are made dense while they are read."""
    number_of = {target.field: n for n, parts in enumerate(layout.datasets) for target in parts[0].targets}
    matrices = []
    for lookup in layout.lookups:
        field = layout.datasets[lookup.dataset][0].targets[0].field
        ragged = layout.fields[field].ragged
        places = None if ragged is None else ragged.places  # of its columns among those that are wanted
        if lookup.counts is None or lookup.spare is not None or not _is_few(ragged, layout, lookup, field):
            continue
        datasets = lookup.dataset, number_of[field + 1]
        pairs = zip(*(layout.datasets[number] for number in datasets), strict=True)
        ways = [_ways(values, columns, sources) for values, columns in pairs]
        if all(ways) and places is not None:
            matrices.append(DenseRows(layout, lookup, datasets, places, ways))
    return matrices


def _is_few(ragged: Ragged | None, layout: SampleLayout, lookup: Lookup, field: int) -> bool:
    """Return whether dense rows take no more bytes than stored ones, and the longest row fits in scratch."""
    if ragged is None or ragged.form != DENSE or not ragged.wanted or is_widened(layout.fields[field + 1].dtype):
        return False
    if name_of(layout.fields[field].dtype):
        return False
    value_nbytes = sum(layout.fields[number].placed_nbytes for number in (field, field + 1))
    is_short = int(lookup.lengths.max(initial=0)) * value_nbytes <= EXTENT_NBYTES
    return is_short and ragged.wanted * layout.fields[field].placed_nbytes <= lookup.mean_rows * value_nbytes


def _ways(values: DatasetPart, columns: DatasetPart, sources: Sequence[ByteSource]) -> Ways:
    """Return the extents of one file's values and columns, or None if the kernel cannot read them."""
    are_alike = (values.file, values.row_start) == (columns.file, columns.row_start)
    if not are_alike or not sources[values.file].has_descriptor:
        return ()
    if any(part.access != DIRECT or not part.rows for part in (values, columns)):
        return ()
    ways = RowTable.of(values), RowTable.of(columns)
    are_whole = all(way.whole_rows and not len(way.numbers) and len(way.offsets) for way in ways)
    return ways if are_whole else ()

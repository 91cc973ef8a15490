"""Rows that h5stream cannot decode are read through h5py, under its lock."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from h5stream.engine.plan import Placement, cut_by
from h5stream.engine.statistics import clock
from h5stream.engine.tasks import TASK_NBYTES, Destination, Task, Tools, chunk_by_chunk
from h5stream.storage.layout import DatasetPart, FieldLayout


def plan_through_h5py(
    part: DatasetPart, fields: tuple[FieldLayout, ...], placement: Placement, task_nbytes: int
) -> Iterator[Task]:
    """Cut rows of a part that h5py reads, ascending, into tasks of whole chunks and about as many bytes."""

    def read(placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read the rows of one chunk after the other, from the first that is wanted to the last, and scatter them."""
        _, edges, _ = placement.in_chunks(part)
        for low, high in itertools.pairwise(edges.tolist()):
            if tools.stopped():
                return
            wanted = placement[low:high]
            first, last = int(wanted.rows[0]), int(wanted.rows[-1])
            since = clock()
            rows = tools.h5py.rows(part, first - part.row_start, last - first + 1)
            since = tools.tally.via_h5py(since, rows.nbytes)
            for target in part.targets:
                layout = fields[target.field]
                if layout.dtype.kind == "O":
                    destination.put(target.field, wanted, (rows[row - first] for row in wanted.rows.tolist()))
                    continue
                dense = np.ascontiguousarray(target.taken(rows), dtype=layout.dtype).reshape(-1).view(np.uint8)
                there = replace(wanted, rows=wanted.rows - first)
                destination.scatter_whole(target.field, there, dense, layout.placed_nbytes)
            tools.tally.scattered(since)

    placement = placement.each_row().ascending()
    _, edges, _ = placement.in_chunks(part)
    spans = placement.rows[edges[1:] - 1].astype(np.int64) - placement.rows[edges[:-1]] + 1
    for cut in cut_by(np.maximum(1, spans * part.stored_row_nbytes), min(task_nbytes, TASK_NBYTES)):
        some = placement[int(edges[cut.start]) : int(edges[cut.stop])]
        yield Task(shared=some, bring=read, apart=functools.partial(chunk_by_chunk, part=part))

"""Which datasets, and how many of their rows, stay in memory."""

from __future__ import annotations

from h5stream.engine.plan.kept import is_decoded, is_fetched
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.source.local import FilesIdentity

KEEP_NBYTES = 16 * 1024 * 1024
KEEP_SHARE = 8
"""Largest dataset that is read once, in bytes as batches hold it; all take at most one part in so many of the budget.
"""

LEAST_SHARE = 8
"""A dataset is kept in part only if one part in so many of it fits."""

GATHERED_NBYTES = 4 * 1024 * 1024
"""Bytes of batches that are gathered at a time where all data is in memory: enough to share the cost of a window, few
enough to come at once (batches of 256 rows of 1 KiB: 161 us each with 1 MiB, 108 with 4)."""


def datasets_to_keep(layout: SampleLayout, memory_budget: int) -> tuple[int, ...]:
    """Choose the datasets that are read once, smallest first while they fit."""
    if layout.has_boxes:
        return ()
    chosen, budget = [], memory_budget // KEEP_SHARE
    for nbytes, _, number in _sizes(layout, ("ragged",)):
        if nbytes > min(KEEP_NBYTES, budget):
            break
        chosen.append(number)
        budget -= nbytes
    return tuple(chosen)


def rows_to_keep(
    layout: SampleLayout, numbers: tuple[int, ...], nbytes: int, *, fetched: bool = False
) -> dict[int, int]:
    """Choose the other datasets, smallest first, and their rows that stay in memory once they are decoded.

    With `fetched` also of those that come as they are from a store: such rows have no part in how large windows are,
    so that the order is that of a local file.
    """
    chosen: dict[int, int] = {}
    for wanted, row_nbytes, number in () if layout.has_boxes else _sizes(layout, (), fetched=fetched):
        if number in numbers or not row_nbytes:
            continue
        parts = layout.datasets[number]
        has_images = any(layout.fields[target.field].images is not None for target in parts[0].targets)
        if has_images or not any(is_decoded(part) or (fetched and is_fetched(layout, part)) for part in parts):
            continue
        fitting = min(wanted, nbytes)
        if fitting and fitting * LEAST_SHARE >= wanted:
            chosen[number] = fitting // row_nbytes
            nbytes -= fitting
    return chosen


def _sizes(layout: SampleLayout, without: tuple[str, ...], *, fetched: bool = False) -> list[tuple[int, int, int]]:
    """Return the bytes of each dataset that may be kept, and of a row; ascending, without some kinds of fields.

    With `fetched` also those of many objects in stores, each of which would take a request in every epoch.
    """
    sizes, leading = list[tuple[int, int, int]](), layout.leading
    for number, parts in enumerate(layout.datasets):
        row_nbytes, may_stay = 0, not parts[0].along
        for target in parts[0].targets:
            field = layout.fields[target.field]
            row_nbytes += field.placed_nbytes
            may_stay = may_stay and field.kind not in without and field.dtype.kind != "O"
        # That one of many small files has changed is seen by reading it, which costs a request if it is in a store.
        for part in parts if may_stay and parts is leading else ():
            file = layout.files[part.file]
            if isinstance(file, FilesIdentity) and not (fetched and len(file.far) == len(file.sizes)):
                may_stay = False
        if may_stay:
            sizes.append((layout.rows_of(number) * row_nbytes, row_nbytes, number))
    return sorted(sizes)

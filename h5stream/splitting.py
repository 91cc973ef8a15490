"""What belongs together when a data set is split: segments, files, blocks, values of a field."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import LeakWarning, OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.splits import part_sizes, split_by_groups, split_by_strata, split_plainly
from h5stream.samples.space import Grid
from h5stream.storage.layout import SampleLayout
from h5stream.storage.source import FilesIdentity

Ints = NDArray[np.int64]

BY = ("segment", "file", "block")
"""What groups may be by, besides values."""


def parts_of(shares: Sequence[Any], total: int, *, seed: int, groups: Ints | None, strata: Ints | None) -> list[Ints]:
    """Return the samples of each part, ascending; see `H5Dataset.split`."""
    sizes = part_sizes(shares, total)
    if strata is not None and (most := int(strata.max()) + 1) > max(2, total // 2):
        raise OptionError(
            f"stratify= takes a field of few values, and {total:,} samples have {most:,}; make classes of them, such "
            "as numpy.digitize(values, edges), and give that array"
        )
    if groups is not None:
        return split_by_groups(sizes, groups, strata, seed)
    return split_plainly(sizes, seed) if strata is None else split_by_strata(sizes, strata, seed)


def group_numbers(layout: SampleLayout, rows: Ints | None, by: str, blocks: Blocks, *, are_objects: bool) -> Ints:
    """Return a number for the segment, the file or the block of each of some samples, alike where that is the same.

    `are_objects` says that each sample is one whole, and so a segment of its own.
    """
    if by == "block":
        block = np.repeat(np.arange(blocks.count), np.diff(blocks.edges))
        if blocks.rows is None:
            return block
        numbers = np.arange(len(block)) if rows is None else rows
        found = np.empty_like(block)
        found[np.argsort(numbers, kind="stable")] = block[np.argsort(blocks.rows, kind="stable")]
        return found
    numbers = np.arange(layout.samples) if rows is None else rows
    if by == "segment":
        if are_objects:
            return numbers
        if (space := layout.segments) is not None and space.edges is not None:
            return np.searchsorted(space.edges, space.anchors_of(numbers), side="right")
        if layout.space is not None and isinstance(layout.space.starts, Grid):
            return np.searchsorted(layout.space.starts.segments[0], numbers, side="right")
    part = layout.anchors_of(numbers)
    if not layout.has_boxes:
        part = np.searchsorted(np.array(layout.file_starts[1:]), part, side="right")
    if by == "segment":
        return part
    file = np.array([one.file for one in layout.leading])[part]
    several = np.array([isinstance(layout.files[one.file], FilesIdentity) for one in layout.leading])[part]
    # There each sample is a file, in the files' order.
    place: Ints = np.where(several, numbers - np.array(layout.file_starts)[part], 0)
    place += file * layout.samples
    return place


def codes_of(values: Any, total: int, what: str) -> Ints:
    """Give whole numbers from 0 for values, one a sample: equal ones for equal values, in the values' order."""
    found = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if found.dtype.kind == "O":
        found = np.array([str(value) if isinstance(value, str) else value for value in found.tolist()], dtype=object)
    if found.shape != (total,):
        raise OptionError(
            f"split: {what} takes one value for each of {total:,} samples, not an array of shape {found.shape}; name a "
            "field that has one, or give an array"
        )
    try:
        return np.unique(found, return_inverse=True)[1].reshape(-1)
    except TypeError:
        raise OptionError(f"split: {what} has values of several types, which cannot be compared") from None


def repeated(numbers: Ints | None) -> Ints | None:
    """Give groups of samples that are the same one, where a `Subset` lists some several times; None for none."""
    if numbers is None:
        return None
    found = np.unique(numbers, return_inverse=True)
    return found[1].reshape(-1) if len(found[0]) < len(numbers) else None


def warn_of_leaks(layout: SampleLayout, rows: Ints | None, stacklevel: int) -> None:
    """Warn where samples of one segment share rows, so that a split by samples puts equal rows into several parts."""
    if layout.draws is None and _share_rows(layout, rows):
        warnings.warn(
            "samples of this data overlap: they share rows with their neighbours, so a split by samples has the same "
            "rows in several parts, and a score on one of them says little of data that were not trained on. "
            "split(..., by='segment') keeps segments whole, by='file' files",
            LeakWarning,
            stacklevel=stacklevel,
        )


def _share_rows(layout: SampleLayout, rows: Ints | None) -> bool:
    space = layout.space
    if space is None:
        return False
    if space.edges is None:
        if not isinstance(space.starts, Grid) or not layout.leading[0].along:
            return False
        spans = {a.origin: a.span / a.scale for a in layout.leading[0].along if a.origin is not None}
        several = space.starts.counts.max(axis=0) > 1
        return any(several[axis] and span > space.starts.stride[axis] for axis, span in spans.items())
    steps = [step for field in layout.fields for step in field.steps or (0,)]
    anchors = np.sort(space.rows[0] if rows is None else space.anchors_of(rows))
    segment = np.searchsorted(space.edges, anchors, side="right")
    return bool(((np.diff(anchors) <= max(steps) - min(steps)) & (np.diff(segment) == 0)).any())

"""Samples along another axis than the first, or of fields with unlike numbers of elements: which there are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from h5stream.errors import OptionError
from h5stream.samples.kinds import Rows, Sequences
from h5stream.samples.segments import Said
from h5stream.samples.space import Grid, Ints, Listed, Space
from h5stream.samples.table import ROW, START, Table, check_begins, part_of_each

ROWS = "rows"
"""For ``of=``: each index of axis 0 is a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlongAxis:
    """What says how samples lie along an axis."""

    axis: int  # the axis; a negative one counts from the last
    has_rows: bool  # whether a sample is of one index of axis 0, which then is no axis of its own
    is_point: bool  # whether a sample is one index of the axis, which then is no axis of its own either
    origins: tuple[str, ...]  # what each number of a sample's origin is called

    @property
    def along(self) -> int:
        """Which number of an origin counts along the axis, of a field that names none."""
        return int(self.has_rows)


def along_axis(samples: Any, is_scaled: bool = False) -> AlongAxis | None:
    """Tell how samples lie along an axis; None where they are rows, or of axis 0 and nothing is scaled."""
    if isinstance(samples, Table):
        if samples.axis is None:
            return None
        has_rows = ROW in samples.columns
        others = [name for name, values in samples.columns.items() if isinstance(values, np.ndarray)]
        names = (*[ROW] * has_rows, START, *(name for name in others if name not in (ROW, START)))
        return AlongAxis(axis=samples.axis, has_rows=has_rows, is_point=samples.length is None, origins=names)
    if not isinstance(samples, (Rows, Sequences)):
        return None
    has_rows, is_point = samples.of == ROWS, isinstance(samples, Rows)
    if is_scaled and isinstance(samples.of, Said):
        raise OptionError(
            f"Take(scale=) of a field counts in whole files or groups, and of={type(samples.of).__name__}(...) cuts "
            "rows into segments; segments of groups or files take scale="
        )
    if samples.axis == 0 and not has_rows and not is_scaled:
        return None
    return AlongAxis(axis=samples.axis, has_rows=has_rows, is_point=is_point, origins=("",) * (1 + has_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSteps:
    """How far a field's steps lead along the axis of a volume, or of each of several."""

    elements: Any  # elements of the field along it
    least: int  # least, most: its first and its last step
    most: int
    scale: Fraction = Fraction(1)  # its elements for each of those that samples count in
    origin: int = 0  # which number of an origin they are counted from

    @property
    def first(self) -> int:
        """The first place that a sample may begin at, so that no step leads out."""
        return -(self.least / self.scale).__floor__()

    def last(self, most: int) -> Any:
        """Return the last place from which so many elements more are there."""
        return -(-(self.elements - most) * self.scale.denominator // self.scale.numerator) - 1


def axis_space(samples: Sequences | Rows, volumes: Ints, steps: Sequence[FieldSteps], edges: Any = None) -> Space:
    """Find all samples along an axis; with `edges` of segments, along axis 0."""
    sequences = Sequences(1) if isinstance(samples, Rows) else samples
    first, last = _limits(sequences, volumes[:, -1], steps)
    counts = np.where(volumes[:, -1] > 0, np.maximum(0, (last - first) // sequences.stride + 1), 0)
    ends = first + (counts - 1) * sequences.stride
    if sequences.tail == "shift":
        counts += (counts > 0) & (ends < last)
    else:
        last = ends
    by_row = volumes.shape[1] > 1
    segments = volumes[:, 0] if by_row else np.ones(len(volumes), dtype=np.int64)
    if not (counts * segments).any():
        least, most = min(each.least for each in steps), max(each.most for each in steps)
        raise OptionError(
            f"no sequence fits: its steps span {most - least + 1:,} {'elements' if edges is None else 'rows'} (from "
            f"{least} to {most}), and the longest of {int(segments.sum()):,} segments has "
            f"{int(volumes[:, -1].max(initial=0)):,}; take a shorter one, or pad='edge' or pad='zeros'"
        )
    along = [each[:, None] for each in (first, last, counts)]
    if by_row:
        rows = volumes[:, :1]
        along = [np.hstack(pair) for pair in zip([np.zeros_like(rows), rows - 1, rows], along, strict=True)]
    stride = (1, sequences.stride) if by_row else (sequences.stride,)
    grid = Grid(first=along[0], last=along[1], counts=along[2], stride=stride, segment_axes=int(by_row))
    left_out, pad, draws = int(segments[counts == 0].sum()), sequences.pad, sequences.draws
    return Space(volumes=volumes, starts=grid, pad=pad, draws=draws, left_out=left_out, edges=edges)


def _limits(sequences: Sequences, elements: Ints, steps: Sequence[FieldSteps]) -> tuple[Ints, Ints]:
    """Return the first and the last place along an axis of each volume that a sample may begin at."""
    first, last = np.zeros_like(elements), elements - 1
    if sequences.pad is None:
        for each in steps:
            first, last = np.maximum(first, each.first), np.minimum(last, each.last(each.most))
    elif sequences.pad_rows is not None:
        (before, after), plain = sequences.pad_rows, [each for each in steps if each.scale == 1]
        first = np.maximum(first, -min((each.least for each in plain), default=0) - before)
        last = np.minimum(last, last - max((each.most for each in plain), default=0) + after)
    return first, last


def table_axis_space(
    table: Table,
    kind: AlongAxis,
    volumes: Ints,
    parts: Mapping[tuple[int, str], int],
    paths: Sequence[str],
    steps: Sequence[FieldSteps],
) -> Space:
    """Find where the samples of a table begin along an axis."""
    part = part_of_each(table, parts, paths)
    if part is None:
        if len(volumes) > 1:
            raise OptionError(f"Table: {len(volumes):,} files are opened, so with axis= it needs a column 'file'")
        part = np.zeros(len(table), dtype=np.int64)
    origins = np.stack([np.asarray(table.columns[name]) for name in kind.origins], axis=1)
    if kind.has_rows:
        rows = volumes[part, 0]
        check_begins(table, ROW, origins[:, 0], np.zeros_like(rows), rows - 1, rows)
    pad = table.pad is not None
    for each in steps:
        least, most = np.full(len(part), 0 if pad else each.first), each.last(0 if pad else each.most)[part]
        check_begins(table, kind.origins[each.origin], origins[:, each.origin], least, most, each.elements[part])
    return Space(volumes=volumes, starts=Listed(volume=part, origins=origins), pad=table.pad)

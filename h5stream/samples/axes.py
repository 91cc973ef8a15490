"""Samples along another axis than the first, or of fields with unlike numbers of elements: which there are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.boxes import BoxSpace, Grid, Listed
from h5stream.samples.objects import Rows
from h5stream.samples.segments import Bounds, Ends, Ids, Lengths
from h5stream.samples.sequences import Sequences, room_for
from h5stream.samples.table import ROW, START, Table, part_of_each

Ints = NDArray[np.int64]

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
    if is_scaled and isinstance(samples.of, (Ends, Ids, Lengths, Bounds)):
        raise OptionError(
            f"Take(scale=) of a field counts in whole files or groups, and of={type(samples.of).__name__}(...) cuts "
            "rows into segments; segments of groups or files take scale="
        )
    if samples.axis == 0 and not has_rows and not is_scaled:
        return None
    return AlongAxis(axis=samples.axis, has_rows=has_rows, is_point=is_point, origins=("",) * (1 + has_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSteps:
    """How far a field's steps lead along the axis of a volume."""

    elements: int  # elements of the field along it
    least: int  # least, most: its first and its last step
    most: int
    scale: Fraction = Fraction(1)  # its elements for each of those that samples count in
    origin: int = 0  # which number of an origin they are counted from


def axis_space(samples: Sequences | Rows, volumes: Ints, steps_of_each: Sequence[Sequence[FieldSteps]]) -> BoxSpace:
    """Find all samples along an axis."""
    sequences = Sequences(1) if isinstance(samples, Rows) else samples
    limits = [_limits(sequences, int(volume[-1]), some) for volume, some in zip(volumes, steps_of_each, strict=True)]
    first, last = np.array(limits, dtype=np.int64).reshape(-1, 2).T
    counts = np.where(volumes[:, -1] > 0, np.maximum(0, (last - first) // sequences.stride + 1), 0)
    ends = first + (counts - 1) * sequences.stride
    if sequences.tail == "shift":
        counts += (counts > 0) & (ends < last)
    else:
        last = ends
    by_row = volumes.shape[1] > 1
    segments = volumes[:, 0] if by_row else np.ones(len(volumes), dtype=np.int64)
    if not (counts * segments).any():
        every = [each for some in steps_of_each for each in some]
        least, most = min(each.least for each in every), max(each.most for each in every)
        raise OptionError(
            f"no sample fits: its steps span {most - least + 1:,} elements (from {least} to {most}), and the longest "
            f"of {int(segments.sum()):,} segments has {int(volumes[:, -1].max(initial=0)):,}; take a shorter one, or "
            "pad='edge' or pad='zeros'"
        )
    along = [each[:, None] for each in (first, last, counts)]
    if by_row:
        rows = volumes[:, :1]
        along = [np.hstack(pair) for pair in zip([np.zeros_like(rows), rows - 1, rows], along, strict=True)]
    stride = (1, sequences.stride) if by_row else (sequences.stride,)
    grid = Grid(first=along[0], last=along[1], counts=along[2], stride=stride, segment_axes=int(by_row))
    left_out = int(segments[counts == 0].sum())
    return BoxSpace(volumes=volumes, starts=grid, pad=sequences.pad, draws=sequences.draws, left_out=left_out)


def _limits(sequences: Sequences, elements: int, steps_of_each: Sequence[FieldSteps]) -> tuple[int, int]:
    """Return the first and the last place along an axis that a sample may begin at."""
    plain = [each for each in steps_of_each if each.scale == 1]
    least, most = min((e.least for e in plain), default=0), max((e.most for e in plain), default=0)
    before, after = room_for(sequences, least, most)
    first, last = max(0, -least - before), min(elements - 1, elements - 1 - most + after)
    if sequences.pad is None:
        for each in steps_of_each:
            first = max(first, -(each.least / each.scale).__floor__())
            last = min(last, ((each.elements - each.most) / each.scale).__ceil__() - 1)
    return first, last


def table_axis_space(
    table: Table,
    kind: AlongAxis,
    volumes: Ints,
    parts: Mapping[tuple[int, str], int],
    paths: Sequence[str],
    steps_of_each: Sequence[Sequence[FieldSteps]],
) -> BoxSpace:
    """Find where the samples of a table begin along an axis."""
    part = part_of_each(table, parts, paths)
    if part is None:
        if len(volumes) > 1:
            raise OptionError(f"Table: {len(volumes):,} files are opened, so with axis= it needs a column 'file'")
        part = np.zeros(len(table), dtype=np.int64)
    origins = np.stack([np.asarray(table.columns[name]) for name in kind.origins], axis=1)
    if kind.has_rows:
        _check(table, ROW, origins[:, 0], np.zeros(len(table)), volumes[part, 0] - 1, volumes[part, 0])
    pad = table.pad is not None
    for place in range(max(map(len, steps_of_each))):
        of_part = [some[place] for some in steps_of_each]
        least = [0 if pad else -(each.least / each.scale).__floor__() for each in of_part]
        most = [((e.elements - (0 if pad else e.most)) / e.scale).__ceil__() - 1 for e in of_part]
        bounds = np.array([least, most, [e.elements for e in of_part]], dtype=np.int64)[:, part]
        _check(table, kind.origins[of_part[0].origin], origins[:, of_part[0].origin], *bounds)
    return BoxSpace(volumes=volumes, starts=Listed(volume=part, origins=origins), pad=table.pad)


def _check(table: Table, name: str, numbers: Ints, least: Any, most: Any, elements: Any) -> None:
    wrong = np.flatnonzero((numbers < least) | (numbers > most))
    if len(wrong):
        k = int(wrong[0])
        raise OptionError(
            f"Table: {name!r} is {numbers[k]} at sample {k:,}, where {elements[k]:,} are there and a sample may begin "
            f"at {int(least[k]):,} to {int(most[k]):,}; so it is for {len(wrong):,} of {len(table):,} samples"
            + (
                ". pad='edge' or 'zeros' fills in"
                if table.pad is None and 0 <= numbers[k] < elements[k] and name != ROW
                else ". A sample begins at one that is there; steps= may lead out of it, with pad="
            )
        )

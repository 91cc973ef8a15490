"""Samples that are the same part of each field's volume: boxes, and sequences along one axis. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from h5stream.base.texts import answering, counted
from h5stream.errors import OptionError
from h5stream.samples.kinds import (
    DRAWS,
    Draw,
    Draws,
    MissingRows,
    Of,
    Pad,
    Rows,
    Sequences,
    check_drawn,
    check_steps,
    checked_counts,
    checked_missing,
    checked_of,
    checked_pad,
    integer,
    one_of,
)
from h5stream.samples.segments import Edges, Ints, Segmentation, as_array
from h5stream.samples.space import Accept, Grid, Listed, Space, scaled
from h5stream.samples.table import ROW, START, Parts, Table, check_begins, part_of_each

RANDOM, GRID = "random", "grid"

ROWS = "rows"
"""For ``of=``: each index of axis 0 is a segment."""


@answering({"size": "write the shape first, Boxes((64, 64))", "shape": "write the shape first, Boxes((64, 64))"})
@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Samples that are boxes cut from n-dimensional datasets (volumes), at the same place of every field.

    A box is cut along the last axes of a dataset; axes before them, such as channels, are taken whole, so that a batch
    is (samples, channels, depth, height, width) with one such axis. Volumes can be in one file, in several, or in
    groups of files.

    Parameters
    ----------
    shape : sequence of int
        Elements of a box along each axis.
    at : str or array-like, keyword-only
        ``"random"``, the default: `per_epoch` boxes anywhere. ``"grid"``: boxes side by side, or `stride` apart; the
        last box of an axis is moved back so that it ends with the volume. Or an array with a row for each box: the
        indices of its first element, after the number of the volume if there are several volumes.
    stride : sequence of int, optional, keyword-only
        For ``"grid"``: elements from one box to the next along each axis; by default the box's shape.
    per_epoch : int, optional, keyword-only
        For ``"random"``, which needs it: the number of boxes in an epoch. Seed and epoch determine which ones.
    draw : str, keyword-only
        For ``"random"``: ``"rows"`` draws each place with the same probability, so a large volume more often;
        ``"segments"`` draws each volume equally often.
    halo : sequence of int, optional, keyword-only
        Elements that are read around a box, on both sides of each axis. Needs `pad`.
    pad : str or number, optional, keyword-only
        What fills the part of a halo or a large box that is outside of the volume: ``"edge"``, ``"reflect"`` (mirrored
        at the edge, which is not repeated), ``"zeros"`` or a number.
    accept : callable, optional, keyword-only
        For ``"random"``: a function that says whether to take a box, such as
        ``lambda label: (label > 0).float().mean() > 0.1``. A refused box is drawn again, and the new draw depends only
        on the number of the box. The function is called in reader threads, with the tensor of the field that
        `accept_on` names, or with a whole sample; what it gets is read twice.
    accept_on : str or int, optional, keyword-only
        The name of the field that `accept` gets, or its position if a sample is a tuple.
    tries : int, keyword-only
        How many boxes are tried for a sample before it is an error.
    of : str or sequence of str, optional, keyword-only
        The groups that hold volumes, as in `Rows`; by default each file is a volume.
    missing : str, keyword-only
        What to do with a file or a group that lacks a field, or the group of `of`: ``"error"`` raises an error,
        ``"skip"`` leaves it out, so that it has no number as a volume.

    Raises
    ------
    OptionError
        If arguments contradict each other, or are no shape, places or numbers.

    Examples
    --------
    >>> Boxes((32, 64, 64), at="grid", halo=(0, 8, 8), pad="reflect").outer
    (32, 80, 80)
    """

    shape: tuple[int, ...]
    _: KW_ONLY
    at: Any = "random"
    stride: tuple[int, ...] | None = None
    per_epoch: int | None = None
    draw: Draw = "rows"
    halo: tuple[int, ...] | None = None
    pad: Pad | Literal["reflect"] = None
    accept: Callable[[Any], object] | None = None
    accept_on: str | int | None = None
    tries: int = 500
    of: Of = None
    missing: MissingRows = "error"

    def __post_init__(self) -> None:
        checked_missing("Boxes", self.missing)
        for name, least in (("shape", 1), ("stride", 1), ("halo", 0)):
            if (option := getattr(self, name)) is not None or name == "shape":
                rule = f"one number for each axis, at least {least}, such as (32, 64, 64)"
                counts = checked_counts(f"Boxes: {name}=", option, least, rule)
                object.__setattr__(self, name, counts)
                if len(counts) != len(self.shape):
                    raise OptionError(
                        f"Boxes: {name}= has {counted(len(counts), 'number')}, and shape= {len(self.shape)}"
                    )
        check_steps("Boxes: shape=, with halo=,", max(self.outer), "elements along an axis")
        object.__setattr__(self, "of", checked_of("Boxes", self.of))
        if self.of is not None and not isinstance(self.of, (str, list)):
            raise OptionError("Boxes: of= names groups that hold volumes, and rows end no segments of these")
        if self.pad != "reflect":
            checked_pad("Boxes", self.pad)
        kind = self.at if isinstance(self.at, str) else "places"
        if not isinstance(self.at, str):
            object.__setattr__(self, "at", _places(self.at))
        elif self.at not in (RANDOM, GRID):
            raise OptionError(f"Boxes: at= is 'random', 'grid' or an array of places, not {self.at!r}")
        is_random = kind == RANDOM
        if is_random != (self.per_epoch is not None) or (is_random and integer(self.per_epoch, "per_epoch") < 1):
            raise OptionError(
                "Boxes: per_epoch= says how many boxes an epoch has, at least 1, where at='random', and only there; "
                f"here at={kind!r} and per_epoch={self.per_epoch!r}. Pass per_epoch=1000 with at='random', or "
                "at='grid' alone"
            )
        check_drawn("Boxes: per_epoch=", self.per_epoch or 0)
        if self.stride is not None and kind != GRID:
            raise OptionError("Boxes: stride= belongs to at='grid'")
        if (self.accept is not None and not (is_random and callable(self.accept))) or integer(self.tries, "tries") < 1:
            raise OptionError(
                "Boxes: accept= is a function, for at='random', and tries= at least 1; choose boxes of a grid with "
                "H5Dataset(...).subset(indices)"
            )
        if self.accept is None and self.accept_on is not None:
            raise OptionError("Boxes: accept_on= names the field that accept= is asked about; it needs accept=")
        one_of("Boxes", "draw", self.draw, DRAWS)

    @property
    def outer(self) -> tuple[int, ...]:
        """The shape of a sample along the axes of the box, with the halo."""
        halo = self.halo or (0,) * len(self.shape)
        return tuple(size + 2 * around for size, around in zip(self.shape, halo, strict=True))


def box_space(boxes: Boxes, volumes: Ints, names: Sequence[str], multiples: Sequence[int] = ()) -> Space:
    """Return the space of all boxes in some volumes."""
    small = np.flatnonzero((volumes < boxes.shape).any(axis=1) & (boxes.pad is None))
    if len(small):
        raise OptionError(
            f"Boxes: a box of {boxes.shape} does not fit into {names[small[0]]}, whose last axes are "
            f"{tuple(volumes[small[0]].tolist())}; so it is with {len(small):,} of {len(volumes):,} volumes. Take a "
            "smaller one, or pad='edge', 'reflect' or 'zeros'"
        )
    if boxes.halo is not None and any(boxes.halo) and boxes.pad is None:
        raise OptionError("Boxes: a halo leads out of the volumes at their edges, so it needs pad=, such as 'reflect'")
    grain = tuple(multiples) or (1,) * len(boxes.shape)
    if not isinstance(boxes.at, str):
        return _listed(boxes, volumes, grain)
    room = np.maximum(0, volumes - boxes.shape)
    last, stride, draws, accept = room // grain * grain, grain, None, None
    if boxes.at == RANDOM:
        draws = Draws(per_epoch=boxes.per_epoch, by=boxes.draw)
        accept = boxes.accept and Accept(function=boxes.accept, on=boxes.accept_on, tries=boxes.tries)
    else:
        stride, short = boxes.stride or boxes.shape, np.flatnonzero((last < room).any(axis=1))
        if any(step % one for step, one in zip(stride, grain, strict=True)):
            raise OptionError(f"Boxes: with fields of another scale= the stride is a multiple of {grain}, not {stride}")
        if len(short):
            raise OptionError(
                f"Boxes: with fields of another scale= the last box of a grid begins at multiples of {grain}, not at "
                f"{tuple(room[short[0]].tolist())} as in {names[short[0]]}; take at='random', or list the boxes"
            )
    counts = -(-last // np.array(stride, dtype=np.int64)) + 1
    grid = Grid(first=np.zeros_like(volumes), last=last, counts=counts, stride=stride)
    return Space(volumes=volumes, starts=grid, pad=boxes.pad, draws=draws, accept=accept)


def _listed(boxes: Boxes, volumes: Ints, multiples: tuple[int, ...]) -> Space:
    places, axes = boxes.at, len(boxes.shape)
    if places.shape[1] == axes and len(volumes) == 1:
        places = np.pad(places, ((0, 0), (1, 0)))
    if places.shape[1] != axes + 1:
        needed = "its first element" if len(volumes) == 1 else "the volume's number, and the first element"
        raise OptionError(
            f"Boxes: at= has {counted(places.shape[1], 'number')} for each box, and a box of "
            f"{counted(axes, 'axis', 'axes')} in {counted(len(volumes), 'volume')} needs {axes + (len(volumes) > 1)}: "
            f"{needed}"
        )
    of, origins = (np.ascontiguousarray(part) for part in (places[:, 0], places[:, 1:]))
    wrong = np.flatnonzero((of < 0) | (of >= len(volumes)))
    if len(wrong):
        raise OptionError(f"Boxes: at= names volume {of[wrong[0]]} at {wrong[0]:,}; there are {len(volumes):,}")
    least, most = (0, volumes[of] - boxes.shape) if boxes.pad is None else (1 - np.array(boxes.shape), volumes[of] - 1)
    outside = np.flatnonzero(((origins < least) | (origins > most)).any(axis=1))
    if len(outside):
        k = outside[0]
        begin, volume = (tuple(part[k].tolist()) for part in (origins, volumes[of]))
        rule = "leads out of" if boxes.pad is None else "has nothing of"
        raise OptionError(
            f"Boxes: at= has {begin} at {k:,}, from where a box of {boxes.shape} {rule} a volume of {volume}; so it is "
            f"with {len(outside):,} of {len(of):,}. pad= fills in what lies partly outside"
        )
    if (origins % multiples).any():
        raise OptionError(f"Boxes: with fields of another scale= at= has multiples of {multiples}, to begin with them")
    return Space(volumes=volumes, starts=Listed(volume=of, origins=origins), pad=boxes.pad)


def _places(at: object) -> Ints:
    boxes = as_array(at)
    if boxes.ndim != 2 or not len(boxes) or boxes.dtype.kind not in "iu":
        raise OptionError(
            f"Boxes: at= takes 'random', 'grid' or a row of whole numbers for each box, not {boxes.dtype} {boxes.shape}"
        )
    return boxes.astype(np.int64)


# --- along another axis than the first, or of fields with unlike numbers of elements ----------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AlongAxis:
    """The position of samples along one axis."""

    axis: int  # the axis; a negative one counts from the last
    has_rows: bool  # whether a sample has one index of axis 0, which is then dropped
    is_point: bool  # whether a sample has one index of `axis`, which is then dropped
    origins: tuple[str, ...]  # the names of the numbers of a sample's origin

    @property
    def along(self) -> int:
        """The number of an origin that counts along the axis, for a field that names none."""
        return int(self.has_rows)


def along_axis(samples: object, is_scaled: bool = False) -> AlongAxis | None:
    """Return the axis that samples move along; None if they are rows, or unscaled parts of axis 0."""
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
    if is_scaled and isinstance(samples.of, Segmentation):
        raise OptionError(
            f"Take(scale=) counts in whole files or groups; of={type(samples.of).__name__}(...) cuts rows into segments"
        )
    if samples.axis == 0 and not has_rows and not is_scaled:
        return None
    return AlongAxis(axis=samples.axis, has_rows=has_rows, is_point=is_point, origins=("",) * (1 + has_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSteps:
    """The range of a field's steps along the axis of a volume, or of each of several volumes."""

    elements: Any  # elements of the field along it
    least: int  # least, most: its first and its last step
    most: int
    scale: Fraction = Fraction(1)  # the field's elements per element that samples count in
    origin: int = 0  # the number of an origin that steps are counted from

    @property
    def first(self) -> int:
        """The first place at which a sample may begin so that no step is outside."""
        return -(self.least / self.scale).__floor__()

    def last(self, most: int) -> Ints:
        """Return the last place at which a sample may begin if its steps reach `most` further."""
        return -scaled(most - np.asarray(self.elements), 1 / self.scale) - 1


def axis_space(
    samples: Sequences | Rows, volumes: Ints, steps: Sequence[FieldSteps], edges: Edges | None = None
) -> Space:
    """Return the space of all samples along an axis; `edges` of segments make it axis 0."""
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
        least, most = min(field.least for field in steps), max(field.most for field in steps)
        unit, longest = "element" if edges is None else "row", int(volumes[:, -1].max(initial=0))
        span = f"span {counted(most - least + 1, unit)} (from {least} to {most})"
        way_out = "take a shorter one"
        if most - least < longest:  # they go beyond what there is beside the place where a sample begins
            span, way_out = f"go from {least} to {most}, counted from where it begins", "take steps nearer to 0"
        total = int(segments.sum())
        which = f"longest of {total:,} segments" if total > 1 else "only segment"
        raise OptionError(
            f"no sequence fits: its steps {span}, and the {which} has {counted(longest, unit)}; {way_out}, or "
            "pad='edge' or pad='zeros'"
        )
    along = [array[:, None] for array in (first, last, counts)]
    if by_row:
        rows = volumes[:, :1]
        along = [np.hstack(pair) for pair in zip([np.zeros_like(rows), rows - 1, rows], along, strict=True)]
    stride = (1, sequences.stride) if by_row else (sequences.stride,)
    grid = Grid(first=along[0], last=along[1], counts=along[2], stride=stride, segment_axes=int(by_row))
    left_out, pad, draws = int(segments[counts == 0].sum()), sequences.pad, sequences.draws
    return Space(volumes=volumes, starts=grid, pad=pad, draws=draws, left_out=left_out, edges=edges)


def _limits(sequences: Sequences, elements: Ints, steps: Sequence[FieldSteps]) -> tuple[Ints, Ints]:
    """Return the first and the last place along an axis of each volume at which a sample may begin."""
    first, last = np.zeros_like(elements), elements - 1
    if sequences.pad is None:
        for field in steps:
            first, last = np.maximum(first, field.first), np.minimum(last, field.last(field.most))
    elif sequences.pad_rows is not None:
        (before, after), plain = sequences.pad_rows, [field for field in steps if field.scale == 1]
        first = np.maximum(first, -min((field.least for field in plain), default=0) - before)
        last = np.minimum(last, last - max((field.most for field in plain), default=0) + after)
    return first, last


def table_axis_space(
    table: Table, kind: AlongAxis, volumes: Ints, parts: Parts, paths: Sequence[str], steps: Sequence[FieldSteps]
) -> Space:
    """Return the space of a table's samples along an axis."""
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
    for field in steps:
        least, most = np.full(len(part), 0 if pad else field.first), field.last(0 if pad else field.most)[part]
        check_begins(table, kind.origins[field.origin], origins[:, field.origin], least, most, field.elements[part])
    return Space(volumes=volumes, starts=Listed(volume=part, origins=origins), pad=table.pad)

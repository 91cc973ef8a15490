"""Samples that are parts of volumes: the elements that each takes of every dataset, axis by axis."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import check_holds, counted
from h5stream.errors import FieldLengthError, OptionError
from h5stream.samples.boxes import (
    ROWS,
    AlongAxis,
    Boxes,
    FieldSteps,
    along_axis,
    axis_space,
    box_space,
    table_axis_space,
)
from h5stream.samples.columns import VirtualField
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.space import Along, Listed, Space, steps_of
from h5stream.samples.table import START, Table
from h5stream.storage.decode.columns import Columns, axes_taken
from h5stream.storage.decode.elements import CANNOT_READ, type_of
from h5stream.storage.file.discovery import refusal
from h5stream.storage.layout.fields import Field

SampleKind = Sequences | Rows | Table | Boxes | Objects
Selection = tuple[tuple[Along, ...], tuple[int, ...]]
"""A sample's elements of a dataset along each axis, and their shape."""


@dataclass(slots=True, kw_only=True)
class Extents:
    """Selects each field's elements for a sample, and collects the sizes of one volume, a file or a group."""

    samples: SampleKind  # what a sample is
    kind: AlongAxis | None  # how samples run along an axis; None for boxes and objects
    # the size of each axis that samples begin at, by its number, and the field that it is from
    elements: dict[int, tuple[int, str]] = field(default_factory=dict)
    scaled: list[tuple[str, int, int, Fraction]] = field(default_factory=list)  # field, axis, size, scale
    field_steps: list[FieldSteps] = field(default_factory=list)  # the range of each field's steps
    multiples: dict[int, int] = field(default_factory=dict)  # by axis: the origins of boxes are multiples of this

    @property
    def axis(self) -> AlongAxis:
        """The one axis that samples run along; raises TypeError for boxes and objects, which have none."""
        if self.kind is None:
            raise TypeError(f"{type(self.samples).__name__}(...) runs along no single axis")
        return self.kind

    def add_axis(self, name: str, axis: int, elements: int, scale: Fraction = Fraction(1)) -> None:
        """Note a field's size along an axis that samples begin at; raise if another field has another size."""
        if scale != 1:
            self.scaled.append((name, axis, elements, scale))
            return
        expected, other = self.elements.setdefault(axis, (elements, name))
        if expected != elements:
            raise FieldLengthError(
                f"it has {elements:,} elements along an axis that samples lie along, and {other!r} has {expected:,}. "
                "Take(scale=) is for a field of another resolution, Take(axis=) for one along another axis, and "
                "Take(axis='rows') for what each row has once"
            )

    def sizes(self, axes: int) -> tuple[int, ...]:
        """Return the size of each axis, once all fields are known."""
        for name, axis, elements, scale in self.scaled:
            if axis not in self.elements:
                raise OptionError(f"field {name!r} has Take(scale=), which is relative to fields without; name one")
            expected = self.elements[axis][0] * scale
            if abs(elements - expected) >= 1:
                raise FieldLengthError(
                    f"field {name!r} has {elements:,} elements, and {float(expected):,g} with scale={scale} of the "
                    f"{self.elements[axis][0]:,} of {self.elements[axis][1]!r}",
                    field=name,
                )
        if len(self.elements) < axes:
            raise OptionError("no field has as many axes as samples= needs; name a field that has, or another axis=")
        return tuple(self.elements[axis][0] for axis in range(axes))

    @classmethod
    def of(cls, samples: SampleKind) -> Extents:
        """Return the extents of samples that are parts of volumes."""
        return cls(samples=samples, kind=None if isinstance(samples, Boxes) else along_axis(samples, is_scaled=True))

    @classmethod
    def for_fields(cls, samples: SampleKind, fields: tuple[Field | VirtualField, ...]) -> Extents | None:
        """Return the extents of samples with these fields; None if samples are rows, or sequences of rows."""
        specs, is_rows = [one for one in fields if isinstance(one, Field)], isinstance(samples, Rows)
        # A name with "@" is an attribute, which is not part of a volume.
        have_own_shapes = is_rows and any(
            one.has_own_shape and not one.names_objects and "@" not in one.name for one in specs
        )
        is_scaled = not is_rows and any(one.take.scale for one in specs)
        are_parts = (
            isinstance(samples, (Boxes, Objects)) or have_own_shapes or along_axis(samples, is_scaled) is not None
        )
        return cls.of(samples) if are_parts else None

    def take(self, shape: tuple[int, ...], spec: Field, path: str) -> Selection:
        """Return a sample's elements of a dataset of this shape, and note the sizes of its axes."""
        try:
            return self._selection(shape, spec)
        except FieldLengthError as error:
            raise refusal(path, spec.name, f": field {spec.name!r}: {error}", FieldLengthError) from None
        except OptionError as error:
            raise OptionError(f"{path!r}: field {spec.name!r}: {error}") from None

    def _selection(self, shape: tuple[int, ...], spec: Field) -> Selection:
        if 0 in shape:
            raise FieldLengthError(
                f"it has the shape {shape}, without elements; Field(..., ragged=) takes empty objects, too, except for "
                "ragged='arrays'; or leave it out: Objects([...]) takes names"
            )
        take = spec.take
        moved: dict[int, tuple[Along, bool]] = {}
        if isinstance(self.samples, Objects):
            if take.steps is not None or take.at or take.axis is not None or take.scale:
                raise OptionError("samples=Objects(...) takes datasets whole, so Take(...) must go")
        elif isinstance(self.samples, Boxes):
            if take.steps is not None or take.at or take.axis is not None:
                raise OptionError("samples=Boxes(...) takes boxes, so steps, at= and axis= of take= must go")
            moved = self._box(self.samples, shape, spec)
        else:
            moved = self._along(self.axis, shape, spec)
        others = iter(_fixed_axes(tuple(n for a, n in enumerate(shape) if a not in moved), spec.columns))
        taken = [moved[a] if a in moved else next(others) for a in range(len(shape))]
        return tuple(along for along, _ in taken), tuple(len(along.offsets) for along, stays in taken if stays)

    def _box(self, boxes: Boxes, shape: tuple[int, ...], spec: Field) -> dict[int, tuple[Along, bool]]:
        axes = len(boxes.shape)
        if len(shape) < axes:
            needed = counted(axes, "axis", "axes")
            raise OptionError(f"it has the shape {shape}, and boxes of {boxes.shape} need {needed}")
        before, moved = len(shape) - axes, {}
        halo = boxes.halo or (0,) * axes
        for axis, (size, around, scale) in enumerate(zip(boxes.shape, halo, _scales(spec, axes), strict=True)):
            if (size * scale).denominator > 1 or (around * scale).denominator > 1:
                raise OptionError(f"scale={scale} makes no whole numbers of a box of {size} with a halo of {around}")
            self.add_axis(spec.name, axis, shape[before + axis], scale)
            self.multiples[axis] = math.lcm(self.multiples.get(axis, 1), scale.denominator)
            offsets = range(-int(around * scale), int((size + around) * scale))
            moved[before + axis] = Along(offsets, axis, scale), True
        return moved

    def _along(self, kind: AlongAxis, shape: tuple[int, ...], spec: Field) -> dict[int, tuple[Along, bool]]:
        take = spec.take
        if take.axis == ROWS and (take.steps is not None or take.scale or not kind.has_rows):
            raise OptionError("axis='rows' takes the row of of='rows', or a Table with 'row', and no steps= or scale=")
        number = kind.axis if take.axis is None else len(shape) if take.axis == ROWS else int(take.axis)
        axis = number + len(shape) if number < 0 else number
        by_row = kind.has_rows and not (take.axis is not None and axis == 0)
        if by_row and axis == 0:
            raise OptionError("samples are of one row of axis 0 each, so axis= is another, such as 1")
        moved: dict[int, tuple[Along, bool]] = {}
        if by_row:
            self.add_axis(spec.name, 0, shape[0])
            moved[0] = Along((0,), 0), False
        if 0 <= axis < len(shape):
            moved[axis] = self._steps(kind, shape[axis], spec)
        elif not by_row or take.axis not in (None, ROWS) or take.steps is not None:
            raise OptionError(
                f"it has the shape {shape}, and no axis {number} that samples lie along; take=Take(axis=) names "
                "another, and take='all' is what a file or a group has once"
            )
        return moved

    def _steps(self, kind: AlongAxis, elements: int, spec: Field) -> tuple[Along, bool]:
        """Return the steps of a field along the samples' axis, and whether they make an axis of the sample."""
        samples, (scale,) = self.samples, _scales(spec, 1)
        steps: range | tuple[int, ...] | None = spec.take.steps
        is_one = steps is None and kind.is_point
        if is_one:
            steps = (0,)
        elif steps is None:
            every = steps_of(None, samples, spec.name) or ()
            count = len(every) * scale
            if count.denominator > 1:
                message = f"scale={scale} makes {float(count):g} elements of a sequence of {len(every)}"
                raise OptionError(f"{message}; say which with steps=")
            check_holds("the elements of a sequence", int(count))
            steps = range(int(count))
        origin = kind.origins.index(spec.take.at or START) if isinstance(samples, Table) else kind.along
        self.add_axis(spec.name, kind.along, elements, scale)
        ends = (steps[0], steps[-1]) if isinstance(steps, range) else steps  # not min() of a range of billions
        self.field_steps.append(
            FieldSteps(elements=elements, least=min(ends), most=max(ends), scale=scale, origin=origin)
        )
        return Along(steps, origin, scale), not is_one

    def space(
        self, volumes: list[Extents], names: list[str], parts: dict[tuple[int, str], int], paths: tuple[str, ...]
    ) -> Space:
        """Return all samples of volumes; `parts` has the index of each by file number and group name."""
        if isinstance(self.samples, Objects):
            nowhere = np.zeros((len(volumes), 0), dtype=np.int64)
            return Space(volumes=nowhere, starts=Listed(volume=np.arange(len(volumes)), origins=nowhere))
        has_rows = self.kind is not None and self.kind.has_rows
        axes = len(self.samples.shape) if isinstance(self.samples, Boxes) else 1 + has_rows
        sizes: NDArray[np.int64] = np.array([volume.sizes(axes) for volume in volumes], dtype=np.int64)
        steps_of_volumes = zip(*(volume.field_steps for volume in volumes), strict=True)
        steps = [replace(ones[0], elements=np.array([one.elements for one in ones])) for ones in steps_of_volumes]
        if isinstance(self.samples, Boxes):
            multiples = [volumes[0].multiples[axis] for axis in range(axes)]
            return box_space(self.samples, sizes, names, multiples)
        if isinstance(self.samples, Table):
            return table_axis_space(self.samples, self.axis, sizes, parts, paths, steps)
        return axis_space(self.samples, sizes, steps)

    def is_value(self, dataset: object) -> bool:
        """Return whether samples are objects and this dataset of theirs is a value: a scalar, or strings."""
        with contextlib.suppress(*CANNOT_READ):
            if isinstance(self.samples, Objects) and isinstance(dataset, h5py.Dataset):
                return dataset.shape == () or type_of(dataset.id.get_type()).kind in "OS"
        return False


def _fixed_axes(shape: tuple[int, ...], columns: Columns) -> list[tuple[Along, bool]]:
    """Return the elements taken along axes that no sample moves along, and whether each axis is kept."""
    if columns is None:
        return [(Along(range(count)), True) for count in shape]
    if not shape:
        raise OptionError("columns= chooses of the axes that samples do not lie along, and there is none; leave it out")
    return [
        (Along(range(n) if stays and np.array_equal(numbers, np.arange(n)) else tuple(numbers.tolist())), stays)
        for n, (numbers, stays) in zip(shape, axes_taken(shape, columns), strict=True)
    ]


def _scales(spec: Field, axes: int) -> tuple[Fraction, ...]:
    if len(spec.take.scale) not in (0, 1, axes):
        has = counted(len(spec.take.scale), "number")
        raise OptionError(f"scale= has {has}, and takes one, or one for each of {counted(axes, 'axis', 'axes')}")
    return spec.take.scale * axes if len(spec.take.scale) == 1 else spec.take.scale or (Fraction(1),) * axes

"""What a sample that is a part of a volume takes of each dataset: its elements along every axis."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import check_holds
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
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.space import Along, Listed, Space, steps_of
from h5stream.samples.table import START, Table
from h5stream.storage.decode.columns import Columns, axes_taken
from h5stream.storage.decode.elements import CANNOT_READ, type_of
from h5stream.storage.file.discovery import refusal
from h5stream.storage.layout.fields import Field

SampleKind = Sequences | Rows | Table | Boxes | Objects
Taken = tuple[tuple[Along, ...], tuple[int, ...]]
"""What a sample takes of a dataset along each axis, and the shape that this has."""


@dataclass(slots=True, kw_only=True)
class Extents:
    """Works out what each field of a sample takes of its dataset, and notes what that says of a file, or a group."""

    samples: SampleKind  # what a sample is
    kind: AlongAxis | None  # how it lies along an axis; None for boxes
    # the elements along each axis that samples begin at, by its number, and who said so
    elements: dict[int, tuple[int, str]] = field(default_factory=dict)
    scaled: list[tuple[str, int, int, Fraction]] = field(default_factory=list)
    steps_of_each: list[FieldSteps] = field(default_factory=list)  # how far each field's steps lead
    multiples: dict[int, int] = field(default_factory=dict)  # what boxes begin at multiples of

    def add(self, name: str, axis: int, elements: int, scale: Fraction = Fraction(1)) -> None:
        """Note how many elements a field has along an axis that samples begin at."""
        if scale != 1:
            self.scaled.append((name, axis, elements, scale))
            return
        known, other = self.elements.setdefault(axis, (elements, name))
        if known != elements:
            raise FieldLengthError(
                f"it has {elements:,} elements along an axis that samples lie along, and {other!r} has {known:,}. "
                "Take(scale=) is for a field of another resolution, Take(axis=) for one along another axis, and "
                "Take(axis='rows') for what each row has once"
            )

    def sizes(self, axes: int) -> tuple[int, ...]:
        """Return the elements along each axis, once all fields are known."""
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
        """Return those of a kind of samples that has them."""
        return cls(samples=samples, kind=None if isinstance(samples, Boxes) else along_axis(samples, is_scaled=True))

    @classmethod
    def among(cls, samples: SampleKind | None, fields: tuple[Any, ...]) -> Extents | None:
        """Return those of samples that are parts of volumes; None where they are rows, or sequences of them."""
        if samples is None:
            return None
        asked, is_rows = [one for one in fields if isinstance(one, Field)], isinstance(samples, Rows)
        # An attribute, which stands behind an "@", is of no volume.
        unlike = is_rows and any(one.has_own_shape and not one.names_objects and "@" not in one.name for one in asked)
        is_scaled = not is_rows and any(one.take.scale for one in asked)
        are_parts = isinstance(samples, (Boxes, Objects)) or unlike or along_axis(samples, is_scaled) is not None
        return cls.of(samples) if are_parts else None

    def take(self, shape: tuple[int, ...], asked: Field, path: str) -> Taken:
        """Return what a sample takes of a dataset along each axis, and the shape that this has; note it."""
        try:
            return self._taken(shape, asked)
        except FieldLengthError as error:
            raise refusal(path, asked.name, f": field {asked.name!r}: {error}", FieldLengthError) from None
        except OptionError as error:
            raise OptionError(f"{path!r}: field {asked.name!r}: {error}") from None

    def _taken(self, shape: tuple[int, ...], asked: Field) -> Taken:
        if 0 in shape:
            raise FieldLengthError(
                f"it has the shape {shape}, without elements; Field(..., ragged=) takes empty objects, too, except for "
                "ragged='arrays'; or leave it out: Objects([...]) takes names"
            )
        take = asked.take
        moved: dict[int, tuple[Along, bool]] = {}
        if isinstance(self.samples, Objects):
            if take.steps is not None or take.at or take.axis is not None or take.scale:
                raise OptionError("samples=Objects(...) takes datasets whole, so Take(...) must go")
        elif isinstance(self.samples, Boxes):
            if take.steps is not None or take.at or take.axis is not None:
                raise OptionError("samples=Boxes(...) takes boxes, so steps, at= and axis= of take= must go")
            moved = self._box(self.samples, shape, asked)
        else:
            moved = self._along(shape, asked)
        others = iter(_others(tuple(n for a, n in enumerate(shape) if a not in moved), asked.columns))
        taken = [moved[a] if a in moved else next(others) for a in range(len(shape))]
        return tuple(along for along, _ in taken), tuple(len(along.offsets) for along, stays in taken if stays)

    def _box(self, boxes: Boxes, shape: tuple[int, ...], asked: Field) -> dict[int, tuple[Along, bool]]:
        axes = len(boxes.shape)
        if len(shape) < axes:
            raise OptionError(f"it has the shape {shape}, and boxes of {boxes.shape} need {axes} axes")
        before, moved = len(shape) - axes, {}
        halo = boxes.halo or (0,) * axes
        for axis, (size, around, scale) in enumerate(zip(boxes.shape, halo, _scales(asked, axes), strict=True)):
            if (size * scale).denominator > 1 or (around * scale).denominator > 1:
                raise OptionError(f"scale={scale} makes no whole numbers of a box of {size} with a halo of {around}")
            self.add(asked.name, axis, shape[before + axis], scale)
            self.multiples[axis] = math.lcm(self.multiples.get(axis, 1), scale.denominator)
            offsets = range(-int(around * scale), int((size + around) * scale))
            moved[before + axis] = Along(offsets, axis, scale), True
        return moved

    def _along(self, shape: tuple[int, ...], asked: Field) -> dict[int, tuple[Along, bool]]:
        kind, take = self.kind, asked.take
        assert kind is not None
        if take.axis == ROWS and (take.steps is not None or take.scale or not kind.has_rows):
            raise OptionError("axis='rows' takes the row of of='rows', or a Table with 'row', and no steps= or scale=")
        given = kind.axis if take.axis is None else len(shape) if take.axis == ROWS else int(take.axis)
        axis = given + len(shape) if given < 0 else given
        by_row = kind.has_rows and not (take.axis is not None and axis == 0)
        if by_row and axis == 0:
            raise OptionError("samples are of one row of axis 0 each, so axis= is another, such as 1")
        moved: dict[int, tuple[Along, bool]] = {}
        if by_row:
            self.add(asked.name, 0, shape[0])
            moved[0] = Along((0,), 0), False
        if 0 <= axis < len(shape):
            moved[axis] = self._steps(shape[axis], asked)
        elif not by_row or take.axis not in (None, ROWS) or take.steps is not None:
            raise OptionError(
                f"it has the shape {shape}, and no axis {given} that samples lie along; take=Take(axis=) names "
                "another, and take='all' is what a file or a group has once"
            )
        return moved

    def _steps(self, elements: int, asked: Field) -> tuple[Along, bool]:
        """Return the steps of a field along the axis, and whether these make an axis."""
        kind, samples, (scale,) = self.kind, self.samples, _scales(asked, 1)
        assert kind is not None
        steps: Any = asked.take.steps
        is_one = steps is None and kind.is_point
        if is_one:
            steps = (0,)
        elif steps is None:
            every = steps_of(None, samples, asked.name)
            assert every is not None
            count = len(every) * scale
            if count.denominator > 1:
                said = f"scale={scale} makes {float(count):g} elements of a sequence of {len(every)}"
                raise OptionError(f"{said}; say which with steps=")
            check_holds("the elements of a sequence", int(count))
            steps = range(int(count))
        origin = kind.origins.index(asked.take.at or START) if isinstance(samples, Table) else kind.along
        self.add(asked.name, kind.along, elements, scale)
        ends = (steps[0], steps[-1]) if isinstance(steps, range) else steps  # a range may have billions
        self.steps_of_each.append(
            FieldSteps(elements=elements, least=min(ends), most=max(ends), scale=scale, origin=origin)
        )
        return Along(steps, origin, scale), not is_one

    def space(
        self, volumes: list[Extents], names: list[str], parts: dict[tuple[int, str], int], paths: tuple[str, ...]
    ) -> Space:
        """Find all samples of some volumes, which have names, and are found by files' numbers and groups' names."""
        if isinstance(self.samples, Objects):
            nowhere = np.zeros((len(volumes), 0), dtype=np.int64)
            return Space(volumes=nowhere, starts=Listed(volume=np.arange(len(volumes)), origins=nowhere))
        has_rows = self.kind is not None and self.kind.has_rows
        axes = len(self.samples.shape) if isinstance(self.samples, Boxes) else 1 + has_rows
        sizes: NDArray[np.int64] = np.array([volume.sizes(axes) for volume in volumes], dtype=np.int64)
        of_each = zip(*(volume.steps_of_each for volume in volumes), strict=True)
        steps = [replace(ones[0], elements=np.array([one.elements for one in ones])) for ones in of_each]
        if isinstance(self.samples, Boxes):
            multiples = [volumes[0].multiples[axis] for axis in range(axes)]
            return box_space(self.samples, sizes, names, multiples)
        if isinstance(self.samples, Table):
            assert self.kind is not None
            return table_axis_space(self.samples, self.kind, sizes, parts, paths, steps)
        return axis_space(self.samples, sizes, steps)

    def has_once(self, dataset: Any) -> bool:
        """Tell whether an object's dataset is a value rather than numbers along axes: a single one, or strings."""
        with contextlib.suppress(*CANNOT_READ):
            if isinstance(self.samples, Objects) and isinstance(dataset, h5py.Dataset):
                return dataset.shape == () or type_of(dataset.id.get_type()).kind in "OS"
        return False


def _others(shape: tuple[int, ...], columns: Columns) -> list[tuple[Along, bool]]:
    """Return what is taken of the axes that samples do not move along, and whether each stays."""
    if columns is None:
        return [(Along(range(count)), True) for count in shape]
    if not shape:
        raise OptionError("columns= chooses of the axes that samples do not lie along, and there is none; leave it out")
    return [
        (Along(range(n) if stays and np.array_equal(numbers, np.arange(n)) else tuple(numbers.tolist())), stays)
        for n, (numbers, stays) in zip(shape, axes_taken(shape, columns), strict=True)
    ]


def _scales(asked: Field, axes: int) -> tuple[Fraction, ...]:
    if len(asked.take.scale) not in (0, 1, axes):
        raise OptionError(f"scale= has {len(asked.take.scale)} numbers, and takes one, or one for each of {axes} axes")
    return asked.take.scale * axes if len(asked.take.scale) == 1 else asked.take.scale or (Fraction(1),) * axes

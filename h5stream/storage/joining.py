"""Several layouts, one behind the other: files, groups of one file, or both, that are read as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from h5stream.errors import OptionError
from h5stream.samples.box_space import BoxSpace
from h5stream.samples.space import SequenceSpace, joined_space
from h5stream.storage.agreement import FileParts, check_alike, with_like_strings
from h5stream.storage.layout import DatasetPart, SampleLayout
from h5stream.storage.source import SourceIdentity


def joined_layout(layouts: Sequence[SampleLayout]) -> SampleLayout:
    """Return the layout of the rows of all layouts, in turn; they must give samples of one form.

    A field keeps the name that it has in the first: in groups of one file its path differs from group to group.

    Raises
    ------
    OptionError
        If their samples differ in structure, or only some of them may follow data out of their files.
    FieldLengthError
        If a field differs in shape, type or members.
    """
    first = layouts[0]
    for number, other in enumerate(layouts[1:], 1):
        _check_structure(first, other, number)
    if any(layout.lookups or layout.columns for layout in layouts):
        raise OptionError(
            "datasets that are read as one have fields of their files alone: Values, SampleNumber, Padding, attributes "
            "and Field(..., rows=) belong to one H5Dataset; give it all files"
        )
    firsts = tuple(layout.files[layout.datasets[0][0].file] for layout in layouts)
    check_alike([_parts_of(layout, 0, range(len(layout.files)), 0) for layout in layouts], firsts)
    files: dict[SourceIdentity, int] = {}
    parts: list[FileParts] = []
    starts, grouped = [0], len({_grouping(layout) for layout in layouts}) == 1
    for layout in layouts:
        numbers = [files.setdefault(identity, len(files)) for identity in layout.files]
        for k in range(len(layout.file_starts) - 1):
            part = _parts_of(layout, k, numbers, starts[-1])
            parts.append(part if grouped else _field_by_field(part))
            starts.append(starts[-1] + part.rows)
    parts = with_like_strings(parts)
    return replace(
        first,
        files=tuple(files),
        file_starts=tuple(starts),
        fields=parts[0].fields,
        datasets=tuple(zip(*(part.parts for part in parts), strict=True)),
        space=_joined_space(layouts),
        mapped=frozenset(files[layout.files[n]] for layout in layouts for n in layout.mapped),
    )


def _joined_space(layouts: Sequence[SampleLayout]) -> SequenceSpace | None:
    given = [layout.space for layout in layouts]
    if all(space is None for space in given):
        return None
    if any(isinstance(space, BoxSpace) for space in given):
        raise OptionError("samples=Boxes(...) are of one H5Dataset; give that all files")
    spaces = [space for space in given if isinstance(space, SequenceSpace)]
    first = spaces[0]
    if len(spaces) < len(given) or any(space.pad != first.pad for space in spaces):
        raise OptionError("datasets that are read as one must have samples= of one kind, padded alike")
    if any(space.others is not None for space in spaces):
        raise OptionError("a Table lists the samples of one H5Dataset; give that all files, and the Table their names")
    if any(space.draws != first.draws for space in spaces) or (first.draws and first.draws.per_epoch is not None):
        raise OptionError(
            "datasets that are read as one take one random start of each segment, or all starts; for per_epoch= give "
            "one H5Dataset all files"
        )
    starts = np.cumsum([0] + [layout.rows for layout in layouts[:-1]]).tolist()
    return joined_space(spaces, starts)


def _check_structure(first: SampleLayout, other: SampleLayout, number: int) -> None:
    ours, theirs = first.shape, other.shape
    unlike_keys = ours.kind == "dict" and ours.keys != theirs.keys
    if ours.kind != theirs.kind or len(ours.keys) != len(theirs.keys) or unlike_keys:
        raise OptionError(
            f"datasets that are read as one must give samples of one structure: number {number} ({_named(other)}) "
            f"gives {_words(other)}, but number 0 ({_named(first)}) gives {_words(first)}; name the same fields="
        )
    if first.allow_external != other.allow_external:
        raise OptionError(
            f"datasets that are read as one must agree in allow_external=: it is {first.allow_external} for number 0 "
            f"({_named(first)}) and {other.allow_external} for number {number} ({_named(other)})"
        )


def _named(layout: SampleLayout) -> str:
    more = f" and {len(layout.files) - 1} more" if len(layout.files) > 1 else ""
    return f"{layout.files[0].path!r}{more}"


def _words(layout: SampleLayout) -> str:
    names = ", ".join(repr(key) for key in layout.shape.keys)
    return {"one": "only ", "tuple": "a tuple of ", "dict": "a dict of "}[layout.shape.kind] + names


def _parts_of(layout: SampleLayout, k: int, files: Sequence[int], start: int) -> FileParts:
    """Return part `k` of each dataset of a layout, with files numbered anew and beginning at a row of the whole."""
    parts = tuple(replace(dataset[k], file=files[dataset[k].file], row_start=start) for dataset in layout.datasets)
    return FileParts(rows=parts[0].rows, fields=layout.fields, parts=parts, entries=layout.entries)


def _grouping(layout: SampleLayout) -> tuple[tuple[int, ...], ...]:
    """Return which fields are filled from one dataset: members of a compound, for instance."""
    return tuple(tuple(target.field for target in parts[0].targets) for parts in layout.datasets)


def _field_by_field(file: FileParts) -> FileParts:
    """Return every field a part of its own, where elsewhere they come from other datasets together."""
    alone: list[tuple[int, DatasetPart]] = [
        (target.field, replace(part, targets=(target,))) for part in file.parts for target in part.targets
    ]
    return replace(file, parts=tuple(part for _, part in sorted(alone, key=lambda pair: pair[0])))

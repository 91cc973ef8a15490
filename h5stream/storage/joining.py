"""Several layouts, one behind the other: files, groups of one file, or both, that are read as one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from h5stream.errors import OptionError
from h5stream.samples.columns import Column
from h5stream.samples.space import Space, joined_space
from h5stream.storage.agreement import FileParts, check_alike, with_like_strings
from h5stream.storage.layout import DatasetPart, Lookup, SampleLayout
from h5stream.storage.lookups import shared
from h5stream.storage.source import SourceIdentity


def joined_layout(layouts: Sequence[SampleLayout]) -> SampleLayout:
    """Return the layout of the rows of all layouts, in turn; they must give samples of one form.

    A field keeps the name that it has in the first: in groups of one file its path differs from group to group.
    """
    first = layouts[0]
    for number, other in enumerate(layouts[1:], 1):
        _check_structure(first, other, number)
    if len({_beside(layout) for layout in layouts}) > 1:
        raise OptionError(
            "datasets that are read as one have like fields: what is looked up (lookup=), in memory (Values) "
            "or there once (attributes) in one of them is so in all"
        )
    firsts = tuple(layout.files[layout.datasets[0][0].file] for layout in layouts)
    check_alike([_parts_of(layout, 0, range(len(layout.files)), 0) for layout in layouts], firsts)
    files: dict[SourceIdentity, int] = {}
    parts: list[FileParts] = []
    every: list[list[int]] = []
    starts, grouped = [0], len({_grouping(layout) for layout in layouts}) == 1
    for layout in layouts:
        numbers = [files.setdefault(identity, len(files)) for identity in layout.files]
        every.append(numbers)
        for k in range(len(layout.file_starts) - 1):
            part = _parts_of(layout, k, numbers, starts[-1])
            parts.append(part if grouped else _field_by_field(part))
            starts.append(starts[-1] + part.rows)
    parts = with_like_strings(parts)
    aligned = tuple(zip(*(part.parts for part in parts), strict=True))
    space = _joined_space(layouts)
    looked_up = [_joined_lookup(layouts, every, k, len(aligned)) for k in range(len(first.lookups))]
    return replace(
        first,
        files=tuple(files),
        file_starts=tuple(starts),
        fields=parts[0].fields,
        datasets=(*aligned, *(dataset for dataset, _ in looked_up)),
        lookups=shared([one for _, one in looked_up]),
        columns=tuple(_joined_column(layouts, k, tuple(starts), space) for k in range(len(first.columns))),
        space=space,
    )


def _beside(layout: SampleLayout) -> tuple[Any, ...]:
    """Return what of a layout comes from elsewhere than its own rows: looked up, and in memory."""
    fields = (target.field for one in layout.lookups for target in layout.datasets[one.dataset][0].targets)
    looked_up = tuple((one.counts is None, one.spare is None) for one in layout.lookups)
    strings = tuple((number, layout.fields[number].cut_at_nul) for number in fields)
    return looked_up, strings, tuple((number, type(column)) for number, column in layout.columns)


def _joined_lookup(
    layouts: Sequence[SampleLayout], files: Sequence[Sequence[int]], k: int, number: int
) -> tuple[tuple[DatasetPart, ...], Lookup]:
    """Return a dataset that all layouts look up, its parts in turn, and the rows that all samples have of it."""
    parts: list[DatasetPart] = []
    rows, given = [], [layout.lookups[k] for layout in layouts]
    if any(one.paces is not None for one in given):
        given = [
            replace(one, paces=np.full(len(one.rows), one.length) if one.paces is None else one.paces) for one in given
        ]
    for layout, numbers, one in zip(layouts, files, given, strict=True):
        before = sum(part.rows for part in parts)
        rows.append(one.rows + before)
        own = layout.datasets[one.dataset]
        parts += [replace(part, file=numbers[part.file], row_start=part.row_start + before) for part in own]
    counts, spare, paces = (
        _concatenated([getattr(one, name) for one in given]) for name in ("counts", "spare", "paces")
    )
    return tuple(parts), replace(
        given[0], dataset=number + k, rows=np.concatenate(rows), counts=counts, spare=spare, paces=paces
    )


def _joined_column(
    layouts: Sequence[SampleLayout], k: int, starts: tuple[int, ...], space: Space | None
) -> tuple[int, Column]:
    """Return a field that comes from no dataset, for the samples of all layouts."""
    given = [layout.columns[k][1] for layout in layouts]
    number, first = layouts[0].columns[k]
    if first.space is not None:
        return number, replace(first, space=space)
    if first.values is None:
        return number, first
    values = _concatenated([one.values for one in given])
    return number, replace(first, values=values, starts=starts if first.by_rows else ())


def _concatenated(several: Sequence[Any]) -> Any:
    """Put arrays, or lists, one behind the other; None for none."""
    if several[0] is None:
        return None
    return np.concatenate(several) if isinstance(several[0], np.ndarray) else [*itertools.chain(*several)]


def _joined_space(layouts: Sequence[SampleLayout]) -> Space | None:
    given = [layout.space for layout in layouts]
    if all(space is None for space in given):
        return None
    spaces = [space for space in given if space is not None]
    if any(space.edges is None for space in spaces):
        raise OptionError(
            "samples=Boxes(...), and objects that are stored in different ways, are of one H5Dataset; give that all "
            "files"
        )
    first = spaces[0]
    if len(spaces) < len(given) or any(space.pad != first.pad for space in spaces):
        raise OptionError("datasets that are read as one must have samples= of one kind, padded alike")
    if any(space.columns != ("",) for space in spaces):
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
    parts = tuple(replace(dataset[k], file=files[dataset[k].file], row_start=start) for dataset in layout.aligned)
    return FileParts(rows=parts[0].rows, fields=layout.fields, parts=parts, entries=layout.entries)


def _grouping(layout: SampleLayout) -> tuple[tuple[int, ...], ...]:
    """Return which fields are filled from one dataset: members of a compound, for instance."""
    return tuple(tuple(target.field for target in parts[0].targets) for parts in layout.aligned)


def _field_by_field(file: FileParts) -> FileParts:
    """Return every field a part of its own, where elsewhere they come from other datasets together."""
    alone: list[tuple[int, DatasetPart]] = [
        (target.field, replace(part, targets=(target,))) for part in file.parts for target in part.targets
    ]
    return replace(file, parts=tuple(part for _, part in sorted(alone, key=lambda pair: pair[0])))

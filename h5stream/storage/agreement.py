"""Several files that are read as one must agree in the shape and type of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError
from h5stream.samples.ragged import Ragged
from h5stream.samples.space import Along
from h5stream.storage.extents import Volume
from h5stream.storage.layout import VIA_H5PY, DatasetPart, FieldLayout
from h5stream.storage.rowbox import column_pieces
from h5stream.storage.source import SourceIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class FileParts:
    """What one file holds of a sample."""

    rows: int  # its rows
    fields: tuple[FieldLayout, ...]  # the entries of a batch, as this file would give them
    parts: tuple[DatasetPart, ...]  # the datasets that they are read from
    entries: tuple[Any, ...]  # as in `SampleLayout.entries`
    volume: Volume | None = None  # what is known of that, where samples are parts of a volume
    once: tuple[tuple[int, Any], ...] = ()  # by field number, what all of its rows have
    are_objects: bool = False  # whether its rows are objects; `once` then has an array or a list of a value for each
    # the row of each object, where these do not follow one another as they are asked for
    anchors: NDArray[np.int64] | None = None


def check_alike(
    files: list[FileParts], identities: tuple[SourceIdentity, ...], labels: Sequence[str] | None = None
) -> None:
    """Refuse files whose rows differ in shape or type; `labels` says what each is called."""
    first = files[0]
    called = [repr(identity.path) for identity in identities] if labels is None else labels
    for other, identity, label in zip(files[1:], identities[1:], called[1:], strict=True):
        where = "" if label == repr(identity.path) else f" in {label}"
        for a, b in zip(first.fields, other.fields, strict=False):
            wrong = _difference(a, b, called[0], where)
            if wrong:
                raise FieldLengthError(f"{identity.path!r}: {wrong}", field=b.name, file=identity.path)
        if len(other.fields) != len(first.fields) or other.entries != first.entries:
            raise FieldLengthError(
                f"{identity.path!r}: its compound members are not those of {identities[0].path!r}", file=identity.path
            )


def _difference(a: FieldLayout, b: FieldLayout, first: str, where: str) -> str:
    """Say in what a field differs from that of the first file; nothing where it does not."""
    if (a.kind, a.dtype, a.unit, a.row_shape, a.cast) != (b.kind, b.dtype, b.unit, b.row_shape, b.cast):
        return (
            f"field {b.name!r} has rows of {_words(b)}{where}, but {a.name!r} in {first} has rows of {_words(a)}; what "
            f"is read as one must agree{_hint(a, b)}"
        )
    if a.normalise != b.normalise:
        return (
            f"field {b.name!r} is normalised otherwise than {a.name!r} in {first}; what is read as one has one "
            "normalise="
        )
    if not _come_alike(a.ragged, b.ragged):
        return (
            f"field {b.name!r} takes other columns, or comes in another form{where} than in {first}; what is read as "
            "one has one columns= and ragged="
        )
    if a.categories != b.categories:
        return (
            f"the categories of {b.name!r} are not those of {first}, so a code would mean one thing here and another "
            f"there; name {b.name + '/codes'!r} to take them as numbers"
        )
    return ""


def _come_alike(a: Ragged | None, b: Ragged | None) -> bool:
    """Tell whether two fields come in one form, and of sparse matrices the same columns at the same places."""
    return a == b and (a is None or b is None or np.array_equal(np.asarray(a.places), np.asarray(b.places)))


def _hint(a: FieldLayout, b: FieldLayout) -> str:
    """Name the axis along which rows of unlike length lie, if it is one."""
    inner = 0 if a.steps is None else 1
    if a.dtype != b.dtype or len(a.row_shape) != len(b.row_shape):
        return ""
    unlike = [axis for axis, (m, n) in enumerate(zip(a.row_shape, b.row_shape, strict=True)) if m != n]
    if len(unlike) != 1 or unlike[0] < inner:
        return ""
    axis = unlike[0] + 1 - inner
    return (
        f". They differ along axis {axis}: if that is time, Sequences(..., axis={axis}) makes samples along it; else "
        "Field(..., ragged='arrays') with samples=Rows(of=...) gives each row in its own shape"
    )


def _words(field: FieldLayout) -> str:
    cast = "" if field.cast is None else f" cast to {field.cast}"
    return f"{field.unit or field.dtype} {field.row_shape}{cast}"


def with_room_for_all(files: list[FileParts], labels: Sequence[str]) -> list[FileParts]:
    """Give fields of which each file's samples have a shape of their own room for the largest along each axis."""
    for number, field in enumerate(files[0].fields):
        if field.shapes is None:
            continue
        shapes = [file.fields[number].row_shape for file in files]
        unlike = next((k for k, shape in enumerate(shapes) if len(shape) != len(shapes[0])), None)
        if unlike is not None:
            raise FieldLengthError(
                f"field {field.name!r} has {len(shapes[unlike])} axes in {labels[unlike]}, and {len(shapes[0])} in "
                f"{labels[0]}; ragged='arrays' takes arrays of as many axes, of any length each",
                field=field.name,
            )
        room = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        files = [_with_room(file, number, room) for file in files]
    return files


def _with_room(file: FileParts, number: int, room: tuple[int, ...]) -> FileParts:
    fields, parts = list(file.fields), list(file.parts)
    fields[number] = replace(fields[number], row_shape=room)
    for place, part in enumerate(parts):
        if any(target.field == number for target in part.targets):
            sizes = iter(room)
            along = (Along(range(next(sizes))) if one.is_whole else one for one in part.along)
            parts[place] = replace(part, along=tuple(along))
    return replace(file, fields=tuple(fields), parts=tuple(parts))


def with_like_strings(files: list[FileParts]) -> list[FileParts]:
    """Let libhdf5 cut strings at their NUL where only some of the files hold strings that end there.

    A batch mixes rows of several files, so its strings can only be treated alike.
    """
    flags = [{file.fields[i].cut_at_nul for file in files} for i in range(len(files[0].fields))]
    unlike = {i for i, seen in enumerate(flags) if len(seen) > 1}
    return [_with_strings_cut(file, unlike) for file in files] if unlike else files


def _with_strings_cut(file: FileParts, unlike: set[int]) -> FileParts:
    cut = {i for i in unlike if file.fields[i].cut_at_nul}
    return replace(
        file,
        fields=tuple(replace(f, cut_at_nul=f.cut_at_nul and i not in unlike) for i, f in enumerate(file.fields)),
        parts=tuple(
            _through_h5py(part) if any(t.field in cut for t in part.targets) and part.index is not None else part
            for part in file.parts
        ),
    )


def _through_h5py(part: DatasetPart) -> DatasetPart:
    assert part.index is not None
    row_shape = part.index.shape[1:]
    return replace(
        part,
        access=VIA_H5PY,
        reason="its strings end at a NUL, those of the other files do not",
        index=None,
        pieces=column_pieces(row_shape, row_shape, part.columns),
        targets=tuple(replace(target, leaf=None) for target in part.targets),
    )

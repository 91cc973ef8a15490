"""Names of columns: what a file says that each index along an axis of a row is, such as a gene, or a latitude.

AnnData has them in the index of ``var``, 10x in ``features``, netCDF and all who use HDF5's dimension scales in those.
They are read where rows of several files are joined, or where a user names columns.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.storage.decode.columns import ColumnNames
from h5stream.storage.decode.elements import to_be_read
from h5stream.storage.source.handles import DAMAGE, open_file
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.remote import ObjectIdentity, opened_with

_NO_NAMES = "This is a netCDF dimension but not a netCDF variable"
"""How a dimension scale begins that netCDF wrote for a dimension without values; its ``NAME`` says so."""

_MOST_NAMES = 1 << 24
"""Names of an axis that are read; a damaged file may claim more."""


@dataclass(frozen=True, slots=True)
class AxisNames:
    """Where the names of the columns along one axis are, and which of these a field takes."""

    identity: SourceIdentity
    path: str  # of the dataset that has them
    member: str  # of its elements; empty if they are no compound
    axis: int  # the dataset's
    taken: tuple[int, ...] | None = None  # their numbers, in order; None for all

    @property
    def is_known_like(self) -> tuple[str, str, str, int, tuple[int, ...] | None]:
        """What two have in common that need not be read to be compared."""
        return self.identity.path, self.path, self.member, self.axis, self.taken

    def read(self) -> NDArray[Any]:
        """Read the names: of columns that are taken, as an array of texts or numbers."""
        known = [self.identity] if isinstance(self.identity, ObjectIdentity) else []
        context = opened_with(None, known=known) if known else contextlib.nullcontext()
        with context, open_file(self.identity.path) as file:
            names = _names_in(file[self.path], self.member)
        return names if self.taken is None else names[list(self.taken)]


def _names_in(dataset: Any, member: str) -> NDArray[Any]:
    """Return the names in a dataset, texts as such."""
    with to_be_read(dataset) as opened:
        values = np.asarray(opened[member] if member else opened[()])
    if values.dtype.kind not in "SO":
        return values
    texts = [one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one) for one in values.tolist()]
    return np.array(texts, dtype=object)


def axis_names(
    file: Any, path: str, identity: SourceIdentity, width: int = 0, *, first: int = 1
) -> tuple[AxisNames, ...]:
    """Find the names of a dataset's columns, from its `first` axis on, or of those of a sparse matrix of some width."""
    with contextlib.suppress(*DAMAGE):
        thing = file[path]
        shape: tuple[int, ...] = (0, width) if width else thing.shape or ()
        for where, member in _candidates(file, path) if len(shape) == 2 else ():
            if _count(file, where) == shape[1]:
                return (AxisNames(identity, where, member, 1),)
        if (
            not width
            and len(shape) > first
            and "DIMENSION_LIST" in thing.attrs
            and thing.file.filename == file.filename
        ):
            scales = ((axis, _scale(thing, axis)) for axis in range(first, len(shape)))
            return tuple(AxisNames(identity, where, "", axis) for axis, where in scales if where)
    return ()


def _candidates(file: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield where AnnData and 10x have the names of columns, and the member of it."""
    above, _, leaf = path.strip("/").rpartition("/")
    if above.rpartition("/")[2] == "layers":
        above, leaf = above.rpartition("/")[0], "X"
    root = f"{above}/" if above else ""
    if leaf == "X" and (var := file.get(f"{root}var")) is not None:
        if isinstance(var, h5py.Group):
            index = var.attrs.get("_index", "_index")
            yield f"{root}var/{index.decode() if isinstance(index, bytes) else index}", ""
        elif var.dtype.names:  # before AnnData 0.7
            yield from ((f"{root}var", name) for name in ("index", "_index") if name in var.dtype.names)
    if isinstance(file.get(path), h5py.Group):
        yield from ((f"{path}/{inner}", "") for inner in ("features/id", "genes"))


def _count(file: Any, path: str) -> int:
    """Return how many names a dataset has; -1 if it has none."""
    names = file.get(path)
    has_names = isinstance(names, h5py.Dataset) and names.shape is not None and len(names.shape) == 1
    return len(names) if has_names and len(names) <= _MOST_NAMES else -1


def _scale(dataset: Any, axis: int) -> str:
    """Return the path of the scale of an axis that has a text or a number for each index; empty without one."""
    scales = dataset.dims[axis]
    scale = scales[0] if len(scales) else None
    if scale is None or scale.shape != (dataset.shape[axis],) or scale.shape[0] > _MOST_NAMES or not scale.name:
        return ""
    label = scale.attrs.get("NAME", b"")
    is_plain = (label if isinstance(label, str) else bytes(label).decode("latin-1")).startswith(_NO_NAMES)
    is_text = scale.dtype.kind == "S" or h5py.check_string_dtype(scale.dtype) is not None
    return "" if is_plain or not (is_text or scale.dtype.kind in "iuf") else str(scale.name).strip("/")


# --- comparing them, and choosing columns by them


def unlike_names(first: Sequence[AxisNames], other: Sequence[AxisNames], field: str, where: tuple[str, str]) -> str:
    """Say which columns of two datasets have other names, and what to do about it; empty if none have."""
    by_axis = {one.axis: one for one in first}
    for theirs in other:
        ours = by_axis.get(theirs.axis)
        if ours is None or ours.is_known_like == theirs.is_known_like:
            continue
        a, b = ours.read(), theirs.read()
        if len(a) != len(b) or (wrong := _first_unlike(a, b)) is None:
            continue
        here, elsewhere = (names.tolist()[wrong] for names in (a, b))
        said = (
            f"index {wrong} of axis {ours.axis} of field {field!r} is {elsewhere!r} in {where[1]} ({theirs.path!r}), "
        )
        said += f"and {here!r} in {where[0]}, so that a column of a joined matrix would have two meanings"
        if ours.axis == 1 and a.dtype.kind == "O":
            is_same = sorted(a.tolist()) == sorted(b.tolist())
            said += f". Field({field!r}, columns='by name') lines columns up, " * is_same
            said += ". " * (not is_same) + f"columns=[{a[0]!r}, ...] {'also ' * is_same}takes those that are named"
            return f"{said}, and columns='by place' takes them as they are"
        return f"{said}. Field({field!r}, columns='by place') takes them as they are"
    return ""


def _first_unlike(a: NDArray[Any], b: NDArray[Any]) -> int | None:
    """Return the first place at which names differ; numbers may differ by their rounding."""
    if "O" in (a.dtype.kind, b.dtype.kind):
        unlike = np.array([str(x) != str(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], dtype=bool)
    else:
        unlike = ~np.isclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-6, atol=0, equal_nan=True)
    places = np.flatnonzero(unlike)
    return int(places[0]) if len(places) else None


def chosen_by_name(wanted: ColumnNames, names: Sequence[str], first: Sequence[str]) -> list[int]:
    """Return the numbers of the columns that are named, in that order; or those of `first`, the first file's names."""
    place_of, twice = dict[str, int](), set[str]()
    for k, name in enumerate(names):
        twice |= {name} if place_of.setdefault(name, k) != k else set()
    sought = wanted.names or first
    if wrong := next((name for name in sought if name in twice), None):
        raise OptionError(
            f"columns= goes by names, and {wrong!r} is that of several columns; columns=[0, 1] takes numbers"
        )
    if lacking := [name for name in sought if name not in place_of]:
        there = reprlib.repr([*place_of])
        raise OptionError(
            f"columns= names {len(lacking):,} column(s) that it lacks, {reprlib.repr(lacking)}; it has {there}"
        )
    if not wanted.names and len(place_of) > len(sought):
        more = reprlib.repr([*place_of.keys() - set(sought)][:1])
        said = f"columns='by name' needs the columns of the first file, and there is {more} besides"
        raise OptionError(f"{said}; columns=[...] names those that are wanted")
    return [place_of[name] for name in sought]


def moved(places: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return where each column of a matrix is in another one that has the same wanted; None if it is there, too.

    Both say which place in a row of a batch each column has, -1 for none; the last of the other has none.
    """
    if len(places) <= len(reference) and np.array_equal(places, reference[: len(places)]):
        return None
    by_place = np.argsort(np.where(reference < 0, len(reference), reference), kind="stable")
    return np.where(places < 0, len(reference) - 1, by_place[np.maximum(places, 0)])

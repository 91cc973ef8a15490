"""Names of columns: labels in a file for the indices along an axis of a row, such as genes or latitudes.

AnnData stores them in the index of ``var``, 10x in ``features``, and netCDF in HDF5's dimension scales. They are read
if rows of several files are joined, or if a user selects columns by name.
"""

from __future__ import annotations

import contextlib
import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import counted
from h5stream.errors import OptionError
from h5stream.storage.decode.columns import ColumnNames
from h5stream.storage.decode.pipeline import check_stored
from h5stream.storage.decode.values import safe_to_read
from h5stream.storage.source.handles import DAMAGE, open_file
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.remote import ObjectIdentity, opened_with

_NO_NAMES = "This is a netCDF dimension but not a netCDF variable"
"""The beginning of ``NAME`` in a dimension scale that netCDF wrote for a dimension without values."""

MATRIX_PATH = re.compile(r"(^|/)(X|layers/[^/]+)$")
"""The paths of datasets that are matrices of AnnData, whose columns have names."""

_MOST_NAMES = 1 << 24
"""The most names of an axis that are read; a damaged file may claim more."""


@dataclass(frozen=True, slots=True)
class AxisNames:
    """The dataset with the names of the columns along one axis, and the columns that a field takes."""

    identity: SourceIdentity
    path: str  # of the dataset
    member: str  # of its elements, if they are compounds; otherwise empty
    axis: int  # the axis whose columns are named
    taken: tuple[int, ...] | None = None  # numbers of the selected columns, in order; None for all

    @property
    def key(self) -> tuple[str, str, str, int, tuple[int, ...] | None]:
        """A key; names with equal keys are equal without reading them."""
        return self.identity.path, self.path, self.member, self.axis, self.taken

    def read(self) -> np.ndarray:
        """Read the names of the selected columns, as an array of texts or numbers."""
        objects = [self.identity] if isinstance(self.identity, ObjectIdentity) else []
        context = opened_with(None, identities=objects) if objects else contextlib.nullcontext()
        with context, open_file(self.identity.path) as file:
            names = _names_in(file[self.path], self.member)
        return names if self.taken is None else names[list(self.taken)]


def _names_in(dataset: h5py.Dataset, member: str) -> np.ndarray:
    """Return the names in a dataset; strings are decoded."""
    check_stored(dataset)
    with safe_to_read(dataset) as opened:
        values = np.asarray(opened[member] if member else opened[()])
    if values.dtype.kind not in "SO":
        return values
    texts = [one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one) for one in values.tolist()]
    return np.array(texts, dtype=object)


def axis_names(
    file: h5py.File, path: str, identity: SourceIdentity, width: int | None = None, *, first: int = 1
) -> tuple[AxisNames, ...]:
    """Find the names of a dataset's columns, from axis `first` on, or of a sparse matrix's `width` columns."""
    with contextlib.suppress(*DAMAGE):
        node = file[path]
        shape: tuple[int, ...] = (0, width) if width is not None else node.shape or ()
        is_matrix = isinstance(node, h5py.Group) or MATRIX_PATH.search(path.strip("/"))
        for where, member in _candidates(file, path) if is_matrix and len(shape) == 2 else ():
            if _count(file, where) == shape[1]:
                return (AxisNames(identity, where, member, 1),)
        if (
            width is None
            and len(shape) > first
            and "DIMENSION_LIST" in node.attrs
            and node.file.filename == file.filename
        ):
            scales = ((axis, _scale(node, axis)) for axis in range(first, len(shape)))
            return tuple(AxisNames(identity, where, "", axis) for axis, where in scales if where)
    return ()


def _candidates(file: h5py.File, path: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and members that AnnData and 10x use for the names of columns."""
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


def _count(file: h5py.File, path: str) -> int:
    """Return the number of names in a dataset; -1 if it cannot contain names."""
    names = file.get(path)
    has_names = isinstance(names, h5py.Dataset) and names.shape is not None and len(names.shape) == 1
    return len(names) if has_names and len(names) <= _MOST_NAMES else -1


def _scale(dataset: h5py.Dataset, axis: int) -> str:
    """Return the path of the dimension scale that labels each index of an axis; empty without one."""
    scales = dataset.dims[axis]
    scale = scales[0] if len(scales) else None
    if scale is None or scale.shape != (dataset.shape[axis],) or scale.shape[0] > _MOST_NAMES or not scale.name:
        return ""
    label = scale.attrs.get("NAME", b"")
    is_plain = (label if isinstance(label, str) else bytes(label).decode("latin-1")).startswith(_NO_NAMES)
    is_text = scale.dtype.kind == "S" or h5py.check_string_dtype(scale.dtype) is not None
    return "" if is_plain or not (is_text or scale.dtype.kind in "iuf") else str(scale.name).strip("/")


# --- comparing names, and selecting columns by name


def unlike_names(first: Sequence[AxisNames], other: Sequence[AxisNames], field: str, where: tuple[str, str]) -> str:
    """Return a message about the first column whose names differ in two datasets; empty if none do."""
    by_axis = {one.axis: one for one in first}
    for theirs in other:
        named = by_axis.get(theirs.axis)
        if named is None or named.key == theirs.key:
            continue
        a, b = named.read(), theirs.read()
        if len(a) != len(b) or (wrong := _first_difference(a, b)) is None:
            continue
        here, elsewhere = (names.tolist()[wrong] for names in (a, b))
        message = (
            f"index {wrong} of axis {named.axis} of field {field!r} is {elsewhere!r} in {where[1]} ({theirs.path!r}), "
        )
        message += f"and {here!r} in {where[0]}, so that a column of a joined matrix would have two meanings"
        if named.axis == 1 and a.dtype.kind == "O":
            is_same = sorted(a.tolist()) == sorted(b.tolist())
            message += f". Field({field!r}, columns='by name') lines columns up, " * is_same
            message += ". " * (not is_same) + f"columns=[{a[0]!r}, ...] {'also ' * is_same}takes those that are named"
            return f"{message}, and columns='by place' takes them as they are"
        return f"{message}. Field({field!r}, columns='by place') takes them as they are"
    return ""


def _first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    """Return the first index at which names differ; numbers may differ by rounding."""
    if "O" in (a.dtype.kind, b.dtype.kind):
        unlike = np.array([str(x) != str(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], dtype=bool)
    else:
        unlike = ~np.isclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-6, atol=0, equal_nan=True)
    places = np.flatnonzero(unlike)
    return int(places[0]) if len(places) else None


def chosen_by_name(wanted: ColumnNames, names: Sequence[str], first: Sequence[str]) -> list[int]:
    """Return the numbers of the wanted columns, in that order, or of those in `first`, the first file's names."""
    place_of, twice = dict[str, int](), set[str]()
    for k, name in enumerate(names):
        twice |= {name} if place_of.setdefault(name, k) != k else set()
    sought = wanted.names or first
    if wrong := next((name for name in sought if name in twice), None):
        raise OptionError(
            f"columns= goes by names, and {wrong!r} is that of several columns; columns=[0, 1] takes numbers"
        )
    if lacking := [name for name in sought if name not in place_of]:
        available = reprlib.repr([*place_of])
        raise OptionError(
            f"columns= names {counted(len(lacking), 'column')} that it lacks, {reprlib.repr(lacking)}; "
            f"it has {available}"
        )
    if not wanted.names and len(place_of) > len(sought):
        more = reprlib.repr([*place_of.keys() - set(sought)][:1])
        problem = f"columns='by name' needs the columns of the first file, and there is {more} besides"
        raise OptionError(f"{problem}; columns=[...] names those that are wanted")
    return [place_of[name] for name in sought]


def moved(places: np.ndarray, reference: np.ndarray) -> NDArray[np.int64] | None:
    """Map the columns of a matrix to the columns of a reference matrix; None if the numbers agree.

    Both arguments are the position of each column in a row of a batch, -1 for none; the reference's last has none.
    """
    if len(places) <= len(reference) and np.array_equal(places, reference[: len(places)]):
        return None
    by_place = np.argsort(np.where(reference < 0, len(reference), reference), kind="stable")
    return np.where(places < 0, len(reference) - 1, by_place[np.maximum(places, 0)])

"""Clues of what a dataset or a group is for: its attributes, how its first values begin, what its numbers count."""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from h5stream.errors import H5StreamError
from h5stream.storage.images import format_of
from h5stream.storage.sparse import is_matrix, shape_of

MANY_ALIKE, SOME_ALIKE = 200, 32
"""Names in a group that differ in their digits alone: of more than so many, so many are looked at."""

COUNTED_NBYTES = 1 << 23
"""Bytes of a dataset of integers that is read as a whole; of a larger one, its ends are."""

_WORDS = 8
"""Texts that are looked at."""

_UNREADABLE = (OSError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError, H5StreamError)
_BOOKKEEPING = re.compile(
    r"_|[A-Z_0-9]+$|MATLAB_|encoding|FIELD_\d|pandas_|(units|long_name|standard_name|missing_value|nrows|data_columns|"
    r"index_cols|info|levels|metadata|non_index_axes|table_type|values_cols|errors|nblocks|axis\d_variety)$"
)
"""Attributes that say something of the file's form, and not of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the numbers of a dataset of integers are, one a row.

    Attributes
    ----------
    first, last : int
        The first and the last of them.
    total : int
        Their sum; -1 where only the ends were read.
    least, most : int
        The smallest and the largest.
    changes : int
        How often one differs from that before it; -1 where only the ends were read.
    is_rising : bool
        Whether none is smaller than that before it.
    """

    first: int
    last: int
    total: int = -1
    least: int = 0
    most: int = 0
    changes: int = -1
    is_rising: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """Clues of what a dataset is for.

    Attributes
    ----------
    attributes : tuple of str
        Attributes that can be fields.
    image : str
        ``"jpeg"``, ``"png"`` or ``"webp"`` where its first values begin like that; else empty.
    counts : Counts or None
        Of a dataset of integers with one axis.
    words : tuple of str
        The first texts of a dataset of texts with one axis.
    """

    attributes: tuple[str, ...] = ()
    image: str = ""
    counts: Counts | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """A group, and how many of the links in it were looked at.

    Attributes
    ----------
    links, looked_at : int
        Links, and those that were followed.
    dead : tuple of str
        Those of the latter that lead nowhere.
    attributes : tuple of str
        Attributes that can be fields.
    sparse : str
        ``"rows"`` for a sparse matrix that lies row by row; for others why they cannot be streamed; else empty.
    width : int
        Columns of such a matrix.
    """

    links: int
    looked_at: int
    dead: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    sparse: str = ""
    width: int = 0


def some_of(names: Sequence[str]) -> list[str]:
    """Choose which of a group's names to look at: all, but of those that differ in their digits alone a few.

    Examples
    --------
    >>> len(some_of([f"trace_{k}" for k in range(100_000)] + ["about"]))
    33
    """
    families: dict[str, list[str]] = defaultdict(list)
    for name in names:
        families[re.sub(r"\d+", "0", name)].append(name)
    if len(families) > MANY_ALIKE:  # keys, of which none is like another
        families = {"": list(names)}
    return sorted(name for members in families.values() for name in _spread(members))


def _spread(names: list[str]) -> list[str]:
    count = len(names)
    return names if count <= MANY_ALIKE else [names[k * (count - 1) // (SOME_ALIKE - 1)] for k in range(SOME_ALIKE)]


def group_clues(path: str, group: Any, links: int, names: Sequence[str]) -> GroupEntry:
    """Look at a group, and at the links of it that are followed."""
    looked_at = len(names)
    sparse, width = "", 0
    with contextlib.suppress(*_UNREADABLE):
        if looked_at == links and is_matrix(group):
            try:
                _, width = shape_of(group, path, "")
                sparse = "rows"
            except H5StreamError as error:
                sparse = str(error).removeprefix("'': ")
    return GroupEntry(
        links=links,
        looked_at=looked_at,
        dead=tuple(name for name in names if _or(lambda name=name: _is_dead(group, name), False)),
        attributes=_attributes(group),
        sparse=sparse,
        width=width,
    )


def _is_dead(group: Any, name: str) -> bool:
    return group.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_SOFT and group.get(name) is None


def dataset_clues(dataset: Any) -> Clues:
    """Look at a dataset; what cannot be read gives no clue."""
    return Clues(
        attributes=_attributes(dataset),
        image=_or(lambda: _image(dataset), ""),
        counts=_or(lambda: _counts(dataset), None),
        words=_or(lambda: _words(dataset), ()),
    )


def _or(ask: Any, otherwise: Any) -> Any:
    try:
        return ask()
    except _UNREADABLE:
        return otherwise


def _attributes(thing: Any) -> tuple[str, ...]:
    names = _or(lambda: [name for name in thing.attrs if not _BOOKKEEPING.match(name)], [])
    return tuple(name for name in names[:64] if _or(lambda name=name: _can_be_field(thing.attrs.get_id(name)), False))


def _can_be_field(attribute: Any) -> bool:
    dtype = attribute.dtype
    small = attribute.shape is not None and math.prod(attribute.shape) <= 64
    return small and (dtype.kind in "iufbS" or h5py.check_string_dtype(dtype) is not None)


def _image(dataset: Any) -> str:
    dtype, shape = dataset.dtype, dataset.shape
    inside = h5py.check_vlen_dtype(dtype)
    is_whole = not shape or (len(shape) == 1 and dtype == np.uint8)
    is_rows = len(shape or ()) == 1 and (dtype.kind in "VS" or inside == np.uint8)
    is_padded = len(shape or ()) == 2 and dtype == np.uint8
    if shape is None or dtype.names or not (is_rows or is_padded or (is_whole and dtype.kind in "VSu")):
        return ""
    if 0 in shape or dtype.itemsize * math.prod(dataset.chunks or (1,)) > 1 << 26:
        return ""
    if is_whole:
        heads = [np.asarray(dataset[()] if not shape else dataset[:16])]
    else:
        heads = [dataset[k] if len(shape) == 1 else dataset[k, :16] for k in sorted({0, shape[0] // 2, shape[0] - 1})]
    formats = {format_of(np.asarray(head).tobytes()[:16]) for head in heads if np.asarray(head).size}
    return formats.pop() if len(formats) == 1 else "auto" if formats and "" not in formats else ""


def _counts(dataset: Any) -> Counts | None:
    shape, dtype = dataset.shape, dataset.dtype
    if shape is None or len(shape) != 1 or dtype.kind not in "iub" or not shape[0]:
        return None
    if shape[0] * dtype.itemsize > COUNTED_NBYTES:
        return Counts(first=int(dataset[0]), last=int(dataset[-1]))
    values = dataset[:].astype(np.int64)
    steps = np.diff(values)
    return Counts(
        first=int(values[0]),
        last=int(values[-1]),
        total=int(values.sum()),
        least=int(values.min()),
        most=int(values.max()),
        changes=int((steps != 0).sum()),
        is_rising=bool((steps >= 0).all()),
    )


def _words(dataset: Any) -> tuple[str, ...]:
    is_text = dataset.dtype.kind == "S" or h5py.check_string_dtype(dataset.dtype) is not None
    if not dataset.shape or len(dataset.shape) != 1 or not is_text:
        return ()
    return tuple(one.decode() for one in dataset[:_WORDS].tolist())

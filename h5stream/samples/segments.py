"""Which rows belong together, by what a file says: segments that sequences stay in, stretches of ragged fields.

Segments are consecutive and cover all rows, so they are kept as *edges*: segment ``k`` holds the rows ``edges[k]`` to
``edges[k + 1]``. An empty one has two equal edges.
"""

from __future__ import annotations

import reprlib
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError

Ints = NDArray[np.int64]
Edges = Ints


class _Named:
    """What datasets say, which are named."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in names_of(self):  # type: ignore[arg-type]
            if not isinstance(name, str) or not name:
                raise OptionError(
                    f"{type(self).__name__} takes the path of a dataset, not {reprlib.repr(name)}; write what is in "
                    "memory into a dataset of the file"
                )


@dataclass(frozen=True, slots=True, init=False)
class Ends:
    """Segments that end where a field says so, as ``terminals`` and ``timeouts`` of a replay buffer do.

    Parameters
    ----------
    *fields : str
        Fields of one number or flag a row; a segment ends with each row at which one of them is not zero, and with the
        last row.

    Raises
    ------
    OptionError
        If no field is named.

    Examples
    --------
    >>> Ends("terminals", "timeouts").fields
    ('terminals', 'timeouts')
    """

    fields: tuple[str, ...]

    def __init__(self, *fields: str) -> None:
        if not fields or not all(isinstance(field, str) for field in fields):
            raise OptionError(f"Ends takes names of fields, such as Ends('terminals', 'timeouts'), not {fields!r}")
        object.__setattr__(self, "fields", fields)


@dataclass(frozen=True, slots=True)
class Ids(_Named):
    """Segments of rows that have one number, as ``trajectory_id`` gives it; each change begins another.

    Parameters
    ----------
    field : str
        A field of one value a row.
    """

    field: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The field that is read."""
        return (self.field,)


@dataclass(frozen=True, slots=True)
class Lengths(_Named):
    """Segments whose numbers of rows a dataset holds, one behind the other.

    Parameters
    ----------
    name : str
        The dataset, of one number a segment.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Bounds(_Named):
    """Segments whose first rows a dataset holds, or whose ends; 0 and the number of rows may be there or not.

    Parameters
    ----------
    name : str
        The dataset, of ascending row numbers; whole ones may be stored as floats, as MATLAB does.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Between(_Named):
    """Stretches whose first and last rows two datasets hold; a first row of -1 says that a sample has none.

    Parameters
    ----------
    first, last : str
        The datasets, of one row number a sample.
    inclusive : bool, keyword-only
        Whether the last row belongs to the stretch.

    Examples
    --------
    >>> Between("img_to_first_box", "img_to_last_box", inclusive=True).names
    ('img_to_first_box', 'img_to_last_box')
    """

    first: str
    last: str
    _: KW_ONLY
    inclusive: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets that say it."""
        return (self.first, self.last)


Said = Ends | Ids | Lengths | Bounds
Stretches = Bounds | Lengths | Between


def names_of(said: Said | Stretches) -> tuple[str, ...]:
    """Return the datasets that say which rows belong together."""
    if isinstance(said, (Ends, Ids)):
        return said.fields
    return said.names if isinstance(said, Between) else (said.name,)


def edges_of(said: Said, values: list[NDArray[Any]], rows: int) -> Edges:
    """Return the edges of segments, from the values of what says where they end."""
    if isinstance(said, Ends):
        ends = np.zeros(rows, dtype=bool)
        for name, flags in zip(said.fields, values, strict=True):
            ends |= _one_a_row(flags, name, rows) != 0
        return _covering(np.flatnonzero(ends) + 1, rows)
    if isinstance(said, Ids):
        ids = _one_a_row(values[0], said.field, rows)
        return _covering(np.flatnonzero(ids[1:] != ids[:-1]) + 1, rows) if rows else np.zeros(1, dtype=np.int64)
    numbers = whole_numbers(values[0], said.name)
    if isinstance(said, Bounds):
        if len(numbers) and (numbers.min() < 0 or numbers.max() > rows or (np.diff(numbers) < 0).any()):
            few = f"{numbers[:6].tolist()} and {len(numbers) - 6:,} more" if len(numbers) > 7 else str(numbers.tolist())
            raise OptionError(
                f"Bounds({said.name!r}): bounds are ascending row numbers from 0 to {rows:,}, and these are "
                f"{few}; Lengths takes numbers of rows, Ids numbers that are alike within a segment"
            )
        return _covering(numbers, rows)
    if len(numbers) and numbers.min() < 0:
        raise OptionError(f"Lengths({said.name!r}): lengths are 0 or more, and one is {numbers.min()}")
    edges = np.append(0, np.cumsum(numbers))
    if edges[-1] != rows:
        raise OptionError(
            f"Lengths({said.name!r}): the lengths add up to {edges[-1]:,}, but the fields have {rows:,} rows"
        )
    return edges


def _covering(edges: Edges, rows: int) -> Edges:
    """Return edges with 0 and the number of rows at their ends."""
    if not len(edges) or edges[0] > 0:
        edges = np.append(0, edges)
    return edges if edges[-1] == rows else np.append(edges, rows)


def _one_a_row(values: NDArray[Any], name: str, rows: int) -> NDArray[Any]:
    if values.shape[:1] != (rows,) or values.size != rows:
        raise OptionError(
            f"field {name!r} is to say where segments end, so it has one value for each of {rows:,} rows; its shape "
            f"is {values.shape}"
        )
    return values.reshape(rows)


def whole_numbers(values: NDArray[Any], name: str) -> Edges:
    """Return what a dataset holds as row numbers; refuse what are none."""
    flat = np.asarray(values).reshape(-1)
    wrong = flat[flat != np.floor(flat)] if flat.dtype.kind == "f" else flat[: flat.dtype.kind not in "iu"]
    if len(wrong):
        raise OptionError(f"{name!r} is to hold whole numbers of rows, and has {wrong[0]} ({flat.dtype})")
    return flat.astype(np.int64)


def inside(said: Stretches, group: str) -> Stretches:
    """Look its datasets up in a group, unless their names begin with a slash."""
    names = [name if name.startswith("/") else f"{group}/{name}" for name in names_of(said)]
    return replace(said, first=names[0], last=names[1]) if isinstance(said, Between) else replace(said, name=names[0])


def stretches_of(said: Stretches, values: list[NDArray[Any]], samples: int, rows: int) -> tuple[Ints, Ints]:
    """Return the first row of each sample, and how many it has."""
    found = [whole_numbers(each, name) for name, each in zip(names_of(said), values, strict=True)]
    for name, numbers in zip(names_of(said), found, strict=True):
        if len(numbers) != samples and not isinstance(said, Bounds):
            raise OptionError(f"{name!r} has {len(numbers):,} numbers, and there are {samples:,} samples")
    if isinstance(said, Bounds):
        bounds = _all_bounds(said, found[0], samples, rows)
        first, count = bounds[:-1], np.diff(bounds)
    elif isinstance(said, Lengths):
        first, count = np.cumsum(found[0]) - found[0], found[0]
    else:
        first = np.maximum(found[0], 0)
        count = np.where(found[0] < 0, 0, found[1] + said.inclusive - first)
    wrong = np.flatnonzero((count < 0) | (first < 0) | (first + count > rows))
    if len(wrong):
        one = wrong[0]
        raise OptionError(
            f"{' and '.join(map(repr, names_of(said)))}: sample {one:,} is said to have rows {first[one]:,} to "
            f"{first[one] + count[one]:,} (exclusive), and there are {rows:,} rows; {len(wrong):,} of {samples:,} "
            "samples go backwards or beyond. See whether these numbers are of this dataset"
        )
    return first, count


def _all_bounds(said: Bounds, bounds: Ints, samples: int, rows: int) -> Ints:
    """Return where each sample begins, and where the last ends."""
    if len(bounds) == samples:
        if samples and bounds[0] == 0 and bounds[-1] == rows:
            raise OptionError(
                f"{said.name!r} has one number for each of {samples:,} samples, from 0 to {rows:,}, so it may say "
                "where they begin or where they end; Lengths or Between say it without doubt"
            )
        bounds = np.append(bounds, rows) if samples and bounds[0] == 0 else np.append(0, bounds)
    if len(bounds) != samples + 1:
        raise OptionError(
            f"{said.name!r} has {len(bounds):,} bounds, and {samples:,} samples need {samples + 1:,}: where each "
            "begins, and where the last ends"
        )
    return bounds

"""Which rows belong together, by what a file says: segments that sequences stay in, stretches of ragged fields.

Segments are consecutive and cover all rows, so they are kept as *edges*: segment ``k`` holds the rows ``edges[k]`` to
``edges[k + 1]``. An empty one has two equal edges.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import check_ordered
from h5stream.errors import OptionError

Ints = NDArray[np.int64]
Edges = Ints


def as_array(values: Any) -> NDArray[Any]:
    """Return an array of what a user gave: this room knows no torch, but tensors come here, from any device."""
    check_ordered("an array of values", values)
    try:
        found = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError) as error:  # lists of unlike lengths, and tensors of torch's own types
        raise OptionError(
            f"an array of values takes what NumPy can hold, each entry of the same shape, and not "
            f"{reprlib.repr(values)} ({error}); give one value for each, or a tensor of another type or layout"
        ) from None
    is_listed = found.dtype.kind == "f" and isinstance(values, list | tuple) and bool(values)
    if is_listed and all(isinstance(one, int) for one in values):
        return np.array(values, dtype=object)  # on both sides of 2**63: as floats several would be one
    return found


class _Said:
    """What datasets say, by their paths, or arrays in memory: all fields are that but those that are keywords alone."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, value in zip(self._given(), _said(type(self), self.names), strict=True):
            object.__setattr__(self, name, value)

    def _given(self) -> list[str]:
        return [one.name for one in dataclasses.fields(self) if not one.kw_only]  # type: ignore[arg-type]

    @property
    def names(self) -> tuple[Any, ...]:
        """The datasets, or the arrays, that say it."""
        return tuple(getattr(self, name) for name in self._given())


def _said(kind: type, given: Sequence[Any]) -> tuple[Any, ...]:
    """Return the paths of datasets, or the arrays, that were given to a kind; refuse what is neither."""
    if given and all(isinstance(one, str) and one for one in given):
        return tuple(given)
    if not given:
        raise OptionError(f"{kind.__name__} takes names of fields, such as Ends('terminals', 'timeouts'), or arrays")
    holds, found = {"Ends": "flags", "Ids": "values"}.get(kind.__name__, "whole numbers"), [*map(as_array, given)]
    for one, array in zip(given, found, strict=True):
        if array.ndim != 1 or (array.dtype.kind not in "biuf" and kind is not Ids):
            raise OptionError(
                f"{kind.__name__} takes the path of a dataset, or an array of {holds} with one axis, and not "
                f"{reprlib.repr(one)}"
            )
    return tuple(whole_numbers(one, kind.__name__) if holds == "whole numbers" else one for one in found)


@dataclass(frozen=True, slots=True, init=False)
class Ends(_Said):
    """Segments that end where a field says so, as ``terminals`` and ``timeouts`` of a replay buffer do.

    Parameters
    ----------
    *fields : str or array-like
        Fields of one number or flag per row, or such arrays for all rows of all files. A segment ends with each row at
        which one of them is not zero, and with the last row of a file.

    Raises
    ------
    OptionError
        If nothing is given, or something that is neither a path nor such an array.

    Examples
    --------
    >>> Ends("terminals", "timeouts").fields
    ('terminals', 'timeouts')
    """

    fields: tuple[Any, ...]

    def __init__(self, *fields: Any) -> None:
        object.__setattr__(self, "fields", _said(Ends, fields))

    @property
    def names(self) -> tuple[Any, ...]:
        """The fields."""
        return self.fields


@dataclass(frozen=True, slots=True)
class Ids(_Said):
    """Segments of rows with the same value, such as a ``trajectory_id``; each change of the value begins a new one.

    Parameters
    ----------
    field : str or array-like
        A field of one value per row, or such an array for all rows of all files; a segment also ends with its file.
    """

    field: Any


@dataclass(frozen=True, slots=True)
class Lengths(_Said):
    """Segments that follow one another, whose numbers of rows are in a dataset.

    Parameters
    ----------
    name : str or array-like
        The dataset, with one number per segment, or an array of those of all files.
    """

    name: Any


@dataclass(frozen=True, slots=True)
class Bounds(_Said):
    """Segments whose first rows, or ends, are in a dataset.

    As ``of=``, 0 and the number of rows may be left out. As ``lookup=``, n samples have n + 1 numbers, where each
    begins and where the last ends; or n numbers, where each begins if the first is 0, or where each ends (exclusive) if
    the last is the number of rows. Numbers that may be read in two ways are refused, and `holds` says which it is.

    Parameters
    ----------
    name : str or array-like
        The dataset of ascending row numbers, which may be stored as floats, as MATLAB does. Or an array, whose numbers
        count through all files, such as `searchsorted` makes from times. As ``lookup=`` also a dataset of region
        references, one per sample, each to consecutive rows of the dataset that is looked up.
    holds : str, optional, keyword-only
        ``"starts"``, where each sample begins, the last one ending with the last row; ``"ends"``, where each ends
        (exclusive), the first one beginning with row 0; or ``"bounds"``, where each begins and where the last ends.
    base : int, keyword-only
        The number of the first row: 0, or 1 if rows are counted from 1, as in MATLAB and Fortran. Numbers of last rows
        counted from 1 are exclusive ends counted from 0: ``holds="ends"``.

    Raises
    ------
    OptionError
        If an argument is none of these.

    Examples
    --------
    >>> Bounds("rx_sample_start_index", holds="starts", base=1).base
    1
    """

    name: Any
    _: KW_ONLY
    holds: Literal["starts", "ends", "bounds"] | None = None
    base: int = 0

    def __post_init__(self) -> None:
        if self.holds not in (None, *_HOLDS):
            raise OptionError(f"Bounds: holds= is 'starts', 'ends' or 'bounds', not {self.holds!r}")
        if isinstance(self.base, bool) or self.base not in (0, 1):
            raise OptionError(f"Bounds: base= is the number of the first row, 0 or 1, not {self.base!r}")
        _Said.__post_init__(self)


_HOLDS = ("starts", "ends", "bounds")


@dataclass(frozen=True, slots=True)
class Between(_Said):
    """Consecutive rows, whose first and last are in two datasets; a first row of -1 says that a sample has no rows.

    Parameters
    ----------
    first, last : str or array-like
        The datasets, with one row number per sample, or two such arrays, which count through all files.
    inclusive : bool, keyword-only
        Whether the last row belongs to the sample.

    Raises
    ------
    OptionError
        If `last` is missing, or something is given that is neither a path nor such an array.

    Examples
    --------
    >>> Between("img_to_first_box", "img_to_last_box", inclusive=True).names
    ('img_to_first_box', 'img_to_last_box')
    """

    first: Any
    last: Any = None
    _: KW_ONLY
    inclusive: bool = False

    def __post_init__(self) -> None:
        if self.last is None:
            raise OptionError(
                f"Between takes two, first and last, and has only {reprlib.repr(self.first)}. Of a dataset of pairs, "
                "(n, 2), write Between(pairs[:, 0], pairs[:, 1]) with pairs = file[NAME][:]"
            )
        _Said.__post_init__(self)


@dataclass(frozen=True, slots=True, eq=False)
class RowLists:
    """Any rows in any order, those of one sample after those of the other, and how many each sample has."""

    rows: Ints
    counts: Ints

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def are_even(self) -> bool:
        """Whether each sample has as many."""
        return not len(self.counts) or int(self.counts.min()) == int(self.counts.max())


def row_lists(values: Any, what: str) -> RowLists | None:
    """Return lists of rows, one for each sample; None for what is an array of one axis, or of more than two."""
    each = values if isinstance(values, (list, tuple)) else as_array(values)
    if isinstance(each, np.ndarray) and (each.dtype.kind != "O" or each.ndim != 1):
        if each.ndim != 2 or (each.size and each.dtype.kind not in "iu"):
            return None
        return RowLists(whole_numbers(each, f"{what}: lookup="), np.full(len(each), each.shape[1], dtype=np.int64))
    is_read = isinstance(each, np.ndarray) and not len(each)  # nothing tells what is of variable length then
    if not (is_read or any(map(_is_list, each))):
        return None
    lists = [np.zeros(0, dtype=np.int64)]
    for k, one in enumerate(each):
        rows = as_array(one) if _is_list(one) else None
        if rows is None or rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            shown = repr(one) if rows is None else f"{rows.dtype} {rows.shape}"
            raise OptionError(
                f"{what}: lookup= takes a list of row numbers for each sample, and sample {k:,} has {shown}"
            )
        lists.append(whole_numbers(rows, f"{what}: lookup=") if rows.size else lists[0])
    return RowLists(np.concatenate(lists), np.array([len(one) for one in lists[1:]], dtype=np.int64))


def _is_list(one: Any) -> bool:
    return isinstance(one, Sized) and not isinstance(one, (str, bytes)) and getattr(one, "ndim", 1) > 0


Said = Ends | Ids | Lengths | Bounds
Stretches = Bounds | Lengths | Between


def in_memory(said: Any) -> bool:
    """Tell whether it is arrays, and not datasets, that say which rows belong together."""
    return isinstance(said, _Said) and not isinstance(said.names[0], str)


def samples_bounded(said: Bounds, numbers: int) -> int:
    """Return how many samples so many bounds are for, if nothing else says how many there are."""
    return max(0, numbers - (said.holds not in ("starts", "ends")))


def _written(said: Bounds, **options: Any) -> str:
    """Return how a user writes bounds with other options."""
    name = repr(said.name) if isinstance(said.name, str) else "..."
    every = {"holds": said.holds, "base": said.base or None} | options
    return f"Bounds({', '.join([name, *(f'{key}={one!r}' for key, one in every.items() if one)])})"


def called(name: Any) -> str:
    """Return what messages call a dataset, or an array in memory."""
    return repr(name) if isinstance(name, str) else f"the array of {len(name):,}"


def edges_over(said: Said, files: Edges) -> Edges:
    """Return the edges of segments that arrays say for the rows of all files, each of which ends a segment, too."""
    edges = edges_of(said, [*said.names], int(files[-1]))
    return np.sort(np.append(edges, np.setdiff1d(files, edges)))


def edges_of(said: Said, values: list[NDArray[Any]], rows: int) -> Edges:
    """Return the edges of segments, from the values of what says where they end."""
    if isinstance(said, Ends):
        ends = np.zeros(rows, dtype=bool)
        for name, flags in zip(said.names, values, strict=True):
            ends |= _one_a_row(flags, name, rows, "biuf") != 0
        return _covering(np.flatnonzero(ends) + 1, rows)
    if isinstance(said, Ids):
        ids = _one_a_row(values[0], said.field, rows, "biufcmMSUOV")
        return _covering(np.flatnonzero(ids[1:] != ids[:-1]) + 1, rows) if rows else np.zeros(1, dtype=np.int64)
    name = called(said.name)
    numbers = whole_numbers(values[0], name)
    if isinstance(said, Bounds):
        if len(numbers) and (
            numbers.min() < said.base or numbers.max() > rows + said.base or (numbers[1:] < numbers[:-1]).any()
        ):
            from_1 = numbers.min() >= 1 and numbers.max() == rows + 1 and not said.base
            raise OptionError(
                f"Bounds({name}): bounds are ascending row numbers from {said.base} to {rows + said.base:,}, and not "
                f"{reprlib.repr(numbers.tolist())}; "
                + (f"if they count from 1: {_written(said, base=1)}; " if from_1 else "")
                + "Lengths takes numbers of rows, Ids numbers that are the same within a segment"
            )
        _check_cuts(said, numbers, rows)
        return _covering(numbers - said.base, rows)
    if len(wrong := numbers[(numbers < 0) | (numbers > rows)]):  # before they are added up, which could wrap around
        raise OptionError(f"Lengths({name}): lengths are 0 or more, and of {rows:,} rows at most; one is {wrong[0]}")
    edges = np.append(0, np.cumsum(numbers))
    if edges[-1] != rows:
        raise OptionError(f"Lengths({name}): the lengths add up to {edges[-1]:,}, but the fields have {rows:,} rows")
    return edges


def _check_cuts(said: Bounds, numbers: Ints, rows: int) -> None:
    """Refuse edges of segments that are likely numbers of first rows from 1, or of last rows, one row away."""
    if said.holds or said.base or not len(numbers) or numbers[0] == 0 or rows < 2:
        return
    if numbers[0] == 1 or numbers[-1] == rows - 1:
        others = "first rows that count from 1" if numbers[0] == 1 else "last rows that count from 0"
        way_out = _written(said, holds="starts", base=1) if numbers[0] == 1 else "Bounds(LAST + 1) of an array"
        raise OptionError(
            f"{called(said.name)} says where segments of {rows:,} rows end, {reprlib.repr(numbers.tolist())}, and may "
            f"hold {others} as well: write {way_out}; or {_written(said, holds='ends')} if the numbers are right as "
            f"they are, and a segment has a single row"
        )


def _covering(edges: Edges, rows: int) -> Edges:
    """Return edges with 0 and the number of rows at their ends."""
    if not len(edges) or edges[0] > 0:
        edges = np.append(0, edges)
    return edges if edges[-1] == rows else np.append(edges, rows)


def _one_a_row(values: NDArray[Any], name: str, rows: int, kinds: str) -> NDArray[Any]:
    """Return a value for each row, of some kinds of NumPy types; objects must be texts."""
    if values.shape[:1] != (rows,) or values.size != rows:
        raise OptionError(
            f"field {called(name)} says where segments end, by one value for each of {rows:,} rows, not {values.shape}"
        )
    flat = values.reshape(rows)
    are_texts = flat.dtype.kind == "O" and all(isinstance(value, (str, bytes)) for value in flat)
    if flat.dtype.kind not in kinds or (flat.dtype.hasobject and not are_texts):
        what = "of variable length" if flat.dtype.hasobject else str(flat.dtype)
        takes = "numbers, or texts for Ids(...)"
        raise OptionError(f"field {called(name)} says where segments end, and its values are {what}: it takes {takes}")
    return flat


def whole_numbers(values: NDArray[Any], name: str) -> Edges:
    """Return what a dataset holds as row numbers; refuse what are none."""
    flat = np.asarray(values).reshape(-1)
    wrong = flat[: flat.dtype.kind not in "iu"]
    if flat.dtype.kind == "f":
        wrong = flat[(flat != np.floor(flat)) | (np.abs(flat) >= 2.0**63)]
    elif flat.dtype.kind == "u":
        wrong = flat[flat > np.iinfo(np.int64).max]
    if len(wrong):
        raise OptionError(f"{name} is to hold whole numbers of rows, and has {wrong[0]} ({flat.dtype})")
    return flat.astype(np.int64)


def renamed(said: Stretches, new: Callable[[str], str]) -> Stretches:
    """Return what says which rows belong together, with other paths of its datasets."""
    if in_memory(said):
        return said
    names = [*map(new, said.names)]
    return replace(said, first=names[0], last=names[1]) if isinstance(said, Between) else replace(said, name=names[0])


def stretches_of(
    said: Stretches, values: Sequence[NDArray[Any]], samples: int, rows: int, *, is_alone: bool = False
) -> tuple[Ints, Ints]:
    """Return the first row and the number of rows of each sample; alone, it also says how many samples there are."""
    names = [called(name) for name in said.names]
    numbers = [whole_numbers(each, name) for name, each in zip(names, values, strict=True)]
    for name, some in zip(names, numbers, strict=True):
        if len(some) != samples and not isinstance(said, Bounds):
            raise OptionError(f"{name} has {len(some):,} numbers, and there are {samples:,} samples")
    if isinstance(said, Bounds):
        bounds = _all_bounds(said, numbers[0], samples, rows)
        first, count = bounds[:-1], np.diff(bounds)
    elif isinstance(said, Lengths):
        first, count = np.cumsum(numbers[0]) - numbers[0], numbers[0]
    else:
        first = np.maximum(numbers[0], 0)
        count = np.where(numbers[0] < 0, 0, numbers[1] + said.inclusive - first)
    wrong = np.flatnonzero((count < 0) | (first < 0) | (count > rows - first))  # sums of what is wrong may wrap around
    if len(wrong):
        one = wrong[0]
        begin, end = int(first[one]), int(first[one]) + int(count[one])
        raise OptionError(
            f"{' and '.join(names)}: sample {one:,} is said to have rows {begin:,} to {end:,} (exclusive), and there "
            f"are {rows:,}; {len(wrong):,} of {samples:,} go backwards or beyond the end. Check that these numbers "
            f"belong to this dataset{_and_count_from_0(said)}"
        )
    if is_alone and isinstance(said, Bounds) and not said.holds and len(numbers[0]):
        _check_alone(said, bounds, rows)
    return first, count


def _and_count_from_0(said: Stretches) -> str:
    """Say what to write if numbers count from 1."""
    if isinstance(said, Bounds) and not said.base:
        return f"; if they count from 1, write {_written(said, base=1)}"
    return ", and count from 0" if isinstance(said, Between) else ""


def _all_bounds(said: Bounds, numbers: Ints, samples: int, rows: int) -> Ints:
    """Return where each sample begins, and where the last ends."""
    bounds, holds = numbers - said.base, said.holds
    if len(bounds) == samples + (holds == "bounds") and holds:
        return bounds if holds == "bounds" else np.append(0, bounds) if holds == "ends" else np.append(bounds, rows)
    if len(bounds) == samples and not holds:
        _check_either(said, bounds, rows)
        return np.append(bounds, rows) if samples and bounds[0] == 0 else np.append(0, bounds)
    if len(bounds) != samples + 1 or holds:
        needed = f"need {samples + 1:,}: where each begins, and where the last ends"
        if holds in ("starts", "ends"):
            needed = f"need as many: where each {'begins' if holds == 'starts' else 'ends'}"
        raise OptionError(
            f"{called(said.name)} has {len(bounds):,} bounds, and {samples:,} samples {needed}; pairs of begin and "
            "end, read from the file, are Between(pairs[:, 0], pairs[:, 1])"
        )
    return bounds


def _check_either(said: Bounds, bounds: Ints, rows: int) -> None:
    """Refuse one number for each sample that says neither where samples begin nor where they end, or may say both."""
    if (
        not len(bounds) or (np.append(0, bounds) == np.append(bounds, rows)).all()
    ):  # read in both ways they are the same
        return
    first, last = int(bounds[0]), int(bounds[-1])
    begin, end = first == 0, last == rows
    from_1 = first == 1 and not said.base and not (end and len(bounds) == 1)
    if begin != end and not from_1:
        return
    said_of = f"{called(said.name)} has one number for each of {len(bounds):,} samples, from {first:,} to {last:,}, "
    ways = _ways(said, "starts", "ends")
    if begin or end:
        raise OptionError(
            f"{said_of}and there are {rows:,} rows, so it may say where they begin or where they end: write {ways}"
        )
    raise OptionError(
        f"{said_of}and says neither where they begin, which is from 0 on, nor where they end, which is with the last "
        f"of {rows:,} rows: write {ways}"
    )


def _check_alone(said: Bounds, bounds: Ints, rows: int) -> None:
    """Refuse bounds that leave out rows, if nothing else says that they are no starts or ends of one sample more.

    Those in memory, as `searchsorted` makes, may leave out rows before the first and after the last.
    """
    first, last = int(bounds[0]), int(bounds[-1])
    if (first == 0 and last == rows) or (in_memory(said) and first > 1 and last != rows):
        return
    raise OptionError(
        f"{called(said.name)} has {len(bounds):,} numbers, from {first:,} to {last:,}, and there are {rows:,} rows. "
        f"Nothing else says how many samples there are, so it may bound {len(bounds) - 1:,} samples, or say where "
        f"{len(bounds):,} begin or end: write {_ways(said, 'bounds', 'starts', 'ends')}, or name a field with a row "
        "for each sample"
    )


def _ways(said: Bounds, *holds: str) -> str:
    """Return how a user writes each reading of numbers that have several."""
    from_1 = "" if said.base else f", with base=1 too if they count from 1: {_written(said, holds='starts', base=1)}"
    return f"{', or '.join(_written(said, holds=one) for one in holds)}{from_1}"


# --- times to rows

_PIECE_ROWS = 1 << 20


def searchsorted(dataset: Any, values: Any, side: Literal["left", "right"] = "left") -> Ints:
    """Find the rows at which values would be inserted in a dataset of ascending numbers, as `numpy.searchsorted` does.

    It turns times into rows: those of a camera's events between two frames, for ``lookup=Bounds(...)`` or
    ``Between(...)``, or that of the last record before a time, for `Table`. Only the pieces of the dataset that may
    contain a value are read, one at a time.

    Parameters
    ----------
    dataset : h5py.Dataset, H5Dataset or array
        One number per row, in ascending order. Rows of an `H5Dataset` of several files count through all files.
    values : array-like
        The numbers to look for, in any order.
    side : str
        ``"left"`` gives the first row that is not less than the value, ``"right"`` the first that is greater.

    Returns
    -------
    ndarray of int64
        A row number for each value, from 0 to the number of rows.

    Raises
    ------
    OptionError
        If the dataset does not have one number per row, or a piece that was read does not ascend.

    Examples
    --------
    >>> searchsorted(np.array([10, 20, 20, 30]), [20, 31])
    array([1, 4])
    """
    wanted = _signed(values)
    flat, found = wanted.reshape(-1), np.zeros(wanted.size, dtype=np.int64)
    left = [(0, len(dataset), np.arange(flat.size))]
    while left:
        low, high, which = left.pop()
        if not len(which):
            continue
        if high - low > _PIECE_ROWS:
            middle = (low + high) // 2
            number = _signed(dataset[middle])
            behind = flat[which] > number if side == "left" else flat[which] >= number
            left += [(low, middle, which[~behind]), (middle + 1, high, which[behind])]
            continue
        piece = _signed(dataset[low:high])
        if piece.ndim != 1 or (piece[1:] < piece[:-1]).any():
            what = "do not ascend" if piece.ndim == 1 else f"have the shape {piece.shape}"
            raise OptionError(
                f"searchsorted takes a dataset of one number a row, in ascending order; rows {low:,} to {high:,} {what}"
            )
        try:
            np.less(piece[:1], flat[:1])  # searchsorted itself would take a number for a text
            found[which] = low + np.searchsorted(piece, flat[which], side)
        except TypeError:
            raise OptionError(f"searchsorted cannot compare {piece.dtype} with {flat.dtype}") from None
    return found.reshape(wanted.shape)


def _signed(values: Any) -> NDArray[Any]:
    """Return numbers as NumPy compares them exactly: beside others it would make floats of large unsigned ones."""
    found = as_array(values)
    texts = found.dtype.kind == "O" and all(isinstance(one, (str, bytes)) for one in found.reshape(-1).tolist())
    if found.dtype.kind not in "biufmMSUT" and not texts:
        raise OptionError(f"searchsorted takes numbers, times or texts, which have an order, not {found.dtype}")
    fits = found.dtype == np.uint64 and not (found > np.iinfo(np.int64).max).any()
    return found.astype(np.int64) if fits else found

"""Grouping of rows as stored in a file: segments that sequences stay within, and row ranges of ragged fields.

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


def as_array(values: object) -> np.ndarray:
    """Return a user's values as an array; accepts tensors of any device without importing torch."""
    check_ordered("an array of values", values)
    try:
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, types of torch alone
        raise OptionError(
            f"an array of values takes what NumPy can hold, each entry of the same shape, and not "
            f"{reprlib.repr(values)} ({error}); give one value for each, or a tensor of another type or layout"
        ) from None
    is_float = array.dtype.kind == "f" and array.size
    if is_float and isinstance(values, list | tuple) and all(isinstance(one, int) for one in values):
        return np.array(values, dtype=object)  # on both sides of 2**63: distinct numbers would be equal as floats
    return array


class _RowSpec:
    """Base of specifications by dataset paths or arrays: the values of all fields that are not keyword-only."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, value in zip(self._source_names(), _checked_sources(type(self), self.names), strict=True):
            object.__setattr__(self, name, value)

    def _source_names(self) -> list[str]:
        return [one.name for one in dataclasses.fields(self) if not one.kw_only]  # type: ignore[arg-type]

    @property
    def names(self) -> tuple[Any, ...]:
        """The paths of the datasets, or the arrays."""
        return tuple(getattr(self, name) for name in self._source_names())


def _checked_sources(kind: type, sources: Sequence[object]) -> tuple[Any, ...]:
    """Return the dataset paths, or the arrays, of a specification; raise for anything else."""
    if sources and all(isinstance(one, str) and one for one in sources):
        return tuple(sources)
    if not sources:
        raise OptionError(f"{kind.__name__} takes names of fields, such as Ends('terminals', 'timeouts'), or arrays")
    holds, arrays = {"Ends": "flags", "Ids": "values"}.get(kind.__name__, "whole numbers"), [*map(as_array, sources)]
    for one, array in zip(sources, arrays, strict=True):
        if array.ndim != 1 or (array.dtype.kind not in "biuf" and kind is not Ids):
            raise OptionError(
                f"{kind.__name__} takes the path of a dataset, or an array of {holds} with one axis, and not "
                f"{reprlib.repr(one)}"
            )
    return tuple(whole_numbers(one, kind.__name__) if holds == "whole numbers" else one for one in arrays)


@dataclass(frozen=True, slots=True, init=False)
class Ends(_RowSpec):
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
        object.__setattr__(self, "fields", _checked_sources(Ends, fields))

    @property
    def names(self) -> tuple[Any, ...]:
        """The fields."""
        return self.fields


@dataclass(frozen=True, slots=True)
class Ids(_RowSpec):
    """Segments of rows with the same value, such as a ``trajectory_id``; each change of the value begins a new one.

    Parameters
    ----------
    field : str or array-like
        A field of one value per row, or such an array for all rows of all files; a segment also ends with its file.
    """

    field: Any


@dataclass(frozen=True, slots=True)
class Lengths(_RowSpec):
    """Segments that follow one another, whose numbers of rows are in a dataset.

    Parameters
    ----------
    name : str or array-like
        The dataset, with one number per segment, or an array of those of all files.
    """

    name: Any


@dataclass(frozen=True, slots=True)
class Bounds(_RowSpec):
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
        _RowSpec.__post_init__(self)


_HOLDS = ("starts", "ends", "bounds")


@dataclass(frozen=True, slots=True)
class Between(_RowSpec):
    """Consecutive rows, whose first and last are in two datasets; a first row of -1 marks a sample without rows.

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
        _RowSpec.__post_init__(self)


@dataclass(frozen=True, slots=True, eq=False)
class RowLists:
    """Rows in any order, sample by sample, and the number of rows of each sample."""

    rows: Ints
    counts: Ints

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def are_even(self) -> bool:
        """Whether all samples have the same number of rows."""
        return not len(self.counts) or int(self.counts.min()) == int(self.counts.max())


def row_lists(values: object, what: str) -> RowLists | None:
    """Return lists of rows, one per sample; None for arrays of one axis, or of more than two."""
    listed = values if isinstance(values, (list, tuple)) else as_array(values)
    if isinstance(listed, np.ndarray) and (listed.dtype.kind != "O" or listed.ndim != 1):
        if listed.ndim != 2 or (listed.size and listed.dtype.kind not in "iu"):
            return None
        return RowLists(
            whole_numbers(listed, f"{what}: lookup="),
            np.full(len(listed), listed.shape[1], dtype=np.int64),
        )
    is_read = isinstance(listed, np.ndarray) and not len(listed)  # empty: variable lengths cannot be recognized
    if not (is_read or any(map(_is_list, listed))):
        return None
    checked = [np.zeros(0, dtype=np.int64)]
    for k, one in enumerate(listed):
        rows = as_array(one) if _is_list(one) else None
        if rows is None or rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            shown = repr(one) if rows is None else f"{rows.dtype} {rows.shape}"
            raise OptionError(
                f"{what}: lookup= takes a list of row numbers for each sample, and sample {k:,} has {shown}"
            )
        checked.append(whole_numbers(rows, f"{what}: lookup=") if rows.size else checked[0])
    return RowLists(np.concatenate(checked), np.array([len(one) for one in checked[1:]], dtype=np.int64))


def _is_list(one: object) -> bool:
    return isinstance(one, Sized) and not isinstance(one, (str, bytes)) and getattr(one, "ndim", 1) > 0


Segmentation = Ends | Ids | Lengths | Bounds
Stretches = Bounds | Lengths | Between


def in_memory(spec: object) -> bool:
    """Return whether rows are specified by arrays in memory instead of datasets."""
    return isinstance(spec, _RowSpec) and not isinstance(spec.names[0], str)


def samples_bounded(bounds: Bounds, numbers: int) -> int:
    """Return the number of samples for a number of bounds, if nothing else defines it."""
    return max(0, numbers - (bounds.holds not in ("starts", "ends")))


def _written(bounds: Bounds, **options: object) -> str:
    """Return the code of bounds with other options, for messages."""
    name = repr(bounds.name) if isinstance(bounds.name, str) else "..."
    every = {"holds": bounds.holds, "base": bounds.base or None} | options
    return f"Bounds({', '.join([name, *(f'{key}={one!r}' for key, one in every.items() if one)])})"


def called(name: str | Sized) -> str:
    """Return the name of a dataset, or a description of an array, for messages."""
    return repr(name) if isinstance(name, str) else f"the array of {len(name):,}"


def edges_over(spec: Segmentation, files: Edges) -> Edges:
    """Return the edges of segments defined by arrays over the rows of all files; each file also ends a segment."""
    edges = edges_of(spec, [*spec.names], int(files[-1]))
    return np.sort(np.append(edges, np.setdiff1d(files, edges)))


def edges_of(spec: Segmentation, values: Sequence[np.ndarray], rows: int) -> Edges:
    """Return the edges of segments from the values that define them."""
    if isinstance(spec, Ends):
        ends = np.zeros(rows, dtype=bool)
        for name, flags in zip(spec.names, values, strict=True):
            ends |= _one_a_row(flags, name, rows, "biuf") != 0
        return _covering(np.flatnonzero(ends) + 1, rows)
    if isinstance(spec, Ids):
        ids = _one_a_row(values[0], spec.field, rows, "biufcmMSUOV")
        return _covering(np.flatnonzero(ids[1:] != ids[:-1]) + 1, rows) if rows else np.zeros(1, dtype=np.int64)
    name = called(spec.name)
    numbers = whole_numbers(values[0], name)
    if isinstance(spec, Bounds):
        if len(numbers) and (
            numbers.min() < spec.base or numbers.max() > rows + spec.base or (numbers[1:] < numbers[:-1]).any()
        ):
            from_1 = numbers.min() >= 1 and numbers.max() == rows + 1 and not spec.base
            raise OptionError(
                f"Bounds({name}): bounds are ascending row numbers from {spec.base} to {rows + spec.base:,}, and not "
                f"{reprlib.repr(numbers.tolist())}; "
                + (f"if they count from 1: {_written(spec, base=1)}; " if from_1 else "")
                + "Lengths takes numbers of rows, Ids numbers that are the same within a segment"
            )
        _check_cuts(spec, numbers, rows)
        return _covering(numbers - spec.base, rows)
    if len(wrong := numbers[(numbers < 0) | (numbers > rows)]):  # before they are added up, which could wrap around
        raise OptionError(f"Lengths({name}): lengths are 0 or more, and of {rows:,} rows at most; one is {wrong[0]}")
    edges = np.append(0, np.cumsum(numbers))
    if edges[-1] != rows:
        raise OptionError(f"Lengths({name}): the lengths add up to {edges[-1]:,}, but the fields have {rows:,} rows")
    return edges


def _check_cuts(spec: Bounds, numbers: Ints, rows: int) -> None:
    """Raise if edges of segments look like first rows counted from 1, or like last rows, one row off."""
    if spec.holds or spec.base or not len(numbers) or numbers[0] == 0 or rows < 2:
        return
    if numbers[0] == 1 or numbers[-1] == rows - 1:
        others = "first rows that count from 1" if numbers[0] == 1 else "last rows that count from 0"
        way_out = _written(spec, holds="starts", base=1) if numbers[0] == 1 else "Bounds(LAST + 1) of an array"
        raise OptionError(
            f"{called(spec.name)} says where segments of {rows:,} rows end, {reprlib.repr(numbers.tolist())}, and may "
            f"hold {others} as well: write {way_out}; or {_written(spec, holds='ends')} if the numbers are right as "
            f"they are, and a segment has a single row"
        )


def _covering(edges: Edges, rows: int) -> Edges:
    """Return edges extended to begin with 0 and end with the number of rows."""
    if not len(edges) or edges[0] > 0:
        edges = np.append(0, edges)
    return edges if edges[-1] == rows else np.append(edges, rows)


def _one_a_row(values: np.ndarray, name: str, rows: int, kinds: str) -> np.ndarray:
    """Return one value per row; raise unless their NumPy kind is one of `kinds` and objects are texts."""
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


def whole_numbers(values: np.ndarray, name: str) -> Edges:
    """Return a dataset's values as row numbers; raise if they are not whole numbers."""
    flat = np.asarray(values).reshape(-1)
    wrong = flat[: flat.dtype.kind not in "iu"]
    if flat.dtype.kind == "f":
        wrong = flat[(flat != np.floor(flat)) | (np.abs(flat) >= 2.0**63)]
    elif flat.dtype.kind == "u":
        wrong = flat[flat > np.iinfo(np.int64).max]
    if len(wrong):
        raise OptionError(f"{name} is to hold whole numbers of rows, and has {wrong[0]} ({flat.dtype})")
    return flat.astype(np.int64)


def renamed(spec: Stretches, new: Callable[[str], str]) -> Stretches:
    """Return a specification with its dataset paths mapped by `new`."""
    if in_memory(spec):
        return spec
    names = [*map(new, spec.names)]
    return replace(spec, first=names[0], last=names[1]) if isinstance(spec, Between) else replace(spec, name=names[0])


def stretches_of(
    spec: Stretches, values: Sequence[np.ndarray], samples: int, rows: int, *, is_alone: bool = False
) -> tuple[Ints, Ints]:
    """Return each sample's first row and number of rows; `is_alone` if only `spec` defines the number of samples."""
    names = [called(name) for name in spec.names]
    numbers = [whole_numbers(array, name) for name, array in zip(names, values, strict=True)]
    for name, array in zip(names, numbers, strict=True):
        if len(array) != samples and not isinstance(spec, Bounds):
            raise OptionError(f"{name} has {len(array):,} numbers, and there are {samples:,} samples")
    if isinstance(spec, Bounds):
        bounds = _all_bounds(spec, numbers[0], samples, rows)
        first, count = bounds[:-1], np.diff(bounds)
    elif isinstance(spec, Lengths):
        first, count = np.cumsum(numbers[0]) - numbers[0], numbers[0]
    else:
        is_none = (numbers[0] == -1) & (numbers[1] + spec.inclusive <= 0)
        first = np.where(is_none, 0, numbers[0])
        count = np.where(is_none, 0, numbers[1] + spec.inclusive - first)
    wrong = np.flatnonzero((count < 0) | (first < 0) | (count > rows - first))  # sums of what is wrong may wrap around
    if len(wrong):
        one = wrong[0]
        begin, end = int(first[one]), int(first[one]) + int(count[one])
        raise OptionError(
            f"{' and '.join(names)}: sample {one:,} is said to have rows {begin:,} to {end:,} (exclusive), and there "
            f"are {rows:,}; {len(wrong):,} of {samples:,} go backwards or beyond the end. Check that these numbers "
            f"belong to this dataset{_and_count_from_0(spec)}"
        )
    if is_alone and isinstance(spec, Bounds) and not spec.holds and len(numbers[0]):
        _check_alone(spec, bounds, rows)
    return first, count


def _and_count_from_0(spec: Stretches) -> str:
    """Return the hint for numbers that may count from 1."""
    if isinstance(spec, Bounds) and not spec.base:
        return f"; if they count from 1, write {_written(spec, base=1)}"
    return ", and count from 0" if isinstance(spec, Between) else ""


def _all_bounds(spec: Bounds, numbers: Ints, samples: int, rows: int) -> Ints:
    """Return the begin of each sample, and the end of the last."""
    bounds, holds = numbers - spec.base, spec.holds
    if len(bounds) == samples + (holds == "bounds") and holds:
        return bounds if holds == "bounds" else np.append(0, bounds) if holds == "ends" else np.append(bounds, rows)
    if len(bounds) == samples and not holds:
        _check_either(spec, bounds, rows)
        return np.append(bounds, rows) if samples and bounds[0] == 0 else np.append(0, bounds)
    if len(bounds) != samples + 1 or holds:
        needed = f"need {samples + 1:,}: where each begins, and where the last ends"
        if holds in ("starts", "ends"):
            needed = f"need as many: where each {'begins' if holds == 'starts' else 'ends'}"
        raise OptionError(
            f"{called(spec.name)} has {len(bounds):,} bounds, and {samples:,} samples {needed}; pairs of begin and "
            "end, read from the file, are Between(pairs[:, 0], pairs[:, 1])"
        )
    return bounds


def _check_either(spec: Bounds, bounds: Ints, rows: int) -> None:
    """Raise if one number per sample matches neither begins nor ends of samples, or both."""
    if not len(bounds) or (np.append(0, bounds) == np.append(bounds, rows)).all():  # both readings are equal
        return
    first, last = int(bounds[0]), int(bounds[-1])
    begin, end = first == 0, last == rows
    from_1 = first == 1 and not spec.base and not (end and len(bounds) == 1)
    if begin != end and not from_1:
        return
    intro = f"{called(spec.name)} has one number for each of {len(bounds):,} samples, from {first:,} to {last:,}, "
    ways = _ways(spec, "starts", "ends")
    if begin or end:
        raise OptionError(
            f"{intro}and there are {rows:,} rows, so it may say where they begin or where they end: write {ways}"
        )
    raise OptionError(
        f"{intro}and says neither where they begin, which is from 0 on, nor where they end, which is with the last "
        f"of {rows:,} rows: write {ways}"
    )


def _check_alone(spec: Bounds, bounds: Ints, rows: int) -> None:
    """Raise for bounds that leave out rows, unless something else rules out starts or ends of one more sample.

    Bounds in memory, as from `searchsorted`, may leave out rows before the first and after the last sample.
    """
    first, last = int(bounds[0]), int(bounds[-1])
    if (first == 0 and last == rows) or (in_memory(spec) and first > 1 and last != rows):
        return
    raise OptionError(
        f"{called(spec.name)} has {len(bounds):,} numbers, from {first:,} to {last:,}, and there are {rows:,} rows. "
        f"Nothing else says how many samples there are, so it may bound {len(bounds) - 1:,} samples, or say where "
        f"{len(bounds):,} begin or end: write {_ways(spec, 'bounds', 'starts', 'ends')}, or name a field with a row "
        "for each sample"
    )


def _ways(spec: Bounds, *holds: str) -> str:
    """Return the code of each possible reading of ambiguous numbers."""
    from_1 = "" if spec.base else f", with base=1 too if they count from 1: {_written(spec, holds='starts', base=1)}"
    return f"{', or '.join(_written(spec, holds=one) for one in holds)}{from_1}"


# --- times to rows

_PIECE_ROWS = 1 << 20


def searchsorted(dataset: Any, values: object, side: Literal["left", "right"] = "left") -> Ints:
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
    flat, rows = wanted.reshape(-1), np.zeros(wanted.size, dtype=np.int64)
    ranges = [(0, len(dataset), np.arange(flat.size))]
    while ranges:
        low, high, targets = ranges.pop()
        if not len(targets):
            continue
        if high - low > _PIECE_ROWS:
            middle = (low + high) // 2
            number = _signed(dataset[middle])
            behind = flat[targets] > number if side == "left" else flat[targets] >= number
            ranges += [(low, middle, targets[~behind]), (middle + 1, high, targets[behind])]
            continue
        piece = _signed(dataset[low:high])
        if piece.ndim != 1 or (piece[1:] < piece[:-1]).any():
            what = "do not ascend" if piece.ndim == 1 else f"have the shape {piece.shape}"
            raise OptionError(
                f"searchsorted takes a dataset of one number a row, in ascending order; rows {low:,} to {high:,} {what}"
            )
        try:
            np.less(piece[:1], flat[:1])  # searchsorted itself would take a number for a text
            rows[targets] = low + np.searchsorted(piece, flat[targets], side)
        except TypeError:
            raise OptionError(f"searchsorted cannot compare {piece.dtype} with {flat.dtype}") from None
    return rows.reshape(wanted.shape)


def _signed(values: object) -> np.ndarray:
    """Return numbers in types that NumPy compares exactly: small uint64 as int64, which would mix to floats."""
    array = as_array(values)
    texts = array.dtype.kind == "O" and all(isinstance(one, (str, bytes)) for one in array.reshape(-1).tolist())
    if array.dtype.kind not in "biufmMSUT" and not texts:
        raise OptionError(f"searchsorted takes numbers, times or texts, which have an order, not {array.dtype}")
    fits = array.dtype == np.uint64 and not (array > np.iinfo(np.int64).max).any()
    return array.astype(np.int64) if fits else array

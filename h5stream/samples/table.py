"""Tables: the user's list of samples, with the file or group and the first row of each."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import as_text, check_ordered
from h5stream.errors import OptionError
from h5stream.samples.kinds import Pad, check_steps, checked_pad, integer
from h5stream.samples.segments import Ints, as_array
from h5stream.samples.space import Space, Steps, space_of_rows

GROUP, FILE, ROW, START = "group", "file", "row", "start"

Parts = Mapping[tuple[int, str], int]
"""The number of each group, by the number of its file and its name."""


class Table:
    """Samples that a table lists, for every index of samples that no other class describes.

    Parameters
    ----------
    columns : mapping of str to array-like, pandas.DataFrame or structured array, optional
        Columns with a value for each sample; more columns may be given as arguments.
    length : int, optional, keyword-only
        Rows of a sample, for fields without a ``take=`` of their own. Without it, these fields give one row, and no
        axis of steps.
    pad : str or number, optional, keyword-only
        What fills steps outside of the group or file: see `Sequences`. By default such steps are an error.
    axis : int, optional, keyword-only
        The axis that samples lie along, if it is not the first. The column ``start`` then says where a sample begins on
        this axis, and the column ``row``, if there is one, its index of axis 0.
    **more : array-like
        Columns. ``row`` is the row at which a sample begins, counted from 0 in its group or file. ``group`` is the name
        of the group, and ``file`` the file: its number among the opened files, or its path. Without either, rows count
        through all files. Any other column of whole numbers is a row, too, for fields with ``take=Take(at=column)``;
        further columns are ignored.

    Attributes
    ----------
    columns : dict of str to ndarray or list
        The columns.
    pad, axis
        As given.

    Raises
    ------
    OptionError
        If there is no column ``row`` (with `axis`: ``start``), columns have different lengths, or rows are not whole
        numbers.

    Examples
    --------
    >>> len(Table(row=[0, 5, 5], group=["a", "a", "b"], length=4))
    3
    """

    def __init__(
        self,
        columns: Any = None,
        *,
        length: int | None = None,
        pad: Pad = None,
        axis: int | None = None,
        **more: object,
    ) -> None:
        self.columns = {name: _column(name, values) for name, values in (_named(columns) | more).items()}
        self.axis = None if axis is None else integer(axis, "axis")
        needed = ROW if axis is None else START
        if needed not in self.columns:
            raise OptionError(
                f"Table needs a column {needed!r}, where each sample begins in its group or file; its columns are "
                f"{', '.join(map(repr, self.columns)) or 'none'}"
            )
        for name in (ROW, START):
            values = self.columns.get(name)
            if values is not None and not isinstance(values, np.ndarray):
                raise OptionError(f"Table: column {name!r} holds whole numbers, and not such as {values[0]!r}")
        if axis is None and START in self.columns:
            raise OptionError("Table: column 'start' says where a sample begins along axis=, and there is none")
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            listing = ", ".join(f"{name!r} has {count:,}" for name, count in lengths.items())
            raise OptionError(f"the columns of a Table have one value for each sample, but {listing}")
        if not len(self):
            raise OptionError("the Table is empty; it lists at least one sample")
        if length is not None and integer(length, "length") < 1:
            raise OptionError(f"Table: length must be at least 1, not {length!r}")
        check_steps("Table: length", length or 1)
        self.length, self.pad = length, checked_pad("Table", pad)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __repr__(self) -> str:
        return f"Table({len(self):,} samples, columns {', '.join(self.columns)})"

    @property
    def steps(self) -> range | None:
        """The steps of a field that has none of its own; None for a single row."""
        return None if self.length is None else range(self.length)


def file_numbers(table: Table, paths: Sequence[str]) -> NDArray[np.int64] | None:
    """Return the number of each sample's file; None if no column has it."""
    files = table.columns.get(FILE)
    if files is None:
        return None
    if isinstance(files, np.ndarray):
        wrong = np.flatnonzero((files < 0) | (files >= len(paths)))
        if len(wrong):
            raise OptionError(
                f"Table: 'file' is {files[wrong[0]]} at {wrong[0]:,}, and {len(paths)} files are opened, from 0 on"
            )
        return files
    number_of = {path: number for number, path in enumerate(paths)}
    missing = next((path for path in files if path not in number_of), None)
    if missing is not None:
        raise OptionError(f"Table: 'file' names {missing!r}, which is not among the files: {reprlib.repr([*paths])}")
    return np.array([number_of[path] for path in files])


def groups_in(table: Table, number: int, paths: Sequence[str]) -> list[str] | None:
    """Return the groups of a file's samples, in the order of first appearance; None if no column has them."""
    groups, files = table.columns.get(GROUP), file_numbers(table, paths)
    if groups is None:
        return None
    if isinstance(groups, np.ndarray):
        raise OptionError("Table: 'group' holds names of groups, not numbers; numbers of files are 'file'")
    if files is None and len(paths) > 1:
        raise OptionError(f"Table: {len(paths)} files are opened, so beside 'group' it needs 'file'")
    members = groups if files is None else [groups[k] for k in np.flatnonzero(files == number).tolist()]
    return list(dict.fromkeys(members))


def _named(columns: Any) -> dict[str, object]:
    """Return the columns of any table-like object by name."""
    if columns is None:
        return {}
    names = columns.dtype.names if isinstance(columns, np.ndarray) else getattr(columns, "columns", None)
    if names is None and isinstance(columns, Mapping):
        names = columns
    if names is None:
        raise OptionError(f"Table takes columns by name, a mapping or a data frame, not {type(columns).__name__}")
    return {str(name): columns[name] for name in names}


def _column(name: str, values: object) -> Any:
    check_ordered(f"Table: column {name!r}", values)
    array = as_array(values)
    if array.ndim != 1:
        raise OptionError(
            f"Table: column {name!r} has one value for each sample, not the shape {array.shape}; what is no column is "
            "length=, pad= or axis="
        )
    if array.dtype.kind in "OUST":
        texts = [as_text(text) for text in array.tolist()]
        if not all(isinstance(text, str) for text in texts):
            return texts  # of no use here, as other columns of an index are
        return [text.strip("/") if name == GROUP else text for text in texts]
    if array.dtype.kind not in "iu" and not (array.dtype.kind == "f" and (array == np.floor(array)).all()):
        return array.tolist()
    return array.astype(np.int64)


def table_space(
    table: Table, edges: Ints, parts: Parts, paths: Sequence[str], fields: Sequence[tuple[str, Steps | None]]
) -> Space:
    """Return the space of a table's samples: the rows that they begin at."""
    part = part_of_each(table, parts, paths)
    names = tuple(dict.fromkeys([ROW, *(at for at, _ in fields)]))
    anchors = {name: table.columns[name] + (0 if part is None else edges[part]) for name in names}
    for column, steps in [(ROW, None), *fields]:
        # A sample must begin at an existing row even if its steps may be padded.
        first, last = (0, 0) if steps is None or table.pad is not None else (min(steps), max(steps))
        part_of_row = part
        if part_of_row is None:  # the group or file that contains each row; the nearest one for rows out of range
            part_of_row = np.searchsorted(edges, np.clip(anchors[column], 0, edges[-1] - 1), side="right") - 1
        rows = np.diff(edges)[part_of_row]
        check_begins(
            table, column, anchors[column] - edges[part_of_row], np.full(len(rows), -first), rows - 1 - last, rows
        )
    return space_of_rows(np.stack([anchors[name] for name in names]), edges, names, pad=table.pad)


def check_begins(table: Table, name: str, numbers: Ints, least: Ints, most: Ints, elements: Ints) -> None:
    """Raise if samples begin at missing rows, or if their steps reach outside without padding."""
    wrong = np.flatnonzero((numbers < least) | (numbers > most))
    if len(wrong):
        k = int(wrong[0])
        way_out = (
            "pad='edge' or 'zeros' fills in"
            if 0 <= numbers[k] < elements[k]
            else "steps= may lead out of it, with pad="
        )
        raise OptionError(
            f"Table: {name!r} is {table.columns[name][k]} at sample {k:,}, where {elements[k]:,} are there and a "
            f"sample may begin at {least[k]:,} to {most[k]:,}; so it is for {len(wrong):,} of {len(table):,}. {way_out}"
        )


def part_of_each(table: Table, parts: Parts, paths: Sequence[str]) -> Ints | None:
    """Return the number of each sample's part; None if rows count through all."""
    files = file_numbers(table, paths)
    if GROUP in table.columns:
        numbers = [0] * len(table) if files is None else files.tolist()
        return np.array([parts[key] for key in zip(numbers, table.columns[GROUP], strict=True)])
    return None if files is None else np.array([parts[number, ""] for number in range(len(paths))])[files]

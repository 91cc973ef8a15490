"""Looked-up fields: row numbers in another dataset, or in memory, select the rows of a dataset for each sample."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h5stream.errors import FieldLengthError, OptionError
from h5stream.samples.columns import DrawnRows, LookupFunction
from h5stream.samples.lookup import Lookup
from h5stream.samples.ragged import STACKED, Crop
from h5stream.samples.segments import Between, Bounds, RowLists, Stretches, samples_bounded, stretches_of
from h5stream.samples.space import Space
from h5stream.storage.decode.elements import joined_meanings, same_type
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.file.discovery import refusal
from h5stream.storage.layout.axis_names import unlike_names
from h5stream.storage.layout.layout import Entry, FieldLayout
from h5stream.storage.layout.parts import DatasetPart

APART = 4
"""Largest difference in length, in rows of the coarser field, of two fields that cover the same time.

A window of four hops leaves such a difference.
"""


LookupInMemory = NDArray[np.int64] | RowLists | Stretches | LookupFunction | None
"""A lookup= that is not in a file: the row of each sample, its rows, their bounds, or a function."""

Key = tuple[int, str]
"""Identifies a looked-up field: its place in a sample, and the part of a sparse matrix that it is ("" if none)."""


def width_mismatch(first: FieldLayout, other: FieldLayout, where: str = "", before: str = "") -> str:
    """Describe how two sparse matrices differ in the number or type of their columns; empty if they agree."""
    widths = [0 if one.ragged is None else one.ragged.matrix_width for one in (first, other)]
    names = [repr(one.name.removesuffix("/indices")) for one in (first, other)]
    name = "the one" if names[0] == names[1] else names[0]
    are_matrices = all(widths) or all(one.name.endswith("/indices") for one in (first, other))  # one has no columns
    if not (any(widths) and are_matrices):
        return ""
    if widths[0] == widths[1]:
        if first.dtype == other.dtype or other.ragged is None or other.ragged.places is not None:
            return ""
        return (
            f"field {names[1]} is a sparse matrix whose columns are {other.dtype}{where}, and those of {name}"
            f"{before or ' before it'} are {first.dtype}; matrices that are read as one have one type: write "
            "their indices with one, such as indices.astype('int64'), or make each a dataset of its own"
        )
    has = f"with {widths[1]:,} columns{where}, and {name}{before or ' before it'} has {widths[0]:,}"
    return (
        f"field {names[1]} is a sparse matrix {has}; matrices that are read as one have the same columns in the same "
        "order: write those that all have, as anndata.concat(..., join='inner') does, or make each a dataset of its own"
    )


def share_arrays(lookups: Sequence[Lookup]) -> tuple[Lookup, ...]:
    """Make lookups of the same rows share their arrays, so that the engine plans them together."""

    def are_same(one: Lookup, other: Lookup) -> bool:
        if one.counts is None or one.draw != other.draw or (one.paces is not None and one.length != other.length):
            return False
        pairs = [(getattr(one, name), getattr(other, name)) for name in ("rows", "counts", "listed", "spare", "paces")]
        return all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)

    result: list[Lookup] = []
    for one in lookups:
        twin = next((other for other in result if are_same(one, other)), one)
        same = {name: getattr(twin, name) for name in ("rows", "counts", "listed", "spare", "paces")}
        result.append(replace(one, **same))
    return tuple(result)


def snapshot(lookups: Mapping[Key, LookupBuilder]) -> dict[Key, tuple[int, int, int, int]]:
    """Return the lengths of each builder's lists, for `restore`."""
    return {key: (len(one.parts), len(one.ranges), len(one.chosen), len(one.listed)) for key, one in lookups.items()}


def restore(lookups: dict[Key, LookupBuilder], before: dict[Key, tuple[int, int, int, int]]) -> None:
    """Truncate each builder's lists to the lengths of a snapshot, and remove builders that it lacks."""
    for key, lookup in [*lookups.items()]:
        parts, ranges, chosen, listed = before.get(key, (0, 0, 0, 0))
        del lookup.parts[parts:], lookup.ranges[ranges:], lookup.chosen[chosen:], lookup.listed[listed:]
        if key not in before:
            del lookups[key]


def align_crops(lookups: Sequence[Lookup], crops: Sequence[Crop | None]) -> list[Lookup]:
    """Make the crops of a sample begin at the same time if their fields cover the same time.

    The shortest crop leads. A field that has `length / pace` times as many rows, within `APART` rows of the leader's,
    begins `length / pace` times as far. The leader begins only where the other crops have enough rows left.
    """
    result = list(lookups)
    for at in ("random", "center"):
        cropped = [k for k, crop in enumerate(crops) if crop is not None and crop.at == at]
        cropped.sort(key=lambda k: result[k].length)
        leaders = {k: np.full(len(result[k].rows), k) for k in cropped}
        own_spare = {k: one.spare for k, one in enumerate(result) if k in leaders and one.spare is not None}
        total, spare = {k: result[k].lengths + own_spare[k] for k in cropped}, dict(own_spare)
        for leader, k in itertools.combinations(cropped, 2):
            pace, length = result[leader].length, result[k].length
            follows = np.abs(total[k] * pace - total[leader] * length) <= APART * length
            follows &= (leaders[leader] == leader) & (leaders[k] == k)
            leaders[k][follows] = leader
            fitting = ((own_spare[k] + 1) * pace - 1) // length
            spare[leader] = np.where(follows, np.minimum(spare[leader], fitting), spare[leader])
        for k in cropped:
            begins, paces = spare[k], np.full(len(spare[k]), result[k].length)
            for leader in {*np.unique(leaders[k]).tolist()} - {k}:
                follows = leaders[k] == leader
                begins, paces = (
                    np.where(follows, spare[leader], begins),
                    np.where(follows, result[leader].length, paces),
                )
            own = result[k].length
            if at == "center":
                result[k] = replace(result[k], rows=result[k].rows + begins // 2 * own // paces, spare=None)
            else:
                result[k] = replace(result[k], spare=begins, paces=None if (paces == own).all() else paces)
    return result


def length_mismatch(lengths: Collection[int], reason: str = "") -> str:
    """Describe samples that have different numbers of rows of a field that needs the same number for each."""
    why = reason or "objects of lookup= have different lengths"
    why += f", {min(lengths):,} to {max(lengths):,} rows; "
    return f"{why}ragged='packed', 'pad', 'nested' or 'list' says how they come in a batch"


def enum_mismatch(name: str, why: str) -> str:
    """Describe why enums cannot be read as one field, and what to do instead."""
    return (
        f"field {name!r} is an enum whose {why}, so a code would not mean the same; write the files with one enum, or "
        "read them as datasets of their own"
    )


@dataclass(slots=True)
class LookupBuilder:
    """Collects a looked-up field while files are opened, and makes its `Lookup`."""

    name: str  # the field's, for messages
    # lookup= in memory; None if datasets have the rows
    from_user: LookupInMemory = None
    crop: Crop | None = None  # the part of a sample that is read; None for all
    parts: list[DatasetPart] = field(default_factory=list)  # the dataset, in turn
    # the row numbers that each part of the data looks up, in the whole dataset or, if there are any, in `ranges`
    chosen: list[NDArray[np.int64]] = field(default_factory=list)
    # for each sample of a part, or each item of `chosen`: its first row, its rows, and the rows that a crop leaves out
    ranges: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    # the rows that samples list, into which `ranges` then index
    listed: list[NDArray[np.int64]] = field(default_factory=list)
    layouts: list[FieldLayout] = field(default_factory=list)  # the fields of a batch that it fills
    entry: Entry = 0  # the numbers of these fields, once there are any
    objects: dict[str, tuple[int, int]] = field(default_factory=dict)  # by name: the first row, and the rows
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of each part, if objects differ in shape
    is_per_sample: bool = False  # whether the user gave rows for each sample, rather than a dataset for each row
    is_alone: bool = False  # whether the number of samples follows from this lookup alone
    is_elsewhere: bool = False  # whether the dataset is in the files of file=, whatever file names its rows

    @property
    def rows(self) -> int:
        """The number of rows of the dataset so far."""
        return self.parts[-1].row_start + self.parts[-1].rows if self.parts else 0

    @property
    def number(self) -> int:
        """The number of its field; raises TypeError for a compound, which has several."""
        if not isinstance(self.entry, int):
            raise TypeError(f"field {self.name!r} is a compound")
        return self.entry

    @property
    def count(self) -> int:
        """The number of samples that the user's lookup= is for; 0 if it does not say."""
        if isinstance(self.from_user, Stretches):
            numbers = len(self.from_user.names[0])
            return samples_bounded(self.from_user, numbers) if isinstance(self.from_user, Bounds) else numbers
        return len(self.from_user) if isinstance(self.from_user, np.ndarray | RowLists) else 0

    def add_part(self, part: DatasetPart, entry: Entry, layouts: list[FieldLayout], path: str) -> None:
        """Append a file's part of the dataset, after checking the fields that it fills."""
        self.check_layouts(layouts, path)
        self.entry = entry
        self.parts.append(part)

    def check_layouts(self, layouts: list[FieldLayout], path: str) -> None:
        """Check that a file fills the same fields as the files before, and join the meanings of enums."""
        expected = self.layouts = self.layouts or list(layouts)
        mine, before = (
            [replace(one, name="", labels=replace(one.labels, meanings=())) for one in side]
            for side in (layouts, expected)
        )
        if mine != before or not all(
            same_type(one.dtype, other.dtype) for one, other in zip(layouts, expected, strict=True)
        ):
            for other, one in zip(expected, layouts, strict=False):
                if why := width_mismatch(other, one):
                    raise refusal(path, self.name, f": {why}", FieldLengthError)
            texts = [
                ", ".join(f"{one.labels.unit or shown(one.dtype)} {one.row_shape}" for one in side)
                for side in (mine, before)
            ]
            if texts[0] == texts[1]:
                nul = [any(one.cut_at_nul for one in side) for side in (mine, before)]
                ends = "texts that end at a NUL", "texts that do not end at a NUL", "another form"
                texts = [
                    f"{text} ({ends[2 if nul[0] == nul[1] else not k]})" for text, k in zip(texts, nul, strict=True)
                ]
            why = f": field {self.name!r} has rows of {', and before of '.join(texts)}; they must agree in all but"
            raise refusal(path, self.name, f"{why} number; ragged='arrays' takes any shapes", FieldLengthError)
        for k, (one, other) in enumerate(zip(layouts, expected, strict=True)):
            both = (other.labels.meanings, "what was read before"), (one.labels.meanings, repr(path))
            meanings, why = joined_meanings(both)
            if why:
                raise refusal(path, self.name, f": {enum_mismatch(self.name, why)}", FieldLengthError)
            if meanings != other.labels.meanings:
                expected[k] = replace(other, labels=replace(other.labels, meanings=meanings))
            if why := unlike_names(other.labels.axes, one.labels.axes, self.name, ("what was read before", repr(path))):
                raise refusal(path, self.name, f": {why}", FieldLengthError)

    def add_chosen(self, values: ArrayLike, first: int, rows: int, path: str) -> None:
        """Add the row numbers in a dataset, which count from row `first` and refer to one of `rows` rows."""
        flat = np.asarray(values)
        flat = flat.reshape(-1) if flat.ndim > 1 and flat.size == len(flat) else flat
        if flat.ndim != 1 or flat.dtype.kind not in "iu":
            raise self._refused(
                repr(path), f"lookup= takes one whole number a row, or a list of them, not {flat.dtype} {flat.shape}"
            )
        row_numbers = flat.astype(np.int64)
        self._check(row_numbers, len(row_numbers), rows, path)
        self.chosen.append(row_numbers + first)

    def add_stretches(
        self, ranges: Stretches | RowLists, values: Sequence[np.ndarray], samples: int, first: int, where: str
    ) -> None:
        """Add the ranges, or lists, of rows of a part's samples, which count from row `first`."""
        if isinstance(ranges, RowLists):
            self._check_lists(ranges, samples, self.rows - first, where)
            begins = np.cumsum(ranges.counts) - ranges.counts + sum(map(len, self.listed))
            self.listed.append(ranges.rows + first)
            self.add_rows(begins, ranges.counts)
            return
        if self.is_elsewhere and self.ranges:
            self._check_says_where(ranges, len(values[0]) - samples, where)
        try:
            begins, counts = stretches_of(ranges, values, samples, self.rows - first, is_alone=self.is_alone)
        except OptionError as error:
            raise self._refused(where, str(error)) from None
        self._check_in_one(begins + first, counts, where)
        self.add_rows(begins + first, counts)

    def _check_says_where(self, ranges: Stretches, more: int, where: str) -> None:
        """Raise if a further file or group does not say where its rows begin in those of ``file=``."""
        if isinstance(ranges, Between) or (isinstance(ranges, Bounds) and more == 1):
            return
        what = type(ranges).__name__
        raise self._refused(
            where,
            f"{what}({ranges.names[0]!r}) of several files or groups does not say where in file= the rows of each "
            f"begin and end; pass one array, {what}(numbers of all samples), or write Between(first, end), whose "
            "numbers count through all of file=",
        )

    def add_values(self, part: DatasetPart, lengths: NDArray[np.uint32]) -> None:
        """Add a part whose rows are values of variable length, one for each sample."""
        if self.crop is not None and self.crop.at != "start":
            message = f"of values of variable length a crop takes the first items, at='start', not {self.crop.at!r}"
            raise OptionError(f"Field({self.name!r}): {message}; crop the batch in batch_transform=")
        self.add_rows(np.arange(part.row_start, part.row_start + part.rows), lengths.astype(np.int64))

    def add_rows(self, first: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add the first rows of samples and their numbers of rows, without the rows that the crop leaves out."""
        spare = np.zeros_like(counts) if self.crop is None else np.maximum(counts - self.crop.length, 0)
        self.ranges.append((first, counts - spare, spare))

    def lookup(self, dataset: int, rows: int, space: Space | None, paths: str) -> Lookup:
        """Return the rows of all samples as the `Lookup` of a dataset; errors name the paths."""
        of_samples = space is not None and (self.is_per_sample or self.from_user is not None)
        count = space.samples if space is not None and of_samples else rows
        if isinstance(self.from_user, Stretches):
            self.add_stretches(self.from_user, self.from_user.names, count, 0, paths)
        elif isinstance(self.from_user, RowLists):
            self.add_stretches(self.from_user, (), count, 0, paths)
        ranges = [np.concatenate(arrays) for arrays in zip(*self.ranges, strict=True)]
        first = ranges[0] if ranges else None
        among = self.rows if first is None else len(first)
        if callable(self.from_user):
            draw = DrawnRows(name=self.name, function=self.from_user, rows=among)
            draw.check(count)
            rows_of = np.zeros(0, dtype=np.int64) if first is None else first
            return Lookup(dataset=dataset, rows=rows_of, counts=ranges[1] if ranges else None, draw=draw)
        in_memory = self.from_user if isinstance(self.from_user, np.ndarray) else None
        chosen = np.concatenate(self.chosen) if self.chosen else in_memory
        anchors: Any = slice(None)
        if space is not None and not of_samples:
            anchors, count = _lookup_entries(space, count, among if chosen is None else len(chosen))
        if chosen is not None:
            self._check(chosen, count, among, paths)
            anchors = chosen[anchors]
        if first is None:
            return Lookup(dataset=dataset, rows=anchors)
        if chosen is None:
            self._check_stacked(count, paths)
        _, counts, spare = ranges
        listed = np.concatenate(self.listed) if self.listed else None
        lookup = Lookup(dataset=dataset, rows=first[anchors], counts=counts[anchors], listed=listed)
        if self.crop is None or self.crop.at == "start":
            return lookup
        return replace(lookup, spare=spare[anchors], length=self.crop.length)

    def _refused(self, paths: str, why: str) -> OptionError:
        return OptionError(f"{paths}: field {self.name!r}: {why}")

    def _check_in_one(self, first: NDArray[np.int64], counts: NDArray[np.int64], paths: str) -> None:
        """Raise if the rows of a sample are in more than one file or group."""
        ends, starts = first + counts, np.array([part.row_start for part in self.parts])
        last = np.searchsorted(starts, np.maximum(ends, first + 1), side="left")
        for k in np.flatnonzero((np.searchsorted(starts, first, side="right") != last) & (ends > first))[:1].tolist():
            message = f"sample {k:,} is said to have rows {first[k]:,} to {ends[k]:,} (exclusive), which are of several"
            raise self._refused(paths, f"{message} files or groups, that begin at {starts}")

    def _check_stacked(self, count: int, paths: str) -> None:
        """Raise if names are missing, or if lengths differ although all samples need the same."""
        if self.objects and (named := sum(len(first) for first, *_ in self.ranges)) != count:
            raise self._refused(paths, f"lookup= has {named:,} names, and needs one for each of {count:,}")
        ragged = self.layouts[0].ragged if self.layouts else None
        lengths = {rows for _, rows in self.objects.values()}
        if self.listed:
            lengths = {int(rows) for _, counts, spare in self.ranges for rows in np.unique(counts + spare)}
        if ragged is not None and ragged.form == STACKED and len(lengths) > 1:
            reason = "samples list different numbers of rows in lookup=" if self.listed else ""
            raise FieldLengthError(str(self._refused(paths, length_mismatch(lengths, reason))), field=self.name)

    def _check_lists(self, lists: RowLists, count: int, rows: int, paths: str) -> None:
        """Raise if there is not one list of rows for each sample, or if a list has a row out of range."""
        if len(lists) != count:
            raise self._refused(paths, f"lookup= has {len(lists):,} lists of rows, and needs one for each of {count:,}")
        wrong = np.flatnonzero((lists.rows < 0) | (lists.rows >= rows))
        if len(wrong):
            ends = np.cumsum(lists.counts)
            sample = int(np.searchsorted(ends, wrong[0], side="right"))
            place = int(wrong[0] - ends[sample] + lists.counts[sample])
            why = (
                f"lookup= names row {lists.rows[wrong[0]]} for sample {sample:,}, at {place:,} of its list, and there "
                f"are rows 0 to {rows - 1:,}; {len(wrong):,} of {len(lists.rows):,} are not there. Negative numbers do "
                "not count from the end; leave out those that stand for no row: lists of rows may differ in length"
            )
            raise self._refused(paths, why)

    def check_count(self, numbers: int, count: int, paths: str) -> None:
        """Raise if there is not one row number for each sample."""
        if numbers != count:
            message = f"lookup= has {numbers:,} numbers, and needs one for each of {count:,}; Bounds(...) takes where"
            raise self._refused(paths, f"{message} samples begin and end, and Field(..., file=) another file")

    def _check(self, row_numbers: NDArray[np.int64], count: int, rows: int, paths: str) -> None:
        """Raise if there is not one row number for each sample, or if one is out of range."""
        self.check_count(len(row_numbers), count, paths)
        wrong = np.flatnonzero((row_numbers < 0) | (row_numbers >= rows))
        if len(wrong):
            message = (
                f"lookup= names row {row_numbers[wrong[0]]} at {wrong[0]:,}, and there are rows 0 to {rows - 1:,}; "
            )
            message += (
                f"{len(wrong):,} of {count:,} are not there. Negative numbers do not count from the end; give samples "
            )
            raise self._refused(paths, f"{message}without one a row of their own, or leave them out of the file")


def _lookup_entries(space: Space, rows: int, entries: int) -> tuple[NDArray[np.int64], int]:
    """Return the index of each sample in a lookup, and how many items the lookup must have.

    It has one item for each row or, if samples run along another axis, one for each index of that axis or for each
    file or group.
    """
    numbers = np.arange(space.samples)
    if space.edges is not None or space.volumes.shape[1] != 1 or entries == rows:
        return space.anchors_of(numbers), rows
    volume, origins = space.boxes_of(numbers)
    ends = np.cumsum(space.volumes[:, 0])
    return (ends - space.volumes[:, 0])[volume] + origins[:, 0], int(ends[-1])

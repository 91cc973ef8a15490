"""Fields that are looked up: rows of a dataset that another one, or an array in memory, names for each sample."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError, OptionError
from h5stream.samples.columns import DrawnRows, LookupFunction
from h5stream.samples.ragged import STACKED, Crop
from h5stream.samples.segments import Bounds, RowLists, Stretches, samples_bounded, stretches_of
from h5stream.samples.space import Space
from h5stream.storage.decode.elements import joined_meanings, same_type
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.file.discovery import refusal
from h5stream.storage.layout.axis_names import unlike_names
from h5stream.storage.layout.layout import DatasetPart, FieldLayout, Lookup

APART = 4
"""Rows of the coarser field that two may differ by in length and be the same time: as a window of four hops leaves."""


Key = tuple[int, str]
"""What a field that is looked up is known by: its place in a sample, and what it is of a sparse matrix."""


def unlike_widths(first: FieldLayout, other: FieldLayout, where: str = "", before: str = "") -> str:
    """Say that two sparse matrices have other numbers of columns, or types of these; nothing if they are alike."""
    widths = [0 if one.ragged is None else one.ragged.matrix_width for one in (first, other)]
    names = [repr(one.name.removesuffix("/indices")) for one in (first, other)]
    name = "the one" if names[0] == names[1] else names[0]
    if not all(widths):
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


def shared(lookups: Sequence[Lookup]) -> tuple[Lookup, ...]:
    """Give lookups of the same rows the same arrays, by which they are known to be planned together."""

    def are_same(one: Lookup, other: Lookup) -> bool:
        if one.counts is None or one.draw != other.draw or (one.paces is not None and one.length != other.length):
            return False
        pairs = [(getattr(one, name), getattr(other, name)) for name in ("rows", "counts", "listed", "spare", "paces")]
        return all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)

    found: list[Lookup] = []
    for one in lookups:
        twin = next((other for other in found if are_same(one, other)), one)
        same = {name: getattr(twin, name) for name in ("rows", "counts", "listed", "spare", "paces")}
        found.append(replace(one, **same))
    return tuple(found)


def counted(looked_up: Mapping[Key, LookedUp]) -> dict[Key, tuple[int, int, int, int]]:
    """Return how much is known of each field, for `forget`."""
    return {key: (len(one.parts), len(one.tables), len(one.chosen), len(one.listed)) for key, one in looked_up.items()}


def forget(looked_up: dict[Key, LookedUp], before: dict[Key, tuple[int, int, int, int]]) -> None:
    """Go back to what was known of each field."""
    for key, known in [*looked_up.items()]:
        parts, tables, chosen, listed = before.get(key, (0, 0, 0, 0))
        del known.parts[parts:], known.tables[tables:], known.chosen[chosen:], known.listed[listed:]
        if key not in before:
            del looked_up[key]


def aligned(lookups: Sequence[Lookup], crops: Sequence[Crop | None]) -> list[Lookup]:
    """Let the crops of a sample begin at the same time, where their fields are as long in time.

    The shortest crop leads. A field that has `length / pace` times as many rows, but for `APART` of the leader's,
    begins `length / pace` times as far, and the leader nowhere that leaves another too few rows.
    """
    found = list(lookups)
    for at in ("random", "center"):
        some = [k for k, crop in enumerate(crops) if crop is not None and crop.at == at]
        some.sort(key=lambda k: found[k].length)
        leaders = {k: np.full(len(found[k].rows), k) for k in some}
        spare: dict[int, NDArray[np.int64]] = {k: cast(Any, found[k].spare) for k in some}
        total = {k: cast(Any, found[k].counts) + spare[k] for k in some}
        for leader, k in itertools.combinations(some, 2):
            pace, length = found[leader].length, found[k].length
            follows = np.abs(total[k] * pace - total[leader] * length) <= APART * length
            follows &= (leaders[leader] == leader) & (leaders[k] == k)
            leaders[k][follows] = leader
            fitting = ((found[k].spare + 1) * pace - 1) // length  # type: ignore[operator]
            spare[leader] = np.where(follows, np.minimum(spare[leader], fitting), spare[leader])
        for k in some:
            begins, paces = spare[k], np.full(len(spare[k]), found[k].length)
            for leader in {*np.unique(leaders[k]).tolist()} - {k}:
                follows = leaders[k] == leader
                begins, paces = np.where(follows, spare[leader], begins), np.where(follows, found[leader].length, paces)
            own = found[k].length
            if at == "center":
                found[k] = replace(found[k], rows=found[k].rows + begins // 2 * own // paces, spare=None)
            else:
                found[k] = replace(found[k], spare=begins, paces=None if (paces == own).all() else paces)
    return found


def unlike_lengths(lengths: Collection[int], what: str = "") -> str:
    """Say that samples, of which each should have as many rows of a field, have unlike numbers of them."""
    why = what or "objects of lookup= have different lengths"
    why += f", {min(lengths):,} to {max(lengths):,} rows; "
    return f"{why}ragged='packed', 'pad', 'nested' or 'list' says how they come in a batch"


def of_two_meanings(name: str, why: str) -> str:
    """Say that an enum cannot be read as one field, and what to do instead."""
    return (
        f"field {name!r} is an enum whose {why}, so a code would not mean the same; write the files with one enum, or "
        "read them as datasets of their own"
    )


@dataclass(slots=True)
class LookedUp:
    """What is known so far of a field that is looked up, while files are opened."""

    name: str  # the field's, for messages
    # what the user gave: the row of each sample, its rows, what says them, or a function; None where the files have it
    given: NDArray[np.int64] | RowLists | Stretches | LookupFunction | None = None
    crop: Crop | None = None  # the part of a sample that is read; None for all
    parts: list[DatasetPart] = field(default_factory=list)  # the dataset, in turn
    # the rows that each part of the data looks up, counted from the first part: of the dataset, or of `tables`
    chosen: list[NDArray[np.int64]] = field(default_factory=list)
    # of each sample of a part, or of what is chosen: its first row, how many it has, how many more a crop leaves out
    tables: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    listed: list[NDArray[np.int64]] = field(
        default_factory=list
    )  # the rows that `tables` are of, where samples list any
    layouts: list[FieldLayout] = field(default_factory=list)  # what it gives to a batch
    entry: Any = None  # the numbers of these
    # of objects that samples name: the first row of each, and how many it has
    objects: dict[str, tuple[int, int]] = field(default_factory=dict)
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of each part, where objects have shapes of their own
    is_given: bool = False  # whether the user said what each sample has, and not a dataset what each row has
    is_alone: bool = False  # whether nothing but what says its rows says how many samples there are

    @property
    def rows(self) -> int:
        """Rows of the dataset so far."""
        return self.parts[-1].row_start + self.parts[-1].rows if self.parts else 0

    @property
    def count(self) -> int:
        """The samples that what was given is for."""
        if isinstance(self.given, Stretches):
            numbers = len(self.given.names[0])
            return samples_bounded(self.given, numbers) if isinstance(self.given, Bounds) else numbers
        return len(self.given) if isinstance(self.given, np.ndarray | RowLists) else 0

    def add_part(self, part: DatasetPart, entry: Any, layouts: list[FieldLayout], path: str) -> None:
        """Take a file's share of the dataset, and what it gives to a batch."""
        self.check_alike(layouts, path)
        self.entry = entry
        self.parts.append(part)

    def check_alike(self, layouts: list[FieldLayout], path: str) -> None:
        """Take what a file gives to a batch, which all give alike."""
        known = self.layouts = self.layouts or list(layouts)
        mine, before = ([replace(one, name="", meanings=()) for one in each] for each in (layouts, known))
        if mine != before or not all(
            same_type(one.dtype, other.dtype) for one, other in zip(layouts, known, strict=True)
        ):
            for other, one in zip(known, layouts, strict=False):
                if why := unlike_widths(other, one):
                    raise refusal(path, self.name, f": {why}", FieldLengthError)
            texts = [
                ", ".join(f"{one.unit or shown(one.dtype)} {one.row_shape}" for one in each) for each in (mine, before)
            ]
            if texts[0] == texts[1]:
                nul = [any(one.cut_at_nul for one in each) for each in (mine, before)]
                ends = "texts that end at a NUL", "texts that do not end at a NUL", "another form"
                texts = [
                    f"{text} ({ends[2 if nul[0] == nul[1] else not k]})" for text, k in zip(texts, nul, strict=True)
                ]
            why = f": field {self.name!r} has rows of {', and before of '.join(texts)}; they must agree in all but"
            raise refusal(path, self.name, f"{why} number; ragged='arrays' takes any shapes", FieldLengthError)
        for k, (one, other) in enumerate(zip(layouts, known, strict=True)):
            meanings, why = joined_meanings([(other.meanings, "what was read before"), (one.meanings, repr(path))])
            if why:
                raise refusal(path, self.name, f": {of_two_meanings(self.name, why)}", FieldLengthError)
            known[k] = other if meanings == other.meanings else replace(other, meanings=meanings)
            if why := unlike_names(other.axes, one.axes, self.name, ("what was read before", repr(path))):
                raise refusal(path, self.name, f": {why}", FieldLengthError)

    def add_chosen(self, values: NDArray[Any], first: int, rows: int, path: str) -> None:
        """Take which of so many rows of a part a dataset names, counted from row `first` of what is looked up."""
        flat = np.asarray(values)
        flat = flat.reshape(-1) if flat.ndim > 1 and flat.size == len(flat) else flat
        if flat.ndim != 1 or flat.dtype.kind not in "iu":
            raise self._refused(
                repr(path), f"lookup= takes one whole number a row, or a list of them, not {flat.dtype} {flat.shape}"
            )
        named = flat.astype(np.int64)
        self._check(named, len(named), rows, path)
        self.chosen.append(named + first)

    def add_stretches(
        self, said: Stretches | RowLists, values: Sequence[Any], samples: int, first: int, where: str
    ) -> None:
        """Take which rows each sample of a part has, counted from row `first` of what is looked up."""
        if isinstance(said, RowLists):
            self._check_lists(said, samples, self.rows - first, where)
            begins = np.cumsum(said.counts) - said.counts + sum(map(len, self.listed))
            self.listed.append(said.rows + first)
            self.add_rows(begins, said.counts)
            return
        try:
            begins, counts = stretches_of(said, values, samples, self.rows - first, is_alone=self.is_alone)
        except OptionError as error:
            raise self._refused(where, str(error)) from None
        self.add_rows(begins + first, counts)

    def add_values(self, part: DatasetPart) -> None:
        """Take a part whose rows are values of variable length, each the row of a sample."""
        assert part.heap is not None
        if self.crop is not None and self.crop.at != "start":
            said = f"of values of variable length a crop takes the first items, at='start', not {self.crop.at!r}"
            raise OptionError(f"Field({self.name!r}): {said}; crop the batch in batch_transform=")
        self.add_rows(np.arange(part.row_start, part.row_start + part.rows), part.heap.length.astype(np.int64))

    def add_rows(self, first: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Take the first row of each of some samples, and how many it has, of which only a part may be wanted."""
        spare = np.zeros_like(counts) if self.crop is None else np.maximum(counts - self.crop.length, 0)
        self.tables.append((first, counts - spare, spare))

    def lookup(self, dataset: int, rows: int, space: Space | None, paths: str) -> Lookup:
        """Give which rows samples have of a dataset; errors name the paths."""
        of_samples = space is not None and (self.is_given or self.given is not None)
        count = space.samples if space is not None and of_samples else rows
        if isinstance(self.given, Stretches):
            self.add_stretches(self.given, self.given.names, count, 0, paths)
            self._check_in_one(paths)
        elif isinstance(self.given, RowLists):
            self.add_stretches(self.given, (), count, 0, paths)
        known: list[Any] = [np.concatenate(each) for each in zip(*self.tables, strict=True)]
        first, counts, spare = known or [None] * 3
        among = self.rows if first is None else len(first)
        if callable(self.given):
            draw = DrawnRows(name=self.name, function=self.given, rows=among)
            draw.check(count)
            rows_of = np.zeros(0, dtype=np.int64) if first is None else first
            return Lookup(dataset=dataset, rows=rows_of, counts=counts, draw=draw)
        given = self.given if isinstance(self.given, np.ndarray) else None
        chosen = np.concatenate(self.chosen) if self.chosen else given
        anchors: Any = slice(None)
        if space is not None and not of_samples:
            said: Any = first if chosen is None else chosen
            anchors, count = _entries(space, count, len(said))
        if chosen is not None:
            self._check(chosen, count, among, paths)
            anchors = chosen[anchors]
        if first is None:
            return Lookup(dataset=dataset, rows=anchors)
        if chosen is None:
            self._check_stacked(count, paths)
        listed = np.concatenate(self.listed) if self.listed else None
        found = Lookup(dataset=dataset, rows=first[anchors], counts=counts[anchors], listed=listed)
        if self.crop is None or self.crop.at == "start":
            return found
        return replace(found, spare=spare[anchors], length=self.crop.length)

    def _refused(self, paths: str, why: str) -> OptionError:
        return OptionError(f"{paths}: field {self.name!r}: {why}")

    def _check_in_one(self, paths: str) -> None:
        """Refuse samples whose rows are of several files, or groups."""
        first, counts, spare = self.tables[0]
        ends, starts = first + counts + spare, np.array([part.row_start for part in self.parts])
        last = np.searchsorted(starts, np.maximum(ends, first + 1), side="left")
        for k in np.flatnonzero((np.searchsorted(starts, first, side="right") != last) & (ends > first))[:1].tolist():
            said = f"sample {k:,} is said to have rows {first[k]:,} to {ends[k]:,} (exclusive), which are of several"
            raise self._refused(paths, f"{said} files or groups, that begin at {starts}")

    def _check_stacked(self, count: int, paths: str) -> None:
        """Refuse too few names, and unlike numbers of rows where each sample has as many."""
        if self.objects and (named := sum(len(first) for first, *_ in self.tables)) != count:
            raise self._refused(paths, f"lookup= has {named:,} names, and needs one for each of {count:,}")
        ragged = self.layouts[0].ragged if self.layouts else None
        lengths = {rows for _, rows in self.objects.values()}
        if self.listed:
            lengths = {int(rows) for _, counts, spare in self.tables for rows in np.unique(counts + spare)}
        if ragged is not None and ragged.form == STACKED and len(lengths) > 1:
            what = "samples list different numbers of rows in lookup=" if self.listed else ""
            raise FieldLengthError(str(self._refused(paths, unlike_lengths(lengths, what))), field=self.name)

    def _check_lists(self, lists: RowLists, count: int, rows: int, paths: str) -> None:
        """Refuse too few lists of rows, and rows that are not there."""
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
        """Refuse more or fewer row numbers than one for each sample."""
        if numbers != count:
            said = f"lookup= has {numbers:,} numbers, and needs one for each of {count:,}; Bounds(...) takes where"
            raise self._refused(paths, f"{said} samples begin and end, and Field(..., file=) another file")

    def _check(self, used: NDArray[np.int64], count: int, rows: int, paths: str) -> None:
        """Refuse too few row numbers, and such as are not there."""
        self.check_count(len(used), count, paths)
        wrong = np.flatnonzero((used < 0) | (used >= rows))
        if len(wrong):
            said = f"lookup= names row {used[wrong[0]]} at {wrong[0]:,}, and there are rows 0 to {rows - 1:,}; "
            said += (
                f"{len(wrong):,} of {count:,} are not there. Negative numbers do not count from the end; give samples "
            )
            raise self._refused(paths, f"{said}without one a row of their own, or leave them out of the file")


def _entries(space: Space, rows: int, entries: int) -> tuple[NDArray[np.int64], int]:
    """Return which entry of what looks rows up each sample has, and how many there have to be.

    One for each row; where samples lie along another axis, one for each place along it, or for each file or group.
    """
    numbers = np.arange(space.samples)
    if space.edges is not None or space.volumes.shape[1] != 1 or entries == rows:
        return space.anchors_of(numbers), rows
    volume, origins = space.boxes_of(numbers)
    ends = np.cumsum(space.volumes[:, 0])
    return (ends - space.volumes[:, 0])[volume] + origins[:, 0], int(ends[-1])

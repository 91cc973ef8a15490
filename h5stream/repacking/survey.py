"""What a file holds, what becomes of each of its datasets, and whether another file holds the same.

A dataset is rows of stored bytes, which can be rewritten in other chunks without knowing what they mean. A number, a
compound, a string of fixed length: each element is so many bytes in the file, and a copy of the dataset in other chunks
holds the same bytes. The engine reads them like any field, through a layout whose one target is the whole stored
element.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError, H5StreamError, OptionError, StagedFileDamagedError
from h5stream.order.permutation import permutation
from h5stream.repacking import Recipe
from h5stream.storage.discovery import datasets_of, default_fields, find_dataset
from h5stream.storage.elements import Leaf, holds_reference, is_fixed, same
from h5stream.storage.external import Guard
from h5stream.storage.fallback import fill_element, read_raw_box
from h5stream.storage.field_reader import read_fields
from h5stream.storage.fields import sample_shape
from h5stream.storage.handles import open_file
from h5stream.storage.layout import DatasetPart, FieldLayout, SampleLayout, Target
from h5stream.storage.parts import Files, OpenFile, open_hdf5
from h5stream.units import text_of_bytes

MOST_ROW_NBYTES = 1 << 30
"""HDF5's chunks end at 4 GiB, and a row must fit into one."""

WORTH_SAYING = 1.1
"""Growth of the file from which it is said that its compression is undone."""

_WORDS = (2, 4, 8)  # bytes of an element that is one unit


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDataset:
    """One dataset of a file, how its stored bytes are reached, and what becomes of it."""

    path: str  # path inside the file, without the leading slash; the first one where hard links give it several
    address: int  # of its object in the file: what tells two datasets apart
    shape: tuple[int, ...]  # its shape; `()` for a single value or none
    stored_nbytes: int  # what it takes in the file
    element_nbytes: int  # bytes of one stored element
    layout: SampleLayout | None = None  # one field: its stored rows; None where only libhdf5 can read it
    reason: str = ""  # why there is no layout
    # one element, as stored: what unwritten chunks read as, or what stands beyond the data in the last chunk
    fill: NDArray[np.uint8]
    borrowed: bool = False  # whether its rows are those of other datasets or files
    rewritten: bool = False  # whether it gets new chunks
    shuffled: bool = False  # whether its rows move

    @property
    def rows(self) -> int:
        """Rows, 0 where it has no first axis."""
        return self.shape[0] if self.shape else 0

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row, decoded."""
        return math.prod(self.shape[1:]) * self.element_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return self.rows * self.row_nbytes

    @property
    def part(self) -> DatasetPart:
        """How it lies in the file, where it has a layout."""
        assert self.layout is not None
        return self.layout.datasets[0][0]

    @property
    def is_sparse(self) -> bool:
        """Whether chunks were never written, so that they read as the fill value and take no space."""
        index = self.part.index if self.layout is not None else None
        return index is not None and len(index.numbers) < index.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """What becomes of each dataset of a file."""

    source: str  # the file
    source_nbytes: int
    recipe: Recipe
    datasets: tuple[RawDataset, ...]
    sample_rows: int  # length of a shuffled dataset; 0 without a shuffle

    @property
    def rewritten(self) -> list[RawDataset]:
        """The datasets that get new chunks."""
        return [each for each in self.datasets if each.rewritten]

    @property
    def estimated_nbytes(self) -> int:
        """About how many bytes the new file will take."""
        grow = [each for each in self.rewritten if self.recipe.compress == "none" and not each.is_sparse]
        return self.source_nbytes + max(0, sum(each.nbytes - each.stored_nbytes for each in grow))

    @property
    def notices(self) -> tuple[str, ...]:
        """What should be known before anything is written."""
        pointers = [each.path for each in self.datasets if self.sample_rows and each.rows == self.sample_rows + 1]
        filtered = [each for each in self.rewritten if each.part.pipeline.filters and not each.is_sparse]
        undone = {each.part.pipeline.describe(): None for each in filtered if each.stored_nbytes < each.nbytes}
        now, then, notices = self.source_nbytes, self.estimated_nbytes, []
        if pointers:  # the rows that they point to do not move
            one_more = "has one row more than the samples (row pointers?) and was not shuffled"
            notices.append(f"{', '.join(pointers)} {one_more}")
        if undone and not self.recipe.contiguous and then > WORTH_SAYING * now:  # made for reading, not for size
            notices.append(
                f"{', '.join(undone)} is undone and not replaced: {text_of_bytes(now)} become about "
                f'{text_of_bytes(then)}; compress="lz4" (--compress lz4) keeps it compressed, and quick to read'
            )
        return tuple(notices)

    def order(self) -> NDArray[np.int64] | None:
        """Return the rows of the source in their new order, for shuffled datasets; None without a shuffle."""
        seed = self.recipe.shuffle_rows
        return None if seed is None else permutation(self.sample_rows, seed).astype(np.int64)

    def chunk_rows(self, dataset: RawDataset) -> int:
        """Return the rows of a new chunk, or those that are written at a time."""
        return max(1, min(dataset.rows, self.recipe.chunk_nbytes // dataset.row_nbytes))


def address_of_object(thing: Any) -> int:
    """Return the address of an open h5py object inside its file."""
    return int(h5py.h5o.get_info(thing).addr)


def plan_rewrite(source: str, recipe: Recipe) -> RewritePlan:
    """Look at a file, and decide what becomes of each of its datasets, those that hard links lead to, each once.

    It is an error if a field is not there, or it is not clear which rows a shuffle is about.
    """
    guard, rows = Guard.for_paths((source,), allow_external=False), 0
    with open_hdf5(source) as file, contextlib.ExitStack() as linked:
        opened = OpenFile(file, 0, Files((source,)), guard, linked)
        size = opened.identity.size
        datasets = [_raw(opened, name, dataset) for name, dataset in datasets_of(file).items()]
        chosen = {each.address for each in datasets}
        if recipe.fields is not None or recipe.shuffle_rows is not None:
            names = tuple(default_fields(file, source, guard)) if recipe.fields is None else recipe.fields
            asked = {address_of_object(find_dataset(file, name, source, guard)[0].id) for name in names}
            chosen = chosen if recipe.fields is None else asked
    if recipe.shuffle_rows is not None:
        lengths = {each.rows for each in datasets if each.address in asked}
        if len(lengths) != 1 or 0 in lengths:
            raise FieldLengthError(
                f"{source!r}: shuffle_rows= needs fields of one length, and these have {sorted(lengths)} rows; name "
                "the samples with fields=[...]",
                file=source,
            )
        rows = lengths.pop()
    decided = []
    for each in datasets:
        moves = 0 < rows == each.rows
        if moves and each.borrowed:
            raise OptionError(
                f"{source!r}: shuffle_rows= moves the rows of {each.path!r} too, which lie in other files or datasets "
                "(it is virtual, or has external storage); write it as a dataset of its own, or leave shuffle_rows= out"
            )
        # What can be rewritten must be, where its rows move: chunk by chunk is the only way that fits memory.
        rewritten = each.layout is not None and (moves or each.address in chosen)
        decided.append(replace(each, rewritten=rewritten, shuffled=moves))
    return RewritePlan(source=source, source_nbytes=size, recipe=recipe, datasets=tuple(decided), sample_rows=rows)


def _raw(opened: OpenFile, name: str, dataset: Any) -> RawDataset:
    raw = RawDataset(
        path=name,
        address=address_of_object(dataset.id),
        shape=dataset.shape or (),
        stored_nbytes=int(dataset.id.get_storage_size()),
        element_nbytes=int(dataset.id.get_type().get_size()),
        fill=np.zeros(0, dtype=np.uint8),
        borrowed=dataset.is_virtual or dataset.external is not None,
    )
    if not dataset.shape or 0 in dataset.shape:
        return replace(raw, reason="it has no rows")
    shape = sample_shape(name)
    try:
        found = read_fields(opened, shape)
    except H5StreamError as error:
        return replace(raw, reason=str(error).split(": ", 1)[-1])
    part, count = found.parts[0], raw.element_nbytes
    if part.index is None:
        return replace(raw, reason=part.reason)
    if part.stored_row_nbytes > MOST_ROW_NBYTES:
        return replace(raw, reason=f"a row of {part.stored_row_nbytes:,} bytes is more than a chunk should hold")
    fill, byte = _fill(dataset, part), np.dtype(np.uint8)
    unit, units = (count, 1) if count in _WORDS else (1, count)
    leaf = Leaf(
        stored_nbytes=count, offsets=(0,), unit_nbytes=unit, units=units, swapped=False, dtype=byte, shape=(count,)
    )
    target = Target(field=0, member=(), leaf=leaf, fill=fill)
    layout = SampleLayout(
        files=tuple(opened.files.identities),
        file_starts=(0, found.rows),
        fields=(FieldLayout(name=name, kind="array", dtype=byte, row_shape=(raw.row_nbytes,)),),
        datasets=((replace(part, targets=(target,)),),),
        shape=shape,
        entries=(0,),
        allow_external=False,
    )
    return replace(raw, layout=layout, fill=fill)


def _fill(dataset: Any, part: DatasetPart) -> NDArray[np.uint8]:
    read = fill_element(dataset, part.chunk_index)
    if read is not None:
        return read
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        return np.frombuffer(np.asarray(dataset.fillvalue, dtype=dataset.dtype).tobytes(), dtype=np.uint8)
    return np.zeros(dataset.id.get_type().get_size(), dtype=np.uint8)


# --- two files compared through h5py: the judge of one that was written anew --------------------------------


SLAB_NBYTES = 32 * 1024 * 1024
"""Bytes that are compared at a time, or one row of chunks if that is more: no chunk is decoded twice."""

_FIRST_WORDS = 1 << 16

Tell = Callable[[int], None]


def verify(
    plan: RewritePlan,
    target: Path,
    places: dict[int, str],
    order: NDArray[np.int64] | None,
    tell: Callable[[RawDataset, int], None],
) -> list[str]:
    """Compare a new file with its source, by the places that datasets have in it; return what could not be compared."""
    notices = []
    # Not through `open_hdf5`: an error in here is about one dataset, and it is said which.
    with open_file(plan.source) as old, open_file(str(target)) as new:
        for dataset in plan.datasets:
            if dataset.address not in places:
                continue  # it could not be kept, and is among the notices
            try:
                both = old[dataset.path], new[places[dataset.address]]
                moved = order if dataset.shuffled else None
                problem = difference(*both, dataset, moved, functools.partial(tell, dataset))
            except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                if dataset.rewritten or isinstance(error, H5StreamError):
                    raise
                # Libhdf5 copies stored chunks without decoding them, also those of filters that are not there.
                notices.append(f"{dataset.path} was copied as it is and not compared: {error}")
                continue
            if problem:
                raise StagedFileDamagedError(
                    f"what was written to {target} is not what {plan.source} holds: {dataset.path}: {problem}. The new "
                    "file was not kept; memory or storage at fault is likely, or else this is a defect of h5stream",
                    file=plan.source,
                )
    return notices


def difference(
    a: h5py.Dataset, b: h5py.Dataset, dataset: RawDataset, order: NDArray[np.int64] | None, tell: Tell
) -> str:
    """Say where two datasets differ; empty where they hold the same rows."""
    stored = a.id.get_type()
    if (a.shape, stored == b.id.get_type()) != (b.shape, True):
        return "its shape or type changed"
    if a.shape is None or 0 in a.shape or holds_reference(stored):
        return ""  # addresses differ by nature; what they lead to was looked up when they were translated
    if not a.shape:
        return "" if same(a[()], b[()]) else "its value differs"
    fixed = is_fixed(stored)
    if fixed and order is not None:
        return _permuted(a, b, dataset, order, tell)
    right = b if order is None else b[()][np.argsort(order)]
    for start, stop in _slabs(a, dataset.row_nbytes):
        if fixed:
            one, other = read_rows(a, start, stop), read_rows(b, start, stop)
            wrong = np.flatnonzero([] if _equal(one.ravel(), other.ravel()) else (one != other).any(axis=1))
        else:
            pairs = zip(a[start:stop], right[start:stop], strict=True)
            wrong = np.flatnonzero([not same(*pair) for pair in pairs])
        if len(wrong):
            return f"row {start + wrong[0]} differs"
        tell((stop - start) * dataset.row_nbytes)
    return ""


def _slabs(dataset: Any, row_nbytes: int) -> Iterator[tuple[int, int]]:
    chunk = dataset.chunks[0] if dataset.chunks else 1
    together = max(1, SLAB_NBYTES // max(1, row_nbytes) // chunk) * chunk
    for start in range(0, dataset.shape[0], together):
        yield start, min(start + together, dataset.shape[0])


def read_rows(dataset: Any, start: int, stop: int) -> NDArray[np.uint8]:
    """Read the bytes of rows as they are stored."""
    box = read_raw_box(dataset, (start,) + (0,) * (dataset.ndim - 1), (stop - start, *dataset.shape[1:]))
    return box.reshape(-1).view(np.uint8).reshape(stop - start, -1)


def _equal(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> bool:
    words = left.nbytes // 8 * 8  # eight times as fast as byte by byte
    same_words = np.array_equal(left[:words].view(np.uint64), right[:words].view(np.uint64))
    return same_words and np.array_equal(left[words:], right[words:])


def _permuted(a: Any, b: Any, dataset: RawDataset, order: NDArray[np.int64], tell: Tell) -> str:
    sums = [np.empty(dataset.rows, dtype=np.uint64) for _ in range(2)]
    for out, each in zip(sums, (a, b), strict=True):
        for start, stop in _slabs(each, dataset.row_nbytes):
            out[start:stop] = row_sums(read_rows(each, start, stop))
            tell((stop - start) * dataset.row_nbytes if each is a else 0)
    wrong = np.flatnonzero(sums[0][order] != sums[1])
    return f"row {wrong[0]} is not row {order[wrong[0]]} of the source" if len(wrong) else ""


def row_sums(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a 64-bit sum of each row's bytes: words weighted by fixed random odd numbers.

    Two rows that differ in one word always differ in their sums; others do but for one case in 2**64.
    """
    count, nbytes = rows.shape
    words = -(-nbytes // 8)
    if nbytes % 8:
        padded = np.zeros((count, words * 8), dtype=np.uint8)
        padded[:, :nbytes] = rows
        rows = padded
    numbers = np.ascontiguousarray(rows).view(np.uint64)
    weights = np.random.Philox(key=words).random_raw(words) | np.uint64(1)
    sums = np.zeros(count, dtype=np.uint64)
    for start in range(0, words, _FIRST_WORDS):  # in pieces that stay in the cache for long rows
        sums += numbers[:, start : start + _FIRST_WORDS] @ weights[start : start + _FIRST_WORDS]
    return sums

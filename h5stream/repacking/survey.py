"""What a file holds, and what becomes of each of its datasets.

A dataset is rows of stored bytes, which can be rewritten in other chunks without knowing what they mean. A number, a
compound, a string of fixed length: each element is so many bytes in the file, and a copy of the dataset in other chunks
holds the same bytes. The engine reads them like any field, through a layout whose one target is the whole stored
element.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError, H5StreamError
from h5stream.order.permutation import permutation
from h5stream.repacking.recipe import Recipe
from h5stream.storage.discovery import datasets_of, default_fields, find_dataset
from h5stream.storage.elements import Leaf
from h5stream.storage.external import Guard
from h5stream.storage.fallback import fill_element
from h5stream.storage.field_reader import read_fields
from h5stream.storage.fields import sample_shape
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
    notices: tuple[str, ...]  # what should be known before anything is written

    @property
    def rewritten(self) -> list[RawDataset]:
        """The datasets that get new chunks."""
        return [each for each in self.datasets if each.rewritten]

    @property
    def estimated_nbytes(self) -> int:
        """About how many bytes the new file will take."""
        grow = [each for each in self.rewritten if self.recipe.compress == "none" and not each.is_sparse]
        return self.source_nbytes + max(0, sum(each.nbytes - each.stored_nbytes for each in grow))

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
        # What can be rewritten must be, where its rows move: chunk by chunk is the only way that fits memory.
        rewritten = each.layout is not None and (moves or each.address in chosen)
        decided.append(replace(each, rewritten=rewritten, shuffled=moves))
    about: dict[str, Any] = {"source": source, "source_nbytes": size, "recipe": recipe, "sample_rows": rows}
    plan = RewritePlan(**about, datasets=tuple(decided), notices=())
    return replace(plan, notices=tuple(_worth_knowing(plan)))


def _worth_knowing(plan: RewritePlan) -> Iterator[str]:
    pointers = [each.path for each in plan.datasets if plan.sample_rows and each.rows == plan.sample_rows + 1]
    if pointers:  # the rows that they point to do not move
        yield f"{', '.join(pointers)} has one row more than the samples (row pointers?) and was not shuffled"
    if plan.recipe.compress != "none" or plan.recipe.contiguous:
        return
    filtered = [each for each in plan.rewritten if each.part.pipeline.filters and not each.is_sparse]
    undone = {each.part.pipeline.describe(): None for each in filtered if each.stored_nbytes < each.nbytes}
    now, then = plan.source_nbytes, plan.estimated_nbytes
    if undone and then > WORTH_SAYING * now:  # the default is made for reading, not for size
        yield (
            f"{', '.join(undone)} is undone and not replaced: {text_of_bytes(now)} become about {text_of_bytes(then)}; "
            'compress="lz4" (--compress lz4) keeps it compressed, and quick to read'
        )


def _raw(opened: OpenFile, name: str, dataset: Any) -> RawDataset:
    raw = RawDataset(
        path=name,
        address=address_of_object(dataset.id),
        shape=dataset.shape or (),
        stored_nbytes=int(dataset.id.get_storage_size()),
        element_nbytes=int(dataset.id.get_type().get_size()),
        fill=np.zeros(0, dtype=np.uint8),
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

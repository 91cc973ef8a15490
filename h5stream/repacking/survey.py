"""Plans for rewriting files, the new file with the same tree, and its comparison with the source.

A dataset is treated as rows of stored bytes, which can be rewritten in other chunks without knowing their meaning.
Each element (a number, a compound, a string of fixed length) has a fixed number of bytes, and a copy in other chunks
has the same bytes. The engine reads them like any field, through a layout whose target is the whole stored element.

# Guarantees: one thread writes. Chunks are compressed by other threads and stored unchanged; the source is not
modified. When a write fails, the file is truncated before it is closed, or libhdf5 could not close it: it would try to
write the data that did not fit.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import imagecodecs
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5l, h5o, h5p, h5r, h5s, h5t, h5z
from numpy.typing import NDArray

from h5stream.base.filesystem import is_full
from h5stream.base.texts import text_of_bytes
from h5stream.errors import CorruptChunkError, FieldLengthError, H5StreamError, OptionError, StagedFileDamagedError
from h5stream.order.places import permutation
from h5stream.repacking import Recipe
from h5stream.storage.decode.elements import (
    Leaf,
    dtype_of,
    holds_reference,
    is_fixed,
    is_readable,
    memory_type,
    same,
    stored_as,
    type_if_any,
    type_of,
)
from h5stream.storage.decode.filters import DEFLATE, LZ4, SHUFFLE, DecodeError, Filter
from h5stream.storage.decode.libhdf5 import elements_of, write_elements
from h5stream.storage.decode.plugins import Bytes
from h5stream.storage.decode.small_floats import widened, widened_dtype
from h5stream.storage.decode.values import fill_value_of, values_of
from h5stream.storage.file.discovery import datasets_of, default_fields, find_dataset
from h5stream.storage.file.external import Guard, needed_elsewhere
from h5stream.storage.file.h5py_reader import chunk_box, fill_element, read_raw_box
from h5stream.storage.file.stored import Files, OpenFile, open_hdf5, stored_elements
from h5stream.storage.layout.index import build_index
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.storage.layout.parts import DatasetPart, Target
from h5stream.storage.layout.request import sample_shape
from h5stream.storage.open.field_reader import read_fields
from h5stream.storage.source.handles import DAMAGE, open_file
from h5stream.storage.source.local import bytes_at, identity_of

# Datasets up to this size are read without the engine, whose threads take longer to start.
AT_ONCE_NBYTES, AT_ONCE_CHUNKS = 128 << 10, 16
MOST_ROW_NBYTES = 1 << 30  # HDF5's chunks are limited to 4 GiB, and a row must fit into one
WORTH_SAYING = 1.1  # growth of the file from which a notice reports the lost compression
_MOST_POINTERS_NBYTES = 1 << 28  # size limit of datasets that are searched for row numbers
_WORDS = (2, 4, 8)  # sizes of elements that are one unit

_ObjectID: TypeAlias = "h5g.GroupID | h5d.DatasetID | h5t.TypeID"
"""An open object of a file, as h5py's low-level functions take it."""
_Creation: TypeAlias = "h5p.PropFCID | h5p.PropGCID"
"""How a file, or a group, is created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDataset:
    """A dataset of a file, the access to its stored bytes, and how it is copied."""

    path: str  # path inside the file, without the leading slash; the first one where hard links give it several
    address: int  # address of its object in the file, which identifies it
    shape: tuple[int, ...]  # `()` for a single value or none
    rows: int  # 0 if it has no first axis
    stored_nbytes: int  # size in the file
    element_nbytes: int  # bytes of one stored element
    row_nbytes: int  # of one row, decoded
    nbytes: int  # of all rows, decoded
    layout: SampleLayout | None = None  # one field: its stored rows; None if only libhdf5 can read it
    reason: str = ""  # why there is no layout
    borrowed: bool = False  # whether its rows are in other datasets or files
    rewritten: bool = False  # whether it gets new chunks
    shuffled: bool = False  # whether its rows move

    @property
    def part(self) -> DatasetPart:
        """Its storage in the file; only if it has a layout."""
        assert self.layout is not None
        return self.layout.datasets[0][0]

    @property
    def fill(self) -> NDArray[np.uint8]:
        """One element as stored: the value of unwritten chunks, and of elements beyond the data in the last chunk."""
        return self.part.targets[0].fill

    def rows_at_once(self) -> NDArray[np.uint8] | None:
        """Decode all rows in the calling thread; None if there are many, or if the engine has to report an error."""
        if self.layout is None or self.nbytes > AT_ONCE_NBYTES:
            return None
        if len(self.part.chunk_index.numbers) > AT_ONCE_CHUNKS:
            return None
        with contextlib.suppress(DecodeError, CorruptChunkError):
            return stored_elements(self.part, self.layout.files[self.part.file], self.fill).reshape(self.rows, -1)
        return None

    @property
    def is_sparse(self) -> bool:
        """Whether some chunks were never written, so that they read as the fill value and take no space."""
        index = self.part.index if self.layout is not None else None
        return index is not None and len(index.numbers) < index.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """The plan for each dataset of a file."""

    source: str  # the file
    source_nbytes: int
    recipe: Recipe
    datasets: tuple[RawDataset, ...]
    sample_rows: int  # length of a shuffled dataset; 0 without a shuffle
    may_point: tuple[str, ...] = ()  # datasets whose values may be numbers of shuffled rows

    @property
    def rewritten(self) -> list[RawDataset]:
        """The datasets that get new chunks."""
        return [dataset for dataset in self.datasets if dataset.rewritten]

    @property
    def filters(self) -> str:
        """The changes of filters, such as ``"gzip-4 -> none"``; empty if there is none."""
        changes = dict[str, None]()
        for dataset in self.rewritten:
            now = " + ".join(one.name for one in filters_for(self.recipe.compress, dataset.element_nbytes)) or "none"
            before = dataset.part.pipeline.describe() if dataset.part.pipeline.filters else "none"
            changes |= {f"{before} -> {now}": None} if before != now else {}
        return ", ".join(changes)

    @property
    def estimated_nbytes(self) -> int:
        """The estimated size of the new file."""
        grow = [dataset for dataset in self.rewritten if self.recipe.compress == "none" and not dataset.is_sparse]
        return self.source_nbytes + max(0, sum(dataset.nbytes - dataset.stored_nbytes for dataset in grow))

    @property
    def notices(self) -> tuple[str, ...]:
        """Facts to know before anything is written."""
        filtered = [dataset for dataset in self.rewritten if dataset.part.pipeline.filters and not dataset.is_sparse]
        undone = {
            dataset.part.pipeline.describe(): None for dataset in filtered if dataset.stored_nbytes < dataset.nbytes
        }
        now, then, notices = self.source_nbytes, self.estimated_nbytes, []
        if self.may_point:
            notices.append(
                f"{', '.join(self.may_point)}: whole numbers of 0 to {self.sample_rows:,}, which do not change; if "
                "they are numbers of rows that are shuffled, they are wrong in the new file"
            )
        if (
            undone and not self.recipe.contiguous and then > WORTH_SAYING * now
        ):  # contiguous files are made for reading, not for size
            notices.append(
                f"{', '.join(undone)} is undone and not replaced: {text_of_bytes(now)} become about "
                f'{text_of_bytes(then)}; compress="lz4" (--compress lz4) keeps it compressed, and quick to read'
            )
        return tuple(notices)

    def order(self) -> NDArray[np.int64] | None:
        """Return the source rows of shuffled datasets in their new order; None without a shuffle."""
        seed = self.recipe.shuffle_rows
        return None if seed is None else permutation(self.sample_rows, seed).astype(np.int64)

    def chunk_rows(self, dataset: RawDataset) -> int:
        """Return the rows of a new chunk, or those that are written at a time."""
        return max(1, min(dataset.rows, self.recipe.chunk_nbytes // dataset.row_nbytes))


def address_of_object(h5py_object: _ObjectID) -> int:
    """Return the address of an open h5py object inside its file."""
    return int(h5py.h5o.get_info(h5py_object).addr)


def plan_rewrite(source: str, recipe: Recipe) -> RewritePlan:
    """Examine a file, and decide how to copy each dataset that hard links lead to."""
    guard, rows = Guard.for_paths((source,), allow_external=False), 0
    with open_hdf5(source) as file, contextlib.ExitStack() as linked:
        opened = OpenFile(file, 0, Files((source,)), guard, linked)
        size = opened.identity.size
        datasets = [_raw(opened, name, dataset) for name, dataset in datasets_of(file).items()]
        chosen = {raw.address for raw in datasets}
        if recipe.fields is not None or recipe.shuffle_rows is not None:
            names = tuple(default_fields(file, source, guard)) if recipe.fields is None else recipe.fields
            named = {address_of_object(find_dataset(file, name, source, guard)[0].id) for name in names}
            chosen = chosen if recipe.fields is None else named
    if recipe.shuffle_rows is not None:
        lengths = {raw.rows for raw in datasets if raw.address in named}
        if len(lengths) != 1 or 0 in lengths:
            raise FieldLengthError(
                f"{source!r}: shuffle_rows= needs fields of one length, and these have {sorted(lengths)} rows; name "
                "the samples with fields=[...]",
                file=source,
            )
        rows = lengths.pop()
    decided = []
    for raw in datasets:
        moves = 0 < rows == raw.rows
        if moves and raw.borrowed:
            raise OptionError(
                f"{source!r}: shuffle_rows= moves the rows of {raw.path!r} too, which lie in other files or datasets "
                "(it is virtual, or has external storage); write it as a dataset of its own, or leave shuffle_rows= out"
            )
        # A dataset whose rows move is rewritten if possible: only chunk by chunk it surely fits into memory.
        rewritten = raw.layout is not None and (moves or raw.address in chosen)
        decided.append(replace(raw, rewritten=rewritten, shuffled=moves))
    doubtful = _check_pointers(source, decided, rows) if rows else ()
    return RewritePlan(
        source=source,
        source_nbytes=size,
        recipe=recipe,
        datasets=tuple(decided),
        sample_rows=rows,
        may_point=doubtful,
    )


def _check_pointers(source: str, datasets: list[RawDataset], rows: int) -> tuple[str, ...]:
    """Raise if other datasets point to rows that would be shuffled; return datasets for which this is uncertain."""
    doubtful, lengths = list[str](), {raw.rows for raw in datasets if not raw.shuffled} - {0}
    moved = [raw.path for raw in datasets if raw.shuffled]
    with open_file(source) as file:
        for raw in datasets:
            dataset, is_pointer, what = file[raw.path], False, ""
            dtype = type_if_any(dataset.id.get_type()) or np.dtype(object)
            if h5py.check_ref_dtype(dtype) is h5py.RegionReference:
                is_pointer, what = True, "holds region references"
            elif widened_dtype(dtype).kind in "iuV" and 0 < raw.nbytes <= _MOST_POINTERS_NBYTES and len(raw.shape) <= 2:
                with contextlib.suppress(*DAMAGE):  # reported when it is read
                    values = widened(values_of(dataset, (), ()))
                    is_pointer, what = _points(values, rows, lengths if raw.shuffled else {rows}, raw.shuffled)
            if is_pointer:
                raise OptionError(
                    f"{source!r}: shuffle_rows= (--shuffle-rows) moves the {rows:,} rows of {', '.join(moved[:5])}, "
                    f"and {raw.path!r} {what}: it would then lead to other rows. Leave shuffle_rows= out, and let the "
                    f"loader shuffle (shuffle=True), which keeps them together; or, if {raw.path!r} means something "
                    "else, shuffle a copy of the file without it"
                )
            doubtful += [raw.path] if what else []
    return tuple(doubtful)


def _points(values: np.ndarray, rows: int, lengths: set[int], shuffled: bool) -> tuple[bool, str]:
    """Return whether values point to so many rows, and a description; an empty one if they do not.

    Values may also be numbers of rows that add up to one of the `lengths`: for shuffled values only this is checked.
    """
    columns = [values[name] for name in values.dtype.names] if values.dtype.names else [values]
    for column in (one for one in columns if one.dtype.kind in "iu"):
        if column.ndim == 1 and int(column.sum()) in lengths and int(column.min()) >= 0:
            return True, f"adds up to {int(column.sum()):,}, as the lengths of runs of such rows do"
        if shuffled:
            continue
        long = column if column.ndim == 1 or len(column) >= column.shape[1] else column.T
        long = long[(long.reshape(len(long), -1) >= 0).all(axis=1)].astype(np.int64)  # -1 stands for no rows
        if len(long) < 2:
            continue
        steps, first, last = np.diff(long, axis=0), int(long.min()), int(long.max())
        ascends, step = bool((steps >= 0).all()), int(steps.max())
        if ascends and last > first and (len(long) == rows + 1 or (first <= step and 0 <= rows - last <= step)):
            return True, f"holds whole numbers that ascend from {first:,} to {last:,}, as numbers of such rows do"
        if last <= rows and (ascends or last >= rows // 2):
            return False, "may point"
    return False, ""


def _raw(opened: OpenFile, name: str, dataset: h5py.Dataset) -> RawDataset:
    rows, *inner = dataset.shape or (0,)
    count = int(dataset.id.get_type().get_size())
    layout, reason = _layout_of(opened, name, dataset, count)
    return RawDataset(
        path=name,
        address=address_of_object(dataset.id),
        shape=dataset.shape or (),
        rows=rows,
        stored_nbytes=int(dataset.id.get_storage_size()),
        element_nbytes=count,
        row_nbytes=math.prod(inner) * count,
        nbytes=rows * math.prod(inner) * count,
        layout=layout,
        reason=reason,
        borrowed=dataset.is_virtual or dataset.external is not None,
    )


def _layout_of(opened: OpenFile, name: str, dataset: h5py.Dataset, count: int) -> tuple[SampleLayout | None, str]:
    """Return the layout of a dataset's stored rows, with elements of `count` bytes; or None, and the reason."""
    if not dataset.shape or 0 in dataset.shape:
        return None, "it has no rows"
    shape = sample_shape(name)
    try:
        reading = read_fields(opened, shape)
    except H5StreamError as error:
        return None, str(error).split(": ", 1)[-1]
    part = reading.parts[0]
    if part.index is None:
        return None, part.reason
    if not stored_as(dataset).is_whole:
        return None, "some of its members lie elsewhere, or are of a type that h5py cannot read"
    if part.stored_row_nbytes > MOST_ROW_NBYTES:
        return None, f"a row of {part.stored_row_nbytes:,} bytes is more than a chunk should hold"
    byte, (unit, units) = np.dtype(np.uint8), (count, 1) if count in _WORDS else (1, count)
    leaf = Leaf(
        stored_nbytes=count, offsets=(0,), unit_nbytes=unit, units=units, swapped=False, dtype=byte, shape=(count,)
    )
    target = Target(field=0, member=(), leaf=leaf, fill=_fill(dataset, part))
    row_shape = (math.prod(dataset.shape[1:]) * count,)
    layout = SampleLayout(
        files=tuple(opened.files.identities),
        file_starts=(0, reading.rows),
        fields=(FieldLayout(name=name, kind="array", dtype=byte, row_shape=row_shape),),
        datasets=((replace(part, targets=(target,)),),),
        shape=shape,
        entries=(0,),
        allow_external=False,
    )
    return layout, ""


def _fill(dataset: h5py.Dataset, part: DatasetPart) -> NDArray[np.uint8]:
    read = fill_element(dataset, part.chunk_index)
    if read is not None:
        return read
    if not is_readable(dataset.id.get_type()):
        return np.zeros(dataset.id.get_type().get_size(), dtype=np.uint8)
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        # As a member, since an array element would become an array of arrays.
        element = np.zeros((), dtype=[("value", dtype_of(dataset))])
        element["value"] = fill_value_of(dataset)
        return np.frombuffer(element.tobytes(), dtype=np.uint8)
    return np.zeros(dataset.id.get_type().get_size(), dtype=np.uint8)


# --- writing a new file with the same tree, and some datasets in other chunks --------------------------------


@contextlib.contextmanager
def rebuilding(plan: RewritePlan, target: str) -> Iterator[NewFile]:
    """Make a new file with the tree of another one; the datasets to be rewritten are created empty."""
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_file_locking(False, True)
    # Alone: libhdf5 2.0 overruns its buffer when it copies scaleoffset data that a reader has unpacked.
    with open_file(plan.source, alone=True) as old:
        creation = _ordered_as(old["/"].id, old.id.get_create_plist())
        new = h5py.File(h5f.create(os.fsencode(target), h5f.ACC_TRUNC, fcpl=creation, fapl=access))
        try:
            rebuilt = NewFile(plan, old, new)
            rebuilt.copy_tree()
            yield rebuilt
            new.flush()
        except BaseException:
            with contextlib.suppress(OSError):
                os.truncate(target, 0)
            with contextlib.suppress(OSError, RuntimeError):
                new.close()
            raise
        new.close()
        user_block = old.userblock_size
    with open(target, "r+b") as file:
        if user_block:  # the data before the HDF5 data
            file.write(bytes_at(identity_of(plan.source), 0, user_block))
        file.flush()
        os.fsync(file.fileno())


class NewFile:
    """The tree of an open file in a new one: groups, links, attributes, and objects, copied or rewritten.

    References are addresses inside a file, and invalid in another one. They are translated, in attributes and in
    datasets, once every object has its place in the new file; dimension scales depend on them.

    # Guarantees: used by one thread.
    """

    def __init__(self, plan: RewritePlan, source: h5py.File, target: h5py.File) -> None:
        self._plan, self._source, self._target = plan, source, target
        self._rewritten = {dataset.address: dataset for dataset in plan.rewritten}
        self.notices: list[str] = []  # losses, for users
        # address of each object in the source -> its path in the target, if it has one there
        self.places: dict[int, bytes] = {}

    # --- rows -------------------------------------------------------------------------------------------

    def opened(self, dataset: RawDataset) -> h5d.DatasetID:
        """Open a dataset in the new file."""
        return h5d.open(self._target.id, self.places[dataset.address])

    def permute_rows(self, dataset: RawDataset, order: NDArray[np.int64]) -> None:
        """Reorder the rows of a copied dataset through h5py, in memory."""
        target = self.opened(dataset)
        stored = target.get_type()
        if holds_reference(stored):  # translated already
            twin = h5py.Dataset(target)
            values = np.asarray(values_of(twin, (), ()), dtype=dtype_of(twin))[order]
            target.write(h5s.ALL, h5s.ALL, values, memory_type(values.dtype))
            return
        with elements_of(target) as elements:
            rows = elements.reshape(dataset.shape)[order]
            write_elements(target, rows.reshape(-1))

    def _create(self, old: h5d.DatasetID, group: h5g.GroupID, name: bytes, dataset: RawDataset) -> None:
        """Create an empty dataset that is to be rewritten."""
        creation, space, recipe = old.get_create_plist(), old.get_space(), self._plan.recipe
        for code in [creation.get_filter(i)[0] for i in range(creation.get_nfilters())]:
            creation.remove_filter(code)
        dims = space.get_simple_extent_dims()
        if recipe.contiguous:
            creation.set_layout(h5d.CONTIGUOUS)
            if space.get_simple_extent_dims(True) != dims:
                self.notices.append(f"{_text(name)} can no longer grow: it is stored without chunks")
            space = h5s.create_simple(dims)
        else:
            creation.set_chunk((self._plan.chunk_rows(dataset), *dims[1:]))
        creation.set_alloc_time(h5d.ALLOC_TIME_DEFAULT)
        for filter_spec in filters_for(recipe.compress, dataset.element_nbytes):
            # Optional, so that a chunk that does not get smaller may be stored without it.
            creation.set_filter(filter_spec.id, h5z.FLAG_OPTIONAL, filter_spec.values)
        h5d.create(group, name, old.get_type().copy(), space, creation)

    def _create_and_fill(self, old: h5d.DatasetID, group: h5g.GroupID, name: bytes) -> None:
        """Create a dataset with the same properties, and write its written chunks, or all rows piece by piece."""
        # Named from the start: libhdf5 2.0 loses the header of a dataset that is linked after it was written to.
        new = h5d.create(group, name, old.get_type().copy(), old.get_space(), old.get_create_plist())
        source = h5py.Dataset(old)
        try:
            for start, count in self._boxes_of(source):
                space = old.get_space()
                if start:
                    space.select_hyperslab(start, count)
                with elements_of(old, space) as elements:
                    write_elements(new, elements, space)
        except BaseException:
            group.unlink(name)
            raise

    def _boxes_of(self, source: h5py.Dataset) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield first element and shape of each written chunk, or of pieces of data without chunks."""
        if not source.size or source.is_virtual:  # virtual data would be written to other files
            return
        if source.chunks:
            index = build_index(source, file_size=self._source.id.get_filesize())
            for start in map(index.coordinates, index.numbers.tolist()):
                yield start, chunk_box(source.shape, source.chunks, start)
        elif source.shape:
            row_nbytes = math.prod(source.shape[1:]) * source.id.get_type().get_size()
            for first, last in _slabs(source, row_nbytes):
                yield (first,) + (0,) * (source.ndim - 1), (last - first, *source.shape[1:])
        else:
            yield (), ()

    # --- the tree ---------------------------------------------------------------------------------------

    def copy_tree(self) -> None:
        """Copy everything except rewritten rows, and translate references at the end."""
        root = self._source["/"].id
        self.places[address_of_object(root)] = b"/"
        self._group(root, self._target["/"].id, b"")
        for place in list(self.places.values()):
            with self._trying(f"attributes of {_text(place)}"):  # all of them, if their list is damaged
                self._annotate(place)

    def _annotate(self, place: bytes) -> None:
        """Copy the attributes of a copied object, and translate its references."""
        old, new = (h5o.open(file.id, place) for file in (self._source, self._target))
        if isinstance(old, h5d.DatasetID) and holds_reference(old.get_type()):
            with self._trying(f"references in {_text(place)}"):
                source = h5py.Dataset(old)
                values = self._translated(np.asarray(values_of(source, (), ()), dtype=dtype_of(source)))
                new.write(h5s.ALL, h5s.ALL, values, memory_type(values.dtype))
        for name in _attributes_of(old):
            with self._trying(f"attribute {_text(name)!r} of {_text(place)}"):
                self._copy_attribute(old, new, name)

    @contextlib.contextmanager
    def _trying(self, what: str, where: bytes = b"") -> Iterator[None]:
        """Record a failure as a notice, and remove the failed object from `places`."""
        try:
            yield
        except DAMAGE as error:
            if is_full(error):
                raise
            self.notices.append(f"{what} could not be kept: {error}")
            self.places = {key: place for key, place in self.places.items() if place != where}

    def _group(self, source: h5g.GroupID, target: h5g.GroupID, place: bytes) -> None:
        for name in source:  # in the order of creation if it is tracked
            where = place + b"/" + name
            kind = source.links.get_info(name).type
            if kind == h5l.TYPE_HARD:
                with self._trying(_text(where), where):
                    self._object(source, target, name, where)
            elif kind == h5l.TYPE_SOFT:
                target.links.create_soft(name, source.links.get_val(name))
            elif kind == h5l.TYPE_EXTERNAL:
                target.links.create_external(name, *source.links.get_val(name))
            else:
                self.notices.append(f"{_text(where)} is a user-defined link and was left out")

    def _object(self, source: h5g.GroupID, target: h5g.GroupID, name: bytes, place: bytes) -> None:
        h5py_object = h5o.open(source, name)
        address = address_of_object(h5py_object)
        if address in self.places:
            h5o.link(h5o.open(self._target.id, self.places[address]), target, name)
            return
        self.places[address] = place
        if isinstance(h5py_object, h5g.GroupID):
            # The property list of an open group also has the addresses of its links: HDF5 2.0 would look for them there
            # in the new file ("wrong fractal heap header signature").
            creation = _ordered_as(h5py_object, h5p.create(h5p.GROUP_CREATE))
            self._group(h5py_object, h5g.create(target, name, gcpl=creation), place)
            return
        if address in self._rewritten:
            self._create(h5py_object, target, name, self._rewritten[address])
        elif isinstance(h5py_object, h5d.DatasetID) and _is_copied_wrongly(h5py_object):
            self._create_and_fill(h5py_object, target, name)
        else:
            how = h5p.create(h5p.OBJECT_COPY)
            how.set_copy_object(h5o.COPY_WITHOUT_ATTR_FLAG)  # attributes follow, with translated references
            h5o.copy(source, name, target, name, copypl=how)
        if isinstance(h5py_object, h5d.DatasetID) and h5py_object.get_type().committed():
            self.notices.append(f"{_text(place)} no longer shares its named type; it has the type itself")

    def _copy_attribute(self, old: _ObjectID, new: _ObjectID, name: bytes) -> None:
        attribute = h5a.open(old, name)
        stored, space = attribute.get_type(), attribute.get_space()
        twin = h5a.create(new, name, stored.copy(), space)
        if space.get_simple_extent_type() == h5s.NULL or space.get_simple_extent_npoints() == 0:
            return
        if is_fixed(stored):
            raw = np.zeros(space.get_simple_extent_dims(), dtype=f"V{stored.get_size()}")
            attribute.read(raw, mtype=stored)
            twin.write(raw, mtype=stored)
            return
        if holds_reference(stored):
            values = self._translated(_read(attribute))
            twin.write(values, memory_type(values.dtype))
            return
        with elements_of(attribute) as elements:
            write_elements(twin, elements)

    def _translated(self, value: object) -> Any:
        """Return a value or an array with every reference replaced by one to the same object of the new file."""
        if isinstance(value, h5r.Reference) and value:
            place = self.places.get(address_of_object(h5r.dereference(value, self._source.id)))
            if place is None:
                self.notices.append("a reference to an object without a name was left empty")
                return type(value)()
            if isinstance(value, h5r.RegionReference):
                region = h5r.get_region(value, self._source.id)
                return h5r.create(self._target.id, place, h5r.DATASET_REGION, region)
            return h5r.create(self._target.id, place, h5r.OBJECT)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "OV":
            return value
        out = value.copy()
        for where in value.dtype.names or (np.ndindex(value.shape) if value.dtype.kind == "O" else ()):
            out[where] = self._translated(value[where])
        return out


def _is_copied_wrongly(dataset: h5d.DatasetID) -> bool:
    """Return whether libhdf5 cannot copy a dataset: its elements have variable lengths, and a filter or a fill value.

    When it copies such chunks, it writes beyond a buffer that a plugin has replaced ("double free or corruption", with
    zstd for example), and a fill value in the copy refers to the old file.
    """
    with contextlib.suppress(*DAMAGE):  # as when copying
        creation = dataset.get_create_plist()
        has_fill = creation.fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED
        return not is_fixed(dataset.get_type()) and (has_fill or creation.get_nfilters() > 0)
    return False


def _attributes_of(h5py_object: _ObjectID) -> list[bytes]:
    """Return the names of an object's attributes, in the order of creation if it is tracked."""
    names, order = list[bytes](), 0
    if isinstance(h5py_object, (h5g.GroupID, h5d.DatasetID)):
        order = h5py_object.get_create_plist().get_attr_creation_order() & h5p.CRT_ORDER_TRACKED
    h5a.iterate(h5py_object, names.append, index_type=h5py.h5.INDEX_CRT_ORDER if order else h5py.h5.INDEX_NAME)
    return names


def _read(attribute: h5a.AttrID) -> np.ndarray:
    values = np.zeros(attribute.shape, dtype=type_of(attribute.get_type()))
    attribute.read(values, memory_type(values.dtype))
    return values


def _ordered_as(group: h5g.GroupID, creation: _Creation) -> _Creation:
    """Make a new group list its names and attributes in the same order as another one."""
    creation.set_link_creation_order(group.get_create_plist().get_link_creation_order())
    creation.set_attr_creation_order(group.get_create_plist().get_attr_creation_order())
    return creation


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def write_rows(target: h5d.DatasetID, dataset: RawDataset, first_row: int, data: Bytes) -> None:
    """Write the bytes of some rows of a dataset without chunks."""
    count, space = (data.nbytes // dataset.row_nbytes, *dataset.shape[1:]), target.get_space()
    space.select_hyperslab((first_row,) + (0,) * (len(count) - 1), count)
    rows = data.view(f"V{dataset.element_nbytes}").reshape(count)
    target.write(h5s.create_simple(count), space, rows, target.get_type())


# --- Chunks are compressed outside HDF5's lock, by many threads, into the bytes that HDF5's filters would store.
#
# Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message"; the registered filters 32004
# (LZ4) and 32015 (Zstandard).


ZSTD = 32015
# The widths whose byte shuffle the loader undoes by vector instructions while it scatters. Shuffled data is smaller:
# float32 of 11 significant bits lz4 0.96 -> 0.63, zstd 0.59 -> 0.46, gzip 0.59 -> 0.45.
_SHUFFLED_NBYTES = frozenset({2, 4, 8})
_CODECS = {
    "lz4": Filter(id=LZ4, values=(0,), name="lz4"),  # 0: the plugin's own size of blocks
    "zstd": Filter(id=ZSTD, values=(3,), name="zstd"),  # a level, as gzip's
    "gzip": Filter(id=DEFLATE, values=(4,), name="gzip"),
}


_ENCODERS = {LZ4: imagecodecs.lz4h5_encode, ZSTD: imagecodecs.zstd_encode, DEFLATE: imagecodecs.deflate_encode}


def filters_for(compress: str, element_nbytes: int) -> tuple[Filter, ...]:
    """Return the filters for chunks of such elements, in the order of application."""
    if compress == "none":
        return ()
    shuffle = Filter(id=SHUFFLE, values=(element_nbytes,), name="shuffle")
    return (*((shuffle,) if element_nbytes in _SHUFFLED_NBYTES else ()), _CODECS[compress])


def encode(filters: tuple[Filter, ...], chunk: Bytes) -> tuple[Bytes, int]:
    """Return the bytes to store and the filter mask, which has every bit set if the chunk does not get smaller."""
    data = chunk
    for filter_spec in filters:
        if filter_spec.id == SHUFFLE:  # a chunk holds whole elements only
            data = np.ascontiguousarray(data.reshape(-1, filter_spec.values[0]).T).reshape(-1)
        else:
            level = {} if filter_spec.id == LZ4 else {"level": filter_spec.values[0]}
            data = np.frombuffer(_ENCODERS[filter_spec.id](data, **level), dtype=np.uint8)
    return (data, 0) if not filters or data.nbytes < chunk.nbytes else (chunk, (1 << len(filters)) - 1)


# --- comparing two files through h5py -----------------------------------------------------------------------


SLAB_NBYTES = 32 << 20  # bytes that are compared at a time, or one row of chunks if that is more, none is decoded twice
_FIRST_WORDS = 1 << 16

Tell = Callable[[int], None]


def verify(
    plan: RewritePlan,
    target: Path,
    places: dict[int, bytes],
    order: NDArray[np.int64] | None,
    tell: Callable[[RawDataset, int], None],
) -> list[str]:
    """Compare a new file with its source, by the datasets' places; return notices of those not compared."""
    notices = []
    # Not through `open_hdf5`: an error in here concerns one dataset, which is named.
    with open_file(plan.source) as old, open_file(str(target)) as new:
        for dataset in plan.datasets:
            if dataset.address not in places:
                continue  # lost, as a notice reports
            try:
                both = old[dataset.path], new[places[dataset.address]]
                moved = order if dataset.shuffled else None
                problem = difference(*both, dataset, moved, functools.partial(tell, dataset))
            except DAMAGE as error:
                if dataset.rewritten or isinstance(error, H5StreamError):
                    raise
                # Libhdf5 copies stored chunks without decoding them, even if their filters are missing.
                problem = ""
                with contextlib.suppress(*DAMAGE):
                    one = old[dataset.path]
                    difference(one, one, dataset, None, lambda _: None)
                    problem = f"it can be read there, and not in the new file: {error}"
                if not problem:
                    notices.append(f"{dataset.path} was copied as it is and not compared: {error}")
            if problem:
                why = "memory or storage at fault is likely, or else this is a defect of h5stream"
                if dataset.borrowed and (needs := needed_elsewhere(Path(plan.source), target)):
                    why = (
                        f"the source needs other files, whose names lead elsewhere or nowhere from {target.parent}: "
                        f"{needs}. Repack into the folder of the source, where they are found"
                    )
                raise StagedFileDamagedError(
                    f"what was written to {target} is not what {plan.source} holds: {dataset.path}: {problem}. The new "
                    f"file was not kept; {why}",
                    file=plan.source,
                )
    return notices


def difference(
    a: h5py.Dataset, b: h5py.Dataset, dataset: RawDataset, order: NDArray[np.int64] | None, tell: Tell
) -> str:
    """Return the first difference of two datasets; empty if they have the same rows."""
    stored = a.id.get_type()
    if (a.shape, stored == b.id.get_type()) != (b.shape, True):
        return "its shape or type changed"
    if a.shape is None or 0 in a.shape or holds_reference(stored):
        return ""  # addresses always differ; their targets were checked in translation
    if not a.shape:
        return "" if same(a[()], b[()]) else "its value differs"
    fixed = is_fixed(stored)
    if fixed and order is not None:
        return _permuted(a, b, dataset, order, tell)
    right = b if order is None else b[()][np.argsort(order)]
    for start, stop in _slabs(a, dataset.row_nbytes):
        if fixed:
            one, other = read_rows(a, start, stop), read_rows(b, start, stop)
            wrong = np.flatnonzero([] if one.tobytes() == other.tobytes() else (one != other).any(axis=1))
        else:
            pairs = zip(a[start:stop], right[start:stop], strict=True)
            wrong = np.flatnonzero([not same(*pair) for pair in pairs])
        if len(wrong):
            return f"row {start + wrong[0]} differs"
        tell((stop - start) * dataset.row_nbytes)
    return ""


def _slabs(dataset: h5py.Dataset, row_nbytes: int) -> Iterator[tuple[int, int]]:
    chunk = dataset.chunks[0] if dataset.chunks else 1
    together = max(1, SLAB_NBYTES // max(1, row_nbytes) // chunk) * chunk
    for start in range(0, dataset.shape[0], together):
        yield start, min(start + together, dataset.shape[0])


def read_rows(dataset: h5py.Dataset, start: int, stop: int) -> NDArray[np.uint8]:
    """Read the bytes of rows as they are stored."""
    box = read_raw_box(dataset, (start,) + (0,) * (dataset.ndim - 1), (stop - start, *dataset.shape[1:]))
    return box.reshape(-1).view(np.uint8).reshape(stop - start, -1)


def _permuted(a: h5py.Dataset, b: h5py.Dataset, dataset: RawDataset, order: NDArray[np.int64], tell: Tell) -> str:
    sums = [np.empty(dataset.rows, dtype=np.uint64) for _ in range(2)]
    for out, side in zip(sums, (a, b), strict=True):
        for start, stop in _slabs(side, dataset.row_nbytes):
            out[start:stop] = row_sums(read_rows(side, start, stop))
            tell((stop - start) * dataset.row_nbytes if side is a else 0)
    wrong = np.flatnonzero(sums[0][order] != sums[1])
    return f"row {wrong[0]} is not row {order[wrong[0]]} of the source" if len(wrong) else ""


def row_sums(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a 64-bit sum of each row's bytes: words weighted by fixed random odd numbers.

    Rows that differ in one word always have different sums; others do except in one case of 2**64.
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

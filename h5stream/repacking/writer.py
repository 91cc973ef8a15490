"""A file written anew from another one: the same tree, some datasets in other chunks.

# Guarantees: one thread writes. Chunks come compressed by others and are stored as they are; nothing of the
source is changed. When a write fails, the space that was taken is given back before the file is closed, or
libhdf5 could not close it: it would have to write what did not fit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import h5py
import imagecodecs
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5l, h5o, h5p, h5r, h5s, h5z
from numpy.typing import NDArray

from h5stream.filesystem import is_full
from h5stream.repacking.survey import RawDataset, RewritePlan, address_of_object
from h5stream.storage.codecs import DEFLATE, LZ4, SHUFFLE, Bytes
from h5stream.storage.elements import holds_reference, in_stored_byte_order, is_fixed, same
from h5stream.storage.filters import Filter
from h5stream.storage.handles import open_file
from h5stream.storage.source import bytes_at, identity_of

_FAILURES = (OSError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError)


@contextlib.contextmanager
def rebuilding(plan: RewritePlan, target: str) -> Iterator[NewFile]:
    """Make a new file with the tree of another; the datasets to be rewritten are there, and empty."""
    # Alone: libhdf5 2.0 writes behind its buffer where it copies what scaleoffset packed and a reader has unpacked.
    with open_file(plan.source, alone=True) as old, _created(old, target) as new:
        rebuilt = NewFile(plan, old, new)
        rebuilt.copy_tree()
        yield rebuilt
        user_block = old.userblock_size
    with open(target, "r+b") as file:
        if user_block:  # what stands before the HDF5 data
            file.write(bytes_at(identity_of(plan.source), 0, user_block))
        file.flush()
        os.fsync(file.fileno())


class NewFile:
    """The tree of one open file in another, new one: groups, links, attributes, and objects as they are, or rewritten.

    References are addresses inside a file, and mean nothing in another one. They are translated, in attributes and in
    datasets, once every object has its place in the new file; dimension scales live by them.

    # Guarantees: used by one thread.
    """

    def __init__(self, plan: RewritePlan, source: Any, target: Any) -> None:
        self._plan, self._source, self._target = plan, source, target
        self._rewritten = {each.address: each for each in plan.rewritten}
        self.notices: list[str] = []  # what could not be kept, for people
        # address of each object in the source -> its path in the target, if it has one there
        self._places: dict[int, bytes] = {}
        self._attributes: list[tuple[Any, bytes, bytes]] = []
        self._with_references: list[tuple[Any, bytes]] = []

    # --- rows -------------------------------------------------------------------------------------------

    @property
    def places(self) -> dict[int, str]:
        """Where each dataset that could be kept lies in the new file, by its address in the old one."""
        return {key: place.decode("utf-8", "surrogateescape").lstrip("/") for key, place in self._places.items()}

    def opened(self, dataset: RawDataset) -> Any:
        """Open a dataset in the new file."""
        return h5d.open(self._target.id, self._places[dataset.address])

    def permute_rows(self, dataset: RawDataset, order: NDArray[np.int64]) -> None:
        """Put the rows of a dataset that was copied as it is into another order, through h5py, in memory."""
        target = self.opened(dataset)
        stored, twin = target.get_type(), h5py.Dataset(target)
        if is_fixed(stored):
            rows = np.zeros(dataset.shape, dtype=f"V{stored.get_size()}")
            target.read(h5s.ALL, h5s.ALL, rows, stored)
            target.write(h5s.ALL, h5s.ALL, rows[order], stored)
        else:
            target.write(h5s.ALL, h5s.ALL, np.asarray(twin[()], dtype=twin.dtype)[order])

    def _create(self, old: Any, group: Any, name: bytes, dataset: RawDataset) -> None:
        """Make a dataset that is to be rewritten, empty."""
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
        for each in filters_for(recipe.compress, dataset.element_nbytes):
            # Optional, so that a chunk which does not get smaller may be stored without it.
            creation.set_filter(each.id, h5z.FLAG_OPTIONAL, each.values)
        h5d.create(group, name, old.get_type().copy(), space, creation)

    # --- the tree ---------------------------------------------------------------------------------------

    def copy_tree(self) -> None:
        """Copy everything but the rows that are rewritten, and translate the references at the end."""
        root = self._source["/"].id
        self._places[address_of_object(root)] = b"/"
        self._group(root, self._target["/"].id, b"")
        for owner, place, name in self._attributes:
            with self._trying(f"attribute {_text(name)!r} of {_text(place)}"):
                self._attribute(owner, place, name)
        for dataset, place in self._with_references:
            with self._trying(f"references in {_text(place)}"):
                self._translate_dataset(dataset, place)

    @contextlib.contextmanager
    def _trying(self, what: str, where: bytes = b"") -> Iterator[None]:
        """Note what fails, and that nothing lies at its place."""
        try:
            yield
        except _FAILURES as error:
            if is_full(error):
                raise
            self.notices.append(f"{what} could not be kept: {error}")
            self._places = {key: place for key, place in self._places.items() if place != where}

    def _group(self, source: Any, target: Any, place: bytes) -> None:
        self._note_attributes(source, place or b"/")
        for name in _link_names(source):
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

    def _object(self, source: Any, target: Any, name: bytes, place: bytes) -> None:
        thing = h5o.open(source, name)
        address = address_of_object(thing)
        if address in self._places:
            h5o.link(h5o.open(self._target.id, self._places[address]), target, name)
            return
        self._places[address] = place
        if isinstance(thing, h5g.GroupID):
            self._group(thing, h5g.create(target, name, gcpl=_creation_of_group(thing)), place)
            return
        if address in self._rewritten:
            self._create(thing, target, name, self._rewritten[address])
        else:
            how = h5p.create(h5p.OBJECT_COPY)
            how.set_copy_object(h5o.COPY_WITHOUT_ATTR_FLAG)  # they follow, with their references translated
            h5o.copy(source, name, target, name, copypl=how)
        self._note_attributes(thing, place)
        if isinstance(thing, h5d.DatasetID):
            if holds_reference(thing.get_type()):
                self._with_references.append((thing, place))
            if thing.get_type().committed():
                self.notices.append(f"{_text(place)} no longer shares its named type; it has the type itself")

    # --- attributes -------------------------------------------------------------------------------------

    def _note_attributes(self, owner: Any, place: bytes) -> None:
        self._attributes += [(owner, place, name) for name in _attribute_names(owner)]

    def _attribute(self, owner: Any, place: bytes, name: bytes) -> None:
        attribute = h5a.open(owner, name)
        stored, space = attribute.get_type(), attribute.get_space()
        twin = h5a.create(h5o.open(self._target.id, place), name, stored.copy(), space)
        if space.get_simple_extent_type() == h5s.NULL or space.get_simple_extent_npoints() == 0:
            return
        shape = space.get_simple_extent_dims()
        if is_fixed(stored):
            raw = np.zeros(shape, dtype=f"V{stored.get_size()}")
            attribute.read(raw, mtype=stored)
            twin.write(raw, mtype=stored)
            return
        values = _read(attribute)
        twin.write(self._translated(values))
        if not holds_reference(stored) and not same(values, _read(twin)):
            twin.write(in_stored_byte_order(values))
            if not same(values, _read(twin)):
                raise ValueError("h5py does not read back what it wrote")

    # --- references -------------------------------------------------------------------------------------

    def _translate_dataset(self, dataset: Any, place: bytes) -> None:
        source = h5py.Dataset(dataset)
        values = np.asarray(source[()], dtype=source.dtype)
        h5d.open(self._target.id, place).write(h5s.ALL, h5s.ALL, self._translated(values))

    def _translated(self, value: Any) -> Any:
        """Return a value or an array in which every reference leads to the same object of the new file."""
        if isinstance(value, h5r.Reference) and value:
            place = self._places.get(address_of_object(h5r.dereference(value, self._source.id)))
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


def _read(attribute: Any) -> Any:
    values = np.zeros(attribute.shape, dtype=attribute.dtype)
    attribute.read(values)
    return values


def _creation_of_group(group: Any) -> Any:
    # The list that an open group gives also names where its links lie in its own file: HDF5 2.0 then looks for
    # them there in the new one ("wrong fractal heap header signature").
    return _ordered_as(group, h5p.create(h5p.GROUP_CREATE))


def _ordered_as(group: Any, creation: Any) -> Any:
    """Let a group that is to be made list its names and attributes in the order that another one has."""
    creation.set_link_creation_order(group.get_create_plist().get_link_creation_order())
    creation.set_attr_creation_order(group.get_create_plist().get_attr_creation_order())
    return creation


def _index(order: int) -> Any:
    """Return the index that lists names in the order in which they were made, where that is tracked."""
    return h5py.h5.INDEX_CRT_ORDER if order & h5p.CRT_ORDER_TRACKED else h5py.h5.INDEX_NAME


def _link_names(group: Any) -> list[bytes]:
    names: list[bytes] = []
    group.links.iterate(names.append, idx_type=_index(group.get_create_plist().get_link_creation_order()))
    return names


def _attribute_names(owner: Any) -> list[bytes]:
    names: list[bytes] = []
    has_order = isinstance(owner, (h5g.GroupID, h5d.DatasetID))
    h5a.iterate(
        owner, names.append, index_type=_index(owner.get_create_plist().get_attr_creation_order() if has_order else 0)
    )
    return names


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def write_rows(target: Any, dataset: RawDataset, first_row: int, data: Bytes) -> None:
    """Store the bytes of some rows of a dataset without chunks."""
    count, space = (data.nbytes // dataset.row_nbytes, *dataset.shape[1:]), target.get_space()
    space.select_hyperslab((first_row,) + (0,) * (len(count) - 1), count)
    rows = data.view(f"V{dataset.element_nbytes}").reshape(count)
    target.write(h5s.create_simple(count), space, rows, target.get_type())


@contextlib.contextmanager
def _created(old: Any, target: str) -> Iterator[Any]:
    creation, access = _ordered_as(old["/"].id, old.id.get_create_plist()), h5p.create(h5p.FILE_ACCESS)
    access.set_file_locking(False, True)
    file = h5py.File(h5f.create(os.fsencode(target), h5f.ACC_TRUNC, fcpl=creation, fapl=access))
    try:
        yield file
        file.flush()
    except BaseException:
        with contextlib.suppress(OSError):
            os.truncate(target, 0)
        with contextlib.suppress(OSError, RuntimeError):
            file.close()
        raise
    file.close()


# --- Chunks are compressed outside HDF5's lock, by many threads, into the bytes that HDF5's filters would store.
#
# Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message"; the registered filters 32004
# (LZ4) and 32015 (Zstandard).


ZSTD = 32015
# The widths whose byte shuffle the loader undoes in vector instructions while it scatters. What is shuffled is smaller:
# float32 of 11 significant bits lz4 0.96 -> 0.63, zstd 0.59 -> 0.46, gzip 0.59 -> 0.45.
_SHUFFLED_NBYTES = frozenset({2, 4, 8})
_CODECS = {
    "lz4": Filter(id=LZ4, values=(0,), name="lz4"),  # 0: the plugin's own size of blocks
    "zstd": Filter(id=ZSTD, values=(3,), name="zstd"),  # a level, as gzip's
    "gzip": Filter(id=DEFLATE, values=(4,), name="gzip"),
}


def filters_for(compress: str, element_nbytes: int) -> tuple[Filter, ...]:
    """Return the filters of chunks of such elements, in the order in which they are applied."""
    if compress == "none":
        return ()
    shuffle = Filter(id=SHUFFLE, values=(element_nbytes,), name="shuffle")
    return (*((shuffle,) if element_nbytes in _SHUFFLED_NBYTES else ()), _CODECS[compress])


def encode(filters: tuple[Filter, ...], chunk: Bytes) -> tuple[Bytes, int]:
    """Return the bytes to store and the filter mask that goes with them.

    A chunk that does not get smaller is stored as it is, with every filter's bit set. Any thread may call, and the GIL
    is not held while it compresses.
    """
    data = chunk
    for each in filters:
        if each.id == SHUFFLE:  # a chunk holds whole elements only
            data = np.ascontiguousarray(data.reshape(-1, each.values[0]).T).reshape(-1)
        elif each.id == LZ4:
            data = np.frombuffer(imagecodecs.lz4h5_encode(data), dtype=np.uint8)
        elif each.id == ZSTD:
            data = np.frombuffer(imagecodecs.zstd_encode(data, level=each.values[0]), dtype=np.uint8)
        else:
            data = np.frombuffer(imagecodecs.deflate_encode(data, level=each.values[0]), dtype=np.uint8)
    return (data, 0) if not filters or data.nbytes < chunk.nbytes else (chunk, (1 << len(filters)) - 1)

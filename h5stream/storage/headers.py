"""Where the data of many objects lie, read from their headers at once.

Opening a dataset through libhdf5 costs 50 us and more, under a lock; reading its header from the file's bytes costs
some 2 us, and a million of them give arrays and no Python objects. Whatever is not quite usual is *not understood*:
libhdf5 is asked for that object, and always for the first of each kind, so nothing here has to know what a datatype or
a filter means. The bytes of an element, too, are what the datatype's message says, and to be compared with what
libhdf5 says of the first of its kind: members of a damaged compound need not fit in. A header is read with every
position checked (`h5stream.storage.header_bytes`).

The compiled loops are no part of `h5stream.engine.kernels.warm_up`: they are compiled, or loaded from numba's cache,
by the first call.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.storage import header_bytes, heap_bytes, index_bytes, metadata_bytes
from h5stream.storage.header_bytes import ASK
from h5stream.storage.metadata_bytes import NOWHERE

_FIRST_CHUNKS = 4096
_NBYTES_OF_A_CHUNK = 16
"""What a chunk takes in its file at least, with its place in the index: a file has no more chunks than that allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superblock:
    """What must be known of a file to read its headers.

    Attributes
    ----------
    file_nbytes : int
        Bytes of the file; every address must lie inside.
    offset_nbytes, length_nbytes : int
        Bytes of an address, and of a count, in this file: 2, 4 or 8.
    base_address : int
        Where addresses count from: the bytes of the user block.
    """

    file_nbytes: int
    offset_nbytes: int
    length_nbytes: int
    base_address: int


class HeaderKinds(NamedTuple):
    """What the objects of each kind have in common; every array has one place a kind.

    Attributes
    ----------
    first : ndarray of int64
        The first object of the kind, by its place among the headers: the one to ask libhdf5 for.
    element_nbytes : ndarray of int64
        Bytes of one stored element; 0 for groups.
    filters : ndarray of int64
        Filters in the pipeline.
    chunk_shape : ndarray of int64, shape (kinds, axes)
        Elements of a chunk along each axis; 0 where there are no chunks, and beyond the rank.
    """

    first: NDArray[np.int64]
    element_nbytes: NDArray[np.int64]
    filters: NDArray[np.int64]
    chunk_shape: NDArray[np.int64]


class AttributeValues(NamedTuple):
    """Where the values of one attribute lie; every array has one place an object, of several the attribute before it.

    Attributes
    ----------
    address : ndarray of int64
        Offset in the file of the value's bytes; `ABSENT` where the object has no such attribute, `ASK` where libhdf5
        must be asked, and for every object that is not understood.
    nbytes : ndarray of int64
        Bytes of the value: elements times bytes of an element; 0 where there is no address, or nothing in it.
    kind : ndarray of int32
        Numbers the distinct (datatype, dataspace), byte by byte, in no order that means anything; -1 where there is
        no address.
    """

    address: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    kind: NDArray[np.int32]

    def of(self, which: Any) -> AttributeValues:
        """Give those of one of several attributes, by its number, or of some objects."""
        chosen: Any = (each[which] if np.ndim(which) == 0 else each[:, which] for each in self)
        return AttributeValues(*chosen)


class Headers(NamedTuple):
    """What the headers of some objects say; every array has one place an object, in the order they were asked for.

    Attributes
    ----------
    kind : ndarray of int32
        Numbers the distinct ways of being stored, in no order that means anything: layout, rank, shape of the
        chunks, and the bytes of the messages that say datatype, fill value and filters, compared byte by byte. -1 where
        the header is not understood.
    rank : ndarray of int8
        Axes; 0 for a single value, -1 for none at all (a null dataspace) and for groups.
    layout : ndarray of int8
        `CONTIGUOUS`, `COMPACT`, `CHUNKED`, or `GROUP` for what is no dataset.
    address : ndarray of int64
        Offset in the file of contiguous or compact data, of a chunk index, of a single chunk; `NOWHERE` where nothing
        was stored.
    nbytes : ndarray of int64
        Bytes stored there: of contiguous and compact data, and of a single chunk.
    index : ndarray of int8
        Kind of chunk index: `BTREE_1`, `SINGLE`, ...; -1 for what is not chunked.
    is_numbered : ndarray of bool
        Whether the chunks' places in their index are their numbers in the grid; what may still grow has other ones.
    filter_mask : ndarray of uint32
        Of a single chunk.
    shape : ndarray of int64, shape (axes, objects)
        The shape, 0 beyond the rank. As many axes as the highest rank.
    wanted : Wanted
        Names of attributes.
    values : AttributeValues
        Of these.
    kinds : HeaderKinds
        What objects of one kind have in common.
    """

    kind: NDArray[np.int32]
    rank: NDArray[np.int8]
    layout: NDArray[np.int8]
    address: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    index: NDArray[np.int8]  # type: ignore[assignment]  # of tuples a method, which nothing asks for
    is_numbered: NDArray[np.bool_]
    filter_mask: NDArray[np.uint32]
    shape: NDArray[np.int64]
    wanted: header_bytes.Wanted
    values: AttributeValues
    kinds: HeaderKinds

    @property
    def dims(self) -> NDArray[np.int64]:
        """The shape of each object, 0 beyond its rank."""
        return self.shape.T

    @property
    def attributes(self) -> Mapping[str, AttributeValues]:
        """The values of each attribute that was wanted, by its name."""
        names, edges = self.wanted.names.tobytes(), self.wanted.edges.tolist()
        encoded = (names[begin:end] for begin, end in itertools.pairwise(edges))
        return {name.decode("utf-8", "surrogateescape"): self.values.of(k) for k, name in enumerate(encoded)}

    @property
    def understood(self) -> NDArray[np.bool_]:
        """Which headers were understood; libhdf5 must be asked for the others."""
        return self.kind >= 0


class StoredChunks(NamedTuple):
    """Where the chunks of some objects lie; the arrays have one place a chunk, but `understood`.

    Attributes
    ----------
    understood : ndarray of bool
        For each object that was asked for, in that order; libhdf5 must be asked for the others, of which no chunk is
        listed.
    owner : ndarray of int64
        The object, by its place among the headers; in the order in which objects were asked for.
    number : ndarray of int64
        The chunk's place in its object's grid, last axis fastest; ascending. Chunks that were never written are
        missing.
    offset, nbytes : ndarray of int64
        File offset and stored size in bytes.
    filter_mask : ndarray of uint32
        Bit ``i`` set: filter ``i`` of the pipeline was skipped.
    """

    understood: NDArray[np.bool_]
    owner: NDArray[np.int64]
    number: NDArray[np.int64]
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    filter_mask: NDArray[np.uint32]


def superblock_of(file: Any, file_nbytes: int) -> Superblock:
    """Say what must be known of an open file to read its headers.

    Parameters
    ----------
    file : h5py.File
        Open.
    file_nbytes : int
        Its size.
    """
    creation = file.id.get_create_plist()
    offset_nbytes, length_nbytes = creation.get_sizes()
    return Superblock(
        file_nbytes=file_nbytes,
        offset_nbytes=int(offset_nbytes),
        length_nbytes=int(length_nbytes),
        base_address=int(creation.get_userblock()),
    )


def read_headers(givens: NDArray[np.int64], addresses: NDArray[np.int64], attributes: Sequence[str] = ()) -> Headers:
    """Read the headers of some objects from the bytes of the one file that all lie in, or of that of each.

    Parameters
    ----------
    givens : ndarray of int64, shape (5,) or (objects, 5)
        What `given_of` says of each file, open for reading. What libhdf5 still holds to be written is not seen.
    addresses : ndarray of int64
        Of the headers, as h5py gives them: counted from the base address.
    attributes : sequence of str
        Names of attributes whose values are wanted.

    Returns
    -------
    Headers
        One place for each address.
    """
    addresses, givens = np.asarray(addresses, dtype=np.int64), np.atleast_2d(givens)
    # As they lie in the file: a million that are asked for in random order take 2.5 s so, and 3.6 s as they come.
    order = np.argsort(addresses, kind="stable")
    found = _headers(len(addresses), tuple(dict.fromkeys(attributes)))
    names = len(found.values.kind)
    interned, scratch = _interned(1 + names), scratch_of(names)
    ascending, is_dense = addresses[order], np.zeros(len(order), dtype=bool)
    givens = givens[order] if len(givens) > 1 else givens
    header_bytes.read_each(givens, ascending, scratch, interned, found, is_dense)
    if is_dense.any():
        ids = np.zeros(17 * header_bytes.MOST_DENSE + metadata_bytes.SLACK_NBYTES, dtype=np.uint8)
        heaps, which = heap_bytes.heap_scratch(), np.flatnonzero(is_dense)
        header_bytes.read_dense(givens, ascending, which, scratch, interned, found, heaps, ids)
    return _put_back(found, order, int(interned.counts[0]))


def chunks_of(givens: NDArray[np.int64], headers: Headers, which: NDArray[np.int64] | None = None) -> StoredChunks:
    """Read the chunk indexes of some objects from the file's bytes.

    Parameters
    ----------
    givens
        As for `read_headers`.
    headers : Headers
        What that function gave.
    which : ndarray of int64, optional
        Places of the wanted objects among them; by default all. What is not chunked has no index to be understood.

    Returns
    -------
    StoredChunks
        Of the objects whose index is of a known kind.

    Raises
    ------
    IndexError
        If there is no such object.
    """
    wanted = np.arange(len(headers.kind)) if which is None else np.ascontiguousarray(which, dtype=np.int64)
    if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(headers.kind):  # compiled code does not look
        raise IndexError(f"there are {len(headers.kind):,} headers; {wanted.min()} to {wanted.max()} were asked for")
    (buffer, stack), givens = index_bytes.tree_scratch(), np.atleast_2d(givens)
    most = max(int(givens[:, metadata_bytes.FILE_NBYTES].sum()) // _NBYTES_OF_A_CHUNK, 1)
    chunks = _stored_chunks(np.zeros(len(wanted), dtype=bool), min(most, max(_FIRST_CHUNKS, 2 * len(wanted))))
    done = used = 0
    while done < len(wanted):
        done, used = index_bytes.chunks_of_each(givens, buffer, stack, headers, wanted, chunks, done, used)
        if done < len(wanted):
            room = len(chunks.owner)
            if room == most:  # more than the file can hold: what is left must be asked for
                break
            chunks = _moved(chunks, used, _stored_chunks(chunks.understood, min(most, 2 * room)))
    return _moved(chunks, used, _stored_chunks(chunks.understood, used))


def _put_back(found: Headers, order: NDArray[np.int64], kinds: int) -> Headers:
    """Give what was found in the order that was asked for, of which `order` was made, and so many kinds."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    axes = max(int(found.rank.max(initial=0)), 0)
    of_each = {name: column[places] for name, column in found._asdict().items() if name in _OF_EACH}
    known = HeaderKinds(*(each[:kinds].copy() for each in found.kinds))
    return found._replace(
        **of_each,
        shape=found.shape[:axes, places],
        values=found.values.of(places),
        kinds=known._replace(
            first=_first_of_each(of_each["kind"], kinds), chunk_shape=known.chunk_shape[:, :axes].copy()
        ),
    )


_OF_EACH = ("kind", "rank", "layout", "address", "nbytes", "index", "is_numbered", "filter_mask")


def _first_of_each(kind: NDArray[np.int32], kinds: int) -> NDArray[np.int64]:
    known = np.flatnonzero(kind >= 0)
    first = np.full(kinds, len(kind), dtype=np.int64)
    np.minimum.at(first, kind[known], known)
    return first


def given_of(descriptor: int, superblock: Superblock) -> NDArray[np.int64]:
    """Give what every compiled function takes of a file; see `metadata_bytes`. Of an odd one nothing is read."""
    sizes = superblock.offset_nbytes, superblock.length_nbytes
    known = all(size in (2, 4, 8) for size in sizes) and 0 <= superblock.base_address < superblock.file_nbytes
    file_nbytes = superblock.file_nbytes if known else 0
    return np.array([descriptor, file_nbytes, *sizes, superblock.base_address], dtype=np.int64)


def scratch_of(attributes: int) -> header_bytes.Scratch:
    """Make memory for reading headers of which so many attributes are wanted."""
    return header_bytes.Scratch(
        buffer=np.empty(header_bytes.ROOM_NBYTES, dtype=np.uint8),
        blocks=np.zeros((header_bytes.MOST_BLOCKS, 2), dtype=np.int64),
        found=np.zeros(header_bytes.FOUND, dtype=np.int64),
        values=np.zeros((attributes, 6), dtype=np.int64),
        about=np.zeros(header_bytes.ABOUT, dtype=np.int64),
        key=np.empty(header_bytes.KEY_NBYTES, dtype=np.uint8),
    )


def wanted_of(names: Sequence[str]) -> header_bytes.Wanted:
    """Give names of attributes as bytes."""
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    return header_bytes.Wanted(
        names=np.frombuffer(b"".join(encoded) + bytes(metadata_bytes.SLACK_NBYTES), dtype=np.uint8).copy(),
        edges=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
    )


def _interned(tables: int) -> header_bytes.Interned:
    return header_bytes.Interned(
        pool=np.empty(header_bytes.POOL_NBYTES, dtype=np.uint8),
        places=np.empty((tables, header_bytes.MOST_KINDS, 2), dtype=np.int64),
        table=np.full((tables, 4 * header_bytes.MOST_KINDS), -1, dtype=np.int32),
        counts=np.zeros(tables + 1, dtype=np.int64),
    )


def _headers(count: int, names: Sequence[str]) -> Headers:
    """Make room for headers of which nothing is known."""
    of_each, most = (len(names), count), header_bytes.MOST_KINDS
    return Headers(
        kind=np.full(count, -1, dtype=np.int32),
        rank=np.full(count, -1, dtype=np.int8),
        layout=np.full(count, -1, dtype=np.int8),
        address=np.full(count, NOWHERE, dtype=np.int64),
        nbytes=np.zeros(count, dtype=np.int64),
        index=np.full(count, -1, dtype=np.int8),
        is_numbered=np.zeros(count, dtype=bool),
        filter_mask=np.zeros(count, dtype=np.uint32),
        shape=np.zeros((header_bytes.MOST_AXES, count), dtype=np.int64),  # axes that no object has are never touched
        wanted=wanted_of(names),
        values=AttributeValues(
            np.full(of_each, ASK, dtype=np.int64), np.zeros(of_each, dtype=np.int64), np.full(of_each, -1, np.int32)
        ),
        kinds=HeaderKinds(
            first=np.full(most, -1, dtype=np.int64),
            element_nbytes=np.zeros(most, dtype=np.int64),
            filters=np.zeros(most, dtype=np.int64),
            chunk_shape=np.zeros((most, header_bytes.MOST_AXES), dtype=np.int64),
        ),
    )


def _stored_chunks(understood: NDArray[np.bool_], room: int) -> StoredChunks:
    """Make room for so many chunks."""
    owner, number, offset, nbytes = np.empty((4, room), dtype=np.int64)
    return StoredChunks(understood, owner, number, offset, nbytes, np.empty(room, dtype=np.uint32))


def _moved(chunks: StoredChunks, used: int, to: StoredChunks) -> StoredChunks:
    """Give the first chunks in other room."""
    pairs: Any = zip(chunks[1:], to[1:], strict=True)
    for old, new in pairs:
        new[:used] = old[:used]
    return to

"""Names and addresses of everything in a group, at once.

libhdf5's own iteration costs 2 to 8 us a link through Python; a group of a million links is read from the file's bytes
in one second. What is not understood there is asked of libhdf5, link by link: groups of a few links, which
lie in the group's header, always.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.storage import header_bytes, heap_bytes, index_bytes, link_bytes
from h5stream.storage.headers import Superblock, given_of, scratch_of, wanted_of
from h5stream.storage.metadata_bytes import DESCRIPTOR, FILE_NBYTES, SLACK_NBYTES
from h5stream.storage.names import Names, by_bytes, packed

NOT_HARD = -1
"""The address that stands for a soft, external or user-defined link: none of them is followed here."""

MOST_ADDRESS = (1 << 63) - 1
"""The largest address that is taken; a damaged file may name larger ones."""

_MOST_NAMES_NBYTES = 1 << 28
"""Bytes of names that are taken into memory; groups with more are asked of libhdf5."""
_MOST_NAMES_OF_EACH = 1 << 20
"""Bytes of names of one group of many files."""
_LINK_NBYTES = 12
"""What a link takes at least in the heap of its group: version, flags, a name of one byte, an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of one group, ascending by the bytes of their names, as h5py gives them.

    Attributes
    ----------
    names : ndarray of uint8
        The names, UTF-8, one behind the other.
    edges : ndarray of int64
        Where each begins, and at last where they end.
    addresses : ndarray of int64
        Of the object headers, counted from the file's base address; `NOT_HARD` for links of other kinds.
    """

    names: NDArray[np.uint8]
    edges: NDArray[np.int64]
    addresses: NDArray[np.int64]

    def __len__(self) -> int:
        """Links, of all kinds."""
        return len(self.addresses)

    def name(self, i: int) -> bytes:
        """Give the name of one link."""
        return self.names[self.edges[i] : self.edges[i + 1]].tobytes()

    def find(self, wanted: Names) -> NDArray[np.int64]:
        """Give the place of each of some names; -1 for what is not there."""
        found = np.empty(len(wanted), dtype=np.int64)
        names = self.names, self.edges, wanted.text, wanted.edges[:-1], np.diff(wanted.edges)
        link_bytes.find_names(*names, found)
        return found

    def __iter__(self) -> Iterator[bytes]:
        """Give all names, in order."""
        names = self.names.tobytes()
        return (names[start:end] for start, end in itertools.pairwise(self.edges))


def links_of(group: Any, descriptor: int, superblock: Superblock) -> Links:
    """List the links of a group.

    Parameters
    ----------
    group : h5py.h5g.GroupID
        Open: ``h5py.Group.id``.
    descriptor, superblock
        Of its file, as for `read_headers`. What libhdf5 still holds to be written must have been written.

    Returns
    -------
    Links
        Of every kind, each once.
    """
    found = read_links(int(h5py.h5o.get_info(group).addr), descriptor, superblock)
    return _asked(group) if found is None else found


def address_of(info: Any) -> int:
    """Return the address that a hard link leads to; `NOT_HARD` for one that no file has."""
    return int(info.u) if info.u <= MOST_ADDRESS else NOT_HARD


def _asked(group: Any) -> Links:
    """List the links of a group through libhdf5."""
    names: list[bytes] = []
    addresses: list[int] = []

    def note(name: bytes, info: Any) -> None:
        names.append(name)
        addresses.append(address_of(info) if info.type == h5py.h5l.TYPE_HARD else NOT_HARD)

    group.links.iterate(note, info=True)
    return Links(
        names=np.frombuffer(bytearray(b"".join(names)), dtype=np.uint8),
        edges=np.cumsum([0, *map(len, names)], dtype=np.int64),
        addresses=np.array(addresses, dtype=np.int64),
    )


def read_links(address: int, descriptor: int, superblock: Superblock) -> Links | None:
    """List the links of a group from the file's bytes; None where libhdf5 must be asked."""
    given, scratch = given_of(descriptor, superblock), scratch_of(0)
    how, tree, heap = link_bytes.group_of(given, address, scratch, wanted_of(()))
    if how == link_bytes.SYMBOLS:
        return _of_table(given, scratch, tree, heap)
    return _of_heap(given, tree, heap) if how == link_bytes.DENSE else None


def find_in_each(givens: NDArray[np.int64], addresses: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """Find what a name leads to in a group of each of many files; `ABSENT`, or `ASK` where libhdf5 must be asked."""
    wanted = np.frombuffer(name.encode("utf-8", "surrogateescape") + bytes(SLACK_NBYTES), dtype=np.uint8).copy()
    found, names = np.empty(len(addresses), np.int64), np.empty(_MOST_NAMES_OF_EACH, dtype=np.uint8)
    columns, scratch = _columns(_MOST_NAMES_OF_EACH // 16), (scratch_of(0), wanted_of(()), *index_bytes.tree_scratch())
    link_bytes.find_each(givens, addresses, wanted, *scratch, names, columns, found)
    return found


def _of_table(given: NDArray[np.int64], scratch: header_bytes.Scratch, tree: int, heap: int) -> Links | None:
    nbytes, at = link_bytes.local_heap(given, scratch.buffer, heap)
    names = _room(nbytes, given)
    data = b"" if names is None or at < 0 else os.pread(int(given[DESCRIPTOR]), nbytes, at)
    if names is None or len(data) < nbytes:
        return None
    names[:nbytes], names[nbytes:] = np.frombuffer(data, dtype=np.uint8), 0
    buffer, stack = index_bytes.tree_scratch()
    room = nbytes // 2 + 1  # a name has a byte and its null at least
    columns = _columns(room)
    used = link_bytes.links_of_table(given, buffer, stack, tree, names, columns)
    return None if used < 0 else _packed(names, columns, used)


def _of_heap(given: NDArray[np.int64], tree: int, heap: int) -> Links | None:
    scratch = heap_bytes.heap_scratch()
    nbytes = heap_bytes.nbytes_of_heap(given, scratch.node, heap)
    image = _room(nbytes, given)
    if image is None:
        return None
    room = nbytes // _LINK_NBYTES + 1
    ids, columns = np.empty(11 * room + SLACK_NBYTES, dtype=np.uint8), _columns(room)
    used = link_bytes.links_of_heap(given, scratch, image, tree, heap, ids, columns)
    if used < 0:
        return None
    order = by_bytes(image, columns.name[:used], columns.name_nbytes[:used])
    return _packed(image, link_bytes.LinkColumns(*(column[:used][order] for column in columns)), used)


def _room(nbytes: int, given: NDArray[np.int64]) -> NDArray[np.uint8] | None:
    """Give memory for bytes of a file that are said to be so many; None where that cannot be right, or is too much."""
    if not 0 <= nbytes <= min(_MOST_NAMES_NBYTES, int(given[FILE_NBYTES])):
        return None
    return np.empty(nbytes + SLACK_NBYTES, dtype=np.uint8)


def _columns(room: int) -> link_bytes.LinkColumns:
    return link_bytes.LinkColumns(*(np.empty(room, dtype=np.int64) for _ in range(3)))


def _packed(names: NDArray[np.uint8], columns: link_bytes.LinkColumns, used: int) -> Links:
    """Put the names one behind the other."""
    found = packed(names, columns.name[:used], columns.name_nbytes[:used], "", columns.address[:used])
    return Links(names=found.text, edges=found.edges, addresses=columns.address[:used].copy())

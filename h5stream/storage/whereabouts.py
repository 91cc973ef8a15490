"""Where the headers of objects lie: links are followed once, and only such as stay in the file."""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldNotFoundError, TruncatedFileError
from h5stream.storage.catalogue import Catalogue
from h5stream.storage.discovery import what_libhdf5_said, why_not_opened
from h5stream.storage.external import Guard
from h5stream.storage.handles import DAMAGE
from h5stream.storage.headers import ABSENT, ASK, Headers, given_of, read_headers, superblock_of
from h5stream.storage.names import Names
from h5stream.storage.templates import NOWHERE, Ints, lookup_of, match, read_blocks

MANY = 2000
"""Objects from which on headers are compared with one another: libhdf5 is asked of fewer in a fifth of a second."""

CHECKED_EVERY = 1000
"""So many objects from one that is compared with what libhdf5 says of it to the next."""
CHECKED_OF_KEPT = 100
"""So many objects of a catalogue that was kept are compared, of many that were when it was kept."""


def checked(count: int, *, is_kept: bool = False) -> range:
    """Choose which of so many objects are compared with what libhdf5 says of them."""
    return range(0, count, max(CHECKED_EVERY, count // CHECKED_OF_KEPT) if is_kept else CHECKED_EVERY)


class RawFile:
    """An open file, and its bytes beside it."""

    def __init__(
        self, file: Any, guard: Guard | None = None, attributes: Sequence[str] = (), catalogue: Catalogue | None = None
    ) -> None:
        self.file, self.guard, self.attributes = file, guard, attributes
        self.catalogue = catalogue or Catalogue()
        self.descriptor = os.open(file.filename, os.O_RDONLY)
        self.superblock = superblock_of(file, os.fstat(self.descriptor).st_size)
        self.given = given_of(self.descriptor, self.superblock)
        self._links: tuple[str, Links] | None = None
        self._read: tuple[Ints | None, tuple[str, ...], Headers | None] = (None, (), None)

    def close(self) -> None:
        """Close the descriptor; h5py's file stays open."""
        os.close(self.descriptor)

    def __enter__(self) -> RawFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_each(self, addresses: Ints, nbytes: int) -> NDArray[np.uint8]:
        """Read so many bytes at each of some places of the file; gives a row for each."""
        data, is_there = read_blocks(self.given[None], addresses, nbytes)
        if not is_there.all():
            first = int(addresses[~is_there][0])
            raise TruncatedFileError(
                f"{self.file.filename!r} has {self.superblock.file_nbytes:,} bytes, and {nbytes:,} were wanted "
                f"from byte {first:,}",
                file=self.file.filename,
            )
        return data[:, :nbytes]

    def headers(self, addresses: Ints, attributes: Sequence[str] = ()) -> Headers:
        """Read some headers; see `read_headers`. What was read last is not read again."""
        known, names, headers = self._read
        if headers is None or known is not addresses or not set(attributes) <= set(names):
            headers = read_headers(self.given, addresses, attributes)
            self._read = addresses, tuple(attributes), headers
        return headers

    def links(self, group: Any) -> Links:
        """Return the links of a group; those that were asked for last are kept."""
        if self._links is None or self._links[0] != group.name:
            self._links = group.name, links_of(group.id)
        return self._links[1]

    def addresses(self, names: Sequence[str]) -> Ints:
        """Return where the headers of some objects lie, by their paths; `NOWHERE` for what is not in this file."""
        found = np.full(len(names), NOWHERE, dtype=np.int64)
        by_group: dict[str, array[int]] = {}
        for k, name in enumerate(names):
            by_group.setdefault(name.rpartition("/")[0], array("q")).append(k)
        for above, places in by_group.items():
            group, leaves = self._group(above), Names.of(names[k].rpartition("/")[2] for k in places)
            if group is not None:
                found[np.frombuffer(places, dtype=np.int64)] = self._of_members(group, leaves)
        return found

    def inside(self, names: Sequence[str], path: str) -> Ints:
        """Return where the headers of objects lie that have one path inside of others, as for `addresses`."""
        found, steps = np.full(len(names), NOWHERE, dtype=np.int64), path.strip("/").split("/")
        for k, name in enumerate(names):
            group = self._opened_group(name)
            for step in steps[:-1]:
                if self._address(group, name, step) == NOWHERE:
                    break
                name = f"{name}/{step}"
                group = self._opened_group(name)
            else:
                found[k] = self._address(group, name, steps[-1])
        return found

    def behind(self, path: str) -> int:
        """Return where the header of an object lies, whatever links lead to it; `NOWHERE` if not in this file."""
        if self.guard is None:
            return NOWHERE
        self.guard.check_links(self.file, path, self.file.filename)
        try:
            info = h5py.h5o.get_info(self.file.id, path.encode("utf-8", "surrogateescape"))
        except DAMAGE:
            return NOWHERE
        is_here = info.fileno == h5py.h5o.get_info(self.file.id).fileno
        return int(info.addr) if is_here and info.addr <= MOST_ADDRESS else NOWHERE

    def _of_members(self, group: Any, names: Names) -> Ints:
        above = group.name.strip("/")
        if len(names) < MANY:
            return np.array([self._address(group.id, above, name) for name in names], dtype=np.int64)
        links = self.links(group)
        places = links.find(names)
        found = np.where(places >= 0, links.addresses[places], NOWHERE)
        for k in np.flatnonzero((places >= 0) & (found == NOT_HARD)).tolist():
            found[k] = self.behind(f"{above}/{names[k]}")
        return found

    def _group(self, path: str) -> Any:
        """Open a group of this file; None where it is none."""
        group = self.file.get(path or "/") if not path or self.behind(path) != NOWHERE else None
        return group if isinstance(group, h5py.Group) else None

    def _opened_group(self, path: str) -> Any:
        """Open a group that is there; refuse a damaged one."""
        try:
            return h5py.h5g.open(self.file.id, path.encode("utf-8", "surrogateescape"))
        except DAMAGE as error:
            why_not_opened(self.file, path, self.file.filename)
            raise FieldNotFoundError(
                f"{self.file.filename!r}: there is no group {path!r}: {what_libhdf5_said(error)}",
                field=path,
                file=self.file.filename,
            ) from error

    def _address(self, group: Any, above: str, name: str) -> int:
        try:
            info = group.links.get_info(name.encode("utf-8", "surrogateescape"))
        except (KeyError, RuntimeError):
            return NOWHERE
        return address_of(info) if info.type == h5py.h5l.TYPE_HARD else self.behind(f"{above}/{name}")


# --- Names and addresses of everything in a group, as libhdf5 lists them: a microsecond a link, no Python objects.


NOT_HARD = -1
"""The address that stands for a soft, external or user-defined link: none of them is followed here."""

MOST_ADDRESS = (1 << 63) - 1
"""The largest address that is taken; a damaged file may name larger ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of one group, in the order in which h5py lists them."""

    names: NDArray[np.uint8]  # the names, UTF-8, one behind the other
    edges: Ints  # where each begins, and at last where they end
    addresses: Ints  # of the object headers, counted from the file's base address; `NOT_HARD` for links of other kinds

    def __len__(self) -> int:
        """Links, of all kinds."""
        return len(self.addresses)

    def name(self, i: int) -> bytes:
        """Return the name of one link."""
        return self.names[self.edges[i] : self.edges[i + 1]].tobytes()

    def find(self, wanted: Sequence[str]) -> Ints:
        """Return the place of each of some names; -1 for what is not there."""
        places = {name.encode("utf-8", "surrogateescape"): NOWHERE for name in wanted}
        for place, name in enumerate(self):
            if name in places:
                places[name] = place
        return np.array([places[name.encode("utf-8", "surrogateescape")] for name in wanted], dtype=np.int64)

    def __iter__(self) -> Iterator[bytes]:
        """Return all names, in order."""
        names = self.names.tobytes()
        return (names[start:end] for start, end in itertools.pairwise(self.edges.tolist()))


def links_of(group: Any) -> Links:
    """List the links of a group, ``h5py.Group.id``: of every kind, each once."""
    text, edges, addresses = bytearray(), array("q", [0]), array("q")

    def note(name: bytes, info: Any) -> None:
        text.extend(name)
        edges.append(len(text))
        addresses.append(address_of(info) if info.type == h5py.h5l.TYPE_HARD else NOT_HARD)

    tracked = group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
    by = h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME
    group.links.iterate(note, info=True, idx_type=by)
    return Links(
        names=np.frombuffer(text, dtype=np.uint8),
        edges=np.frombuffer(edges, dtype=np.int64),
        addresses=np.frombuffer(addresses, dtype=np.int64).copy(),
    )


def address_of(info: Any) -> int:
    """Return the address that a hard link leads to; `NOT_HARD` for one that no file has."""
    return int(info.u) if info.u <= MOST_ADDRESS else NOT_HARD


def find_in_each(givens: Ints, addresses: Ints, name: str) -> Ints:
    """Find what a name leads to in a group of each of many files; `ASK` where libhdf5 must be asked.

    That is of all which are unlike the group of the first file that can be looked at.
    """
    found = np.where(addresses == ABSENT, ABSENT, ASK)
    which = np.flatnonzero(addresses >= 0)
    if len(which):
        known = lookup_of(givens[which[0]], int(addresses[which[0]]), name.encode("utf-8", "surrogateescape"))
        if known is not None:
            template, place = known
            matched = match(template, givens[which], addresses[which])
            where = matched.address(place, givens[which])
            found[which] = np.where(matched.fits & (where >= 0), where - givens[which, -1], ASK)
    return found

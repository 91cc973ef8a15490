"""Where the headers of objects lie: links are followed once, and only such as stay in the file."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from h5stream.errors import FieldNotFoundError
from h5stream.storage.catalogue import Catalogue
from h5stream.storage.discovery import what_libhdf5_said, why_not_opened
from h5stream.storage.external import Guard
from h5stream.storage.handles import DAMAGE
from h5stream.storage.headers import Headers, raw_of, read_headers, superblock_of
from h5stream.storage.names import Names
from h5stream.storage.source import identity_of
from h5stream.storage.templates import NOWHERE, Ints

MANY = 2000
"""Objects from which on what was found of them is kept for the next time: fewer are found in a tenth of a second."""

CHECKED_EVERY = 1000
"""So many objects from one that is compared with what libhdf5 says of it to the next."""
CHECKED_OF_FEW = 3
"""So many objects are compared of fewer."""
CHECKED_OF_KEPT = 100
"""So many objects of a catalogue that was kept are compared, of many that were when it was kept."""


def checked(count: int, *, is_kept: bool = False) -> range:
    """Choose which of so many objects are compared with what libhdf5 says of them."""
    if is_kept:
        return range(0, count, max(CHECKED_EVERY, count // CHECKED_OF_KEPT))
    return range(0, count, min(CHECKED_EVERY, max(1, count // CHECKED_OF_FEW)))


class RawFile:
    """An open file, and its bytes beside it."""

    def __init__(
        self, file: Any, guard: Guard, attributes: Sequence[str] = (), catalogue: Catalogue | None = None
    ) -> None:
        self.file, self.guard, self.attributes = file, guard, attributes
        self.catalogue = catalogue or Catalogue()
        identity = identity_of(file.filename)
        self._source, self.superblock = identity.open(), superblock_of(file, identity.size)
        self.raw = raw_of(self._source, self.superblock)
        self.fileno = h5py.h5o.get_info(file.id).fileno
        self._read: tuple[Ints | None, tuple[str, ...], Headers | None] = (None, (), None)

    def close(self) -> None:
        """Let go of the bytes; h5py's file stays open."""
        self._source.close()

    def __enter__(self) -> RawFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def headers(self, addresses: Ints, attributes: Sequence[str] = ()) -> Headers:
        """Read some headers; see `read_headers`. What was read last is not read again."""
        known, names, headers = self._read
        if headers is None or known is not addresses or not set(attributes) <= set(names):
            headers = read_headers(self.raw, addresses, attributes)
            self._read = addresses, tuple(attributes), headers
        return headers

    def addresses(self, names: Sequence[str]) -> Ints:
        """Return where the headers of some objects lie, by their paths; `NOWHERE` for what is not in this file."""
        found, last, group = np.full(len(names), NOWHERE), None, None
        for k, name in enumerate(names):
            above, _, leaf = name.rpartition("/")
            if above != last:
                last, group = above, self._group(above)
            if group is not None:
                found[k] = self._address(group, above, leaf)
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
        self.guard.check_links(self.file, path, self.file.filename)
        try:
            info = h5py.h5o.get_info(self.file.id, path.encode("utf-8", "surrogateescape"))
        except DAMAGE:
            return NOWHERE
        is_here = info.fileno == self.fileno
        return int(info.addr) if is_here and info.addr <= MOST_ADDRESS else NOWHERE

    def has(self, thing: Any) -> bool:
        """Tell whether an open object is in this file."""
        return bool(h5py.h5o.get_info(thing.id).fileno == self.fileno)

    def _group(self, path: str) -> Any:
        """Open a group of this file; None where it is none."""
        group = self.file.get(path or "/") if not path or self.behind(path) != NOWHERE else None
        return group.id if isinstance(group, h5py.Group) else None

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


MOST_ADDRESS = (1 << 63) - 1
"""The largest address that is taken; a damaged file may name larger ones."""


def links_of(group: Any) -> Names:
    """List the links of a group, ``h5py.Group.id``, in h5py's order: of every kind, each once.

    Only of hard links it says where the object headers lie, counted from the file's base address; `NOWHERE` for others.
    """
    text, edges, addresses = bytearray(), array("q", [0]), array("q")

    def note(name: bytes, info: Any) -> None:
        text.extend(name)
        edges.append(len(text))
        addresses.append(address_of(info) if info.type == h5py.h5l.TYPE_HARD else NOWHERE)

    tracked = group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
    by = h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME
    group.links.iterate(note, info=True, idx_type=by)
    numbers = (np.frombuffer(each, dtype=np.int64) for each in (edges, addresses))
    return Names(np.frombuffer(text, dtype=np.uint8), *numbers)


def address_of(info: Any) -> int:
    """Return the address that a hard link leads to; `NOWHERE` for one that no file has."""
    return int(info.u) if info.u <= MOST_ADDRESS else NOWHERE

"""Names and addresses of everything in a group, as libhdf5 lists them: a microsecond a link, no Python objects."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.storage.headers import ABSENT, ASK
from h5stream.storage.templates import NOWHERE, Ints, lookup_of, match

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

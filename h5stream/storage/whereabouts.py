"""Where the headers of objects lie: links are followed once, and only such as stay in the file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import TruncatedFileError
from h5stream.storage.headers import Headers, Superblock, read_headers, superblock_of
from h5stream.storage.links import NOT_HARD, links_of

Ints = NDArray[np.int64]

READ_NBYTES = 1 << 20
"""Bytes that are read at once, for what lies within them."""

MANY = 2000
"""Objects from which on headers and links are read from the file's bytes: libhdf5 is asked of fewer in less than half a
second, and what reads them is compiled when it is used first, which takes longer."""


class RawFile:
    """An open file, and its bytes beside it.

    Parameters
    ----------
    file : h5py.File
        Open for reading.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self.descriptor = os.open(file.filename, os.O_RDONLY)
        self.superblock: Superblock = superblock_of(file, os.fstat(self.descriptor).st_size)
        self._known: tuple[str, dict[str, int]] = ("", {})

    def close(self) -> None:
        """Close the descriptor; h5py's file stays open."""
        os.close(self.descriptor)

    def __enter__(self) -> RawFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_each(self, addresses: Ints, nbytes: int) -> NDArray[np.uint8]:
        """Read so many bytes at each of some places of the file; gives a row for each.

        Raises
        ------
        TruncatedFileError
            If the file ends before.
        """
        order = np.argsort(addresses, kind="stable")
        ascending, found = addresses[order], np.empty((len(addresses), nbytes), dtype=np.uint8)
        low = 0
        while low < len(order):
            first = int(ascending[low])
            high = max(low + 1, int(np.searchsorted(ascending, first + READ_NBYTES - nbytes, side="right")))
            wanted = int(ascending[high - 1]) - first + nbytes
            data = np.frombuffer(os.pread(self.descriptor, wanted, first), dtype=np.uint8)
            if len(data) < wanted:
                raise TruncatedFileError(
                    f"{self.file.filename!r} ends at byte {first + len(data):,}, and {wanted:,} bytes were wanted from "
                    f"byte {first:,}",
                    file=self.file.filename,
                )
            found[order[low:high]] = data[(ascending[low:high] - first)[:, None] + np.arange(nbytes)]
            low = high
        return found

    def headers(self, addresses: Ints, attributes: Sequence[str] = ()) -> Headers:
        """Read some headers; see `read_headers`."""
        return read_headers(self.descriptor, self.superblock, addresses, attributes)

    def members(self, group: Any) -> dict[str, int]:
        """Give for each name in a group where its header lies; `NOT_HARD` for what is no hard link.

        Names that are no UTF-8 are left out: h5py has no texts for them. What was asked for last is kept.
        """
        if self._known[0] != group.name:
            links, members = links_of(group.id, self.descriptor, self.superblock), dict[str, int]()
            for name, address in zip(links, links.addresses.tolist(), strict=True):
                with contextlib.suppress(UnicodeDecodeError):
                    members[name.decode()] = address
            self._known = group.name, members
        return self._known[1]

    def addresses(self, names: Sequence[str]) -> Ints | None:
        """Give where the headers of some objects lie, by their paths; None where more than hard links lead to one."""
        found, by_group = np.empty(len(names), dtype=np.int64), dict[str, list[int]]()
        for k, name in enumerate(names):
            by_group.setdefault(name.rpartition("/")[0], []).append(k)
        for above, places in by_group.items():
            group = self._group(above)
            if group is None:
                return None
            inside = [names[k].rpartition("/")[2] for k in places]
            some = self._of_members(group, inside)
            if some is None:
                return None
            found[places] = some
        return found

    def inside(self, names: Sequence[str], path: str) -> Ints | None:
        """Give where the headers of objects lie that have one path inside of others; None as for `addresses`."""
        found, steps = np.empty(len(names), dtype=np.int64), [step.encode() for step in path.strip("/").split("/")]
        for k, name in enumerate(names):
            group = h5py.h5g.open(self.file.id, name.encode())
            for step in steps[:-1]:
                if _address(group, step) is None:
                    return None
                group = h5py.h5g.open(group, step)
            address = _address(group, steps[-1])
            if address is None:
                return None
            found[k] = address
        return found

    def _of_members(self, group: Any, names: list[str]) -> list[int] | None:
        if len(names) < MANY:
            every: Iterator[int | None] = (_address(group.id, name.encode()) for name in names)
            listed = list(every)
        else:
            there = self.members(group)
            listed = [there.get(name) for name in names]
        return None if any(one is None or one == NOT_HARD for one in listed) else listed  # type: ignore[return-value]

    def _group(self, path: str) -> Any:
        """Open a group that hard links lead to; None where it is none."""
        group = self.file["/"]
        for step in path.split("/") if path else ():
            if not isinstance(group, h5py.Group) or _address(group.id, step.encode()) is None:
                return None
            group = group[step]
        return group if isinstance(group, h5py.Group) else None


def _address(group: Any, name: bytes) -> int | None:
    try:
        info = group.links.get_info(name)
    except (KeyError, RuntimeError):
        return None
    return int(info.u) if info.type == h5py.h5l.TYPE_HARD else None

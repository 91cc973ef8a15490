"""What was read of objects in stores, kept on a local disk, so that it is asked for once.

Objects are kept in pages of 4 KiB. Those of 16 MiB of an object share a sparse file, which begins with a checksum for
each that is there. The stretches that are read would not do: where chunks lie scattered, a second epoch asks for a
quarter of its bytes in stretches of the first. The pages under the chunks are the same. A page is what a disk takes at
least, so that small chunks take no more than by themselves, and rounding reads to pages brings less than what a store's
source reads along.

# Guarantees: a page of an object has but one content, its checksum is written after it, and none is taken on trust:
# threads and processes may read and write at once, and be killed at any moment. Who fetches pages holds a lock of the
# kernel's on them, which goes with the process; others wait for it as long as that goes on, and a while at most.
# Bytes are counted before they are written, under another lock; what was used longest ago is deleted to make room.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from h5stream.base.filesystem import try_flock
from h5stream.base.texts import as_bytes, text_of_bytes
from h5stream.errors import OptionError
from h5stream.storage.source.identity import ByteSource
from h5stream.storage.source.stores import Asked, count_asked, raise_if_stopped, stop_asked

_log = logging.getLogger("h5stream")

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

PAGE_NBYTES = 4096
_PIECE_PAGES = 4096
"""Pages of a file of the cache: what is deleted at once. 500 GB are 30,000 files, which are counted in a moment."""
_SUMS_NBYTES = 8 * _PIECE_PAGES
_TOGETHER = 1024
"""Pages that are held in memory at once."""
_END = ".pages"

_WAIT_S = 10.0
"""How long the pages that another fetches are waited for while none of them comes."""
_POLL_S = 0.005
_USED_S = 60.0
"""How exactly it is noted when a file was last used."""

_given_up: set[str] = set()
"""The folders that this process could not write to."""
_too_small: set[ObjectCache] = set()
"""The caches of which it was said that they had no room."""
_BEGAN = time.time()
"""When this process began, about."""
_limits: dict[ObjectCache, int] = {}
"""Bytes that the caches may take which this process has counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCache:
    """The folder of a cache, and how much it may take."""

    folder: str
    most_nbytes: int | None  # None for a tenth of what its disk has free

    @classmethod
    def of(cls, folder: Any, size: Any) -> ObjectCache | None:
        """Read what ``cache=`` and ``cache_size=`` were given, and make the folder."""
        if folder is None:
            if size is not None:
                raise OptionError("cache_size= bounds the folder that cache= names; give both, or neither")
            return None
        if not isinstance(folder, (str, os.PathLike)) or "://" in os.fsdecode(folder):
            raise OptionError(f"cache= takes a folder on a local disk, not {folder!r}")
        most = None if size is None else as_bytes(size, name="cache_size=")
        if most == 0:
            raise OptionError("cache_size= takes at least a byte; leave cache= out to keep nothing")
        path = os.path.abspath(os.path.expanduser(os.fsdecode(folder)))
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise OptionError(f"cache={path!r} cannot be made: {error.strerror}; name another folder") from None
        cache = cls(folder=path, most_nbytes=most)
        cache.shrink()
        return cache

    def shrink(self) -> None:
        """Make the folder as small as it is to be, once: an earlier run may have left more, and this one write nothing.

        A folder of which nothing is kept stays empty.
        """
        try:
            if self not in _limits and any(name.endswith(_END) for name in os.listdir(self.folder)):
                self.has_room(0)
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """Write no more there, and say so once."""
        if self.folder not in _given_up:
            _given_up.add(self.folder)
            _log.warning("cache=%r cannot be written (%s): nothing more is kept there", self.folder, error.strerror)

    @contextlib.contextmanager
    def opened(self, name: str, *, to_write: bool) -> Iterator[int | None]:
        """Open a file meanwhile, if that can be; its locks end with it, also if a child is forked meanwhile."""
        file, flags = None, os.O_RDWR | os.O_CREAT if to_write else os.O_RDONLY
        if not (to_write and self.folder in _given_up):
            try:
                file = os.open(os.path.join(self.folder, name), flags | os.O_CLOEXEC, 0o666)
            except OSError as error:
                if to_write:
                    self.give_up(error)
        try:
            yield file
        finally:
            if file is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)
                    _lock_pages(file, fcntl.F_UNLCK, 0, 0)
                os.close(file)

    def has_room(self, nbytes: int) -> bool:
        """Count bytes that are about to be written; what was used longest ago makes room for them."""
        with self.opened("used", to_write=True) as counter:
            if counter is None or not _locked(counter):
                return False
            found = os.pread(counter, 8, 0)
            used = int.from_bytes(found, "little") + nbytes
            if len(found) < 8 or self not in _limits or used > _limits[self]:
                used = self._count(nbytes) + nbytes
            if fits := used <= _limits[self]:
                _write(counter, used.to_bytes(8, "little"), 0)
            elif self not in _too_small:
                _too_small.add(self)
                _log.warning(
                    "cache=%r has room for %s, and %s came at once: they are not kept; give a larger cache_size=",
                    self.folder,
                    text_of_bytes(_limits[self]),
                    text_of_bytes(nbytes),
                )
            return fits

    def _count(self, nbytes: int) -> int:
        """Count what the files take, and delete some where there is no room for bytes beside them."""
        found = []
        for one in os.scandir(self.folder):
            with contextlib.suppress(OSError):
                if one.name.endswith(_END):
                    found.append(((stat := one.stat()).st_mtime, stat.st_blocks * 512, one.path))
        used, disk = sum(size for _, size, _ in found), os.statvfs(self.folder)
        most = (disk.f_bavail * disk.f_frsize + used) // 10 if self.most_nbytes is None else self.most_nbytes
        _limits[self] = most
        if used + nbytes > most:
            for last_used, size, path in sorted(found):
                if used + nbytes <= most - most // 16:
                    break
                if last_used >= _BEGAN and self not in _too_small:
                    _too_small.add(self)
                    _log.warning(
                        "cache=%r is full (%s), and what this run has read makes room for what follows: an epoch that "
                        "does not fit is fetched again each time; give a larger cache_size=",
                        self.folder,
                        text_of_bytes(most),
                    )
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(path, 0)  # who has it open holds no bytes on the disk
                    os.unlink(path)
                used -= size
        return used


class CachedBytes(ByteSource):
    """Ranges of one object, from its cache where they are in it.

    # Guarantees: any thread may read at any time, also in a forked child; nothing is held between two reads. What is
    asked of the store goes through `source`, which is not made before.
    """

    gap_nbytes = PAGE_NBYTES - 1  # which leaves no page between two reads that neither of them has

    def __init__(self, identity: Any, cache: ObjectCache, source: Callable[[], Any]) -> None:
        super().__init__(identity)
        self._cache, self._make = cache, source
        address = re.sub("//[^/@]*@", "//", identity.path)
        known = f"{address}\0{identity.size}\0{identity.etag}".encode("utf-8", "surrogateescape")
        self._name = hashlib.blake2b(known, digest_size=16).hexdigest()

    @functools.cached_property
    def _source(self) -> Any:
        return self._make()

    def holds(self, offset: int, nbytes: int) -> bool:
        """Tell whether bytes of one file are in the cache, as far as the object has them."""
        number, first = divmod(offset // PAGE_NBYTES, _PIECE_PAGES)
        last = first + (min(nbytes, self.identity.size - offset) - 1) // PAGE_NBYTES
        with self._cache.opened(self._file(number), to_write=False) as file:
            return file is not None and bool(_sums(file)[first : last + 1].all())

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; what is missing is asked for together."""
        wanted = [(offset, target) for offset, target in zip(offsets, targets, strict=True) if target.nbytes]
        if any(offset + target.nbytes > self.identity.size for offset, target in wanted):
            self._source.read_many(offsets, targets)  # which says so
        at = np.array([offset for offset, _ in wanted], np.int64)
        ends = at + np.array([target.nbytes for _, target in wanted], np.int64)
        first, count = at // PAGE_NBYTES, -(-ends // PAGE_NBYTES) - at // PAGE_NBYTES
        numbers = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        pages = np.unique(numbers)
        starts = np.searchsorted(pages, first) * PAGE_NBYTES + at % PAGE_NBYTES  # in the pages, one behind the other
        order, low = np.argsort(starts, kind="stable").tolist(), 0
        begins, stops = starts.tolist(), (starts + ends - at).tolist()
        for some in _groups(pages):
            rows = np.empty((some.stop - some.start, PAGE_NBYTES), np.uint8)
            self._gather(pages[some], rows)
            memory, first_byte, end = rows.reshape(-1).data, some.start * PAGE_NBYTES, some.stop * PAGE_NBYTES
            for k in order[low:]:
                if begins[k] >= end:
                    break
                a, b = max(begins[k], first_byte), min(stops[k], end)
                if a < b:
                    wanted[k][1][a - begins[k] : b - begins[k]] = memory[a - first_byte : b - first_byte]
            while low < len(order) and stops[order[low]] <= end:
                low += 1

    def _file(self, number: int) -> str:
        return f"{self._name}-{number:x}{_END}"

    def _gather(self, pages: Ints, rows: Bytes) -> None:
        """Bring pages of one file, ascending, to a row each."""
        number, left, fetched = int(pages[0]) // _PIECE_PAGES, np.arange(len(pages)), 0
        inside = pages - number * _PIECE_PAGES
        with self._cache.opened(self._file(number), to_write=False) as file:
            left = left if file is None else _look(file, inside, rows, left)
        until = time.monotonic() + _WAIT_S
        while len(left):
            with self._cache.opened(self._file(number), to_write=True) as file:
                alone = file is None or time.monotonic() > until
                ours = np.zeros(len(left), bool)
                for some, low, high in self._stretches(inside[left], _sums(file)):
                    ours[some] = alone or _lock_pages(file, fcntl.F_WRLCK, low, high - low)
                mine = left[ours]
                if file is not None and len(mine):  # another may have brought them since
                    mine = _look(file, inside, rows, mine)
                self._fetch(file, number, inside, rows, mine)
            fetched += len(mine)
            until = time.monotonic() + _WAIT_S if ours.any() else until
            left = left[~ours]
            if len(left):
                raise_if_stopped()
                time.sleep(_POLL_S)
        count_asked(Asked(cached_nbytes=(len(pages) - fetched) * PAGE_NBYTES))

    def _stretches(self, inside: Ints, sums: NDArray[np.uint64]) -> Iterator[tuple[slice, int, int]]:
        """Cut missing pages into what is asked for at once: which of them, the first, the last (exclusive).

        Pages between them are read along as the store's own source would, unless one is there already.
        """
        if not len(inside):
            return
        before = np.cumsum(np.concatenate([[0], sums != 0]))
        gap = np.diff(inside) - 1
        apart = (gap * PAGE_NBYTES > self._source.gap_nbytes) | (before[inside[1:]] > before[inside[:-1] + 1])
        begin = 0
        for end in [*(np.flatnonzero(apart) + 1).tolist(), len(inside)]:
            while begin < end:
                stop = min(end, int(np.searchsorted(inside, inside[begin] + _TOGETHER)))
                yield slice(begin, stop), int(inside[begin]), int(inside[stop - 1]) + 1
                begin = stop

    def _fetch(self, file: int | None, number: int, inside: Ints, rows: Bytes, mine: Ints) -> None:
        """Ask the store for some of the pages, and keep them."""
        base, held, asked = number * _PIECE_PAGES, 0, list[tuple[Ints, int, Bytes]]()
        for some, low, high in self._stretches(inside[mine], _sums(file)):
            if held + high - low > _TOGETHER:
                self._ask(file, base, rows, inside, asked)
                held, asked = 0, []
            own = mine[some]
            is_whole = high - low == len(own)
            memory = rows[own[0] : own[-1] + 1] if is_whole else np.empty((high - low, PAGE_NBYTES), np.uint8)
            asked.append((own, low, memory))
            held += high - low
        if asked:
            self._ask(file, base, rows, inside, asked)

    def _ask(
        self, file: int | None, base: int, rows: Bytes, inside: Ints, asked: list[tuple[Ints, int, Bytes]]
    ) -> None:
        offsets, targets = [(base + low) * PAGE_NBYTES for _, low, _ in asked], list[memoryview]()
        for offset, (_, _, memory) in zip(offsets, asked, strict=True):
            flat = memory.reshape(-1)
            targets.append(flat[: self.identity.size - offset].data)
            flat[self.identity.size - offset :] = 0  # behind the object's last byte
        self._source.read_many(offsets, targets)
        for own, low, memory in asked:
            if len(own) < len(memory):
                rows[own] = memory[inside[own] - low]
        if file is not None:
            self._keep(file, [(low, memory) for _, low, memory in asked])

    def _keep(self, file: int, found: list[tuple[int, Bytes]]) -> None:
        """Write pages, then their checksums."""
        before, per_page = _sums(file).reshape(-1, PAGE_NBYTES // 8), PAGE_NBYTES // 8
        blocks = {low // per_page for first, memory in found for low in range(first, first + len(memory))}
        blocks = {k for k in blocks if not before[k].any()}
        nbytes = (sum(len(memory) for _, memory in found) + len(blocks)) * PAGE_NBYTES
        try:
            if not self._cache.has_room(nbytes):
                return
            for low, memory in found:
                _write(file, memory.data, _SUMS_NBYTES + low * PAGE_NBYTES)
            for low, memory in found:
                sums = [_sum_of(page, low + k) for k, page in enumerate(memory)]
                _write(file, np.array(sums, np.uint64).data, 8 * low)
        except OSError as error:
            self._cache.give_up(error)


def _groups(pages: Ints) -> Iterator[slice]:
    """Cut ascending pages into those of one file, as many as are held at once."""
    edges = [0, *(np.flatnonzero(np.diff(pages // _PIECE_PAGES)) + 1).tolist(), len(pages)]
    for low, high in itertools.pairwise(edges):
        for begin in range(low, high, _TOGETHER):
            yield slice(begin, min(begin + _TOGETHER, high))


def _look(file: int, inside: Ints, rows: Bytes, left: Ints) -> Ints:
    """Read those of some pages that a file has; return the others, and the damaged ones."""
    sums = _sums(file)[inside[left]]
    there = left[sums != 0]
    if len(there):
        edges = [0, *(np.flatnonzero(np.diff(inside[there]) != 1) + 1).tolist(), len(there)]
        with contextlib.suppress(OSError):  # of which nothing is taken on trust
            for low, high in itertools.pairwise(edges):
                first, last = there[low], there[high - 1] + 1
                done = os.preadv(file, [rows[first:last].data], _SUMS_NBYTES + int(inside[first]) * PAGE_NBYTES)
                rows[first:last].reshape(-1)[done:] = 0
    with contextlib.suppress(OSError):
        if time.time() - os.fstat(file).st_mtime > _USED_S:
            os.utime(file)
    right = np.zeros(len(left), bool)
    numbers, known = inside[there].tolist(), sums[sums != 0].tolist()
    right[sums != 0] = [_sum_of(rows[k], n) == one for k, n, one in zip(there.tolist(), numbers, known, strict=True)]
    return left[~right]


def _sum_of(page: Any, number: int) -> int:
    return xxhash.xxh3_64_intdigest(page, number) or 1


def _sums(file: int | None) -> NDArray[np.uint64]:
    """Return the checksums of a file's pages, 0 for those that it does not have."""
    found = b""
    with contextlib.suppress(OSError):
        found = b"" if file is None else os.pread(file, _SUMS_NBYTES, 0)
    return np.frombuffer(found.ljust(_SUMS_NBYTES, b"\0"), np.uint64)


def _lock_pages(file: int | None, kind: int, low: int, count: int) -> bool:
    """Let others know that pages are fetched here, or are not any more; tell whether nobody else fetches them."""
    if file is None:
        return True
    try:  # a lock on bytes that belongs to what was opened
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, low, count, 0))
    except OSError as error:  # any other means that there are no locks
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _locked(file: int) -> bool:
    """Lock a file, which whoever has it does for moments; tell whether that was done."""
    until = time.monotonic() + _WAIT_S
    while not (locked := try_flock(file, fcntl.LOCK_EX)) and time.monotonic() < until and not stop_asked.get()():
        time.sleep(_POLL_S)
    return locked


def _write(file: int, data: Any, offset: int) -> None:
    if os.pwrite(file, data, offset) < memoryview(data).nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

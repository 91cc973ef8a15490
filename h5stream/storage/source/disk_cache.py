"""A cache of objects in stores on a local disk, so that each byte is requested once.

Objects are cached in pages of 4 KiB. The pages of 16 MiB of an object share a sparse file, which begins with their
checksums. Caching the ranges of reads would not do: with scattered chunks, only a quarter of the bytes of a second
epoch fall into ranges of the first, while the pages of the chunks stay the same. A page is the smallest unit of a disk,
so that small chunks take no extra space, and rounding reads to pages adds less than the gaps that a store's source
reads.

# Guarantees: a page of an object has only one content, its checksum is written after it, and is always verified:
# threads and processes may read and write at once, and be killed at any moment. A reader that fetches pages holds a
# kernel lock on them, which ends with its process; others wait while it makes progress, up to a limit.
# Bytes are counted before they are written, under another lock; the least recently used files are deleted for room.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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

from h5stream.base.cancel import raise_if_stopped, stop_asked
from h5stream.base.filesystem import try_flock
from h5stream.base.limits import cached_property
from h5stream.base.texts import as_bytes, text_of_bytes
from h5stream.errors import OptionError
from h5stream.storage.source.identity import ByteSource
from h5stream.storage.source.stores import StoreUsage, count_usage

_log = logging.getLogger("h5stream")

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

PAGE_NBYTES = 4096
_PIECE_PAGES = 4096
"""Pages of a file, the unit of deletion. 500 GB are 30,000 files, which are counted quickly."""
_SUMS_NBYTES = 8 * _PIECE_PAGES
_TOGETHER = 1024
"""The most pages in memory at once."""
_END = ".pages"

_WAIT_S = 10.0
"""How long to wait for pages that another reader fetches while none arrives."""
_POLL_S = 0.005
_USED_S = 60.0
"""The resolution of the times of last use."""

_given_up: set[str] = set()
"""Folders that this process could not write to."""
_too_small: set[ObjectCache] = set()
"""Caches for which a warning about their size was logged."""
_BEGAN = time.time()
"""The approximate start time of this process."""
_limits: dict[ObjectCache, int] = {}
"""Limits in bytes of the caches that this process has measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCache:
    """A cache's folder and its maximum size."""

    folder: str
    most_nbytes: int | None  # None for a tenth of the free space

    @classmethod
    def of(cls, folder: object, size: int | str | None) -> ObjectCache | None:
        """Return the cache of the options ``cache=`` and ``cache_size=``, creating its folder."""
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
        """Shrink the folder to its maximum size, once: an earlier run may have used a larger one.

        An empty folder stays empty.
        """
        try:
            if self not in _limits and any(name.endswith(_END) for name in os.listdir(self.folder)):
                self.has_room(0)
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """Disable writing to the folder, with one warning."""
        if self.folder not in _given_up:
            _given_up.add(self.folder)
            _log.warning("cache=%r cannot be written (%s): nothing more is kept there", self.folder, error.strerror)

    @contextlib.contextmanager
    def opened(self, name: str, *, to_write: bool) -> Iterator[int | None]:
        """Yield an open file of the folder, or None; its locks end with the block, even after a fork."""
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
        """Reserve bytes for writing, deleting the least recently used files if needed; return whether they fit."""
        with self.opened("used", to_write=True) as counter:
            if counter is None or not _locked(counter):
                return False
            stored = os.pread(counter, 8, 0)
            used = int.from_bytes(stored, "little") + nbytes
            if len(stored) < 8 or self not in _limits or used > _limits[self]:
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
        """Return the bytes of all files, after deleting the oldest if `nbytes` more do not fit."""
        files = []
        for one in os.scandir(self.folder):
            with contextlib.suppress(OSError):
                if one.name.endswith(_END):
                    files.append(((stat := one.stat()).st_mtime, stat.st_blocks * 512, one.path))
        used, disk = sum(size for _, size, _ in files), os.statvfs(self.folder)
        most = (disk.f_bavail * disk.f_frsize + used) // 10 if self.most_nbytes is None else self.most_nbytes
        _limits[self] = most
        if used + nbytes > most:
            for last_used, size, path in sorted(files):
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
                    os.truncate(path, 0)  # frees the space even while another process has it open
                    os.unlink(path)
                used -= size
        return used


class CachedBytes(ByteSource):
    """Ranges of one object, read through its cache.

    # Guarantees: any thread may read at any time, also in a forked child; nothing is open between two reads. Requests
    to the store go through the result of `source`, which is called at the first one.
    """

    gap_nbytes = PAGE_NBYTES - 1  # then no page between two joined reads is outside of both

    def __init__(self, identity: Any, cache: ObjectCache, source: Callable[[], ByteSource]) -> None:
        super().__init__(identity)
        self._cache, self._make = cache, source
        address = re.sub("//[^/@]*@", "//", identity.path)
        version = f"{address}\0{identity.size}\0{identity.etag}".encode("utf-8", "surrogateescape")
        self._name = hashlib.blake2b(version, digest_size=16).hexdigest()

    @cached_property
    def _source(self) -> ByteSource:
        return self._make()

    def holds(self, offset: int, nbytes: int) -> bool:
        """Return whether bytes of one cache file are cached; bytes beyond the object's end are ignored."""
        number, first = divmod(offset // PAGE_NBYTES, _PIECE_PAGES)
        last = first + (min(nbytes, self.identity.size - offset) - 1) // PAGE_NBYTES
        with self._cache.opened(self._file(number), to_write=False) as file:
            return file is not None and bool(_sums(file)[first : last + 1].all())

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset, requesting all missing pages together."""
        wanted = [(offset, target) for offset, target in zip(offsets, targets, strict=True) if target.nbytes]
        if any(offset + target.nbytes > self.identity.size for offset, target in wanted):
            self._source.read_many(offsets, targets)  # raises the error
        at = np.array([offset for offset, _ in wanted], np.int64)
        ends = at + np.array([target.nbytes for _, target in wanted], np.int64)
        first, count = at // PAGE_NBYTES, -(-ends // PAGE_NBYTES) - at // PAGE_NBYTES
        numbers = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        pages = np.unique(numbers)
        starts = np.searchsorted(pages, first) * PAGE_NBYTES + at % PAGE_NBYTES  # within the concatenated pages
        order, low = np.argsort(starts, kind="stable").tolist(), 0
        begins, stops = starts.tolist(), (starts + ends - at).tolist()
        for group in _groups(pages):
            rows = np.empty((group.stop - group.start, PAGE_NBYTES), np.uint8)
            self._gather(pages[group], rows)
            memory, first_byte, end = rows.reshape(-1).data, group.start * PAGE_NBYTES, group.stop * PAGE_NBYTES
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
        """Read ascending pages of one cache file into rows, from the cache or the store."""
        number, missing, fetched = int(pages[0]) // _PIECE_PAGES, np.arange(len(pages)), 0
        inside = pages - number * _PIECE_PAGES
        with self._cache.opened(self._file(number), to_write=False) as file:
            missing = missing if file is None else _read_pages(file, inside, rows, missing)
        until = time.monotonic() + _WAIT_S
        while len(missing):
            with self._cache.opened(self._file(number), to_write=True) as file:
                alone = file is None or time.monotonic() > until
                is_mine = np.zeros(len(missing), bool)
                for part, low, high in self._stretches(inside[missing], _sums(file)):
                    is_mine[part] = alone or _lock_pages(file, fcntl.F_WRLCK, low, high - low)
                mine = missing[is_mine]
                if file is not None and len(mine):  # another reader may have written them since
                    mine = _read_pages(file, inside, rows, mine)
                self._fetch(file, number, inside, rows, mine)
            fetched += len(mine)
            until = time.monotonic() + _WAIT_S if is_mine.any() else until
            missing = missing[~is_mine]
            if len(missing):
                raise_if_stopped()
                time.sleep(_POLL_S)
        count_usage(StoreUsage(cached_nbytes=(len(pages) - fetched) * PAGE_NBYTES))

    def _stretches(self, inside: Ints, sums: NDArray[np.uint64]) -> Iterator[tuple[slice, int, int]]:
        """Yield ranges of missing pages to request: a slice of `inside`, the first page and the end.

        Small gaps are included, as in the store's own source, unless one of their pages is cached.
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
        """Fetch pages from the store, and write them to the cache."""
        base, pages, ranges = number * _PIECE_PAGES, 0, list[tuple[Ints, int, Bytes]]()
        for part, low, high in self._stretches(inside[mine], _sums(file)):
            if pages + high - low > _TOGETHER:
                self._request(file, base, rows, inside, ranges)
                pages, ranges = 0, []
            own = mine[part]
            is_whole = high - low == len(own)
            memory = rows[own[0] : own[-1] + 1] if is_whole else np.empty((high - low, PAGE_NBYTES), np.uint8)
            ranges.append((own, low, memory))
            pages += high - low
        if ranges:
            self._request(file, base, rows, inside, ranges)

    def _request(
        self, file: int | None, base: int, rows: Bytes, inside: Ints, ranges: list[tuple[Ints, int, Bytes]]
    ) -> None:
        offsets, targets = [(base + low) * PAGE_NBYTES for _, low, _ in ranges], list[memoryview]()
        for offset, (_, _, memory) in zip(offsets, ranges, strict=True):
            flat = memory.reshape(-1)
            targets.append(flat[: self.identity.size - offset].data)
            flat[self.identity.size - offset :] = 0  # beyond the object's last byte
        self._source.read_many(offsets, targets)
        for own, low, memory in ranges:
            if len(own) < len(memory):
                rows[own] = memory[inside[own] - low]
        if file is not None:
            self._keep(file, [(low, memory) for _, low, memory in ranges])

    def _keep(self, file: int, pages: list[tuple[int, Bytes]]) -> None:
        """Write pages, then their checksums."""
        before, per_page = _sums(file).reshape(-1, PAGE_NBYTES // 8), PAGE_NBYTES // 8
        blocks = {low // per_page for first, memory in pages for low in range(first, first + len(memory))}
        blocks = {k for k in blocks if not before[k].any()}
        nbytes = (sum(len(memory) for _, memory in pages) + len(blocks)) * PAGE_NBYTES
        try:
            if not self._cache.has_room(nbytes):
                return
            for low, memory in pages:
                _write(file, memory.data, _SUMS_NBYTES + low * PAGE_NBYTES)
            for low, memory in pages:
                sums = [_sum_of(page, low + k) for k, page in enumerate(memory)]
                _write(file, np.array(sums, np.uint64).data, 8 * low)
        except OSError as error:
            self._cache.give_up(error)


def _groups(pages: Ints) -> Iterator[slice]:
    """Divide ascending pages by file, with at most `_TOGETHER` each."""
    edges = [0, *(np.flatnonzero(np.diff(pages // _PIECE_PAGES)) + 1).tolist(), len(pages)]
    for low, high in itertools.pairwise(edges):
        for begin in range(low, high, _TOGETHER):
            yield slice(begin, min(begin + _TOGETHER, high))


def _read_pages(file: int, inside: Ints, rows: Bytes, wanted: Ints) -> Ints:
    """Read the wanted pages that a file has into rows; return those that are missing or damaged."""
    sums = _sums(file)[inside[wanted]]
    present = wanted[sums != 0]
    if len(present):
        edges = [0, *(np.flatnonzero(np.diff(inside[present]) != 1) + 1).tolist(), len(present)]
        with contextlib.suppress(OSError):  # unread rows fail their checksums
            for low, high in itertools.pairwise(edges):
                first, last = present[low], present[high - 1] + 1
                done = os.preadv(file, [rows[first:last].data], _SUMS_NBYTES + int(inside[first]) * PAGE_NBYTES)
                rows[first:last].reshape(-1)[done:] = 0
    with contextlib.suppress(OSError):
        if time.time() - os.fstat(file).st_mtime > _USED_S:
            os.utime(file)
    right = np.zeros(len(wanted), bool)
    numbers, expected = inside[present].tolist(), sums[sums != 0].tolist()
    pages = zip(present.tolist(), numbers, expected, strict=True)
    right[sums != 0] = [_sum_of(rows[row], number) == checksum for row, number, checksum in pages]
    return wanted[~right]


def _sum_of(page: Any, number: int) -> int:
    return xxhash.xxh3_64_intdigest(page, number) or 1


def _sums(file: int | None) -> NDArray[np.uint64]:
    """Return the checksums of a file's pages, 0 for missing ones."""
    data = b""
    with contextlib.suppress(OSError):
        data = b"" if file is None else os.pread(file, _SUMS_NBYTES, 0)
    return np.frombuffer(data.ljust(_SUMS_NBYTES, b"\0"), np.uint64)


def _lock_pages(file: int | None, kind: int, low: int, count: int) -> bool:
    """Lock or unlock a range of pages; return whether no other reader has them locked."""
    if file is None:
        return True
    try:  # the lock belongs to the open file description
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, low, count, 0))
    except OSError as error:  # other errors mean that locks are not supported
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _locked(file: int) -> bool:
    """Lock a file that is only ever locked briefly; return whether it succeeded."""
    until = time.monotonic() + _WAIT_S
    while not (locked := try_flock(file, fcntl.LOCK_EX)) and time.monotonic() < until and not stop_asked.get()():
        time.sleep(_POLL_S)
    return locked


def _write(file: int, data: memoryview | bytes, offset: int) -> None:
    if os.pwrite(file, data, offset) < memoryview(data).nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

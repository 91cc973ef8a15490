"""Objects in stores: their identities, reads of ranges, and a file object through which h5py reads metadata."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import datetime
import io
import logging
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from h5stream.base.cancel import cancelled_on_exit
from h5stream.base.limits import cached_property, return_freed_memory
from h5stream.errors import SourceError, SourceNotFoundError
from h5stream.storage.source.blocks import (
    BLOCK_NBYTES,
    HELD_NBYTES,
    Version,
    cache_blocks,
    cached_block,
    child_nodes,
    forget_blocks,
    trim_blocks,
)
from h5stream.storage.source.disk_cache import CachedBytes, ObjectCache
from h5stream.storage.source.event_loop import answered, requests
from h5stream.storage.source.identity import ByteSource, SourceIdentity
from h5stream.storage.source.stores import (
    changed_error,
    check_encoding,
    count_requests,
    import_obstore,
    is_of_ranges,
    parts_of,
    store_errors,
    stores,
    word_of,
)

_log = logging.getLogger("h5stream")

READERS = 32
"""Default number of reader threads for stores: each waits for a request most of the time."""

REQUEST_NBYTES = 4 * 1024 * 1024
"""Approximate maximum bytes of a request that joins several ranges: others share the connection."""

GAP_NBYTES = 64 * 1024
"""Bytes of a gap between two reads that is read: the transfer during the latency of a request."""

_FIRST_BLOCKS, _MOST_BLOCKS = 16, 64
"""Blocks that are fetched together: at the beginning of an object, and at most for sequential reads."""
_FETCHING = 8
"""Threads that prefetch an object that is read completely."""
_KEPT_SHARE = 8
_OPENED_AHEAD = 16
"""Objects whose beginnings are prefetched: half of the blocks in memory."""
_AHEAD_NODES = 8192
"""The most index nodes that are prefetched: most of the blocks in memory."""


_store_words: dict[str, str] = {}
"""By address, the word of the store with which it was last opened."""
_caches: dict[str, ObjectCache | None] = {}
"""By address, the cache with which it was last opened."""
_uncached: set[str] = set()
"""Stores for which a warning that nothing is cached was logged."""
_unwatched: set[str] = set()
"""Stores for which a warning that replaced files are not detected was logged."""


class Opening:
    """Options with which objects are opened, and prefetching of the objects that are opened next.

    # Guarantees: belongs to one thread.
    """

    def __init__(
        self, options: object = None, cache: ObjectCache | None = None, identities: Iterable[ObjectIdentity] = ()
    ) -> None:
        self.options, self.cache = options, cache
        self._identities: dict[str, ObjectIdentity] = {}
        for one in identities:
            self._identities[one.path] = one
        self._next: Iterator[ObjectIdentity] = iter(())
        self._coming: dict[str, concurrent.futures.Future[memoryview]] = {}
        self._words: dict[str, str] = {}

    def word_of(self, base: str) -> str:
        """Return the word of a store, opening it once with the options of this object."""
        if base not in self._words:
            self._words[base] = word_of(base, self.options)
        return self._words[base]

    def identities(self, addresses: Sequence[str]) -> list[ObjectIdentity]:
        """Return the identities of objects, requesting unknown ones together."""
        missing = [one for one in dict.fromkeys(addresses) if one not in self._identities]
        if missing:
            self._identities.update(zip(missing, requests().run(map(_identity, missing)), strict=True))
            self._next = map(self._identities.__getitem__, addresses)
        return [self._identities[address] for address in addresses]

    @contextlib.contextmanager
    def without_prefetching(self) -> Iterator[None]:
        """Disable prefetching for a block that opens only some of the objects."""
        following, self._next = self._next, iter(())
        try:
            yield
        finally:
            self._next = following

    def begin(self, identity: ObjectIdentity) -> None:
        """Fetch the beginning of an object that is about to be opened, and start fetching those of the next ones."""
        coming = self._coming.pop(identity.path, None)
        while len(self._coming) < _OPENED_AHEAD and (one := next(self._next, None)):
            if one != identity:
                self._coming[one.path] = requests().begin(_fetch_beginning(one))
        if coming is not None:
            with store_errors(identity.path, "reading", identity.store):
                cache_blocks(identity.version, 0, requests().wait(coming))

    def end(self) -> None:
        """Cancel prefetching and release most blocks."""
        for future in self._coming.values():
            future.cancel()
        trim_blocks(HELD_NBYTES // _KEPT_SHARE)
        return_freed_memory()


_opening: contextvars.ContextVar[Opening | None] = contextvars.ContextVar("opening", default=None)


@contextlib.contextmanager
def opened_with(
    options: object, cache: ObjectCache | None = None, identities: Iterable[ObjectIdentity] = ()
) -> Iterator[None]:
    """Set the storage options or the store object, and the cache, for addresses that are opened in a block.

    The identities of `identities` objects are not requested again.
    """
    opening = Opening(options, cache, identities)
    token = _opening.set(opening)
    try:
        yield
    finally:
        _opening.reset(token)
        opening.end()


def opened_again(identity: SourceIdentity | None) -> contextlib.AbstractContextManager[None]:
    """Reopen an object under its identity in a block, also in another thread or process; files need nothing."""
    return opened_with(opening().options, identities=[identity] if isinstance(identity, ObjectIdentity) else [])


def opening() -> Opening:
    """Return the current `Opening`, or a new one without options."""
    return _opening.get() or Opening()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIdentity(SourceIdentity):
    """The state of an object in a store when it was opened; its path is its address."""

    is_far: bool = field(default=True, compare=False, repr=False)
    etag: str  # its ETag, or else the time of its last change; empty if the store reports neither
    changed: str = field(default="", compare=False, repr=False)  # time of its last change, if reported
    store: str = field(compare=False, repr=False)  # the word of its store in this process
    cache: ObjectCache | None = field(default=None, compare=False, repr=False)  # the cache of its bytes

    @classmethod
    def of(cls, address: str) -> ObjectIdentity:
        """Request the identity of an object from its store."""
        return opening().identities([address])[0]

    def now(self) -> ObjectIdentity:
        """Request the current identity of the object."""
        return requests().run([_current_identity(self.path, self.store)])[0]

    def difference(self, now: ObjectIdentity) -> str:
        """Return how the object has changed, as a text; empty if the store reports no change."""
        changes = [f"its size went from {self.size} to {now.size} bytes"] if self.size != now.size else []
        if self.has_tag and now.has_tag:
            # A weak tag may stand for equivalent bytes; in practice, stores and servers use them for versions.
            if self.etag.removeprefix("W/") != now.etag.removeprefix("W/"):
                changes.append(f"its ETag from {self.etag} to {now.etag}")
        elif self.changed and now.changed and self.changed != now.changed:
            changes.append(f"its date from {self.changed} to {now.changed}")
        return ", and ".join(changes)

    @property
    def version(self) -> Version:
        """The version of the object that was opened."""
        return self.path, self.store, self.size, self.etag

    @property
    def is_watched(self) -> bool:
        """Whether its store reports an ETag or a date."""
        return bool(self.etag)

    @property
    def changed_ns(self) -> int:
        """The time of its last change in nanoseconds since 1970, if it has no ETag; otherwise 0."""
        is_dated = self.changed and not self.has_tag
        return round(datetime.datetime.fromisoformat(self.changed).timestamp() * 1e9) if is_dated else 0

    @property
    def has_tag(self) -> bool:
        """Whether the store reports an ETag."""
        return self.etag not in ("", self.changed)

    @property
    def has_strong_tag(self) -> bool:
        """Whether its ETag identifies its bytes, so that a request may require it: a weak one never matches."""
        return self.has_tag and self.etag.startswith('"')

    def open(self) -> ObjectBytes | CachedBytes:
        """Return the object's bytes; the first read sends the first request."""
        if self.cache is None:
            return ObjectBytes(self)
        _caches.setdefault(self.path, self.cache)  # for h5py, which opens it in another process
        return CachedBytes(self, self.cache, lambda: ObjectBytes(self, joins_nbytes=0))

    def for_structure(self) -> ByteSource:
        """Return a source suited to many small reads of metadata, such as libhdf5's."""
        return ObjectFile(self)


async def _identity(address: str) -> ObjectIdentity:
    """Request the identity of an object, with the options of the current `Opening`."""
    base, _ = parts_of(address)
    if (current := _opening.get()) is not None:
        word, _caches[address] = current.word_of(base), current.cache
    else:  # reopened without options
        word = _store_words.get(address) or word_of(base, None)
    _store_words[address] = word
    identity, cache = await _current_identity(address, word), _caches.get(address)
    # An object without an ETag, or with a weak one, may differ the next time; a store in memory numbers ETags
    # anew in each process.
    if not identity.is_watched:
        forget_blocks(address)
        if base not in _unwatched:
            _unwatched.add(base)
            risk = "a file that is replaced by one of the same size is not noticed; write new versions under new names"
            _log.warning("%s gives neither ETags nor the dates of its files: %s", base, risk)
    return _with_cache(identity, cache)


def _with_cache(identity: ObjectIdentity, cache: ObjectCache | None) -> ObjectIdentity:
    """Return the identity with a cache, if its ETag identifies the version of its bytes."""
    is_in_memory = isinstance(stores.get(identity.store), import_obstore().store.MemoryStore)
    if cache and (not identity.has_strong_tag or is_in_memory):
        base, _ = parts_of(identity.path)
        if base not in _uncached:
            _uncached.add(base)
            _log.warning("cache= keeps nothing of %s: it gives no ETags that tell one version from another", base)
        cache = None
    return replace(identity, cache=cache)


async def _fetch_beginning(identity: ObjectIdentity) -> memoryview:
    """Return the first bytes of an object, which libhdf5 reads first."""
    source, target = identity.open(), memoryview(bytearray(min(identity.size, _FIRST_BLOCKS * BLOCK_NBYTES)))
    if isinstance(source, CachedBytes):
        await asyncio.to_thread(source.read_many, (0,), (target,))
        return target
    if target.nbytes:
        count_requests(1, target.nbytes)
        return await source.fetched(0, target.nbytes)
    return target


async def _current_identity(address: str, word: str) -> ObjectIdentity:
    base, path = parts_of(address)
    if word not in stores:
        word = word_of(base, None)
    store = stores[word]
    count_requests()
    async with requests().room:
        loop = asyncio.get_running_loop()
        silent = loop.call_later(_SILENT_S, loop.run_in_executor, None, _warn_silent, base, store)
        try:
            with store_errors(address, "asking for", word):
                meta = await answered(word, path, import_obstore().head_async(store, path))
        except SourceNotFoundError as error:
            # A web server cannot list objects, and may answer such a request with an error that is retried.
            raise error if base.startswith("http") else await _with_pattern_below(error, base, store, path) from None
        finally:
            silent.cancel()
    return _identity_of(address, word, meta)


def _identity_of(address: str, word: str, meta: Mapping[str, Any]) -> ObjectIdentity:
    """Return the identity in a store's answer."""
    date = meta.get("last_modified")  # 1970 if a web server does not report it
    changed = str(date) if date and date.timestamp() else ""
    etag = str(meta.get("e_tag") or changed)
    return ObjectIdentity(path=address, size=int(meta["size"]), etag=etag, changed=changed, store=word)


async def _with_pattern_below(error: SourceNotFoundError, base: str, store: object, path: str) -> SourceNotFoundError:
    """Return the error for a missing object; if it is a folder, with a pattern for the objects in it."""
    with contextlib.suppress(Exception):  # listing may not be permitted
        count_requests()
        async for page in import_obstore().list(store, prefix=path, chunk_size=50):
            folder, _, name = page[0]["path"].rpartition("/")
            below = f"objects lie below it: {base}/{folder}/*{name[name.rfind('.') :] if '.' in name else ''}"
            return SourceNotFoundError(f"there is no object {error.file!r}; {below}", file=error.file)
    return error


_SILENT_S = 5.0
_silent: set[str] = set()


def _warn_silent(base: str, store: object) -> None:
    """Warn once that a store does not answer, with the reason, which may be a mistyped name."""
    if base in _silent:
        return
    _silent.add(base)
    place, why = urlsplit(getattr(store, "url", None) or getattr(store, "config", {}).get("endpoint", "")), ""
    try:
        if place.hostname:
            port = place.port or (443 if place.scheme == "https" else 80)
            socket.create_connection((place.hostname, port), _SILENT_S).close()
    except ConnectionRefusedError:
        why = " (connection refused: is the port right?)"
    except socket.gaierror:
        why = " (host not found: is its name right?)"
    except (OSError, ValueError) as error:
        why = f" ({error})"
    until = (getattr(store, "retry_config", None) or {}).get("retry_timeout")
    lasts = f"until {until.total_seconds():.0f} s have passed" if until else "for a while"
    _log.warning("%s has not answered for %.0f s%s; it is asked again %s", base, _SILENT_S, why, lasts)


class ObjectBytes(ByteSource):
    """Ranges of one object, without a cache; gaps of up to `joins_nbytes` are read in one request."""

    gap_nbytes = GAP_NBYTES

    def __init__(self, identity: ObjectIdentity, joins_nbytes: int = GAP_NBYTES) -> None:
        super().__init__(identity)
        self._joins_nbytes = joins_nbytes
        self._base, self._path = parts_of(identity.path)

    @cached_property
    def _store(self) -> object:
        """The store, looked up at the first read, so that another process can raise a helpful error."""
        identity, base = self.identity, self._base
        if identity.store != base and identity.store not in stores:
            problem = "was opened with storage_options=, which stay in the process that they were given to; open it in"
            way_out = "this one, or give credentials by the environment"
            raise SourceError(f"{identity.path!r} {problem} {way_out}", file=identity.path)
        return stores[identity.store if identity.store in stores else word_of(base, None)]

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; close ranges share a request."""
        read_sources([(self, offsets, targets)])

    def together(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> Iterator[list[tuple[int, memoryview]]]:
        """Divide ranges into groups of one request each."""
        group: list[tuple[int, memoryview]] = []
        begin = end = 0
        for offset, target in sorted(zip(offsets, targets, strict=True), key=itemgetter(0)):
            stop = offset + target.nbytes
            if group and (offset - end > self._joins_nbytes or stop - begin > REQUEST_NBYTES):
                yield group
                group = []
            if stop > offset:
                begin, end = (begin, max(end, stop)) if group else (offset, stop)
                group.append((offset, target))
        if group:
            yield group

    async def fetched(self, begin: int, end: int) -> memoryview:
        """Request the bytes of a range, and verify that the object has not changed."""
        identity, options = self.identity, dict[str, Any](range=(begin, end))
        if identity.has_strong_tag:
            options["if_match"] = identity.etag
        with store_errors(identity.path, "reading", identity.store):
            async with requests().room:
                getting = import_obstore().get_async(self._store, self._path, options=options)
                try:
                    answer = await answered(identity.store, self._path, getting, is_opening=False)
                except import_obstore().exceptions.GenericError as error:
                    if is_of_ranges(error):  # a replaced object may be shorter
                        await self._check()
                    raise
                self._compare(_identity_of(identity.path, identity.store, answer.meta))
                data = memoryview(await answer.bytes_async()).cast("B")
        if data.nbytes != end - begin:
            check_encoding(identity.path, answer.attributes)
            raise identity.ends_early(begin, end - begin, data.nbytes)
        return data

    async def _check(self) -> None:
        """Raise `SourceChangedError` if the store reports another version of the object."""
        count_requests()
        meta: Mapping[str, Any] | None = None
        with contextlib.suppress(import_obstore().exceptions.BaseError, OSError):
            meta = await import_obstore().head_async(self._store, self._path)
        if meta is not None:
            self._compare(_identity_of(self.identity.path, self.identity.store, meta))

    def _compare(self, now: ObjectIdentity) -> None:
        if difference := self.identity.difference(now):
            raise changed_error(self.identity.path, difference)


def read_sources(wanted: Iterable[tuple[ByteSource, Sequence[int], Sequence[memoryview]]]) -> None:
    """Read from several sources at once; each item is a source, its offsets and its targets."""
    groups, others = list[tuple[ObjectBytes, list[tuple[int, memoryview]]]](), []
    copies = list[tuple[Sequence[memoryview], list[memoryview]]]()
    for source, offsets, targets in wanted:
        if isinstance(source, ObjectBytes):
            groups += [(source, group) for group in source.together(offsets, targets)]
        else:
            # Other threads read these, and may still write after one fails, so not into the caller's targets.
            copies.append((targets, [memoryview(bytearray(target.nbytes)) for target in targets]))
            others.append(asyncio.to_thread(read_once, source, offsets, copies[-1][1]))
    if others:
        with cancelled_on_exit():
            requests().run(others)
    for targets, read in copies:
        for target, content in zip(targets, read, strict=True):
            target[:] = content
    ends = [max(offset + target.nbytes for offset, target in group) for _, group in groups]
    reads = [source.fetched(group[0][0], end) for (source, group), end in zip(groups, ends, strict=True)]
    count_requests(len(reads), sum(ends) - sum(group[0][0] for _, group in groups))
    for (_, group), data in zip(groups, requests().run(reads) if reads else (), strict=True):
        for offset, target in group:
            target[:] = data[offset - group[0][0] :][: target.nbytes]


def read_once(source: ByteSource, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
    """Read from a source and close it; raise if its file changed meanwhile."""
    try:
        source.read_many(offsets, targets)
        source.identity.check_unchanged()
    finally:
        source.close()


@contextlib.contextmanager
def fetched_ahead(address: str, folder: str) -> Iterator[None]:
    """Prefetch a whole object into a cache folder during a block that reads it in small pieces.

    # Guarantees: at the end of the block the fetching threads have ended, and the folder is deleted; the folder of a
    killed process is reused. Ranges that cannot be fetched are requested again by their reader, which raises the error.
    """
    identity = ObjectIdentity.of(address)
    size = identity.size
    cache = ObjectCache.of(folder, 2 * size + (1 << 20))
    identity = _with_cache(replace(identity, cache=None), cache)
    with (
        opened_with(opening().options, cache, identities=[identity]),
        ThreadPoolExecutor(_FETCHING, "h5stream-ahead") as threads,
    ):
        source = identity.open()

        def fetch(begin: int) -> None:
            with contextlib.suppress(SourceError):
                source.read_many((begin,), (memoryview(bytearray(min(REQUEST_NBYTES, size - begin))),))

        try:
            with cancelled_on_exit():
                for begin in range(0, size, REQUEST_NBYTES) if isinstance(source, CachedBytes) else ():
                    threads.submit(contextvars.copy_context().run, fetch, begin)
                yield
        finally:
            threads.shutdown(cancel_futures=True)
            _caches.pop(address, None)
            shutil.rmtree(folder, ignore_errors=True)


failures: dict[str, SourceError] = {}
"""By address, the store's error while libhdf5 read the metadata of an object, which libhdf5 reports as damage.

These are copies without tracebacks: h5py objects in their frames would crash when they are closed at the end of the
process.
"""


def check_reads(address: str) -> None:
    """Raise the error of a store since an object was opened, if there was one."""
    if (failure := failures.get(address)) is not None:
        raise copy.copy(failure) from None


class ObjectFile(io.RawIOBase, ByteSource):
    """A file object for h5py over an object in a store; the most recently used blocks of bytes are cached.

    libhdf5 reads sequentially, so blocks are prefetched for sequential reads, and all child nodes together with a node
    of an index. After an error of the store this file sends no more requests: libhdf5 would go on with other offsets.
    """

    def __init__(self, identity: ObjectIdentity) -> None:
        self.identity: ObjectIdentity = identity
        self._source, self._at = identity.open(), 0
        self._next, self._ahead = 0, _FIRST_BLOCKS // 2  # the block after the last fetched ones, and their number
        self._seen: set[int] = set()  # nodes whose child nodes were fetched

    def __repr__(self) -> str:
        return self.identity.path

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.identity.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the current position."""
        target = memoryview(buffer).cast("B")
        count = self.fill(target, self._at)
        self._fetch_below(self._at, target[:count])
        self._at += count
        return count

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset, fetching missing blocks together."""
        pairs = list(zip(offsets, targets, strict=True))
        for low in range(0, len(pairs), _HELD_RANGES):
            part = pairs[low : low + _HELD_RANGES]
            self.hold([(offset, target.nbytes) for offset, target in part])
            for offset, target in part:
                if (count := self.fill(target, offset)) < target.nbytes:
                    raise self.identity.ends_early(offset, target.nbytes, count)

    def fill(self, target: memoryview, at: int) -> int:
        """Fill memory with the bytes from `at` on; return how many there are."""
        count = max(0, min(target.nbytes, self.identity.size - at))
        first, end = at // BLOCK_NBYTES, -(-(at + count) // BLOCK_NBYTES)
        if end - first > _MOST_BLOCKS:
            self._read((at,), (target[:count],))
        elif count:
            inside = at - first * BLOCK_NBYTES
            target[:count] = b"".join(self._blocks_of(range(first, end)))[inside : inside + count]
        return count

    def _blocks_of(self, numbers: range) -> list[bytes]:
        """Return consecutive blocks, fetching missing ones."""
        blocks = {number: block for number in numbers if (block := cached_block(self.identity.version, number))}
        begin = next((number for number in numbers if number not in blocks), None)
        if begin is not None:
            self._ahead = min(2 * self._ahead, _MOST_BLOCKS) if begin == self._next else 1
            if isinstance(self._source, CachedBytes) and self._source.holds(begin * BLOCK_NBYTES, BLOCK_NBYTES):
                self._ahead = 1
            fetched = self._fetch(range(begin, max(numbers.stop, begin + self._ahead)))
            self._next = begin + len(fetched)
            blocks = fetched | blocks
        return [blocks[number] for number in numbers]

    def _fetch(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Fetch and cache blocks; those beyond the object's end are omitted."""
        size = self.identity.size
        begins = {number: number * BLOCK_NBYTES for number in numbers if number * BLOCK_NBYTES < size}
        blocks = {number: bytearray(min(BLOCK_NBYTES, size - begin)) for number, begin in begins.items()}
        if blocks:
            self._read([*begins.values()], [memoryview(block) for block in blocks.values()])
        for number, block in blocks.items():
            cache_blocks(self.identity.version, number, memoryview(block))
        return blocks  # type: ignore[return-value]

    def hold(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch the blocks of ranges (offset, bytes) together, before they are read one by one."""
        edges = ((offset // BLOCK_NBYTES, -(-(offset + nbytes) // BLOCK_NBYTES)) for offset, nbytes in ranges)
        numbers = {number for low, high in edges for number in range(low, high)}
        self._fetch(sorted(number for number in numbers if cached_block(self.identity.version, number) is None))

    def _read(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        check_reads(self.identity.path)
        try:
            self._source.read_many(offsets, targets)
        except SourceError as error:
            failures[self.identity.path] = copy.copy(error)
            raise

    def _fetch_below(self, at: int, node: memoryview) -> None:
        """Fetch all descendants of an index node, level by level, if `node` is one."""
        nodes = [(at, node)]
        while nodes and len(self._seen) < _AHEAD_NODES:
            below = [one for at, node in nodes if at not in self._seen for one in child_nodes(node, self.identity.size)]
            self._seen.update(at for at, node in nodes if bytes(node[:4]) == b"TREE")
            self.hold(below)
            nodes = [(offset, self._peeked(offset, nbytes)) for offset, nbytes in below]

    def _peeked(self, offset: int, nbytes: int) -> memoryview:
        """Return the cached bytes of a range, incomplete if blocks are missing."""
        first, last = offset // BLOCK_NBYTES, (offset + nbytes - 1) // BLOCK_NBYTES
        data = b"".join(cached_block(self.identity.version, number) or b"" for number in range(first, last + 1))
        return memoryview(data)[offset - first * BLOCK_NBYTES :][:nbytes]


_HELD_RANGES = 256
"""Ranges whose blocks are fetched together: a quarter of the cached blocks."""

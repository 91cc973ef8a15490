"""Objects in a store as files: what they are, their bytes by ranges, and how h5py reads their structure."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import datetime
import fnmatch
import functools
import io
import logging
import re
import shutil
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from h5stream.base.limits import return_freed_memory
from h5stream.base.names import as_pattern, tokens_of, unquoted
from h5stream.errors import OptionError, SourceError, SourceNotFoundError
from h5stream.storage.source.disk_cache import CachedBytes, ObjectCache
from h5stream.storage.source.identity import ByteSource, SourceIdentity
from h5stream.storage.source.stores import (
    answered,
    changed_error,
    check_encoding,
    count_requests,
    is_of_ranges,
    over_afterwards,
    parts_of,
    requests,
    stores,
    the_library,
    told,
    word_of,
)

_log = logging.getLogger("h5stream")

READERS = 32
"""Threads that read objects in stores where nobody chose their number: each waits for a request most of the time."""

REQUEST_NBYTES = 4 * 1024 * 1024
"""Bytes that one request asks for at most, about, where it brings several ranges: the others share the line."""

GAP_NBYTES = 64 * 1024
"""Bytes between two reads that are read along: what a connection brings while a request waits for its first byte."""

BLOCK_NBYTES = 64 * 1024
"""Bytes that libhdf5's reads of an object are served from together."""
_FIRST_BLOCKS, _MOST_BLOCKS = 16, 64
"""Blocks that are fetched at once: at the beginning of an object, and at most where they are read in turn."""
_FETCHING = 8
"""Threads that fetch an object ahead of who reads all of it."""
HELD_NBYTES = 64 * 1024 * 1024
"""Bytes of blocks that a process holds while it opens objects, and a share of which it keeps afterwards."""
_KEPT_SHARE = 8
_OPENED_AHEAD = 16
"""Objects whose beginnings are fetched before they are opened: half of what is held."""
_AHEAD_NODES = 8192
"""Nodes of an index that are fetched before libhdf5 asks for them, at most: most of what is held."""


_named: dict[str, str] = {}
"""The word of the store that an address was last opened with."""
_caches: dict[str, ObjectCache | None] = {}
"""The cache that an address was last opened with."""
_uncached: set[str] = set()
"""The stores of which it was said that nothing is kept."""
_unwatched: set[str] = set()
"""The stores of which it was said that nothing tells whether their files are replaced."""


class Opening:
    """The opening of objects one after the other: those that come next are asked for ahead.

    # Guarantees: belongs to one thread.
    """

    def __init__(
        self, options: Any = None, cache: ObjectCache | None = None, known: Iterable[ObjectIdentity] = ()
    ) -> None:
        self.options, self.cache = options, cache
        self._known = {one.path: one for one in known}
        self._next: Iterator[ObjectIdentity] = iter(())
        self._coming: dict[str, concurrent.futures.Future[memoryview]] = {}
        self._words: dict[str, str] = {}

    def word_of(self, base: str) -> str:
        """Return the word of a store, which is opened with the options of this opening, and once."""
        if base not in self._words:
            self._words[base] = word_of(base, self.options)
        return self._words[base]

    def identities(self, addresses: Sequence[str]) -> list[ObjectIdentity]:
        """Return what objects are; the store is asked for many at once, and for each once."""
        missing = [one for one in dict.fromkeys(addresses) if one not in self._known]
        if missing:
            self._known.update(zip(missing, requests().run(map(_identity, missing)), strict=True))
            self._next = map(self._known.__getitem__, addresses)
        return [self._known[address] for address in addresses]

    @contextlib.contextmanager
    def here_and_there(self) -> Iterator[None]:
        """Ask for nothing ahead meanwhile: only some objects are opened."""
        following, self._next = self._next, iter(())
        try:
            yield
        finally:
            self._next = following

    def begin(self, identity: ObjectIdentity) -> None:
        """Fetch the beginning of an object that is about to be opened, and begin with that of others that follow."""
        coming = self._coming.pop(identity.path, None)
        while len(self._coming) < _OPENED_AHEAD and (one := next(self._next, None)):
            if one != identity:
                self._coming[one.path] = requests().begin(_beginning(one))
        if coming is not None:
            with told(identity.path, "reading", identity.store):
                _hold(identity, 0, requests().wait(coming))

    def end(self) -> None:
        """Let go of what nobody has asked for."""
        for future in self._coming.values():
            future.cancel()
        _trim(HELD_NBYTES // _KEPT_SHARE)
        return_freed_memory()


_opening: contextvars.ContextVar[Opening | None] = contextvars.ContextVar("opening", default=None)


@contextlib.contextmanager
def opened_with(options: Any, cache: ObjectCache | None = None, known: Iterable[ObjectIdentity] = ()) -> Iterator[None]:
    """Open the stores of addresses with some options, or take a store object, and keep what is read, meanwhile.

    Of some objects it is `known` what they are, or must be.
    """
    opening = Opening(options, cache, known)
    token = _opening.set(opening)
    try:
        yield
    finally:
        _opening.reset(token)
        opening.end()


def opened_again(identity: SourceIdentity | None) -> contextlib.AbstractContextManager[None]:
    """Open an object as it was opened before, meanwhile, also in another thread or process; a file has no need."""
    return opened_with(opening().options, known=[identity] if isinstance(identity, ObjectIdentity) else [])


def opening() -> Opening:
    """Return the opening that is under way, or one of its own."""
    return _opening.get() or Opening()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIdentity(SourceIdentity):
    """What an object in a store was when it was opened; its path is its address."""

    etag: str  # its ETag; if it has none, when it was last changed; empty if the store gives neither
    changed: str = field(default="", compare=False, repr=False)  # when it was last changed, if the store gives that
    store: str = field(compare=False, repr=False)  # the word of its store in this process
    cache: ObjectCache | None = field(default=None, compare=False, repr=False)  # where what is read of it is kept

    @classmethod
    def of(cls, address: str) -> ObjectIdentity:
        """Ask a store for the identity of an object."""
        return opening().identities([address])[0]

    def now(self) -> ObjectIdentity:
        """Ask the store what the object is by now."""
        return requests().run([_now(self.path, self.store)])[0]

    def difference(self, now: ObjectIdentity) -> str:
        """Say how the object differs from what it is now; empty if it does not, as far as the store tells."""
        said = [f"its size went from {self.size} to {now.size} bytes"] if self.size != now.size else []
        if self.has_tag and now.has_tag:
            # A weak tag may stand for other bytes of the same meaning; those of stores and servers stand for a version.
            if self.etag.removeprefix("W/") != now.etag.removeprefix("W/"):
                said.append(f"its ETag from {self.etag} to {now.etag}")
        elif self.changed and now.changed and self.changed != now.changed:
            said.append(f"its date from {self.changed} to {now.changed}")
        return ", and ".join(said)

    @property
    def is_far(self) -> bool:
        """Always: it is in one."""
        return True

    @property
    def is_watched(self) -> bool:
        """Whether its store gives its ETag or its date."""
        return bool(self.etag)

    @property
    def changed_ns(self) -> int:
        """When it was last changed, in nanoseconds since 1970, if that is all that tells its versions apart; else 0."""
        is_dated = self.changed and not self.has_tag
        return round(datetime.datetime.fromisoformat(self.changed).timestamp() * 1e9) if is_dated else 0

    @property
    def has_tag(self) -> bool:
        """Whether the store gives an ETag, and not a date alone, or nothing."""
        return self.etag not in ("", self.changed)

    @property
    def has_strong_tag(self) -> bool:
        """Whether its ETag stands for its bytes, so that a request may name it: a weak one never matches there."""
        return self.has_tag and self.etag.startswith('"')

    def open(self) -> ObjectBytes | CachedBytes:
        """Return the object's bytes; nothing is asked for until they are read."""
        if self.cache is None:
            return ObjectBytes(self)
        _caches.setdefault(self.path, self.cache)  # where h5py opens it in another process
        return CachedBytes(self, self.cache, lambda: ObjectBytes(self, joins_nbytes=0))

    def for_structure(self) -> ByteSource:
        """Return the object's bytes for who reads many small pieces of its structure, as libhdf5 does."""
        return ObjectFile(self)


async def _identity(address: str) -> ObjectIdentity:
    """Ask a store what an object is."""
    base, _ = parts_of(address)
    if (asked := _opening.get()) is not None:
        word, _caches[address] = asked.word_of(base), asked.cache
    else:  # it is opened once more
        word = _named.get(address) or word_of(base, None)
    _named[address] = word
    found, cache = await _now(address, word), _caches.get(address)
    # Nobody knows whether one without an ETag, or with a weak one, is the same the next time; a store in memory counts
    # them anew in each process.
    if not found.is_watched:
        _forget(address)
        if base not in _unwatched:
            _unwatched.add(base)
            said = "a file that is replaced by one of the same size is not noticed; write new versions under new names"
            _log.warning("%s gives neither ETags nor the dates of its files: %s", base, said)
    return _with_cache(found, cache)


def _with_cache(identity: ObjectIdentity, cache: ObjectCache | None) -> ObjectIdentity:
    """Return an identity whose bytes are kept in a cache, if it tells one version of them from another."""
    is_in_memory = isinstance(stores.get(identity.store), the_library().store.MemoryStore)
    if cache and (not identity.has_strong_tag or is_in_memory):
        base, _ = parts_of(identity.path)
        if base not in _uncached:
            _uncached.add(base)
            _log.warning("cache= keeps nothing of %s: it gives no ETags that tell one version from another", base)
        cache = None
    return replace(identity, cache=cache)


async def _beginning(identity: ObjectIdentity) -> memoryview:
    """Return the first bytes of an object, which libhdf5 asks for first."""
    source, target = identity.open(), memoryview(bytearray(min(identity.size, _FIRST_BLOCKS * BLOCK_NBYTES)))
    if isinstance(source, CachedBytes):
        await asyncio.to_thread(source.read_many, (0,), (target,))
        return target
    if target.nbytes:
        count_requests(1, target.nbytes)
        return await source.fetched(0, target.nbytes)
    return target


async def _now(address: str, word: str) -> ObjectIdentity:
    base, path = parts_of(address)
    if word not in stores:
        word = word_of(base, None)
    store = stores[word]
    count_requests()
    async with requests().room:
        loop = asyncio.get_running_loop()
        silent = loop.call_later(_SILENT_S, loop.run_in_executor, None, _say_silent, base, store)
        try:
            with told(address, "asking for", word):
                meta = await answered(word, path, the_library().head_async(store, path))
        except SourceNotFoundError as error:
            # A web server has no list, and may take the question for a reason to be asked again.
            raise error if base.startswith("http") else await _with_what_lies_below(error, base, store, path) from None
        finally:
            silent.cancel()
    return _described(address, word, meta)


def _described(address: str, word: str, meta: Mapping[str, Any]) -> ObjectIdentity:
    """Return the identity that a store's answer describes."""
    date = meta.get("last_modified")  # 1970 where a web server does not say
    changed = str(date) if date and date.timestamp() else ""
    etag = str(meta.get("e_tag") or changed)
    return ObjectIdentity(path=address, size=int(meta["size"]), etag=etag, changed=changed, store=word)


async def _with_what_lies_below(error: SourceNotFoundError, base: str, store: Any, path: str) -> SourceNotFoundError:
    """Return the error of an object that is not there; if it is a folder, it names a pattern for what lies in it."""
    with contextlib.suppress(Exception):  # a store may show its list to others only
        count_requests()
        async for some in the_library().list(store, prefix=path, chunk_size=50):
            folder, _, name = some[0]["path"].rpartition("/")
            below = f"objects lie below it: {base}/{folder}/*{name[name.rfind('.') :] if '.' in name else ''}"
            return SourceNotFoundError(f"there is no object {error.file!r}; {below}", file=error.file)
    return error


_SILENT_S = 5.0
_silent: set[str] = set()


def _say_silent(base: str, store: Any) -> None:
    """Say once of a store that it does not answer, with the reason: who waits may have mistyped its name."""
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
    """Ranges of one object; those that at most `joins_nbytes` lie between come with one request, and none is held."""

    gap_nbytes = GAP_NBYTES

    def __init__(self, identity: ObjectIdentity, joins_nbytes: int = GAP_NBYTES) -> None:
        super().__init__(identity)
        self._joins_nbytes = joins_nbytes
        self._base, self._path = parts_of(identity.path)

    @functools.cached_property
    def _store(self) -> Any:
        """The store, found at the first read: what travels to another process says there what is wrong."""
        identity, base = self.identity, self._base
        if identity.store != base and identity.store not in stores:
            said = "was opened with storage_options=, which stay in the process that they were given to; open it in"
            way_out = "this one, or give credentials by the environment"
            raise SourceError(f"{identity.path!r} {said} {way_out}", file=identity.path)
        return stores[identity.store if identity.store in stores else word_of(base, None)]

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; those that lie close together come at once."""
        read_sources([(self, offsets, targets)])

    def together(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> Iterator[list[tuple[int, memoryview]]]:
        """Cut ranges into groups, each of which one request brings."""
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
        """Return the bytes of a range, which are those of the object that was opened, as far as its store tells."""
        identity, asked = self.identity, dict[str, Any](range=(begin, end))
        if identity.has_strong_tag:
            asked["if_match"] = identity.etag
        with told(identity.path, "reading", identity.store):
            async with requests().room:
                getting = the_library().get_async(self._store, self._path, options=asked)
                try:
                    answer = await answered(identity.store, self._path, getting, is_opening=False)
                except the_library().exceptions.GenericError as error:
                    if is_of_ranges(error):  # another object may have other bytes there, or none
                        await self._check()
                    raise
                self._compare(_described(identity.path, identity.store, answer.meta))
                data = memoryview(await answer.bytes_async()).cast("B")
        if data.nbytes != end - begin:
            check_encoding(identity.path, answer.attributes)
            raise identity.ends_early(begin, end - begin, data.nbytes)
        return data

    async def _check(self) -> None:
        """Raise `SourceChangedError` if the store says that the object is another one by now."""
        count_requests()
        meta: Mapping[str, Any] | None = None
        with contextlib.suppress(the_library().exceptions.BaseError, OSError):
            meta = await the_library().head_async(self._store, self._path)
        if meta is not None:
            self._compare(_described(self.identity.path, self.identity.store, meta))

    def _compare(self, now: ObjectIdentity) -> None:
        if difference := self.identity.difference(now):
            raise changed_error(self.identity.path, difference)


def read_sources(wanted: Iterable[tuple[Any, Sequence[int], Sequence[memoryview]]]) -> None:
    """Fill ranges of several sources, as each does by itself, at once: each comes with its offsets and targets."""
    groups, others = list[tuple[ObjectBytes, list[tuple[int, memoryview]]]](), []
    copies = list[tuple[Sequence[memoryview], list[memoryview]]]()
    for source, offsets, targets in wanted:
        if isinstance(source, ObjectBytes):
            groups += [(source, group) for group in source.together(offsets, targets)]
        else:
            # Other threads read these, which write on for a moment where one fails: not to where others read next.
            copies.append((targets, [memoryview(bytearray(target.nbytes)) for target in targets]))
            others.append(asyncio.to_thread(read_once, source, offsets, copies[-1][1]))
    if others:
        with over_afterwards():
            requests().run(others)
    for targets, read in copies:
        for target, some in zip(targets, read, strict=True):
            target[:] = some
    ends = [max(offset + target.nbytes for offset, target in group) for _, group in groups]
    asked = [source.fetched(group[0][0], end) for (source, group), end in zip(groups, ends, strict=True)]
    count_requests(len(asked), sum(ends) - sum(group[0][0] for _, group in groups))
    for (_, group), data in zip(groups, requests().run(asked) if asked else (), strict=True):
        for offset, target in group:
            target[:] = data[offset - group[0][0] :][: target.nbytes]


def read_once(source: ByteSource, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
    """Read from a source that nobody else has; tell a file that was changed meanwhile."""
    try:
        source.read_many(offsets, targets)
        source.identity.check_unchanged()
    finally:
        source.close()


@contextlib.contextmanager
def fetched_ahead(address: str, folder: str) -> Iterator[None]:
    """Fetch an object from its beginning on into a folder, ahead of who reads all of it, in small pieces, meanwhile.

    # Guarantees: the threads that fetch have ended when it ends, and the folder is gone; what a killed process left of
    one is taken over. What they cannot have is asked for again, and reported, by who needs it.
    """
    identity = ObjectIdentity.of(address)
    size = identity.size
    cache = ObjectCache.of(folder, 2 * size + (1 << 20))
    identity = _with_cache(replace(identity, cache=None), cache)
    with (
        opened_with(opening().options, cache, known=[identity]),
        ThreadPoolExecutor(_FETCHING, "h5stream-ahead") as threads,
    ):
        source = identity.open()

        def fetch(begin: int) -> None:
            with contextlib.suppress(SourceError):
                source.read_many((begin,), (memoryview(bytearray(min(REQUEST_NBYTES, size - begin))),))

        try:
            with over_afterwards():
                for begin in range(0, size, REQUEST_NBYTES) if isinstance(source, CachedBytes) else ():
                    threads.submit(contextvars.copy_context().run, fetch, begin)
                yield
        finally:
            threads.shutdown(cancel_futures=True)
            _caches.pop(address, None)
            shutil.rmtree(folder, ignore_errors=True)


# Blocks of objects that libhdf5 has read, the oldest going first. Guarantees: any thread may call.


_blocks_lock = threading.Lock()
_blocks = collections.OrderedDict[tuple[str, str, int, str, int], bytes]()


def _key(identity: ObjectIdentity, number: int) -> tuple[str, str, int, str, int]:
    """Return what tells a block of one object apart from those of others, and of other versions."""
    return identity.path, identity.store, identity.size, identity.etag, number


def _forget(address: str) -> None:
    """Let go of all blocks of an object: nothing tells whether they are still the same."""
    with _blocks_lock:
        for key in [key for key in _blocks if key[0] == address]:
            del _blocks[key]


def _held_block(identity: ObjectIdentity, number: int) -> bytes | None:
    key = _key(identity, number)
    with _blocks_lock:
        if key in _blocks:
            _blocks.move_to_end(key)
        return _blocks.get(key)


def _hold(identity: ObjectIdentity, number: int, data: memoryview) -> None:
    """Hold what was fetched, from the beginning of a block on."""
    with _blocks_lock:
        for k in range(0, data.nbytes, BLOCK_NBYTES):
            _blocks[_key(identity, number + k // BLOCK_NBYTES)] = bytes(data[k : k + BLOCK_NBYTES])
    _trim(HELD_NBYTES)


def _trim(most_nbytes: int) -> None:
    """Let go of the oldest blocks, until so many bytes are left."""
    with _blocks_lock:
        while len(_blocks) * BLOCK_NBYTES > most_nbytes:
            _blocks.popitem(last=False)


failures: dict[str, SourceError] = {}
"""What a store refused while libhdf5 read the structure of an object, by address: libhdf5 would take it for damage.

Copies, without the frames that errors were raised in: what h5py has open there crashes where it is closed at the very
end of the process.
"""


def check_reads(address: str) -> None:
    """Raise what a store refused since an object was opened."""
    if (failure := failures.get(address)) is not None:
        raise copy.copy(failure) from None


class ObjectFile(io.RawIOBase, ByteSource):
    """An object as a file that h5py opens; its bytes come in blocks, of which those read last are held.

    libhdf5 asks for one thing after the other. So blocks that are read in turn are fetched ahead, and with a node of an
    index all that lie below it. What a store refused once is not asked for again by this file: libhdf5 would look on in
    other places.
    """

    def __init__(self, identity: ObjectIdentity) -> None:
        self.identity: ObjectIdentity = identity
        self._source, self._at = identity.open(), 0
        self._next, self._ahead = 0, _FIRST_BLOCKS // 2  # the block behind those fetched last, and how many were
        self._seen: set[int] = set()  # nodes of which those below were fetched

    def __repr__(self) -> str:
        return self.identity.path

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Choose where the next read begins."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.identity.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from where it is."""
        target = memoryview(buffer).cast("B")
        count = self.fill(target, self._at)
        self._fetch_below(self._at, target[:count])
        self._at += count
        return count

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; blocks that are not held come at once."""
        pairs = list(zip(offsets, targets, strict=True))
        for low in range(0, len(pairs), _HELD_RANGES):
            some = pairs[low : low + _HELD_RANGES]
            self.hold([(offset, target.nbytes) for offset, target in some])
            for offset, target in some:
                if (there := self.fill(target, offset)) < target.nbytes:
                    raise self.identity.ends_early(offset, target.nbytes, there)

    def fill(self, target: memoryview, at: int) -> int:
        """Fill memory from a place on; return how many bytes there are."""
        count = max(0, min(target.nbytes, self.identity.size - at))
        first, end = at // BLOCK_NBYTES, -(-(at + count) // BLOCK_NBYTES)
        if end - first > _MOST_BLOCKS:
            self._read((at,), (target[:count],))
        elif count:
            inside = at - first * BLOCK_NBYTES
            target[:count] = b"".join(self._blocks_of(range(first, end)))[inside : inside + count]
        return count

    def _blocks_of(self, numbers: range) -> list[bytes]:
        """Return some blocks that follow one another."""
        held = {number: block for number in numbers if (block := _held_block(self.identity, number))}
        begin = next((number for number in numbers if number not in held), None)
        if begin is not None:
            self._ahead = min(2 * self._ahead, _MOST_BLOCKS) if begin == self._next else 1
            if isinstance(self._source, CachedBytes) and self._source.holds(begin * BLOCK_NBYTES, BLOCK_NBYTES):
                self._ahead = 1
            fetched = self._fetch(range(begin, max(numbers.stop, begin + self._ahead)))
            self._next = begin + len(fetched)
            held = fetched | held
        return [held[number] for number in numbers]

    def _fetch(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Fetch blocks and hold them; what would lie behind the end is left out."""
        size = self.identity.size
        begins = {number: number * BLOCK_NBYTES for number in numbers if number * BLOCK_NBYTES < size}
        found = {number: bytearray(min(BLOCK_NBYTES, size - begin)) for number, begin in begins.items()}
        if found:
            self._read([*begins.values()], [memoryview(block) for block in found.values()])
        for number, block in found.items():
            _hold(self.identity, number, memoryview(block))
        return found  # type: ignore[return-value]

    def hold(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch the blocks of some ranges, each an offset and bytes, at once: they are about to be read one by one."""
        edges = ((offset // BLOCK_NBYTES, -(-(offset + nbytes) // BLOCK_NBYTES)) for offset, nbytes in ranges)
        numbers = {number for low, high in edges for number in range(low, high)}
        self._fetch(sorted(number for number in numbers if _held_block(self.identity, number) is None))

    def _read(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        check_reads(self.identity.path)
        try:
            self._source.read_many(offsets, targets)
        except SourceError as error:
            failures[self.identity.path] = copy.copy(error)
            raise

    def _fetch_below(self, at: int, node: memoryview) -> None:
        """Fetch the nodes below one of an index, level by level, if that is what was read."""
        nodes = [(at, node)]
        while nodes and len(self._seen) < _AHEAD_NODES:
            below = [one for at, node in nodes if at not in self._seen for one in _below(node, self.identity.size)]
            self._seen.update(at for at, node in nodes if bytes(node[:4]) == b"TREE")
            self.hold(below)
            nodes = [(offset, self._peeked(offset, nbytes)) for offset, nbytes in below]

    def _peeked(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes as far as they are held."""
        first, last = offset // BLOCK_NBYTES, (offset + nbytes - 1) // BLOCK_NBYTES
        held = b"".join(_held_block(self.identity, number) or b"" for number in range(first, last + 1))
        return memoryview(held)[offset - first * BLOCK_NBYTES :][:nbytes]


_HELD_RANGES = 256
"""Pieces whose blocks are fetched at once: a quarter of what is held."""


def _below(node: memoryview, size: int) -> list[tuple[int, int]]:
    """Return where the nodes right below one of an older index lie, and their bytes: what is better fetched early."""
    if bytes(node[:4]) != b"TREE" or node.nbytes < _TREE_NBYTES:
        return []
    is_of_chunks, level, used = node[4], node[5], int.from_bytes(node[6:8], "little")
    key = (node.nbytes - _TREE_NBYTES - 64 * 8) // 65 if is_of_chunks else 8  # 64 below each, and a key more
    begins = range(_TREE_NBYTES + key, node.nbytes - 7, key + 8)[:used]
    if key < 8 or (is_of_chunks and not level):  # what lies below are chunks
        return []
    offsets = (int.from_bytes(node[begin : begin + 8], "little") for begin in begins)
    nbytes = node.nbytes if level else 328
    return [(offset, nbytes) for offset in offsets if offset + nbytes <= size]


_TREE_NBYTES = 24
"""Bytes that a node of an index begins with, before what it says of those below."""


def matches(pattern: str) -> list[str]:
    """List the addresses that a pattern matches, sorted by name; one that is there as it is written is meant alone."""
    base, path = parts_of(pattern)
    word = opening().word_of(base)
    store = stores[word]
    if "*" not in tokens_of(path, r"\*"):  # it is asked for, so that no list of a large bucket is needed
        plain = unquoted(path)
        for key, address in [(path, pattern)] + [(plain, f"{base}/{plain}")] * (plain != path):
            with contextlib.suppress(SourceNotFoundError), told(address, "asking for", word):
                requests().run([answered(word, key, _asked_for(store, key))])
                return [address]
    if base.startswith("http"):
        raise OptionError(f"{pattern!r}: a web server has no list of its files; name them: ['https://.../a.h5', ...]")
    # Where folders before the first star are there as they are written, nothing else has to be listed.
    folders = (re.split(marks, path, maxsplit=1)[0].rpartition("/")[0] for marks in ("[*]", r"[*?\[\\]"))
    for folder in dict.fromkeys(folders):
        every: dict[tuple[bool, ...], list[str]] = {}
        with told(pattern, "listing", word):
            keys = requests().run([answered(word, folder, _keys_below(store, folder, path.split("/")))])[0]
        for one in keys:
            if (fit := _fit(one.split("/"), path.split("/"))) is not None:
                every.setdefault(fit, []).append(f"{base}/{one}")
        if every:
            return sorted(every[max(every)])
    return []


async def _asked_for(store: Any, key: str) -> None:
    """Ask for an object, of which nothing is fetched."""
    count_requests()
    await the_library().head_async(store, key)


async def _keys_below(store: Any, folder: str, patterns: list[str]) -> list[str]:
    """List the keys below a folder; folder by folder, where one has a name that obstore takes for none (``a//b``)."""
    library = the_library()
    try:
        count_requests()
        return [one["path"] async for some in library.list(store, prefix=folder or None) for one in some]
    except library.exceptions.InvalidPathError:
        names, folders = list[str](), [folder]
    while folders:  # those alone that the pattern may match something in
        count_requests()
        try:
            listed = await library.list_with_delimiter_async(store, prefix=(folder := folders.pop()) or None)
        except library.exceptions.InvalidPathError:
            why = (
                f"{folder!r} has a key with an empty name in it, or '.' or '..', and cannot be listed; name the objects"
            )
            raise SourceError(f"{why} one by one, or copy that one under another key") from None
        names += [one["path"] for one in listed["objects"]]
        for below in listed["common_prefixes"]:
            depth = below.count("/") + 1
            if "**" in patterns[:depth] or (depth < len(patterns) and _fit(below.split("/"), patterns[:depth])):
                folders.append(below)
    return names


def _fit(names: list[str], patterns: list[str]) -> tuple[bool, ...] | None:
    """Tell which names of a path are those of a pattern as it is written; None for a path that does not fit it.

    It fits as `glob` means it: ``*`` stays within a folder, and ``**`` does not.
    """
    if not patterns:
        return None if names else ()
    first, *rest = patterns
    if first == "**":
        return next((fit for k in range(len(names) + 1) if (fit := _fit(names[k:], rest)) is not None), None)
    if not names or not (names[0] == first or fnmatch.fnmatchcase(names[0], as_pattern(first))):
        return None
    below = _fit(names[1:], rest)
    return None if below is None else (names[0] == first, *below)

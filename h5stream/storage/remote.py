"""Objects in a store (S3, Google Cloud, Azure, HTTP) as files: what they are, and their bytes by ranges.

`obstore` speaks with the stores; without it, an address is refused with the line that installs it. What opens a store,
its credentials among it, stays in this process: an identity names its store by a word that means nothing elsewhere.
Another process opens what needs none of that with what its environment has.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import fnmatch
import hashlib
import io
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from h5stream.errors import (
    MissingExtraError,
    OptionError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    TruncatedFileError,
)
from h5stream.storage.object_cache import CachedBytes, ObjectCache

CONCURRENCY = 16
"""Requests of one call that wait beside one another."""

GAP_NBYTES = 256 * 1024
"""Bytes between two reads that are read along: what a connection brings while a request waits for its first byte."""

BLOCK_NBYTES = 256 * 1024
"""Bytes that libhdf5's reads of an object are served from together."""
_FIRST_BLOCKS, _MOST_BLOCKS = 4, 16
"""Blocks that are fetched at once: at the beginning of an object, and at most where they are read in turn."""
HELD_NBYTES = 64 * 1024 * 1024
"""Bytes of blocks that a process holds."""

SCHEMES = "(?:s3a?|gs|gcs|az|azure|abfss?|adl|https?|hf|memory)"
"""How addresses begin."""
_ADDRESS = re.compile(rf"({SCHEMES})://([^/?#]*)/?(.*)", re.DOTALL)
_HUB = re.compile(r"datasets/([^/]+/[^/@]+)(?:@([^/]+))?/(.+)")

_RETRIES = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=10), "base": 2},
}
_CLIENT = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=10)}
"""How long a request may take, and how often it is repeated where a store says that it is busy."""

_stores: dict[str, Any] = {}
_named: dict[str, str] = {}
"""Stores by their words, and the word of the store that an address was last opened with."""
_caches: dict[str, ObjectCache | None] = {}
"""The cache that an address was last opened with."""


def is_address(path: str) -> bool:
    """Tell whether a path is the address of an object in a store.

    Examples
    --------
    >>> is_address("s3://bucket/a.h5"), is_address("/data/a.h5")
    (True, False)
    """
    return _ADDRESS.match(path) is not None


@dataclass(frozen=True, slots=True)
class _Opening:
    options: Any = None
    cache: ObjectCache | None = None
    found: dict[str, ObjectIdentity] = field(default_factory=dict)  # by address: each object is asked for once


_opening: contextvars.ContextVar[_Opening | None] = contextvars.ContextVar("opening", default=None)


@contextlib.contextmanager
def opened_with(options: Any, cache: ObjectCache | None = None) -> Iterator[None]:
    """Open the stores of addresses with some options, or take a store object, and keep what is read, meanwhile."""
    token = _opening.set(_Opening(options, cache))
    try:
        yield
    finally:
        _opening.reset(token)


def _parts_of(address: str) -> tuple[str, str]:
    """Return where the store of an address is, and the object's path in it."""
    found = _ADDRESS.match(address)
    assert found is not None
    scheme, host, path = found.groups()
    if "?" in path and scheme.startswith("http"):
        raise OptionError(
            f"{address.partition('?')[0]!r} is followed by a query, which may hold a key; give the address without "
            "that, and storage_options={'client_options': {'default_headers': ...}}, or a store object"
        )
    if scheme == "hf":
        hub = _HUB.fullmatch(f"{host}/{path}")
        if hub is None:
            raise OptionError(f"{address!r}: an address at Hugging Face is hf://datasets/OWNER/NAME[@REVISION]/PATH")
        name, revision, path = hub.groups()
        return "https://huggingface.co", f"datasets/{name}/resolve/{revision or 'main'}/{path}"
    return f"{scheme}://{host}", path


_used_in: list[int] = []
"""The process in which obstore was first used: its threads do not come along into a forked child."""


def _obstore() -> Any:
    _used_in[:] = _used_in or [os.getpid()]
    if _used_in[0] != os.getpid():
        raise SourceError(
            "object stores were read before this process was forked, and what reads them does not come along: start "
            "workers with multiprocessing_context='spawn' or 'forkserver'"
        )
    try:
        import obstore
        import obstore.store
    except ImportError:
        raise MissingExtraError(
            "files in object stores are read with obstore, which is not installed: python -m pip install "
            "'h5stream[remote]'"
        ) from None
    return obstore


def _store_of(base: str, options: Any) -> str:
    """Return the word of a store; it is opened if it is not yet."""
    if options is not None and not isinstance(options, Mapping):
        word = next((word for word, store in _stores.items() if store is options), "")
        word = word or secrets.token_hex(8)
        _stores[word] = options
        return word
    word = base if not options else f"{base} {_digest(options)}"
    if word not in _stores:
        given = dict(options or {})
        client = {**_CLIENT, **given.pop("client_options", {})}
        try:
            url = f"{base}/" if base.startswith(("http", "memory")) else base
            if base.startswith("http://"):
                client["allow_http"] = True
            _stores[word] = _obstore().store.from_url(
                url, client_options=client, retry_config=given.pop("retry_config", _RETRIES), **given
            )
        except Exception as error:
            raise OptionError(f"storage_options= does not open {base!r}: {_without_keys(error)}") from None
    return word


_KEY = secrets.token_bytes(16)


def _digest(options: Mapping[str, Any]) -> str:
    """Return a word for options that says nothing of them: its key is this process's."""
    return hashlib.blake2b(repr(sorted(options.items(), key=str)).encode(), key=_KEY, digest_size=8).hexdigest()


def _without_keys(error: BaseException) -> str:
    """Return what an error says, without what may be a key: queries, and what stands before an @."""
    said = re.sub(r"\?[^\s\"')]*", "?...", str(error))
    said = re.sub(r"//[^/@\s]*@", "//...@", said)
    if "169.254.169.254" in said or "metadata.google" in said:  # where a machine of a cloud is asked for its own
        return "there are no credentials; for a public bucket storage_options={'skip_signature': True}"
    return said.splitlines()[0][:300] if said else type(error).__name__


@contextlib.contextmanager
def _told(address: str, what: str) -> Iterator[None]:
    """Raise errors of the store as ours, with the address and without keys."""
    found = _obstore().exceptions
    try:
        yield
    except (FileNotFoundError, found.NotFoundError):
        raise SourceNotFoundError(f"there is no object {address!r}", file=address) from None
    except (found.PermissionDeniedError, found.UnauthenticatedError) as error:
        raise SourceError(
            f"the store does not let {address!r} be read ({_without_keys(error)}): storage_options= takes credentials, "
            "which else come from the environment",
            file=address,
        ) from None
    except found.PreconditionError:
        raise SourceChangedError(
            f"{address!r} changed while it was being read (another ETag). Open it again once its writer is done.",
            file=address,
        ) from None
    except (found.BaseError, OSError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{what} {address!r} failed: {_without_keys(error)}", file=address) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIdentity:
    """What an object in a store was when it was opened."""

    path: str  # its address
    size: int  # bytes
    etag: str  # its ETag, or when it was last changed
    store: str = field(compare=False, repr=False)  # the word of its store in this process
    cache: ObjectCache | None = field(default=None, compare=False, repr=False)  # where what is read of it is kept

    @classmethod
    def of(cls, address: str) -> ObjectIdentity:
        """Ask a store for the identity of an object."""
        opening, (base, path) = _opening.get(), _parts_of(address)
        if opening is None:
            opening = _Opening(cache=_caches.get(address))
        if address in opening.found:
            return opening.found[address]
        options = opening.options
        word = _store_of(base, options) if options is not None else _named.get(address) or _store_of(base, None)
        with _told(address, "asking for"):
            found = _obstore().head(_stores[word], path)
        _named[address], _caches[address] = word, opening.cache
        # Nobody knows whether one without an ETag, or with a weak one, is the same the next time; a store in memory
        # counts them anew in each process.
        is_weak = str(found.get("e_tag") or "W/").startswith("W/")
        cache = None if is_weak or isinstance(_stores[word], _obstore().store.MemoryStore) else opening.cache
        identity = cls(path=address, size=int(found["size"]), etag=_etag_of(found), store=word, cache=cache)
        opening.found[address] = identity
        return identity

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each file: of this one."""
        return (self.size,)

    def at(self, offset: int) -> tuple[ObjectIdentity, int]:
        """Return the file that a byte lies in, and where it lies there."""
        return self, offset

    def each(self) -> list[ObjectIdentity]:
        """Return every file: this one."""
        return [self]

    def over(self, copies: Sequence[Any]) -> Any:
        """Return the same of a copy."""
        return copies[0]

    def check_unchanged(self) -> None:
        """Do nothing: each request says which object it means, by its ETag."""

    def open(self) -> ObjectBytes | CachedBytes:
        """Return the object's bytes; nothing is asked for until they are read."""
        if self.cache is None:
            return ObjectBytes(self)
        _caches.setdefault(self.path, self.cache)  # where h5py opens it in another process
        return CachedBytes(self, self.cache, lambda: ObjectBytes(self))


def _etag_of(found: Mapping[str, Any]) -> str:
    return str(found.get("e_tag") or found.get("last_modified") or "")


class ObjectBytes:
    """Ranges of one object.

    # Guarantees: any thread may read at any time; nothing is held between two reads. Pickling carries the identity.
    """

    gap_nbytes = GAP_NBYTES
    has_descriptor = False

    def __init__(self, identity: ObjectIdentity) -> None:
        self.identity = identity
        base, self._path = _parts_of(identity.path)
        if identity.store != base and identity.store not in _stores:
            raise SourceError(
                f"{identity.path!r} was opened with storage_options=, which stay in the process that they were given "
                "to; open it in this one, or give credentials by the environment",
                file=identity.path,
            )
        self._store = _stores[identity.store if identity.store in _stores else _store_of(base, None)]

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectBytes, (self.identity,)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def descriptor(self) -> None:
        """Give none."""
        return

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; several are asked for beside one another."""
        wanted = [(offset, target) for offset, target in zip(offsets, targets, strict=True) if target.nbytes]
        with _told(self.identity.path, "reading"):
            if len(wanted) == 1:
                ((offset, target),) = wanted
                found = _obstore().get(self._store, self._path, options=self._asked(offset, target.nbytes))
                self._take(offset, target, found.bytes())
                return
            for low in range(0, len(wanted), 8 * CONCURRENCY):
                _loop().run(self._read_together(wanted[low : low + 8 * CONCURRENCY]))

    async def _read_together(self, wanted: list[tuple[int, memoryview]]) -> None:
        room = asyncio.Semaphore(CONCURRENCY)

        async def one(offset: int, target: memoryview) -> None:
            async with room:
                found = await _obstore().get_async(self._store, self._path, options=self._asked(offset, target.nbytes))
                self._take(offset, target, await found.bytes_async())

        await asyncio.gather(*(one(offset, target) for offset, target in wanted))

    def _asked(self, offset: int, nbytes: int) -> dict[str, Any]:
        asked: dict[str, Any] = {"range": (offset, offset + nbytes)}
        if self.identity.etag.startswith(('"', "W/")):
            asked["if_match"] = self.identity.etag
        return asked

    def _take(self, offset: int, target: memoryview, found: Any) -> None:
        view = memoryview(found)
        if view.nbytes != target.nbytes:
            raise TruncatedFileError(
                f"{self.identity.path!r} ends early: {target.nbytes} bytes are promised at byte {offset}, "
                f"{view.nbytes} came (the object has {self.identity.size})",
                file=self.identity.path,
            )
        target[:] = view.cast("B")


class _Loop:
    """A thread with a loop of asyncio's, which waits for many requests."""

    def __init__(self) -> None:
        self.pid, self._loop = os.getpid(), asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="h5stream-requests", daemon=True).start()

    def run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


_starting = threading.Lock()
_started: list[_Loop] = []


def _loop() -> _Loop:
    with _starting:
        if not _started or _started[0].pid != os.getpid():
            _started[:] = [_Loop()]
        return _started[0]


class _Blocks:
    """Blocks of objects that libhdf5 has read, the oldest going first.

    # Guarantees: any thread may call.
    """

    def __init__(self) -> None:
        self._lock, self._held = threading.Lock(), collections.OrderedDict[tuple[str, str, int], bytes]()

    def get(self, key: tuple[str, str, int]) -> bytes | None:
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key]

    def put(self, key: tuple[str, str, int], block: bytes) -> None:
        with self._lock:
            self._held[key] = block
            while len(self._held) > HELD_NBYTES // BLOCK_NBYTES:
                self._held.popitem(last=False)


_blocks = _Blocks()


failures: dict[str, SourceError] = {}
"""What a store refused while libhdf5 read the structure of an object, by address: libhdf5 would take it for damage."""


def check_reads(address: str) -> None:
    """Raise what a store refused since an object was opened."""
    if (failure := failures.get(address)) is not None:
        raise failure


class ObjectFile(io.RawIOBase):
    """An object as a file that h5py opens; its bytes come in blocks, of which those read last are held.

    What a store refused once is not asked for again by this file: libhdf5 would look on in other places.
    """

    def __init__(self, identity: ObjectIdentity) -> None:
        self._identity, self._source, self._at = identity, identity.open(), 0
        self._next, self._ahead = -1, 1  # the block behind those fetched last, and how many were fetched
        failures.pop(identity.path, None)

    def __repr__(self) -> str:
        return self._identity.path

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether it can be read from anywhere: always."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Choose where the next read begins."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._identity.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from where it is."""
        target = memoryview(buffer).cast("B")
        count = max(0, min(target.nbytes, self._identity.size - self._at))
        done = 0
        while done < count:
            number, inside = divmod(self._at, BLOCK_NBYTES)
            piece = self._block(number, -(-(inside + count - done) // BLOCK_NBYTES))[inside : inside + count - done]
            target[done : done + len(piece)] = piece
            done, self._at = done + len(piece), self._at + len(piece)
        return done

    def _block(self, number: int, wanted: int) -> bytes:
        key = self._identity.path, self._identity.etag
        found = _blocks.get((*key, number))
        if found is None:
            self._ahead = min(2 * self._ahead, _MOST_BLOCKS) if number == self._next else 1
            count = max(self._ahead, wanted, _FIRST_BLOCKS if number == 0 else 1)
            begin = number * BLOCK_NBYTES
            if isinstance(self._source, CachedBytes) and self._source.holds(begin, BLOCK_NBYTES):
                count = wanted
            memory = bytearray(min(count * BLOCK_NBYTES, self._identity.size - begin))
            check_reads(self._identity.path)
            try:
                self._source.read_many((begin,), (memoryview(memory),))
            except SourceError as error:
                failures[self._identity.path] = error
                raise
            for k in range(0, len(memory), BLOCK_NBYTES):
                _blocks.put((*key, number + k // BLOCK_NBYTES), bytes(memory[k : k + BLOCK_NBYTES]))
            self._next, found = number + -(-len(memory) // BLOCK_NBYTES), bytes(memory[:BLOCK_NBYTES])
        return found


def matches(pattern: str) -> list[str]:
    """List the addresses that a pattern matches, sorted by name."""
    base, path = _parts_of(pattern)
    if base.startswith("http"):
        raise OptionError(f"{pattern!r}: a web server has no list of its files; name them: ['https://.../a.h5', ...]")
    opening = _opening.get() or _Opening()
    word = _store_of(base, opening.options)
    folder = re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
    found = []
    with _told(pattern, "listing"):
        for some in _obstore().list(_stores[word], prefix=folder or None):
            found += [one["path"] for one in some]
    wanted = path.split("/")
    return [f"{base}/{one}" for one in sorted(found) if _fits(one.split("/"), wanted)]


def _fits(names: list[str], patterns: list[str]) -> bool:
    """Tell whether a path fits a pattern as `glob` means it: ``*`` stays within a folder, and ``**`` does not."""
    if not patterns:
        return not names
    first, *rest = patterns
    if first == "**":
        return any(_fits(names[k:], rest) for k in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], first) and _fits(names[1:], rest)

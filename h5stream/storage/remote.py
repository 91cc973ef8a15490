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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from h5stream.errors import (
    MissingExtraError,
    OptionError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    TruncatedFileError,
)

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

_STOP_S = 0.1
"""How often who waits for a request looks whether it is to stop."""

stop_asked: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("stop_asked", default=lambda: False)
"""What tells a thread that nobody needs what it reads any more."""

_options: contextvars.ContextVar[Any] = contextvars.ContextVar("storage_options", default=None)


class Asked(NamedTuple):
    """What was asked of stores."""

    requests: int = 0
    nbytes: int = 0


_NOTHING = Asked()
_asked_lock, _asked = threading.Lock(), [_NOTHING]


def asked_of_stores(before: Asked = _NOTHING) -> Asked:
    """Return what this process has asked of stores, or what it has since."""
    now = _asked[0]
    return Asked(now.requests - before.requests, now.nbytes - before.nbytes)


def _count(nbytes: int = 0) -> None:
    with _asked_lock:
        _asked[0] = Asked(_asked[0].requests + 1, _asked[0].nbytes + nbytes)


_stores: dict[str, Any] = {}
_named: dict[str, str] = {}
"""Stores by their words, and the word of the store that an address was last opened with."""


def is_address(path: str) -> bool:
    """Tell whether a path is the address of an object in a store.

    Examples
    --------
    >>> is_address("s3://bucket/a.h5"), is_address("/data/a.h5")
    (True, False)
    """
    return _ADDRESS.match(path) is not None


@contextlib.contextmanager
def opened_with(options: Any) -> Iterator[None]:
    """Open the stores of addresses with some options, or take a store object, meanwhile."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


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
            if base.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"):
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
        return "there are no credentials; for a public bucket storage_options={'skip_signature': True} (--anonymous)"
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

    @classmethod
    def of(cls, address: str) -> ObjectIdentity:
        """Ask a store for the identity of an object."""
        base, _ = _parts_of(address)
        word = (
            _store_of(base, _options.get())
            if _options.get() is not None
            else _named.get(address) or _store_of(base, None)
        )
        found = cls(path=address, size=0, etag="", store=word).now()
        _named[address] = word
        return found

    def now(self) -> ObjectIdentity:
        """Ask the store what the object is by now."""
        source = ObjectBytes(self)

        async def head() -> Any:
            return await _obstore().head_async(source._store, source._path)

        with _told(self.path, "asking for"):
            found = _loop().run(head())  # obstore's own waiting does not hear Ctrl-C
        _count()
        return replace(self, size=int(found["size"]), etag=_etag_of(found))

    def difference(self, now: ObjectIdentity) -> str:
        """Say how the object differs from what it is now."""
        grown = f"its size went from {self.size} to {now.size} bytes, and " * (self.size != now.size)
        return f"{grown}its ETag from {self.etag} to {now.etag}"

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

    def open(self) -> ObjectBytes:
        """Return the object's bytes; nothing is asked for until they are read."""
        return ObjectBytes(self)


def _etag_of(found: Mapping[str, Any]) -> str:
    changed = found.get("last_modified")  # 1970 where a web server does not say
    return str(found.get("e_tag") or (changed if changed and changed.timestamp() else ""))


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
        _count(nbytes)
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

    def run(self, work: Any) -> Any:
        """Return what came of some work; what ends the wait (Ctrl-C) cancels it."""
        future, stopped = asyncio.run_coroutine_threadsafe(work, self._loop), stop_asked.get()
        try:
            while not wait([future], _STOP_S).done:
                if stopped():
                    raise SourceError("nobody waits for these bytes any more")
            return future.result()
        finally:
            future.cancel()


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
    word = _store_of(base, _options.get())
    folder = re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
    found = []
    with _told(pattern, "listing"):
        _count()
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

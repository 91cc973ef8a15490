"""What speaks with stores of objects (S3, Google Cloud, Azure, HTTP): addresses, stores, requests, and their errors.

`obstore` does; without it, an address is refused with the line that installs it. What opens a store, its credentials
among it, stays in this process: others name it by a word that means nothing elsewhere. Another process opens what needs
none of that with what its environment has.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import gc
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from h5py._objects import phil

from h5stream.errors import MissingExtraError, OptionError, SourceChangedError, SourceError, SourceNotFoundError

T = TypeVar("T")

CONCURRENCY = 64
"""Requests of a process that wait beside one another."""

SCHEMES = "(?:s3a?|gs|gcs|az|azure|abfss?|adl|https?|hf|memory)"
"""How addresses begin."""
_ADDRESS = re.compile(rf"({SCHEMES})://([^/?#]*)/?(.*)", re.DOTALL)
_HUB = re.compile(r"datasets/([^/]+/[^/@]+)(?:@([^/]+))?/(.+)")

_RETRIES = {
    "max_retries": 100,  # the steps are drawn, so that their number says little of how long they last
    "retry_timeout": timedelta(seconds=40),  # a request that says nothing takes 30 s of it, and is repeated once
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 3},
}
_CLIENT = {
    "timeout": timedelta(seconds=30),
    "connect_timeout": timedelta(seconds=10),
    "pool_idle_timeout": timedelta(seconds=10),
}
"""How long a request may take, how often it is repeated where a store says that it is busy, and how long a connection
stays open that nobody uses."""

_STOP_S = 0.1
"""How often who waits for a request looks whether it is to stop."""

stop_asked: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("stop_asked", default=lambda: False)
"""What tells a thread that nobody needs what it reads any more."""


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


def count_request(nbytes: int = 0) -> None:
    """Count a request for so many bytes."""
    with _asked_lock:
        _asked[0] = Asked(_asked[0].requests + 1, _asked[0].nbytes + nbytes)


stores: dict[str, Any] = {}
"""Stores by their words."""


def is_address(path: str) -> bool:
    """Tell whether a path is the address of an object in a store, such as ``s3://bucket/a.h5``."""
    return _ADDRESS.match(path) is not None


def is_unsigned(path: str) -> bool:
    """Tell whether the environment says that the store of an address is asked without credentials (`--anonymous`)."""
    whose = {"s3": "AWS", "gs": "GOOGLE", "gc": "GOOGLE", "az": "AZURE", "ab": "AZURE", "ad": "AZURE"}.get(path[:2])
    return is_address(path) and os.environ.get(f"{whose}_SKIP_SIGNATURE", "").lower() in ("true", "1")


def parts_of(address: str) -> tuple[str, str]:
    """Return where the store of an address is, and the object's path in it."""
    found = _ADDRESS.match(address)
    assert found is not None
    scheme, host, path = found.groups()
    user, at, _ = host.rpartition("@")  # at Azure the container stands there
    if at and (":" in user or not scheme.startswith("a")):
        raise OptionError(
            f"'{scheme}://...@{host[len(user) + 1 :]}' has a name or a key before its @; give the address without "
            "that, and credentials by the environment, or storage_options="
        )
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


def the_library() -> Any:
    """Return obstore, if it is there and can be used in this process."""
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
            "files in stores are read with obstore, which is not installed: python -m pip install 'h5stream[remote]'"
        ) from None
    return obstore


def word_of(base: str, options: Any) -> str:
    """Return the word of a store; it is opened if it is not yet."""
    if isinstance(options, str | bytes | int | list | tuple):
        raise OptionError(
            "storage_options= takes a dict of options, such as {'skip_signature': True}, or a store of obstore's, not "
            f"{type(options).__name__}"
        )
    if options is not None and not isinstance(options, Mapping):
        word = next((word for word, store in stores.items() if store is options), "")
        word = word or secrets.token_hex(8)
        stores[word] = options
        return word
    word = base if not options else f"{base} {_digest(options)}"
    if word not in stores:
        given = dict(options or {})
        _check_endpoint(base, given)
        client = {**_CLIENT, **given.pop("client_options", {})}
        try:
            url = f"{base}/" if base.startswith(("http", "memory")) else base
            if base.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"):
                client["allow_http"] = True
            stores[word] = the_library().store.from_url(
                url, client_options=client, retry_config=given.pop("retry_config", _RETRIES), **given
            )
        except Exception as error:
            raise OptionError(f"storage_options= does not open {base!r}: {_without_keys(error)}") from None
    return word


def _check_endpoint(base: str, given: Mapping[str, Any]) -> None:
    """Refuse an endpoint of S3 that obstore would end the process at."""
    every = {**os.environ, **given.get("config", {}), **given} if base.startswith("s3") else {}
    for name, value in every.items():
        if re.fullmatch("(aws_)?endpoint(_url|_url_s3)?", name.lower()) and value and "://" not in str(value):
            raise OptionError(
                f"{name}={value!r} is no address: write https://{value}, or http://{value} with AWS_ALLOW_HTTP=true"
            )


_KEY = secrets.token_bytes(16)


def _digest(options: Mapping[str, Any]) -> str:
    """Return a word for options that says nothing of them: its key is this process's."""
    return hashlib.blake2b(repr(sorted(options.items(), key=str)).encode(), key=_KEY, digest_size=8).hexdigest()


def _without_keys(error: BaseException) -> str:
    """Return what an error says, without what may be a key: queries, and what stands before an @."""
    said = re.sub(r"\?[^\s\"')]*", "?...", str(error))
    said = re.sub(r"//[^/@\s]*@", "//...@", said)
    said = re.sub(r'failed to parse "[^"]*"', "failed to parse a value", said)
    if "169.254.169.254" in said or "metadata.google" in said:  # where a machine of a cloud is asked for its own
        return "there are no credentials; for a public bucket storage_options={'skip_signature': True} (--anonymous)"
    if "Range request not supported" in said:
        return "the server sends whole files alone, and no parts of them; download it, and name the copy"
    if (found := re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", said, re.DOTALL)) is not None:
        return f"{found[1]}: {found[2]}"[:300]
    first = said.splitlines()[0][:300] if said else type(error).__name__
    if first.endswith("builder error"):
        return f"{first}; an endpoint without TLS takes storage_options={{'client_options': {{'allow_http': True}}}}"
    if first.endswith("error sending request") and (why := re.search(r'(?:error|message): "([^"]+)"', said)):
        return f"{first}: {why[1]}"
    return first


@contextlib.contextmanager
def told(address: str, what: str) -> Iterator[None]:
    """Raise errors of the store as ours, with the address and without keys."""
    found = the_library().exceptions
    try:
        yield
    except (FileNotFoundError, found.NotFoundError):
        raise SourceNotFoundError(f"there is no object {address!r}", file=address) from None
    except (found.PermissionDeniedError, found.UnauthenticatedError) as error:
        raise SourceError(
            f"the store does not let {address!r} be read ({_without_keys(error)}): storage_options= takes credentials, "
            "which by default come from the environment",
            file=address,
        ) from None
    except found.PreconditionError:
        said = f"{address!r} changed while it was being read (another ETag). Open it again once its writer is done."
        raise SourceChangedError(said, file=address) from None
    except (found.BaseError, OSError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{what} {address!r} failed: {_without_keys(error)}", file=address) from None


class _CalledLoop(asyncio.SelectorEventLoop):
    """A loop that knows which threads are calling it: a socket wakes it, and they wait for the GIL behind that."""

    def __init__(self) -> None:
        super().__init__()
        self.callers = set[int]()

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        """Let a callback be called."""
        thread = threading.get_ident()
        self.callers.add(thread)
        try:
            return super().call_soon_threadsafe(*args, **options)
        finally:
            self.callers.discard(thread)


class _Loop:
    """A thread with a loop of asyncio's, which waits for many requests.

    # Guarantees: any thread may call `run`, also with h5py's lock; see `_collect_without_waiting`. Whoever waits looks
    every now and then whether it is to stop, and what it waited for is cancelled then, as it is where an exception
    (Ctrl-C) ends the wait.
    """

    def __init__(self) -> None:
        self.pid, self._loop = os.getpid(), _CalledLoop()
        self.room = asyncio.Semaphore(CONCURRENCY)
        self._loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(CONCURRENCY // 2, "h5stream-waiting"))
        if _collect_without_waiting not in gc.callbacks:
            gc.callbacks.append(_collect_without_waiting)
        self._thread = threading.Thread(target=self._loop.run_forever, name="h5stream-requests", daemon=True)
        self._thread.start()

    def run(self, work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Return what some coroutines return that run beside one another."""

        async def together() -> list[T] | BaseException:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one) for one in work]
            except BaseExceptionGroup as errors:  # which asyncio would print where nobody waits any more
                return errors.exceptions[0]
            return [task.result() for task in tasks]

        found = self.wait(self.begin(together()))
        if isinstance(found, BaseException):
            raise found from None
        return found

    def end(self) -> None:
        """Cancel what is under way before Python ends: a thread of obstore that calls it later ends the process."""

        async def cancel() -> None:
            under_way = asyncio.all_tasks() - {asyncio.current_task()}
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way, timeout=_STOP_S)
                await asyncio.sleep(_STOP_S)  # obstore hears of it
            self._loop.stop()

        if self.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(cancel(), self._loop)
            until = time.monotonic() + 10 * _STOP_S
            self._thread.join(10 * _STOP_S)
            while self._loop.callers and time.monotonic() < until:
                time.sleep(0.001)

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin some work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, future: concurrent.futures.Future[T]) -> T:
        """Return what came of some work."""
        stopped = stop_asked.get()
        try:
            while not concurrent.futures.wait([future], _STOP_S).done:
                if stopped():
                    raise SourceError("nobody waits for these bytes any more")
            return future.result()
        finally:
            future.cancel()


_skips = _holds = False


def _collect_without_waiting(phase: str, _: Mapping[str, int]) -> None:
    """Let Python's collector skip a turn where it would wait for h5py's lock; a callback of `gc`.

    h5py reads a file in a store with its lock held, and waits for bytes that other threads fetch. If one of these frees
    an h5py object it waits for that lock, and each waits for the other. Which thread collects is chance, so none but
    the main thread, for which nobody waits, collects while another has the lock. What is frozen is not looked at, and
    what becomes old so is collected later.
    """
    global _skips, _holds
    if phase == "start" and threading.get_ident() != threading.main_thread().ident:
        _holds = phil.acquire(False)
        if _skips := not _holds:
            gc.freeze()
    elif phase == "stop":
        if _skips:
            gc.unfreeze()
        if _holds:
            phil.release()
        _skips = _holds = False


_starting = threading.Lock()
_started: list[_Loop] = []


@atexit.register
def _end_all() -> None:
    """End requests behind the readers, who begin some: `h5stream.engine.run` stops them, and is imported later."""
    for loop in _started:
        loop.end()


def requests() -> _Loop:
    """Return what waits for the requests of this process."""
    with _starting:
        if not _started or _started[0].pid != os.getpid():
            _started[:] = [_Loop()]
        return _started[0]

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
import difflib
import gc
import hashlib
import operator
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

_RETRIES: dict[str, Any] = {
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

_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*([num]s(?:ec)?|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?)?\s*", re.I
)

_PLACES = {
    name: place
    for place, names in {
        "client_options": "allow_http allow_invalid_certificates connect_timeout default_content_type default_headers "
        "http1_only http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_only "
        "pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url randomize_addresses "
        "read_timeout root_certificate timeout user_agent",
        "retry_config": "backoff max_retries retry_timeout",
        "backoff": "base init_backoff max_backoff",
    }.items()
    for name in names.split()
}
"""The dicts that options of obstore's stand in, whatever the store."""
_OF_STORES = {
    "AWS": "access_key_id bucket default_region endpoint imdsv1_fallback metadata_endpoint region request_payer "
    "role_arn role_session_name s3_express secret_access_key session_token skip_signature sts_endpoint "
    "unsigned_payload virtual_hosted_style_request web_identity_token_file",
    "GOOGLE": "application_credentials base_url bearer_token service_account service_account_key skip_signature",
    "AZURE": "account_key account_name authority_host client_id client_secret endpoint federated_token_file "
    "msi_endpoint sas_key skip_signature tenant_id token use_azure_cli use_emulator use_fabric_endpoint",
}
"""Options that reading needs of the stores themselves; obstore knows more, and other names of these."""
_SAID_ELSEWHERE = {
    "anon": "skip_signature",
    "anonymous": "skip_signature",
    "no_sign_request": "skip_signature",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "use_ssl": "allow_http",
}
"""What other libraries call options."""

_STOP_S = 0.1
"""How often who waits for a request looks whether it is to stop."""

stop_asked: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("stop_asked", default=lambda: False)
"""What tells a thread that nobody needs what it reads any more."""


class StoppedError(Exception):
    """Nobody needs what was being read any more, so that not all of it is there.

    No error of a source, which is remembered, reported or got over: nobody sees this one.
    """


def raise_if_stopped() -> None:
    """End what this thread reads where nobody needs it any more."""
    if stop_asked.get()():
        raise StoppedError("nobody waits for these bytes any more")


@contextlib.contextmanager
def over_afterwards() -> Iterator[None]:
    """Let what other threads begin to read meanwhile end with the block, however it ends."""
    ended, stopped = threading.Event(), stop_asked.get()

    def is_over() -> bool:
        return ended.is_set() or stopped()

    token = stop_asked.set(is_over)
    try:
        yield
    finally:
        ended.set()
        stop_asked.reset(token)


class Asked(NamedTuple):
    """What was asked of stores, and what a cache had."""

    requests: int = 0
    nbytes: int = 0
    cached_nbytes: int = 0


NOTHING = Asked()
_asked_lock, _asked = threading.Lock(), [NOTHING]

asked_by: contextvars.ContextVar[list[Asked]] = contextvars.ContextVar("asked_by", default=[NOTHING])  # noqa: B039
"""Where it is counted what a thread asks, and others on its behalf; by default where nobody looks."""


def asked_of_stores(before: Asked = NOTHING) -> Asked:
    """Return what this process has asked of stores, or what it has since."""
    return Asked(*map(operator.sub, _asked[0], before))


def count_asked(more: Asked) -> None:
    """Count what was asked, also for whom it was."""
    with _asked_lock:
        for total in (_asked, asked_by.get()):
            total[0] = Asked(*map(operator.add, total[0], more))


def count_requests(requests: int = 1, nbytes: int = 0) -> None:
    """Count requests for so many bytes together."""
    count_asked(Asked(requests, nbytes))


stores: dict[str, Any] = {}
"""Stores by their words."""


def is_address(path: str) -> bool:
    """Tell whether a path is the address of an object in a store, such as ``s3://bucket/a.h5``."""
    return _ADDRESS.match(path) is not None


def _whose(path: str) -> str:
    """Return what the variables begin with that the store of an address is opened by; empty where there are none."""
    kinds = {"s3": "AWS", "gs": "GOOGLE", "gc": "GOOGLE", "az": "AZURE", "ab": "AZURE", "ad": "AZURE"}
    return kinds.get(path[:2], "") if is_address(path) else ""


def is_unsigned(path: str) -> bool:
    """Tell whether the environment says that the store of an address is asked without credentials (`--anonymous`)."""
    return os.environ.get(f"{_whose(path)}_SKIP_SIGNATURE", "").lower() in ("true", "1")


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
        given = _checked(base, options or {})
        _check_endpoint(base, given)
        client = {**_CLIENT, **given.pop("client_options", {})}
        retries = {**_RETRIES, **given.pop("retry_config", {})}
        retries["backoff"] = {**_RETRIES["backoff"], **retries["backoff"]}
        library = the_library()
        try:
            url = f"{base}/" if base.startswith(("http", "memory")) else base
            if base.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"):
                client["allow_http"] = True
            stores[word] = library.store.from_url(url, client_options=client, retry_config=retries, **given)
        except BaseException as error:
            if not (isinstance(error, Exception) or _is_panic(error)):
                raise
            if (unknown := re.match(r"(?:Configuration key: '|Invalid key: )(\w+)", str(error))) is not None:
                raise _no_such_option(base, unknown[1]) from None
            raise OptionError(f"storage_options= does not open {base!r}: {_without_keys(error, base)}") from None
    return word


def _is_panic(error: BaseException) -> bool:
    """Tell whether obstore came upon what it did not expect, which is no `Exception`."""
    return type(error).__name__ in ("PanicException", "RustPanic")


def _plain(name: Any) -> str:
    """Return an option's name as it is written without the store's."""
    return re.sub("^(aws|google|azure)_(storage_)?", "", str(name).lower())


def _checked(base: str, given: Any, place: str = "") -> dict[str, Any]:
    """Return options with durations as such; refuse those that obstore would panic at or not heed."""
    if not isinstance(given, Mapping):
        raise OptionError(f"storage_options= takes a dict for {place!r}, not {type(given).__name__}")
    found = dict(given)
    for name, value in given.items():
        if place in ("retry_config", "backoff") and _PLACES.get(name) != place:
            raise _no_such_option(base, name, value)
        if name in ("client_options", "retry_config", "backoff"):
            found[name] = _checked(base, value, name)
        elif name == "config" and not place:
            found[name] = _checked(base, value)
        elif not place and (_plain(name) in _PLACES or base.startswith(("http", "memory"))):
            raise _no_such_option(base, name, value)
        elif not place and name != "credential_provider" and not isinstance(value, (str, bool)):
            said = f"storage_options={{{name!r}: ...}} takes text, or True or False"
            raise OptionError(f"{said}, not {type(value).__name__}")
        elif name.endswith("timeout") or name in ("init_backoff", "max_backoff"):
            found[name] = _duration(name, value)
    return found


def _duration(name: str, value: Any) -> timedelta:
    """Return a duration that is given as one, in seconds, or as text."""
    if isinstance(value, timedelta):
        return value
    text, seconds, at = str(value), 0.0, 0
    while not isinstance(value, bool) and (found := _DURATION.match(text, at)):
        unit = (found[2] or "s").lower()
        seconds += float(found[1]) * _DURATION_UNITS[unit[: 2 if unit[1:2] == "s" else 1]]
        at = found.end()
    if not at or at < len(text):
        said = f"{name!r} takes a duration: seconds, text such as '120s' or '2min', or a timedelta"
        raise OptionError(f"{said}; not {value!r}")
    return timedelta(seconds=seconds)


def _no_such_option(base: str, name: str, value: Any = None) -> OptionError:
    """Return the error of an option that the store does not have, with the one that is meant, and where it goes."""
    own, plain = _OF_STORES.get(_whose(base), ""), _plain(name)
    places, meant = dict.fromkeys(own.split(), "") | _PLACES, _SAID_ELSEWHERE.get(plain, plain)
    said = f"storage_options= for {base!r} has no {name!r} there"
    if "profile" in plain:
        way_out = 'eval "$(aws configure export-credentials --profile NAME --format env)" sets what is read instead'
        return OptionError(f"{said}: profiles are not read; {way_out}")
    if not (near := difflib.get_close_matches(meant, places, n=1, cutoff=0.7)):
        return OptionError(f"{said}: it has {', '.join([*own.split(), 'client_options', 'retry_config'])}")
    written, place = f"{{{near[0]!r}: {value if isinstance(value, bool) else '...'}}}", places[near[0]]
    belongs = f"{near[0]} belongs in {place}" if place else "write"
    while place:
        written, place = f"{{{place!r}: {written}}}", _PLACES.get(place, "")
    return OptionError(f"{said}; {belongs}: storage_options={written}")


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


_CREDENTIALS = {
    "AWS": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "GOOGLE": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "AZURE": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
"""The variables that hold credentials."""


def _rights(address: str) -> str:
    """Say what a store's refusal may mean, and where its credentials come from."""
    if not (names := _CREDENTIALS.get(_whose(address), ())):
        return "a token goes in storage_options={'client_options': {'default_headers': {'authorization': ...}}}"
    there = [name for name in names if os.environ.get(name)]
    said = f"{there[0]} is set, but wrong or without rights here" if there else f"{' and '.join(names)} are not set"
    said = f"{said}, or the object does not exist and you may not list"
    return f"{said}; see 'Credentials' in docs/buckets.md, and storage_options="


def _without_keys(error: BaseException, address: str = "") -> str:
    """Return what an error says, without what may be a key: queries, and what stands before an @."""
    said = re.sub(r"\?[^\s\"')]*", "?...", str(error))
    said = re.sub(r"//[^/@\s]*@", "//...@", said)
    said = re.sub(r'failed to parse "[^"]*"', "failed to parse a value", said)
    asked_the_machine = "169.254.169.254" in said or "metadata.google" in said  # of a cloud, for its own
    if asked_the_machine or "Account must be specified" in said:
        names = " and ".join(_CREDENTIALS.get(_whose(address), ()))
        said = f"there are no credentials: set {names}" if names else "there are no credentials"
        return f"{said}; for a public bucket storage_options={{'skip_signature': True}} (--anonymous)"
    if "Range request not supported" in said:
        return "the server sends whole files alone, and no parts of them; download it, and name the copy"
    if (found := re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", said, re.DOTALL)) is not None:
        return f"{found[1]}: {found[2]}"[:300]
    first = said.splitlines()[0][:300] if said else type(error).__name__
    if first.endswith("builder error"):
        how = "AWS_ALLOW_HTTP=true, or storage_options={'client_options': {'allow_http': True}}"
        return f"{first}; an endpoint without TLS takes {how}"
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
        base, path = parts_of(address)
        bucket = base.rpartition("/")[2].partition("@")[0]
        which = f": there is no bucket {bucket!r}, or no object {path!r} in it" if _whose(address) else ""
        raise SourceNotFoundError(f"there is no object {address!r}{which}", file=address) from None
    except (found.PermissionDeniedError, found.UnauthenticatedError) as error:
        raise SourceError(
            f"the store does not let {address!r} be read ({_without_keys(error, address)}): {_rights(address)}",
            file=address,
        ) from None
    except found.PreconditionError:
        said = f"{address!r} changed while it was being read (another ETag). Open it again once its writer is done."
        raise SourceChangedError(said, file=address) from None
    except BaseException as error:
        known = found.BaseError, OSError, ValueError
        if isinstance(error, SourceError) or not (isinstance(error, known) or _is_panic(error)):
            raise
        raise SourceError(f"{what} {address!r} failed: {_without_keys(error, address)}", file=address) from None


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
        try:
            while not concurrent.futures.wait([future], _STOP_S).done:
                raise_if_stopped()
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

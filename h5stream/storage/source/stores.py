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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from h5py._objects import phil

from h5stream.base.texts import missing_extra
from h5stream.errors import OptionError, SourceChangedError, SourceError, SourceNotFoundError

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


def restored(path: Any) -> str:
    """Return an address as it was written, if a `Path` was made of it: that has lost a slash."""
    return re.sub(rf"^({SCHEMES}):/(?!/)", r"\1://", os.fspath(path))


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
    if scheme.startswith("http"):  # as a browser shows it: obstore encodes it
        path = unquote(path, errors="surrogateescape")
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
        raise missing_extra("files in stores are read with obstore", "remote") from None
    return obstore


_options_of: dict[str, frozenset[str]] = {}
"""The names of the options that stores were opened with, by their words."""
_secrets_of: dict[str, tuple[str, ...]] = {}
"""What no message may repeat, if a server does, by the words of stores: it stays in this process, as the stores do."""
_environments: dict[str, str] = {}
"""A digest of the variables that stores were opened with, by their words."""
_OF_CONNECTIONS = ("_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""How the names of variables end that all connections are made by."""
_OBJECT = "a store object"
_SECRET_CHARS = 6
"""Characters of a secret, at least: shorter words stand in messages by chance."""


def word_of(base: str, options: Any) -> str:
    """Return the word of a store; it is opened if it is not yet, or if the environment says something else since."""
    if isinstance(options, str | bytes | int | list | tuple):
        raise OptionError(
            "storage_options= takes a dict of options, such as {'skip_signature': True}, or a store of obstore's, not "
            f"{type(options).__name__}"
        )
    if options is not None and not isinstance(options, Mapping):
        word = next((word for word, store in stores.items() if store is options), "")
        word = word or secrets.token_hex(8)
        stores[word], _options_of[word] = options, frozenset([_OBJECT])
        return word
    word, environment = base if not options else f"{base} {_digest(options)}", _environment(base)
    if word not in stores or _environments.get(word, environment) != environment:
        stores[word], _environments[word] = _opened(base, options or {}), environment
        _tried.discard(word)
        pairs = [*_pairs_of(options or {})]
        _options_of[word] = frozenset(name for name, _ in pairs)
        variables = [(_plain(name), value) for name, value in os.environ.items() if name.startswith(f"{_whose(base)}_")]
        secrets_of = [value for name, value in [*pairs, *variables] if name in _KEYS and isinstance(value, str)]
        _secrets_of[word] = tuple(part for value in secrets_of for part in value.split() if len(part) >= _SECRET_CHARS)
    return word


def _environment(base: str) -> str:
    """Return a digest of the variables that a store is opened by, such as credentials."""
    whose = f"{_whose(base) or '-'}_"
    names = [name for name in os.environ if name.startswith(whose) or name.upper().endswith(_OF_CONNECTIONS)]
    return _digest({name: os.environ.get(name, "") for name in names})


def _pairs_of(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the plain names of options and their values, wherever they stand."""
    for name, value in options.items():
        yield _plain(name), value
        if isinstance(value, Mapping):
            yield from _pairs_of(value)


def _opened(base: str, options: Mapping[str, Any]) -> Any:
    """Open a store with some options, and with what the environment says beside them."""
    given = _checked(base, options)
    _check_endpoint(base, given)
    client = {**_CLIENT, **given.pop("client_options", {})}
    retries = {**_RETRIES, **given.pop("retry_config", {})}
    retries["backoff"] = {**_RETRIES["backoff"], **retries["backoff"]}
    library = the_library()
    try:
        url = f"{base}/" if base.startswith(("http", "memory")) else base
        if base.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"):
            client["allow_http"] = True
        return library.store.from_url(url, client_options=client, retry_config=retries, **given)
    except BaseException as error:
        if not (isinstance(error, Exception) or _is_panic(error)):
            raise
        if (unknown := re.match(r"(?:Configuration key: '|Invalid key: )(\w+)", str(error))) is not None:
            raise _no_such_option(base, unknown[1]) from None
        raise OptionError(f"storage_options= does not open {base!r}: {_without_keys(error, base)}") from None


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


_KEYS = {
    *("access_key_id", "secret_access_key", "session_token", "credential_provider", "role_arn"),
    *("web_identity_token_file", "application_credentials", "bearer_token", "service_account", "service_account_key"),
    *("account_key", "client_secret", "sas_key", "token", "federated_token_file", "authorization"),
}
"""Options that hold credentials, or lead to them."""

_STATUSES = {
    400: "a wrong region or endpoint, or a token that has expired, is the usual reason; see 'Credentials' in "
    "docs/buckets.md",
    405: "it does not let files be asked for in this way; check the address, or download the file and name the copy",
    409: "something else is being done with the object; try again later",
    416: "the object has no such bytes: it may be another one since it was opened; open it again",
}
"""What a status means, and the way out."""
_BUSY = (
    "it is busy, or fails, and was asked again until the time for that was up; go on later from loader.state_dict(), "
    "or wait longer: storage_options={'retry_config': {'retry_timeout': '3min'}}"
)


def _rights(address: str, word: str) -> str:
    """Say what a store's refusal may mean, and where its credentials come from."""
    whose, options = _whose(address), _options_of.get(word, frozenset())
    names = _CREDENTIALS.get(whose, ())
    are_set = [name for name in names if os.environ.get(name)]
    if _OBJECT in options:
        said = "the credentials of the store object in storage_options= are wrong, or without rights here"
    elif keys := sorted(options & _KEYS):
        are = "is" if len(keys) == 1 else "are"
        said = f"{' and '.join(keys)} in storage_options= {are} wrong, or without rights here"
        said = f"{are_set[0]} is set, but storage_options= count: {said}" if are_set else said
    elif not names:
        return "a token goes in storage_options={'client_options': {'default_headers': {'authorization': ...}}}"
    elif "skip_signature" in options or is_unsigned(address):
        said = f"it was asked without credentials (skip_signature); {' and '.join(names)} hold some"
    elif are_set:
        said = f"{are_set[0]} is set, but wrong or without rights here"
    else:
        said = f"{' and '.join(names)} are not set"
    said += ", or the object does not exist and you may not list" * bool(names)
    return f"{said}; see 'Credentials' in docs/buckets.md, and storage_options="


def _without_keys(error: BaseException, address: str = "", word: str = "") -> str:
    """Return what an error says, without what may be a key: queries, what stands before an @, and known ones."""
    said = re.sub(r"\?[^\s\"')<>]*", "?...", str(error))
    for secret in _secrets_of.get(word, ()):
        said = said.replace(secret, "...")
    said = re.sub(r"//[^/@\s]*@", "//...@", said)
    said = re.sub(r'failed to parse "[^"]*"', "failed to parse a value", said)
    asked_the_machine = "169.254.169.254" in said or "metadata.google" in said  # of a cloud, for its own
    if asked_the_machine or "Account must be specified" in said:
        names = " and ".join(_CREDENTIALS.get(_whose(address), ()))
        said = f"there are no credentials: set {names}" if names else "there are no credentials"
        return f"{said}; for a public bucket storage_options={{'skip_signature': True}} (--anonymous)"
    if "Range request not supported" in said or "Received non-partial response" in said:
        return "the server sends whole files alone, and no parts of them; download it, and name the copy"
    if is_of_ranges(error) and not _status_of(error):
        return f"the server does not send the bytes that it is asked for ({_first_line(said)[-90:]}); download the file"
    if (why := _in_vain(error)) is not None:
        return why
    if "redirect" in said:
        return f"{_redirected(address)} ({_first_line(said)})"
    return _first_line(said)


def _first_line(said: str) -> str:
    """Return the line of an error that is for people, and the reason that stands below it."""
    first = said.splitlines()[0][:300].rstrip(": ") if said else "no reason is given"
    request = re.match(r".*?performing (\w+) (\S+) in [^ ,]+(?:, (after \d+ retries))?.*? - ", first)
    if request is not None:
        asked = f"{request[1]} {request[2]}" + (f" ({request[3]})" if request[3] else "")
        first = first[request.end() :].removeprefix("HTTP error: ")
        if (status := _STATUS.search(said)) is not None:
            why = re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", said, re.DOTALL)
            reason = f", {why[1]}: {why[2]}"[:300] if why else ""
            return f"{asked} was answered with {status[1].strip()}{reason}"
        return f"{asked}: {_of_transport(first, said)}"
    return _of_transport(first, said)


def _of_transport(first: str, said: str) -> str:
    """Return the first line of an error of a connection, with the reason that stands below it."""
    if first.endswith("builder error"):
        how = "AWS_ALLOW_HTTP=true, or storage_options={'client_options': {'allow_http': True}}"
        return f"{first}; an endpoint without TLS takes {how}"
    if first.endswith(("error sending request", "request or response body error", "error decoding response body")):
        if (why := re.search(r'(?:error|message): "([^"]+)"', said)) is not None:
            return f"{first}: {why[1]}"
        if "TimedOut" in said:
            return (
                f"{first}: no answer in time; storage_options={{'client_options': {{'timeout': '120s'}}}} waits longer"
            )
        if "Parse(" in said:
            return f"{first}: the answer is not HTTP; check the address and its port"
    return first


_STATUS = re.compile(r"status code: (\d{3}[^:<\n]*)")


def _status_of(error: BaseException) -> int:
    """Return the status that a server answered with; 0 if it did not, or nobody says which."""
    found = _STATUS.search(str(error))
    return int(found[1][:3]) if found else 0


def is_of_ranges(error: BaseException) -> bool:
    """Return whether a server sent other bytes than those that it was asked for, or has none there."""
    said = str(error)
    return "Content-Range" in said or re.search(r"Requested \S+, got ", said) is not None or _status_of(error) == 416


def _redirected(address: str) -> str:
    """Say what a redirection means that leads nowhere, and the way out."""
    if _whose(address) == "AWS":
        return "the store redirects the request, as S3 does for a bucket of another region: set AWS_REGION to that one"
    return "the server redirects the request in a circle, or to no address; give the address that it leads to"


def _in_vain(error: BaseException, is_opening: bool = True) -> str | None:
    """Say why it is in vain to ask again after an error, with the way out; None if it may help."""
    said = str(error)
    if (why := re.search(r"InvalidCertificate\(\s*(\w+)(?:[\s(]*OtherError\(\s*(\w+))?", said)) is not None:
        return (
            f"the server's certificate is not accepted ({why[2] or why[1]}). If a CA of your own signed it: "
            "storage_options={'client_options': {'root_certificate': Path('ca.pem').read_text()}}, or "
            "SSL_CERT_FILE=ca.pem"
        )
    if (
        why := re.search(r"InvalidMessage\(\s*(\w+)|AlertReceived\(\s*(\w+)|PeerIncompatible\(\s*(\w+)", said)
    ) is not None:
        reason = next(filter(None, why.groups()))
        return f"the server does not speak TLS as it should ({reason}); if it has none, give http:// for https://"
    if is_opening and "Name or service not known" in said:
        return "error sending request: failed to lookup its host: name or service not known; check the address"
    return None


def check_encoding(address: str, attributes: Mapping[Any, Any]) -> None:
    """Refuse bytes that a server has compressed on their way: ranges of these are not those of the file."""
    encoding = str(attributes.get("Content-Encoding", ""))
    if encoding and encoding != "identity":
        raise SourceError(
            f"reading {address!r} failed: the server sends it compressed (Content-Encoding: {encoding}), so that parts "
            "of it cannot be read; switch that off for these files, or download the file and name the copy",
            file=address,
        )


def changed_error(address: str, how: str) -> SourceChangedError:
    """Return the error of an object that is not the one that was opened."""
    return SourceChangedError(
        f"{address!r} changed while it was being read: {how}. Open it again once its writer is done.", file=address
    )


@contextlib.contextmanager
def told(address: str, what: str, word: str = "") -> Iterator[None]:
    """Raise errors of the store with a word as ours, with the address and without keys."""
    library = the_library().exceptions
    try:
        yield
    except BaseException as error:
        of_stores = library.BaseError, OSError, ValueError
        if isinstance(error, SourceError) or not (isinstance(error, of_stores) or _is_panic(error)):
            raise
        raise _error_of(error, address, what, word) from None


def _error_of(error: BaseException, address: str, what: str, word: str) -> SourceError:
    """Return the error that says what a store's error means, and the way out."""
    library, status = the_library().exceptions, _status_of(error)
    if status == 410 or (status != 405 and isinstance(error, (FileNotFoundError, library.NotFoundError))):
        base, path = parts_of(address)
        bucket = base.rpartition("/")[2].partition("@")[0]
        which = f": there is no bucket {bucket!r}, or no object {path!r} in it" if _whose(address) else ""
        gone = " any more" * (status == 410)
        return SourceNotFoundError(f"there is no object {address!r}{gone}{which}", file=address)
    said = _without_keys(error, address, word)
    if isinstance(error, (library.PermissionDeniedError, library.UnauthenticatedError)):
        return SourceError(
            f"the store does not let {address!r} be read ({said}): {_rights(address, word)}", file=address
        )
    if isinstance(error, library.PreconditionError):
        return changed_error(address, "it has another ETag")
    way_out = _STATUSES.get(status, _BUSY if status in (408, 429) or status >= 500 else "")
    if "error sending request" in said and not status and _in_vain(error) is None:
        way_out = "check the address and the network; go on later from loader.state_dict()"
    return SourceError(f"{what} {address!r} failed: {said}" + f": {way_out}" * bool(way_out), file=address)


_TRIED_S = 0.5
"""How long an answer is waited for before the store is asked once without repetitions, to learn what keeps it."""
_tried: set[str] = set()
"""The words of the stores that were asked so, and of which nothing was learnt."""
_ONCE = {**_RETRIES, "max_retries": 0}


async def answered(word: str, path: str, asking: Awaitable[T], is_opening: bool = True) -> T:
    """Wait for a store's answer; if asking again is in vain, as with a certificate, raise the reason at once."""
    loop, asked = asyncio.get_running_loop(), asyncio.ensure_future(asking)
    learning: asyncio.Task[None] | None = None

    def learn() -> None:
        nonlocal learning
        learning = loop.create_task(_learn(word, path, is_opening))
        learning.add_done_callback(lambda task: task.cancelled() or task.exception() is None or asked.cancel())

    timer = None if word in _tried else loop.call_later(_TRIED_S, learn)
    try:
        return await asked
    except asyncio.CancelledError:
        if learning is not None and learning.done() and not learning.cancelled() and (error := learning.exception()):
            raise error from None
        raise
    finally:
        if timer is not None:
            timer.cancel()
        if learning is not None:
            learning.cancel()


async def _learn(word: str, path: str, is_opening: bool) -> None:
    """Ask a store once, without repetitions; raise what makes these be in vain."""
    try:
        places, options = stores[word].__getnewargs_ex__()
        once = type(stores[word])(*places, **{**options, "retry_config": _ONCE})
    except Exception:  # one that asks once anyway, or of the user's own
        _tried.add(word)
        return
    try:
        count_requests()
        await the_library().head_async(once, path)
    except Exception as error:
        if _in_vain(error, is_opening) is not None:
            raise
    _tried.add(word)


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

"""Access to object stores (S3, Google Cloud, Azure, HTTP) through `obstore`: addresses, stores, requests and errors.

Without `obstore`, an address is refused with the command that installs it. Storage options, such as credentials, stay
in this process: elsewhere a store is named by a word without a meaning. Another process can open stores that need only
its own environment.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import hashlib
import operator
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import unquote

from h5stream.base.names import SCHEMES, is_address
from h5stream.base.texts import missing_extra
from h5stream.errors import OptionError, SourceChangedError, SourceError, SourceNotFoundError

_ADDRESS = re.compile(rf"({SCHEMES})://([^/?#]*)/?(.*)", re.DOTALL)
_HUB = re.compile(r"datasets/([^/]+/[^/@]+)(?:@([^/]+))?/(.+)")

RETRIES: dict[str, Any] = {
    "max_retries": 100,  # `retry_timeout` is the limit: delays are random, so their number bounds no time
    "retry_timeout": timedelta(seconds=40),  # a request without an answer takes 30 s of it, and is repeated once
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 3},
}
_CLIENT = {
    "timeout": timedelta(seconds=30),
    "connect_timeout": timedelta(seconds=10),
    "pool_idle_timeout": timedelta(seconds=10),
}
"""Time limits of requests and idle connections; `RETRIES` says how often a request to a busy store is repeated."""

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
"""The dicts that contain obstore's options for all stores."""
_OF_STORES = {
    "AWS": "access_key_id bucket default_region endpoint imdsv1_fallback metadata_endpoint region request_payer "
    "role_arn role_session_name s3_express secret_access_key session_token skip_signature sts_endpoint "
    "unsigned_payload virtual_hosted_style_request web_identity_token_file",
    "GOOGLE": "application_credentials base_url bearer_token service_account service_account_key skip_signature",
    "AZURE": "account_key account_name authority_host client_id client_secret endpoint federated_token_file "
    "msi_endpoint sas_key skip_signature tenant_id token use_azure_cli use_emulator use_fabric_endpoint",
}
"""Options of the stores themselves that reading may need; obstore has more, and aliases."""
_FOREIGN_NAMES = {
    "anon": "skip_signature",
    "anonymous": "skip_signature",
    "no_sign_request": "skip_signature",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "use_ssl": "allow_http",
}
"""Names of options in other libraries."""


class StoreUsage(NamedTuple):
    """Requests to stores, bytes from stores, and bytes from a cache."""

    requests: int = 0
    nbytes: int = 0
    cached_nbytes: int = 0


NOTHING = StoreUsage()
_usage_lock, _usage = threading.Lock(), [NOTHING]

asked_by: contextvars.ContextVar[list[StoreUsage]] = contextvars.ContextVar("asked_by", default=[NOTHING])  # noqa: B039
"""The counter for requests of a thread, and of others on its behalf; by default one that nobody reads."""


def store_usage(before: StoreUsage = NOTHING) -> StoreUsage:
    """Return this process's usage of stores, or its usage since `before`."""
    return StoreUsage(*map(operator.sub, _usage[0], before))


def count_usage(more: StoreUsage) -> None:
    """Add to the usage of the process, and to that of the current `asked_by`."""
    with _usage_lock:
        for total in (_usage, asked_by.get()):
            total[0] = StoreUsage(*map(operator.add, total[0], more))


def count_requests(requests: int = 1, nbytes: int = 0) -> None:
    """Count requests and their total bytes."""
    count_usage(StoreUsage(requests, nbytes))


tried: set[str] = set()
"""Words of stores for which a request without retries found no reason, or is not possible."""

stores: dict[str, Any] = {}
"""Open stores by their words."""


def _variable_prefix(path: str) -> str:
    """Return the prefix of the environment variables for the store of an address; empty if it has none."""
    kinds = {"s3": "AWS", "gs": "GOOGLE", "gc": "GOOGLE", "az": "AZURE", "ab": "AZURE", "ad": "AZURE"}
    return kinds.get(path[:2], "") if is_address(path) else ""


def is_unsigned(path: str) -> bool:
    """Return whether the environment disables credentials for the store of an address (`--anonymous`)."""
    return os.environ.get(f"{_variable_prefix(path)}_SKIP_SIGNATURE", "").lower() in ("true", "1")


def parts_of(address: str) -> tuple[str, str]:
    """Return the base address of the store in an address, and the object's path in the store."""
    match = _ADDRESS.match(address)
    if match is None:
        raise ValueError(f"{address!r} is not an address")
    scheme, host, path = match.groups()
    user, at, _ = host.rpartition("@")  # Azure's container
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
    if scheme.startswith("http"):  # decoded, because obstore encodes it again
        path = unquote(path, errors="surrogateescape")
    if scheme == "hf":
        hub = _HUB.fullmatch(f"{host}/{path}")
        if hub is None:
            raise OptionError(f"{address!r}: an address at Hugging Face is hf://datasets/OWNER/NAME[@REVISION]/PATH")
        name, revision, path = hub.groups()
        return "https://huggingface.co", f"datasets/{name}/resolve/{revision or 'main'}/{path}"
    return f"{scheme}://{host}", path


_used_in: list[int] = []
"""The process in which obstore was first used: a forked child does not inherit its threads."""


def import_obstore() -> ModuleType:
    """Return the module obstore; raise if it is missing, or unusable after a fork."""
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
"""By word, the names of the options with which a store was opened."""
_secrets_of: dict[str, tuple[str, ...]] = {}
"""By word, the secrets of a store, which are removed from messages; they never leave this process."""
_environments: dict[str, str] = {}
"""By word, a digest of the environment variables with which a store was opened."""
_OF_CONNECTIONS = ("_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Endings of environment variables that concern all connections."""
_OBJECT = "a store object"
_SECRET_CHARS = 6
"""The least length of a secret: shorter words occur in messages by chance."""


def word_of(base: str, options: object) -> str:
    """Return the word of a store, opening it if needed, or again if the environment has changed."""
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
        stores[word], _environments[word] = _open_store(base, options or {}), environment
        tried.discard(word)
        pairs = [*_pairs_of(options or {})]
        _options_of[word] = frozenset(name for name, _ in pairs)
        prefix = f"{_variable_prefix(base)}_"
        variables = [(_plain(name), value) for name, value in os.environ.items() if name.startswith(prefix)]
        secrets_of = [value for name, value in [*pairs, *variables] if name in _KEYS and isinstance(value, str)]
        _secrets_of[word] = tuple(part for value in secrets_of for part in value.split() if len(part) >= _SECRET_CHARS)
    return word


def _environment(base: str) -> str:
    """Return a digest of the environment variables for a store, such as credentials."""
    prefix = f"{_variable_prefix(base) or '-'}_"
    names = [name for name in os.environ if name.startswith(prefix) or name.upper().endswith(_OF_CONNECTIONS)]
    return _digest({name: os.environ.get(name, "") for name in names})


def _pairs_of(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the plain names and values of options, nested ones included."""
    for name, value in options.items():
        yield _plain(name), value
        if isinstance(value, Mapping):
            yield from _pairs_of(value)


def _open_store(base: str, options: Mapping[str, object]) -> object:
    """Open a store with options, in addition to those of the environment."""
    checked = _checked(base, options)
    _check_endpoint(base, checked)
    client = {**_CLIENT, **checked.pop("client_options", {})}
    retries = {**RETRIES, **checked.pop("retry_config", {})}
    retries["backoff"] = {**RETRIES["backoff"], **retries["backoff"]}
    library = import_obstore()
    try:
        url = f"{base}/" if base.startswith(("http", "memory")) else base
        if base.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"):
            client["allow_http"] = True
        return library.store.from_url(url, client_options=client, retry_config=retries, **checked)
    except BaseException as error:
        if not (isinstance(error, Exception) or _is_panic(error)):
            raise
        if (unknown := re.match(r"(?:Configuration key: '|Invalid key: )(\w+)", str(error))) is not None:
            raise _unknown_option(base, unknown[1]) from None
        raise OptionError(f"storage_options= does not open {base!r}: {_without_keys(error, base)}") from None


def _is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of obstore, which is no `Exception`."""
    return type(error).__name__ in ("PanicException", "RustPanic")


def _plain(name: object) -> str:
    """Return an option's name in lower case, without the store's prefix."""
    return re.sub("^(aws|google|azure)_(storage_)?", "", str(name).lower())


def _checked(base: str, options: object, place: str = "") -> dict[str, Any]:
    """Return options with durations parsed; raise for those at which obstore would panic, or that it ignores."""
    if not isinstance(options, Mapping):
        raise OptionError(f"storage_options= takes a dict for {place!r}, not {type(options).__name__}")
    checked = dict(options)
    for name, value in options.items():
        if place in ("retry_config", "backoff") and _PLACES.get(name) != place:
            raise _unknown_option(base, name, value)
        if name in ("client_options", "retry_config", "backoff"):
            checked[name] = _checked(base, value, name)
        elif name == "config" and not place:
            checked[name] = _checked(base, value)
        elif not place and (_plain(name) in _PLACES or base.startswith(("http", "memory"))):
            raise _unknown_option(base, name, value)
        elif not place and name != "credential_provider" and not isinstance(value, (str, bool)):
            rule = f"storage_options={{{name!r}: ...}} takes text, or True or False"
            raise OptionError(f"{rule}, not {type(value).__name__}")
        elif name.endswith("timeout") or name in ("init_backoff", "max_backoff"):
            checked[name] = _duration(name, value)
    return checked


def _duration(name: str, value: object) -> timedelta:
    """Return a duration, given as timedelta, in seconds, or as text."""
    if isinstance(value, timedelta):
        return value
    text, seconds, at = str(value), 0.0, 0
    while not isinstance(value, bool) and (match := _DURATION.match(text, at)):
        unit = (match[2] or "s").lower()
        seconds += float(match[1]) * _DURATION_UNITS[unit[: 2 if unit[1:2] == "s" else 1]]
        at = match.end()
    if not at or at < len(text):
        rule = f"{name!r} takes a duration: seconds, text such as '120s' or '2min', or a timedelta"
        raise OptionError(f"{rule}; not {value!r}")
    return timedelta(seconds=seconds)


def _unknown_option(base: str, name: str, value: object = None) -> OptionError:
    """Return the error for an unknown option, with the similar one and the dict that contains it."""
    own, plain = _OF_STORES.get(_variable_prefix(base), ""), _plain(name)
    places, meant = dict.fromkeys(own.split(), "") | _PLACES, _FOREIGN_NAMES.get(plain, plain)
    problem = f"storage_options= for {base!r} has no {name!r} there"
    if "profile" in plain:
        way_out = 'eval "$(aws configure export-credentials --profile NAME --format env)" sets what is read instead'
        return OptionError(f"{problem}: profiles are not read; {way_out}")
    if not (near := difflib.get_close_matches(meant, places, n=1, cutoff=0.7)):
        return OptionError(f"{problem}: it has {', '.join([*own.split(), 'client_options', 'retry_config'])}")
    written, place = f"{{{near[0]!r}: {value if isinstance(value, bool) else '...'}}}", places[near[0]]
    belongs = f"{near[0]} belongs in {place}" if place else "write"
    while place:
        written, place = f"{{{place!r}: {written}}}", _PLACES.get(place, "")
    return OptionError(f"{problem}; {belongs}: storage_options={written}")


def _check_endpoint(base: str, options: Mapping[str, Any]) -> None:
    """Raise for an endpoint of S3 at which obstore would abort the process."""
    every = {**os.environ, **options.get("config", {}), **options} if base.startswith("s3") else {}
    for name, value in every.items():
        if re.fullmatch("(aws_)?endpoint(_url|_url_s3)?", name.lower()) and value and "://" not in str(value):
            raise OptionError(
                f"{name}={value!r} is no address: write https://{value}, or http://{value} with AWS_ALLOW_HTTP=true"
            )


_KEY = secrets.token_bytes(16)


def _digest(options: Mapping[str, object]) -> str:
    """Return a digest of options that does not reveal them: its key is random for each process."""
    return hashlib.blake2b(repr(sorted(options.items(), key=str)).encode(), key=_KEY, digest_size=8).hexdigest()


_CREDENTIALS = {
    "AWS": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "GOOGLE": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "AZURE": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
"""The environment variables of credentials."""


_KEYS = {
    *("access_key_id", "secret_access_key", "session_token", "credential_provider", "role_arn"),
    *("web_identity_token_file", "application_credentials", "bearer_token", "service_account", "service_account_key"),
    *("account_key", "client_secret", "sas_key", "token", "federated_token_file", "authorization"),
}
"""Options that contain credentials, or refer to them."""

_STATUSES = {
    400: "a wrong region or endpoint, or a token that has expired, is the usual reason; see 'Credentials' in "
    "docs/buckets.md",
    405: "it does not let files be asked for in this way; check the address, or download the file and name the copy",
    409: "something else is being done with the object; try again later",
    416: "the object has no such bytes: it may be another one since it was opened; open it again",
}
"""The meaning of an HTTP status, with the way out."""
_BUSY = (
    "it is busy, or fails, and was asked again until the time for that was up; go on later from loader.state_dict(), "
    "or wait longer: storage_options={'retry_config': {'retry_timeout': '3min'}}"
)


def _permission_advice(address: str, word: str) -> str:
    """Return advice on a permission error, with the source of the credentials."""
    provider, options = _variable_prefix(address), _options_of.get(word, frozenset())
    names = _CREDENTIALS.get(provider, ())
    are_set = [name for name in names if os.environ.get(name)]
    if _OBJECT in options:
        advice = "the credentials of the store object in storage_options= are wrong, or without rights here"
    elif keys := sorted(options & _KEYS):
        are = "is" if len(keys) == 1 else "are"
        advice = f"{' and '.join(keys)} in storage_options= {are} wrong, or without rights here"
        advice = f"{are_set[0]} is set, but storage_options= count: {advice}" if are_set else advice
    elif not names:
        return "a token goes in storage_options={'client_options': {'default_headers': {'authorization': ...}}}"
    elif "skip_signature" in options or is_unsigned(address):
        advice = f"it was asked without credentials (skip_signature); {' and '.join(names)} hold some"
    elif are_set:
        advice = f"{are_set[0]} is set, but wrong or without rights here"
    else:
        advice = f"{' and '.join(names)} are not set"
    advice += ", or the object does not exist and you may not list" * bool(names)
    return f"{advice}; see 'Credentials' in docs/buckets.md, and storage_options="


def _without_keys(error: BaseException, address: str = "", word: str = "") -> str:
    """Return the message of an error without queries, user names in addresses, and known secrets."""
    message = re.sub(r"\?[^\s\"')<>]*", "?...", str(error))
    for secret in _secrets_of.get(word, ()):
        message = message.replace(secret, "...")
    message = re.sub(r"//[^/@\s]*@", "//...@", message)
    message = re.sub(r'failed to parse "[^"]*"', "failed to parse a value", message)
    asked_the_machine = "169.254.169.254" in message or "metadata.google" in message  # of a cloud, for its own
    if asked_the_machine or "Account must be specified" in message:
        names = " and ".join(_CREDENTIALS.get(_variable_prefix(address), ()))
        message = f"there are no credentials: set {names}" if names else "there are no credentials"
        return f"{message}; for a public bucket storage_options={{'skip_signature': True}} (--anonymous)"
    if "Range request not supported" in message or "Received non-partial response" in message:
        return "the server sends whole files alone, and no parts of them; download it, and name the copy"
    if is_of_ranges(error) and not _status_of(error):
        line = _first_line(message)[-90:]
        return f"the server does not send the bytes that it is asked for ({line}); download the file"
    if (why := permanent_reason(error)) is not None:
        return why
    if "redirect" in message:
        return f"{_redirected(address)} ({_first_line(message)})"
    return _first_line(message)


def _first_line(message: str) -> str:
    """Return the readable line of an error message, with the reason below it."""
    first = message.splitlines()[0][:300].rstrip(": ") if message else "no reason is given"
    request = re.match(r".*?performing (\w+) (\S+) in [^ ,]+(?:, (after \d+ retries))?.*? - ", first)
    if request is not None:
        action = f"{request[1]} {request[2]}" + (f" ({request[3]})" if request[3] else "")
        first = first[request.end() :].removeprefix("HTTP error: ")
        if (status := _STATUS.search(message)) is not None:
            why = re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", message, re.DOTALL)
            reason = f", {why[1]}: {why[2]}"[:300] if why else ""
            return f"{action} was answered with {status[1].strip()}{reason}"
        return f"{action}: {_transport_message(first, message)}"
    return _transport_message(first, message)


def _transport_message(first: str, message: str) -> str:
    """Return the first line of a connection error, with the reason below it."""
    if first.endswith("builder error"):
        how = "AWS_ALLOW_HTTP=true, or storage_options={'client_options': {'allow_http': True}}"
        return f"{first}; an endpoint without TLS takes {how}"
    if first.endswith(("error sending request", "request or response body error", "error decoding response body")):
        if (why := re.search(r'(?:error|message): "([^"]+)"', message)) is not None:
            return f"{first}: {why[1]}"
        if "TimedOut" in message:
            return (
                f"{first}: no answer in time; storage_options={{'client_options': {{'timeout': '120s'}}}} waits longer"
            )
        if "Parse(" in message:
            return f"{first}: the answer is not HTTP; check the address and its port"
    return first


_STATUS = re.compile(r"status code: (\d{3}[^:<\n]*)")


def _status_of(error: BaseException) -> int:
    """Return the HTTP status in an error; 0 if it has none."""
    match = _STATUS.search(str(error))
    return int(match[1][:3]) if match else 0


def is_of_ranges(error: BaseException) -> bool:
    """Return whether a server sent other bytes than requested, or has none at that offset."""
    message = str(error)
    is_other_range = "Content-Range" in message or re.search(r"Requested \S+, got ", message) is not None
    return is_other_range or _status_of(error) == 416


def _redirected(address: str) -> str:
    """Return the meaning of a failed redirection, with the way out."""
    if _variable_prefix(address) == "AWS":
        return "the store redirects the request, as S3 does for a bucket of another region: set AWS_REGION to that one"
    return "the server redirects the request in a circle, or to no address; give the address that it leads to"


def permanent_reason(error: BaseException, is_opening: bool = True) -> str | None:
    """Return why repeating a request cannot help, with the way out; None if it may help."""
    message = str(error)
    if (why := re.search(r"InvalidCertificate\(\s*(\w+)(?:[\s(]*OtherError\(\s*(\w+))?", message)) is not None:
        return (
            f"the server's certificate is not accepted ({why[2] or why[1]}). If a CA of your own signed it: "
            "storage_options={'client_options': {'root_certificate': Path('ca.pem').read_text()}}, or "
            "SSL_CERT_FILE=ca.pem"
        )
    if (
        why := re.search(r"InvalidMessage\(\s*(\w+)|AlertReceived\(\s*(\w+)|PeerIncompatible\(\s*(\w+)", message)
    ) is not None:
        reason = next(filter(None, why.groups()))
        return f"the server does not speak TLS as it should ({reason}); if it has none, give http:// for https://"
    if is_opening and "Name or service not known" in message:
        return "error sending request: failed to lookup its host: name or service not known; check the address"
    return None


def check_encoding(address: str, attributes: Mapping[str, object]) -> None:
    """Raise if a server compresses responses: their ranges are not those of the file."""
    encoding = str(attributes.get("Content-Encoding", ""))
    if encoding and encoding != "identity":
        raise SourceError(
            f"reading {address!r} failed: the server sends it compressed (Content-Encoding: {encoding}), so that parts "
            "of it cannot be read; switch that off for these files, or download the file and name the copy",
            file=address,
        )


def changed_error(address: str, how: str) -> SourceChangedError:
    """Return the error for an object that changed since it was opened."""
    return SourceChangedError(
        f"{address!r} changed while it was being read: {how}. Open it again once its writer is done.", file=address
    )


@contextlib.contextmanager
def store_errors(address: str, what: str, word: str = "") -> Iterator[None]:
    """Translate errors of the store into `SourceError`, with the address and without secrets."""
    library = import_obstore().exceptions
    try:
        yield
    except BaseException as error:
        of_stores = library.BaseError, OSError, ValueError
        if isinstance(error, SourceError) or not (isinstance(error, of_stores) or _is_panic(error)):
            raise
        raise _error_of(error, address, what, word) from None


def _error_of(error: BaseException, address: str, what: str, word: str) -> SourceError:
    """Return the `SourceError` for an error of a store."""
    library, status = import_obstore().exceptions, _status_of(error)
    if status == 410 or (status != 405 and isinstance(error, (FileNotFoundError, library.NotFoundError))):
        base, path = parts_of(address)
        bucket = base.rpartition("/")[2].partition("@")[0]
        which = f": there is no bucket {bucket!r}, or no object {path!r} in it" if _variable_prefix(address) else ""
        gone = " any more" * (status == 410)
        return SourceNotFoundError(f"there is no object {address!r}{gone}{which}", file=address)
    message = _without_keys(error, address, word)
    if isinstance(error, (library.PermissionDeniedError, library.UnauthenticatedError)):
        return SourceError(
            f"the store does not let {address!r} be read ({message}): {_permission_advice(address, word)}", file=address
        )
    if isinstance(error, library.PreconditionError):
        return changed_error(address, "it has another ETag")
    way_out = _STATUSES.get(status, _BUSY if status in (408, 429) or status >= 500 else "")
    if "error sending request" in message and not status and permanent_reason(error) is None:
        way_out = "check the address and the network; go on later from loader.state_dict()"
    return SourceError(f"{what} {address!r} failed: {message}" + f": {way_out}" * bool(way_out), file=address)

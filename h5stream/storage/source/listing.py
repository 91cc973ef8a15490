"""Objects of a store whose addresses match a pattern."""

from __future__ import annotations

import contextlib
import fnmatch
import re

from h5stream.base.names import as_pattern, tokens_of, unquoted
from h5stream.errors import OptionError, SourceError, SourceNotFoundError
from h5stream.storage.source.event_loop import answered, requests
from h5stream.storage.source.remote import opening
from h5stream.storage.source.stores import count_requests, import_obstore, parts_of, store_errors, stores


def matches(pattern: str) -> list[str]:
    """Return the sorted addresses that match a pattern, or only the object whose name is the pattern itself."""
    base, path = parts_of(pattern)
    word = opening().word_of(base)
    store = stores[word]
    if "*" not in tokens_of(path, r"\*"):  # a request for the object avoids listing a large bucket
        plain = unquoted(path)
        for key, address in [(path, pattern)] + [(plain, f"{base}/{plain}")] * (plain != path):
            with contextlib.suppress(SourceNotFoundError), store_errors(address, "asking for", word):
                requests().run([answered(word, key, _check_exists(store, key))])
                return [address]
    if base.startswith("http"):
        raise OptionError(f"{pattern!r}: a web server has no list of its files; name them: ['https://.../a.h5', ...]")
    # If the folders before the first star exist literally, nothing else has to be listed.
    folders = (re.split(marks, path, maxsplit=1)[0].rpartition("/")[0] for marks in ("[*]", r"[*?\[\\]"))
    for folder in dict.fromkeys(folders):
        every: dict[tuple[bool, ...], list[str]] = {}
        with store_errors(pattern, "listing", word):
            keys = requests().run([answered(word, folder, _keys_below(store, folder, path.split("/")))])[0]
        for one in keys:
            if (fit := _fit(one.split("/"), path.split("/"))) is not None:
                every.setdefault(fit, []).append(f"{base}/{one}")
        if every:
            return sorted(every[max(every)])
    return []


async def _check_exists(store: object, key: str) -> None:
    """Request the metadata of an object; raises if it is missing."""
    count_requests()
    await import_obstore().head_async(store, key)


async def _keys_below(store: object, folder: str, patterns: list[str]) -> list[str]:
    """List the keys below a folder; folder by folder if obstore refuses a key (``a//b``)."""
    library = import_obstore()
    try:
        count_requests()
        return [one["path"] async for page in library.list(store, prefix=folder or None) for one in page]
    except library.exceptions.InvalidPathError:
        names, folders = list[str](), [folder]
    while folders:  # only folders in which the pattern may match
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
    """Return which names of a path equal the pattern's literally; None if the path does not match.

    Patterns match as in `glob`: ``*`` stays within a folder, and ``**`` does not.
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

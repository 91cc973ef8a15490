"""What the manifest of a folder of staged files says, as values; no file is touched here.

The manifest is JSON (``.h5stream/manifest.json`` in the folder); its names are relative to the folder::

    {"format": "h5stream-staging", "version": 2,
     "files": {"a.h5": {"source": "/data/a.h5", "size_bytes": 10, "mtime_ns": 1, "state": "whole",
                        "checksum": {"algorithm": "xxh3_128", "block_bytes": 16777216, "digest": "..."},
                        "copy_inode": 5, "copy_mtime_ns": 1, "owner": "4711-0a1b2c3d4e5f", "staged_at": 1700000000.0,
                        "keep": true, "users": [...], "recipe": "", "copy_bytes": -1}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import Any

from h5stream.errors import ManifestError

CONTROL = ".h5stream"
"""Folder inside the staging folder that holds the manifest, its lock and unfinished copies."""

FORMAT, VERSION = "h5stream-staging", 2
BLOCK_BYTES = 16 << 20  # a file of 1 TB has 60,000 digests, and one of 100 MB still keeps every thread busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """A file's checksum: the hash of the digests of its blocks, so that threads can share the work.

    It finds accidents, not attacks: the algorithm is not cryptographic.
    """

    digest: str  # in hexadecimal
    algorithm: str = "xxh3_128"  # of the blocks, and of their digests in file order
    block_bytes: int = BLOCK_BYTES  # the last block of a file is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One staged file, or one that is being copied."""

    source: str  # absolute path, symbolic links resolved
    size_bytes: int  # of the source when it was copied
    mtime_ns: int  # of the source when it was copied; the copy is given the same
    owner: str  # the session that made, or makes, the copy
    keep: bool  # False where the last `staged` block that uses the copy deletes it
    checksum: Checksum | None = None  # of the copy; None while it is being made
    copy_inode: int = 0  # tells a file that was put in the copy's place apart
    copy_mtime_ns: int = 0  # as the copy's file system keeps it
    staged_at: float = 0.0  # in seconds since 1970
    users: tuple[str, ...] = ()  # sessions; one whose lock is not held any more does not count
    recipe: str = ""  # how it was repacked (`Recipe.to_text`); empty for a copy of the source's own bytes
    copy_bytes: int = -1  # size of a repacked copy, an estimate while it is being made; -1 where it is the source's

    @property
    def whole(self) -> bool:
        """Whether the copy is finished and verified."""
        return self.checksum is not None

    @property
    def bytes_of_copy(self) -> int:
        """Size of the copy in bytes."""
        return self.size_bytes if self.copy_bytes < 0 else self.copy_bytes


Files = dict[str, Entry]
_FIELDS = tuple(field.name for field in fields(Entry))


def to_json(files: Mapping[str, Entry]) -> str:
    """Return the manifest's text, a line for each file."""
    # json's own `indent` is ten times as slow, and a manifest is written with every batch of finished copies.
    listing = ",\n".join(f"{json.dumps(name)}: {json.dumps(_listed(entry))}" for name, entry in sorted(files.items()))
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "files": {{\n{listing}\n}}}}\n'


def _listed(entry: Entry) -> dict[str, Any]:
    flat = {name: getattr(entry, name) for name in _FIELDS}
    checksum = asdict(entry.checksum) if entry.checksum else None
    return {**flat, "state": "whole" if entry.whole else "copying", "checksum": checksum}


def from_json(text: str, *, where: str) -> Files:
    """Return the files that the manifest of the folder `where` lists; refuse what is none, or leads out of it."""
    away = f"Move {where}/{CONTROL} away and stage again; the files beside it are then left as they are"
    manifest = f"{where}/{CONTROL}/manifest.json"
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}")
        if (version := int(document["version"])) != VERSION:
            raise ManifestError(
                f"{manifest} has version {version}, this h5stream knows {VERSION}: use the h5stream that wrote it, "
                "or another folder",
                folder=where,
            )
        files = {name: _entry(listed) for name, listed in document["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ManifestError(
            f"{manifest} is not a manifest of staged files ({type(error).__name__}: {error}). {away}", folder=where
        ) from error
    for name in files:
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts or path.parts[0] == CONTROL or str(path) != name:
            # What is deleted by this list must not be led elsewhere by a damaged or forged one.
            raise ManifestError(
                f"{manifest} names {name!r}, but a name must be a relative path that stays inside the folder and "
                f"outside {CONTROL}/. {away}",
                folder=where,
            )
    return files


def _entry(listed: Mapping[str, Any]) -> Entry:
    values = {key: value for key, value in listed.items() if key != "state"}
    for session in (values["owner"], *values["users"]):  # it becomes part of paths
        if not re.fullmatch("[0-9]+-[0-9a-f]{12}", session):
            raise ValueError(f"session {session!r}")
    checksum = None if values["checksum"] is None else Checksum(**values["checksum"])
    return Entry(**{**values, "checksum": checksum, "users": tuple(values["users"])})

"""What the manifest of a folder of staged files says, as values; no file is touched here.

The manifest is JSON (``.h5stream/manifest.json`` in the folder)::

    {"format": "h5stream-staging", "version": 2,
     "files": {"a.h5": {"source": "/data/a.h5", "size_bytes": 10, "mtime_ns": 1, "state": "whole",
                        "checksum": {"algorithm": "xxh3_128", "block_bytes": 16777216, "digest": "..."},
                        "copy_inode": 5, "copy_mtime_ns": 1, "owner": "4711-0a1b2c3d4e5f", "staged_at": 1700000000.0,
                        "keep": true, "users": [...], "recipe": "", "copy_bytes": -1}}}

Names are relative to the folder, with ``/`` between folders, and never leave it: whoever deletes by this list
must not be led elsewhere by a damaged or forged one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import Any

from h5stream.errors import ManifestError
from h5stream.staging.checksum import Checksum

FORMAT = "h5stream-staging"
VERSION = 2
CONTROL = ".h5stream"
"""Folder inside the staging folder that holds the manifest, its lock and unfinished copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One staged file, or one that is being copied."""

    source: str
    """Absolute path of the source, symbolic links resolved."""
    size_bytes: int
    """Size of the source when it was copied, in bytes."""
    mtime_ns: int
    """Modification time of the source when it was copied, in nanoseconds; the copy is given the same."""
    owner: str
    """The session that made, or makes, the copy."""
    keep: bool
    """False where the last `staged` block that uses the copy deletes it."""
    checksum: Checksum | None = None
    """Checksum of the bytes; None while it is being copied."""
    copy_inode: int = 0
    """Inode of the copy, by which a file that was put in its place is told apart; 0 while unknown."""
    copy_mtime_ns: int = 0
    """Modification time of the copy in nanoseconds, as its file system keeps it."""
    staged_at: float = 0.0
    """When the copy was finished, in seconds since 1970."""
    users: tuple[str, ...] = ()
    """The sessions that use the copy; one whose lock is not held any more does not count."""
    recipe: str = ""
    """How it was repacked (`Recipe.to_text`); empty for a copy of the source's own bytes."""
    copy_bytes: int = -1
    """Size of a repacked copy in bytes, an estimate while it is being made; -1 where it is the source's."""

    @property
    def whole(self) -> bool:
        """Whether the copy is finished and verified."""
        return self.checksum is not None

    @property
    def bytes_of_copy(self) -> int:
        """Size of the copy in bytes."""
        return self.size_bytes if self.copy_bytes < 0 else self.copy_bytes


Files = Mapping[str, Entry]
_FIELDS = tuple(field.name for field in fields(Entry))


def check_name(name: str, *, where: str) -> str:
    """Return the name back if it stays inside the folder; else raise `ManifestError`.

    Examples
    --------
    >>> check_name("run1/a.h5", where="/dev/shm/x")
    'run1/a.h5'
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or path.parts[0] == CONTROL or str(path) != name:
        raise ManifestError(
            f"the manifest of {where} names {name!r}, but a name must be a relative path that stays inside "
            f"the folder and outside {CONTROL}/. The manifest is damaged: move {where}/{CONTROL} away and "
            "stage again",
            folder=where,
        )
    return name


def to_json(files: Files) -> str:
    """Return the manifest's text, a line for each file."""
    # json's own `indent` is ten times as slow, and a manifest is written with every batch of finished copies.
    lines = [f"{json.dumps(name)}: {json.dumps(_entry_to_json(entry))}" for name, entry in sorted(files.items())]
    listing = ",\n".join(lines)
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "files": {{\n{listing}\n}}}}\n'


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    flat = {name: getattr(entry, name) for name in _FIELDS}
    return {
        **flat,
        "state": "whole" if entry.whole else "copying",
        "checksum": asdict(entry.checksum) if entry.checksum else None,
    }


def from_json(text: str, *, where: str) -> dict[str, Entry]:
    """Return the files that a manifest lists, checked; `where` names the folder in messages.

    `ManifestError` is raised for what is no manifest, is of another version, or names something outside its folder.
    """
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}")
        version = int(document["version"])
        if version == VERSION:
            return {
                check_name(name, where=where): _entry_from_json(listed) for name, listed in document["files"].items()
            }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ManifestError(
            f"{where}/{CONTROL}/manifest.json is not a manifest of staged files ({type(error).__name__}: "
            f"{error}). Move {where}/{CONTROL} away and stage again; the files beside it are then left as "
            "they are",
            folder=where,
        ) from error
    raise ManifestError(
        f"{where}/{CONTROL}/manifest.json has version {version}, this h5stream knows {VERSION}: "
        f"use the h5stream that wrote it, or another folder",
        folder=where,
    )


def _check_session(name: str) -> str:
    """Return the name of a session back; as it becomes part of paths, it must be one that was made here."""
    if not re.fullmatch("[0-9]+-[0-9a-f]{12}", name):
        raise ValueError(f"session {name!r}")
    return name


def _entry_from_json(listed: Mapping[str, Any]) -> Entry:
    values = {key: value for key, value in listed.items() if key != "state"}
    checksum = values.pop("checksum")
    return Entry(
        **{
            **values,
            "checksum": None if checksum is None else Checksum(**checksum),
            "owner": _check_session(values["owner"]),
            "users": tuple(map(_check_session, values["users"])),
        }
    )

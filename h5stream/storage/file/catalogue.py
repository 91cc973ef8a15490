"""Catalogues: addresses and shapes of a file's many objects, saved in the user's cache folder for the next opening.

A catalogue is an archive of arrays for one file and request. It is discarded and created again if the file has
changed, if a checksum of the archive is wrong, or if libhdf5, which examines some of the objects every time, disagrees.
The environment variable ``H5STREAM_CATALOGUE=0`` disables catalogues.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from h5stream.base.names import Names, is_address
from h5stream.storage.decode.small_floats import name_of
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.local import FilesIdentity, identity_of
from h5stream.storage.source.remote import ObjectIdentity

SWITCH = "H5STREAM_CATALOGUE"
"""The environment variable that disables catalogues if it is 0."""
MOST_NBYTES = 2 << 30
"""The most bytes of the folder; the least recently used catalogues are deleted first."""

_VERSION = 9
"""The format's version: 2 has objects in h5py's order, 3 one table of addresses, 4 the number of omitted objects.

In 8 a name in the file takes precedence over a pattern."""
_HEADER = "header.json"
_SETTLED_NS = 2_000_000_000
"""A file that changed more recently may change again within one tick of its file system's clock."""
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile, NotImplementedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A catalogue in the folder."""

    path: str  # of its archive
    of: str  # of, fields: the pattern of the objects, and their fields
    fields: str
    objects: int  # number of objects
    asked: int  # objects that libhdf5 opened, because their headers were not understood
    nbytes: int  # bytes of the archive
    made: float  # creation time in seconds since 1970
    is_current: bool  # whether the file has not changed since


class Catalogue:
    """Named arrays about the objects of one file: loaded from the folder, or empty and to be filled."""

    def __init__(
        self, identity: SourceIdentity | None = None, of: str = "", fields: str = "", missing: str = ""
    ) -> None:
        self.arrays: dict[str, np.ndarray] = {}  # of one axis each
        self.is_kept = False  # whether they were loaded from the folder
        self._path: Path | None = None
        self._about: dict[str, object] = {}
        self._changed_ns = 0
        folder = catalogue_folder()
        if folder is None or identity is None or not identity.is_watched:
            return
        self._about = {"version": _VERSION, "of": of, "fields": fields, "missing": missing, **_about(identity)}
        self._changed_ns = getattr(identity.at(0)[0], "mtime_ns", 0)
        if isinstance(identity, FilesIdentity):
            self._about["files"], self._changed_ns = identity.digest, int(identity.mtimes.max())
        far = identity.far.values() if isinstance(identity, FilesIdentity) else [identity]
        dates = (one.changed_ns for one in far if isinstance(one, ObjectIdentity))
        self._changed_ns = max(self._changed_ns, *dates, 0)
        request = _digest(json.dumps([of, fields, missing]))
        self._path = folder / f"{_digest(real_path(identity.path))}-{request}.zip"
        with contextlib.suppress(*_DAMAGE):
            arrays, about = _read(self._path)
            if {key: about.get(key) for key in self._about} == self._about:
                self.arrays, self.is_kept = arrays, True
                os.utime(self._path)

    def forget(self) -> None:
        """Delete the saved catalogue, and clear the arrays."""
        self.arrays, self.is_kept = {}, False
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def names(self, key: str = "names") -> Names:
        """Return saved texts, such as the names of the objects."""
        text, edges = self.arrays[f"{key} text"], self.arrays[f"{key} edges"]
        if len(edges) < 2 or edges[0] != 0 or edges[-1] != len(text) or (np.diff(edges) < 0).any():
            raise ValueError(key)
        return Names(text, edges)

    def put(self, key: str, values: Any) -> None:
        """Add an array, or a list of str, bytes or arrays; with a list of anything else, nothing will be saved."""
        if isinstance(values, np.ndarray):
            self.arrays[key] = values.reshape(-1)
            return
        are_arrays = {*map(type, values)} == {np.ndarray} and not any(name_of(one.dtype) for one in values)
        if are_arrays and len({(one.dtype, one.ndim) for one in values}) == 1:
            self.arrays[f"{key} items"] = np.concatenate([one.reshape(-1) for one in values])
            self.arrays[f"{key} shapes"] = np.array([one.shape for one in values], dtype=np.int64).reshape(-1)
            return
        kinds = {str} if isinstance(values, Names) else {*map(type, values)}
        if kinds <= {str} or kinds == {bytes}:
            texts = (one.decode("utf-8", "surrogateescape") for one in values) if kinds == {bytes} else values
            names = values if isinstance(values, Names) else Names.of(texts)
            self.arrays |= {f"{key} text": names.text, f"{key} edges": names.edges}
            self.arrays[f"{key} is bytes"] = np.array([kinds == {bytes}])
        else:
            self._path = None

    def values(self, key: str, count: int, shape: tuple[int, ...]) -> Any:
        """Return `count` added values, an array of their `shape` or a list; raise ValueError if they do not fit."""
        if f"{key} items" in self.arrays:
            shapes = self.arrays[f"{key} shapes"].reshape(count, -1)
            edges = np.append(0, np.cumsum(shapes.prod(axis=1)))
            if (shapes < 0).any() or edges[-1] != len(self.arrays[f"{key} items"]):
                raise ValueError(key)
            cuts = zip(np.split(self.arrays[f"{key} items"], edges[1:-1]), shapes.tolist(), strict=True)
            return [items.copy().reshape(shape) for items, shape in cuts]
        are_texts = f"{key} text" in self.arrays
        values: Any = [*self.names(key)] if are_texts else self.arrays[key].copy().reshape(count, *shape)
        if are_texts and self.arrays[f"{key} is bytes"][0]:
            values = [name.encode("utf-8", "surrogateescape") for name in values]
        if len(values) != count:
            raise ValueError(key)
        return values

    def save(self, objects: int, opened_objects: int) -> None:
        """Save the arrays, if the folder is writable and the file did not change just now; otherwise do nothing."""
        if self._path is None or time.time_ns() - self._changed_ns < _SETTLED_NS:
            return
        nbytes = sum(array.nbytes for array in self.arrays.values())
        if nbytes > MOST_NBYTES // 2:
            return
        about = {**self._about, "objects": objects, "asked": opened_objects, "made": time.time()}
        about["arrays"] = {key: array.dtype.str for key, array in self.arrays.items()}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _make_room(self._path.parent, nbytes)
            descriptor, new = tempfile.mkstemp(suffix=".new", dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w") as archive:
                    archive.writestr(_HEADER, json.dumps(about))
                    for key, array in self.arrays.items():
                        with archive.open(key, "w", force_zip64=True) as entry:
                            entry.write(np.ascontiguousarray(array).view(np.uint8).data)
                os.replace(new, self._path)
            except BaseException:
                Path(new).unlink(missing_ok=True)
                raise


def catalogue_folder() -> Path | None:
    """Return the folder of catalogues; None if they are disabled, or there is no home folder."""
    if os.environ.get(SWITCH, "1").lower() in ("0", "off", "no", "false"):
        return None
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return home / "h5stream" / "catalogue"


def kept_of(path: str) -> list[CatalogueEntry]:
    """Return the saved catalogues of a file, without damaged ones."""
    now, entries = _about(identity_of(path)), list[CatalogueEntry]()
    for one in _archives_of(path):
        with contextlib.suppress(*_DAMAGE):
            with zipfile.ZipFile(one) as archive:
                about = json.loads(archive.read(_HEADER))
            is_current = about["version"] == _VERSION and {key: about.get(key) for key in now} == now
            entries.append(
                CatalogueEntry(
                    path=str(one),
                    of=str(about["of"]),
                    fields=str(about["fields"]),
                    objects=int(about["objects"]),
                    asked=int(about["asked"]),
                    nbytes=one.stat().st_size,
                    made=float(about["made"]),
                    is_current=is_current,
                )
            )
    return entries


def forget(path: str) -> int:
    """Delete the saved catalogues of a file, including damaged ones; return how many there were."""
    dropped = 0
    for one in _archives_of(path):
        with contextlib.suppress(OSError):
            one.unlink()
            dropped += 1
    return dropped


def _archives_of(path: str) -> list[Path]:
    folder = catalogue_folder()
    return [] if folder is None else sorted(folder.glob(f"{_digest(real_path(path))}-*.zip"))


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Read an archive, without allocating more than its size."""
    arrays, size = dict[str, np.ndarray](), path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size > size for entry in archive.infolist()):
            raise zipfile.BadZipFile(path)
        about = json.loads(archive.read(_HEADER))
        for key, dtype in about["arrays"].items():
            arrays[key] = np.frombuffer(archive.read(key), np.dtype(dtype))
    return arrays, about


def _make_room(folder: Path, nbytes: int) -> None:
    """Delete the least recently used catalogues until `nbytes` fit, and unfinished files older than an hour."""
    files = sorted((one.stat().st_mtime, one.stat().st_size, one) for one in folder.iterdir() if one.is_file())
    total = sum(size for _, size, _ in files) + nbytes
    for used, size, one in files:
        if total > MOST_NBYTES or (one.suffix == ".new" and used < time.time() - 3600):
            one.unlink(missing_ok=True)
            total -= size


def real_path(path: str) -> str:
    """Return a path without symbolic links; an address is returned unchanged."""
    return path if is_address(path) else os.path.realpath(path)


def _about(identity: SourceIdentity) -> dict[str, object]:
    """Return the facts that identify the version of a file, or of the first of several."""
    first = identity.at(0)[0]
    return {name: getattr(first, name) for name in ("size", "mtime_ns", "inode", "etag") if hasattr(first, name)}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]

"""What a user names as a source: paths, patterns, and open h5py objects, which stand for their names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import h5py
from h5py import h5f, h5fd

from h5stream.errors import OptionError, SourceNotFoundError
from h5stream.storage.nearest import did_you_mean
from h5stream.storage.remote import matches
from h5stream.storage.stores import is_address, parts_of

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SCHEMES = ("s3", "gs", "az", "https", "hf")

_WRITE_THEM = (
    "h5stream reads files. For arrays in memory take torch.utils.data.DataLoader over a TensorDataset, or write them "
    "to a file first: with h5py.File('data.h5', 'w') as f: f['x'] = array"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What an open h5py object stands for."""

    path: str  # the file that it is in
    name: str  # its path in that file, without the leading slash; empty for the file itself
    is_dataset: bool  # whether it is a dataset, and not a group


def named_by(thing: Any) -> Named | None:
    """Return what an open h5py file, group or dataset stands for; None for anything else."""
    if not isinstance(thing, (h5py.Group, h5py.Dataset)):
        return None
    if not thing:
        raise OptionError(f"{thing!r} is closed, so that it no longer says which file it is of; give the file's path")
    path = _path_of(thing.file)
    access = thing.file.id.get_access_plist()
    in_memory = access.get_driver() == h5fd.CORE and bool(thing.file.id.get_intent() & h5f.ACC_RDWR)
    if not os.path.isfile(path) or (in_memory and not access.get_fapl_core()[1]):  # what is written never leaves it
        raise OptionError(f"{thing!r} is not of a file on disk, and h5stream reads the file itself; give a path")
    if thing.name is None or thing.name not in thing.file:
        raise OptionError(f"{thing!r} has no name in {path!r}, so that it cannot be found there; give it one")
    return Named(path=path, name=thing.name.strip("/"), is_dataset=isinstance(thing, h5py.Dataset))


def _path_of(file: Any) -> str:
    """Return a file's path as it was opened, or where it is now if the working directory has changed since."""
    path = os.fsdecode(file.filename)
    if file.id.get_access_plist().get_driver() == h5fd.SEC2:
        descriptor = file.id.get_vfd_handle()
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return os.path.realpath(f"/proc/self/fd/{descriptor}")
    return path


def paths_of(given: Any, known: Named | None) -> list[str]:
    """Return the paths that one source stands for; those of a pattern sorted by name."""
    if known is not None:
        return [known.path]
    path = checked_path(given)
    if is_address(path):
        found = matches(path) if glob.has_magic(path) else [path]
        if not found:
            raise SourceNotFoundError(f"no object matches {path!r}", file=path)
        return found
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise SourceNotFoundError(f"no file matches {path!r}", file=path)
    return found


def checked_path(given: Any) -> str:
    """Return a path as text, a leading ``~`` expanded; refuse what is none and say what to do instead."""
    if isinstance(given, str | bytes | os.PathLike):
        path = os.fsdecode(given)
        if is_address(path):
            return _checked_address(path)
        address = _ADDRESS.match(path)
        if address and not os.path.exists(path):
            others = f"s3://, gs://, az://, https:// and hf:// are.{did_you_mean(address[1], _SCHEMES)}"
            raise OptionError(
                f"{path!r} is an address that h5stream does not read: "
                + ("leave out 'file://'" if address[1] == "file" else others)
            )
        return os.path.expanduser(path) if path.startswith("~") and not os.path.exists(path) else path
    if _is_array(given):
        raise OptionError(f"a source is a path, not {_kind(given)}. {_WRITE_THEM}")
    if callable(getattr(given, "read", None)):
        raise OptionError(f"a source is a path, not an open stream ({_kind(given)}); give the path of the file")
    raise OptionError(f"a source is a path, a pattern or several of them, not {repr(given)[:200]}")


def _checked_address(address: str) -> str:
    """Return the address of an object; refuse that of a bucket or a folder, of which a store has no object."""
    if (key := parts_of(address)[1]) and not key.endswith("/"):
        return address
    inside = f"{address.rstrip('/')}/" if address.rpartition("://")[2] else f"{address}bucket/"
    several = "" if address.startswith("http") else f", or a pattern such as '{inside}*.h5'"
    raise OptionError(f"{address!r} is a bucket or a folder, not an object; name one, such as '{inside}a.h5'{several}")


def several(source: Any) -> list[Any]:
    """Return the parts of a source: itself, or each of several."""
    one = isinstance(source, (str, bytes, os.PathLike, h5py.Group, h5py.Dataset)) or _is_array(source)
    if one or callable(getattr(source, "read", None)) or not isinstance(source, Iterable):
        return [source]
    if isinstance(source, dict):
        raise OptionError(f"a source is a path or several of them, not a dict of {len(source)}. {_WRITE_THEM}")
    return list(source)


def _is_array(given: Any) -> bool:
    return hasattr(given, "__array__") or hasattr(given, "__array_interface__")


def _kind(given: Any) -> str:
    return f"{type(given).__module__.split('.')[0]}.{type(given).__name__}"

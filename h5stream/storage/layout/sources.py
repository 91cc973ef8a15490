"""Sources: paths, patterns, and open h5py objects in place of their names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from typing import Any, TypeGuard

import h5py
import numpy as np
from h5py import h5f, h5fd

from h5stream.base.names import as_pattern, is_address, quoted
from h5stream.base.texts import did_you_mean, listed
from h5stream.errors import OptionError, SourceNotFoundError
from h5stream.storage.source.listing import matches
from h5stream.storage.source.stores import parts_of

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SCHEMES = ("s3", "gs", "az", "https", "hf")

_WRITE_THEM = "For arrays in memory take torch's DataLoader over a TensorDataset, or write them to a file first"

Named = tuple[str, str, bool]
"""The file of an open h5py object, its path in the file, empty for the file itself, and whether it is a dataset."""


def named_by(source: object) -> Named | None:
    """Return the names of an open h5py file, group or dataset; None for anything else."""
    if not isinstance(source, (h5py.Group, h5py.Dataset)):
        return None
    if not source:
        raise OptionError(f"{source!r} is closed, so that it no longer says which file it is of; give the file's path")
    path = _path_of(source.file)
    access = source.file.id.get_access_plist()
    in_memory = access.get_driver() == h5fd.CORE and bool(source.file.id.get_intent() & h5f.ACC_RDWR)
    if not os.path.isfile(path) or (in_memory and not access.get_fapl_core()[1]):  # its data stay in memory
        raise OptionError(f"{source!r} is not of a file on disk, and h5stream reads the file itself; give a path")
    if source.name is None or source.name not in source.file:
        raise OptionError(f"{source!r} has no name in {path!r}, so that it cannot be found there; give it one")
    return path, source.name.strip("/"), isinstance(source, h5py.Dataset)


def _path_of(file: h5py.File) -> str:
    """Return the path under which a file was opened, or its current path if that no longer leads to the file."""
    path = os.fsdecode(file.filename)
    if file.id.get_access_plist().get_driver() == h5fd.SEC2:
        descriptor = file.id.get_vfd_handle()
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return os.path.realpath(f"/proc/self/fd/{descriptor}")
    return path


def paths_of(source: object, opened: Named | None) -> list[str]:
    """Return the paths of one source; those of a pattern are sorted."""
    if opened is not None:
        return [opened[0]]
    if is_folder(source):
        return _files_in(os.fsdecode(source))
    path = checked_path(source)
    is_far = is_address(path)
    if not (glob.has_magic(path) or "\\" in path) or (not is_far and os.path.exists(path)):
        return [path]
    every = matches(path) if is_far else sorted(glob.glob(_as_glob(path), recursive=True))
    if not every and glob.has_magic(as_pattern(path)):
        raise SourceNotFoundError(f"no {'object' if is_far else 'file'} matches {path!r}", file=path)
    return every or [path]


ENDINGS = (".h5", ".hdf5", ".hdf", ".he5", ".h5ad", ".nc", ".nc4", ".nwb", ".mat")
"""Endings of HDF5 file names, which select the files of a folder."""


def is_folder(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a source is a folder on a disk, or an address of a folder or bucket that ends with a slash."""
    if not isinstance(source, str | bytes | os.PathLike):
        return False
    path = os.fsdecode(source)
    if is_address(path):
        return path.endswith("/") and not path.startswith("http") and bool(path.partition("://")[2].strip("/"))
    return os.path.isdir(path) or (path.startswith("~") and os.path.isdir(os.path.expanduser(path)))


def _files_in(folder: str) -> list[str]:
    """Return the sorted paths of the HDF5 files in a folder, without those in its subfolders."""
    if is_address(folder):
        every = matches(f"{quoted(folder)}*")
    else:
        folder = folder if os.path.isdir(folder) else os.path.expanduser(folder)
        paths = (os.path.join(folder, name) for name in sorted(os.listdir(folder)))
        every = [path for path in paths if os.path.isfile(path)]
    matching = [path for path in every if path.lower().endswith(ENDINGS) and not os.path.basename(path).startswith(".")]
    if not matching:
        problem = f"no file in the folder {folder!r} ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        raise SourceNotFoundError(
            f"{problem}; name files, or a pattern such as {os.path.join(folder, '*')!r}", file=folder
        )
    return matching


def _as_glob(path: str) -> str:
    """Return a pattern for `glob`; steps that are names of existing folders are taken literally."""
    done, *steps = path.split("/")
    is_literal = os.path.lexists(done) if done else True
    done = glob.escape(done) if is_literal else as_pattern(done)
    for step in steps:
        plain, below = f"{done}/{glob.escape(step)}", f"{done}/{as_pattern(step)}"
        # Below a pattern, a name without a character class matches itself.
        if plain == below or step in ("", "**"):
            done = below
        elif is_literal:
            is_literal = bool(glob.glob(plain))
            done = plain if is_literal else below
        else:
            done = plain if "[" in step and glob.glob(plain, recursive=True) else below
    return done


def checked_path(source: object) -> str:
    """Return a source as a path, with a leading ``~`` expanded; raise `OptionError` if it is not a path."""
    if isinstance(source, str | bytes | os.PathLike):
        path = os.fsdecode(source)
        if is_address(path):
            inside = f"{path.rstrip('/')}/" if path.rpartition("://")[2] else f"{path}bucket/"
            if not parts_of(path)[1] or path.endswith("/"):
                others = (
                    "" if path.startswith("http") else f", or all with '{inside}' or a pattern such as '{inside}*.h5'"
                )
                problem = f"{path!r} is a bucket or a folder, not an object; name one, such as '{inside}a.h5'"
                raise OptionError(problem + others)
            if {"", ".", ".."} & {*parts_of(path)[1].removeprefix("/").split("/")}:
                problem = (
                    f"{path!r} has an empty name between its slashes, or '.' or '..', by which obstore reads no object"
                )
                raise OptionError(f"{problem}; copy it under another key")
            return path
        address = _ADDRESS.match(path)
        if address and not os.path.exists(path):
            near = re.sub(r"'(\w+)'", r"'\1://'", did_you_mean(address[1], _SCHEMES))
            others = f"s3://, gs://, az://, https:// and hf:// are.{near}"
            way_out = "leave out 'file://'" if address[1] == "file" else others
            raise OptionError(f"{path!r} is an address that h5stream does not read: {way_out}")
        return os.path.expanduser(path) if path.startswith("~") and not os.path.exists(path) else path
    kind = f"{type(source).__module__.split('.')[0]}.{type(source).__name__}"
    if is_array(source):
        raise OptionError(f"a source is a path, not {kind}. {_WRITE_THEM}")
    if callable(getattr(source, "read", None)):
        raise OptionError(f"a source is a path, not an open stream ({kind}); give the path of the file")
    raise OptionError(f"a source is a path, a pattern or several of them, not {repr(source)[:200]}")


def several(source: object, what: str) -> list[Any]:
    """Return a list of sources: the items of a sequence or an array, or the source itself."""
    if isinstance(source, (str, bytes, os.PathLike, h5py.Group, h5py.Dataset)):
        return [source]
    if is_array(source) and np.asarray(source).dtype.kind not in "OSUT":  # of numbers, and so of no paths
        return [source]
    if callable(getattr(source, "read", None)) or not (isinstance(source, Iterable) or is_array(source)):
        return [source]
    if isinstance(source, dict):
        raise OptionError(f"a source is a path or several of them, not a dict of {len(source)}. {_WRITE_THEM}")
    return listed(what, source)


def is_array(value: object) -> bool:
    """Return whether a value is an array, of NumPy or of another library."""
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")

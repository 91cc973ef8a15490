"""Data outside the opened files is refused unless it was allowed: every way that HDF5 has of leading there.

External links, also behind soft links; external storage; and the sources of virtual datasets, which may lead on
through any of the three.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import h5py

from h5stream.errors import ExternalDataError
from h5stream.storage.handles import open_file

_MOST_LINKS = 32
"""Soft links that are followed in a row; libhdf5 gives up after 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Refuses what leads outside.

    Attributes
    ----------
    opened : frozenset of str
        Absolute paths of the files that the user named.
    allow_external : bool
        Whether anything is allowed.
    """

    opened: frozenset[str]
    allow_external: bool = False

    @classmethod
    def for_paths(cls, paths: tuple[str, ...], *, allow_external: bool) -> Guard:
        """Make the guard of a set of files."""
        return cls(opened=frozenset(os.path.abspath(p) for p in paths), allow_external=allow_external)

    def check_links(self, file: Any, name: str, path: str) -> None:
        """Refuse a name that leads through an external link, however many soft links stand before it.

        Parameters
        ----------
        file : h5py.File
            The open file.
        name : str
            Path of an object in it; need not exist.
        path : str
            The file's path, for the message.

        Raises
        ------
        ExternalDataError
            With the link and what it points to.
        """
        if not self.allow_external:
            with _damage_ignored():
                _follow(file, "/", name, path, _MOST_LINKS)

    def check_data(self, dataset: Any, name: str, path: str) -> None:
        """Refuse a dataset whose bytes lie in files that were not opened.

        Raises
        ------
        ExternalDataError
            With the field and what it points to.
        """
        if not self.allow_external:
            self._check_data(dataset, name, path, seen=set())

    def _check_data(self, dataset: Any, name: str, path: str, *, seen: set[tuple[str, str]]) -> None:
        creation = dataset.id.get_create_plist()
        if creation.get_external_count():
            _refuse(path, name, "external file", os.fsdecode(creation.get_external(0)[0]))
        if not dataset.is_virtual:
            return
        for source in dataset.virtual_sources():
            inside = self._opened_path(source.file_name, path)
            if inside is None:
                _refuse(path, name, "virtual source", source.file_name)
            if (inside, source.dset_name) not in seen:
                seen.add((inside, source.dset_name))
                self._check_source(inside, source.dset_name, seen)

    def _opened_path(self, target: str, path: str) -> str | None:
        """Give the path of an opened file that a virtual source names, None if it is not one of them."""
        here = os.path.abspath(path)
        there = here if target == "." else os.path.abspath(os.path.join(os.path.dirname(here), target))
        return there if there == here or there in self.opened else None

    def _check_source(self, path: str, name: str, seen: set[tuple[str, str]]) -> None:
        with open_file(path) as file:
            for one in _names_meant(file, name):
                self.check_links(file, one, path)
                with _damage_ignored():
                    source = file[one]
                    if isinstance(source, h5py.Dataset):
                        self._check_data(source, one, path, seen=seen)


@contextlib.contextmanager
def _damage_ignored() -> Iterator[None]:
    """Go on where something cannot be read: what cannot be followed leads nowhere."""
    try:
        yield
    except ExternalDataError:  # which is an OSError too
        raise
    except (KeyError, OSError, RuntimeError, ValueError, TypeError):
        pass


def _follow(file: Any, start: str, name: str, path: str, links_left: int) -> str:
    """Walk along a path, link by link, and give where it ends."""
    current = "/" if name.startswith("/") else start
    for part in name.split("/"):
        if part in ("", "."):
            continue
        step = posixpath.join(current, part)
        link = file.get(step, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise ExternalDataError(
                f"{path!r}: {step.lstrip('/')!r} is an external link to {link.filename!r}. Data outside the opened "
                "files is refused; pass allow_external=True if you trust the file.",
                file=path,
                field=name,
                target=link.filename,
            )
        if isinstance(link, h5py.SoftLink):
            if links_left == 0:
                raise RuntimeError(f"too many soft links at {step!r}")
            step = _follow(file, current, link.path, path, links_left - 1)
        current = step
    return current


def _names_meant(file: Any, name: str) -> list[str]:
    """Give the datasets that a virtual source's name stands for: ``%b`` in it counts blocks."""
    if "%" not in name:
        return [name]
    folder, leaf = posixpath.split(name)
    pattern = re.compile(re.escape(leaf).replace("%b", r"\d+").replace("%%", "%"))
    meant: list[str] = []
    with _damage_ignored():
        meant += [posixpath.join(folder, one) for one in file[folder or "/"] if pattern.fullmatch(one)]
    return meant


def _refuse(path: str, name: str, what: str, target: str) -> NoReturn:
    raise ExternalDataError(
        f"{path!r}: field {name!r} has the {what} {target!r}. Data outside the opened files is refused; pass "
        "allow_external=True if you trust the file.",
        file=path,
        field=name,
        target=target,
    )

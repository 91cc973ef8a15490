"""References to data outside the opened files, which are refused unless the user allows them.

HDF5 has three kinds: external links, also behind soft links; external storage; and the sources of virtual datasets,
which may contain references of all three kinds themselves.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import h5py

from h5stream.base.names import is_address
from h5stream.base.texts import names_text
from h5stream.errors import ExternalDataError, TruncatedFileError
from h5stream.storage.source.handles import DAMAGE, open_file
from h5stream.storage.source.local import absolute

_Leave = Callable[[str, h5py.ExternalLink, list[str], int], str]

_MOST_LINKS = 32
"""The most links that are followed in a row; libhdf5 gives up after 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Raises `ExternalDataError` for references out of the opened files."""

    opened: frozenset[str]  # absolute paths of the files that the user named
    allow_external: bool = False  # whether anything is allowed

    @classmethod
    def for_paths(cls, paths: tuple[str, ...], *, allow_external: bool) -> Guard:
        """Return the guard of a set of files."""
        return cls(opened=frozenset(map(absolute, paths)), allow_external=allow_external)

    def check_links(self, file: h5py.File, name: str, path: str) -> None:
        """Raise if a name leads out of the opened files, after any number of links."""
        if self.allow_external and not is_address(path):
            return
        try:
            _resolved(file, "/", name, _MOST_LINKS, functools.partial(self._leave, path))
        except ExternalDataError:  # also an OSError
            raise
        except DAMAGE:  # it leads nowhere
            pass

    def _leave(self, path: str, step: str, link: h5py.ExternalLink, rest: list[str], remaining: int) -> str:
        """Resolve an external link of the file `path`, and the rest of the path, if the other file is opened."""
        inside = self._opened_path(link.filename, path)
        if inside is None:
            _refuse_link(path, step, link.filename)
        with open_file(inside) as other:
            leave, below = functools.partial(self._leave, inside), posixpath.join("/", link.path, *rest)
            return _resolved(other, "/", below, remaining - 1, leave)

    def check_file(self, link: str, target: str, path: str) -> None:
        """Raise if libhdf5 followed a link to a file that is not opened, as environment variables may direct it to."""
        if not self.allow_external and not any(os.path.samefile(target, one) for one in self.opened):
            _refuse_link(path, link, target)

    def check_data(self, dataset: h5py.Dataset, name: str, path: str, seen: set[tuple[str, str]] | None = None) -> None:
        """Raise if a dataset has bytes in files outside the opened ones; sources in `seen` have been checked."""
        if self.allow_external and not is_address(path):
            return
        creation = dataset.id.get_create_plist()
        if not creation.get_external_count() and creation.get_layout() != h5py.h5d.VIRTUAL:
            return
        seen = set() if seen is None else seen
        for kind, target, source in _stored_references(creation):
            is_one = kind == VIRTUAL and not _is_pattern(target)  # a pattern may name any number of files
            inside = self._opened_path(_fill_block(target), path) if is_one else None
            if inside is None:
                what = "virtual source" if kind == VIRTUAL else "external file"
                _refuse(path, name, f"field {name!r} has the {what}", target)
            if (inside, source) not in seen:
                seen.add((inside, source))
                is_own = inside == absolute(path)
                with contextlib.nullcontext(dataset.file) if is_own else open_file(inside) as file:
                    self._check_source(file, inside, source, seen)

    def _opened_path(self, target: str, path: str) -> str | None:
        """Return the absolute path of a virtual source's file; None if it is not opened."""
        here = absolute(path)
        if is_address(path):  # libhdf5 would read the object itself instead of another
            return here if target == "." else None
        resolved = here if target == "." else os.path.abspath(os.path.join(os.path.dirname(here), target))
        return resolved if resolved == here or resolved in self.opened else None

    def _check_source(self, file: h5py.File, path: str, name: str, seen: set[tuple[str, str]]) -> None:
        for one in _matching_names(file, name, lambda group: self.check_links(file, group, path)):
            self.check_links(file, one, path)
            with _damage_ignored():
                source = file[one]
                if isinstance(source, h5py.Dataset):
                    self.check_data(source, one, path, seen)


@contextlib.contextmanager
def _damage_ignored() -> Iterator[None]:
    """Ignore objects that cannot be read: they lead nowhere."""
    try:
        yield
    except ExternalDataError:  # also an OSError
        raise
    except DAMAGE:
        pass


def without_soft_links(file: h5py.File, name: str) -> str:
    """Resolve the soft links of a path, up to an external link; return it unchanged if it leads nowhere."""
    try:
        return _resolved(file, "/", name, _MOST_LINKS, lambda step, _link, rest, _left: posixpath.join(step, *rest))
    except DAMAGE:
        return name


def _resolved(file: h5py.File, start: str, name: str, links_left: int, leave: _Leave) -> str:
    """Resolve a path, link by link, and return its end; `leave` resolves an external link and the rest."""
    current, parts = "/" if name.startswith("/") else start, name.split("/")
    for place, part in enumerate(parts):
        if part in ("", "."):
            continue
        if links_left == 0:
            raise RuntimeError(f"too many links at {current!r}")
        step, link = posixpath.join(current, part), None
        with contextlib.suppress(KeyError):
            if file.id.links.get_info(step.encode("utf-8", "surrogateescape")).type != h5py.h5l.TYPE_HARD:
                link = file.get(step, getlink=True)
        if link is not None:
            rest = [one for one in parts[place + 1 :] if one not in ("", ".")]
            if isinstance(link, h5py.ExternalLink):
                return leave(step, link, rest, links_left)
            if isinstance(link, h5py.SoftLink):
                return _resolved(file, current, posixpath.join(link.path, *rest), links_left - 1, leave)
        current = step
    return current


def _refuse_link(path: str, link: str, target: str) -> NoReturn:
    _refuse(path, link.lstrip("/"), f"{link.lstrip('/')!r} is an external link to", target)


def _refuse(path: str, name: str, what: str, target: str) -> NoReturn:
    way_out = "H5Dataset(..., allow_external=True) follows it if you trust the file"
    if is_address(path):
        way_out = "of an object in a store it cannot be followed: copy the files to a disk (h5stream stage)"
    message = f"{path!r}: {what} {target!r}. Data outside the opened files is refused; {way_out}."
    raise ExternalDataError(message, file=path, field=name, target=target)


_SPECIFIER = re.compile("%[%b]")
"""In names of virtual sources, ``%b`` is the number of a block, and ``%%`` a ``%`` (H5Pset_virtual)."""


def _is_pattern(name: str) -> bool:
    """Return whether the name of a virtual source is a pattern with block numbers."""
    return "%b" in _SPECIFIER.findall(name)


def _fill_block(name: str, block: int = 0) -> str:
    """Return the file or dataset name of a virtual source for a block."""
    return _SPECIFIER.sub(lambda mark: "%" if mark[0] == "%%" else str(block), name)


def _matching_names(file: h5py.File, name: str, check: Callable[[str], None]) -> list[str]:
    """Return the datasets that a virtual source's name matches; `check` is called before a group is opened."""
    paths = [""]
    for part in name.split("/"):
        if not _is_pattern(part):
            paths = [posixpath.join(above, _fill_block(part)) for above in paths]
            continue
        expression = _SPECIFIER.sub(lambda mark: "%" if mark[0] == "%%" else "[0-9]+", re.escape(part))
        pattern, every = re.compile(expression), list[str]()
        for above in paths:
            check(above or "/")
            with _damage_ignored():
                every += [posixpath.join(above, one) for one in file[above or "/"] if pattern.fullmatch(one)]
        paths = every
    return [one or "/" for one in paths]


# --- The files to which an HDF5 file refers: external links, sources of virtual datasets, external storage.
#
# Only names are read, through h5py's low-level interface; no data are read, and no other file is opened.


# The most files of one pattern that are followed.
_MOST_BLOCKS = 100_000


LINK, VIRTUAL, STORAGE = "external link", "virtual dataset source", "external storage"
"""Kinds of references to other files."""


class Reference(NamedTuple):
    """A reference from one file to another."""

    kind: str  # `LINK`, `VIRTUAL` or `STORAGE`
    file: Path  # the referring file
    place: str  # the path of the referring link or dataset
    target: str  # the name as stored, with block numbers of a virtual dataset filled in

    def resolve(self) -> Path | None:
        """Return the file that HDF5 would find under the name, not counting the working directory; None if missing.

        Source: H5Lcreate_external and H5Pset_virtual of the HDF5 reference manual.
        """
        candidates = (folder / self.target for folder in (self.file.parent, self.file.resolve().parent))
        return next((path for path in candidates if path.is_file()), None)


def references(path: Path) -> tuple[Reference, ...]:
    """Return the references of an HDF5 file to others, each name once per kind, in the order of its objects."""
    file, items = Path(os.path.abspath(path)), list[Reference]()
    if not h5py.is_hdf5(file):  # any file can be staged, and external storage is raw bytes
        return ()

    def of_link(name: bytes, info: h5py.h5l.LinkInfo) -> None:
        if info.type == h5py.h5l.TYPE_EXTERNAL:
            target, _ = opened.id.links.get_val(name)
            items.append(Reference(LINK, file, _object_path(name), os.fsdecode(target)))

    def of_object(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            items.extend(_dataset_references(h5py.h5d.open(opened.id, name).get_create_plist(), file, name))

    try:
        with open_file(str(file), marked=False) as opened:
            opened.id.links.visit(of_link, info=True)
            h5py.h5o.visit(opened.id, of_object, info=True)
    except (OSError, RuntimeError) as error:
        raise TruncatedFileError(f"{file} cannot be looked through: {error}", file=str(file)) from error
    return tuple({(item.kind, item.target): item for item in reversed(items)}.values())[::-1]


def needed_elsewhere(path: Path, moved: Path) -> str:
    """Return a text of the references that would lead to other files, or nowhere, if the file were moved."""

    def file_of(item: Reference) -> Path | None:
        return (resolved := item.resolve()) and resolved.resolve()

    needs: list[Reference] = []
    with contextlib.suppress(TruncatedFileError):  # moving the file reports the damage
        needs += [item for item in references(path) if file_of(item) != file_of(item._replace(file=moved))]
    return names_text(sorted({f"{item.target} ({item.kind})" for item in needs}))


def files_behind(dataset: h5py.Dataset, path: str, seen: dict[str, str] | None = None) -> dict[str, str]:
    """Return the existing files, other than its own, that libhdf5 reads for a dataset's elements, with their kinds."""
    seen = {} if seen is None else seen
    for reference in _dataset_references(dataset.id.get_create_plist(), Path(os.path.abspath(path)), b""):
        resolved = reference.resolve()
        if resolved is None or str(resolved) in seen:
            continue
        seen[str(resolved)] = reference.kind
        if reference.kind == VIRTUAL:
            names = {source.dset_name for source in dataset.virtual_sources()}
            # Sources may be virtual themselves; unreadable ones lead nowhere.
            with contextlib.suppress(OSError, RuntimeError, ValueError), open_file(str(resolved)) as opened:
                for name in itertools.chain(*(_matching_names(opened, one, lambda _: None) for one in names)):
                    source = opened.get(name)
                    if isinstance(source, h5py.Dataset) and source.is_virtual:
                        files_behind(source, str(resolved), seen)
    return seen


def _dataset_references(creation: h5py.h5p.PropDCID, file: Path, name: bytes) -> Iterator[Reference]:
    for kind, target, _ in _stored_references(creation):
        if target != "." or kind == STORAGE:  # "." is the file itself
            for filled in _expand_pattern(target, file) if kind == VIRTUAL else (target,):
                yield Reference(kind, file, _object_path(name), filled)


def _object_path(name: bytes) -> str:
    return "/" + name.decode("utf-8", "surrogateescape").lstrip("/")


def _stored_references(creation: h5py.h5p.PropDCID) -> Iterator[tuple[str, str, str]]:
    """Yield kind, file name and dataset name of a dataset's external files and virtual sources, as stored."""
    for number in range(creation.get_external_count()):
        yield STORAGE, os.fsdecode(creation.get_external(number)[0]), ""
    if creation.get_layout() == h5py.h5d.VIRTUAL:
        for number in range(creation.get_virtual_count()):
            yield VIRTUAL, creation.get_virtual_filename(number), creation.get_virtual_dsetname(number)


def _expand_pattern(pattern: str, file: Path) -> Iterable[str]:
    """Return the names of a pattern for blocks from 0 on, until a file is missing."""
    if not _is_pattern(pattern):
        return [_fill_block(pattern)]
    names = (_fill_block(pattern, block) for block in range(_MOST_BLOCKS))
    return itertools.takewhile(lambda name: Reference(VIRTUAL, file, "", name).resolve(), names)

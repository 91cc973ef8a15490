"""Data outside the opened files is refused unless it was allowed: every way that HDF5 has of leading there.

External links, also behind soft links; external storage; and the sources of virtual datasets, which may lead on
through any of the three.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import h5py

from h5stream.base.texts import names_text
from h5stream.errors import ExternalDataError, TruncatedFileError
from h5stream.storage.source.handles import DAMAGE, open_file
from h5stream.storage.source.local import absolute
from h5stream.storage.source.stores import is_address

_MOST_LINKS = 32
"""Links that are followed in a row; libhdf5 gives up after 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Refuses what leads outside."""

    opened: frozenset[str]  # absolute paths of the files that the user named
    allow_external: bool = False  # whether anything is allowed

    @classmethod
    def for_paths(cls, paths: tuple[str, ...], *, allow_external: bool) -> Guard:
        """Make the guard of a set of files."""
        return cls(opened=frozenset(absolute(p) for p in paths), allow_external=allow_external)

    def check_links(self, file: Any, name: str, path: str) -> None:
        """Refuse a name that leads out of the opened files, however many links stand before the one that does."""
        if not self.allow_external or is_address(path):
            with _damage_ignored():
                self._follow(file, name, path, _MOST_LINKS)

    def _follow(self, file: Any, name: str, path: str, links_left: int) -> str:
        """Walk along a path, link by link and from file to file, and give where it ends."""

        def leave(step: str, link: Any, rest: list[str], left: int) -> str:
            inside = self._opened_path(link.filename, path)
            if inside is None:
                _refuse_link(path, step, link.filename)
            with open_file(inside) as other:
                return self._follow(other, posixpath.join("/", link.path, *rest), inside, left - 1)

        return _walked(file, "/", name, links_left, leave)

    def check_file(self, link: str, target: str, path: str) -> None:
        """Refuse the file that libhdf5 found behind a link, perhaps where the environment says, unless it is opened."""
        if not self.allow_external and not any(os.path.samefile(target, one) for one in self.opened):
            _refuse_link(path, link, target)

    def check_data(self, dataset: Any, name: str, path: str, seen: set[tuple[str, str]] | None = None) -> None:
        """Refuse a dataset whose bytes lie in files that were not opened; `seen` has been looked at."""
        if self.allow_external and not is_address(path):
            return
        seen = set() if seen is None else seen
        for kind, target, source in _leads(dataset.id.get_create_plist()):
            is_one = kind == VIRTUAL and not _is_pattern(target)  # others may be of any number of files
            inside = self._opened_path(_filled(target), path) if is_one else None
            if inside is None:
                what = "virtual source" if kind == VIRTUAL else "external file"
                _refuse(path, name, f"field {name!r} has the {what}", target)
            if (inside, source) not in seen:
                seen.add((inside, source))
                is_own = inside == absolute(path)
                with contextlib.nullcontext(dataset.file) if is_own else open_file(inside) as file:
                    self._check_source(file, inside, source, seen)

    def _opened_path(self, target: str, path: str) -> str | None:
        """Return the path of an opened file that a virtual source names, None if it is not one of them."""
        here = absolute(path)
        if is_address(path):  # libhdf5 would read the object itself in place of another
            return here if target == "." else None
        there = here if target == "." else os.path.abspath(os.path.join(os.path.dirname(here), target))
        return there if there == here or there in self.opened else None

    def _check_source(self, file: Any, path: str, name: str, seen: set[tuple[str, str]]) -> None:
        for one in _names_meant(file, name, lambda group: self.check_links(file, group, path)):
            self.check_links(file, one, path)
            with _damage_ignored():
                source = file[one]
                if isinstance(source, h5py.Dataset):
                    self.check_data(source, one, path, seen)


@contextlib.contextmanager
def _damage_ignored() -> Iterator[None]:
    """Go on where something cannot be read: what cannot be followed leads nowhere."""
    try:
        yield
    except ExternalDataError:  # which is an OSError too
        raise
    except DAMAGE:
        pass


def without_soft_links(file: Any, name: str) -> str:
    """Return the path that a name leads to in the file, up to an external link; as it is where it leads nowhere."""
    try:
        return _walked(file, "/", name, _MOST_LINKS, lambda step, _link, rest, _left: posixpath.join(step, *rest))
    except DAMAGE:
        return name


def _walked(file: Any, start: str, name: str, links_left: int, leave: Callable[[str, Any, list[str], int], str]) -> str:
    """Walk along a path, link by link, and give where it ends; `leave` says where an external link leads."""
    current = "/" if name.startswith("/") else start
    parts = [part for part in name.split("/") if part not in ("", ".")]
    for place, part in enumerate(parts):
        if links_left == 0:
            raise RuntimeError(f"too many links at {current!r}")
        step, rest = posixpath.join(current, part), parts[place + 1 :]
        link = _link(file, step)
        if isinstance(link, h5py.ExternalLink):
            return leave(step, link, rest, links_left)
        if isinstance(link, h5py.SoftLink):
            return _walked(file, current, posixpath.join(link.path, *rest), links_left - 1, leave)
        current = step
    return current


def _link(file: Any, step: str) -> Any:
    """Return what stands under a name where that is a link to be followed; None for an object, or for nothing."""
    try:
        if file.id.links.get_info(step.encode("utf-8", "surrogateescape")).type == h5py.h5l.TYPE_HARD:
            return None
    except KeyError:
        return None
    return file.get(step, getlink=True)


def _refuse_link(path: str, link: str, target: str) -> NoReturn:
    _refuse(path, link.lstrip("/"), f"{link.lstrip('/')!r} is an external link to", target)


def _refuse(path: str, name: str, what: str, target: str) -> NoReturn:
    way_out = "H5Dataset(..., allow_external=True) follows it if you trust the file"
    if is_address(path):
        way_out = "of an object in a store it cannot be followed: copy the files to a disk (h5stream stage)"
    said = f"{path!r}: {what} {target!r}. Data outside the opened files is refused; {way_out}."
    raise ExternalDataError(said, file=path, field=name, target=target)


_SPECIFIER = re.compile("%[%b]")
"""In names of virtual sources ``%b`` counts blocks, and ``%%`` is one ``%``, as H5Pset_virtual has it."""


def _is_pattern(name: str) -> bool:
    """Tell whether the name of a virtual source stands for several, by numbers of blocks."""
    return "%b" in _SPECIFIER.findall(name)


def _filled(name: str, block: int = 0) -> str:
    """Return the name of a virtual source's file, or of its dataset, for a block."""
    return _SPECIFIER.sub(lambda mark: "%" if mark[0] == "%%" else str(block), name)


def _names_meant(file: Any, name: str, check: Callable[[str], None]) -> list[str]:
    """Return the datasets that a virtual source's name stands for, level by level; groups are checked, then opened."""
    meant = [""]
    for part in name.split("/"):
        if not _is_pattern(part):
            meant = [posixpath.join(above, _filled(part)) for above in meant]
            continue
        expression = _SPECIFIER.sub(lambda mark: "%" if mark[0] == "%%" else "[0-9]+", re.escape(part))
        pattern, every = re.compile(expression), list[str]()
        for above in meant:
            check(above or "/")
            with _damage_ignored():
                every += [posixpath.join(above, one) for one in file[above or "/"] if pattern.fullmatch(one)]
        meant = every
    return [one or "/" for one in meant]


# --- The files that an HDF5 file needs: external links, sources of virtual datasets, external storage.
#
# Only names are read, through h5py's low-level interface; no data, and nothing outside the file is opened.


# A pattern that names millions of files is not followed for ever.
_MOST_BLOCKS = 100_000


LINK, VIRTUAL, STORAGE = "external link", "virtual dataset source", "external storage"
"""How a file names another one."""


class Reference(NamedTuple):
    """One file that another one needs."""

    kind: str  # how it is named: `LINK`, `VIRTUAL` or `STORAGE`
    file: Path  # the file in which the name stands
    place: str  # the link or dataset that needs it, as a path inside the file
    target: str  # the name as it stands there, block numbers of a virtual dataset filled in

    def resolve(self) -> Path | None:
        """Return the file that the name leads to, as HDF5 would find it, but for the working directory; or None.

        Source: H5Lcreate_external and H5Pset_virtual of the HDF5 reference manual.
        """
        candidates = (folder / self.target for folder in (self.file.parent, self.file.resolve().parent))
        return next((path for path in candidates if path.is_file()), None)


def references(path: Path) -> tuple[Reference, ...]:
    """Return the files that an HDF5 file needs, each name once for each kind, in the order of its objects."""
    file, found = Path(os.path.abspath(path)), list[Reference]()
    if not h5py.is_hdf5(file):  # any file can be staged, and external storage is raw bytes
        return ()

    def of_link(name: bytes, info: h5py.h5l.LinkInfo) -> None:
        if info.type == h5py.h5l.TYPE_EXTERNAL:
            target, _ = opened.id.links.get_val(name)
            found.append(Reference(LINK, file, _place(name), os.fsdecode(target)))

    def of_object(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            found.extend(_of_dataset(h5py.h5d.open(opened.id, name).get_create_plist(), file, name))

    try:
        with open_file(str(file), marked=False) as opened:
            opened.id.links.visit(of_link, info=True)
            h5py.h5o.visit(opened.id, of_object, info=True)
    except (OSError, RuntimeError) as error:
        raise TruncatedFileError(f"{file} cannot be looked through: {error}", file=str(file)) from error
    return tuple({(item.kind, item.target): item for item in reversed(found)}.values())[::-1]


def needed_elsewhere(path: Path, moved: Path) -> str:
    """Name the files that an HDF5 file needs, of which the names lead to others, or nowhere, from another place."""

    def file_of(item: Reference) -> Path | None:
        return (found := item.resolve()) and found.resolve()

    needs: list[Reference] = []
    with contextlib.suppress(TruncatedFileError):  # who moves the file says what is damaged
        needs += [item for item in references(path) if file_of(item) != file_of(item._replace(file=moved))]
    return names_text(sorted({f"{item.target} ({item.kind})" for item in needs}))


def files_behind(dataset: h5py.Dataset, path: str, seen: dict[str, None] | None = None) -> list[str]:
    """Return the files that libhdf5 reads the elements of a dataset from, other than its own, if they are there."""
    seen = {} if seen is None else seen
    for reference in _of_dataset(dataset.id.get_create_plist(), Path(os.path.abspath(path)), b""):
        found = reference.resolve()
        if found is None or str(found) in seen:
            continue
        seen[str(found)] = None
        if reference.kind == VIRTUAL:
            names = {source.dset_name for source in dataset.virtual_sources()}
            # Sources may be virtual themselves; what cannot be followed leads nowhere.
            with contextlib.suppress(OSError, RuntimeError, ValueError), open_file(str(found)) as opened:
                for name in itertools.chain(*(_names_meant(opened, one, lambda _: None) for one in names)):
                    source = opened.get(name)
                    if isinstance(source, h5py.Dataset) and source.is_virtual:
                        files_behind(source, str(found), seen)
    return list(seen)


def _of_dataset(creation: h5py.h5p.PropDCID, file: Path, name: bytes) -> Iterator[Reference]:
    for kind, target, _ in _leads(creation):
        if target != "." or kind == STORAGE:  # "." is the file itself
            for filled in _fill_in(target, file) if kind == VIRTUAL else (target,):
                yield Reference(kind, file, _place(name), filled)


def _place(name: bytes) -> str:
    return "/" + name.decode("utf-8", "surrogateescape").lstrip("/")


def _leads(creation: h5py.h5p.PropDCID) -> Iterator[tuple[str, str, str]]:
    """Yield what other files, and datasets in them, a dataset's elements come from, as they are named there."""
    for number in range(creation.get_external_count()):
        yield STORAGE, os.fsdecode(creation.get_external(number)[0]), ""
    if creation.get_layout() == h5py.h5d.VIRTUAL:
        for number in range(creation.get_virtual_count()):
            yield VIRTUAL, creation.get_virtual_filename(number), creation.get_virtual_dsetname(number)


def _fill_in(pattern: str, file: Path) -> Iterable[str]:
    """Return the names that a pattern stands for: those of blocks, from 0 until a file is missing."""
    if not _is_pattern(pattern):
        return [_filled(pattern)]
    names = (_filled(pattern, block) for block in range(_MOST_BLOCKS))
    return itertools.takewhile(lambda name: Reference(VIRTUAL, file, "", name).resolve(), names)

"""The files that an HDF5 file needs: external links, sources of virtual datasets, external storage.

Only names are read, through h5py's low-level interface; no data, and nothing outside the file is opened.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import h5py

from h5stream.errors import NotHDF5Error, TruncatedFileError
from h5stream.storage.handles import open_file
from h5stream.storage.source import no_such_file

# A pattern that names millions of files is not followed for ever.
_MOST_BLOCKS = 100_000
_BLOCK_NUMBER = re.compile(r"%(0?\d*)b")


class ReferenceKind(StrEnum):
    """How a file names another one."""

    LINK = "external link"
    VIRTUAL = "virtual dataset source"
    STORAGE = "external storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One file that another one needs."""

    kind: ReferenceKind
    """How it is named."""
    file: Path
    """The file in which the name stands."""
    place: str
    """The link or dataset that needs it, as a path inside the file."""
    target: str
    """The name as it stands there, block numbers of a virtual dataset filled in."""

    @property
    def absolute(self) -> bool:
        """Whether the name is an absolute path, which leads to the same file from wherever it is read."""
        return Path(self.target).is_absolute()

    def resolve(self) -> Path | None:
        """Return the file that the name leads to, as HDF5 would find it; None where there is none.

        An absolute name is taken as it is, a relative one beside the file that holds it, then beside the file
        that a symbolic link to it leads to. The working directory, where HDF5 would also look, is left out:
        what is found depends on who asks.

        Source: H5Lcreate_external and H5Pset_virtual of the HDF5 reference manual.
        """
        folders = (self.file.parent, self.file.resolve().parent)
        candidates = [Path(self.target)] if self.absolute else [folder / self.target for folder in folders]
        return next((path for path in candidates if path.is_file()), None)


def references(path: str | os.PathLike[str]) -> tuple[Reference, ...]:
    """Return the files that an HDF5 file needs, each name once for each kind, in the order of its objects.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with h5py.File(f"{folder}/a.h5", "w") as file:
    ...         file["x"] = h5py.ExternalLink("b.h5", "/x")
    ...     [(str(r.kind), r.place, r.target) for r in references(f"{folder}/a.h5")]
    [('external link', '/x', 'b.h5')]
    """
    file = Path(os.path.abspath(path))
    if not file.is_file():
        raise no_such_file(str(file))
    if not h5py.is_hdf5(file):
        raise NotHDF5Error(f"{file} is not an HDF5 file", file=str(file))
    try:
        with open_file(str(file), marked=False) as opened:
            found = [*_links(opened, file), *_datasets(opened, file)]
    except (OSError, RuntimeError) as error:
        raise TruncatedFileError(f"{file} cannot be looked through: {error}", file=str(file)) from error
    return tuple({(item.kind, item.target): item for item in reversed(found)}.values())[::-1]


def files_behind(dataset: h5py.Dataset, path: str) -> list[str]:
    """Return the files that libhdf5 reads the elements of a dataset from, other than its own, if they are there."""
    seen: dict[str, None] = {}
    _add_files_behind(dataset, Path(os.path.abspath(path)), seen)
    return list(seen)


def _add_files_behind(dataset: h5py.Dataset, file: Path, seen: dict[str, None]) -> None:
    for reference in _of_dataset(dataset.id.get_create_plist(), file, b""):
        found = reference.resolve()
        if found is None or str(found) in seen:
            continue
        seen[str(found)] = None
        if reference.kind is ReferenceKind.VIRTUAL:
            names = {source.dset_name for source in dataset.virtual_sources()}
            # Sources may be virtual themselves; what cannot be followed leads nowhere.
            with contextlib.suppress(OSError, RuntimeError, ValueError), open_file(str(found)) as opened:
                for name in names:
                    source = opened.get(name)
                    if isinstance(source, h5py.Dataset) and source.is_virtual:
                        _add_files_behind(source, found, seen)


def _links(opened: h5py.File, file: Path) -> list[Reference]:
    found: list[Reference] = []

    def visit(name: bytes, info: h5py.h5l.LinkInfo) -> None:
        if info.type == h5py.h5l.TYPE_EXTERNAL:
            target, _ = opened.id.links.get_val(name)
            found.append(_reference(ReferenceKind.LINK, file, name, os.fsdecode(target)))

    opened.id.links.visit(visit, info=True)
    return found


def _datasets(opened: h5py.File, file: Path) -> list[Reference]:
    found: list[Reference] = []

    def visit(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            creation = h5py.h5d.open(opened.id, name).get_create_plist()
            found.extend(_of_dataset(creation, file, name))

    h5py.h5o.visit(opened.id, visit, info=True)
    return found


def _of_dataset(creation: h5py.h5p.PropDCID, file: Path, name: bytes) -> Iterator[Reference]:
    for number in range(creation.get_external_count()):
        target = os.fsdecode(creation.get_external(number)[0])
        yield _reference(ReferenceKind.STORAGE, file, name, target)
    if creation.get_layout() == h5py.h5d.VIRTUAL:
        for number in range(creation.get_virtual_count()):
            pattern = creation.get_virtual_filename(number)
            if pattern != ".":  # the file itself
                for target in _fill_in(pattern, file):
                    yield _reference(ReferenceKind.VIRTUAL, file, name, target)


def _reference(kind: ReferenceKind, file: Path, name: bytes, target: str) -> Reference:
    place = "/" + name.decode("utf-8", "surrogateescape").lstrip("/")
    return Reference(kind=kind, file=file, place=place, target=target)


def _fill_in(pattern: str, file: Path) -> Iterator[str]:
    """Yield the names that a pattern stands for: ``%b`` counts blocks from 0 until a file is missing."""
    literal = pattern.replace("%%", "%")
    if not _BLOCK_NUMBER.search(pattern):
        yield literal
        return
    for block in range(_MOST_BLOCKS):
        name = _BLOCK_NUMBER.sub(lambda match: f"{block:{match[1]}d}", pattern).replace("%%", "%")  # noqa: B023
        here = Reference(kind=ReferenceKind.VIRTUAL, file=file, place="", target=name)
        if here.resolve() is None:
            return
        yield name

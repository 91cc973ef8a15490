"""The files that come along: from what was asked for to groups of files that keep their places.

Names are read by `h5stream.storage.references`, which is imported only where an HDF5 file is looked into.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from h5stream.errors import H5StreamError, NotHDF5Error, UnfollowableReferenceError
from h5stream.staging.layout import Group, Member, version_from

if TYPE_CHECKING:
    from h5stream.storage.references import Reference


def gather(path: Path, *, follow: bool) -> tuple[Group, list[str]]:
    """Return the group of a file: itself, and with `follow` every file that it needs, directly or not; and what to say.

    A needed file that is named by an absolute path, or would not be found beside the copy, is an error.
    """
    from h5stream.storage.source import stat_of

    main = Path(os.path.abspath(path))
    stat_of(str(main))
    if not follow:
        # First, because looking into a file brings what this process has written into it, and so changes it.
        stays = list(_what_stays_behind(main))
        return _group([main]), stays
    found, missing = _closure(main)
    notices = [f"{item.file} names {item.target} ({item.kind}), which does not exist" for item in missing]
    return _group(found), [*notices, *_storage_notice(main)]


def _needs(path: Path) -> tuple[Reference, ...]:
    from h5stream.storage.references import references

    return references(path)


def _what_stays_behind(main: Path) -> Iterator[str]:
    try:
        needs = _needs(main)
    except NotHDF5Error:
        return
    except H5StreamError as error:
        yield f"it is not known which files {main} needs: {error}"
        return
    if needs:
        names = ", ".join(sorted({f"{item.target} ({item.kind})" for item in needs})[:10])
        yield (
            f"{main} needs other files, which are not staged: {names}"
            f"{', ...' if len(needs) > 10 else ''}. --follow (follow=True) brings them along"
        )


def _closure(main: Path) -> tuple[list[Path], list[Reference]]:
    """Return the files reached from one, itself first, as places in the layout; and names that lead nowhere."""
    found: dict[Path, None] = {main: None}
    missing: list[Reference] = []
    waiting = [main]
    while waiting:
        for item in _references_or_none(waiting.pop()):
            if item.resolve() is None and not _misplaced(item):
                missing.append(item)
                continue
            place = _place_beside(item)
            if place not in found:
                found[place] = None
                waiting.append(place)
    return list(found), missing


def _storage_notice(main: Path) -> Iterator[str]:
    # The one kind of name that HDF5 does not look up beside the file unless it is told to.
    if any(item.kind == "external storage" for item in _references_or_none(main)):
        yield (
            f"{main} has external storage, which HDF5 looks for in the working directory: set "
            f"HDF5_EXTFILE_PREFIX='${{ORIGIN}}' to read the raw files that came along"
        )


def _references_or_none(path: Path) -> tuple[Reference, ...]:
    try:
        return _needs(path)
    except NotHDF5Error:  # external storage is raw bytes
        return ()


def _misplaced(item: Reference) -> bool:
    """Say whether HDF5 finds the file in the working directory only."""
    return not item.absolute and Path(item.target).is_file()


def _place_beside(item: Reference) -> Path:
    """Return where the needed file stands beside the file that names it; refuse what a copy would not find."""
    problem = ""
    place = Path(os.path.normpath(item.file.parent / item.target))
    if item.absolute:
        problem = "is named by an absolute path, so that a copy would still read the original"
    elif item.resolve() is None:
        problem = "is read from the working directory, so that it has no place beside the copy"
    elif not place.is_file():
        problem = "is reached through a symbolic link that it does not lie beside, and a copy would not find it"
    if problem:
        raise UnfollowableReferenceError(
            f"cannot bring along what {item.file} needs: its {item.place} needs {item.target} ({item.kind}), "
            f"which {problem}. Stage without --follow, or rewrite the name relative to the file",
            file=str(item.file),
            target=item.target,
        )
    return place


def _group(places: list[Path]) -> Group:
    root = os.path.commonpath([place.parent for place in places])
    members = [
        Member(
            source=os.path.realpath(place), version=version_from(place.stat()), relative=os.path.relpath(place, root)
        )
        for place in places
    ]
    return Group(root=root, members=tuple(members))

"""What a loader asks of staging: copies of a layout's files, a lease while it lives, and what may be mapped."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from h5stream.errors import H5StreamError
from h5stream.staging.claims import is_intact
from h5stream.staging.folder import StagingFolder
from h5stream.staging.front import stage
from h5stream.staging.manifest import CONTROL
from h5stream.storage.layout import SampleLayout
from h5stream.storage.source import FileIdentity

_log = logging.getLogger("h5stream")

PathLike = str | os.PathLike[str]


def stage_layout(layout: SampleLayout, to: PathLike) -> tuple[SampleLayout, Callable[[], None]]:
    """Stage the files of a layout; give the layout over the copies, and what gives their lease back.

    A copy has its source's bytes, so every address in the layout holds for it too: nothing is opened again. A file that
    is not the one any more that the layout was made of is an error.
    """
    every = [one for identity in layout.files for one in identity.each()]
    _log.info("staging %d file(s) to %s", len(every), to)
    # What links lead to is among the files. Other files that those need come along only where they may be outside.
    follow = layout.allow_external and any(part.leads_on for parts in layout.datasets for part in parts)
    staged = stage([one.path for one in every], to=to, follow=follow)
    for notice in staged.notices:
        _log.info("%s", notice)
    try:
        for one in every:
            one.check_unchanged()
        made = iter([FileIdentity.of(str(path)) for path in staged.paths])
        copies = tuple(identity.over([next(made) for _ in identity.file_sizes]) for identity in layout.files)
    except BaseException:
        staged.release()
        raise
    # Not simply all of them: what lay in the folder before need not be a copy of ours.
    return with_mapped_files(replace(layout, files=copies)), staged.release


def with_mapped_files(layout: SampleLayout) -> SampleLayout:
    """Return the layout with a note of those files that are staged copies already, and may therefore be mapped."""
    manifest_of = functools.cache(_manifest)
    mapped = frozenset(
        n
        for n, identity in enumerate(layout.files)
        if isinstance(identity, FileIdentity) and _is_staged(identity.path, manifest_of)
    )
    return replace(layout, mapped=mapped) if mapped else layout


def _is_staged(path: str, manifest_of: Callable[[Path], dict[str, object]]) -> bool:
    real = Path(os.path.realpath(path))
    for folder in real.parents:
        if (folder / CONTROL).is_dir():
            return manifest_of(folder).get(str(real.relative_to(folder))) is True
    return False


def _manifest(folder: Path) -> dict[str, object]:
    """Tell of each file that a manifest names whether it is whole and as it was made."""
    place = StagingFolder(path=folder)
    try:
        return {name: entry.whole and is_intact(place, name, entry) for name, entry in place.load().items()}
    except (H5StreamError, OSError):  # a folder of another user's, or one that may not be looked into
        return {}

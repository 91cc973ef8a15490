"""What a loader asks of staging: copies of a layout's files, and a lease while it lives."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace

from h5stream.staging.front import stage
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
    return replace(layout, files=copies), staged.release

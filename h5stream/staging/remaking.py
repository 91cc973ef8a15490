"""Staging files repacked: rewritten into the folder instead of copied there.

What is rewritten lies in the control folder under an unfinished name like any copy, and becomes one in the same
way. The engine is imported only here, and only when something is repacked: `h5stream stage` needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from h5stream.errors import SourceChangedError
from h5stream.repacking.recipe import Recipe
from h5stream.staging.checksum import BLOCK_BYTES, Checksum, combine, hash_block
from h5stream.staging.claims import is_of
from h5stream.staging.copying import CopiedFile, CopyJob, dress, open_part
from h5stream.staging.folder import StagingFolder
from h5stream.staging.layout import Member, version_from

if TYPE_CHECKING:
    from h5stream.repacking.rewrite import RepackProgress, RewritePlan


class Remaking:
    """Rewrites files by one recipe.

    # Guarantees: used by the thread that called `stage`.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._plans: dict[str, RewritePlan] = {}

    def look_at(self, folder: StagingFolder, members: Sequence[Member]) -> list[str]:
        """Plan what seems to be missing, before the folder is locked: it may mean to read a long index.

        Gives what is to be said before anything is written.
        """
        whole = [entry for entry in folder.load().values() if entry.whole]
        missing = [each for each in members if not any(is_of(entry, each, self.recipe.to_text()) for entry in whole)]
        return [f"{each.source}: {notice}" for each in missing for notice in self._plan(each.source).notices]

    def _plan(self, source: str) -> RewritePlan:
        from h5stream.repacking.rewrite import plan_rewrite

        if source not in self._plans:
            self._plans[source] = plan_rewrite(source, self.recipe)
        return self._plans[source]

    def estimate(self, member: Member) -> int:
        """Give about how many bytes a file will take."""
        from h5stream.repacking.rewrite import estimate_nbytes

        return estimate_nbytes(self._plan(member.source))

    def remake(self, job: CopyJob, progress: Callable[[int], None]) -> tuple[CopiedFile, tuple[str, ...]]:
        """Rewrite a file to its unfinished name, verify it and flush it; give it, and what could not be kept.

        `progress` is told how far it is, in bytes of the estimated size.
        """
        from h5stream.repacking.repack import explained
        from h5stream.repacking.rewrite import estimate_nbytes, rewrite

        plan = self._plan(job.source)
        estimated = estimate_nbytes(plan)

        def show(now: RepackProgress) -> None:
            progress(estimated * now.bytes_done // max(1, now.bytes_total))

        os.close(open_part(job))  # complains if it is gone
        result = explained(Path(job.source), Path(job.folder, job.name), lambda: rewrite(plan, job.part, show))
        notices = tuple(f"{job.source}: {notice}" for notice in result.notices if notice not in plan.notices)
        target = open_part(job)
        try:
            facts = os.stat(job.source)
            if version_from(facts) != job.version:
                raise SourceChangedError(
                    f"{job.source} changed while it was repacked. The copy was not kept; stage again when nothing "
                    "writes to it",
                    file=job.source,
                )
            copy = dress(job, facts, target)
            return (
                CopiedFile(
                    job=job,
                    checksum=_checksum(target, copy.st_size),
                    inode=copy.st_ino,
                    mtime_ns=copy.st_mtime_ns,
                    repacked_bytes=copy.st_size,
                ),
                notices,
            )
        finally:
            os.close(target)


def _checksum(descriptor: int, size_bytes: int) -> Checksum:
    """Hash what was written, as the manifest keeps it; whether it is right was found out through h5py."""
    starts = range(0, size_bytes, BLOCK_BYTES)
    return combine([hash_block(descriptor, start, BLOCK_BYTES, lambda nbytes: None) for start in starts])

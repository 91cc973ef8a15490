"""Staging files repacked: rewritten into the folder instead of copied there.

What is rewritten lies in the control folder under an unfinished name like any copy, and becomes one in the same
way. The engine is imported only here, and only when something is repacked: `h5stream stage` needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from h5stream.repacking.recipe import Recipe
from h5stream.staging.claims import is_of
from h5stream.staging.copying import CopiedFile, CopyJob, finish, open_part
from h5stream.staging.folder import StagingFolder
from h5stream.storage.source import FileIdentity

if TYPE_CHECKING:
    from h5stream.repacking.rewrite import RepackProgress
    from h5stream.repacking.survey import RewritePlan


class Remaking:
    """Rewrites files by one recipe.

    # Guarantees: used by the thread that called `stage`.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self.text = recipe, recipe.to_text()
        self._plans: dict[str, RewritePlan] = {}

    def look_at(self, folder: StagingFolder, sources: Sequence[FileIdentity]) -> list[str]:
        """Plan what seems to be missing, before the folder is locked, as it may mean to read a long index.

        What is to be said before anything is written comes back.
        """
        whole = [entry for entry in folder.load().values() if entry.whole]
        missing = [each.path for each in sources if not any(is_of(entry, each, self.text) for entry in whole)]
        return [f"{path}: {notice}" for path in missing for notice in self._plan(path).notices]

    def _plan(self, source: str) -> RewritePlan:
        from h5stream.repacking.survey import plan_rewrite

        if source not in self._plans:
            self._plans[source] = plan_rewrite(source, self._recipe)
        return self._plans[source]

    def estimate(self, source: str) -> int:
        """Return about how many bytes a file will take."""
        return self._plan(source).estimated_nbytes

    def remake(self, job: CopyJob, told: Callable[[int], None]) -> tuple[CopiedFile, tuple[str, ...]]:
        """Rewrite a file to its unfinished name, verified and flushed; return it, and what could not be kept.

        `told` hears how far it is, in bytes of the estimated size.
        """
        from h5stream.repacking.repack import explained
        from h5stream.repacking.rewrite import rewrite

        plan = self._plan(job.source.path)

        def show(now: RepackProgress) -> None:
            told(plan.estimated_nbytes * now.bytes_done // max(1, now.bytes_total))

        os.close(open_part(job))  # complains if it is gone
        with explained(job.source.path, Path(job.folder, job.name)):
            result = rewrite(plan, job.part, show)
        target = open_part(job)
        try:
            copied = finish(job, target, repacked=True)
        finally:
            os.close(target)
        return copied, tuple(f"{plan.source}: {notice}" for notice in result.notices if notice not in plan.notices)

"""One call of `stage`, from the files asked for to the paths of their copies.

# Guarantees:
# - The manifest is touched by the caller's thread only; the threads of `ParallelCopy` know nothing of it.
# - Whatever ends a call early (an error, Ctrl-C, an error of the progress callback) stops the threads and takes back
#   what was not finished. After a kill -9 the next call that takes the folder's lock does the same.
# - No wait is longer than `TICK_S` without a call of the progress callback.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from h5stream.errors import H5StreamError
from h5stream.executors import TICK_S, Job, carried_out
from h5stream.filesystem import (
    Mount,
    existing_parent,
    explained,
    flush_folder,
    give_name,
    mount_of,
    resident_bytes,
    rotates,
    unfinished,
)
from h5stream.repacking import Recipe
from h5stream.staging.claims import Claim, Group, Terms, gather, is_of, make_claim
from h5stream.staging.copying import CopyJob, Finished, ParallelCopy, finish, gone, open_part
from h5stream.staging.folder import CONTROL, StagingFolder, pids_of
from h5stream.storage.remote import ObjectIdentity
from h5stream.storage.source import FileIdentity
from h5stream.storage.stores import is_address
from h5stream.units import text_of_bytes

if TYPE_CHECKING:
    from h5stream.repacking.repack import RepackProgress
    from h5stream.repacking.survey import RewritePlan

_MOST_NOTICES, _MOST_SAMPLES = 3, 32
RESIDENT_SHARE = 0.9
"""From here on nearly every read is served from memory; the rest comes in with the first epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingProgress:
    """How far one call of `stage` has come."""

    bytes_done: int
    """Bytes that lie in the folder already, of what had to be copied by this or another process."""
    bytes_total: int
    """Bytes that had to be copied by this or another process."""
    files_done: int
    """Files that are whole, of those that had to be copied."""
    files_total: int
    """Files that had to be copied."""
    waiting_for: tuple[int, ...]
    """Process ids of those who copy what this process only waits for; empty while it copies itself."""
    notices: tuple[str, ...]
    """Lines for people that are known so far."""


ProgressCallback = Callable[[StagingProgress], None]
"""Called in the caller's thread, about ten times a second, also during waits. What it raises ends the call:
nothing half-copied is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """Where staged files are, and how they came there."""

    folder: Path
    """The folder."""
    paths: tuple[Path, ...]
    """For each file that was asked for, in that order, its copy."""
    followed: tuple[Path, ...]
    """Copies of the files that came along."""
    copied: tuple[Path, ...]
    """The copies that this call made."""
    reused: tuple[Path, ...]
    """The copies that were there already, or that another process made while this one waited."""
    bytes_copied: int
    """What this call copied, in bytes."""
    notices: tuple[str, ...]
    """Lines for people: why staging gains little, which files are needed but were not staged."""
    token: str = field(repr=False)
    """Names this call's lease: the session whose lock the process holds; empty where none was taken."""

    def release(self) -> None:
        """Let go of the copies; those that were made by `staged` and that no process uses any more are deleted.

        Nothing happens the second time, in a forked child, or where the folder is gone.
        """
        StagingFolder(self.folder).release(self.token)


class Remaking:
    """Rewrites files by one recipe into the folder, instead of copying them there.

    The engine is imported only here, and only when something is repacked: `h5stream stage` needs no torch.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.text = recipe, recipe.to_text()
        self._plans: dict[str, RewritePlan] = {}

    def look_at(self, folder: StagingFolder, sources: Sequence[FileIdentity | ObjectIdentity]) -> list[str]:
        """Plan what seems to be missing, before the folder is locked, as it may mean to read a long index.

        What is to be said before anything is written comes back.
        """
        whole = [entry for entry in folder.load().values() if entry.whole]
        missing = [each.path for each in sources if not any(is_of(entry, each, self.text) for entry in whole)]
        return [f"{path}: {notice}" for path in missing for notice in self._plan(path).notices]

    def _plan(self, source: str) -> RewritePlan:
        from h5stream.repacking.survey import plan_rewrite

        if source not in self._plans:
            self._plans[source] = plan_rewrite(source, self.recipe)
        return self._plans[source]

    def estimate(self, source: str) -> int:
        """Return about how many bytes a file will take."""
        return self._plan(source).estimated_nbytes

    def remake(self, job: CopyJob, told: Callable[[int], None]) -> tuple[Finished, tuple[str, ...]]:
        """Rewrite a file to its unfinished name, verified and flushed; return it, and what could not be kept.

        `told` hears how far it is, in bytes of the estimated size.
        """
        from h5stream.repacking.repack import rewrite

        plan = self._plan(job.source.path)

        def show(now: RepackProgress) -> None:
            told(plan.estimated_nbytes * now.bytes_done // max(1, now.bytes_total))

        os.close(open_part(job))  # complains if it is gone
        with explained(job.source.path, job.folder.path, "rewritten", plan.estimated_nbytes):
            result = rewrite(plan, job.part, show)
        target = open_part(job)
        try:
            copied = finish(job, target, repacked=True)
        finally:
            os.close(target)
        return copied, tuple(f"{plan.source}: {notice}" for notice in result.notices if notice not in plan.notices)


def _remade(job: CopyJob, recipe: Recipe) -> tuple[Finished, tuple[str, ...]]:
    """Rewrite a file to its unfinished name, wherever an executor has this called."""
    return Remaking(recipe).remake(job, lambda _: None)


def _copied(job: CopyJob, threads: int) -> tuple[Finished, tuple[str, ...]]:
    """Copy a file to its unfinished name, wherever an executor has this called."""
    copy, finished = ParallelCopy([job], threads), list[Finished]()
    try:
        copy.start()
        while not finished:
            finished = copy.wait(TICK_S)
    finally:
        copy.close()
    return finished[0], ()


class StagingRun:
    """One call of `stage`: claims, copies, publishes, waits."""

    def __init__(
        self,
        folder: StagingFolder,
        terms: Terms,
        threads: int,
        progress: ProgressCallback | None,
        remaking: Remaking | None,
        executor: Executor | None,
    ) -> None:
        self._folder, self._terms, self._threads = folder, terms, threads
        self._progress, self._remaking, self._executor = progress, remaking, executor
        self._notices: list[str] = []
        self._copied: dict[str, int] = {}  # name -> bytes
        self._now = StagingProgress(
            bytes_done=0, bytes_total=0, files_done=0, files_total=0, waiting_for=(), notices=()
        )

    def run(self, paths: Sequence[str], follow: bool, known: Mapping[str, ObjectIdentity]) -> StagedFiles:
        """Bring everything to the folder; of some objects in stores it is `known` what they must be."""
        inside = os.path.realpath(self._folder.path)
        real = {path: os.path.realpath(path) for path in paths if not is_address(path)}
        in_place = [
            path
            for path, where in real.items()
            if where.startswith(f"{inside}/") and not where.startswith(f"{inside}/{CONTROL}/") and os.path.isfile(path)
        ]
        wanted = [path for path in dict.fromkeys(paths) if path not in in_place]
        groups = []
        for path in wanted:
            group, notices = gather(path, follow=follow, known=known.get(path))
            groups.append(group)
            self._notices += notices
        self._notices += [f"{path} lies in the folder already" for path in in_place]
        if self._remaking is not None:
            self._notices += self._remaking.look_at(self._folder, [group.members[0].source for group in groups])
        with unfinished(self._vanish):
            names = self._until_all_are_there(groups) if groups else []
        return self._result(paths, dict(zip(wanted, names, strict=True)))

    def _until_all_are_there(self, groups: Sequence[Group]) -> list[tuple[str, ...]]:
        try:
            while True:
                claim = make_claim(self._folder, groups, self._terms, self._tick)
                if claim.to_copy:
                    self._copy(claim)
                if not claim.to_wait_for:
                    break
                self._wait(claim)
        except BaseException:
            # Out of space or out of reach: the next call that takes the lock sees a dead session and does the same.
            with contextlib.suppress(H5StreamError, OSError):
                self._vanish()  # first, so that there is room for the manifest
                self._folder.release(self._terms.session)
            raise
        if not self._terms.hold:
            self._folder.end_session(self._terms.session)
        return claim.names

    def _vanish(self) -> None:
        """Delete what this session writes; who takes the lock next sees a dead session, and takes its entries out."""
        for path in self._folder.control.glob(f"{self._terms.session}.*"):
            path.unlink(missing_ok=True)

    def _copy(self, claim: Claim) -> None:
        jobs = [CopyJob(self._folder, name, claim.files[name], source) for name, source in claim.to_copy.items()]
        if self._remaking is None:
            self._notices += _gain_notices(jobs, self._folder.path)
        self._announce(claim)
        if self._remaking is not None or self._executor is not None:
            self._copy_one_by_one(jobs)
            return
        copy, before = ParallelCopy(jobs, self._threads), self._now
        left, published_at, finished = len(jobs), time.monotonic(), list[Finished]()
        try:
            copy.start()
            while left:
                finished += copy.wait(TICK_S)
                # Small files are done by the hundred in a tick, and the manifest is always written as a whole.
                if finished and (len(finished) == left or time.monotonic() - published_at >= TICK_S):
                    self._publish(finished)
                    left -= len(finished)
                    published_at, finished = time.monotonic(), []
                done = before.files_done + len(jobs) - left
                self._tell(bytes_done=before.bytes_done + copy.bytes_done, files_done=done)
        finally:
            copy.close()

    def _copy_one_by_one(self, jobs: Sequence[CopyJob]) -> None:
        """Carry out a call for each file, by the executor if there is one."""
        if self._remaking is None:
            calls = [Job(job.source.path, _copied, (job, self._threads)) for job in jobs]
        elif self._executor is None:
            calls = [Job(job.source.path, self._remaking.remake, (job, self._hear)) for job in jobs]
        else:
            calls = [Job(job.source.path, _remade, (job, self._remaking.recipe)) for job in jobs]
        done, published_at = list[Finished](), time.monotonic()
        with contextlib.closing(carried_out(calls, self._executor, self._tick)) as results:
            for left, (finished, notices) in zip(range(len(calls) - 1, -1, -1), results, strict=True):
                self._notices += notices
                done.append(finished)
                if self._remaking is not None or not left or time.monotonic() - published_at >= TICK_S:
                    self._publish(done)
                    self._hear(0, files_done=self._now.files_done + len(done), notices=tuple(self._notices))
                    done, published_at = [], time.monotonic()

    def _hear(self, nbytes: int, **changes: object) -> None:
        """Tell how many bytes are there, with some of a file that is not finished."""
        self._tell(bytes_done=sum(self._copied.values()) + nbytes, **changes)

    def _publish(self, finished: Sequence[Finished]) -> None:
        """Give finished copies their names, and say so; until then the manifest knows them by inode only."""
        with self._folder.locked(self._tick) as files:
            for job, entry in finished:
                now = files.get(job.name)
                if now is None or now.copy_inode != entry.copy_inode:
                    raise gone(job)
                with explained(job.source.path, job.folder.path, "copied", entry.bytes_of_copy):
                    path = self._folder.copy_path(job.name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    give_name(job.part, path)  # never over another file that was put there
                files[job.name] = replace(entry, users=now.users)
            flush_folder(self._folder.path)
            self._folder.save(files)
        self._copied.update({job.name: entry.bytes_of_copy for job, entry in finished})

    def _announce(self, claim: Claim) -> None:
        coming = [claim.files[name].bytes_of_copy for name in (*claim.to_copy, *claim.to_wait_for)]
        done = sum(self._copied.values())
        self._tell(
            bytes_done=done,
            bytes_total=done + sum(coming),
            files_done=len(self._copied),
            files_total=len(self._copied) + len(coming),
            notices=tuple(self._notices),
        )

    def _wait(self, claim: Claim) -> None:
        """Wait until what others copy is whole, or its copier is gone."""
        if not claim.to_copy:
            self._announce(claim)
        before = self._now
        while True:
            files = self._folder.load()
            there = {name: files[name] for name in claim.to_wait_for if name in files}
            alive = self._folder.alive_among(entry for entry in there.values() if not entry.whole)
            copying = {name: entry for name, entry in there.items() if not entry.whole and entry.owner in alive}
            if not copying:
                self._tell(waiting_for=())
                return
            done = sum(
                self._folder.copied_bytes(name, entry) if name in copying else entry.bytes_of_copy
                for name, entry in there.items()
            )
            self._tell(
                bytes_done=before.bytes_done + done,
                files_done=before.files_done + len(claim.to_wait_for) - len(copying),
                waiting_for=pids_of(entry.owner for entry in copying.values()),
            )
            time.sleep(TICK_S)

    def _tell(self, **changes: object) -> None:
        self._now = replace(self._now, **changes)  # type: ignore[arg-type]
        self._tick()

    def _tick(self) -> None:
        if self._progress is not None:
            self._progress(self._now)

    def _result(self, paths: Sequence[str], names: dict[str, tuple[str, ...]]) -> StagedFiles:
        where = self._folder.copy_path
        every = dict.fromkeys(name for group in names.values() for name in group)
        return StagedFiles(
            folder=self._folder.path,
            paths=tuple(where(names[path][0]) if path in names else Path(path).absolute() for path in paths),
            followed=tuple(dict.fromkeys(where(name) for group in names.values() for name in group[1:])),
            copied=tuple(where(name) for name in every if name in self._copied),
            reused=tuple(where(name) for name in every if name not in self._copied),
            bytes_copied=sum(self._copied.values()),
            notices=tuple(self._notices),
            token=self._terms.session if self._terms.hold else "",
        )


# --- Why staging gains little, for people.


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What matters about where a file lies."""

    device: int  # its number, `st_dev`
    mount: Mount
    rotates: bool | None  # whether it is a rotating disk; None where that is not known


def place_of(path: Path) -> Place:
    """Return where a file or folder lies; for what does not exist yet, where it would."""
    found = existing_parent(path)
    device = found.stat().st_dev
    return Place(device=device, mount=mount_of(found), rotates=rotates(device))


def _gain_notices(jobs: Sequence[CopyJob], folder: Path) -> list[str]:
    """Return why staging gains little, for at most `_MOST_SAMPLES` files at even distances."""
    jobs = [job for job in jobs if isinstance(job.source, FileIdentity)]  # from a store, much is gained
    target, sampled = place_of(folder), jobs[:: -(-len(jobs) // _MOST_SAMPLES) or 1]
    lines = [
        line
        for path, size in ((Path(job.source.path), job.source.size) for job in sampled)
        if (line := little_gain(path.as_posix(), size, resident_bytes(path), place_of(path), target))
    ]
    if len(lines) > _MOST_NOTICES:
        among = f"{len(sampled)} files" if len(sampled) == len(jobs) else f"{len(sampled)} files looked at"
        lines[_MOST_NOTICES:] = [f"... and {len(lines) - _MOST_NOTICES} more of {among} likewise"]
    return lines


def little_gain(name: str, size_bytes: int, resident: int | None, source: Place, target: Place) -> str:
    """Return why staging a file of which `resident` bytes are in the page cache gains little; empty if it may gain."""
    if source.mount.in_memory:
        return f"staging {name} gains nothing: it lies in memory already ({source.mount.kind})"
    if source.device == target.device:
        return f"staging {name} gains little: the folder is on the same file system and no faster"
    if target.mount.on_network:
        return f"staging {name} may gain nothing: the folder is on the network ({target.mount.kind})"
    if target.rotates and source.rotates is False:
        return f"staging {name} may gain nothing: the folder is on a rotating disk"
    if resident is not None and size_bytes and resident >= RESIDENT_SHARE * size_bytes:
        return (
            f"staging {name} gains little as long as memory is plenty: {text_of_bytes(resident)} of its "
            f"{text_of_bytes(size_bytes)} are in the page cache already"
        )
    return ""

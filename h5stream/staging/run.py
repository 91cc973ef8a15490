"""One call of `stage`, from the files asked for to the paths of their copies.

# Guarantees:
# - The manifest is touched by the caller's thread only; the threads of `ParallelCopy` know nothing of it.
# - Whatever ends a call early (an error, Ctrl-C, an error of the progress callback) passes through `_copy`'s
#   `finally`, which stops the threads and takes back what was not finished. After a kill -9 the next call
#   that takes the folder's lock does the same.
# - No wait is longer than `TICK_S` without a call of the progress callback.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from h5stream.errors import H5StreamError, StagingError
from h5stream.filesystem import (
    Mount,
    existing_parent,
    flush_folder,
    give_name,
    mount_of,
    resident_bytes,
    rotates,
    unfinished,
)
from h5stream.staging.claims import (
    Claim,
    Claimant,
    alive_among,
    copied_bytes,
    delete_copy,
    drop_unfinished,
    make_claim,
    reclaim,
)
from h5stream.staging.copying import CopiedFile, CopyJob, ParallelCopy
from h5stream.staging.folder import StagingFolder, end_session, is_held, pid_of
from h5stream.staging.layout import Group, gather
from h5stream.staging.manifest import CONTROL, Entry
from h5stream.staging.progress import ProgressCallback, StagingProgress
from h5stream.staging.remaking import Remaking
from h5stream.units import text_of_bytes

TICK_S = 0.1
_MOST_NOTICES = 3
_MOST_SAMPLES = 32


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
        _release(StagingFolder(path=self.folder), self.token)


def _release(folder: StagingFolder, session: str) -> None:
    if not is_held(session):
        return
    if not folder.control.exists():
        end_session(folder, session)
        return
    with folder.locked() as files:
        used = [name for name, entry in files.items() if session in entry.users]
        end_session(folder, session)
        reclaim(folder, files)
        for name in used:
            if name in files and not files[name].keep and files[name].whole and not files[name].users:
                delete_copy(folder, name, files.pop(name))
        folder.save(files)


class StagingRun:
    """One call of `stage`: claims, copies, publishes, waits."""

    def __init__(
        self,
        folder: StagingFolder,
        who: Claimant,
        threads: int,
        progress: ProgressCallback | None,
        remaking: Remaking | None = None,
    ) -> None:
        self._folder = folder
        self._who = who
        self._remaking = remaking
        self._threads = threads
        self._progress = progress
        self._notices: list[str] = []
        self._copied: dict[str, int] = {}  # name -> bytes
        self._now = StagingProgress(
            bytes_done=0, bytes_total=0, files_done=0, files_total=0, waiting_for=(), notices=()
        )

    def run(self, paths: Sequence[Path], follow: bool) -> StagedFiles:
        """Bring everything to the folder."""
        inside = os.path.realpath(self._folder.path)
        in_place = {path: _lies_in(path, inside) for path in paths}
        wanted = list(dict.fromkeys(path for path in paths if not in_place[path]))
        groups = []
        for path in wanted:
            group, notices = gather(path, follow=follow)
            groups.append(group)
            self._notices += notices
        self._notices += [f"{path} lies in the folder already" for path in in_place if in_place[path]]
        if self._remaking is not None:
            self._notices += self._remaking.look_at(self._folder, [group.members[0] for group in groups])
        with unfinished(self._vanish):
            names = self._until_all_are_there(groups) if groups else ()
        return self._result(paths, dict(zip(wanted, names, strict=True)))

    def _until_all_are_there(self, groups: Sequence[Group]) -> tuple[tuple[str, ...], ...]:
        done = False
        try:
            while True:
                claim = make_claim(self._folder, groups, self._who, self._tick)
                if claim.to_copy:
                    self._copy(claim)
                if not claim.to_wait_for:
                    done = True
                    return claim.names
                self._wait(claim)
        finally:
            if not done:
                self._give_back()
            elif not self._who.hold:
                end_session(self._folder, self._who.session)

    def _copy(self, claim: Claim) -> None:
        copy: ParallelCopy | None = None
        try:
            jobs = self._jobs(claim)
            if self._remaking is not None:
                self._announce(claim)
                self._remake(self._remaking, jobs)
                return
            self._notices += _gain_notices(jobs, self._folder.path)
            self._announce(claim)
            copy = ParallelCopy(jobs, self._threads)
            copy.start()
            self._until_copied(copy, len(jobs), self._now)
        finally:
            if copy is not None:
                copy.close()
            self._take_back()

    def _remake(self, remaking: Remaking, jobs: Sequence[CopyJob]) -> None:
        for job in jobs:
            before = self._now

            def show(done: int, start: int = before.bytes_done) -> None:
                self._tell(bytes_done=start + done)

            copied, notices = remaking.remake(job, show)
            self._notices += notices
            self._publish([copied])
            self._tell(
                bytes_done=before.bytes_done + copied.size_bytes,
                files_done=before.files_done + 1,
                notices=tuple(self._notices),
            )

    def _until_copied(self, copy: ParallelCopy, count: int, before: StagingProgress) -> None:
        left, published_at = count, time.monotonic()
        finished: list[CopiedFile] = []
        while left:
            finished += copy.wait(TICK_S)
            # Small files are done by the hundred in a tick, and the manifest is always written as a whole.
            if finished and (len(finished) == left or time.monotonic() - published_at >= TICK_S):
                self._publish(finished)
                left -= len(finished)
                published_at, finished = time.monotonic(), []
            self._tell(bytes_done=before.bytes_done + copy.bytes_done, files_done=before.files_done + count - left)

    def _jobs(self, claim: Claim) -> list[CopyJob]:
        target = place_of(self._folder.path)
        files = self._folder.load()
        jobs = []
        for name, member, inode in claim.to_copy:
            jobs.append(
                CopyJob(
                    name=name,
                    folder=str(self._folder.path),
                    source=member.source,
                    version=member.version,
                    part=self._folder.part_path(name, files[name]),
                    part_inode=inode,
                    # In memory, reading and writing by hand is faster (docs/notes-staging.md).
                    in_kernel=member.version.device == target.device and not target.mount.in_memory,
                )
            )
        return jobs

    def _publish(self, finished: Sequence[CopiedFile]) -> None:
        """Give finished copies their names, and say so; until then the manifest knows them by inode only."""
        with self._folder.locked(self._tick) as files:
            for copied in finished:
                job, entry = copied.job, self._own_entry(files, copied.job)
                _give_name(job, self._folder)
                files[job.name] = replace(
                    entry,
                    checksum=copied.checksum,
                    copy_mtime_ns=copied.mtime_ns,
                    copy_bytes=copied.repacked_bytes,
                    staged_at=time.time(),
                )
            flush_folder(self._folder.path)
            self._folder.save(files)
        self._copied.update({copied.job.name: copied.size_bytes for copied in finished})

    def _own_entry(self, files: dict[str, Entry], job: CopyJob) -> Entry:
        entry = files.get(job.name)
        if entry is None or not self._is_unfinished(entry):
            raise StagingError(
                f"{job.name} was removed from {self._folder.path} while it was copied there. Its copy was "
                f"not kept; stage again",
                file=job.source,
                folder=str(self._folder.path),
            )
        return entry

    def _take_back(self) -> None:
        """Delete what was claimed and not finished; after a success there is nothing of the kind."""
        # Out of space or out of reach: the next call that takes the lock sees a dead session and does the
        # same.
        with contextlib.suppress(H5StreamError, OSError):
            own = {name: entry for name, entry in self._folder.load().items() if self._is_unfinished(entry)}
            for name, entry in own.items():  # first, so that there is room for the manifest
                self._folder.part_path(name, entry).unlink(missing_ok=True)
            if own:
                self._forget(own)

    def _forget(self, own: dict[str, Entry]) -> None:
        with self._folder.locked() as files:
            for name in own:
                if name in files and self._is_unfinished(files[name]):
                    drop_unfinished(self._folder, name, files.pop(name))
            self._folder.save(files)

    def _vanish(self) -> None:
        """Delete what this session writes; who takes the lock next sees a dead session, and takes its entries out."""
        for path in self._folder.control.glob(f"{self._who.session}.*"):
            path.unlink(missing_ok=True)

    def _is_unfinished(self, entry: Entry) -> bool:
        return not entry.whole and entry.owner == self._who.session

    def _give_back(self) -> None:
        """End the session of a call that has failed, and with it the uses that it has begun."""
        with contextlib.suppress(H5StreamError, OSError):
            _release(self._folder, self._who.session)

    def _announce(self, claim: Claim) -> None:
        files = self._folder.load()
        waited = [files[name].bytes_of_copy for name in claim.to_wait_for if name in files]
        own = [self._who.bytes_of_copy(member) for _, member, _ in claim.to_copy]
        done = sum(self._copied.values())
        self._tell(
            bytes_done=done,
            bytes_total=done + sum(own) + sum(waited),
            files_done=len(self._copied),
            files_total=len(self._copied) + len(own) + len(waited),
            notices=tuple(self._notices),
        )

    def _wait(self, claim: Claim) -> None:
        """Wait until what others copy is whole, or its copier is gone."""
        if claim.to_wait_for and not claim.to_copy:
            self._announce(claim)
        before, count = self._now, len(claim.to_wait_for)
        while True:
            files = self._folder.load()
            unfinished = {n: files[n] for n in claim.to_wait_for if n in files and not files[n].whole}
            alive = alive_among(self._folder, unfinished.values())
            copying = {name: entry for name, entry in unfinished.items() if entry.owner in alive}
            if not copying:
                self._tell(waiting_for=())
                return
            there = sum(copied_bytes(self._folder, name, entry) for name, entry in copying.items())
            whole = sum(files[n].bytes_of_copy for n in claim.to_wait_for if n in files and n not in copying)
            self._tell(
                bytes_done=before.bytes_done + there + whole,
                files_done=before.files_done + count - len(copying),
                waiting_for=tuple(sorted({pid_of(entry.owner) for entry in copying.values()})),
            )
            time.sleep(TICK_S)

    def _tell(self, **changes: object) -> None:
        self._now = replace(self._now, **changes)  # type: ignore[arg-type]
        self._tick()

    def _tick(self) -> None:
        if self._progress is not None:
            self._progress(self._now)

    def _result(self, paths: Sequence[Path], names: dict[Path, tuple[str, ...]]) -> StagedFiles:
        where = self._folder.copy_path
        all_names = dict.fromkeys(name for group in names.values() for name in group)
        return StagedFiles(
            folder=self._folder.path,
            paths=tuple(where(names[path][0]) if path in names else path.absolute() for path in paths),
            followed=tuple(dict.fromkeys(where(name) for group in names.values() for name in group[1:])),
            copied=tuple(where(name) for name in all_names if name in self._copied),
            reused=tuple(where(name) for name in all_names if name not in self._copied),
            bytes_copied=sum(self._copied.values()),
            notices=tuple(self._notices),
            token=self._who.session if self._who.hold else "",
        )


def _lies_in(path: Path, folder: str) -> bool:
    real = os.path.realpath(path)
    return real.startswith(folder + "/") and not real.startswith(f"{folder}/{CONTROL}/") and path.is_file()


def _give_name(job: CopyJob, folder: StagingFolder) -> None:
    """Rename a copy to its own name, never over another file that was put there."""
    path = folder.copy_path(job.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        give_name(job.part, path)
    except OSError as error:
        raise StagingError(
            f"cannot give the copy of {job.source} its name {path}: {error.strerror or error}. Its copy was not kept",
            file=job.source,
            folder=job.folder,
        ) from error


def _gain_notices(jobs: Sequence[CopyJob], folder: Path) -> list[str]:
    """Give why staging gains little, for at most `_MOST_SAMPLES` files at even distances."""
    target = place_of(folder)
    sources: dict[int, Place] = {}
    sampled = jobs[:: -(-len(jobs) // _MOST_SAMPLES)]
    lines = []
    for job in sampled:
        path, device = Path(job.source), job.version.device
        if device not in sources:
            sources[device] = place_of(path)
        line = little_gain(job.source, job.version.size_bytes, resident_bytes(path), sources[device], target)
        lines += [line] if line else []
    if len(lines) > _MOST_NOTICES:
        among = f"{len(sampled)} files" if len(sampled) == len(jobs) else f"{len(sampled)} files looked at"
        lines[_MOST_NOTICES:] = [f"... and {len(lines) - _MOST_NOTICES} more of {among} likewise"]
    return lines


# From here on nearly every read is served from memory; the rest comes in with the first epoch.
RESIDENT_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What matters about where a file lies."""

    device: int
    """Number of the device, as ``st_dev``."""
    mount: Mount
    """The file system."""
    rotates: bool | None
    """Whether it lies on a rotating disk; None where that is not known."""


def place_of(path: Path) -> Place:
    """Return where a file or folder lies; for what does not exist yet, where it would."""
    found = existing_parent(path)
    device = found.stat().st_dev
    return Place(device=device, mount=mount_of(found), rotates=rotates(device))


def little_gain(name: str, size_bytes: int, resident: int | None, source: Place, target: Place) -> str:
    """Give why staging a file gains little, for people; an empty string where it may gain.

    Of the file the page cache holds `resident` bytes; None where that is not known.
    """
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

"""One call of `stage`, from the requested files to the paths of their copies.

# Guarantees:
# - Only the caller's thread accesses the manifest; the threads of `ParallelCopy` do not.
# - Decisions are made under `StagingFolder.locked`, without copying data.
# - A name is written to the manifest before a file of that name exists, and removed after the file is deleted:
#   whenever a kill -9 comes, the manifest names every copy of h5stream by its inode. Files in the control folder
#   belong to the session that their names begin with, and are swept away with it.
# - A process claims all files that it will copy at once, copies them, and only then waits for files that others
#   copy. So no two processes wait for each other.
# - If a call ends early (by an error, Ctrl-C, or an error of the progress callback), it stops the threads and removes
#   unfinished copies. After a kill -9 the next call that takes the folder's lock does the same.
# - No wait is longer than `TICK_S` without a call of the progress callback.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import posixpath
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from h5stream.base import filesystem
from h5stream.base.executors import TICK_S, Job, run_jobs
from h5stream.base.names import is_address
from h5stream.base.texts import names_text, text_of_bytes
from h5stream.errors import H5StreamError, SourceError, UnfollowableReferenceError
from h5stream.repacking import Recipe
from h5stream.staging.copying import CopyJob, ParallelCopy, finish, gone, open_part
from h5stream.staging.folder import CONTROL, Entry, Files, Source, StagingFolder, is_of, new_session, pids_of, state_of
from h5stream.storage.file.external import STORAGE, Reference, references
from h5stream.storage.source.handles import said_of_writer
from h5stream.storage.source.one_file import FileIdentity, stat_of
from h5stream.storage.source.remote import ObjectIdentity, opened_again

if TYPE_CHECKING:
    from h5stream.repacking.repack import RepackProgress
    from h5stream.repacking.survey import RewritePlan

_MOST_NOTICES, _MOST_SAMPLES = 3, 32
RESIDENT_SHARE = 0.9  # share from which nearly every read is served from memory; the first epoch reads the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingProgress:
    """The progress of one call of `stage`."""

    bytes_done: int
    """Bytes already in the folder, of those that this or another process had to copy."""
    bytes_total: int
    """Bytes that had to be copied by this or another process."""
    files_done: int
    """Complete files, of those that had to be copied."""
    files_total: int
    """Files that had to be copied."""
    waiting_for: tuple[int, ...]
    """Process ids of those that copy files for which this process waits; empty while it copies itself."""
    notices: tuple[str, ...]
    """Messages so far, for users."""


ProgressCallback = Callable[[StagingProgress], None]
"""Called in the caller's thread about ten times a second, also during waits. An exception that it raises ends the call,
and unfinished copies are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """The paths of staged files, and how each was made."""

    folder: Path
    """The folder."""
    paths: tuple[Path, ...]
    """The copy of each requested file, in the order of the request."""
    followed: tuple[Path, ...]
    """Copies of the files that requested files need."""
    copied: tuple[Path, ...]
    """The copies that this call made."""
    reused: tuple[Path, ...]
    """Copies that existed already, or that another process made while this one waited."""
    bytes_copied: int
    """Bytes copied by this call."""
    notices: tuple[str, ...]
    """Messages for users: why staging gains little, which files are needed but were not staged."""
    token: str = field(repr=False)
    """Names this call's lease: the session whose lock the process holds; empty if there is no lease."""

    def release(self) -> None:
        """Release the copies; those that were made by `staged` and are no longer used by any process are deleted.

        Does nothing when called again, in a forked child, or if the folder does not exist.
        """
        StagingFolder(self.folder).release(self.token)


class Claim(NamedTuple):
    """The decisions of one pass over the manifest."""

    names: list[list[str]]  # the name of each member of each group
    to_copy: dict[str, Source]  # files for this process to copy, by name
    to_wait_for: list[str]  # files that other processes are copying
    files: Files  # the manifest as written


def _plan_of(source: str, recipe: Recipe) -> RewritePlan:
    # The engine is only imported here, for rewriting: `h5stream stage` needs no torch.
    from h5stream.repacking.survey import plan_rewrite

    return plan_rewrite(source, recipe)


def _rewrite(job: CopyJob, recipe: Recipe, plan: RewritePlan | None, report: Callable[[int], None] | None) -> CopyJob:
    """Rewrite a file to its unfinished name, verified and flushed; an executor may call this anywhere.

    `report` is called with the progress, in bytes of the estimated size.
    """
    with opened_again(job.source):
        return _rewrite_here(job, recipe, plan or _plan_of(job.source.path, recipe), report)


def _rewrite_here(job: CopyJob, recipe: Recipe, plan: RewritePlan, report: Callable[[int], None] | None) -> CopyJob:
    from h5stream.repacking.repack import rewrite

    expected, planned = plan.estimated_nbytes, plan.notices

    def show(now: RepackProgress) -> None:
        if report is not None:
            report(expected * now.bytes_done // max(1, now.bytes_total))

    open_part(job).close()  # raises if it was removed
    with filesystem.explained(job.folder.path, "rewritten", job.source.path, expected):
        result = rewrite(plan, job.part, show)
    with open_part(job) as part:
        notices = tuple(f"{job.source.path}: {notice}" for notice in result.notices if notice not in planned)
        return replace(finish(job, part.fileno(), repacked=True), notices=notices)


def _copied(job: CopyJob, threads: int) -> CopyJob:
    """Copy a file to its unfinished name; an executor may call this anywhere."""
    ((finished,),) = filter(None, ParallelCopy().finished([job], threads))
    return finished


@dataclass(kw_only=True)
class StagingRun:
    """One call of `stage`: claims, copies, publishes, waits."""

    folder: StagingFolder
    hold: bool  # whether the session continues, as a user of the copies
    keep: bool  # whether the copies stay when they are no longer used
    margin_bytes: int | None = None  # bytes that must stay free; None for the defaults
    threads: int = 1
    recipe: Recipe | None = None  # how to rewrite the files; None for copies of their own bytes
    progress: ProgressCallback | None = None
    executor: Executor | None = None
    session: str = field(default_factory=new_session)

    def __post_init__(self) -> None:
        self._notices: list[str] = []
        self._copied: dict[str, int] = {}  # name -> bytes
        self._now = StagingProgress(
            bytes_done=0, bytes_total=0, files_done=0, files_total=0, waiting_for=(), notices=()
        )
        self._recipe = "" if self.recipe is None else self.recipe.to_text()
        self._plan = functools.cache(functools.partial(_plan_of, recipe=self.recipe or Recipe()))

    def run(self, paths: Sequence[str], follow: bool) -> StagedFiles:
        """Stage files to the folder."""
        groups: dict[str, FileGroup] = {}
        for path in dict.fromkeys(paths):
            inside, where = os.path.realpath(self.folder.path), os.path.realpath(path)
            is_inside = where.startswith(f"{inside}/") and not where.startswith(f"{inside}/{CONTROL}/")
            if is_inside and not is_address(path) and os.path.isfile(path):
                self._notices.append(f"{path} lies in the folder already")
            else:
                groups[path], notices = gather(path, follow=follow)
                self._notices += notices
        if self.recipe is not None:  # before the folder is locked, since it may read a long index
            whole = [entry for entry in self.folder.load().values() if entry.whole]
            for source in (source for group in groups.values() for source in group.members.values()):
                if not any(is_of(entry, source, self._recipe) for entry in whole):
                    self._notices += [f"{source.path}: {notice}" for notice in self._plan(source.path).notices]
        with filesystem.unfinished(self._delete_session_files):
            names = self._stage_groups(list(groups.values())) if groups else []
        return self._result(paths, dict(zip(groups, names, strict=True)))

    def _stage_groups(self, groups: Sequence[FileGroup]) -> list[list[str]]:
        try:
            while True:
                claim = self._claim(groups)
                coming = [claim.files[name].bytes_of_copy for name in (*claim.to_copy, *claim.to_wait_for)]
                self._now = replace(
                    self._now,
                    bytes_total=sum(self._copied.values()) + sum(coming),
                    files_total=len(self._copied) + len(coming),
                )
                if claim.to_copy:
                    self._copy(claim)
                if not claim.to_wait_for:
                    break
                self._wait(claim.to_wait_for)
        except BaseException:
            # If this fails, the next call that takes the lock finds a dead session and does the same.
            with contextlib.suppress(H5StreamError, OSError):
                self._delete_session_files()  # first, to make room for the manifest
                self.folder.release(self.session)
            raise
        if not self.hold:
            self.folder.end_session(self.session)
        return claim.names

    def _delete_session_files(self) -> None:
        """Delete the files that this session writes; the next holder of the lock removes its entries."""
        for path in self.folder.control.glob(f"{self.session}.*"):
            path.unlink(missing_ok=True)

    # --- claims -----------------------------------------------------------------------------------------

    def _claim(self, groups: Sequence[FileGroup]) -> Claim:
        """Decide what to copy and what to use, and write both to the manifest.

        If the copies do not fit, `NotEnoughSpaceError` is raised and nothing is changed.
        """
        with self.folder.locked(self._tick) as before:
            existing = dict(before)
            self.folder.reclaim(existing)
            claim = self._decided(groups, existing)
            files = claim.files
            outdated = {name: one for name, one in existing.items() if name in claim.to_copy or name not in files}
            if claim.to_copy:
                self._check_space(existing, outdated, claim)
            if claim.to_copy or self.hold:  # before the manifest names it, as sessions without a lock count as dead
                self.folder.begin_session(self.session)
            for name, entry in outdated.items():
                self.folder.delete_copy(name, entry)
            for name in claim.to_copy:  # after an error they are deleted with the session
                files[name] = replace(files[name], copy_inode=self.folder.make_part(name, files[name]))
            if files != before:
                self.folder.save(files)
        return claim

    def _decided(self, groups: Sequence[FileGroup], existing: Files) -> Claim:
        claim = Claim([], {}, [], dict(existing))
        files, copies = claim.files, dict[str, list[str]]()  # names, by source
        for name, entry in files.items():
            copies.setdefault(entry.source, []).append(name)

        def is_free(name: str, source: Source) -> bool:
            return standing(self.folder, files, name, source, self._recipe) == "free"

        for group in groups:
            of_first = copies.get(next(iter(group.members.values())).path, [])
            names = names_of(self.folder, files, group, of_first, self._recipe)
            claim.names.append(names)
            for name, source in zip(names, group.members.values(), strict=True):
                old = files.get(name)
                users = tuple(dict.fromkeys([*(old.users if old else ()), *[self.session] * self.hold]))
                keep = self.keep or bool(old and old.keep)
                if old is None or is_free(name, source):
                    claim.to_copy[name] = source
                    files[name] = Entry(
                        **state_of(source),
                        owner=self.session,
                        keep=keep,
                        users=users,
                        recipe=self._recipe,
                        copy_bytes=-1 if self.recipe is None else self._plan(source.path).estimated_nbytes,
                    )
                    copies.setdefault(source.path, []).append(name)
                elif old.whole or old.owner == self.session:
                    files[name] = replace(old, users=users, keep=keep)
                else:
                    claim.to_wait_for.append(name)
        chosen = {name for names in claim.names for name in names}
        for source in (source for group in groups for source in group.members.values()):
            for name in copies.get(source.path, []):  # also under other names, kept while they were used
                if name in files and name not in chosen and is_free(name, source):
                    del files[name]
        return claim

    def _check_space(self, existing: Files, outdated: Iterable[str], claim: Claim) -> None:
        freed = 0
        for name in outdated:
            with contextlib.suppress(OSError):
                freed += (self.folder.path / name).lstat().st_blocks * 512
        begun = ((name, entry) for name, entry in existing.items() if not entry.whole)
        promised = sum(entry.bytes_of_copy - self.folder.copied_bytes(name, entry) for name, entry in begun)
        sizes = [(source.path, claim.files[name].bytes_of_copy) for name, source in claim.to_copy.items()]
        filesystem.check_fits(
            self.folder.path, sizes, margin_bytes=self.margin_bytes, freed_bytes=freed, promised_bytes=promised
        )

    # --- copies -----------------------------------------------------------------------------------------

    def _copy(self, claim: Claim) -> None:
        jobs = [CopyJob(self.folder, name, claim.files[name], source) for name, source in claim.to_copy.items()]
        if self.recipe is None:
            self._notices += _gain_notices(jobs, self.folder.path)
        self._report(0)
        done, remaining, published_at = list[CopyJob](), len(jobs), time.monotonic()
        with contextlib.closing(self._finished(jobs)) as rounds:
            for finished in rounds:
                done += finished
                self._notices += [notice for one in finished for notice in one.notices]
                # Hundreds of small files are done in a tick, and the manifest is always written whole.
                soon = self.recipe is not None or len(done) == remaining or time.monotonic() - published_at >= TICK_S
                if done and soon:
                    self._publish(done)
                    remaining -= len(done)
                    done, published_at = [], time.monotonic()
                    self._report(0)

    def _finished(self, jobs: Sequence[CopyJob]) -> Generator[list[CopyJob]]:
        """Carry out jobs: all in threads of this process, or one call per job to rewrite it or for an executor."""
        if self.recipe is None and self.executor is None:
            before = sum(self._copied.values())
            yield from ParallelCopy().finished(
                jobs, self.threads, lambda nbytes: self._report(before + nbytes - sum(self._copied.values()))
            )
            return
        calls: list[Job]
        if self.recipe is None:
            calls = [(job.source.path, _copied, (job, self.threads)) for job in jobs]
        else:
            plan, report = (self._plan, self._report) if self.executor is None else (lambda _: None, None)
            calls = [(job.source.path, _rewrite, (job, self.recipe, plan(job.source.path), report)) for job in jobs]
        with contextlib.closing(run_jobs(calls, self.executor, self._tick)) as results:
            yield from ([one] for one in results)

    def _publish(self, finished: Sequence[CopyJob]) -> None:
        """Give finished copies their names and record them; until then the manifest identifies them by inode only."""
        with self.folder.locked(self._tick) as files:
            for job in finished:
                now = files.get(job.name)
                if now is None or now.copy_inode != job.entry.copy_inode:
                    raise gone(job)
                with filesystem.explained(self.folder.path, "copied", job.source.path, job.entry.bytes_of_copy):
                    path = self.folder.path / job.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    filesystem.give_name(job.part, path)  # never replaces another file
                files[job.name] = replace(job.entry, users=now.users)
            filesystem.flush_folder(self.folder.path)
            self.folder.save(files)
        self._copied.update({job.name: job.entry.bytes_of_copy for job in finished})

    def _wait(self, names: Sequence[str]) -> None:
        """Wait until files that others copy are complete, or their copiers are gone."""
        while True:
            files = self.folder.load()
            existing = {name: files[name] for name in names if name in files}
            alive = self.folder.alive_among(entry for entry in existing.values() if not entry.whole)
            copiers = {entry.owner for entry in existing.values() if not entry.whole} & alive
            done = [
                entry.bytes_of_copy if entry.whole else self.folder.copied_bytes(name, entry)
                for name, entry in existing.items()
            ]
            self._report(sum(done), sum(entry.whole for entry in existing.values()), pids_of(copiers))
            if not copiers:
                return
            time.sleep(TICK_S)

    def _report(self, nbytes: int, files: int = 0, waiting_for: tuple[int, ...] = ()) -> None:
        """Report the progress: bytes and files in addition to those that were published."""
        self._now = replace(
            self._now,
            bytes_done=max(self._now.bytes_done, sum(self._copied.values()) + nbytes),
            files_done=len(self._copied) + files,
            waiting_for=waiting_for,
            notices=tuple(self._notices),
        )
        self._tick()

    def _tick(self) -> None:
        if self.progress is not None:
            self.progress(self._now)

    def _result(self, paths: Sequence[str], names: dict[str, list[str]]) -> StagedFiles:
        where = self.folder.path.joinpath
        every = dict.fromkeys(name for group in names.values() for name in group)
        return StagedFiles(
            folder=self.folder.path,
            paths=tuple(where(names[path][0]) if path in names else Path(path).absolute() for path in paths),
            followed=tuple(dict.fromkeys(where(name) for group in names.values() for name in group[1:])),
            copied=tuple(where(name) for name in every if name in self._copied),
            reused=tuple(where(name) for name in every if name not in self._copied),
            bytes_copied=sum(self._copied.values()),
            notices=tuple(self._notices),
            token=self.session if self.hold else "",
        )


# --- groups of files --------------------------------------------------------------------------------------------
#
# A file that needs no other keeps its name. Files that need one another keep their relative paths, so that the names
# inside them stay valid. If a name is taken by another file, the whole group moves into a subfolder named after the
# source's folder: the name of a file never changes.


class FileGroup(NamedTuple):
    """Files that keep their relative paths."""

    root: str  # the common folder, or its address
    members: dict[str, Source]  # by relative path, the requested file first


def gather(path: str, *, follow: bool) -> tuple[FileGroup, list[str]]:
    """Return the group of a file, with `follow` including all files that it needs, and notices.

    A needed file that is named by an absolute path, or would not be found beside the copy, is an error. For an object
    in a store, needed files cannot be copied.
    """
    if is_address(path):
        root, name = posixpath.split(path)
        if name in (".", ".."):
            raise SourceError(
                f"{path!r} names a folder of a store, and no object; name objects, or a pattern", file=path
            )
        return FileGroup(root, {name: ObjectIdentity.of(path)}), []
    main = Path(os.path.abspath(path))
    stat_of(str(main))
    places, notices = [main], dict[str, None]()
    _note_writer(main, notices)
    if follow:
        places = _closure(main, notices)
    else:
        try:
            if needs := sorted({f"{item.target} ({item.kind})" for item in references(main)}):
                notice = f"{main} needs other files, which are not staged: {names_text(needs)}"
                notices[f"{notice}. --follow (follow=True) brings them along"] = None
        except H5StreamError as error:
            notices[f"it is not known which files {main} needs: {error}"] = None
    root = os.path.commonpath([place.parent for place in places])
    members = {os.path.relpath(place, root): FileIdentity.of(os.path.realpath(place)) for place in places}
    return FileGroup(root, dict[str, Source](members)), list(notices)


def _closure(main: Path, notices: dict[str, None]) -> list[Path]:
    """Return the paths of a file and all files that it needs, itself first; add notices."""
    places, queue = {main: None}, [main]
    while queue:
        for item in references(queue.pop()):
            if item.kind == STORAGE:  # the one kind of name that is not looked up beside the file
                notices[
                    f"{item.file} has external storage, which HDF5 looks for in the working directory: set "
                    "HDF5_EXTFILE_PREFIX='${ORIGIN}' to read the raw files that came along"
                ] = None
            place = _place_beside(item)
            if place is None:
                notices[f"{item.file} names {item.target} ({item.kind}), which does not exist"] = None
            elif place not in places:
                places[place] = None
                queue.append(place)
                if item.kind != STORAGE:
                    _note_writer(place, notices)
    return list(places)


def _note_writer(place: Path, notices: dict[str, None]) -> None:
    """Add a notice if another process has a file open for writing."""
    if writer := said_of_writer(str(place)):
        notices[writer] = None


def _place_beside(item: Reference) -> Path | None:
    """Return the path of a needed file beside its user; None if it is missing. Raise if a copy would not find it."""
    place, exists = Path(os.path.normpath(item.file.parent / item.target)), item.resolve() is not None
    is_absolute = os.path.isabs(item.target)
    if is_absolute and exists:
        problem = "is named by an absolute path, so that a copy would still read the original"
    elif not is_absolute and not exists and Path(item.target).is_file():
        problem = "is read from the working directory, so that it has no place beside the copy"
    elif exists and not place.is_file():
        problem = "is reached through a symbolic link that it does not lie beside, and a copy would not find it"
    else:
        return place if exists else None
    raise UnfollowableReferenceError(
        f"cannot bring along what {item.file} needs: its {item.place} needs {item.target} ({item.kind}), "
        f"which {problem}. Stage without --follow, or rewrite the name relative to the file",
        file=str(item.file),
        target=item.target,
    )


# --- names in the folder ----------------------------------------------------------------------------------------


Standing = Literal["there", "free", "taken"]
"""The status of a name in the folder for a file: "there" for its copy, finished or not; "free" if it is unused, or a
copy of the source that may be replaced; "taken" if it belongs to another file, or is in use."""


def standing(folder: StagingFolder, files: Files, name: str, source: Source, recipe: str) -> Standing:
    """Return the status of a name for a source that is to be copied, or rewritten by a recipe."""
    entry = files.get(name)
    if entry is not None and entry.source != source.path:
        return "taken"
    if entry is not None and not entry.whole:
        return "there"
    intact = None if entry is None else folder.is_intact(name, entry)
    if entry is None or intact is None:
        return "free" if folder.is_free(name) else "taken"
    if intact and is_of(entry, source, recipe):
        return "there"
    return "taken" if entry.users else "free"


def names_of(folder: StagingFolder, files: Files, group: FileGroup, copies: Sequence[str], recipe: str) -> list[str]:
    """Return the file names for a group: the names of existing copies, or the first free ones.

    `copies` are the names of copies of its first member.
    """

    def stand(prefix: str) -> set[Standing]:
        return {standing(folder, files, prefix + place, one, recipe) for place, one in group.members.items()}

    first = next(iter(group.members))
    prefixes = [name.removesuffix(first) for name in copies if name == first or name.endswith(f"/{first}")]
    chosen = next((prefix for prefix in prefixes if stand(prefix) == {"there"}), None)
    if chosen is None:
        reserved = any(place.startswith(f"{CONTROL}/") for place in group.members)
        # Truncated, so that the name stays within 255 bytes.
        folder_name = os.path.basename(group.root)[:50] or "root"
        inside = f"{folder_name}-{hashlib.blake2b(os.fsencode(group.root), digest_size=3).hexdigest()}"
        numbered = (f"{inside}-{number}/" for number in itertools.count(2))
        tried = itertools.chain([""] * (not reserved), [f"{inside}/"], numbered)
        chosen = next(prefix for prefix in tried if "taken" not in stand(prefix))
    return [chosen + place for place in group.members]


# --- notices that staging gains little --------------------------------------------------------------------------


def _gain_notices(jobs: Sequence[CopyJob], folder: Path) -> list[str]:
    """Return notices that staging gains little, for at most `_MOST_SAMPLES` evenly spaced files."""
    sources = [job.source for job in jobs if not is_address(job.source.path)]  # files from stores gain much
    sampled = sources[:: -(-len(sources) // _MOST_SAMPLES) or 1]
    lines = [f"staging {one.path} {why}" for one in sampled if (why := _little_gain(Path(one.path), one.size, folder))]
    if len(lines) > _MOST_NOTICES:
        among = f"{len(sampled)} files" if len(sampled) == len(sources) else f"{len(sampled)} files looked at"
        lines[_MOST_NOTICES:] = [f"... and {len(lines) - _MOST_NOTICES} more of {among} likewise"]
    return lines


def _little_gain(path: Path, nbytes: int, folder: Path) -> str:
    """Return why staging a file to a folder gains little; empty if it may gain."""
    source, target, resident = filesystem.mount_of(path), filesystem.mount_of(folder), filesystem.resident_bytes(path)
    beside = [filesystem.existing_parent(one).stat().st_dev for one in (path, folder)]
    if source.in_memory:
        return f"gains nothing: it lies in memory already ({source.kind})"
    if beside[0] == beside[1]:
        return "gains little: the folder is on the same file system and no faster"
    if target.on_network:
        return f"may gain nothing: the folder is on the network ({target.kind})"
    if resident is not None and resident > RESIDENT_SHARE * nbytes:
        cached = f"{text_of_bytes(resident)} of its {text_of_bytes(nbytes)}"
        return f"gains little as long as memory is plenty: {cached} are in the page cache already"
    return ""

"""Staging: `stage` copies files to faster storage and returns their paths, `staged` removes them after a block.

Staged files can also be listed, verified and removed.

# Guarantees:
# - `list_staged` and `verify_staged` change nothing and take no lock: the manifest is replaced as a whole.
# - `remove_staged` deletes a file only if the manifest names it and its inode is still that of the copy.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h5stream.base.executors import TICK_S, check_executor
from h5stream.base.names import is_address, restored
from h5stream.base.texts import counted
from h5stream.errors import OptionError, SourceError, StagedFileInUseError, StagingError
from h5stream.repacking import Recipe
from h5stream.staging.copying import OBJECT_THREADS, combine, default_threads, digest_of_block
from h5stream.staging.folder import Checksum, Entry, Files, StagingFolder, is_of, pids_of, sessions_of
from h5stream.staging.run import ProgressCallback, StagedFiles, StagingProgress, StagingRun
from h5stream.storage.layout.sources import paths_of, several
from h5stream.storage.source.local import FilesIdentity
from h5stream.storage.source.one_file import FileIdentity
from h5stream.storage.source.remote import ObjectIdentity, opened_with, opening

if TYPE_CHECKING:
    from h5stream.storage.layout.layout import SampleLayout

_log = logging.getLogger("h5stream")

__all__ = [
    "ProgressCallback",
    "RemovedFiles",
    "StagedFile",
    "StagedFiles",
    "StagedState",
    "StagingProgress",
    "VerifiedFile",
    "list_staged",
    "remove_staged",
    "stage",
    "staged",
    "verify_staged",
]

PathLike = str | os.PathLike[str]
Paths = PathLike | Iterable[PathLike]


def stage(
    files: PathLike | Iterable[PathLike],
    *,
    to: PathLike,
    follow: bool = False,
    lease: bool = True,
    threads: int | None = None,
    margin_bytes: int | None = None,
    repack: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
    storage_options: object = None,
    executor: Executor | None = None,
) -> StagedFiles:
    """Copy files to a folder on faster storage, verify each copy, and return where the copies are.

    An existing copy whose source has not changed is reused. A stale copy is replaced, unless a live process uses it;
    then the new copy goes to a subfolder. A file that another process is copying is waited for.

    Parameters
    ----------
    files : path or iterable of path
        Files of any format, addresses of objects in stores (``s3://bucket/a.h5``), or patterns of either. HDF5 files
        are examined for other files that they need; objects are not.
    to : path
        The folder, on a tmpfs or a fast disk; it is made if it does not exist.
    follow : bool
        Whether to copy the files that HDF5 files need, too: targets of external links, sources of virtual datasets,
        external storage. For objects in stores this is not possible.
    lease : bool
        Protect the copies from `remove_staged` until `StagedFiles.release`, or until this process ends.
    threads : int, optional
        Threads that copy. By default the number of processors, at least 4 and at most 8; 32 for objects in stores, each
        of which waits for a range of 4 MiB.
    margin_bytes : int, optional
        Bytes that have to stay free. By default 5 % of memory, at least 256 MiB, or 1 % of a disk.
    repack : mapping, optional
        Rewrite the files instead of copying them, with these options of `h5stream.repack`; an empty mapping takes its
        defaults. A copy that was made in another way is replaced like a stale one.
    progress : callable, optional
        Called with a `StagingProgress` about ten times a second; see `ProgressCallback`.
    storage_options : dict or store, optional
        Options and credentials of object stores; see `H5Dataset`.
    executor : concurrent.futures.Executor, optional
        Copies or rewrites the files, one per call: a ``ProcessPoolExecutor``, or the executor of dask or mpi4py, whose
        machines must see the same folders. By default, threads of this process copy, and files are rewritten in turn.

    Returns
    -------
    StagedFiles
        Paths of the copies, and how each was made.

    Raises
    ------
    SourceNotFoundError, SourceError
        If a file does not exist or is not a regular file.
    SourceChangedError
        If a file changes while it is copied, or an object has another ETag.
    NotEnoughSpaceError
        If the copies do not fit into the folder or into memory.
    UnfollowableReferenceError
        If `follow` is asked for and a needed file would not be found beside the copy.
    StagingError
        If the folder cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     source = Path(place, "a.h5")
    ...     _ = source.write_bytes(b"any bytes")
    ...     first = stage(source, to=Path(place, "fast"))
    ...     again = stage(source, to=Path(place, "fast"))
    ...     first.paths[0].read_bytes(), len(first.copied), len(again.copied)
    (b'any bytes', 1, 0)
    """
    with opened_with(storage_options):
        return _stage(
            files,
            to,
            follow,
            repack,
            hold=lease,
            keep=True,
            threads=threads,
            margin_bytes=margin_bytes,
            progress=progress,
            executor=executor,
        )


@contextlib.contextmanager
def staged(
    files: PathLike | Iterable[PathLike],
    *,
    to: PathLike,
    follow: bool = False,
    threads: int | None = None,
    margin_bytes: int | None = None,
    repack: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
    storage_options: object = None,
    executor: Executor | None = None,
) -> Iterator[tuple[Path, ...]]:
    """Stage files for the time of a ``with`` block.

    At the end the copies are deleted, unless another process still uses them or `stage` (or the command
    line) put them there to stay. Errors are those of `stage`.

    Parameters
    ----------
    files, to, follow, threads, margin_bytes, repack, progress, storage_options, executor
        As for `stage`.

    Yields
    ------
    tuple of Path
        The copies, in the order of `files`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     source = Path(place, "a.h5")
    ...     _ = source.write_bytes(b"any bytes")
    ...     with staged(source, to=Path(place, "fast")) as paths:
    ...         content = paths[0].read_bytes()
    ...     content, paths[0].exists()
    (b'any bytes', False)
    """
    with opened_with(storage_options):
        result = _stage(
            files,
            to,
            follow,
            repack,
            hold=True,
            keep=False,
            threads=threads,
            margin_bytes=margin_bytes,
            progress=progress,
            executor=executor,
        )
    try:
        yield result.paths
    finally:
        result.release()


def _stage(
    files: Paths,
    to: PathLike,
    follow: bool,
    repack: Mapping[str, Any] | None,
    *,
    hold: bool,
    keep: bool,
    threads: int | None = None,
    margin_bytes: int | None = None,
    progress: ProgressCallback | None = None,
    executor: Executor | None = None,
) -> StagedFiles:
    check_executor(executor)
    for name, value, least in (("threads", threads, 1), ("margin_bytes", margin_bytes, 0)):
        if value is not None and value < least:
            raise OptionError(f"{name} must be at least {least}, not {value}")
    if repack is not None and follow:
        raise OptionError("follow=True copies files that belong together and cannot repack them; leave one of both out")
    if is_address(address := restored(to)):
        raise OptionError(f"{address!r} is in a store, and files are staged to a folder: stores are only read")
    folder = StagingFolder.of(to)
    if folder.path.exists() and not folder.path.is_dir():
        raise StagingError(f"{folder.path} is no folder", folder=str(folder.path))
    paths = [path for one in several(files, "stage") for path in paths_of(one, None)]
    from_stores = [path for path in paths if is_address(path)]
    if follow and from_stores:
        raise OptionError(
            f"follow=True (--follow) also copies the files that a file needs, which cannot be done for objects in "
            f"stores, such as {from_stores[0]!r}; leave follow= out, and name all objects"
        )
    opening().identities(from_stores)  # all at once
    run = StagingRun(
        folder=folder,
        hold=hold,
        keep=keep,
        margin_bytes=margin_bytes,
        threads=threads or (OBJECT_THREADS if from_stores else default_threads()),
        recipe=None if repack is None else Recipe.of(**repack),
        progress=progress,
        executor=executor,
    )
    return run.run(paths, follow)


def stage_layout(layout: SampleLayout, to: PathLike) -> tuple[SampleLayout, Callable[[], None]]:
    """Stage the files of a layout; return the layout over the copies, and a function that releases them.

    A copy has its source's bytes, so every address in the layout is valid for it too, and nothing is opened again. A
    file that has changed since the layout was made is an error.
    """
    every = [one for identity in layout.files for one in identity.each()]
    _log.info("staging %s to %s", counted(len(every), "file"), to)
    # Targets of links are among the files. Other files that these need are only copied if they may be outside.
    follow = layout.allow_external and any(part.leads_on for parts in layout.datasets for part in parts)
    # For objects in stores, the versions that the layout was made from are copied, or are in the folder already.
    with opened_with(None, identities=[one for one in every if isinstance(one, ObjectIdentity)]):
        staged = _stage([one.path for one in every], to, follow, None, hold=True, keep=True)
    for notice in staged.notices:
        _log.info("%s", notice)
    try:
        for one in every:
            one.check_unchanged()
        made = iter([FileIdentity.of(str(path)) for path in staged.paths])
        copies = tuple(
            FilesIdentity.of([next(made) for _ in one.each()]) if isinstance(one, FilesIdentity) else next(made)
            for one in layout.files
        )
    except BaseException:
        staged.release()
        raise
    return replace(layout, files=copies), staged.release


# --- the contents of a folder ---------------------------------------------------------------------------


class StagedState(StrEnum):
    """The state of a staged file compared to its source."""

    FRESH = "fresh"
    """The source has the same size and modification time as when it was copied."""
    STALE = "stale"
    """The source has changed since it was copied."""
    SOURCE_GONE = "source gone"
    """The source does not exist, or cannot be accessed from here."""
    COPYING = "copying"
    """A live process is copying it."""
    UNFINISHED = "unfinished"
    """Its copier is dead; the next `stage` or `remove_staged` deletes the partial copy."""
    CHANGED = "changed"
    """The copy was written to after it was made."""
    IN_STORE = "in a store"
    """The source is an object in a store, which is only checked when it is staged again."""
    MISSING = "missing"
    """Its name does not exist, or belongs to another file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A file of the manifest."""

    path: Path
    """The copy."""
    source: Path | str
    """The source of the copy: a file, or the address of an object in a store."""
    size_bytes: int
    """The size of the copy in bytes."""
    state: StagedState
    """The state compared to its source."""
    checksum: Checksum | None
    """The checksum of its bytes; None while it is being copied."""
    staged_at: float
    """The time when it was finished, in seconds since 1970; 0 while it is being copied."""
    owner_pid: int
    """The process that made it, or is making it."""
    keep: bool
    """False if the last `staged` block that uses it deletes it."""
    used_by: tuple[int, ...]
    """Process ids of the live leases."""
    recipe: str
    """The options with which it was repacked; empty for a copy of the source's own bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    """The result of verifying a staged file."""

    path: Path
    """The copy."""
    problem: str
    """The problem that was detected; empty if size and checksum are as recorded."""

    @property
    def ok(self) -> bool:
        """Whether no problem was detected."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFiles:
    """The result of `remove_staged`."""

    removed: tuple[Path, ...]
    """Files that were deleted."""
    bytes_freed: int
    """The sum of their sizes, in bytes."""
    notices: tuple[str, ...]
    """Files that were only removed from the manifest, with the reason."""


def list_staged(folder: PathLike) -> tuple[StagedFile, ...]:
    """List the files of a staging folder, as recorded in its manifest.

    Parameters
    ----------
    folder : path
        The folder.

    Returns
    -------
    tuple of StagedFile
        Sorted by name; empty if there is no manifest.

    Raises
    ------
    ManifestError
        If the manifest is damaged or was written by a newer version.

    Examples
    --------
    >>> list_staged("/nowhere")
    ()
    """
    place = StagingFolder.of(folder)
    files = sorted(place.load().items())
    alive = place.alive_among(entry for _, entry in files)
    return tuple(
        StagedFile(
            path=place.path / name,
            source=entry.source if is_address(entry.source) else Path(entry.source),
            size_bytes=entry.bytes_of_copy,
            state=_state(place, name, entry, alive),
            checksum=entry.checksum,
            staged_at=entry.staged_at,
            owner_pid=pids_of([entry.owner])[0],
            keep=entry.keep,
            used_by=pids_of(alive & set(entry.users)),
            recipe=entry.recipe,
        )
        for name, entry in files
    )


def _state(place: StagingFolder, name: str, entry: Entry, alive: AbstractSet[str]) -> StagedState:
    if not entry.whole:
        return StagedState.COPYING if entry.owner in alive else StagedState.UNFINISHED
    intact = place.is_intact(name, entry)
    if not intact:
        return StagedState.MISSING if intact is None else StagedState.CHANGED
    if is_address(entry.source):
        return StagedState.IN_STORE
    try:
        source = FileIdentity.of(entry.source)
    except SourceError:
        return StagedState.SOURCE_GONE
    return StagedState.FRESH if is_of(entry, source, entry.recipe) else StagedState.STALE


def verify_staged(
    folder: PathLike, *, threads: int | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[VerifiedFile, ...]:
    """Read every finished copy of a folder and compare size and checksum with the manifest.

    Parameters
    ----------
    folder : path
        The folder.
    threads : int, optional
        Threads that read; by default as many as `stage` uses.
    progress : callable, optional
        Called in the caller's thread, about ten times a second, with the bytes read and the bytes in all.

    Returns
    -------
    tuple of VerifiedFile
        Sorted by name, without unfinished copies.
    """
    place = StagingFolder.of(folder)
    whole = {name: (entry, entry.checksum) for name, entry in sorted(place.load().items()) if entry.checksum}
    total, bytes_done = sum(entry.bytes_of_copy for entry, _ in whole.values()), 0
    pool = ThreadPoolExecutor(threads or default_threads(), thread_name_prefix="h5stream-verify")
    try:
        blocks = {
            name: [
                pool.submit(digest_of_block, place.path / name, start, made.block_bytes)
                for start in range(0, entry.bytes_of_copy, made.block_bytes)
            ]
            for name, (entry, made) in whole.items()
        }
        pending = {future for futures in blocks.values() for future in futures}
        while pending:
            done, pending = wait(pending, timeout=TICK_S)
            bytes_done += sum(future.result()[1] for future in done if not future.exception())
            if progress is not None:
                progress(bytes_done, total)
    finally:
        pool.shutdown(cancel_futures=True)
    return tuple(
        VerifiedFile(path=place.path / name, problem=_problem(place.path / name, entry, made, blocks[name]))
        for name, (entry, made) in whole.items()
    )


def _problem(path: Path, entry: Entry, recorded: Checksum, blocks: list[Future[tuple[bytes, int]]]) -> str:
    try:
        size = path.lstat().st_size
        if size != entry.bytes_of_copy:
            return f"has {size} bytes, {entry.bytes_of_copy} were staged"
        computed = combine([block.result()[0] for block in blocks])
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return (
        "" if computed.digest == recorded.digest else f"its checksum is {computed.digest}, {recorded.digest} was staged"
    )


def remove_staged(
    folder: PathLike, files: PathLike | Iterable[PathLike] | None = None, *, force: bool = False
) -> RemovedFiles:
    """Delete staged files: all of a folder, or the named ones; files that the manifest does not list are never deleted.

    Parameters
    ----------
    folder : path
        The folder.
    files : path or iterable of path, optional
        Copies, as paths or by their names in the folder, or the files that they are copies of; by default all.
    force : bool
        Also delete files that live processes use or are copying. A process that has such a file open can still read
        it, but it cannot be opened again.

    Returns
    -------
    RemovedFiles
        The deleted files.

    Raises
    ------
    StagingError
        If a name is not in the manifest; nothing is deleted then.
    StagedFileInUseError
        If a live process uses one of them and `force` is not given; nothing is deleted then.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     source = Path(place, "a.h5")
    ...     _ = source.write_bytes(b"any bytes")
    ...     _ = stage(source, to=Path(place, "fast"), lease=False)
    ...     remove_staged(Path(place, "fast")).bytes_freed
    9
    """
    place = StagingFolder.of(folder)
    if not place.control.is_dir():
        if files is None:
            return RemovedFiles(removed=(), bytes_freed=0, notices=())
        raise StagingError(f"nothing was staged to {place.path}", folder=str(place.path))
    with place.locked() as entries:
        paths = () if files is None else several(files, "remove_staged")
        names = (
            list(dict.fromkeys(_name(place, entries, path) for path in paths)) if files is not None else list(entries)
        )
        place.reclaim(entries)
        names = [name for name in names if name in entries]
        if not force:
            _check_unused(place, entries, names)
        removed, freed, notices = list[Path](), 0, list[str]()
        try:
            for name in names:
                entry, path = entries[name], place.path / name
                if not entry.whole:
                    place.drop_unfinished(name, entry)
                elif place.delete_copy(name, entry):
                    removed.append(path)
                    freed += entry.bytes_of_copy
                elif os.path.lexists(path):
                    notices.append(f"{path} is not the file that was staged, and was left alone")
                else:
                    notices.append(f"{path} was gone already")
                del entries[name]
        finally:
            place.save(entries)
    return RemovedFiles(removed=tuple(removed), bytes_freed=freed, notices=tuple(notices))


def _name(place: StagingFolder, listed: Files, path: PathLike) -> str:
    absolute = Path(os.path.abspath(path))
    real = absolute.parent.resolve() / absolute.name
    for candidate, root in ((Path(path), Path()), (absolute, place.path), (real, place.path.resolve())):
        if candidate.is_relative_to(root) and (name := str(candidate.relative_to(root))) in listed:
            return name
    sources = {str(path), str(absolute), str(real), os.path.realpath(path)}
    if copies := [name for name, entry in listed.items() if entry.source in sources]:
        return copies[0]
    raise StagingError(
        f"{path} is not in the manifest of {place.path}, and only what was staged is deleted. "
        f"`h5stream stage --list {place.path}` shows what there is",
        file=str(path),
        folder=str(place.path),
    )


def _check_unused(place: StagingFolder, listed: Files, names: Iterable[str]) -> None:
    busy = {name: sessions for name in names if (sessions := sessions_of(listed[name]))}
    if busy:
        lines = ", ".join(f"{name} (process {', '.join(map(str, pids_of(its)))})" for name, its in busy.items())
        raise StagedFileInUseError(
            f"live processes use {counted(len(busy), 'staged file')} of {place.path}: {lines}. Nothing was removed; "
            "end those processes, name other files, or use --force (force=True)",
            file=str(place.path / next(iter(busy))),
            folder=str(place.path),
            pids=pids_of(session for sessions in busy.values() for session in sessions),
        )

"""What lies in a folder of staged files: listing, verifying, removing.

# Guarantees:
# - `list_staged` and `verify_staged` change nothing and take no lock: the manifest is replaced as a whole.
# - `remove_staged` deletes a file only if the manifest names it and it still is the file that was made, by
#   its inode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from h5stream.errors import StagedFileInUseError, StagingError
from h5stream.executors import TICK_S
from h5stream.staging.copying import combine, default_threads, digest_of_block
from h5stream.staging.folder import Checksum, Entry, Files, StagingFolder, pids_of, sessions_of
from h5stream.storage.stores import is_address

PathLike = str | os.PathLike[str]


class StagedState(StrEnum):
    """How a staged file stands to its source."""

    FRESH = "fresh"
    """The source has the size and the modification time that it had when it was copied."""
    STALE = "stale"
    """The source has changed since."""
    SOURCE_GONE = "source gone"
    """The source is not there, or not to be seen from here."""
    COPYING = "copying"
    """A live process is copying it."""
    UNFINISHED = "unfinished"
    """Its copier is dead; the next `stage` or `remove_staged` deletes what there is of it."""
    CHANGED = "changed"
    """The copy was written to after it was made."""
    IN_STORE = "in a store"
    """The source is an object in a store, which is asked only when it is staged again."""
    MISSING = "missing"
    """Nothing, or another file, has its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One file of the manifest."""

    path: Path
    """The copy."""
    source: Path | str
    """What it is a copy of: a file, or the address of an object in a store."""
    size_bytes: int
    """Its size in bytes."""
    state: StagedState
    """How it stands to its source."""
    checksum: Checksum | None
    """Checksum of the bytes; None while it is being copied."""
    staged_at: float
    """When it was finished, in seconds since 1970; 0 while it is being copied."""
    owner_pid: int
    """The process that made it, or makes it."""
    keep: bool
    """False where the last `staged` block that uses it deletes it."""
    used_by: tuple[int, ...]
    """Process ids of the live leases."""
    recipe: str
    """How it was repacked; empty for a copy of the source's own bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    """What verifying one staged file found."""

    path: Path
    """The copy."""
    problem: str
    """What is wrong with it; empty where size and checksum are as recorded."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFiles:
    """What `remove_staged` did."""

    removed: tuple[Path, ...]
    """Files that were deleted."""
    bytes_freed: int
    """Their sizes together, in bytes."""
    notices: tuple[str, ...]
    """Files that were only taken from the manifest, and why."""


def list_staged(folder: PathLike) -> tuple[StagedFile, ...]:
    """List the files of a folder of copies, as its manifest has them.

    Parameters
    ----------
    folder : path
        The folder.

    Returns
    -------
    tuple of StagedFile
        By name; empty where there is no manifest.

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
            path=place.copy_path(name),
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
        facts = os.stat(entry.source)
    except OSError:
        return StagedState.SOURCE_GONE
    same = (facts.st_size, facts.st_mtime_ns) == (entry.size_bytes, entry.mtime_ns)
    return StagedState.FRESH if same else StagedState.STALE


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
        By name; copies that are being made are left out.
    """
    place = StagingFolder.of(folder)
    whole = {name: (entry, entry.checksum) for name, entry in sorted(place.load().items()) if entry.checksum}
    total, bytes_done = sum(entry.bytes_of_copy for entry, _ in whole.values()), 0
    pool = ThreadPoolExecutor(threads or default_threads(), thread_name_prefix="h5stream-verify")
    try:
        blocks = {
            name: [
                pool.submit(digest_of_block, place.copy_path(name), start, made.block_bytes)
                for start in range(0, entry.bytes_of_copy, made.block_bytes)
            ]
            for name, (entry, made) in whole.items()
        }
        left = {future for futures in blocks.values() for future in futures}
        while left:
            done, left = wait(left, timeout=TICK_S)
            bytes_done += sum(future.result()[1] for future in done if not future.exception())
            if progress is not None:
                progress(bytes_done, total)
    finally:
        pool.shutdown(cancel_futures=True)
    return tuple(
        VerifiedFile(path=place.copy_path(name), problem=_problem(place.copy_path(name), entry, made, blocks[name]))
        for name, (entry, made) in whole.items()
    )


def _problem(path: Path, entry: Entry, made: Checksum, blocks: list[Future[tuple[bytes, int]]]) -> str:
    try:
        size = path.lstat().st_size
        if size != entry.bytes_of_copy:
            return f"has {size} bytes, {entry.bytes_of_copy} were staged"
        found = combine([block.result()[0] for block in blocks])
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if found.algorithm != made.algorithm:
        return f"its checksum is of a kind that is not known here: {made.algorithm}"
    return "" if found.digest == made.digest else f"its checksum is {found.digest}, {made.digest} was staged"


def remove_staged(
    folder: PathLike, files: PathLike | Iterable[PathLike] | None = None, *, force: bool = False
) -> RemovedFiles:
    """Delete staged files: all of a folder, or those that are named; nothing that the manifest does not list.

    Parameters
    ----------
    folder : path
        The folder.
    files : path or iterable of path, optional
        Copies, as paths or by their names in the folder; by default all.
    force : bool
        Also delete what live processes use or are copying. Who has a file open can still read it; who opens
        it anew cannot.

    Returns
    -------
    RemovedFiles
        What was deleted.

    Raises
    ------
    StagingError
        If a name is not in the manifest; nothing is deleted then.
    StagedFileInUseError
        If a live process uses one of them and `force` is not given; nothing is deleted then.

    Examples
    --------
    >>> import tempfile
    >>> from h5stream.staging.front import stage
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
    with place.locked() as listed:
        paths = [files] if isinstance(files, str | os.PathLike) else files
        names = list(listed) if paths is None else list(dict.fromkeys(_name(place, listed, path) for path in paths))
        place.reclaim(listed)
        names = [name for name in names if name in listed]
        if not force:
            _check_unused(place, listed, names)
        removed, freed, notices = list[Path](), 0, list[str]()
        try:
            for name in names:
                entry, path = listed[name], place.copy_path(name)
                if not entry.whole:
                    place.drop_unfinished(name, entry)
                elif place.delete_copy(name, entry):
                    removed.append(path)
                    freed += entry.bytes_of_copy
                elif os.path.lexists(path):
                    notices.append(f"{path} is not the file that was staged, and was left alone")
                else:
                    notices.append(f"{path} was gone already")
                del listed[name]
        finally:
            place.save(listed)
    return RemovedFiles(removed=tuple(removed), bytes_freed=freed, notices=tuple(notices))


def _name(place: StagingFolder, listed: Files, path: PathLike) -> str:
    text = os.fspath(path)
    absolute = Path(os.path.abspath(text))
    real = absolute.parent.resolve() / absolute.name
    for candidate, root in ((Path(text), Path()), (absolute, place.path), (real, place.path.resolve())):
        if candidate.is_relative_to(root) and (name := str(candidate.relative_to(root))) in listed:
            return name
    raise StagingError(
        f"{path} is not in the manifest of {place.path}, and only what was staged is deleted. "
        f"`h5stream stage --list {place.path}` shows what there is",
        file=str(path),
        folder=str(place.path),
    )


def _check_unused(place: StagingFolder, listed: Files, names: Iterable[str]) -> None:
    busy = {name: sessions for name in names if (sessions := sessions_of(listed[name]))}
    if busy:
        lines = ", ".join(f"{name} (process {', '.join(map(str, pids_of(busy[name])))})" for name in busy)
        raise StagedFileInUseError(
            f"{len(busy)} staged file(s) of {place.path} are in use: {lines}. Nothing was removed; end those "
            "processes, name other files, or use --force (force=True)",
            file=str(place.copy_path(next(iter(busy)))),
            folder=str(place.path),
            pids=pids_of(session for sessions in busy.values() for session in sessions),
        )

"""Copying several files at once, each in blocks, to names that nothing takes for whole files.

# Guarantees:
# - `ParallelCopy` starts its threads in `start` and has ended them when `close` returns. The threads read
#   and write files and nothing else; what becomes of a finished copy is the caller's business, in the
#   caller's thread.
# - A block belongs to one thread. Descriptors are opened for a block and closed after it, so that each has
#   its own read-ahead and an idle file costs none.
# - `_lock` guards what is counted. No thread holds it over I/O.
# - After `close` each thread stops at its next piece of 256 KiB.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from h5stream import allowance
from h5stream.errors import H5StreamError, NotEnoughSpaceError, SourceChangedError, StagedFileDamagedError, StagingError
from h5stream.staging.checksum import BLOCK_BYTES, PIECE_BYTES, Checksum, block_count, block_hash, combine
from h5stream.staging.layout import SourceVersion, version_from
from h5stream.units import text_of_bytes

_LATE_START_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob:
    """One file to be copied."""

    name: str
    """Its name in the folder."""
    folder: str
    """The folder."""
    source: str
    """What is copied."""
    version: SourceVersion
    """What the source must still be when the copy is done."""
    part: Path
    """The unfinished copy; an empty file at first."""
    part_inode: int
    """Inode of the unfinished copy: blocks that went to another file of that name are not in this one."""
    in_kernel: bool
    """Whether copy_file_range is worth a try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFile:
    """One file that was copied, flushed and verified; still under its unfinished name."""

    job: CopyJob
    """What was asked for."""
    checksum: Checksum
    """Checksum of its bytes."""
    inode: int
    """Inode of the copy."""
    mtime_ns: int
    """Modification time that the copy has, in nanoseconds, as coarse as its file system keeps it."""
    repacked_bytes: int = -1
    """Size of a repacked copy in bytes; -1 for a copy of the source's own bytes."""

    @property
    def size_bytes(self) -> int:
        """Size of the copy in bytes."""
        return self.job.version.size_bytes if self.repacked_bytes < 0 else self.repacked_bytes


class _OpenFile:
    """What the threads know together about a file that is being copied."""

    def __init__(self, job: CopyJob) -> None:
        self.job = job
        # A file of zero bytes has no digest, but must be made.
        self.digests = [b""] * block_count(job.version.size_bytes)
        self.blocks = self.unfinished = max(1, len(self.digests))


class _StoppedError(Exception):
    """The copy was closed; no news to anybody."""


def default_threads() -> int:
    """Return the number of threads that copy: more than there are processors, to hide a disk's delay."""
    return min(8, max(4, allowance.cpus()))


class ParallelCopy:
    """Copies jobs with several threads; finished files are fetched with `wait`."""

    def __init__(self, jobs: Sequence[CopyJob], threads: int) -> None:
        self._jobs, self._threads = jobs, threads
        self._name = f"h5stream-stage-{id(self):x}"
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=self._name)
        self._done: queue.SimpleQueue[Future[CopiedFile | None]] = queue.SimpleQueue()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self.bytes_done = 0

    def start(self) -> None:
        """Start the threads."""
        files = [_OpenFile(job) for job in self._jobs]
        blocks = [(place, file, number) for place, file in enumerate(files) for number in range(file.blocks)]
        # Writes to one file wait for each other in the kernel, those to several do not: as many files as there are
        # threads take turns.
        blocks.sort(key=lambda block: (block[0] // self._threads, block[2]))
        for _, file, number in blocks:
            self._pool.submit(self._copy, file, number).add_done_callback(self._done.put)

    def wait(self, timeout_s: float) -> list[CopiedFile]:
        """Return the files finished since the last call, after `timeout_s` at most; raise a thread's error."""
        found: list[CopiedFile | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._done.get(timeout=timeout_s).result())
            while True:
                found.append(self._done.get_nowait().result())
        return [copied for copied in found if copied is not None]

    def close(self) -> None:
        """Stop the threads and wait until they are gone."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        # One that Ctrl-C kept the pool from noting while it was started comes up a moment later, and ends.
        give_up = time.monotonic() + _LATE_START_S
        while time.monotonic() < give_up and any(one.name.startswith(self._name) for one in threading.enumerate()):
            time.sleep(0.001)

    def _copy(self, file: _OpenFile, number: int) -> CopiedFile | None:
        """Copy a block; give the file if that was the last one."""
        job, offset = file.job, number * BLOCK_BYTES
        span = range(offset, min(offset + BLOCK_BYTES, job.version.size_bytes))
        with _opened(job) as (source, target):
            if span:
                file.digests[number] = copy_block(
                    job.source, source, target, span, in_kernel=job.in_kernel, progress=self._told
                )
            with self._lock:
                file.unfinished -= 1
                is_last = file.unfinished == 0
            return _finish(file, source, target) if is_last else None

    def _told(self, nbytes: int) -> None:
        with self._lock:
            self.bytes_done += nbytes
        if self._stop.is_set():
            raise _StoppedError


@contextlib.contextmanager
def _opened(job: CopyJob) -> Iterator[tuple[int, int]]:
    """Open source and copy for one block; the operating system's errors become ours, with the file's name."""
    with contextlib.ExitStack() as opened:
        try:
            source = _open_source(job)
            opened.callback(os.close, source)
            target = open_part(job)
            opened.callback(os.close, target)
            yield source, target
        except H5StreamError:
            raise
        except OSError as error:
            raise _explained(error, job) from error


def _open_source(job: CopyJob) -> int:
    try:
        source = os.open(job.source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SourceChangedError(
            f"{job.source} was removed while it was copied. Its copy was not kept", file=job.source
        ) from error
    try:
        check_unchanged(source, job)
    except BaseException:
        os.close(source)
        raise
    return source


def open_part(job: CopyJob) -> int:
    """Open the unfinished copy, if it is still the file that was claimed."""
    with contextlib.suppress(FileNotFoundError):
        target = os.open(job.part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        if os.fstat(target).st_ino == job.part_inode:
            return target
        os.close(target)
    raise StagingError(
        f"the unfinished copy of {job.source} was removed while it was made (by `h5stream stage --remove "
        "--force`?). Its copy was not kept; stage again",
        file=job.source,
        folder=job.folder,
    )


def _explained(error: OSError, job: CopyJob) -> StagingError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NotEnoughSpaceError(
            f"{job.folder} filled up while {job.source} ({text_of_bytes(job.version.size_bytes)}) was copied "
            f"there: {error.strerror}. The unfinished copies were removed; free space, or name another "
            "folder",
            file=job.source,
            folder=job.folder,
            needed=job.version.size_bytes,
        )
    return StagingError(
        f"cannot copy {job.source} to {job.folder}: {error.strerror or error}. The unfinished copies were removed",
        file=job.source,
        folder=job.folder,
    )


def check_unchanged(descriptor: int, job: CopyJob) -> None:
    """Raise `SourceChangedError` where an open source is not what it was when it was looked at."""
    now = version_from(os.fstat(descriptor))
    if now != job.version:
        raise SourceChangedError(
            f"{job.source} changed while it was copied: it had {job.version.size_bytes} bytes and "
            f"modification time {job.version.mtime_ns} ns, now {now.size_bytes} bytes and {now.mtime_ns} "
            f"ns{'' if now.inode == job.version.inode else ', and is another file'}. Its copy was not kept; "
            "stage again when nothing writes to it",
            file=job.source,
        )


def dress(job: CopyJob, facts: os.stat_result, target: int) -> os.stat_result:
    """Return a copy its source's mode and time, flush it, and look at the source for the last time."""
    os.fchmod(target, stat.S_IMODE(facts.st_mode) & 0o777)
    os.utime(target, ns=(facts.st_atime_ns, job.version.mtime_ns))
    os.fsync(target)
    # Looked at again by its path: an editor that saves by rename leaves our descriptor on the old file.
    os.close(_open_source(job))
    return os.fstat(target)


def _finish(file: _OpenFile, source: int, target: int) -> CopiedFile:
    """Flush a copy whose blocks are all there, and check what can be checked once it is complete."""
    job = file.job
    copy = dress(job, os.fstat(source), target)
    if copy.st_size != job.version.size_bytes:
        raise StagedFileDamagedError(
            f"the copy of {job.source} has {copy.st_size} bytes, its source {job.version.size_bytes}: "
            f"something else wrote to {job.part}. Its copy was not kept; stage again",
            file=job.source,
            folder=job.folder,
        )
    checksum = combine(file.digests)
    return CopiedFile(job=job, checksum=checksum, inode=copy.st_ino, mtime_ns=copy.st_mtime_ns)


# --- Copying one block of a file: read, hash, write, read back and compare, in pieces that stay in the cache.
#
# Measured (docs/notes-staging.md): with pieces of 64 KiB to 1 MiB the read-back and both hashes cost nothing that can
# be seen beside the two copies through the kernel, because the piece is still in the processor's cache; with 4 MiB
# they do. Mapping the source, or the target, was slower than reading and writing: each page of a mapping is faulted in
# by itself.


# What copy_file_range says where it does not work between two files; a copy by hand then does.
_CANNOT = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF}


def copy_block(
    name: str, source: int, target: int, span: range, *, in_kernel: bool, progress: Callable[[int], None]
) -> bytes:
    """Copy some bytes of an open file to another one and give their hash; `progress` is told the bytes of every piece.

    It is an error if the source, called `name`, ends among them, or what is read back differs from what was read. With
    `in_kernel`, copy_file_range is tried: on one file system that shares extents or copies on its server.
    """
    read, back = block_hash(), block_hash()
    # On page boundaries: what was read, and what was read back.
    given, got = (memoryview(mmap.mmap(-1, PIECE_BYTES)) for _ in range(2))
    at, end = span.start, span.stop
    while at < end:
        count = os.preadv(source, [given[: end - at]], at)
        if count == 0:
            raise SourceChangedError(
                f"{name} changed while it was copied: it ends at byte {at}, {end} were expected. "
                f"Its copy was not kept; stage again when nothing writes to it",
                file=name,
            )
        read.update(given[:count])
        taken = _copied_in_kernel(source, target, at, count) if in_kernel else 0
        # What the kernel did not take; the bytes that were hashed, in any case.
        _write(target, given[taken:count], at + taken)
        back.update(read_back(target, got[:count], at))
        at += count
        progress(count)
    digest = read.digest()
    if back.digest() != digest:
        raise StagedFileDamagedError(
            f"the copy of {name} differs from it between bytes {span.start} and {end}: what was "
            "written there is not what is read back. Its copy was not kept; memory or storage at fault is "
            "likely",
            file=name,
        )
    return digest


def _write(target: int, piece: memoryview, at: int) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(target, piece[done:], at + done)


def _copied_in_kernel(source: int, target: int, at: int, count: int) -> int:
    """Let the kernel copy bytes; give how many it took."""
    done = 0
    try:
        while done < count and (moved := os.copy_file_range(source, target, count - done, at + done, at + done)):
            done += moved
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    return done


def read_back(target: int, space: memoryview, at: int) -> memoryview:
    """Read what was written, from storage where that can be asked for; gives `space`, filled."""
    done = 0
    while done < len(space):
        count = os.preadv(target, [space[done:]], at + done)
        if count == 0:
            break  # shorter than what was written: the hashes will differ
        done += count
    return space[:done]

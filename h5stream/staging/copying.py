"""Parallel copying of files in blocks, under names that nothing takes for complete files.

# Guarantees:
# - `ParallelCopy` has ended its threads when `finished` ends or is closed; each stops at its next piece.
#   They only read and write files; the caller decides what to do with a finished copy.
# - A block belongs to one thread. Descriptors are opened for a block and closed after it, so that each has
#   its own read-ahead and an idle file costs none. No lock is held over I/O.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any

import xxhash

from h5stream.base import limits
from h5stream.base.cancel import stop_asked
from h5stream.base.executors import TICK_S
from h5stream.base.filesystem import explained
from h5stream.errors import SourceChangedError, SourceNotFoundError, StagedFileDamagedError, StagingError
from h5stream.staging.folder import BLOCK_BYTES, Checksum, Entry, Source, StagingFolder, open_no_link
from h5stream.storage.source.identity import ByteSource
from h5stream.storage.source.remote import ObjectBytes, ObjectIdentity

# A piece stays in the processor's cache, so both hashes and reading back cost little compared to the copies through the
# kernel; mapping either file was slower (docs/notes-staging.md).
PIECE_BYTES = 256 << 10
REQUEST_BYTES, OBJECT_THREADS = 4 << 20, 32
"""For objects in stores: bytes of a request, and the number of threads that each wait for one."""
_LATE_START_S = 1.0


@dataclass(frozen=True, slots=True)
class CopyJob:
    """A file to be copied, and the state shared by the threads that copy it."""

    folder: StagingFolder
    name: str  # relative to the folder
    entry: Entry  # its entry in the manifest, or the entry once it is finished
    source: Source  # the source, which must not change until the copy is done
    digests: dict[int, bytes] = field(default_factory=dict)  # of the copied blocks, by offset
    notices: tuple[str, ...] = ()  # losses of a rewritten file

    @property
    def blocks(self) -> range:
        """The offset of each block; an empty file has one, so that its copy is created."""
        return range(0, max(1, self.source.size), BLOCK_BYTES)

    @property
    def part(self) -> Path:
        """The path of the unfinished copy, initially an empty file."""
        return self.folder.part_path(self.name, self.entry)


def default_threads() -> int:
    """Return the default number of copying threads: more than processors, to hide the latency of disks."""
    return min(8, max(4, limits.cpus()))


def digest_of_block(path: Path, offset: int, length: int = BLOCK_BYTES) -> tuple[bytes, int]:
    """Return the hash of one block of a file, and the number of bytes read."""
    digest, at = xxhash.xxh3_128(), offset
    with path.open("rb", buffering=0) as file:
        while piece := os.pread(file.fileno(), min(PIECE_BYTES, offset + length - at), at):
            digest.update(piece)
            at += len(piece)
    return digest.digest(), at - offset


def combine(digests: Sequence[bytes]) -> Checksum:
    """Return the checksum of a file from the digests of its blocks, in file order."""
    return Checksum(digest=xxhash.xxh3_128_hexdigest(b"".join(digests)))


class ParallelCopy:
    """Copies jobs with several threads."""

    def __init__(self) -> None:
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._bytes_done = 0

    def finished(
        self, jobs: Sequence[CopyJob], threads: int, report: Callable[[int], None] = lambda _: None
    ) -> Iterator[list[CopyJob]]:
        """Yield finished jobs at least every `TICK_S`; `report` is called with the number of bytes copied by then."""
        done: queue.SimpleQueue[Future[CopyJob | None]] = queue.SimpleQueue()
        name, remaining = f"h5stream-stage-{id(self):x}", len(jobs)
        pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        try:
            # Writes to one file wait for each other in the kernel, but not writes to several files: so as many files as
            # threads take turns.
            blocks = [(place // threads, at, job) for place, job in enumerate(jobs) for at in job.blocks]
            for _, at, job in sorted(blocks, key=lambda block: block[:2]):
                pool.submit(self._copy, job, at).add_done_callback(done.put)
            while remaining:
                results: list[CopyJob | None] = []
                with contextlib.suppress(queue.Empty):
                    results.append(done.get(timeout=TICK_S).result())
                    while True:
                        results.append(done.get_nowait().result())
                copies = [one for one in results if one is not None]
                remaining -= len(copies)
                report(self._bytes_done)
                yield copies
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            # A thread whose start Ctrl-C interrupted may be unknown to the pool; it appears a moment later, and ends.
            give_up = time.monotonic() + _LATE_START_S
            while time.monotonic() < give_up and any(one.name.startswith(name) for one in threading.enumerate()):
                time.sleep(0.001)

    def _copy(self, job: CopyJob, start: int) -> CopyJob | None:
        """Copy a block; return the job if it was the last block."""
        stop_asked.set(self._stop.is_set)
        # Each request for an object names its version; caches of the object are not used here.
        source: ByteSource = ObjectBytes(job.source) if isinstance(job.source, ObjectIdentity) else job.source.open()
        explaining = explained(job.folder.path, "copied", job.source.path, job.source.size)
        with explaining, contextlib.closing(source), open_part(job) as part:
            span = range(start, min(start + BLOCK_BYTES, job.source.size))
            digest = self._copy_block(job, source, part.fileno(), span)
            with self._lock:
                job.digests[start] = digest
                is_last = len(job.digests) == len(job.blocks)
            return finish(job, part.fileno()) if is_last else None

    def _copy_block(self, job: CopyJob, source: ByteSource, target: int, span: range) -> bytes:
        """Copy a range of bytes and return their hash, after comparing it with that of the bytes read back."""
        read, back, at = xxhash.xxh3_128(), xxhash.xxh3_128(), span.start
        together = REQUEST_BYTES if isinstance(source, ObjectBytes) else PIECE_BYTES
        read_buffer, back_buffer = (
            memoryview(mmap.mmap(-1, size)) for size in (together, PIECE_BYTES)
        )  # on page boundaries
        while at < span.stop:
            chunk = read_buffer[: span.stop - at]
            _read(job, source, at, chunk)
            for low in range(0, len(chunk), PIECE_BYTES):
                piece = chunk[low : low + PIECE_BYTES]
                read.update(piece)
                _write(target, piece, at)
                back.update(read_back(target, back_buffer[: len(piece)], at))
                at += len(piece)
                with self._lock:
                    self._bytes_done += len(piece)
                if self._stop.is_set():
                    raise CancelledError
        if back.digest() != read.digest():
            raise _damaged(
                job,
                f"differs from it between bytes {span.start} and {span.stop}: what was written there is not what is "
                "read back; memory or storage at fault is likely",
            )
        return read.digest()


def _read(job: CopyJob, source: ByteSource, at: int, target: memoryview) -> None:
    """Fill memory with the bytes from an offset on."""
    try:
        source.read_many((at,), (target,))
    except (SourceChangedError, SourceNotFoundError) as error:
        check_source(job)  # raises with the change
        raise _changed(job, "it was another one for a moment") from error


def _write(target: int, piece: memoryview, at: int) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(target, piece[done:], at + done)


def read_back(target: int, space: memoryview, at: int) -> memoryview:
    """Read written bytes; fewer than written at the end of the file, so that the hashes differ."""
    done = 0
    while done < len(space) and (count := os.preadv(target, [space[done:]], at + done)):
        done += count
    return space[:done]


def open_part(job: CopyJob) -> FileIO:
    """Open the unfinished copy, if it is still the claimed file."""
    with contextlib.suppress(FileNotFoundError):
        part = FileIO(job.part, "r+", opener=open_no_link)
        if os.fstat(part.fileno()).st_ino == job.entry.copy_inode:
            return part
        part.close()
    raise gone(job)


def gone(job: CopyJob) -> StagingError:
    """Return the error for a copy that was removed while it was made."""
    path, folder = job.source.path, str(job.folder.path)
    return StagingError(
        f"the copy of {path} was removed from {folder} while it was made (by `h5stream stage --remove --force`?); "
        "stage again",
        file=path,
        folder=folder,
    )


def check_source(job: CopyJob) -> None:
    """Raise if a source has changed since it was examined."""
    was: Any = job.source
    try:
        now = was.now()
    except SourceNotFoundError as error:
        raise _changed(job, "it was removed") from error
    if now != was:
        raise _changed(job, was.difference(now))


def _changed(job: CopyJob, how: str) -> SourceChangedError:
    return SourceChangedError(
        f"{job.source.path} changed while it was copied: {how}. Its copy was not kept; stage again when nothing "
        "writes to it",
        file=job.source.path,
    )


def _damaged(job: CopyJob, how: str) -> StagedFileDamagedError:
    path, folder = job.source.path, str(job.folder.path)
    return StagedFileDamagedError(f"the copy of {path} {how}. It was not kept", file=path, folder=folder)


def finish(job: CopyJob, target: int, *, repacked: bool = False) -> CopyJob:
    """Give a copy its source's mode and time, flush it, and check both files for the last time.

    The result is verified, still has its unfinished name, and has the final entry of the manifest.
    """
    if not isinstance(job.source, ObjectIdentity):  # copies of objects stay private, as credentials may be
        check_source(job)
        facts = os.stat(job.source.path)
        os.fchmod(target, stat.S_IMODE(facts.st_mode) & 0o777)
        os.utime(target, ns=(facts.st_atime_ns, job.source.mtime_ns))
    os.fsync(target)
    # By its path: an editor that saves by rename leaves an open descriptor on the old file.
    check_source(job)
    copy = os.fstat(target)
    if repacked:  # its values were verified through h5py
        digests = [digest_of_block(job.part, start)[0] for start in range(0, copy.st_size, BLOCK_BYTES)]
    elif copy.st_size == job.source.size:
        digests = [job.digests[start] for start in job.blocks if start < copy.st_size]
    else:
        raise _damaged(job, f"has {copy.st_size} bytes, not {job.source.size}: something else wrote to {job.part}")
    made = replace(
        job.entry,
        checksum=combine(digests),
        copy_mtime_ns=copy.st_mtime_ns,
        copy_bytes=copy.st_size if repacked else -1,
        staged_at=time.time(),
    )
    return replace(job, entry=made)

"""The file system below a path: its mount, its free space, the page cache, and safe writing of files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from h5stream.base import limits
from h5stream.base.texts import counted, text_of_bytes
from h5stream.errors import H5StreamError, NotEnoughSpaceError, StagingError

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_NETWORK = ("nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "virtiofs", "afs")
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 20

_UNFINISHED: set[Callable[[], object]] = set()
"""Callables that remove files that are still being written; none takes a lock."""


class Mount(NamedTuple):
    """A mounted file system."""

    kind: str  # its type, such as ``tmpfs`` or ``ext4``; empty if unknown
    point: str  # where it is mounted

    @property
    def in_memory(self) -> bool:
        """Whether it keeps its files in memory."""
        return self.kind in MEMORY_FILESYSTEMS

    @property
    def on_network(self) -> bool:
        """Whether its files are read across a network, or through a program that may do so (FUSE)."""
        return self.kind.startswith(_NETWORK)


def mount_of(path: Path, mounts: str | None = None) -> Mount:
    """Return the file system under a path, which need not exist; `mounts` stands in for ``/proc/self/mountinfo``.

    Source: ``proc_pid_mountinfo(5)``.
    """
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="replace") if mounts is None else mounts
    except OSError:
        text = ""
    real = path.resolve()
    best = Mount(kind="", point="/")
    for line in text.splitlines():
        fields, _, tail = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        # Of several mounts on one another the last one counts, hence "at least as long".
        if real.is_relative_to(point) and (not best.kind or len(point) >= len(best.point)):
            best = Mount(kind=tail.split()[0], point=point)
    return best


def existing_parent(path: Path) -> Path:
    """Return the path itself, or the nearest folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def give_name(part: Path, name: Path) -> None:
    """Rename a file without overwriting; raise `FileExistsError` if the name is taken."""
    try:
        os.link(part, name)  # unlike rename, it fails if the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        part.rename(name)
    else:
        part.unlink()


def try_flock(descriptor: int, kind: int) -> bool:
    """Try to lock a file without blocking; return whether that succeeded."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def flush_folder(folder: Path) -> None:
    """Write the entries of a folder to its storage."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def resident_bytes(path: Path) -> int | None:
    """Estimate how many bytes of a file are in the page cache; None if the system does not say.

    Up to 64 MiB every page counts; a larger file is sampled at 64 places of 1 MiB, because a full scan is slow.

    Source: ``mincore(2)``, which is accurate only for the file's owner and for users who may write to it.
    """
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if os.geteuid() not in (0, facts.st_uid) and not os.access(path, os.W_OK):
                return None
            return _resident(file.fileno(), facts.st_size)
    except OSError:
        return None


def _resident(descriptor: int, size_bytes: int) -> int:
    libc, looked_at, resident = ctypes.CDLL(None, use_errno=True), 0, 0
    spread = max(_SAMPLE_BYTES, size_bytes // _SAMPLES // _SAMPLE_BYTES * _SAMPLE_BYTES)
    for offset in range(0, size_bytes, spread):
        length = min(_SAMPLE_BYTES, size_bytes - offset)
        answer = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
        # ctypes only takes the address of a writable mapping; this one is private, and nothing is written or touched.
        with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=offset) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            failure = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), answer)
            del first  # a mapping cannot be closed while ctypes refers to it
        if failure:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        looked_at += length
        resident += min(length, sum(page & 1 for page in answer) * mmap.PAGESIZE)  # only the lowest bit has a meaning
    return resident * size_bytes // looked_at if looked_at else 0


@contextlib.contextmanager
def unfinished(remove: Callable[[], object]) -> Iterator[None]:
    """Register `remove` for the length of a block: `ended_by_signals` calls it if a signal ends the process."""
    _UNFINISHED.add(remove)
    try:
        yield
    finally:
        _UNFINISHED.discard(remove)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Handle SIGHUP and SIGTERM, unless they are handled already: call what `unfinished` registered, then die.

    # Guarantees: the handler removes and dies, and raises nothing: an exception is lost if Python is running a weak
    reference's callback, as it does after each call of h5py. A forked child dies alone.
    """
    owner, before = os.getpid(), {}

    def end(number: int, frame: object) -> None:
        for remove in tuple(_UNFINISHED) if os.getpid() == owner else ():
            with contextlib.suppress(OSError):
                remove()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread():  # Python sets handlers in no other thread
        for number in (signal.SIGHUP, signal.SIGTERM):
            if signal.getsignal(number) == signal.SIG_DFL:  # not below `nohup`
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- whether copies fit: free space and, for a file system in memory, available memory -----------------------


_FULL = (errno.ENOSPC, errno.EDQUOT)

# Default margins that stay free. A training process needs memory of its own and grows
# while it runs; the kernel starts to reclaim and to swap well before the last page is gone.
MEMORY_MARGIN_SHARE = 0.05
LEAST_MEMORY_MARGIN = 256 << 20
DISK_MARGIN_SHARE = 0.01


def usable_bytes(folder: Path, margin_bytes: int | None = None, freed_bytes: int = 0) -> tuple[int, list[str]]:
    """Return the bytes that fit into a folder once `freed_bytes` are deleted, and one text for each limit.

    A margin is subtracted from each limit; `margin_bytes` replaces the default margins.
    """
    place = existing_parent(folder)
    mount, facts, bounds = mount_of(place), os.statvfs(place), []
    if facts.f_blocks:  # a ramfs has no limit
        # The size of a tmpfs is a limit that was set on purpose: it may be used up. Nearly full disks grow slow.
        margin = 0 if mount.in_memory else int(DISK_MARGIN_SHARE * facts.f_blocks * facts.f_frsize)
        bounds.append(
            ("the free space" + f" ({mount.kind})" * bool(mount.kind), facts.f_bavail * facts.f_frsize, margin)
        )
    if mount.in_memory:
        memory = limits.memory_available_bytes()
        bounds.append(("the available memory", memory, max(LEAST_MEMORY_MARGIN, int(MEMORY_MARGIN_SHARE * memory))))
    least, limit_texts = 1 << 62, []
    for what, have, usual in bounds:
        margin = usual if margin_bytes is None else margin_bytes
        least = min(least, have + freed_bytes - margin)
        less = f" less a margin of {text_of_bytes(margin)}" if margin else ""
        limit_texts.append(f"{what} is {text_of_bytes(have + freed_bytes)}{less}")
    return max(0, least), limit_texts


def check_fits(
    folder: Path,
    sizes: Sequence[tuple[str, int]],
    *,
    margin_bytes: int | None = None,
    freed_bytes: int = 0,
    promised_bytes: int = 0,
) -> None:
    """Raise `NotEnoughSpaceError` if files do not fit; the message names those that would, smallest first.

    `sizes` are names and bytes; `promised_bytes` are still to be written by other processes.
    """
    taken = sorted((-(-size // mmap.PAGESIZE) * mmap.PAGESIZE, name) for name, size in sizes)
    needed, (usable, limits) = sum(size for size, _ in taken), usable_bytes(folder, margin_bytes, freed_bytes)
    usable = max(0, usable - promised_bytes)
    if needed <= usable:
        return
    if promised_bytes:
        limits.append(f"{text_of_bytes(promised_bytes)} are promised to copies under way")
    totals = itertools.accumulate(size for size, _ in taken)
    fitting = [name for (_, name), total in zip(taken, totals, strict=True) if total <= usable]
    names = ", ".join(fitting[:5]) + ", ..." * (len(fitting) > 5)
    fits = f"{len(fitting)} of {len(sizes)} would fit: {names}; or" if fitting else "None of them fits;"
    raise NotEnoughSpaceError(
        f"{folder} has no room for {counted(len(sizes), 'file')} of {text_of_bytes(needed)} ({needed} bytes): it takes "
        f"{text_of_bytes(usable)} ({usable} bytes): {'; '.join(limits)}. {fits} free space with `h5stream stage "
        "--remove`, or name another folder",
        file=sizes[0][0] if len(sizes) == 1 else "",
        folder=str(folder),
        needed=needed,
        available=usable,
    )


@contextlib.contextmanager
def explained(folder: Path, how: str, source: str = "", needed: int = 0) -> Iterator[None]:
    """Translate errors of the system or libhdf5 into `StagingError`; `how` is a participle, such as ``"copied"``."""
    what = source or "the manifest of staged files"
    try:
        yield
    except H5StreamError:
        raise
    except (OSError, RuntimeError) as error:
        if is_full(error):
            raise NotEnoughSpaceError(
                f"{folder} filled up while {what} was {how} there. What was not finished is deleted; free space, or "
                "name another folder",
                file=source,
                folder=str(folder),
                needed=needed,
            ) from error
        raise StagingError(
            f"{what} cannot be {how} to {folder}: {getattr(error, 'strerror', None) or error}. What was not finished "
            "is deleted; this needs a folder that may be written and locked",
            file=source,
            folder=str(folder),
        ) from error


def is_full(error: BaseException) -> bool:
    """Return whether an error of the operating system or of libhdf5 means that no space is left."""
    is_in_message = any(f"errno = {number}," in str(error) for number in _FULL)
    return is_in_message or (isinstance(error, OSError) and error.errno in _FULL)

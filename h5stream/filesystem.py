"""What the system says of the place where a file lies: its mount, its disk, and what the page cache holds of it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_NETWORK = ("nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "virtiofs", "afs")
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 20

_UNFINISHED: set[Callable[[], object]] = set()
"""What removes the files that are being written, each without a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The file system that a path lies on."""

    kind: str
    """Its type, such as ``tmpfs`` or ``ext4``; empty where it is not known."""
    point: str
    """Where it is mounted."""

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

    Examples
    --------
    >>> mount_of(Path("/proc")).kind
    'proc'
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
    """Rename a file to a name that must be free; `FileExistsError` where it was taken meanwhile."""
    try:
        os.link(part, name)  # unlike rename, it fails where the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        part.rename(name)
    else:
        part.unlink()


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on its storage."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rotates(device: int) -> bool | None:
    """Say whether a device, by its number (``st_dev``), is a rotating disk; None where that is not known."""
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (block / "queue", block / ".." / "queue"):  # a partition's queue is its disk's
        try:
            return (queue / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None


def resident_bytes(path: Path) -> int | None:
    """Give about how many bytes of a file the page cache holds; None where the kernel does not tell.

    Reads nothing of the file. Up to 64 MiB every page counts; of a larger file, 64 samples of 1 MiB at even
    distances, because to ask about every page of a file in memory takes a twentieth of the time to copy it.

    Source: ``mincore(2)``. The kernel answers truthfully only to those who own the file or may write to it;
    to others every page looks resident.
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
    spread = max(_SAMPLE_BYTES, size_bytes // _SAMPLES // _SAMPLE_BYTES * _SAMPLE_BYTES)
    looked_at = resident = 0
    for offset in range(0, size_bytes, spread):
        length = min(_SAMPLE_BYTES, size_bytes - offset)
        looked_at += length
        resident += min(length, _resident_pages(descriptor, offset, length) * mmap.PAGESIZE)
    return resident * size_bytes // looked_at if looked_at else 0


def _resident_pages(descriptor: int, offset: int, length: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    # Private and writable, as only such a mapping lets ctypes have its address. Nothing is written, no page touched.
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=offset) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        answer = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        failure = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), answer)
        del first  # a mapping cannot be closed while ctypes holds on to it
    if failure:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return sum(byte & 1 for byte in answer.raw[: -(-length // mmap.PAGESIZE)])  # only the lowest bit has a meaning


@contextlib.contextmanager
def unfinished(remove: Callable[[], object]) -> Iterator[None]:
    """Have `remove` called by a signal that ends the command meanwhile."""
    _UNFINISHED.add(remove)
    try:
        yield
    finally:
        _UNFINISHED.discard(remove)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGHUP and SIGTERM, where they would end this process, remove what is unfinished first.

    # Guarantees: the handler removes and dies, and raises nothing: an exception is lost where Python runs a weak
    reference's callback, as it does behind each call of h5py. A forked child dies alone.
    """
    ours, before = os.getpid(), {}

    def end(number: int, frame: object) -> None:
        for remove in tuple(_UNFINISHED) if os.getpid() == ours else ():
            with contextlib.suppress(OSError):
                remove()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be asked for
        for number in (signal.SIGHUP, signal.SIGTERM):
            if signal.getsignal(number) == signal.SIG_DFL:  # not below `nohup`
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""What the system says of the place where a file lies: its mount, its disk, what is cached of it, and what fits there.

What decides whether copies fit (`refusal`, `what_fits`) is pure; what measures (`measure`) reads ``/proc`` and
``statvfs`` once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from h5stream import allowance
from h5stream.errors import H5StreamError, NotEnoughSpaceError, StagingError
from h5stream.units import text_of_bytes

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


# --- whether copies fit: the folder's free space, and for a file system in memory also the memory there is ----


_FULL = (errno.ENOSPC, errno.EDQUOT)

# What stays free unless the caller says otherwise. A training process needs memory of its own and grows
# while it runs; the kernel starts to reclaim and to swap well before the last page is gone.
MEMORY_MARGIN_SHARE = 0.05
LEAST_MEMORY_MARGIN = 256 << 20
DISK_MARGIN_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a folder can take, at one moment."""

    folder: str
    filesystem: str  # its type, such as ``tmpfs`` or ``ext4``; empty where it is not known
    free_bytes: int | None  # what the file system says is free, for this user; None where it has no limit (ramfs)
    memory_bytes: int | None  # what can be taken, within the cgroup's limit; None where files are not in memory
    free_margin_bytes: int  # what is to stay free in the file system
    memory_margin_bytes: int  # what is to stay free of the memory

    @property
    def usable_bytes(self) -> int:
        """What copies may take: the tighter of the two limits, margins taken off."""
        limits = [1 << 62]
        if self.free_bytes is not None:
            limits.append(self.free_bytes - self.free_margin_bytes)
        if self.memory_bytes is not None:
            limits.append(self.memory_bytes - self.memory_margin_bytes)
        return max(0, min(limits))


def measure(folder: Path, margin_bytes: int | None = None, freed_bytes: int = 0) -> Space:
    """Return what a folder can take when so much is deleted there; `margin_bytes` replaces both margins."""
    place = existing_parent(folder)
    mount, facts = mount_of(place), os.statvfs(place)
    memory = allowance.memory_available_bytes() if mount.in_memory else None
    memory_margin = max(LEAST_MEMORY_MARGIN, int(MEMORY_MARGIN_SHARE * (memory or 0)))
    # The size of a tmpfs is a limit that was set on purpose: it may be used up. Nearly full disks grow
    # slow.
    free_margin = 0 if mount.in_memory else int(DISK_MARGIN_SHARE * facts.f_blocks * facts.f_frsize)
    return Space(
        folder=str(folder),
        filesystem=mount.kind,
        free_bytes=facts.f_bavail * facts.f_frsize + freed_bytes if facts.f_blocks else None,
        memory_bytes=None if memory is None else memory + freed_bytes,
        free_margin_bytes=free_margin if margin_bytes is None else margin_bytes,
        memory_margin_bytes=memory_margin if margin_bytes is None else margin_bytes,
    )


def check_fits(space: Space, sizes: Sequence[tuple[str, int]], promised_bytes: int = 0) -> None:
    """Raise `NotEnoughSpaceError` where files do not fit beside what other processes are still to write."""
    problem = refusal(space, sizes, promised_bytes)
    if problem:
        raise NotEnoughSpaceError(
            problem,
            file=sizes[0][0] if len(sizes) == 1 else "",
            folder=space.folder,
            needed=sum(pages(size) for _, size in sizes),
            available=max(0, space.usable_bytes - promised_bytes),
        )


@contextlib.contextmanager
def explained(source: str, folder: Path, how: str, needed: int) -> Iterator[None]:
    """Turn what the operating system or libhdf5 says of a file that is being ``"copied"`` into ours, with its name."""
    try:
        yield
    except H5StreamError:
        raise
    except (OSError, RuntimeError) as error:
        if is_full(error):
            raise NotEnoughSpaceError(
                f"{folder} filled up while {source} was {how} there. What was not finished is deleted; free space, or "
                "name another folder",
                file=source,
                folder=str(folder),
                needed=needed,
            ) from error
        raise StagingError(
            f"{source} cannot be {how} to {folder}: {getattr(error, 'strerror', None) or error}. What was not finished "
            "is deleted",
            file=source,
            folder=str(folder),
        ) from error


def is_full(error: BaseException) -> bool:
    """Tell whether an error of the operating system or of libhdf5 means that there is no space left."""
    told = any(f"errno = {number}," in str(error) for number in _FULL)
    return told or (isinstance(error, OSError) and error.errno in _FULL)


def pages(size_bytes: int, page_bytes: int = 4096) -> int:
    """Return what a file takes in whole pages, in bytes.

    Examples
    --------
    >>> pages(0), pages(1), pages(4097)
    (0, 4096, 8192)
    """
    return -(-size_bytes // page_bytes) * page_bytes


def what_fits(sizes: Sequence[tuple[str, int]], usable_bytes: int) -> list[str]:
    """Return the names that fit together: smallest first, so that most files are brought in.

    Examples
    --------
    >>> what_fits([("big", 100), ("small", 10), ("middle", 50)], 70)
    ['small', 'middle']
    """
    fitting, used = [], 0
    for name, size in sorted(sizes, key=lambda pair: pair[1]):
        if used + size > usable_bytes:
            break
        fitting.append(name)
        used += size
    return fitting


def refusal(space: Space, sizes: Sequence[tuple[str, int]], promised_bytes: int = 0) -> str:
    """Return why the files do not fit, with the numbers and what would fit; an empty string where they fit.

    Each file has a name and its bytes; what other processes are copying will still take `promised_bytes`.
    """
    needed = sum(pages(size) for _, size in sizes)
    usable = max(0, space.usable_bytes - promised_bytes)
    if needed <= usable:
        return ""
    limits = []
    if space.free_bytes is not None:
        limits.append(_limit("its free space", space.free_bytes, space.free_margin_bytes))
    if space.memory_bytes is not None:
        limits.append(_limit("the available memory", space.memory_bytes, space.memory_margin_bytes))
    if promised_bytes:
        limits.append(f"{text_of_bytes(promised_bytes)} are promised to copies under way")
    return (
        f"{len(sizes)} file(s) of {text_of_bytes(needed)} ({needed} bytes) do not fit into {space.folder}"
        f"{f' ({space.filesystem})' if space.filesystem else ''}, which can take {text_of_bytes(usable)} "
        f"({usable} bytes): {'; '.join(limits)}. {_way_out(what_fits(sizes, usable), len(sizes))}"
    )


def _limit(what: str, have_bytes: int, margin_bytes: int) -> str:
    margin = f" less a margin of {text_of_bytes(margin_bytes)}" if margin_bytes else ""
    return f"{what} is {text_of_bytes(have_bytes)}{margin}"


def _way_out(fitting: Sequence[str], asked: int) -> str:
    free = "free space with `h5stream stage --remove`, or name another folder"
    if not fitting:
        return f"None of them fits; {free}"
    names = ", ".join(fitting[:5]) + (", ..." if len(fitting) > 5 else "")
    return f"{len(fitting)} of {asked} would fit: {names}; or {free}"

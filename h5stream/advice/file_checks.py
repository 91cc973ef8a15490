"""What the doctor says about a file, from its bytes alone: filesystem, page cache, rate of reading."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from h5stream.advice.check import Check, failed, passed, warned
from h5stream.errors import H5StreamError
from h5stream.storage.listing import list_datasets
from h5stream.units import text_of_bytes

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# A thread inflates 1.3 GB/s and gzip halves the bytes: below this rate storage keeps even one thread waiting.
SLOW_BYTES_PER_S = 500e6
TRIAL_BYTES = 256 << 20
TRIAL_S = 1.0
_READ_BYTES = 4 << 20
_STRETCH_BYTES = 1 << 30  # mapped at a time, so that a terabyte needs no terabyte of addresses
MOST_DATASETS = 2000  # A second's work; what cuts a file off is seen when it is opened.
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "9p",
    "virtiofs",
    "afs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrial:
    """How fast a file was read.

    Attributes
    ----------
    bytes_per_s : float
        Bytes a second, one read of 4 MiB after the other.
    size_bytes : int
        Bytes read. Few: the rate says little.
    direct : bool
        Whether the reads went past the page cache, so that the rate is the storage's.
    """

    bytes_per_s: float
    size_bytes: int
    direct: bool


def check_is_hdf5(path: Path) -> Check:
    """Look for HDF5's signature at 0, 512, 1024, 2048 ...

    Source: "Superblock" in the HDF5 file format specification.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # A pipe would be waited for.
            return failed("file", f"{path}: a pipe or a device", "name an HDF5 file")
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            offset = 0
            while offset < size:
                file.seek(offset)
                if file.read(len(SIGNATURE)) == SIGNATURE:
                    block = f", user block of {offset} bytes" if offset else ""
                    return passed("file", f"HDF5, {text_of_bytes(size)}{block}")
                offset = max(512, 2 * offset)
    except OSError as error:
        return failed("file", f"{path}: {error.strerror}", "check the path and its permissions")
    return failed("file", f"{path}: no HDF5 signature", "check that it is an HDF5 file and was copied whole")


def check_structure(path: Path) -> Check:
    """Open the file with libhdf5 and walk through it: one that was cut off, or is damaged, shows here."""
    try:
        entries, left_out = list_datasets(str(path), most=MOST_DATASETS)
    except H5StreamError as error:
        return failed("structure", str(error), "copy the file again from its source; see also h5clear and h5check")
    more = f", the first {len(entries):,} looked at" if left_out else ""
    return passed("structure", f"{len(entries) + left_out:,} dataset(s){more}")


def check_filesystem(path: Path, mounts: str | None = None) -> Check:
    """Judge the filesystem under a file.

    Parameters
    ----------
    path : Path
        An existing file.
    mounts : str, optional
        Text of ``/proc/self/mountinfo``, for tests.
    """
    kind, point = filesystem(path, mounts)
    found = f"{kind}, mounted at {point}"
    if kind.startswith(_NETWORK):
        return warned("filesystem", found + ": every read crosses a network", f"h5stream stage {path}")
    return passed("filesystem", found)


def filesystem(path: Path, mounts: str | None = None) -> tuple[str, str]:
    """Give type and mount point of the filesystem under `path`; ``unknown`` where the system does not say.

    Source: ``proc_pid_mountinfo(5)``.
    """
    text = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    real = path.resolve()
    best = ("unknown", "/")
    for line in text.splitlines():
        fields, _, tail = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        # Of several mounts on one another the last one counts, hence "at least as long".
        if real.is_relative_to(point) and (best[0] == "unknown" or len(point) >= len(best[1])):
            best = (tail.split()[0], point)
    return best


def check_residency(path: Path) -> Check:
    """Tell how much of the file is in the page cache; that is neither good nor bad."""
    try:
        resident, size = resident_bytes(path), path.stat().st_size
    except OSError as error:
        return passed("page cache", f"the system does not say: {error}")
    return passed("page cache", f"{resident / max(size, 1):.0%} of {text_of_bytes(size)} is in memory")


def resident_bytes(path: Path) -> int:
    """Give how many bytes of a file are in the page cache, in whole pages, at most the file's size.

    The kernel answers only for files that the caller owns or may write to, and says "all" for others.

    Source: ``mincore(2)``.

    Raises
    ------
    OSError
        If the file cannot be mapped.
    """
    size, pages = path.stat().st_size, 0
    with path.open("rb") as file:
        for start in range(0, size, _STRETCH_BYTES):
            pages += _resident_pages(file.fileno(), start, min(_STRETCH_BYTES, size - start))
    return min(size, pages * mmap.PAGESIZE)


def _resident_pages(descriptor: int, start: int, length: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    # A private writable mapping: only such a one lets ctypes have its address. Nothing is written, no page
    # is touched.
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=start) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        answer = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        failure = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), answer)
        del first  # A mapping cannot be closed while ctypes holds on to it.
    if failure:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return sum(byte & 1 for byte in answer.raw[: -(-length // mmap.PAGESIZE)])


def check_read_rate(path: Path) -> Check:
    """Measure how fast the file's storage is read, for at most a second."""
    try:
        trial = read_trial(path)
    except OSError as error:
        return failed("read rate", f"{path}: {error.strerror}", "check the storage; dmesg may say more")
    if filesystem(path)[0] in {"tmpfs", "ramfs"}:
        trial = replace(trial, direct=False)  # Direct reads are taken there, and there is nothing but the cache.
    return judge_read_rate(path, trial)


def judge_read_rate(path: Path, trial: ReadTrial) -> Check:
    """Judge a measured rate."""
    if trial.size_bytes < _READ_BYTES:
        return passed("read rate", f"too small to measure ({trial.size_bytes} bytes)")
    how = "past the page cache" if trial.direct else "through the page cache, as this filesystem cannot do without"
    found = f"{text_of_bytes(trial.bytes_per_s)}/s over {text_of_bytes(trial.size_bytes)}, {how}"
    if trial.direct and trial.bytes_per_s < SLOW_BYTES_PER_S:
        return warned("read rate", found, f"h5stream stage {path}, or a faster disk: decoding will wait for it")
    return passed("read rate", found)


def read_trial(path: Path, *, trial_bytes: int = TRIAL_BYTES, trial_s: float = TRIAL_S) -> ReadTrial:
    """Read pieces of 4 MiB, spread over the file, past the page cache where the filesystem allows it.

    The page cache is left as it is: direct reads neither use nor fill it.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    direct = True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0))
    except OSError:
        direct, descriptor = False, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        offsets = _spread(size, trial_bytes)
        with mmap.mmap(-1, _READ_BYTES) as buffer:  # page-aligned, as direct reads want it
            begin_s = time.perf_counter()
            done = 0
            for offset in offsets:
                done += os.preadv(descriptor, [buffer], offset)
                if time.perf_counter() - begin_s > trial_s:
                    break
            seconds = time.perf_counter() - begin_s
    finally:
        os.close(descriptor)
    return ReadTrial(bytes_per_s=done / max(seconds, 1e-9), size_bytes=done, direct=direct)


def _spread(size: int, trial_bytes: int) -> list[int]:
    """Give the offsets of whole pieces, evenly over the file, not in order: read-ahead is no help."""
    pieces = size // _READ_BYTES
    count = min(pieces, max(1, trial_bytes // _READ_BYTES))
    offsets = [index * pieces // count * _READ_BYTES for index in range(count)]
    return offsets[::2] + offsets[1::2] if offsets else [0]

"""What the doctor says about a file, from its bytes alone: filesystem, page cache, rate of reading."""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from h5stream.advice.check import Check, failed, passed, warned
from h5stream.advice.listing import list_file
from h5stream.errors import H5StreamError
from h5stream.filesystem import mount_of, resident_bytes
from h5stream.units import text_of_bytes

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# A thread inflates 1.3 GB/s and gzip halves the bytes: below this rate storage keeps even one thread waiting.
SLOW_BYTES_PER_S = 500e6
TRIAL_BYTES = 256 << 20
TRIAL_S = 1.0
_READ_BYTES = 4 << 20
MOST_DATASETS = 2000  # A second's work; what cuts a file off is seen when it is opened.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrial:
    """How fast a file was read."""

    bytes_per_s: float  # bytes a second, one read of 4 MiB after the other
    size_bytes: int  # bytes read. Few: the rate says little
    direct: bool  # whether the reads went past the page cache, so that the rate is the storage's


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
        listing = list_file(str(path), most=MOST_DATASETS, some=list)
    except H5StreamError as error:
        return failed("structure", str(error), "copy the file again from its source; see also h5clear and h5check")
    seen, left_out = len(listing.entries), listing.left_out
    more = f", the first {seen:,} looked at" if left_out else ""
    return passed("structure", f"{seen + left_out:,} dataset(s){more}")


def check_filesystem(path: Path, mounts: str | None = None) -> Check:
    """Judge the filesystem under a file; `mounts` stands in for ``/proc/self/mountinfo``."""
    mount = mount_of(path, mounts)
    found = f"{mount.kind or 'unknown'}, mounted at {mount.point}"
    if mount.on_network:
        return warned("filesystem", found + ": every read crosses a network", f"h5stream stage {path}")
    return passed("filesystem", found)


def check_residency(path: Path) -> Check:
    """Tell how much of the file is in the page cache; that is neither good nor bad."""
    resident = resident_bytes(path)
    if resident is None:
        return passed("page cache", "the system does not say")
    size = path.stat().st_size
    return passed("page cache", f"{resident / max(size, 1):.0%} of {text_of_bytes(size)} is in memory")


def check_read_rate(path: Path) -> Check:
    """Measure how fast the file's storage is read, for at most a second."""
    try:
        trial = read_trial(path)
    except OSError as error:
        return failed("read rate", f"{path}: {error.strerror}", "check the storage; dmesg may say more")
    if mount_of(path).in_memory:
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
    """
    direct = True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0))
    except OSError:
        direct, descriptor = False, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        offsets = spread(size, trial_bytes)
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


def spread(size: int, trial_bytes: int) -> list[int]:
    """Return the offsets of whole pieces, evenly over the file, not in order: read-ahead is no help."""
    pieces = size // _READ_BYTES
    count = min(pieces, max(1, trial_bytes // _READ_BYTES))
    offsets = [index * pieces // count * _READ_BYTES for index in range(count)]
    return offsets[::2] + offsets[1::2] if offsets else [0]

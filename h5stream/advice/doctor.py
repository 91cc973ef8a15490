"""`h5stream doctor`: the checklist of a machine, and of a file on it: facts are gathered, and judged purely."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from h5stream import allowance
from h5stream.advice.listing import MOST_DATASETS, list_file
from h5stream.device.facts import CudaFacts, cuda_facts, pin_error
from h5stream.errors import H5StreamError
from h5stream.filesystem import mount_of, resident_bytes
from h5stream.monitor.nvml import DriverFacts, driver_facts
from h5stream.storage.plugins import StorageVersions, storage_versions
from h5stream.units import text_of_bytes

Status = Literal["pass", "warn", "fail"]
_ORDER: tuple[Status, ...] = ("pass", "warn", "fail")

_MOUNTS = Path("/proc/self/mounts")
_NODES = Path("/sys/devices/system/node")
_PCI = Path("/sys/bus/pci/devices")
_SYSTEMS_OWN = ("/run", "/sys", "/proc")

MIN_TORCH = (2, 6)  # as in pyproject.toml
PINNED_TRIAL_BYTES = 64 << 20  # Eight slots of 8192 rows of 256 float32.
LEAST_MEMORY_BYTES = 2 << 30  # Torch, CUDA and a window of the default size.
LEAST_TMPFS_BYTES = 1 << 30  # Docker gives /dev/shm 64 MiB, which the first worker's queue overruns.
LEAST_OPEN_FILES = 4096  # Worker queues pass tensors as open files; 1024 is torch's best-known stumbling block.

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# A thread inflates 1.3 GB/s and gzip halves the bytes: below this rate storage keeps even one thread waiting.
SLOW_BYTES_PER_S = 500e6
TRIAL_BYTES = 256 << 20
TRIAL_S = 1.0
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status  # ``warn`` costs speed, ``fail`` stops something from working
    found: str
    fix: str = ""  # what to do about it; empty if there is nothing to do


def passed(name: str, found: str) -> Check:
    """Return a check that found nothing to complain about."""
    return Check(name=name, status="pass", found=found)


def warned(name: str, found: str, fix: str) -> Check:
    """Return a check that found something slow."""
    return Check(name=name, status="warn", found=found, fix=fix)


def failed(name: str, found: str, fix: str) -> Check:
    """Return a check that found something broken."""
    return Check(name=name, status="fail", found=found, fix=fix)


def worst(checks: Iterable[Check]) -> Status:
    """Return the worst status; ``pass`` without any checks."""
    return max((check.status for check in checks), key=_ORDER.index, default="pass")


def examine_machine() -> list[Check]:
    """Return the checklist of this machine. It may start CUDA in this process."""
    facts, driver, versions = cuda_facts(), driver_facts(), storage_versions()
    error = pin_error(PINNED_TRIAL_BYTES) if facts.available else None
    return [
        check_torch(facts),
        check_driver(driver),
        check_cuda(facts, driver, os.environ.get("CUDA_VISIBLE_DEVICES")),
        check_pinned(facts.available, error, limit_of(resource.RLIMIT_MEMLOCK)[0]),
        check_processors(allowance.cpus(), os.cpu_count() or 1),
        check_memory(allowance.memory_available_bytes(), allowance.memory_limit_bytes()),
        check_tmpfs(tmpfs_places()),
        check_open_files(*limit_of(resource.RLIMIT_NOFILE)),
        check_hdf5(versions),
        check_filters(versions),
        check_numa(gpu_nodes(driver), cpu_nodes()),
        check_start_method(start_method(), facts.initialized),
    ]


def examine_file(path: Path) -> list[Check]:
    """Return the checklist of a file; only what tells so if it is no HDF5 file, or a damaged one."""
    first = check_is_hdf5(path)
    if first.status == "fail":
        return [first]
    structure = check_structure(path)
    if structure.status == "fail":
        return [first, structure]
    return [
        first,
        structure,
        check_filesystem(path),
        check_residency(path),
        check_read_rate(path),
    ]


def tmpfs_places(mounts: Path = _MOUNTS) -> dict[str, int]:
    """Return the writable tmpfs folders, but for the system's own, and their free bytes."""
    places = {}
    for line in mounts.read_text().splitlines():
        _, escaped, kind, *_ = line.split()
        folder = escaped.replace("\\040", " ")
        if kind == "tmpfs" and not folder.startswith(_SYSTEMS_OWN) and os.access(folder, os.W_OK):
            places[folder] = shutil.disk_usage(folder).free
    return places


def gpu_nodes(driver: DriverFacts, pci: Path = _PCI) -> list[int]:
    """Return the memory node of each GPU, -1 where the kernel names none."""
    buses = {device.pci_bus_id for device in driver.devices if device.pci_bus_id is not None}
    return [_number_in(pci / bus / "numa_node") for bus in sorted(buses)]


def cpu_nodes(nodes: Path = _NODES) -> set[int]:
    """Return the memory nodes whose processors this process may use."""
    allowed = os.sched_getaffinity(0)
    found = set()
    for folder in nodes.glob("node[0-9]*"):
        if allowed & _listed_cpus((folder / "cpulist").read_text()):
            found.add(int(folder.name.removeprefix("node")))
    return found


def limit_of(which: int) -> tuple[int, int]:
    """Return the soft and the hard limit, -1 for none."""
    soft, hard = resource.getrlimit(which)
    return tuple(-1 if one == resource.RLIM_INFINITY else one for one in (soft, hard))  # type: ignore[return-value]


def start_method() -> str:
    """Return how new processes start here, without fixing it."""
    # Asking for the current one would fix it, so the default is what the list begins with.
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _number_in(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return -1


def _listed_cpus(text: str) -> set[int]:
    """Read the kernel's ``0-3,8``."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


# --- of a machine --------------------------------------------------------------------------------------------


def check_torch(facts: CudaFacts) -> Check:
    """Judge torch's version."""
    found = f"torch {facts.torch_version}, " + (f"CUDA {facts.built_for}" if facts.built_for else "CPU build")
    if _numbers(facts.torch_version)[:2] < MIN_TORCH:
        return warned("torch", found, f"pip install 'torch>={MIN_TORCH[0]}.{MIN_TORCH[1]}'")
    return passed("torch", found)


def check_driver(driver: DriverFacts) -> Check:
    """Judge the NVIDIA driver; a machine without one is an ordinary case."""
    if driver.version is None:
        return passed("driver", f"{driver.reason}; training runs on the processor")
    cuda = "unknown" if driver.cuda_version is None else "{}.{}".format(*driver.cuda_version)
    names = ", ".join(device.name for device in driver.devices) or "no device"
    return passed("driver", f"{driver.version}, runs CUDA up to {cuda}: {names}")


def check_cuda(facts: CudaFacts, driver: DriverFacts, visible: str | None) -> Check:
    """Judge whether torch can use the GPUs that the driver has; `visible` is ``CUDA_VISIBLE_DEVICES``."""
    if not driver.devices:
        return passed("CUDA", "not used: no GPU")
    if facts.available:
        return passed("CUDA", f"torch sees {len(facts.devices)}: {', '.join(facts.devices)}")
    if facts.built_for is None:
        return failed(
            "CUDA", "a GPU, but torch is a CPU build", "install torch for CUDA: https://pytorch.org/get-started"
        )
    if driver.cuda_version is not None and _numbers(facts.built_for)[0] > driver.cuda_version[0]:
        return failed(
            "CUDA",
            f"torch is built for CUDA {facts.built_for}, the driver {driver.version} runs CUDA "
            f"{driver.cuda_version[0]}.{driver.cuda_version[1]}",
            f"a newer driver, or torch built for CUDA {driver.cuda_version[0]}",
        )
    if visible is not None:
        return warned("CUDA", f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    return failed(
        "CUDA",
        "the driver lists a GPU, and torch.cuda.is_available() is False",
        "check that /dev/nvidia* may be read, and that nvidia-fabricmanager runs where there is NVSwitch",
    )


def check_pinned(available: bool, error: str | None, memlock_bytes: int) -> Check:
    """Judge pinned memory, without which copies to the GPU cannot overlap with computing.

    The limit ``RLIMIT_MEMLOCK`` is -1 for none; CUDA's own pinned memory does not count against it.
    """
    limit = "unlimited" if memlock_bytes < 0 else f"{text_of_bytes(memlock_bytes)}"
    if not available:
        return passed("pinned memory", f"not needed without a GPU; memlock limit {limit}")
    if error is None:
        return passed("pinned memory", f"{text_of_bytes(PINNED_TRIAL_BYTES)} allocated; memlock limit {limit}")
    return failed(
        "pinned memory",
        f"{text_of_bytes(PINNED_TRIAL_BYTES)} refused: {error}; memlock limit {limit}",
        "ulimit -l unlimited (docker: --ulimit memlock=-1), and leave the host some free memory",
    )


def check_processors(allowed: int, installed: int) -> Check:
    """Judge the processors that this process may use."""
    found = f"{allowed} of {installed} allowed" + (" (affinity or cgroup)" if allowed < installed else "")
    if allowed < 2:
        return warned("processors", found, "allow more: decoding and the training loop share one")
    return passed("processors", found)


def check_memory(available_bytes: int, limit_bytes: int | None) -> Check:
    """Judge the memory that can be taken now."""
    limit = "no cgroup limit" if limit_bytes is None else f"cgroup limit {text_of_bytes(limit_bytes)}"
    found = f"{text_of_bytes(available_bytes)} available, {limit}"
    if available_bytes < LEAST_MEMORY_BYTES:
        return warned("memory", found, "free memory, or give the loader a smaller memory_budget")
    return passed("memory", found)


def check_tmpfs(free_bytes: Mapping[str, int]) -> Check:
    """Judge the writable places in memory where files can be staged, and where torch's workers pass batches."""
    found = ", ".join(f"{place} {text_of_bytes(free)} free" for place, free in free_bytes.items())
    if not free_bytes:
        return warned("tmpfs", "no writable tmpfs", "mount one: mount -t tmpfs -o size=40G tmpfs /mnt/ramdisk")
    if free_bytes.get("/dev/shm", LEAST_TMPFS_BYTES) < LEAST_TMPFS_BYTES:
        return warned("tmpfs", found, "enlarge /dev/shm (docker: --shm-size=8g); DataLoader workers need it too")
    return passed("tmpfs", found)


def check_open_files(soft: int, hard: int) -> Check:
    """Judge the limit of open files; -1 is none."""
    found = "unlimited" if soft < 0 else str(soft)
    if soft != hard and soft >= 0:
        found += f" (may be raised to {'unlimited' if hard < 0 else hard})"
    if 0 <= soft < LEAST_OPEN_FILES:
        can = LEAST_OPEN_FILES if hard < 0 or hard >= LEAST_OPEN_FILES else hard
        return warned("open files", found, f"ulimit -n {can}")
    return passed("open files", found)


def check_hdf5(versions: StorageVersions) -> Check:
    """Judge the HDF5 library."""
    found = f"HDF5 {versions.hdf5}, h5py {versions.h5py}, hdf5plugin {versions.hdf5plugin}"
    if _numbers(versions.hdf5) < (1, 12, 3):
        # chunk_iter is missing, and a file's index has to be asked for chunk by chunk.
        return warned("HDF5", found, "pip install -U h5py")
    return passed("HDF5", found)


def check_filters(versions: StorageVersions) -> Check:
    """Judge the filters that can be decoded."""
    missing = [f"{fact.name} ({fact.filter_id})" for fact in versions.filters if not fact.available]
    there = [fact.name for fact in versions.filters if fact.available]
    if "deflate" not in there:
        return failed("filters", "deflate (gzip) is missing", "pip install -U --force-reinstall h5py")
    if missing:
        return warned("filters", f"missing: {', '.join(missing)}", "pip install -U hdf5plugin h5py")
    return passed("filters", f"{len(there)}: {', '.join(there)}")


def check_numa(gpu_nodes: Sequence[int], cpu_nodes: Set[int]) -> Check:
    """Judge whether the process runs near its GPU; a node of -1 means that the machine has only one."""
    known = sorted({node for node in gpu_nodes if node >= 0})
    if not known:
        return passed("NUMA", "no GPU" if not gpu_nodes else "one node")
    found = f"GPU on node {_listed(known)}, processors on node {_listed(sorted(cpu_nodes))}"
    far = [node for node in known if node not in cpu_nodes]
    if far:
        fix = f"numactl --cpunodebind={far[0]} --membind={far[0]} python train.py"
        return warned("NUMA", found + ": copies cross the sockets", fix)
    return passed("NUMA", found)


def check_start_method(method: str, cuda_started: bool) -> Check:
    """Judge how DataLoader's workers would be started; `sample_workers` are started as the loader is told to."""
    if method == "fork" and cuda_started:
        return warned(
            "start method",
            "fork for a DataLoader's workers, and CUDA has started: forked workers cannot use it",
            "start workers before CUDA, or multiprocessing.set_start_method('spawn')",
        )
    note = ", which must not use CUDA" if method == "fork" else ""
    said = f"{method} for a DataLoader's workers{note}; sample_workers start as multiprocessing_context= says"
    return passed("start method", said)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "unknown"


# --- of a file -----------------------------------------------------------------------------------------------


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

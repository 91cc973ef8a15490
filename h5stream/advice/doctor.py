"""`h5stream doctor`: the checklist of a machine, and of a file on it: facts are gathered, and judged purely."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import resource
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
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

MIN_TORCH = (2, 6)  # as in pyproject.toml
PINNED_TRIAL_BYTES = 64 << 20  # eight slots of 8192 rows of 256 float32
LEAST_MEMORY_BYTES = 2 << 30  # torch, CUDA and a window of the default size
LEAST_TMPFS_BYTES = 1 << 30  # Docker gives /dev/shm 64 MiB, which the first worker's queue overruns
LEAST_OPEN_FILES = 4096  # worker queues pass tensors as open files; 1024 is torch's best-known stumbling block
SIGNATURE = b"\x89HDF\r\n\x1a\n"
# A thread inflates 1.3 GB/s and gzip halves the bytes: below this rate storage keeps even one thread waiting.
SLOW_BYTES_PER_S = 500e6
TRIAL_BYTES, TRIAL_S = 256 << 20, 1.0
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status  # ``warn`` costs speed, ``fail`` stops something from working
    found: str
    fix: str = ""  # what to do about it; empty if there is nothing to do


def judged(name: str, found: str, fix: str = "", *, fails: bool = False) -> Check:
    """Return a check: what there is a fix for is slow, or broken, and what there is none for is fine."""
    return Check(name=name, status="pass" if not fix else "fail" if fails else "warn", found=found, fix=fix)


def worst(checks: Iterable[Check]) -> Status:
    """Return the worst status; ``pass`` without any checks."""
    return max((check.status for check in checks), key=_ORDER.index, default="pass")


# --- of a machine --------------------------------------------------------------------------------------------


def examine_machine() -> list[Check]:
    """Return the checklist of this machine. It may start CUDA in this process."""
    facts, driver, versions = cuda_facts(), driver_facts(), storage_versions()
    error = pin_error(PINNED_TRIAL_BYTES) if facts.available else None
    # Asking for the current start method would fix it, so the default is what the list begins with.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
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
        check_start_method(method, facts.initialized),
    ]


def tmpfs_places(mounts: Path = Path("/proc/self/mounts")) -> dict[str, int]:
    """Return the writable tmpfs folders, but for the system's own, and their free bytes."""
    places = {}
    for line in mounts.read_text().splitlines():
        _, escaped, kind, *_ = line.split()
        folder = escaped.replace("\\040", " ")
        if kind == "tmpfs" and not folder.startswith(("/run", "/sys", "/proc")) and os.access(folder, os.W_OK):
            places[folder] = shutil.disk_usage(folder).free
    return places


def gpu_nodes(driver: DriverFacts, pci: Path = Path("/sys/bus/pci/devices")) -> list[int]:
    """Return the memory node of each GPU, -1 where the kernel names none."""
    nodes = []
    for bus in sorted({device.pci_bus_id for device in driver.devices if device.pci_bus_id is not None}):
        try:
            nodes.append(int((pci / bus / "numa_node").read_text()))
        except (OSError, ValueError):
            nodes.append(-1)
    return nodes


def cpu_nodes(nodes: Path = Path("/sys/devices/system/node")) -> set[int]:
    """Return the memory nodes whose processors this process may use."""
    allowed, found = os.sched_getaffinity(0), set()
    for folder in nodes.glob("node[0-9]*"):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", (folder / "cpulist").read_text()):  # such as 0-3,8
            if allowed.intersection(range(int(first), int(last or first) + 1)):
                found.add(int(folder.name.removeprefix("node")))
    return found


def limit_of(which: int) -> tuple[int, int]:
    """Return the soft and the hard limit, -1 for none."""
    soft, hard = (-1 if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(which))
    return soft, hard


def check_torch(facts: CudaFacts) -> Check:
    """Judge torch's version."""
    found = f"torch {facts.torch_version}, " + (f"CUDA {facts.built_for}" if facts.built_for else "CPU build")
    old = _numbers(facts.torch_version)[:2] < MIN_TORCH
    return judged("torch", found, f"pip install 'torch>={MIN_TORCH[0]}.{MIN_TORCH[1]}'" if old else "")


def check_driver(driver: DriverFacts) -> Check:
    """Judge the NVIDIA driver; a machine without one is an ordinary case."""
    if driver.version is None:
        return judged("driver", f"{driver.reason}; training runs on the processor")
    cuda = "unknown" if driver.cuda_version is None else "{}.{}".format(*driver.cuda_version)
    names = ", ".join(device.name for device in driver.devices) or "no device"
    return judged("driver", f"{driver.version}, runs CUDA up to {cuda}: {names}")


def check_cuda(facts: CudaFacts, driver: DriverFacts, visible: str | None) -> Check:
    """Judge whether torch can use the GPUs that the driver has; `visible` is ``CUDA_VISIBLE_DEVICES``."""
    if not driver.devices:
        return judged("CUDA", "not used: no GPU")
    if facts.available:
        return judged("CUDA", f"torch sees {len(facts.devices)}: {', '.join(facts.devices)}")
    if facts.built_for is None:
        fix = "install torch for CUDA: https://pytorch.org/get-started"
        return judged("CUDA", "a GPU, but torch is a CPU build", fix, fails=True)
    if driver.cuda_version is not None and _numbers(facts.built_for)[0] > driver.cuda_version[0]:
        runs = "{}.{}".format(*driver.cuda_version)
        found = f"torch is built for CUDA {facts.built_for}, the driver {driver.version} runs CUDA {runs}"
        fix = f"a newer driver, or torch built for CUDA {driver.cuda_version[0]}"
        return judged("CUDA", found, fix, fails=True)
    if visible is not None:
        return judged("CUDA", f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    fix = "check that /dev/nvidia* may be read, and that nvidia-fabricmanager runs where there is NVSwitch"
    return judged("CUDA", "the driver lists a GPU, and torch.cuda.is_available() is False", fix, fails=True)


def check_pinned(available: bool, error: str | None, memlock_bytes: int) -> Check:
    """Judge pinned memory, without which copies to the GPU do not overlap with computing; no limit is -1."""
    size, limit = text_of_bytes(PINNED_TRIAL_BYTES), "unlimited"
    if memlock_bytes >= 0:
        limit = text_of_bytes(memlock_bytes)
    state = f"{size} refused: {error}" if error else f"{size} allocated" if available else "not needed without a GPU"
    fix = "ulimit -l unlimited (docker: --ulimit memlock=-1), and leave the host some free memory" if error else ""
    return judged("pinned memory", f"{state}; memlock limit {limit}", fix, fails=True)


def check_processors(allowed: int, installed: int) -> Check:
    """Judge the processors that this process may use."""
    found = f"{allowed} of {installed} allowed" + (" (affinity or cgroup)" if allowed < installed else "")
    return judged("processors", found, "allow more: decoding and the training loop share one" * (allowed < 2))


def check_memory(available_bytes: int, limit_bytes: int | None) -> Check:
    """Judge the memory that can be taken now."""
    limit = "no cgroup limit" if limit_bytes is None else f"cgroup limit {text_of_bytes(limit_bytes)}"
    found = f"{text_of_bytes(available_bytes)} available, {limit}"
    fix = "free memory, or give the loader a smaller memory_budget"
    return judged("memory", found, fix * (available_bytes < LEAST_MEMORY_BYTES))


def check_tmpfs(free_bytes: Mapping[str, int]) -> Check:
    """Judge the writable places in memory where files can be staged, and where torch's workers pass batches."""
    if not free_bytes:
        return judged("tmpfs", "no writable tmpfs", "mount one: mount -t tmpfs -o size=40G tmpfs /mnt/ramdisk")
    found = ", ".join(f"{place} {text_of_bytes(free)} free" for place, free in free_bytes.items())
    small = free_bytes.get("/dev/shm", LEAST_TMPFS_BYTES) < LEAST_TMPFS_BYTES
    return judged("tmpfs", found, "enlarge /dev/shm (docker: --shm-size=8g); DataLoader workers need it too" * small)


def check_open_files(soft: int, hard: int) -> Check:
    """Judge the limit of open files; -1 is none."""
    found = "unlimited" if soft < 0 else str(soft)
    if soft != hard and soft >= 0:
        found += f" (may be raised to {'unlimited' if hard < 0 else hard})"
    can = LEAST_OPEN_FILES if hard < 0 else min(hard, LEAST_OPEN_FILES)
    return judged("open files", found, f"ulimit -n {can}" if 0 <= soft < LEAST_OPEN_FILES else "")


def check_hdf5(versions: StorageVersions) -> Check:
    """Judge the HDF5 library: an old one has no chunk_iter, and is asked for an index chunk by chunk."""
    found = f"HDF5 {versions.hdf5}, h5py {versions.h5py}, hdf5plugin {versions.hdf5plugin}"
    return judged("HDF5", found, "pip install -U h5py" * (_numbers(versions.hdf5) < (1, 12, 3)))


def check_filters(versions: StorageVersions) -> Check:
    """Judge the filters that can be decoded."""
    missing = [f"{fact.name} ({fact.filter_id})" for fact in versions.filters if not fact.available]
    there = [fact.name for fact in versions.filters if fact.available]
    if "deflate" not in there:
        fix = "pip install -U --force-reinstall h5py"
        return judged("filters", "deflate (gzip) is missing", fix, fails=True)
    if missing:
        return judged("filters", f"missing: {', '.join(missing)}", "pip install -U hdf5plugin h5py")
    return judged("filters", f"{len(there)}: {', '.join(there)}")


def check_numa(gpu_nodes: Sequence[int], cpu_nodes: Set[int]) -> Check:
    """Judge whether the process runs near its GPU; a node of -1 means that the machine has only one."""
    known = sorted({node for node in gpu_nodes if node >= 0})
    if not known:
        return judged("NUMA", "no GPU" if not gpu_nodes else "one node")
    gpus, cpus = (", ".join(map(str, nodes)) or "unknown" for nodes in (known, sorted(cpu_nodes)))
    found, far = f"GPU on node {gpus}, processors on node {cpus}", [node for node in known if node not in cpu_nodes]
    if not far:
        return judged("NUMA", found)
    fix = f"numactl --cpunodebind={far[0]} --membind={far[0]} python train.py"
    return judged("NUMA", f"{found}: copies cross the sockets", fix)


def check_start_method(method: str, cuda_started: bool) -> Check:
    """Judge how DataLoader's workers would be started; `sample_workers` are started as the loader is told to."""
    found, fork = f"{method} for a DataLoader's workers", method == "fork"
    if fork and cuda_started:
        fix = "start workers before CUDA, or multiprocessing.set_start_method('spawn')"
        return judged("start method", f"{found}, and CUDA has started: forked workers cannot use it", fix)
    note = ", which must not use CUDA" * fork
    return judged("start method", f"{found}{note}; sample_workers start as multiprocessing_context= says")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    leading = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in leading[0].split(".") if part) if leading else ()


# --- of a file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrial:
    """How fast a file was read."""

    bytes_per_s: float  # bytes a second, one read of 4 MiB after the other
    size_bytes: int  # bytes read. Few: the rate says little
    direct: bool  # whether the reads went past the page cache, so that the rate is the storage's


def examine_file(path: Path) -> list[Check]:
    """Return the checklist of a file; only what tells so if it is no HDF5 file, or a damaged one."""
    checks = []
    for check in (check_is_hdf5, check_structure, check_filesystem, check_residency, check_read_rate):
        checks.append(check(path))
        if checks[-1].status == "fail":
            break
    return checks


def check_is_hdf5(path: Path) -> Check:
    """Look for HDF5's signature at 0, 512, 1024, 2048 ... ("Superblock" in the file format specification)."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for
            return judged("file", f"{path}: a pipe or a device", "name an HDF5 file", fails=True)
        with path.open("rb") as file:
            size, offset = file.seek(0, os.SEEK_END), 0
            while offset < size:
                file.seek(offset)
                if file.read(len(SIGNATURE)) == SIGNATURE:
                    return judged(
                        "file", f"HDF5, {text_of_bytes(size)}" + f", user block of {offset} bytes" * (offset > 0)
                    )
                offset = max(512, 2 * offset)
    except OSError as error:
        return judged("file", f"{path}: {error.strerror}", "check the path and its permissions", fails=True)
    fix = "check that it is an HDF5 file and was copied whole"
    return judged("file", f"{path}: no HDF5 signature", fix, fails=True)


def check_structure(path: Path) -> Check:
    """Open the file with libhdf5 and walk through it: one that was cut off, or is damaged, shows here."""
    try:
        listing = list_file(str(path), most=MOST_DATASETS, some=list)
    except H5StreamError as error:
        fix = "copy the file again from its source; see also h5clear and h5check"
        return judged("structure", str(error), fix, fails=True)
    seen, left_out = len(listing.entries), listing.left_out
    return judged("structure", f"{seen + left_out:,} dataset(s)" + f", the first {seen:,} looked at" * (left_out > 0))


def check_filesystem(path: Path, mounts: str | None = None) -> Check:
    """Judge the filesystem under a file; `mounts` stands in for ``/proc/self/mountinfo``."""
    mount = mount_of(path, mounts)
    found = f"{mount.kind or 'unknown'}, mounted at {mount.point}"
    if mount.on_network:
        return judged("filesystem", found + ": every read crosses a network", f"h5stream stage {path}")
    return judged("filesystem", found)


def check_residency(path: Path) -> Check:
    """Tell how much of the file is in the page cache; that is neither good nor bad."""
    resident = resident_bytes(path)
    if resident is None:
        return judged("page cache", "the system does not say")
    size = path.stat().st_size
    return judged("page cache", f"{resident / max(size, 1):.0%} of {text_of_bytes(size)} is in memory")


def check_read_rate(path: Path) -> Check:
    """Measure how fast the file's storage is read, for at most a second."""
    try:
        # Direct reads are taken in memory too, and there is nothing but the cache.
        return judge_read_rate(path, read_trial(path), in_memory=mount_of(path).in_memory)
    except OSError as error:
        fix = "check the storage; dmesg may say more"
        return judged("read rate", f"{path}: {error.strerror}", fix, fails=True)


def judge_read_rate(path: Path, trial: ReadTrial, *, in_memory: bool = False) -> Check:
    """Judge a measured rate."""
    if trial.size_bytes < _READ_BYTES:
        return judged("read rate", f"too small to measure ({trial.size_bytes} bytes)")
    direct = trial.direct and not in_memory
    how = "past the page cache" if direct else "through the page cache, as this filesystem cannot do without"
    found = f"{text_of_bytes(trial.bytes_per_s)}/s over {text_of_bytes(trial.size_bytes)}, {how}"
    fix = f"h5stream stage {path}, or a faster disk: decoding will wait for it"
    return judged("read rate", found, fix if direct and trial.bytes_per_s < SLOW_BYTES_PER_S else "")


def read_trial(path: Path, *, trial_bytes: int = TRIAL_BYTES, trial_s: float = TRIAL_S) -> ReadTrial:
    """Read pieces of 4 MiB, spread over the file, past the page cache where the filesystem allows it.

    The page cache is left as it is: direct reads neither use nor fill it.
    """
    direct, flags = True, os.O_RDONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0))
    except OSError:
        direct, descriptor = False, os.open(path, flags)
    try:
        offsets = spread(os.fstat(descriptor).st_size, trial_bytes)
        with mmap.mmap(-1, _READ_BYTES) as buffer:  # page-aligned, as direct reads want it
            done, begin_s = 0, time.perf_counter()
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

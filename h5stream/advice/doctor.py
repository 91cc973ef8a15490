"""`h5stream doctor`: checks of a machine, and of a file on it; facts are gathered first, then judged."""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from h5stream.advice.cost import store_rate
from h5stream.advice.listing import MOST_DATASETS, list_file
from h5stream.base import limits
from h5stream.base.filesystem import mount_of, resident_bytes
from h5stream.base.names import is_address
from h5stream.base.texts import counted, text_of_bytes
from h5stream.device.facts import CudaFacts, cuda_facts, pin_error
from h5stream.errors import H5StreamError
from h5stream.monitor.nvml import DriverFacts, driver_facts
from h5stream.storage.decode.plugins import StorageVersions, storage_versions
from h5stream.storage.source.local import bytes_at, identity_of
from h5stream.storage.source.remote import ObjectIdentity
from h5stream.storage.source.stores import is_unsigned

Status = Literal["pass", "warn", "fail"]
_ORDER: tuple[Status, ...] = ("pass", "warn", "fail")

MIN_TORCH = (2, 6)  # as in pyproject.toml
PINNED_TRIAL_BYTES = 64 << 20  # eight slots of 8192 rows of 256 float32
LEAST_MEMORY_BYTES = 2 << 30  # torch, CUDA and a window of the default size
LEAST_TMPFS_BYTES = 1 << 30  # Docker's /dev/shm has 64 MiB, too little for the first worker's queue
_CACHED = 0.9  # share of a file in the page cache above which it is read from there
LEAST_OPEN_FILES = 4096  # worker queues pass tensors as open files, for which 1024 is often too few
SIGNATURE = b"\x89HDF\r\n\x1a\n"
# A thread inflates 1.3 GB/s and gzip halves the bytes: below this rate even one thread waits for storage.
SLOW_BYTES_PER_S = 500e6
TRIAL_BYTES, TRIAL_S = 256 << 20, 1.0
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    status: Status  # ``warn`` costs speed, ``fail`` stops something from working
    found: str
    fix: str = ""  # the remedy; empty if there is nothing to do


def judged(name: str, finding: str, fix: str = "", *, fails: bool = False) -> Check:
    """Return a check: one with a fix is slow, or broken with `fails`; one without a fix is fine."""
    return Check(name=name, status="pass" if not fix else "fail" if fails else "warn", found=finding, fix=fix)


def worst(checks: Iterable[Check]) -> Status:
    """Return the worst status; ``pass`` without any checks."""
    return max((check.status for check in checks), key=_ORDER.index, default="pass")


# --- checks of a machine ------------------------------------------------------------------------------------


def examine_machine() -> list[Check]:
    """Return the checks of this machine. It may start CUDA in this process."""
    facts, driver = cuda_facts(), driver_facts()
    # Querying the start method would fix it, so the default is the first of all methods.
    start = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return [
        *judge_gpu(
            facts,
            driver,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            pin_error=pin_error(PINNED_TRIAL_BYTES) if facts.available else None,
            memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        ),
        *judge_limits(
            processors=(limits.cpus(), os.cpu_count() or 1),
            memory=(limits.memory_available_bytes(), limits.memory_limit_bytes()),
            tmpfs=tmpfs_places(),
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        ),
        *judge_libraries(storage_versions()),
        *judge_processes(gpu_nodes(driver), cpu_nodes(), start, facts.initialized),
    ]


def judge_gpu(
    facts: CudaFacts, driver: DriverFacts, *, visible: str | None, pin_error: str | None, memlock_bytes: int
) -> Iterator[Check]:
    """Judge torch and the driver; `visible` is ``CUDA_VISIBLE_DEVICES``. Having no GPU is an ordinary case."""
    finding = f"torch {facts.torch_version}, " + (f"CUDA {facts.built_for}" if facts.built_for else "CPU build")
    is_old = _numbers(facts.torch_version)[:2] < MIN_TORCH
    yield judged("torch", finding, f"pip install 'torch>={MIN_TORCH[0]}.{MIN_TORCH[1]}'" * is_old)
    runs = "unknown" if driver.cuda_version is None else "{}.{}".format(*driver.cuda_version)
    names = ", ".join(device.name for device in driver.devices) or "no device"
    finding = f"{driver.version}, runs CUDA up to {runs}: {names}"
    yield judged("driver", finding if driver.version else f"{driver.reason}; training runs on the processor")
    fails, fix = True, ""
    if not driver.devices:
        finding = "not used: no GPU"
    elif facts.available:
        finding = f"torch sees {len(facts.devices)}: {', '.join(facts.devices)}"
    elif facts.built_for is None:
        finding, fix = "a GPU, but torch is a CPU build", "install torch for CUDA: https://pytorch.org/get-started"
    elif driver.cuda_version is not None and _numbers(facts.built_for)[0] > driver.cuda_version[0]:
        finding = f"torch is built for CUDA {facts.built_for}, the driver {driver.version} runs CUDA {runs}"
        fix = f"a newer driver, or torch built for CUDA {driver.cuda_version[0]}"
    elif visible is not None:
        finding, fix = f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        fails = False
    else:
        finding = "the driver lists a GPU, and torch.cuda.is_available() is False"
        fix = "check that /dev/nvidia* may be read, and that nvidia-fabricmanager runs where there is NVSwitch"
    yield judged("CUDA", finding, fix, fails=fails)
    # Without pinned memory, copies to the GPU do not overlap with computation.
    size = text_of_bytes(PINNED_TRIAL_BYTES)
    limit = "unlimited" if memlock_bytes == resource.RLIM_INFINITY else text_of_bytes(memlock_bytes)
    finding = f"{size} refused: {pin_error}" if pin_error else f"{size} allocated"
    finding = f"{finding if facts.available else 'not needed without a GPU'}; memlock limit {limit}"
    fix = "ulimit -l unlimited (docker: --ulimit memlock=-1), and leave the host some free memory"
    yield judged("pinned memory", finding, fix * bool(pin_error), fails=True)


def judge_limits(
    *, processors: tuple[int, int], memory: tuple[int, int | None], tmpfs: dict[str, int], open_files: tuple[int, int]
) -> Iterator[Check]:
    """Judge processors (allowed, installed), memory (available, cgroup limit), free tmpfs, open files (soft, hard)."""
    allowed, installed = processors
    finding = f"{allowed} of {installed} allowed" + " (affinity or cgroup)" * (allowed < installed)
    yield judged("processors", finding, "allow more: decoding and the training loop share one" * (allowed < 2))
    available, most = memory
    limit = "no cgroup limit" if most is None else f"cgroup limit {text_of_bytes(most)}"
    fix = "free memory, or give the loader a smaller memory_budget" * (available < LEAST_MEMORY_BYTES)
    yield judged("memory", f"{text_of_bytes(available)} available, {limit}", fix)
    # For staging files, and for the batches of torch's workers.
    places = ", ".join(f"{place} {text_of_bytes(free)} free" for place, free in tmpfs.items())
    fix = "enlarge /dev/shm (docker: --shm-size=8g); DataLoader workers need it too"
    fix *= tmpfs.get("/dev/shm", LEAST_TMPFS_BYTES) < LEAST_TMPFS_BYTES
    mount = "mount one: mount -t tmpfs -o size=40G tmpfs /mnt/ramdisk"
    yield judged("tmpfs", places or "no writable tmpfs", fix if places else mount)
    soft, hard = (math.inf if one == resource.RLIM_INFINITY else one for one in open_files)
    finding = f"{soft} (may be raised to {hard})" if soft < hard else f"{soft}"
    fix = f"ulimit -n {min(hard, LEAST_OPEN_FILES)}" * (soft < LEAST_OPEN_FILES)
    yield judged("open files", finding.replace("inf", "unlimited"), fix)


def judge_libraries(versions: StorageVersions) -> Iterator[Check]:
    """Judge libhdf5 and its filters."""
    finding = f"HDF5 {versions.hdf5}, h5py {versions.h5py}, hdf5plugin {versions.hdf5plugin}"
    # Old versions have no chunk_iter, so the index is read chunk by chunk.
    yield judged("HDF5", finding, "pip install -U h5py" * (_numbers(versions.hdf5) < (1, 12, 3)))
    missing = [f"{name} ({number})" for number, (name, available) in versions.filters.items() if not available]
    available_names = [name for name, available in versions.filters.values() if available]
    if "deflate" not in available_names:
        yield judged("filters", "deflate (gzip) is missing", "pip install -U --force-reinstall h5py", fails=True)
    elif missing:
        yield judged("filters", f"missing: {', '.join(missing)}", "pip install -U hdf5plugin h5py")
    else:
        yield judged("filters", f"{len(available_names)}: {', '.join(available_names)}")


def judge_processes(gpus: list[int], cpus: set[int], start_method: str, cuda_started: bool) -> Iterator[Check]:
    """Judge whether the process runs near its GPU, by memory nodes, and how a DataLoader starts its workers."""
    numa_nodes = sorted({node for node in gpus if node >= 0})  # -1 if the kernel names none, as there is only one
    on_gpu, on_cpu = (", ".join(map(str, nodes)) or "unknown" for nodes in (numa_nodes, sorted(cpus)))
    finding, far = (
        f"GPU on node {on_gpu}, processors on node {on_cpu}",
        [node for node in numa_nodes if node not in cpus],
    )
    fix = f"numactl --cpunodebind={far[0]} --membind={far[0]} python train.py" if far else ""
    single = "one node" if gpus else "no GPU"
    yield judged("NUMA", f"{finding}{': copies cross the sockets' * bool(far)}" if numa_nodes else single, fix)
    finding, forks = f"{start_method} for a DataLoader's workers", start_method == "fork"
    if forks and cuda_started:
        fix = "start workers before CUDA, or multiprocessing.set_start_method('spawn')"
        yield judged("start method", f"{finding}, and CUDA has started: forked workers cannot use it", fix)
        return
    note = ", which must not use CUDA" * forks
    yield judged("start method", f"{finding}{note}; sample_workers start as multiprocessing_context= says")


def tmpfs_places(mounts: Path = Path("/proc/self/mounts")) -> dict[str, int]:
    """Return the writable tmpfs folders and their free bytes, without the system's own folders."""
    places = {}
    for line in mounts.read_text().splitlines():
        _, escaped, kind, *_ = line.split()
        folder = escaped.replace("\\040", " ")
        if kind == "tmpfs" and not folder.startswith(("/run", "/sys", "/proc")) and os.access(folder, os.W_OK):
            places[folder] = shutil.disk_usage(folder).free
    return places


def gpu_nodes(driver: DriverFacts, pci: Path = Path("/sys/bus/pci/devices")) -> list[int]:
    """Return the memory node of each GPU, -1 if the kernel names none."""
    nodes = []
    for bus in sorted({device.pci_bus_id for device in driver.devices if device.pci_bus_id is not None}):
        try:
            nodes.append(int((pci / bus / "numa_node").read_text()))
        except (OSError, ValueError):
            nodes.append(-1)
    return nodes


def cpu_nodes(nodes: Path = Path("/sys/devices/system/node")) -> set[int]:
    """Return the memory nodes of the processors that this process may use."""
    allowed, allowed_nodes = os.sched_getaffinity(0), set()
    for folder in nodes.glob("node[0-9]*"):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", (folder / "cpulist").read_text()):  # such as 0-3,8
            if allowed.intersection(range(int(first), int(last or first) + 1)):
                allowed_nodes.add(int(folder.name.removeprefix("node")))
    return allowed_nodes


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    leading = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in leading[0].split(".") if part) if leading else ()


# --- checks of a file ----------------------------------------------------------------------------------------


def examine_file(file: Path | str) -> list[Check]:
    """Return the checks of a file or an object, up to the first that fails."""
    checks, path = list[Check](), str(file)
    access_checks = (check_store,) if is_address(path) else (check_filesystem, check_residency, check_read_rate)
    for check in (check_signature, check_structure, *access_checks):
        try:
            checks.append(check(path))
        except (H5StreamError, OSError) as error:
            name, fix = _FAILED.get(check, _FAILED[check_signature])
            message = f"{path}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
            checks.append(judged(name, message, fix, fails=True))
        if checks[-1].status == "fail":
            break
    return checks


def check_signature(path: str) -> Check:
    """Look for HDF5's signature at 0, 512, 1024, 2048 ... ("Superblock" in the file format specification)."""
    identity, at = identity_of(path), 0
    while at + len(SIGNATURE) <= identity.size:
        if bytes_at(identity, at, len(SIGNATURE)) == SIGNATURE:
            block = f", user block of {at} bytes" * (at > 0)
            return judged("file", f"HDF5, {text_of_bytes(identity.size)}{block}")
        at = max(512, 2 * at)
    fix = "check that it is an HDF5 file and was copied whole"
    return judged("file", f"{path}: no HDF5 signature", fix, fails=True)


def check_structure(path: str) -> Check:
    """Open the file with libhdf5 and walk through it, which finds truncated and damaged files."""
    listing = list_file(path, most=MOST_DATASETS, some=list)
    seen, left_out = len(listing.entries), listing.left_out
    return judged("structure", counted(seen + left_out, "dataset") + f", the first {seen:,} looked at" * (left_out > 0))


def _staged(path: str) -> str:
    """Return the command that copies a file to this machine's RAM disk with the most room, or advice in words."""
    places, size = tmpfs_places(), 0
    folder = max(places, key=lambda place: places[place], default="")
    with contextlib.suppress(H5StreamError):  # reported by another check
        size = identity_of(path).size
    if not folder or size > places[folder] // 2:
        return "copy it to a faster disk (h5stream stage -h)"
    target = shlex.quote(f"{folder}/h5stream")
    return f"h5stream stage {shlex.quote(path)} --to {target}{' --anonymous' * is_unsigned(path)}"


def _is_cached(path: str) -> bool:
    """Return whether nearly all of a file is in the page cache, so that its disk is not read."""
    resident = resident_bytes(Path(path))
    return resident is not None and resident > _CACHED * os.stat(path).st_size


def check_filesystem(path: str) -> Check:
    """Judge the filesystem of a file."""
    mount = mount_of(Path(path))
    finding = (
        f"{mount.kind or 'unknown'}, mounted at {mount.point}" + ": every read crosses a network" * mount.on_network
    )
    return judged("filesystem", finding, _staged(path) * (mount.on_network and not _is_cached(path)))


def check_residency(path: str) -> Check:
    """Report how much of the file is in the page cache, which is neither good nor bad."""
    if (resident := resident_bytes(Path(path))) is None:
        return judged("page cache", "the system does not say")
    size = os.stat(path).st_size
    return judged("page cache", f"{resident / max(size, 1):.0%} of {text_of_bytes(size)} is in memory")


def check_read_rate(path: str) -> Check:
    """Measure how fast the file's storage can be read, for at most a second."""
    rate, nbytes, direct = read_trial(path)
    if nbytes < _READ_BYTES:
        return judged("read rate", f"too small to measure ({nbytes} bytes)")
    # In memory direct reads succeed too, although there is only the cache.
    direct = direct and not mount_of(Path(path)).in_memory
    how = "past the page cache" if direct else "through the page cache, as this filesystem cannot do without"
    fix = f"{_staged(path)}: decoding will wait for this disk, unless the file is in memory"
    finding = f"{text_of_bytes(rate)}/s over {text_of_bytes(nbytes)}, {how}"
    return judged("read rate", finding, fix * (direct and rate < SLOW_BYTES_PER_S and not _is_cached(path)))


def check_store(path: str) -> Check:
    """Measure the latency and the rate of a store; the object's disk, and the store's caches, are unknown."""
    wait_s, rate = store_rate(ObjectIdentity.of(path))
    came = f"{1e3 * wait_s:.0f} ms to the first byte, {text_of_bytes(rate)}/s over some ranges together"
    fix = f"{_staged(path)}: where an epoch waits for it"
    return judged("store", f"every read crosses a network: {came}; which disk it lies on is not known", fix)


# The name and the remedy of failed checks.
_FAILED = {
    check_signature: ("file", "check the path and its permissions"),
    check_structure: ("structure", "copy the file again from its source; see also h5clear and h5check"),
    check_read_rate: ("read rate", "check the storage; dmesg may say more"),
    check_store: ("store", "check the network and the credentials"),
}


def read_trial(path: str, *, trial_bytes: int = TRIAL_BYTES, trial_s: float = TRIAL_S) -> tuple[float, int, bool]:
    """Read pieces of 4 MiB, spread over the file; return the rate, the bytes read, and whether reads were direct.

    The page cache is left as it is: direct reads neither use nor fill it.
    """
    flags, has_direct = os.O_RDONLY | os.O_CLOEXEC, True
    try:
        descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0))
    except OSError:
        has_direct, descriptor = False, os.open(path, flags)
    with (
        os.fdopen(descriptor, "rb", buffering=0) as file,
        mmap.mmap(-1, _READ_BYTES) as buffer,
    ):  # page-aligned for direct reads
        pieces = os.fstat(descriptor).st_size // _READ_BYTES
        count = min(pieces, max(1, trial_bytes // _READ_BYTES))
        offsets = [index * pieces // count * _READ_BYTES for index in range(count)] or [0]
        done, began_s = 0, time.perf_counter()
        for offset in offsets[::2] + offsets[1::2]:  # not in order, so that read-ahead does not help
            done += os.preadv(file.fileno(), [buffer], offset)
            if (seconds := time.perf_counter() - began_s) > trial_s:
                break
    return done / max(seconds, 1e-9), done, has_direct

"""`h5stream doctor`: the checklist of a machine, and of a file on it: facts are gathered, and judged purely."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from h5stream import allowance
from h5stream.advice.cost import store_rate
from h5stream.advice.listing import MOST_DATASETS, list_file
from h5stream.device.facts import CudaFacts, cuda_facts, pin_error
from h5stream.errors import H5StreamError
from h5stream.filesystem import mount_of, resident_bytes
from h5stream.monitor.nvml import DriverFacts, driver_facts
from h5stream.storage.plugins import StorageVersions, storage_versions
from h5stream.storage.remote import ObjectIdentity
from h5stream.storage.source import bytes_at, identity_of
from h5stream.storage.stores import is_address, is_unsigned
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


class Machine(NamedTuple):
    """What is known of a machine; of limits, -1 stands for none."""

    cuda: CudaFacts
    driver: DriverFacts
    visible: str | None  # ``CUDA_VISIBLE_DEVICES``
    pin_error: str | None
    memlock_bytes: int
    processors: tuple[int, int]  # allowed, installed
    memory: tuple[int, int | None]  # bytes available, and the cgroup's limit
    tmpfs: Mapping[str, int]  # the writable places, and their free bytes
    open_files: tuple[int, int]  # soft and hard limit
    versions: StorageVersions
    gpu_nodes: Sequence[int]  # memory nodes of the GPUs, -1 where the kernel names none: the machine has only one
    cpu_nodes: Collection[int]  # of the processors that this process may use
    start_method: str  # of a DataLoader's workers


def examine_machine() -> list[Check]:
    """Return the checklist of this machine. It may start CUDA in this process."""
    facts, driver = cuda_facts(), driver_facts()
    machine = Machine(
        cuda=facts,
        driver=driver,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        pin_error=pin_error(PINNED_TRIAL_BYTES) if facts.available else None,
        memlock_bytes=_limit(resource.RLIMIT_MEMLOCK)[0],
        processors=(allowance.cpus(), os.cpu_count() or 1),
        memory=(allowance.memory_available_bytes(), allowance.memory_limit_bytes()),
        tmpfs=tmpfs_places(),
        open_files=_limit(resource.RLIMIT_NOFILE),
        versions=storage_versions(),
        gpu_nodes=gpu_nodes(driver),
        cpu_nodes=cpu_nodes(),
        # Asking for the current start method would fix it, so the default is what the list begins with.
        start_method=multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
    )
    return [*judge(machine)]


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


def _limit(which: int) -> tuple[int, int]:
    soft, hard = (-1 if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(which))
    return soft, hard


def judge(machine: Machine) -> Iterator[Check]:
    """Judge a machine."""
    yield from _judge_gpu(machine)
    yield from _judge_limits(machine)
    yield from _judge_libraries(machine.versions)
    # Whether the process runs near its GPU.
    known = sorted({node for node in machine.gpu_nodes if node >= 0})
    gpus, cpus = (", ".join(map(str, nodes)) or "unknown" for nodes in (known, sorted(machine.cpu_nodes)))
    found, far = f"GPU on node {gpus}, processors on node {cpus}", [n for n in known if n not in machine.cpu_nodes]
    fix = f"numactl --cpunodebind={far[0]} --membind={far[0]} python train.py" if far else ""
    single = "one node" if machine.gpu_nodes else "no GPU"
    yield judged("NUMA", f"{found}{': copies cross the sockets' * bool(far)}" if known else single, fix)
    found, forks = f"{machine.start_method} for a DataLoader's workers", machine.start_method == "fork"
    if forks and machine.cuda.initialized:
        fix = "start workers before CUDA, or multiprocessing.set_start_method('spawn')"
        yield judged("start method", f"{found}, and CUDA has started: forked workers cannot use it", fix)
        return
    note = ", which must not use CUDA" * forks
    yield judged("start method", f"{found}{note}; sample_workers start as multiprocessing_context= says")


def _judge_gpu(machine: Machine) -> Iterator[Check]:
    """Judge torch and the driver; a machine without a GPU is an ordinary case."""
    facts, driver = machine.cuda, machine.driver
    found = f"torch {facts.torch_version}, " + (f"CUDA {facts.built_for}" if facts.built_for else "CPU build")
    old = _numbers(facts.torch_version)[:2] < MIN_TORCH
    yield judged("torch", found, f"pip install 'torch>={MIN_TORCH[0]}.{MIN_TORCH[1]}'" * old)
    runs = "unknown" if driver.cuda_version is None else "{}.{}".format(*driver.cuda_version)
    names = ", ".join(device.name for device in driver.devices) or "no device"
    found = f"{driver.version}, runs CUDA up to {runs}: {names}"
    yield judged("driver", found if driver.version else f"{driver.reason}; training runs on the processor")
    fails = True
    if not driver.devices:
        found, fix = "not used: no GPU", ""
    elif facts.available:
        found, fix = f"torch sees {len(facts.devices)}: {', '.join(facts.devices)}", ""
    elif facts.built_for is None:
        found, fix = "a GPU, but torch is a CPU build", "install torch for CUDA: https://pytorch.org/get-started"
    elif driver.cuda_version is not None and _numbers(facts.built_for)[0] > driver.cuda_version[0]:
        found = f"torch is built for CUDA {facts.built_for}, the driver {driver.version} runs CUDA {runs}"
        fix = f"a newer driver, or torch built for CUDA {driver.cuda_version[0]}"
    elif machine.visible is not None:
        found, fix = f"CUDA_VISIBLE_DEVICES={machine.visible!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        fails = False
    else:
        found = "the driver lists a GPU, and torch.cuda.is_available() is False"
        fix = "check that /dev/nvidia* may be read, and that nvidia-fabricmanager runs where there is NVSwitch"
    yield judged("CUDA", found, fix, fails=fails)
    # Without pinned memory copies to the GPU do not overlap with computing.
    size, error = text_of_bytes(PINNED_TRIAL_BYTES), machine.pin_error
    limit = "unlimited" if machine.memlock_bytes < 0 else text_of_bytes(machine.memlock_bytes)
    found = f"{size} refused: {error}" if error else f"{size} allocated"
    found = f"{found if facts.available else 'not needed without a GPU'}; memlock limit {limit}"
    fix = "ulimit -l unlimited (docker: --ulimit memlock=-1), and leave the host some free memory"
    yield judged("pinned memory", found, fix * bool(error), fails=True)


def _judge_limits(machine: Machine) -> Iterator[Check]:
    allowed, installed = machine.processors
    found = f"{allowed} of {installed} allowed" + " (affinity or cgroup)" * (allowed < installed)
    yield judged("processors", found, "allow more: decoding and the training loop share one" * (allowed < 2))
    available, most = machine.memory
    limit = "no cgroup limit" if most is None else f"cgroup limit {text_of_bytes(most)}"
    fix = "free memory, or give the loader a smaller memory_budget" * (available < LEAST_MEMORY_BYTES)
    yield judged("memory", f"{text_of_bytes(available)} available, {limit}", fix)
    # Where files can be staged, and where torch's workers pass batches.
    places = ", ".join(f"{place} {text_of_bytes(free)} free" for place, free in machine.tmpfs.items())
    fix = "enlarge /dev/shm (docker: --shm-size=8g); DataLoader workers need it too"
    fix *= machine.tmpfs.get("/dev/shm", LEAST_TMPFS_BYTES) < LEAST_TMPFS_BYTES
    mount = "mount one: mount -t tmpfs -o size=40G tmpfs /mnt/ramdisk"
    yield judged("tmpfs", places or "no writable tmpfs", fix if places else mount)
    soft, hard = machine.open_files
    found = "unlimited" if soft < 0 else str(soft)
    if soft != hard and soft >= 0:
        found += f" (may be raised to {'unlimited' if hard < 0 else hard})"
    can = LEAST_OPEN_FILES if hard < 0 else min(hard, LEAST_OPEN_FILES)
    yield judged("open files", found, f"ulimit -n {can}" * (0 <= soft < LEAST_OPEN_FILES))


def _judge_libraries(versions: StorageVersions) -> Iterator[Check]:
    found = f"HDF5 {versions.hdf5}, h5py {versions.h5py}, hdf5plugin {versions.hdf5plugin}"
    # An old one has no chunk_iter, and is asked for an index chunk by chunk.
    yield judged("HDF5", found, "pip install -U h5py" * (_numbers(versions.hdf5) < (1, 12, 3)))
    missing = [f"{fact.name} ({fact.filter_id})" for fact in versions.filters if not fact.available]
    there = [fact.name for fact in versions.filters if fact.available]
    if "deflate" not in there:
        yield judged("filters", "deflate (gzip) is missing", "pip install -U --force-reinstall h5py", fails=True)
    elif missing:
        yield judged("filters", f"missing: {', '.join(missing)}", "pip install -U hdf5plugin h5py")
    else:
        yield judged("filters", f"{len(there)}: {', '.join(there)}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    leading = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in leading[0].split(".") if part) if leading else ()


# --- of a file -----------------------------------------------------------------------------------------------


def examine_file(file: Path | str) -> list[Check]:
    """Return the checklist of a file, or an object; only what tells so if it is no HDF5 file, or a damaged one."""
    checks, path = list[Check](), str(file)
    there: list[Callable[[str], Check]] = [check_filesystem, check_residency, _check_read_rate]
    there = [_check_store] if is_address(path) else there
    for check in (_check_signature, _check_structure, *there):
        checks.append(check(path))
        if checks[-1].status == "fail":
            break
    return checks


def _check_signature(path: str) -> Check:
    """Look for HDF5's signature at 0, 512, 1024, 2048 ... ("Superblock" in the file format specification)."""
    try:
        identity, at = identity_of(path), 0
        while at + len(SIGNATURE) <= identity.size:
            if bytes_at(identity, at, len(SIGNATURE)) == SIGNATURE:
                block = f", user block of {at} bytes" * (at > 0)
                return judged("file", f"HDF5, {text_of_bytes(identity.size)}{block}")
            at = max(512, 2 * at)
    except H5StreamError as error:
        return judged("file", str(error), "check the path and its permissions", fails=True)
    fix = "check that it is an HDF5 file and was copied whole"
    return judged("file", f"{path}: no HDF5 signature", fix, fails=True)


def _check_structure(path: str) -> Check:
    """Open the file with libhdf5 and walk through it: one that was cut off, or is damaged, shows here."""
    try:
        listing = list_file(path, most=MOST_DATASETS, some=list)
    except H5StreamError as error:
        fix = "copy the file again from its source; see also h5clear and h5check"
        return judged("structure", str(error), fix, fails=True)
    seen, left_out = len(listing.entries), listing.left_out
    return judged("structure", f"{seen + left_out:,} dataset(s)" + f", the first {seen:,} looked at" * (left_out > 0))


def check_filesystem(path: str, mounts: str | None = None) -> Check:
    """Judge the filesystem under a file; `mounts` stands in for ``/proc/self/mountinfo``."""
    mount = mount_of(Path(path), mounts)
    found = f"{mount.kind or 'unknown'}, mounted at {mount.point}" + ": every read crosses a network" * mount.on_network
    return judged("filesystem", found, f"h5stream stage {path}" * mount.on_network)


def check_residency(path: str) -> Check:
    """Tell how much of the file is in the page cache; that is neither good nor bad."""
    resident = resident_bytes(Path(path))
    if resident is None:
        return judged("page cache", "the system does not say")
    size = os.stat(path).st_size
    return judged("page cache", f"{resident / max(size, 1):.0%} of {text_of_bytes(size)} is in memory")


def _check_read_rate(path: str) -> Check:
    """Measure how fast the file's storage is read, for at most a second."""
    try:
        rate, nbytes, direct = read_trial(path)
        # Direct reads are taken in memory too, and there is nothing but the cache.
        return judge_read_rate(path, rate, nbytes, direct and not mount_of(Path(path)).in_memory)
    except OSError as error:
        fix = "check the storage; dmesg may say more"
        return judged("read rate", f"{path}: {error.strerror}", fix, fails=True)


def _check_store(path: str) -> Check:
    """Measure how fast some ranges come; on which disk an object lies, and what is in memory there, is not known."""
    try:
        wait_s, rate = store_rate(ObjectIdentity.of(path))
    except H5StreamError as error:
        return judged("store", str(error), "check the network and the credentials", fails=True)
    came = f"{1e3 * wait_s:.0f} ms to the first byte, {text_of_bytes(rate)}/s over some ranges together"
    fix = f"h5stream stage {path} --to DIR{' --anonymous' * is_unsigned(path)}, where an epoch waits for it"
    return judged("store", f"every read crosses a network: {came}; which disk it lies on is not known", fix)


def judge_read_rate(path: str, rate: float, nbytes: int, direct: bool) -> Check:
    """Judge a measured rate."""
    if nbytes < _READ_BYTES:
        return judged("read rate", f"too small to measure ({nbytes} bytes)")
    how = "past the page cache" if direct else "through the page cache, as this filesystem cannot do without"
    fix = f"h5stream stage {path}, or a faster disk: decoding will wait for it"
    found = f"{text_of_bytes(rate)}/s over {text_of_bytes(nbytes)}, {how}"
    return judged("read rate", found, fix * (direct and rate < SLOW_BYTES_PER_S))


def read_trial(path: str, *, trial_bytes: int = TRIAL_BYTES, trial_s: float = TRIAL_S) -> tuple[float, int, bool]:
    """Read pieces of 4 MiB, spread over the file; return bytes a second, bytes, and if it went past the page cache.

    The page cache is left as it is: direct reads neither use nor fill it.
    """
    direct, flags = True, os.O_RDONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0))
    except OSError:
        direct, descriptor = False, os.open(path, flags)
    try:
        pieces = os.fstat(descriptor).st_size // _READ_BYTES
        count = min(pieces, max(1, trial_bytes // _READ_BYTES))
        offsets = [index * pieces // count * _READ_BYTES for index in range(count)] or [0]
        with mmap.mmap(-1, _READ_BYTES) as buffer:  # page-aligned, as direct reads want it
            done, begin_s = 0, time.perf_counter()
            for offset in offsets[::2] + offsets[1::2]:  # not in order, so that read-ahead is no help
                done += os.preadv(descriptor, [buffer], offset)
                if time.perf_counter() - begin_s > trial_s:
                    break
            seconds = time.perf_counter() - begin_s
    finally:
        os.close(descriptor)
    return done / max(seconds, 1e-9), done, direct

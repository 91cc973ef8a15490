"""What the doctor says about a machine: pure judgements of facts that `doctor` gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from h5stream.advice.check import Check, failed, passed, warned
from h5stream.device.facts import CudaFacts
from h5stream.monitor.nvml import DriverFacts
from h5stream.storage.versions import StorageVersions
from h5stream.units import text_of_bytes

MIN_TORCH = (2, 6)  # as in pyproject.toml
PINNED_TRIAL_BYTES = 64 << 20  # Eight slots of 8192 rows of 256 float32.
LEAST_MEMORY_BYTES = 2 << 30  # Torch, CUDA and a window of the default size.
LEAST_TMPFS_BYTES = 1 << 30  # Docker gives /dev/shm 64 MiB, which the first worker's queue overruns.
LEAST_OPEN_FILES = 4096  # Worker queues pass tensors as open files; 1024 is torch's best-known stumbling block.


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

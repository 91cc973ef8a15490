"""`h5stream doctor`: gathers the facts of a machine and a file and gives the checklist."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
from pathlib import Path

from h5stream import allowance
from h5stream.advice import file_checks, machine_checks
from h5stream.advice.check import Check
from h5stream.device.facts import cuda_facts, pin_error
from h5stream.monitor.nvml import DriverFacts, driver_facts
from h5stream.storage.versions import storage_versions

_MOUNTS = Path("/proc/self/mounts")
_NODES = Path("/sys/devices/system/node")
_PCI = Path("/sys/bus/pci/devices")
_SYSTEMS_OWN = ("/run", "/sys", "/proc")


def examine_machine() -> list[Check]:
    """Return the checklist of this machine. It may start CUDA in this process."""
    facts, driver, versions = cuda_facts(), driver_facts(), storage_versions()
    error = pin_error(machine_checks.PINNED_TRIAL_BYTES) if facts.available else None
    return [
        machine_checks.check_torch(facts),
        machine_checks.check_driver(driver),
        machine_checks.check_cuda(facts, driver, os.environ.get("CUDA_VISIBLE_DEVICES")),
        machine_checks.check_pinned(facts.available, error, limit_of(resource.RLIMIT_MEMLOCK)[0]),
        machine_checks.check_processors(allowance.cpus(), os.cpu_count() or 1),
        machine_checks.check_memory(allowance.memory_available_bytes(), allowance.memory_limit_bytes()),
        machine_checks.check_tmpfs(tmpfs_places()),
        machine_checks.check_open_files(*limit_of(resource.RLIMIT_NOFILE)),
        machine_checks.check_hdf5(versions),
        machine_checks.check_filters(versions),
        machine_checks.check_numa(gpu_nodes(driver), cpu_nodes()),
        machine_checks.check_start_method(start_method(), facts.initialized),
    ]


def examine_file(path: Path) -> list[Check]:
    """Return the checklist of a file; only what tells so if it is no HDF5 file, or a damaged one."""
    first = file_checks.check_is_hdf5(path)
    if first.status == "fail":
        return [first]
    structure = file_checks.check_structure(path)
    if structure.status == "fail":
        return [first, structure]
    return [
        first,
        structure,
        file_checks.check_filesystem(path),
        file_checks.check_residency(path),
        file_checks.check_read_rate(path),
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

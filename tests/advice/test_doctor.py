"""The doctor: every judgement on facts made by hand, every reading on this machine."""

import ctypes
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from support.commands import invoke
from support.each import for_each
from support.making import write_datasets

from h5stream.advice import doctor
from h5stream.advice.doctor import Check, judged
from h5stream.base.filesystem import Mount, mount_of, resident_bytes
from h5stream.device.facts import CudaFacts, pin_error, started_cuda_uuids
from h5stream.monitor.nvml import Device, DriverFacts
from h5stream.storage.decode.plugins import StorageVersions

GIB = 1 << 30
CARD = Device(uuid="GPU-1", name="H100", pci_bus_id="0000:17:00.0")
DRIVER = DriverFacts(version="570.86", cuda_version=(12, 8), devices=(CARD,))
NO_DRIVER = DriverFacts(reason="no NVIDIA driver: library not found")


def cuda(**facts):
    defaults = {"torch_version": "2.13.0", "built_for": "12.6", "available": True, "initialized": False}
    return CudaFacts(**defaults | facts)


def verdict(check):
    assert bool(check.fix) == (check.status != "pass"), "what is not fine has a fix, what is fine has none"
    return check.status


def versions(hdf5="2.0.0", **filters):
    return StorageVersions(hdf5, h5py="3.16", hdf5plugin="7.1", filters=dict(enumerate(filters.items())))


UNSEEN = cuda(available=False)
CROSS = "copies cross the sockets"
GPU = {"facts": cuda(), "driver": NO_DRIVER, "visible": None, "pin_error": None, "memlock_bytes": -1}
LIMITS = {"processors": (8, 8), "memory": (8 * GIB, None), "tmpfs": {"/dev/shm": 8 * GIB}, "open_files": (-1, -1)}
LIBRARIES = {"versions": versions(deflate=True)}
PROCESSES = {"gpus": [], "cpus": {0}, "start_method": "spawn", "cuda_started": False}
WELL = {doctor.judge_gpu: GPU, doctor.judge_limits: LIMITS, doctor.judge_libraries: LIBRARIES}
WELL |= {doctor.judge_processes: PROCESSES}
ON_GPU = {"driver": DRIVER, "facts": UNSEEN}
# What is judged, the facts of a machine, the verdict, and what is said of them.
JUDGED = [
    *(("torch", {"facts": cuda(torch_version=v)}, "pass", v) for v in ("2.6.0", "2.13.0+cpu", "3.0.0a0+git1")),
    *(("torch", {"facts": cuda(torch_version=v)}, "warn", v) for v in ("2.5.1", "1.13")),
    ("torch", {"facts": cuda(built_for=None)}, "pass", "torch 2.13.0, CPU build"),
    ("driver", {"driver": DRIVER}, "pass", "570.86, runs CUDA up to 12.8: H100"),
    ("driver", {}, "pass", "library not found; training runs on the processor"),
    ("CUDA", {"facts": UNSEEN}, "pass", "no GPU"),
    ("CUDA", ON_GPU | {"driver": DriverFacts(version="570")}, "pass", "no GPU"),
    ("CUDA", ON_GPU | {"facts": cuda(devices=("H100",)), "visible": "0"}, "pass", "torch sees 1: H100"),
    ("CUDA", ON_GPU | {"facts": cuda(available=False, built_for=None)}, "fail", "CPU build"),
    ("CUDA", ON_GPU | {"facts": cuda(available=False, built_for="13.0")}, "fail", "built for CUDA 13.0"),
    ("CUDA", ON_GPU | {"visible": ""}, "warn", "hides every GPU"),
    ("CUDA", ON_GPU, "fail", "is_available() is False"),
    ("CUDA", ON_GPU | {"driver": DriverFacts(version="1", devices=(CARD,))}, "fail", "is_available()"),
    ("pinned memory", {"facts": UNSEEN}, "pass", "not needed without a GPU"),
    ("pinned memory", {}, "pass", "64.0 MiB allocated; memlock limit unlimited"),
    ("pinned memory", {"pin_error": "no", "memlock_bytes": 65536}, "fail", "refused: no; memlock limit 64.0 KiB"),
    ("processors", {"processors": (1, 64)}, "warn", "1 of 64 allowed (affinity or cgroup)"),
    ("processors", {"processors": (2, 64)}, "pass", "2 of 64 allowed"),
    ("memory", {"memory": (1 * GIB, 4 * GIB)}, "warn", "1.00 GiB available, cgroup limit 4.00 GiB"),
    ("memory", {"memory": (2 * GIB, None)}, "pass", "2.00 GiB available, no cgroup limit"),
    ("tmpfs", {"tmpfs": {}}, "warn", "no writable tmpfs"),
    ("tmpfs", {"tmpfs": {"/dev/shm": 64 << 20}}, "warn", "/dev/shm 64.0 MiB free"),
    ("tmpfs", {"tmpfs": {"/mnt/ramdisk": 1}}, "pass", "/mnt/ramdisk 1 B free"),
    ("open files", {"open_files": (1024, 524288)}, "warn", "1024 (may be raised to 524288) ulimit -n 4096"),
    ("open files", {"open_files": (256, 2048)}, "warn", "256 (may be raised to 2048) ulimit -n 2048"),
    ("open files", {}, "pass", "unlimited"),
    *(("HDF5", {"versions": versions(v)}, "pass", v) for v in ("1.12.3", "1.14.6", "2.0.0")),
    ("HDF5", {"versions": versions("1.12.2")}, "warn", "1.12.2"),
    ("filters", {"versions": versions(deflate=True, zstd=True)}, "pass", "2: deflate, zstd"),
    ("filters", {"versions": versions(deflate=True, szip=False)}, "warn", "missing: szip (1)"),
    ("filters", {"versions": versions(deflate=False, zstd=True)}, "fail", "deflate (gzip) is missing"),
    ("NUMA", {}, "pass", "no GPU"),
    ("NUMA", {"gpus": [-1]}, "pass", "one node"),
    ("NUMA", {"gpus": [1, 1], "cpus": {0, 1}}, "pass", "GPU on node 1, processors on node 0, 1"),
    ("NUMA", {"gpus": [1]}, "warn", f"GPU on node 1, processors on node 0: {CROSS}"),
    ("NUMA", {"gpus": [1], "cpus": set()}, "warn", f"GPU on node 1, processors on node unknown: {CROSS}"),
    ("start method", {"start_method": "fork", "cuda_started": True}, "warn", "forked workers cannot use it"),
    ("start method", {"start_method": "fork"}, "pass", "fork for a DataLoader's workers, which must not use CUDA"),
    ("start method", {"cuda_started": True}, "pass", "spawn for a DataLoader's workers"),
]


@for_each(JUDGED)
def test_facts_of_a_machine_are_judged(name, facts, status, said):
    every = (judge(**well | {key: facts[key] for key in well if key in facts}) for judge, well in WELL.items())
    (check,) = (check for checks in every for check in checks if check.name == name)
    assert verdict(check) == status
    assert said in f"{check.found} {check.fix}"


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /data rw shared:2 - nfs4 server:/data rw
31 30 0:26 / /data/fast rw - xfs /dev/nvme0n1 rw
32 22 0:27 / /mnt/two\\040words rw master:3 - tmpfs tmpfs rw
33 22 0:28 / /dev/shm rw - ext4 /dev/old rw
34 22 0:29 / /dev/shm rw - tmpfs shm rw
"""


@pytest.fixture
def path(tmp_path):
    return Path(write_datasets(tmp_path / "data.h5", x=np.arange(1000)))


def test_the_signature_is_found_behind_a_user_block_and_another_file_is_refused_with_the_reason(tmp_path):
    for user_block in (512, 1024, 4096):
        with h5py.File(tmp_path / "u.h5", "w", userblock_size=user_block) as file:
            file["x"] = 1
        assert doctor.examine_file(tmp_path / "u.h5")[0].found.endswith(f"user block of {user_block} bytes")
    for content in (b"", b"short", b"\0" * 5000):
        (tmp_path / "x").write_bytes(content)
        (check,) = doctor.examine_file(tmp_path / "x")
        assert verdict(check) == "fail"
        assert check.found.endswith("x: no HDF5 signature")
    assert "no such file" in doctor.examine_file(tmp_path / "nowhere")[0].found
    assert "is a folder" in doctor.examine_file(tmp_path)[0].found


LYING = [
    ("/home/a.h5", "ext4", "/", "pass"),
    ("/data/a.h5", "nfs4", "/data", "warn"),
    ("/data/fast/a.h5", "xfs", "/data/fast", "pass"),
    ("/database/a.h5", "ext4", "/", "pass"),
    ("/mnt/two words/a.h5", "tmpfs", "/mnt/two words", "pass"),
    ("/dev/shm/a.h5", "tmpfs", "/dev/shm", "pass"),  # the later mount hides the earlier
]


@for_each(LYING)
def test_the_filesystem_is_that_of_the_innermost_mount_and_one_over_a_network_is_slow(path, kind, point, status):
    mount = mount_of(Path(path), MOUNTS)
    assert (mount.kind, mount.point) == (kind, point)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "mount_of", lambda path: mount)
        assert verdict(doctor.check_filesystem(path)) == status


@pytest.mark.skipif(sys.platform != "linux", reason="posix_fadvise drops pages only on Linux")
def test_pages_that_were_dropped_are_not_counted(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * (8 << 20))
    if mount_of(path).kind in {"tmpfs", "overlay"}:
        pytest.skip("pages of this filesystem cannot be dropped")
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 4 << 20, os.POSIX_FADV_DONTNEED)
    assert 3 << 20 <= resident_bytes(path) <= 5 << 20
    doctor.read_trial(path)
    assert resident_bytes(path) <= 5 << 20, "measuring filled the page cache"


def test_what_the_system_does_not_say_is_no_failure(path, tmp_path, monkeypatch):
    (tmp_path / "x").touch()
    assert doctor.check_residency(tmp_path / "x").found == "0% of 0 B is in memory"
    assert "does not say" in doctor.check_residency(tmp_path / "nowhere").found

    class Libc:
        def mincore(self, *arguments):
            ctypes.set_errno(38)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *a, **k: Libc())
    assert "does not say" in doctor.check_residency(path).found


def test_a_trial_reads_whole_pieces_up_to_its_limit(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * (17 << 20))
    limits = [{"trial_bytes": 8 << 20, "trial_s": 60.0}, {"trial_s": 60.0}, {"trial_s": 0.0}]
    assert [doctor.read_trial(path, **limit)[1] >> 20 for limit in limits] == [8, 16, 4]


def test_where_nothing_is_read_past_the_page_cache_that_is_said(path, tmp_path, monkeypatch):
    write_datasets(tmp_path / "x", x=np.zeros(4 << 20, "u1"))
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "mount_of", lambda path: Mount(kind="tmpfs", point="/dev/shm"))
        assert "through the page cache" in doctor.examine_file(tmp_path / "x")[-1].found
    opened = os.open

    def no_direct(name, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(name, flags, *rest)

    monkeypatch.setattr(os, "open", no_direct)
    assert doctor.read_trial(path)[2] is False


RATES = [
    (2e9, 64 << 20, True, "pass", "1.86 GiB/s over 64.0 MiB, past the page cache"),
    (100e6, 64 << 20, True, "warn", "95.4 MiB/s over 64.0 MiB"),
    (100e6, 64 << 20, False, "pass", "through the page cache"),
    (1.0, 8192, True, "pass", "too small to measure (8192 bytes)"),
]


@for_each(RATES)
def test_a_slow_disk_is_told(rate, size, direct, status, part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "read_trial", lambda path: (rate, size, direct))
        patch.setattr(doctor, "mount_of", lambda path: Mount(kind="ext4", point="/"))
        check = doctor.check_read_rate("a.h5")
    assert verdict(check) == status
    assert part in check.found


@pytest.mark.parametrize("cached", [True, False])
def test_a_slow_disk_is_told_with_a_command_that_runs_unless_the_file_is_in_memory(path, monkeypatch, cached):
    monkeypatch.setattr(doctor, "mount_of", lambda path: Mount(kind="nfs4", point="/"))
    monkeypatch.setattr(doctor, "read_trial", lambda path: (1e6, 64 << 20, True))
    monkeypatch.setattr(doctor, "resident_bytes", lambda path: path.stat().st_size * cached)
    monkeypatch.setattr(doctor, "tmpfs_places", lambda: {str(path.parent): GIB})
    checks = [check for check in doctor.examine_file(path) if check.name in ("filesystem", "read rate")]
    assert {verdict(check) for check in checks} == {"pass" if cached else "warn"}
    command = f"h5stream stage {path} --to {path.parent}/h5stream"
    assert all(cached or check.fix.split(":")[0] == command for check in checks)


def test_a_read_error_and_a_file_that_was_cut_off_are_failures(path, monkeypatch):
    def broken(*given):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        check = doctor.examine_file(path)[-1]
        assert (verdict(check), "Input/output error" in check.found) == ("fail", True)
    os.truncate(path, path.stat().st_size - 1)
    checks = doctor.examine_file(path)
    assert [check.name for check in checks] == ["file", "structure"]
    assert verdict(checks[-1]) == "fail"
    assert "truncated" in checks[-1].found


# --- what the facts are gathered from -----------------------------------------------------------------


def test_tmpfs_places_are_the_writable_ones_that_are_not_the_systems(tmp_path):
    spaced = tmp_path / "a b"
    spaced.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"tmpfs {str(spaced).replace(' ', chr(92) + '040')} tmpfs rw 0 0\n"
        f"/dev/vda {tmp_path} ext4 rw 0 0\n"
        "tmpfs /run/lock tmpfs rw 0 0\n"
        "tmpfs /nowhere/at/all tmpfs rw 0 0\n"
    )
    places = doctor.tmpfs_places(mounts)
    assert list(places) == [str(spaced)]
    assert places[str(spaced)] > 0


def test_nodes_of_gpus_are_the_kernels_and_of_processors_those_that_may_be_used(tmp_path, monkeypatch):
    (tmp_path / "0000:17:00.0").mkdir()
    (tmp_path / "0000:17:00.0" / "numa_node").write_text("1\n")
    other = Device(uuid="GPU-2", name="B", pci_bus_id="0000:99:00.0")
    unknown = Device(uuid="GPU-3", name="C")
    assert doctor.gpu_nodes(DriverFacts(version="1", devices=(CARD, other, unknown)), tmp_path) == [1, -1]
    (tmp_path / "0000:99:00.0/numa_node").mkdir(parents=True)  # that is there, and cannot be read
    assert doctor.gpu_nodes(DriverFacts(version="1", devices=(other,)), tmp_path) == [-1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 9})
    for node, cpus in {"node0": "0-3,8\n", "node1": "4-7\n", "node2": "\n", "node3": "9\n"}.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cpus)
    assert doctor.cpu_nodes(tmp_path) == {0, 3}


def test_cudas_uuids_come_in_cudas_order_and_not_before_cuda_has_started(monkeypatch):
    import torch

    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        assert started_cuda_uuids() == ()
        assert "torch" not in sys.modules
        for half_imported in (SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())):
            patch.setitem(sys.modules, "torch", half_imported)
            assert started_cuda_uuids() == ()
    assert torch.cuda.is_initialized() or started_cuda_uuids() == ()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda k: SimpleNamespace(uuid=f"uuid-{k}"))
    assert started_cuda_uuids() == ("uuid-0", "uuid-1")


def test_pinned_memory_that_is_refused_is_told_in_one_line(monkeypatch):
    import torch

    def refuse(*arguments, **options):
        raise RuntimeError("cannot pin\nmany more lines")

    monkeypatch.setattr(torch, "empty", refuse)
    assert pin_error(1) == "cannot pin"


# --- the command --------------------------------------------------------------------------------------


def run(*arguments):
    return invoke("doctor", *arguments)


def test_a_warning_shows_its_fix_and_only_a_failure_exits_with_1(tmp_path, monkeypatch):
    checks = [judged("torch", "fine")]
    monkeypatch.setattr(doctor, "examine_machine", lambda: list(checks))
    well = run()
    assert (well.exit_code, "✓ pass  torch  fine" in well.stdout) == (0, True)
    assert "1 pass, 0 warn, 0 fail" in well.stdout
    checks.append(Check(name="tmpfs", status="warn", found="none [at all]", fix="mount one"))
    slow = run()
    assert (slow.exit_code, "! warn  tmpfs  none [at all]" in slow.stdout) == (0, True)
    assert "→ mount one" in slow.stdout
    (tmp_path / "text.h5").write_text("1,2")
    broken = run(tmp_path / "text.h5")
    assert (broken.exit_code, "✗ fail" in broken.stdout) == (1, True)
    as_json = run(tmp_path / "text.h5", "--json")
    answer = json.loads(as_json.stdout)
    assert (as_json.exit_code, answer["worst"]) == (1, "fail")
    assert answer["checks"][0] == {"name": "torch", "status": "pass", "found": "fine", "fix": ""}


def test_this_machine_and_a_file_on_it(path):
    checks = {check["name"]: check["found"] for check in json.loads(run(path, "--json").stdout)["checks"]}
    assert [*checks] == [
        "torch", "driver", "CUDA", "pinned memory", "processors", "memory", "tmpfs", "open files", "HDF5",
        "filters", "NUMA", "start method", "file", "structure", "filesystem", "page cache",
        "read rate",
    ]  # fmt: skip
    filters = {"deflate", "shuffle", "fletcher32", "lzf", "zstd", "lz4", "blosc"}
    assert filters <= set(re.findall(r"\w+", checks["filters"]))

"""Machine and process readings, against numbers made by hand and against this machine."""

import contextlib
import os
import subprocess
import time
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest
from support.inner import processors

from h5stream.monitor import system
from h5stream.monitor.system import environment_of, host_samples, process_samples

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")


@pytest.fixture
def machine(monkeypatch):
    """A machine whose counters tests set by hand."""
    state = SimpleNamespace(now=10.0, times=Times(100, 0, 50, 800, 50, 0, 0, 0, 0, 0), disks={"sda": 1000})
    monkeypatch.setattr(time, "monotonic", lambda: state.now)
    monkeypatch.setattr(psutil, "cpu_times", lambda: state.times)
    monkeypatch.setattr(
        psutil,
        "disk_io_counters",
        lambda perdisk: {name: SimpleNamespace(read_bytes=size) for name, size in state.disks.items()},
    )
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/sys/block/sda1")
    return state


def second_reading(machine, **changes):
    samples = host_samples()
    next(samples)
    machine.now += 2.0
    for name, value in changes.items():
        setattr(machine, name, value)
    return next(samples)


@pytest.mark.parametrize(
    ("later", "busy"),
    [
        # 100 more seconds: 20 user (5 of them for a guest, which the kernel lists again), 10 system, 30 waiting.
        (Times(120, 0, 60, 840, 80, 0, 0, 0, 5, 0), 0.30),
        (Times(100, 0, 50, 900, 50, 0, 0, 0, 0, 0), 0.0),  # idle, and not unknown
        (Times(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), None),  # a sandbox that does not tell
    ],
)
def test_waiting_for_the_disk_is_not_being_busy(machine, later, busy):
    assert second_reading(machine, times=later).cpu_ratio == (None if busy is None else pytest.approx(busy))


def test_only_whole_physical_disks_are_counted(machine):
    machine.disks = dict.fromkeys(("sda", "sda1", "loop0", "dm-0", "md1", "zram0"), 0)
    later = dict.fromkeys(machine.disks, 4000)
    assert second_reading(machine, disks=later).disk_read_bytes_per_s == 2000.0


def test_a_disk_that_was_taken_out_and_no_statistics_of_disks_give_no_rate(machine, monkeypatch):
    for later in ({}, {"loop0": 5}, {"sda": 10}):
        machine.disks = {"sda": 1000}
        assert second_reading(machine, disks=later).disk_read_bytes_per_s is None

    def missing(perdisk):
        raise NotImplementedError

    monkeypatch.setattr(psutil, "disk_io_counters", missing)
    assert second_reading(machine).disk_read_bytes_per_s is None


@pytest.mark.parametrize(
    ("total", "available", "used"),
    [(64, 40, 24), (16, 40, 0)],  # what is available may be the machine's, where the cgroup does not count its own
)
def test_memory_that_cannot_be_given_out_now_is_used(monkeypatch, total, available, used):
    monkeypatch.setattr(system.limits, "memory_total_bytes", lambda: total)
    monkeypatch.setattr(system.limits, "memory_available_bytes", lambda: available)
    sample = next(host_samples())
    assert (sample.ram_used_bytes, sample.ram_total_bytes) == (used, total)


class FakeProcess:
    def __init__(self, pid, cpu=0.0, rss=100, read=0, children=()):
        self.pid, self.cpu, self.rss, self.read, self.kids = pid, cpu, rss, read, list(children)
        self.alive, self.zombie, self.private = True, False, False

    def __getattr__(self, method):
        def told(**_):
            if not self.alive and method != "is_running":
                raise psutil.NoSuchProcess(self.pid)
            if self.private and method in ("io_counters", "environ"):
                raise psutil.AccessDenied(self.pid)
            return {
                "oneshot": contextlib.nullcontext(),
                "create_time": float(self.pid),
                "is_running": self.alive,
                "status": psutil.STATUS_ZOMBIE if self.zombie else psutil.STATUS_RUNNING,
                "children": list(self.kids),
                "cpu_times": SimpleNamespace(user=self.cpu, system=self.cpu),
                "memory_info": SimpleNamespace(rss=self.rss),
                "io_counters": SimpleNamespace(read_bytes=self.read),
                "environ": {"CUDA_VISIBLE_DEVICES": "1"},
            }[method]

        return told


@pytest.fixture
def family(monkeypatch, machine):
    child = FakeProcess(8, cpu=1.0, rss=30)
    parent = FakeProcess(7, cpu=2.0, rss=100, children=[child])
    processors(monkeypatch, 4)
    return SimpleNamespace(parent=parent, child=child, samples=process_samples(parent), machine=machine)


def test_children_are_counted_in(family):
    next(family.samples)
    family.machine.now += 2.0
    family.parent.cpu, family.child.cpu, family.parent.read, family.child.read = 2.5, 2.5, 3000, 1000
    sample = next(family.samples)
    assert sample.processes == 2
    assert sample.cpu_cores == 2.0
    assert sample.cpu_ratio == 0.5
    assert (sample.memory_bytes, sample.children_memory_bytes) == (100, 30)
    assert sample.disk_read_bytes_per_s == 2000.0


def test_a_child_that_was_born_meanwhile_counts_from_its_birth_and_one_that_ends_is_left_out(family):
    next(family.samples)
    family.machine.now += 2.0
    family.parent.kids.append(FakeProcess(9, cpu=0.5, read=600))
    sample = next(family.samples)
    assert (sample.processes, sample.cpu_cores, sample.disk_read_bytes_per_s) == (3, 0.5, 300.0)
    family.machine.now += 2.0
    family.child.alive = family.parent.kids.pop().alive = False
    sample = next(family.samples)
    assert (sample.processes, sample.children_memory_bytes, sample.cpu_cores) == (1, 0, 0.0)


def test_counters_that_may_not_be_read_are_unknown(family):
    family.parent.private = family.child.private = True
    next(family.samples)
    family.machine.now += 1.0
    sample = next(family.samples)
    assert sample.disk_read_bytes_per_s is None
    assert sample.cpu_cores == 0.0
    assert environment_of(family.parent) == {}


def test_a_process_that_ended_gives_nothing(family):
    family.parent.zombie = True
    assert next(family.samples) is None
    family.parent.alive = False
    assert next(family.samples) is None


def test_a_real_child_is_found_and_its_end_is_noticed():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        ours, theirs = (process_samples(psutil.Process(pid)) for pid in (None, child.pid))
        assert next(ours).processes >= 2
        assert next(theirs).memory_bytes > 0
        child.stdin.close()
        child.wait()
        assert next(theirs) is None

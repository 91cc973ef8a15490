"""What a process may use: told by the scheduler and by every cgroup over it."""

import pytest

from h5stream.base import limits


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give a function that writes the files of nested cgroups: for each its limit, its use and its page cache."""
    outer, proc = tmp_path / "sys" / "fs" / "cgroup" / "outer", tmp_path / "proc"
    (outer / "inner").mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (proc / "meminfo").write_text("MemTotal:  10 kB\nMemFree:  3 kB\nMemAvailable:  9 kB\n")
    monkeypatch.setattr(limits, "ROOT", tmp_path)

    def write(**groups):
        for name, (limit, current, cached) in groups.items():
            folder = {"inner": outer / "inner", "outer": outer}[name]
            (folder / "memory.max").write_text(str(limit))
            (folder / "memory.current").write_text(str(current))
            (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached // 2}\nactive_file {cached // 2}\n")

    return write


# Of nested cgroups the limits, uses and page caches; and what is available of how much.
CGROUPS = [
    ({}, 9 * 1024, 10 * 1024),
    ({"inner": (8_000, 7_000, 6_000)}, 7_000, 8_000),  # page cache of either kind does not count as used
    ({"inner": ("max", 500, 0), "outer": (6_000, 5_900, 0)}, 100, 6_000),
    ({"inner": (4_000, 500, 0), "outer": (6_000, 5_900, 0)}, 100, 4_000),  # the rest of a parent that is nearly full
    ({"inner": (4_000, 3_999, 0), "outer": (6_000, 5_000, 0)}, 1, 4_000),  # the total does not move with use
]


@pytest.mark.parametrize(("groups", "available", "total"), CGROUPS)
def test_memory_is_what_the_machine_and_every_cgroup_leave(machine, groups, available, total):
    machine(**groups)
    assert (limits.memory_available_bytes(), limits.memory_total_bytes()) == (available, total)


def test_limits_of_the_old_kind_count_too(machine, tmp_path):
    folder = tmp_path / "sys" / "fs" / "cgroup" / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("3000")
    (folder / "memory.usage_in_bytes").write_text("2500")
    (folder / "memory.stat").write_text("total_inactive_file 1000\ntotal_active_file 500\n")
    assert limits.memory_available_bytes() == 2_000
    assert limits.memory_total_bytes() == 3_000

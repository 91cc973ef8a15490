"""What a process may use: told by the scheduler and by every cgroup over it."""

from __future__ import annotations

import pytest

from h5stream import allowance


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give a function that writes the files of nested cgroups: for each its limit, its use and its page cache."""
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    proc = tmp_path / "cgroup"
    proc.write_text("0::/outer/inner\n")
    real = allowance.cgroup_folders
    monkeypatch.setattr(allowance, "_CGROUP", tmp_path)
    monkeypatch.setattr(allowance, "cgroup_folders", lambda: real(tmp_path, proc))
    monkeypatch.setattr(allowance, "_meminfo_bytes", lambda name: {"MemTotal": 10_000, "MemAvailable": 9_000}[name])

    def write(**groups):
        for name, (limit, current, cached) in groups.items():
            folder = {"inner": tmp_path / "outer" / "inner", "outer": tmp_path / "outer"}[name]
            (folder / "memory.max").write_text(str(limit))
            (folder / "memory.current").write_text(str(current))
            (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached // 2}\nactive_file {cached // 2}\n")

    return write


def test_without_a_cgroup_it_is_the_machines(machine):
    assert (allowance.memory_available_bytes(), allowance.memory_total_bytes()) == (9_000, 10_000)


def test_page_cache_of_either_kind_does_not_count_as_used(machine):
    machine(inner=(8_000, 7_000, 6_000))
    assert allowance.memory_available_bytes() == 7_000
    assert allowance.memory_in_use_bytes() == 1_000


def test_a_parent_that_is_nearly_full_leaves_its_childs_rest(machine):
    machine(inner=("max", 500, 0), outer=(6_000, 5_900, 0))
    assert allowance.memory_available_bytes() == 100
    machine(inner=(4_000, 500, 0), outer=(6_000, 5_900, 0))
    assert allowance.memory_available_bytes() == 100


def test_the_total_is_the_tightest_limit_and_does_not_move_with_use(machine):
    machine(inner=(4_000, 3_999, 0), outer=(6_000, 5_000, 0))
    assert allowance.memory_total_bytes() == 4_000


def test_limits_of_the_old_kind_count_too(machine, tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("3000")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("2500")
    (tmp_path / "memory" / "memory.stat").write_text("total_inactive_file 1000\ntotal_active_file 500\n")
    assert allowance.memory_available_bytes() == 2_000
    assert allowance.memory_total_bytes() == 3_000

"""What is compiled is kept where it can be, found again, and never taken for something else."""

import importlib
import sys

import numba

from h5stream.compiled import jit as compiling


def test_kernels_compile_where_nothing_may_be_cached(monkeypatch):
    real, asked = compiling.njit, []

    def njit(**options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(compiling, "njit", njit)

    @compiling.jit
    def twice(x):
        return 2 * x

    assert twice(21) == 42
    assert [bool(options.get("cache")) for options in asked] == [True, False]


def test_processes_that_compile_at_once_never_share_the_name_of_a_file():
    """One that read the index before another replaced it must not write over the other's code."""
    files = [compiling.jit(lambda x: x)._cache._cache_file for _ in range(2)]
    names = [one._data_name(1) for one in files for _ in range(2)]
    assert len(set(names)) == 4
    assert all(name.endswith(".nbc") for name in names)


def test_what_was_compiled_is_found_again(tmp_path, monkeypatch):
    module = tmp_path / "kernel_of_a_test.py"
    module.write_text("from h5stream.compiled.jit import jit\n@jit\ndef twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # wherever NUMBA_CACHE_DIR may lead
    first = importlib.import_module("kernel_of_a_test")
    assert (first.twice(21), first.twice(0.5)) == (42, 1.0)
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
    del sys.modules["kernel_of_a_test"]
    again = importlib.import_module("kernel_of_a_test")
    assert (again.twice(0.5), again.twice(21)) == (1.0, 42)
    assert sum(again.twice.stats.cache_hits.values()) == 2


def test_what_was_compiled_is_not_found_when_any_kernel_has_changed(tmp_path, monkeypatch):
    """Compiled code has in it what it calls, also what is in another file, of which numba takes no notice."""
    module = tmp_path / "another_kernel_of_a_test.py"
    module.write_text("from h5stream.compiled.jit import jit\n@jit\ndef twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert importlib.import_module("another_kernel_of_a_test").twice(21) == 42
    del sys.modules["another_kernel_of_a_test"]
    monkeypatch.setattr(compiling, "_stamps", lambda: ((0.0, 1),))
    again = importlib.import_module("another_kernel_of_a_test")
    assert again.twice(21) == 42
    assert sum(again.twice.stats.cache_hits.values()) == 0

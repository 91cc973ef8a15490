"""What is compiled is kept where it can be, found again, and never taken for something else."""

import importlib
import os
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


def imported_anew(folder, monkeypatch):
    """Import a module with a kernel as a new process would; what is compiled is kept below the folder."""
    name = "kernel_of_a_test"
    text = "from h5stream.compiled.jit import jit\n@jit\ndef twice(x):\n    return 2 * x\n"
    (folder / f"{name}.py").write_text(text)
    os.utime(folder / f"{name}.py", (0, 0))  # code is compiled anew for a source that is newer
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))  # wherever NUMBA_CACHE_DIR may lead
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def compiled_in(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.nbc")}


def test_what_was_compiled_is_found_again(tmp_path, monkeypatch):
    first = imported_anew(tmp_path, monkeypatch)
    assert (first.twice(21), first.twice(0.5)) == (42, 1.0)
    assert len(compiled_in(tmp_path)) == 2
    again = imported_anew(tmp_path, monkeypatch)
    assert (again.twice(0.5), again.twice(21)) == (1.0, 42)
    assert sum(again.twice.stats.cache_hits.values()) == 2


def test_processes_that_compile_at_once_never_write_over_each_others_code(tmp_path, monkeypatch):
    """One may have read the index before another replaced it: what it writes then is a file of its own."""
    assert imported_anew(tmp_path, monkeypatch).twice(21) == 42
    before = compiled_in(tmp_path)
    (index,) = tmp_path.rglob("*.nbi")
    index.unlink()  # as the other sees it
    assert imported_anew(tmp_path, monkeypatch).twice(0.5) == 1.0
    after = compiled_in(tmp_path)
    assert (len(before), len(after)) == (1, 2)
    assert before.items() <= after.items()


def test_what_was_compiled_is_not_found_when_any_kernel_has_changed(tmp_path, monkeypatch):
    """Compiled code has in it what it calls, also what is in another file, of which numba takes no notice."""
    assert imported_anew(tmp_path, monkeypatch).twice(21) == 42
    monkeypatch.setattr(compiling, "_stamps", lambda: ((0.0, 1),))
    again = imported_anew(tmp_path, monkeypatch)
    assert again.twice(21) == 42
    assert sum(again.twice.stats.cache_hits.values()) == 0

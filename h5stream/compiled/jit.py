"""One way to compile an inner loop: without the GIL, once for each machine, its files under names that never clash."""

from __future__ import annotations

import functools
import logging
import uuid
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.runtime import rtsys

if logging.getLogger("numba").level == logging.NOTSET:
    # At the root's level DEBUG, as of `logging.basicConfig(level=DEBUG)`, numba tells every bytecode that it compiles.
    logging.getLogger("numba").setLevel(logging.WARNING)


_OPTIONS: Any = {"nogil": True, "boundscheck": False, "error_model": "numpy"}


def jit(function):
    """Compile a kernel at its first call; keep what was compiled for other processes where there is a place for it."""
    try:
        return _load_alone(_date_by_all(_name_files_apart(njit(cache=True, **_OPTIONS)(function))))
    except RuntimeError:  # neither beside the module nor in a home folder may be written; `h5stream doctor` says so
        return njit(**_OPTIONS)(function)


def jit_inner(function):
    """Compile what kernels call, which are kept with it inside: with as little to compile as there may be.

    It makes no arrays and gives none back, so references need not be counted (``_nrt``), which is a fourth of the code.
    """
    return _without_literals(njit(no_cfunc_wrapper=True, _nrt=False, **_OPTIONS)(function))


def _without_literals(kernel):
    """Let a call with a number that stands in the code use what is compiled for every number, and not be compiled anew.

    Source: ``numba/core/dispatcher.py``, ``get_call_template``; where it is built otherwise, nothing is changed.
    """
    template = getattr(kernel, "get_call_template", None)
    if template is not None:
        kernel.get_call_template = lambda args, kws: template(tuple(map(types.unliteral, args)), kws)
    return kernel


def _name_files_apart(kernel):
    """Let no two processes give the same name to what they compiled.

    numba numbers the files of its cache by an index that it reads first and replaces later. Two processes that
    compile a kernel for unlike arguments at the same time, as ranks do in their first run, may so write one name, and
    a third then calls code that was made for other arguments. Source: ``numba/core/caching.py``,
    ``IndexDataCacheFile.save``; where it is built otherwise, nothing is changed.
    """
    files: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    pattern = getattr(files, "_data_name_pattern", None)
    if isinstance(pattern, str) and "{number:d}" in pattern and hasattr(files, "_data_name"):
        files._data_name = lambda number: pattern.replace("{number:d}", f"{number}-{uuid.uuid4().hex[:12]}")
    return kernel


def _date_by_all(kernel):
    """Let what was compiled be found again only while no file with kernels has changed.

    numba compares the file that a function is in, but compiled code has in it what it calls from other files. Source:
    ``numba/core/caching.py``, ``IndexDataCacheFile``; where it is built otherwise, nothing is changed.
    """
    files: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(files, "_source_stamp"):
        files._source_stamp = (files._source_stamp, _stamps())
    return kernel


def _load_alone(kernel):
    """Let what was compiled be loaded without all that numba knows of compiling, which takes 0.1 s longer.

    numba registers every function and type of Python and NumPy before it loads the first kernel; whoever compiles
    registers them first anyway (``numba/core/compiler.py``, ``CompilerBase``). What runs needs the runtime alone.
    Source: ``numba/core/caching.py``, ``Cache.load_overload``; where it is built otherwise, nothing is changed.
    """
    cache: Any = getattr(kernel, "_cache", None)
    if not hasattr(cache, "_load_overload") or not hasattr(cache, "_guard_against_spurious_io_errors"):
        return kernel

    def load_overload(signature, target_context):
        rtsys.initialize(target_context)
        with cache._guard_against_spurious_io_errors():
            return cache._load_overload(signature, target_context)

    cache.load_overload = load_overload
    return kernel


@functools.cache
def _stamps():
    """Give the time and size of every file of the package that has kernels in it."""
    package = Path(__file__).resolve().parent.parent
    found = [*package.glob("compiled/*.py"), *package.glob("storage/*_bytes.py")]
    stats = [path.stat() for path in sorted(found) if path.is_file()]
    return tuple((stat.st_mtime, stat.st_size) for stat in stats)

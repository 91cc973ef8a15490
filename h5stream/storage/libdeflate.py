"""libdeflate itself, for inner loops that inflate many small chunks without coming back to Python.

imagecodecs carries the library and is the way to it for a chunk at a time. With chunks of a few KiB the call
itself is what costs (a decompressor made and dropped, arguments taken apart, the GIL taken and given back), so the
engine's kernels call the same function of the same library by its address. Where it cannot be found, everything
goes the ordinary way.

Source: ``libdeflate.h``: ``libdeflate_zlib_decompress`` with no place for the count of bytes succeeds only if the
output is filled exactly; it returns 0 then.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import weakref
import zlib
from dataclasses import dataclass
from typing import Any

_SELF_TEST = bytes(range(64)) * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Functions:
    """The functions that are used, as ctypes gives them."""

    allocate: Any
    free: Any
    inflate: Any

    @property
    def inflate_address(self) -> int:
        return ctypes.cast(self.inflate, ctypes.c_void_p).value or 0


class Decompressor:
    """A libdeflate decompressor, and the function that takes it.

    # Guarantees: belongs to one thread; its memory is freed when it is dropped.
    """

    def __init__(self, functions: _Functions) -> None:
        self.address = int(functions.allocate() or 0)  # the decompressor
        if not self.address:
            raise MemoryError("libdeflate has no memory for a decompressor")
        # `int (*)(decompressor, in, in_nbytes, out, out_nbytes, NULL)`; 0 says that `out_nbytes` bytes were written
        self.function = functions.inflate_address
        weakref.finalize(self, functions.free, self.address).atexit = False


def new_decompressor() -> Decompressor | None:
    """Make a decompressor for the calling thread; None where libdeflate cannot be called by address."""
    found = found_functions()
    return None if found is None else Decompressor(found)


@functools.cache
def found_functions() -> _Functions | None:
    """Find libdeflate behind imagecodecs' module: a symbol is looked up in what the module is linked with, too."""
    try:
        module = importlib.import_module("imagecodecs._deflate")
        library = ctypes.CDLL(str(module.__file__))
        found = _Functions(
            allocate=library.libdeflate_alloc_decompressor,
            free=library.libdeflate_free_decompressor,
            inflate=library.libdeflate_zlib_decompress,
        )
    except (ImportError, OSError, AttributeError):  # linked statically, or not there at all
        return None
    found.allocate.restype = ctypes.c_void_p
    found.free.argtypes = [ctypes.c_void_p]
    found.free.restype = None
    found.inflate.argtypes = [
        *[ctypes.c_void_p] * 2,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    return found if _works(found) else None


def _works(functions: _Functions) -> bool:
    """Inflate something known, so that a library with other ideas of its arguments is not used."""
    packed, out = zlib.compress(_SELF_TEST), ctypes.create_string_buffer(len(_SELF_TEST))
    decompressor = functions.allocate()
    if not decompressor:
        return False
    status = functions.inflate(decompressor, packed, len(packed), out, len(_SELF_TEST), None)
    short = functions.inflate(decompressor, packed, len(packed), out, len(_SELF_TEST) - 1, None)
    functions.free(decompressor)
    return bool(status == 0 and short != 0 and out.raw == _SELF_TEST)

"""Functions of libhdf5 that h5py has not, or not for every type in memory.

# Guarantees: calls are made under h5py's lock.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import h5py
from h5py._hl.base import phil

_ID, _BUFFER = ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS = {
    "H5Dread": (_ID, _ID, _ID, _ID, _ID, _BUFFER),
    "H5Dwrite": (_ID, _ID, _ID, _ID, _ID, _BUFFER),
    "H5Aread": (_ID, _ID, _BUFFER),
    "H5Awrite": (_ID, _ID, _BUFFER),
    "H5Dvlen_reclaim": (_ID, _ID, _ID, _BUFFER),
    "H5Pget_fill_value": (_ID, _ID, _BUFFER),
}


@functools.cache
def _function(name: str) -> Any:
    """Return a function of the libhdf5 that h5py is linked with."""
    function = getattr(ctypes.CDLL(h5py.h5d.__file__), name)
    function.argtypes, function.restype = _ARGUMENTS[name], ctypes.c_int
    return function


def call(name: str, *arguments: int) -> None:
    """Call a function of libhdf5; raises OSError if it fails."""
    with phil:
        if _function(name)(*arguments) < 0:
            raise OSError(f"libhdf5's {name} failed")

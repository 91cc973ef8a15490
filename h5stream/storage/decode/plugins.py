"""HDF5 filter plugins called directly: outside HDF5's lock, with exactly libhdf5's bytes.

hdf5plugin ships each registered filter as a shared library that exports ``H5PLget_plugin_info()``; the
structure it returns holds the very function that libhdf5 would call, which `compiled/pipeline.h` calls as well.

Source: ``H5Zdevelop.h`` of the HDF5 library (``H5Z_class2_t``, ``H5Z_func_t``).
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class _FilterClass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("version", "id", "encoder_present", "decoder_present")),
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("can_apply", "set_local", "filter")),
    )


@functools.cache  # without a lock: a fork while another thread held it would stop the child
def _functions() -> dict[int, int]:
    """Load every plugin library; return the addresses of their C functions by filter number."""
    functions = dict[int, int]()
    for path in sorted(Path(hdf5plugin.PLUGIN_PATH).glob("*.so")):
        try:
            library = ctypes.CDLL(str(path))
            get_info = library.H5PLget_plugin_info
        except (OSError, AttributeError):
            continue  # not loadable on this machine: the filter counts as missing
        get_info.restype = ctypes.POINTER(_FilterClass)
        info = get_info().contents
        if info.version == 1 and info.decoder_present and info.filter:
            functions[info.id] = info.filter
    return functions


def plugin_function(filter_id: int) -> int | None:
    """Return the address of a registered filter's function, or None if hdf5plugin lacks it."""
    return _functions().get(filter_id)


# --- versions of the HDF5 libraries, and the filters that they decode -------------------------------------------


FILTER_NAMES = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
FILTER_NAMES |= {number: name for name, number in hdf5plugin.FILTERS.items()}
"""Names of the filters of libhdf5, h5py and hdf5plugin, by number."""


class StorageVersions(NamedTuple):
    """Versions of the installed HDF5 libraries."""

    hdf5: str  # hdf5, h5py, hdf5plugin: versions of the C library and of the two packages
    h5py: str
    hdf5plugin: str
    filters: dict[int, tuple[str, bool]]  # by number: name, and whether this libhdf5 can decode it


def storage_versions() -> StorageVersions:
    """Return the versions, and whether libhdf5 can decode each filter."""
    filters = {number: (name, bool(h5py.h5z.filter_avail(number))) for number, name in sorted(FILTER_NAMES.items())}
    return StorageVersions(h5py.version.hdf5_version, h5py.version.version, hdf5plugin.version, filters)

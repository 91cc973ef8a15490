"""HDF5 filter plugins called directly: outside HDF5's lock, with exactly libhdf5's bytes.

hdf5plugin ships each registered filter as a shared library that exports ``H5PLget_plugin_info()``; the
structure it returns holds the very function that libhdf5 would call. ctypes releases the GIL around it, so
threads decode side by side.

Source: ``H5Zdevelop.h`` of the HDF5 library (``H5Z_class2_t``, ``H5Z_func_t``).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

_REVERSE = 0x0100  # H5Z_FLAG_REVERSE: decode
_ZEROED_NBYTES = 4096
"""A length that is read behind the end is then zero, which every codec refuses."""

_FilterFunction = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_uint,  # flags
    ctypes.c_size_t,  # number of cd_values
    ctypes.POINTER(ctypes.c_uint),  # cd_values
    ctypes.c_size_t,  # valid bytes in the buffer
    ctypes.POINTER(ctypes.c_size_t),  # allocated bytes of the buffer, in and out
    ctypes.POINTER(ctypes.c_void_p),  # the buffer, in and out
)


class _FilterClass(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", ctypes.c_void_p),
    )


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


class PluginBuffer:
    """The memory that a filter left its output in; freed by `release` or when it is dropped.

    # Guarantees: owned by the one thread that decodes with it. A holder of the array from `decode` must
    # be done with it before the next `decode` into the same buffer.
    """

    _address: int | None = None

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Hand the memory back to the C library."""
        address, self._address = self._address, None
        if address:
            _libc.free(address)

    def decode(
        self,
        function: Callable[..., int],
        values: ctypes.Array[ctypes.c_uint],
        source: NDArray[np.uint8],
        *,
        most_nbytes: int,
        behind_nbytes: int = 0,
    ) -> NDArray[np.uint8]:
        """Run a filter backwards over a copy of `source` and give a view of what it produced.

        What the bytes claim is to be checked before; see `h5stream.storage.claims`.
        """
        self.release()
        # The filter may free or reallocate its input, so it gets memory of the C allocator's own.
        buffer = ctypes.c_void_p(_libc.malloc(max(1, source.nbytes + behind_nbytes)))
        if not buffer.value:
            raise MemoryError(f"no memory for {source.nbytes} bytes of compressed data")
        ctypes.memmove(buffer, source.ctypes.data, source.nbytes)
        ctypes.memset(buffer.value + source.nbytes, 0, min(behind_nbytes, _ZEROED_NBYTES))
        allocated = ctypes.c_size_t(source.nbytes)
        count = function(_REVERSE, len(values), values, source.nbytes, ctypes.byref(allocated), ctypes.byref(buffer))
        self._address = buffer.value
        # The one for zstd hands on a negative error code as if it were a length, of the buffer too.
        if count == 0 or count > min(most_nbytes, allocated.value) or not buffer.value:
            raise ValueError("the filter refused the bytes")
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(buffer.value))


def _load_libraries() -> dict[int, Callable[..., int]]:
    """Load every plugin library; filter number -> its C function."""
    functions: dict[int, Callable[..., int]] = {}
    for path in sorted(Path(hdf5plugin.PLUGIN_PATH).glob("*.so")):
        try:
            library = ctypes.CDLL(str(path))
            get_info = library.H5PLget_plugin_info
        except (OSError, AttributeError):
            continue  # not loadable on this machine: the filter counts as missing, and says so where needed
        get_info.restype = ctypes.POINTER(_FilterClass)
        info = get_info().contents
        if info.version == 1 and info.decoder_present and info.filter:
            functions[info.id] = _FilterFunction(info.filter)
    return functions


_loading = threading.Lock()
_loaded: dict[int, Callable[..., int]] = {}


def _functions() -> dict[int, Callable[..., int]]:
    # Every chunk asks, so no lock once it is loaded: a fork while another thread held it would stop the child.
    if not _loaded:
        with _loading:
            if not _loaded:
                _loaded.update(_load_libraries())
    return _loaded


def plugin_function(filter_id: int) -> Callable[..., int] | None:
    """Return the C function that decodes a registered filter, or None if hdf5plugin does not carry it."""
    return _functions().get(filter_id)


# --- Which HDF5 this is and which filters it can decode -------------------------------------------


# Filters of libhdf5 and h5py themselves; the others come with hdf5plugin.
_BUILT_IN = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFact:
    """A registered filter."""

    filter_id: int  # HDF5's number for it
    name: str  # short name
    available: bool  # whether this libhdf5 can decode it


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageVersions:
    """Versions of what reads HDF5 here."""

    hdf5: str  # hdf5, h5py, hdf5plugin: versions of the C library and of the two packages
    h5py: str
    hdf5plugin: str
    filters: tuple[FilterFact, ...]  # the filters of libhdf5, h5py and hdf5plugin, by number


def storage_versions() -> StorageVersions:
    """Return the versions, and ask libhdf5 for every filter."""
    names = _BUILT_IN | {number: name for name, number in hdf5plugin.FILTERS.items()}
    return StorageVersions(
        hdf5=h5py.version.hdf5_version,
        h5py=h5py.version.version,
        hdf5plugin=hdf5plugin.version,
        filters=tuple(
            FilterFact(filter_id=number, name=name, available=bool(h5py.h5z.filter_avail(number)))
            for number, name in sorted(names.items())
        ),
    )

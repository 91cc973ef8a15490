"""Functions of libhdf5 that h5py lacks, and elements of variable length as libhdf5 stores them in memory.

h5py returns such elements as Python objects, which it does not always write back unchanged: sequences of fixed-length
strings lose characters, sequences of foreign byte order come back swapped, and small floats are converted. Here an
element is libhdf5's own structure: a length and an address, or the address of a string.

# Guarantees: calls are made under h5py's lock. The memory that libhdf5 allocated for elements is freed when the
# block of `elements_of` ends, however it ends.

Source: HDF5 reference manual, H5Dread, H5Dwrite, H5Aread, H5Awrite, H5Treclaim, H5Pget_fill_value.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

import h5py
import numpy as np
from h5py import h5a, h5s
from h5py._hl.base import phil
from numpy.typing import NDArray

_ID, _BUFFER = ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS = {
    "H5Dread": (_ID, _ID, _ID, _ID, _ID, _BUFFER),
    "H5Dwrite": (_ID, _ID, _ID, _ID, _ID, _BUFFER),
    "H5Aread": (_ID, _ID, _BUFFER),
    "H5Awrite": (_ID, _ID, _BUFFER),
    "H5Dvlen_reclaim": (_ID, _ID, _ID, _BUFFER),
    "H5Pget_fill_value": (_ID, _ID, _BUFFER),
}


_DEFAULT = 0  # H5P_DEFAULT


@functools.cache
def _function(name: str) -> Callable[..., int]:
    """Return a function of the libhdf5 that h5py uses, its argument types set."""
    function = ctypes.CDLL(h5py.h5d.__file__)[name]
    function.argtypes, function.restype = _ARGUMENTS[name], ctypes.c_int
    return function


def call(name: str, *arguments: int) -> None:
    """Call a function of libhdf5; raises OSError if it fails."""
    with phil:
        if _function(name)(*arguments) < 0:
            raise OSError(f"libhdf5's {name} failed")


@contextlib.contextmanager
def elements_of(
    source: h5py.h5d.DatasetID | h5a.AttrID, space: h5s.SpaceID | None = None
) -> Iterator[NDArray[np.void]]:
    """Read the elements of an attribute, or of a dataset or its selection `space`; free them at the end of the block.

    The array has one axis; it may be passed to `write_elements` within the block.
    """
    stored, every = source.get_type(), source.get_space()
    count = (space or every).get_select_npoints()
    elements = np.zeros(count, dtype=f"V{stored.get_size()}")
    memory = h5s.create_simple((count,))
    try:
        if isinstance(source, h5a.AttrID):
            call("H5Aread", source.id, stored.id, elements.ctypes.data)
        elif count:
            call("H5Dread", source.id, stored.id, memory.id, (space or every).id, _DEFAULT, elements.ctypes.data)
        yield elements
    finally:
        call("H5Dvlen_reclaim", stored.id, memory.id, _DEFAULT, elements.ctypes.data)


def write_elements(
    target: h5py.h5d.DatasetID | h5a.AttrID, elements: NDArray[np.void], space: h5s.SpaceID | None = None
) -> None:
    """Write elements that `elements_of` has read to a dataset or an attribute of the same type."""
    stored, elements = target.get_type(), np.ascontiguousarray(elements)
    if isinstance(target, h5a.AttrID):
        call("H5Awrite", target.id, stored.id, elements.ctypes.data)
    elif elements.size:
        memory, file_space = h5s.create_simple((elements.size,)), space or target.get_space()
        call("H5Dwrite", target.id, stored.id, memory.id, file_space.id, _DEFAULT, elements.ctypes.data)


def sequences_in(elements: NDArray[np.void], dtype: np.dtype) -> NDArray[np.object_]:
    """Return copies of the sequences in elements of a variable-length `dtype`, within the block of `elements_of`."""
    items: np.dtype = h5py.check_vlen_dtype(dtype)
    is_nested, sequences = isinstance(h5py.check_vlen_dtype(items), np.dtype), np.empty(len(elements), dtype=object)
    for k, (length, address) in enumerate(elements.view([("length", np.uintp), ("address", np.uintp)]).tolist()):
        nbytes = length * (elements.itemsize if is_nested else items.itemsize)
        memory = (ctypes.c_uint8 * nbytes).from_address(address) if nbytes else b""
        inside = np.frombuffer(memory, dtype=np.uint8).copy()
        sequences[k] = sequences_in(inside.view(elements.dtype), items) if is_nested else inside.view(items)
    return sequences

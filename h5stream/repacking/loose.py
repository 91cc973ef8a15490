"""Elements of variable length, read and written as libhdf5 has them in memory, without a conversion by h5py.

h5py gives such elements as Python objects, and does not write each of them back as it was read: sequences of texts of
a fixed length lose characters, sequences of foreign byte order come back swapped. Here an element is the structure
that libhdf5 makes of it (a length and an address, or the address of a text), of which only libhdf5 looks inside.

# Guarantees: calls are made under h5py's lock. What libhdf5 allocated for the elements that were read is freed when the
# block of `elements_of` ends, however it ends.

Source: HDF5 reference manual, H5Dread, H5Dwrite, H5Aread, H5Awrite, H5Treclaim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from h5py import h5a, h5s
from numpy.typing import NDArray

from h5stream.storage.decode.libhdf5 import call

_DEFAULT = 0  # H5P_DEFAULT


@contextlib.contextmanager
def elements_of(thing: Any, space: Any = None) -> Iterator[NDArray[np.void]]:
    """Read the elements of a dataset, or of what `space` selects of it, or of an attribute; free them afterwards.

    The array has one axis of elements; what it holds may be passed to `write_elements` within the block.
    """
    stored, every = thing.get_type(), thing.get_space()
    count = (space or every).get_select_npoints()
    elements = np.zeros(count, dtype=f"V{stored.get_size()}")
    memory = h5s.create_simple((count,))
    try:
        if isinstance(thing, h5a.AttrID):
            call("H5Aread", thing.id, stored.id, elements.ctypes.data)
        elif count:
            call("H5Dread", thing.id, stored.id, memory.id, (space or every).id, _DEFAULT, elements.ctypes.data)
        yield elements
    finally:
        call("H5Dvlen_reclaim", stored.id, memory.id, _DEFAULT, elements.ctypes.data)


def write_elements(thing: Any, elements: NDArray[np.void], space: Any = None) -> None:
    """Write elements that `elements_of` has read to a dataset or an attribute of the same type."""
    stored, elements = thing.get_type(), np.ascontiguousarray(elements)
    if isinstance(thing, h5a.AttrID):
        call("H5Awrite", thing.id, stored.id, elements.ctypes.data)
    elif elements.size:
        memory, file_space = h5s.create_simple((elements.size,)), space or thing.get_space()
        call("H5Dwrite", thing.id, stored.id, memory.id, file_space.id, _DEFAULT, elements.ctypes.data)

"""Train from plain HDF5 files at the speed of the hardware, without converting them.

Importing does nothing but define names: no GPU is probed, no environment is read, no logging is set up.
"""

from __future__ import annotations

from h5stream import errors
from h5stream._version import __version__
from h5stream.dataset import H5Dataset, collate
from h5stream.errors import H5StreamError
from h5stream.loader import H5StreamLoader
from h5stream.sampler import ChunkBatchSampler
from h5stream.storage.fields import Field

__all__ = [
    "ChunkBatchSampler",
    "Field",
    "H5Dataset",
    "H5StreamError",
    "H5StreamLoader",
    "__version__",
    "collate",
    "errors",
]

"""Train from plain HDF5 files at the speed of the hardware, without converting them."""

from __future__ import annotations

from h5stream._version import __version__

__all__ = ["__version__"]

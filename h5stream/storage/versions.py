"""Which HDF5 this is and which filters it can decode."""

from __future__ import annotations

from dataclasses import dataclass

import h5py
import hdf5plugin

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
    """Return the versions, and ask libhdf5 for every filter.

    Examples
    --------
    >>> {fact.name: fact.available for fact in storage_versions().filters}["deflate"]
    True
    """
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

"""Sparse matrices: groups of three datasets that hold the values of each row, and the columns that these are in.

AnnData and h5sparse say in an attribute how such a group is laid out, 10x has the shape as a dataset. Source:
https://anndata.readthedocs.io/en/latest/fileformat-prose.html#sparse-arrays
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from h5stream.errors import UnsupportedFieldError

PARTS = ("data", "indices", "indptr")
_ENCODED = ("encoding-type", "h5sparse_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseEntry:
    """What a sparse field gives to a batch."""

    values: int  # values, columns: the numbers of the fields that its values and their columns are
    columns: int
    width: int  # columns of the matrix
    is_dense: bool  # whether the values come as rows of a dense matrix


def is_matrix(thing: Any) -> bool:
    """Tell whether an h5py object is a sparse matrix."""
    return isinstance(thing, h5py.Group) and all(isinstance(thing.get(name), h5py.Dataset) for name in PARTS)


def shape_of(group: Any, name: str, path: str) -> tuple[int, int]:
    """Return the samples and columns of a sparse matrix whose rows lie one behind the other."""
    said = next((group.attrs[key] for key in _ENCODED if key in group.attrs), "")
    said = said.decode() if isinstance(said, bytes) else str(said)
    samples = len(group["indptr"]) - 1
    stored = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if stored is None and isinstance(group.get("shape"), h5py.Dataset):
        stored = group["shape"][()]
    sizes = [] if stored is None else [int(n) for n in np.asarray(stored).reshape(-1)]
    if said.startswith("csc") or (said and sizes and sizes[0] != samples):
        nbytes = sum(group[part].id.get_storage_size() for part in PARTS)
        raise UnsupportedFieldError(
            f"{path!r}: {name!r} is a sparse matrix that lies column by column (CSC): a row is spread over all of it, "
            f"so each batch would read all {nbytes:,} bytes. Write it row by row once: adata.X = adata.X.tocsr()",
            field=name,
            file=path,
        )
    others = [n for k, n in enumerate(sizes) if k != (sizes.index(samples) if samples in sizes else -1)]
    if len(sizes) != 2 or len(others) != 1:
        raise UnsupportedFieldError(
            f"{path!r}: {name!r} looks like a sparse matrix of {samples:,} rows, and its shape is said to be "
            f"{sizes or 'nothing'}: an attribute 'shape' of it has rows and columns",
            field=name,
            file=path,
        )
    return samples, others[0]


def categories_of(thing: Any) -> tuple[str, ...] | None:
    """Return the categories that a column of AnnData has, which are kept beside their codes; None for anything else."""
    if not isinstance(thing, h5py.Group) or not all(name in thing for name in ("codes", "categories")):
        return None
    listed = thing["categories"][()]
    return tuple(one.decode() if isinstance(one, bytes) else str(one) for one in listed.tolist())

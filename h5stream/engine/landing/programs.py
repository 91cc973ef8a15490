"""What is known of a field before a row is read: which bytes of a decoded chunk it takes, where in a row they go."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.storage.elements import Leaf
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.layout import DatasetPart, Target

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

FUSE_ELEMENTS = 16
"""Shortest run of elements in a row for which unshuffling and scattering in one pass pays; below it the vector
loop is mostly overhead, and the chunk is unshuffled into cache first."""


FUSED_NBYTES = (2, 4, 8)
"""Bytes of the elements whose shuffle `kernels.scatter_planes` undoes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is worked out once for a target of a dataset part."""

    field: int  # the number of the field
    leaf: Leaf  # where its bytes lie in a stored element
    bytes_in_element: Ints  # bytes of the leaf inside a stored element, least significant first for a number
    planes: Ints  # where the plane of each of those bytes begins in a shuffled chunk
    segments: tuple[Ints, ...]  # for each piece, its stretches in elements
    # all_segments, segment_edges: the stretches of all pieces in bytes, one after the other, and where each piece's
    # begin
    all_segments: Ints
    segment_edges: Ints
    strides: Ints  # for each piece, bytes of one row of a chunk, once it holds this leaf alone
    fused: tuple[bool, ...]  # for each piece, whether unshuffle and scatter are done as one
    fill_rows: tuple[Bytes, ...]  # for each piece, one row of the fill value


def programs_of(part: DatasetPart) -> tuple[Program, ...]:
    """Return the programs of a part's targets."""
    return tuple(_program(part, target) for target in part.targets)


def _program(part: DatasetPart, target: Target) -> Program:
    leaf = target.leaf
    assert leaf is not None
    assert part.index is not None
    bytes_in_element = leaf.places
    may_fuse = leaf.units == 1 and leaf.unit_nbytes in FUSED_NBYTES
    segments = tuple(piece.segments for piece in part.pieces)
    in_bytes = tuple(np.ascontiguousarray(each * leaf.nbytes) for each in segments)
    return Program(
        field=target.field,
        leaf=leaf,
        bytes_in_element=bytes_in_element,
        planes=bytes_in_element * math.prod(part.index.chunk_shape),
        segments=segments,
        all_segments=np.concatenate(in_bytes),
        segment_edges=np.cumsum([0] + [len(each) for each in segments], dtype=np.int64),
        strides=np.array([piece.row_elements * leaf.nbytes for piece in part.pieces], dtype=np.int64),
        fused=tuple(may_fuse and int(each[:, 2].min()) >= FUSE_ELEMENTS for each in segments),
        fill_rows=tuple(np.tile(target.fill, piece.row_elements) for piece in part.pieces),
    )


def dense_leaf(program: Program, data: Bytes, shuffled: int, scratch: DecodeScratch, out: Bytes | None = None) -> Bytes:
    """Return a leaf's bytes of every element of a chunk, one after the other, in native byte order."""
    leaf = program.leaf
    if shuffled and shuffled != leaf.stored_nbytes:  # its elements are not the dataset's own
        count = data.nbytes // shuffled
        unshuffled = scratch.buffer("unshuffled", data.nbytes)
        kernels.gather_planes(data, np.arange(shuffled, dtype=np.int64) * count, count, unshuffled)
        data, shuffled = unshuffled, 0
    if not shuffled and leaf.is_whole:
        if out is None:
            return data
        out[:] = data
        return out
    count = data.nbytes // leaf.stored_nbytes
    dense = scratch.buffer("dense", leaf.nbytes * count) if out is None else out
    if shuffled:
        kernels.gather_planes(data, program.planes, count, dense)
    else:
        kernels.gather_leaf(data, leaf.stored_nbytes, program.bytes_in_element, count, dense)
    return dense

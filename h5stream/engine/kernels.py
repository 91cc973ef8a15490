"""The inner loops: byte planes and stored elements become rows at their places in the slots.

They are in C (``h5stream/compiled/*.h``), which says how they do it; ``_native.pyi`` says what they take. All of them
run without the GIL, and know rows only as (slot, place in it).
"""

from h5stream.compiled._native import (
    NONE_WRONG,
    UNCOPIED_NBYTES,
    add_integers,
    add_moments,
    add_short_integers,
    add_sparse,
    count_bytes,
    count_reads,
    fill_behind,
    fill_outside,
    gather_any,
    gather_leaf,
    gather_planes,
    gather_planes_stack,
    inflate_each,
    least_and_most,
    place_boxes,
    place_rows,
    read_dense,
    read_each,
    read_rows,
    room_of_each,
    scatter,
    scatter_planes,
    scatter_spans,
    scatter_stack,
    spread,
)

FUSED_NBYTES = (2, 4, 8)
"""Bytes of the elements whose shuffle `scatter_planes` undoes."""

__all__ = [
    "FUSED_NBYTES",
    "NONE_WRONG",
    "UNCOPIED_NBYTES",
    "add_integers",
    "add_moments",
    "add_short_integers",
    "add_sparse",
    "count_bytes",
    "count_reads",
    "fill_behind",
    "fill_outside",
    "gather_any",
    "gather_leaf",
    "gather_planes",
    "gather_planes_stack",
    "inflate_each",
    "least_and_most",
    "place_boxes",
    "place_rows",
    "read_dense",
    "read_each",
    "read_rows",
    "room_of_each",
    "scatter",
    "scatter_planes",
    "scatter_spans",
    "scatter_stack",
    "spread",
]

"""Floats with a torch type and no NumPy type: bfloat16, and floats of 8 bits.

In a file they are recognised by their bit fields. In memory they are unsigned integers with the same bits, whose dtype
has the name of the torch type in its metadata; `widened` returns their values as float32.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray


class _Bits(NamedTuple):
    """The bit layout of a float; the sign is the highest bit."""

    nbytes: int
    exponent: int  # exponent, mantissa: bits of each
    mantissa: int
    bias: int
    # "ieee": the largest exponent stands for infinity and NaN; "fn": all bits set are NaN, and there is no infinity;
    # "fnuz": no infinity either, and the bits of negative zero are NaN
    specials: str = "ieee"


STORED = {
    "bfloat16": _Bits(2, 8, 7, 127),
    "float8_e4m3fn": _Bits(1, 4, 3, 7, "fn"),
    "float8_e5m2": _Bits(1, 5, 2, 15),
}
"""By torch's name, the floats that are recognised by the bit fields of a stored type."""

FLOATS = STORED | {"float8_e4m3fnuz": _Bits(1, 4, 3, 8, "fnuz"), "float8_e5m2fnuz": _Bits(1, 5, 2, 16, "fnuz")}
"""All floats, including those that a user may assign to opaque bytes."""

NO_SMALL_TYPE = "torch has no type for floats of"
"""The beginning of the error message for such types."""

_NAME = "torch"
"""The key of the name in a dtype's metadata."""


def bits_dtype(name: str, nbytes: int, order: str = "=") -> np.dtype:
    """Return the dtype for the bits of a torch type."""
    return np.dtype(f"{order}u{nbytes}", metadata={_NAME: name})


def name_of(dtype: np.dtype) -> str:
    """Return the name of the torch type whose bits a dtype holds; empty for ordinary dtypes."""
    return "" if dtype.metadata is None else str(dtype.metadata.get(_NAME, ""))


def shown(dtype: np.dtype) -> str:
    """Return the text of a dtype, with the torch name instead of the integer type of its bits."""
    if dtype.subdtype is not None and name_of(dtype.base):
        return f"({name_of(dtype.base)!r}, {dtype.shape})"
    return name_of(dtype) or str(dtype)


def dtype_of_float(stored: h5py.h5t.TypeID) -> np.dtype | None:
    """Return the dtype for the bits of a stored float; None if NumPy has the type, or libhdf5 converts it.

    Raises `TypeError` for a float of 8 bits or less that torch lacks: most have no infinity, and libhdf5 reads their
    largest numbers as infinity.
    """
    if stored.get_class() != h5py.h5t.FLOAT or (stored.get_size() > 2 and stored.get_precision() > 8):
        return None
    sign, exponent_at, exponent, mantissa_at, mantissa = stored.get_fields()
    bits = stored.get_size(), exponent, mantissa, stored.get_ebias()
    order = ">" if stored.get_size() > 1 and stored.get_order() == h5py.h5t.ORDER_BE else "<"
    is_packed = (mantissa_at, exponent_at, sign) == (0, mantissa, exponent + mantissa)
    is_packed = is_packed and stored.get_offset() == 0 and stored.get_precision() == 8 * stored.get_size()
    if is_packed and stored.get_norm() == h5py.h5t.NORM_IMPLIED:
        for name, one in STORED.items():
            if one[:4] == bits:
                return bits_dtype(name, one.nbytes, order if one.nbytes > 1 else "=")
    if stored.get_precision() <= 8:
        what = f"{exponent} of exponent with a bias of {stored.get_ebias()}, {mantissa} of mantissa"
        raise TypeError(f"{NO_SMALL_TYPE} {stored.get_precision()} bits ({what})")
    return None


def stored_float(dtype: np.dtype) -> h5py.h5t.TypeID:
    """Return the HDF5 type of the floats whose bits a dtype holds."""
    one = FLOATS[name_of(dtype)]
    stored = (h5py.h5t.IEEE_F32LE if dtype.newbyteorder("=").newbyteorder("<") == dtype else h5py.h5t.IEEE_F32BE).copy()
    stored.set_fields(8 * one.nbytes - 1, one.mantissa, one.exponent, 0, one.mantissa)
    stored.set_ebias(one.bias)
    stored.set_precision(8 * one.nbytes)
    stored.set_size(one.nbytes)
    return stored


@functools.cache
def _table(name: str) -> NDArray[np.float32]:
    """Return the value of each bit pattern."""
    one = FLOATS[name]
    bits = np.arange(1 << 8 * one.nbytes)
    mantissa, exponent = bits & ((1 << one.mantissa) - 1), bits >> one.mantissa & ((1 << one.exponent) - 1)
    whole = (mantissa + ((exponent > 0) << one.mantissa)).astype(np.float64)
    numbers = np.ldexp(whole, np.maximum(exponent, 1) - one.bias - one.mantissa)
    if one.specials == "ieee":
        numbers[exponent == exponent.max()] = np.nan
        numbers[(exponent == exponent.max()) & (mantissa == 0)] = np.inf
    half = len(bits) // 2
    numbers[half:] *= -1
    if one.specials == "fn":
        numbers[[half - 1, -1]] = np.nan
    elif one.specials == "fnuz":
        numbers[half] = np.nan
    table: NDArray[np.float32] = numbers.astype(np.float32)
    return table


def widened(values: Any) -> Any:
    """Convert the bits of small floats to float32; return all other values unchanged."""
    if not isinstance(values, np.ndarray):
        return values
    if name := name_of(values.dtype):
        return _table(name)[values]
    if values.dtype.names is None or widened_dtype(values.dtype) is values.dtype:
        return values
    out = np.empty(values.shape, widened_dtype(values.dtype))
    for member in values.dtype.names:
        out[member] = widened(values[member])
    return out


def widened_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of `widened` values of a dtype."""
    if dtype.names is not None:
        inner = [(member, widened_dtype(dtype[member])) for member in dtype.names]
        return dtype if all(one is dtype[member] for member, one in inner) else np.dtype(inner)
    if not name_of(dtype.base):
        return dtype
    return np.dtype((np.float32, dtype.shape)) if dtype.subdtype else np.dtype(np.float32)


@functools.cache
def _edges(name: str) -> NDArray[np.float64]:
    """Return the midpoints of consecutive positive values, and last the bound of overflow."""
    positive = _table(name)[: 1 << 8 * FLOATS[name].nbytes - 1].astype(np.float64)
    finite = positive[np.isfinite(positive)]
    ends = np.append(finite, 2 * finite[-1] - finite[-2])
    edges: NDArray[np.float64] = (ends[:-1] + ends[1:]) / 2
    return edges


def held_as(numbers: ArrayLike, dtype: np.dtype) -> np.ndarray:
    """Convert numbers to a dtype; to the bits of the nearest values if it is that of a small float."""
    array = np.asarray(numbers)
    if not (name := name_of(dtype)):
        return array.astype(dtype)
    floats, edges = array.astype(np.float64), _edges(name)
    half, has_zeros = 1 << 8 * dtype.itemsize - 1, FLOATS[name].specials != "fnuz"  # of both signs
    size, is_nan = np.abs(floats), np.isnan(floats)
    bits = np.searchsorted(edges, size)
    bits += (bits % 2 == 1) & (size == edges[np.minimum(bits, len(edges) - 1)])  # halfway, the even one is taken
    bits = np.where(is_nan, half - has_zeros, bits)
    is_negative = np.signbit(floats) & ~is_nan & (has_zeros | ((bits > 0) & (bits < half)))
    encoded: np.ndarray = np.asarray(bits + half * is_negative).astype(dtype)
    return encoded

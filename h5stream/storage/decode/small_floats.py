"""Floats that torch has types for and NumPy has none: bfloat16, and those of 8 bits.

A file's are recognised by their bit fields. Here they are unsigned numbers of their bits, whose dtype has the name of
the torch type in its metadata; `widened` gives the numbers that they stand for.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray


class _Bits(NamedTuple):
    """The bits of a float, its sign in front."""

    nbytes: int
    exponent: int  # bits of the exponent, and of the mantissa behind it
    mantissa: int
    bias: int
    # "ieee": the largest exponent stands for infinity and NaN; "fn": all bits set are NaN, and there is no infinity;
    # "fnuz": so it is, and NaN is what would be the negative zero
    specials: str = "ieee"


STORED = {
    "bfloat16": _Bits(2, 8, 7, 127),
    "float8_e4m3fn": _Bits(1, 4, 3, 7, "fn"),
    "float8_e5m2": _Bits(1, 5, 2, 15),
}
"""By the name that torch has for it, each float that the bit fields of a stored type tell."""

FLOATS = STORED | {"float8_e4m3fnuz": _Bits(1, 4, 3, 8, "fnuz"), "float8_e5m2fnuz": _Bits(1, 5, 2, 16, "fnuz")}
"""And those that a user may say that opaque bytes are."""

NO_SMALL_TYPE = "torch has no type for floats of"
"""How an error begins that says so."""

_NAME = "torch"
"""What the metadata of a dtype of bits has the name under."""


def bits_dtype(name: str, nbytes: int, order: str = "=") -> np.dtype[Any]:
    """Return the dtype of the bits of a torch type."""
    return np.dtype(f"{order}u{nbytes}", metadata={_NAME: name})


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of the torch type whose bits a dtype holds; empty if it holds numbers of its own."""
    return "" if dtype.metadata is None else str(dtype.metadata.get(_NAME, ""))


def shown(dtype: np.dtype[Any]) -> str:
    """Return the text of a dtype, and not of the bits, if it has those of floats."""
    if dtype.subdtype is not None and name_of(dtype.base):
        return f"({name_of(dtype.base)!r}, {dtype.shape})"
    return name_of(dtype) or str(dtype)


def dtype_of_float(stored: Any) -> np.dtype[Any] | None:
    """Return the dtype of the bits of a stored float; None for types that NumPy has, or that libhdf5 converts.

    Raises `TypeError` for a float of 8 bits or less that torch has no type for: most such have no infinity, and libhdf5
    takes their largest numbers for it.
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


def stored_float(dtype: np.dtype[Any]) -> Any:
    """Return the type that a file has for floats whose bits a dtype holds."""
    one = FLOATS[name_of(dtype)]
    stored = (h5py.h5t.IEEE_F32LE if dtype.newbyteorder("=").newbyteorder("<") == dtype else h5py.h5t.IEEE_F32BE).copy()
    stored.set_fields(8 * one.nbytes - 1, one.mantissa, one.exponent, 0, one.mantissa)
    stored.set_ebias(one.bias)
    stored.set_precision(8 * one.nbytes)
    stored.set_size(one.nbytes)
    return stored


@functools.cache
def _table(name: str) -> NDArray[np.float32]:
    """Return the number that each pattern of bits stands for."""
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
    """Return the numbers that bits stand for, as float32; all other values as they are."""
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


def widened_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the numbers that the bits of a dtype stand for, float32; another dtype itself."""
    if dtype.names is not None:
        inner = [(member, widened_dtype(dtype[member])) for member in dtype.names]
        return dtype if all(one is dtype[member] for member, one in inner) else np.dtype(inner)
    if not name_of(dtype.base):
        return dtype
    return np.dtype((np.float32, dtype.shape)) if dtype.subdtype else np.dtype(np.float32)


@functools.cache
def _edges(name: str) -> NDArray[np.float64]:
    """Return the numbers halfway between positive ones that follow one another, and that from which on none is."""
    positive = _table(name)[: 1 << 8 * FLOATS[name].nbytes - 1].astype(np.float64)
    finite = positive[np.isfinite(positive)]
    ends = np.append(finite, 2 * finite[-1] - finite[-2])
    edges: NDArray[np.float64] = (ends[:-1] + ends[1:]) / 2
    return edges


def held_as(numbers: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers as a dtype has them: if it has the bits of floats, those of the nearest."""
    given: NDArray[Any] = np.asarray(numbers)
    if not (name := name_of(dtype)):
        return given.astype(dtype)
    numbers, edges = given.astype(np.float64), _edges(name)
    half, has_zeros = 1 << 8 * dtype.itemsize - 1, FLOATS[name].specials != "fnuz"  # of both signs
    size, is_nan = np.abs(numbers), np.isnan(numbers)
    bits = np.searchsorted(edges, size)
    bits += (bits % 2 == 1) & (size == edges[np.minimum(bits, len(edges) - 1)])  # halfway, the even one is taken
    bits = np.where(is_nan, half - has_zeros, bits)
    is_negative = np.signbit(numbers) & ~is_nan & (has_zeros | ((bits > 0) & (bits < half)))
    held: NDArray[Any] = np.asarray(bits + half * is_negative).astype(dtype)
    return held

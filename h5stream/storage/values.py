"""Values as h5py gives them: what a type holds, and whether two values are the same, however deep."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from h5py import h5t


def is_fixed(stored: Any) -> bool:
    """Tell whether the elements of a type lie in place, all of them: no variable length, no references."""
    kind = stored.get_class()
    if kind in (h5t.VLEN, h5t.REFERENCE):
        return False
    if kind == h5t.STRING:
        return not stored.is_variable_str()
    if kind == h5t.COMPOUND:
        return all(is_fixed(stored.get_member_type(i)) for i in range(stored.get_nmembers()))
    return is_fixed(stored.get_super()) if kind == h5t.ARRAY else True


def holds_reference(stored: Any) -> bool:
    """Tell whether elements of a type are, or hold, references."""
    kind = stored.get_class()
    if kind == h5t.COMPOUND:
        return any(holds_reference(stored.get_member_type(i)) for i in range(stored.get_nmembers()))
    if kind in (h5t.ARRAY, h5t.VLEN):
        return holds_reference(stored.get_super())
    return bool(kind == h5t.REFERENCE)


def same(a: Any, b: Any) -> bool:
    """Compare values of variable length, however deep."""
    if isinstance(a, h5py.Empty):
        return bool(a == b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.void) and a.dtype.names is not None:
        return all(same(a[name], b[name]) for name in a.dtype.names)
    if isinstance(a, np.ndarray):
        if a.shape != b.shape:
            return False
        if a.dtype.kind == "O" or a.dtype.names is not None:
            return all(same(x, y) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True))
        return bool(a.tobytes() == b.tobytes())
    if isinstance(a, np.generic):
        return bool(a.tobytes() == b.tobytes())
    return bool(a == b)


def in_stored_byte_order(values: Any, dtype: Any = None) -> Any:
    """Return sequences that h5py has read without swapping their bytes as numbers of the byte order that they have.

    h5py 3.16 gives sequences of variable length of foreign byte order as if they were native. `dtype` is that of the
    dataset or attribute, where `values` may be a single sequence.
    """
    base = h5py.check_vlen_dtype(values.dtype if dtype is None else dtype)
    if not isinstance(base, np.dtype) or base.isnative or not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind != "O":
        return values.view(base)
    out = values.copy()
    for where in np.ndindex(values.shape):
        out[where] = values[where].view(base)
    return out


def as_samples_have_it(value: Any) -> Any:
    """Return what a file, a group or an object has once: numbers as an array, all else as Python's objects in lists."""
    if isinstance(value, (str, bytes)):  # NumPy would take zeros from its end
        return bytes(value) if isinstance(value, bytes) else str(value)
    values = np.asarray(value)
    if values.dtype.kind in "biufcmM":
        return values.astype(values.dtype.newbyteorder("="))
    return values.astype(object).tolist()


def kind_of(value: Any) -> str:
    """Return what a value is, of the kinds that one field of objects does not mix."""
    return "numbers" if isinstance(value, np.ndarray) else "empty" if isinstance(value, h5py.Empty) else "no numbers"

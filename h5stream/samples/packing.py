"""Packed numbers: stored values that mark missing data become NaN, and scaled integers become floats. Pure.

Attributes are read as xarray and netCDF4-python read them; CF conventions 1.11, sections 2.5.1 and 8.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from h5stream.errors import OptionError
from h5stream.samples.segments import as_array

Number = int | float
Missing = Literal["netcdf", "fill"] | Number | Iterable[Literal["netcdf", "fill"] | Number]
"""Values of ``missing=``: words for what a dataset's attributes define, and numbers."""

NETCDF: Literal["netcdf"] = "netcdf"
FILL: Literal["fill"] = "fill"

MEANINGS = ("scale_factor", "add_offset", "_FillValue", "missing_value", "units", "_Unsigned")
"""Attributes that define what a dataset's numbers mean; datasets that are read as one must agree on them."""

PACKED = ("scale_factor", "add_offset", "_FillValue", "missing_value", "valid_min", "valid_max", "valid_range")
"""Attributes that `Field` follows with ``missing="netcdf"``, beside `_Unsigned`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the stored numbers of one dataset become floats: some are missing, the others are scaled."""

    values: tuple[Number, ...] = ()  # stored numbers that are missing
    least: Number | None = None  # least, most: stored numbers below or above are missing, too
    most: Number | None = None
    scale: float | None = None  # scale, offset: the other numbers are multiplied by `scale`, then `offset` is added
    offset: float | None = None
    scaled_least: float | None = None  # scaled_least, scaled_most: as least and most, for scaled numbers
    scaled_most: float | None = None
    stored: str = ""  # the NumPy type of the stored bytes, if it differs from the dataset's
    dtype: str = "float32"  # the NumPy type of the result


def missing_of(name: str, value: object) -> tuple[str | Number, ...]:
    """Validate ``missing=`` of a field; return its words and numbers without duplicates."""
    words = value if isinstance(value, (str, list, tuple)) else as_array(value).tolist()  # of arrays, tensors, numbers
    several = list(words) if isinstance(words, (list, tuple)) else [words]
    several = [one.item() if isinstance(one, np.generic) else one for one in several]
    wrong = [
        one
        for one in several
        if not (one in (NETCDF, FILL) if isinstance(one, str) else isinstance(one, (int, float)))
        or isinstance(one, bool)
    ]
    if wrong:
        allowed = "'netcdf' (what the dataset's attributes say), 'fill' (its fill value), a number or several"
        raise OptionError(f"Field({name!r}): missing= takes {allowed}, not {wrong[0]!r}")
    return tuple(dict.fromkeys(several))


def packing(
    missing: tuple[str | Number, ...],
    dtype: np.dtype,
    attributes: Mapping[str, object],
    fill: object = None,
) -> Packing:
    """Return how numbers of a type become floats, from ``missing=``, the attributes and the fill value."""
    stored = _stored_type(dtype, attributes) if NETCDF in missing else dtype
    words: list[object] = [fill] if FILL in missing and fill is not None else []
    if NETCDF in missing:
        words += [attributes[name] for name in ("_FillValue", "missing_value") if name in attributes]
    values = [one for word in words for one in _numbers(word, dtype, stored)]
    values += [number for one in missing if not isinstance(one, str) and (number := as_stored(one, stored)) is not None]
    masked = Packing(values=tuple(dict.fromkeys(values)), stored="" if stored == dtype else stored.str)
    if NETCDF not in missing:
        return masked
    scale, offset = (_one(attributes.get(name)) for name in ("scale_factor", "add_offset"))
    is_masked = "_FillValue" in attributes or "missing_value" in attributes
    limits = _limits(dtype, stored, attributes, is_scaled=scale is not None or offset is not None)
    return replace(
        masked,
        least=limits.get("least"),
        most=limits.get("most"),
        scale=None if scale is None else float(scale),
        offset=None if offset is None else float(offset),
        scaled_least=limits.get("scaled_least"),
        scaled_most=limits.get("scaled_most"),
        dtype=_float_type(stored, scale, offset, is_masked=is_masked).name,
    )


def sources_of(packings: Iterable[Packing]) -> str:
    """Return the names of what makes stored numbers floats, such as ``"scale_factor and fill value"``."""
    every = [*packings]
    are_set = {
        "scale_factor": any(one.scale is not None for one in every),
        "add_offset": any(one.offset is not None for one in every),
        "fill value": any(one.values for one in every),
    }
    *others, last = [name for name, is_set in are_set.items() if is_set] or ["valid range"]
    return f"{', '.join(others)} and {last}" if others else last


def all_missing(like: Packing) -> Packing:
    """Return a packing that makes every stored value missing, with the types of another one."""
    return Packing(scale=0.0, scaled_least=math.inf, stored=like.stored, dtype=like.dtype)


def as_stored(number: Number, dtype: np.dtype) -> Number | None:
    """Return a number as a type stores it; None if the type cannot."""
    if dtype.kind in "iu":
        if isinstance(number, float) and not number.is_integer():
            return None
        limits, whole = np.iinfo(dtype), int(number)
        return whole if limits.min <= whole <= limits.max else None
    with np.errstate(all="ignore"):
        number_stored = float(np.array(number).astype(dtype))
    return None if math.isnan(number_stored) else number_stored


def joint_type(packings: Iterable[Packing]) -> str:
    """Return the widest of the types that several datasets decode to."""
    return np.result_type(*(one.dtype for one in packings)).name


def _stored_type(dtype: np.dtype, attributes: Mapping[str, object]) -> np.dtype:
    """Return the type of the stored bytes: the attribute `_Unsigned` changes the sign of integers."""
    unsigned = _text(attributes.get("_Unsigned"))
    if dtype.kind not in "iu" or unsigned not in ("true", "false"):
        return dtype
    return np.dtype(f"{'u' if unsigned == 'true' else 'i'}{dtype.itemsize}")


def _text(value: object) -> str:
    flat = np.asarray(value).reshape(-1) if value is not None else np.zeros(0)
    one = flat[0] if flat.size == 1 else ""
    return (one.decode("latin-1") if isinstance(one, bytes) else str(one)).lower()


def _numbers(value: object, dtype: np.dtype, stored: np.dtype) -> list[Number]:
    """Return the numbers of an attribute as they are stored, without those that no element can have."""
    flat = np.asarray(value).reshape(-1)
    if flat.dtype.kind not in "iuf":
        return []
    stored_numbers = [as_stored(one, stored) for one in flat.tolist()]
    if stored != dtype:  # the number is written in the dataset's own type, whose bytes are meant as the other one
        own = ((one, as_stored(one, dtype)) for one in flat.tolist())
        stored_numbers += [np.array(same).astype(dtype).view(stored).item() for _, same in own if same is not None]
    return [one for one in stored_numbers if one is not None]


def _one(value: object) -> np.integer | np.floating | None:
    """Return the single number of an attribute, with its type; None for anything else."""
    flat = np.asarray(value).reshape(-1) if value is not None else np.zeros(0)
    return flat[0] if flat.size == 1 and flat.dtype.kind in "iuf" else None


def _limits(
    dtype: np.dtype, stored: np.dtype, attributes: Mapping[str, object], *, is_scaled: bool
) -> dict[str, Number]:
    """Return the bounds of valid numbers: of stored numbers, or of scaled ones if a bound is a fraction."""
    both = np.asarray(attributes.get("valid_range", np.zeros(0))).reshape(-1)
    bounds = [_one(attributes.get(name)) for name in ("valid_min", "valid_max")]
    if both.size == 2 and both.dtype.kind in "iuf":
        bounds = [own if own is not None else one for own, one in zip(bounds, both, strict=True)]
    limits: dict[str, Number] = {}
    for name, bound, to_whole in zip(("least", "most"), bounds, (math.ceil, math.floor), strict=True):
        if bound is None or not np.isfinite(bound):
            continue
        number = bound.item()
        if stored.kind == "f":
            limits[name] = float(np.array(number).astype(stored))
        elif bound.dtype.kind == "f" and is_scaled:
            limits[f"scaled_{name}"] = float(number)
        else:
            if stored != dtype and stored.kind == "u" and number < 0:
                number = int(number) + (1 << 8 * stored.itemsize)
            limits[name] = min(max(to_whole(number), int(np.iinfo(stored).min)), int(np.iinfo(stored).max))
    return limits


def _float_type(
    dtype: np.dtype,
    scale: np.integer | np.floating | None,
    offset: np.integer | np.floating | None,
    *,
    is_masked: bool,
) -> np.dtype:
    """Return the type that xarray decodes to (`_choose_float_dtype`, `maybe_promote`)."""
    if scale is None and offset is None:
        if dtype.kind == "f":
            return dtype if is_masked and dtype.itemsize >= 4 else np.dtype(f"f{max(4, dtype.itemsize)}")
        return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
    kinds = {np.dtype(type(one)) for one in (scale, offset) if one is not None}
    floats = (np.dtype(np.float32), np.dtype(np.float64))
    if len(kinds) == 1 and scale is not None and offset is not None and kinds <= set(floats):
        return floats[1] if dtype.itemsize == 4 and dtype.kind in "iu" else kinds.pop()
    alone = kinds.pop()
    return alone if offset is None and alone in floats else floats[1]

"""Normalisation: what is done to the numbers of a field before a batch has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError

_TAKEN = {"mean", "std", "factor", "nan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """Numbers become ``(x * factor - mean) / std``, and what is NaN then becomes `nan`."""

    factor: float = 1.0  # what they are multiplied by first
    mean: Any = 0.0  # mean, std: one for all, or arrays that fit a sample
    std: Any = 1.0
    nan: float | None = None  # what stands for NaN; None leaves it

    @property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and deviation."""
        return np.array(self.mean), np.array(self.std)

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Say why it does not fit the numbers of one sample; empty where it does."""
        for name, array in zip(("mean", "std"), self.arrays, strict=True):
            try:
                fits = np.broadcast_shapes(array.shape, shape) == shape
            except ValueError:
                fits = False
            if not fits:
                first = shape[:1] == array.shape and len(shape) > 1
                hint = f"; numpy.reshape({name}, {(*shape[:1], *[1] * (len(shape) - 1))}) does" if first else ""
                said = f"{name!r} of normalise=, of the shape {array.shape}, does not fit a sample of {shape}"
                return f"{said} as NumPy broadcasts{hint}"
        return ""


def normalisation(name: str, given: Any) -> Normalisation | None:
    """Read what a user gave; None where nothing is to be done."""
    if given is None or given == {}:
        return None
    wrong = sorted(given.keys() - _TAKEN) if isinstance(given, Mapping) else [given]
    if wrong:
        raise OptionError(
            f"Field({name!r}): normalise= takes {{'mean': ..., 'std': ...}}, also 'factor' and 'nan', not {wrong[0]!r}"
        )
    found = {key: _numbers(name, key, given[key]) for key in ("mean", "std") if given.get(key) is not None}
    if "std" in found and not (np.array(found["std"]) > 0).all():
        raise OptionError(
            f"Field({name!r}): 'std' of normalise= divides and must be above 0 everywhere, and has "
            f"{np.min(found['std'])}; FieldStatistics.normalise() gives 1 where nothing varies"
        )
    single = {key: _number(name, key, given[key]) for key in ("factor", "nan") if given.get(key) is not None}
    if single.get("factor", 1.0) == 0 or not math.isfinite(single.get("factor", 1.0)):
        raise OptionError(
            f"Field({name!r}): 'factor' of normalise= is a finite number other than 0, not {given['factor']!r}"
        )
    return Normalisation(**found, **single)


def _number(name: str, key: str, given: Any) -> float:
    try:
        return float("text" if isinstance(given, str | bytes) else given)
    except (TypeError, ValueError):
        raise OptionError(f"Field({name!r}): {key!r} of normalise= takes a number, not {given!r}") from None


def _numbers(name: str, key: str, given: Any) -> Any:
    try:
        found = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
        if not found.size or found.dtype.kind in "SUMm":
            raise TypeError
        found = found.astype(np.float64)
    except (TypeError, ValueError):
        raise OptionError(
            f"Field({name!r}): {key!r} of normalise= takes a number or an array of them, not {given!r}"
        ) from None
    if not np.isfinite(found).all():
        raise OptionError(f"Field({name!r}): {key!r} of normalise= is to be finite everywhere, and is not: {given!r}")
    return _tuples(found.tolist())


def _tuples(found: Any) -> Any:
    """Give nested lists as tuples, which can be compared."""
    return tuple(map(_tuples, found)) if isinstance(found, list) else found

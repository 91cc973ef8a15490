"""Changes to numbers, on the host or on a device: unpacked to floats, missing ones NaN, normalized and cast."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.packing import Packing, joint_type
from h5stream.samples.ragged import Normalization
from h5stream.storage.decode.small_floats import FLOATS, name_of, widened_dtype
from h5stream.storage.layout.layout import FieldLayout

_SMALL = {str(one).removeprefix("torch."): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
"""Torch's types by their names, as `h5stream.storage.decode.small_floats` has those that NumPy has not."""


def tensor_of(values: NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor over an array; if it holds the bits of small floats, of these."""
    if values.dtype.metadata is None:
        return torch.from_numpy(values)
    tensor, name = torch.from_numpy(values), name_of(values.dtype)
    return tensor.view(_SMALL[name]) if name else tensor


_WHOLE = torch.uint8, torch.int8, torch.int16, torch.uint16, torch.bool

NARROW = (torch.float32, torch.float16, *(_SMALL[name] for name in FLOATS), *_WHOLE)
"""Types whose every number a float32 holds; others are worked on as float64, and rounded at the end."""


_Constant = torch.Tensor | float


class _Tables(NamedTuple):
    """The constants of each packing as tensors; None for steps that no packing has."""

    values: tuple[tuple[torch.Tensor, torch.Tensor], ...]  # stored numbers that are missing, and whether there is one
    least: torch.Tensor | None
    most: torch.Tensor | None
    scale: torch.Tensor | None
    offset: torch.Tensor | None
    scaled_least: torch.Tensor | None
    scaled_most: torch.Tensor | None


class Unpacking:
    """Makes floats of the stored numbers of a field, by one packing or, sample for sample, by one of several.

    Unsigned numbers are compared as signed ones from which half of their range was taken: torch orders only those.

    # Guarantees: any thread may call; tables are made once for each device, and stay.
    """

    def __init__(self, packings: tuple[Packing, ...], dtype: np.dtype) -> None:
        self._packings, self._held = packings, dtype
        self._stored = np.dtype(packings[0].stored or widened_dtype(dtype))
        self._is_small = bool(name_of(dtype))
        self._torch_stored = torch.from_numpy(np.empty(0, self._stored)).dtype
        self.dtype: torch.dtype = torch.from_numpy(np.empty(0, joint_type(packings))).dtype
        signed = np.dtype(f"i{self._stored.itemsize}") if self._stored.kind == "u" else self._stored
        self._signed = torch.from_numpy(np.empty(0, signed)).dtype
        self._half = 1 << 8 * self._stored.itemsize - 1 if self._stored.kind == "u" else 0
        self._tables: dict[torch.device, _Tables] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Unpacking, (self._packings, self._held)

    def into(self, out: torch.Tensor, raw: torch.Tensor, which: torch.Tensor | None = None) -> None:
        """Write floats of stored numbers, which may be the same memory; `which` is the packing of each first index."""
        tables = self._on(raw.device)

        def of(table: torch.Tensor) -> torch.Tensor:
            return table[0] if which is None else table[which].view(-1, *[1] * (raw.dim() - 1))

        if raw.dtype != self._torch_stored:
            raw = raw.to(self._torch_stored) if self._is_small else raw.view(self._torch_stored)
        missing = list[torch.Tensor]()
        if tables.values or tables.least is not None or tables.most is not None:
            keys = raw.view(self._signed) ^ -self._half if self._half else raw
            for value, is_value in tables.values:
                missing.append((keys == of(value)) & of(is_value))
            missing += [] if tables.least is None else [keys < of(tables.least)]
            missing += [] if tables.most is None else [keys > of(tables.most)]
        if out.data_ptr() != raw.data_ptr() or out.dtype != raw.dtype:
            out.copy_(raw)
        if tables.scale is not None:
            out.mul_(of(tables.scale))
        if tables.offset is not None:
            out.add_(of(tables.offset))
        missing += [] if tables.scaled_least is None else [out < of(tables.scaled_least)]
        missing += [] if tables.scaled_most is None else [out > of(tables.scaled_most)]
        for each in missing:
            out.masked_fill_(each, float("nan"))

    def _on(self, device: torch.device) -> _Tables:
        """Return the tables on a device."""
        if device not in self._tables:
            count = max(len(one.values) for one in self._packings)
            values = []
            for k in range(count):
                numbers = [one.values[k] - self._half if k < len(one.values) else 0 for one in self._packings]
                has = torch.tensor([k < len(one.values) for one in self._packings], device=device)
                values.append((torch.tensor(numbers, dtype=self._signed, device=device), has))
            whole = self._stored.kind != "f"
            lowest = -(1 << 8 * self._stored.itemsize - 1) if whole else -float("inf")
            highest = -lowest - 1 if whole else float("inf")
            limits = [
                self._limit([one.least for one in self._packings], lowest, device),
                self._limit([one.most for one in self._packings], highest, device),
            ]
            scaled = [
                self._floats([one.scale for one in self._packings], 1.0, device),
                self._floats([one.offset for one in self._packings], 0.0, device),
                self._floats([one.scaled_least for one in self._packings], -float("inf"), device),
                self._floats([one.scaled_most for one in self._packings], float("inf"), device),
            ]
            self._tables[device] = _Tables(tuple(values), *limits, *scaled)
        return self._tables[device]

    def _limit(
        self, bounds: list[int | float | None], default: int | float, device: torch.device
    ) -> torch.Tensor | None:
        if all(one is None for one in bounds):
            return None
        numbers = [default if one is None else one - self._half for one in bounds]
        return torch.tensor(numbers, dtype=self._signed, device=device)

    def _floats(self, numbers: list[float | None], default: float, device: torch.device) -> torch.Tensor | None:
        if all(one is None for one in numbers):
            return None
        every = [default if one is None else one for one in numbers]
        return torch.tensor(every, dtype=self.dtype, device=device)


class Change:
    """Makes floats of stored numbers, normalizes them and casts them, as far as that is asked for.

    # Guarantees: any thread may call; constants are made once for each device, and stay.
    """

    def __init__(
        self, dtype: torch.dtype, normalization: Normalization | None = None, unpacking: Unpacking | None = None
    ) -> None:
        self.dtype, self.normalization, self.unpacking = dtype, normalization, unpacking
        self._constants: dict[tuple[torch.device, torch.dtype], tuple[_Constant, _Constant]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Change, (self.dtype, self.normalization, self.unpacking)

    @property
    def casts_alone(self) -> bool:
        """Whether it changes the type of the numbers alone."""
        return self.normalization is None and self.unpacking is None

    def on_host(self, raw: torch.Tensor, which: torch.Tensor | None = None) -> torch.Tensor:
        """Return the numbers changed; in place where their type stays, for a batch owns its memory."""
        if self.casts_alone:
            return raw.to(self.dtype)
        out = raw if raw.dtype == self.dtype else torch.empty_like(raw, dtype=self.dtype)
        self.into(out, raw, which)
        return out

    def into(self, out: torch.Tensor, raw: torch.Tensor, which: torch.Tensor | None = None) -> None:
        """Write the changed numbers; kernels are launched on the current stream.

        `which` says for each index of the first axis by which packing it is stored, where there are several.
        """
        if self.unpacking is not None:
            unpacked = self.unpacking.dtype
            work = out if out.dtype == unpacked else torch.empty_like(out, dtype=unpacked)
            self.unpacking.into(work, raw, which)
            raw = work
        normalization = self.normalization
        if normalization is None:
            if raw is not out:
                out.copy_(raw)
            return
        wide = raw.dtype not in NARROW or self.dtype == torch.float64
        dtype = torch.float64 if wide else torch.float32
        work = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
        if work.data_ptr() != raw.data_ptr():
            work.copy_(raw)
        mean, std = self._constants_on(work, normalization)
        if normalization.factor != 1:
            work.mul_(normalization.factor)
        if normalization.mean != 0:
            work.sub_(mean)
        if normalization.std != 1:
            work.div_(std)
        if normalization.nan is not None:
            work.nan_to_num_(nan=normalization.nan, posinf=float("inf"), neginf=-float("inf"))
        if work is not out:
            out.copy_(work)

    def _constants_on(self, work: torch.Tensor, normalization: Normalization) -> tuple[_Constant, _Constant]:
        """Return mean and deviation on the device of the numbers; single ones as Python's numbers."""
        key = work.device, work.dtype
        if key not in self._constants:
            mean, std = (a.item() if a.ndim == 0 else torch.from_numpy(a).to(work) for a in normalization.arrays)
            self._constants[key] = mean, std
        return self._constants[key]


def unpacking_of(field: FieldLayout) -> Unpacking | None:
    """Return what makes floats of a field's stored numbers; None for a field whose numbers come as they are stored."""
    return Unpacking(field.packings, field.dtype) if field.packings else None


def change_of(field: FieldLayout, dtype: torch.dtype | None) -> Change | None:
    """Return the change to a field's numbers, or None if they stay the same."""
    unpacking = unpacking_of(field)
    if field.normalize is None and unpacking is None:
        return None if field.cast is None or field.cast == dtype else Change(field.cast)
    wanted = field.cast
    if wanted is None:
        wanted = torch.float32 if field.normalize is not None or unpacking is None else unpacking.dtype
    if not wanted.is_floating_point:
        option = "missing=" if field.normalize is None else "normalize="
        raise OptionError(
            f"field {field.name!r}: {option} gives floating point numbers, so dtype= takes such a type, not {wanted}"
        )
    return Change(wanted, field.normalize, unpacking)

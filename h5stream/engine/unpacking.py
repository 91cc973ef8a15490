"""Unpack stored numbers to floats, missing ones to NaN, on the host or on a device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from h5stream.samples.packing import Packing, joint_type
from h5stream.storage.decode.small_floats import name_of, widened_dtype


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

    def __init__(self, packings: tuple[Packing, ...], dtype: np.dtype[Any]) -> None:
        self._packings, self._held = packings, dtype
        self._stored = np.dtype(packings[0].stored or widened_dtype(dtype))
        self._is_small = bool(name_of(dtype))
        self._torch_stored = torch.from_numpy(np.empty(0, self._stored)).dtype
        self.dtype: torch.dtype = torch.from_numpy(np.empty(0, joint_type(packings))).dtype
        signed = np.dtype(f"i{self._stored.itemsize}") if self._stored.kind == "u" else self._stored
        self._signed = torch.from_numpy(np.empty(0, signed)).dtype
        self._half = 1 << 8 * self._stored.itemsize - 1 if self._stored.kind == "u" else 0
        self._tables: dict[torch.device, _Tables] = {}

    def __reduce__(self) -> tuple[Any, ...]:
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

"""How much a loader reads together: by the memory budget, or by the device that holds the windows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

from h5stream.device.backend import DeviceBackend
from h5stream.device.window import window_rows_for
from h5stream.engine.budget import WindowSize, block_rows_of, first_rows_of, keep_and_size, size_window
from h5stream.engine.carry import Carrier
from h5stream.engine.kept import KEPT_TOGETHER_NBYTES, KeptDatasets
from h5stream.engine.slots import PAGE_NBYTES, SlotFormat
from h5stream.errors import BudgetError
from h5stream.order.epoch import OrderSettings
from h5stream.order.transfer import transfer_rows

LEAST_SLOTS = 6
"""Slots of a device window, at least: two that are read together while two cross and two are ready."""


LEAST_OPEN = 8
"""Batches that must fit where their size is not known, so that reading ahead is worth its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the size of windows depends on.

    Attributes
    ----------
    carrier : Carrier
        What reads.
    rows, batch_rows : int
        Rows of the dataset, and of a batch.
    memory_budget : int
        Bytes for slots, windows and scratch.
    threads : int
        Reader threads.
    backend : DeviceBackend or None
        Of the device that holds the windows.
    """

    carrier: Carrier
    rows: int
    batch_rows: int
    memory_budget: int
    threads: int
    backend: DeviceBackend[Any, Any] | None

    def choose(self, window: int | str) -> tuple[KeptDatasets, WindowSize]:
        """Choose what is kept, and the size of the windows that were asked for.

        Raises
        ------
        BudgetError
            If it does not fit.
        """
        kept, size = keep_and_size(
            self.carrier,
            rows=self.rows,
            batch_size=self.batch_rows,
            window=window if self.backend is None else "auto",
            memory_budget=self.memory_budget,
            threads=max(1, self.threads),
        )
        if self.backend is not None:
            return kept, self._on_device(size, window, self.backend)
        return kept, self._gathered(size, kept)

    def _gathered(self, size: WindowSize, kept: KeptDatasets) -> WindowSize:
        """Give the size with a few batches together where all data is kept: rows cost the same wherever they lie."""
        if size.together or not kept.whole:
            return size
        slot_nbytes = SlotFormat.for_rows(self.carrier.layout.fields, self.batch_rows).nbytes
        together = max(1, min(size.max_open_batches // 2, KEPT_TOGETHER_NBYTES // slot_nbytes))
        return replace(size, together=together, max_open_batches=min(size.max_open_batches, 2 * together))

    def with_room(self, window: int | str) -> Sizing:
        """Give the sizing where nobody says how large batches are: for the largest that the budget has room for.

        Slots are mapped, and what no row is written to takes no memory: room costs nothing but the budget's account.

        Raises
        ------
        BudgetError
            If there is not even room for batches of one row.
        """
        sizing = self
        while sizing.batch_rows > 1:
            with contextlib.suppress(BudgetError):
                if sizing.choose(window)[1].max_open_batches >= LEAST_OPEN:
                    return sizing
            sizing = replace(sizing, batch_rows=sizing.batch_rows // 2)
        return sizing

    def _on_device(self, size: WindowSize, window: int | str, backend: DeviceBackend[Any, Any]) -> WindowSize:
        """Size a device window: by its own rows, or by what the device could give."""
        layout = self.carrier.layout
        wished = self.rows if window == "all" else window if isinstance(window, int) else None
        window_rows = min(self.rows, wished or window_rows_for(backend, layout.row_nbytes, self.rows))
        # As for a host window of so many rows, so that the order is the same.
        first = window_rows if window == "all" else min(window_rows, first_rows_of(layout, self.batch_rows))
        return replace(
            size,
            window_rows=window_rows,
            first_window_rows=first,
            notice="",
            **self._slots_in(size.max_open_batches, block_rows_of(layout)),
        )

    def _slots_in(self, batches: int, block_rows: int) -> dict[str, int]:
        """Cut the memory of so many batches into slots of whole blocks, if that gives enough of them."""
        layout = self.carrier.layout
        slot_rows = transfer_rows(self.batch_rows, block_rows, layout.row_nbytes, self.rows)
        batch_nbytes, slot_nbytes = (
            -(-SlotFormat.for_rows(layout.fields, rows).nbytes // PAGE_NBYTES) * PAGE_NBYTES
            for rows in (self.batch_rows, slot_rows)
        )
        slots = batches * batch_nbytes // slot_nbytes
        if slots < min(batches, LEAST_SLOTS):
            return {"max_open_batches": batches, "slot_rows": self.batch_rows}
        return {"max_open_batches": slots, "slot_rows": slot_rows}

    def taken_over(self, size: WindowSize, kept: KeptDatasets, settings: OrderSettings) -> WindowSize:
        """Give the size of windows for settings that a state brought, where they are not those of `size`.

        Raises
        ------
        BudgetError
            If they do not fit.
        """
        rows, first_rows = settings.window_rows, settings.first_window_rows
        if (rows, first_rows) == (size.window_rows, size.first_window_rows):
            return size
        if self.backend is None:
            size = size_window(
                self.carrier.layout,
                rows=self.rows,
                batch_size=self.batch_rows,
                window=rows,
                memory_budget=self.memory_budget,
                threads=max(1, self.threads),
                kept_nbytes=kept.nbytes,
            )
            size = self._gathered(size, kept)
        return replace(size, window_rows=rows, first_window_rows=first_rows, notice="")

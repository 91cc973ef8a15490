"""How much a loader reads together: by the memory budget, or by the device that holds the windows."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.device.backend import DeviceBackend
from h5stream.device.window import window_rows_for
from h5stream.engine.budget import block_rows_of, first_rows_of, gathered, shape_of, size_for, threads_within
from h5stream.engine.footprint import WindowSize, packed_nbytes, size_window
from h5stream.errors import BudgetError
from h5stream.order.epoch import OrderSettings
from h5stream.order.transfer import transfer_rows
from h5stream.storage.layout import SampleLayout

_log = logging.getLogger("h5stream")

LEAST_SLOTS = 6
"""Slots of a device window, at least: two that are read together while two cross and two are ready."""


LEAST_OPEN = 8
"""Batches that must fit where their size is not known, so that reading ahead is worth its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the size of windows depends on.

    Attributes
    ----------
    layout : SampleLayout
        The fields.
    selected : ndarray of int64 or None
        The rows of an epoch, if not all.
    batch_rows : int
        Rows of a batch.
    memory_budget : int
        Bytes for slots, windows, plans and scratch.
    most_budget : int
        Bytes that may be taken instead where an automatic window does not fit: more than `memory_budget` only where
        nobody chose that.
    threads : int
        Reader threads.
    threads_asked : bool
        Whether the user gave their number.
    shuffle : bool
        Whether windows are shuffled.
    backend : DeviceBackend or None
        Of the device that holds the windows.
    """

    layout: SampleLayout
    selected: NDArray[np.int64] | None
    batch_rows: int
    memory_budget: int
    most_budget: int
    threads: int
    threads_asked: bool
    shuffle: bool
    backend: DeviceBackend[Any, Any] | None

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return self.layout.rows if self.selected is None else len(self.selected)

    def choose(self, window: int | str) -> tuple[tuple[int, ...], WindowSize, int]:
        """Choose the datasets that are kept, the size of the windows that were asked for, and the budget for that.

        A batch that `DataLoader` would take must not fail for a budget that nobody chose: there an automatic window
        takes what it needs at least.

        Raises
        ------
        BudgetError
            If it does not fit.
        """
        kept, size, budget = self._chosen(window)
        self._say_what_was_chosen(size, budget)
        return kept, size, budget

    def _chosen(self, window: int | str) -> tuple[tuple[int, ...], WindowSize, int]:
        host_window = window if self.backend is None else "auto"
        budget = self.memory_budget
        while True:
            # A machine of 200 processors must not need 200 threads' scratch.
            threads = self.threads if self.threads_asked else threads_within(self.layout, self.threads, budget)
            try:
                kept, size = size_for(
                    self.layout,
                    selected=self.selected,
                    batch_size=self.batch_rows,
                    window=host_window,
                    memory_budget=budget,
                    threads=threads,
                    shuffle=self.shuffle,
                    on_device=self.backend is not None,
                )
            except BudgetError as error:
                if host_window != "auto" or error.needed > self.most_budget:
                    raise
                budget = error.needed
            else:
                return kept, size if self.backend is None else self._on_device(size, window, self.backend), budget

    def with_room(self, window: int | str) -> Sizing:
        """Give the sizing where nobody says how large batches are: for the largest that the budget has room for.

        Slots are mapped, and what no row is written to takes no memory: room costs nothing but the budget's account.

        Raises
        ------
        BudgetError
            If there is not even room for batches of one row.
        """
        sizing = replace(self, most_budget=self.memory_budget)
        while sizing.batch_rows > 1:
            with contextlib.suppress(BudgetError):
                _, size, budget = sizing._chosen(window)
                # Not how many are open: fewer are where the data have fewer, or where they are gathered.
                if size.max_open_batches + (budget - size.needed_nbytes) // size.batch_nbytes >= LEAST_OPEN:
                    break
            sizing = replace(sizing, batch_rows=sizing.batch_rows // 2)
        return sizing

    def _on_device(self, size: WindowSize, window: int | str, backend: DeviceBackend[Any, Any]) -> WindowSize:
        """Size a device window: by its own rows, or by what the device could give."""
        layout = self.layout
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
        layout = self.layout
        slot_rows = transfer_rows(self.batch_rows, block_rows, layout.row_nbytes, self.rows)
        row_nbytes = [field.row_nbytes for field in layout.fields]
        batch_nbytes, slot_nbytes = (packed_nbytes(row_nbytes, rows) for rows in (self.batch_rows, slot_rows))
        slots = batches * batch_nbytes // slot_nbytes
        if slots < min(batches, LEAST_SLOTS):
            return {"max_open_batches": batches, "slot_rows": self.batch_rows}
        return {"max_open_batches": slots, "slot_rows": slot_rows}

    def taken_over(self, size: WindowSize, kept: tuple[int, ...], settings: OrderSettings) -> WindowSize:
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
            size = gathered(self.layout, kept, self._of_rows(rows, kept, self.memory_budget, size.threads))
        return replace(size, window_rows=rows, first_window_rows=first_rows, notice="")

    def _of_rows(self, rows: int, kept: tuple[int, ...], budget: int, threads: int) -> WindowSize:
        shape = shape_of(self.layout, kept, self.selected)
        given: dict[str, Any] = {"batch_size": self.batch_rows, "window": rows, "threads": threads}
        given["shuffle"] = self.shuffle
        try:
            return size_window(shape, memory_budget=budget, **given)
        except BudgetError as error:
            if error.needed > self.most_budget:
                raise
            return size_window(shape, memory_budget=error.needed, **given)

    def _say_what_was_chosen(self, size: WindowSize, budget: int) -> None:
        """Log what is unlike what was asked for: a smaller window, fewer threads, more memory than by default."""
        if size.notice and self.backend is None:
            _log.info("%s", size.notice)
        if self.threads_asked and size.threads < self.threads:
            _log.warning(
                "num_workers=%d: %d reader thread(s), since each needs %s bytes of scratch within memory_budget=%s; "
                "the order of the rows does not depend on it, and a larger budget gives more",
                self.threads,
                size.threads,
                f"{size.scratch_nbytes // max(1, size.threads):,}",
                f"{budget:,}",
            )
        if budget > self.memory_budget:
            _log.warning(
                "memory_budget: %s bytes instead of the default of %s, since batches of %s bytes and what reads them "
                "need as much. Pass memory_budget= to say so, or take a smaller batch_size",
                f"{budget:,}",
                f"{self.memory_budget:,}",
                f"{size.batch_nbytes:,}",
            )

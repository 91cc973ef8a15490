"""What shuffled batches of samples cost that are no rows: a window of them and some samples alone are read."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from h5stream.advice.cost import BatchCost
from h5stream.dataset import H5Dataset
from h5stream.engine.batches import objects_for
from h5stream.engine.budget import Sizing
from h5stream.engine.counters import Tally
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.plan import Placement
from h5stream.engine.ragged import lend
from h5stream.engine.reader import RowReader
from h5stream.engine.slots import SlotFormat, map_memory
from h5stream.engine.tasks import Destination, Task
from h5stream.order.epoch import EpochOrder, Window
from h5stream.order.line import OrderSettings

ALONE = 32  # samples that are read one at a time
RAGGED_NBYTES = 256 << 20  # bytes of samples of unlike lengths that are read at most
SECONDS = 3.0  # a window is read for so long at most; what of it is left is taken to cost as much


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesCost:
    """What shuffled batches of samples cost."""

    text: str  # what a sample is, as the user wrote it
    samples: int  # of an epoch
    sample_nbytes: int
    left_out: int  # segments that are shorter than a sample, or objects that lack a field
    asked: int  # objects that were asked of HDF5, because their headers were not understood
    batch_samples: int
    batch_nbytes: int
    window_samples: int  # of the largest window, which are shuffled with one another
    shapes: dict[str, str] = field(default_factory=dict)  # what a sample gives, by field
    alone: BatchCost
    ours: BatchCost  # a batch whose samples are read one at a time, and by h5stream; both for each byte that it holds


def cost_samples(dataset: H5Dataset, text: str, *, batch_size: int, memory_budget: int, threads: int) -> SamplesCost:
    """Read a window of a shuffled epoch, and some of its samples alone, and count what that takes."""
    layout = dataset.layout
    batch_samples = min(batch_size, len(dataset))
    sizing = Sizing(layout=layout, batch_rows=batch_samples, memory_budget=memory_budget, threads=threads)
    size = sizing.fitting("auto")
    settings = OrderSettings(
        batch_size=batch_samples, window_rows=size.window_rows, first_window_rows=size.first_window_rows
    )
    order = EpochOrder(dataset.drawn_blocks(True, seed=0, epoch=0) or dataset.blocks_for(True), settings)
    windows = np.diff(order.window_edges)
    largest = int(windows.argmax())
    numbers = np.sort(order.outputs(largest)[0])
    reader = RowReader(layout)
    ours, done = _counted(reader, numbers)
    some = np.random.default_rng(0).permutation(numbers)[:ALONE]
    alone = [_counted(reader, some[k : k + 1])[0] for k in range(len(some))]
    reader.close()
    batch_nbytes = batch_samples * layout.row_nbytes
    names = layout.shape.keys or [field.name for field in layout.fields]
    flat = len(names) == len(layout.fields)
    return SamplesCost(
        text=text,
        samples=len(dataset),
        sample_nbytes=layout.row_nbytes,
        left_out=0 if layout.space is None else layout.space.left_out,
        asked=layout.asked,
        batch_samples=batch_samples,
        batch_nbytes=batch_nbytes,
        window_samples=int(windows.max()),
        shapes={
            str(names[k] if flat else field.name): f"{' x '.join(map(str, field.row_shape)) or '1'} {field.dtype}"
            for k, field in enumerate(layout.fields)
        },
        alone=_cost(alone, batch_samples / len(alone), batch_nbytes),
        ours=_cost([ours], batch_samples / len(numbers) / done, batch_nbytes),
    )


def _cost(tallies: list[Tally], share: float, batch_nbytes: int) -> BatchCost:
    read, chunks = sum(tally.read_bytes for tally in tallies), sum(tally.chunks for tally in tallies)
    decoded = sum(tally.decoded_bytes + tally.h5py_bytes for tally in tallies)
    return BatchCost.of(share * chunks, share * read, share * decoded, batch_nbytes, batch_nbytes)


def _counted(reader: RowReader, numbers: Any) -> tuple[Tally, float]:
    """Read samples, all to the same memory; return what was counted, and the share of them that was read."""
    layout, wanted, places = reader.layout, len(numbers), 1
    within = np.zeros_like(numbers)
    if any(field.kind == "ragged" for field in layout.fields):  # each has memory of its own
        numbers = numbers[: max(1, RAGGED_NBYTES // max(1, layout.row_nbytes))]
        within, places = np.arange(len(numbers)), len(numbers)
    slot_format = SlotFormat.for_rows(layout.fields, places)
    memory = np.frombuffer(map_memory(slot_format.nbytes), dtype=np.uint8)
    window = Window(rows=numbers, batch=np.zeros_like(numbers), within=within)
    destination = Destination.of_batch(memory, slot_format, layout.fields, [objects_for(layout.fields, places)])
    tally = Tally()
    tools = reader.tools(tally)
    tasks: list[Task] = list(reader.plan(reader.accepted(Placement.of(window)), TASK_NBYTES))
    destination = replace(destination, ragged=lend(tasks, destination.objects, destination.row_nbytes))
    until, done = time.monotonic() + SECONDS, 0
    # In an order of which every part is like the whole.
    for k in np.random.default_rng(0).permutation(len(tasks)).tolist():
        tasks[k].land(tools.read(tasks[k].ranges()), destination, tools)
        done += 1
        if time.monotonic() > until:
            break
    return tally, done / max(1, len(tasks)) * len(numbers) / wanted

"""Which engine fills a loader's slots: threads of this process, or those of a child."""

from __future__ import annotations

from collections.abc import Callable

from h5stream.delivery import Delivery
from h5stream.engine.landing.resident import ResidentDatasets
from h5stream.engine.reader import RowReader
from h5stream.engine.running import Engine
from h5stream.engine.threads import ThreadEngine
from h5stream.isolation.engine import ProcessEngine
from h5stream.order.blocks import Blocks


def engine_for(
    reader: RowReader,
    kept: ResidentDatasets,
    delivery: Delivery,
    blocks: Blocks,
    *,
    isolated: bool,
    threads: int,
    on_thread_start: Callable[[int], None] | None,
    skip_corrupt: bool,
) -> Engine:
    """Make the engine that a loader's arguments ask for.

    Parameters
    ----------
    reader, kept : RowReader, ResidentDatasets
        What reads; a child makes its own.
    delivery : Delivery
        Where batches go.
    blocks : Blocks
        What orders are made of.
    isolated : bool
        Whether a child reads.
    threads : int
        Reader threads.
    on_thread_start : callable or None
        Called in each of them.
    skip_corrupt : bool
        Leave out the rows of corrupt chunks.
    """
    if not isolated:
        return ThreadEngine(
            reader,
            kept,
            threads=threads,
            on_thread_start=on_thread_start,
            skip_corrupt=skip_corrupt,
        )
    return ProcessEngine(
        reader.layout,
        kept.numbers,
        blocks,
        threads=threads,
        on_thread_start=on_thread_start,
        transform=delivery.transform_there,
        skip_corrupt=skip_corrupt,
        pin=delivery.pin(),
    )

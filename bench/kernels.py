"""How long the kernels take, each alone in one thread: ``python -m bench.kernels`` writes `results/kernels.json`.

Processor time of the thread, so that others on the machine count as little as may be; the least of some turns.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import describe
from h5stream.compiled import _native as native
from h5stream.order.places import BUCKET

OUT = Path(__file__).parent / "results" / "kernels.json"
NBYTES, CHUNK = 64 << 20, 1 << 20
TURNS = 9

Case = tuple[str, Callable[[], Any], float]
"""What it is, the work, and the rows, elements or calls of it."""

rng = np.random.default_rng(0)
target = np.ones(256 << 20, np.uint8)
slots = np.array([target.ctypes.data + -target.ctypes.data % 64])


def places(count: int) -> tuple[Any, Any]:
    return np.zeros(count, np.int32), rng.permutation(count).astype(np.int32)


def scattered() -> Iterator[Case]:
    row = np.zeros(1, np.int32)
    eight = np.array([[0, 0, 8]])
    source = rng.integers(0, 256, CHUNK, dtype=np.uint8)
    at = source.ctypes.data
    yield "call of scatter, 1 row of 8 B", lambda: native.scatter(at, 8, eight, row, row, row, slots, 0, 8), 1
    for nbytes in (4, 8, 12, 16, 64, 256, 1024):
        count, of_chunk = min(NBYTES // nbytes, 2_000_000), CHUNK // nbytes
        (batch, within), rows = places(count), (np.arange(count) % of_chunk).astype(np.int32)
        segments = np.array([[0, 0, nbytes]])

        def scatter(
            nbytes=nbytes, count=count, of_chunk=of_chunk, batch=batch, within=within, rows=rows, segments=segments
        ):
            for some in (slice(k, k + of_chunk) for k in range(0, count, of_chunk)):
                native.scatter(at, nbytes, segments, rows[some], batch[some], within[some], slots, 0, nbytes)

        yield f"scatter, rows of {nbytes} B", scatter, count
    for nbytes in (4, 8):
        segments, lengths = np.array([[0, 0, nbytes]]), rng.integers(1, 400, 5000).astype(np.int32)
        rows = rng.integers(0, CHUNK // nbytes - 400, 5000).astype(np.int32)
        batch, within = places(5000)
        to = rows, lengths, batch, within * 400, slots, 0, nbytes
        work = lambda n=nbytes, s=segments, to=to: native.scatter_spans(at, n, s, *to)  # noqa: E731
        yield f"scatter_spans, rows of {nbytes} B", work, int(lengths.sum())


def planes() -> Iterator[Case]:
    none, no_axes, one = np.zeros(0, np.int64), np.zeros((0, 0), np.int64), np.zeros(1, np.int64)
    scratch = native.Scratch()
    for width, elements in itertools.product(
        (2, 4, 8), (8, 16, 64, 256, 1024)
    ):  # the first are unshuffled, then copied
        nbytes = width * elements
        count = CHUNK // nbytes
        source = rng.integers(0, 256, CHUNK, dtype=np.uint8)
        (batch, within), rows = places(count), np.arange(count, dtype=np.int32)
        fields = native.chunk_fields(
            none, CHUNK, count, width, np.array([[width, 1, 1, 0]]), np.arange(width), np.array([[0, 0, elements]]),
            np.array([0, 1]), one + elements, np.zeros(width, np.uint8), np.array([0, width]), none,
        )  # fmt: skip
        plan = native.plan_chunks(
            fields, one, one, one, one, one + count, np.zeros(1, np.int8), 0, rows, rows[:0], batch, within,
            *[no_axes] * 3, none, *[no_axes] * 2, none, none, 0, *[none] * 3, 0, np.zeros(0, bool),
        )  # fmt: skip
        given = plan, 0, source, width, slots, one, one + nbytes, scratch.address
        yield f"land_decoded, {elements} shuffled elements of {width} B", lambda g=given: native.land_decoded(*g), count
    for width in (2, 3, 4, 8, 12):
        source, out = rng.integers(0, 256, CHUNK, dtype=np.uint8), np.empty(CHUNK, np.uint8)
        work = lambda s=source, w=width, o=out: native.unshuffle(s, w, o)  # noqa: E731
        yield f"unshuffle, {width} B", work, CHUNK // width


def gathered() -> Iterator[Case]:
    source = np.ones(256 << 20, np.uint8)
    at = source.ctypes.data
    for nbytes in (4, 64, 256, 1024, 4096):
        every = len(source) // nbytes
        count = min(every // 4, 1_000_000)
        rows, (batch, within) = rng.permutation(every)[:count].astype(np.int32), places(count)
        to = rows, batch, within, slots, 0, nbytes
        yield f"gather_any, rows of {nbytes} B", lambda to=to: native.gather_any(at, *to), count


def read(folder: str) -> Iterator[Case]:
    path = Path(folder) / "rows"
    path.write_bytes(bytes(128 << 20))
    descriptor = os.open(path, os.O_RDONLY)
    scratch, counts, fill = native.Scratch(), np.zeros(native.COUNTS, np.int64), np.zeros(64, np.uint8)
    none, room = np.zeros(0, np.int64), 1 << 20
    one = [[0, 0, 1, 0, 1]], [[0, 0, 1, 1, 0, 1, 0]]
    two = [[0, 0, 256, 0, 1], [0, 9000, 256, 1, 2]], [[0, 0, 256, 1, 0, 1, 0], [9000, 256, 256, 1, 0, 1, 0]]
    kinds = {
        "every 16th row of 256 B": (256, 16, one, 1 << 30, 4096),
        "every 16th row of 1 KiB": (1024, 16, one, 1 << 30, 4096),
        "rows of 256 B that follow one another": (256, 1, one, 1 << 30, 4096),
        "every 4th object of 1.2 KB": (1200, 4, one, 1, 4096),
        "two extents of every 4th row of 16 KiB": (16384, 4, two, 1 << 30, 1024),
    }
    for name, (stride, every, (extents, runs), chunk_rows, gap) in kinds.items():
        rows = np.arange(0, (128 << 20) // stride, every, dtype=np.int32)
        nbytes = 512 if extents is two[0] else stride
        extents, runs = np.array(extents), np.array(runs)
        if nbytes == stride:
            extents[0, 2] = runs[0, 2] = nbytes
        offsets = np.arange((128 << 20) // stride) * stride if chunk_rows == 1 else np.zeros(1, np.int64)
        plan = native.plan_rows(
            none, offsets, 1, chunk_rows, 0, stride, extents, runs, np.array([fill.ctypes.data]), np.array([64]), room,
            gap, 0, rows, rows[:0], *places(len(rows)),
        )  # fmt: skip
        to = slots, np.zeros(1, np.int64), np.array([nbytes]), scratch.address, np.zeros(1, np.int32), counts
        given = plan, 0, len(rows), descriptor, none, *to
        yield f"plan_rows, {name}", lambda given=given: native.land(*given), len(rows)


def boxes() -> Iterator[Case]:
    for name, shape, box, count in (
        ("64 x 64", (512, 512), (64, 64), 256),
        ("32 x 32 x 32", (128,) * 3, (32,) * 3, 64),
        ("5 x 5 x 5", (64,) * 3, (5,) * 3, 4000),
    ):
        volume, axes = np.zeros(shape, np.float32), len(shape)
        origins = np.stack([rng.integers(0, n - m + 1, count) for n, m in zip(shape, box, strict=True)], 1)
        given = (
            np.array([volume.ctypes.data]), np.array([volume.strides]), np.zeros((1, axes), np.int64),
            np.array([shape]), np.array([shape]), np.zeros(1, np.int64), np.array([count]),
            np.tile(np.arange(max(box)), (axes, 1)), np.array(box), np.ones(axes, np.int64), 0, 4, origins,
            *places(count), slots, 0, 4 * int(np.prod(box)),
        )  # fmt: skip
        yield f"place_boxes, {name} float32", lambda given=given, volume=volume: native.place_boxes(*given), count


def orders() -> Iterator[Case]:
    for count in (1_000_000, 100_000_000):
        numbers, state = np.empty(count, np.int32), np.random.SeedSequence(0).generate_state(4, np.uint64)
        edges = np.zeros((1 << (-(-count // BUCKET) - 1).bit_length()) + 1, np.int64)
        yield f"shuffled_into, {count:,}", lambda n=numbers, e=edges, s=state: native.shuffled_into(n, e, s), count
    count, of_batch = 200_000, 1000
    batch, within = (each.astype(np.int32) for each in np.divmod(rng.permutation(count), of_batch))
    order, lengths, edges = (
        np.empty(count, np.int32),
        rng.integers(0, 50, count),
        np.zeros(count // of_batch + 1, np.int64),
    )
    filled = edges, np.empty_like(within), *(np.empty(count + n, np.int64) for n in (0, 1, count // of_batch))
    yield "order_by_place", lambda: native.order_by_place(batch, within, order), count
    yield "lay_stretches", lambda: native.lay_stretches(order, batch, within, lengths, *filled), count


def summed() -> Iterator[Case]:
    sums, squares = np.zeros((3, 1024), np.int64), np.zeros((5, 1024), np.int64)
    for kind in ("u1", "i2", "i4", "i8"):
        values = rng.integers(0, 100, (256, 1024)).astype(kind)
        if values.itemsize < 4:
            yield (
                f"add_short_integers, {kind}",
                lambda v=values: native.add_short_integers(v, sums[0], squares[0]),
                1 << 18,
            )
        else:
            yield f"add_integers, {kind}", lambda v=values: native.add_integers(v, sums, squares), 1 << 18
    for kind in ("f4", "f8"):
        values, floats = rng.random((256, 1024)).astype(kind), np.zeros(1024)
        ends = values[0].copy(), values[1].copy()
        yield (
            f"add_moments, {kind}",
            lambda v=values, f=floats, e=ends: native.add_moments(v, f, f.copy(), f.copy(), *e),
            1 << 18,
        )


def measured(work: Callable[[], Any], count: float) -> float:
    """Return the nanoseconds of processor time for each row, element or call."""
    took, repeat = [], max(1, int(20_000 // max(count, 1)))
    for turn in range(TURNS + 1):
        began = time.thread_time_ns()
        for _ in range(repeat):
            work()
        if turn:  # the first finds nothing in any cache
            took.append(time.thread_time_ns() - began)
        if took and sum(took) > 3e9:
            break
    return min(took) / repeat / count


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name, work, count in itertools.chain(
            scattered(), planes(), gathered(), read(folder), boxes(), orders(), summed()
        ):
            found[name] = round(measured(work, count), 3)
            print(f"{name:55s} {found[name]:12.3f} ns")
    OUT.write_text(json.dumps({**describe(), "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

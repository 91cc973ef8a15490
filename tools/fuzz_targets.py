"""What `tools.fuzz_kernels` calls the kernels with: sound arguments, of which what a file may say is changed.

Addresses, places in slots and the sizes of slots are the planner's promise, and stay as they are.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import io
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
ROOT = Path(__file__).resolve().parent.parent
HOSTILE = (-(2**63), -(2**62), -(2**31), -2, -1, 0, 1, 2, 3, 7, 8, 255, 4096, 2**16, 2**31 - 1, 2**32, 2**62, 2**63 - 1)
REFUSED = (ValueError, TypeError, MemoryError, OverflowError)
NO_AXES, NOTHING = np.zeros((0, 0), np.int64), np.zeros(0, np.int64)


def use(made: str) -> Any:
    """Let the package have the kernels of a file."""
    spec = importlib.util.spec_from_file_location("h5stream.compiled._native", made)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    import h5stream.compiled

    h5stream.compiled._native = module
    return module


class Draw:
    """One call's draws."""

    def __init__(self, native: Any, seed: int) -> None:
        self.native, self.rng = native, np.random.default_rng(seed)
        self.held: list[Any] = []  # memory that addresses lead to

    def upto(self, most: int, least: int = 1) -> int:
        """Draw a number."""
        return int(self.rng.integers(least, most + 1))

    def changed(self, values: Any, share: float = 0.04) -> Ints:
        """Change a number of an array, or two, but mostly none."""
        array = np.array(values, np.int64)
        if array.size and self.rng.random() < share:
            for at in self.rng.integers(0, array.size, self.upto(2)):
                near = int(array.flat[at]) + int(self.rng.integers(-3, 4))
                array.flat[at] = near if self.rng.random() < 0.5 else HOSTILE[self.rng.integers(len(HOSTILE))]
        return array

    def number(self, value: int, share: float = 0.02) -> int:
        """Change a number, but mostly do not."""
        return int(self.changed([value], share)[0])

    def memory(self, nbytes: int) -> tuple[int, Any]:
        """Give memory of just so many bytes, and where it begins; it lives as long as the call."""
        data = np.frombuffer(bytearray(self.rng.bytes(max(1, nbytes))), np.uint8)
        self.held.append(data)
        return int(data.__array_interface__["data"][0]), data

    def slots(self, batches: int, nbytes: int) -> Ints:
        """Give slots of just so many bytes."""
        return np.array([self.memory(nbytes)[0] for _ in range(batches)], np.int64)

    def places(self, values: Any) -> Any:
        """Give numbers of 32 or of 64 bits."""
        narrow = np.abs(np.array(values, np.float64)).max(initial=0) < 2**31 and self.rng.random() < 0.5
        return np.array(values, np.int32 if narrow else np.int64)

    @contextlib.contextmanager
    def file(self, data: Any) -> Iterator[int]:
        """Give a descriptor of a file of some bytes."""
        descriptor = os.memfd_create("fuzz")
        try:
            os.write(descriptor, bytes(data))
            yield descriptor
        finally:
            os.close(descriptor)


# --- chunks: what they have in common, plans, and landing


def fields_of(draw: Draw, chunk_rows: int, elements: int, width: int, pipelines: Ints) -> tuple[Any, int]:
    """Note chunks, of which one field or two are taken; give also the bytes of a row in a batch."""
    count, pieces = draw.upto(2), draw.upto(2)
    programs = [[width, 1, width in (2, 4, 8), 0] for _ in range(count)]
    row_elements = np.full(pieces, elements)
    segments = [[0, piece * elements, elements] for piece in range(pieces)]
    if elements > 1 and draw.rng.random() < 0.5:
        segments = [
            one for k in range(pieces) for one in ([1, k * elements, elements - 1], [0, (k + 1) * elements - 1, 1])
        ]
    edges = np.arange(pieces + 1) * (len(segments) // pieces)
    made = draw.native.chunk_fields(
        pipelines,
        draw.number(chunk_rows * elements * width),
        draw.number(chunk_rows),
        draw.number(width),
        draw.changed(programs),
        draw.changed(np.tile(np.arange(width), count)),
        draw.changed(segments, 0.0),  # where runs go in a row is the planner's promise
        draw.changed(edges),
        draw.changed(row_elements),
        np.ones(width * count, np.uint8),
        draw.changed(np.arange(count + 1) * width),
        draw.changed(np.arange(draw.upto(9, 0))),
    )
    return made, count


def plans(draw: Draw) -> None:
    """Chunks with rows: plans, and what comes of them."""
    chunk_rows, elements, width, chunks = (
        draw.upto(9),
        draw.upto(40),
        int(draw.rng.choice([1, 2, 3, 4, 8])),
        draw.upto(5),
    )
    raw, kind = chunk_rows * elements * width, draw.upto(2, 0)
    pipelines = NOTHING
    if kind:
        steps = np.array([[2, 0, raw, 0, 0, 1, width]]) if kind == 2 else np.zeros((0, 7), np.int64)
        with contextlib.suppress(*REFUSED):
            pipeline = draw.native.Pipeline(steps, np.array([width] if kind == 2 else [], np.uint32), raw, 2 * raw, 0)
            draw.held.append(pipeline)
            pipelines = np.array([pipeline.address])
    fields, count = fields_of(draw, chunk_rows, elements, width, pipelines)
    rows = np.sort(draw.rng.integers(0, chunk_rows, draw.upto(12)))
    spans = draw.rng.random() < 0.3
    lengths = np.minimum(draw.rng.integers(0, 4, len(rows)), chunk_rows - rows) if spans else rows[:0]
    low = np.sort(draw.rng.integers(0, len(rows) + 1, chunks))
    batches, per = draw.upto(3), len(rows) * (4 if spans else 1)
    row_nbytes = 2 * elements * width
    kept = [NOTHING] * 3, 0, np.zeros(0, bool)
    if draw.rng.random() < 0.3:
        at = np.array([draw.memory(chunks * chunk_rows * row_nbytes + 64)[0] for _ in range(count)])
        counts = draw.rng.integers(0, chunk_rows + 1, chunks)
        filled = draw.rng.random(chunks) < 0.3
        kept = [at, draw.changed(np.arange(chunks), 0.1), counts], 0, filled
    made = draw.native.plan_chunks(
        fields,
        draw.changed(np.where(draw.rng.random(chunks) < 0.1, -1, np.arange(chunks) * raw)),
        draw.changed(np.full(chunks, raw), 0.15),
        draw.changed(np.zeros(chunks), 0.05),
        draw.changed(low),
        draw.changed(np.append(low[1:], len(rows))),
        np.clip(draw.changed(np.zeros(chunks)), -128, 127).astype(np.int8),
        draw.number(draw.upto(100, 0)),
        draw.places(draw.changed(rows)),
        draw.places(draw.changed(lengths)),
        draw.places(draw.changed(draw.rng.integers(0, batches, len(rows)))),
        draw.places(np.arange(len(rows)) * (4 if spans else 1)),
        *[NO_AXES] * 3,
        NOTHING,
        *[NO_AXES] * 2,
        *[NOTHING] * 2,
        0,
        *kept[0],
        *kept[1:],
    )
    slots = NOTHING if kept[0][0].size and draw.rng.random() < 0.3 else draw.slots(batches, per * row_nbytes + 64)
    landed(draw, made, chunks, raw, count, slots, row_nbytes)


def carried_out(draw: Draw, made: Any, units: int, data: bytes, slots: Ints, row_nbytes: Ints) -> None:
    """Carry a plan out, which reads from a file of some bytes."""
    scratch, stop, counts = draw.native.Scratch(), np.zeros(1, np.int32), np.zeros(draw.native.COUNTS, np.int64)
    where = slots, np.zeros(len(row_nbytes), np.int64), row_nbytes
    with draw.file(data) as descriptor:
        draw.native.land(made, 0, draw.number(units), descriptor, NOTHING, *where, scratch.address, stop, counts)


def landed(draw: Draw, made: Any, chunks: int, raw: int, count: int, slots: Ints, row_nbytes: int) -> None:
    """Land chunks of a plan from a file, and from memory."""
    scratch, where = draw.native.Scratch(), (slots, np.zeros(count, np.int64), np.full(count, row_nbytes))
    carried_out(draw, made, chunks, draw.rng.bytes(chunks * raw), *where[::2])
    with contextlib.suppress(*REFUSED):
        draw.native.land_decoded(
            made, draw.upto(chunks, 0), draw.memory(raw)[1], draw.number(0, 0.5), *where, scratch.address
        )


def boxes(draw: Draw) -> None:
    """Chunks of which boxes are taken, and boxes of other memory."""
    axes, width = draw.upto(3), int(draw.rng.choice([1, 2, 4, 8]))
    shape, side, size = (np.array([draw.upto(most) for _ in range(axes)]) for most in (9, 4, 4))
    size = np.minimum(size, shape)
    grid = -(-shape // side)
    chunks = draw.upto(4)
    begin = np.stack([draw.rng.integers(0, grid) * side for _ in range(chunks)])
    raw, count = int(side.prod()) * width, draw.upto(5)
    origins = np.stack([draw.rng.integers(0, shape - size + 1) for _ in range(count)])
    wide = int(size.max())
    offsets, follow = np.tile(np.arange(wide), (axes, 1)), np.ones(axes, np.int64)
    low, batches = np.zeros(chunks, np.int64), draw.upto(2)
    slots, nbytes = draw.slots(batches, count * int(size.prod()) * width), int(size.prod()) * width
    batch, within = draw.places(draw.rng.integers(0, batches, count)), draw.places(np.arange(count))
    about = draw.changed(origins, 0.15), draw.changed(offsets), size, draw.changed(follow), draw.upto(2, 0)
    if draw.rng.random() < 0.3:
        at = np.array([draw.memory(raw)[0] for _ in range(chunks)])
        strides = np.tile(np.cumprod([width, *side[:0:-1]])[::-1], (chunks, 1))
        high, shapes = np.minimum(begin + side, shape), np.tile(shape, (chunks, 1))
        draw.native.place_boxes(
            at, strides, begin, high, draw.changed(shapes), draw.changed(low), draw.changed(np.full(chunks, count)),
            about[1], size, about[3], about[4], width, about[0], batch, within, slots, 0, nbytes,
        )  # fmt: skip
        row = draw.memory(width * int(size[-1]))[0]
        outside = draw.changed(np.tile(shape, (count, 1)), 0.15)
        draw.native.fill_outside(row, outside, about[1], size, width, about[0], batch, within, slots, 0, nbytes)
        return
    is_plain = draw.rng.random() < 0.5
    pipelines = NOTHING
    if not is_plain:
        pipeline = draw.native.Pipeline(np.zeros((0, 7), np.int64), np.zeros(0, np.uint32), raw, 2 * raw, 0)
        draw.held.append(pipeline)
        pipelines = np.array([pipeline.address])
    fields = draw.native.chunk_fields(
        pipelines, raw, int(side[0]), width, np.array([[width, 1, 0, 0]]), np.arange(width),
        np.array([[0, 0, 1]]), np.array([0, 1]), np.ones(1, np.int64), np.ones(width, np.uint8),
        np.array([0, width]), NOTHING,
    )  # fmt: skip
    made = draw.native.plan_chunks(
        fields,
        draw.changed(np.where(draw.rng.random(chunks) < 0.1, -1, np.arange(chunks) * raw)),
        draw.changed(np.full(chunks, raw), 0.15),
        np.zeros(chunks, np.int64),
        draw.changed(low),
        draw.changed(np.full(chunks, count)),
        np.zeros(chunks, np.int8),
        0,
        draw.places(np.arange(count)),
        draw.places(NOTHING),
        batch,
        within,
        draw.changed(begin, 0.15),
        draw.changed(np.tile(side, (chunks, 1)), 0.15),
        draw.changed(np.tile(shape, (chunks, 1)), 0.15),
        draw.changed(np.zeros(chunks), 0.15 if is_plain else 0.05),
        *about,
        *[NOTHING] * 3,
        0,
        np.zeros(0, bool),
    )
    landed(draw, made, chunks, raw, 1, slots, nbytes)


# --- filters


class Pipelines:
    """Chunks of each filter, damaged as `tests/faults/test_damaged_chunks.py` does it."""

    def __init__(self) -> None:
        sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "faults")]
        import h5py
        import test_damaged_chunks as chunks  # type: ignore[import-not-found]

        from h5stream.storage.decode.filters import DecodeScratch
        from h5stream.storage.decode.pipeline import pipeline_of

        self.chunks, self.scratch, self.cases = chunks, DecodeScratch(), []
        x = np.repeat(np.random.default_rng(0).integers(0, 99, (chunks.ROWS, chunks.COLUMNS // 3)), 3, axis=1)
        for options in chunks.FILTERS.values():
            with h5py.File(io.BytesIO(), "w") as file:
                made = file.create_dataset("x", data=x.astype("f4"), chunks=x.shape, **options)
                stored = made.id.read_direct_chunk((0, 0))[1]
                self.cases.append((pipeline_of(made.id.get_create_plist()), stored))

    def __call__(self, draw: Draw) -> None:
        """Decode a damaged chunk."""
        pipeline, stored = self.cases[draw.rng.integers(len(self.cases))]
        mutant = self.chunks.damaged(stored, draw.rng)
        self.chunks.decoded(pipeline, np.frombuffer(mutant, np.uint8).copy(), self.scratch)


# --- heaps, sparse rows, and rows that need no decoding


def heap(draw: Draw) -> None:
    """Read collections of a global heap, of which some bytes are others."""
    data, address, index, sizes = bytearray(draw.upto(64, 0)), [], [], []
    for _ in range(draw.upto(3)):
        begin, objects = len(data), [draw.upto(90, 0) for _ in range(draw.upto(6))]
        body = b"".join(
            k.to_bytes(2, "little") + bytes(6) + size.to_bytes(8, "little") + bytes(-(-size // 8) * 8)
            for k, size in enumerate(objects, 1)
        )
        free = 4096 - 16 - len(body)
        data += b"GCOL\1\0\0\0" + (4096).to_bytes(8, "little") + body + bytes(8) + free.to_bytes(8, "little")
        data += bytes(free - 16)
        for k, size in enumerate(objects, 1):
            address.append(begin)
            index.append(k)
            sizes.append(size)
    for _ in range(draw.upto(3, 0)):
        at, word = draw.upto(len(data) - 1, 0), HOSTILE[draw.rng.integers(len(HOSTILE))] & (2**64 - 1)
        width = draw.upto(8)
        data[at : at + width] = word.to_bytes(8, "little")[:width]
    wanted = np.array(sizes)
    target = np.array([draw.memory(size)[0] for size in sizes], np.int64)
    nbytes = draw.upto(3) * 4096 + draw.upto(99, 0)
    with contextlib.suppress(*REFUSED), draw.file(data) as descriptor:
        draw.native.read_objects(
            descriptor, draw.number(len(data)), draw.number(8), draw.changed(address),
            draw.changed(index, 0.15), draw.changed(sizes, 0.15), wanted, target,
            draw.memory(nbytes)[1], draw.number(draw.upto(9000, 0)), np.zeros(len(sizes), bool),
        )  # fmt: skip
    slots = draw.slots(2, int(wanted.sum()))
    made = draw.native.plan_heap(
        draw.number(len(data)), draw.number(8), 1, draw.upto(90), draw.number(nbytes), draw.number(draw.upto(9000, 0)),
        draw.changed(address), draw.changed(index, 0.15).astype(np.uint32), wanted.astype(np.uint32), 0,
        draw.places(np.arange(len(sizes))),
        draw.places(draw.changed(draw.rng.integers(0, 2, len(sizes)))), draw.places(np.cumsum(wanted) - wanted),
    )  # fmt: skip
    carried_out(draw, made, len(sizes), bytes(data), slots, np.ones(1, np.int64))


def sparse(draw: Draw) -> None:
    """Rows of sparse matrices, of which columns and offsets are others."""
    width, rows, code = draw.upto(12), draw.upto(6), draw.rng.choice(["i1", "i2", "i4", "i8"])
    counts = draw.rng.integers(0, 7, rows)
    total = int(counts.sum())
    wrong = draw.changed(draw.rng.integers(0, width, total), 0.15)
    columns = wrong.astype(code)
    values = draw.rng.random(total).astype(draw.rng.choice(["f4", "f8", "i2", "u1"]))
    chosen = draw.rng.random(width) < 0.6
    places = np.where(chosen, np.cumsum(chosen) - 1, -1).astype(np.int32)
    wanted = int(chosen.sum())
    with contextlib.suppress(*REFUSED):
        draw.native.add_sparse(
            values, columns, draw.changed(np.append(0, np.cumsum(counts)), 0.15),
            draw.changed(places, 0.1).clip(-(2**31), 2**31 - 1).astype(np.int32),
            draw.number(int(counts.max())), np.zeros((rows, wanted), values.dtype),
        )  # fmt: skip
    chunk, room = draw.upto(5), 16 * draw.upto(3)
    nbytes = wanted * values.itemsize
    count = -(-total // chunk)
    begins, behind = np.arange(count) * chunk * values.itemsize, total * values.itemsize
    slots = draw.slots(2, rows * nbytes)
    made = draw.native.plan_dense(
        draw.changed(begins), draw.number(chunk), draw.changed(behind + np.arange(count) * chunk * columns.itemsize),
        draw.number(chunk), draw.number(0), draw.number(room), values[:0], columns[:0], places,
        chosen.astype(np.uint8), wanted,
        draw.places(draw.changed(np.cumsum(counts) - counts, 0.15)), draw.places(draw.changed(counts, 0.15)),
        draw.places(draw.changed(draw.rng.integers(0, 2, rows))), draw.places(np.arange(rows) * wanted),
    )  # fmt: skip
    carried_out(draw, made, rows, values.tobytes() + columns.tobytes(), slots, np.full(1, values.itemsize))


def reads(draw: Draw) -> None:
    """Rows that are read as they lie, of which the table of chunks and the rows are others; and ranges of files."""
    chunk_rows, stride, chunks = draw.upto(6), draw.upto(40), draw.upto(5)
    begin = draw.upto(stride, 1) - 1
    nbytes = draw.upto(stride - begin)
    rows = np.sort(draw.rng.choice(chunk_rows * chunks, draw.upto(chunk_rows * chunks), replace=False))
    spans = draw.rng.random() < 0.3
    lengths = np.minimum(draw.rng.integers(1, 4, len(rows)), chunk_rows - rows % chunk_rows) if spans else rows[:0]
    batches, per = draw.upto(3), 4 if spans else 1
    slots = draw.slots(batches, len(rows) * per * nbytes)
    has_numbers = draw.rng.random() < 0.5
    room = draw.upto(300) + chunk_rows * stride
    made = draw.native.plan_rows(
        draw.changed(np.arange(chunks), 0.15) if has_numbers else NOTHING,
        draw.changed(np.arange(chunks) * chunk_rows * stride, 0.15), draw.number(1), draw.number(chunk_rows),
        draw.number(0), draw.number(stride), np.array([[0, begin, nbytes, 0, 1]]),
        np.array([[begin, 0, nbytes, 1, nbytes, 1, 0]]), np.array([draw.memory(8)[0]]), np.full(1, 8),
        room, draw.number(draw.upto(200, 0)), 0, draw.places(draw.changed(rows, 0.4)), draw.places(lengths),
        draw.places(draw.changed(draw.rng.integers(0, batches, len(rows)))), draw.places(np.arange(len(rows)) * per),
    )  # fmt: skip
    data = draw.rng.bytes(chunks * chunk_rows * stride)
    carried_out(draw, made, len(rows), data, slots, np.full(1, nbytes))


def files(draw: Draw) -> None:
    """Ranges of files whose table says other things."""
    path = Path(tempfile.gettempdir()) / f"h5stream-fuzz-{os.getpid()}"
    path.write_bytes(draw.rng.bytes(500))
    now, count = path.stat(), draw.upto(4)
    known = [draw.changed([each]) for each in (0, now.st_size, now.st_mtime_ns, now.st_ino)]
    nbytes = draw.rng.integers(0, 99, count)
    places = np.array([draw.memory(int(each))[0] for each in nbytes], np.int64)
    text = np.frombuffer(bytes(path) + b"\0", np.uint8)
    which, offsets = draw.changed(np.zeros(count), 0.15), draw.changed(draw.rng.integers(0, 600, count), 0.15)
    draw.native.read_files(text, *known, which, offsets, nbytes, places)
    path.unlink()


def lays(draw: Draw) -> None:
    """Rows and tables of chunks, of which a planner works out places; their numbers are others."""
    native, rows, chunks = draw.native, draw.upto(40), draw.upto(9)
    some = draw.places(draw.changed(np.sort(draw.rng.integers(0, 99, rows)), 0.3))
    batch, within = (np.zeros(rows, np.int32 if draw.rng.random() < 0.5 else np.int64) for _ in range(2))
    edges = draw.changed(np.append(0, np.sort(draw.rng.integers(0, 99, draw.upto(4)))), 0.3)
    with contextlib.suppress(*REFUSED):
        native.locate(some, edges, draw.number(9, 0.2), draw.number(11), draw.number(95), batch, within)
    with contextlib.suppress(*REFUSED):
        native.in_turn(some, draw.places(draw.changed(draw.rng.permutation(rows), 0.2)), draw.number(0, 0.3), batch)
    with contextlib.suppress(*REFUSED):
        native.count_batches(batch, NOTHING, np.zeros(draw.upto(20, 0), np.int64))
    with contextlib.suppress(*REFUSED):
        counts = draw.changed(draw.rng.integers(0, 9, chunks), 0.3)
        native.in_ranges(
            draw.changed(np.arange(chunks)), counts, np.ones(1, np.int64), np.zeros(draw.upto(60), np.int64)
        )
    begins, numbers = np.zeros(draw.upto(20), np.int64), np.zeros(20, np.int64)
    with contextlib.suppress(*REFUSED):
        native.into_chunks(some, draw.number(0, 0.3), draw.number(7, 0.3), batch, begins, numbers[: len(begins)])
    count = chunks * 2
    native.lay_chunks(
        draw.changed(np.arange(count), 0.3), *(draw.changed(np.arange(count) * 50, 0.3) for _ in "ab"),
        draw.number(count), draw.changed(np.arange(chunks), 0.3), draw.changed(np.arange(chunks), 0.2),
        draw.changed(np.arange(1, chunks + 1), 0.2), draw.changed([0, 1], 0.2), draw.number(2), draw.number(50),
        draw.number(9), draw.number(100, 0.2),
        np.zeros((7, count), np.int64), np.zeros(count + 1, np.int64),
    )  # fmt: skip


def pools(draw: Draw) -> None:
    """Plans of rows in memory and in a file that may be too short, of two passes, which are stopped somewhere."""
    native, rows, threads = draw.native, draw.upto(200), draw.upto(3)
    pool = native.Pool(threads, draw.upto(threads))
    stops = [np.zeros(1, np.int32) for _ in range(2)]
    queues = [native.Queue(pool, stop, np.zeros(native.COUNTS, np.int64)) for stop in stops]
    where = np.zeros(rows, np.int64), np.arange(rows)
    source, _ = draw.memory(8 * rows)
    order = draw.places(draw.changed(draw.rng.permutation(rows), 0.1))
    empty, one = order[:0], np.ones(1, np.int64)
    run, fill = np.array([[0, 0, 8, 1, 8, 1, 0]]), draw.memory(8)[0]
    complete, workers = threading.Semaphore(0), list[threading.Thread]()

    def work(ticket: int) -> None:
        scratch, served, settled = native.Scratch(), None, 0
        while (event := pool.work(scratch, served, ticket, settled)) is not None:
            served, _, name, part, _, settled = event
            if served is not None:
                served.set_brief(part < 0)
            if name is not None and part < 0:
                complete.release()

    def begin(tickets: list[int]) -> None:
        workers.extend(threading.Thread(target=work, args=(ticket,)) for ticket in tickets)
        for worker in workers[-len(tickets) or len(workers) :]:
            worker.start()

    with draw.file(bytes(draw.upto(16 * rows, 0))) as descriptor:
        added = 0
        try:
            for group in range(draw.upto(4)):
                queue = queues[group % 2]
                if group < 2 and draw.rng.random() < 0.7:
                    begin(queue.begin(group))
                copies = native.plan_memory(one * source, one * 8, one * draw.upto(1, 0), rows, order, empty, *where)
                reads = native.plan_rows(
                    NOTHING, one * 0, 1, rows, 0, 8, np.array([[0, 0, 8, 0, 1]]), run, one * fill, one * 8, 4096, 0, 0,
                    np.arange(rows), NOTHING, *where,
                )  # fmt: skip
                edges = draw.changed(np.unique([0, *draw.rng.integers(0, rows + 1, 3), rows]))
                to = draw.slots(1, 8 * rows), one * 0, one * 8
                queue.add(group, [(copies, edges, 0, -1, *to), (reads, edges, 9, descriptor, *to)])
                added += 1
                queue.call(draw.upto(2, 0))
                queue.let_through(0)
                if draw.rng.random() < 0.2:
                    begin(queue.give_up())
            if len(workers) >= threads and draw.rng.random() < 0.5:
                for _ in range(added):
                    complete.acquire(timeout=0.01)
        finally:
            for stop, queue in zip(stops, queues, strict=True):
                stop[0] = 1
                queue.end()
            for worker in workers:
                worker.join()
            for queue in queues:
                queue.drop()


TARGETS: dict[str, Callable[[], Callable[[Draw], None]]] = {
    "lays": lambda: lays,
    "pools": lambda: pools,
    "plans": lambda: plans,
    "boxes": lambda: boxes,
    "pipelines": Pipelines,
    "heap": lambda: heap,
    "sparse": lambda: sparse,
    "reads": lambda: reads,
    "files": lambda: files,
}


def main() -> int:
    """Call each target in turn until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("made", help="the kernels that are called")
    parser.add_argument("seed", type=int)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    native = use(options.made)
    targets = {name: make() for name, make in TARGETS.items() if options.target in (None, name)}
    end = time.monotonic() + 60 * options.minutes
    last = os.open(options.made + ".call", os.O_CREAT | os.O_WRONLY)  # of what it called, if the process ends
    counts, refused, seed = collections.Counter[str](), collections.Counter[str](), options.seed
    while time.monotonic() < end:
        for name, call in targets.items():
            said = f"--target {name} --seed {seed} --once"
            os.pwrite(last, f"{said:<60}".encode(), 0)
            counts[name] += 1
            try:
                call(Draw(native, seed))
            except REFUSED:
                refused[name] += 1
            except BaseException:
                print(f"python -m tools.fuzz_kernels {said}", file=sys.stderr)
                raise
        seed += 1
        if options.once:
            break
    for name, count in counts.items():
        print(f"{name:<10}{count:>10,} calls, of which {refused[name]:,} were refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The kernels in C against `kernels_in_numpy`, for drawn arguments; and what they refuse.

Memory that they must not touch is looked at too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import kernels_in_numpy as twins
import numpy as np
import pytest

from h5stream.compiled import _native as native
from h5stream.engine.slots import address_of

ROOT = Path(__file__).parents[2]
KINDS = [("i4", "i4"), ("i8", "i8"), ("i8", "i4")]
"""Types of rows, and of places."""


def window(generator, rows, row_nbytes, batches=3, shift=0):
    """Return memory, the addresses of slots in it, where each of some rows goes, and their places in the memory."""
    nbytes = rows * row_nbytes + 128
    memory = np.full(batches * nbytes + 256, 0xA5, np.uint8)
    begins = (-address_of(memory) % 64 + shift + np.arange(batches) * nbytes).astype(np.int64)
    batch, within = np.divmod(generator.permutation(batches * rows)[:rows], rows)
    return memory, address_of(memory) + begins, batch, within, begins[batch] + within * row_nbytes


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("row_nbytes", [1, 2, 3, 4, 8, 12, 16, 40, 100, 256, 300, 1024])
@pytest.mark.parametrize("shift", [0, 1, 16])
def test_rows_and_spans_of_a_chunk_come_to_their_places(kinds, row_nbytes, shift):
    generator = np.random.default_rng(row_nbytes)
    stride, count = row_nbytes + 5, 20
    source = generator.integers(0, 256, 40 * stride, dtype=np.uint8)
    pieces = [[[3, 0, row_nbytes]], [[2, 1, row_nbytes - 1], [0, 0, 1]][: 1 if row_nbytes == 1 else 2]]
    for segments in [*pieces, [[0, 0, stride]]]:
        segments = np.array([each for each in segments if each[2]], dtype=np.int64).reshape(-1, 3)
        width = max(stride, row_nbytes)
        memory, slots, batch, within, places = window(generator, count * 4, width, shift=shift)
        chosen = generator.permutation(count)  # of all places, every fourth: a span has at most four rows
        batch, within, places = (each[: count * 4] for each in (batch, within, places))
        order = np.argsort(places)[::4][chosen]
        batch, within, places = batch[order], within[order], places[order]
        rows, lengths = generator.integers(0, 30, count), np.ones(count, np.int64)
        expected = memory.copy()
        twins.scatter(expected, places, rows, lengths, source, stride, segments, width)
        row_kind, place_kind = kinds
        to = rows.astype(row_kind), batch.astype(place_kind), within.astype(place_kind), slots, 0, width
        native.scatter(address_of(source), stride, segments, *to)
        np.testing.assert_array_equal(memory, expected)
        spans = to[0], lengths.astype(row_kind), *to[1:]
        memory[:] = 0xA5
        native.scatter_spans(address_of(source), stride, segments, *spans)
        np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize("row_nbytes", [4, 8, 12, 100])
@pytest.mark.parametrize("gap", [0, 4])
def test_spans_of_several_rows_lie_one_behind_the_other(kind, row_nbytes, gap):
    generator = np.random.default_rng(gap)
    lengths = np.array([3, 0, 90, 1, 7, 2])
    source = generator.integers(0, 256, 200 * (row_nbytes + gap), dtype=np.uint8)
    memory = np.full(200 * row_nbytes, 0xA5, np.uint8)
    within, rows = np.cumsum(lengths) - lengths, generator.integers(0, 100, 6)
    segments, expected = np.array([[0, 0, row_nbytes]]), memory.copy()
    twins.scatter(expected, within * row_nbytes, rows, lengths, source, row_nbytes + gap, segments, row_nbytes)
    some = [each.astype(kind) for each in (rows, lengths, np.zeros_like(rows), within)]
    native.scatter_spans(
        address_of(source), row_nbytes + gap, segments, *some, np.array([address_of(memory)]), 0, row_nbytes
    )
    np.testing.assert_array_equal(memory, expected)
    every = [np.empty(lengths.sum(), kind) for _ in range(3)]
    native.spread(some[0], some[2], some[3], some[1], *every)
    assert every[0].tolist() == [row + k for row, length in zip(rows, lengths, strict=True) for k in range(length)]
    assert every[2].tolist() == list(range(lengths.sum()))


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("shift", [0, 1, 2, 48])
@pytest.mark.parametrize("elements", [1, 7, 16, 33, 200])
def test_planes_come_to_their_places_wherever_lines_begin(width, shift, elements):
    generator = np.random.default_rng(elements)
    chunk_rows, count = 9, 70
    source = generator.integers(0, 256, chunk_rows * elements * width, dtype=np.uint8)
    planes = generator.permutation(width) * (chunk_rows * elements)
    memory, slots, batch, within, places = window(generator, count, elements * width, shift=shift)
    rows, expected = generator.integers(0, chunk_rows, count), memory.copy()
    whole = twins.elements_of_planes(source, planes, chunk_rows * elements).reshape(-1)
    segments = np.array([[elements // 2, 0, elements - elements // 2], [0, elements - elements // 2, elements // 2]])
    segments = segments[segments[:, 2] > 0]
    twins.scatter(expected, places, rows, np.ones(count, int), whole, elements * width, segments * width, 0)
    native.scatter_planes(source, planes, segments, elements, rows, batch, within, slots, 0, elements * width)
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 12])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 2500])
def test_planes_are_joined(width, count):
    source = np.random.default_rng(width).integers(0, 256, width * count, dtype=np.uint8)
    planes, out = np.arange(width) * count, np.zeros(width * count + 1, np.uint8)
    native.gather_planes(source, planes, count, out)
    assert out.tolist() == [*twins.elements_of_planes(source, planes, count).reshape(-1), 0]


@pytest.mark.parametrize("width", [2, 3, 4, 8, 12])
def test_planes_of_a_stack_are_joined_chunk_by_chunk(width):
    chunks, count, tail = 5, 9, 4
    stack = np.random.default_rng(width).integers(0, 256, (chunks, count * width + tail), dtype=np.uint8)
    out, planes = np.zeros(chunks * count * width, np.uint8), np.arange(width, dtype=np.int64) * count
    native.gather_planes_stack(stack.reshape(-1), planes, count, stack.shape[1], chunks, out)
    expected = [twins.elements_of_planes(chunk, planes, count) for chunk in stack]
    np.testing.assert_array_equal(out, np.concatenate(expected).reshape(-1))


@pytest.mark.parametrize("places", [[0], [5, 1], [7, 6, 5, 4, 3, 2, 1, 0], [2, 2, 19, 0, 4]])
def test_bytes_of_a_leaf_are_gathered_in_the_order_named(places):
    elements = np.random.default_rng(0).integers(0, 256, (50, 20), dtype=np.uint8)
    out = np.zeros(50 * len(places), np.uint8)
    native.gather_leaf(elements.reshape(-1), 20, np.array(places), 50, out)
    np.testing.assert_array_equal(out, elements[:, places].reshape(-1))


@pytest.mark.parametrize("seed", range(20))
def test_a_stack_of_chunks_comes_to_its_places_as_one_after_the_other_would(seed):
    generator = np.random.default_rng(seed)
    chunks, chunk_rows, row_nbytes = 6, 5, 40
    strides = np.array([16, 40, 33])  # of each piece
    segments = [np.array([[3, 8, 5], [9, 20, 7]]), np.array([[0, 0, 40]]), np.array([[32, 39, 1]])]
    stack = generator.integers(0, 256, (chunks, chunk_rows * 40), dtype=np.uint8)
    counts, piece = generator.integers(0, 5, chunks), generator.integers(0, 3, chunks)
    memory, slots, batch, within, places = window(generator, max(1, counts.sum()), row_nbytes)
    rows, expected, high = generator.integers(0, chunk_rows, counts.sum()), memory.copy(), np.cumsum(counts)
    for k, (low, end) in enumerate(zip(high - counts, high, strict=True)):
        some, ones = slice(low, end), np.ones(end - low, int)
        of = piece[k]
        twins.scatter(expected, places[some], rows[some], ones, stack[k], strides[of], segments[of], row_nbytes)
    total = len(rows)
    native.scatter_stack(
        address_of(stack.reshape(-1)), stack.shape[1], strides, np.concatenate(segments), np.array([0, 2, 3, 4]), piece,
        high - counts, high, rows, rows[:0], batch[:total], within[:total], slots, 0, row_nbytes,
    )  # fmt: skip
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize("row_nbytes", [3, 16, 64, 300, 5000])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_rows_anywhere_in_memory_are_gathered(kind, row_nbytes, count):
    generator = np.random.default_rng(count)
    source = generator.integers(0, 256, 100 * row_nbytes, dtype=np.uint8)
    memory, slots, batch, within, places = window(generator, max(count, 1), row_nbytes, shift=7)
    rows, expected = generator.integers(0, 100, count), memory.copy()
    to = [each[:count].astype(kind) for each in (rows, batch, within)]
    segments = np.array([[0, 0, row_nbytes]])
    twins.scatter(expected, places[:count], rows, np.ones(count, int), source, row_nbytes, segments, 0)
    native.gather_any(address_of(source), *to, slots, 0, row_nbytes)
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("used", [[0, 5, 24], [24, 24, 24], []])
def test_what_lies_behind_is_filled(used):
    memory, fill = np.full(72, 0xA5, np.uint8), np.array([1, 2, 3, 4], np.uint8)
    native.fill_behind(address_of(memory), 24, np.array(used, np.int64), address_of(fill), 4)
    for k, begin in enumerate(used):
        assert memory[24 * k : 24 * k + begin].tolist() == [0xA5] * begin
        assert memory[24 * k + begin : 24 * k + 24].tolist() == np.resize(fill, 24 - begin).tolist()


@pytest.fixture
def stored(tmp_path):
    """Open a file of random bytes; give its descriptor and the bytes."""
    data = np.random.default_rng(5).integers(0, 256, 200_000, dtype=np.uint8)
    (tmp_path / "bytes").write_bytes(data.tobytes())
    descriptor = os.open(tmp_path / "bytes", os.O_RDONLY)
    yield descriptor, data
    os.close(descriptor)


EXTENTS = {
    "whole rows": ([[0, 0, 40, 0, 1]], [[0, 0, 40, 1, 0, 1, 0]]),
    "two extents": ([[0, 2, 9, 0, 1], [0, 30, 8, 1, 2]], [[2, 0, 9, 1, 0, 1, 0], [30, 9, 8, 1, 0, 1, 0]]),
    "members, swapped": ([[0, 0, 36, 0, 2]], [[4, 0, 4, 3, 8, 4, 0], [0, 0, 2, 4, 8, 2, 1]]),
}


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
@pytest.mark.parametrize("what", EXTENTS)
@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("gap", [0, 100, 5000])
def test_rows_are_read_and_those_of_no_chunk_filled(stored, kind, chunk_rows, what, spans, gap):
    descriptor, data = stored
    generator = np.random.default_rng(chunk_rows)
    extents, runs = (np.array(each, dtype=np.int64) for each in EXTENTS[what])
    stride, total, first_row = 40, 700, 3
    chunks = -(-total // chunk_rows)
    begins = 11 + generator.permutation(chunks) * chunk_rows * stride
    numbers = np.flatnonzero(generator.random(chunks) < 0.8) if chunks > 1 else np.zeros(0, np.int64)
    offsets = begins[numbers] if chunks > 1 else begins
    rows = np.sort(generator.permutation(total)[:90])
    lengths = np.minimum(generator.integers(1, 4, 90), chunk_rows - rows % chunk_rows)
    lengths = np.minimum(lengths, total - rows) if spans else np.ones_like(rows)
    fields = [(100, 40), (0, 24)]
    memory = np.full(100 + 40 * 400, 0xA5, np.uint8)
    within = np.cumsum(lengths) - lengths
    expected = memory.copy()
    fills = [np.array([7, 8, 9, 10], np.uint8), np.array([1], np.uint8)]
    fields = [(0, 24), (24 * 300, 24)] if what.startswith("members") else [(0, 40)] * 2
    for row, length, place in zip(rows, lengths, within, strict=True):
        for k in range(length):
            chunk = (row + k) // chunk_rows
            at = begins[chunk] + (row + k - chunk * chunk_rows) * stride
            for run in runs:
                begin, nbytes = fields[run[6]]
                into, size = begin + (place + k) * nbytes + run[1], run[2] * run[3]
                there = chunks == 1 or chunk in numbers
                expected[into : into + size] = (
                    twins.run_of(data[at : at + stride], run) if there else np.resize(fills[run[6]], size)
                )
    scratch, counts = np.zeros(4096, np.uint8), np.zeros(5, np.int64)
    places = [each.astype(kind) for each in (rows + first_row, lengths if spans else rows[:0], 0 * rows, within)]
    arguments = [
        descriptor, numbers, offsets, 1, chunk_rows, first_row, stride, extents, runs,
        np.array([address_of(fill) for fill in fills]), np.array([4, 1]), address_of(scratch), 4096, gap, 0, counts,
        *places, np.array([address_of(memory)]), *(np.array(column) for column in zip(*fields, strict=True)),
    ]  # fmt: skip
    assert native.read_rows(*arguments) is True
    np.testing.assert_array_equal(memory, expected)
    assert counts[0] >= 1
    assert counts[3:].tolist() == [0, 0]
    arguments[2] = offsets + 1_000_000
    assert native.read_rows(*arguments) is (not len(offsets))
    assert counts[3] > 1_000_000


def test_long_rows_are_read_to_their_places(stored):
    descriptor, data = stored
    memory, counts = np.zeros(150_000, np.uint8), np.zeros(5, np.int64)
    native.read_rows(
        descriptor, np.zeros(0, np.int64), np.zeros(1, np.int64), 1, 2, 0, 70_000, np.array([[0, 0, 70_000, 0, 1]]),
        np.array([[0, 0, 70_000, 1, 0, 1, 0]]), np.array([address_of(memory)]), np.array([1]), 0, 70_000, 0, 1, counts,
        np.array([0, 1]), np.zeros(0, np.int64), np.array([0, 0]), np.array([1, 0]), np.array([address_of(memory)]),
        np.array([0]), np.array([70_000]),
    )  # fmt: skip
    assert (memory[:70_000] == data[70_000:140_000]).all()
    assert (memory[70_000:140_000] == data[:70_000]).all()
    assert counts[:2].tolist() == [2, 140_000]


def test_ranges_are_read_until_one_is_short(stored):
    descriptor, data = stored
    target = np.zeros(30, np.uint8)
    offsets, nbytes = np.array([5, 100, 199_995, 0]), np.array([10, 5, 10, 5])
    assert native.read_each(descriptor, offsets, nbytes, address_of(target)) == 2
    assert target[:15].tolist() == [*data[5:15], *data[100:105]]
    assert native.read_each(descriptor, offsets[:0], nbytes[:0], 0) == 0


@pytest.mark.parametrize("kind", ["i4", "i8"])
def test_reads_are_counted(kind):
    rows, lengths = np.array([2, 3, 9, 20], kind), np.array([1, 4, 1, 2], kind)
    assert native.count_reads(rows, rows[:0], 5) == (2, 5)
    assert native.count_reads(rows, lengths, 5) == (2, 2)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("offsets", [[range(4)], [range(3), range(5)], [[0, 2, 3], range(2), [0, 1, 4]]])
def test_boxes_of_volumes_come_from_all_of_their_chunks(mode, offsets):
    generator = np.random.default_rng(mode)
    shape, chunk = (9, 7, 8)[: len(offsets)], 4
    volume = generator.integers(0, 2**31, shape).astype("i4")
    sizes = np.array([len(each) for each in offsets])
    origins = np.stack([generator.integers(-2, size - 2, 12) for size in shape], axis=1)
    table = np.zeros((len(shape), sizes.max()), np.int64)
    for axis, each in enumerate(offsets):
        table[axis, : len(each)] = each
    follow = np.array([list(each) == list(range(len(each))) for each in offsets]).astype(np.int64)
    nbytes = 4 * int(sizes.prod())
    memory, filler = np.zeros(12 * nbytes, np.uint8), np.full(sizes[-1], -7, "i4")
    to = np.zeros(12, np.int32), np.arange(12, dtype=np.int32), np.array([address_of(memory)]), 0, nbytes
    for begin in np.ndindex(*(-(-size // chunk) for size in shape)):
        low = np.array(begin) * chunk
        high = np.minimum(low + chunk, shape)
        part = np.ascontiguousarray(volume[tuple(slice(a, b) for a, b in zip(low, high, strict=True))])
        native.place_boxes(
            np.array([address_of(part)]), np.array([part.strides]), low[None], high[None], np.array([shape]),
            np.array([0]), np.array([12]), table, sizes, follow, mode, 4, origins, *to,
        )  # fmt: skip
    if mode == 0:
        shapes = np.tile(shape, (12, 1))
        native.fill_outside(address_of(filler), shapes, table, sizes, 4, origins, *to)
    for origin, found in zip(origins, memory.view("i4").reshape(12, *sizes), strict=True):
        expected, inside = twins.box(volume, origin, offsets, mode)
        np.testing.assert_array_equal(found, np.where(inside, expected, -7))


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize(("count", "buckets"), [(0, 1), (1, 1), (2, 1), (300, 1), (300, 4), (3000, 16)])
def test_the_shuffle_is_that_of_its_description(kind, count, buckets):
    state = np.random.SeedSequence(count).generate_state(4, np.uint64)
    expected, found = twins.shuffled(count, buckets, state), np.empty(count, kind)
    native.shuffled_into(found, np.zeros(buckets + 1, np.int64), state)
    assert found.tolist() == expected


@pytest.mark.parametrize("most_strata", [1, 3])
def test_groups_go_to_the_part_that_lacks_most_of_them(most_strata):
    generator = np.random.default_rng(most_strata)
    groups, edges = (
        generator.permutation(40),
        np.concatenate([[0], np.cumsum(generator.integers(1, most_strata + 1, 40))]),
    )
    strata, samples = generator.integers(0, 4, edges[-1]), generator.integers(1, 9, edges[-1])
    weights, lacks, homes = 2.0 ** np.arange(4), generator.integers(1, 1000, (4, 3)) * 100, np.empty(40, np.int64)
    given = groups, edges, strata, samples, weights, np.array([2, 0, 1]), 100
    expected = twins.homes_of_groups(*given, lacks.copy())
    native.deal_groups(*given, lacks, homes)
    assert homes.tolist() == [expected[group] for group in range(40)]


@pytest.mark.parametrize("kind", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("index", ["i1", "i2", "i4", "i8"])
def test_rows_of_a_sparse_matrix_are_laid_dense(kind, index):
    generator = np.random.default_rng(3)
    offsets = np.concatenate([[0], np.cumsum(generator.integers(0, 20, 15))])
    values, columns = (
        generator.integers(0, 9, offsets[-1]).astype(kind),
        generator.integers(0, 50, offsets[-1]).astype(index),
    )
    places = np.full(50, -1, np.int32)
    places[generator.permutation(50)[:20]] = np.arange(20)
    out = np.ones((15, 20), kind)
    native.add_sparse(values, columns, offsets, places, 20, out)
    np.testing.assert_array_equal(out, twins.dense(values, columns, offsets, places, 20))
    assert native.least_and_most(columns) == (columns.min(), columns.max())


@pytest.mark.parametrize(("kind", "index"), [("f4", "i4"), ("f8", "i8"), ("u2", "i8")])
@pytest.mark.parametrize("room", [20, 64, 400])
def test_rows_of_a_sparse_matrix_are_read_and_laid_dense(tmp_path, kind, index, room):
    generator = np.random.default_rng(room)
    lengths = generator.integers(0, 20, 30)
    first, count = np.cumsum(lengths) - lengths, int(lengths.sum())
    values, columns = generator.integers(0, 9, count).astype(kind), generator.integers(0, 50, count).astype(index)
    (tmp_path / "matrix").write_bytes(values.tobytes() + columns.tobytes())
    begins, wanted = np.arange(0, count, 64), np.sort(generator.permutation(30)[:18])
    places = np.where(np.arange(50) % 3 == 0, np.arange(50) // 3, -1).astype(np.int32)
    memory, counts = np.ones((18, 17), kind), np.zeros(5, np.int64)
    descriptor = os.open(tmp_path / "matrix", os.O_RDONLY)
    arguments = [
        descriptor, begins * values.itemsize, 64, values.nbytes + begins * columns.itemsize, 64, 5, first[wanted] + 5,
        lengths[wanted], np.zeros(18, np.int64), np.arange(18) * 17, np.array([address_of(memory.view(np.uint8))]),
        np.empty(room, kind), np.empty(room, index), places, (places >= 0).astype(np.uint8), np.empty(17, kind), counts,
    ]  # fmt: skip
    assert native.read_dense(*arguments) == native.NONE_WRONG
    expected = twins.dense(values, columns, np.append(first, count), places, 17)
    np.testing.assert_array_equal(memory, expected[wanted])
    assert counts[4] == 0
    arguments[13] = places[: columns[first[wanted][0] :].max()]
    arguments[14] = arguments[14][: len(arguments[13])]
    assert native.read_dense(*arguments) >= len(arguments[13])
    arguments[1] = begins + 10**6
    arguments[13], arguments[14] = places, (places >= 0).astype(np.uint8)
    assert native.read_dense(*arguments) == native.NONE_WRONG
    assert counts[3] >= 10**6
    arguments[7] = np.full(18, 2**40)
    with pytest.raises(ValueError, match="read_dense: numbers in the arrays lead out of the arrays"):
        native.read_dense(*arguments)
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("rows", [0, 3, 4, 21])
def test_whole_numbers_are_summed_exactly(kind, rows):
    info = np.iinfo(kind)
    values = np.random.default_rng(rows).integers(info.min, info.max, (rows, 6), dtype=kind, endpoint=True)
    values[: rows // 2, 0], values[: rows // 2, 1] = info.min, info.max
    exact = values.astype(object)
    if values.itemsize <= 2:
        sums, squares = np.zeros((1, 6), np.int64), np.zeros((1, 6), np.int64)
        native.add_short_integers(values, sums[0], squares[0])
    else:
        sums, squares = np.zeros((3, 6), np.int64), np.zeros((5, 6), np.int64)
        native.add_integers(values, sums, squares)
    assert twins.total(sums) == [sum(column) for column in exact.T]
    assert twins.total(squares) == [sum(column**2) for column in exact.T]


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("rows", [1, 4, 30])
@pytest.mark.parametrize("columns", [1, 5, 64])
def test_moments_are_those_of_numpy(kind, rows, columns):
    values = np.random.default_rng(rows).normal(3, 2, (rows, columns)).astype(kind)
    shift, sums, squares = np.linspace(0, 4, columns), np.zeros(columns), np.zeros(columns)
    least, most = values[0].copy(), values[0].copy()
    native.add_moments(values, shift, sums, squares, least, most)
    apart = values.astype(np.float64) - shift
    np.testing.assert_allclose(sums, apart.sum(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(squares, (apart**2).sum(axis=0), rtol=1e-12)
    assert (least.tolist(), most.tolist()) == (values.min(axis=0).tolist(), values.max(axis=0).tolist())


@pytest.mark.parametrize("count", [0, 1, 7, 8, 1001])
def test_bytes_are_counted(count):
    values, counts = np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8), np.ones(256, np.int64)
    native.count_bytes(values, counts)
    assert (counts - 1).tolist() == np.bincount(values, minlength=256).tolist()


LONGS, PLACES = np.zeros(3, np.int64), np.zeros(3, np.int32)
TO = PLACES, PLACES, PLACES, LONGS, 0, 1
WRONG = {
    "too few arguments": ("scatter", (0,), TypeError),
    "a text for a number": ("copy_past_cache", ("0", 0, 0), TypeError),
    "a fraction for a number": ("copy_past_cache", (0, 0, 0.5), TypeError),
    "a number beyond 64 bits": ("copy_past_cache", (2**64, 0, 0), ValueError),
    "a negative count": ("copy_past_cache", (0, 0, -1), ValueError),
    "a list for an array": ("count_bytes", ([1], np.zeros(256, np.int64)), TypeError),
    "floats for rows": ("gather_any", (0, np.zeros(3), *TO[1:]), TypeError),
    "short numbers for rows": ("gather_any", (0, PLACES.astype("i2"), *TO[1:]), TypeError),
    "unsigned numbers for rows": ("gather_any", (0, PLACES.astype("u4"), *TO[1:]), TypeError),
    "a foreign byte order": ("gather_any", (0, PLACES.astype(">i4"), *TO[1:]), TypeError),
    "places of other lengths": ("gather_any", (0, PLACES, PLACES[:2], *TO[2:]), ValueError),
    "places apart": ("gather_any", (0, PLACES, np.zeros(6, np.int32)[::2], *TO[2:]), ValueError),
    "places not aligned": ("gather_any", (0, np.zeros(13, np.uint8)[1:].view(np.int32), *TO[1:]), ValueError),
    "a table for places": ("gather_any", (0, PLACES[None], *TO[1:]), ValueError),
    "segments of two columns": ("scatter", (0, 1, np.zeros((1, 2), np.int64), *TO), ValueError),
    "lengths of other lengths": (
        "scatter_spans",
        (0, 1, np.zeros((1, 3), np.int64), PLACES, PLACES[:1], *TO[1:]),
        ValueError,
    ),
    "three planes": ("scatter_planes", (np.zeros(9, np.uint8), LONGS, np.zeros((1, 3), np.int64), 1, *TO), ValueError),
    "planes outside": ("gather_planes", (np.zeros(9, np.uint8), LONGS + 8, 3, np.zeros(9, np.uint8)), ValueError),
    "no room for planes": ("gather_planes", (np.zeros(9, np.uint8), LONGS, 3, np.zeros(8, np.uint8)), ValueError),
    "a stack outside": (
        "gather_planes_stack",
        (np.zeros(9, np.uint8), LONGS, 1, 5, 2, np.zeros(8, np.uint8)),
        ValueError,
    ),
    "a huge stack": (
        "gather_planes_stack",
        (np.zeros(9, np.uint8), LONGS, 1, 2**62, 4, np.zeros(8, np.uint8)),
        ValueError,
    ),
    "a member outside": ("gather_leaf", (np.zeros(9, np.uint8), 4, LONGS + 2, 3, np.zeros(9, np.uint8)), ValueError),
    "spans longer than their room": (
        "spread",
        (PLACES, PLACES, PLACES, PLACES + 1, *[np.zeros(2, "i4")] * 3),
        ValueError,
    ),
    "huge spans": ("spread", (PLACES, PLACES, PLACES, LONGS + 2**62, *[np.zeros(2, "i4")] * 3), ValueError),
    "an empty fill value": ("fill_behind", (0, 1, LONGS, 0, 0), ValueError),
    "no rows to count": ("count_reads", (PLACES[:0], PLACES[:0], 1), ValueError),
    "no columns": ("least_and_most", (LONGS[:0],), ValueError),
    "three buckets": ("shuffled_into", (PLACES, np.zeros(4, np.int64), np.ones(4, np.uint64)), ValueError),
    "half a state": ("shuffled_into", (PLACES, np.zeros(2, np.int64), np.ones(2, np.uint64)), ValueError),
    "a group that there is not": (
        "deal_groups",
        (LONGS + 7, LONGS, LONGS, LONGS, np.ones(3), LONGS[:1], 1, np.ones((1, 1), np.int64), LONGS.copy()),
        ValueError,
    ),
    "a negative place": ("order_by_place", (PLACES, PLACES - 1, PLACES.copy()), ValueError),
    "a sample that there is not": (
        "lay_stretches",
        (PLACES + 3, *[PLACES] * 3, np.zeros(2, np.int64), *(np.zeros(n, np.int64) for n in (3, 3, 4, 4))),
        ValueError,
    ),
    "a batch that there is not": ("begins_of_stretches", (PLACES, PLACES + 9, LONGS, LONGS, LONGS.copy()), ValueError),
    "values of another type": (
        "add_sparse",
        (np.zeros(3, "f4"), PLACES, np.array([0, 3]), PLACES, 3, np.zeros((1, 1))),
        ValueError,
    ),
    "offsets beyond the values": (
        "add_sparse",
        (np.zeros(3), PLACES, np.array([0, 2**60]), PLACES, 3, np.zeros((1, 1))),
        ValueError,
    ),
    "a place beyond the row": (
        "add_sparse",
        (np.zeros(3), PLACES, np.array([0, 3]), PLACES + 1, 3, np.zeros((1, 1))),
        ValueError,
    ),
    "half floats": ("add_moments", (np.zeros((1, 1), "f2"), *[np.zeros(1)] * 5), TypeError),
    "sums of fewer columns": ("add_moments", (np.zeros((1, 2)), *[np.zeros(1)] * 5), ValueError),
    "few counts": ("count_bytes", (np.zeros(1, np.uint8), np.zeros(255, np.int64)), ValueError),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_refused(what):
    name, arguments, error = WRONG[what]
    with pytest.raises(error, match="." if error is TypeError else name):
        getattr(native, name)(*arguments)


def test_what_cannot_be_written_is_refused():
    counts = np.zeros(256, np.int64)
    counts.flags.writeable = False
    with pytest.raises(ValueError, match="count_bytes: counts cannot be written to"):
        native.count_bytes(np.zeros(1, np.uint8), counts)


def test_all_of_them_are_described():
    text = (ROOT / "h5stream" / "compiled" / "_native.pyi").read_text()
    names = {name for name in vars(native) if not name.startswith("__")}
    assert {name for name in names if f"\ndef {name}(" in text or f"\n{name}: " in text} == names


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("processor", ["this one", "any"])
def test_nothing_is_read_or_written_out_of_bounds(tmp_path, processor):
    """The tests of the kernels with an extension that looks at every access, and at every shift and sum."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if not Path(library.stdout.strip()).is_absolute():
        pytest.skip("there is no gcc with its sanitizers")
    made, sources = tmp_path / "_native.abi3.so", map(str, (ROOT / "h5stream" / "compiled").glob("*.c"))
    flags = [
        "-shared",
        "-fPIC",
        "-O1",
        "-g",
        "-std=gnu11",
        "-fwrapv",
        "-fno-strict-aliasing",
        "-DPy_LIMITED_API=0x030B0000",
    ]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I" + sysconfig.get_path("include")]
    flags += ["-D__builtin_cpu_supports(unit)=0"] if processor == "any" else []
    subprocess.run(["gcc", *flags, *sources, "-o", str(made)], check=True)
    code = (
        "import importlib.util as u, sys, pytest, numpy\n"
        f"spec = u.spec_from_file_location('h5stream.compiled._native', {str(made)!r})\n"
        "sys.modules[spec.name] = module = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "import h5stream.compiled\n"
        "h5stream.compiled._native = module\n"
        "sys.exit(pytest.main(['-q', '-x', '-n', '0', *sys.argv[1:]]))\n"
    )
    checked = ["tests/compiled", "tests/engine/test_kernels.py", "tests/test_variable_length.py"]
    environment = os.environ | {
        "LD_PRELOAD": library.stdout.strip(), "PYTHONPATH": str(ROOT),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # libhdf5 asks for what damaged files say
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *checked], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

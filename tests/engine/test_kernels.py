"""The inner loops against NumPy, for random shapes, widths, strides and places."""

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.compiled import _native as kernels
from h5stream.engine.slots import address_of

GUARD = 64
"""Bytes before and after every slot that must stay as they are."""


class Slots:
    """Slots with guards around them, and where rows go in them."""

    def __init__(self, generator, rows, batches, row_nbytes, offset):
        size = offset + rows * row_nbytes
        self.memory = [np.full(size + 2 * GUARD, 0xA5, np.uint8) for _ in range(batches)]
        self.addresses = np.array([address_of(m) + GUARD for m in self.memory], dtype=np.int64)
        places = generator.permutation(rows * batches)[:rows]
        self.batch, self.within = (a.astype(np.int64) for a in np.divmod(places, rows))
        self.offset, self.row_nbytes = offset, row_nbytes
        self.expected = [m.copy() for m in self.memory]

    def expect(self, i, first, content):
        """Say that row `i` gets `content` from byte `first` on."""
        start = GUARD + self.offset + int(self.within[i]) * self.row_nbytes + first
        self.expected[int(self.batch[i])][start : start + len(content)] = content

    def check(self):
        for found, expected in zip(self.memory, self.expected, strict=True):
            np.testing.assert_array_equal(found, expected)


@st.composite
def segments_of(draw, most_elements=600, most_segments=4):
    """Draw a row of a chunk, a row of a batch, and runs of elements that go from one to the other."""
    # Short runs, the 16 bytes that have an instruction of their own, and runs of many cache lines.
    lengths = st.one_of(st.integers(1, 40), st.just(16), st.integers(64, most_elements))
    counts = draw(st.lists(lengths, min_size=1, max_size=most_segments))
    gaps = st.lists(st.integers(0, 5), min_size=len(counts), max_size=len(counts))
    sides = []
    for order in (range(len(counts)), draw(st.permutations(range(len(counts))))):
        at, starts = 0, [0] * len(counts)
        for k, gap in zip(order, draw(gaps), strict=True):
            starts[k] = at + gap
            at += gap + counts[k]
        sides.append((starts, at + draw(st.integers(0, 3))))
    (source, in_chunk), (target, in_batch) = sides
    return np.array(list(zip(source, target, counts, strict=True)), dtype=np.int64), in_chunk, in_batch


@examples(200)
@given(segments_of(), st.integers(1, 12), st.integers(1, 12), st.integers(1, 3), st.integers(0, 9), st.data())
def test_scatter_copies_runs_of_bytes_to_their_places_and_nothing_else(shape, chunk_rows, rows, batches, offset, data):
    segments, in_chunk, in_batch = shape
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    source = generator.integers(0, 256, (chunk_rows, in_chunk), dtype=np.uint8)
    in_rows = generator.integers(0, chunk_rows, rows)
    slots = Slots(generator, rows, batches, in_batch, offset)
    for i, row in enumerate(in_rows):
        for first, into, count in segments:
            slots.expect(i, into, source[row, first : first + count])
    kernels.scatter(
        address_of(source.reshape(-1)), in_chunk, segments, in_rows, slots.batch, slots.within, slots.addresses, offset,
        in_batch,
    )  # fmt: skip
    slots.check()


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_scatter_of_single_numbers_is_right_aligned_or_not(count, shift):
    generator = np.random.default_rng(count)
    source = generator.integers(0, 256, 20 * (count + shift) + 8, dtype=np.uint8)
    in_rows = generator.integers(0, 20, 30)
    slots = Slots(generator, 30, 2, count, 8)
    segments = np.array([[shift, 0, count]], dtype=np.int64)
    for i, row in enumerate(in_rows):
        start = row * (count + shift) + shift
        slots.expect(i, 0, source[start : start + count])
    kernels.scatter(
        address_of(source), count + shift, segments, in_rows, slots.batch, slots.within, slots.addresses, 8, count
    )
    slots.check()


def test_scatter_with_a_stride_of_zero_repeats_one_row():
    fill = np.arange(12, dtype=np.uint8)
    slots = Slots(np.random.default_rng(0), 9, 2, 12, 0)
    for i in range(9):
        slots.expect(i, 0, fill)
    kernels.scatter(
        address_of(fill), 0, np.array([[0, 0, 12]]), np.arange(9), slots.batch, slots.within, slots.addresses, 0, 12
    )
    slots.check()


@pytest.mark.parametrize("width", [2, 4, 8])
@examples(100)
@given(shape=segments_of(), chunk_rows=st.integers(1, 9), rows=st.integers(1, 9), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("swapped", [False, True])
def test_planes_are_joined_and_scattered_in_one_pass(width, swapped, shape, chunk_rows, rows, seed):
    segments, in_chunk, in_batch = shape
    generator = np.random.default_rng(seed)
    count = chunk_rows * in_chunk
    # The wanted number lies inside a wider stored element, as a member of a compound does.
    stored_nbytes, inside = width + 3, 2
    elements = generator.integers(0, 256, (count, stored_nbytes), dtype=np.uint8)
    source = np.ascontiguousarray(elements.T).reshape(-1)
    order = np.arange(width)[::-1] if swapped else np.arange(width)
    wanted = elements[:, inside + order].reshape(chunk_rows, in_chunk, width)
    in_rows = generator.integers(0, chunk_rows, rows)
    slots = Slots(generator, rows, 2, in_batch * width, 128)
    for i, row in enumerate(in_rows):
        for first, into, n in segments:
            slots.expect(i, into * width, wanted[row, first : first + n].reshape(-1))
    kernels.scatter_planes(
        source, (inside + order) * count, segments, in_chunk, in_rows, slots.batch, slots.within, slots.addresses, 128,
        in_batch * width,
    )  # fmt: skip
    slots.check()


@examples(200)
@given(st.integers(1, 17), st.integers(0, 70), st.integers(0, 2**32))
def test_gathering_planes_undoes_a_shuffle_of_any_width(width, count, seed):
    elements = np.random.default_rng(seed).integers(0, 256, (count, width), dtype=np.uint8)
    out = np.zeros(count * width, np.uint8)
    planes = np.arange(width, dtype=np.int64) * count
    kernels.gather_planes(np.ascontiguousarray(elements.T).reshape(-1), planes, count, out)
    np.testing.assert_array_equal(out, elements.reshape(-1))


@examples(200)
@given(st.integers(1, 20), st.integers(0, 50), st.data())
def test_gathering_a_leaf_takes_its_bytes_in_the_order_named(stride, count, data):
    places = np.array(data.draw(st.lists(st.integers(0, stride - 1), min_size=1, max_size=20)), dtype=np.int64)
    elements = np.random.default_rng(count).integers(0, 256, (count, stride), dtype=np.uint8)
    out = np.zeros(count * len(places), np.uint8)
    kernels.gather_leaf(elements.reshape(-1), stride, places, count, out)
    np.testing.assert_array_equal(out, elements[:, places].reshape(-1))


@examples(100)
@given(
    pieces=st.lists(segments_of(most_elements=100, most_segments=2), min_size=1, max_size=3),
    chunks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=8),
    chunk_rows=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_a_stack_of_chunks_is_scattered_as_one_after_the_other_would_be(pieces, chunks, chunk_rows, seed):
    generator = np.random.default_rng(seed)
    row_nbytes = max(in_batch for _, _, in_batch in pieces)
    chunk_nbytes = chunk_rows * max(in_chunk for _, in_chunk, _ in pieces)
    stack = generator.integers(0, 256, (len(chunks), chunk_nbytes), dtype=np.uint8)
    total = sum(rows for _, rows in chunks)
    in_rows = generator.integers(0, chunk_rows, total)
    slots = Slots(generator, max(1, total), 2, row_nbytes, 128)
    piece, low, high, at = [], [], [], 0
    for c, (which, rows) in enumerate(chunks):
        which %= len(pieces)
        segments, in_chunk, _ = pieces[which]
        for i in range(at, at + rows):
            row = stack[c, in_rows[i] * in_chunk :]
            for first, into, count in segments:
                slots.expect(i, into, row[first : first + count])
        piece.append(which)
        low.append(at)
        high.append(at := at + rows)
    kernels.scatter_stack(
        address_of(stack.reshape(-1)), chunk_nbytes, np.array([in_chunk for _, in_chunk, _ in pieces]),
        np.concatenate([segments for segments, _, _ in pieces]),
        np.cumsum([0] + [len(segments) for segments, _, _ in pieces]), np.array(piece), np.array(low), np.array(high),
        in_rows, in_rows[:0], slots.batch[:total], slots.within[:total], slots.addresses, 128, row_nbytes,
    )  # fmt: skip
    slots.check()


@pytest.mark.parametrize("width", [2, 3, 4, 8, 12])
def test_a_stack_of_shuffled_chunks_is_unshuffled_chunk_by_chunk(width):
    chunks, count, tail = 5, 9, 4
    elements = np.random.default_rng(width).integers(0, 256, (chunks, count, width), dtype=np.uint8)
    stack = np.zeros((chunks, count * width + tail), np.uint8)
    stack[:, : count * width] = elements.transpose(0, 2, 1).reshape(chunks, -1)
    out = np.zeros(chunks * count * width, np.uint8)
    planes = np.arange(width, dtype=np.int64) * count
    kernels.gather_planes_stack(stack.reshape(-1), planes, count, stack.shape[1], chunks, out)
    np.testing.assert_array_equal(out, elements.reshape(-1))

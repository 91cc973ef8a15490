"""Samples one behind the other in their batches, against NumPy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from h5stream.compiled._native import begins_of_stretches, lay_stretches, order_by_place


@st.composite
def samples(draw):
    """Draw batches, places in them and rows, of samples in any order; some batches and places have none."""
    places = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=30, unique=True))
    batch, within = (
        np.array(column, dtype=draw(st.sampled_from(["i4", "i8"]))) for column in zip(*places, strict=True)
    )
    return batch, within, np.array([draw(st.integers(0, 5)) for _ in places], dtype=np.int64)


@settings(max_examples=60, deadline=None)
@given(samples())
def test_each_sample_lies_behind_the_one_before_it(given_samples):
    batch, within, counts = given_samples
    order, number = np.lexsort((within, batch)), np.arange(len(batch))
    found = np.empty(len(batch), np.int32)
    if order_by_place(batch, within, found):
        assert found.tolist() == order.tolist()
    batches = int(batch.max()) + 1
    edges, starts, offsets = (np.full(n, -9) for n in (batches + 1, len(batch) + 1, len(batch) + batches))
    places, lengths, begins = np.empty_like(within), np.empty_like(counts), np.empty_like(counts)
    lay_stretches(order, batch, within, counts, edges, places, lengths, starts, offsets)
    begins_of_stretches(order, batch, edges, starts, begins)
    assert starts.tolist() == [0, *np.cumsum(counts[order])]
    assert (places.tolist(), lengths.tolist()) == (within[order].tolist(), counts[order].tolist())
    for one in range(batches):
        ours = number[batch[order] == one]
        own = np.append(0, np.cumsum(counts[order][ours])).tolist()
        low, high = edges[one], edges[one + 1]
        assert (high - low, offsets[low + one : high + one + 1].tolist()) == (len(ours), own)
        assert begins[order][ours].tolist() == own[:-1]


def test_few_samples_far_apart_are_left_to_a_sort():
    far = np.array([0, 1_000_000])
    assert not order_by_place(far, far, np.empty(2, np.int32))

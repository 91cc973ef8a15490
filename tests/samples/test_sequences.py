"""Segments and sequences as arrays, against loops that a reader would write."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.samples.axes import FieldSteps, axis_space
from h5stream.samples.kinds import Sequences, checked_steps
from h5stream.samples.segments import Bounds, Ends, Ids, Lengths, edges_of
from h5stream.samples.space import joined_space

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=8)
steps = st.lists(st.integers(-4, 6), min_size=1, max_size=6, unique=True)


def cumulated(lengths):
    return np.append(0, np.cumsum(lengths)).astype(np.int64)


def space_of(sequences, edges, steps):
    lengths = np.diff(edges)
    return axis_space(
        sequences, lengths[:, None], [FieldSteps(elements=lengths, least=min(steps), most=max(steps))], edges
    )


def anchors_by_hand(lengths, sequences, first, last):
    """Walk through each segment, row by row."""
    before, after = (0, 0) if sequences.pad is None else sequences.pad_rows or (10**9, 10**9)
    found, start = [], 0
    for length in lengths:
        fits = [
            row
            for row in range(length)
            if max(0, -(row + first)) <= before and max(0, row + last - (length - 1)) <= after
        ]
        chosen = fits[:: sequences.stride]
        if sequences.tail == "shift" and fits and fits[-1] not in chosen:
            chosen.append(fits[-1])
        found += [start + row for row in chosen]
        start += length
    return found


@given(
    lengths,
    steps,
    st.integers(1, 5),
    st.sampled_from([(None, None), ("edge", None), ("zeros", (0, 2)), (7, (1, 0)), ("edge", (2, 1))]),
    st.sampled_from(["drop", "shift"]),
)
@settings(deadline=None, max_examples=400)
def test_anchors_are_those_that_a_walk_through_the_segments_finds(lengths, steps, stride, padding, tail):
    pad, pad_rows = padding
    tail = "drop" if pad is not None else tail
    sequences = Sequences(stride=stride, pad=pad, pad_rows=pad_rows, tail=tail)
    expected = anchors_by_hand(lengths, sequences, min(steps), max(steps))
    if expected:
        assert space_of(sequences, cumulated(lengths), steps).rows.tolist() == [expected]
        return
    with pytest.raises(OptionError, match="no sequence fits"):
        space_of(sequences, cumulated(lengths), steps)


@given(lengths)
@settings(deadline=None)
def test_four_ways_to_say_where_segments_end(lengths):
    rows, edges = sum(lengths), cumulated(lengths)
    assert edges_of(Lengths("n"), [np.array(lengths)], rows).tolist() == edges.tolist()
    whole = [length for length in lengths if length] or [1]  # an empty one has no row that could say so
    rows, some = sum(whole), cumulated(whole)
    assert edges_of(Bounds("b"), [some[1:-1]], rows).tolist() == some.tolist()
    assert edges_of(Bounds("b"), [some], rows).tolist() == some.tolist()
    ids = np.repeat(np.arange(len(whole)), whole)
    assert edges_of(Ids("i"), [ids], rows).tolist() == some.tolist()
    flags = np.zeros(rows, dtype=bool)
    flags[some[1:-1] - 1] = True
    assert edges_of(Ends("a", "b"), [flags, np.zeros(rows, "f4")], rows).tolist() == some.tolist()


def test_spaces_that_follow_one_another_are_one():
    one, two = (space_of(Sequences(2), np.array(edges), [0, 1]) for edges in ([0, 3], [0, 1, 4]))
    space = joined_space([one, two], [0, 3])
    assert (space.rows.tolist(), space.edges.tolist(), space.left_out) == ([[0, 1, 4, 5]], [0, 3, 4, 7], 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sequences(0), "length must be at least 1"),
        (lambda: Sequences(2, stride=0), "stride must be at least 1"),
        (lambda: Sequences(2.5), "length is an integer"),
        (lambda: Sequences(2, pad="repeat"), "'edge', 'zeros' or a number"),
        (lambda: Sequences(2, tail="cut"), "'drop' or 'shift'"),
        (lambda: Sequences(2, pad="edge", tail="shift"), "leave pad= out"),
        (lambda: Sequences(2, pad_rows=(1, 1)), "needs pad="),
        (lambda: Sequences(2, pad="edge", pad_rows=3), "two numbers of rows"),
        (lambda: checked_steps([]), "steps= is empty"),
        (lambda: checked_steps("ab"), "a range or a list"),
        (lambda: checked_steps([0, 1.5]), "a step is an integer"),
        (lambda: Ends(), "takes names of fields"),
        (lambda: edges_of(Ends("t"), [np.zeros((4, 2))], 4), "one value for each of 4 rows"),
        (lambda: edges_of(Lengths("n"), [np.array([2, 3])], 6), "add up to 5, but the fields have 6 rows"),
        (lambda: edges_of(Lengths("n"), [np.array([-1, 7])], 6), "0 or more"),
        (lambda: edges_of(Bounds("b"), [np.array([3, 2])], 6), "ascending row numbers from 0 to 6"),
        (lambda: edges_of(Bounds("b"), [np.array(["a"])], 6), "numbers of rows"),
        (
            lambda: space_of(Sequences(9), np.array([0, 3, 8]), range(9)),
            "the longest of 2 segments has 5",
        ),
    ],
)
def test_bad_input_is_named(make, says):
    with pytest.raises(OptionError, match=says):
        make()

"""The plan: which chunks, in which order, coalesced how, and where each row lands; without reading anything."""

import itertools

import numpy as np
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.engine.landing.chunks import chunk_tables
from h5stream.engine.plan import Placement
from h5stream.engine.tasks import TASK_NBYTES
from h5stream.order.epoch import Window
from h5stream.storage.filters import Filter, Pipeline
from h5stream.storage.index import MISSING, ChunkIndex
from h5stream.storage.layout import DECODED, DatasetPart
from h5stream.storage.rowbox import column_pieces

GAP_NBYTES = 4096


def make_part(rows=100, chunk_rows=8, *, columns=1, stored=None, offset=None, nbytes=40, row_start=0):
    """Make a dataset part that lies nowhere: chunks of `chunk_rows` rows, `columns` of them across a row."""
    grid = (-(-rows // chunk_rows), columns)
    numbers_ = np.arange(grid[0] * columns) if stored is None else np.asarray(stored)
    offset = 1000 + numbers_ * nbytes if offset is None else np.asarray(offset)
    return DatasetPart(
        file=0,
        path="x",
        rows=rows,
        row_start=row_start,
        access=DECODED,
        reason="",
        chunk_rows=chunk_rows,
        index=ChunkIndex(
            shape=(rows, columns),
            chunk_shape=(chunk_rows, 1),
            grid=grid,
            numbers=numbers_.astype(np.int64),
            offset=offset.astype(np.int64),
            nbytes=np.full(len(numbers_), nbytes, dtype=np.int64),
            filter_mask=np.zeros(len(numbers_), dtype=np.uint32),
        ),
        pipeline=Pipeline(filters=(Filter(id=1),)),
        columns=None,
        pieces=column_pieces((columns,), (1,)),
        targets=(),
        stored_element_nbytes=4,
        dtype_text="",
    )


def window_of(rows, batch=None):
    rows = np.asarray(rows, dtype=np.int64)
    batch = np.zeros_like(rows) if batch is None else np.asarray(batch, dtype=np.int64)
    return Window(rows=rows, batch=batch, within=np.arange(len(rows), dtype=np.int64))


def plan(part, rows, *, task_nbytes=TASK_NBYTES):
    return list(chunk_tables(part, (), GAP_NBYTES, Placement.of(window_of(rows)), task_nbytes))


@examples(200)
@given(st.data())
def test_every_row_of_a_window_is_placed_once_for_each_piece(data):
    rows, chunk_rows = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    columns = data.draw(st.integers(1, 3))
    count = -(-rows // chunk_rows) * columns
    stored = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    offset = data.draw(st.permutations(range(len(stored))))
    part = make_part(
        rows,
        chunk_rows,
        columns=columns,
        stored=stored,
        offset=1000 + np.array(offset, dtype=np.int64) * chunk_rows * 4,
        nbytes=chunk_rows * 4,
    )
    wanted = sorted(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=40)))
    seen = []
    for task in plan(part, wanted, task_nbytes=data.draw(st.integers(1, 1000))):
        assert task.edges[0] == (task.entry == MISSING).sum()
        assert task.edges[-1] == len(task.number)
        assert (np.diff(task.offset) >= 0).all()
        for start, stop in itertools.pairwise(task.edges):
            ends = task.offset[start:stop] + task.nbytes[start:stop]
            gaps = task.offset[start + 1 : stop] - ends[:-1]
            assert ((gaps >= 0) & (gaps <= GAP_NBYTES)).all()
        for k in range(len(task.number)):
            rows_of = task.rows_of(k)
            chunk, column = divmod(int(task.number[k]), columns)
            assert part.pieces[task.piece[k]].number == column
            assert (task.entry[k] == MISSING) == (int(task.number[k]) not in stored)
            assert (task.entry[k] == MISSING) == (k < task.edges[0])
            if task.entry[k] != MISSING:
                assert task.offset[k] == part.index.offset[task.entry[k]]
                assert task.nbytes[k] == chunk_rows * 4
            in_turn = zip(rows_of.rows, rows_of.within, strict=True)
            seen += [(column, chunk * chunk_rows + int(r), int(w)) for r, w in in_turn]
    assert sorted(seen) == sorted((c, row, place) for c in range(columns) for place, row in enumerate(wanted))


def test_neighbours_are_fetched_together_and_what_lies_far_apart_is_not():
    gap = GAP_NBYTES
    offset = [0, 40, 80 + gap, 120 + gap + gap + 1]
    (task,) = plan(make_part(32, 8, offset=offset), range(32))
    assert task.edges.tolist() == [0, 3, 4]


def test_chunks_that_overlap_in_a_strange_file_are_fetched_apart():
    (task,) = plan(make_part(24, 8, offset=[100, 120, 130]), range(24))
    assert task.edges.tolist() == [0, 1, 2, 3]


def test_a_task_never_spans_more_of_the_file_than_its_share():
    # 10,000 chunks of 8 bytes, nearly as far apart as is still read along: 160 MB if taken together.
    part = make_part(10_000, 1, offset=np.arange(10_000) * GAP_NBYTES, nbytes=8)
    tasks = plan(part, range(10_000), task_nbytes=1 << 20)
    spans = [int(task.offset[-1] + task.nbytes[-1] - task.offset[0]) for task in tasks]
    assert max(spans) <= (1 << 20) + GAP_NBYTES
    assert sum(len(task.number) for task in tasks) == 10_000


def test_tasks_are_cut_by_decoded_bytes():
    part = make_part(800, 8, nbytes=10)  # 32 bytes decoded
    assert [len(task.number) for task in plan(part, range(800), task_nbytes=320)] == [10] * 10


def test_spans_of_a_chunk_with_more_rows_than_their_numbers_can_count_are_left_whole():
    """A chunk may have 2^31 rows, and more, of a dataset that has few."""
    spans = Placement(
        rows=np.array([7, 90], np.int32),
        batch=np.zeros(2, np.int32),
        within=np.array([0, 5], np.int32),
        counts=np.array([5, 9], np.int32),
    )
    for rows in (2**31 - 1, 2**31, 2**40):
        assert spans.cut_every(rows) is spans

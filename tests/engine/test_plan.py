"""The plan: which chunks, in which order, coalesced how, and where each row lands; without reading anything."""

import itertools

import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from making import make_file, numbers

from h5stream import H5Dataset
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.landing.chunks import Chunks
from h5stream.engine.plan import Placement
from h5stream.engine.reader import RowReader
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
    chunks = Chunks(part, (), GAP_NBYTES)
    return list(chunks.tables(Placement.of(window_of(rows)), task_nbytes))


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


def test_chunks_are_read_in_the_order_of_the_files_bytes():
    part = make_part(80, 8, offset=[900, 100, 500, 700, 300, 200, 800, 600, 400, 0])
    (task,) = plan(part, range(80))
    assert task.offset.tolist() == sorted(part.index.offset.tolist())


def test_a_chunk_that_holds_several_rows_is_read_once():
    (task,) = plan(make_part(), [0, 1, 7, 7, 8, 99])
    assert task.number.tolist() == [0, 1, 12]
    assert (task.high - task.low).tolist() == [4, 1, 1]


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


def test_missing_chunks_come_without_a_read():
    (task,) = plan(make_part(40, 8, stored=[1, 3]), range(40))
    assert task.number[task.entry == MISSING].tolist() == [0, 2, 4]
    assert (task.nbytes[task.entry == MISSING] == 0).all()


def test_batches_count_from_the_windows_first():
    window = window_of([0, 8, 16], batch=[7, 5, 6])
    tasks = Chunks(make_part(24, 8), (), GAP_NBYTES).plan(Placement.of(window, 5), 1)
    assert [task.placement.first_batch for task in tasks] == [2, 0, 1]


def test_rows_of_several_files_go_to_their_parts():
    parts = (make_part(10, 8), make_part(5, 2, row_start=10), make_part(10, 4, row_start=15))
    of_parts = Placement.of(window_of([0, 9, 14, 15, 24])).of_parts(parts)
    assert {number: ours.rows.tolist() for number, ours in of_parts} == {0: [0, 9], 1: [14], 2: [15, 24]}


def test_rows_without_elements_need_no_task(tmp_path):
    path = make_file(tmp_path / "a.h5", shape=(4, 0), dtype="f4")
    reader = RowReader(H5Dataset(path, "x").layout)
    assert list(reader.plan(Placement.of(window_of(range(4))), TASK_NBYTES)) == []


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(task_nbytes=st.integers(1, 5000), rows=st.lists(st.integers(0, 99), min_size=1, max_size=50))
def test_how_a_window_is_cut_into_tasks_does_not_change_what_is_read(tmp_path, task_nbytes, rows):
    path = tmp_path / "a.h5"
    if not path.exists():
        make_file(path, data=numbers(100, 9), chunks=(7, 4), compression="gzip", shuffle=True)
    tasks = RowReader(H5Dataset(path, "x").layout).plan(Placement.of(window_of(sorted(rows))), task_nbytes)
    chunks = [one.ranges().offsets[0] for task in tasks for one in task.split()]
    assert len(set(chunks)) == len(chunks) == 3 * len({row // 7 for row in rows})


@pytest.mark.parametrize("rows", [[0], [99], [50, 50, 50]])
def test_small_windows_are_single_tasks(rows):
    assert len(plan(make_part(), rows)) == 1


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

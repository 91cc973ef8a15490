"""The plan: which chunks, in which order, coalesced how, and where each row lands; without reading anything."""

import itertools

import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from making import make_file, numbers

from h5stream import H5Dataset
from h5stream.engine.plan import MAX_GAP_NBYTES, plan_window
from h5stream.order.epoch import Window
from h5stream.storage.filters import Filter, Pipeline
from h5stream.storage.index import MISSING, ChunkIndex
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart
from h5stream.storage.rowbox import column_pieces


def make_part(rows=100, chunk_rows=8, *, columns=1, stored=None, offset=None, nbytes=40, access=DECODED, row_start=0):
    """Make a dataset part that lies nowhere: chunks of `chunk_rows` rows, `columns` of them across a row."""
    grid = (-(-rows // chunk_rows), columns)
    numbers_ = np.arange(grid[0] * columns) if stored is None else np.asarray(stored)
    offset = 1000 + numbers_ * nbytes if offset is None else np.asarray(offset)
    return DatasetPart(
        file=0,
        path="x",
        rows=rows,
        row_start=row_start,
        access=access,
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
        pipeline=Pipeline(filters=(Filter(id=1),) if access == DECODED else ()),
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


def plan(part, rows, **options):
    return plan_window(((part,),), window_of(rows), first_batch=0, **options)


@examples(200)
@given(st.data())
def test_every_row_of_a_window_is_placed_once_for_each_piece(data):
    rows, chunk_rows = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    columns = data.draw(st.integers(1, 3))
    count = -(-rows // chunk_rows) * columns
    stored = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    access = data.draw(st.sampled_from([DIRECT, DECODED]))
    offset = data.draw(st.permutations(range(len(stored))))
    part = make_part(
        rows,
        chunk_rows,
        columns=columns,
        stored=stored,
        offset=1000 + np.array(offset, dtype=np.int64) * chunk_rows * 4,
        nbytes=chunk_rows * 4,
        access=access,
    )
    wanted = sorted(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=40)))
    seen = []
    for task in plan(part, wanted, task_nbytes=data.draw(st.integers(1, 1000))):
        assert task.run[0] == 0
        assert task.run[-1] == len(task.number)
        for start, stop in itertools.pairwise(task.run):
            ends = task.offset[start:stop] + task.nbytes[start:stop]
            gaps = task.offset[start + 1 : stop] - ends[:-1]
            assert ((gaps >= 0) & (gaps <= MAX_GAP_NBYTES)).all()
        for k in range(len(task.number)):
            low, high = task.low[k], task.high[k]
            chunk, column = divmod(int(task.number[k]), columns)
            assert part.pieces[task.piece[k]].number == column
            assert (task.place[k] == MISSING) == (int(task.number[k]) not in stored)
            in_rows = task.placement.in_rows[low:high]
            if task.place[k] != MISSING:
                begin = part.index.offset[task.place[k]]
                assert task.offset[k] == begin + task.first_row[k] * 4
                assert task.first_row[k] == (in_rows.min() if access == DIRECT else 0)
                assert task.nbytes[k] == (in_rows.max() - in_rows.min() + 1 if access == DIRECT else chunk_rows) * 4
            places = task.placement.within[low:high]
            seen += [(column, chunk * chunk_rows + int(r), int(w)) for r, w in zip(in_rows, places, strict=True)]
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
    gap = MAX_GAP_NBYTES
    offset = [0, 40, 80 + gap, 120 + gap + gap + 1]
    (task,) = plan(make_part(32, 8, offset=offset), range(32))
    assert task.run.tolist() == [0, 3, 4]


def test_chunks_that_overlap_in_a_strange_file_are_fetched_apart():
    (task,) = plan(make_part(24, 8, offset=[100, 120, 130]), range(24))
    assert task.run.tolist() == [0, 1, 2, 3]


def test_a_task_never_spans_more_of_the_file_than_its_share():
    # 10,000 chunks of 8 bytes, nearly as far apart as is still read along: 160 MB if taken together.
    part = make_part(10_000, 1, offset=np.arange(10_000) * MAX_GAP_NBYTES, nbytes=8)
    tasks = plan(part, range(10_000), task_nbytes=1 << 20)
    spans = [int(task.offset[-1] + task.nbytes[-1] - task.offset[0]) for task in tasks]
    assert max(spans) <= (1 << 20) + MAX_GAP_NBYTES
    assert sum(len(task.number) for task in tasks) == 10_000


def test_tasks_are_cut_by_decoded_bytes():
    part = make_part(800, 8, nbytes=10)  # 32 bytes decoded
    assert [len(task.number) for task in plan(part, range(800), task_nbytes=320)] == [10] * 10


def test_missing_chunks_come_without_a_read():
    (task,) = plan(make_part(40, 8, stored=[1, 3]), range(40))
    assert task.number[task.place == MISSING].tolist() == [0, 2, 4]
    assert (task.nbytes[task.place == MISSING] == 0).all()


def test_batches_count_from_the_windows_first():
    window = window_of([0, 8, 16], batch=[7, 5, 6])
    tasks = plan_window(((make_part(24, 8),),), window, first_batch=5, task_nbytes=1)
    assert [task.first_batch for task in tasks] == [2, 0, 1]


def test_rows_of_several_files_go_to_their_parts():
    parts = (make_part(10, 8), make_part(5, 2, row_start=10), make_part(10, 4, row_start=15))
    tasks = plan_window((parts,), window_of([0, 9, 14, 15, 24]), first_batch=0)
    found = {
        (task.part.row_start, task.part.row_start + int(n) * task.part.chunk_rows + int(r))
        for task in tasks
        for n, low, high in zip(task.number, task.low, task.high, strict=True)
        for r in task.placement.in_rows[low:high]
    }
    assert found == {(0, 0), (0, 9), (10, 14), (15, 15), (15, 24)}


def test_rows_without_elements_need_no_task(tmp_path):
    path = make_file(tmp_path / "a.h5", shape=(4, 0), dtype="f4")
    layout = H5Dataset(path, "x").layout
    assert plan_window(layout.datasets, window_of(range(4)), first_batch=0) == []


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(task_nbytes=st.integers(1, 5000), rows=st.lists(st.integers(0, 99), min_size=1, max_size=50))
def test_how_a_window_is_cut_into_tasks_does_not_change_what_is_read(tmp_path, task_nbytes, rows):
    path = tmp_path / "a.h5"
    if not path.exists():
        make_file(path, data=numbers(100, 9), chunks=(7, 4), compression="gzip", shuffle=True)
    layout = H5Dataset(path, "x").layout
    tasks = plan_window(layout.datasets, window_of(sorted(rows)), first_batch=0, task_nbytes=task_nbytes)
    chunks = [int(n) for task in tasks for n in task.number]
    assert len(set(chunks)) == len(chunks) == 3 * len({row // 7 for row in rows})


@pytest.mark.parametrize("rows", [[0], [99], [50, 50, 50]])
def test_small_windows_are_single_tasks(rows):
    assert len(plan(make_part(), rows)) == 1

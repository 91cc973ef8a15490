"""What a planner's kernels work out is what NumPy does, number by number."""

import numpy as np
import pytest

from h5stream.compiled import _native as native

LONGS = np.zeros(0, dtype=np.int64)
KINDS = [np.int32, np.int64]


@pytest.fixture(params=range(8))
def rng(request):
    return np.random.default_rng(request.param)


def lay(stored, offset, nbytes, all_count, numbers, edges, across, columns, chunk_nbytes, gap, work):
    count = len(numbers) * len(across)
    table, cuts = np.empty((7, count), dtype=np.int64), np.empty(count + 1, dtype=np.int64)
    index = stored, offset, nbytes, all_count
    cut_count = native.lay_chunks(
        *index, numbers, edges[:-1], edges[1:], across, columns, chunk_nbytes, gap, work, table, cuts
    )
    return table, cuts[: cut_count + 1].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_places_are_located_in_batches_of_one_size_or_of_any(rng, kind):
    size, rows = int(rng.integers(1, 50)), int(rng.integers(1, 500))
    batches = -(-rows // size)
    last_begin = min((batches - 1) * size, rows - 1)
    output = rng.integers(0, rows, 200).astype(kind)
    batch, within = np.empty_like(output), np.empty_like(output)
    native.locate(output, LONGS, size, batches - 1, last_begin, batch, within)
    assert (batch == output // size).all()
    assert (within == output % size).all()

    edges = np.unique(np.concatenate([[0, rows], rng.integers(0, rows, 20)]))
    native.locate(output, edges, 0, len(edges) - 2, int(edges[-2]), batch, within)
    wanted = np.searchsorted(edges, output, side="right") - 1
    assert (batch == wanted).all()
    assert (within == output - edges[wanted]).all()


def test_the_last_batch_may_begin_sooner_than_the_others_would_end():
    output, batch, within = np.arange(8), np.empty(8, dtype=np.int64), np.empty(8, dtype=np.int64)
    native.locate(output, LONGS, 4, 2, 7, batch, within)
    assert batch.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    assert within.tolist() == [0, 1, 2, 3, 0, 1, 2, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_counted_and_numbers_made_less(rng, kind):
    batch = rng.integers(5, 25, 300).astype(kind)
    assert native.range_of(batch) == (batch.min(), batch.max())
    assert native.range_of(batch[:0]) == (0, 0)
    less, counts = np.empty(300, dtype=np.int32), np.zeros(25, dtype=np.int64)
    native.subtract(batch, 5, less)
    assert (less == batch - 5).all()
    native.count_batches(batch, batch[:0], counts)
    assert (counts == np.bincount(batch, minlength=25)).all()
    lengths = rng.integers(0, 9, 300).astype(kind)
    native.count_batches(batch, lengths, counts)
    assert (counts == np.bincount(batch, minlength=25) + np.bincount(batch, lengths, 25)).all()
    for wrong in (batch + kind(20), batch - kind(30)):
        with pytest.raises(ValueError, match="lead out of"):
            native.count_batches(wrong, wrong[:0], counts)


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_are_written_one_behind_the_other(rng, kind):
    begins, counts, every = rng.integers(0, 1000, 30), rng.integers(0, 20, 30), rng.integers(1, 5, 30)
    out = np.empty(counts.sum(), dtype=kind)
    for steps in (every, every[:1]):
        native.in_ranges(begins, counts, steps, out)
        each = np.broadcast_to(steps, 30)
        wanted = [b + np.arange(c) * e for b, c, e in zip(begins, counts, each, strict=True)]
        assert (out == np.concatenate(wanted)).all()
    for room in (len(out) - 1, len(out) + 1):
        with pytest.raises(ValueError, match="lead out of"):
            native.in_ranges(begins, counts, every, np.empty(room, dtype=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_put_in_the_turn_of_their_output_places(rng, kind):
    rows, outputs = rng.integers(0, 1000, 50).astype(kind), rng.permutation(50).astype(kind)
    out = np.empty(50, dtype=kind)
    native.in_turn(rows, outputs + kind(7), 7, out)
    assert (out[outputs] == rows).all()
    for wrong in (outputs - kind(1), outputs + kind(1)):
        with pytest.raises(ValueError, match="lead out of"):
            native.in_turn(rows, wrong, 0, out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, 7, 8192, 2**31 - 1])
def test_places_at_the_edges_of_batches_are_located(kind, size):
    most = 2**31 - 1
    last = most // size // 2
    edges = np.arange(0, most // size + 1, max(1, most // size // 1000), dtype=np.int64) * size
    output = np.unique(np.clip(np.concatenate([edges - 1, edges, edges + 1]), 0, most)).astype(kind)
    batch, within = np.empty_like(output), np.empty_like(output)
    native.locate(output, np.zeros(0, dtype=np.int64), size, last, last * size, batch, within)
    wanted = np.minimum(output.astype(np.int64) // size, last)
    assert (batch == wanted).all()
    assert (within == output - wanted * size).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_numbered_inside_their_chunks(rng, kind):
    first, chunk_rows = int(rng.integers(0, 100)), int(rng.integers(1, 30))
    rows = np.sort(first + rng.integers(0, 400, 150)).astype(kind)
    inside = np.empty_like(rows)
    begins, numbers = np.empty(150, dtype=np.int64), np.empty(150, dtype=np.int64)
    count = native.into_chunks(rows, first, chunk_rows, inside, begins, numbers)
    chunks, where = np.unique((rows - first) // chunk_rows, return_index=True)
    assert numbers[:count].tolist() == chunks.tolist()
    assert begins[:count].tolist() == where.tolist()
    assert (inside == (rows - first) % chunk_rows).all()
    for wrong, room in ((rows[::-1].copy(), 150), (rows, count - 1), (rows - kind(first + 1), 150)):
        if wrong[0] < first or room < count or wrong[0] > wrong[-1]:
            with pytest.raises(ValueError, match="rows must ascend"):
                native.into_chunks(wrong, first, chunk_rows, inside, begins[:room], numbers[:room])


def test_chunks_are_laid_in_the_order_of_the_file_and_cut_by_their_work(rng):
    columns, rows = int(rng.integers(1, 4)), int(rng.integers(1, 60))
    all_count = rows * columns
    stored = np.arange(all_count)
    if rng.random() < 0.6:
        stored = np.sort(rng.choice(all_count, int(rng.integers(0, all_count + 1)), replace=False))
    nbytes = rng.integers(0, 300, len(stored))
    offset = np.cumsum(rng.integers(0, 200, len(stored)) + np.append(0, nbytes[:-1]))[: len(stored)]
    offset = offset[rng.permutation(len(stored))] if rng.random() < 0.5 else offset
    numbers = np.sort(rng.choice(rows, int(rng.integers(1, rows + 1)), replace=False))
    edges = np.append(0, np.cumsum(rng.integers(1, 9, len(numbers))))
    across = np.sort(rng.choice(columns, int(rng.integers(1, columns + 1)), replace=False))
    gap, work = int(rng.integers(0, 150)), int(rng.integers(1, 2000))
    table, cuts = lay(stored, offset, nbytes, all_count, numbers, edges, across, columns, 100, gap, work)

    place_of = {number: place for place, number in enumerate(stored.tolist())}
    wanted = []
    for i, row in enumerate(numbers.tolist()):
        for piece, column in enumerate(across.tolist()):
            number = row * columns + column
            entry = place_of.get(number, -1)
            where = (-1, 0) if entry < 0 else (int(offset[entry]), int(nbytes[entry]))
            wanted.append((number, piece, entry, *where, int(edges[i]), int(edges[i + 1])))
    wanted.sort(key=lambda chunk: chunk[3])  # stable
    assert [tuple(chunk) for chunk in table.T.tolist()] == wanted

    work_of = [max(chunk[4], 100) for chunk in wanted]
    for k in range(1, len(wanted)):
        between = wanted[k][3] - wanted[k - 1][3] - wanted[k - 1][4]
        work_of[k] += between if wanted[k - 1][3] != -1 and 0 < between <= gap else 0
    share = (np.cumsum(work_of) - work_of) // work
    assert cuts == [0, *(np.flatnonzero(np.diff(share)) + 1).tolist(), len(wanted)]


def test_chunks_that_do_not_fit_the_grid_are_refused():
    some = np.array([0, 1])
    good = [some, some * 10, some, 4, some, np.array([0, 1, 2]), np.array([0]), 1, 8, 0, 8]
    lay(*good)
    for place, wrong in ((4, np.array([-1, 0])), (6, np.array([1])), (7, 0), (10, 0), (5, np.array([0, 1]))):
        with pytest.raises(ValueError, match="lay_chunks"):
            lay(*good[:place], wrong, *good[place + 1 :])

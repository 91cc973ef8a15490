"""What the kernels in C refuse, and what no whole loader shows of them: that against NumPy."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.forking import python_path

from h5stream.compiled import _native as native
from h5stream.engine.slots import address_of

ROOT = Path(__file__).parents[2]
LONGS, PLACES, BYTES, SUMS = np.zeros(3, np.int64), np.zeros(3, np.int32), np.zeros(9, np.uint8), np.zeros((1, 1))


def window(generator, rows, row_nbytes, batches=3, shift=0):
    """Return memory, the addresses of slots in it, where each of some rows goes, and their places in the memory."""
    nbytes = rows * row_nbytes + 128
    memory = np.full(batches * nbytes + 256, 0xA5, np.uint8)
    begins = (-address_of(memory) % 64 + shift + np.arange(batches) * nbytes).astype(np.int64)
    batch, within = np.divmod(generator.permutation(batches * rows)[:rows], rows)
    return memory, address_of(memory) + begins, batch, within, begins[batch] + within * row_nbytes


def scatter(memory, places, rows, source, stride, segments):
    """Copy rows of a chunk to their places in an array of bytes: what the kernels do, slow and short."""
    for place, row in zip(places, rows, strict=True):
        for first, into, count in segments:
            memory[place + into : place + into + count] = source[row * stride + first :][:count]


def fields_of(chunk_rows, row_elements, segments, *, width=1, places=None, pipelines=LONGS[:0]):
    """Note chunks of elements of so many bytes, of which there is one field; the fill value is 1."""
    edges = np.arange(len(row_elements) + 1) * (len(segments) // len(row_elements))
    places = np.arange(width) if places is None else places
    return native.chunk_fields(
        pipelines,
        chunk_rows * max(row_elements) * width,
        chunk_rows,
        width,
        np.array([[width, 1, width in (2, 4, 8), 0]]),
        places,
        np.array(segments),
        edges,
        np.array(row_elements),
        np.ones(width, np.uint8),
        np.array([0, width]),
        LONGS[:0],
    )


NO_BOXES = *[np.zeros((0, 0), np.int64)] * 3, *[np.zeros(0, np.int64)], *[np.zeros((0, 0), np.int64)] * 2


NOTHING_STAYS = (*[LONGS[:0]] * 3, 0, np.zeros(0, bool))


def plan_of(
    fields, rows, batch, within, *, low=(0,), high=None, piece=(0,), offset=None, nbytes=1 << 30, kept=NOTHING_STAYS
):
    """Plan chunks that follow one another in a file, or one."""
    count = len(low)
    offset = np.arange(count) * max(1, nbytes) if offset is None else np.array(offset)
    return native.plan_chunks(
        fields,
        offset,
        np.full(count, nbytes),
        np.array(piece),
        np.array(low),
        np.array([len(rows)] if high is None else high),
        np.zeros(count, np.int8),
        0,
        rows,
        rows[:0],
        batch,
        within,
        *NO_BOXES,
        *[np.zeros(0, np.int64)] * 2,
        0,
        *kept,
    )


ONE_FIELD = np.zeros(1, np.int64)


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("shift", [0, 1, 2, 48])
@pytest.mark.parametrize("elements", [1, 7, 33, 200])
@pytest.mark.parametrize("is_small", [True, False])
def test_planes_come_to_their_places_wherever_lines_begin(width, shift, elements, is_small):
    generator = np.random.default_rng(elements)
    chunk_rows, count = 9 if is_small else 9 + (1 << 17) // (elements * width), 70
    source = generator.integers(0, 256, chunk_rows * elements * width, dtype=np.uint8)
    places_of_bytes = generator.permutation(width)
    memory, slots, batch, within, places = window(generator, count, elements * width, shift=shift)
    rows, expected = generator.integers(0, chunk_rows, count), memory.copy()
    whole = source.reshape(width, -1)[places_of_bytes].T.reshape(-1)
    segments = np.array([[elements // 2, 0, elements - elements // 2], [0, elements - elements // 2, elements // 2]])
    segments = segments[segments[:, 2] > 0]
    scatter(expected, places, rows, whole, elements * width, segments * width)
    fields, scratch = fields_of(chunk_rows, [elements], segments, width=width, places=places_of_bytes), native.Scratch()
    plan, row_nbytes = plan_of(fields, rows, batch, within), ONE_FIELD + elements * width
    native.land_decoded(plan, 0, source, width, slots, ONE_FIELD, row_nbytes, scratch.address)
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize("nbytes", [1, 3, 8, 12, 16, 40, 300])
@pytest.mark.parametrize("chunks", [1, 2, 5, 16, 40])
def test_chunks_side_by_side_are_scattered_together(kind, nbytes, chunks):
    generator = np.random.default_rng(nbytes)
    row_nbytes, rows = chunks * nbytes + 7, 100
    memory, slots, batch, within, places = window(generator, 2 * rows, row_nbytes, shift=3)
    stack = generator.integers(0, 256, (2 * chunks, rows * nbytes), dtype=np.uint8)
    # Two bands of chunks; the rows of the second come last, and one of its chunks is of another piece of the row.
    piece, band = np.tile(np.arange(chunks), 2), np.repeat([0, 1], chunks)
    piece[-1], expected = 0, memory.copy()
    segments = np.array([[0, 5 + k * nbytes, nbytes] for k in range(chunks)])
    within_chunk = np.concatenate([np.sort(generator.integers(0, rows, rows)) for _ in range(2)])
    for k, (of, which) in enumerate(zip(piece, band, strict=True)):
        some = slice(rows * which, rows * (which + 1))
        scatter(expected, places[some], within_chunk[some], stack[k], nbytes, segments[of : of + 1])
    pipeline = native.Pipeline(np.zeros((0, 7), np.int64), np.zeros(0, np.uint32), rows * nbytes, 2 * rows * nbytes, 0)
    fields = fields_of(rows, [nbytes] * chunks, segments, pipelines=np.array([pipeline.address]))
    plan = plan_of(
        fields,
        within_chunk.astype(kind),
        batch.astype(kind),
        within.astype(kind),
        low=rows * band,
        high=rows * (band + 1),
        piece=piece,
        nbytes=rows * nbytes,
    )
    at = address_of(stack.reshape(-1)) + np.arange(2 * chunks) * stack.shape[1]
    counts, scratch = np.zeros(native.COUNTS, np.int64), native.Scratch()
    where = slots, ONE_FIELD, ONE_FIELD + row_nbytes, scratch.address, np.zeros(1, np.int32), counts
    assert native.land(plan, 0, 2 * chunks, -1, at, *where) == 2 * chunks
    np.testing.assert_array_equal(memory, expected)
    assert counts[5:7].tolist() == [2 * chunks, stack.size]
    assert native.land(plan, 0, 2 * chunks, -1, at, *where[:4], np.ones(1, np.int32), counts) == 0  # it is stopped


@given(st.integers(0, 130), st.integers(0, 130), st.integers(0, 1000))
def test_any_bytes_are_copied_past_the_cache_and_none_beside_them(start, place, count):
    source, target, expected = np.arange(1200, dtype="u2").view("u1"), np.zeros(1300, "u1"), np.zeros(1300, "u1")
    native.copy_past_cache(target.ctypes.data + place, source.ctypes.data + start, count)
    expected[place : place + count] = source[start : start + count]
    assert np.array_equal(target, expected)


def one_file(path):
    """Give the arguments of `read_files` that name a file, as it is now."""
    now = path.stat()
    numbers = [np.array([each], np.int64) for each in (0, now.st_size, now.st_mtime_ns, now.st_ino)]
    return np.frombuffer(bytes(path) + b"\0", np.uint8), *numbers


def test_ranges_of_files_are_read_until_one_is_short(tmp_path):
    data, target = np.random.default_rng(5).integers(0, 256, 200_000, dtype=np.uint8), np.zeros(30, np.uint8)
    (tmp_path / "bytes").write_bytes(data.tobytes())
    offsets, nbytes, which = np.array([5, 100, 199_995, 0]), np.array([10, 5, 10, 5]), np.zeros(4, np.int64)
    file, places = one_file(tmp_path / "bytes"), address_of(target) + np.array([0, 10, 15, 25])
    assert native.read_files(*file, which, offsets, nbytes, places) == 2
    assert target[:15].tolist() == [*data[5:15], *data[100:105]]
    assert native.read_files(*file, *[offsets[:0]] * 4) == 0


TO = PLACES, PLACES, PLACES, LONGS, 0, 1


def objects_of(address=(0, 0, 0), wanted=(0, 0, 0)):
    failed = np.zeros(3, bool)
    return 0, 2**20, 8, np.array(address), LONGS, LONGS, np.array(wanted), LONGS, np.zeros(8192, np.uint8), 0, failed


def sparse_of(columns):
    """Give arguments of `add_sparse`, of one row of a matrix of three columns."""
    return np.ones(3), np.array(columns, np.int32), np.array([0, 3]), np.arange(3, dtype=np.int32), 3, np.zeros((1, 3))


ONE_RUN = np.array([[0, 0, 1, 0, 1]]), np.array([[0, 0, 1, 1, 1, 1, 0]]), LONGS[:1], LONGS[:1] + 1
ONE_AXIS = np.zeros((3, 1), np.int64)
BEYOND = {  # arguments for three rows, of which some have a batch that has no slot
    "scatter": lambda batch: (0, 1, np.array([[0, 0, 1]]), PLACES, batch, *TO[2:]),
    "scatter_spans": lambda batch: (0, 1, np.array([[0, 0, 1]]), PLACES, PLACES, batch, *TO[2:]),
    "gather_any": lambda batch: (0, PLACES, batch, *TO[2:]),
    "place_rows": lambda batch: (
        LONGS[:1], 1, *ONE_RUN, PLACES, PLACES[:0], batch, PLACES, LONGS, LONGS[:1], LONGS[:1] + 1
    ),
    "place_boxes": lambda batch: (
        LONGS[:1], *[np.ones((1, 1), np.int64)] * 4, LONGS[:1], LONGS[:1] + 3, ONE_AXIS[:1], LONGS[:1] + 1, LONGS[:1],
        0, 1, ONE_AXIS, batch, PLACES, LONGS, 0, 1,
    ),
    "fill_outside": lambda batch: (
        0, ONE_AXIS + 1, ONE_AXIS[:1], LONGS[:1] + 1, 1, ONE_AXIS, batch, PLACES, LONGS, 0, 1
    ),
}  # fmt: skip
ANSWERS = {"read_files": 0}
WRONG = {
    "too few arguments": ("scatter", (0,), TypeError),
    "a text for a number": ("copy_past_cache", ("0", 0, 0), TypeError),
    "a list for an array": ("count_bytes", ([1], np.zeros(256, np.int64)), TypeError),
    "unsigned numbers for rows": ("gather_any", (0, PLACES.astype("u4"), *TO[1:]), TypeError),
    "a foreign byte order": ("gather_any", (0, PLACES.astype(">i4"), *TO[1:]), TypeError),
    "places of other lengths": ("gather_any", (0, PLACES, PLACES[:2], *TO[2:]), ValueError),
    "places apart": ("gather_any", (0, PLACES, np.zeros(6, np.int32)[::2], *TO[2:]), ValueError),
    "places not aligned": ("gather_any", (0, np.zeros(13, np.uint8)[1:].view(np.int32), *TO[1:]), ValueError),
    "a group that there is not": (
        "deal_groups",
        (LONGS + 7, LONGS, LONGS, LONGS, np.ones(3), LONGS[:1], 1, np.ones((1, 1), np.int64), LONGS.copy()),
        ValueError,
    ),
    "a sample that there is not": (
        "lay_stretches",
        (PLACES + 3, *[PLACES] * 3, np.zeros(2, np.int64), *(np.zeros(n, np.int64) for n in (3, 3, 4, 4))),
        ValueError,
    ),
    "offsets beyond": ("add_sparse", (np.zeros(3), PLACES, np.array([0, 2**60]), PLACES, 3, SUMS), ValueError),
    "a part that is named twice": (
        "deal_groups",
        (
            LONGS,
            np.array([0, 1, 1]),
            LONGS[:1],
            np.ones(1, np.int64),
            np.ones(1),
            LONGS[:2],
            1,
            np.ones((1, 2), np.int64),
            LONGS.copy(),
        ),
        ValueError,
    ),
    "a length below 0": ("read_files", (BYTES[:1] * 0, *[LONGS[:1]] * 4, *[LONGS] * 2, LONGS - 1, LONGS), ValueError),
    "collections that do not ascend": ("read_objects", objects_of(address=[4096, 0, 8192]), ValueError),
    "values of a length below 0": ("read_objects", objects_of(wanted=[0, -8, 0]), ValueError),
    "a path beyond the paths": (
        "read_files",
        (BYTES, LONGS[:1] + 9, *[LONGS[:1]] * 3, LONGS[:1], *[LONGS[:1]] * 3),
        None,
    ),
    "a column beyond": ("add_sparse", sparse_of([0, 3, 1]), None),
    "a column below 0": ("add_sparse", sparse_of([0, -1, 1]), None),
    **{
        f"a batch beyond the slots of {name} ({number})": (name, arguments(np.int32([0, number, 0])), ValueError)
        for name, arguments in BEYOND.items()
        for number in (3, -1)
    },
    "few counts": ("count_bytes", (BYTES, np.zeros(255, np.int64)), ValueError),
    "counts that cannot be written to": ("count_bytes", (BYTES, np.frombuffer(bytes(2048), np.int64)), ValueError),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_refused(what):
    name, arguments, error = WRONG[what]
    if error is None:  # what a kernel answers says so
        columns = arguments[1].tolist() if name == "add_sparse" else []
        assert native.__dict__[name](*arguments) == next((c for c in columns if not 0 <= c < 3), ANSWERS.get(name))
        return
    with pytest.raises(error, match="." if error is TypeError else name):
        getattr(native, name)(*arguments)


WRONG_PLANS = {
    "a row beyond its chunk": {"rows": np.int32([0, 3, 0])},
    "a row below 0": {"rows": np.int32([0, -1, 0])},
    "a batch below 0": {"batch": np.int32([0, -1, 0])},
    "a place below 0": {"within": np.int32([0, -1, 0])},
    "a piece that there is not": {"piece": (1,)},
    "rows that there are not": {"high": [4]},
    "rows that end before they begin": {"low": (2,), "high": [1]},
    "an offset below -1": {"offset": [-2]},
    "bytes below 0": {"nbytes": -1},
    "fewer bytes than its rows have": {"rows": np.int32([0, 2, 0]), "nbytes": 2},
}


@pytest.mark.parametrize("what", WRONG_PLANS)
def test_a_plan_whose_numbers_lead_out_of_its_chunks_is_refused(what):
    given = {"rows": PLACES, "batch": PLACES, "within": PLACES} | WRONG_PLANS[what]
    with pytest.raises(ValueError, match="outside"):
        plan_of(fields_of(3, [1], [[0, 0, 1]]), **given)


def test_a_batch_beyond_the_slots_of_a_plan_is_refused():
    plan, scratch = plan_of(fields_of(3, [1], [[0, 0, 1]]), PLACES, PLACES + 3, PLACES), native.Scratch()
    where = LONGS, ONE_FIELD, ONE_FIELD + 1, scratch.address
    with pytest.raises(ValueError, match="slots"):
        native.land(plan, 0, 1, 0, LONGS[:0], *where, np.zeros(1, np.int32), np.zeros(native.COUNTS, np.int64))
    with pytest.raises(ValueError, match="slots"):
        native.land_decoded(plan, 0, BYTES[:3], 0, *where)
    with pytest.raises(ValueError, match="plan"):
        native.land_decoded(native.chunk_fields, 0, BYTES[:3], 0, *where)


SIDES = {
    "a chunk of which products wrap": {"chunk_shape": [[2**62, 4]]},
    "a chunk without elements": {"chunk_shape": [[3, 0]]},
    "a chunk that begins below 0": {"begin": [[0, -1]]},
    "bytes that are not read, below 0": {"skipped": [-1]},
}


def boxes_of(nbytes=3, **other):
    """Plan a chunk of (3, 1) bytes of a volume that lies as it is, of which a box of (2, 1) is taken."""
    given = {"begin": [[0, 0]], "chunk_shape": [[3, 1]], "shape": [[3, 1]], "skipped": [0]} | other
    one = np.ones(1, np.int64)
    return native.plan_chunks(
        fields_of(3, [1], [[0, 0, 1]]), one * 0, one * nbytes, one * 0, one * 0, one, np.zeros(1, np.int8), 0,
        np.zeros(1, np.int64), LONGS[:0], one * 0, one * 0, *(np.array(each) for each in given.values()),
        np.array([[1, 0]]), np.array([[0, 1], [0, 1]]), np.array([2, 1]), np.ones(2, np.int64), 0,
        *NOTHING_STAYS,
    )  # fmt: skip


@pytest.mark.parametrize("far", [2**62, -(2**63) + 1])
def test_boxes_that_begin_so_far_away_that_sums_wrap_are_refused(far):
    one, axes = np.zeros(1, np.int64), np.zeros((1, 2), np.int64)
    where = one, one, np.array([address_of(np.zeros(9, np.uint8))]), 0, 4
    for origins, offsets in ((axes + far, [[0, 1]] * 2), (axes, [[far, 1], [0, 1]])):
        tables = np.array(offsets), np.array([2, 2]), np.ones(2, np.int64), 0, 1
        with pytest.raises(ValueError, match="place_boxes"):
            native.place_boxes(one, axes, axes, axes + 3, axes + 3, one, one + 1, *tables, origins, *where)


@pytest.mark.parametrize("what", SIDES)
def test_chunks_of_boxes_that_lead_out_of_their_bytes_are_refused(what):
    with pytest.raises(ValueError, match="outside"):
        boxes_of(**SIDES[what])


@pytest.mark.parametrize(("nbytes", "landed"), [(3, 1), (2, 0), (0, 0)])
def test_a_box_of_which_a_chunk_that_is_read_in_part_has_too_little_is_not_brought(nbytes, landed):
    source, target, scratch = np.arange(3, dtype=np.uint8), np.full(2, 9, np.uint8), native.Scratch()
    where = np.array([address_of(target)]), ONE_FIELD, ONE_FIELD + 2, scratch.address
    counts, at = np.zeros(native.COUNTS, np.int64), np.array([address_of(source)])
    assert native.land(boxes_of(nbytes), 0, 1, -1, at, *where, np.zeros(1, np.int32), counts) == landed
    assert target.tolist() == ([1, 2] if landed else [9, 9])


def test_rows_that_descend_are_not_read(tmp_path):
    (tmp_path / "rows").write_bytes(b"abc")
    target = np.zeros(2, np.uint8)
    for rows, wanted in (([1, 2], b"bc"), ([2, 1], b"\0\0")):
        target[:] = 0
        where = np.array(rows), LONGS[:0], LONGS[:2] * 0, np.array([0, 1])
        fills = np.array([address_of(BYTES)]), np.ones(1, np.int64)
        plan = native.plan_rows(LONGS[:0], LONGS[:1], 1, 3, 0, 1, *ONE_RUN[:2], *fills, 8, 0, 0, *where)
        done, _ = carried_out(plan, tmp_path / "rows", target, 1)
        assert (done, target.tobytes()) == (2 if rows[0] < rows[1] else 0, wanted)


def matrix_of(rows=(0, 1), lengths=(1, 2), chunk=3, room=16, wanted=3, **other):
    """Plan a sparse matrix of three values, which lie before their columns."""
    places = other.get("places", np.arange(3, dtype=np.int32))
    where = [np.array(other.get(name, default)) for name, default in (("batch", (0, 0)), ("within", (0, 3)))]
    return native.plan_dense(
        LONGS[:1], chunk, LONGS[:1] + 24, chunk, other.get("first_row", 0), room, np.zeros(0), np.zeros(0, np.int32),
        places, other.get("is_wanted", BYTES[:3] + 1), wanted, np.array(rows), np.array(lengths), *where,
    )  # fmt: skip


def heap_of(rows=(0, 1), length=(3, 2), **other):
    """Plan two values of a collection at the beginning of a file."""
    arguments = {"length_nbytes": 8, "item_nbytes": 1, "most_nbytes": 9, "room": 8192, "gap": 0} | other
    numbers = [arguments[name] for name in ("length_nbytes", "item_nbytes", "most_nbytes", "room", "gap")]
    return native.plan_heap(
        2**20, *numbers, np.array(other.get("address", (0, 0))), np.array([1, 2], np.uint32),
        np.array(length, np.uint32), other.get("first_row", 0), np.array(rows), np.array(other.get("batch", (0, 0))),
        np.array(other.get("within", (0, 3))),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        *((matrix_of, wrong) for wrong in (
            {"lengths": (1, 2**63 - 1)}, {"lengths": (1, 3)}, {"lengths": (1, -1)}, {"lengths": (1, 17)}, {"chunk": 0},
            {"rows": (0, 2)}, {"rows": (-1, 1)}, {"first_row": 1}, {"batch": (0, -1)}, {"within": (0, -1)}, {"room": 0},
            {"room": 3},
            {"wanted": 2}, {"wanted": -1}, {"places": np.array([0, 1, -1], np.int32)}, {"is_wanted": BYTES[:3]},
        )),
        *((heap_of, wrong) for wrong in (
            {"rows": (0, 2)}, {"rows": (-1, 1)}, {"first_row": 1}, {"first_row": -1}, {"address": (4096, 0)},
            {"batch": (0, -1)}, {"within": (-1, 0)}, {"length_nbytes": 0}, {"length_nbytes": 9}, {"item_nbytes": 0},
            {"most_nbytes": -1}, {"room": 0}, {"gap": -1},
        )),
    ],
)  # fmt: skip
def test_plans_that_lead_out_of_their_tables_are_refused(plan, wrong):
    with pytest.raises(ValueError, match="plan_"):
        plan(**wrong)


def carried_out(plan, path, target, itemsize):
    """Carry out a plan of two rows of a file; gives how many were brought, and the counts."""
    counts, scratch = np.zeros(native.COUNTS, np.int64), native.Scratch()
    where = np.array([address_of(target.view(np.uint8))]), ONE_FIELD, ONE_FIELD + itemsize
    with open(path, "rb") as file:
        stop = np.zeros(1, np.int32)
        done = native.land(plan, 0, 2, file.fileno(), LONGS[:0], *where, scratch.address, stop, counts)
    return done, counts.tolist()


def test_rows_of_a_sparse_matrix_come_dense_or_none_does_and_the_column_is_named(tmp_path):
    path, columns, target = tmp_path / "matrix", np.array([1, 0, 2], np.int32), np.full(6, 9.0)
    path.write_bytes(np.array([1.0, 2, 3]).tobytes() + columns.tobytes())
    done, counts = carried_out(matrix_of(), path, target, 8)
    assert (done, target.tolist(), counts[:2]) == (2, [0, 1, 0, 2, 0, 3], [2, 36])
    for wrong in (3, -1):
        columns[2] = wrong
        path.write_bytes(np.ones(3).tobytes() + columns.tobytes())
        done, counts = carried_out(matrix_of(), path, target, 8)
        assert (done, counts[3:5]) == (0, [wrong, native.A_COLUMN])
    path.write_bytes(b"short")
    done, counts = carried_out(matrix_of(), path, target, 8)
    assert (done, counts[3:5]) == (0, [24, 12])


def test_values_of_a_heap_come_as_long_as_they_are_wanted_until_one_is_damaged(tmp_path):
    def objects(*values):
        body = b"".join(
            k.to_bytes(2, "little") + bytes(6) + len(value).to_bytes(8, "little") + value.ljust(8, b"-")
            for k, value in enumerate(values, 1)
        )
        free = 4096 - 16 - len(body)
        head = b"GCOL\1\0\0\0" + (4096).to_bytes(8, "little")
        return head + body + bytes(8) + free.to_bytes(8, "little") + bytes(free - 16)

    path, target = tmp_path / "heap", np.zeros(6, np.uint8)
    path.write_bytes(objects(b"abc", b"de"))
    assert carried_out(heap_of(), path, target, 1)[0] == 2
    assert target.tobytes() == b"abcde\0"
    target[:] = 0
    assert carried_out(heap_of(most_nbytes=2), path, target, 1)[0] == 2
    assert target.tobytes() == b"ab\0de\0"
    path.write_bytes(objects(b"xyz", b"longer"))
    assert carried_out(heap_of(), path, target, 1)[0] == 1
    assert target.tobytes() == b"xyzde\0"
    path.write_bytes(bytes(8192))
    assert carried_out(heap_of(), path, target, 1)[0] == 0


def kept_by(memory, number=(0, 1), count=(3, 2), row=0, filled=(False, False)):
    return np.array([address_of(memory)]), np.array(number), np.array(count), row, np.array(filled)


def fields_with_a_pipeline():
    pipeline = native.Pipeline(np.zeros((0, 7), np.int64), np.zeros(0, np.uint32), 6, 6, 0)
    return fields_of(3, [2], [[0, 0, 2]], pipelines=np.array([pipeline.address])), pipeline


@pytest.mark.parametrize("offset", [(0, 6), (0, -1)])
@pytest.mark.parametrize("has_slots", [True, False])
def test_all_rows_of_a_chunk_stay_where_they_are_to_and_those_that_are_wanted_go_to_their_places(offset, has_slots):
    fields, pipeline = fields_with_a_pipeline()
    stored, memory, slot = np.arange(12, dtype=np.uint8), np.full(12, 99, np.uint8), np.full(4, 99, np.uint8)
    rows, zeros = np.array([1, 0], np.int32), np.zeros(2, np.int32)
    where = {"low": (0, 1), "high": [1, 2], "piece": (0, 0), "offset": offset, "nbytes": 6}
    plan = plan_of(fields, rows, zeros, np.array([1, 0], np.int32), **where, kept=kept_by(memory))
    counts, scratch, stop = np.zeros(native.COUNTS, np.int64), native.Scratch(), np.zeros(1, np.int32)
    slots = np.array([address_of(slot)] if has_slots else [], np.int64)
    at = address_of(stored) + np.array([0, 6])
    done = native.land(plan, 0, 2, -1, at, slots, ONE_FIELD, ONE_FIELD + 2, scratch.address, stop, counts)
    second = [1, 1, 1, 1] if offset[1] < 0 else [6, 7, 8, 9]  # the fill value is 1
    assert (done, memory.tolist()) == (2, [0, 1, 2, 3, 4, 5, *second, 99, 99])
    assert slot.tolist() == ([*second[:2], 2, 3] if has_slots else [99] * 4)
    assert pipeline.address


def test_a_chunk_that_is_there_by_now_is_copied_and_not_read():
    fields, pipeline = fields_with_a_pipeline()
    memory, slot = np.arange(12, dtype=np.uint8), np.full(4, 99, np.uint8)
    rows, zeros = np.array([1, 0], np.int32), np.zeros(2, np.int32)
    where = {"low": (0, 1), "high": [1, 2], "piece": (0, 0), "offset": (0, 6), "nbytes": 6}
    keep = kept_by(memory, filled=(False, False))
    plan = plan_of(fields, rows, zeros, np.array([1, 0], np.int32), **where, kept=keep)
    keep[-1][:] = True
    counts, scratch, stop = np.zeros(native.COUNTS, np.int64), native.Scratch(), np.zeros(1, np.int32)
    to = np.array([address_of(slot)]), ONE_FIELD, ONE_FIELD + 2
    assert native.land(plan, 0, 2, 10**6, LONGS[:0], *to, scratch.address, stop, counts) == 2  # that file is not open
    assert (slot.tolist(), memory.tolist()) == ([6, 7, 2, 3], [*range(12)])
    assert counts.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, counts[8], 4]
    assert pipeline.address


@pytest.mark.parametrize(
    "wrong",
    [{"number": (0, -1)}, {"number": (0, 2)}, {"count": (4, 2)}, {"count": (-1, 2)}, {"number": (0,)}, {"row": -1}],
)
def test_more_than_the_rows_of_a_chunk_cannot_stay(wrong):
    fields, pipeline = fields_with_a_pipeline()
    where = {"low": (0, 1), "high": [1, 2], "piece": (0, 0), "offset": (0, 6), "nbytes": 6}
    places = [np.array([0, 0], np.int32)] * 3
    plan_of(fields, *places, **where, kept=kept_by(BYTES))
    with pytest.raises(ValueError, match="plan_chunks"):
        plan_of(fields, *places, **where, kept=kept_by(BYTES, **wrong))
    with pytest.raises(ValueError, match="plan_chunks"):  # of what is read in part
        plan_of(fields_of(3, [2], [[0, 0, 2]]), *places, **where, kept=kept_by(BYTES))
    assert pipeline.address


@pytest.mark.parametrize("segments", [[[0, 0, 2]], [[1, 0, 1]], [[-1, 0, 1]], [[0, -1, 1]], [[0, 0, 0]]])
def test_segments_beyond_a_chunks_rows_are_refused(segments):
    with pytest.raises(ValueError, match="segments"):
        fields_of(3, [1], segments)


def test_a_read_that_a_signal_interrupts_goes_on(tmp_path):
    """A library that is loaded first lets every other read fail as by a signal, and makes the others short."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    (tmp_path / "signals.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n#include <fcntl.h>\n#include <unistd.h>\n"
        "static int calls;\n"
        "ssize_t pread(int d, void *to, size_t count, off_t at) {\n"
        '    ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread");\n'
        "    if (calls++ % 2 == 0) { errno = EINTR; return -1; }\n"
        "    return real(d, to, count > 3 ? 3 : count, at);\n}\n"
    )
    made = tmp_path / "signals.so"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "signals.c", "-o", made, "-ldl"], check=True)
    (tmp_path / "bytes").write_bytes(bytes(range(40)))
    code = (
        "import os, sys, numpy as np\nfrom h5stream.compiled import _native as native\n"
        "target, now = np.zeros(20, np.uint8), os.stat(sys.argv[1])\n"
        "paths = np.frombuffer(sys.argv[1].encode() + b'\\0', np.uint8)\n"
        "numbers = 0, now.st_size, now.st_mtime_ns, now.st_ino\n"
        "where = target.__array_interface__['data'][0] + np.array([0, 10])\n"
        "ranges = np.array([0, 0]), np.array([5, 20]), np.array([10, 10]), where\n"
        "assert native.read_files(paths, *(np.array([each]) for each in numbers), *ranges) == 2\n"
        "assert bytes(target) == bytes([*range(5, 15), *range(20, 30)])\n"
    )
    environment = os.environ | {"LD_PRELOAD": str(made), "PYTHONPATH": python_path(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "bytes"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_all_of_them_are_described():
    text = (ROOT / "h5stream" / "compiled" / "_native.pyi").read_text()
    names = {name for name in vars(native) if not name.startswith("__")}
    heads = "\ndef {}(", "\nclass {}:", "\n{}: "
    assert {name for name in names if any(head.format(name) in text for head in heads)} == names


STEP = (32000, 0, 4, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("steps", "values", "raw_nbytes", "most_nbytes"),
    [
        ([(1, 0, 4, 0, 0, 0, 0)], [], 4, 8),  # no function
        ([(1, 0, 4, 1, 0, 0, 0)], [], 4, 8),  # no context
        ([(32008, 1, 4, 0, 0, 0, 0)], [], 4, 8),
        ([(32000, 0, 9, 0, 0, 0, 0)], [], 4, 8),  # gives more than there can be
        ([(32000, 0, -2, 0, 0, 0, 0)], [], 4, 8),
        ([(32000, 0, 4, 0, 0, 0, 1)], [], 4, 8),  # parameters that are not given
        ([(32000, 0, 4, 0, 0, 0, -1)], [], 4, 8),
        ([STEP], [1], 4, 8),  # and one too many
        ([STEP], [], 4, 3),
        ([STEP], [], -1, 8),
        ([STEP[:6]], [], 4, 8),
    ],
)
def test_pipelines_whose_steps_do_not_fit_are_refused(steps, values, raw_nbytes, most_nbytes):
    with pytest.raises(ValueError, match="Pipeline"):
        native.Pipeline(np.array(steps), np.array(values, np.uint32), raw_nbytes, most_nbytes, 0)


def test_the_arguments_of_a_pipeline_have_no_names_and_are_all_given():
    given = np.array([STEP]), np.zeros(0, np.uint32), 4, 8
    with pytest.raises(TypeError, match="arguments have no names"):
        native.Pipeline(*given, shuffled=0)
    for few in (given, given[:1], ()):
        with pytest.raises(TypeError, match="Pipeline takes 5 arguments"):
            native.Pipeline(*few)


def test_a_pipeline_decodes_to_what_is_given_or_to_its_scratch():
    scratch, stored = native.Scratch(), np.frombuffer(b"\x03abcd", np.uint8)
    lzf = native.Pipeline(np.array([STEP]), np.zeros(0, np.uint32), 4, 8, 0)
    none = native.Pipeline(np.zeros((0, 7), np.int64), np.zeros(0, np.uint32), 5, 8, 0)
    out = np.zeros(4, np.uint8)
    assert lzf.decode(stored, out, scratch) is out
    assert bytes(lzf.decode(stored, None, scratch)) == bytes(out) == b"abcd"
    assert none.decode(stored, None, scratch) is stored
    assert lzf.decode(stored[:-1], None, scratch) == (0, 6, 0, 0)
    assert none.decode(stored[:-1], None, scratch) == (-1, 2, 4, 5)
    assert lzf.decode(np.zeros(9, np.uint8), None, scratch) == (-1, 1, 9, 4)
    for wrong in ((stored, np.zeros(5, np.uint8), scratch), (stored.view("i1"), None, scratch), (stored, None, None)):
        with pytest.raises((ValueError, TypeError), match="decode"):
            lzf.decode(*wrong)
    assert len({each.address for each in (scratch, lzf, none)}) == 3


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("processor", ["this one", "any"])
def test_nothing_is_read_or_written_out_of_bounds(tmp_path, processor):
    """The tests of the kernels with an extension that looks at every access, and at every shift and sum."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if not Path(library.stdout.strip()).is_absolute():
        pytest.skip("there is no gcc with its sanitizers")
    made, sources = tmp_path / "_native.abi3.so", map(str, (ROOT / "h5stream" / "compiled").glob("*.c"))
    flags = ["-shared", "-fPIC", "-O1", "-g", "-std=gnu11", "-fwrapv", "-fno-strict-aliasing"]
    flags += ["-DPy_LIMITED_API=0x030B0000"]
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
    checked = [
        "tests/compiled",
        "tests/engine",
        "tests/storage/decode/test_filters.py",
        "tests/faults/test_damaged_chunks.py",
        "tests/storage/layout/test_variable_length.py",
        "tests/oracle",
    ]
    environment = os.environ | {
        "LD_PRELOAD": library.stdout.strip(), "PYTHONPATH": python_path(ROOT),
        # libhdf5 asks for what damaged files say, and the plugin for SZ3 frees what C++ made.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:alloc_dealloc_mismatch=0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *checked], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

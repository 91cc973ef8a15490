"""Values of variable length, read from the global heap beside h5py."""

import os

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from making import flip_byte

from h5stream import Field, H5Dataset, H5StreamLoader, SampleNumber, errors
from h5stream.storage.layout import HEAP
from tools import fuzz_files

PAIR = np.dtype([("a", "<i2"), ("b", "<f4")])
TEXT = ("", "abc", "é ß 漢", "x" * 5000)


def values_like(base, counts, seed=0):
    rng = np.random.default_rng(seed)
    if base == "text":
        return [TEXT[count % 4] * (count > 0) for count in counts]
    return [rng.integers(0, 100, (count,) + (2,) * (base == PAIR)).astype("u1") for count in counts]


def write(path, counts, base="f4", seed=0, libver=None, userblock=0, **stored):
    """Write a value of so many items for each row, but for every seventh, which is left unwritten; give the values."""
    values = values_like(base, counts, seed)
    stored = {**stored, "chunks": (min(len(counts), *stored["chunks"]),)} if "chunks" in stored else stored
    with h5py.File(path, "w", libver=libver, userblock_size=userblock) as file:
        dtype = h5py.string_dtype() if base == "text" else h5py.vlen_dtype(np.dtype(base))
        dataset = file.create_dataset("x", (len(counts),), dtype=dtype, **stored)
        for k, value in enumerate(values):
            if base == PAIR:
                value = values[k] = np.array([tuple(each) for each in value], PAIR)
            elif base != "text":
                value = values[k] = value.astype(base)
            if k % 7 == 6:
                values[k] = value[:0]
            else:
                dataset[k] = value
        file["y"] = np.arange(len(counts))
    return values


def same(found, value):
    """Whether a sample's value is what was written, as h5py gives it."""
    if isinstance(value, str):
        return found == value.encode()
    if value.dtype.names:
        return found == value.tolist()
    return (
        isinstance(found, torch.Tensor) and np.array_equal(found.numpy(), value) and found.numpy().dtype == value.dtype
    )


def check(batches, values, form="list", most=None):
    """Compare each sample with what was written; give the samples."""
    seen = []
    for batch in batches:
        for k, number in enumerate(batch["y"].tolist()):
            found = batch["x"].sample(k) if form in ("packed", "pad") else batch["x"][k]
            assert same(found, values[number] if isinstance(values[number], str) else values[number][:most]), number
            seen.append(number)
    return seen


BASES = ["f4", "i4", "u1", "f8", "?", "c8", PAIR, "text"]
STORED = [{}, {"chunks": (5,)}, {"chunks": (7,), "compression": "gzip", "shuffle": True}, {"maxshape": (None,)}]


@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(0, 9) | st.sampled_from([700, 3000]), min_size=1, max_size=40),
    base=st.sampled_from(BASES),
    stored=st.sampled_from(STORED),
    how=st.sampled_from([{}, {"libver": "latest"}, {"userblock": 1024}]),
    form=st.sampled_from([None, "packed", "nested", "pad", "list"]),
    most=st.none() | st.integers(1, 6),
    given_too=st.sampled_from(
        [{}, {"shuffle": True}, {"shuffle": True, "window": 5}, {"num_workers": 0, "shuffle": True}, {"batch_size": 1}]
    ),
)
def test_every_sample_has_the_value_that_h5py_gives(tmp_path, counts, base, stored, how, form, most, given_too):
    form = None if base in ("text", PAIR) else form
    most = None if form is None else most
    values = write(tmp_path / "a.h5", counts, base, **how, **stored)
    field = "x" if form is None else Field("x", ragged=form, max_length=most)
    with H5StreamLoader(tmp_path / "a.h5", **{"batch_size": 4, **given_too}, fields={"x": field, "y": "y"}) as loader:
        assert [parts[0].access for parts in loader.dataset.layout.datasets].count(HEAP) == 1
        for _ in range(2):
            assert sorted(check(loader, values, form, most)) == list(range(len(counts)))
        assert loader.stats().h5py_bytes == 0
    dataset = H5Dataset(tmp_path / "a.h5", {"x": field, "y": "y"})
    with h5py.File(tmp_path / "a.h5") as file:
        for k in range(len(counts)):
            assert same(dataset[k]["x"], values[k] if isinstance(values[k], str) else values[k][:most])
            theirs = file["x"][k]
            assert theirs == values[k].encode() if base == "text" else np.array_equal(theirs, values[k])


@pytest.mark.parametrize("columns", [None, [2, 0]])
def test_rows_of_several_values_are_nested_lists(tmp_path, columns):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (9, 3), dtype=h5py.vlen_dtype("i2"), chunks=(2, 2), compression="gzip")
        for k in np.ndindex(9, 3):
            dataset[k] = np.arange(sum(k))
    for number, row in enumerate(H5Dataset(tmp_path / "a.h5", Field("x", columns=columns))):
        assert [value.tolist() for value in row] == [list(range(number + k)) for k in columns or (0, 1, 2)]


@pytest.mark.parametrize("inner", [(), (2,)], ids=str)
def test_a_file_without_rows_lies_beside_others(tmp_path, inner):
    for number, rows in enumerate([0, 5, 0]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            dataset = file.create_dataset("x", (rows, *inner), dtype=h5py.vlen_dtype("i4"))
            for k in np.ndindex(dataset.shape):
                dataset[k] = np.arange(sum(k))
    with H5StreamLoader(str(tmp_path / "*.h5"), 2, fields="x", shuffle=True) as loader:
        lengths = [len(row[-1] if inner else row) for batch in loader for row in batch]
    assert sorted(lengths) == [k + len(inner) for k in range(5)]


def test_ragged_values_are_samples_by_themselves_and_of_several_files(tmp_path):
    values = [value for k in range(3) for value in write(tmp_path / f"{k}.h5", [3, 0, 5 + k], seed=k)]
    fields = {"x": Field("x", ragged="packed"), "y": SampleNumber()}
    with H5StreamLoader(str(tmp_path / "*.h5"), 2, fields=fields, shuffle=True) as loader:
        assert sorted(check(loader, values, "packed")) == list(range(9))
    some = H5Dataset(str(tmp_path / "*.h5"), fields).subset([1, 2, 8])
    with H5StreamLoader(some, 2, shuffle=True) as loader:
        assert sorted(check(loader, values, "packed")) == [1, 2, 8]


def test_a_state_goes_on_at_any_batch(tmp_path):
    values = write(tmp_path / "a.h5", np.arange(60) % 11)
    fields = {"x": Field("x", ragged="packed"), "y": "y"}
    given_too = {"shuffle": True, "seed": 0, "window": 16, "fields": fields}
    with H5StreamLoader(tmp_path / "a.h5", 5, **given_too) as loader:
        whole = check(loader, values, "packed")
    for stop in (1, 4, 11):
        with H5StreamLoader(tmp_path / "a.h5", 5, **given_too) as loader:
            batches = iter(loader)
            seen = check([next(batches) for _ in range(stop)], values, "packed")
            state = loader.state_dict()
        with H5StreamLoader(tmp_path / "a.h5", 5, **given_too) as loader:
            loader.load_state_dict(state)
            assert seen + check(loader, values, "packed") == whole


@pytest.mark.parametrize("form", [None, "packed"])
@pytest.mark.parametrize("at", [0, 8, 24])  # the signature, the size of the collection, that of its first object
def test_a_heap_that_lies_is_an_error_that_names_the_sample_and_skip_leaves_it_out(tmp_path, form, at):
    values = write(tmp_path / "a.h5", [10_000] * 20, "f8")  # each in a collection of its own
    content = bytearray((tmp_path / "a.h5").read_bytes())
    layout = H5Dataset(tmp_path / "a.h5", "x").layout
    where = int(layout.datasets[0][0].heap.address[4]) + at
    content[where : where + 8] = (2**40).to_bytes(8, "little")
    (tmp_path / "a.h5").write_bytes(content)
    fields = {"x": "x" if form is None else Field("x", ragged=form), "y": "y"}
    with pytest.raises(errors.CorruptChunkError, match=r"'x'.* 4"):
        list(H5StreamLoader(tmp_path / "a.h5", 4, fields=fields))
    with H5StreamLoader(tmp_path / "a.h5", 4, fields=fields, on_error="skip", shuffle=True) as loader:
        assert sorted(check(loader, values, form)) == [k for k in range(20) if k != 4]


@pytest.mark.parametrize("length", [2**32 - 1, 901, 899, 0])
def test_an_element_that_lies_is_what_h5py_says_of_it(tmp_path, length):
    values = write(tmp_path / "a.h5", [900] * 20, "f8")
    with h5py.File(tmp_path / "a.h5") as file:
        element = file["x"].id.get_offset() + 16 * 4
    with open(tmp_path / "a.h5", "r+b") as file:
        file.seek(element)
        file.write(length.to_bytes(4, "little"))
    dataset = H5Dataset(tmp_path / "a.h5", {"x": "x", "y": "y"})
    for k in (3, 5):
        assert same(dataset[k]["x"], values[k])
    with h5py.File(tmp_path / "a.h5") as file:
        try:
            theirs = file["x"][4]
        except (OSError, MemoryError):
            with pytest.raises(errors.CorruptChunkError):
                dataset[4]
        else:
            assert np.array_equal(dataset[4]["x"].numpy(), theirs)


def test_memory_is_counted_before_it_is_taken(tmp_path):
    write(tmp_path / "a.h5", [10, 400_000, 3])
    for field in ("x", Field("x", ragged="packed")):
        with pytest.raises(errors.BudgetError) as refused:
            H5StreamLoader(tmp_path / "a.h5", 1, fields=field, memory_budget="4MiB")
        with H5StreamLoader(tmp_path / "a.h5", 1, fields=field, memory_budget=refused.value.needed) as loader:
            assert len(list(loader)) == 3


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (Field("x", ragged="pad", pad_value=0.5), "does not fit"),
        (Field("text", ragged="packed"), "numbers of variable length"),
        (Field("y", ragged="packed"), "numbers of variable length"),
        (Field("pair", ragged="packed"), "'a'"),
        (Field("rows", ragged="packed"), "one value a row"),
    ],
)
def test_what_is_said_wrongly_is_told(tmp_path, field, says):
    write(tmp_path / "a.h5", [2, 0, 3], "i4")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["text"] = ["a", "b", "c"]
        file.create_dataset("pair", (3,), dtype=h5py.vlen_dtype(PAIR))
        file.create_dataset("rows", (3, 2), dtype=h5py.vlen_dtype("f4"))
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(tmp_path / "a.h5", [field, "y"])


@pytest.mark.parametrize("field", [Field("v", ragged="packed"), Field("v", decode="png")])
def test_a_damaged_chunk_of_places_is_named_where_no_value_can_be_had(tmp_path, field):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        values = np.empty(60, object)
        values[:] = [np.arange(k % 7, dtype="u1") for k in range(60)]
        file.create_dataset("v", data=values, dtype=h5py.vlen_dtype("u1"), chunks=(20,), compression="gzip")
        chunk = file["v"].id.get_chunk_info(1)
    flip_byte(path, chunk.byte_offset + chunk.size // 2)
    with pytest.raises(errors.CorruptChunkError, match=r"'v': .*chunk \(20,\) at byte \d+: gzip") as found:
        H5Dataset(path, field)
    assert (found.value.file, found.value.field, found.value.chunk) == (str(path), "v", (20,))


@pytest.mark.parametrize("seed", [7400, pytest.param(None, id="anew", marks=pytest.mark.slow)])
def test_damaged_heaps_are_what_h5py_says_of_them(tmp_path, seed):
    """A short part of ``python tools/fuzz_files.py heaps``."""
    counts, wrong = fuzz_files.fuzz("heaps", 100, seed or int.from_bytes(os.urandom(4), "little"), tmp_path / "wrong")
    assert not wrong, wrong
    assert counts["files"] >= 100


def test_an_empty_value_is_a_sample_beside_a_compressed_field(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = file.create_dataset("values", (6,), h5py.vlen_dtype("f4"))
        for k in range(6):
            values[k] = np.arange(k % 3)
        file.create_dataset("packed", data=np.arange(6), chunks=(2,), compression="gzip")
    dataset = H5Dataset(tmp_path / "a.h5", ["values", "packed"])
    assert [(a.tolist(), int(b)) for a, b in map(dataset.__getitem__, range(6))] == [
        ([0, 1][: k % 3], k) for k in range(6)
    ]

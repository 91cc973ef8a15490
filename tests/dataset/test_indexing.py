"""What stands in the brackets of an `H5Dataset` means what it means to h5py, or is refused; NumPy arrays; the cache."""

import gc
import multiprocessing
import pickle
import sys
import threading

import h5py
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.amounts import examples
from support.making import vlen, write_datasets
from support.sample_files import in_thread
from torch.utils.data import DataLoader

from h5stream import Field, H5Dataset, H5StreamLoader, collate
from h5stream.dataset import indexing
from h5stream.errors import OptionError
from h5stream.structure import foreign_dtype

SHAPES = {"flat": (7,), "table": (7, 5), "box": (6, 3, 4)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    held = {"names": np.array([[b"a", b"b"], [b"c", b"d"]]), "pair": np.zeros(7, [("x", "f4"), ("y", "i8")])}
    for name, shape in SHAPES.items():
        values, chunks = np.arange(np.prod(shape), dtype="i4").reshape(shape), tuple(min(2, n) for n in shape)
        held[name] = {"data": values, "chunks": chunks, "compression": "gzip"}
    return write_datasets(tmp_path_factory.mktemp("indexing") / "a.h5", **held)


numbers = st.integers(-9, 9)
bounds = st.none() | numbers
slices = st.builds(slice, bounds, bounds, st.none() | st.integers(1, 4) | st.sampled_from([-1, -2, 0]))
lists = st.lists(numbers, max_size=5)
ascending = st.sets(st.integers(0, 6), max_size=5).map(sorted)
masks = st.integers(3, 8).flatmap(lambda n: st.lists(st.booleans(), min_size=n, max_size=n))
odd = st.sampled_from(
    [None, True, False, np.True_, 1.0, np.float32(2), "x", b"x", [0.5], [[0, 1]], np.zeros((2, 2), int)]
)
one = (
    numbers | numbers.map(np.int16) | numbers.map(np.array) | slices | lists | ascending | ascending.map(np.array)
    | ascending.map(tuple).map(list) | masks | masks.map(np.array) | st.just(...) | odd | st.just(np.array([], int))
)  # fmt: skip
indices = one | st.lists(one, max_size=4).map(tuple)


@pytest.fixture(scope="module")
def both(path):
    with h5py.File(path, "r", locking=False) as file:
        yield {name: (H5Dataset(path, name), file[name]) for name in SHAPES}


@examples(600)
@given(index=indices, name=st.sampled_from(sorted(SHAPES)))
@example(index=(3, 0), name="table")
@example(index=(), name="table")
@example(index=..., name="box")
@example(index=(slice(2, 4), 0), name="table")
@example(index=(..., [0, 2]), name="box")
@example(index=(slice(None), 0, [0, 2]), name="box")
def test_an_index_gives_what_h5py_gives_or_an_error(both, index, name):
    ours, theirs = both[name]
    try:
        expected = theirs[index]
    except Exception:  # beyond h5py: NumPy decides, axis by axis, or we refuse as well
        expected = None
    try:
        found = ours[index]
    except (OptionError, IndexError, TypeError, ValueError) as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert expected is None or _refused_on_purpose(index, refused), f"{index!r} is fine for h5py: {refused!r}"
        return
    if expected is None:
        expected = _by_axes(theirs[()], index)
    assert found.dtype == torch.int32
    assert found.shape == np.shape(expected)
    assert found.tolist() == np.asarray(expected).tolist()


def _refused_on_purpose(index, error):
    """One list, mask or array an index, and rows by whole numbers only."""
    entries = index if isinstance(index, tuple) else (index,)
    return isinstance(error, OptionError) and any(
        isinstance(e, (bool, np.bool_, float, np.floating, list, np.ndarray, str, bytes)) for e in entries
    )


def _by_axes(values, index):
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(entry is Ellipsis for entry in entries):
        at = next(k for k, entry in enumerate(entries) if entry is Ellipsis)
        entries[at : at + 1] = [slice(None)] * (values.ndim - len(entries) + 1)
    for axis, entry in reversed(list(enumerate(entries))):
        taken = np.asarray(entry) if isinstance(entry, list) else entry
        if isinstance(taken, np.ndarray) and taken.size == 0:
            taken = taken.astype(int)
        values = values[(slice(None),) * axis + (taken,)]
    return values


@pytest.mark.parametrize("tensor", [torch.tensor(3), torch.tensor([4, 1]), torch.arange(7) % 2 == 0])
def test_tensors_name_rows_and_places_inside(both, tensor):
    ours, theirs = both["table"]
    values = theirs[()]
    assert ours[tensor].tolist() == values[tensor.numpy()].tolist()
    if tensor.dtype != torch.bool:
        assert ours[2:4, tensor].tolist() == values[2:4, tensor.numpy()].tolist()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((3, 0, 0), r"3 indices for data of 2 axes, \(7, 5\)"),
        ((0, 5), "place 5 on axis 1 is not there: the axis has 5, 0 to 4"),
        ((slice(None), [True]), r"one value a place on axis 1: 5 places, shape \(1,\)"),
        ((0, 1.5), "places on axis 1 are named by integers, a slice or a mask, not 1.5"),
        (([0], [1]), "one list, array or mask, not several"),
        ((..., ...), "one '...'"),
        ([[0, 1], [2, 3]], r"of shape \(2, 2\); a list has one axis"),
        ([[0], [1, 2]], "inhomogeneous"),
    ],
)
def test_what_means_nothing_says_what_would(both, index, message):
    with pytest.raises((OptionError, IndexError), match=message):
        both["table"][0][index]


@pytest.mark.parametrize("fields", [["flat", "table"], {"t": "table"}, "names", "pair", ["table"]])
@pytest.mark.parametrize("index", [(1, 0), (slice(2), 0), (..., 0)])
def test_an_index_inside_rows_of_several_fields_says_what_to_write(path, fields, index):
    dataset = H5Dataset(path, fields, rows=None)
    with pytest.raises(OptionError, match=r"Index the rows, and then the field: x, y = dataset\[2:4\], then x\[:, 0\]"):
        dataset[index]


def test_numpy_gives_what_h5py_gave_and_loaders_give_tensors(path):
    dataset = H5Dataset(path, ["flat", "table"], numpy=True)
    number, row = dataset[3]
    assert isinstance(number, np.int32)
    assert isinstance(row, np.ndarray)
    assert row.astype("f8").tolist() == [15, 16, 17, 18, 19]
    assert [type(part) for part in dataset[1:3]] == [np.ndarray] * 2
    assert [type(part) for part in dataset.__getitems__([0, 1])[1]] == [np.int32, np.ndarray]
    for twin in (pickle.loads(pickle.dumps(dataset)), dataset.subset([1, 2]), H5Dataset([dataset, dataset])):
        assert isinstance(twin[0][1], np.ndarray)
    assert H5Dataset(path, "table", numpy=True)[2, 1] == 11
    whole = next(iter(DataLoader(dataset, 4, collate_fn=collate)))
    stacked = next(iter(DataLoader(dataset, 4)))
    ours = next(iter(H5StreamLoader(dataset, 4)))
    for batch in (whole, stacked, ours):
        assert [type(part) for part in batch] == [torch.Tensor] * 2
        assert batch[1].tolist() == dataset[:4][1].tolist()


def test_numpy_gives_strings_members_and_ragged_rows_and_no_cast_that_it_has_not(path, tmp_path, monkeypatch):
    assert H5Dataset(path, "names", numpy=True)[1] == [b"c", b"d"]
    assert isinstance(H5Dataset(path, "pair", numpy=True)[1]["y"], np.int64)
    path_of_ragged = write_datasets(tmp_path / "r.h5", r=vlen("i4", map(np.arange, range(3))))
    ragged = H5Dataset(path_of_ragged, "r", numpy=True)
    assert ragged[2].dtype == np.int32
    assert [row.tolist() for row in ragged[:]] == [[], [0], [0, 1]]
    foreign_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # as if it were not installed
    with pytest.raises(OptionError, match=r"numpy=True cannot give torch.bfloat16, .* install ml_dtypes"):
        H5Dataset(path, Field("table", dtype=torch.bfloat16), numpy=True)


@pytest.fixture(scope="module")
def blocky(tmp_path_factory):
    made = {"shape": (64, 65536), "dtype": "f4", "chunks": (16, 65536), "compression": "gzip"}
    path = tmp_path_factory.mktemp("cache") / "a.h5"
    return write_datasets(path, **{f"x{k}": {**made, "fillvalue": k} for k in range(40)})


def held_nbytes():
    """Give what all caches of this process hold together."""
    with indexing.SHARED.lock:
        return sum(cache.nbytes for cache in indexing.SHARED.caches)


def test_many_datasets_share_one_bounded_cache_and_give_it_back(blocky):
    """Four blocks of 4 MiB each for 40 datasets: 640 MiB, if each kept its own."""
    gc.collect()
    before = held_nbytes()
    datasets = [H5Dataset(blocky, f"x{k}") for k in range(40)]
    for row in (0, 20, 40, 60):
        for k, dataset in enumerate(datasets):
            assert dataset[row][5] == k
    assert 48 << 20 < held_nbytes() <= indexing.LIMIT_NBYTES
    for place, held in ((0, False), (-1, True)):  # the oldest blocks went first
        all_nbytes = held_nbytes()
        datasets[place] = dataset = None
        gc.collect()
        assert (held_nbytes() < all_nbytes) == held
    del datasets
    gc.collect()
    assert held_nbytes() <= before


def _row_in_child(dataset):
    assert dataset[3][0] == 7
    assert held_nbytes() <= indexing.LIMIT_NBYTES


def test_a_child_forked_while_the_cache_is_in_use_goes_on(blocky):
    dataset = H5Dataset(blocky, "x7")
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with indexing.SHARED.lock:
            held.set()
            let_go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = multiprocessing.get_context("fork").Process(target=_row_in_child, args=(dataset,))
    child.start()
    child.join(60)
    let_go.set()
    thread.join()
    assert child.exitcode == 0


def test_threads_share_the_cache(blocky):
    datasets = [H5Dataset(blocky, f"x{k}") for k in range(8)]

    def read(generator):
        asked = generator.integers([8, 64], size=(30, 2)).tolist()
        return [(k, row) for k, row in asked if datasets[k][row][3] != k]

    reading = [in_thread(read, np.random.default_rng(seed)) for seed in range(4)]
    assert [one.result(60) for one in reading] == [[]] * 4
    assert held_nbytes() <= indexing.LIMIT_NBYTES


def test_a_loader_refuses_numpy_and_says_what_to_write(path):
    with pytest.raises(TypeError, match=r"no argument numpy=: a loader gives tensors, and x.numpy\(\) copies nothing"):
        H5StreamLoader(path, fields="flat", numpy=True)
    with H5StreamLoader(H5Dataset(path, "flat", numpy=True)) as loader:
        assert isinstance(next(iter(loader)), torch.Tensor)


@pytest.mark.parametrize("wrong", [[1.7], ["1"], [None], [2**70], [2**63], [2**64 - 1]])
def test_rows_that_are_no_whole_numbers_are_refused_by_every_door(path, wrong):
    dataset = H5Dataset(path, "flat")
    for read in (dataset.__getitem__, dataset.__getitems__, dataset.read):
        with pytest.raises(OptionError):
            read(wrong)


def test_rows_of_any_type_of_whole_numbers_are_read_by_every_door(path):
    dataset = H5Dataset(path, "flat")
    for rows in ([3, -1], np.array([3, -1], "i2"), (3, -1), [np.uint8(3), np.int64(-1)]):
        for read in (dataset.__getitem__, dataset.read) if not isinstance(rows, tuple) else (dataset.read,):
            assert read(rows).tolist() == dataset[[3, -1]].tolist()
        assert [one.tolist() for one in dataset.__getitems__(rows)] == dataset[[3, -1]].tolist()


@pytest.mark.parametrize("wrong", ["one", 1.5, -1, None])
def test_an_epoch_and_a_seed_are_whole_numbers(path, wrong):
    dataset = H5Dataset(path, "flat")
    for options in ({"epoch": wrong}, {"epoch": 0, "seed": wrong}):
        with pytest.raises(OptionError, match=r"set_epoch.* takes a non-negative integer, not"):
            dataset.set_epoch(**options)

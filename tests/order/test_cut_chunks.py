"""Large chunks that need no decoding are cut into blocks and mix as small ones do; what must be decoded is not."""

import itertools

import h5py
import numpy as np
import pytest
from support.inner import stream_all
from support.making import make_file, numbers, write_datasets

from h5stream import ChunkBatchSampler, Field, H5Dataset, H5StreamLoader, SampleNumber
from h5stream.errors import StateError
from h5stream.order.blocks import BLOCK_NBYTES, WHOLE_NBYTES, block_rows

PICTURES = 1_281_167
PER_CLASS = 1282
IMAGENET = {"shape": (PICTURES, 3, 128, 128), "dtype": "u1", "chunks": (500, 3, 128, 128)}


def write(path, **datasets):
    """Write datasets of which nothing is stored: their rows are the fill value, and take no space."""
    return write_datasets(path, **{name: {"dtype": "f4", **options} for name, options in datasets.items()})


def classes_in_batches(loader, batches=400):
    """Give the mean number of classes in a batch of pictures that are sorted by class."""
    some = itertools.islice(iter(loader.batch_sampler), batches)
    return np.mean([len(np.unique(np.array(rows) // PER_CLASS)) for rows in some])


def test_imagenet_sorted_by_class_in_chunks_of_500_pictures_is_mixed(tmp_path):
    """As BigGAN writes it. A full shuffle has 62 classes in a batch of 64; whole chunks gave 26 to 32."""
    path = write(tmp_path / "a.h5", imgs=IMAGENET, labels={"shape": (PICTURES,), "dtype": "i8", "chunks": (500,)})
    with H5StreamLoader(path, 64, shuffle=True, seed=0, memory_budget=2 << 30, num_workers=1) as loader:
        assert loader.window_size.needed_nbytes <= 2 << 30
        assert classes_in_batches(loader) > 58


def test_an_exact_global_shuffle_needs_its_plan_and_a_few_batches(tmp_path):
    path = write(tmp_path / "a.h5", imgs=IMAGENET)
    with H5StreamLoader(path, 64, shuffle=True, seed=0, memory_budget=128 << 20, window="all", num_workers=1) as loader:
        assert loader.window_size.window_rows == PICTURES
        assert loader.window_size.needed_nbytes <= 128 << 20
        assert classes_in_batches(loader, 50) > 60


@pytest.mark.parametrize(
    ("x", "rows"),
    [
        ({"chunks": (4096, 64)}, 4096),  # 1 MiB
        ({"chunks": (4097, 64)}, 820),  # a little more, in five parts
        ({"chunks": (40_000, 64)}, 1000),
        ({"chunks": (40_000, 64), "compression": "lzf"}, 40_000),
        ({}, 1024),  # contiguous
    ],
)
def test_the_size_of_a_block_is_a_function_of_how_data_are_stored(tmp_path, x, rows):
    assert BLOCK_NBYTES * 4 == WHOLE_NBYTES == 4096 * 64 * 4
    path = write(tmp_path / "a.h5", x={"shape": (200_000, 64), **x})
    assert block_rows(H5Dataset(path, "x").layout) == (rows,)


@pytest.mark.parametrize(
    ("other", "is_cut"),
    [
        ({"shape": (200_000,), "chunks": (999,), "compression": "gzip"}, True),  # so small that it is kept in memory
        ({"shape": (200_000, 30), "chunks": (999, 30), "compression": "gzip"}, False),
        ({"shape": (200_000, 30), "chunks": (999, 30)}, True),
        ({"shape": (200_000,), "dtype": h5py.string_dtype(), "chunks": (999,)}, True),  # were never written
    ],
)
def test_chunks_are_whole_blocks_where_another_field_has_to_be_decoded(tmp_path, other, is_cut):
    path = write(tmp_path / "a.h5", x={"shape": (200_000, 64), "chunks": (40_000, 64)}, y=other)
    dataset = H5Dataset(path, ["x", "y"])
    assert block_rows(dataset.layout) == ((1000,) if is_cut else (40_000,))
    assert dataset.blocks.count == (200 if is_cut else 5)


def test_each_file_is_cut_by_itself(tmp_path):
    chunks = ({"chunks": (40_000, 64)}, {"chunks": (40_000, 64), "compression": "lzf"}, {"chunks": (100, 64)})
    paths = [write(tmp_path / f"{k}.h5", x={"shape": (50_000, 64), **c}) for k, c in enumerate(chunks)]
    assert block_rows(H5Dataset(paths, "x").layout) == (1000, 40_000, 100)


@pytest.fixture
def path(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    return make_file(tmp_path / "a.h5", data=numbers(40_000, 16), chunks=(20_000, 16))


def test_an_older_state_in_the_middle_of_an_epoch_is_refused_with_words(path):
    first, second = (H5StreamLoader(path, 1000, shuffle=True, seed=3, window=10_000) for _ in range(2))
    next(iter(first))
    state = first.state_dict()
    state |= {"format": 1, "fingerprint": {**state["fingerprint"], "block_rows": 20_000}}  # before chunks were cut
    said = r"older h5stream.*state format 1, now 4.*Finish the epoch.*set_epoch"
    with pytest.raises(StateError, match=said) as caught:
        second.load_state_dict(state)
    assert caught.value.changed == ("format",)
    assert len(list(second)) == 40  # still of use


def test_a_samplers_older_state_is_refused_with_words(path):
    sampler = ChunkBatchSampler(H5Dataset(path, "x"), 1000)
    state = sampler.state_dict()
    for name, older in (("blocks", 2), ("permutation", 1)):
        wrong = {**state, "batch": 1, "order": {**state["order"], name: older}}
        with pytest.raises(StateError, match=rf"{name} was {older} .*older h5stream.*set_epoch"):
            sampler.load_state_dict(wrong)
    del state["order"]["permutation"]
    sampler.load_state_dict(state)  # nothing of the epoch was taken
    state["order"]["blocks"] = 2
    with pytest.raises(StateError, match=r"blocks was 2 .*older h5stream.*set_epoch"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize("names", [["a", "b", "d"], ["a", "d"], ["a", "b"], "b"])
def test_members_of_large_shuffled_chunks_are_stacked_by_their_places(tmp_path, names):
    """Rows of so many elements that their shuffle would be undone as they are copied, were they whole numbers."""
    rows = np.zeros((600, 64), [("a", "f4"), ("b", "f4"), ("c", "i4"), ("d", "f4")])
    for k, name in enumerate(rows.dtype.names):
        rows[name] = np.arange(rows.size).reshape(rows.shape) + k / 4
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows, chunks=(300, 64), compression="gzip", shuffle=True)
    expected = rows["b"] if names == "b" else np.stack([rows[name] for name in names], axis=-1)
    field = Field("x:b") if names == "b" else Field("x", columns=names)
    with H5StreamLoader(path, 100, shuffle=True, fields=[field, SampleNumber()], keep="never") as loader:
        for batch, numbers in loader:
            np.testing.assert_array_equal(batch, expected[numbers])

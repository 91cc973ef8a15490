"""An index of chunks that libhdf5 tells wrongly, as some of its versions do, is seen when a file is opened."""

import dataclasses

import h5py
import numpy as np
import pytest
from support.making import make_file, numbers

from h5stream import H5Dataset
from h5stream.storage.file.h5py_reader import why_not_decoded_here
from h5stream.storage.layout.index import build_index, read_stored_chunk


def test_a_missing_chunk_that_the_users_own_handle_has_cached_is_still_missing(tmp_path):
    # Asked for the size of a chunk in its cache, libhdf5 gives one although the file has none.
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        x = file.create_dataset("x", (2, 60), "i4", chunks=(2, 3), maxshape=(8, None), fillvalue=7)
        x[:, 27:30] = numbers(2, 3, dtype="i4")
    with h5py.File(path, locking=False) as file:
        whole = file["x"][()]
        assert read_stored_chunk(file["x"], (0, 0), 24) is None
        index = build_index(file["x"], file_size=path.stat().st_size)
        assert [index.coordinates(int(n)) for n in index.numbers] == [(0, 27)]
        np.testing.assert_array_equal(H5Dataset(path, "x")[:].numpy(), whole)


def why_not(path, change=lambda index: {}):
    """Say why a dataset is not decoded here whose index is told with a change."""
    layout = H5Dataset(path, "x").layout
    part = layout.datasets[0][0]
    index = dataclasses.replace(part.index, **change(part.index))
    wrong = dataclasses.replace(part, via=dataclasses.replace(part.via, index=index))
    with h5py.File(path, locking=False) as file:
        return why_not_decoded_here(file["x"], wrong, layout.files[0])


ORDERS = {
    "axes exchanged": lambda numbers: numbers.reshape(4, 5).T.reshape(-1),
    "reversed": lambda numbers: numbers[::-1],
    "first and last exchanged": lambda numbers: np.r_[numbers[-1], numbers[1:-1], numbers[0]],
    "all but the first moved on by one": lambda numbers: np.r_[numbers[0], np.roll(numbers[1:], 1)],
}


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}], ids=["none", "gzip"])
@pytest.mark.parametrize("order", ORDERS)
def test_an_index_in_another_order_is_seen_when_a_file_is_opened(tmp_path, order, filters):
    path = make_file(tmp_path / "a.h5", data=numbers(20, 15), chunks=(5, 3), **filters)
    places = ORDERS[order](np.arange(20))
    assert why_not(path) == ""
    assert why_not(path, lambda index: {"offset": index.offset[places], "nbytes": index.nbytes[places]}) != ""


def test_an_index_that_names_a_missing_chunk_is_seen_when_a_file_is_opened(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (20, 15), "f4", chunks=(5, 3))[:10] = numbers(10, 15)
    assert why_not(path, lambda index: {"numbers": index.numbers + 10}) != ""

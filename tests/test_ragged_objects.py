"""Objects of unlike lengths, beside h5py: stored alike or not, in one file, in several, a file each."""

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, errors


def test_rows_of_unlike_form_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(5):
            file[f"s{k}"] = np.zeros((k + 1, 4 if k == 3 else 3))
    with pytest.raises(errors.FieldLengthError, match="s3"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="packed")}, samples=Objects("*"))


def test_a_damaged_object_of_its_own_length_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(6):
            file.create_dataset(f"s{k}", data=np.arange(50.0 + k), chunks=(20,), maxshape=(None,), compression="gzip")
        where = file["s4"].id.get_chunk_info(1)
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.seek(where.byte_offset)
        raw.write(b"\xff" * where.size)
    fields = {"x": Field(".", ragged="packed")}
    with pytest.raises(errors.CorruptChunkError, match=r"'s4': chunk \(20,\)"):
        H5Dataset(tmp_path / "a.h5", fields, samples=Objects("*"))[:]
    with H5StreamLoader(tmp_path / "a.h5", 2, fields=fields, samples=Objects("*"), on_error="skip") as loader:
        lengths = [length for batch in loader for length in batch["x"].offsets.diff().tolist()]
        assert sorted(lengths) == [50, 51, 52, 53, 55]


@pytest.mark.parametrize("made", ["value", "empty", "compound", "vlen"])
def test_objects_that_have_no_rows_of_numbers_are_told(tmp_path, made):
    things = {"value": 3.0, "empty": h5py.Empty("f4"), "compound": np.zeros(3, [("a", "f4"), ("b", "i4")])}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v/0"] = np.zeros(3, "f4")
        if made == "vlen":
            del file["v/0"]
            for k in range(2):
                file.create_dataset(f"v/{k}", (2,), h5py.vlen_dtype("f4"))
        else:
            file["v/1"] = things[made]
    with pytest.raises(errors.H5StreamError, match=r"single value|is empty|variable length|compound|must agree"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="list")}, samples=Objects("v/*"))
    if made == "compound":
        with h5py.File(tmp_path / "a.h5", "a") as file:
            file["v/0"].file.move("v/0", "other")
            file["v/2"] = things[made]
        batch = H5Dataset(tmp_path / "a.h5", {"x": "."}, samples=Objects("v/*"))[:]
        assert batch["x"]["b"].shape == (2, 3)


def test_one_long_sample_that_makes_batches_too_large_is_told_the_ways_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(40):
            file[f"t{k}"] = np.zeros(4 if k else 400_000)
    with pytest.raises(errors.BudgetError, match=r"Ragged.*Crop.*draw=Sized"):
        H5StreamLoader(
            tmp_path / "a.h5", 32, samples=Objects("t*"), fields=Field(".", ragged="pad"), memory_budget=1 << 24
        )

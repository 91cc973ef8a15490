"""Fields whose objects are named by each sample: both proteins of a pair, the image that a question is about."""

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, Sequences, Table, errors


def write(path, lengths, options, below=""):
    with h5py.File(path, "w") as file:
        for k, rows in enumerate(lengths):
            file.create_dataset(f"{below}p{k}", data=np.random.default_rng(k).random((rows, 3), "f4"), **options)


@pytest.mark.parametrize("samples", [Sequences(3, stride=4), Table(row=[0, 4, 8], length=3)], ids=repr)
def test_a_sequence_has_the_object_that_its_first_row_names(tmp_path, samples):
    write(tmp_path / "emb.h5", [2, 5, 1], {})
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["key"] = np.arange(12), [f"p{k % 3}" for k in range(12)]
    fields = {"x": "x", "e": Field("{}", file=tmp_path / "emb.h5", names="key", ragged="list")}
    batch = H5Dataset(tmp_path / "x.h5", fields, samples=samples)[:]
    assert batch["x"].tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    with h5py.File(tmp_path / "emb.h5") as file:
        assert [one.tolist() for one in batch["e"]] == [file[f"p{k % 3}"][()].tolist() for k in (0, 4, 8)]


def test_a_file_without_any_names_is_refused_where_nothing_says_what_the_field_holds(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["o/p0"], file["key"] = np.arange(3), np.array([], dtype="S5")
    with pytest.raises(errors.FieldLengthError, match="names no object, so that nothing says"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("o/{}", names="key")})


def test_what_cannot_be_is_named(tmp_path):
    write(tmp_path / "a.h5", [2, 3], {})
    for options, kind, words in [
        ({"names": ["p0", "p9"], "ragged": "list"}, errors.FieldNotFoundError, "no 'p9'.*1 of 2 names"),
        ({"names": ["p0", "p1"]}, errors.FieldLengthError, "unlike lengths, 2 to 3 rows; ragged="),
        ({"names": [3]}, errors.OptionError, "a name for each sample"),
        ({"names": ["p0"], "decode": "jpeg"}, errors.UnsupportedFieldError, "decode= takes objects that are bytes"),
    ]:
        with pytest.raises(kind, match=words):
            H5Dataset(tmp_path / "a.h5", {"x": Field("{}", **options)})
    with pytest.raises(errors.OptionError, match=r"one \{\}"):
        Field("p", names=["p0"])
    with pytest.raises(errors.OptionError, match=r"3 names, and needs one for each of 2 samples"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("{}", names=["p0"] * 3), "p": "p0"})

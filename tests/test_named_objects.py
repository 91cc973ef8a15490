"""Fields whose objects are named by each sample: both proteins of a pair, the image that a question is about."""

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, errors


def write(path, lengths, options, below=""):
    with h5py.File(path, "w") as file:
        for k, rows in enumerate(lengths):
            file.create_dataset(f"{below}p{k}", data=np.random.default_rng(k).random((rows, 3), "f4"), **options)


def test_a_file_without_any_names_is_refused_where_nothing_says_what_the_field_holds(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["o/p0"], file["key"] = np.arange(3), np.array([], dtype="S5")
    with pytest.raises(errors.FieldLengthError, match="names no object, so that nothing says"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("o/{}", lookup="key")})


def test_what_cannot_be_is_named(tmp_path):
    write(tmp_path / "a.h5", [2, 3], {})
    for options, kind, words in [
        ({"lookup": ["p0", "p9"], "ragged": "list"}, errors.FieldNotFoundError, "no 'p9'.*1 of 2 names"),
        ({"lookup": ["p0", "p1"]}, errors.FieldLengthError, "unlike lengths, 2 to 3 rows; ragged="),
        ({"lookup": [3]}, errors.OptionError, "a name for each sample"),
        ({"lookup": ["p0"], "decode": "jpeg"}, errors.UnsupportedFieldError, "decode= takes objects that are bytes"),
    ]:
        with pytest.raises(kind, match=words):
            H5Dataset(tmp_path / "a.h5", {"x": Field("{}", **options)})
    with pytest.raises(errors.OptionError, match=r"need \{\} in"):
        Field("p", lookup=["p0"])
    with pytest.raises(errors.OptionError, match=r"3 names, and needs one for each of 2 samples"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("{}", lookup=["p0"] * 3), "p": "p0"})

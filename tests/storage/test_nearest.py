"""A name that a file does not have is answered with the one that was meant."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream import H5Dataset
from h5stream.errors import FieldNotFoundError
from h5stream.storage.discovery import is_bookkeeping
from h5stream.storage.nearest import nearest_names

NAMES = st.lists(st.text("abcXY_09", min_size=1, max_size=6), min_size=1, max_size=4)


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = np.zeros((4, 2), "f4")
        file["obs"] = np.zeros(4, [("bulk_labels", "i1"), ("at", [("lat", "f4")])])
        file["obsm"] = np.zeros(4, [("X_pca", "f4", (2,))])
        file["uns/bulk_labels_colors"] = np.zeros(10, "S7")
        file["cells/kind"] = np.zeros(4)
        file["t/_i_table/index/sorted"] = np.zeros(9)
        file["t/table"] = np.zeros(4, [("index", "i8")])
    return str(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("obs/bulk_labels", "obs:bulk_labels"),
        ("Obs:Bulk_Labels", "obs:bulk_labels"),
        ("bulk_labels", "obs:bulk_labels"),
        ("obs/at/lat", "obs:at:lat"),
        ("obs:X_pca", "obsm:X_pca"),
        ("/x", "X"),
        ("cells:kind", "cells/kind"),
    ],
)
def test_a_field_that_is_not_there_is_answered_with_the_one_that_is(path, asked, meant):
    with pytest.raises(FieldNotFoundError, match=rf"Did you mean '{meant}'\?"):
        H5Dataset(path, asked)
    assert len(H5Dataset(path, meant)) == 4


def test_nothing_is_suggested_where_nothing_is_near(path):
    for asked in ("zzzz", "obs:qqqq"):
        with pytest.raises(FieldNotFoundError) as caught:
            H5Dataset(path, asked)
        assert "Did you mean" not in str(caught.value)


def test_what_pytables_keeps_for_itself_is_never_suggested(path):
    with pytest.raises(FieldNotFoundError) as caught:
        H5Dataset(path, "sorted")
    assert "_i_table" not in str(caught.value)
    assert is_bookkeeping("t/_i_table/index/sorted")
    assert len(H5Dataset(path, "t/_i_table/index/sorted")) == 9  # whoever asks for it by its name gets it


@given(NAMES, st.data())
def test_separators_and_case_are_never_what_hides_a_name(parts, data):
    there = "/".join(parts[:-1]) + (data.draw(st.sampled_from("/:")) if parts[1:] else "") + parts[-1]
    asked = data.draw(st.sampled_from("/:.")).join(parts)
    asked = data.draw(st.sampled_from([asked, asked.upper(), asked.lower()]))
    assert nearest_names(asked, [there, "quite/else"]) == [there]

"""Types inside types: arrays of arrays, compounds of arrays of compounds; h5py's values, or a refusal by name."""

import h5py
import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from making import low_level, string_type, write_raw
from oracle import assert_like_h5py, expected, same

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import UnsupportedFieldError

ARRAY, I32, F32 = h5py.h5t.array_create, h5py.h5t.STD_I32LE, h5py.h5t.IEEE_F32BE


def write_letters(path, stored, rows=7, chunks=None):
    """Write a dataset of any type without pointers; its bytes are letters, which every type takes."""
    raw = np.random.default_rng(1).integers(65, 70, (rows, stored.get_size()), dtype=np.uint8)
    return low_level(path, (rows,), stored=stored, chunks=chunks, then=write_raw(raw, stored))


ARRAYS = {
    "of an array": ARRAY(ARRAY(I32, (3,)), (2,)),
    "of an array of foreign byte order": ARRAY(ARRAY(F32, (3, 2)), (2,)),
    "of an array of an array": ARRAY(ARRAY(ARRAY(I32, (2,)), (3,)), (4,)),
    "of an array of strings": ARRAY(ARRAY(string_type(3, h5py.h5t.STR_NULLTERM), (3,)), (2,)),
    "of an array of padded strings": ARRAY(ARRAY(string_type(3, h5py.h5t.STR_SPACEPAD), (3,)), (2,)),
}


@pytest.mark.parametrize("chunks", [None, (3,)])
@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_of_arrays_is_an_array_of_more_axes(tmp_path, kind, chunks):
    path = write_letters(tmp_path / "a.h5", ARRAYS[kind], chunks=chunks)
    assert_like_h5py(path, access="h5py" if "padded" in kind else "direct")
    assert len(list(H5StreamLoader(path, 3, fields="x"))) == 3


def test_an_array_of_arrays_may_be_a_member(tmp_path):
    stored = h5py.h5t.create(h5py.h5t.COMPOUND, 32)
    stored.insert(b"b", 24, I32)
    stored.insert(b"a", 0, ARRAYS["of an array"])
    assert_like_h5py(write_letters(tmp_path / "a.h5", stored), access="direct")


def test_an_array_of_an_array_of_compounds_is_refused_by_name(tmp_path):
    inner = h5py.h5t.create(h5py.h5t.COMPOUND, 4)
    inner.insert(b"a", 0, I32)
    path = write_letters(tmp_path / "a.h5", ARRAY(ARRAY(inner, (2,)), (3,)))
    with pytest.raises(UnsupportedFieldError, match="array of compounds"):
        H5Dataset(path, "x")


def compound(members, gaps):
    end, places = 0, []
    for member, gap in zip(members, gaps, strict=False):
        places.append(end + gap)
        end = places[-1] + member.get_size()
    stored = h5py.h5t.create(h5py.h5t.COMPOUND, end)
    for turn in reversed(range(len(members))):
        stored.insert(f"m{turn}".encode(), places[turn], members[turn])
    return stored


SCALARS = st.sampled_from(
    [
        h5py.h5t.STD_U8LE,
        h5py.h5t.STD_I16BE,
        h5py.h5t.STD_I64LE,
        h5py.h5t.IEEE_F32BE,
        h5py.h5t.IEEE_F64LE,
        string_type(4, h5py.h5t.STR_NULLTERM),
        string_type(5, h5py.h5t.STR_NULLPAD),
        string_type(3, h5py.h5t.STR_SPACEPAD),
        h5py.h5t.STD_B8LE,
    ]
)
TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(ARRAY, inner, st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)),
        st.builds(compound, st.lists(inner, min_size=1, max_size=3), st.tuples(*[st.integers(0, 2)] * 3)),
    ),
    max_leaves=5,
)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=TYPES)
def test_any_type_of_fixed_size_is_read_as_h5py_reads_it_or_refused(tmp_path, stored):
    (tmp_path / "a.h5").unlink(missing_ok=True)
    path = write_letters(tmp_path / "a.h5", stored)
    with h5py.File(path, locking=False) as file:
        theirs = expected(file["x"][()])
    try:
        dataset = H5Dataset(path, "x")
    except UnsupportedFieldError:
        return
    assert same(dataset[:], theirs)
    dataset.close()

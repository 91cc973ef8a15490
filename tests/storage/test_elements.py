"""Element types: what is stored, and what a batch holds of it."""

import h5py
import numpy as np
import pytest
import torch
from making import access_of, low_level, make_file, numbers, read_with_h5py, string_type, write, write_raw
from oracle import assert_like_h5py

from h5stream import H5Dataset
from h5stream.errors import FieldLengthError, UnsupportedFieldError

PLAIN = [
    f"{order}{kind}{size}"
    for kind, sizes in {"i": (2, 4, 8), "u": (2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}.items()
    for size in sizes
    for order in "<>"
] + ["i1", "u1", "bool"]
LAYOUTS = {
    "contiguous": {},
    "chunked": {"chunks": (8, 5)},
    "gzip": {"chunks": (8, 5), "compression": "gzip"},
    "shuffle": {"chunks": (8, 20), "compression": "gzip", "shuffle": True},
    "shuffle, narrow": {"chunks": (8, 3), "shuffle": True},
}


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_plain_type_in_every_layout_equals_h5py(tmp_path, dtype, layout):
    values = numbers(20, 20, dtype="i4").astype(dtype)
    path = make_file(tmp_path / "a.h5", data=values, **LAYOUTS[layout])
    assert_like_h5py(path, access="direct" if layout in ("contiguous", "chunked") else "decoded")


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">c16"])
def test_payloads_of_nans_and_signed_zeros_survive(tmp_path, dtype):
    bits = np.random.default_rng(5).integers(0, 256, size=40 * np.dtype(dtype).itemsize, dtype=np.uint8)
    values = bits.view(dtype)
    values[0] = -0.0
    values[1] = np.nan
    assert_like_h5py(make_file(tmp_path / "a.h5", data=values, chunks=(16,), shuffle=True), access="decoded")


@pytest.mark.parametrize("base", ["i1", "<i4", ">u2"])
def test_enums_are_their_numbers(tmp_path, base):
    dtype = h5py.enum_dtype({"A": 0, "B": 1, "C": 100}, basetype=base)
    values = np.array([0, 100, 1, 1, 0], dtype=base)
    path = make_file(tmp_path / "a.h5", data=values, dtype=dtype, chunks=(2,), compression="gzip")
    assert_like_h5py(path, access="decoded")


@pytest.mark.parametrize("base", ["<f4", ">i2", "bool", "S3"])
@pytest.mark.parametrize("options", [{}, {"chunks": (4,), "compression": "gzip", "shuffle": True}])
def test_array_elements_add_their_axes_to_the_rows(tmp_path, base, options):
    dtype = np.dtype((base, (2, 3)))
    path = make_file(tmp_path / "a.h5", shape=(10,), dtype=dtype, **options)
    with h5py.File(path, "r+") as file:
        file["x"][...] = numbers(10, 2, 3, dtype="i4").astype(base)
    assert_like_h5py(path, access="decoded" if options else "direct")
    assert H5Dataset(path, "x").layout.fields[0].row_shape == (2, 3)


COMPOUND = np.dtype(
    [("id", "<i8"), ("flag", "bool"), ("pos", ">f4", (3,)), ("in", [("z", "<c8"), ("tag", "S3")]), ("h", "<f2")]
)


def compound_values(dtype, rows=25):
    values = np.zeros(rows, dtype)
    values["id"] = numbers(rows, dtype="i8")
    values["flag"] = numbers(rows, dtype="i4") % 2
    values["pos"] = numbers(rows, 3)
    values["in"]["z"] = numbers(rows) + 1j
    values["in"]["tag"] = numbers(rows, dtype="i4").astype("S3")
    values["h"] = numbers(rows, dtype="f2")
    return values


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (8,)}, {"chunks": (8,), "compression": "gzip", "shuffle": True}, {"scaleoffset": None}]
)
def test_a_compound_gives_an_entry_for_each_member_however_it_is_packed(tmp_path, aligned, options):
    dtype = np.dtype(COMPOUND.descr, align=aligned)
    path = make_file(tmp_path / "a.h5", data=compound_values(dtype), **options)
    dataset = assert_like_h5py(path)
    assert dataset.layout.datasets[0][0].access in ("direct", "decoded")
    whole = dataset[3]
    assert list(whole) == ["id", "flag", "pos", "in", "h"]
    assert list(whole["in"]) == ["z", "tag"]


@pytest.mark.parametrize("member", ["id", "flag", "pos", "in:z", "h"])
@pytest.mark.parametrize("options", [{}, {"chunks": (8,), "compression": "gzip", "shuffle": True}])
def test_a_member_is_a_field_of_its_own(tmp_path, member, options):
    values = compound_values(np.dtype(COMPOUND.descr, align=True))
    path = make_file(tmp_path / "a.h5", data=values, **options)
    theirs = values
    for name in member.split(":"):
        theirs = theirs[name]
    ours = H5Dataset(path, f"x:{member}")[:].numpy()
    assert ours.tobytes() == np.ascontiguousarray(theirs, theirs.dtype.newbyteorder("=")).tobytes()


def test_a_dataset_with_a_colon_in_its_name_is_found_before_a_member(tmp_path):
    path = make_file(tmp_path / "a.h5", name="x:y", data=np.zeros(3, [("z", "i4")]))
    assert H5Dataset(path, "x:y:z")[:].tolist() == [0, 0, 0]
    assert H5Dataset(path, "x:y").layout.fields[0].name == "x:y:z"


RAW_STRINGS = np.array([b"ab\0cd ", b"abcdef", b"a     ", b"", b"  b\0\0x", b"\0abcde"], "S6")


@pytest.mark.parametrize("padding", ["STR_NULLTERM", "STR_NULLPAD", "STR_SPACEPAD"])
@pytest.mark.parametrize("chunks", [None, (4,)])
def test_fixed_strings_end_where_h5py_ends_them(tmp_path, padding, chunks):
    stored = string_type(6, getattr(h5py.h5t, padding))
    path = low_level(tmp_path / "a.h5", (6,), stored=stored, chunks=chunks, then=write_raw(RAW_STRINGS, stored))
    assert_like_h5py(path, access="h5py" if padding == "STR_SPACEPAD" else "direct")


def test_each_string_of_a_compound_ends_by_its_own_rule(tmp_path):
    stored = h5py.h5t.create(h5py.h5t.COMPOUND, 12)
    stored.insert(b"term", 0, string_type(6, h5py.h5t.STR_NULLTERM))
    stored.insert(b"pad", 6, string_type(6, h5py.h5t.STR_NULLPAD))
    raw = np.stack([RAW_STRINGS, RAW_STRINGS], axis=1)
    path = low_level(tmp_path / "a.h5", (6,), stored=stored, then=write_raw(raw, stored))
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("first", ["STR_NULLTERM", "STR_NULLPAD"])
@pytest.mark.parametrize("second", ["STR_NULLTERM", "STR_NULLPAD", "STR_SPACEPAD"])
def test_strings_of_files_that_end_them_differently_are_each_right(tmp_path, first, second):
    paths = []
    for k, padding in enumerate((first, second)):
        stored = string_type(6, getattr(h5py.h5t, padding))
        paths.append(low_level(tmp_path / f"{k}.h5", (6,), stored=stored, then=write_raw(RAW_STRINGS, stored)))
    expected = [value for path in paths for value in read_with_h5py(path).tolist()]
    dataset = H5Dataset(paths, "x")
    assert dataset[:] == expected
    assert dataset[[11, 0, 6, 5]] == [expected[11], expected[0], expected[6], expected[5]]
    dataset.close()


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_variable_length_strings_are_lists_of_bytes(tmp_path, shape):
    path = make_file(tmp_path / "a.h5", shape=shape, dtype=h5py.string_dtype(), chunks=True)
    with h5py.File(path, "r+") as file:
        file["x"][0] = "ä" if len(shape) == 1 else ["ä", ""]
        file["x"][3] = "long " * 50
    assert_like_h5py(path, access="heap")


@pytest.mark.parametrize("base", ["<i4", ">f8", "bool", "<c8"])
@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_sequences_are_tensors_of_their_own_length(tmp_path, base, shape):
    path = make_file(tmp_path / "a.h5", shape=shape, dtype=h5py.vlen_dtype(np.dtype(base)))
    with h5py.File(path, "r+") as file:
        for k, where in enumerate(np.ndindex(*shape)):
            file["x"][where] = np.arange(k, dtype="i4").astype(base)
    if base[0] == ">":  # h5py 3.16 gives these with their bytes the wrong way round
        dataset = H5Dataset(path)
        assert access_of(dataset)[0] == "h5py"
        values = [one for row in dataset[:] for one in (row if len(shape) > 1 else [row])]
        assert [one.tolist() for one in values] == [[*range(k)] for k in range(len(values))]
    else:
        dataset = assert_like_h5py(path, access="heap")
    last = dataset[3] if len(shape) == 1 else dataset[3][-1]
    assert isinstance(last, torch.Tensor)


def test_a_member_beside_one_of_variable_length_is_read_through_h5py(tmp_path):
    dtype = np.dtype([("a", "i4"), ("text", h5py.string_dtype()), ("v", h5py.vlen_dtype("i4"))])
    path = make_file(tmp_path / "a.h5", shape=(3,), dtype=dtype)
    with h5py.File(path, "r+") as file:
        file["x"][1] = (7, "seven", np.arange(7))
    dataset = H5Dataset(path, "x:a")
    assert access_of(dataset) == ("h5py", "its stored type is not a NumPy type; libhdf5 converts it")
    assert dataset[:].tolist() == [0, 7, 0]
    dataset.close()
    with pytest.raises(UnsupportedFieldError, match="field 'x:text' is object: a member of variable length"):
        H5Dataset(path, "x")


@pytest.mark.parametrize("stored", ["STD_B8LE", "STD_B16BE", "STD_B32LE", "STD_B64LE"])
def test_bit_fields_are_unsigned_numbers(tmp_path, stored):
    stored = getattr(h5py.h5t, stored)
    raw = np.arange(10, dtype=f"u{stored.get_size()}")
    assert_like_h5py(low_level(tmp_path / "a.h5", (10,), stored=stored, then=write_raw(raw, stored)), access="direct")


def test_bit_fields_with_unused_bits_are_converted_by_libhdf5(tmp_path):
    stored = h5py.h5t.STD_B16LE.copy()
    message = bytearray(stored.encode())
    message[-2:] = (12).to_bytes(2, "little")  # the precision
    stored = h5py.h5t.decode(bytes(message))
    raw = np.arange(10, dtype="u2")
    path = low_level(tmp_path / "a.h5", (10,), stored=stored, then=write_raw(raw, stored))
    assert access_of(H5Dataset(path, "x"))[0] == "h5py"


@pytest.mark.parametrize("stored", ["STD_I8BE", "STD_U8BE", "enum", "member", "array"])
@pytest.mark.parametrize("chunks", [None, (4,)])
def test_one_byte_has_no_order(tmp_path, stored, chunks):
    plain, raw = h5py.h5t.STD_U8BE, np.arange(10, dtype="u1")
    if stored == "enum":
        made = h5py.h5t.enum_create(plain)
        for number in range(10):
            made.enum_insert(f"is {number}".encode(), number)
    elif stored == "member":
        made, raw = h5py.h5t.create(h5py.h5t.COMPOUND, 3), np.arange(10, dtype="u2").view("V2")
        raw = np.array([(k, k * 256) for k in range(10)], np.dtype([("a", "u1"), ("b", "<u2")]))
        made.insert(b"a", 0, plain)
        made.insert(b"b", 1, h5py.h5t.STD_U16LE)
    elif stored == "array":
        made, raw = h5py.h5t.array_create(h5py.h5t.array_create(plain, (3,)), (2,)), np.arange(60, dtype="u1")
        raw = raw.reshape(10, 2, 3)
    else:
        made = getattr(h5py.h5t, stored)
    path = low_level(tmp_path / "a.h5", (10,), stored=made, chunks=chunks, then=write_raw(raw, made))
    assert_like_h5py(path, access="direct")


@pytest.mark.parametrize("dtype", ["<M8[s]", ">M8[ns]", "<m8[D]"])
@pytest.mark.parametrize("options", [{}, {"chunks": (7,), "compression": "gzip"}], ids=["contiguous", "gzip"])
def test_dates_and_times_are_counts_of_their_unit(tmp_path, dtype, options):
    plain = np.dtype(dtype)
    dates = np.arange(-5, 25).astype(plain)
    dates[3] = "NaT"
    path = make_file(tmp_path / "a.h5", data=dates.astype(h5py.opaque_dtype(plain)), **options)
    dataset = assert_like_h5py(path, access="decoded" if options else "direct")
    assert dataset[:].dtype == torch.int64
    assert np.array_equal(dataset[4:9].numpy().view(plain.newbyteorder("=")), dates[4:9])
    pair = np.zeros(6, np.dtype([("when", h5py.opaque_dtype(plain)), ("value", "f4")]))
    pair["when"] = dates[:6]
    assert_like_h5py(make_file(tmp_path / "b.h5", data=pair, **(options and {**options, "chunks": (4,)})))


def test_dates_of_unlike_units_are_not_read_as_one(tmp_path):
    for name, unit in (("a.h5", "M8[s]"), ("b.h5", "M8[ms]")):
        make_file(tmp_path / name, data=np.arange(4).astype(unit).astype(h5py.opaque_dtype(np.dtype(unit))))
    with pytest.raises(FieldLengthError, match=r"datetime64\[ms\].*datetime64\[s\]"):
        H5Dataset([tmp_path / "a.h5", tmp_path / "b.h5"], "x")


@pytest.mark.parametrize(("precision", "offset"), [(12, 0), (12, 3), (1, 15)])
def test_integers_of_odd_precision_are_converted_by_libhdf5(tmp_path, precision, offset):
    stored = h5py.h5t.STD_U16LE.copy()
    stored.set_precision(precision)
    stored.set_offset(offset)
    path = low_level(
        tmp_path / "a.h5", (10,), stored=stored, chunks=(4,), then=write(numbers(10, dtype="u2") % (1 << precision))
    )
    assert_like_h5py(path, access="h5py")


def test_floats_of_a_foreign_format_are_converted_by_libhdf5(tmp_path):
    stored = h5py.h5t.IEEE_F32LE.copy()
    stored.set_fields(31, 20, 11, 0, 20)  # three more bits of exponent
    stored.set_ebias(1023)
    path = low_level(tmp_path / "a.h5", (10,), stored=stored, then=write(numbers(10)))
    assert_like_h5py(path, access="h5py")


REFUSED = {
    "opaque": (np.dtype("V5"), "opaque"),
    "object reference": (h5py.ref_dtype, "reference"),
    "region reference": (h5py.regionref_dtype, "reference"),
    "float128": (np.dtype("f16"), "wider than any torch dtype"),
    "complex256": (np.dtype("c32"), "wider than any torch dtype"),
    "sequence of dates": (h5py.vlen_dtype(h5py.opaque_dtype(np.dtype("M8[s]"))), "dates"),
    "sequence of references": (h5py.vlen_dtype(h5py.ref_dtype), "reference"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_cannot_become_tensors_are_refused_by_name(tmp_path, name):
    dtype, why = REFUSED[name]
    path = make_file(tmp_path / "a.h5", name="odd one", shape=(4,), dtype=dtype)
    with pytest.raises(UnsupportedFieldError, match=f"'odd one'.*{why}") as caught:
        H5Dataset(path, "odd one")
    assert caught.value.field == "odd one"


def test_a_member_that_is_refused_is_named_and_its_neighbours_can_still_be_read(tmp_path):
    path = make_file(tmp_path / "a.h5", data=np.zeros(4, [("good", "f4"), ("wide", "f16"), ("blob", "V3")]))
    with pytest.raises(UnsupportedFieldError, match="'x:wide'"):
        H5Dataset(path, "x")
    assert H5Dataset(path, "x:good")[:].tolist() == [0, 0, 0, 0]


def test_a_type_that_h5py_cannot_read_is_refused_by_name(tmp_path):
    stored = h5py.h5t.STD_I32LE.copy()
    stored.set_size(3)
    path = low_level(tmp_path / "a.h5", (10,), stored=stored)
    with pytest.raises(UnsupportedFieldError, match="'x' has a type that h5py cannot read"):
        H5Dataset(path, "x")


@pytest.mark.parametrize("dtype", ["f4", "S3", h5py.string_dtype(), h5py.vlen_dtype("i4")])
@pytest.mark.parametrize("shape", [(4, 0), (4, 2, 0)])
def test_rows_without_elements_are_rows_all_the_same(tmp_path, dtype, shape):
    assert_like_h5py(make_file(tmp_path / "a.h5", shape=shape, dtype=dtype))

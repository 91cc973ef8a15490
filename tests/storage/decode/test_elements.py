"""Element types: what is stored, and what a batch holds of it."""

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from oracle import assert_like_h5py, expected, same
from support.amounts import crossed, examples
from support.inner import around
from support.making import access_of, low_level, make_file, read_with_h5py, string_type, write_datasets, write_raw

from h5stream import Bounds, Boxes, Ends, Field, H5Dataset, Ids, Objects, Rows, Sequences, Table
from h5stream.advice.listing import list_file
from h5stream.errors import FieldLengthError, OptionError, UnsupportedFieldError
from h5stream.storage.decode import elements


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">c16"])
def test_payloads_of_nans_and_signed_zeros_survive(tmp_path, dtype):
    bits = np.random.default_rng(5).integers(0, 256, size=40 * np.dtype(dtype).itemsize, dtype=np.uint8)
    values = bits.view(dtype)
    values[0] = -0.0
    values[1] = np.nan
    assert_like_h5py(make_file(tmp_path / "a.h5", data=values, chunks=(16,), shuffle=True), access="decoded")


# --- any type of fixed size --------------------------------------------------------------------------------------

ARRAY, U8, I32, F32 = h5py.h5t.array_create, h5py.h5t.STD_U8BE, h5py.h5t.STD_I32LE, h5py.h5t.IEEE_F32BE
TERMINATED, PADDED, SPACED = (h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD, h5py.h5t.STR_SPACEPAD)
FILTERS = {"contiguous": None, "chunked": (), "gzip": ("set_shuffle", "set_deflate")}


def write_letters(path, stored, filters=None, rows=7):
    """Write a dataset of any type without pointers; its bytes are letters, which every type takes."""

    def prepare(creation):
        for name in filters or ():
            getattr(creation, name)(*([4] if name == "set_deflate" else []))

    raw = np.random.default_rng(1).integers(65, 70, (rows, stored.get_size()), dtype=np.uint8)
    chunks = None if filters is None else (3,)
    return low_level(path, (rows,), stored=stored, chunks=chunks, prepare=prepare, then=write_raw(raw, stored))


def compound(members, gaps):
    end, places = 0, []
    for member, gap in zip(members, gaps, strict=False):
        places.append(end + gap)
        end = places[-1] + member.get_size()
    stored = h5py.h5t.create(h5py.h5t.COMPOUND, end)
    for turn in reversed(range(len(members))):
        stored.insert(f"m{turn}".encode(), places[turn], members[turn])
    return stored


def changed(stored, **given):
    """Give a copy of a type of which some properties are others."""
    stored = stored.copy()
    for name, value in given.items():
        getattr(stored, f"set_{name}")(*(value if isinstance(value, tuple) else (value,)))
    return stored


def of_numpy(dtype):
    return h5py.h5t.py_create(dtype, logical=True)


STORED = {
    **{f"bits {name}": getattr(h5py.h5t, f"STD_B{name}") for name in ("8LE", "16BE", "64LE")},
    "a byte in arrays": ARRAY(ARRAY(U8, (3,)), (2,)),  # one byte has no order
    "an array of bools": ARRAY(of_numpy(np.dtype("?")), (2, 3)),
    "strings of two rules": compound([string_type(6, TERMINATED), string_type(6, PADDED)], [0, 0]),
}
THROUGH_H5PY = {
    "integers of one bit": changed(h5py.h5t.STD_U16LE, precision=1, offset=15),
    "floats of a foreign format": changed(h5py.h5t.IEEE_F32LE, fields=(31, 20, 11, 0, 20), ebias=1023),
    "an array of arrays of spaced strings": ARRAY(ARRAY(string_type(3, SPACED), (3,)), (2,)),
}


@pytest.mark.parametrize(("name", "filters"), crossed((*STORED, *THROUGH_H5PY), tuple(FILTERS)))
def test_what_is_stored_is_what_h5py_reads_and_decoded_here_where_it_can_be(tmp_path, name, filters):
    path = write_letters(tmp_path / "a.h5", (STORED | THROUGH_H5PY)[name], FILTERS[filters])
    assert_like_h5py(path, access="h5py" if name in THROUGH_H5PY else "decoded" if filters == "gzip" else "direct")


@pytest.mark.parametrize("filters", FILTERS)
def test_complex_numbers_whose_imaginary_part_comes_first_are_what_h5py_reads(tmp_path, filters):
    stored = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
    for name, place in ((b"r", 4), (b"i", 0)):
        stored.insert(name, place, h5py.h5t.IEEE_F32LE)
    path = write_letters(tmp_path / "a.h5", stored, FILTERS[filters])
    found = H5Dataset(path, "x")[:].numpy()
    with h5py.File(path) as file:
        assert found.dtype == file["x"].dtype == "c8"
        assert np.array_equal(found, file["x"][()])


# Of a row, of rows of objects, and of contiguous data that are cut into more than one piece, the last of them shorter.
@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}])
@pytest.mark.parametrize("shape", [(9, 3), (9,), (25, 2000)])
def test_members_that_lie_apart_are_put_together(tmp_path, shape, options):
    values = np.zeros((3, *shape), [("a", "i2"), ("b", "i2"), ("c", "i2")])
    for place, name in enumerate("abc"):
        values[name] = np.arange(values.size).reshape(values.shape) % 9973 + 10_000 * place
    options = {**options, "chunks": (4, shape[-1] // 2)[-len(shape) :]} if options else {}
    lengths = [shape[0], shape[0] - 1, shape[0] - 3]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(3):
            file.create_dataset(f"like/{k}", data=values[k], **options)
            file.create_dataset(f"unlike/{k}", data=values[k, : lengths[k]], **options)
    for names in (["a", "b"], ["b", "c"], ["a", "c"], ["c", "a"]):
        expected = np.stack([values[name] for name in names], axis=-1)
        field = Field("like/1", columns=names)
        assert np.array_equal(H5Dataset(tmp_path / "a.h5", field)[:], expected[1])
        of = {"samples": Objects("like/*"), "fields": Field(".", columns=names)}
        assert np.array_equal(H5Dataset(tmp_path / "a.h5", **of)[:], expected)
        for ragged in ("packed", "arrays"):
            of = {"samples": Objects("unlike/*"), "fields": Field(".", columns=names, ragged=ragged)}
            dataset = H5Dataset(tmp_path / "a.h5", **of)
            assert [np.array_equal(dataset[k], expected[k, : lengths[k]]) for k in range(3)] == [True] * 3
        of = {"samples": Rows(of="unlike/*"), "fields": Field(".", columns=names)}
        rows = np.concatenate([expected[k, : lengths[k]] for k in range(3)])
        assert np.array_equal(H5Dataset(tmp_path / "a.h5", **of)[:], rows)


def test_bit_fields_with_unused_bits_are_refused_and_members_beside_them_read(tmp_path):
    unused = h5py.h5t.decode(h5py.h5t.STD_B16LE.encode()[:-2] + b"\x0c\0")  # the precision
    with pytest.raises(UnsupportedFieldError, match="libhdf5 converts no bit fields with unused bits"):
        H5Dataset(write_letters(tmp_path / "a.h5", unused), "x")
    path = write_letters(tmp_path / "b.h5", compound(a=h5py.h5t.STD_I32LE, b=unused))
    with h5py.File(path) as file:
        assert np.array_equal(H5Dataset(path, "x:a")[:], file["x"].fields("a")[:])
    with pytest.raises(UnsupportedFieldError, match="unused bits"):
        H5Dataset(path, "x:b")


@pytest.mark.parametrize("fields", ["x", [f"x:m{k}" for k in range(0, 300, 3)], Field("x", columns=["m7", "m9"])])
def test_the_type_of_a_wide_compound_is_looked_at_once_not_for_each_of_its_members(tmp_path, monkeypatch, fields):
    path = write_letters(tmp_path / "a.h5", compound(**{f"m{k}": F32 for k in range(300)}))
    walks = []
    around(monkeypatch, elements, "_types_in", before=walks.append)
    dataset = H5Dataset(path, fields)
    assert len(walks) < 3000  # a walk passes each of 300 members, and there are a few
    assert len(dataset) == 7


SCALARS = st.sampled_from([U8, h5py.h5t.STD_I16BE, h5py.h5t.STD_I64LE, F32, h5py.h5t.IEEE_F64LE, h5py.h5t.STD_B8LE,
                           string_type(4, TERMINATED), string_type(5, PADDED), string_type(3, SPACED)])  # fmt: skip
TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(ARRAY, inner, st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)),
        st.builds(compound, st.lists(inner, min_size=1, max_size=3), st.tuples(*[st.integers(0, 2)] * 3)),
    ),
    max_leaves=5,
)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=TYPES, filters=st.sampled_from([*FILTERS.values()]))
def test_any_type_of_fixed_size_and_each_member_is_read_as_h5py_reads_it_or_refused(tmp_path, stored, filters):
    (tmp_path / "a.h5").unlink(missing_ok=True)
    path = write_letters(tmp_path / "a.h5", stored, filters)
    whole = expected(read_with_h5py(path))
    members = whole if isinstance(stored, h5py.h5t.TypeCompoundID) else {}
    for name, theirs in [("x", whole), *((f"x:{member}", values) for member, values in members.items())]:
        try:
            dataset = H5Dataset(path, name)
        except UnsupportedFieldError:
            continue
        assert same(dataset[:], theirs)
        dataset.close()


# --- names, strings, sequences, dates ----------------------------------------------------------------------------


def test_a_dataset_with_a_colon_in_its_name_is_found_before_a_member(tmp_path):
    path = make_file(tmp_path / "a.h5", name="x:y", data=np.zeros(3, [("z", "i4")]))
    assert H5Dataset(path, "x:y:z")[:].tolist() == [0, 0, 0]
    assert H5Dataset(path, "x:y").layout.fields[0].name == "x:y:z"


RAW_STRINGS = np.array([b"ab\0cd ", b"abcdef", b"a     ", b"", b"  b\0\0x", b"\0abcde"], "S6")


@pytest.mark.parametrize("first", [TERMINATED, PADDED])
@pytest.mark.parametrize("second", [TERMINATED, PADDED, SPACED])
def test_fixed_strings_end_where_h5py_ends_them_in_each_of_several_files(tmp_path, first, second):
    paths = []
    for k, padding in enumerate((first, second)):
        stored = string_type(6, padding)
        paths.append(low_level(tmp_path / f"{k}.h5", (6,), stored=stored, then=write_raw(RAW_STRINGS, stored)))
        assert_like_h5py(paths[-1], access="h5py" if padding == SPACED else "direct")
    theirs = [value for path in paths for value in read_with_h5py(path).tolist()]
    dataset = H5Dataset(paths, "x")
    assert dataset[:] == theirs
    assert dataset[[11, 0, 6, 5]] == [theirs[11], theirs[0], theirs[6], theirs[5]]


def test_members_beside_those_of_variable_length_are_read_without_h5py(tmp_path):
    dtype = np.dtype([("a", "i4"), ("text", h5py.string_dtype()), ("v", h5py.vlen_dtype("i4")), ("b", "i2")])
    path = make_file(tmp_path / "a.h5", shape=(3,), dtype=dtype)
    with h5py.File(path, "r+") as file:
        file["x"][1] = (7, "seven", np.arange(7), 8)
    for name, values in (("a", [0, 7, 0]), ("b", [0, 8, 0])):
        dataset = H5Dataset(path, f"x:{name}")
        assert access_of(dataset) == ("direct", "no filter")
        assert dataset[:].tolist() == values
    assert H5Dataset(path, "x")[1]["text"] == b"seven"
    dtype = np.dtype([("a", "i4"), ("texts", h5py.string_dtype(), (2,))])
    several = make_file(tmp_path / "b.h5", shape=(3,), dtype=dtype)
    with h5py.File(several, "r+") as file:
        file["x"][2] = (5, np.array([b"p", b"qr"], object))
    whole = H5Dataset(several, "x")[2]
    assert (whole["a"].item(), whole["texts"]) == (5, [b"p", b"qr"])


def test_times_of_unlike_units_are_not_read_as_one(tmp_path):
    for name, unit in (("a.h5", "M8[s]"), ("b.h5", "M8[ms]")):
        dates = np.arange(-5, 25).astype(unit)
        dates[3] = "NaT"
        assert_like_h5py(make_file(tmp_path / name, data=dates.astype(h5py.opaque_dtype(dates.dtype))))
    with pytest.raises(FieldLengthError, match=r"datetime64\[ms\].*datetime64\[s\]"):
        H5Dataset([tmp_path / "a.h5", tmp_path / "b.h5"], "x")


# --- refusals ----------------------------------------------------------------------------------------------------

REFUSED = {
    "opaque": (of_numpy(np.dtype("V5")), "opaque"),
    "object reference": (of_numpy(h5py.ref_dtype), "reference"),
    "float128": (of_numpy(np.dtype("f16")), "wider than any torch dtype"),
    "sequence of dates": (of_numpy(h5py.vlen_dtype(h5py.opaque_dtype(np.dtype("M8[s]")))), "dates"),
    "sequence of references": (of_numpy(h5py.vlen_dtype(h5py.ref_dtype)), "reference"),
    "array of an array of compounds": (ARRAY(ARRAY(compound([I32], [0]), (2,)), (3,)), "array of compounds"),
    "of three bytes": (changed(h5py.h5t.STD_I32LE, size=3), "has a type that h5py cannot read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_cannot_become_tensors_are_refused_by_name(tmp_path, name):
    stored, why = REFUSED[name]
    with pytest.raises(UnsupportedFieldError, match=f"'x'.*{why}") as caught:
        H5Dataset(low_level(tmp_path / "a.h5", (4,), stored=stored), "x")
    assert caught.value.field == "x"


def test_a_member_that_is_refused_is_named_and_its_neighbours_can_still_be_read(tmp_path):
    path = make_file(tmp_path / "a.h5", data=np.zeros(4, [("good", "f4"), ("wide", "f16"), ("blob", "V3")]))
    with pytest.raises(UnsupportedFieldError, match="'x:wide'"):
        H5Dataset(path, "x")
    assert H5Dataset(path, "x:good")[:].tolist() == [0, 0, 0, 0]


# --- members come in the order in which they lie in an element, whoever read the file before ---------------------


# What has to be converted: libhdf5 sorts the members of an open dataset's type when it does that.
KINDS = {"direct": h5py.h5t.STD_I32LE, "h5py": string_type(4, h5py.h5t.STR_SPACEPAD)}


def out_of_order(path, access, nested=False):
    inner = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
    inner.insert(b"second", 4, h5py.h5t.STD_I16LE)
    inner.insert(b"first", 0, KINDS[access])
    stored = inner
    if nested:
        stored = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
        stored.insert(b"late", 8, inner)
        stored.insert(b"early", 2, h5py.h5t.STD_I32BE)
    raw = np.random.default_rng(0).integers(97, 99, (20, stored.get_size()), dtype=np.uint8)
    return low_level(path, (20,), stored=stored, chunks=(6,), then=write_raw(raw, stored))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("access", KINDS)
def test_fields_keep_their_order_when_a_file_is_opened_again(tmp_path, access, nested):
    path = out_of_order(tmp_path / "a.h5", access, nested)
    first = H5Dataset(path, "x")
    assert access_of(first)[0] == access
    names = [field.name for field in first.layout.fields]
    assert names == (["x:early", "x:late:first", "x:late:second"] if nested else ["x:first", "x:second"])
    assert_like_h5py(path, access=access)
    assert list(first[:]) == [name.split(":")[1] for name in dict.fromkeys(":".join(n.split(":")[:2]) for n in names)]
    listed = list_file(path).entries[0].dtype
    with h5py.File(path, locking=False) as file:  # still open, so that all of this shares libhdf5's type
        file["x"][()]
        again = H5Dataset(path, "x")
        assert [field.name for field in again.layout.fields] == names
        assert again.layout.datasets[0][0].dtype_text == first.layout.datasets[0][0].dtype_text
        assert list_file(path).entries[0].dtype == listed


def test_files_whose_members_are_listed_in_another_order_are_read_as_one(tmp_path):
    paths = []
    for turn, names in enumerate([("a", "b"), ("b", "a")]):
        path = tmp_path / f"{turn}.h5"
        dtype = np.dtype({"names": names, "formats": ["<i2", "<i2"], "offsets": [4 * (n == "b") for n in names]})
        values = np.zeros(3, dtype)
        values["a"], values["b"] = turn, 10 + turn
        write_datasets(path, x=values)
        paths.append(str(path))
    batch = H5Dataset(paths, "x")[:]
    assert batch["a"].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["b"].tolist() == [10, 10, 10, 11, 11, 11]


# --- types that h5py cannot read, or widens


def odd_types():
    """Return types that h5py cannot read, and one that it gives more bytes than the file has."""
    int24 = h5py.h5t.STD_I32LE.copy()
    int24.set_size(3)
    bfloat16 = h5py.h5t.IEEE_F16LE.copy()
    bfloat16.set_fields(15, 7, 8, 0, 7)
    bfloat16.set_ebias(127)
    return {"int24": int24, "time": h5py.h5t.UNIX_D32LE, "bfloat16": bfloat16}


def compound(**members):
    found, offset = h5py.h5t.create(h5py.h5t.COMPOUND, sum(one.get_size() for one in members.values())), 0
    for name, one in members.items():
        found.insert(name.encode(), offset, one)
        offset += one.get_size()
    return found


def put(file, path, stored, raw, creation=None):
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(raw.shape[:1] if raw.dtype.kind == "V" else raw.shape[:-1])
    dataset = h5py.h5d.create(file.id, path.encode(), stored, space, creation, links)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=stored)


@pytest.mark.parametrize("chunks", [None, (4,)])
@pytest.mark.parametrize("name", ["int24", "time", "bfloat16"])
def test_members_beside_one_that_h5py_cannot_read_are_read(tmp_path, name, chunks):
    stored, path = odd_types()[name], tmp_path / "a.h5"
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        creation.set_chunk(chunks)
        creation.set_deflate(1)
    kind = compound(n=h5py.h5t.STD_I64LE, v=stored, k=h5py.h5t.IEEE_F32BE)
    raw = np.zeros(6, [("n", "<i8"), ("v", f"V{stored.get_size()}"), ("k", ">f4")])
    raw["n"], raw["k"] = np.arange(6), np.arange(6) / 2
    raw["v"] = (np.arange(1, 7, dtype="f4").view("u4") >> 16).astype("u2").view("V2") if name == "bfloat16" else b"abcd"
    with h5py.File(path, "w") as file:
        for where in ("c", "o/0", "o/1"):
            put(file, where, kind, raw, creation)
        file["x"] = np.arange(6)
    beside = H5Dataset(path, {"n": "c:n", "k": "c:k"})
    assert beside[:]["n"].tolist() == list(range(6))
    assert beside[:]["k"].tolist() == (np.arange(6) / 2).tolist()
    assert H5Dataset(path, "o/{}:n")[:].tolist() == [list(range(6))] * 2
    assert H5Dataset(path, ".:n", samples=Objects("o/*"))[:].tolist() == [list(range(6))] * 2
    assert H5Dataset(path, {"x": "x", "n": Field("c:n", take="all")})[0]["n"].tolist() == list(range(6))
    asked = ("c:v", "o/{}:v", Field("c:v", lookup=[0]), Field("c:v", lookup=Bounds(np.array([0, 6]))))
    if name == "bfloat16":  # wider in NumPy: h5py would let members overlap, and write beyond its memory
        assert H5Dataset(path, "c")[:]["v"].tolist() == list(range(1, 7))
        return
    for field in (*asked, "c", {"x": "x", "v": Field("c:v", take="all")}):
        with pytest.raises(UnsupportedFieldError, match=r"a type that h5py cannot read: .*(i3|TimeID)"):
            H5Dataset(path, field)


@pytest.mark.parametrize("name", ["int24", "time"])
def test_what_h5py_cannot_read_is_refused_in_words_wherever_it_is_asked_for(tmp_path, name):
    stored, path = odd_types()[name], tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for where in ("v", "o/0", "o/1"):
            put(file, where, stored, np.zeros((4, stored.get_size()), "u1"))
        h5py.h5a.create(file.id, b"a", stored, h5py.h5s.create_simple((2,)))
        file["x"] = np.arange(4)
    asked = [("v", None), ("o/{}", None), (".", Objects("o/*")), (Field(".", ragged="packed"), Objects("o/*"))]
    asked += [({"x": "x", "v": one}, None) for one in (Field("v", take="all"), "@a", Field("@a", ragged="list"))]
    asked += [("x", Sequences(1, of=Ids("v"))), (Field("x", lookup="v"), None), (Field("x", lookup=Bounds("v")), None)]
    for field, samples in asked:
        with pytest.raises(UnsupportedFieldError, match="a type that h5py cannot read"):
            H5Dataset(path, field, samples=samples)


def test_what_says_where_segments_end_is_one_value_a_row(tmp_path):
    nested = h5py.h5t.vlen_create(h5py.h5t.vlen_create(h5py.h5t.STD_I32LE))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5py.h5d.create(file.id, b"nested", nested, h5py.h5s.create_simple((4,)))
        file["x"], file["t"] = np.arange(4), ["a", "a", "b", "b"]
    assert len(H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(2, of=Ids("t")))) == 2
    for of in (Ids("nested"), Ends("nested"), Ends("t")):
        with pytest.raises(
            OptionError, match=r"says where segments end, and its values are (of variable length|object)"
        ):
            H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(1, of=of))


# --- elements that are arrays, in datasets that h5py reads


@pytest.mark.parametrize("way", ["nbit", "converted", "virtual"])
def test_elements_that_are_arrays_are_parts_of_volumes_where_h5py_reads_them(tmp_path, way):
    path, raw = tmp_path / "a.h5", np.random.default_rng(0).integers(0, 999, (4, 6, 5, 2, 3)).astype("i2")
    base, creation = h5py.h5t.STD_I16LE, h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if way == "nbit":
        creation.set_chunk((2, 3))
        creation.set_filter(h5py.h5z.FILTER_NBIT, 1, ())
    if way == "converted":
        base = base.copy()
        base.set_precision(12)
    stored = h5py.h5t.array_create(base, (2, 3))
    with h5py.File(path, "w") as file:
        file.create_group("g")
        file.create_group("v")
        for k in range(4):
            one = h5py.h5d.create(file.id, f"g/{k}".encode(), stored, h5py.h5s.create_simple((6, 5)), creation)
            one.write(h5py.h5s.ALL, h5py.h5s.ALL, raw[k], mtype=stored)
            if way == "virtual":
                kind = np.dtype(("i2", (2, 3)))
                layout = h5py.VirtualLayout((6, 5), kind)
                layout[:4] = h5py.VirtualSource(".", f"g/{k}", (6, 5), kind)[:4]
                file.create_virtual_dataset(f"v/{k}", layout)
        group = "v" if way == "virtual" else "g"
        every = np.stack([file[f"{group}/{k}"][()] for k in range(4)])
    w, one = every[0], f"{group}/0"
    at, objects = np.array([[0, 0], [4, 3]]), Objects(f"{group}/*")
    cases = [
        (one, None, w),
        (Field(one, columns=(..., 1)), None, w[:, 1]),
        (Field(one, columns=[4, 0]), None, w[:, [4, 0]]),
        (".", objects, every),
        (one, Boxes((2, 2), at=at), np.stack([w[:2, :2], w[4:, 3:]])),
        (one, Sequences(2, axis=1), np.stack([w[:, k : k + 2] for k in range(4)])),
        (one, Rows(axis=1), w.swapaxes(0, 1)),
        (one, Table(axis=1, row=[0, 3], start=[1, 2], length=2), np.stack([w[0, 1:3], w[3, 2:4]])),
        (one, Sequences(2), np.stack([w[k : k + 2] for k in range(5)])),
    ]
    for field, samples, wanted in cases:
        dataset = H5Dataset(path, field, samples=samples)
        assert access_of(dataset)[0] == "h5py"
        assert np.array_equal(dataset[:].numpy(), wanted), (field, samples)
        assert np.array_equal(dataset[1].numpy(), wanted[1]), (field, samples)
    arrays = H5Dataset(path, Field(".", ragged="arrays"), samples=objects)
    assert all(np.array_equal(one.numpy(), other) for one, other in zip(arrays[:], every, strict=True))

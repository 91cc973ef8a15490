"""bfloat16 and floats of 8 bits come as torch's types, bit for bit, in every kind of samples and every form.

The oracle is the stored bits: h5py widens them, and libhdf5 takes 448 of float8 E4M3 for NaN.
"""

import itertools

import h5py
import numpy as np
import pytest
import torch
from h5py import h5d, h5p, h5s, h5t
from support.making import write_datasets

from h5stream import (
    Balanced,
    Boxes,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Objects,
    Ragged,
    Rows,
    Sequences,
    Values,
    Weighted,
    repack,
)
from h5stream.advice.inspection import inspect_file
from h5stream.errors import FieldLengthError, H5StreamError, OptionError, UnsupportedFieldError
from h5stream.storage.decode.libhdf5 import write_elements

BITS = {
    torch.bfloat16: (15, 7, 8, 7, 127),
    torch.float8_e4m3fn: (7, 3, 4, 3, 7),
    torch.float8_e5m2: (7, 2, 5, 2, 15),
}
TYPES = [*BITS]


def stored_type(dtype, order=h5t.ORDER_LE):
    sign, exponent_at, exponent, mantissa, bias = BITS[dtype]
    stored = h5t.IEEE_F32LE.copy()
    stored.set_fields(sign, exponent_at, exponent, 0, mantissa)
    stored.set_ebias(bias)
    stored.set_precision(sign + 1)
    stored.set_size((sign + 1) // 8)
    stored.set_order(order)
    return stored


def bits_of(dtype, *shape, seed=0):
    """Return patterns of bits, each as likely: numbers, NaN and infinity."""
    unsigned = np.uint16 if dtype == torch.bfloat16 else np.uint8
    return np.random.default_rng(seed).integers(0, np.iinfo(unsigned).max, shape, dtype=unsigned, endpoint=True)


def put(file, path, stored, raw, axes=None, *, chunks=None, gzip=False, fill=None, layout=None):
    """Write elements as they lie, of which `axes` axes are the dataset's."""
    creation, links = h5p.create(h5p.DATASET_CREATE), h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    if chunks:
        creation.set_chunk(chunks)
    if gzip:
        creation.set_shuffle()
        creation.set_deflate(1)
    if layout is not None:
        creation.set_layout(layout)
    shape = raw.shape if axes is None else raw.shape[:axes]
    made = h5d.create(file.id, path.encode(), stored, h5s.create_simple(shape), creation, links)
    if raw.size and fill is None:
        made.write(h5s.ALL, h5s.ALL, raw, mtype=stored)
    return made


def same(ours, dtype, bits):
    """Tell whether a tensor has a type, a shape and bits."""
    unsigned = torch.uint16 if dtype == torch.bfloat16 else torch.uint8
    assert ours.dtype == dtype
    assert ours.shape == bits.shape
    return np.array_equal(ours.contiguous().view(unsigned).numpy(), bits)


@pytest.fixture(params=TYPES, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("how", ["contiguous", "chunks", "gzip", "compact", "external", "nbit", "virtual"])
def test_rows_come_bit_for_bit_in_every_layout(tmp_path, dtype, how):
    path, bits = tmp_path / "a.h5", bits_of(dtype, 40, 6)
    with h5py.File(path, "w", libver="latest") as file:
        stored = stored_type(dtype)
        options = {"chunks": (7, 4)} if how in ("chunks", "gzip") else {}
        put(file, "x", stored, bits, **options, gzip=how == "gzip", layout=h5d.COMPACT if how == "compact" else None)
        if how == "nbit":
            creation = h5p.create(h5p.DATASET_CREATE)
            creation.set_chunk((7, 4))
            creation.set_filter(h5py.h5z.FILTER_NBIT, 1, ())
            del file["x"]
            made = h5d.create(file.id, b"x", stored, h5s.create_simple(bits.shape), creation)
            made.write(h5s.ALL, h5s.ALL, bits, mtype=stored)
        if how == "external":
            creation = h5p.create(h5p.DATASET_CREATE)
            creation.set_external(str(tmp_path / "raw.bin").encode(), 0, bits.nbytes)
            del file["x"]
            h5d.create(file.id, b"x", stored, h5s.create_simple(bits.shape), creation)
            (tmp_path / "raw.bin").write_bytes(bits.tobytes())
        if how == "virtual":
            file.move("x", "source")
            creation = h5p.create(h5p.DATASET_CREATE)
            space = h5s.create_simple(bits.shape)
            creation.set_virtual(space, b".", b"source", space)
            h5d.create(file.id, b"x", stored, space, creation)
        file["y"] = np.arange(40)
    dataset = H5Dataset(path, ["x", "y"], allow_external=how == "external")
    assert same(dataset[:][0], dtype, bits)
    assert same(dataset[3][0], dtype, bits[3])
    with H5StreamLoader(dataset, 16, shuffle=True, seed=1) as loader:
        for x, y in itertools.chain(loader, loader):  # the second epoch from memory
            assert same(x, dtype, bits[y])


@pytest.fixture
def parts(tmp_path, dtype):
    """Write groups of rows, volumes, and what each has once; return the file, and the bits of the three groups."""
    path, bits = tmp_path / "parts.h5", [bits_of(dtype, 6 + k, 5, seed=k) for k in range(3)]
    with h5py.File(path, "w") as file:
        for k, one in enumerate(bits):
            put(file, f"o/{k}/x", stored_type(dtype), one, chunks=(4, 5), gzip=k != 1)
            put(file, f"alike/{k}/x", stored_type(dtype), one[:6])
            file[f"o/{k}/n"] = np.arange(len(one))
            attribute = h5py.h5a.create(file[f"o/{k}"].id, b"a", stored_type(dtype), h5s.create_simple((2,)))
            attribute.write(one[0, :2].copy(), stored_type(dtype))
    return path, bits


def test_objects_and_rows_of_groups_and_sequences(parts, dtype):
    path, bits = parts
    whole = H5Dataset(path, "x", samples=Objects("alike/*"))
    assert same(whole[:], dtype, np.stack([one[:6] for one in bits]))
    rows = np.concatenate(bits)
    of_groups = H5Dataset(path, {"x": "x", "a": "@a"}, samples=Rows(of="o/*"))
    assert same(of_groups[:]["x"], dtype, rows)
    assert same(of_groups[:]["a"], dtype, np.concatenate([np.repeat(one[:1, :2], len(one), axis=0) for one in bits]))
    steps = H5Dataset(path, "x", samples=Sequences(3, of="o/*"))
    assert same(steps[:], dtype, np.concatenate([[one[k : k + 3] for k in range(len(one) - 2)] for one in bits]))
    once = H5Dataset(path, {"a": "@a"}, samples=Objects("o/*"))
    assert same(once[:]["a"], dtype, np.stack([one[0, :2] for one in bits]))


def test_padding_is_the_nearest_number(parts, dtype):
    path, bits = parts
    for pad, number in (("zeros", 0.0), (0.3, 0.3), (-6, -6.0)):
        filler = torch.tensor(number).to(dtype)
        steps = Field("x", take=range(-1, 2))
        dataset = H5Dataset(path, steps, samples=Sequences(1, of="o/*", pad=pad))
        assert same(dataset[:][1], dtype, bits[0][:3])
        assert (dataset[0][0].float() == filler.float()).all()
        padded = H5Dataset(path, Field("x", ragged=Ragged("pad", pad_value=number)), samples=Objects("o/*"))[:]
        assert same(padded.values[2], dtype, bits[2])
        assert (padded.values[0, 6:].float() == filler.float()).all()
        box = H5Dataset(path, "alike/0/x", samples=Boxes((2, 2), at=np.array([[-1, 0], [2, 3]]), pad=pad))[:]
        assert (box[0, 0].float() == filler.float()).all()
        assert same(box[1], dtype, bits[0][2:4, 3:5])
    if dtype != torch.bfloat16:
        with pytest.raises(
            OptionError, match=rf"pad=1e\+06 does not fit into field 'x', which is stored as {str(dtype)[6:]}"
        ):
            H5Dataset(path, steps, samples=Sequences(1, of="o/*", pad=1e6))


@pytest.mark.parametrize("form", ["packed", "nested", "pad", "list"])
def test_ragged_rows_come_in_each_form(parts, dtype, form):
    path, bits = parts
    dataset = H5Dataset(path, Field("x", ragged=form), samples=Objects("o/*"))
    assert all(same(dataset[k], dtype, one) for k, one in enumerate(bits))
    with H5StreamLoader(dataset, 3, shuffle=False) as loader:
        (batch,) = loader
    each = batch.unbind() if form == "nested" else batch if form == "list" else [batch.sample(k) for k in range(3)]
    assert all(same(one, dtype, wanted) for one, wanted in zip(each, bits, strict=True))


def test_members_of_compounds_alone_in_arrays_and_together(tmp_path, dtype):
    path, bits = tmp_path / "a.h5", bits_of(dtype, 20, 6)
    size = bits.itemsize
    kind = h5t.create(h5t.COMPOUND, 12 + 6 * size)
    kind.insert(b"n", 0, h5t.STD_I32LE)
    for k in range(2):
        kind.insert(f"m{k}".encode(), 4 + k * size, stored_type(dtype))
    kind.insert(b"array", 4 + 2 * size, h5t.array_create(stored_type(dtype), (2, 2)))
    kind.insert(b"f", 4 + 6 * size, h5t.IEEE_F64LE)
    raw = np.zeros(20, f"V{kind.get_size()}")
    raw = raw.view("u1").reshape(20, -1)
    raw[:, 4 : 4 + 6 * size] = bits.view("u1").reshape(20, -1)
    raw[:, :4] = np.arange(20, dtype="<i4")[:, None].view("u1")
    raw[:, -8:] = (np.arange(20, dtype="<f8") / 4)[:, None].view("u1")
    with h5py.File(path, "w") as file:
        for name, options in (("c", {}), ("z", {"chunks": (6,), "gzip": True})):
            put(file, name, kind, raw, 1, **options)
    for name in "cz":
        whole = H5Dataset(path, name)[:]
        assert list(whole) == ["n", "m0", "m1", "array", "f"]
        assert whole["n"].tolist() == list(range(20))
        assert whole["f"].tolist() == (np.arange(20) / 4).tolist()
        assert same(whole["m1"], dtype, bits[:, 1])
        assert same(whole["array"], dtype, bits[:, 2:].reshape(20, 2, 2))
        assert same(H5Dataset(path, f"{name}:m0")[5:], dtype, bits[5:, 0])
        assert same(H5Dataset(path, f"{name}:array")[3], dtype, bits[3, 2:].reshape(2, 2))
        assert same(H5Dataset(path, Field(name, columns=["m1", "m0"]))[:], dtype, bits[:, [1, 0]])
        once = H5Dataset(path, {"n": f"{name}:n", "all": Field(f"{name}:m0", take="all")})
        assert same(once[2]["all"], dtype, bits[:, 0])


@pytest.mark.parametrize("gzip", [False, True])
def test_big_endian_numbers_are_swapped_and_unwritten_ones_are_the_fill_value(tmp_path, dtype, gzip):
    path, bits = tmp_path / "a.h5", bits_of(dtype, 20, 3)
    with h5py.File(path, "w") as file:
        options = {"chunks": (4, 3), "gzip": gzip}
        put(file, "big", stored_type(dtype, h5t.ORDER_BE), bits.astype(bits.dtype.newbyteorder(">")), **options)
        creation = h5p.create(h5p.DATASET_CREATE)
        creation.set_chunk((4, 3))
        creation.set_fill_value(np.array(1.5, "f4"))
        made = h5d.create(file.id, b"filled", stored_type(dtype), h5s.create_simple(bits.shape), creation)
        some = h5s.create_simple(bits.shape)
        some.select_hyperslab((0, 0), (8, 3))
        made.write(h5s.create_simple((8, 3)), some, bits[:8].copy(), mtype=stored_type(dtype))
    assert same(H5Dataset(path, "big")[:], dtype, bits)
    filled = H5Dataset(path, "filled")[:]
    assert same(filled[:8], dtype, bits[:8])
    assert (filled[8:].float() == 1.5).all()
    missing = H5Dataset(path, Field("filled", missing="fill"))[:]
    assert missing.dtype == torch.float32
    assert missing[8:].isnan().all()


def test_files_are_joined_if_their_types_are_the_same(tmp_path, dtype):
    paths, bits = [tmp_path / f"{k}.h5" for k in range(3)], [bits_of(dtype, 7, 2, seed=k) for k in range(2)]
    for path, one in zip(paths, bits, strict=False):
        with h5py.File(path, "w") as file:
            put(file, "x", stored_type(dtype), one)
    with h5py.File(paths[2], "w") as file:
        file["x"] = bits[0]
    assert same(H5Dataset(paths[:2], "x")[:], dtype, np.concatenate(bits))
    both = H5Dataset([H5Dataset(path, "x") for path in paths[:2]])
    assert same(both[:], dtype, np.concatenate(bits))
    with pytest.raises(FieldLengthError, match=rf"has rows of u?int.*has rows of {str(dtype)[6:]}"):
        H5Dataset([paths[0], paths[2]], "x")
    with pytest.raises(H5StreamError, match=str(dtype)[6:]):
        H5Dataset([H5Dataset(path, "x") for path in (paths[0], paths[2])])
    with pytest.raises(H5StreamError, match=str(dtype)[6:]):
        H5Dataset([paths[0], paths[2]], "x", samples=Objects("files"))
    assert same(H5Dataset(paths[:2], "x", samples=Objects("files"))[:], dtype, np.stack(bits))


def test_numpy_gives_arrays_of_ml_dtypes(parts, dtype):
    pytest.importorskip("ml_dtypes")
    path, bits = parts
    for field in ("alike/0/x", Field("o/0/n", dtype=dtype)):
        dataset = H5Dataset(path, field, numpy=True)
        assert dataset[:].dtype == np.dtype(str(dtype)[6:])
        assert isinstance(dataset[0], np.ndarray | np.generic)
    assert H5Dataset(path, "alike/0/x", numpy=True)[:].tobytes() == bits[0][:6].tobytes()
    assert H5Dataset(path, Field("o/0/n", dtype=dtype), numpy=True)[:].astype("i8").tolist() == list(range(6))


@pytest.fixture(params=["heap", "compact", "other byte order"])
def sequences(request, tmp_path, dtype):
    """Write values of variable length that the heap has, or that libhdf5 alone reads; return the file and the bits."""
    path, bits = tmp_path / "vlen.h5", [bits_of(dtype, k, seed=k) for k in (0, 3, 1, 2)]
    order = h5t.ORDER_BE if request.param == "other byte order" else h5t.ORDER_LE
    stored = [one.astype(one.dtype.newbyteorder(">" if order == h5t.ORDER_BE else "<")) for one in bits]
    elements = np.array([(len(one), one.ctypes.data) for one in stored], [("length", "u8"), ("address", "u8")])
    nested = np.array([(2, elements.ctypes.data), (2, elements[2:].ctypes.data)], elements.dtype)
    kind, creation = h5t.vlen_create(stored_type(dtype, order)), h5p.create(h5p.DATASET_CREATE)
    if request.param == "compact":
        creation.set_layout(h5d.COMPACT)
    with h5py.File(path, "w") as file:
        made = h5d.create(file.id, b"v", kind, h5s.create_simple((4,)), creation)
        write_elements(made, elements.view("V16"))
        write_elements(
            h5d.create(file.id, b"nested", h5t.vlen_create(kind), h5s.create_simple((2,))), nested.view("V16")
        )
    return path, bits, request.param


def test_values_of_variable_length(sequences, dtype):
    path, bits, how = sequences
    listed = H5Dataset(path, "v")
    assert all(same(one, dtype, wanted) for one, wanted in zip(listed[:], bits, strict=True))
    assert same(listed[1], dtype, bits[1])
    nested = H5Dataset(path, "nested")[:]
    assert all(same(one, dtype, wanted) for one, wanted in zip(nested[0] + nested[1], bits, strict=True))
    if how == "heap" or (how == "other byte order" and dtype.itemsize == 1):
        packed = H5Dataset(path, Field("v", ragged="packed"))[:]
        assert same(packed.values, dtype, np.concatenate(bits))
    else:
        with pytest.raises(UnsupportedFieldError, match="ragged= takes one value a row"):
            H5Dataset(path, Field("v", ragged="packed"))


@pytest.mark.parametrize("layout", [None, h5d.COMPACT])
def test_members_of_variable_length_whoever_reads_them(tmp_path, dtype, layout):
    path, bits = tmp_path / "a.h5", [bits_of(dtype, k, seed=k) for k in (0, 3, 1, 2)]
    kind, creation = h5t.create(h5t.COMPOUND, 24), h5p.create(h5p.DATASET_CREATE)
    kind.insert(b"n", 0, h5t.STD_I32LE)
    kind.insert(b"v", 8, h5t.vlen_create(stored_type(dtype)))
    if layout is not None:
        creation.set_layout(layout)
    elements = np.zeros(4, [("n", "i8"), ("length", "u8"), ("address", "u8")])
    elements["n"] = range(4)
    elements["length"], elements["address"] = [len(one) for one in bits], [one.ctypes.data for one in bits]
    with h5py.File(path, "w") as file:
        write_elements(h5d.create(file.id, b"c", kind, h5s.create_simple((4,)), creation), elements.view("V24"))
        file["y"] = np.arange(2)
    whole = H5Dataset(path, "c")[:]
    assert whole["n"].tolist() == [0, 1, 2, 3]
    assert all(same(one, dtype, wanted) for one, wanted in zip(whole["v"], bits, strict=True))
    assert H5Dataset(path, "c:n")[1:].tolist() == [1, 2, 3]
    assert same(H5Dataset(path, "c:v")[3], dtype, bits[3])
    assert H5Dataset(path, {"y": "y", "n": Field("c:n", take="all")})[1]["n"].tolist() == [0, 1, 2, 3]


def test_opaque_bytes_are_what_the_user_says(tmp_path, dtype):
    path, bits = tmp_path / "a.h5", bits_of(dtype, 12, 3)
    opaque = bits.view(f"V{bits.itemsize}")
    with h5py.File(path, "w") as file:
        file["x"] = opaque  # as h5py stores an array of ml_dtypes
        file.create_dataset("z", data=opaque, chunks=(5, 2), compression="gzip")
        pairs = np.zeros(12, [("n", "i4"), ("v", opaque.dtype, (3,))])
        pairs["v"] = opaque
        file["c"] = pairs
        file["o/0/x"], file["o/1/x"] = opaque, opaque[::-1]
        file.attrs["a"] = opaque[0]
        file["y"] = np.arange(12)
    asked = {"dtype": dtype}
    for name in "xz":
        assert same(H5Dataset(path, Field(name, **asked))[:], dtype, bits)
    assert same(H5Dataset(path, Field("c:v", **asked))[:], dtype, bits)
    whole = H5Dataset(path, Field("c", **asked))[:]
    assert same(whole["v"], dtype, bits)
    assert whole["n"].dtype == dtype
    assert same(H5Dataset(path, Field("x", **asked), samples=Objects("o/*"))[:], dtype, np.stack([bits, bits[::-1]]))
    packed = H5Dataset(path, {"x": Field("x", lookup=Lengths([5, 0, 7]), **asked)})[:]["x"]
    assert same(packed.values, dtype, bits)
    assert same(H5Dataset(path, {"y": "y", "a": Field("@a", **asked)})[0]["a"], dtype, bits[0])
    with pytest.raises(
        UnsupportedFieldError, match=r"opaque bytes .* Field\(..., dtype=torch\..* takes bytes as ml_dtypes"
    ):
        H5Dataset(path, "x")
    with pytest.raises(UnsupportedFieldError, match="opaque bytes have no number type"):
        H5Dataset(path, Field("x", dtype=torch.float32))


UNKNOWN = {
    "FP6": (5, 3, 2, 3, 6),
    "FP6 of two bits": (5, 2, 3, 1, 6),
    "FP4": (3, 2, 1, 1, 4),
    "E4M3 of another bias": (7, 4, 3, 11, 8),
    "E3M4": (7, 3, 4, 3, 8),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_floats_that_torch_has_no_type_for_are_refused_and_what_is_beside_them_is_read(tmp_path, name):
    sign, exponent, mantissa, bias, precision = UNKNOWN[name]
    stored, path = h5t.IEEE_F32LE.copy(), tmp_path / "a.h5"
    stored.set_fields(sign, mantissa, exponent, 0, mantissa)
    stored.set_ebias(bias)
    stored.set_precision(precision)
    stored.set_size(1)
    kind = h5t.create(h5t.COMPOUND, 5)
    kind.insert(b"n", 0, h5t.STD_I32LE)
    kind.insert(b"v", 4, stored)
    with h5py.File(path, "w") as file:
        put(file, "x", stored, np.arange(9, dtype="u1"))
        put(file, "c", kind, np.zeros((9, 5), "u1"), 1)
        file["y"] = np.arange(9)
    for field in ("x", "c", "c:v", {"y": "y", "x": Field("x", take="all")}):
        with pytest.raises(UnsupportedFieldError, match=f"torch has no type for floats of {precision} bits"):
            H5Dataset(path, field)
    with pytest.raises(UnsupportedFieldError, match=f"torch has no type for floats of {precision} bits"):
        H5Dataset(path, ".", samples=Objects(["x"]))
    assert H5Dataset(path, "c:n")[:].tolist() == [0] * 9


def test_numbers_are_converted_from_and_to_them(tmp_path, dtype):
    path, numbers = tmp_path / "a.h5", torch.tensor([[0.0, 1.5, -3.0, 448.0], [0.1, -0.0, 7.3, 1e-3]])
    bits = numbers.to(dtype).view(torch.uint16 if dtype == torch.bfloat16 else torch.uint8).numpy()
    exact = numbers.to(dtype).float()
    with h5py.File(path, "w") as file:
        put(file, "x", stored_type(dtype), bits)
        file["f"] = numbers.numpy()
        file["i"] = np.arange(8).reshape(2, 4)
    for wanted in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        assert torch.equal(H5Dataset(path, Field("x", dtype=wanted))[:], numbers.to(dtype).to(wanted))
    assert same(H5Dataset(path, Field("f", dtype=dtype))[:], dtype, bits)
    assert H5Dataset(path, Field("i", dtype=dtype))[:].float().tolist() == torch.arange(8.0).view(2, 4).tolist()
    normal = {"mean": 1.0, "std": 2.0}
    assert torch.allclose(H5Dataset(path, Field("x", normalize=normal))[:], (exact - 1) / 2)
    cast = H5Dataset(path, Field("x", normalize=normal, dtype=dtype))[:]
    assert cast.dtype == dtype
    assert torch.equal(cast.float(), ((exact - 1) / 2).to(dtype).float())
    missing = H5Dataset(path, Field("x", missing=0.1))[:]
    assert torch.equal(missing.isnan(), exact == exact[1, 0])
    with H5StreamLoader(path, 2, shuffle=True, fields=Field("x", dtype=torch.float32), seed=0) as loader:
        (batch,) = loader
    assert batch.dtype == torch.float32


def test_values_in_memory_come_as_what_they_are(tmp_path, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path, numbers = tmp_path / "a.h5", torch.tensor([0.0, 1.5, -3.0, 0.25]).to(dtype)
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4)
    array = numbers.float().numpy().astype(getattr(ml_dtypes, str(dtype).removeprefix("torch.")))
    for values in (numbers, array):
        (_, batch) = H5Dataset(path, ["x", Values(values)])[:]
        assert batch.dtype == dtype
        assert batch.float().tolist() == numbers.float().tolist()
        assert H5Dataset(path, ["x", Values(values, dtype=torch.float32)])[:][1].dtype == torch.float32


def test_a_type_that_torch_casts_nothing_to_is_refused(tmp_path):
    path = write_datasets(tmp_path / "a.h5", x=np.ones(4))
    for dtype in ("bits8", "quint8", torch.int4):
        with pytest.raises(OptionError, match=r"field 'x': torch casts no numbers to torch\..*leave dtype= out"):
            H5Dataset(path, Field("x", dtype=dtype))


def test_statistics_count_the_numbers_that_bits_stand_for(tmp_path, dtype):
    path, numbers = tmp_path / "a.h5", torch.tensor([448.0, -2.0, float("nan"), 0.5, 0.5]).to(dtype)
    bits = numbers.view(torch.uint16 if dtype == torch.bfloat16 else torch.uint8).numpy()
    with h5py.File(path, "w") as file:
        put(file, "x", stored_type(dtype), bits)
        put(file, "o/0/x", stored_type(dtype), bits)
    for dataset in (H5Dataset(path, {"x": "x"}), H5Dataset(path, {"x": "x"}, samples=Objects("o/*"))):
        found = dataset.statistics()["x"]
        assert (found.min, found.max, found.nan) == (-2, 448, 1)
        assert found.mean == pytest.approx(447 / 4)
    assert H5Dataset(path, {"x": "x"}).statistics()["x"].counts == {-2.0: 1, 0.5: 2, 448.0: 1}


def test_what_is_looked_up_or_drawn_by_them_goes_by_their_numbers(tmp_path, dtype):
    path = tmp_path / "a.h5"
    weights = torch.tensor([0.0, 0.0, 2.0, 0.0]).to(dtype)
    bits = weights.view(torch.uint16 if dtype == torch.bfloat16 else torch.uint8).numpy()
    with h5py.File(path, "w") as file:
        put(file, "w", stored_type(dtype), bits)
        put(file, "ends", stored_type(dtype), bits[:0].copy())
        put(file, "counts", stored_type(dtype), np.flip(bits).copy())
        file["y"] = np.arange(4)
        file["long"] = np.arange(2)
    dataset = H5Dataset(path, {"y": "y", "w": "w"})
    with H5StreamLoader(dataset, 4, draw=Weighted("w"), seed=0) as loader:
        assert next(iter(loader))["y"].tolist() == [2] * 4
    with H5StreamLoader(dataset, 4, draw=Balanced("w"), seed=0) as loader:
        assert sorted(next(iter(loader))["w"].float().tolist()) == [0, 0, 2, 2]
    assert H5Dataset(path, Field("long", lookup=Lengths("counts")))[1].tolist() == [0, 1]
    with pytest.raises(OptionError, match="whole number"):
        H5Dataset(path, Field("y", lookup="w"))


def test_sparse_matrices_have_values_of_them(tmp_path, dtype):
    path, numbers = tmp_path / "a.h5", torch.tensor([1.5, -2.0, 3.0, 0.25, 4.0]).to(dtype)
    bits = numbers.view(torch.uint16 if dtype == torch.bfloat16 else torch.uint8).numpy()
    with h5py.File(path, "w") as file:
        put(file, "X/data", stored_type(dtype), bits)
        file["X/indices"], file["X/indptr"] = np.array([0, 3, 1, 1, 2], "i4"), np.array([0, 2, 2, 5])
        file["X"].attrs["shape"] = [3, 4]
    dense = np.array([[1.5, 0, 0, -2], [0, 0, 0, 0], [0, 3.25, 4, 0]], "f4")  # those of one column are added
    packed = H5Dataset(path, Field("X", ragged="packed"))[:]
    assert same(packed.values, dtype, bits)
    whole = H5Dataset(path, Field("X", ragged="dense"))[:]
    assert whole.dtype == dtype
    assert whole.float().numpy().tolist() == torch.from_numpy(dense).to(dtype).float().tolist()
    some = H5Dataset(path, Field("X", ragged="dense", columns=[2, 0]))[:]
    assert some.float().numpy().tolist() == dense[:, [2, 0]].tolist()


def test_repacked_files_have_them_and_inspect_names_them(tmp_path, dtype):
    path, bits = tmp_path / "a.h5", bits_of(dtype, 50, 4)
    with h5py.File(path, "w") as file:
        put(file, "x", stored_type(dtype), bits, chunks=(7, 4), gzip=True)
        put(file, "y", stored_type(dtype), bits)
    repack(path, tmp_path / "b.h5", compress="zstd")
    with h5py.File(path) as before, h5py.File(tmp_path / "b.h5") as file:
        assert file["x"].id.get_type().equal(before["x"].id.get_type())
        assert file["y"].id.get_type().equal(before["y"].id.get_type())
    for name in "xy":
        assert same(H5Dataset(tmp_path / "b.h5", name)[:], dtype, bits)
    listed = {entry.path: entry for entry in inspect_file(str(path)).entries}
    assert (listed["x"].dtype, listed["x"].access) == (str(dtype)[6:], "decoded")
    assert (listed["y"].dtype, listed["y"].access) == (str(dtype)[6:], "direct")


@pytest.mark.parametrize("shuffled", [False, True])
def test_repacking_keeps_them_beside_references(tmp_path, dtype, shuffled):
    path, bits = tmp_path / "a.h5", bits_of(dtype, 6)
    size = bits.itemsize
    kind = h5t.create(h5t.COMPOUND, 8 + size)
    kind.insert(b"ref", 0, h5t.STD_REF_OBJ)
    kind.insert(b"v", 8, stored_type(dtype))
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(6)
        raw = np.zeros(6, [("ref", "u8"), ("v", bits.dtype)])
        raw["v"], raw["ref"] = bits, h5py.h5o.get_info(file["y"].id).addr
        put(file, "c", kind, raw.view(f"V{kind.get_size()}"))
        attribute = h5py.h5a.create(file.id, b"a", kind, h5s.create_simple((6,)))
        attribute.write(raw.view(f"V{kind.get_size()}"), kind)
    repack(path, tmp_path / "b.h5", shuffle_rows=1 if shuffled else None)
    with h5py.File(tmp_path / "b.h5") as file:
        order, read, noted = file["y"][()], np.zeros(6, raw.dtype), np.zeros(6, raw.dtype)
        stored = file["c"].id.get_type()
        file["c"].id.read(h5s.ALL, h5s.ALL, read.view(f"V{8 + size}"), stored)
        file.attrs.get_id("a").read(noted.view(f"V{8 + size}"), stored)
        assert {*read["ref"], *noted["ref"]} == {h5py.h5o.get_info(file["y"].id).addr}
        assert noted["v"].tolist() == bits.tolist()
    found = H5Dataset(tmp_path / "b.h5", {"v": "c:v", "y": "y"})[:]
    assert same(found["v"], dtype, bits[order])

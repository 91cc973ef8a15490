"""bfloat16 and floats of 8 bits come as torch's types, bit for bit, in every kind of samples and every form.

The oracle is the stored bits: h5py widens them, and libhdf5 takes 448 of float8 E4M3 for NaN.
"""

import itertools

import h5py
import numpy as np
import pytest
import torch
from h5py import h5d, h5p, h5s, h5t

from h5stream import Boxes, Field, H5Dataset, H5StreamLoader, Objects, Ragged, Rows, Sequences
from h5stream.errors import FieldLengthError, H5StreamError, OptionError

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

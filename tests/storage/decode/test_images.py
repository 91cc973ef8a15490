"""Encoded images, decoded by the readers, beside imagecodecs."""

import os
import struct
import zlib
from contextlib import nullcontext

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.amounts import crossed, examples
from support.making import corrupt_chunk, write_datasets

from h5stream import (
    Between,
    Bounds,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Objects,
    Sequences,
    Take,
    errors,
)
from h5stream.storage.file import groups
from h5stream.storage.file.catalogue import kept_of

ENCODE = {"jpeg": imagecodecs.jpeg8_encode, "png": imagecodecs.png_encode, "webp": imagecodecs.webp_encode}
DECODE = {"jpeg": imagecodecs.jpeg8_decode, "png": imagecodecs.png_decode, "webp": imagecodecs.webp_decode}


def image(k, size=(20, 24, 3)):
    return np.random.default_rng(k).integers(0, 255, size, dtype="u1")


def write(path, images, kinds=("jpeg",), stored="values", **options):
    """Write images, and give them as they come back."""
    encoded = [ENCODE[kinds[k % len(kinds)]](each) for k, each in enumerate(images)]
    count, most = len(encoded), max(map(len, encoded)) + 3
    with h5py.File(path, "w") as file:
        options = {"chunks": (min(count, 4), *(() if stored != "rows" else (most,))), **options} if options else {}
        if stored == "values":
            dataset = file.create_dataset("image", (count,), dtype=h5py.vlen_dtype("u1"), **options)
        elif stored == "opaque":
            dataset = file.create_dataset("image", (count,), dtype=f"V{most}", **options)
        else:
            dataset = file.create_dataset("image", (count, most), "u1", **options)
        for k, each in enumerate(encoded):
            one = np.frombuffer(each, "u1")
            if stored != "values":
                one = np.append(one, np.full(most - len(one), 7, "u1"))
            dataset[k] = np.void(one.tobytes()) if stored == "opaque" else one
        file["length"] = [len(each) for each in encoded]
        file["label"] = np.arange(count)
    return [DECODE[kinds[k % len(kinds)]](each) for k, each in enumerate(encoded)]


def check(batches, expected):
    seen = []
    for batch in batches:
        for k, number in enumerate(batch["label"].tolist()):
            assert np.array_equal(batch["image"][k].numpy(), expected[number]), number
            seen.append(number)
    return seen


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 30),
    kinds=st.sampled_from([("jpeg",), ("png",), ("webp",), ("jpeg", "png", "webp")]),
    stored=st.sampled_from(["values", "rows", "opaque"]),
    options=st.sampled_from([{}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}]),
    alike=st.booleans(),
    given_too=st.sampled_from([{}, {"shuffle": True}, {"shuffle": True, "window": 5}, {"num_workers": 0}]),
)
def test_every_image_is_what_imagecodecs_gives(tmp_path, count, kinds, stored, options, alike, given_too):
    images = [image(k, (20, 24 + (0 if alike else k % 3), 3)) for k in range(count)]
    expected = write(tmp_path / "a.h5", images, kinds, stored, **options)
    decode = kinds[0] if len(kinds) == 1 else "auto"
    field = Field("image", decode=(decode, "" if stored == "values" else "length"))
    fields = {"image": field, "label": "label"}
    with H5StreamLoader(tmp_path / "a.h5", 4, fields=fields, **given_too) as loader:
        for _ in range(2):
            batches = list(loader)
            assert sorted(check(batches, expected)) == list(range(count))
            are_tensors = {isinstance(batch["image"], torch.Tensor) for batch in batches}
            assert are_tensors == {alike or count == 1}
    dataset = H5Dataset(tmp_path / "a.h5", fields)
    for k in range(count):
        assert np.array_equal(dataset[k]["image"].numpy(), expected[k])


@pytest.mark.parametrize(("kind", "share"), crossed(("jpeg", "png", "webp"), (0, 0.01, 0.5, 0.95)))
def test_a_truncated_image_names_its_sample_and_skip_leaves_it_out(tmp_path, kind, share):
    expected = write(tmp_path / "a.h5", [image(k) for k in range(20)], (kind,))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["image"][7] = file["image"][7][: int(len(file["image"][7]) * share)]
    fields = {"image": Field("image", decode=kind), "label": "label"}
    with pytest.raises(errors.CorruptChunkError, match=r"'image': the image of row 7 .* is damaged.*on_error='skip'"):
        list(H5StreamLoader(tmp_path / "a.h5", 4, fields=fields))
    with H5StreamLoader(tmp_path / "a.h5", 4, fields=fields, on_error="skip", shuffle=True) as loader:
        assert sorted(check(loader, expected)) == [k for k in range(20) if k != 7]


def test_an_image_that_claims_more_than_memory_is_refused_before_it_is_taken(tmp_path):
    expected = write(tmp_path / "a.h5", [image(k) for k in range(3)], ("png",))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        claims = file["image"][1]
        claims[16:24] = np.frombuffer((60_000).to_bytes(4, "big") * 2, "u1")
        file["image"][1] = claims
    fields = {"image": Field("image", decode="png", ragged="list"), "label": "label"}
    with pytest.raises(errors.CorruptChunkError, match="60,000 x 60,000"):
        list(H5StreamLoader(tmp_path / "a.h5", 3, fields=fields))
    with H5StreamLoader(tmp_path / "a.h5", 3, fields=fields, on_error="skip") as loader:
        assert check(loader, expected) == [0, 2]


def test_several_images_of_a_sample_are_of_one_size(tmp_path):
    write(tmp_path / "a.h5", [image(k, (20, 24 + k, 3)) for k in range(9)])
    for form in ({}, {"ragged": "list"}):
        with pytest.raises(errors.UnsupportedFieldError, match="make no tensor of several rows; samples of one row"):
            H5Dataset(tmp_path / "a.h5", {"image": Field("image", decode="jpeg", **form)}, samples=Sequences(2))
    with pytest.raises(errors.UnsupportedFieldError, match="decode= takes images"):
        H5Dataset(tmp_path / "a.h5", {"image": Field("image", decode="jpeg", take=Take(scale=2))}, samples=Sequences(2))


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (lambda: Field("image", decode="gif"), "'auto', 'jpeg', 'png', 'webp'"),
        (lambda: Field("image", decode=("", "length")), "where that says how long"),
        (lambda: Field("image", decode="jpeg", ragged="packed"), "'list'"),
        (lambda: Field("image", decode="jpeg", dtype=torch.float32), "without columns=.*sample_transform=$"),
        (lambda: Field("image", decode="jpeg", columns=[0]), "without columns=.*sample_transform=$"),
        (
            lambda: Field("image", decode="png", lookup=Bounds([0, 2, 3])),
            "one image a sample, without lookup= of several",
        ),
        (lambda: Field("image", decode="png", lookup=Lengths("n")), "one image a sample, without lookup= of several"),
        (
            lambda: Field("image", decode="png", lookup=Between([0], [2])),
            "without lookup= of several rows; .* Sequences",
        ),
        (lambda: Field("image", decode="png"), "none is an image"),
        (lambda: Field("label", decode="png"), "values of variable length"),
        (lambda: Field("rows", decode=("jpeg", "length")), "from 0 to 10"),
    ],
)
def test_what_is_said_wrongly_is_told(tmp_path, field, says):
    write(tmp_path / "a.h5", [image(k) for k in range(3)])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["rows"] = np.zeros((3, 10), "u1")
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(tmp_path / "a.h5", field())


STORED_AS = {
    "uint8": lambda group, name, data: group.create_dataset(name, data=np.frombuffer(data, "u1")),
    "opaque": lambda group, name, data: group.create_dataset(name, data=np.void(data)),
    "gzip": lambda group, name, data: group.create_dataset(name, data=np.frombuffer(data, "u1"), compression="gzip"),
}


def write_objects(path, images, stored="uint8", kind="jpeg"):
    with h5py.File(path, "w") as file:
        for k, one in enumerate(images):
            STORED_AS[stored](file.require_group("images"), f"img_{k}", ENCODE[kind](one))
            file[f"images/img_{k}"].attrs["label"] = k
    return [DECODE[kind](ENCODE[kind](one)) for one in images]


@pytest.mark.parametrize("stored", ["uint8", "opaque"])
def test_many_objects_are_found_from_the_bytes_of_the_file_and_again_in_the_catalogue(tmp_path, monkeypatch, stored):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(groups, "MANY", 100)
    expected = write_objects(tmp_path / "a.h5", [image(k, (4, 5, 3)) for k in range(210)], stored, "png")
    os.utime(tmp_path / "a.h5", (1e9, 1e9))
    fields = {"image": Field(".", decode="png"), "label": "@label"}
    for _ in range(2):
        with H5StreamLoader(tmp_path / "a.h5", 64, shuffle=True, fields=fields, samples=Objects("images/*")) as loader:
            assert sorted(check(loader, expected)) == list(range(210))
    assert [one.objects for one in kept_of(str(tmp_path / "a.h5"))] == [210]
    if stored == "uint8":  # what was kept of images is none of the same objects as numbers
        assert len(H5Dataset(tmp_path / "a.h5", Field(".", ragged="list"), samples=Objects("images/*"))) == 210


@pytest.mark.parametrize("stored", STORED_AS)
def test_a_damaged_object_is_named_and_left_out(tmp_path, stored):
    expected = write_objects(tmp_path / "a.h5", [image(k) for k in range(9)], stored)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["images/img_4"]
        STORED_AS[stored](file["images"], "img_4", ENCODE["jpeg"](image(4))[:300])
        file["images/img_4"].attrs["label"] = 4
    fields, samples = {"image": Field(".", decode="jpeg"), "label": "@label"}, Objects("images/*")
    with pytest.raises(errors.CorruptChunkError, match=r"'images/img_4': the image of row 4.*its end is missing"):
        list(H5StreamLoader(tmp_path / "a.h5", 3, fields=fields, samples=samples))
    with H5StreamLoader(tmp_path / "a.h5", 3, fields=fields, samples=samples, on_error="skip") as loader:
        assert check(loader, expected) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_objects_that_are_no_bytes_are_told(tmp_path):
    write_objects(tmp_path / "a.h5", [image(k) for k in range(3)])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["images/img_9"] = np.arange(5.0)
        file.create_dataset("outside", (5,), "u1", external=[(str(tmp_path / "secret"), 0, 5)])
    with pytest.raises(errors.UnsupportedFieldError, match=r"'images/img_9' is float64 \(5,\).*np\.void"):
        H5Dataset(tmp_path / "a.h5", Field(".", decode="jpeg"), samples=Objects("images/*"))
    with pytest.raises(errors.ExternalDataError, match="secret"):
        H5Dataset(tmp_path / "a.h5", Field(".", decode="jpeg"), samples=Objects(["outside"]))


@pytest.mark.parametrize(("stored", "beside"), crossed(tuple(STORED_AS), (True, False)))
def test_each_sample_names_the_object_of_its_image(tmp_path, stored, beside):
    write_objects(tmp_path / "b.h5", [image(k, (20, 24 + k % 2, 3)) for k in range(6)], stored)
    path = tmp_path / ("a.h5" if beside else "b.h5")
    which = [3, 0, 3, 5, 1, 1, 3, 2, 0]
    with h5py.File(path, "a") as file, h5py.File(tmp_path / "b.h5") if beside else nullcontext(file) as images:
        file["name"], file["label"] = [f"img_{k}" for k in which], np.arange(9)
        expected = [DECODE["jpeg"](images[f"images/img_{k}"][()].tobytes()) for k in which]
    given = {"file": tmp_path / "b.h5"} if beside else {}
    for names in ("name", [f"img_{k}" for k in which]):
        fields = {"image": Field("images/{}", **given, lookup=names, decode="jpeg"), "label": "label"}
        with H5StreamLoader(path, 4, shuffle=True, fields=fields) as loader:
            assert sorted(check(loader, expected)) == list(range(9))
        dataset = H5Dataset(path, fields)
        assert all(np.array_equal(dataset[k]["image"].numpy(), expected[k]) for k in range(9))
    alone = Field("images/{}", **given, lookup=[f"img_{k}" for k in which], ragged="list", decode="jpeg")
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(H5Dataset(path, alone)[:], expected, strict=True))
    with pytest.raises(errors.FieldNotFoundError, match="img_77"):
        H5Dataset(path, Field("images/{}", **given, lookup=["img_77"] * 9, decode="jpeg"))


PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
"""The first row and column, and the steps, of each pass of an interlaced PNG."""


def palette_png(numbers, bits, *, is_interlaced=False, transparent=b"", between=b"", colour_type=3):
    """Encode numbers of colours as a PNG with a palette, by the PNG specification."""

    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    parts = [numbers[r::down, c::across] for r, c, down, across in PASSES] if is_interlaced else [numbers]
    lines = b""
    for row in (row for part in parts if part.size for row in part):
        lines += b"\0" + np.packbits(np.unpackbits(row[:, None], axis=1)[:, 8 - bits :]).tobytes()
    height, width = numbers.shape
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, is_interlaced)
    colours = np.random.default_rng(bits).integers(0, 256, (2**bits, 3), dtype="u1")
    packed = zlib.compress(lines)
    chunks = [(b"IHDR", header), (b"PLTE", colours.tobytes())] + [(b"tRNS", transparent)] * bool(transparent)
    chunks += [(b"tEXt", between)] * bool(between) + [(b"IDAT", packed[:20]), (b"IDAT", packed[20:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in chunks), colours


def write_encoded(path, encoded):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("mask", (len(encoded),), h5py.vlen_dtype("u1"))
        for k, one in enumerate(encoded):
            data[k] = np.frombuffer(one, "u1")
        padded = np.full((len(encoded), max(map(len, encoded)) + 5), 9, "u1")
        for k, one in enumerate(encoded):
            padded[k, : len(one)] = np.frombuffer(one, "u1")
        file["rows"] = padded


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("is_interlaced", [False, True])
def test_a_palette_png_is_class_numbers_or_colours(tmp_path, bits, is_interlaced):
    every = np.random.default_rng(0).integers(0, 2**bits, (5, 13, 11), dtype="u1")
    made = [palette_png(one, bits, is_interlaced=is_interlaced, between=b"a\0b" * k) for k, one in enumerate(every)]
    write_encoded(tmp_path / "a.h5", [encoded for encoded, _ in made])
    for name, kind in (("mask", "png"), ("mask", "auto"), ("rows", "png")):
        dataset = H5Dataset(tmp_path / "a.h5", Field(name, decode=kind))
        assert np.array_equal(dataset[:].numpy(), every)
        assert np.array_equal(dataset[3].numpy(), every[3])
        with H5StreamLoader(dataset, batch_size=2, shuffle=False) as loader:
            assert np.array_equal(torch.cat([*loader]).numpy(), every)
    for kind in ("png-rgb", "auto-rgb"):
        got = H5Dataset(tmp_path / "a.h5", Field("mask", decode=kind))[:]
        assert np.array_equal(got.numpy(), made[0][1][every])


def test_transparency_of_a_palette_does_not_change_its_numbers(tmp_path):
    numbers = np.arange(64, dtype="u1").reshape(8, 8) % 4
    encoded, colours = palette_png(numbers, 2, transparent=b"\0\x80")
    write_encoded(tmp_path / "a.h5", [encoded] * 2)
    assert np.array_equal(H5Dataset(tmp_path / "a.h5", Field("mask", decode="png"))[1].numpy(), numbers)
    assert np.array_equal(H5Dataset(tmp_path / "a.h5", Field("mask", decode="png-rgb"))[1].numpy(), colours[numbers])
    opaque, others = palette_png(numbers, 4)
    write_encoded(tmp_path / "b.h5", [encoded, opaque])
    both = H5Dataset(tmp_path / "b.h5", Field("mask", decode="auto-rgb"))[:].numpy()
    assert np.array_equal(both, [colours[numbers], others[numbers]])


@pytest.mark.parametrize("end", [30, 60, 400])
def test_a_palette_png_that_is_cut_off_is_an_error_in_colours_too(tmp_path, end):
    encoded, _ = palette_png(np.arange(64, dtype="u1").reshape(8, 8) % 4, 8, transparent=b"\0")
    write_encoded(tmp_path / "a.h5", [encoded, encoded[:-end]])
    with pytest.raises(errors.CorruptChunkError, match="the image of row 1"):
        H5Dataset(tmp_path / "a.h5", Field("mask", decode="png-rgb"))[1]


def test_palettes_beside_colours_are_refused_and_beside_gray_levels_are_not(tmp_path):
    numbers = np.arange(64, dtype="u1").reshape(8, 8) % 4
    (encoded, colours), gray = palette_png(numbers, 8), image(1, (8, 8))
    write_encoded(tmp_path / "a.h5", [encoded, ENCODE["png"](image(0, (8, 8, 3)))])
    with pytest.raises(errors.UnsupportedFieldError, match=r"some images have a palette.*decode='png-rgb' gives"):
        H5Dataset(tmp_path / "a.h5", Field("mask", decode="png"))
    both = H5Dataset(tmp_path / "a.h5", Field("mask", decode="png-rgb"))[:].numpy()
    assert np.array_equal(both, np.stack([colours[numbers], image(0, (8, 8, 3))]))
    write_encoded(tmp_path / "b.h5", [encoded, ENCODE["png"](gray)])
    assert np.array_equal(H5Dataset(tmp_path / "b.h5", Field("mask", decode="png"))[:].numpy(), [numbers, gray])


@pytest.mark.parametrize("at", [18, 25, 30, 36, 41, 80, -14, -30])
def test_a_damaged_palette_png_is_an_error_and_never_other_numbers(tmp_path, at):
    numbers = np.arange(64, dtype="u1").reshape(8, 8) % 4
    encoded, _ = palette_png(numbers, 8)
    damaged = bytearray(encoded)
    damaged[at] ^= 0x55
    write_encoded(tmp_path / "a.h5", [encoded, encoded, bytes(damaged), encoded[: len(encoded) // 2]])
    dataset = H5Dataset(tmp_path / "a.h5", Field("mask", decode="png"))
    with pytest.raises(errors.CorruptChunkError, match="the image of row 3"):
        dataset[3]
    try:
        got = dataset[2].numpy()
    except errors.H5StreamError:
        return
    assert np.array_equal(got, numbers)  # what was damaged is not read: the palette


@pytest.mark.parametrize("of", ["images/*", ["images/img_0"]])
def test_images_of_which_none_can_be_read_say_why(tmp_path, of):
    pixels = np.frombuffer(ENCODE["png"](image(1)), "u1")
    write_datasets(
        tmp_path / "a.h5", **{"images/img_0": {"data": pixels, "chunks": (len(pixels),), "fletcher32": True}}
    )
    corrupt_chunk(tmp_path / "a.h5", 0, "images/img_0")
    with pytest.raises(errors.CorruptChunkError, match="img_0"):
        H5Dataset(tmp_path / "a.h5", Field(".", decode="png"), samples=Objects(of))

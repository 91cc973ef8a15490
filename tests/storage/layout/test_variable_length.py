"""Values of variable length, read from the global heap beside h5py."""

import os

import h5py
import numpy as np
import pytest
import torch
from support.making import corrupt_chunk, vlen, write_datasets

from h5stream import Field, H5Dataset, H5StreamLoader, Sequences, Table, errors
from tools import fuzz_files


def write(path, counts, base):
    """Write a value of so many items for each row, but for every seventh, which is left unwritten; give the values."""
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 100, 0 if k % 7 == 6 else count).astype(base) for k, count in enumerate(counts)]
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (len(counts),), dtype=h5py.vlen_dtype(base))
        for k, value in enumerate(values):
            if k % 7 != 6:
                dataset[k] = value
        file["y"] = np.arange(len(counts))
    return values


def check(batches, values, form):
    """Compare each sample with what was written; give the samples."""
    seen = []
    for batch in batches:
        for k, number in enumerate(batch["y"].tolist()):
            found = (batch["x"].sample(k) if form == "packed" else batch["x"][k]).numpy()
            assert (found.tolist(), found.dtype) == (values[number].tolist(), values[number].dtype), number
            seen.append(number)
    return seen


@pytest.mark.parametrize("form", [None, "packed"])
@pytest.mark.parametrize("at", [0, 8, 24])  # the signature, the size of the collection, that of its first object
def test_a_heap_that_lies_is_an_error_that_names_the_sample_and_skip_leaves_it_out(tmp_path, form, at):
    values = write(tmp_path / "a.h5", [10_000] * 20, "f8")  # each in a collection of its own
    content = bytearray((tmp_path / "a.h5").read_bytes())
    layout = H5Dataset(tmp_path / "a.h5", "x").layout
    where = int(layout.datasets[0][0].heap.address[4]) + at
    content[where : where + 8] = (2**40).to_bytes(8, "little")
    (tmp_path / "a.h5").write_bytes(content)
    fields = {"x": "x" if form is None else Field("x", ragged=form), "y": "y"}
    with pytest.raises(errors.CorruptChunkError, match=r"'x'.* 4"):
        list(H5StreamLoader(tmp_path / "a.h5", 4, fields=fields))
    with H5StreamLoader(tmp_path / "a.h5", 4, fields=fields, on_error="skip", shuffle=True) as loader:
        assert sorted(check(loader, values, form)) == [k for k in range(20) if k != 4]


@pytest.mark.parametrize("nbytes", [None, 2**64 - 16, 2**64 - 23], ids=["zeros", "-16", "-23"])
@pytest.mark.parametrize("field", ["text", "numbers", "record", "record:text", "chunks"])
def test_a_heap_whose_end_is_zeros_is_damage_and_libhdf5_which_never_comes_back_from_it_is_not_asked(
    tmp_path, field, nbytes
):
    """As from one with an object whose bytes, with those of its header, are 0 in 64 bits."""
    path, texts = tmp_path / "a.h5", [f"text {k}" for k in range(10)]
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(10)
        file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
        numbers = file.create_dataset("numbers", (10,), dtype=h5py.vlen_dtype("f8"))
        for k in range(10):
            numbers[k] = np.arange(k + 1.0)
        record = np.array([*zip(range(10), texts, strict=True)], dtype=[("k", "i4"), ("text", h5py.string_dtype())])
        file["record"] = record
        file.create_dataset("chunks", data=record, chunks=(4,), compression="gzip")
    content = bytearray(path.read_bytes())
    at = content.find(b"GCOL")
    while at >= 0:
        end = at + int.from_bytes(content[at + 8 : at + 16], "little")
        if nbytes is None:
            content[at + 40 : end] = bytes(end - at - 40)  # behind the header and half of the first object
        else:
            content[at + 24 : at + 32] = nbytes.to_bytes(8, "little")
        at = content.find(b"GCOL", end)
    path.write_bytes(content)
    with pytest.raises(errors.CorruptChunkError, match=r"row 0 is damaged: in its collection, .* no bytes at all"):
        H5Dataset(path, field)[:]
    loader = H5StreamLoader(path, 4, fields=["y", field], on_error="skip")
    assert list(loader) == []
    assert loader.stats().skipped_rows == 10
    assert H5Dataset(path, "record:k")[:].tolist() == H5Dataset(path, "chunks:k")[:].tolist() == list(range(10))


@pytest.mark.parametrize("field", [Field("v", ragged="packed"), Field("v", decode="png")])
def test_a_damaged_chunk_of_places_is_named_where_no_value_can_be_had(tmp_path, field):
    v = {**vlen("u1", [np.arange(k % 7) for k in range(60)]), "chunks": (20,), "compression": "gzip"}
    path = write_datasets(tmp_path / "a.h5", v=v)
    corrupt_chunk(path, 1, "v")
    with pytest.raises(errors.CorruptChunkError, match=r"'v': .*chunk \(20,\) at byte \d+: gzip") as found:
        H5Dataset(path, field)
    assert (found.value.file, found.value.field, found.value.chunk) == (path, "v", (20,))


@pytest.mark.parametrize(
    ("files", "seed"), [(33, 7400), *(pytest.param(100, seed, marks=pytest.mark.slow) for seed in (7400, None))]
)
def test_damaged_heaps_are_what_h5py_says_of_them(tmp_path, files, seed):
    """A short part of ``python tools/fuzz_files.py heaps``."""
    counts, wrong = fuzz_files.fuzz("heaps", files, seed or int.from_bytes(os.urandom(4), "little"), tmp_path / "wrong")
    assert not wrong, wrong
    assert counts["files"] >= files


def test_a_dataset_of_texts_or_of_images_may_be_several_fields(tmp_path):
    path = write_datasets(tmp_path / "a.h5", t={"data": ["a", "bc"], "dtype": h5py.string_dtype()})
    assert H5Dataset(path, {"a": "t", "b": "t"})[:] == {"a": [b"a", b"bc"], "b": [b"a", b"bc"]}


WORDS = [f"w{k}" * (k % 3) for k in range(20)]
NUMBERS = [np.arange(k % 4, dtype="i4") for k in range(20)]


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """Write two episodes of 10 steps, with the same texts and numbers in several ways."""
    path = tmp_path_factory.mktemp("episodes") / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(2):
            some, text = slice(10 * number, 10 * number + 10), h5py.string_dtype()
            group = file.create_group(f"e{number}")
            group["x"] = np.arange(10.0) + 10 * number
            group["fixed"] = np.array(WORDS[some], "S9")
            group.create_dataset("text", data=WORDS[some], dtype=text)
            group.create_dataset("gzip", data=WORDS[some], dtype=text, chunks=(3,), compression="gzip")
            group.create_dataset("pairs", data=np.array(WORDS[some], object)[:, None].repeat(2, 1), dtype=text)
            layout = h5py.VirtualLayout((10,), text)
            layout[:] = h5py.VirtualSource(group["text"])
            group.create_virtual_dataset("virtual", layout)
            for name, base in (("v", "<i4"), ("big", ">i4")):
                values = group.create_dataset(name, (10,), h5py.vlen_dtype(np.dtype(base)))
                for k, value in enumerate(NUMBERS[some]):
                    values[k] = value.astype(base)
    return path


TEXTS = ("fixed", "text", "gzip", "virtual")


@pytest.mark.parametrize("pad", [None, "zeros", "edge", -1])
def test_sequences_have_the_values_of_variable_length_of_each_of_their_steps(episodes, pad):
    fields = {name: name for name in ("x", *TEXTS, "pairs", "v", "big")}
    dataset = H5Dataset(episodes, fields, samples=Sequences(3, of="e*", pad=pad))
    batch = dataset[:]
    for k in range(len(dataset)):
        episode, first = divmod(k, len(dataset) // 2)
        steps = [first, first + 1, first + 2]
        rows = [10 * episode + (min(s, 9) if pad == "edge" else s) if s < 10 or pad == "edge" else None for s in steps]
        texts = [b"" if row is None else WORDS[row].encode() for row in rows]
        numbers = [[] if row is None else NUMBERS[row].tolist() for row in rows]
        assert all(batch[name][k] == dataset[k][name] == texts for name in TEXTS), k
        assert batch["pairs"][k] == [[text, text] for text in texts]
        assert all([one.tolist() for one in batch[name][k]] == numbers for name in ("v", "big"))
        assert {one.dtype for name in ("v", "big") for one in batch[name][k]} == {torch.int32}


def test_loaders_and_tables_have_texts_of_several_steps(episodes):
    fields = {"x": "x", "t": "text", "one": Field("text", take=[0])}
    options = {"fields": fields, "samples": Sequences(4, of="e*"), "shuffle": True, "seed": 3}
    with H5StreamLoader(episodes, 5, **options) as loader:
        seen = [row for batch in loader for row in zip(batch["x"].tolist(), batch["t"], batch["one"], strict=True)]
    assert len(seen) == 14
    for x, texts, one in seen:
        assert texts == [WORDS[int(k)].encode() for k in x]
        assert one == texts[:1]
    table = H5Dataset(episodes, {"t": "e1/text", "f": "e1/fixed"}, samples=Table(row=[5, 0], length=2))
    assert table[:]["t"] == table[:]["f"] == [[WORDS[k].encode() for k in rows] for rows in ((15, 16), (10, 11))]


def test_statistics_count_texts_of_steps_like_those_of_a_fixed_length(episodes):
    found = H5Dataset(episodes, {"t": "text", "f": "fixed", "v": "v"}, samples=Sequences(2, of="e*")).statistics()
    assert found["t"].counts == found["f"].counts
    steps = [k for first in (*range(9), *range(10, 19)) for k in (first, first + 1)]
    assert found["v"].mean == pytest.approx(np.concatenate([NUMBERS[k] for k in steps]).mean())

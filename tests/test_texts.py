"""Texts, and values of variable length, of which each sample has another number: lists, beside h5py."""

import h5py
import numpy as np
import pytest
import torch

from h5stream import Bounds, Crop, Field, H5Dataset, H5StreamLoader, Lengths, Objects, Ragged, SampleNumber, errors

COUNTS = np.random.default_rng(0).integers(0, 5, 60)
TOTAL = int(COUNTS.sum())
KINDS = {
    "variable": lambda k: np.array([f"wörd {k} " * (k % 7) for k in range(k)], dtype=h5py.string_dtype()),
    "fixed": lambda k: np.array([b"w%d" % k for k in range(k)], dtype="S6"),
    "numbers": None,
}


def stored(kind, count):
    """Make so many rows of a kind."""
    if kind == "numbers":
        found = np.empty(count, dtype=h5py.vlen_dtype("i4"))
        for k in range(count):
            found[k] = np.arange(k % 6, dtype="i4")
        return found
    return KINDS[kind](count)


def plain(values):
    """Give tensors and arrays as lists, all else as it is."""
    return [one.tolist() if isinstance(one, torch.Tensor | np.ndarray) else one for one in values]


@pytest.fixture(
    params=[(kind, options) for kind in KINDS for options in ({}, {"chunks": (9,), "compression": "gzip"})], ids=str
)
def data(request, tmp_path):
    kind, options = request.param
    rows = stored(kind, TOTAL)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("text", data=rows, dtype=rows.dtype, **options)
        file["counts"], file["score"] = COUNTS, np.arange(TOTAL)
        for k in range(8):
            few = {**options, "chunks": (2,), "maxshape": (None,)} if options else {}
            file.create_dataset(f"images/{k}/captions", data=rows[: k + 1], dtype=rows.dtype, **few)
            file[f"images/{k}/pixels"] = np.full((2, 2), k)
        read = file["text"][()]
    return tmp_path / "a.h5", read


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "keep": "never", "window": 12}], ids=str)
def test_rows_that_samples_look_up_come_as_lists(data, options):
    path, rows = data
    edges = np.append(0, np.cumsum(COUNTS))
    fields = {
        "text": Field("text", lookup=Lengths("counts"), ragged="list"),
        "first": Field("text", lookup=Lengths("counts"), ragged=Ragged("list", crop=Crop(2, at="start"))),
        "score": Field("score", lookup=Lengths("counts"), ragged="list"),
        "n": SampleNumber(),
    }
    with H5StreamLoader(path, 7, shuffle=True, fields=fields, **options) as loader:
        found = []
        for batch in loader:
            assert isinstance(batch["text"], list)
            for n, text, first, score in zip(*(batch[key] for key in ("n", "text", "first", "score")), strict=True):
                mine = rows[edges[n] : edges[n + 1]]
                assert plain(text) == plain(mine)
                assert plain(first) == plain(mine[:2])
                assert score.tolist() == list(range(edges[n], edges[n + 1]))
                found.append(int(n))
    assert sorted(found) == list(range(len(COUNTS)))
    assert plain(H5Dataset(path, fields)[3]["text"]) == plain(rows[edges[3] : edges[4]])


class Captions(torch.utils.data.Dataset):
    """An image and its captions, of which each has some, as programs for captioning read them."""

    def __init__(self, path):
        self.file = h5py.File(path)
        self.names = sorted(self.file["images"])

    def __len__(self):
        return len(self.names)

    def __getitem__(self, k):
        group = self.file["images"][self.names[k]]
        return {"pixels": group["pixels"][()], "captions": list(group["captions"][()])}


def test_captions_of_each_image_come_as_the_program_reads_them(data):
    theirs = Captions(data[0])
    fields = {"pixels": "pixels", "captions": Field("captions", ragged="list"), "n": SampleNumber()}
    named = {"captions": Field("images/{}/captions", lookup=theirs.names[::-1], ragged="list"), "n": SampleNumber()}
    with H5StreamLoader(data[0], 3, shuffle=True, fields=fields, samples=Objects("images/*")) as loader:
        found = {
            n: (pixels, captions)
            for batch in loader
            for n, pixels, captions in zip(batch["n"].tolist(), batch["pixels"], batch["captions"], strict=True)
        }
    with H5StreamLoader(data[0], 3, shuffle=True, fields=named) as loader:
        others = {n: one for batch in loader for n, one in zip(batch["n"].tolist(), batch["captions"], strict=True)}
    assert sorted(found) == sorted(others) == list(range(len(theirs)))
    for k in range(len(theirs)):
        assert np.array_equal(found[k][0].numpy(), theirs[k]["pixels"])
        assert plain(found[k][1]) == plain(others[7 - k]) == plain(theirs[k]["captions"])


def caption_count(sample):
    return {"n": sample["n"], "count": len(sample["text"])}


def test_functions_and_ranks_and_states_have_them_too(data):
    fields = {"text": Field("text", lookup=Lengths("counts"), ragged="list"), "n": SampleNumber()}
    counts = {}
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "sample_transform": caption_count, "seed": 0}
        with H5StreamLoader(data[0], 7, shuffle=True, fields=fields, **options) as loader:
            for batch in loader:
                counts |= dict(zip(batch["n"].tolist(), batch["count"].tolist(), strict=True))
    assert [counts[k] for k in range(len(COUNTS))] == COUNTS.tolist()


def test_a_damaged_text_leaves_its_sample_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("text", data=np.arange(40).astype("S4"), chunks=(4,), compression="gzip")
        file["bounds"] = np.arange(0, 41, 2)
        where = file["text"].id.get_chunk_info(3)
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.seek(where.byte_offset)
        raw.write(b"\xff" * where.size)
    fields = {"text": Field("text", lookup=Bounds("bounds"), ragged="list"), "n": SampleNumber()}
    with H5StreamLoader(tmp_path / "a.h5", 5, fields=fields, on_error="skip") as loader:
        found = {n: text for batch in loader for n, text in zip(batch["n"].tolist(), batch["text"], strict=True)}
    assert found == {n: [b"%d" % (2 * n), b"%d" % (2 * n + 1)] for n in range(20) if n not in (6, 7)}


@pytest.mark.parametrize("form", ["packed", "pad", "nested"])
def test_texts_come_in_no_other_form(data, form):
    with pytest.raises(errors.UnsupportedFieldError, match="ragged='list' of texts"):
        H5Dataset(data[0], Field("text", lookup=Lengths("counts"), ragged=form))
    with pytest.raises(errors.OptionError, match="normalise= is for"):
        H5Dataset(data[0], Field("text", lookup=Lengths("counts"), ragged="list", normalise={"mean": 1}))


@pytest.mark.parametrize("workers", [0, 2])
def test_texts_that_h5py_reads_are_not_kept_as_bytes(tmp_path, workers):
    rows = stored("variable", TOTAL)
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind, space = h5py.h5t.py_create(rows.dtype, logical=True), h5py.h5s.create_simple(rows.shape)
        h5py.h5d.create(file.id, b"text", kind, space, compact)
        file["text"][...], file["counts"] = rows, COUNTS
    fields = {"text": Field("text", lookup=Lengths("counts"), ragged="list"), "n": SampleNumber()}
    edges = np.append(0, np.cumsum(COUNTS))
    with H5StreamLoader(tmp_path / "a.h5", 7, fields=fields, shuffle=True, num_workers=workers) as loader:
        for batch in [*loader, *loader]:
            for text, n in zip(batch["text"], batch["n"].tolist(), strict=True):
                assert [*text] == [one.encode() for one in rows[edges[n] : edges[n + 1]]]

"""Objects of unlike lengths, beside h5py: stored alike or not, in one file, in several, a file each."""

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, Packed, Padded, SampleNumber, errors
from h5stream.storage import whereabouts
from h5stream.storage.field_reader import FieldReader

STORED = [{}, {"compression": "gzip", "shuffle": True}, {"fletcher32": True}, {"chunks": True}]


@pytest.fixture(params=[0, whereabouts.MANY], ids=["from the file's bytes", "through libhdf5"])
def opened_both_ways(request, monkeypatch):
    monkeypatch.setattr(whereabouts, "MANY", request.param)


def samples_of(batch, count):
    """Take a batch's rows apart again, whatever form they have."""
    if isinstance(batch, (Packed, Padded)):
        return [batch.sample(k).numpy() for k in range(count)]
    parts = batch.unbind() if isinstance(batch, torch.Tensor) else batch
    return [part.numpy() for part in parts]


@st.composite
def objects(draw):
    """The rows of some objects, how each is stored, and whether anything was written."""
    rest = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=10))
    kinds = draw(st.lists(st.sampled_from(STORED), min_size=1, max_size=2))
    chunks = (draw(st.integers(1, 5)), *(draw(st.integers(1, n)) for n in rest))
    free = draw(st.booleans())
    stored = []
    for k in range(len(lengths)):
        one = dict(kinds[k % len(kinds)])
        if one:
            one["maxshape"] = (None, *rest)
            if free:
                one["chunks"] = chunks
        stored.append(one)
    return rest, lengths, stored, draw(st.booleans()), draw(st.sampled_from(["<f4", ">i2", "u1", "<f8"]))


def write(path, form, first=0):
    rest, lengths, stored, sparse, dtype = form
    found = {}
    with h5py.File(path, "w") as file:
        for k, (rows, options) in enumerate(zip(lengths, stored, strict=True), first):
            group = file.create_group(f"data/{k}")
            values = group.create_dataset("x", (rows, *rest), dtype, fillvalue=7, **options)
            if not sparse or k % 3:
                values[()] = np.random.default_rng(k).integers(0, 100, (rows, *rest)).astype(dtype)
            group["y"], group.attrs["k"] = np.arange(3) + k, k
            found[k] = values[()]
    return found


@pytest.mark.usefixtures("opened_both_ways")
@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=objects(), data=st.data())
def test_every_object_of_its_own_length_is_what_h5py_gives(tmp_path, form, data):
    expected = write(tmp_path / "a.h5", form)
    paths = [tmp_path / "a.h5"]
    if data.draw(st.booleans()):
        expected |= write(tmp_path / "b.h5", form, len(expected))
        paths.append(tmp_path / "b.h5")
    ragged = data.draw(st.sampled_from(["packed", "pad", "list", "nested"]))
    most = data.draw(st.sampled_from([None, 3]))
    fields = {"x": Field("x", ragged=ragged, max_length=most), "k": "@k", "n": SampleNumber()}
    if data.draw(st.booleans()):
        fields["y"] = "y"
    order = data.draw(st.sampled_from([{"shuffle": True, "seed": 1}, {}, {"shuffle": True, "num_workers": 0}]))
    seen = []
    with H5StreamLoader(paths, 3, fields=fields, samples=Objects("data/*"), **order) as loader:
        for batch in loader:
            numbers = batch["k"].tolist()
            for k, rows in zip(numbers, samples_of(batch["x"], len(numbers)), strict=True):
                assert np.array_equal(rows, expected[k][:most])
                assert rows.shape == expected[k][:most].shape
            if "y" in batch:
                assert np.array_equal(batch["y"].numpy(), np.arange(3) + np.array(numbers)[:, None])
            seen += numbers
        state = loader.state_dict()
    assert state
    assert sorted(seen) == sorted(expected)
    one = H5Dataset(paths, fields, samples=Objects("data/*"))[len(expected) - 1]
    assert np.array_equal(one["x"].numpy(), expected[int(one["k"])][:most])


@pytest.mark.usefixtures("opened_both_ways")
def test_datasets_of_unlike_length_are_samples_by_name_with_their_attributes(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(20):
            file.create_dataset(f"utt_{k}", data=np.arange(k + 1, dtype="f4")).attrs["text"] = f"words {k}"
    fields = {"wave": Field(".", ragged="pad", pad_value=-1), "text": "@text"}
    with H5StreamLoader(tmp_path / "a.h5", 6, shuffle=True, samples=Objects("*"), fields=fields) as loader:
        for batch in loader:
            for k, text in enumerate(batch["text"]):
                assert batch["wave"].lengths[k] == int(text.split()[1]) + 1
                assert (batch["wave"].values[k, batch["wave"].lengths[k] :] == -1).all()


def test_a_file_may_be_a_sample_of_its_own_length(tmp_path):
    for k in range(7):
        with h5py.File(tmp_path / f"case_{k}.h5", "w") as file:
            file["image"], file["label"] = np.full((k + 1, 4, 5), k, "i2"), k
    fields = {"image": Field("image", ragged="list"), "label": "label"}
    with H5StreamLoader(
        str(tmp_path / "case_*.h5"), 3, shuffle=True, samples=Objects("files"), fields=fields
    ) as loader:
        seen = [
            (int(k), *image.shape, int(image[0, 0, 0]))
            for batch in loader
            for k, image in zip(batch["label"], batch["image"], strict=True)
        ]
    assert sorted(seen) == [(k, k + 1, 4, 5, k) for k in range(7)]


@pytest.mark.usefixtures("opened_both_ways")
def test_objects_that_lack_a_ragged_field_are_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(9):
            file.create_group(f"g{k}").attrs["k"] = k
            if k % 3:
                file[f"g{k}/x"] = np.arange(k)
    fields = {"x": Field("x", ragged="list"), "k": "@k"}
    with pytest.raises(errors.FieldNotFoundError, match=r"'g0/x'.*missing='skip'"):
        H5Dataset(tmp_path / "a.h5", fields, samples=Objects("*"))
    batch = H5Dataset(tmp_path / "a.h5", fields, samples=Objects("*", missing="skip"))[:]
    assert batch["k"].tolist() == [1, 2, 4, 5, 7, 8]
    assert [x.tolist() for x in batch["x"]] == [list(range(k)) for k in (1, 2, 4, 5, 7, 8)]


@pytest.mark.usefixtures("opened_both_ways")
def test_rows_of_unlike_form_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(5):
            file[f"s{k}"] = np.zeros((k + 1, 4 if k == 3 else 3))
    with pytest.raises(errors.FieldLengthError, match="s3"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="packed")}, samples=Objects("*"))


@pytest.mark.usefixtures("opened_both_ways")
def test_a_damaged_object_of_its_own_length_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(6):
            file.create_dataset(f"s{k}", data=np.arange(50.0 + k), chunks=(20,), maxshape=(None,), compression="gzip")
        where = file["s4"].id.get_chunk_info(1)
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.seek(where.byte_offset)
        raw.write(b"\xff" * where.size)
    fields = {"x": Field(".", ragged="packed")}
    with pytest.raises(errors.CorruptChunkError, match=r"'s4': chunk \(20,\)"):
        H5Dataset(tmp_path / "a.h5", fields, samples=Objects("*"))[:]
    with H5StreamLoader(tmp_path / "a.h5", 2, fields=fields, samples=Objects("*"), on_error="skip") as loader:
        lengths = [length for batch in loader for length in batch["x"].offsets.diff().tolist()]
        assert sorted(lengths) == [50, 51, 52, 53, 55]


@pytest.mark.parametrize("made", ["value", "empty", "compound", "vlen"])
def test_objects_that_have_no_rows_of_numbers_are_told(tmp_path, made):
    things = {"value": 3.0, "empty": h5py.Empty("f4"), "compound": np.zeros(3, [("a", "f4"), ("b", "i4")])}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v/0"] = np.zeros(3, "f4")
        if made == "vlen":
            del file["v/0"]
            for k in range(2):
                file.create_dataset(f"v/{k}", (2,), h5py.vlen_dtype("f4"))
        else:
            file["v/1"] = things[made]
    with pytest.raises(errors.H5StreamError, match=r"single value|is empty|variable length|compound|must agree"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="list")}, samples=Objects("v/*"))
    if made == "compound":
        with h5py.File(tmp_path / "a.h5", "a") as file:
            file["v/0"].file.move("v/0", "other")
            file["v/2"] = things[made]
        batch = H5Dataset(tmp_path / "a.h5", {"x": "."}, samples=Objects("v/*"))[:]
        assert batch["x"]["b"].shape == (2, 3)


def test_one_long_sample_that_makes_batches_too_large_is_told_the_ways_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(40):
            file[f"t{k}"] = np.zeros(4 if k else 400_000)
    with pytest.raises(errors.BudgetError, match=r"max_length=.*Crop.*draw=Sized"):
        H5StreamLoader(
            tmp_path / "a.h5", 32, samples=Objects("t*"), fields=Field(".", ragged="pad"), memory_budget=1 << 24
        )


def test_groups_that_are_unlike_are_described_a_field_at_a_time(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(1, 9):
            for name in "xyz":
                file.create_dataset(f"o/{k}/{name}", data=np.arange(9.0) + k, chunks=(k,))
    added, add = [], FieldReader._add
    monkeypatch.setattr(FieldReader, "_add", lambda *given: (added.append(given[1]), add(*given))[1])
    dataset = H5Dataset(tmp_path / "a.h5", [Field(name, ragged="list") for name in "xyz"], samples=Objects("o/*"))
    assert [values[7].tolist() for values in dataset[:]] == [(np.arange(9.0) + 8).tolist()] * 3
    assert len(added) <= 3 + 8 * 3  # the first group, then each field of each

"""Fields whose objects are named by each sample: both proteins of a pair, the image that a question is about."""

import h5py
import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from h5stream import Field, H5Dataset, H5StreamLoader, SampleNumber, Sequences, Table, Values, errors
from h5stream.storage import whereabouts


@pytest.fixture(params=[0, whereabouts.MANY], ids=["from the file's bytes", "through libhdf5"])
def opened_both_ways(request, monkeypatch):
    monkeypatch.setattr(whereabouts, "MANY", request.param)


def write(path, lengths, options, below=""):
    with h5py.File(path, "w") as file:
        for k, rows in enumerate(lengths):
            file.create_dataset(f"{below}p{k}", data=np.random.default_rng(k).random((rows, 3), "f4"), **options)


@pytest.mark.usefixtures("opened_both_ways")
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    pairs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=20),
    options=st.sampled_from([{}, {"compression": "gzip"}]),
    form=st.sampled_from(["list", "packed"]),
)
def test_both_objects_of_a_pair_are_what_h5py_gives(tmp_path, lengths, pairs, options, form):
    write(tmp_path / "emb.h5", lengths, options)
    pairs = [(a % len(lengths), b % len(lengths)) for a, b in pairs]
    names = [[f"p{k}" for k in column] for column in zip(*pairs, strict=True)]
    fields = {
        "a": Field("{}", names=names[0], ragged=form),
        "b": Field("{}", names=names[1], ragged=form),
        "y": Values(np.arange(len(pairs)) / 2),
        "n": SampleNumber(),
    }
    with (
        H5StreamLoader(tmp_path / "emb.h5", 4, shuffle=True, fields=fields) as loader,
        h5py.File(tmp_path / "emb.h5") as file,
    ):
        seen = []
        for batch in loader:
            for k, n in enumerate(batch["n"].tolist()):
                for key, name in zip("ab", pairs[n], strict=True):
                    found = batch[key][k] if form == "list" else batch[key].sample(k)
                    assert np.array_equal(found.numpy(), file[f"p{name}"][()])
                assert batch["y"][k] == n / 2
                seen.append(n)
    assert sorted(seen) == list(range(len(pairs)))


@pytest.mark.usefixtures("opened_both_ways")
def test_a_dataset_names_the_image_of_each_question(tmp_path):
    """Images of one size, by name, in two files; questions in two others: each image once, whoever asks of it."""
    for k in range(2):
        with h5py.File(tmp_path / f"images_{k}.h5", "w") as file:
            for i in range(5):
                file.create_dataset(f"images/{5 * k + i}", data=np.full((4, 6), 5 * k + i, "u1"), chunks=(2, 6))
        with h5py.File(tmp_path / f"questions_{k}.h5", "w") as file:
            file["q"] = np.arange(8) + 8 * k
            file["image_id"] = [str((3 * i + k) % 10) for i in range(8)]
    images = [str(tmp_path / f"images_{k}.h5") for k in range(2)]
    fields = {"q": "q", "image": Field("images/{}", file=images, names="image_id"), "id": "image_id"}
    questions = [str(tmp_path / f"questions_{k}.h5") for k in range(2)]
    with H5StreamLoader(questions, 5, shuffle=True, fields=fields) as loader:
        seen = []
        for batch in loader:
            assert batch["image"].shape[1:] == (4, 6)
            assert batch["image"][:, 2, 3].tolist() == [int(one) for one in batch["id"]]
            seen += batch["q"].tolist()
    assert sorted(seen) == list(range(16))
    one = H5Dataset(questions, fields)[9]
    assert one["image"].tolist() == [[int(one["id"])] * 6] * 4


@pytest.mark.usefixtures("opened_both_ways")
@pytest.mark.parametrize("samples", [Sequences(3, stride=4), Table(row=[0, 4, 8], length=3)], ids=repr)
def test_a_sequence_has_the_object_that_its_first_row_names(tmp_path, samples):
    write(tmp_path / "emb.h5", [2, 5, 1], {})
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["key"] = np.arange(12), [f"p{k % 3}" for k in range(12)]
    fields = {"x": "x", "e": Field("{}", file=tmp_path / "emb.h5", names="key", ragged="list")}
    batch = H5Dataset(tmp_path / "x.h5", fields, samples=samples)[:]
    assert batch["x"].tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    with h5py.File(tmp_path / "emb.h5") as file:
        assert [one.tolist() for one in batch["e"]] == [file[f"p{k % 3}"][()].tolist() for k in (0, 4, 8)]


def test_a_file_without_any_names_is_refused_where_nothing_says_what_the_field_holds(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["o/p0"], file["key"] = np.arange(3), np.array([], dtype="S5")
    with pytest.raises(errors.FieldLengthError, match="names no object, so that nothing says"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("o/{}", names="key")})


def test_what_cannot_be_is_named(tmp_path):
    write(tmp_path / "a.h5", [2, 3], {})
    for options, kind, words in [
        ({"names": ["p0", "p9"], "ragged": "list"}, errors.FieldNotFoundError, "no 'p9'.*1 of 2 names"),
        ({"names": ["p0", "p1"]}, errors.FieldLengthError, "unlike lengths, 2 to 3 rows; ragged="),
        ({"names": [3]}, errors.OptionError, "a name for each sample"),
        ({"names": ["p0"], "decode": "jpeg"}, errors.UnsupportedFieldError, "decode= takes objects that are bytes"),
    ]:
        with pytest.raises(kind, match=words):
            H5Dataset(tmp_path / "a.h5", {"x": Field("{}", **options)})
    with pytest.raises(errors.OptionError, match=r"one \{\}"):
        Field("p", names=["p0"])
    with pytest.raises(errors.OptionError, match=r"3 names, and needs one for each of 2 samples"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("{}", names=["p0"] * 3), "p": "p0"})

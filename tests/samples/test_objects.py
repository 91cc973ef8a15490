"""Objects: a group, a dataset or a file a sample, of one shape or each of its own, beside h5py."""

import itertools
import os
import re

import h5py
import imagecodecs
import numpy as np
import pytest
from support.making import write_datasets

from h5stream import Crop, Field, H5Dataset, H5StreamLoader, Lengths, Objects, Ragged, Rows, Sequences, errors
from h5stream.storage.file import discovery


def test_objects_that_are_unlike_are_told(tmp_path):
    held = {"0/x": np.zeros(3), "1/x": np.zeros(3), "2/x": np.zeros(4)}
    write_datasets(tmp_path / "a.h5", **held, k__0=np.zeros(3, "f4"), k__1=np.zeros(3, "f8"))
    with pytest.raises(errors.FieldLengthError, match=r"'2/x' holds float64 \(4,\), and '0/x' float64 \(3,\)"):
        H5Dataset(tmp_path / "a.h5", "x", samples=Objects(["0", "1", "2"]))
    with pytest.raises(errors.FieldLengthError, match="'k/1' holds float64"):
        H5Dataset(tmp_path / "a.h5", ".", samples=Objects("k/*"))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        for k, (mark, value) in enumerate([(1, 2), (0.5, 2), (1, 2.5)]):
            file[f"{k}/x"], file[f"{k}/value"], file[str(k)].attrs["mark"] = np.zeros(3), value, mark
    for field, names, says in (("@mark", "01", "'1/@mark' is float64"), ("value", "02", "'2/value' is float64")):
        with pytest.raises(errors.FieldLengthError, match=says):
            H5Dataset(tmp_path / "b.h5", ["x", field], samples=Objects([*names]))


@pytest.mark.parametrize(
    ("fields", "samples", "says"),
    [
        ("x", lambda: Objects([]), "lists no object"),
        ("x", lambda: Objects(1), "takes a list of names, .*not 1"),
        ("x", lambda: Objects(["0", "1", "0"]), "of= names '0' twice; each once"),
        ("x", lambda: Objects("*", missing="ignore"), "missing= is"),
        (Field("x", take=[0]), lambda: Objects("*"), "takes datasets whole"),
        ("x", lambda: Objects("nothing/*"), r"Objects\('nothing/\*'\) matches no group"),
        ("x", lambda: Objects(["0", "9"]), r"'9', which Objects\(\[...\]\) names"),
        ("@mark", lambda: Objects("*", missing="fill"), r"Objects\('\*'\) matches .* no attributes or single values"),
    ],
)
def test_what_is_no_object_is_told(tmp_path, fields, samples, says):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["0/x"], file["0"].attrs["mark"], file["1/x"] = np.zeros(3), 1, np.zeros(3)
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(tmp_path / "a.h5", fields, samples=samples())


def test_links_that_lead_nowhere_are_counted(tmp_path, caplog):
    links = {"data/t4": h5py.SoftLink("/lost"), "data/t5": h5py.SoftLink("/gone")}
    write_datasets(tmp_path / "a.h5", **{f"data/t{k}": np.full(3, k) for k in range(4)}, **links)
    assert len(H5Dataset(tmp_path / "a.h5", ".", samples=Objects("data/*"))) == 4
    assert "the pattern matches 2 broken links, such as 'data/t4'" in caplog.text


def test_a_member_that_an_object_lacks_is_told_with_the_nearest(tmp_path):
    write_datasets(tmp_path / "a.h5", **{f"data/{k}/image": np.full(3, k) for k in range(3)})
    with pytest.raises(errors.FieldNotFoundError, match=r"in 'data/0'\. Did you mean 'image'\?.*begins inside the"):
        H5Dataset(tmp_path / "a.h5", "imgae", samples=Objects("data/*"))
    with pytest.raises(errors.FieldNotFoundError, match="Did you mean 'data/1'"):
        H5Dataset(tmp_path / "a.h5", "image", samples=Objects(["data/0", "data/1 "]))


def test_external_links_are_refused_among_objects(tmp_path):
    write_datasets(tmp_path / "b.h5", x=np.full(3, 7))
    links = {"data/t3": h5py.SoftLink("/over"), "over": h5py.ExternalLink("b.h5", "x")}
    write_datasets(tmp_path / "a.h5", **{f"data/t{k}": np.full(3, k) for k in range(3)}, **links)
    for of in ("data/*", [f"data/t{k}" for k in range(4)]):
        with pytest.raises(errors.ExternalDataError, match=r"external link to 'b\.h5'"):
            H5Dataset(tmp_path / "a.h5", ".", samples=Objects(of))
        dataset = H5Dataset(tmp_path / "a.h5", ".", samples=Objects(of), allow_external=True)
        assert dataset[:][:, 0].tolist() == [0, 1, 2, 7]


def test_files_that_are_samples_do_not_all_stay_open(tmp_path):
    for k in range(300):
        write_datasets(tmp_path / f"{k}.h5", x=np.full(3, k))
    with H5StreamLoader(f"{tmp_path}/*.h5", 30, shuffle=True, fields=["x"], samples=Objects("files")) as loader:
        before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
        for _ in range(2):
            assert sorted(int(x) for batch in loader for x in batch[0][:, 0]) == [*range(300)]
        assert not before or len(os.listdir("/proc/self/fd")) < before + 280


@pytest.mark.parametrize("field", ["x", Field("x", ragged="packed"), Field("x", ragged="arrays")])
def test_objects_that_lack_an_attribute_are_left_out_if_one_says_so(tmp_path, field):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(6):
            file[f"{k}/x"] = np.full(3, k)
            if k not in (0, 4):
                file[f"{k}"].attrs["label"] = k
            if k != 2:
                file[f"{k}/x"].attrs["unit"] = "mV"
    asked = {"x": field, "label": "@label", "unit": "x@unit"}
    dataset = H5Dataset(tmp_path / "a.h5", asked, samples=Objects("*", missing="skip"))
    assert dataset[:]["label"].tolist() == [1, 3, 5]
    assert [dataset[k]["x"].tolist() for k in range(3)] == [[1] * 3, [3] * 3, [5] * 3]
    for missing in ("error", "fill"):
        with pytest.raises(errors.FieldNotFoundError, match=r"'0' has no attribute 'label'"):
            H5Dataset(tmp_path / "a.h5", asked, samples=Objects("*", missing=missing))
    for wrong in ("@labels", "x@units"):
        with pytest.raises(errors.FieldNotFoundError, match=r"each of 6 objects lacks a field: .*has no attribute"):
            H5Dataset(tmp_path / "a.h5", {**asked, "label": wrong}, samples=Objects("*", missing="skip"))


@pytest.mark.parametrize("missing", ["fill", "skip"])
def test_an_object_in_another_file_is_none_that_is_missing(tmp_path, missing):
    write_datasets(tmp_path / "b.h5", x=np.full(3, 77.0))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(4):
            file[f"o/{k}/x"] = np.full(3, float(k))
        del file["o/1/x"], file["o/2/x"]
        file["o/1/x"] = h5py.ExternalLink("b.h5", "/x")
    samples = Objects("o/*", missing=missing)
    if missing == "skip":
        dataset = H5Dataset(tmp_path / "a.h5", "x", samples=samples, allow_external=True)
        assert dataset[:][:, 0].tolist() == [0, 77, 3]
    else:
        with pytest.raises(errors.FieldNotFoundError, match=r"no dataset 'o/2/x'.*fills datasets of objects that are"):
            H5Dataset(tmp_path / "a.h5", "x", samples=samples, allow_external=True)


@pytest.mark.parametrize("order", ["<", ">"])
def test_values_of_variable_length_have_their_own_byte_order_in_objects(tmp_path, order):
    items = np.array([1, 2], f"{order}i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(3):
            some, dtype = np.empty(1, object), h5py.vlen_dtype(items.dtype)
            some[0] = items * k
            file.create_dataset(f"{k}/one", (), dtype)[()] = items * k
            file.create_dataset(f"{k}/some", (1,), dtype)[0] = items * k
            file[f"{k}"].attrs.create("some", some, dtype=dtype)
    batch = H5Dataset(tmp_path / "a.h5", ["one", "some", "@some"], samples=Objects("*"))[:]
    assert batch[0].tolist() == [[0, 0], [1, 2], [2, 4]]
    assert [[one.tolist() for one in each] for each in batch[1]] == [[[0, 0]], [[1, 2]], [[2, 4]]]
    assert [[one.tolist() for one in each] for each in batch[2]] == [[[0, 0]], [[1, 2]], [[2, 4]]]
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["2/one"]
        file.create_dataset("2/one", (), h5py.vlen_dtype(items.dtype))[()] = items[:1]
    with pytest.raises(errors.FieldLengthError, match=r"'2/one' is int32 \(1,\), and that of the first"):
        H5Dataset(tmp_path / "a.h5", "one", samples=Objects("*"))


# --- shapes of their own -----------------------------------------------------------------------------------------


ARRAYS = Field("x", ragged="arrays")


@pytest.fixture
def path(tmp_path):
    """Groups whose arrays agree in nothing but their number of axes."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(5):
            file[f"data/{k}/x"] = np.random.default_rng(k).integers(0, 99, (3 + k, 4, 9 - k), "i2")
            file[f"data/{k}/y"], file[f"data/{k}/n"] = np.arange(3 + k), k
    return tmp_path / "a.h5"


def test_what_has_no_shape_of_its_own_is_refused_by_name(path):
    objects = Objects("data/*")
    with pytest.raises(errors.OptionError, match="whole arrays"):
        Field("x", ragged=Ragged("arrays", crop=Crop(3, at="start")))
    with pytest.raises(errors.OptionError, match="whole arrays"):
        Field("x", ragged="arrays", columns=[0, 1])
    for field, samples, kind, says in (
        (ARRAYS, Sequences(2, of="data/*"), errors.OptionError, "samples=Objects"),
        (Field("data/0/x", ragged="arrays"), None, errors.OptionError, "samples=Objects"),
        (Field("n", ragged="arrays"), objects, errors.UnsupportedFieldError, "single values"),
        (Field("x", ragged="list"), objects, errors.FieldLengthError, "ragged='arrays'"),
        ("x", Rows(of="data/*"), errors.FieldLengthError, "ragged='arrays'"),
    ):
        with pytest.raises(kind, match=says):
            H5Dataset(path, field, samples=samples)
    with h5py.File(path, "a") as file:
        del file["data/3/x"]
        file["data/3/x"] = np.zeros((2, 2), "i2")
    with pytest.raises(errors.FieldLengthError, match=r"2 axes in group 'data/3'.*3 in"):
        H5Dataset(path, ARRAYS, samples=objects)


def test_statistics_leave_them_out_and_say_so(path):
    dataset = H5Dataset(path, {"x": ARRAYS, "y": Field("y", ragged="arrays"), "n": "n"}, samples=Objects("data/*"))
    assert list(dataset.statistics()) == ["n"]
    with pytest.raises(errors.OptionError, match="shape of its own"):
        dataset.statistics("x")


def test_an_array_that_holds_nothing_is_told_with_the_way_out(tmp_path):
    write_datasets(tmp_path / "a.h5", **{"0/x": np.zeros((2, 3)), "1/x": np.zeros((0, 3))})
    with pytest.raises(errors.FieldLengthError, match=r"'1/x'.*\(0, 3\), without elements; .*Objects\(\[\.\.\.\]"):
        H5Dataset(tmp_path / "a.h5", Field("x", ragged="arrays"), samples=Objects("*"))
    kept = H5Dataset(tmp_path / "a.h5", Field("x", ragged="arrays"), samples=Objects(["0"]))
    assert kept[0].shape == (2, 3)


def test_what_objects_lack_is_not_looked_for_in_the_whole_file(tmp_path, monkeypatch):
    held = {f"d/{k}/x": np.full(3, k) for k in range(90) if k % 4 != 1}
    path = write_datasets(tmp_path / "a.h5", **held, **{f"d/{k}/n": k for k in range(90)})
    monkeypatch.delattr(discovery, "datasets_of")
    dataset = H5Dataset(path, ["x", "n"], samples=Objects("d/*", missing="fill"))
    assert all(x.tolist() == [n * (n % 4 != 1)] * 3 for x, n in (dataset[k] for k in range(90)))


def test_objects_that_are_named_have_as_many_axes(tmp_path):
    held = {"a": np.zeros((2, 3)), "b": np.zeros(3), "c": np.zeros((2, 3), "i4"), "t": ["x"], "d": np.zeros((0, 3))}
    write_datasets(tmp_path / "a.h5", **held)
    for names, kind, says in [
        (["a", "b"], errors.FieldLengthError, "'b' has 1 axis, and another object 2"),
        (["a", "c"], errors.FieldLengthError, "must agree"),
        (["t"], errors.UnsupportedFieldError, "takes numbers along axes"),
        (["d"], errors.FieldLengthError, "without elements"),
    ]:
        with pytest.raises(kind, match=says):
            H5Dataset(tmp_path / "a.h5", Field("{}", lookup=names, ragged="arrays"))
    with pytest.raises(errors.OptionError, match="without lookup= of rows"):
        Field("a", lookup=[0], ragged="arrays")


def test_what_lies_along_another_axis_looks_up_by_its_places(tmp_path):
    rng, values = np.random.default_rng(0), [np.random.default_rng(k).random((3, 8 + k)) for k in range(2)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, one in enumerate(values):
            file[f"g{k}/x"], file[f"g{k}/pick"] = one, rng.integers(0, 5, 8 + k)
            file[f"g{k}/key"] = rng.choice([b"u", b"v"], 8 + k)
            file[f"g{k}/table"], file[f"g{k}/counts"] = np.arange(5) + 10 * k, np.arange(8 + k) % 3
            file[f"g{k}/hits"] = np.arange(int((np.arange(8 + k) % 3).sum()))
        file["o/u"], file["o/v"] = np.arange(3), np.arange(3) + 5
    fields = {
        "x": "x",
        "looked": Field("table", lookup="pick"),
        "named": Field("/o/{}", lookup="key"),
        "hits": Field("hits", lookup=Lengths("counts"), ragged="list"),
    }
    for samples, steps in ((Rows(of="g*", axis=-1), 1), (Sequences(4, of="g*", axis=1, stride=2), 2)):
        dataset, k = H5Dataset(tmp_path / "a.h5", fields, samples=samples), 0
        with h5py.File(tmp_path / "a.h5") as file:
            for number, one in enumerate(values):
                group = file[f"g{number}"]
                ends = np.cumsum(group["counts"])
                for t in range(0, one.shape[1] - (3 if steps == 2 else 0), steps):
                    sample = dataset[k]
                    assert np.array_equal(sample["x"].numpy(), one[:, t] if steps == 1 else one[:, t : t + 4])
                    assert sample["looked"] == group["table"][group["pick"][t]]
                    assert sample["named"].tolist() == file[f"o/{group['key'][t].decode()}"][()].tolist()
                    assert sample["hits"].tolist() == group["hits"][ends[t] - group["counts"][t] : ends[t]].tolist()
                    k += 1
        assert k == len(dataset)


# --- objects with numbers in their names, which are rows ---------------------------------------------------------


LENGTHS = (12, 5, 30, *range(4, 11))
WALKS = Sequences(4, of="walk_*", pad="edge")


@pytest.fixture
def walks(tmp_path):
    """Walks of frames, each a few datasets of a group; some were never written."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "walks.h5", "w") as file:
        for walk, length in enumerate(LENGTHS):
            group = file.create_group(f"walk_{walk}")
            for t in rng.permutation(length).tolist():
                depth = group.create_dataset(
                    f"frame_{t}_depth", (6, 5), "f4", fillvalue=7, chunks=(4, 5), compression="gzip"
                )
                if t != 3:
                    depth[:] = rng.random((6, 5))
                group[f"steps/{t:03}/state"] = rng.integers(0, 99, 4).astype(">i2")
                group[f"frame_{t}_record"] = np.array([(t, t + 0.5)] * 2, [("a", "i4"), ("b", "f8")])
                group[f"frame_{t}_s"], group["frame_mean_depth"] = t, 0.0
                del group["frame_mean_depth"]
            group["frame_mean_depth"], group["time"] = np.zeros(3), np.arange(length)
    return tmp_path / "walks.h5"


def test_frames_are_rows_of_whatever_takes_rows(walks):
    every = [(walk, t) for walk, count in enumerate(LENGTHS) for t in range(count)]
    fields = {"state": Field("steps/{}/state", columns=[1, 3]), "record": "frame_{}_record:b", "time": "time"}
    with h5py.File(walks) as file:
        frames = [[file[f"walk_{walk}/frame_{t}_depth"][()] for t in range(n)] for walk, n in enumerate(LENGTHS)]
        states = [file[f"walk_{walk}/steps/{t:03}/state"][[1, 3]] for walk, t in every]
        records = [file[f"walk_{walk}/frame_{t}_record"]["b"] for walk, t in every]
    batch = H5Dataset(walks, fields, samples=Rows(of="walk_*"))[:]
    expected = {"state": states, "record": records, "time": [t for _, t in every]}
    assert all(np.array_equal(batch[name].numpy(), values) for name, values in expected.items())
    whole = H5Dataset(walks, {"x": Field("frame_{}_depth", ragged="list")}, samples=Objects("walk_*"))[:]["x"]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(whole, frames, strict=True))


@pytest.mark.parametrize(("chunks", "shape"), [(None, (4,)), ((3,), (4,)), (None, (3, 3)), ((2, 3), (3, 3))])
@pytest.mark.parametrize("samples", [Rows(of="walk_*"), Sequences(3, of="walk_*")])
def test_frames_of_many_walks_are_no_groups_of_rows_that_are_alike(tmp_path, samples, chunks, shape):
    walks = np.random.default_rng(1).integers(0, 99, (12, 4, *shape))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for walk, t in np.ndindex(12, 4):
            file.create_dataset(f"walk_{walk:02}/frame_{t}_x", data=walks[walk, t], chunks=chunks)
    frames = walks[:, np.arange(2)[:, None] + np.arange(3)] if isinstance(samples, Sequences) else walks
    assert np.array_equal(H5Dataset(tmp_path / "a.h5", "frame_{}_x", samples=samples)[:], np.concatenate(frames))


def test_an_attribute_that_is_no_number_is_shown_with_the_way_out(walks):
    with h5py.File(walks, "a") as file:
        for k, value in enumerate((1.5, "")):
            file[f"o/{k}"] = np.arange(3)
            file[f"o/{k}"].attrs["p"] = value
    with pytest.raises(
        errors.FieldLengthError, match=r"is text \(''\).* first object is float64 .*Objects\(\[.*Values"
    ):
        H5Dataset(walks, [".", "@p"], samples=Objects("o/*"))


def test_frames_of_other_files_and_encoded_ones_are_rows(walks, tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (30, 8, 6, 3), "u1")
    held = {f"rgb_{t}": np.frombuffer(imagecodecs.png_encode(image), "u1") for t, image in enumerate(images)}
    write_datasets(tmp_path / "frames.h5", **held, **{f"flow_{t}": np.full((2, 2), t) for t in range(30)})
    fields = {"image": Field("rgb_{}", decode="png"), "flow": "flow_{}"}
    batch = H5Dataset(tmp_path / "frames.h5", fields)[:]
    assert np.array_equal(batch["image"].numpy(), images)
    beside = {"depth": "walk_2/frame_{}_depth", "flow": Field("flow_{}", file=tmp_path / "frames.h5")}
    assert H5Dataset(walks, beside)[12]["flow"].tolist() == [[12, 12], [12, 12]]


@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [
        ((4, 6, 3), "u1", "Field(..., ragged='arrays') takes different shapes, and Objects([...]) takes only"),
        ((5, 5, 3), "u1", "Field(..., ragged='pad') takes different lengths, and Objects([...]) takes only"),
        ((4, 5), "u1", "objects must be alike. Objects([...]) takes only those that it names"),
        ((4, 5, 3), "f4", "objects must be alike. Objects([...]) takes only those that it names"),
    ],
)
def test_objects_in_files_that_are_unlike_are_named_with_a_way_out_that_works(tmp_path, shape, dtype, says):
    first = write_datasets(tmp_path / "a.h5", image=np.zeros((4, 5, 3), "u1"))
    other = write_datasets(tmp_path / "b.h5", image=np.zeros(shape, dtype))
    with pytest.raises(errors.FieldLengthError, match=re.escape(says)) as caught:
        H5Dataset([first, other], "image", samples=Objects("files"))
    assert all(repr(str(path)) in str(caught.value) for path in (first, other))
    if "ragged=" in says:
        form = "arrays" if "arrays" in says else "pad"
        assert len(H5Dataset([first, other], Field("image", ragged=form), samples=Objects("files"))) == 2


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("frame_{}_none", WALKS, errors.FieldNotFoundError, "nothing has a name such as 'walk_0/frame_0_none'"),
        ("frame_{}_s", WALKS, errors.UnsupportedFieldError, "is a single value.*write them as one dataset"),
        (["frame_{}_depth", "odd/{}"], None, errors.FieldNotFoundError, "nothing has a name"),
        (["walk_2/frame_{}_depth", "odd/{}"], None, errors.FieldLengthError, r"other numbers than those of 'walk_2/fr"),
        ("unlike/{}", None, errors.FieldLengthError, "objects must be alike"),
        ("texts/{}", None, errors.H5StreamError, "numbers"),
        (Field("frame_{}_depth", ragged="pad"), WALKS, errors.OptionError, "ragged= is for"),
        ("frame_{}_depth", Objects("walk_*"), errors.OptionError, r"with ragged= for Objects"),
        (Field("frame_{}_depth", take="all"), WALKS, errors.OptionError, "makes objects the rows"),
        ("frame_{}_depth", Sequences(2, of="walk_*", axis=1), errors.OptionError, "along axis 0"),
    ],
)
def test_what_makes_no_rows_is_refused_in_words(walks, fields, samples, kind, says):
    with h5py.File(walks, "a") as file:
        for t in range(30):
            file[f"odd/{2 * t}"], file[f"unlike/{t}"], file[f"texts/{t}"] = np.zeros(2), np.zeros(2 + t % 2), ["a", "b"]
    with pytest.raises(kind, match=says):
        H5Dataset(walks, fields, samples=samples)


def test_columns_of_texts_and_of_values_of_variable_length_of_an_object_are_refused_in_words(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(2):
            file[f"o/{k}/texts"] = ["a", "b"]
            lists = file.create_dataset(f"o/{k}/lists", (2, 2), h5py.vlen_dtype("i4"))
            lists[0, 1] = [k, 7]
    words = "columns= is not for .* a single value, or texts or values of variable length of an object"
    for name in ("texts", "lists"):
        with pytest.raises(errors.OptionError, match=words):
            H5Dataset(tmp_path / "a.h5", Field(name, columns=[0]), samples=Objects("o/*"))
    with pytest.raises(errors.OptionError, match=words):
        H5Dataset(tmp_path / "a.h5", Field("lists", columns=([0], [1])), samples=Objects("o/*"))
    dataset = H5Dataset(tmp_path / "a.h5", "lists", samples=Objects("o/*"))
    assert [one[0][1].tolist() for one in dataset] == [[0, 7], [1, 7]]
    dataset.close()


@pytest.mark.parametrize("names", [["/"], ["."], ["//"], [b"/"], np.array(["/"]), ["/", "d"], ["d", "/"]], ids=str)
def test_a_file_or_group_itself_is_an_object_whose_name_is_a_slash(tmp_path, names):
    held = {"y": np.arange(6), "d/y": np.arange(6) * 2, "g/y": np.arange(4), "g/d/y": np.arange(4) * 3}
    path = write_datasets(tmp_path / "a.h5", **held)
    wanted = ["d/y" if one == "d" else "y" for one in names]
    with h5py.File(path) as file:
        file_and_group = [(path, [held[one] for one in wanted]), (file["g"], [held[f"g/{one}"] for one in wanted])]
        for source, values in file_and_group:
            whole = H5Dataset(source, "y", samples=Objects(names))
            assert whole[:].tolist() == np.array(values).tolist()
            rows = H5Dataset(source, "y", samples=Rows(of=names))
            assert rows[:].tolist() == np.concatenate(values).tolist()
            pairs = H5Dataset(source, "y", samples=Sequences(2, of=names))
            assert pairs[:].tolist() == [[*pair] for one in values for pair in itertools.pairwise(one.tolist())]
            for one in (whole, rows, pairs):
                one.close()


@pytest.mark.parametrize("kind", [Objects, lambda of: Rows(of=of), lambda of: Sequences(2, of=of)])
def test_a_name_that_is_empty_is_refused(tmp_path, kind):
    path = write_datasets(tmp_path / "a.h5", y=np.arange(6))
    with pytest.raises(errors.OptionError, match=r"takes a pattern, or names of groups .*, not ''"):
        H5Dataset(path, "y", samples=kind([""]))

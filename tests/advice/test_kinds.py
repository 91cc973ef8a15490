"""What a file is, and that the lines of Python which `inspect` prints run as they are."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream.advice.inspection import inspect_file
from h5stream.advice.program import WIDTH, loader_lines, quoted

RNG = np.random.default_rng(0)


def run(lines, folder, monkeypatch):
    """Run printed lines as a program in a folder; give its variables."""
    monkeypatch.chdir(folder)
    scope = {}
    exec(compile("\n".join(lines), "<printed>", "exec"), scope)
    if "loader" in scope:
        scope["loader"].close()
    return scope


def make(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return str(path)


def kinds(found):
    return [kind.key for kind in found.kinds]


# --- samples that are rows --------------------------------------------------------------------------------


ROWS = {
    "groups": {"train__x": np.zeros((20, 3), "f4"), "train__y": np.arange(20), "info": np.arange(3)},
    "alike": {"a__x": np.zeros(20), "b__x": np.zeros(20), "n": np.arange(3)},
    "compound": {"X": np.zeros((9, 4)), "obs": np.zeros(9, [("label", "i1"), ("at", [("lat", "f4")])])},
    "words": {"class": np.arange(9), "for": np.arange(9), "loader": np.arange(9)},
    "many": {f"a rather long name of a column, {k}": np.arange(9) for k in "abcdefg"},
    "quotes": {'it\'s "x"': np.arange(9), "back\\slash": np.arange(9), "ünï": np.arange(9)},
    "strings": {"s": ["a", "bc", "d"] * 3, "x": np.arange(9)},
}


@pytest.mark.parametrize("name", ROWS)
def test_the_lines_stream_the_sample(name, tmp_path, monkeypatch):
    path = make(tmp_path / f"{name} o'file.h5", **ROWS[name])
    found = inspect_file(path)
    scope = run(found.lines, tmp_path, monkeypatch)
    assert scope["loader"].shuffle
    assert list(scope["loader"].dataset.layout.shape.keys) == list(found.sample.fields)


def test_the_options_that_were_given_are_in_the_lines(tmp_path, monkeypatch):
    path = make(tmp_path / "a.h5", x=np.zeros((200, 3), "f4"), y=np.arange(200))
    found = inspect_file(path, fields=["y"], batch_size=7, memory_budget=1 << 26, allow_external=True)
    loader = run(found.lines, tmp_path, monkeypatch)["loader"]
    assert (loader.batch_size, loader.memory_budget, loader.dataset.layout.allow_external) == (7, 1 << 26, True)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0:"), min_size=1, max_size=90)


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), st.lists(NAMES, min_size=1, max_size=9)
)
def test_lines_are_python_with_every_name_whole(path, fields):
    lines = loader_lines(path, fields, batch_size=8)
    compile("\n".join(lines), "<printed>", "exec")
    for name in [path, *fields]:
        assert any(quoted(name) in line for line in lines)
    for line in lines:
        assert len(line) <= WIDTH or any(quoted(name) in line for name in [path, *fields])


@given(st.text(st.characters(codec="utf-8")))
def test_a_quoted_text_is_that_text(text):
    assert eval(quoted(text)) == text


# --- samples that are not ---------------------------------------------------------------------------------


def test_a_sparse_matrix_beside_rows_does_not_hide_them(tmp_path):
    path = make(
        tmp_path / "a.h5", X=np.zeros((50, 30)), raw__data=np.ones(60), raw__indices=np.zeros(60, int),
        raw__indptr=np.arange(51),
    )  # fmt: skip
    found = inspect_file(path)
    assert found.sample.fields == ("X",)
    assert kinds(found) == ["sparse"]


@pytest.mark.parametrize("lengths", [[100] * 12, [*range(90, 102)]])
def test_datasets_that_no_pattern_names_are_named(lengths, tmp_path, monkeypatch):
    traces = {f"waves__trace_{k:03}": RNG.standard_normal((n, 3)).astype("f4") for k, n in enumerate(lengths)}
    path = make(tmp_path / "a.h5", **traces, waves__trace_about=np.arange(4))
    found = inspect_file(path)
    assert found.sample is None
    assert kinds(found) == ["dataset_a_sample"]
    assert len(found.kinds[0].datasets) == 12
    dataset = run(found.kinds[0].lines, tmp_path, monkeypatch)["loader"].dataset
    assert len(dataset) == 12
    for k, trace in enumerate(traces.values()):
        assert (dataset[k].numpy() == trace).all()


def episodes(**others):
    sizes = {k: 10 + k for k in range(5)}
    made = {
        f"data__demo_{k}__{name}": RNG.standard_normal((rows, *inner)).astype("f4")
        for k, rows in sizes.items()
        for name, inner in (("actions", (7,)), ("obs__image", (4, 4)))
    }
    return {**made, **{f"data__demo_{k}__goal": np.full(3, k, "f4") for k in sizes}, **others}


UNLIKE = {"actions": np.zeros((3, 8), "f4"), "obs__image": np.zeros((3, 4, 4), "f4"), "goal": np.zeros(3, "f4")}
EPISODES = {
    "all alike": ({"mask__train": np.array([b"demo_0"])}, '"data/demo_*"'),
    "others beside them": ({"data__mean__actions": np.zeros(7)}, '"data/demo_*"'),
    "of another shape": ({f"data__demo_9__{name}": values for name, values in UNLIKE.items()}, "groups"),
    "of less": ({"data__demo_9__goal": np.zeros(3, "f4")}, "groups"),
}


@pytest.mark.parametrize("name", EPISODES)
def test_groups_of_episodes_are_streamed_as_sequences(name, tmp_path, monkeypatch):
    others, of = EPISODES[name]
    made = episodes(**others)
    path = make(tmp_path / "a.h5", **made)
    with h5py.File(path, "a") as file:
        file.create_group("data/cache")
    found = inspect_file(path)
    (kind,) = found.kinds
    assert kind.key == "group_a_recording"
    assert "of 10 to 14 rows" in kind.what
    assert f"samples=Rows(of={of})" in kind.way_out
    assert found.sample is None
    ours = run(kind.lines, tmp_path, monkeypatch)["loader"].dataset[:]
    for key, name in (("actions", "actions"), ("obs/image", "obs__image")):
        assert (ours[key][:, 0] == np.concatenate([made[f"data__demo_{k}__{name}"] for k in range(5)])).all()
    assert (ours["goal"][:, 0] == np.repeat(np.arange(5), np.arange(10, 15))).all()


def matlab(path, **arrays):
    """Write arrays as MATLAB -v7.3 does: axes the other way round, and a class on each."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array.T
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
    return str(path)


def test_matlabs_axes_are_said_where_samples_lie_along_the_first(tmp_path, monkeypatch):
    found = inspect_file(matlab(tmp_path / "a.mat", images=np.zeros((8, 8, 30)), label=np.zeros((1, 30))))
    assert kinds(found) == ["matlab"]
    assert "A row here is images(:, :, i) in MATLAB" in found.kinds[0].way_out
    assert found.sample.rows == 30
    run(found.lines, tmp_path, monkeypatch)


def test_a_file_of_single_values_says_so(tmp_path, monkeypatch, capsys):
    found = inspect_file(make(tmp_path / "a.h5", a=3.5, b__c=2))
    assert (found.sample, kinds(found)) == (None, ["single_values"])
    run(found.kinds[0].lines, tmp_path, monkeypatch)
    assert capsys.readouterr().out == "3.5\n"


def test_the_index_of_a_pytables_table_is_no_sample(tmp_path):
    path = make(tmp_path / "a.h5", t__table=np.zeros(9, [("index", "i8")]), t___i_table__index__sorted=np.zeros(70_000))
    found = inspect_file(path)
    assert found.sample.fields == ("t/table",)
    assert kinds(found) == ["pytables"]


def test_a_dimension_of_netcdf_without_values_is_no_field(tmp_path):
    path = make(tmp_path / "a.h5", g__x=np.zeros((50, 2)), g__n=np.zeros(50))
    with h5py.File(path, "a") as file:
        file["g/n"].attrs["NAME"] = np.bytes_("This is a netCDF dimension but not a netCDF variable.        50")
    assert inspect_file(path).sample.fields == ("g/x",)

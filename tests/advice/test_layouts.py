"""Each layout that `inspect` knows is recognised, and the lines that it prints for it run as they are, and say it."""

import itertools
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from h5stream.advice.detectors import printed_of
from h5stream.advice.inspection import inspect_file
from h5stream.advice.program import WIDTH, loader_lines, quoted
from h5stream.cli.app import app

imagecodecs = pytest.importorskip("imagecodecs")
RNG = np.random.default_rng(0)
TEXT = h5py.string_dtype()


def image(k, kind="jpeg"):
    pixels = np.full((8, 8, 3), 10 * k % 250, np.uint8)
    return np.frombuffer(getattr(imagecodecs, f"{kind}_encode")(pixels), np.uint8)


def vlen_bytes(values):
    found = np.empty(len(values), object)
    found[:] = values
    return {"data": found, "dtype": h5py.vlen_dtype(np.uint8)}


def padded(values):
    found = np.zeros((len(values), max(map(len, values))), np.uint8)
    for row, value in zip(found, values, strict=True):
        row[: len(value)] = value
    return found


def csr(file, name, rows=40, width=30, kind="csr"):
    counts = RNG.integers(1, 5, rows if kind == "csr" else width)
    group = file.create_group(name)
    group["data"] = RNG.random(counts.sum()).astype("f4")
    group["indices"] = np.concatenate([np.sort(RNG.permutation(width if kind == "csr" else rows)[:n]) for n in counts])
    group["indptr"] = np.append(0, counts.cumsum())
    group.attrs.update({"encoding-type": f"{kind}_matrix", "shape": [rows, width]})


def traces(file, lengths):
    for k, n in enumerate(lengths):
        file[f"data/trace_{k}"] = np.full((n, 3), k, "f4")
        file[f"data/trace_{k}"].attrs.update({"p_arrival": n, "units": "m/s"})


def pairs(file):
    for k in range(12):
        file[f"sample_{k}/input"], file[f"sample_{k}/output"] = np.full((16, 8), k, "f4"), np.full((16, 4), k, "f4")
        file[f"sample_{k}"].attrs["class"] = k


def texts(file, lengths):
    for k, rows in enumerate(lengths):
        file[f"sample_{k}/input"], file[f"sample_{k}/text"] = np.full((rows, 8), k, "f4"), f"{k}"
        file[f"sample_{k}"].attrs["class"] = k


def lacking(file):
    """Write groups so many that only some are looked at, the last of which lack each another thing."""
    texts(file, [10 + k % 5 for k in range(300)])
    del file["sample_0/input"], file["sample_77/text"], file["sample_78"].attrs["class"]


def demos(file):
    for k in range(5):
        for name, shape in (("actions", (7,)), ("obs/image", (4, 4)), ("next_obs/image", (4, 4)), ("dones", ())):
            file[f"data/demo_{k}/{name}"] = np.full((20 + k, *shape), k, "f4")
    file["mask/train"] = [b"demo_0"]


def one_of_many_lacks(file):
    """Write groups so many that only some are looked at, and that one of the others lacks something."""
    for k in range(300):
        file[f"s_{k:03}/x"], file[f"s_{k:03}/y"] = np.full((4, 3), k, "f4"), np.full(5, k)
    del file["s_005/y"]


def trajectories(file):
    for k in range(4):
        file[f"traj_{k}/obs"], file[f"traj_{k}/act"] = np.full((31 + k, 3), k, "f4"), np.full((30 + k, 3), k, "f4")


def buffer(file, **said):
    of(observations=RNG.random((200, 5)), actions=RNG.random((200, 2)), **said)(file)


def events(file, **said):
    of(hits__charge=np.arange(100.0), hits__time=np.arange(100.0), label=np.arange(20) % 3, **said)(file)


def nwb(file):
    file.attrs["nwb_version"] = "2.6.0"
    file["acquisition/eeg/data"], file["acquisition/eeg/timestamps"] = RNG.random((500, 4)), np.arange(500.0)
    file["units/spike_times"] = np.sort(RNG.random(60))
    file["units/spike_times_index"], file["units/id"] = np.arange(6, 61, 6), np.arange(10)


PANDAS_FIXED = {
    **{f"frame__{name}": np.array([b"a", b"b"]) for name in ("axis0", "block0_items")},
    "frame__axis1": np.arange(50),
    "frame__block0_values": RNG.random((50, 2)),
}


def matlab(file, **shapes):
    for name, shape in (shapes or {"X": (5, 90), "y": (1, 90), "Z": (3, 4, 90)}).items():
        file[name] = RNG.random(shape)
        file[name].attrs["MATLAB_class"] = np.bytes_("double")


def anndata(file):
    file["X"] = RNG.random((40, 30)).astype("f4")
    file["obs/_index"] = np.array([f"c{k}" for k in range(40)], TEXT)
    file["obs/n_genes"] = np.arange(40)
    file["obs/cell_type/codes"], file["obs/cell_type/categories"] = np.arange(40) % 3, np.array(list("abc"), TEXT)
    file["obs/cell_type"].attrs["encoding-type"] = "categorical"
    file["var/_index"] = np.array([f"g{k}" for k in range(30)], TEXT)


def side_by_side(file, first="videos/", second="responses/", shape=(9, 4, 6)):
    for k in range(12):
        file[f"{first}{k}"], file[f"{second}{k}"] = np.full(shape, k, "u1"), np.full((9, 5), k, "f4")
    file["tiers"] = np.array(["train"] * 12, TEXT)


def volume(file):
    for name, dtype in (("raw", "f4"), ("label", "u1")):
        file.create_dataset(name, (12, 33, 33), dtype, chunks=(4, 10, 10))


def make_encoded(file, values, **others):
    if isinstance(values, dict):
        file.create_dataset("image", **values)
    else:
        file["image"] = values
    file["label"] = np.arange(len(file["image"]))


def of(**datasets):
    """Return what writes some datasets, with two underscores where their paths have a slash."""
    return lambda file: [file.create_dataset(name.replace("__", "/"), data=data) for name, data in datasets.items()]


def alike(path, value, count=9, **options):
    """Return what writes so many datasets of a path, each of a value of its number."""
    return lambda file: [file.create_dataset(path.format(k), data=value(k), **options) for k in range(count)]


JPEGS = [image(k) for k in range(12)]
PNGS = [image(k, kind="png") for k in range(12)]
LENGTHS = [10 + k for k in range(12)]

NAMED = {f"images__im_{k}": np.full((4, 4), k, "u1") for k in range(6)} | {
    "question__image_id": np.array([f"im_{k % 6}" for k in range(30)], TEXT),
    "question__answer": np.arange(30),
}

# By the kind: what writes the file, and what the lines have in them.
KINDS = {
    None: {
        "rows": (buffer, 'fields=["actions", "observations"]'),
        "vlen text": (lambda f: f.create_dataset("t", data=np.array(["a", "bc"] * 9, TEXT)), 'fields="t"'),
        "jpeg, vlen": (lambda f: make_encoded(f, vlen_bytes(JPEGS)), 'Field("image", decode="jpeg")'),
        "png, padded": (lambda f: make_encoded(f, padded(PNGS)), 'Field("image", decode="png")'),
        "jpeg, opaque": (
            lambda f: make_encoded(f, padded(JPEGS).view(f"V{padded(JPEGS).shape[1]}")[:, 0]),
            'Field("image", decode="jpeg")',
        ),
        "pytables, fixed": (of(**PANDAS_FIXED), '"frame/block0_values"'),
        "train and info": (
            of(train__x=np.zeros((20, 3), "f4"), train__y=np.arange(20), info=np.arange(3)),
            'fields="info"',
        ),
        "compound": (
            of(X=np.zeros((9, 4)), obs=np.zeros(9, [("label", "i1"), ("at", [("lat", "f4")])])),
            'fields=["X", "obs"]',
        ),
        "words": (of(**{name: np.arange(9) for name in ("class", "for", "loader")}), "for batch in loader:"),
    },
    "dataset_a_sample": {
        "datasets": (lambda f: traces(f, [10] * 12), 'Objects("data/trace_*") | "@p_arrival"'),
        "datasets, unlike": (lambda f: traces(f, LENGTHS), 'Field(".", ragged="pad") | Objects('),
        "recordings": (
            lambda f: [f.create_dataset(f"r{k}", (2_100_000 + k, 2), "f4", chunks=(9999, 2)) for k in range(9)],
            'Sequences(130000, stride=130000, of="*")',
        ),
        "datasets, very unlike along axis 1": (
            alike("ecg/{}", lambda k: RNG.random((2, 1 + 9 * k))),
            'Field(".", ragged="arrays") | Objects("ecg/*")',
        ),
        "datasets, unlike in two axes": (
            alike("im/{}", lambda k: RNG.random((5 + k, 50 + k))),
            'Field(".", ragged="arrays") | Objects("im/*")',
        ),
        "jpeg a dataset": (alike("im/{}.jpg", JPEGS.__getitem__), 'Field(".", decode="jpeg") | Objects("im/*")'),
        "void a dataset": (
            alike("im/{}", lambda k: np.void(PNGS[k].tobytes())),
            'Field(".", decode="png") | Objects("im/*")',
        ),
        "jpegs of classes": (
            lambda f: [f.create_dataset(f"n0{k % 3}/img_{k}.jpg", data=JPEGS[k % 12]) for k in range(30)],
            'Objects("*/img_*") | Field(".", decode="jpeg")',
        ),
    },
    "group_a_sample": {
        "groups": (pairs, 'Objects("sample_*") | "input": "input" | "@class"'),
        "groups, of which some lack something": (lacking, 'names = [ |     "text", | if "class" in f[one].attrs]'),
        "groups, unlike": (lambda f: texts(f, LENGTHS), 'Field("input", ragged="pad") | "text": "text"'),
        "groups, of which one that is not looked at lacks a field": (
            one_of_many_lacks,
            'Objects("s_*", missing="skip") | "x" | "y"',
        ),
    },
    "group_a_recording": {
        "demos": (demos, 'Sequences(16, of="data/demo_*", pad="edge") | "actions" | obs/image'),
        "trajectories": (trajectories, 'Sequences(16, of="traj_*", pad="edge", lengths="shortest") | "act" | "obs"'),
        "molecules": (
            lambda f: [
                alike("gdb/mol_{}/coordinates", lambda k: RNG.random((10 + k, 5, 3)), 4)(f),
                alike("gdb/mol_{}/energies", lambda k: RNG.random(10 + k), 4)(f),
                alike("gdb/mol_{}/species", lambda k: np.arange(5), 4)(f),
            ],
            'Rows(of="gdb/mol_*") | Field("species", take="all")',
        ),
        "groups at the root": (alike("{}/x", lambda k: np.full((k + 1, 2), k), 12), 'of="*"'),
    },
    "episodes": {
        "terminals": (
            lambda f: buffer(f, terminals=np.arange(200) % 50 == 49, timeouts=np.arange(200) % 70 == 69),
            'of=Ends("terminals", "timeouts") | "observations"',
        ),
        "episode ids": (lambda f: buffer(f, traj_id=np.arange(200) // 40), 'of=Ids("traj_id")'),
        "episode ends": (
            lambda f: buffer(f, meta__episode_ends=np.arange(50, 201, 50)),
            'of=Bounds("meta/episode_ends")',
        ),
        "episode lengths": (lambda f: buffer(f, episode_len=np.full(8, 25)), 'of=Lengths("episode_len")'),
    },
    "ragged": {
        "offsets": (lambda f: events(f, event_index=np.arange(0, 101, 5)), 'lookup=Bounds("event_index") | label'),
        "counts": (lambda f: events(f, n_hits=np.full(20, 5)), 'lookup=Lengths("n_hits")'),
        "first and last": (
            lambda f: events(f, hit_first=np.arange(0, 100, 5), hit_last=np.arange(4, 100, 5)),
            'lookup=Between("hit_first", "hit_last", inclusive=True) | label',
        ),
        "begins": (lambda f: events(f, hit_ends=np.arange(5, 101, 5)), 'lookup=Bounds("hit_ends")'),
    },
    "side_by_side": {
        "equal names": (side_by_side, 'Field("videos/{}", lookup=names) | Field("responses/{}", lookup=names)'),
        "pairs": (lambda f: side_by_side(f, "lr", "hr"), 'Field("lr{}", lookup=names) | name.removeprefix("hr")'),
        "pairs, numbered first": (
            lambda f: [alike(f"{{}}_{n}", lambda k: np.full((4 + k, 3), k), 12)(f) for n in ("x", "label")],
            'Field("{}_x", ragged="pad", lookup=names) | Field("{}_label" | name.removesuffix("_',
        ),
    },
    "sparse": {
        "csr": (lambda f: csr(f, "X"), 'Field("X", ragged="dense")'),
        "csr whose shape is a dataset": (
            lambda f: [csr(f, "m"), f["m"].attrs.clear(), f.create_dataset("m/shape", data=[40, 30])],
            'Field("m", ragged="dense")',
        ),
    },
    "sparse_columns": {"csc": (lambda f: csr(f, "X", kind="csc"), "argsort(indices")},
    "anndata": {"anndata, dense": (anndata, '"x": "X" | "obs/cell_type"')},
    "volume": {"volumes": (volume, 'Boxes((4, 10, 10), at="grid") | "raw" | "label"')},
    "flat": {"tokens": (lambda f: f.create_dataset("tokens", data=np.arange(5000)), "Sequences(128, stride=128)")},
    "nwb": {"nwb": (nwb, "Sequences(100) | acquisition/eeg/data")},
    "matlab_turned": {"matlab": (matlab, 'Rows(axis=-1) | "X" | "y" | "Z"')},
    "named": {"named": (of(**NAMED), 'Field("images/{}", lookup="question/image_id") | "question/answer"')},
}
LAYOUTS = {name: (make, key, has.split(" | ")) for key, kind in KINDS.items() for name, (make, has) in kind.items()}


def write(name, folder):
    return made(folder / f"{name} o'file.h5", LAYOUTS[name][0])


def made(path, make):
    with h5py.File(path, "w") as file:
        make(file)
    return str(path)


def run(lines, folder, monkeypatch):
    """Run printed lines as they are, to their first batch; give that."""
    monkeypatch.chdir(folder)
    scope = {}
    text = "\n".join(lines)
    assert text.count("    ...  # your training step") == 1
    exec(compile(text.replace("    ...  # your training step", "    break"), "<printed>", "exec"), scope)
    with scope["loader"] as loader:
        assert loader.shuffle
        return loader, next(iter(loader))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_recognised_and_its_lines_run(name, tmp_path, monkeypatch):
    _, key, has = LAYOUTS[name]
    found = inspect_file(write(name, tmp_path))
    kind = printed_of(found.kinds, found.sample is not None)
    lines = found.lines if key is None else kind.lines
    assert key is None or kind.key == key
    for text in has:
        assert text in "\n".join(lines), "\n".join(lines)
    loader, batch = run(lines, tmp_path, monkeypatch)
    assert key is not None or [*loader.dataset.layout.shape.keys] == [*found.sample.fields]
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list) else [batch]
    assert [*values]
    if key in (None, "sparse_columns") or name != next(iter(KINDS[key])):
        return
    if not kind.fields_text:
        assert "import h5py" in kind.lines
        return
    # The command that counts what it costs runs as it is printed.
    options = ["--fields", kind.fields_text, *(["--samples", kind.samples_text] if kind.samples_text else [])]
    done = CliRunner().invoke(app, ["inspect", found.file, *options, "--batch-size", "4"])
    assert done.exit_code == 0, done.exception
    assert "A shuffled batch of 4" in done.stdout


@pytest.mark.parametrize(("first", "second"), [("v{}/", "r{0}/"), ("v{}", "r{}"), ("x[/", "y*/")])
def test_names_that_mean_something_in_a_pattern_are_no_pattern(first, second, tmp_path, monkeypatch):
    found = inspect_file(made(tmp_path / "a.h5", lambda file: side_by_side(file, first, second)))
    run(printed_of(found.kinds, found.sample is not None).lines, tmp_path, monkeypatch)


def test_of_very_many_objects_some_are_looked_at(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "many.h5", "w", libver="latest") as file:
        for k in range(3000):
            file[f"data/trace_{k}"] = np.full(4 + k % 3, k, "f4")
        file["data/about"] = 3.0
    found = inspect_file(str(tmp_path / "many.h5"))
    (kind,) = found.kinds
    assert "holds 3,000 like datasets (4 to 6 float32" in kind.what
    assert 'Objects("data/trace_*")' in "\n".join(kind.lines)
    assert found.left_out == 3000 - len(kind.datasets) > 2900
    assert run(kind.lines, tmp_path, monkeypatch)[1].values.shape == (64, 6)


def test_what_the_loader_refuses_is_said_and_not_printed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(300):
            rows = 40 + k % 5 if k != 5 else 2  # of those that are not looked at
            file[f"traj_{k:03}/obs"] = np.zeros((rows, 3) if k != 5 else (rows, 4), "f4")
            file[f"traj_{k:03}/act"] = np.zeros((rows, 2), "f4")
    found = inspect_file(str(tmp_path / "a.h5"))
    (kind,) = found.kinds
    assert kind.what.endswith("each is an episode")
    assert kind.way_out.startswith("It cannot be streamed as it is: ")
    assert "'traj_005'" in kind.way_out
    assert (kind.lines, kind.fields_text, found.lines) == ((), "", ())
    shown = CliRunner().invoke(app, ["inspect", found.file])
    assert shown.exit_code == 0
    assert "H5StreamLoader(" not in shown.stdout


def test_a_matrix_of_columns_written_row_by_row_is_the_same(tmp_path, monkeypatch):
    path = write("csc", tmp_path)
    with h5py.File(path) as file:
        data, indices, indptr = (file[f"X/{name}"][:] for name in ("data", "indices", "indptr"))
    dense = torch.zeros(40, 30)
    for column, (first, last) in enumerate(itertools.pairwise(indptr)):
        dense[indices[first:last], column] = torch.tensor(data[first:last])
    scope = {}
    monkeypatch.chdir(tmp_path)
    (kind,) = inspect_file(path).kinds
    exec("\n".join(kind.lines), scope)
    assert torch.equal(scope["loader"].dataset[:], dense[: len(scope["loader"].dataset)])


# --- what else is said of files ------------------------------------------------------------------------------


def test_the_options_that_were_given_are_in_the_lines(tmp_path, monkeypatch):
    path = made(tmp_path / "a.h5", of(x=np.zeros((200, 3), "f4"), y=np.arange(200)))
    found = inspect_file(path, fields=["y"], batch_size=7, memory_budget=1 << 26, allow_external=True)
    loader, _ = run(found.lines, tmp_path, monkeypatch)
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
        assert eval(quoted(name)) == name
    for line in lines:
        assert len(line) <= WIDTH or any(quoted(name) in line for name in [path, *fields])


def test_a_sparse_matrix_beside_rows_does_not_hide_them(tmp_path):
    matrix = {"raw__data": np.ones(60), "raw__indices": np.zeros(60, int), "raw__indptr": np.arange(51)}
    found = inspect_file(made(tmp_path / "a.h5", of(X=np.zeros((50, 30)), **matrix)))
    assert found.sample.fields == ("X",)
    assert [kind.key for kind in found.kinds] == ["sparse"]


@pytest.mark.parametrize("lengths", [[100] * 12, [*range(90, 102)]])
def test_datasets_that_no_pattern_names_are_named(lengths, tmp_path, monkeypatch):
    traces = {f"waves__trace_{k:03}": RNG.standard_normal((n, 3)).astype("f4") for k, n in enumerate(lengths)}
    found = inspect_file(made(tmp_path / "a.h5", of(**traces, waves__trace_about=np.arange(4))))
    (kind,) = found.kinds
    assert (found.sample, kind.key, len(kind.datasets)) == (None, "dataset_a_sample", 12)
    dataset = run(kind.lines, tmp_path, monkeypatch)[0].dataset
    assert len(dataset) == 12
    for k, trace in enumerate(traces.values()):
        assert (dataset[k].numpy() == trace).all()


UNLIKE = {"actions": np.zeros((3, 8), "f4"), "obs__image": np.zeros((3, 4, 4), "f4"), "goal": np.zeros(3, "f4")}
EPISODES = {
    "all alike": ({"mask__train": np.array([b"demo_0"])}, '"data/demo_*"'),
    "others beside them": ({"data__mean__actions": np.zeros(7)}, '"data/demo_*"'),
    "of another shape": ({f"data__demo_9__{name}": values for name, values in UNLIKE.items()}, "groups"),
    "of less": ({"data__demo_9__goal": np.zeros(3, "f4")}, "groups"),
}


@pytest.mark.parametrize("name", EPISODES)
def test_groups_of_episodes_are_streamed_as_sequences(name, tmp_path, monkeypatch):
    others, which = EPISODES[name]
    held = {
        f"data__demo_{k}__{name}": RNG.standard_normal((10 + k, *inner)).astype("f4")
        for k in range(5)
        for name, inner in (("actions", (7,)), ("obs__image", (4, 4)))
    }
    goals = {f"data__demo_{k}__goal": np.full(3, k, "f4") for k in range(5)}
    path = made(tmp_path / "a.h5", of(**held, **goals, **others))
    with h5py.File(path, "a") as file:
        file.create_group("data/cache")
    found = inspect_file(path)
    (kind,) = found.kinds
    assert (found.sample, kind.key) == (None, "group_a_recording")
    assert "of 10 to 14 rows" in kind.what
    assert f"samples=Rows(of={which})" in kind.way_out
    ours = run(kind.lines, tmp_path, monkeypatch)[0].dataset[:]
    for name in ("actions", "obs/image"):
        every = [held[f"data__demo_{k}__{name.replace('/', '__')}"] for k in range(5)]
        assert (ours[name][:, 0] == np.concatenate(every)).all()
    assert (ours["goal"][:, 0] == np.repeat(np.arange(5), np.arange(10, 15))).all()


def test_matlabs_axes_are_said_where_samples_lie_along_the_first(tmp_path, monkeypatch):
    path = made(tmp_path / "a.mat", lambda file: matlab(file, images=(30, 8, 8), label=(30, 1)))
    found = inspect_file(path)
    (kind,) = found.kinds
    assert (kind.key, found.sample.rows) == ("matlab", 30)
    assert "A row here is images(:, :, i) in MATLAB" in kind.way_out
    run(found.lines, tmp_path, monkeypatch)


def test_a_file_of_single_values_says_so(tmp_path, monkeypatch, capsys):
    found = inspect_file(made(tmp_path / "a.h5", of(a=3.5, b__c=2)))
    (kind,) = found.kinds
    assert (found.sample, kind.key) == (None, "single_values")
    monkeypatch.chdir(tmp_path)
    exec("\n".join(kind.lines), {})
    assert capsys.readouterr().out == "3.5\n"


def test_indexes_of_pytables_and_dimensions_of_netcdf_without_values_are_no_samples(tmp_path):
    index = {"t__table": np.zeros(9, [("index", "i8")]), "t___i_table__index__sorted": np.zeros(70_000)}
    found = inspect_file(made(tmp_path / "a.h5", of(**index)))
    assert found.sample.fields == ("t/table",)
    assert [kind.key for kind in found.kinds] == ["pytables"]
    path = made(tmp_path / "b.h5", of(g__x=np.zeros((50, 2)), g__n=np.zeros(50)))
    with h5py.File(path, "a") as file:
        file["g/n"].attrs["NAME"] = np.bytes_("This is a netCDF dimension but not a netCDF variable.        50")
    assert inspect_file(path).sample.fields == ("g/x",)


def slices(file, k):
    file["image"], file["label"] = np.full((8, 8), k, "f4"), np.full((8, 8), k, "u1")


def utterance(file, k):
    file["wave"], file.attrs["speaker"] = np.full(20 + k, k, "f4"), f"s{k}"


FILES = {
    "a file a sample": (slices, ['samples=Objects("files")', '"image": "image"']),
    "a file an utterance": (utterance, ['samples=Objects("files")', 'Field("wave", ragged="pad")', '"@speaker"']),
}


@pytest.mark.parametrize(("name", "given"), [*((name, "/*.hdf5") for name in FILES), ("a file a sample", "")])
def test_files_that_hold_the_same_are_recognised(name, given, tmp_path, monkeypatch):
    make, has = FILES[name]
    (tmp_path / "in").mkdir()
    for k in range(40):
        with h5py.File(tmp_path / "in" / f"{k}.hdf5", "w") as file:
            make(file, k)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["inspect", f"in{given}"]).stdout
    assert "40 files" in shown.splitlines()[0]
    assert "The pattern holds 40 like files" in shown
    assert shown.count("from h5stream import") == 1
    lines = [line.removeprefix("    ") for line in shown.splitlines()]
    lines = lines[lines.index(next(line for line in lines if line.startswith("from h5stream"))) :]
    lines = lines[: lines.index("    ...  # your training step") + 1]
    for text in has:
        assert text in "\n".join(lines), "\n".join(lines)
    run(lines, tmp_path, monkeypatch)


REAL = Path(os.environ.get("H5STREAM_CORPUS", Path(__file__).resolve().parents[3] / "shared" / "corpus")) / "real"
CORPUS = {
    "10x_filtered_feature_bc_matrix.h5": ("sparse", 'Field("matrix", ragged="dense")'),
    "hg19.2000kb.cool": ("ragged", 'lookup=Bounds("indexes/bin1_offset")'),
    "nilmtk_energy.h5": ("group_a_recording", 'Rows(of="building1/elec/meter*")'),
    "pbmc68k_reduced.h5ad": ("anndata", '"obs:bulk_labels"'),
    "stead_waveforms.hdf5": ("dataset_a_sample", 'samples=Objects("earthquake/local/*")'),
}


@pytest.mark.corpus
@pytest.mark.skipif(not REAL.is_dir(), reason=f"the corpus of real files is not at {REAL}")
def test_what_is_printed_for_real_files_runs(tmp_path, monkeypatch):
    for path in sorted(REAL.iterdir()):
        found = inspect_file(str(path))
        kind = printed_of(found.kinds, found.sample is not None)
        assert found.lines or kind, path
        for lines in filter(None, [found.lines, kind and kind.lines]):
            run(lines, tmp_path, monkeypatch)
        if path.name in CORPUS:
            key, text = CORPUS[path.name]
            assert kind.key == key
            assert text in "\n".join(kind.lines)

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
from support.commands import printed

from h5stream import Field, H5Dataset, Objects, Rows
from h5stream.advice.inspection import inspect_file, inspect_files, printed_of
from h5stream.advice.program import WIDTH, loader_lines, quoted

pytest.importorskip("imagecodecs")
import imagecodecs
from support.layouts import cells, chunked, each, files, i, sparse, texts, write
from support.making import vlen

RNG = np.random.default_rng(0)
TEXT = h5py.string_dtype()


def image(k, kind="jpeg"):
    pixels = np.full((8, 8, 3), 10 * k % 250, np.uint8)
    return np.frombuffer(getattr(imagecodecs, f"{kind}_encode")(pixels), np.uint8)


def without(held, *paths):
    return {path: value for path, value in held.items() if path not in paths}


def matlab(**shapes):
    return shapes | {f"{name}@MATLAB_class": np.bytes_("double") for name in shapes}


def side_by_side(first, second):
    ours = {f"{first}{k}": (9, 4, 6) for k in range(12)}
    return ours | {f"{second}{k}": (9, 5) for k in range(12)} | {"tiers": [b"train"] * 12}


JPEGS = [image(k) for k in range(12)]
PADDED = np.array([one.tobytes() for one in JPEGS])
UNLIKE = {"input": lambda k: (10 + k % 5, 8), "text": lambda k: f"{k}", "@class": lambda k: k}
MOLECULE = {"coordinates": lambda k: (10 + k, 5, 3), "energies": lambda k: (10 + k,), "species": np.arange(5)}
BUFFER = {"observations": (200, 5), "actions": (200, 2)}
EVENTS = {"hits/charge": (100,), "hits/time": (100,), "label": i(20, most=3)}
NWB = {"@nwb_version": "2.6.0", "acquisition/eeg/data": (500, 4), "acquisition/eeg/timestamps": np.arange(500.0)}
NWB |= {"units/spike_times": np.sort(RNG.random(60)), "units/spike_times_index": np.arange(6, 61, 6)}
NWB |= {"units/id": np.arange(10)}
PANDAS_FIXED = {f"frame/{name}": [b"a", b"b"] for name in ("axis0", "block0_items")}
PANDAS_FIXED |= {"frame/axis1": np.arange(50), "frame/block0_values": (50, 2)}
ANNDATA = {name: value for name, value in cells(40, 30).items() if not name.startswith("X")}
ANNDATA |= {"X": (40, 30), "obs/_index": texts(40), "obs/n_genes": np.arange(40)}
VOLUME = chunked(12, 33, 33, chunks=(4, 10, 10))
NAMED = {
    **each("images/im_{}", 6, {"": (4, 4)}),
    "question/image_id": np.array([f"im_{k % 6}" for k in range(30)], TEXT),
    "question/answer": np.arange(30),
}

# By the kind: what the file holds, as in layouts.py, and what the lines have in them.
KINDS = {
    None: {
        "vlen text": ({"t": {"data": ["a", "bc"] * 9, "dtype": TEXT}}, 'fields="t"'),
        "jpeg, vlen": ({"image": vlen("u1", JPEGS), "label": np.arange(12)}, 'Field("image", decode="jpeg")'),
        "jpeg, opaque": ({"image": PADDED.view(f"V{PADDED.itemsize}"), "label": np.arange(12)}, 'decode="jpeg"'),
        "pytables, fixed": (PANDAS_FIXED, '"frame/block0_values"'),
        "train and info": ({"train/x": (20, 3), "train/y": np.arange(20), "info": np.arange(3)}, 'fields="info"'),
        "compound": ({"X": (9, 4), "obs": np.zeros(9, [("label", "i1"), ("at", [("lat", "f4")])])}, '["X", "obs"]'),
        "words": ({name: np.arange(9) for name in ("class", "for", "loader")}, "for batch in loader:"),
    },
    "dataset_a_sample": {
        "void a dataset": (
            each("im/{}", 9, {"": lambda k: np.void(image(k, "png").tobytes())}),
            'Field(".", decode="png") | Objects("im/*")',
        ),
        "recordings": (
            each("r{}", 9, {"": lambda k: chunked(2_100_000 + k, 2, chunks=(9999, 2))}),
            'Sequences(130000, stride=130000, of="*")',
        ),
    },
    "group_a_sample": {
        "groups": (
            each("sample_{}", 12, {"input": (16, 8), "output": (16, 4), "@class": lambda k: k}),
            'Objects("sample_*") | "input": "input" | "@class"',
        ),
        # So many that only some are looked at, the last of which lack each another thing.
        "groups, of which some lack something": (
            without(each("sample_{}", 300, UNLIKE), "sample_0/input", "sample_77/text", "sample_78@class"),
            'names = [ |     "text", | and "class" in one.attrs',
        ),
        "groups, of which one that is not looked at lacks a field": (
            without(each("s_{:03}", 300, {"x": (4, 3), "y": (5,)}), "s_005/y"),
            'Objects("s_*", missing="skip") | "x" | "y"',
        ),
    },
    "group_a_recording": {
        "molecules": (each("gdb/mol_{}", 4, MOLECULE), 'Rows(of="gdb/mol_*") | Field("species", take="all")'),
    },
    "episodes": {
        "terminals": (
            BUFFER | {"terminals": np.arange(200) % 50 == 49, "timeouts": np.arange(200) % 70 == 69},
            'of=Ends("terminals", "timeouts") | "observations"',
        ),
        "episode ids": (BUFFER | {"traj_id": np.arange(200) // 40}, 'of=Ids("traj_id")'),
        "episode ends": (BUFFER | {"meta/episode_ends": np.arange(50, 201, 50)}, 'of=Bounds("meta/episode_ends")'),
        "episode lengths": (BUFFER | {"episode_len": np.full(8, 25)}, 'of=Lengths("episode_len")'),
    },
    "ragged": {
        "counts": (EVENTS | {"n_hits": np.full(20, 5)}, 'lookup=Lengths("n_hits")'),
        "first and last": (
            EVENTS | {"hit_first": np.arange(0, 100, 5), "hit_last": np.arange(4, 100, 5)},
            'lookup=Between("hit_first", "hit_last", inclusive=True) | label',
        ),
        "begins": (EVENTS | {"hit_ends": np.arange(5, 101, 5)}, 'lookup=Bounds("hit_ends")'),
    },
    "side_by_side": {
        "pairs, numbered first": (
            {f"{k}_{name}": (4 + k, 3) for k in range(12) for name in ("x", "label")},
            'Field("{}_x", ragged="pad", lookup=names) | Field("{}_label" | name.removesuffix("_',
        ),
    },
    "sparse": {
        "csr whose shape is a dataset": (
            without(sparse(40, 30), "X@encoding-type", "X@shape") | {"X/shape": [40, 30]},
            'Field("X", ragged="dense")',
        ),
    },
    "sparse_columns": {"csc": (sparse(40, 30, "csc"), "argsort(indices")},
    "anndata": {"anndata, dense": (ANNDATA, '"x": "X" | "obs/cell_type"')},
    "volume": {"volumes": (dict.fromkeys(["raw", "label"], VOLUME), 'Boxes((4, 10, 10), at="grid") | "raw" | "label"')},
    "flat": {"tokens": ({"tokens": np.arange(5000)}, "Sequences(128, stride=128)")},
    "nwb": {"nwb": (NWB, "Sequences(100) | acquisition/eeg/data")},
    "matlab_turned": {"matlab": (matlab(X=(5, 90), y=(1, 90), Z=(3, 4, 90)), 'Rows(axis=-1) | "X" | "y" | "Z"')},
    "named": {"named": (NAMED, 'Field("images/{}", lookup="question/image_id") | "question/answer"')},
}
LAYOUTS = {name: (held, key, has.split(" | ")) for key, kind in KINDS.items() for name, (held, has) in kind.items()}


def made(path, held):
    """Write a file of what is held; give its path."""
    write(path.parent, {path.name: held})
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
    held, key, has = LAYOUTS[name]
    found = inspect_file(made(tmp_path / f"{name} o'file.h5", held))
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
    assert "A shuffled batch of 4" in printed("inspect", found.file, *options, "--batch-size", "4")


@pytest.mark.parametrize(("first", "second"), [("v{}/", "r{0}/"), ("v{}", "r{}"), ("x[/", "y*/")])
def test_names_that_mean_something_in_a_pattern_are_no_pattern(first, second, tmp_path, monkeypatch):
    found = inspect_file(made(tmp_path / "a.h5", side_by_side(first, second)))
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


@pytest.mark.parametrize("trials", [[3, 5, 8, 4], [4, 4, 4, 4]])
def test_trials_in_the_groups_of_patients_are_samples_and_none_is_left_out(tmp_path, trials):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for patient, count in enumerate(trials):
            for trial in range(count):
                group = file.create_group(f"patient_{patient}/trial_{trial}")
                group["eeg"], group.attrs["label"] = np.zeros((200 + 9 * trial, 8), "f4"), trial
    (kind,) = inspect_file(str(tmp_path / "a.h5")).kinds
    assert f"{sum(trials)} like groups" in kind.what
    assert 'Objects("patient_*/trial_*")' in "\n".join(kind.lines)


def test_what_the_loader_refuses_is_said_and_not_printed(tmp_path):
    held = each("traj_{:03}", 300, {"obs": lambda k: (40 + k % 5, 3), "act": lambda k: (40 + k % 5, 2)})
    odd = {"traj_005/obs": (2, 4), "traj_005/act": (2, 2)}  # of those that are not looked at
    found = inspect_file(made(tmp_path / "a.h5", held | odd))
    (kind,) = found.kinds
    assert kind.what.endswith("each is an episode")
    assert kind.way_out.startswith("It cannot be streamed as it is: ")
    assert "'traj_005'" in kind.way_out
    assert (kind.lines, kind.fields_text, found.lines) == ((), "", ())
    shown = printed("inspect", found.file)
    assert "H5StreamLoader(" not in shown
    assert "Advice" not in shown


def test_a_matrix_of_columns_written_row_by_row_is_the_same(tmp_path, monkeypatch):
    path = made(tmp_path / "a.h5", sparse(40, 30, "csc"))
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
    path = made(tmp_path / "a.h5", {"x": (200, 3), "y": np.arange(200)})
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
    matrix = {"raw/data": np.ones(60), "raw/indices": np.zeros(60, int), "raw/indptr": np.arange(51)}
    found = inspect_file(made(tmp_path / "a.h5", {"X": (50, 30), **matrix}))
    assert found.sample.fields == ("X",)
    assert [kind.key for kind in found.kinds] == ["sparse"]


def test_matrices_of_several_files_are_no_fields_of_one_another(tmp_path, monkeypatch):
    first = made(tmp_path / "first.h5ad", cells(40, 30))
    second = made(tmp_path / "other.h5ad", cells(60, 30) | {"obsm/X_pca": (60, 5)})
    found = inspect_files([str(first), str(second)])
    together = printed_of(found[0].kinds, has_rows=False)
    loader, _ = run(together.lines, tmp_path, monkeypatch)
    assert len(loader.dataset) in (40, 100)
    assert not any("X/data" in line or "X/indices" in line for line in together.lines)


def test_columns_that_are_turned_to_rows_keep_rows_of_nothing_and_their_labels(tmp_path, monkeypatch):
    matrix = np.zeros((12, 5), "f4")
    matrix[2], matrix[7, 1] = range(5), 3
    rows, columns = matrix.T.nonzero()[1], matrix.T.nonzero()[0]
    held = {"X/data": matrix[rows, columns], "X/indices": rows, "X/indptr": np.searchsorted(columns, np.arange(6))}
    held |= {"X@encoding-type": "csc_matrix", "X@shape": np.array([12, 5]), "obs/label": np.arange(12)}
    (kind,) = inspect_file(made(tmp_path / "a.h5ad", held)).kinds
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec("\n".join(kind.lines), scope)
    with scope["loader"] as loader:
        x, label = next(iter(loader))
    assert (x[label.argsort()].numpy() == matrix).all()


def test_columns_of_a_loom_file_are_its_cells(tmp_path, monkeypatch):
    held = {"matrix": (6, 40), "row_attrs/Gene": texts(6), "col_attrs/CellID": texts(40)}
    found = inspect_file(made(tmp_path / "a.h5", held | {"col_attrs/Cluster": np.arange(40)}))
    (kind,) = found.kinds
    loader, batch = run(kind.lines, tmp_path, monkeypatch)
    assert (kind.key, len(loader.dataset), batch["x"].shape[1]) == ("loom", 40, 6)


def test_hits_of_events_are_a_matrix_for_each(tmp_path, monkeypatch):
    hits = np.zeros(100, [("id", "i4"), ("t", "f4"), ("q", "f4"), ("kind", "S2")])
    hits["t"], offsets = np.arange(100), np.arange(0, 101, 10)
    held = {"hits": hits, "offsets": offsets, "energy": np.arange(10.0)}
    (kind,) = inspect_file(made(tmp_path / "a.h5", held)).kinds
    loader, _ = run(kind.lines, tmp_path, monkeypatch)
    assert len(loader.dataset) == 10
    assert any('Field("hits", columns=["t", "q"], lookup=Bounds("offsets"))' in line for line in kind.lines)


def test_datasets_that_no_pattern_names_are_named(tmp_path, monkeypatch):
    traces = {f"waves/trace_{k:03}": RNG.standard_normal((90 + k, 3)).astype("f4") for k in range(12)}
    found = inspect_file(made(tmp_path / "a.h5", traces | {"waves/trace_about": np.arange(4)}))
    (kind,) = found.kinds
    assert (found.sample, kind.key, len(kind.datasets)) == (None, "dataset_a_sample", 12)
    dataset = run(kind.lines, tmp_path, monkeypatch)[0].dataset
    assert len(dataset) == 12
    for k, trace in enumerate(traces.values()):
        assert (dataset[k].numpy() == trace).all()


GOAL = {"data/demo_9/goal": (3,)}
EPISODES = {
    "all alike": ({"mask/train": [b"demo_0"]}, '"data/demo_*"'),
    "others beside them": ({"data/mean/actions": np.zeros(7)}, '"data/demo_*"'),
    "of another shape": ({"data/demo_9/actions": (3, 8), "data/demo_9/obs/image": (3, 4, 4), **GOAL}, "groups"),
    "of less": (GOAL, "groups"),
}


@pytest.mark.parametrize("name", EPISODES)
def test_groups_of_episodes_are_streamed_as_sequences(name, tmp_path, monkeypatch):
    others, which = EPISODES[name]
    held = {
        f"data/demo_{k}/{name}": RNG.standard_normal((10 + k, *inner)).astype("f4")
        for k in range(5)
        for name, inner in (("actions", (7,)), ("obs/image", (4, 4)))
    }
    goals = each("data/demo_{}", 5, {"goal": lambda k: np.full(3, k, "f4")})
    path = made(tmp_path / "a.h5", held | goals | others)
    with h5py.File(path, "a") as file:
        file.create_group("data/cache")
    found = inspect_file(path)
    (kind,) = found.kinds
    assert (found.sample, kind.key) == (None, "group_a_recording")
    assert "of 10 to 14 rows" in kind.what
    assert f"samples=Rows(of={which})" in kind.way_out
    ours = run(kind.lines, tmp_path, monkeypatch)[0].dataset[:]
    for name in ("actions", "obs/image"):
        every = [held[f"data/demo_{k}/{name}"] for k in range(5)]
        assert (ours[name][:, 0] == np.concatenate(every)).all()
    assert (ours["goal"][:, 0] == np.repeat(np.arange(5), np.arange(10, 15))).all()


def test_matlabs_axes_are_said_where_samples_lie_along_the_first(tmp_path, monkeypatch):
    found = inspect_file(made(tmp_path / "a.h5", matlab(images=(30, 8, 8), label=(30, 1))))
    (kind,) = found.kinds
    assert (kind.key, found.sample.rows) == ("matlab", 30)
    assert "A row here is images(:, :, i) in MATLAB" in kind.way_out
    run(found.lines, tmp_path, monkeypatch)


def test_a_file_of_single_values_says_so(tmp_path, monkeypatch, capsys):
    found = inspect_file(made(tmp_path / "a.h5", {"a": 3.5, "b/c": 2}))
    (kind,) = found.kinds
    assert (found.sample, found.advice, kind.key) == (None, (), "single_values")
    assert found.no_sample == "no dataset here has rows that can be streamed"
    monkeypatch.chdir(tmp_path)
    exec("\n".join(kind.lines), {})
    assert capsys.readouterr().out == "3.5\n"


def test_indexes_of_pytables_and_dimensions_of_netcdf_without_values_are_no_samples(tmp_path):
    index = {"t/table": np.zeros(9, [("index", "i8")]), "t/_i_table/index/sorted": np.zeros(70_000)}
    found = inspect_file(made(tmp_path / "a.h5", index))
    assert found.sample.fields == ("t/table",)
    assert [kind.key for kind in found.kinds] == ["pytables"]
    said = np.bytes_("This is a netCDF dimension but not a netCDF variable.        50")
    found = inspect_file(made(tmp_path / "b.h5", {"g/x": (50, 2), "g/n": (50,), "g/n@NAME": said}))
    assert found.sample.fields == ("g/x",)


@pytest.mark.parametrize("given", ["/*.hdf5", ""])
def test_files_that_hold_the_same_are_recognised(given, tmp_path, monkeypatch):
    write(tmp_path, files("in/{}.hdf5", 40, lambda k: {"wave": (20 + k,), "@speaker": f"s{k}"}))
    monkeypatch.chdir(tmp_path)
    shown = printed("inspect", f"in{given}", width=80)
    assert "40 files" in shown.splitlines()[0]
    assert "The pattern holds 40 like files" in shown
    assert shown.count("from h5stream import") == 1
    lines = shown.splitlines()
    lines = lines[lines.index(next(line for line in lines if line.startswith("from h5stream"))) :]
    lines = lines[: lines.index("    ...  # your training step") + 1]
    for text in ('samples=Objects("files")', 'Field("wave", ragged="pad")', '"@speaker"'):
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
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in turns", "all"])
def test_what_is_printed_for_real_files_runs(tmp_path, monkeypatch, whole):
    """By default those whose layout is named above, and every third of the others."""
    files = sorted(REAL.iterdir())
    others = [path for path in files if path.name not in CORPUS]
    for path in files if whole else [*map(REAL.joinpath, CORPUS), *others[::3]]:
        found = inspect_file(str(path))
        kind = printed_of(found.kinds, found.sample is not None)
        assert found.lines or kind, path
        for lines in filter(None, [found.lines, kind and kind.lines]):
            run(lines, tmp_path, monkeypatch)
        if path.name in CORPUS:
            key, text = CORPUS[path.name]
            assert kind.key == key
            assert text in "\n".join(kind.lines)


# --- of layouts that were told falsely, or that hid what can be streamed ------------------------------------------


def _inspected(path, write):
    with h5py.File(path, "w") as file:
        write(file)
    return inspect_file(str(path))


def _printed(found):
    kind = printed_of(found.kinds, bool(found.lines))
    return "\n".join(found.lines or (kind.lines if kind else ()))


def test_pairs_of_events_and_hits_hide_no_table(tmp_path):
    def write(file):
        counts = np.arange(20) % 5 + 1
        file["hits"] = np.zeros(counts.sum(), [("id", "u4"), ("x", "f8")])
        file["events"] = np.zeros(20, [("id", "u4"), ("n", "u4")])
        file["ref"] = np.stack([np.repeat(np.arange(20), counts), np.arange(counts.sum())], 1)

    found = _inspected(tmp_path / "a.h5", write)
    assert found.sample.rows == 60
    assert not any("says which rows of" in kind.what for kind in found.kinds)


def test_edges_between_nodes_are_no_stretches(tmp_path):
    def write(file):
        file["tracks"], file["edges"] = np.zeros((300, 4)), np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
        file["nodes"] = np.arange(5.0)

    assert not any(kind.key == "ragged" for kind in _inspected(tmp_path / "a.h5", write).kinds)


def test_stretches_that_follow_one_another_are_found(tmp_path):
    def write(file):
        file["values"], file["ends"] = np.zeros((10, 4)), np.array([[0, 3], [3, 5], [5, 10]])

    assert "Between(said_ends[:, 0], said_ends[:, 1])" in _printed(_inspected(tmp_path / "a.h5", write))


def test_conformations_of_molecules_are_all_read(tmp_path):
    def write(file):
        for m in range(6):
            for c in range(3):
                group = file.create_group(f"{m + 1}/Geom-m{m + 1}-c{c + 1}")
                group["z"], group["r"], group["energy"] = np.arange(4 + m), np.zeros((4 + m, 3)), np.array([1.0 * c])

    found = _inspected(tmp_path / "a.h5", write)
    assert 'samples=Objects("*/*")' in _printed(found)
    (kind,) = found.kinds
    assert [way.samples for way in kind.recipes] == ['Objects("*/*")', 'Rows(of="*/*")']
    assert len(H5Dataset(str(tmp_path / "a.h5"), "energy", samples=Objects("*/*"))) == 18


def test_links_to_other_files_are_named_with_what_reads_them(tmp_path):
    def write(file):
        for k in range(3):
            with h5py.File(tmp_path / f"data_{k}.h5", "w") as other:
                other["entry/data"] = np.zeros((10, 6, 7), "u4")
            file[f"data_{k:06d}"] = h5py.ExternalLink(f"data_{k}.h5", "/entry/data")
        file["angle"] = np.arange(30.0)

    found = _inspected(tmp_path / "master.h5", write)
    (kind,) = (one for one in found.kinds if one.key == "links")
    assert kind.what == "3 links lead to other files, such as 'data_000000' to 'entry/data' in 'data_0.h5'"
    assert f'"{tmp_path}/data_0.h5"' in kind.way_out
    assert 'fields="entry/data") reads them' in kind.way_out
    assert len(H5Dataset([str(tmp_path / f"data_{k}.h5") for k in range(3)], "entry/data")) == 30


def test_numbered_epochs_are_samples(tmp_path):
    def write(file):
        for k in range(3):
            file[f"key/idx_{k}"] = np.zeros((4, 50))

    assert 'samples=Objects("key/idx_*")' in _printed(_inspected(tmp_path / "a.h5", write))


@pytest.mark.parametrize("label", ["a value", "an attribute"])
def test_patients_with_a_label_are_read_whole_or_row_by_row(tmp_path, label):
    def write(file):
        for k in range(30):
            file[f"p{k:02d}/ecg"] = np.zeros((20 + k, 3))
            if label == "a value":
                file[f"p{k:02d}/age"] = k
            else:
                file[f"p{k:02d}"].attrs["label"] = k

    (kind,) = _inspected(tmp_path / "a.h5", write).kinds
    whole, rows = kind.recipes
    assert (whole.samples, rows.samples) == ('Objects("*")', 'Rows(of="*")')
    name, form = ("age", 'Field("age", take="all")') if label == "a value" else ("label", '"@label"')
    assert rows.fields == {"ecg": '"ecg"', name: form}
    fields = {name: eval(form, {"Field": Field}) for name, form in rows.fields.items()}
    batch = H5Dataset(str(tmp_path / "a.h5"), fields, samples=Rows(of="*"))[:]
    assert batch[name].tolist() == np.repeat(np.arange(30), np.arange(20, 50)).tolist()


def test_fields_of_a_thousand_rows_are_taken_and_not_one_row_at_the_root(tmp_path):
    def write(file):
        for k in range(13):
            file[f"c{k:02d}" if k < 7 else f"g/d{k}"] = np.zeros((1000, 1 + k % 3))
        file["meta"] = np.zeros((1, 5))

    found = _inspected(tmp_path / "a.h5", write)
    assert (found.sample.rows, len(found.sample.datasets)) == (1000, 13)

    def in_groups(file):
        for k in range(13):
            file[f"g{'abc'[k % 3]}/d{k}"] = np.zeros((1000, 1 + k % 3))
        file["meta"] = np.zeros((1, 5))

    found = _inspected(tmp_path / "b.h5", in_groups)
    assert (found.sample.rows, len(found.sample.datasets)) == (1000, 13)


def test_code_with_samples_stands_below_words_that_say_so(tmp_path):
    def write(file):
        file["film"] = np.zeros((6, 20, 4, 4, 2))

    (kind,) = _inspected(tmp_path / "a.h5", write).kinds
    assert kind.way_out.startswith("The loader without samples= takes each row whole; samples=Sequences(")
    assert "samples=Sequences(" in "\n".join(kind.lines)

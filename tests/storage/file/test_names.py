"""Names of every kind reach what they name: characters that mean something elsewhere are taken as they are."""

import ast
import itertools
import re

import h5py
import numpy as np
import obstore
import pytest
from support.commands import printed
from support.sample_files import plain

from h5stream import Bounds, Field, H5Dataset, Objects, Rows, Sequences, Table, Values, errors

NAMES = ["a:b", "a@b", "a{}", "a*", "a?", "[0]", "a,b", " a b ", "..", "ünï", "-x", "a\\b", "a\\:b", "a\nb", "{}", "*"]
MEMBERS = [*NAMES, "a/b", "/", "a/", ":a", "a:", "x" * 300]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "names.h5"
    table = np.zeros(4, [(name, "f4") for name in MEMBERS] + [("in", [(name, "i4") for name in MEMBERS])])
    for k, name in enumerate(MEMBERS):
        table[name], table["in"][name] = np.arange(4) + k, np.arange(4) - k
    with h5py.File(path, "w") as file:
        for k, name in enumerate(NAMES):
            file[f"d/{name}"], file[f"g/{name}/x"] = np.arange(4) + k, np.arange(4) - 9 * k
            file[f"g/{name}"].attrs["id"] = file[f"g/{name}/x"].attrs[name] = file["d"].attrs[name] = k
        file["c"] = file["r/one/c"] = file["r/t{}:@*/c"] = table
        for name in MEMBERS:
            file["r/t{}:@*"].attrs[name] = file["r/one"].attrs[name] = len(name)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_groups_datasets_and_attributes_are_reached_by_their_names(path, name):
    k = NAMES.index(name)
    assert H5Dataset(path, f"d/{name}")[:].tolist() == (np.arange(4) + k).tolist()
    wanted = (np.arange(4) - 9 * k).tolist()
    for of in (f"g/{name}", [f"g/{name}"]):
        for samples in (Rows(of=of), Sequences(4, of=of), Objects(of)):
            fields = {"x": "x", "id": "@id", "u": f"x@{name}", "shared": f"/d@{name}"}
            batch = H5Dataset(path, fields, samples=samples)[:]
            assert batch["x"].reshape(-1).tolist() == wanted
            assert all(set(batch[one].tolist()) == {k} for one in ("id", "u", "shared"))
    assert H5Dataset(path, ".", samples=Objects(f"g/{name}/x"))[0].tolist() == wanted


@pytest.mark.parametrize("kind", ["rows", "rows of groups", "sequences", "objects", "table", "datasets"])
def test_members_of_compounds_are_reached_by_their_names(path, kind):
    with h5py.File(path) as file:
        table = file["c"][:]
    samples, row, compound = {
        "rows": (None, 3, "c"),
        "rows of groups": (Rows(of="r/*"), 3, "c"),
        "sequences": (Sequences(4, of="r/*"), slice(None), "c"),
        "objects": (Objects("r/*"), slice(None), "c"),
        "table": (Table(group=["r/one", "r/t{}:@*"], row=[0, 1]), 1, "c"),
        "datasets": (Objects("r/*/c"), slice(None), "."),
    }[kind]
    fields = {("x", name): f"{compound}:{name}" for name in MEMBERS}
    if kind == "rows":
        fields |= {("in", name): f"c:in:{name}" for name in MEMBERS}
    elif kind != "datasets":
        fields |= {("a", name): f"@{name}" for name in MEMBERS}
    keys = {str(number): key for number, key in enumerate(fields)}
    last = H5Dataset(path, dict(zip(keys, fields.values(), strict=True)), samples=samples)[-1]
    for number, (what, name) in keys.items():
        if what == "a":
            assert last[number] == len(name)
        else:
            wanted = (table["in"] if what == "in" else table)[name][row]
            assert np.array_equal(np.atleast_1d(last[number]), np.atleast_1d(wanted)), name


def test_a_name_that_is_there_wins_over_a_pattern_and_a_backslash_decides(tmp_path):
    path, compound = tmp_path / "a.h5", np.zeros(3, [("a", "i4"), ("a:b", "i4"), ("n", [("b", "i4")])])
    compound["a"], compound["a:b"], compound["n"]["b"] = 1, 2, 3
    with h5py.File(path, "w") as file:
        for k, name in enumerate(("Raw[0]", "Raw0", "R*", "Rest")):
            file[f"{name}/x"] = np.full(3, k)
        file["all/[0]/x"], file["other/0/x"] = np.full(3, 4), np.full(3, 5)
        file["c"], file["c:a"] = compound, np.full(3, 6)

    def values(of):
        return H5Dataset(path, "x", samples=Rows(of=of))[:].unique().tolist()

    assert [values(of) for of in ("Raw[0]", r"Raw\[0\]", "Raw[0-9]", r"Raw\[*")] == [[0], [0], [1], [0]]
    assert [values(of) for of in ("R*", "R**", r"R\*", "*/[0]", ["Raw\\[0]"])] == [[2], [0, 1, 2, 3], [2], [4], [0]]
    with h5py.File(path) as file:
        wanted = {"c:a": file["c:a"][:], r"c:\a": file["c"]["a"], "c:a:b": file["c"]["a:b"], r"c\:a": file["c:a"][:]}
    for name, numbers in wanted.items():
        assert np.array_equal(H5Dataset(path, name)[:], numbers), name


def test_the_names_that_messages_and_inspect_show_are_fields(tmp_path):
    rivals, compound = tmp_path / "r.h5", np.zeros(2, [("b", [("c", "i4")]), ("b:c", "i4"), ("d", "i4")])
    compound["b"]["c"], compound["b:c"], compound["d"] = 1, 2, 3
    with h5py.File(rivals, "w") as file:
        file["a"], file["a:d"] = compound, np.full(2, 4)
    shown = printed("inspect", rivals, "--all").split()
    for name, number in ((r"a:b:\c", 1), ("a:b:c", 2), (r"a:\d", 3), ("a:d", 4)):
        assert H5Dataset(rivals, name)[0] == number
        assert name in shown
    with pytest.raises(errors.FieldNotFoundError, match=r"has no member 'cc'") as refused:
        H5Dataset(rivals, "a:b:cc")
    hints = re.findall(r"'a:[^']*'", str(refused.value).partition("Did you mean ")[2].partition("?")[0])
    assert {int(H5Dataset(rivals, ast.literal_eval(hint))[0]) for hint in hints} <= {1, 2}
    assert hints


def test_each_sample_names_the_compound_of_which_it_has_a_member(tmp_path):
    path, dtype = tmp_path / "a.h5", [("e", "f4"), ("p:q@{}", "i4"), ("in", [("u", "f4"), ("v", "f4")])]
    with h5py.File(path, "w") as file:
        for k, group in itertools.product(range(4), ("hits", "t{}")):
            rows = np.zeros(k + 1, dtype)
            rows["e"], rows["p:q@{}"] = np.arange(k + 1) + k, -k
            rows["in"]["u"], rows["in"]["v"] = 2 * k, 3 * k
            file[f"{group}/ev:{k}"] = rows
        file["names"] = ["ev:3", "ev:0", "ev:3"]
        wanted = [file[f"hits/ev:{k}"][:] for k in (3, 0, 3)]
    lookup, numbers = ["ev:3", "ev:0", "ev:3"], Values(np.arange(3))

    def batch(name, **options):
        return H5Dataset(path, {"x": Field(name, **{"lookup": lookup, **options}), "n": numbers})[:]["x"]

    readings = {"hits/{}:e": "e", "hits/{}:p:q@{}": "p:q@{}", r"t\{}/{}:p\:q\@\{}": "p:q@{}", "t{}/{}:e": "e"}
    for (name, member), form in itertools.product(readings.items(), ("list", "arrays")):
        for x, rows in zip(batch(name, ragged=form), wanted, strict=True):
            assert np.array_equal(x, rows[member])
    joined = np.concatenate(wanted)
    assert np.array_equal(batch("hits/{}:in:v", ragged="packed").values, joined["in"]["v"])
    assert np.array_equal(batch("hits/{}:in:v", ragged="packed", lookup="names").values, joined["in"]["v"])
    both = batch("hits/{}:in", ragged="packed", columns=["u", "v"]).values
    assert np.array_equal(both, np.stack([joined["in"]["u"], joined["in"]["v"]], -1))
    with pytest.raises(errors.FieldNotFoundError, match="no member 'f'"):
        batch("hits/{}:f", ragged="list")


SHARED = {
    "/fs": 250.0,
    "/meta:n": 7,
    "/channels": [0, 1, 2],
    "/channels@unit": "uV",
    "/channels@gain": [1.5, 2.5],
    "/@id": 3,
}


@pytest.mark.parametrize(
    ("x", "samples"),
    [
        (".", Objects("t/*")),
        (".", Objects("t/*", missing="skip")),
        (".", Objects(["t/1", "t/0"])),
        (Field(".", ragged="list"), Objects("u/*")),
        (Field(".", ragged="arrays"), Objects("u/*")),
        ("x", Objects("g/*", missing="skip")),
        ("x", Objects("files")),
        ("frame_{}", None),
        ("frame_{}", Sequences(2)),
        ("x", Rows(of="g/*")),
        ("x", Sequences(2, of="g/*")),
        ("x", Table(group=["g/0", "g/1"], row=[0, 1])),
    ],
)
def test_a_value_that_all_samples_share_comes_with_each(tmp_path, x, samples):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k in range(3):
            file[f"t/{k}"], file[f"u/{k}"], file[f"frame_{k}"] = (
                np.full((5, 3), k),
                np.full((5 + k, 3), k),
                np.full(4, k),
            )
            file[f"g/{k}/x"], file[f"g/{k}/fs"] = np.full(3, k), 1.0
        file["x"], file["fs"], file["channels"], file.attrs["id"] = np.arange(3), 250.0, np.arange(3), 3
        file["meta"] = np.array((1.5, 7), [("rate", "f8"), ("n", "i4")])
        file["channels"].attrs.update({"unit": "uV", "gain": [1.5, 2.5]})
    fields = {name: Field(name, take="all") if name in ("/channels", "/meta:n") else name for name in SHARED}
    dataset = H5Dataset(path, {"x": x, **fields}, samples=samples)
    batch = dataset[:]
    for name, value in SHARED.items():
        for k in range(len(dataset)):
            assert np.array_equal(np.asarray(batch[name][k]), value), name
            assert np.array_equal(np.asarray(dataset[k][name]), value), name


def test_files_and_folders_are_taken_as_they_are_and_so_are_keys_of_stores(tmp_path):
    names = ["a[0].h5", "a0.h5", "b?.h5", "c*.h5", "d\\e.h5", "x:y@z.h5", "f[1]/z.h5", "f1/z.h5"]
    store = obstore.store.MemoryStore()
    for k, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = [k]
        obstore.put(store, f"run/{name}", (tmp_path / name).read_bytes())
    wanted = {name: [k] for k, name in enumerate(names)}
    wanted |= {
        "f[1]/*.h5": [6],
        r"f\[1\]/z.h5": [6],
        r"a\[*.h5": [0],
        "a[0-9].h5": [1],
        "f[0-9]/*.h5": [7],
        "a*.h5": [1, 0],
    }
    for place, options in ((str(tmp_path), None), ("memory://here/run", store)):
        for name, values in wanted.items():
            assert H5Dataset(f"{place}/{name}", "x", storage_options=options)[:].tolist() == values, (place, name)
    with pytest.raises(errors.OptionError, match="an empty name between its slashes"):
        H5Dataset("memory://here/a//b.h5", "x", storage_options=store)


def test_commands_take_names_with_commas_and_other_marks(path):
    output = printed("statistics", path, "--fields", r"d/a\,b,c:a/b")
    assert "7.5" in output
    assert "17.5" in output


def test_a_field_of_the_numbers_of_one_group_is_none_of_a_group_of_that_name(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k in range(3):
            file[f"q{{}}/{k}"], file[f"run_{k}"] = np.full(2, k), np.full(2, 10 * k)
        file["x{}"], file["offsets"] = np.arange(6), [0, 2, 6]
    assert H5Dataset(path, "q{}/{}")[:, 0].tolist() == H5Dataset(path, r"q\{}/{}")[:, 0].tolist() == [0, 1, 2]
    assert H5Dataset(path, "run_{}")[:, 0].tolist() == [0, 10, 20]
    assert H5Dataset(path, Field(r"x\{}", lookup=Bounds("offsets")))[1].tolist() == [2, 3, 4, 5]


def test_values_whose_names_end_with_a_dot_are_found_in_each_object(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(3):
            file[f"o/{k}/at."], file[f"o/{k}/x"] = 10 + k, np.arange(2) + k
            file[f"o/{k}"].attrs["of."] = 20 + k
        del file["o/1/at."]
    fields = {"x": "x", "at": "at.", "of": ".@of."}
    batch = H5Dataset(tmp_path / "a.h5", fields, samples=Objects("o/*", missing="skip"))[:]
    assert batch["at"].tolist() == [10, 12]
    assert batch["of"].tolist() == [20, 22]
    assert batch["x"].tolist() == [[0, 1], [2, 3]]


def test_letters_beyond_ascii_in_the_address_of_an_object_name_it(tmp_path):
    with h5py.File(tmp_path / "é日.h5", "w") as file:
        for k in range(3):
            file[f"g/{k}/x"] = np.full(4, k)
            file[f"g/{k}/word"] = ["a", "b", "c", "d"]
    store = obstore.store.LocalStore(str(tmp_path))
    for samples in (Rows(of="g/*"), Objects("g/*")):
        here = H5Dataset(str(tmp_path / "é日.h5"), ["x", "word"], samples=samples)
        there = H5Dataset("memory://letters/é日.h5", ["x", "word"], samples=samples, storage_options=store)
        assert [plain(sample) for sample in there] == [plain(sample) for sample in here]

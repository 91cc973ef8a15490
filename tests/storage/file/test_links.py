"""What links lead to is read as if its own file had been named, and is among the fields by default."""

import gc
import logging
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.amounts import examples
from support.making import numbers, write_datasets

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, Rows, Sequences
from h5stream.errors import (
    ExternalDataError,
    FieldNotFoundError,
    SourceChangedError,
    UnsupportedFieldError,
)

VALUES = numbers(40, 6)


def linked_file(folder, target="labels.h5"):
    """Make a file of pictures whose labels lie in another one."""
    folder.mkdir(exist_ok=True)
    y = {"data": VALUES[:, 0], "chunks": (7,), "compression": "gzip"}
    write_datasets(folder / "labels.h5", group__y=y, soft=h5py.SoftLink("/group/y"))
    x = {"data": VALUES, "chunks": (9, 6)}
    return write_datasets(folder / "a.h5", x=x, y=h5py.ExternalLink(target, "/soft"))


# --- any links -----------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "g", "g/a", "g/b"]
FILES = ["0.h5", "1.h5", "2.h5"]
LINKS = st.one_of(
    st.tuples(st.just("external"), st.sampled_from([*FILES, *FILES[1:], "none.h5"]), st.sampled_from([*NAMES, "/"])),
    st.tuples(st.just("soft"), st.sampled_from([*NAMES, "/g/a", "/b", "nowhere", "./a"])),
    st.tuples(st.just("data"), st.booleans()),
)
TREES = [st.dictionaries(st.sampled_from(NAMES), LINKS, min_size=size) for size in (3, 0, 0)]


@given(trees=st.tuples(*TREES), together=st.booleans())
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_name_gives_what_h5py_gives(tmp_path, trees, together):
    for number, (name, tree) in enumerate(zip(FILES, trees, strict=True)):
        make_tree(tmp_path / name, number, tree)
    path = str(tmp_path / FILES[0])
    source = [str(tmp_path / name) for name in FILES] if together else path
    names = ["a", "b", "g/a", "g/b", "a/a", "b/g/b"]
    for name in names:
        with h5py.File(path) as file:
            try:
                thing = file.get(name)
            except RuntimeError:  # too many links
                thing = None
            expected = thing[:] if isinstance(thing, h5py.Dataset) else None
            outside = expected is not None and thing.file.filename != path
        if expected is None:
            with pytest.raises((FieldNotFoundError, ExternalDataError)):
                H5Dataset(path, name)
            continue
        dataset = H5Dataset(path, name, allow_external=True)
        assert dataset[:].tolist() == expected.tolist()
        assert dataset.layout.datasets[0][0].access != "h5py"
        dataset.close()
        if outside:
            with pytest.raises(ExternalDataError):
                H5Dataset(path, name)
        if together:
            in_each_file(source, name, expected)


def make_tree(path, number, tree):
    if number:  # something to lead to
        tree = {"a": ("data", True), "g/b": ("data", False)} | tree
    with h5py.File(path, "w") as file:
        for place, (name, (kind, *what)) in enumerate(sorted(tree.items())):
            if (name == "g" and kind == "data") or (name.startswith("g/") and "g" in tree):
                continue  # a group, or in what may be a link that leads nowhere
            if kind == "soft":
                file[name] = h5py.SoftLink(what[0])
            elif kind == "external":
                file[name] = h5py.ExternalLink(*what)
            else:
                data = np.arange(4) + 100 * number + 10 * place
                file.create_dataset(name, data=data, chunks=(3,) if what[0] else None)


def in_each_file(source, name, first):
    """Among opened files links need no leave."""
    try:
        dataset = H5Dataset(source, name)
    except (FieldNotFoundError, ExternalDataError):
        return  # not in every file, or through a file that does not exist
    assert dataset[:4].tolist() == first.tolist()
    assert len(dataset.layout.files) == 3
    dataset.close()


# --- direct --------------------------------------------------------------------------------------------------------


def test_nothing_stays_open(tmp_path):
    path = linked_file(tmp_path / "d")
    gc.collect()  # what other tests left goes now, and not in between
    before = len(os.listdir("/proc/self/fd")), h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
    dataset = H5Dataset(path, ["x", "y"], allow_external=True)
    assert len(dataset) == 40
    assert (len(os.listdir("/proc/self/fd")), h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)) == before


def test_what_a_link_leads_to_is_not_read_once_it_changed(tmp_path):
    for k in range(3):
        linked_file(tmp_path / f"{k}")
    loader = H5StreamLoader(H5Dataset(str(tmp_path / "*/a.h5"), ["x", "y"], allow_external=True), 17, shuffle=True)
    assert len(loader.dataset.layout.files) == 6
    os.utime(tmp_path / "1" / "labels.h5", ns=(1, 1))
    with pytest.raises(SourceChangedError, match="labels"):
        list(loader)


def test_a_state_knows_what_links_lead_to_and_not_where_it_lies(tmp_path):
    def opened(path):
        return H5StreamLoader(H5Dataset(path, ["x", "y"], allow_external=True), 7, shuffle=True)

    loader = opened(linked_file(tmp_path / "d"))
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), [y.tolist() for _, y in batches]
    shutil.copytree(tmp_path / "d", tmp_path / "e")
    moved = opened(tmp_path / "e" / "a.h5")
    moved.load_state_dict(state)
    assert [y.tolist() for _, y in moved] == rest


@pytest.mark.parametrize("absolute", [False, True])
def test_what_links_lead_to_is_staged(tmp_path, absolute):
    folder = tmp_path / "d"
    path = linked_file(folder, str(folder / "labels.h5") if absolute else "labels.h5")
    dataset = H5Dataset(path, ["x", "y"], allow_external=True)
    with H5StreamLoader(dataset, 8, stage_to=str(tmp_path / "fast")) as loader:
        files = loader.dataset.layout.files
        assert all(str(tmp_path / "fast") in identity.path for identity in files)
        assert len(files) == 2
        shutil.rmtree(folder)
        assert [row for _, y in loader for row in y.tolist()] == VALUES[:, 0].tolist()


# --- fields by default ---------------------------------------------------------------------------------------------


def test_links_are_fields_by_default_each_dataset_once(tmp_path):
    path = linked_file(tmp_path / "d")
    with h5py.File(path, "r+") as file:
        file["deep/z"] = np.arange(40)
        file["alias"] = h5py.SoftLink("/x")  # has a name here already
        file["first"] = h5py.SoftLink("deep/z")
        file["second"] = h5py.SoftLink("first")  # the same as the one before
        file["group"] = h5py.SoftLink("deep")  # no dataset
        file["loop"] = h5py.SoftLink("loop")
        file["gone"] = h5py.SoftLink("nowhere")
        file["away"] = h5py.ExternalLink("none.h5", "/x")
    batch = H5Dataset(path, allow_external=True)[:]
    assert list(batch) == ["first", "x", "y"]
    assert batch["first"].tolist() == list(range(40))
    assert batch["y"].tolist() == VALUES[:, 0].tolist()


def test_what_leads_out_is_left_out_with_a_warning_or_an_error_where_nothing_is_left(tmp_path, caplog):
    path = linked_file(tmp_path / "d")
    with caplog.at_level(logging.WARNING, logger="h5stream"):
        assert H5Dataset(path)[:].shape == VALUES.shape
    assert "'y' is an external link to 'labels.h5'" in caplog.text
    assert "allow_external=True" in caplog.text
    with h5py.File(path, "r+") as file:
        del file["x"]
    with pytest.raises(ExternalDataError, match="allow_external=True"):
        H5Dataset(path)
    assert H5Dataset(path, allow_external=True)[:].tolist() == VALUES[:, 0].tolist()


# --- objects and groups, some of which are in other files ---------------------------------------------------------

GROUPS = [f"g{k}" for k in range(10)]
WAYS = ["group", "renamed group", "inner group", "dataset", "soft link", "chain"]


def fill(file, name, number):
    """Write an object whose values say which it is, and of which file."""
    rows = abs(number) % 3 + 2
    file[f"{name}/x"], file[f"{name}/in/r"] = np.arange(4) + number, np.full((rows, 2), number)
    file.create_dataset(f"{name}/in/z", data=np.arange(8) + number, chunks=(3,), compression="gzip")
    file[f"{name}/s"], file[f"{name}/in"].attrs["a"], file[name].attrs["a"] = number, number + 1, number + 2


@pytest.fixture(params=WAYS)
def partly_linked(request, tmp_path):
    """Write a file some of whose objects links lead to, in other files with other values at the same addresses."""
    way, linked = request.param, (1, 4, 9)
    with (
        h5py.File(tmp_path / "main.h5", "w") as main,
        h5py.File(tmp_path / "other.h5", "w") as other,
        h5py.File(tmp_path / "third.h5", "w") as third,
    ):
        for k, name in enumerate(GROUPS):
            elsewhere = f"below/{name}/h{k}" if way == "renamed group" else name
            fill(third if way == "chain" else other, elsewhere, 1000 * (k + 1))
            if way == "chain":
                other[name] = h5py.ExternalLink("third.h5", name)
            if k not in linked or way in ("inner group", "dataset"):
                fill(main, name, k)
            if k not in linked:
                continue
            if way == "inner group":
                del main[name]["in"]
            inner = {"inner group": "/in", "dataset": "/x"}.get(way, "")
            if way == "dataset":
                del main[name]["x"]
            place = f"far/{name}" if way == "soft link" else name + inner
            main[place] = h5py.ExternalLink("other.h5", elsewhere + inner)
            if way == "soft link":
                main[name] = h5py.SoftLink(f"/far/{name}")
        main["unused"] = np.full(20_000, -1)
    return str(tmp_path / "main.h5")


def by_h5py(path, name):
    """Read a dataset, or an attribute, of each object."""
    name, _, attribute = name.partition("@")
    with h5py.File(path) as file:
        owners = [file[f"{group}/{name}".rstrip("/")] for group in GROUPS]
        return [one.attrs[attribute] if attribute else one[()] for one in owners]


def as_lists(values):
    return [value.tolist() for value in values]


def test_objects_some_of_which_are_in_other_files_have_the_values_of_these(partly_linked):
    for name, of in zip(("x", "s", "in/z", "@a", "in@a"), ("g*", GROUPS, GROUPS, "g*", GROUPS), strict=True):
        dataset = H5Dataset(partly_linked, name, samples=Objects(of), allow_external=True)
        assert as_lists(dataset) == as_lists(by_h5py(partly_linked, name)), name
    for form in ("packed", "pad", "list", "arrays"):
        field = Field("in/r", ragged=form)
        dataset = H5Dataset(partly_linked, field, samples=Objects("g*"), allow_external=True)
        assert as_lists(dataset) == as_lists(by_h5py(partly_linked, "in/r")), form


def test_groups_some_of_which_are_in_other_files_have_the_rows_of_these(partly_linked):
    for name in ("x", "in/r", "in/z"):
        right = np.concatenate(by_h5py(partly_linked, name)).tolist()
        for samples in (Rows(of="g*"), Sequences(1, of="g*")):
            dataset = H5Dataset(partly_linked, name, samples=samples, allow_external=True)
            assert dataset[:].reshape(np.shape(right)).tolist() == right, (name, samples)
    once = [Field(name, take="all") for name in ("@a", "in@a", "s")]
    dataset = H5Dataset(partly_linked, ["x", *once], samples=Rows(of="g*"), allow_external=True)
    firsts = [[int(value) for value in dataset[row][1:]] for row in range(0, len(dataset), 4)]
    assert firsts == list(map(list, zip(*(by_h5py(partly_linked, name) for name in ("@a", "in@a", "s")), strict=True)))


def test_objects_that_are_looked_up_by_name_may_be_in_other_files(partly_linked):
    names = [GROUPS[k] for k in (4, 0, 9, 4, 2)]
    for field in ("x", "in/z", "in/r"):
        right = as_lists(by_h5py(partly_linked, field)[int(name[1:])] for name in names)
        for form in ("list", "arrays") if field == "in/r" else (None, "packed"):
            asked = Field(f"{{}}/{field}", lookup=names, ragged=form)
            assert as_lists(H5Dataset(partly_linked, asked, allow_external=True)) == right, (field, form)
    with pytest.raises(FieldNotFoundError, match=r"'g77/x', which lookup= has\. 1 of 2 names"):
        H5Dataset(partly_linked, Field("{}/x", lookup=["g1", "g77"]), allow_external=True)
    with pytest.raises(ExternalDataError, match="external link"):
        H5Dataset(partly_linked, [Field(f"{{}}/{name}", lookup=["g1"]) for name in ("x", "in/z")])


def test_rows_that_are_objects_of_another_file_are_refused_by_its_name(partly_linked):
    refused = False
    for name in ("x", "in/z"):
        try:
            dataset = H5Dataset(partly_linked, f"g{{}}/{name}", allow_external=True)
        except UnsupportedFieldError as error:
            folder = Path(partly_linked).parent
            refused |= any(f"in another file, '{folder / name}'" in str(error) for name in ("other.h5", "third.h5"))
        else:
            assert as_lists(dataset) == as_lists(by_h5py(partly_linked, name))
    assert refused

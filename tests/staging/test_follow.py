"""With follow, a copy reads the same when the originals are gone; where that cannot be, it is refused."""

import shutil

import h5py
import numpy as np
import pytest

from h5stream.errors import UnfollowableReferenceError
from h5stream.staging import stage


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data" / "deep"


@pytest.fixture
def make(data):
    """A function that writes a file of the folder: `x` holds numbers, and `y` is a link to another file's."""

    def write(name, link="", x=range(3)):
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(len(x))
            if link:
                file["y"] = h5py.ExternalLink(*link.split(":"))
        return path

    return write


def values(path, name="y"):
    with h5py.File(path) as file:
        return file[name][:].tolist()


@pytest.mark.parametrize(
    "links", [{"sub/c.h5": "", "sub/b.h5": "c.h5:/x", "a.h5": "sub/b.h5:/y"}, {"b.h5": "", "run/a.h5": "../b.h5:/x"}]
)
def test_links_to_links_and_names_that_go_up_keep_their_places_and_read_the_same(data, make, ram, links):
    *_, main = (make(name, link) for name, link in links.items())
    result = stage(main, to=ram, follow=True)
    shutil.rmtree(data)
    assert {str(path.relative_to(ram)) for path in (*result.paths, *result.followed)} == {*links}
    assert values(result.paths[0]) == [0, 1, 2]


def test_virtual_sources_come_along(data, make, ram):
    make("source.h5", x=range(4))
    layout = h5py.VirtualLayout(shape=(4,), dtype="i8")
    layout[:] = h5py.VirtualSource("source.h5", "x", shape=(4,))
    with h5py.File(data / "v.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    result = stage(data / "v.h5", to=ram, follow=True)
    shutil.rmtree(data)
    assert values(result.paths[0], "v") == [0, 1, 2, 3]


def test_files_that_need_each_other_are_copied_once(make, ram):
    result = stage([make("a.h5", "b.h5:/x"), make("b.h5", "a.h5:/x")], to=ram, follow=True)
    assert len(result.copied) == 2
    assert result.paths == (ram / "a.h5", ram / "b.h5")


def test_a_group_moves_as_a_whole_when_one_of_its_names_is_taken(data, make, ram):
    (ram / "b.h5").write_bytes(b"mine")
    make("b.h5")
    result = stage(make("a.h5", "b.h5:/x"), to=ram, follow=True)
    shutil.rmtree(data)
    assert result.paths[0].parent != ram
    assert values(result.paths[0]) == [0, 1, 2]


def test_external_storage_comes_along(data, ram):
    data.mkdir(parents=True)
    with h5py.File(data / "e.h5", "w") as file:
        file.create_dataset("x", (4,), "u1", external=[("raw.bin", 0, 4)])
    (data / "raw.bin").write_bytes(b"\1\2\3\4")
    result = stage(data / "e.h5", to=ram, follow=True)
    assert "HDF5_EXTFILE_PREFIX" in " ".join(result.notices)
    shutil.rmtree(data)
    with h5py.File(result.paths[0]) as file:
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_efile_prefix(b"${ORIGIN}")
        assert h5py.Dataset(h5py.h5d.open(file.id, b"x", access))[:].tolist() == [1, 2, 3, 4]


def test_what_a_copy_would_not_find_is_refused_with_the_reason(data, make, ram, tmp_path, monkeypatch, left):
    other, main = make("b.h5"), make("a.h5", "b.h5:/x")
    absolute = make("c.h5", f"{other}:/x")
    with pytest.raises(UnfollowableReferenceError, match=r"/y needs .*b\.h5 \(external link\).*absolute") as caught:
        stage(absolute, to=ram, follow=True)
    assert caught.value.target == str(other)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.h5").symlink_to(main)
    with pytest.raises(UnfollowableReferenceError, match="symbolic link"):
        stage(tmp_path / "links" / "a.h5", to=ram, follow=True)
    assert left(ram) == []
    assert len(stage(main, to=ram, follow=True).copied) == 2
    other.rename(tmp_path / "b.h5")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnfollowableReferenceError, match="working directory"):
        stage(main, to=ram, follow=True)


def test_a_name_that_leads_nowhere_is_only_noted(make, ram):
    result = stage(make("a.h5", "absent.h5:/x"), to=ram, follow=True)
    assert "absent.h5 (external link), which does not exist" in result.notices[0]


def test_without_follow_what_is_needed_is_named(make, ram):
    make("b.h5")
    result = stage(make("a.h5", "b.h5:/x"), to=ram)
    assert "needs other files, which are not staged: b.h5 (external link)" in result.notices[0]
    assert "--follow" in result.notices[0]
    assert result.followed == ()


def test_a_damaged_file_is_staged_and_the_doubt_is_told(make, ram):
    main = make("a.h5", x=range(1000))
    main.write_bytes(main.read_bytes()[:900])
    result = stage(main, to=ram)
    assert "not known which files" in result.notices[0]
    assert result.paths[0].read_bytes() == main.read_bytes()

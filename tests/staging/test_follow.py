"""With follow, a copy reads the same when the originals are gone; where that cannot be, it is refused."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

from h5stream.errors import UnfollowableReferenceError
from h5stream.staging import stage


def make(path, **objects):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, value in objects.items():
            file[name] = value
    return path


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data" / "deep"


def test_links_to_links_come_along_and_read_the_same(data, ram):
    make(data / "sub" / "c.h5", x=np.arange(5))
    make(data / "sub" / "b.h5", y=h5py.ExternalLink("c.h5", "/x"))
    main = make(data / "a.h5", z=h5py.ExternalLink("sub/b.h5", "/y"))
    result = stage(main, to=ram, follow=True)
    shutil.rmtree(data)
    assert {str(path.relative_to(ram)) for path in result.followed} == {"sub/b.h5", "sub/c.h5"}
    with h5py.File(result.paths[0]) as file:
        assert file["z"][:].tolist() == [0, 1, 2, 3, 4]


def test_names_that_go_up_keep_their_places(data, ram):
    make(data / "common" / "b.h5", x=np.arange(3))
    main = make(data / "run" / "a.h5", y=h5py.ExternalLink("../common/b.h5", "/x"))
    result = stage(main, to=ram, follow=True)
    shutil.rmtree(data)
    assert result.paths == (ram / "run" / "a.h5",)
    with h5py.File(result.paths[0]) as file:
        assert file["y"][:].tolist() == [0, 1, 2]


def test_virtual_sources_come_along(data, ram):
    make(data / "source.h5", x=np.arange(4))
    layout = h5py.VirtualLayout(shape=(4,), dtype="i8")
    layout[:] = h5py.VirtualSource("source.h5", "x", shape=(4,))
    with h5py.File(data / "v.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    result = stage(data / "v.h5", to=ram, follow=True)
    shutil.rmtree(data)
    with h5py.File(result.paths[0]) as file:
        assert file["v"][:].tolist() == [0, 1, 2, 3]


def test_files_that_need_each_other_are_copied_once(data, ram):
    make(data / "a.h5", x=np.arange(2), y=h5py.ExternalLink("b.h5", "/x"))
    make(data / "b.h5", x=np.arange(3), y=h5py.ExternalLink("a.h5", "/x"))
    result = stage([data / "a.h5", data / "b.h5"], to=ram, follow=True)
    assert len(result.copied) == 2
    assert result.paths == (ram / "a.h5", ram / "b.h5")


def test_a_group_moves_as_a_whole_when_one_of_its_names_is_taken(data, ram):
    (ram / "b.h5").write_bytes(b"mine")
    make(data / "b.h5", x=np.arange(3))
    main = make(data / "a.h5", y=h5py.ExternalLink("b.h5", "/x"))
    result = stage(main, to=ram, follow=True)
    shutil.rmtree(data)
    assert result.paths[0].parent != ram
    with h5py.File(result.paths[0]) as file:
        assert file["y"][:].tolist() == [0, 1, 2]


def test_external_storage_comes_along(data, ram, monkeypatch):
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
        opened = h5py.Dataset(h5py.h5d.open(file.id, b"x", access))
        assert opened[:].tolist() == [1, 2, 3, 4]


def test_an_absolute_name_is_refused_with_the_reason(data, ram, left):
    make(data / "b.h5", x=np.arange(3))
    main = make(data / "a.h5", y=h5py.ExternalLink(str(data / "b.h5"), "/x"))
    with pytest.raises(UnfollowableReferenceError, match=r"/y needs .*b\.h5 \(external link\).*absolute") as caught:
        stage(main, to=ram, follow=True)
    assert caught.value.target == str(data / "b.h5")
    assert left(ram) == []


def test_a_name_that_only_the_working_directory_answers_is_refused(data, ram, tmp_path, monkeypatch):
    make(tmp_path / "here" / "b.h5", x=np.arange(3))
    main = make(data / "a.h5", y=h5py.ExternalLink("b.h5", "/x"))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UnfollowableReferenceError, match="working directory"):
        stage(main, to=ram, follow=True)


def test_a_name_beside_the_target_of_a_link_is_refused(data, ram, tmp_path):
    make(data / "b.h5", x=np.arange(3))
    main = make(data / "a.h5", y=h5py.ExternalLink("b.h5", "/x"))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.h5").symlink_to(main)
    with pytest.raises(UnfollowableReferenceError, match="symbolic link"):
        stage(tmp_path / "links" / "a.h5", to=ram, follow=True)
    assert len(stage(main, to=ram, follow=True).copied) == 2


def test_a_name_that_leads_nowhere_is_only_noted(data, ram):
    main = make(data / "a.h5", y=h5py.ExternalLink("absent.h5", "/x"))
    result = stage(main, to=ram, follow=True)
    assert "absent.h5 (external link), which does not exist" in result.notices[0]


def test_without_follow_what_is_needed_is_named(data, ram):
    make(data / "b.h5", x=np.arange(3))
    main = make(data / "a.h5", y=h5py.ExternalLink("b.h5", "/x"))
    result = stage(main, to=ram)
    assert "needs other files, which are not staged: b.h5 (external link)" in result.notices[0]
    assert "--follow" in result.notices[0]
    assert result.followed == ()


def test_a_damaged_file_is_staged_and_the_doubt_is_told(data, ram):
    main = make(data / "a.h5", x=np.arange(1000))
    main.write_bytes(main.read_bytes()[:900])
    result = stage(main, to=ram)
    assert "not known which files" in result.notices[0]
    assert result.paths[0].read_bytes() == main.read_bytes()

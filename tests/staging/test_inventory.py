"""Listing, verifying and removing touch what the manifest names and nothing else."""

import json
import os

import pytest

from h5stream.errors import ManifestError, StagingError
from h5stream.staging import StagedState, list_staged, remove_staged, stage, verify_staged
from h5stream.staging.folder import BLOCK_BYTES


@pytest.fixture
def staged(write, ram):
    """A source of ten bytes whose copy nobody uses."""
    source = write("a.h5", 10)
    stage(source, to=ram, lease=False)
    return source


@pytest.fixture
def manifest(ram):
    return ram / ".h5stream" / "manifest.json"


def take_its_place(path):
    """Put another file in the place of a copy."""
    other = path.with_name("mine")
    other.write_bytes(b"mine")
    other.replace(path)


def test_an_empty_or_absent_folder_has_nothing_and_gets_nothing(tmp_path, left):
    assert list_staged(tmp_path) == ()
    assert verify_staged(tmp_path / "absent") == ()
    assert remove_staged(tmp_path).removed == ()
    with pytest.raises(StagingError, match="nothing was staged"):
        remove_staged(tmp_path, "a.h5")
    assert left(tmp_path) == []


def test_the_list_tells_fresh_from_stale_from_changed_from_missing(write, ram):
    expected = {
        "fresh.h5": StagedState.FRESH,
        "stale.h5": StagedState.STALE,
        "gone.h5": StagedState.SOURCE_GONE,
        "changed.h5": StagedState.CHANGED,
        "missing.h5": StagedState.MISSING,
        "replaced.h5": StagedState.MISSING,
    }
    sources = {name: write(name, 100) for name in expected}
    stage(sources.values(), to=ram, lease=False)
    os.utime(sources["stale.h5"], ns=(1, 1))
    sources["gone.h5"].unlink()
    (ram / "changed.h5").write_bytes(b"x")
    (ram / "missing.h5").unlink()
    take_its_place(ram / "replaced.h5")
    assert {file.path.name: file.state for file in list_staged(ram)} == expected


def test_verify_finds_one_flipped_bit_in_any_block(write, ram):
    source = write("a.h5", 2 * BLOCK_BYTES + 3)
    (copy,) = stage(source, to=ram).paths
    assert [result.ok for result in verify_staged(ram)] == [True]
    for place in (0, BLOCK_BYTES, 2 * BLOCK_BYTES + 2):
        right = source.read_bytes()[place]
        with copy.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), bytes([right ^ 1]), place)
            (result,) = verify_staged(ram, threads=2)
            assert not result.ok
            assert "checksum" in result.problem
            os.pwrite(file.fileno(), bytes([right]), place)


def test_verify_names_what_is_missing_or_of_another_size(write, ram):
    stage([write("a.h5", 10), write("b.h5", 10), write("c.h5", 0)], to=ram)
    (ram / "a.h5").unlink()
    (ram / "b.h5").write_bytes(b"")
    problems = {result.path.name: result.problem for result in verify_staged(ram)}
    assert "No such file" in problems["a.h5"]
    assert "has 0 bytes, 10 were staged" in problems["b.h5"]
    assert problems["c.h5"] == ""


def test_remove_deletes_only_what_was_staged(write, ram, left):
    stage([write("a.h5", 10), write("b.h5", 20), write("a.h5", 30, folder="c")], to=ram, lease=False)
    (ram / "mine.h5").write_bytes(b"mine")
    with pytest.raises(StagingError, match="not in the manifest"):
        remove_staged(ram, [ram / "a.h5", ram / "mine.h5"])
    assert remove_staged(ram, ram / "a.h5").bytes_freed == 10
    assert remove_staged(ram).bytes_freed == 50
    assert left(ram) == ["mine.h5"]


def test_copies_are_removed_by_the_files_that_they_are_of(write, ram, monkeypatch):
    sources = [write("a.h5", 10), write("b.h5", 20), write("a.h5", 30, folder="c")]
    stage(sources, to=ram, lease=False)
    assert remove_staged(ram, sources[2]).bytes_freed == 30
    monkeypatch.chdir(sources[1].parent)
    assert remove_staged(ram, "./b.h5").bytes_freed == 20
    assert all(source.exists() for source in sources)


def test_folders_that_were_made_for_copies_go_with_the_last_one(write, ram):
    source, folder = write("a.h5", 10), ram / "one" / "two"
    stage(source, to=folder, lease=False)
    remove_staged(folder)
    assert not (ram / "one").exists()
    assert ram.exists()
    stage(source, to=folder, lease=False)
    (ram / "one" / "mine").touch()
    remove_staged(folder)
    assert [path.name for path in (ram / "one").iterdir()] == ["mine"]


def test_remove_leaves_a_file_that_took_the_place_of_a_copy(staged, ram, left):
    take_its_place(ram / "a.h5")
    result = remove_staged(ram, force=True)
    assert result.removed == ()
    assert "not the file that was staged" in result.notices[0]
    assert (ram / "a.h5").read_bytes() == b"mine"
    assert left(ram) == ["a.h5"]


def test_remove_does_not_go_through_links(write, staged, ram, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (ram / "a.h5").unlink()
    (ram / "a.h5").symlink_to(target)
    folder = stage(write("a.h5", 10, folder="b"), to=ram, lease=False).paths[0].parent
    folder.rename(ram / "moved")
    folder.symlink_to(ram / "moved")
    assert remove_staged(ram, force=True).removed == ()
    assert target.read_bytes() == b"mine"
    assert (ram / "moved" / "a.h5").exists()


def test_remove_takes_names_and_paths_also_through_links(write, ram, tmp_path):
    stage([write("a.h5", 10), write("b.h5", 10)], to=ram, lease=False)
    (tmp_path / "fast").symlink_to(ram)
    assert remove_staged(ram, tmp_path / "fast" / "a.h5").bytes_freed == 10
    assert remove_staged(tmp_path / "fast", "b.h5").bytes_freed == 10


@pytest.mark.parametrize(
    ("name", "told", "says"),
    [
        *((name, {}, "stays inside the folder")
          for name in ("../outside.h5", "/etc/passwd", ".h5stream/lock", "a/../../b", "", "./a.h5")),
        *(("a.h5", told, "ValueError: session")
          for session in ("../../x", "4711", "4711-xyz", "") for told in ({"owner": session}, {"users": [session]})),
    ],
)  # fmt: skip
def test_a_manifest_or_a_session_that_leads_out_of_its_folder_is_refused(staged, ram, manifest, name, told, says):
    document = json.loads(manifest.read_text())
    document["files"][name] = {**document["files"].pop("a.h5"), **told}
    manifest.write_text(json.dumps(document))
    for action in (list_staged, remove_staged, verify_staged):
        with pytest.raises(ManifestError, match=says):
            action(ram)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other", "version": 1, "files": {}}'])
def test_a_damaged_manifest_is_named_and_nothing_is_lost(write, staged, ram, manifest, text):
    manifest.write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.json is not a manifest"):
        remove_staged(ram)
    with pytest.raises(ManifestError, match="away and stage again"):
        stage(write("b.h5", 10), to=ram)
    assert (ram / "a.h5").exists()


def test_what_version_0_2_has_staged_is_used_and_what_it_left_unfinished_is_made_anew(
    write, staged, ram, manifest, left
):
    begun, copy, dead = write("b.h5", 20), (ram / "a.h5").stat(), "4711-0a1b2c3d4e5f"
    checksum = {"digest": list_staged(ram)[0].checksum.digest, "algorithm": "xxh3_128", "block_bytes": 16777216}
    common = {"owner": dead, "keep": True, "staged_at": 0.0, "users": [dead], "recipe": "", "copy_bytes": -1}
    a = {"source": str(staged), "size_bytes": 10, "mtime_ns": staged.stat().st_mtime_ns, "copy_inode": copy.st_ino,
         "checksum": checksum, "copy_mtime_ns": copy.st_mtime_ns, "state": "whole", **common}  # fmt: skip
    b = {"source": str(begun), "size_bytes": 20, "mtime_ns": begun.stat().st_mtime_ns, "copy_inode": 1,
         "checksum": None, "copy_mtime_ns": 0, "state": "copying", **common}  # fmt: skip
    files = {"format": "h5stream-staging", "version": 2, "files": {"a.h5": a, "b.h5": b}}
    manifest.write_text(json.dumps(files))
    for name in (f"{dead}.690c64c7ea680db6.part", f"{dead}.session"):
        manifest.with_name(name).write_bytes(b"half")
    result = stage([staged, begun], to=ram, lease=False)
    assert (result.reused, result.copied) == ((ram / "a.h5",), (ram / "b.h5",))
    assert all(one.ok for one in verify_staged(ram))
    assert left(ram / ".h5stream") == ["lock", "manifest.json"]


def test_a_manifest_of_a_newer_version_is_left_alone(staged, ram, manifest):
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(ManifestError, match="has version 3, this h5stream knows 2"):
        list_staged(ram)


def test_a_control_folder_that_others_may_write_to_is_refused(write, ram, tmp_path, left):
    source, control = write("a.h5", 10), ram / ".h5stream"
    (tmp_path / "elsewhere").mkdir()
    control.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StagingError, match="symbolic link"):
        stage(source, to=ram)
    assert left(tmp_path / "elsewhere") == []
    control.unlink()
    stage(source, to=ram, lease=False)
    control.chmod(0o777)
    with pytest.raises(StagingError, match="mode 777: somebody else could put other data into the copies"):
        stage(source, to=ram, lease=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_copies_of_somebody_else_are_not_used(staged, ram):
    os.chown(ram / "a.h5", 12345, -1)
    (ours,) = stage(staged, to=ram, lease=False).paths
    assert os.stat(ours).st_uid == 0
    os.chown(ram / ".h5stream", 12345, -1)
    with pytest.raises(StagingError, match="belongs to user 12345"):
        stage(staged, to=ram, lease=False)

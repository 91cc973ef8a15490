"""Copies appear whole or not at all, once for each source, and under names that do not clash."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
from itertools import pairwise

import pytest
from inner import after_each_write, around, memory_available

from h5stream.errors import (
    NotEnoughSpaceError,
    OptionError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    StagedFileDamagedError,
    StagingError,
)
from h5stream.filesystem import mount_of
from h5stream.staging import copying, list_staged, remove_staged, run, stage, staged
from h5stream.staging.folder import BLOCK_BYTES

MIB = 1 << 20


def test_a_copy_has_the_bytes_the_mode_and_the_time_of_its_source(write, ram):
    source = write("a.h5", 3 * MIB + 17)
    source.chmod(0o640)
    result = stage(source, to=ram)
    (copy,) = result.paths
    assert copy == ram / "a.h5"
    assert copy.read_bytes() == source.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o640
    assert copy.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert result.copied == (copy,)
    assert result.bytes_copied == source.stat().st_size


@pytest.mark.parametrize("size", [0, 1, 4096, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_sizes_around_the_block_are_copied_whole(write, ram, size):
    source = write("a.h5", size)
    (copy,) = stage(source, to=ram, threads=3).paths
    assert copy.read_bytes() == source.read_bytes()


def test_many_files_are_copied_at_once_and_come_back_in_order(write, ram):
    sources = [write(f"{n}.h5", 1000 * n) for n in range(40)]
    result = stage(reversed(sources), to=ram)
    assert [path.name for path in result.paths] == [f"{n}.h5" for n in reversed(range(40))]
    assert all(
        path.read_bytes() == source.read_bytes() for path, source in zip(result.paths, sources[::-1], strict=True)
    )


def test_a_fresh_copy_is_reused(write, ram):
    source = write("a.h5", 1000)
    first = stage(source, to=ram)
    before = first.paths[0].stat().st_ino
    again = stage([source, source], to=ram)
    assert again.copied == ()
    assert again.reused == first.paths
    assert again.paths == first.paths * 2
    assert first.paths[0].stat().st_ino == before


@pytest.mark.parametrize("how", ["longer", "same size", "copy written to", "copy gone"])
def test_a_stale_copy_is_replaced(write, ram, how):
    source = write("a.h5", 1000)
    stage(source, to=ram, lease=False)
    if how == "longer":
        write("a.h5", 2000)
    elif how == "same size":
        write("a.h5", 1000)
        os.utime(source, ns=(1, 1))
    elif how == "copy written to":
        (ram / "a.h5").write_bytes(b"x" * 1000)
    else:
        (ram / "a.h5").unlink()
    result = stage(source, to=ram)
    assert result.copied == (ram / "a.h5",)
    assert (ram / "a.h5").read_bytes() == source.read_bytes()


def test_a_stale_copy_in_use_stays_until_it_is_no_longer_used(write, ram, left):
    source = write("a.h5", 1000)
    old_bytes = source.read_bytes()
    used = stage(source, to=ram)
    write("a.h5", 1500)
    fresh = stage(source, to=ram, lease=False)
    assert fresh.paths[0].name == "a.h5"
    assert fresh.paths[0] != used.paths[0]
    assert used.paths[0].read_bytes() == old_bytes
    assert stage(source, to=ram, lease=False).reused == fresh.paths
    used.release()
    assert stage(source, to=ram, lease=False).reused == fresh.paths
    assert not used.paths[0].exists()


def test_two_sources_of_one_name_get_two_folders(write, ram):
    sources = [write("a.h5", 100 + n, folder=f"run{n}") for n in range(3)]
    first = stage(sources, to=ram)
    assert len(set(first.paths)) == 3
    assert all(path.name == "a.h5" for path in first.paths)
    assert [path.read_bytes() for path in first.paths] == [source.read_bytes() for source in sources]
    assert stage(sources[::-1], to=ram).paths == first.paths[::-1]


def test_a_file_that_is_not_ours_keeps_its_name(write, ram):
    (ram / "a.h5").write_bytes(b"mine")
    source = write("a.h5", 100)
    (copy,) = stage(source, to=ram).paths
    assert copy.read_bytes() == source.read_bytes()
    assert (ram / "a.h5").read_bytes() == b"mine"


def test_a_file_that_appears_meanwhile_is_not_overwritten(write, ram, monkeypatch, left):
    source = write("a.h5", 100)
    around(monkeypatch, run, "give_name", before=lambda *_: (ram / "a.h5").write_bytes(b"mine"))
    with pytest.raises(StagingError, match="File exists"):
        stage(source, to=ram)
    assert (ram / "a.h5").read_bytes() == b"mine"
    assert left(ram) == ["a.h5"]


def test_a_symbolic_link_is_staged_under_its_own_name_and_once(write, ram, tmp_path):
    source = write("real.h5", 100)
    link = tmp_path / "link.h5"
    link.symlink_to(source)
    (copy,) = stage(link, to=ram).paths
    assert copy.name == "link.h5"
    assert not copy.is_symlink()
    assert copy.read_bytes() == source.read_bytes()


def test_the_folder_may_be_a_symbolic_link(write, ram, tmp_path):
    (tmp_path / "fast").symlink_to(ram)
    (copy,) = stage(write("a.h5", 10), to=tmp_path / "fast").paths
    assert copy == tmp_path / "fast" / "a.h5"
    assert (ram / "a.h5").exists()


UNUSUAL = ["Größe 数据.h5", os.fsdecode(b"caf\xe9.h5"), "a\nb.h5", "[bold]x.h5", "n" * 252 + ".h5"]


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_names_survive(write, ram, name):
    source = write(name, 100)
    stage(source, to=ram, lease=False)
    assert [file.path.name for file in list_staged(ram)] == [name]
    assert remove_staged(ram, ram / name).bytes_freed == 100


def test_a_source_in_the_folder_stays_where_it_is(ram, left):
    source = ram / "a.h5"
    source.write_bytes(b"x")
    result = stage(source, to=ram)
    assert result.paths == (source,)
    assert result.copied == ()
    assert "in the folder already" in result.notices[0]
    assert left(ram) == ["a.h5"]


def test_a_missing_source_is_named(ram, tmp_path, left):
    with pytest.raises(SourceNotFoundError, match=r"no such file: .*absent"):
        stage(tmp_path / "absent.h5", to=ram)
    assert left(ram) == []


def test_a_folder_and_a_pipe_are_refused_as_sources(ram, tmp_path):
    with pytest.raises(SourceError, match="is a folder"):
        stage(tmp_path, to=ram)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="is a pipe or a device"):
        stage(tmp_path / "pipe", to=ram)


def test_a_target_that_is_a_file_is_refused(write, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StagingError, match="is no folder"):
        stage(write("a.h5", 1), to=tmp_path / "file")


@pytest.mark.parametrize("options", [{"threads": 0}, {"margin_bytes": -1}])
def test_a_wrong_option_is_refused(write, ram, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        stage(write("a.h5", 1), to=ram, **options)


def test_a_read_only_target_is_named(write, small_tmpfs):
    folder = small_tmpfs("1m", "ro")
    with pytest.raises(StagingError, match="Read-only file system"):
        stage(write("a.h5", 1), to=folder)


def pieces(monkeypatch, action, after=1):
    """Do something when so many pieces have been written."""
    written = itertools.count(1)
    after_each_write(monkeypatch, lambda: action() if next(written) == after else None)


@pytest.mark.parametrize("how", ["grows", "shrinks", "is touched", "is replaced", "is removed"])
def test_a_source_that_changes_while_it_is_copied_is_an_error(write, ram, tmp_path, monkeypatch, left, how):
    source = write("a.h5", 4 * MIB)
    other = write("other.h5", 4 * MIB)
    os.utime(other, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    actions = {
        "grows": lambda: os.truncate(source, 5 * MIB),
        "shrinks": lambda: os.truncate(source, MIB),
        "is touched": lambda: os.utime(source, ns=(1, 1)),
        "is replaced": lambda: other.replace(source),
        "is removed": source.unlink,
    }
    pieces(monkeypatch, actions[how])
    with pytest.raises(SourceChangedError, match=r"a\.h5 (changed|was removed) while it was copied"):
        stage(source, to=ram, threads=1)
    assert left(ram) == []


def test_bytes_that_do_not_read_back_are_an_error(write, ram, monkeypatch, left):
    read_back = copying.read_back

    def damaged(block, memory, at):
        piece = read_back(block, memory, at)
        piece[0] ^= 1
        return piece

    monkeypatch.setattr(copying, "read_back", damaged)
    with pytest.raises(StagedFileDamagedError, match="is not what is read back"):
        stage(write("a.h5", 1000), to=ram)
    assert left(ram) == []


def test_an_input_error_names_the_file(write, ram, monkeypatch, left):
    def broken(block, piece, at):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(copying, "_write", broken)
    with pytest.raises(StagingError, match=r"a\.h5 cannot be copied to .*Input/output error"):
        stage(write("a.h5", 1000), to=ram)
    assert left(ram) == []


def test_what_is_bigger_than_the_tmpfs_is_refused_with_numbers(write, small_tmpfs, left):
    folder = small_tmpfs("8m")
    big, small = write("big.h5", 9 * MIB), write("small.h5", MIB)
    words = r"2 file\(s\) of 10\.0 MiB .*1 of 2 would fit: .*small\.h5"
    with pytest.raises(NotEnoughSpaceError, match=words) as caught:
        stage([big, small], to=folder)
    assert caught.value.needed == 10 * MIB
    assert 7 * MIB < caught.value.available <= 8 * MIB
    assert caught.value.errno == errno.ENOSPC
    assert left(folder) == []
    assert stage(small, to=folder).copied


def test_a_stale_copy_makes_room_for_the_new_one(write, small_tmpfs):
    folder = small_tmpfs("8m")
    source = write("a.h5", 5 * MIB)
    stage(source, to=folder, lease=False)
    write("a.h5", 6 * MIB)
    assert stage(source, to=folder).paths[0].stat().st_size == 6 * MIB


def test_a_tmpfs_that_fills_in_mid_copy_leaves_nothing(write, small_tmpfs, monkeypatch, left):
    folder = small_tmpfs("8m")
    source = write("a.h5", 5 * MIB)
    pieces(monkeypatch, lambda: (folder / "ballast").write_bytes(bytes(6 * MIB)))
    with pytest.raises(NotEnoughSpaceError, match=r"filled up while .*a\.h5"):
        stage(source, to=folder)
    assert left(folder) == ["ballast"]


def test_a_tmpfs_without_room_for_the_manifest_says_so(write, small_tmpfs, left):
    folder = small_tmpfs("64k")
    (folder / "ballast").write_bytes(bytes(64 << 10))
    with pytest.raises(NotEnoughSpaceError):
        stage(write("a.h5", 0), to=folder)
    assert left(folder) == ["ballast"]


def test_memory_limits_a_tmpfs_and_leaves_a_margin(write, ram, monkeypatch, left):
    memory_available(monkeypatch, 300 * MIB)
    words = r"available memory is 300 MiB less a margin of 256 MiB"
    with pytest.raises(NotEnoughSpaceError, match=words):
        stage(write("a.h5", 45 * MIB), to=ram)
    assert left(ram) == []
    assert stage(write("b.h5", 43 * MIB), to=ram).copied
    with pytest.raises(NotEnoughSpaceError, match=r"less a margin of 299 MiB"):
        stage(write("c.h5", 2 * MIB), to=ram, margin_bytes=299 * MIB)


def test_memory_does_not_limit_a_disk(write, tmp_path, monkeypatch):
    if mount_of(tmp_path).in_memory:
        pytest.skip("the temporary folder lies in memory")
    memory_available(monkeypatch, 0)
    assert stage(write("a.h5", 1000), to=tmp_path / "disk", margin_bytes=0).copied


def test_an_error_of_the_progress_callback_ends_the_call(write, ram, left):
    class EnoughError(Exception):
        pass

    def stop(now):
        raise EnoughError

    with pytest.raises(EnoughError):
        stage(write("a.h5", 1000), to=ram, progress=stop)
    assert left(ram) == []


def test_progress_ends_at_the_total(write, ram):
    told = []
    stage([write("a.h5", 3 * MIB), write("b.h5", 0)], to=ram, progress=told.append)
    assert told[-1].bytes_done == told[-1].bytes_total == 3 * MIB
    assert told[-1].files_done == told[-1].files_total == 2
    assert all(one.bytes_done <= two.bytes_done for one, two in pairwise(told))


def test_what_failed_half_way_keeps_the_whole_copies_only(write, ram, monkeypatch, left):
    first, second = write("first.h5", MIB), write("second.h5", 5 * MIB)
    pieces(monkeypatch, lambda: os.truncate(second, 6 * MIB), after=8)
    with pytest.raises(SourceChangedError):
        stage([first, second], to=ram, threads=1)
    assert not (ram / "second.h5").exists()
    assert all(file.checksum for file in list_staged(ram))
    assert not [name for name in left(ram) if name.endswith((".part", ".session"))]


def test_a_staged_block_takes_its_copies_away(write, ram, left):
    with staged([write("a.h5", 100), write("a.h5", 50, folder="b")], to=ram) as paths:
        assert [path.stat().st_size for path in paths] == [100, 50]
    assert left(ram) == []


def test_a_staged_block_leaves_what_stage_put_there(write, ram):
    source = write("a.h5", 100)
    stage(source, to=ram, lease=False)
    with staged(source, to=ram):
        pass
    assert (ram / "a.h5").exists()


def test_the_last_of_two_staged_blocks_takes_the_copy_away(write, ram, left):
    source = write("a.h5", 100)
    with staged(source, to=ram):
        with pytest.raises(KeyboardInterrupt), staged(source, to=ram):
            raise KeyboardInterrupt
        assert (ram / "a.h5").exists()
    assert left(ram) == []


def test_who_wants_the_lock_waits_for_it_and_can_be_stopped_meanwhile(write, ram, left):
    source, told = write("a.h5", 1000), []

    def show(now):
        told.append(now)
        raise KeyboardInterrupt

    (ram / ".h5stream").mkdir()
    with (ram / ".h5stream" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(KeyboardInterrupt):
            stage(source, to=ram, lease=False, progress=show)
        assert left(ram) == [".h5stream", ".h5stream/lock"]
    assert len(told) == 1
    assert stage(source, to=ram, lease=False).copied == (ram / "a.h5",)


def test_a_folder_that_cannot_be_locked_is_named(write, ram, monkeypatch):
    def refuse(descriptor, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StagingError, match=r"No locks available.*needs a folder that may be written and locked"):
        stage(write("a.h5", 10), to=ram)


def test_a_part_that_was_exchanged_in_mid_copy_is_never_given_the_name(write, ram, monkeypatch, left):
    done = []

    def exchange():
        if not done:
            done.append(True)
            (part,) = (ram / ".h5stream").glob("*.part")
            part.unlink()
            part.touch()

    after_each_write(monkeypatch, exchange)
    with pytest.raises(StagingError, match=r"was removed from .* while it was made"):
        stage(write("a.h5", 33 << 20), to=ram, threads=1)
    assert left(ram) == []

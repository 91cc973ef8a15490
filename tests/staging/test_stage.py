"""Copies appear whole or not at all, once for each source, and under names that do not clash."""

import errno
import fcntl
import gc
import itertools
import json
import os
import stat
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from support.inner import after_each_write, around, memory_available
from support.making import write_datasets
from support.seeded import SeededLoader as H5StreamLoader
from torch.utils.data import Subset

from h5stream import H5Dataset, errors
from h5stream.base.filesystem import Mount, mount_of
from h5stream.staging import copying, list_staged, remove_staged, run, stage, staged
from h5stream.staging.folder import BLOCK_BYTES

MIB = 1 << 20


def test_copies_have_the_bytes_the_mode_and_the_time_of_their_sources_in_the_order_asked_for(write, ram):
    sizes = [0, 1, 4096, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * MIB + 17, *range(1000, 36_000, 1000)]
    sources = [write(f"{n}.h5", size) for n, size in enumerate(sizes)][::-1]
    sources[0].chmod(0o640)
    result = stage(iter(sources), to=ram, threads=3)
    assert result.paths == result.copied == tuple(ram / source.name for source in sources)
    for path, source in zip(result.paths, sources, strict=True):
        assert path.read_bytes() == source.read_bytes()
        assert path.stat().st_mtime_ns == source.stat().st_mtime_ns
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(source.stat().st_mode)
    assert result.bytes_copied == sum(sizes)


STALE = {
    "longer": lambda source, copy: source.write_bytes(bytes(2000)),
    "same size": lambda source, copy: (source.write_bytes(bytes(1000)), os.utime(source, ns=(1, 1))),
    "copy written to": lambda source, copy: copy.write_bytes(b"x" * 1000),
    "copy gone": lambda source, copy: copy.unlink(),
}


@pytest.mark.parametrize("how", STALE)
def test_a_stale_copy_is_replaced(write, ram, how):
    source, copy = write("a.h5", 1000), ram / "a.h5"
    stage(source, to=ram, lease=False)
    STALE[how](source, copy)
    assert stage(source, to=ram).copied == (copy,)
    assert copy.read_bytes() == source.read_bytes()


def test_a_stale_copy_in_use_stays_until_it_is_no_longer_used(write, ram):
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


def test_a_file_that_is_not_ours_keeps_its_name_also_where_it_appears_meanwhile(write, ram, monkeypatch, left):
    source, mine = write("a.h5", 100), ram / "a.h5"
    with monkeypatch.context() as patched:
        around(patched, run.filesystem, "give_name", before=lambda *_: mine.write_bytes(b"mine"))
        with pytest.raises(errors.StagingError, match="File exists"):
            stage(source, to=ram)
    assert mine.read_bytes() == b"mine"
    assert left(ram) == ["a.h5"]
    (copy,) = stage(source, to=ram).paths
    assert copy.read_bytes() == source.read_bytes()
    assert mine.read_bytes() == b"mine"


def test_symbolic_links_are_staged_under_their_own_names_also_to_a_folder_that_is_one(write, ram, tmp_path):
    source, link, fast = write("real.h5", 100), tmp_path / "link.h5", tmp_path / "fast"
    link.symlink_to(source)
    fast.symlink_to(ram)
    assert stage(link, to=fast).paths == (fast / "link.h5",)
    assert not (ram / "link.h5").is_symlink()
    assert (ram / "link.h5").read_bytes() == source.read_bytes()


UNUSUAL = ["Größe 数据.h5", os.fsdecode(b"caf\xe9.h5"), "a\nb.h5", "[bold]x.h5", "n" * 252 + ".h5"]


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_names_survive(write, ram, name):
    stage(write(name, 100), to=ram, lease=False)
    assert [file.path.name for file in list_staged(ram)] == [name]
    assert remove_staged(ram, ram / name).bytes_freed == 100


def test_a_source_in_the_folder_stays_where_it_is(ram, left):
    source = ram / "a.h5"
    source.write_bytes(b"x")
    result = stage(source, to=ram)
    assert (result.paths, result.copied) == ((source,), ())
    assert "in the folder already" in result.notices[0]
    assert left(ram) == ["a.h5"]


REFUSED = [
    ({"files": "absent.h5"}, errors.SourceNotFoundError, r"no such file: .*absent"),
    ({"files": "."}, errors.SourceNotFoundError, r"no file in the folder '\.' ends in"),
    ({"files": "pipe"}, errors.SourceError, "is a pipe or a device"),
    ({"to": "data/a.h5"}, errors.StagingError, "is no folder"),
    ({"threads": 0}, errors.OptionError, "threads"),
    ({"margin_bytes": -1}, errors.OptionError, "margin_bytes"),
]


@pytest.mark.parametrize(("given", "error", "says"), REFUSED)
def test_what_cannot_be_staged_is_named_and_nothing_is_made(
    write, ram, tmp_path, monkeypatch, left, given, error, says
):
    write("a.h5", 1)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        stage(**{"files": "data/a.h5", "to": ram} | given)
    assert left(ram) == []


def test_a_read_only_target_is_named(write, small_tmpfs):
    with pytest.raises(errors.StagingError, match="Read-only file system"):
        stage(write("a.h5", 1), to=small_tmpfs("1m", "ro"))


def pieces(monkeypatch, action, after=1):
    """Do something when so many pieces have been written."""
    written = itertools.count(1)
    after_each_write(monkeypatch, lambda: action() if next(written) == after else None)


CHANGES = {
    "grows": lambda source, other: os.truncate(source, 5 * MIB),
    "shrinks": lambda source, other: os.truncate(source, MIB),
    "is touched": lambda source, other: os.utime(source, ns=(1, 1)),
    "is replaced": lambda source, other: other.replace(source),
    "is removed": lambda source, other: source.unlink(),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_source_that_changes_while_it_is_copied_is_an_error(write, ram, monkeypatch, left, how):
    source, other = write("a.h5", 4 * MIB), write("other.h5", 4 * MIB)
    os.utime(other, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    pieces(monkeypatch, lambda: CHANGES[how](source, other))
    with pytest.raises(errors.SourceChangedError, match=r"a\.h5 (changed|was removed) while it was copied"):
        stage(source, to=ram, threads=1)
    assert left(ram) == []


def test_bytes_that_do_not_read_back_are_an_error(write, ram, monkeypatch, left):
    read_back = copying.read_back

    def damaged(block, memory, at):
        piece = read_back(block, memory, at)
        piece[0] ^= 1
        return piece

    monkeypatch.setattr(copying, "read_back", damaged)
    with pytest.raises(errors.StagedFileDamagedError, match="is not what is read back"):
        stage(write("a.h5", 1000), to=ram)
    assert left(ram) == []


def failing(number, text):
    def fail(*_):
        raise OSError(number, text)

    return fail


def test_errors_of_the_system_name_the_file_or_the_folder(write, ram, monkeypatch, left):
    source = write("a.h5", 1000)
    with monkeypatch.context() as patched:
        patched.setattr(copying, "_write", failing(errno.EIO, "Input/output error"))
        with pytest.raises(errors.StagingError, match=r"a\.h5 cannot be copied to .*Input/output error"):
            stage(source, to=ram)
    assert left(ram) == []
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK, "No locks available"))
    with pytest.raises(errors.StagingError, match=r"No locks available.*needs a folder that may be written and locked"):
        stage(source, to=ram)


def test_what_is_bigger_than_the_tmpfs_is_refused_with_numbers(write, small_tmpfs, left):
    folder = small_tmpfs("8m")
    big, small = write("big.h5", 9 * MIB), write("small.h5", MIB)
    words = r"2 files of 10\.0 MiB .*1 of 2 would fit: .*small\.h5"
    with pytest.raises(errors.NotEnoughSpaceError, match=words) as caught:
        stage([big, small], to=folder)
    assert (caught.value.needed, caught.value.errno) == (10 * MIB, errno.ENOSPC)
    assert 7 * MIB < caught.value.available <= 8 * MIB
    assert left(folder) == []
    assert stage(small, to=folder).copied


def test_a_stale_copy_makes_room_for_the_new_one(write, small_tmpfs):
    folder = small_tmpfs("8m")
    source = write("a.h5", 5 * MIB)
    stage(source, to=folder, lease=False)
    write("a.h5", 6 * MIB)
    assert stage(source, to=folder).paths[0].stat().st_size == 6 * MIB


def test_a_tmpfs_that_fills_up_keeps_nothing_of_ours(write, small_tmpfs, monkeypatch, left):
    full = small_tmpfs("64k")
    (full / "ballast").write_bytes(bytes(64 << 10))  # no room for the manifest
    with pytest.raises(errors.NotEnoughSpaceError):
        stage(write("a.h5", 0), to=full)
    assert left(full) == ["ballast"]
    folder = small_tmpfs("8m")
    pieces(monkeypatch, lambda: (folder / "ballast").write_bytes(bytes(6 * MIB)))
    with pytest.raises(errors.NotEnoughSpaceError, match=r"filled up while .*a\.h5"):
        stage(write("a.h5", 5 * MIB), to=folder)
    assert left(folder) == ["ballast"]


def test_memory_limits_a_tmpfs_and_leaves_a_margin(write, ram, monkeypatch, left):
    memory_available(monkeypatch, 300 * MIB)
    with pytest.raises(errors.NotEnoughSpaceError, match=r"available memory is 300 MiB less a margin of 256 MiB"):
        stage(write("a.h5", 45 * MIB), to=ram)
    assert left(ram) == []
    assert stage(write("b.h5", 43 * MIB), to=ram).copied
    with pytest.raises(errors.NotEnoughSpaceError, match=r"less a margin of 299 MiB"):
        stage(write("c.h5", 2 * MIB), to=ram, margin_bytes=299 * MIB)


def test_memory_does_not_limit_a_disk(write, tmp_path, monkeypatch):
    if mount_of(tmp_path).in_memory:
        pytest.skip("the temporary folder lies in memory")
    memory_available(monkeypatch, 0)
    assert stage(write("a.h5", 1000), to=tmp_path / "disk", margin_bytes=0).copied


def test_a_mount_that_is_not_known_has_no_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(run.filesystem, "mount_of", lambda path: Mount("", "/"))
    assert run.filesystem.usable_bytes(tmp_path)[1][0].startswith("the free space is")


def test_progress_ends_at_the_total_and_its_error_ends_the_call(write, ram, left):
    told, sources = [], [write("a.h5", 3 * MIB), write("b.h5", 0)]

    def stop(now):
        raise LookupError

    with pytest.raises(LookupError):
        stage(sources, to=ram, progress=stop)
    assert left(ram) == []
    stage(sources, to=ram, progress=told.append)
    assert told[-1].bytes_done == told[-1].bytes_total == 3 * MIB
    assert told[-1].files_done == told[-1].files_total == 2
    assert all(one.bytes_done <= two.bytes_done for one, two in pairwise(told))


def test_what_failed_half_way_keeps_the_whole_copies_only(write, ram, monkeypatch, left):
    first, second = write("first.h5", MIB), write("second.h5", 5 * MIB)
    pieces(monkeypatch, lambda: os.truncate(second, 6 * MIB), after=8)
    with pytest.raises(errors.SourceChangedError):
        stage([first, second], to=ram, threads=1)
    assert not (ram / "second.h5").exists()
    assert all(file.checksum for file in list_staged(ram))
    assert not [name for name in left(ram) if name.endswith((".part", ".session"))]


def test_a_staged_block_takes_its_copies_away_and_leaves_what_stage_put_there(write, ram, left):
    source, other = write("a.h5", 100), write("a.h5", 50, folder="b")
    with staged([source, other], to=ram) as paths:
        assert [path.stat().st_size for path in paths] == [100, 50]
    assert left(ram) == []
    stage(source, to=ram, lease=False)
    with staged([source, other], to=ram):
        pass
    assert [file.path for file in list_staged(ram)] == [ram / "a.h5"]


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


def test_a_part_that_was_exchanged_in_mid_copy_is_never_given_the_name(write, ram, monkeypatch, left):
    def exchange():
        (part,) = (ram / ".h5stream").glob("*.part")
        part.unlink()
        part.touch()

    pieces(monkeypatch, exchange)
    with pytest.raises(errors.StagingError, match=r"was removed from .* while it was made"):
        stage(write("a.h5", 33 << 20), to=ram, threads=1)
    assert left(ram) == []


def test_the_checksum_can_be_made_by_anybody_with_xxhash(write, ram):
    source = write("a.h5", (32 << 20) + 5)
    stage(source, to=ram)
    recorded = json.loads((ram / ".h5stream/manifest.json").read_text())["files"]["a.h5"]["checksum"]
    content, size = source.read_bytes(), recorded["block_bytes"]
    digests = [xxhash.xxh3_128_digest(content[at : at + size]) for at in range(0, len(content), size)]
    assert recorded["algorithm"] == "xxh3_128"
    assert recorded["digest"] == xxhash.xxh3_128_hexdigest(b"".join(digests))


def test_a_source_in_memory_and_a_folder_on_the_network_are_told_to_gain_little(write, ram, tmp_path, monkeypatch):
    (ram / "a.h5").write_bytes(b"x")
    assert "in memory already (tmpfs)" in stage(ram / "a.h5", to=ram / "fast").notices[0]
    source = write("b.h5", 100)
    monkeypatch.setattr(run.filesystem, "mount_of", lambda path: Mount("ext4" if path == source else "nfs4", "/"))
    assert "is on the network (nfs4)" in stage(source, to=ram).notices[0]
    assert "on the same file system and no faster" in stage(source, to=tmp_path / "beside").notices[0]


def test_what_reads_from_the_page_cache_is_noticed_when_it_is_staged(write, small_tmpfs, monkeypatch):
    folder = small_tmpfs("8m")
    monkeypatch.setattr(run.filesystem, "resident_bytes", lambda path: path.stat().st_size)
    sources = [write(f"{n}.h5", 1000) for n in range(10)]
    notices = stage(sources, to=folder).notices
    assert len(notices) == 4
    assert "7 more of 10 files likewise" in notices[-1]


# --- a loader reads from a leased copy, and gives the lease back -------------------------------------------------


ROWS = 2000


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.h5", "b.h5"):
        x = np.random.default_rng(len(name)).integers(0, 99, (ROWS, 30)).astype("f4")
        write_datasets(folder / name, x=x, y={"data": np.arange(ROWS), "chunks": (100,), "compression": "gzip"})
    return folder / "a.h5"


def users(folder):
    return [file.used_by for file in list_staged(folder)]


def content(loader):
    return [tuple(value.numpy().tobytes() for value in batch) for batch in loader]


def load(source, **options):
    return H5StreamLoader(source, 128, shuffle=True, fields=["x", "y"], **options)


def test_the_lease_lasts_until_close_the_end_of_a_block_or_of_the_loader(source, ram):
    one, two = load(source, stage_to=ram), load(source, stage_to=ram)
    for loader in (one, two):
        assert users(ram) == [(os.getpid(),)]
        with pytest.raises(errors.StagedFileInUseError):
            remove_staged(ram)
        assert len(content(loader)) == len(loader)
        loader.close()
        loader.close()
    assert users(ram) == [()]
    with load(source, stage_to=ram) as loader:
        next(iter(loader))
    assert users(ram) == [()]
    loader = load(source, stage_to=ram)
    next(iter(loader))
    assert users(ram) == [(os.getpid(),)]
    del loader
    gc.collect()
    assert users(ram) == [()]
    assert remove_staged(ram).removed == (ram / "a.h5",)


def test_a_loader_that_fails_to_be_made_leases_nothing(source, ram):
    with pytest.raises(errors.OptionError):
        load(source, stage_to=ram, memory_budget=1)
    gc.collect()
    assert all(used == () for used in users(ram))
    for wrong in ({"batch_size": -1}, {"seed": -1}):
        with pytest.raises(errors.OptionError):
            H5StreamLoader(source, fields=["x", "y"], stage_to=ram / "other", **wrong)
    assert not (ram / "other").exists()


@pytest.mark.parametrize("kind", ["pattern", "dataset", "subset"])
def test_whatever_a_loader_takes_is_staged(source, ram, kind):
    both = [str(source), str(source.with_name("b.h5"))]
    given = {
        "pattern": str(source.with_name("*.h5")),
        "dataset": H5Dataset(both, ["x", "y"], rows=np.arange(0, 2 * ROWS, 3)),
        "subset": Subset(H5Dataset(both, ["x", "y"]), list(range(500, 3000))),
    }[kind]
    fields = ["x", "y"] if kind == "pattern" else None
    options = {"shuffle": True, "fields": fields, "seed": 3}
    expected = [str(batch) for batch in H5StreamLoader(given, 300, **options)]
    with H5StreamLoader(given, 300, stage_to=ram, **options) as loader:
        assert [str(batch) for batch in loader] == expected
        assert len(list_staged(ram)) == 2

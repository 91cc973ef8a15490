"""`repack`: the new file holds what the old one holds, in other chunks, or it is not there."""

import contextlib
import functools
import io
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from support import forking
from support.commands import printed
from support.inner import memory_available
from support.making import corrupt_chunk, make_file, write_datasets
from support.same_file import assert_same_tree

from h5stream import H5StreamLoader, errors, repack, stage, staged
from h5stream.order.places import permutation
from h5stream.repacking import survey
from h5stream.staging import StagedState, list_staged, verify_staged


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def numbers(rows, columns=24, dtype="f4"):
    return np.random.default_rng(rows).integers(0, 100, (rows, columns)).astype(dtype)


@functools.cache
def content():
    """Give the bytes of a file of many small chunks."""
    bytes_of_it = io.BytesIO()
    x = {"data": numbers(5000), "chunks": (7, 5), "compression": "gzip"}
    write_datasets(bytes_of_it, x=x, y={"data": np.arange(5000), "chunks": (300,)})
    return bytes_of_it.getvalue()


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.h5"
    path.write_bytes(content())
    return path


def rewritten(source, folder, *, order=None, samples=0, **options):
    """Rewrite a file and compare both; give the result and the new file."""
    target = folder / "b.h5"
    result = repack(source, target, **options)
    assert_same_tree(source, target, order=order, samples=samples)
    return result, target


@pytest.mark.parametrize("compress", ["none", "lz4", "zstd", "gzip"])
def test_every_compression_is_read_by_h5py_and_by_the_loader(plain, folder, compress):
    result, target = rewritten(plain, folder, compress=compress, chunk_nbytes=1 << 15)
    assert result.rewritten == ("x", "y")
    with h5py.File(target) as file:
        assert file["x"].chunks == ((1 << 15) // 96, 24)
        assert (file["x"].id.get_create_plist().get_nfilters() > 0) == (compress != "none")
        expected = file["x"][:]
    batches = [x for x, _ in H5StreamLoader(target, 512, fields=["x", "y"])]
    assert np.concatenate(batches).tobytes() == expected.tobytes()


@pytest.mark.parametrize("compress", ["lz4", "zstd", "gzip"])
def test_what_does_not_get_smaller_is_stored_as_it_is(tmp_path, folder, compress):
    write_datasets(tmp_path / "a.h5", x=np.random.default_rng(0).integers(0, 256, (4096, 64)).astype("u1"))
    _, target = rewritten(tmp_path / "a.h5", folder, compress=compress, chunk_nbytes=1 << 16)
    with h5py.File(target) as file:
        chunk = file["x"].id.get_chunk_info(0)
        assert (chunk.size, chunk.filter_mask) == (1 << 16, 1)
    (batch,) = H5StreamLoader(target, 4096, fields="x")
    assert batch.shape == (4096, 64)


def test_contiguous_data_has_no_chunks_and_says_that_it_cannot_grow(tmp_path, folder):
    make_file(tmp_path / "a.h5", "x", None, data=numbers(5000), chunks=(7, 5), maxshape=(None, 24), compression="gzip")
    result, target = rewritten(tmp_path / "a.h5", folder, contiguous=True)
    assert result.notices == ("x can no longer grow: it is stored without chunks",)
    with h5py.File(target) as file:
        assert (file["x"].chunks, file["x"].maxshape) == (None, (5000, 24))


def test_fields_choose_what_is_rewritten_and_the_rest_is_copied(plain, folder):
    result, target = rewritten(plain, folder, fields="x", chunk_nbytes=1 << 15)
    assert (result.rewritten, result.copied) == (("x",), (("y", "not among fields="),))
    with h5py.File(target) as file:
        assert (file["x"].chunks, file["y"].chunks) == ((341, 24), (300,))


def test_chunks_that_were_never_written_stay_so(tmp_path, folder):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", (1_000_000, 8), "f4", chunks=(1000, 8), fillvalue=2.5)
        x[500_000:500_100] = 1
        file.create_dataset("never", (1_000_000,), "i8", fillvalue=-1)
    _, target = rewritten(tmp_path / "a.h5", folder)
    assert target.stat().st_size < 2 << 20


def test_a_shuffle_permutes_every_dataset_of_the_samples_and_no_other(tmp_path, folder):
    rows = 2000
    pair = np.zeros(rows, dtype=[("a", "i4"), ("b", "S3")])
    pair["a"] = np.arange(rows)
    x = {"data": numbers(rows), "chunks": (50, 24), "compression": "gzip"}
    held = {"x": x, "y": np.arange(rows), "deep/obs": pair, "deep/words": [f"word {i}" for i in range(rows)]}
    write_datasets(tmp_path / "a.h5", **held, other=np.arange(70), one=4)
    order, options = permutation(rows, 7), {"fields": ["x", "y"], "shuffle_rows": 7, "chunk_nbytes": 4096}
    result, target = rewritten(tmp_path / "a.h5", folder, order=order, samples=rows, **options)
    assert sorted(result.shuffled) == ["deep/obs", "deep/words", "x", "y"]
    doubtful, undone = result.notices
    assert "other: whole numbers of 0 to 2,000" in doubtful
    assert "gzip-4 is undone and not replaced" in undone
    with h5py.File(target) as file:
        assert file["y"][:].tolist() == order.tolist() != list(range(rows))


EDGES = np.arange(0, 903, 3)
PAIRS = np.stack([EDGES[:-1], EDGES[1:]], axis=1)
POINTERS = {"pairs": PAIRS, "columns": PAIRS.T, "indptr": EDGES, "begin": EDGES[:-1], "lengths": np.arange(25) * 3}
POINTERS["members"] = np.rec.fromarrays([*PAIRS.T], names="begin,end")


@pytest.mark.parametrize("name", [*POINTERS, "regions"])
def test_rows_that_another_dataset_points_to_are_not_shuffled(tmp_path, folder, name):
    write_datasets(tmp_path / "a.h5", values=numbers(900))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        if name in POINTERS:
            file["p"] = POINTERS[name]
        else:
            file.create_dataset("p", data=[file["values"].regionref[3:9]], dtype=h5py.regionref_dtype)
    with pytest.raises(errors.OptionError, match=r"moves the 900 rows of values, and 'p' .*let the loader shuffle"):
        repack(tmp_path / "a.h5", folder / "b.h5", fields="values", shuffle_rows=7)
    assert list(folder.iterdir()) == []


def test_a_dataset_that_cannot_be_read_is_no_pointer(tmp_path, folder):
    p = {"data": np.arange(40)[::-1], "chunks": (10,), "compression": "gzip", "fletcher32": True}
    corrupt_chunk(write_datasets(tmp_path / "a.h5", a=p, values=numbers(900)), 1, "a")
    done = repack(tmp_path / "a.h5", folder / "b.h5", fields="values", shuffle_rows=7)
    assert done.shuffled == ("values",)
    assert any("a was copied as it is and not compared" in notice for notice in done.notices)


def test_a_shuffle_that_does_not_fit_memory_reads_the_source_several_times(plain, folder, monkeypatch):
    memory_available(monkeypatch, 600_000)
    options = {"fields": "x", "shuffle_rows": 1, "chunk_nbytes": 1 << 14}
    rewritten(plain, folder, order=permutation(5000, 1), samples=5000, **options)


def test_a_shuffle_needs_fields_of_one_length(tmp_path, folder):
    write_datasets(tmp_path / "a.h5", x=np.arange(10), y=np.arange(11))
    with pytest.raises(errors.FieldLengthError, match="of unlike length"):
        repack(tmp_path / "a.h5", folder / "b.h5", shuffle_rows=0)
    with pytest.raises(errors.FieldLengthError, match=r"\[10, 11\] rows"):
        repack(tmp_path / "a.h5", folder / "b.h5", shuffle_rows=0, fields=["x", "y"])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["virtual", "external"])
def test_a_shuffle_never_writes_into_the_files_that_rows_are_borrowed_from(tmp_path, folder, kind):
    write_datasets(tmp_path / "other.h5", y=np.arange(100))
    layout = h5py.VirtualLayout((100,), "i8")
    layout[:] = h5py.VirtualSource("other.h5", "y", (100,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(100)
        if kind == "virtual":
            file.create_virtual_dataset("y", layout)
        else:
            file.create_dataset("y", (100,), "i8", external=[(str(tmp_path / "other.h5"), 0, 800)])
    before = (tmp_path / "other.h5").read_bytes()
    with pytest.raises(errors.OptionError, match="moves the rows of 'y' too, which lie in other files"):
        repack(tmp_path / "a.h5", tmp_path / "b.h5", fields="x", shuffle_rows=1)
    assert (tmp_path / "other.h5").read_bytes() == before
    assert not (tmp_path / "b.h5").exists()


def test_links_scales_references_and_attributes_are_kept(tmp_path, folder):
    with h5py.File(tmp_path / "a.h5", "w", track_order=True, userblock_size=512) as file:
        x = file.create_dataset("zz/x", data=numbers(500), chunks=(10, 24))
        file["a_scale"] = np.arange(500)
        file["a_scale"].make_scale("time")
        x.dims[0].attach_scale(file["a_scale"])
        x.dims[1].label = "column"
        file["soft"], file["ext"] = h5py.SoftLink("/zz/x"), h5py.ExternalLink("other.h5", "/y")
        file["same"] = x
        file["zz/up"] = file["/"]  # a ring of groups
        file["type"] = np.dtype([("a", "i4"), ("b", "f8")])
        file.create_dataset("refs", data=np.array([x.ref, file["zz"].ref, None], dtype=object), dtype=h5py.ref_dtype)
        file.create_dataset("region", data=x.regionref[3:9, ::2], dtype=h5py.regionref_dtype)
        file["empty"], file["nothing"] = h5py.Empty("f4"), np.zeros((0, 3))
        words = file.create_dataset("words", (3,), h5py.string_dtype())
        words[:] = ["a", "", "ccc" * 1000]
        sequences = file.create_dataset("sequences", (2,), h5py.vlen_dtype("i4"))
        sequences[0], sequences[1] = [1, 2], []
        for owner in (file, x, file["zz"], file["type"]):
            owner.attrs["text"], owner.attrs["number"], owner.attrs["array"] = "ä", np.float32(2), numbers(3)
            owner.attrs["ref"], owner.attrs["none"] = x.ref, h5py.Empty("i2")
            owner.attrs.create("words", ["one", "two"], dtype=h5py.string_dtype("ascii"))
            owner.attrs.create("big_endian", np.arange(3), dtype=">i4")
            owner.attrs.create("enum", 1, dtype=h5py.enum_dtype({"no": 0, "yes": 1}))
    (tmp_path / "a.h5").write_bytes(b"user block".ljust(512, b"!") + (tmp_path / "a.h5").read_bytes()[512:])
    result, target = rewritten(tmp_path / "a.h5", folder, chunk_nbytes=4096)
    assert result.notices == ()
    assert target.read_bytes()[:512] == b"user block".ljust(512, b"!")
    with h5py.File(target) as file:
        assert file["zz/x"].chunks == (42, 24)
        assert list(file) == ["zz", "a_scale", "soft", "ext", "same", "type", "refs", "region", "empty", "nothing",
                              "words", "sequences"]  # fmt: skip
        assert file["zz/x"].dims[0]["time"] == file["a_scale"]
        assert file[file["refs"][0]] == file["zz/x"]
        assert (file[file["region"][()]][file["region"][()]] == file["zz/x"][3:9, ::2]).all()


@pytest.mark.parametrize(
    "stored", [{}, {"chunks": (4,)}, {"chunks": (4,), "maxshape": (None,), "compression": "gzip"}], ids=str
)
@pytest.mark.parametrize("written", [0, 10])
def test_text_with_a_fill_value_is_read_like_the_source_written_or_not(tmp_path, folder, stored, written):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(9)
        words = file.create_dataset("words", (10,), h5py.string_dtype(), fillvalue="none", **stored)
        words[:written], words.attrs["of"] = [f"wörd {i}" for i in range(written)], "words"
        file.create_dataset("one", (), h5py.string_dtype(), fillvalue="none")
    staged_file = stage(tmp_path / "a.h5", to=folder, repack={}).paths[0]
    repack(tmp_path / "a.h5", folder / "b.h5")
    for path in (staged_file, folder / "b.h5"):
        with h5py.File(tmp_path / "a.h5", "r+") as a, h5py.File(path, "r+") as b:  # read-only, libhdf5 fails
            assert (list(b["words"]), list(b["words"].attrs)) == (list(a["words"]), ["of"])
            assert (b["words"].fillvalue, b["one"].fillvalue, b["one"][()]) == (b"none",) * 3
            assert (b["words"].chunks, b["words"].maxshape) == (a["words"].chunks, a["words"].maxshape)
            assert b["words"].id.get_storage_size() > 0 or not a["words"].id.get_storage_size()


@pytest.mark.parametrize(("kept", "kind"), [(True, "external link"), (False, "virtual dataset source")])
def test_names_that_lead_elsewhere_from_the_new_folder_are_said(tmp_path, folder, kept, kind):
    write_datasets(tmp_path / "part.h5", x=np.arange(1, 10))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"], layout = np.arange(9), h5py.VirtualLayout((9,), "i8")
        layout[:] = h5py.VirtualSource("part.h5", "x", (9,))
        if kept:
            file["x"], file["absolute"] = (h5py.ExternalLink(f"{at}part.h5", "x") for at in ("", f"{tmp_path}/"))
        else:
            file.create_virtual_dataset("x", layout)
    assert repack(tmp_path / "a.h5", tmp_path / "b.h5").notices == ()
    needs = rf"lead elsewhere or nowhere from {folder}: part\.h5 \({kind}\)\."
    with contextlib.nullcontext() if kept else pytest.raises(errors.StagedFileDamagedError, match=needs):
        result = repack(tmp_path / "a.h5", folder / "b.h5")
    if kept:
        assert re.search(needs, result.notices[0])


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_the_permissions_of_the_source_are_kept(plain, folder, mode):
    plain.chmod(mode)
    seen = set()
    repack(plain, folder / "b.h5", progress=lambda _: seen.update(path.stat().st_mode for path in folder.iterdir()))
    assert {one & 0o777 for one in seen} == {mode | 0o600}
    assert (folder / "b.h5").stat().st_mode & 0o777 == mode


def test_of_many_datasets_few_are_open_at_once(tmp_path, folder):
    write_datasets(tmp_path / "a.h5", **{f"o/{k}": np.arange(4) for k in range(60)})
    counts = []

    def counted(*_):
        counts.append(h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_DATASET))

    rewritten(tmp_path / "a.h5", folder, progress=counted)
    assert len(counts) >= 60
    assert max(counts) < min(counts) + 30


def test_a_type_that_is_shared_by_name_is_named_in_a_notice_and_foreign_byte_order_is_kept(tmp_path, folder):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["kind"] = np.dtype("f4")
        file.create_dataset("x", (10,), file["kind"])
        values = np.empty(2, dtype=object)
        values[:] = [np.arange(2, dtype=">u8"), np.arange(3, dtype=">u8")]
        file.attrs.create("big", values, dtype=h5py.vlen_dtype(">u8"))
    result, _ = rewritten(tmp_path / "a.h5", folder)
    assert result.notices == ("/x no longer shares its named type; it has the type itself",)


# --- refusals -------------------------------------------------------------------------------------------------


def test_a_target_that_exists_is_refused_unless_overwrite_says_so(plain, folder):
    (folder / "b.h5").write_bytes(b"precious")
    with pytest.raises(errors.StagingError, match=r"b\.h5 exists; nothing was written.*overwrite=True"):
        repack(plain, folder / "b.h5")
    assert (folder / "b.h5").read_bytes() == b"precious"
    rewritten(plain, folder, overwrite=True)


def test_a_target_that_appears_meanwhile_is_not_overwritten_and_a_failing_progress_bar_ends_everything(plain, folder):
    def appear(now):
        (folder / "b.h5").write_bytes(b"precious")

    def fail(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repack(plain, folder / "b.h5", progress=fail)
    assert list(folder.iterdir()) == []
    with pytest.raises(errors.StagingError, match=r"cannot be rewritten to .*File exists"):
        repack(plain, folder / "b.h5", progress=appear)
    assert (folder / "b.h5").read_bytes() == b"precious"
    assert [path.name for path in folder.iterdir()] == ["b.h5"]


def test_a_target_that_is_no_regular_file_is_never_replaced(plain, folder):
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(errors.StagingError, match=f"{name} is a pipe or a device, which is not replaced"):
            repack(plain, folder / name, overwrite=True)
        with pytest.raises(errors.StagingError, match="name the file to write"):
            printed("repack", plain, folder / name, "--overwrite")
        assert (folder / name).is_fifo()


@pytest.mark.parametrize("overwrite", [True, False])
def test_the_source_is_never_its_own_target(plain, folder, overwrite):
    (folder / "link.h5").symlink_to(plain)
    before = plain.read_bytes()
    for target in (plain, folder / "link.h5"):
        with pytest.raises(errors.OptionError, match="the source itself"):
            repack(plain, target, overwrite=overwrite)
    assert plain.read_bytes() == before


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"compress": "lzma"}, errors.OptionError, "none, lz4, zstd, gzip"),
        ({"compress": "lz4", "contiguous": True}, errors.OptionError, "HDF5 compresses chunks"),
        ({"chunk_nbytes": 10}, errors.OptionError, "4 KiB to 1 GiB"),
        ({"shuffle_rows": -1}, errors.OptionError, "non-negative seed"),
        ({"fields": []}, errors.OptionError, "fields= is empty"),
        ({"fields": ["z"]}, errors.FieldNotFoundError, "no dataset 'z'"),
        ({"target": "none/b.h5"}, errors.StagingError, "make it first"),
    ],
)
def test_wrong_options_are_refused(plain, folder, monkeypatch, given, error, message):
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=message):
        repack(plain, **{"target": "b.h5"} | given)
    assert list(folder.iterdir()) == []


def test_a_corrupt_chunk_is_named_and_nothing_is_left(plain, folder):
    corrupt_chunk(plain, 3)
    with pytest.raises(errors.CorruptChunkError, match="'x'"):
        repack(plain, folder / "b.h5")
    assert list(folder.iterdir()) == []


def test_a_source_that_changes_meanwhile_is_refused(plain, folder):
    def touch(now):
        if now.step == "verifying":
            os.utime(plain, ns=(1, now.bytes_done))

    with pytest.raises(errors.SourceChangedError):
        repack(plain, folder / "b.h5", progress=touch)
    assert list(folder.iterdir()) == []


def test_verification_finds_a_single_wrong_bit(plain, folder, monkeypatch):
    reading = survey.read_rows

    def flipped(dataset, start, stop):
        rows = reading(dataset, start, stop)
        if dataset.file.filename != str(plain) and dataset.name == "/x":
            rows.reshape(-1).view("u1")[-1] ^= 1
        return rows

    monkeypatch.setattr(survey, "read_rows", flipped)
    for options in ({}, {"shuffle_rows": 3}):
        with pytest.raises(errors.StagedFileDamagedError, match="x: row"):
            repack(plain, folder / "b.h5", **options)
    assert list(folder.iterdir()) == []


# --- full disks, Ctrl-C and kill -9 ---------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_anything_is_written(plain, small_tmpfs):
    ram = small_tmpfs("256k")
    with pytest.raises(errors.NotEnoughSpaceError, match="has no room for"):
        repack(plain, ram / "b.h5")
    assert list(ram.iterdir()) == []


@pytest.mark.parametrize("options", [{}, {"compress": "lz4"}, {"contiguous": True}])
def test_a_disk_that_fills_up_leaves_nothing(plain, small_tmpfs, monkeypatch, options):
    monkeypatch.setattr("h5stream.repacking.repack.check_fits", lambda *_, **__: None)
    ram = small_tmpfs("64k")
    with pytest.raises(errors.NotEnoughSpaceError, match="filled up"):
        repack(plain, ram / "b.h5", **options)
    assert list(ram.iterdir()) == []
    rewritten(plain, small_tmpfs("4m"), **options)  # libhdf5 has let go of the file, and works on


REPACK = """
from h5stream import repack
def show(now):
    if now.step == sys.argv[3]:
        say("there")
        hear()
try:
    repack(sys.argv[1], sys.argv[2], progress=show)
except KeyboardInterrupt:
    say("interrupted", threads=[t.name for t in threading.enumerate()])
"""


@pytest.fixture
def paused(child, plain, folder):
    """A function that starts a process and waits until it has come to a step."""

    def start(step):
        process = child(REPACK, plain, folder / "b.h5", step)
        process.hear("there")
        return process

    return start


@pytest.mark.parametrize("step", ["writing", "verifying"])
def test_after_a_kill_nothing_looks_whole_and_the_next_call_cleans_up(paused, plain, folder, step):
    victim = paused(step)
    victim.kill(signal.SIGKILL)
    assert victim.end() == -signal.SIGKILL
    (part,) = folder.iterdir()
    assert (part.name[:6], part.suffix) == (".b.h5.", ".part")
    rewritten(plain, folder)
    assert [path.name for path in folder.iterdir()] == ["b.h5"]


def test_ctrl_c_leaves_nothing_and_ends_the_threads(paused, folder):
    victim = paused("writing")
    victim.kill(signal.SIGINT)
    assert [name for name in victim.hear("interrupted")["threads"] if name.startswith("h5stream")] == []
    assert victim.end() == 0
    assert list(folder.iterdir()) == []


def test_the_unfinished_file_of_a_live_process_is_left_alone(paused, plain, folder):
    paused("writing")
    repack(plain, folder / "b.h5")
    assert len(list(folder.iterdir())) == 2


BESIDE_A_READER = """
import h5py
import hdf5plugin
from h5stream import H5Dataset, repack
dataset = H5Dataset(sys.argv[1], "x")
dataset[:]
repack(sys.argv[1], sys.argv[2])
with h5py.File(sys.argv[2]) as file:
    say("right" if (file["x"][()] == dataset[:].numpy()).all() else "wrong")
"""


def test_what_a_reader_has_unpacked_is_copied_as_it_is_stored(child, tmp_path):
    make_file(tmp_path / "a.h5", data=np.arange(65536.0).reshape(64, 1024) % 5, chunks=(8, 1024), scaleoffset=2)
    reader = child(BESIDE_A_READER, tmp_path / "a.h5", tmp_path / "b.h5")
    reader.hear("right")
    assert reader.end() == 0


# --- rewritten on the way to faster storage ----------------------------------------------------------------------


LZ4 = {"compress": "lz4", "chunk_nbytes": 1 << 15}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "data" / "a.h5"
    path.parent.mkdir()
    values = np.random.default_rng(0).integers(0, 50, (4000, 25)).astype("f4")
    x = {"data": values, "chunks": (3, 25), "compression": "gzip"}
    write_datasets(path, x=x, y=np.arange(4000))
    return path


def test_a_repacked_copy_holds_the_same_and_is_reused(source, ram):
    first = stage(source, to=ram, repack=LZ4, lease=False)
    assert first.copied == (ram / "a.h5",)
    assert first.bytes_copied == (ram / "a.h5").stat().st_size
    assert_same_tree(source, ram / "a.h5")
    with h5py.File(ram / "a.h5") as file:
        assert file["x"].chunks == ((1 << 15) // 100, 25)
    again = stage(source, to=ram, repack=LZ4, lease=False)
    assert (again.copied, again.reused) == ((), (ram / "a.h5",))
    (file,) = list_staged(ram)
    assert (file.state, file.size_bytes) == (StagedState.FRESH, (ram / "a.h5").stat().st_size)
    assert '"compress": "lz4"' in file.recipe
    assert all(result.ok for result in verify_staged(ram))


@pytest.mark.parametrize("other", [None, {}, LZ4 | {"compress": "gzip"}, LZ4 | {"shuffle_rows": 1, "fields": "x"}])
def test_another_recipe_or_none_replaces_the_copy(source, ram, other):
    stage(source, to=ram, repack=LZ4, lease=False)
    result = stage(source, to=ram, repack=other, lease=False)
    assert result.copied == (ram / "a.h5",)
    assert len(list_staged(ram)) == 1
    assert stage(source, to=ram, repack=other, lease=False).copied == ()
    if other is None:
        assert (ram / "a.h5").read_bytes() == source.read_bytes()


def test_a_repacked_file_of_a_block_goes_with_it_and_damage_leaves_nothing(source, ram, left, monkeypatch):
    with staged(source, to=ram, repack={}) as paths:
        assert_same_tree(source, paths[0])
    assert left(ram) == []
    monkeypatch.setattr("h5stream.repacking.survey.difference", lambda *_: "row 3 differs")
    with pytest.raises(errors.StagedFileDamagedError):
        stage(source, to=ram, repack={})
    assert left(ram) == []


def test_what_cannot_be_repacked_is_refused(write, source, ram, left):
    with pytest.raises(errors.NotHDF5Error):
        stage(write("a.bin", 1000), to=ram, repack={})
    with pytest.raises(errors.OptionError, match="cannot repack"):
        stage(source, to=ram, follow=True, repack={})
    assert left(ram) == []


def test_the_command_shares_its_options_with_repack(source, ram):
    command = ["stage", source, "--to", ram, "--repack", "--compress", "zstd", "--chunk-bytes", "0.5MiB"]
    assert "1 repacked" in printed(*command)
    assert "fresh, repacked" in printed("stage", "--list", ram)
    for wrong in (command[:4] + command[5:], ["stage", "--list", ram, "--repack"]):
        with pytest.raises(errors.OptionError, match="--repack"):
            printed(*wrong)


def test_plain_staging_needs_no_torch(source, ram):
    script = "import sys; from h5stream import stage; stage(sys.argv[1], to=sys.argv[2]); print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script, str(source), str(ram)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


# --- real files --------------------------------------------------------------------------------------------------


CORPUS = Path(os.environ.get("H5STREAM_CORPUS") or Path(__file__).resolve().parents[3] / "shared" / "corpus")
SMALL = 2 << 20

# Where h5py itself cannot read what a file holds, there is no oracle.
UNREADABLE = (OSError, RuntimeError, TypeError, ValueError)


@pytest.mark.parametrize("block", [b"BTLF", b"FHDB"], ids=["index of names", "heap"])
def test_damaged_attributes_of_an_object_are_left_out_and_said(tmp_path, block):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["x"] = np.arange(9)
        file["x"].attrs.update({f"a{k}": k for k in range(20)})
    (tmp_path / "a.h5").write_bytes((tmp_path / "a.h5").read_bytes().replace(block, b"XXXX"))
    (notice,) = repack(tmp_path / "a.h5", tmp_path / "b.h5").notices
    assert notice.startswith("attributes of /x could not be kept")


OPTIONS = [{}, {"compress": "lz4", "chunk_nbytes": 8192}]


@pytest.mark.corpus
@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])], ids=["in turns", "all"]
)
def test_every_file_of_the_corpus_comes_through(tmp_path, whole):
    """By default every eighteenth, with one of the options, and none of the two with thousands of datasets."""
    files = [path for path in sorted(CORPUS.rglob("*")) if path.is_file() and opens(path)]
    if not files:
        pytest.skip(f"no corpus at {CORPUS}")
    if whole:
        asked = list(itertools.product(files, OPTIONS))
    else:
        small = [path for path in files if "large_group" not in path.name]
        asked = list(zip(small[::18], itertools.cycle(OPTIONS)))
    compared = 0
    for path, options in asked:
        try:
            result = repack(path, tmp_path / "b.h5", overwrite=True, **options)
        except errors.CorruptChunkError:
            assert "zfp_110xxx" in path.name
            continue
        if any("could not be kept" in notice for notice in result.notices):
            assert "globalheaps" in path.name or "var-length-strings-reused" in path.name
            continue
        with contextlib.suppress(*UNREADABLE):
            assert_same_tree(path, tmp_path / "b.h5")
            compared += 1
    assert compared > 0.8 * len(asked)


def opens(path):
    try:
        h5py.File(path).close()
    except OSError:
        return False
    return path.stat().st_size <= SMALL


LOOSE = {
    "numbers": (h5py.vlen_dtype("f4"), [np.full(k % 7, k, "f4") for k in range(300)]),
    "texts": (h5py.string_dtype(), [f"text {k} " * (k % 5) for k in range(300)]),
    "of another byte order": (h5py.vlen_dtype(">i4"), [np.arange(k % 4) for k in range(300)]),
    "pairs": (h5py.vlen_dtype(np.dtype([("a", "i2"), ("b", "f8")])), None),
    "members": (np.dtype([("n", "i4"), ("text", h5py.string_dtype()), ("values", h5py.vlen_dtype("f8"))]), None),
}


def loose(kind):
    """Give the type and 300 values of one kind."""
    dtype, values = LOOSE[kind]
    data = np.zeros(300, dtype)
    for k in range(300):
        if values is not None:
            data[k] = values[k]
        elif kind == "pairs":
            data[k] = np.array([(j, k / 2) for j in range(k % 3)], [("a", "i2"), ("b", "f8")])
        else:
            data["n"][k], data["text"][k], data["values"][k] = k, "x" * (k % 9), np.arange(k % 6) / 3
    return dtype, data


def test_values_of_variable_length_behind_a_filter_are_copied(tmp_path, folder):
    """In a process of its own, since libhdf5's own copy of most of these ends it."""
    for filters in ("Zstd", "LZ4", "BZip2", "Bitshuffle", "gzip"):
        options = {"compression": "gzip"} if filters == "gzip" else getattr(hdf5plugin, filters)()
        with h5py.File(tmp_path / f"{filters}.h5", "w") as file:
            for kind in LOOSE:
                dtype, data = loose(kind)
                file.create_dataset(kind, data=data, chunks=(40,), **options)
                file.attrs.create(kind, data[:9], dtype=dtype)
    sources = sorted(tmp_path.glob("*.h5"))
    code = "import h5stream, sys; h5stream.repack(sys.argv[2:], sys.argv[1])"
    ended = forking.run(code, folder, *sources)
    assert ended.returncode == 0, ended.stderr
    for source in sources:
        assert_same_tree(source, folder / source.name)


def test_values_of_variable_length_leave_no_memory_behind(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("v", (50,), h5py.vlen_dtype("f4"), chunks=(10,), compression="gzip")
        for k in range(50):
            data[k] = np.full(50_000, k, "f4")
    code = (
        "import h5stream, resource, sys; h5stream.repack(sys.argv[1], sys.argv[2])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for k in range(3): h5stream.repack(sys.argv[1], sys.argv[2], overwrite=True)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = forking.run(code, tmp_path / "a.h5", tmp_path / "b.h5")
    assert int(done.stdout) < 8_000  # KiB, where the values of one pass alone are 10,000


@pytest.mark.parametrize("shuffle_rows", [None, 5])
@pytest.mark.parametrize("kind", ["numbers", "members"])
def test_a_shuffle_keeps_values_of_variable_length_as_they_are_stored(tmp_path, folder, kind, shuffle_rows):
    base = np.dtype([("text", h5py.vlen_dtype("S2"))]) if kind == "members" else h5py.vlen_dtype(">f4")
    data = np.zeros(50, base)
    for k in range(50):
        value = np.array([b"ab", b"c"][: k % 3], "S2") if kind == "members" else np.arange(k % 4, dtype=">f4")
        data[k] = (value,) if kind == "members" else value
    write_datasets(tmp_path / "a.h5", x=numbers(50))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.create_dataset("v", data=data, chunks=(7,), compression="gzip")
    order = None if shuffle_rows is None else permutation(50, shuffle_rows)
    rewritten(tmp_path / "a.h5", folder, order=order, samples=50, fields="x", shuffle_rows=shuffle_rows)


@pytest.mark.parametrize("stored", [{}, {"compress": "gzip"}, {"contiguous": True}], ids=str)
def test_small_datasets_of_every_kind_come_through(tmp_path, folder, stored):
    pair = np.dtype([("a", ">i4"), ("b", "f4", (2, 2))])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(8):
            x = file.create_dataset(f"x{k}", (900, 4), ">f4", chunks=(70 + k, 3), compression="gzip", fillvalue=2.5)
            x[: 100 * k] = numbers(100 * k, 4)  # the chunks beyond are not written
            file[f"c{k}"] = np.zeros(20 + k, pair)
            arrays = h5py.h5d.create(
                file.id, f"a{k}".encode(), h5py.h5t.py_create(np.dtype(("f8", (2, 2)))), h5py.h5s.create_simple((9,))
            )
            arrays.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(36.0), mtype=arrays.get_type())
    result, _ = rewritten(tmp_path / "a.h5", folder, chunk_nbytes=4096, **stored)
    assert len(result.rewritten) == 24

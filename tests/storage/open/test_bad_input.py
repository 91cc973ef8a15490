"""Bad files: each refusal says what was asked, the rule, what was found, and the way out."""

import os
import re
import shutil

import h5py
import numpy as np
import pytest
import torch
from support.making import corrupt_chunk, make_file, write_datasets
from support.sample_files import reader_threads, write_sample

from h5stream import H5StreamLoader, errors
from h5stream.storage.file.stored import open_hdf5


def refused(kind, said, *, source, **options):
    """Open a loader, which must fail with what a pattern says; give the error, which stands alone."""
    with pytest.raises(kind, match=said) as caught:
        H5StreamLoader(str(source), **options)
    error = caught.value
    assert isinstance(error, errors.H5StreamError)
    # No other traceback is printed above the one that says everything.
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    return error


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "meant"), [("trian.h5", "train.h5"), ("val.h5", "val.hdf5"), ("other.h5", "")])
def test_a_file_that_is_not_there_is_named_with_the_one_that_may_be_meant(tmp_path, named, meant):
    for name in ("train.h5", "train.txt", "val.hdf5"):
        (tmp_path / name).touch()
    path = str(tmp_path / named)
    error = refused(errors.SourceNotFoundError, re.escape(f"no such file: {path!r}"), source=path)
    assert str(error).endswith(f"Did you mean {str(tmp_path / meant)!r}?" if meant else f"{named}'")
    assert (error.file, isinstance(error, FileNotFoundError)) == (path, True)


def test_a_pattern_without_a_match_no_source_at_all_and_a_folder_are_refused(tmp_path):
    pattern = str(tmp_path / "*.h5")
    refused(errors.SourceNotFoundError, re.escape(f"no file matches {pattern!r}"), source=pattern)
    with pytest.raises(errors.SourceNotFoundError, match="no file was named"):
        H5StreamLoader([])
    said = f"no file in the folder {str(tmp_path)!r} ends in .h5"
    refused(errors.SourceNotFoundError, re.escape(said), source=tmp_path)


@pytest.mark.parametrize("content", [b"", b"col,umn\n1,2\n", b"\x89HDF\r\n\x1a"])
def test_what_is_not_hdf5_is_refused(tmp_path, content):
    (tmp_path / "a.h5").write_bytes(content)
    refused(errors.NotHDF5Error, rf"a\.h5.*is not an HDF5 file.*\({len(content)} bytes\)", source=tmp_path / "a.h5")


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_file_is_refused_with_its_sizes(tmp_path, share):
    sample = write_sample(tmp_path)
    size = os.path.getsize(sample.path)
    os.truncate(sample.path, int(size * share))
    refused(errors.TruncatedFileError, rf"sample\.h5.*truncated.*{size}.*Copy it again", source=sample.path)


@pytest.mark.parametrize(("error", "shown"), [(MemoryError(), ""), (MemoryError("9 GiB"), r" \(9 GiB\)")], ids=repr)
def test_where_memory_lacks_the_file_or_a_sample_is_too_large(sample, error, shown):
    why = rf"says it holds{shown}; it is damaged, or it, or a sample of it, is too large here"
    with pytest.raises(errors.SourceError, match=why), open_hdf5(str(sample.path)):
        raise error


# --- fields -------------------------------------------------------------------------------------------------


def test_a_missing_field_or_member_suggests_the_nearest(tmp_path):
    path = tmp_path / "a.h5"
    write_datasets(path, images=np.zeros(3), group__labels=np.zeros(3))
    said = r"no dataset 'image'.*Did you mean 'images'\?.*group/labels"
    error = refused(errors.FieldNotFoundError, said, source=path, fields="image")
    assert (error.field, error.file) == ("image", str(path))
    refused(errors.FieldNotFoundError, "That is a group; name a dataset in it", source=path, fields="group")
    for name in (".", "./group", "group/."):
        refused(errors.FieldNotFoundError, "That is a group; name a dataset.*group/labels", source=path, fields=name)
    refused(errors.FieldNotFoundError, "not a compound but float64", source=path, fields="images:a")


def test_fields_of_unlike_length_are_listed_with_their_lengths_and_zero_rows_are_refused(tmp_path):
    write_datasets(tmp_path / "a.h5", x=np.zeros((30, 2)), y=np.zeros(29))
    path = tmp_path / "a.h5"
    look = f"`h5stream inspect {path}` (prints|says) what"
    said = f"must agree in rows, but .*'x' has 30.*'y' has 29.*{look}"
    assert "lookup=IDS" not in str(refused(errors.FieldLengthError, said, source=path, fields=["x", "y"]))
    refused(errors.FieldLengthError, f"unlike length.*name the fields.*29 rows: y; 30 rows: x.*{look}", source=path)
    write_datasets(path, x=np.zeros((0, 4)))
    refused(errors.FieldLengthError, r"a\.h5.*zero rows in x", source=path)
    write_datasets(tmp_path / "b.h5", x=np.zeros((30, 2)), rate=2.0)
    refused(errors.FieldLengthError, "has single values beside datasets with rows", source=tmp_path / "b.h5")


@pytest.mark.parametrize(
    "make", [lambda f: f.create_dataset("x", data=1.0), lambda f: f.create_dataset("x", dtype="f4")]
)
def test_a_dataset_without_rows_is_refused(tmp_path, make):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.zeros(3)
        make(file)
    refused(errors.UnsupportedFieldError, "'x' is.*it has no rows", source=tmp_path / "a.h5", fields="x")


# --- what cannot be done with the data ----------------------------------------------------------------------


def test_a_batch_larger_than_the_data_with_drop_last_and_more_ranks_than_rows_are_refused(tmp_path):
    sample = write_sample(tmp_path)
    said = "drop_last=True leaves no batch.*1,000 rows.*batch_size=1,001.*smaller batch_size or drop_last=False"
    refused(errors.OptionError, said, source=sample.path, batch_size=1001, drop_last=True)
    options = {"batch_size": 501, "drop_last": True, "rank": 0, "world_size": 2}
    refused(errors.OptionError, "2 ranks x batch_size=501", source=sample.path, **options)
    sample = write_sample(tmp_path, rows=3, chunk_rows=1)
    said = "3 rows cannot give each of 4 ranks one; use fewer ranks"
    refused(errors.OptionError, said, source=sample.path, rank=0, world_size=4)
    for options in ({}, {"drop_last": True}):
        refused(errors.OptionError, "ranks? one; use|no batch", source=sample.path, rank=0, world_size=2**62, **options)


def test_more_reader_threads_than_any_machine_feeds_are_refused(tmp_path):
    said = "num_workers= takes at most 1,024 reader threads, not 2,147,483,648"
    refused(errors.OptionError, said, source=write_sample(tmp_path).path, num_workers=2**31)


def test_a_missing_filter_is_named_with_the_way_to_get_it(tmp_path):
    path = str(tmp_path / "a.h5")
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((10,))
    plist.set_filter(32030, h5py.h5z.FLAG_OPTIONAL, (1, 2))
    with h5py.File(path, "w") as file:
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((20,)), plist)
        for start in (0, 10):
            dataset.write_direct_chunk((start,), b"\x01" * 40, filter_mask=0)
    said = r"a\.h5.*'x' needs HDF5 filter 32030.*HDF5_PLUGIN_PATH"
    error = refused(errors.MissingFilterError, said, source=path)
    assert error.filter_id == 32030


# --- chunks that are corrupt --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "storage", [{"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"fletcher32": True}]
)
def test_a_corrupt_chunk_is_named_at_the_batch_that_needed_it(tmp_path, either_way, storage, num_workers):
    rng = np.random.default_rng(0)
    x = rng.random((1000, 16)).astype("f4")
    path = str(tmp_path / "a.h5")
    make_file(path, "group/x", None, data=x, chunks=(32, 8), **storage)
    offset = corrupt_chunk(path, (640, 8), "group/x")  # of batch 12, with batches of 50 rows
    iterator = iter(H5StreamLoader(path, 50, fields="group/x", num_workers=num_workers))
    for number in range(12):
        assert torch.equal(next(iterator), torch.from_numpy(x[50 * number : 50 * number + 50]))
    said = r"chunk \(640, 8\) at byte \d+ .*is corrupt: .*Copy the file again.*; on_error='skip'"
    with pytest.raises(errors.CorruptChunkError, match=said) as caught:
        next(iterator)
    error = caught.value
    assert (error.file, error.field, error.chunk, error.byte_offset) == (path, "group/x", (640, 8), offset)
    assert all(part in str(error) for part in (path, "'group/x'", str(offset)))
    assert next(iterator, None) is None
    assert reader_threads() == []


# --- files that change --------------------------------------------------------------------------------------


def rewrite(path):
    with h5py.File(path, "r+") as file:
        file["x"][...] = 0


CHANGES = {
    "touched": (lambda path: os.utime(path, ns=(1, 1)), "modification time"),
    "rewritten": (rewrite, "modification time"),
    "replaced": (lambda path: os.replace(shutil.copy(path, path + ".new"), path), "another inode"),
    "appended to": (lambda path: os.truncate(path, os.path.getsize(path) + 512), "its size went from"),
    "shortened": (lambda path: os.truncate(path, os.path.getsize(path) // 2), "its size went from"),
    "removed": (os.remove, "vanished while it was being read"),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, either_way, change, said, num_workers):
    sample = write_sample(tmp_path, rows=4000)
    iterator = iter(H5StreamLoader(sample.path, 50, fields=["x", "y"], num_workers=num_workers, window=100))
    x, y = next(iterator)
    assert sample.matches(x, y)
    change(sample.path)
    with pytest.raises(errors.SourceChangedError, match=said) as caught:
        list(iterator)
    assert caught.value.file == sample.path
    assert reader_threads() == []

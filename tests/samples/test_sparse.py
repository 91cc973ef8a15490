"""Rows of sparse matrices, beside the dense matrix that they stand for."""

import contextlib
import itertools
import os

import h5py
import numpy as np
import pytest
import torch
from support.inner import batches_to_arrange, change_of, run_of, stream_all
from support.making import corrupt_chunk, sparse_group, write_datasets

from h5stream import Balanced, Field, H5Dataset, H5StreamLoader, Rows, SampleNumber, Sized, errors


def write(path, dense, *, options=None, named="X", kept_as="anndata"):
    """Write a matrix row by row, as AnnData, h5sparse or 10x do."""
    options = {**(options or {}), "maxshape": (None,)} if options else {}
    with h5py.File(path, "a") as file:
        group = sparse_group(file, named, dense, **options)
        if kept_as != "anndata":
            group.attrs.clear()
        if kept_as == "h5sparse":
            group.attrs["h5sparse_format"], group.attrs["h5sparse_shape"] = b"csr", dense.shape
        elif kept_as == "10x":
            group["shape"] = np.array(dense.shape[::-1])  # genes, barcodes


def some_matrix(rows, width):
    rng = np.random.default_rng(0)
    return np.where(rng.random((rows, width)) < 0.3, rng.integers(1, 99, (rows, width)), 0).astype("f4")


def test_a_matrix_and_other_fields_stand_in_files_beside_each_other(tmp_path):
    dense = some_matrix(9, 5)
    write(tmp_path / "a.h5", dense)
    write_datasets(tmp_path / "b.h5", y=np.arange(9))
    beside = Field("X", file=tmp_path / "a.h5", ragged="dense"), Field("y", file=tmp_path / "b.h5")
    for name, x, y in (("a.h5", Field("X", ragged="dense"), beside[1]), ("b.h5", beside[0], "y")):
        rows = H5Dataset(tmp_path / name, {"x": x, "y": y})[:]
        assert np.array_equal(rows["x"], dense)
        assert np.array_equal(rows["y"], np.arange(9))


def test_a_matrix_may_have_no_columns(tmp_path):
    for name, width in (("a.h5", 0), ("b.h5", 0), ("c.h5", 3)):
        write(tmp_path / name, np.zeros((2, width), "f4"))
    files = [tmp_path / "a.h5", tmp_path / "b.h5"]
    assert [batch.shape for batch in H5StreamLoader(files, 4, fields=Field("X", ragged="dense"))] == [(4, 0)]
    (packed,) = H5StreamLoader(files, 4, fields=Field("X", ragged="packed"))
    assert (packed.width, packed.offsets.tolist()) == (0, [0] * 5)
    with pytest.raises(errors.OptionError, match="has no names of them"):
        H5Dataset(files, Field("X", ragged="dense", columns="by name"))
    for ragged in ("dense", "packed"):
        with pytest.raises(errors.FieldLengthError, match=r"with 3 columns.* has 0"):
            H5Dataset([*files, tmp_path / "c.h5"], Field("X", ragged=ragged))


def test_samples_without_values_at_the_very_end_are_rows_of_zeros(tmp_path, monkeypatch):
    dense = np.repeat(np.arange(40) < 30, 4).reshape(40, 4).astype("f4")
    stream_all(monkeypatch)
    for name, some in (("a.h5", dense[:20]), ("b.h5", dense[20:])):
        write(tmp_path / name, some)
    dataset = H5Dataset([tmp_path / "a.h5", tmp_path / "b.h5"], Field("X", ragged="dense"))
    with H5StreamLoader(dataset, 10, keep="never", window=10, num_workers=1) as loader:
        for _ in range(3):  # also in memory that was used before
            assert np.array_equal(np.concatenate([*loader]), dense)


@pytest.mark.parametrize("options", [None, {"compression": "gzip", "chunks": (50,)}])
@pytest.mark.parametrize("kind", ["u1", ">u2", "i1", "u4", "<i8"])
def test_columns_are_numbers_of_any_type(tmp_path, kind, options):
    dense = some_matrix(90, 120 if kind == "i1" else 250)
    write(tmp_path / "a.h5", dense, options=options)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        columns = file["X/indices"][:].astype(kind)
        del file["X/indices"]
        file["X"].create_dataset("indices", data=columns, **(options or {}))
    assert np.array_equal(H5Dataset(tmp_path / "a.h5", Field("X", ragged="dense"))[:], dense)
    packed = H5Dataset(tmp_path / "a.h5", Field("X", ragged="packed"))[:]
    assert packed.columns.tolist() == columns.tolist()


def test_values_that_are_not_added_up_are_refused_as_rows_of_a_dense_matrix(tmp_path):
    dense = some_matrix(9, 5).astype("f2")
    write(tmp_path / "a.h5", dense)
    with pytest.raises(errors.UnsupportedFieldError, match="of float16, which ragged='packed' gives, 'dense' not"):
        H5Dataset(tmp_path / "a.h5", Field("X", ragged="dense"))
    assert H5Dataset(tmp_path / "a.h5", Field("X", ragged="packed"))[:].values.dtype == torch.float16


@pytest.mark.parametrize("kept_as", ["anndata", "h5sparse", "10x"])
def test_whoever_wrote_it(tmp_path, kept_as):
    dense = some_matrix(90, 40)
    write(tmp_path / "a.h5", dense, kept_as=kept_as, options={"compression": "gzip", "chunks": (50,)})
    fields = {"x": Field("X", ragged="dense"), "n": SampleNumber()}
    with H5StreamLoader(tmp_path / "a.h5", 16, shuffle=True, fields=fields) as loader:
        for batch in loader:
            assert np.array_equal(batch["x"].numpy(), dense[batch["n"].numpy()])
        assert loader.dataset.layout.row_nbytes == dense[0].nbytes + 8  # as batches hold it, with the number


def test_categories_are_codes_and_what_they_stand_for(tmp_path):
    write(tmp_path / "a.h5", some_matrix(6, 4))
    write(tmp_path / "b.h5", some_matrix(6, 4))
    for name, listed in (("a", ["B", "T"]), ("b", ["T", "B"])):
        with h5py.File(tmp_path / f"{name}.h5", "a") as file:
            column = file.create_group("obs/cell_type")
            column["codes"], column["categories"] = np.array([0, 1, -1, 1, 0, 0], "i1"), listed
    fields = {"x": Field("X", ragged="dense"), "y": "obs/cell_type"}
    dataset = H5Dataset(tmp_path / "a.h5", fields)
    assert dataset[:]["y"].tolist() == [0, 1, -1, 1, 0, 0]
    assert dataset.categories == {"y": ("B", "T")}
    drawn = Balanced("obs/cell_type", {"B": 1, 1: 2, -1: 0}, count=90)
    with H5StreamLoader(tmp_path / "a.h5", fields={"y": "obs/cell_type"}, draw=drawn) as loader:
        assert [np.bincount(batch["y"]).tolist() for batch in loader] == [[30, 60]]
    for shares, says in (({"K": 1}, "gives 'K' .* there are: -1, 'B', 'T'"), ({"B": 1, -1: 0}, "gives 'T' .*no share")):
        with pytest.raises(errors.OptionError, match=says):
            H5StreamLoader(tmp_path / "a.h5", fields="obs/cell_type", draw=Balanced("obs/cell_type", shares))
    with pytest.raises(errors.FieldLengthError, match=r"categories of 'obs/cell_type'.*codes"):
        H5Dataset([tmp_path / "a.h5", tmp_path / "b.h5"], fields)


def test_what_cannot_be_streamed_is_told(tmp_path):
    dense = some_matrix(8, 5)
    write(tmp_path / "a.h5", dense)
    write(tmp_path / "a.h5", dense, named="csc")
    write(tmp_path / "a.h5", dense, named="damaged")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["csc"].attrs["encoding-type"] = "csc_matrix"
        file["damaged/indices"][3] = 77
    for field, kind, words in [
        (Field("csc", ragged="dense"), errors.UnsupportedFieldError, r"column by column \(CSC\).*tocsr"),
        ("X", errors.UnsupportedFieldError, r"sparse matrix.*Field\('X', ragged='dense'\)"),
        (Field("X", ragged="packed", columns=[1]), errors.UnsupportedFieldError, "rows of which columns= takes some"),
        (Field("X", ragged="dense", columns=[1, 1]), errors.OptionError, "twice"),
        (Field("X", ragged="dense", columns=[9]), errors.OptionError, "the rows have 5 columns"),
        (Field("X/data", ragged="dense"), errors.H5StreamError, "sparse|samples of unlike"),
    ]:
        with pytest.raises(kind, match=words):
            H5Dataset(tmp_path / "a.h5", field)
    with pytest.raises(errors.SourceError, match=r"'damaged.indices'.*column index 77, counted from 0"):
        H5Dataset(tmp_path / "a.h5", Field("damaged", ragged="dense"))[:]
    with (
        H5StreamLoader(tmp_path / "a.h5", 3, fields=Field("damaged", ragged="dense")) as loader,
        pytest.raises(errors.SourceError, match=r"'damaged.indices'.*column index 77"),
    ):
        list(loader)


def test_columns_that_a_matrix_does_not_have_are_told_before_torch_reads_them(tmp_path):
    for name in ("sound", "X"):
        write(tmp_path / "a.h5", some_matrix(40, 5), named=name)
    for wrong, form in itertools.product((50_000_000, -2), ("packed", "dense")):
        with h5py.File(tmp_path / "a.h5", "a") as file:
            file["X/indices"][7] = wrong
        fields = [Field("sound", ragged=form), Field("X", ragged=form)]
        loader = H5StreamLoader(tmp_path / "a.h5", 40, fields=fields)
        with loader, pytest.raises(errors.SourceError, match=f"'X/indices': .*column index {wrong:,}, counted"):
            next(iter(loader))


@pytest.mark.parametrize(("form", "wanted"), [("dense", None), ("dense", [1]), ("packed", None)])
@pytest.mark.parametrize("options", [None, {"chunks": (50,)}])
def test_columns_that_change_under_the_same_size_and_time_are_refused(tmp_path, monkeypatch, form, wanted, options):
    """Each batch is looked at anew: an epoch that was right says nothing of the next."""
    path, (rows, width) = tmp_path / "a.h5", (400, 40)
    write(path, some_matrix(rows, width), options=options)
    with h5py.File(path) as file:
        columns = file["X/indices"]
        at = columns.id.get_chunk_info(0).byte_offset if options else columns.id.get_offset()
    stream_all(monkeypatch)
    before = os.stat(path)
    field = Field("X", ragged=form, columns=wanted)
    with H5StreamLoader(path, 100, fields=field, num_workers=2, keep="never") as loader:
        assert len([*loader]) == 4
        for wrong in (2**30, 52_000, -50_000, width, -1):
            with open(path, "r+b") as file:
                file.seek(at + 40)
                file.write(np.full(9, wrong, "i4").tobytes())
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            with contextlib.suppress(errors.SourceError):
                list(loader)  # some of it was read ahead, before the change
            with pytest.raises(errors.SourceError, match=f"column index {wrong:,}, counted from 0"):
                list(loader)


@pytest.mark.parametrize("field", [Field("X", ragged="dense"), Field("X", ragged="dense", columns=[1]), "packed"])
def test_matrices_of_other_widths_are_refused_with_both_widths(tmp_path, field):
    field = Field("X", ragged=field) if isinstance(field, str) else field
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path, width in zip(paths, (3, 4), strict=True):
        write(path, some_matrix(5, width))
        write(tmp_path / "groups.h5", some_matrix(5, width), named=f"s/{width}/X")
    elsewhere = Field("X", ragged=field.ragged, columns=field.columns, file=paths, lookup=[0, 9])
    for opened in (
        lambda: H5Dataset(paths, {"x": field}),
        lambda: H5Dataset([H5Dataset(path, field) for path in paths]),
        lambda: H5Dataset(tmp_path / "groups.h5", field, samples=Rows(of="s/*")),
        lambda: H5Dataset(tmp_path / "groups.h5", elsewhere),
        lambda: H5StreamLoader(paths, 2, fields=field),
    ):
        with pytest.raises(errors.FieldLengthError, match=r"'(s/4/)?X' is a sparse matrix with 4 columns, .* has 3;"):
            opened()


def test_a_batch_that_failed_is_not_laid_dense_of_what_it_lacks(tmp_path):
    """Else what stood in place of the columns was told as the error, and not the chunk."""
    path = tmp_path / "a.h5"
    write(path, some_matrix(100, 30), options={"compression": "gzip", "chunks": (50,)})
    corrupt_chunk(path, 2, "X/indices")
    with H5StreamLoader(path, 100, fields=Field("X", ragged="dense"), num_workers=1) as loader:
        iterator = iter(loader)
        run = run_of(iterator)
        with change_of(run):
            change_of(run).wait_for(lambda: run.ready)
            assert batches_to_arrange(run) == [None]
        with pytest.raises(errors.CorruptChunkError, match="indices"):
            next(iterator)


def test_chunks_that_rows_cut_are_decoded_hardly_more_than_once(tmp_path):
    dense = some_matrix(4000, 400)  # some 120 values a row
    write(tmp_path / "a.h5", dense, options={"compression": "gzip", "chunks": (4096,)})
    with H5StreamLoader(tmp_path / "a.h5", 64, fields=Field("X", ragged="packed"), shuffle=True, window=1000) as loader:
        for _ in loader:
            pass
        assert loader.stats().read_amplification < 1.25


@pytest.mark.parametrize("other", [{"columns": [0, 4]}, {"columns": [2, 1]}, {"ragged": "packed"}])
def test_matrices_that_are_read_as_one_have_the_same_columns(tmp_path, other):
    write(tmp_path / "a.h5", np.eye(5, dtype="f4"))
    one, two = (
        H5Dataset(tmp_path / "a.h5", {"x": Field("X", **{"ragged": "dense", "columns": [1, 2]} | more)})
        for more in ({}, {"columns": None} | other)
    )
    with pytest.raises(errors.FieldLengthError, match=r"other columns|rows of"):
        H5StreamLoader([one, two], 3)
    assert len(H5Dataset([one, one])) == 10


def test_batches_are_cut_by_the_values_of_the_matrix_that_is_named(tmp_path):
    for name, width in (("X", 40), ("Y", 10)):
        write(tmp_path / "a.h5", some_matrix(50, width), named=name)
    fields = {"x": Field("X", ragged="packed"), "y": Field("Y", ragged="packed"), "number": SampleNumber()}
    with H5StreamLoader(tmp_path / "a.h5", 50, shuffle=True, fields=fields, draw=Sized(30, "y")) as loader:
        sizes = [len(batch["y"].values) for batch in loader]
    assert max(sizes) <= 30 < max(sizes) + 10
    assert sum(sizes) == np.count_nonzero(some_matrix(50, 10))
    with pytest.raises(errors.OptionError, match="'number', which is no ragged field; those are 'x', 'y'"):
        H5StreamLoader(tmp_path / "a.h5", 50, shuffle=True, fields=fields, draw=Sized(30, "number"))


@pytest.mark.parametrize("ragged", ["dense", "packed"])
def test_matrices_whose_columns_are_of_other_types_are_refused_with_both_types(tmp_path, ragged):
    paths, field = [tmp_path / "a.h5", tmp_path / "b.h5"], Field("X", ragged=ragged)
    for path, kind in zip(paths, ("<i4", "<i8"), strict=True):
        for where, name in ((path, "X"), (tmp_path / "groups.h5", f"s/{kind[1:]}/X")):
            write(where, some_matrix(5, 3), named=name)
            with h5py.File(where, "a") as file:
                indices = file[name]["indices"][:]
                del file[name]["indices"]
                file[name]["indices"] = indices.astype(kind)
    says = r"'(s/i8/)?X' is a sparse matrix whose columns are int64.* are int32; .* write their indices with one"
    for opened in (
        lambda: H5Dataset(paths, {"x": field}),
        lambda: H5Dataset([H5Dataset(path, field) for path in paths]),
        lambda: H5Dataset(tmp_path / "groups.h5", field, samples=Rows(of="s/*")),
        lambda: H5Dataset(tmp_path / "groups.h5", Field("X", ragged=ragged, file=paths, lookup=[0, 9])),
        lambda: H5StreamLoader(paths, 2, fields=field),
    ):
        with pytest.raises(errors.FieldLengthError, match=says):
            opened()


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_a_part_of_a_matrix_behind_a_link_out_of_the_file_is_refused_as_that(tmp_path, part):
    dense = some_matrix(9, 5)
    write(tmp_path / "b.h5", dense)
    write(tmp_path / "a.h5", dense)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["X"][part]
        file["X"][part] = h5py.ExternalLink("b.h5", f"/X/{part}")
    field = Field("X", ragged="dense")
    with pytest.raises(errors.ExternalDataError, match=f"'X/{part}' is an external link to 'b.h5'"):
        H5Dataset(tmp_path / "a.h5", field)
    assert np.array_equal(H5Dataset(tmp_path / "a.h5", field, allow_external=True)[:], dense)

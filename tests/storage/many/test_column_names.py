"""Columns that files name, such as genes: others are not joined, and may be lined up; NumPy is the oracle."""

import h5py
import numpy as np
import pytest
import torch

from h5stream import Boxes, Field, H5Dataset, H5StreamLoader, Mixture, Objects, Rows, Sequences, Table
from h5stream.errors import FieldLengthError, FieldNotFoundError, OptionError

GENES = ["A", "B", "C", "D"]
ORDERS = [GENES, ["C", "A", "D", "B"], ["D", "C", "B", "A"]]
MORE = [GENES, ["C", "x", "A", "D", "B"], ["D", "C", "B", "y", "z", "A"]]
STORAGE = [
    {},
    {"compression": "gzip", "chunks": (3,)},
    {"compression": "gzip", "shuffle": True, "chunks": (64,), "maxshape": (None,)},
]


def value(cell, gene):
    """Give what a cell has of a gene; some have nothing."""
    found = (7 * cell + 3 * (ord(gene) - 60)) % 11
    return float(found if found > 4 else 0)


def matrix(cells, genes):
    return np.array([[value(cell, gene) for gene in genes] for cell in cells], "f4").reshape(len(cells), len(genes))


def write_sparse(group, values, dtype="i4", kind="csr_matrix", **storage):
    rows, columns = np.nonzero(values)
    group.attrs["encoding-type"], group.attrs["shape"] = kind, values.shape
    group.create_dataset("data", data=values[rows, columns], **storage)
    group.create_dataset("indices", data=columns.astype(dtype), **storage)
    group["indptr"] = np.append(0, np.cumsum((values != 0).sum(axis=1))).astype("i4")


def write_var(group, genes, index="_index"):
    var = group.create_group("var")
    var.attrs["encoding-type"], var.attrs["_index"] = "dataframe", index
    var.create_dataset(index, data=genes, dtype=h5py.string_dtype())


def write_cells(group, genes, cells, **storage):
    """Write cells as AnnData does, with genes in an order, dense and sparse."""
    values = matrix(cells, genes)
    group["X"] = values
    write_var(group, genes)
    group["layers/counts"] = values * 2
    write_sparse(group.create_group("layers/sparse"), values, **storage)
    raw = group.create_group("raw")
    write_sparse(raw.create_group("X"), values * 3, dtype="i8", **storage)
    write_var(raw, genes, "gene_ids")


@pytest.fixture
def files(tmp_path):
    def write(orders, storage=STORAGE):
        found = []
        for k, genes in enumerate(orders):
            found.append(str(tmp_path / f"{len(orders)}{k}.h5ad"))
            with h5py.File(found[-1], "w") as file:
                write_cells(file, genes, CELLS[k], **storage[k % len(storage)])
        return found

    return write


CELLS = [range(5), range(5, 9), range(9, 16)]
ALL = range(16)
FIELDS = {
    "dense": ("X", 1, {}),
    "a layer": ("layers/counts", 2, {}),
    "sparse": ("layers/sparse", 1, {"ragged": "dense"}),
    "packed": ("layers/sparse", 1, {"ragged": "packed"}),
    "raw": ("raw/X", 3, {"ragged": "dense"}),
}


def dense(batch):
    """Give rows of a sparse matrix as NumPy has them."""
    if isinstance(batch, torch.Tensor):
        return batch.numpy()
    found = np.zeros((len(batch.offsets) - 1, batch.width), "f4")
    row = np.repeat(np.arange(len(found)), np.diff(batch.offsets.numpy()))
    np.add.at(found, (row, batch.columns.numpy()), batch.values.numpy())
    return found


def ways(paths, field):
    yield "files", lambda: H5Dataset(paths, field)
    yield "datasets", lambda: H5Dataset([H5Dataset(path, field) for path in paths])
    yield "two and one", lambda: H5Dataset([H5Dataset(paths[:2], field), H5Dataset(paths[2], field)])
    yield "a mixture", lambda: Mixture({path: path for path in paths}, [1, 1, 1], fields=field)


@pytest.mark.parametrize("kind", FIELDS)
def test_columns_of_other_names_are_not_joined(files, kind):
    name, _, options = FIELDS[kind]
    paths = files(ORDERS)
    for _, make in ways(paths, Field(name, **options)):
        with pytest.raises(FieldLengthError, match=r"index 0 of axis 1 of field .* is 'C' in .*var.*'A' in.*by name"):
            make()
    assert len(H5Dataset([paths[0], paths[0]], Field(name, **options))) == 10


@pytest.mark.parametrize("kind", FIELDS)
def test_columns_are_lined_up_by_name(files, kind):
    name, factor, options = FIELDS[kind]
    for way, make in ways(files(ORDERS), Field(name, columns="by name", **options)):
        dataset = make()
        assert np.array_equal(dense(dataset[:]), matrix(ALL, GENES) * factor), way
        for row in (0, 6, 15):
            assert np.array_equal(dense(dataset[[row, 3]]), matrix([row, 3], GENES) * factor), way
    one = H5Dataset(files(ORDERS)[1:], Field(name, columns="by name", **options))
    assert np.array_equal(dense(one[:]), matrix(range(5, 16), ORDERS[1]) * factor)


@pytest.mark.parametrize("kind", FIELDS)
def test_columns_that_are_named_are_taken_of_each_file(files, kind):
    name, factor, options = FIELDS[kind]
    paths, wanted = files(MORE), ["D", "A"]
    for way, make in ways(paths, Field(name, columns=wanted, **options)):
        assert np.array_equal(dense(make()[:]), matrix(ALL, wanted) * factor), way
    for names in (np.array(wanted), np.array(wanted).astype("S"), np.array(wanted, dtype=object)):
        assert np.array_equal(
            dense(H5Dataset(paths, Field(name, columns=names, **options))[:]), matrix(ALL, wanted) * factor
        )


@pytest.mark.parametrize("kind", ["sparse", "packed", "dense"])
@pytest.mark.parametrize("keep", ["never", "auto"])
def test_a_loader_lines_columns_up(files, kind, keep):
    name, factor, options = FIELDS[kind]
    fields = {"x": Field(name, columns="by name", **options), "k": "obs"}
    paths = files(ORDERS)
    for path, cells in zip(paths, CELLS, strict=True):
        with h5py.File(path, "a") as file:
            file["obs"] = np.array(cells)
    with H5StreamLoader(paths, 6, fields=fields, shuffle=True, seed=3, keep=keep, num_workers=2) as loader:
        for _ in range(2):
            cells = []
            for batch in loader:
                cells += batch["k"].tolist()
                assert np.array_equal(dense(batch["x"]), matrix(batch["k"].tolist(), GENES) * factor)
            assert sorted(cells) == list(ALL)


def test_packed_rows_have_ascending_columns(files):
    rows = H5Dataset(files(ORDERS), Field("layers/sparse", columns="by name", ragged="packed"))[:]
    assert rows.width == 4
    assert rows.columns.dtype == torch.int32
    for low, high in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True):
        columns = rows.columns[low:high].tolist()
        assert columns == sorted(set(columns))


def test_columns_by_number_of_each_file_are_joined_if_they_agree(files):
    paths = files(MORE)
    for name, options in (("X", {}), ("layers/sparse", {"ragged": "dense"})):
        parts = [
            H5Dataset(path, Field(name, columns=[genes.index(one) for one in ("C", "B")], **options))
            for path, genes in zip(paths, MORE, strict=True)
        ]
        assert np.array_equal(H5Dataset(parts)[:], matrix(ALL, ["C", "B"]))
        wrong = H5Dataset(paths[1], Field(name, columns=[0, 1], **options))
        with pytest.raises(FieldLengthError, match="is 'x' in"):
            H5Dataset([parts[0], wrong])


def test_columns_by_place_are_joined_whatever_their_names(files):
    paths = files(ORDERS)
    for name, options in (("X", {}), ("layers/sparse", {"ragged": "dense"}), ("layers/sparse", {"ragged": "packed"})):
        for _, make in ways(paths, Field(name, columns="by place", **options)):
            expected = np.concatenate([matrix(cells, genes) for cells, genes in zip(CELLS, ORDERS, strict=True)])
            assert np.array_equal(dense(make()[:]), expected)


def test_groups_of_one_file_are_compared_and_lined_up(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        for k, genes in enumerate(ORDERS):
            write_cells(file.create_group(f"mod/{k}"), genes, CELLS[k], **STORAGE[k])
    kinds = {"X": {}, "layers/sparse": {"ragged": "dense"}, "raw/X": {"ragged": "packed"}}
    for name, options in kinds.items():
        for samples in (Rows(of="mod/*"), Table(row=[0, 0], group=["mod/0", "mod/1"])):
            with pytest.raises(FieldLengthError, match=r"of axis 1 of field .* is 'C' in .* and 'A' in"):
                H5Dataset(path, Field(name, **options), samples=samples)
        rows = H5Dataset(path, Field(name, columns="by name", **options), samples=Rows(of="mod/*"))
        assert np.array_equal(dense(rows[:]), matrix(ALL, GENES) * (3 if name == "raw/X" else 1))
    windows = H5Dataset(path, Field("X", columns="by name"), samples=Sequences(2, of="mod/*"))
    assert np.array_equal(windows[1], matrix([1, 2], GENES))
    assert np.array_equal(windows[4], matrix([5, 6], GENES))


def test_what_cannot_be_lined_up_is_refused_in_words(files, tmp_path):
    paths = files(MORE)
    for name, options in (("X", {}), ("layers/sparse", {"ragged": "dense"})):
        with pytest.raises(OptionError, match=r"by name' needs the columns of the first file, and there is \['x'\]"):
            H5Dataset(paths, Field(name, columns="by name", **options))
        with pytest.raises(OptionError, match=r"names 1 column that it lacks, \['Q'\]; it has \['A', "):
            H5Dataset(paths, Field(name, columns=["A", "Q"], **options))
        with pytest.raises(OptionError, match=r"lacks, \['x'\]"):
            H5Dataset(paths[::-1], Field(name, columns=["x"], **options))
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"], file["t"] = np.zeros((3, 2)), np.zeros(3, [("a", "f4")])
        write_cells(file.create_group("twice"), ["A", "B", "A"], range(3))
    plain = str(tmp_path / "plain.h5")
    with pytest.raises(OptionError, match="the file has no names of them"):
        H5Dataset(plain, Field("x", columns=["a"]))
    assert H5Dataset(plain, Field("t", columns=["a"]))[:].shape == (3, 1)  # of a compound, members are named
    with pytest.raises(OptionError, match="ragged='arrays' takes whole arrays"):
        H5Dataset(plain, Field("x", columns=["a"], ragged="arrays"), samples=Objects("files"))
    with pytest.raises(OptionError, match="'A' is that of several columns"):
        H5Dataset(plain, Field("twice/X", columns=["A", "B"]))
    assert np.array_equal(H5Dataset(plain, Field("twice/X", columns=["B"]))[:], matrix(range(3), ["B"]))
    with pytest.raises(OptionError, match="names a column twice"):
        Field("X", columns=["A", "A"])
    with pytest.raises(OptionError, match="'by name' lines those of several files up"):
        Field("X", columns="by nmae")


def test_features_of_10x_are_compared_and_lined_up(tmp_path):
    paths = []
    for k, genes in enumerate(ORDERS):
        paths.append(str(tmp_path / f"{k}.h5"))
        values = matrix(CELLS[k], genes).astype("i4")
        with h5py.File(paths[-1], "w") as file:
            write_sparse(file.create_group("matrix"), values, dtype="i8")
            del file["matrix"].attrs["encoding-type"], file["matrix"].attrs["shape"]
            file["matrix/shape"] = np.array(values.shape[::-1], "i4")
            file["matrix/features/id"] = np.array(genes).astype("S")
    with pytest.raises(FieldLengthError, match=r"is 'C' in .*features/id"):
        H5Dataset(paths, Field("matrix", ragged="dense"))
    for columns, genes in (("by name", GENES), (["B", "D"], ["B", "D"])):
        for form in ("dense", "packed"):
            got = H5Dataset(paths, Field("matrix", columns=columns, ragged=form))[:]
            assert np.array_equal(dense(got), matrix(ALL, genes))


def write_grid(path, levels, latitudes, values, names=None):
    with h5py.File(path, "w") as file:
        file["t"] = values
        for axis, (name, labels) in enumerate((("level", levels), ("lat", latitudes)), 1):
            file[name] = labels if names is None else np.array(names, "S")
            file[name].make_scale(name)
            file["t"].dims[axis].attach_scale(file[name])
    return str(path)


def test_dimension_scales_of_all_axes_but_rows_are_compared(tmp_path):
    values = np.arange(24.0).reshape(2, 3, 4)
    levels, latitudes = np.array([1000, 850, 500]), np.linspace(-60, 60, 4)
    first = write_grid(tmp_path / "a.h5", levels, latitudes, values)
    same = write_grid(tmp_path / "b.h5", levels.astype("f4"), latitudes.astype("f4"), values + 100)
    turned = write_grid(tmp_path / "c.h5", levels, latitudes[::-1].copy(), values + 200)
    other = write_grid(tmp_path / "d.h5", levels[::-1].copy(), latitudes, values + 300)
    assert np.array_equal(H5Dataset([first, same], "t")[2], values[0] + 100)
    for path, said in ((turned, "index 0 of axis 2 of field 't' is .*60"), (other, "index 0 of axis 1 .*500.* 1000")):
        for make in (
            lambda p: H5Dataset([first, p], "t"),
            lambda p: H5Dataset([H5Dataset(q, "t") for q in (first, p)]),
        ):
            with pytest.raises(FieldLengthError, match=said + ".*by place"):
                make(path)
        assert len(H5Dataset([first, path], Field("t", columns="by place"))) == 4
    # Taken the other way around, latitudes agree; and what samples move along may have any labels.
    ways = [Field("t", columns=(..., slice(None))), Field("t", columns=(..., [3, 2, 1, 0]))]
    assert np.array_equal(
        H5Dataset([H5Dataset(one, way) for one, way in zip((first, turned), ways, strict=True)])[3],
        (values[1] + 200)[:, ::-1],
    )
    assert len(H5Dataset([first, turned], "t", samples=Rows(axis=2))) == 8
    assert len(H5Dataset([first, turned], "t", samples=Boxes((3, 2), at="grid"))) == 4
    with pytest.raises(FieldLengthError, match="of axis 1"):
        H5Dataset([first, other], "t", samples=Rows(axis=2))


def test_scales_without_labels_say_nothing(tmp_path):
    paths = []
    for k in range(2):
        paths.append(str(tmp_path / f"{k}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file["x"], file["dim"] = np.zeros((3, 2)), np.arange(2.0) * k
            file["dim"].make_scale("This is a netCDF dimension but not a netCDF variable.         2")
            file["x"].dims[1].attach_scale(file["dim"])
    assert len(H5Dataset(paths, "x")) == 6


def test_a_column_that_a_matrix_does_not_have_is_refused_where_columns_are_lined_up(files):
    paths = files(MORE, storage=[{}])
    with h5py.File(paths[1], "a") as file:
        file["layers/sparse/indices"][0] = 5
    for form in ("dense", "packed"):
        dataset = H5Dataset(paths, Field("layers/sparse", columns=["A", "D"], ragged=form))
        with pytest.raises(OSError, match="column index"):
            dataset[:]


@pytest.mark.parametrize("ragged", [None, "packed"])
@pytest.mark.parametrize("columns", [["D", "A"], "by name"])
def test_columns_that_are_named_are_those_of_each_object(tmp_path, columns, ragged):
    wanted = GENES if columns == "by name" else columns
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path in paths:
        with h5py.File(path, "w") as f:
            for k, genes in enumerate(ORDERS * 4):
                f[f"o/{k:02}/X"] = matrix(range(k, k + 5), genes)
                write_var(f[f"o/{k:02}"], genes)
    for source in (paths[0], paths):
        dataset = H5Dataset(source, Field("X", columns=columns, ragged=ragged), samples=Objects("o/*"))
        assert len(dataset) == 12 * (1 + (source is paths))
        for k in range(len(dataset)):
            np.testing.assert_array_equal(dataset[k], matrix(range(k % 12, k % 12 + 5), wanted))


def write_channels(path, channels, time=6):
    with h5py.File(path, "w") as f:
        f["x"] = np.array(
            [[[100 * ord(c) + 10 * t + k for k in range(2)] for t in range(time)] for c in channels], "f4"
        )
        f["channel"], f["band"] = [c.encode() for c in channels], [b"p", b"q"]
        for axis, name in ((0, "channel"), (2, "band")):
            f[name].make_scale(name)
            f["x"].dims[axis].attach_scale(f[name])
    return path


ALONG = [Sequences(2, axis=1), Rows(axis=1), Boxes((2, 2), per_epoch=3), Boxes((2,), per_epoch=3)]


@pytest.mark.parametrize("samples", ALONG)
def test_names_along_axis_0_are_compared_where_samples_lie_along_another_axis(tmp_path, samples):
    paths = [write_channels(tmp_path / f"{k}.h5", order) for k, order in enumerate(["ABC", "CBA", "ABC"])]
    with pytest.raises(FieldLengthError, match="index 0 of axis 0 of field 'x' is 'C'"):
        H5Dataset(paths, "x", samples=samples)
    assert H5Dataset(paths[::2], "x", samples=samples)[0].shape[0] == 3
    assert H5Dataset(paths, Field("x", columns="by place"), samples=samples)[0].shape[0] == 3


@pytest.mark.parametrize("samples", [*ALONG[:2], ALONG[3]])
def test_names_of_columns_are_never_taken_for_places_along_another_axis(tmp_path, samples):
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["X"] = matrix(range(6), GENES)
        write_var(f, GENES)
    with pytest.raises(OptionError, match="are along axis 1 of the dataset, and so are the samples"):
        H5Dataset(tmp_path / "x.h5", Field("X", columns=["C", "A"]), samples=samples)


def test_names_of_columns_are_taken_beside_samples_along_a_third_axis(tmp_path):
    values = np.arange(48.0).reshape(2, 4, 6)
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["x"], f["c"] = values, [b"A", b"B", b"C", b"D"]
        f["c"].make_scale("c")
        f["x"].dims[1].attach_scale(f["c"])
    for samples, length in ((Sequences(3, axis=2), 3), (Boxes((3,), at="grid", stride=(1,)), 3)):
        dataset = H5Dataset(tmp_path / "x.h5", Field("x", columns=["D", "A"]), samples=samples)
        assert len(dataset) == 4
        for k in range(4):
            np.testing.assert_array_equal(dataset[k], values[:, [3, 0], k : k + length])


def test_names_of_columns_are_refused_of_objects_that_a_lookup_names(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["names"] = np.array([b"a", b"b", b"c"])
        file["names"].make_scale("names")
        for name in "pq":
            file[f"o/{name}/x"] = np.arange(6.0).reshape(2, 3)
            file[f"o/{name}/x"].dims[1].attach_scale(file["names"])
    with pytest.raises(FieldNotFoundError, match=r"and not of objects that lookup= names"):
        H5Dataset(path, Field("o/{}/x", lookup=["p", "q"], columns=["c", "a"]))
    of_objects = H5Dataset(path, Field("x", columns=["c", "a"], ragged="list"), samples=Objects("o/*"))
    by_number = H5Dataset(path, Field("o/{}/x", lookup=["p", "q"], columns=[2, 0], ragged="list"))
    assert [one.tolist() for one in by_number[:]] == [one.tolist() for one in of_objects[:]]
    assert by_number[0].tolist() == [[2, 0], [5, 3]]
    of_objects.close()
    by_number.close()

"""Builders of odd HDF5 files, mostly through h5py's low-level interface; every test makes its own."""

import ctypes
import os
from pathlib import Path

import h5py
import numpy as np

from h5stream import H5Dataset

DONT_FILTER_PARTIAL_CHUNKS = 2  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS in H5Dpublic.h


def libhdf5() -> ctypes.CDLL:
    """Give h5py's own libhdf5, for the few calls that h5py does not wrap; handles are shared with h5py."""
    folder = Path(h5py.__file__).parent.parent / "h5py.libs"
    return ctypes.CDLL(str(next(folder.glob("libhdf5-*.so*"))))


def numbers(*shape, dtype="f4"):
    """Make distinct, reproducible numbers."""
    count = int(np.prod(shape))
    return np.random.default_rng(count).permutation(count).astype(dtype).reshape(shape)


def make_file(path, name="x", libver="latest", **options):
    """Write one dataset to a new file and give the path."""
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset(name, **options)
    return str(path)


def low_level(
    path,
    shape,
    *,
    stored=h5py.h5t.IEEE_F32LE,
    chunks=None,
    maxshape=None,
    libver=(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST),
    prepare=lambda creation: None,
    then=lambda dataset: None,
):
    """Make a dataset ``x`` by low-level calls.

    `prepare` gets the creation property list, `then` the dataset, as ``h5py.h5d.DatasetID``.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(*libver)
    file = h5py.h5f.create(str(path).encode(), h5py.h5f.ACC_TRUNC, fapl=access)
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        creation.set_chunk(chunks)
    prepare(creation)
    space = h5py.h5s.create_simple(shape, maxshape)
    dataset = h5py.h5d.create(file, b"x", stored, space, creation)
    then(dataset)
    dataset.close()
    file.close()
    return str(path)


def write(values):
    """Give a function that writes `values` in whole, for `low_level`."""
    values = np.ascontiguousarray(values)
    return lambda dataset: dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def write_raw(values, stored):
    """Give a function that writes bytes as stored elements of a type, without conversion, for `low_level`."""
    values = np.ascontiguousarray(values)
    return lambda dataset: dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=stored)


def leave_partial_chunks_unfiltered(creation):
    """Set an option that h5py does not wrap."""
    set_options = libhdf5().H5Pset_chunk_opts
    set_options.argtypes = [ctypes.c_int64, ctypes.c_uint]
    assert set_options(creation.id, DONT_FILTER_PARTIAL_CHUNKS) >= 0


def set_fill_bytes(creation, stored, raw):
    """Set a fill value of any HDF5 type; h5py knows those of NumPy types only."""
    set_value = libhdf5().H5Pset_fill_value
    set_value.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p]
    assert set_value(creation.id, stored.id, raw) >= 0


def read_with_h5py(path, name="x"):
    """Read a whole dataset: the oracle."""
    with h5py.File(path, "r") as file:
        return file[name][()]


def string_type(nbytes, padding):
    """Make a fixed-length string type."""
    stored = h5py.h5t.TypeID.copy(h5py.h5t.C_S1)
    stored.set_size(nbytes)
    stored.set_strpad(padding)
    return stored


def access_of(dataset: H5Dataset):
    """Give how the first field is read, and why."""
    part = dataset.layout.datasets[0][0]
    return part.access, part.reason


def corrupt_chunk(path, chunk, name="x"):
    """Flip bytes in the middle of a chunk, by its number or its first element; give where it begins in the file."""
    with h5py.File(path) as file:
        made = file[name].id
        info = made.get_chunk_info(chunk) if isinstance(chunk, int) else made.get_chunk_info_by_coord(chunk)
    with open(path, "r+b") as raw:
        raw.seek(info.byte_offset + info.size // 2)
        flipped = bytes(byte ^ 0xFF for byte in raw.read(min(8, info.size - info.size // 2)))
        raw.seek(-len(flipped), os.SEEK_CUR)
        raw.write(flipped)
    return info.byte_offset


def damage_header(path, *names):
    """Spoil the object headers of some objects, and nothing else."""
    with h5py.File(path) as file:
        places = [h5py.h5o.get_info(file[name].id).addr for name in names]
    content = bytearray(path.read_bytes())
    for place in places:
        content[place : place + 4] = b"\xff\xfe\xfd\xfc"
    path.write_bytes(content)


def vlen(dtype, values):
    """Give what makes a dataset of values of variable length."""
    arrays = np.fromiter((np.asarray(value, dtype) for value in values), object)
    return {"data": arrays, "dtype": h5py.vlen_dtype(dtype)}


def sparse_group(file, name, dense, **options):
    """Write a matrix row by row, as AnnData does; give its group."""
    rows, columns = np.nonzero(dense)
    group = file.create_group(name)
    group.create_dataset("data", data=dense[rows, columns], **options)
    group.create_dataset("indices", data=columns.astype("i4"), **options)
    group["indptr"] = np.append(0, np.bincount(rows, minlength=len(dense)).cumsum())
    group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", dense.shape
    return group


def write_datasets(path, **datasets):
    """Write some datasets, whose names have two underscores for a slash, to a new file; give the path.

    A dict is what `create_dataset` takes.
    """
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            if isinstance(values, dict):
                file.create_dataset(name.replace("__", "/"), **values)
            else:
                file[name.replace("__", "/")] = values
    return str(path)

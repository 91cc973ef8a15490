"""The oracle of repacking: two files compared through h5py's high-level interface, object by object."""

import h5py
import hdf5plugin  # noqa: F401
import numpy as np


def assert_same_tree(source, target, order=None, samples=0):
    """Compare all objects, links, attributes and data; `order` permutes the datasets of `samples` rows."""
    with h5py.File(source, "r") as a, h5py.File(target, "r") as b:
        assert a.userblock_size == b.userblock_size
        compare_objects(a, b, a, b, order, samples, {})


def compare_objects(a, b, root_a, root_b, order, samples, seen):
    assert type(a) is type(b)
    address, its = (h5py.h5o.get_info(one.id).addr for one in (a, b))
    if address in seen:  # one object under two names is one object in the copy as well
        assert seen[address] == its
        return
    seen[address] = its
    compare_attributes(a, b, root_a, root_b)
    if isinstance(a, h5py.Dataset):
        moves = order is not None and a.shape and a.shape[0] == samples
        compare_data(a, b, root_a, root_b, order if moves else None)
    if not isinstance(a, h5py.Group):
        return
    assert list(a) == list(b), a.name  # also the order of creation, where a group keeps it
    for name in a:
        left, right = a.get(name, getlink=True), b.get(name, getlink=True)
        assert type(left) is type(right), name
        if isinstance(left, h5py.SoftLink):
            assert left.path == right.path
        elif isinstance(left, h5py.ExternalLink):
            assert (left.filename, left.path) == (right.filename, right.path)
        else:
            compare_objects(a[name], b[name], root_a, root_b, order, samples, seen)


def compare_attributes(a, b, root_a, root_b):
    assert list(a.attrs) == list(b.attrs), a.name
    for name in a.attrs:
        left, right = a.attrs.get_id(name), b.attrs.get_id(name)
        assert left.get_type() == right.get_type(), (a.name, name)
        assert (left.shape, left.dtype) == (right.shape, right.dtype), (a.name, name)
        assert same(a.attrs[name], b.attrs[name], root_a, root_b), (a.name, name)


def compare_data(a, b, root_a, root_b, order):
    assert (a.shape, a.dtype) == (b.shape, b.dtype), a.name
    assert a.id.get_type() == b.id.get_type(), a.name
    if a.chunks and b.chunks:
        assert a.maxshape == b.maxshape, a.name
    if a.dtype.kind in "biufc" and a.shape is not None:
        assert np.array(a.fillvalue).tobytes() == np.array(b.fillvalue).tobytes(), a.name
    left, right = a[()], b[()]
    if order is not None:
        left = left[order]
    assert same(left, right, root_a, root_b), a.name


def same(a, b, root_a, root_b):
    if isinstance(a, h5py.Empty):
        return a == b
    if isinstance(a, h5py.RegionReference):
        return bool(a) == bool(b) and (not a or regions(a, root_a) == regions(b, root_b))
    if isinstance(a, h5py.Reference):
        return bool(a) == bool(b) and (not a or root_a[a].name == root_b[b].name)
    if isinstance(a, (np.void, np.ndarray)) and a.dtype.names is not None:
        return all(same(a[name], b[name], root_a, root_b) for name in a.dtype.names)
    if isinstance(a, np.ndarray):
        if a.shape != b.shape:
            return False
        if a.dtype.kind == "O":
            return all(same(x, y, root_a, root_b) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True))
        return a.tobytes() == b.tobytes()
    return np.asarray(a).tobytes() == np.asarray(b).tobytes() if isinstance(a, np.generic) else a == b


def regions(reference, root):
    return root[reference].name, root[reference][reference].tobytes()

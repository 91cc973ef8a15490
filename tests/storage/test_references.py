"""What a file needs is named as HDF5 itself would look for it."""

import h5py
import numpy as np
from making import write_datasets

from h5stream.storage.external import references


def test_a_pattern_of_file_names_is_counted_through(tmp_path):
    for block in range(3):
        write_datasets(tmp_path / f"part-{block}.h5", x=np.arange(4) + block)
    space = h5py.h5s.create_simple((3, 4), (h5py.h5s.UNLIMITED, 4))
    space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 4), (1, 4))
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_virtual(space, b"part-%b.h5", b"x", h5py.h5s.create_simple((4,)))
    with h5py.File(tmp_path / "v.h5", "w", libver="latest") as file:
        whole = h5py.h5s.create_simple((3, 4), (h5py.h5s.UNLIMITED, 4))
        h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_INT64, whole, creation)
    assert [item.target for item in references(tmp_path / "v.h5")] == ["part-0.h5", "part-1.h5", "part-2.h5"]
    with h5py.File(tmp_path / "v.h5") as file:
        assert file["v"][2].tolist() == [2, 3, 4, 5]

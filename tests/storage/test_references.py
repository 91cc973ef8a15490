"""What a file needs is named as HDF5 itself would look for it."""

import h5py
import numpy as np
from making import write_datasets

from h5stream.storage.external import references


def found(path):
    return [(str(item.kind), item.place, item.target) for item in references(path)]


def test_external_links_are_found_in_every_group_and_named_once_for_each_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink("b.h5", "/x")
        file["group/deep/y"] = h5py.ExternalLink("sub/ü.h5", "/y")
        file["group/again"] = h5py.ExternalLink("b.h5", "/other")
        file["soft"] = h5py.SoftLink("/nowhere")
        file["loop"] = file["group"]
    assert sorted(found(tmp_path / "a.h5")) == [
        ("external link", "/group/again", "b.h5"),
        ("external link", "/group/deep/y", "sub/ü.h5"),
    ]


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
    assert [target for _, _, target in found(tmp_path / "v.h5")] == ["part-0.h5", "part-1.h5", "part-2.h5"]
    with h5py.File(tmp_path / "v.h5") as file:
        assert file["v"][2].tolist() == [2, 3, 4, 5]

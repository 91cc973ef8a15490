"""Sequences of rows as samples, from real files, beside what h5py gives to a reader of a few lines."""

import h5py
import numpy as np
import pytest

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import FieldLengthError, FieldNotFoundError, OptionError
from h5stream.samples.kinds import Sequences


def test_a_mask_of_names_is_looked_up_in_the_group_that_is_given(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        for k, rows in enumerate((5, 9, 3, 12)):
            file[f"data/demo_{k}/actions"] = 100 * k + np.arange(rows)
        file["mask/train"] = [b"demo_3", b"demo_0"]
    with h5py.File(path) as file:
        train = H5Dataset(file["data"], "actions", samples=Sequences(3, of=file["mask/train"]))
        said = r"no group 'demo_3'.*mean 'data/demo_3'.*given: H5Dataset\(file\['data'\], \.\.\.\)"
        with pytest.raises(FieldNotFoundError, match=said):
            H5Dataset(path, "actions", samples=Sequences(3, of=file["mask/train"]))
    assert train[:, 0].tolist() == [*range(300, 310), *range(3)]


@pytest.mark.parametrize("stored", [{}, {"chunks": (3, 2), "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("pad", [None, "edge"])
def test_the_shortest_field_of_a_segment_says_how_long_it_is(tmp_path, stored, pad):
    expected = []
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for k, rows in enumerate((6, 1, 4)):
            obs, actions = np.random.default_rng(k).random((rows + 1 + k, 2)), np.arange(rows) + 10 * k
            file.create_dataset(f"traj_{k}/obs", data=obs, **(stored if rows > 2 else {}))
            file[f"traj_{k}/actions"] = actions
            for start in range(rows if pad else rows - 2):
                taken = np.minimum(np.arange(start, start + 3), rows - 1)
                expected.append((obs[taken].tobytes(), actions[taken].tobytes()))
    samples = Sequences(3, of="traj_*", pad=pad, lengths="shortest")
    dataset = H5Dataset(tmp_path / "demos.h5", ["obs", "actions"], samples=samples)
    for shuffle in (False, True):
        found = [pair for batch in H5StreamLoader(dataset, 4, shuffle=shuffle) for pair in zip(*batch, strict=True)]
        found = [(obs.numpy().tobytes(), actions.numpy().tobytes()) for obs, actions in found]
        assert (sorted(found) if shuffle else found) == (sorted(expected) if shuffle else expected)
    with pytest.raises(FieldLengthError, match="lengths='shortest'"):
        H5Dataset(tmp_path / "demos.h5", ["obs", "actions"], samples=Sequences(3, of="traj_*"))
    for options in ({"lengths": "longest"}, {"lengths": "shortest", "axis": 1}):
        with pytest.raises(OptionError, match="lengths="):
            Sequences(3, **options)

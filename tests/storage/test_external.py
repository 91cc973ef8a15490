"""Data outside the opened files is refused, by whichever way it is reached."""

import h5py
import pytest
from making import numbers, write_datasets

from h5stream import H5Dataset
from h5stream.errors import ExternalDataError

VALUES = numbers(6)


@pytest.fixture
def path(tmp_path):
    """Make a file that leads to another one in every way there is."""
    write_datasets(tmp_path / "secret.h5", x=VALUES, group__y=VALUES)
    VALUES.tofile(tmp_path / "raw.bin")
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["own"] = VALUES
        file["link"] = h5py.ExternalLink("secret.h5", "/x")
        file["group"] = h5py.ExternalLink("secret.h5", "/group")
        file["soft"] = h5py.SoftLink("/link")
        file["through"] = h5py.SoftLink("/group/y")
        for name, source in {
            "virtual": ("secret.h5", "x"),
            "virtual of own": (".", "own"),
            "virtual of virtual": (".", "virtual"),
            "virtual of link": (".", "link"),
            "virtual of stored": (".", "stored"),
        }.items():
            layout = h5py.VirtualLayout((6,), "f4")
            layout[:] = h5py.VirtualSource(*source, (6,))
            file.create_virtual_dataset(name, layout)
        file.create_dataset("stored", (6,), "f4", external=[(str(tmp_path / "raw.bin"), 0, VALUES.nbytes)])
    return path


OUTSIDE = {
    "link": "'link' is an external link to 'secret.h5'",
    "soft": "'link' is an external link",
    "through": "'group' is an external link",
    "virtual": "the virtual source 'secret.h5'",
    "virtual of virtual": "the virtual source 'secret.h5'",
    "virtual of link": "'link' is an external link",
    "virtual of stored": "the external file '.*raw.bin'",
    "stored": "the external file '.*raw.bin'",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_data_outside_the_opened_file_is_refused_and_read_when_that_is_allowed(path, name):
    with pytest.raises(
        ExternalDataError, match=rf"{OUTSIDE[name]}.*allow_external=True\) follows it if you trust"
    ) as caught:
        H5Dataset(path, name)
    assert caught.value.target
    dataset = H5Dataset(path, name, allow_external=True)
    assert dataset[:].numpy().tobytes() == VALUES.tobytes()
    assert dataset.layout.datasets[0][0].access == ("h5py" if name.startswith(("virtual", "stored")) else "direct")
    dataset.close()


@pytest.mark.parametrize("name", ["own", "virtual of own"])
def test_data_inside_the_opened_file_needs_no_leave(path, name):
    dataset = H5Dataset(path, name)
    assert dataset[:].numpy().tobytes() == VALUES.tobytes()
    dataset.close()


def test_virtual_sources_among_the_opened_files_need_no_leave(path, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "r+") as file:
        file["virtual"] = VALUES
    dataset = H5Dataset([path, str(tmp_path / "secret.h5")], "virtual")
    assert dataset[:].tolist() == [*VALUES.tolist(), *VALUES.tolist()]
    dataset.close()


def test_a_pattern_of_virtual_sources_is_followed_to_each_of_them(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w", libver="latest") as file:
        file["part-0"] = VALUES
        file["part-1"] = h5py.ExternalLink("secret.h5", "/x")
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        space = h5py.h5s.create_simple((6,), (h5py.h5s.UNLIMITED,))
        space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (6,), (6,))
        source = h5py.h5s.create_simple((6,))
        layout.set_virtual(space, b".", b"part-%b", source)
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((6,), (h5py.h5s.UNLIMITED,)), layout)
    with pytest.raises(ExternalDataError, match="'part-1' is an external link"):
        H5Dataset(path, "x")

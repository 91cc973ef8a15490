"""Data outside the opened files is refused, by whichever way it is reached."""

import h5py
import pytest
from support.making import numbers, read_with_h5py, write_datasets

from h5stream import H5Dataset
from h5stream.errors import ExternalDataError
from h5stream.storage.file.external import references

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


@pytest.mark.parametrize("name", ["own", "virtual of own"])
def test_data_inside_the_opened_file_needs_no_leave(path, name):
    assert H5Dataset(path, name)[:].numpy().tobytes() == VALUES.tobytes()


def test_virtual_sources_among_the_opened_files_need_no_leave(path, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "r+") as file:
        file["virtual"] = VALUES
    assert H5Dataset([path, tmp_path / "secret.h5"], "virtual")[:].tolist() == [*VALUES.tolist(), *VALUES.tolist()]


def add_virtual(file, name, *source):
    """Add a dataset of six, of the virtual source whose name is written so."""
    layout, space = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5s.create_simple((6,))
    layout.set_virtual(space, *source, space)
    h5py.h5d.create(file.id, name, h5py.h5t.IEEE_F32LE, space, layout)


@pytest.mark.parametrize("source", ["k%", "k%%", "k%b", "k%%b", "g%20/y", "g%b/y", "%/y"])
def test_a_percent_sign_in_the_name_of_a_virtual_source_is_what_hdf5_has_it_mean(tmp_path, source):
    asked = source.replace("%", "%%").encode()
    write_datasets(tmp_path / "secret.h5", x=VALUES)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[source] = VALUES
        file["number/y"] = file["k"] = VALUES + 1
        add_virtual(file, b"x", b".", asked)
    dataset = H5Dataset(tmp_path / "a.h5", "x")
    assert dataset[:].numpy().tobytes() == read_with_h5py(tmp_path / "a.h5").tobytes() == VALUES.tobytes()
    dataset.close()
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file[source]
        file[source] = h5py.ExternalLink("secret.h5", "/x")
    with pytest.raises(ExternalDataError, match=r"is an external link to 'secret\.h5'"):
        H5Dataset(tmp_path / "a.h5", "x")


@pytest.mark.parametrize("name", ["s%.h5", "s%%.h5", "s%b.h5", "s%%b.h5", "s%20.h5"])
def test_a_percent_sign_in_the_name_of_the_file_of_a_virtual_source_is_what_hdf5_has_it_mean(tmp_path, name):
    asked = name.replace("%", "%%")
    for one, values in ((name, VALUES), (asked, VALUES + 1)):
        write_datasets(tmp_path / one, x=values, own=values)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["own"] = VALUES
        add_virtual(file, b"x", asked.encode(), b"x")
    assert [item.target for item in references(tmp_path / "a.h5")] == [name]
    dataset = H5Dataset([tmp_path / "a.h5", tmp_path / name], "x")
    assert dataset[:6].numpy().tobytes() == read_with_h5py(tmp_path / "a.h5").tobytes() == VALUES.tobytes()
    dataset.close()
    with pytest.raises(ExternalDataError, match="the virtual source"):
        H5Dataset([tmp_path / "a.h5", tmp_path / asked], "x")


def test_a_file_that_is_called_as_a_pattern_is_not_what_the_pattern_reads(tmp_path):
    for name in ("s%b.h5", "s0.h5"):
        write_datasets(tmp_path / name, x=VALUES)
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        add_pattern(file, b"s%b.h5", b"x")
    with pytest.raises(ExternalDataError, match=r"the virtual source 's%b\.h5'"):
        H5Dataset([tmp_path / "a.h5", tmp_path / "s%b.h5"], "x")


def add_pattern(file, *source, blocks=1):
    """Add a dataset ``x`` of blocks of six, each of the virtual source whose name has its number."""
    unlimited = (h5py.h5s.UNLIMITED,)
    space, whole = (h5py.h5s.create_simple((6 * blocks,), unlimited) for _ in range(2))
    space.select_hyperslab((0,), unlimited, (6,), (6,))
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_virtual(space, *source, h5py.h5s.create_simple((6,)))
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, whole, layout)


@pytest.mark.parametrize(("group", "part"), [("", "part-"), ("", "part%"), ("g%20/", "part%b")])
def test_a_pattern_of_virtual_sources_is_followed_to_each_of_them(tmp_path, group, part):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file[f"{group}{part}0"] = VALUES
        file[f"{group}{part}1"] = h5py.ExternalLink("secret.h5", "/x")
        add_pattern(file, b".", f"{group}{part}".replace("%", "%%").encode() + b"%b")
    with pytest.raises(ExternalDataError, match=f"{part}1' is an external link"):
        H5Dataset(tmp_path / "a.h5", "x")


def test_a_pattern_of_file_names_is_counted_through(tmp_path):
    for block in range(3):
        write_datasets(tmp_path / f"part-{block}.h5", x=VALUES + block)
    with h5py.File(tmp_path / "v.h5", "w", libver="latest") as file:
        add_pattern(file, b"part-%b.h5", b"x", blocks=3)
    assert [item.target for item in references(tmp_path / "v.h5")] == ["part-0.h5", "part-1.h5", "part-2.h5"]
    assert read_with_h5py(tmp_path / "v.h5")[12:].tolist() == (VALUES + 2).tolist()

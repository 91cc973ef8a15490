"""What a pattern matches comes in the order in which h5py lists it: labels that a loop over the file collected fit."""

import fnmatch

import h5py
import numpy as np
import pytest

from h5stream import H5Dataset, H5StreamLoader, Objects, Rows
from h5stream.errors import StateError
from h5stream.storage import whereabouts


@pytest.fixture(params=[False, True], ids=["by letters", "as they were made"])
def paths(request, tmp_path):
    paths = [str(tmp_path / name) for name in ("b10.h5", "b2.h5")]
    for number, path in enumerate(paths):
        libver = ("earliest", "latest")[number]
        with h5py.File(path, "w", libver=libver, track_order=request.param) as file:
            for k in np.random.default_rng(number).permutation(14).tolist():
                group = file.create_group(f"demo_{k}", track_order=request.param)
                for name in ("x", "é", "x10", "x2"):
                    group[name] = np.full((3, 2), 100 * number + k)
            file["demo_link"] = h5py.SoftLink("/demo_7")
    return paths


def listed(paths, pattern):
    """Give the first value of all that a pattern matches, as loops over h5py's groups meet it."""
    found = []
    for path in paths:
        with h5py.File(path) as file:
            for name in file:
                for inner in file[name] if "/" in pattern else [""]:
                    if fnmatch.fnmatch(f"{name}/{inner}".strip("/"), pattern):
                        found.append(file[f"{name}/{inner or 'x'}"][0, 0])
    return found


@pytest.mark.parametrize("pattern", ["*", "demo_?", "*/x*"])
def test_objects_come_as_h5py_lists_them(paths, pattern, monkeypatch):
    monkeypatch.setattr(whereabouts, "MANY", 5)
    field = "." if "/" in pattern else "x"
    for _ in range(2):  # from the catalogue the second time
        assert H5Dataset(paths, field, samples=Objects(pattern))[:][:, 0, 0].tolist() == listed(paths, pattern)


def test_a_state_of_the_order_before_goes_on_between_epochs(paths):
    def make():
        return H5StreamLoader(paths[0], 7, samples=Rows(of="*"), fields="x", shuffle=True, seed=3)

    def older(batches):
        for _ in zip(range(batches), loader := make(), strict=False):
            pass
        state = loader.state_dict()
        return {**state, "format": 3, "fingerprint": {**state["fingerprint"], "chunks": "as names were ordered then"}}

    whole, later = make(), make()
    list(whole)
    later.load_state_dict(older(len(whole)))
    assert [batch.tolist() for batch in later] == [batch.tolist() for batch in whole]
    with pytest.raises(StateError, match="order of groups and objects was another"):
        make().load_state_dict(older(3))

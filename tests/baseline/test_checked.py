"""What `bench` compares with h5py: each kind of field, or it says which it does not."""

import h5py
import numpy as np
import pytest
import torch
from support.layouts import IMAGES, cells, jpegs, write
from support.making import vlen

from h5stream import Bounds, Crop, Field, H5StreamLoader, Lengths, Ragged, SampleNumber, Values
from h5stream.baseline.measure import check_epoch

TABLE, ENCODED = [("a", "f4"), ("b", "f4"), ("name", "S4")], [np.frombuffer(one, "u1") for one in IMAGES]
TEXTS = {"data": [[f"{k}", "é" * k] for k in range(12)], "dtype": h5py.string_dtype()}
HELD = {"x": np.random.default_rng(0).random((12, 5), "f4"), "y": np.arange(12.0).astype(">f8"), "x@scale": 2.5}
HELD |= {"table": np.ones(12, TABLE), "texts": TEXTS, "v": vlen("i4", map(np.arange, range(12)))}
HELD |= {"i": vlen("u1", ENCODED), "filled": jpegs(12), "lengths": [*map(len, IMAGES)], "on": np.arange(12) > 5}
HELD |= {"long": np.arange(36) / 7, "offsets": np.arange(0, 37, 3), "pick": np.arange(12)[::-1], "once": np.arange(4)}
HELD |= cells(12, 9) | {f"frame_{k}": np.full((2, 2), k) for k in range(12)}

LISTS = [[*range(k, 0, -2)] for k in range(12)]
FORMS, BOUNDS, KIND = ("packed", "nested", "pad", "list"), Bounds("offsets"), "obs/cell_type"
COMPARED = [
    *("x", "y", "table", "table:name", KIND, "v", "texts", "on", Field("table", columns=["a", "b"])),
    *(Field("x", columns=some, dtype=torch.bfloat16) for some in ([3, 1], slice(0, 2), np.arange(5) > 2)),
    *(Field("X", **how) for how in ({"ragged": "packed"}, {"ragged": "dense"}, {"ragged": "dense", "columns": [7, 2]})),
    *(Field("i", decode="jpeg"), Field("i", decode="auto", ragged="list"), Field("filled", decode=("jpeg", "lengths"))),
    *(Field("v", ragged=form) for form in (*FORMS, Ragged("pad", crop=Crop(2, at="start")))),
    *(Field("long", lookup=BOUNDS, ragged=form) for form in FORMS),
    *(Field("x", lookup=LISTS, ragged=form) for form in FORMS),
    *(Field("x", lookup=[[k, 0, k] for k in range(12)]), Field("texts", lookup=LISTS, ragged="list")),
    *(Field("v", lookup=some, ragged="list") for some in (LISTS, Lengths(np.ones(12, int)))),
    *(Field("long", lookup="pick"), Field("i", lookup=np.arange(12)[::-1], decode="auto")),
]
NAMED = ["x@scale", Field("once", take="all"), Values(range(12)), SampleNumber(), Field("frame_{}")]
NAMED += [Field("x", normalize={"mean": 1.0}), Field("x", lookup=lambda samples, epoch, seed: samples)]
NAMED += [Field("long", lookup=BOUNDS, ragged=Ragged("list", crop=Crop(2)))]


@pytest.mark.parametrize("k", range(len(COMPARED) + len(NAMED)))
def test_each_kind_of_field_is_compared_with_h5py_or_named(k, tmp_path):
    write(tmp_path, {"a.h5": HELD})
    fields = {"field": [*COMPARED, *NAMED][k], "kind": KIND}
    with H5StreamLoader(tmp_path / "a.h5", 5, shuffle=True, fields=fields) as loader:
        rows, problem, left_out = check_epoch(loader)
    assert (rows, problem, len(left_out)) == (12, "", int(k >= len(COMPARED)))

"""Small functions that the tools write their words with."""

import h5py
import numpy as np
import pytest
import torch
from each import for_each

from h5stream.advice.doctor import judged, worst
from h5stream.advice.limits import LoaderKnobs, least_amplification
from h5stream.advice.listing import dtype_text
from h5stream.advice.program import last_name, named
from h5stream.advice.suggestion import above_zero, at_least, batch_rows
from h5stream.baseline.measure import row_sums
from h5stream.cli.inspect_view import _seconds_text
from h5stream.cli.options import field_names
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import OptionError
from h5stream.monitor.progress import printable

SAID = [
    (worst([judged("a", ""), judged("b", "", "fix"), judged("c", "")]), "warn"),
    (worst([]), "pass"),
    (dtype_text(np.dtype(">f4")), "float32 big-endian"),
    (dtype_text(np.dtype("S10")), "S10"),
    (dtype_text(h5py.string_dtype()), "string of any length"),
    (dtype_text(np.dtype([("x", "f8"), ("y", "i2", (3,))])), "{x: float64, y: int16[3]}"),
    (last_name("obs:cell_type"), "cell_type"),
    (last_name("data/x"), "x"),
    (named(["a", "b", "c"]), "a, b and c"),
    (
        [batch_rows(*given) for given in ((10**6, 1024), (50_000, 3072), (10**6, 1 << 20), (10, 8), (None, 8))],
        [8192, 2048, 64, 1, 8192],
    ),
    ([_seconds_text(s) for s in (7.2e-05, 0.074, 0.9996)], ["under 1 ms", "about 70 ms", "about 1.0 s"]),
    ([field_names(text) for text in ("", "x", "x, y")], [None, "x", ["x", "y"]]),
    (printable("a\x1b[31mb\n"), "a\N{REPLACEMENT CHARACTER}[31mb\n"),
    (LoaderKnobs.of(torch.utils.data.DataLoader([1, 2, 3], batch_size=2)).batch_size, 2),
    (least_amplification(LoaderStatistics(rows=100, delivered_bytes=400, decoded_bytes=1200), 200), 1.0),
    ((row_sums(torch.arange(4)) == row_sums(np.arange(4))).all(), True),
]


@for_each(SAID)
def test_it_is_said_as_people_write_it(found, wanted):
    assert found == wanted


def test_numbers_out_of_range_are_named():
    at_least(1, workers=8, rows=None)
    with pytest.raises(OptionError, match="batch_size must be at least 1, not 0"):
        at_least(1, batch_size=0)
    with pytest.raises(OptionError, match=r"lr must be above 0, not -0\.1"):
        above_zero(lr=-0.1)

"""Small functions that the tools write their words with."""

import h5py
import numpy as np
from each import for_each

from h5stream.advice.limits import least_amplification
from h5stream.advice.listing import dtype_text
from h5stream.advice.suggestion import batch_rows
from h5stream.cli.inspect_view import _seconds_text
from h5stream.engine.statistics import LoaderStatistics

SAID = [
    (dtype_text(np.dtype(">f4")), "float32 big-endian"),
    (dtype_text(np.dtype("S10")), "S10"),
    (dtype_text(h5py.string_dtype()), "string of any length"),
    (dtype_text(np.dtype([("x", "f8"), ("y", "i2", (3,))])), "{x: float64, y: int16[3]}"),
    (
        [batch_rows(*given) for given in ((10**6, 1024), (50_000, 3072), (10**6, 1 << 20), (10, 8), (None, 8))],
        [8192, 2048, 64, 1, 8192],
    ),
    ([_seconds_text(s) for s in (7.2e-05, 0.074, 0.9996)], ["under 1 ms", "about 70 ms", "about 1.0 s"]),
    (least_amplification(LoaderStatistics(rows=100, delivered_bytes=400, decoded_bytes=1200), 200), 1.0),
]


@for_each(SAID)
def test_it_is_said_as_people_write_it(found, wanted):
    assert found == wanted

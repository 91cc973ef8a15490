"""The first batch of a fresh process: ``python -m bench.first_batch CASE PATH`` prints what it took, as JSON.

Nothing here needs more of h5stream than a loader, so that an older commit can be put before this folder on the path.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _rows(path: Path, **filters: Any) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.random.default_rng(0).random((20_000, 64), "f4"), chunks=(256, 64), **filters)
        file["y"] = np.arange(20_000)


def _gzip(path: Path) -> None:
    _rows(path, compression="gzip", shuffle=True)


def _groups(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        for k in range(50):
            file[f"data/demo_{k}/x"] = np.full((200 + k, 16), k, "f4")


def _objects(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        for k in range(3000):
            file[f"data/{k}"] = np.full((3, 100), k, "f4")


def _images(path: Path) -> None:
    import h5py
    import imagecodecs
    import numpy as np

    with h5py.File(path, "w") as file:
        encoded = file.create_dataset("x", 1000, h5py.vlen_dtype("u1"))
        for k in range(1000):
            encoded[k] = np.frombuffer(imagecodecs.jpeg_encode(np.full((64, 64, 3), k % 251, "u1")), "u1")
        file["y"] = np.arange(1000)


def _loader(case: str, path: str) -> Any:
    import h5stream

    if case == "sequences":
        return h5stream.H5StreamLoader(path, 64, True, samples=h5stream.Sequences(8, of="data/*"))
    if case == "objects":
        return h5stream.H5StreamLoader(path, 64, True, fields=".", samples=h5stream.Objects("data/*"))
    if case == "images":
        return h5stream.H5StreamLoader(path, 64, True, fields=[h5stream.Field("x", decode="jpeg"), "y"])
    return h5stream.H5StreamLoader(path, 256, True, fields=["x", "y"])


WRITERS: dict[str, Callable[[Path], None]] = {
    "rows": _rows,
    "rows, gzip": _gzip,
    "sequences": _groups,
    "objects": _objects,
    "images": _images,
}
"""Case -> what writes its file."""


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    import h5stream

    h5stream.H5StreamLoader  # noqa: B018  names are imported as they are asked for
    imported_s = _used_s()
    with _loader(*sys.argv[1:]) as loader:
        next(iter(loader))
        print(json.dumps({"imported_s": imported_s, "first_batch_s": _used_s() - imported_s}))

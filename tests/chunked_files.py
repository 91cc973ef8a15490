"""Random chunked datasets of every shape that HDF5 lets grow, and the check that ours are h5py's bytes.

`tests/test_maxshape.py` draws some; ``python tools/fuzz_maxshape.py --minutes 30`` draws them for as long as wanted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from hypothesis import strategies as st
from making import leave_partial_chunks_unfiltered, low_level
from oracle import expected, same, take

from h5stream import H5Dataset, H5StreamLoader

LIBVERS = {
    name: getattr(h5py.h5f, f"LIBVER_{name}")
    for name in ("EARLIEST", "V18", "V110", "V112", "V114", "V200", "LATEST")
    if hasattr(h5py.h5f, f"LIBVER_{name}")
}
ALLOC_TIMES = {
    "default": h5py.h5d.ALLOC_TIME_DEFAULT,
    "early": h5py.h5d.ALLOC_TIME_EARLY,
    "incr": h5py.h5d.ALLOC_TIME_INCR,
    "late": h5py.h5d.ALLOC_TIME_LATE,
}
FILL_TIMES = {
    "alloc": h5py.h5d.FILL_TIME_ALLOC,
    "ifset": h5py.h5d.FILL_TIME_IFSET,
    "never": h5py.h5d.FILL_TIME_NEVER,
}
_LZ4 = dict(hdf5plugin.LZ4())
FILTERS = {
    "none": lambda dcpl: None,
    "gzip": lambda dcpl: dcpl.set_deflate(1),
    "shuffle+gzip": lambda dcpl: (dcpl.set_shuffle(), dcpl.set_deflate(1)),
    "fletcher32": lambda dcpl: dcpl.set_fletcher32(),
    "lzf": lambda dcpl: dcpl.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL),
    "lz4": lambda dcpl: dcpl.set_filter(_LZ4["compression"], h5py.h5z.FLAG_OPTIONAL, _LZ4["compression_opts"]),
}
DTYPES = ("u1", "<i2", ">i4", "<f4", "<f8", "<c8", "S3", "?", "out of order")
_OUT_OF_ORDER = np.dtype({"names": ["b", "a"], "formats": [">i2", "<f4"], "offsets": [4, 0], "itemsize": 8})

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """What is done to the dataset once it is made."""

    kind: str
    """"write" a box, "resize", put a "raw" chunk past the filters, or close and "reopen" the file."""
    start: Shape = ()
    stop: Shape = ()


@dataclass(frozen=True)
class ChunkedFile:
    """A dataset, and what is done to it."""

    shape: Shape
    chunks: Shape
    maxshape: tuple[int | None, ...]
    dtype: str
    libver: str
    alloc: str
    fill_time: str
    fill: bool
    filters: str
    partial_unfiltered: bool
    steps: tuple[Step, ...]
    seed: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return _OUT_OF_ORDER if self.dtype == "out of order" else np.dtype(self.dtype)

    @property
    def grows_first(self) -> bool:
        """Whether the only unlimited axis, if there is only one, is the first."""
        return [n for n in self.maxshape if n is None] != [None] or self.maxshape[0] is None

    @property
    def spoils_libhdf5(self) -> bool:
        """Whether chunks that were left unfiltered at an edge become whole ones.

        libhdf5 means to filter them then, and does not always. It later decodes raw bytes, which gives what lies behind
        a too short result, or damages the process's memory, so that there is nothing to compare with.
        """
        now = self.shape
        for step in self.steps:
            if step.kind == "resize":
                if any(n % c and m // c > n // c for n, m, c in zip(now, step.stop, self.chunks, strict=True)):
                    return self.partial_unfiltered and self.filters != "none"
                now = step.stop
        return False

    def prepare(self, creation: Any) -> None:
        creation.set_alloc_time(ALLOC_TIMES[self.alloc])
        creation.set_fill_time(FILL_TIMES[self.fill_time])
        if self.fill and self.dtype != "out of order":
            creation.set_fill_value(np.array(1).astype(self.numpy_dtype))
        FILTERS[self.filters](creation)
        if self.partial_unfiltered:
            leave_partial_chunks_unfiltered(creation)

    def write(self, path: Path) -> None:
        """Make the file.

        Raises
        ------
        RuntimeError, OSError
            If libhdf5 fails; it does at resizing some datasets whose edge chunks are unfiltered.
        """
        low_level(
            path,
            self.shape,
            stored=h5py.h5t.py_create(self.numpy_dtype, logical=True),
            chunks=self.chunks,
            maxshape=tuple(h5py.h5s.UNLIMITED if n is None else n for n in self.maxshape),
            libver=(LIBVERS[self.libver], h5py.h5f.LIBVER_LATEST),
            prepare=self.prepare,
        )
        rng = np.random.default_rng(self.seed)
        for group in self._steps_between_reopenings():
            with h5py.File(path, "r+", libver=(self.libver.lower().replace("v18", "v108"), "latest")) as file:
                for step in group:
                    self._do(step, file["x"], rng)
        with h5py.File(path, "r+") as file:
            file["i"] = np.arange(file["x"].shape[0])

    def _steps_between_reopenings(self) -> Iterator[list[Step]]:
        for reopens, steps in itertools.groupby(self.steps, key=lambda step: step.kind == "reopen"):
            if not reopens:
                yield list(steps)

    def _do(self, step: Step, dataset: Any, rng: np.random.Generator) -> None:
        if step.kind == "resize":
            dataset.resize(step.stop)
        elif step.kind == "raw":
            start = tuple(s // c * c for s, c in zip(step.start, self.chunks, strict=True))
            values = _values(rng, self.chunks, self.numpy_dtype)
            dataset.id.write_direct_chunk(start, values.tobytes(), filter_mask=0xFFFFFFFF)
        else:
            box = tuple(slice(a, b) for a, b in zip(step.start, step.stop, strict=True))
            count = tuple(b - a for a, b in zip(step.start, step.stop, strict=True))
            dataset[box] = _values(rng, count, self.numpy_dtype)


def _values(rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.names:
        values = np.zeros(shape, dtype)
        for name in dtype.names:
            values[name] = rng.integers(2, 30000, shape)
        return values
    return rng.integers(0, 2 if dtype.kind == "b" else 250, shape).astype(dtype)


@st.composite
def chunked_files(draw: Any) -> ChunkedFile:
    rank = draw(st.integers(1, 4))
    most = (60, 20, 9, 6)[rank - 1]
    shape = tuple(draw(st.integers(1, most)) for _ in range(rank))
    maxshape = tuple(draw(st.sampled_from([n, n + draw(st.integers(0, most)), None])) for n in shape)
    chunks = tuple(draw(st.integers(1, min(most // 2, most if top is None else top))) for top in maxshape)
    filters = draw(st.sampled_from(sorted(FILTERS)))
    steps, now = [], shape
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["write", "write", "write", "resize", "raw", "reopen"]))
        if kind == "resize":
            now = tuple(
                n if top == n0 else draw(st.integers(1, top or 2 * most))
                for n, n0, top in zip(now, shape, maxshape, strict=True)
            )
            steps.append(Step("resize", stop=now))
        elif kind == "reopen":
            steps.append(Step("reopen"))
        else:
            whole = draw(st.booleans())
            start = tuple(0 if whole else draw(st.integers(0, n - 1)) for n in now)
            stop = tuple(n if whole else draw(st.integers(a + 1, n)) for a, n in zip(start, now, strict=True))
            steps.append(Step(kind if filters != "none" or kind == "write" else "write", start, stop))
    return ChunkedFile(
        shape=shape,
        chunks=chunks,
        maxshape=maxshape,
        dtype=draw(st.sampled_from(DTYPES)),
        libver=draw(st.sampled_from(sorted(LIBVERS))),
        alloc=draw(st.sampled_from(sorted(ALLOC_TIMES))),
        fill_time=draw(st.sampled_from(sorted(FILL_TIMES))),
        fill=draw(st.booleans()),
        filters=filters,
        partial_unfiltered=draw(st.booleans()),
        steps=tuple(steps),
        seed=draw(st.integers(0, 2**32)),
    )


def check_like_h5py(case: ChunkedFile, path: Path) -> str:
    """Write a file, read it both ways and compare with h5py; gives how it was read.

    Raises
    ------
    AssertionError
        If a row differs, or h5py has to read what can be read directly.
    """
    path.unlink(missing_ok=True)
    if case.spoils_libhdf5:
        return "not compared: libhdf5 leaves whole chunks unfiltered without a mark"
    try:
        case.write(path)
        with h5py.File(path, locking=False) as file:
            theirs = expected(file["x"][()])
            rows = file["x"].shape[0]
    except (RuntimeError, OSError):
        return "not made by libhdf5"
    dataset = H5Dataset(path, "x")
    part = dataset.layout.datasets[0][0]
    assert part.access in ("direct", "decoded"), part.reason
    assert same(dataset[:], theirs), "H5Dataset differs from h5py"
    some = np.random.default_rng(case.seed).integers(0, rows, 7)
    assert same(dataset[some], take(theirs, some)), "rows of H5Dataset differ from h5py"
    dataset.close()
    loader = H5StreamLoader(path, 1 + rows // 3, True, fields=["x", "i"], num_workers=case.seed % 3, seed=case.seed)
    seen = []
    for x, i in loader:
        assert same(x, take(theirs, i.numpy())), "H5StreamLoader differs from h5py"
        seen += i.tolist()
    loader.close()
    assert sorted(seen) == list(range(rows))
    return part.access

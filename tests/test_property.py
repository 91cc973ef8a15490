"""Whatever the file, the order and the threads: each row once, where `order` says, byte for byte as h5py has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from inner import stream_all

from h5stream import H5Dataset, H5StreamLoader
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings

THREADS = (0, 1, 2, 7)

# Each value: what h5py's create_dataset takes for it.
FILTERS = {
    "none": {},
    "gzip": {"compression": "gzip", "compression_opts": 1},
    "shuffle+gzip": {"compression": "gzip", "shuffle": True},
    "fletcher32": {"fletcher32": True},
    "shuffle+gzip+fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "shuffle": {"shuffle": True},
    "lz4": dict(hdf5plugin.LZ4()),
    "zstd": dict(hdf5plugin.Zstd()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
}
DTYPES = ["u1", "<i2", ">i4", "<i8", "<f2", ">f4", "<f8", "<c8", "?", ">u2"]


@dataclass(frozen=True)
class FieldPlan:
    """One dataset of a random file."""

    dtype: str
    row_shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    filters: str
    missing: bool
    seed: int

    def write(self, file: Any, name: str, rows: int) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        shape = (rows, *self.row_shape)
        dtype = np.dtype(self.dtype)
        raw = rng.integers(0, 2 if dtype.kind == "b" else 100, shape)
        if self.chunks is None:
            file.create_dataset(name, data=raw.astype(dtype))
            return file[name][()]
        dataset = file.create_dataset(
            name,
            shape,
            dtype,
            chunks=self.chunks,
            maxshape=(None,) * len(shape),
            fillvalue=dtype.type(1),
            **FILTERS[self.filters],
        )
        if self.missing:  # every other run of rows stays unwritten
            for start in range(0, rows, 2 * self.chunks[0]):
                dataset[start : start + self.chunks[0]] = raw[start : start + self.chunks[0]].astype(dtype)
        else:
            dataset[...] = raw.astype(dtype)
        return dataset[()]


@st.composite
def field_plans(draw, rows: int) -> FieldPlan:
    row_shape = tuple(draw(st.lists(st.integers(1, 7), max_size=2)))
    chunked = draw(st.integers(0, 9)) > 0
    chunks = (draw(st.integers(1, min(rows + 5, 40))), *(draw(st.integers(1, n + 1)) for n in row_shape))
    return FieldPlan(
        dtype=draw(st.sampled_from(DTYPES)),
        row_shape=row_shape,
        chunks=chunks if chunked else None,
        filters=draw(st.sampled_from(sorted(FILTERS))),
        missing=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32)),
    )


@dataclass(frozen=True)
class Case:
    """A random file and how it is streamed."""

    rows: int
    fields: tuple[FieldPlan, ...]
    batch_size: int
    window: int | str
    shuffle: bool
    drop_last: bool
    seed: int
    epoch: int
    world_size: int
    keep: bool
    selected: frozenset[int] | None


@st.composite
def cases(draw) -> Case:
    rows = draw(st.integers(1, 120))
    selected = draw(st.one_of(st.none(), st.frozensets(st.integers(0, rows - 1), min_size=1)))
    count = rows if selected is None else len(selected)
    world_size = draw(st.integers(1, min(4, count)))
    drop_last = draw(st.booleans())
    most = count // world_size if drop_last else 2 * rows
    # Batches of one row cannot be shared out evenly unless some are dropped.
    least = 1 if drop_last or count % world_size == 0 else 2
    return Case(
        rows=rows,
        fields=tuple(draw(st.lists(field_plans(rows), min_size=1, max_size=3))),
        batch_size=draw(st.integers(least, max(least, most))),
        window=draw(st.one_of(st.sampled_from(["auto", "all"]), st.integers(1, rows + 10))),
        shuffle=draw(st.booleans()),
        drop_last=drop_last,
        seed=draw(st.integers(0, 2**64)),
        epoch=draw(st.integers(0, 5)),
        world_size=world_size,
        keep=draw(st.booleans()),
        selected=selected,
    )


def loader_of(dataset: H5Dataset, case: Case, rank: int, threads: int) -> H5StreamLoader:
    loader = H5StreamLoader(
        dataset,
        case.batch_size,
        case.shuffle,
        num_workers=threads,
        drop_last=case.drop_last,
        window=case.window,
        seed=case.seed,
        rank=rank,
        world_size=case.world_size,
    )
    loader.set_epoch(case.epoch)
    return loader


def expected_order(loader: H5StreamLoader, dataset: H5Dataset, case: Case, rank: int) -> EpochOrder:
    size = loader.window_size
    if case.window == "all":
        assert size.window_rows == len(dataset)
    elif case.window != "auto":
        assert size.window_rows == min(case.window, len(dataset))
    options = OrderSettings(
        batch_size=case.batch_size,
        window_rows=size.window_rows,
        first_window_rows=size.first_window_rows,
        shuffle=case.shuffle,
        drop_last=case.drop_last,
        seed=case.seed,
        epoch=case.epoch,
        rank=rank,
        world_size=case.world_size,
    )
    return EpochOrder(dataset.blocks, options)


def same_bytes(tensor: torch.Tensor, array: np.ndarray) -> bool:
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    ours = tensor.numpy()
    return ours.dtype == native.dtype and ours.shape == native.shape and ours.tobytes() == native.tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("property")


@examples(700, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=cases())
def test_each_row_comes_once_in_the_computed_order_with_h5pys_bytes_for_any_threads(folder, case):
    path = folder / "case.h5"
    path.unlink(missing_ok=True)
    with h5py.File(path, "w") as file:
        stored = [plan.write(file, f"f{k}", case.rows) for k, plan in enumerate(case.fields)]
    with pytest.MonkeyPatch.context() as patch:
        if not case.keep:
            stream_all(patch)
        chosen = None if case.selected is None else sorted(case.selected)
        dataset = H5Dataset(path, [f"f{k}" for k in range(len(stored))], rows=chosen)
        seen = []
        for rank in range(case.world_size):
            seen += check_rank(dataset, case, rank, stored)
        dataset.close()
    there = list(range(case.rows)) if chosen is None else chosen
    assert len(seen) == len(set(seen))
    if case.drop_last:
        assert set(seen) <= set(there)
        assert len(seen) == case.world_size * case.batch_size * (len(there) // (case.world_size * case.batch_size))
    else:
        assert sorted(seen) == there


def check_rank(dataset: H5Dataset, case: Case, rank: int, stored: list[np.ndarray]) -> list[int]:
    """Compare every batch of a rank, for each number of threads, with the order and with h5py's bytes."""
    seen: list[int] = []
    for threads in THREADS:
        loader = loader_of(dataset, case, rank, threads)
        order = expected_order(loader, dataset, case, rank)
        number = -1
        for number, batch in enumerate(loader):
            rows = order.batch_rows(number)
            for tensor, array in zip(batch, stored, strict=True):
                assert same_bytes(tensor, array[rows]), (threads, number)
            seen += rows.tolist() if threads == THREADS[0] else []
        assert number + 1 == len(loader) == order.batches
        loader.close()
    return seen

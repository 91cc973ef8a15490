"""What reading only what is wanted gains, where nothing has to be decoded: columns, scattered rows, single rows.

    python -m pytest bench/test_partial_reads.py --benchmark-enable --benchmark-json=partial.json -s

Rounds of h5py and of ours take turns, and a ratio is the median of the rounds' own ratios. Shuffled batches are held
against h5py's slices in file order, which do less, and against h5py reading the same shuffled rows. The bytes read are
the process's own account (``/proc/self/io``) of another epoch of each, against those that were wanted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import h5py
import numpy as np
import pytest
import torch

from bench import cases
from h5stream import Field, H5Dataset, H5StreamLoader

ROUNDS = 15

# name: (shape, chunks, columns, batch)
LAYOUTS = {
    "channels, contiguous": ((24, 20, 360, 720), None, [3, 11], 2),
    "channels, chunked": ((24, 20, 360, 720), (1, 20, 360, 720), [3, 11], 2),
    "2 of 20 numbers, contiguous": ((1_200_000, 20), None, slice(0, 2), 8192),
    "2 of 20 numbers, chunked": ((1_200_000, 20), (250_000, 20), slice(0, 2), 8192),
}
PICTURES, SCATTERED = 6000, 1280


@pytest.fixture(scope="module")
def columns_file(bench_folder):
    def file_of(name: str) -> str:
        shape, chunks, _, _ = LAYOUTS[name]
        path = bench_folder / f"partial-{name.replace(' ', '-')}.h5"
        if not path.exists():
            with h5py.File(path, "w") as file:
                x = file.create_dataset("x", shape, "f4", chunks=chunks)
                step = max(1, shape[0] // 8)
                for start in range(0, shape[0], step):
                    stop = min(shape[0], start + step)
                    x[start:stop] = np.random.default_rng(start).random((stop - start, *shape[1:]), dtype="f4")
        return str(path)

    return file_of


@pytest.fixture(scope="module")
def pictures_file(bench_folder):
    path = bench_folder / "partial-pictures.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            pictures = np.random.default_rng(0).integers(0, 256, (PICTURES, 3, 128, 128), dtype="u1")
            file.create_dataset("x", data=pictures, chunks=(500, 3, 128, 128))
    return str(path)


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def compare(benchmark: object, group: str, ours: Callable[[], int], h5pys: Callable[[], int], wanted: int) -> None:
    """Let both take turns, and note the ratio and the bytes read."""
    ours(), h5pys()
    pairs = benchmark.pedantic(
        lambda: [(cases.seconds_of(h5pys), cases.seconds_of(ours)) for _ in range(ROUNDS)], rounds=1, iterations=1
    )
    before = bytes_read()
    ours()
    between = bytes_read()
    h5pys()
    benchmark.group = group
    facts = {
        "times_h5py": round(statistics.median(theirs / own for theirs, own in pairs), 2),
        "read_over_wanted": round((between - before) / wanted, 3),
        "h5pys_read_over_wanted": round((bytes_read() - between) / wanted, 3),
    }
    benchmark.extra_info.update(facts)
    print(f"\n{group}: {facts}")


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("how", ["shuffled", "in file order", "batches of H5Dataset"])
def test_columns(benchmark, columns_file, name, how):
    path, (shape, _, columns, batch) = columns_file(name), LAYOUTS[name]
    field = Field("x", columns=columns)
    if how == "batches of H5Dataset":
        dataset = H5Dataset(path, field)

        def ours() -> int:
            return sum(len(dataset[k : k + batch]) for k in range(0, shape[0], batch))
    else:
        loader = H5StreamLoader(path, batch, shuffle=how == "shuffled", fields=field, keep="never")

        def ours() -> int:
            return sum(len(rows) for rows in loader)

    stored = h5py.File(path)["x"]
    wanted = int(np.prod(shape[2:], dtype=int)) * 2 * 4 * shape[0]

    def slices() -> int:
        return sum(len(torch.from_numpy(stored[k : k + batch, columns])) for k in range(0, shape[0], batch))

    compare(benchmark, f"{name}, {how}", ours, slices, wanted)
    if how == "shuffled":
        # h5py takes one list of rows or columns, in ascending order: its rows are read whole where both are asked for.
        rows = np.random.default_rng(0).permutation(shape[0])[:batch]
        order = np.sort(rows)
        several = isinstance(columns, list)
        theirs_s = cases.seconds_of(lambda: stored[order][:, columns] if several else stored[order, columns])
        ours_s = min(cases.seconds_of(ours) for _ in range(3)) * batch / shape[0]
        benchmark.extra_info["times_h5py_shuffled"] = round(theirs_s / ours_s, 2)
        print(f"h5py reading a batch of the same shuffled rows: {theirs_s / ours_s:.1f}")


def test_single_rows(benchmark, columns_file):
    path = columns_file("2 of 20 numbers, contiguous")
    dataset, stored = H5Dataset(path, Field("x", columns=slice(0, 2))), h5py.File(path)["x"]
    rows = np.random.default_rng(0).integers(0, 1_000_000, 2000).tolist()
    compare(
        benchmark,
        "single rows",
        lambda: sum(len(dataset[row]) for row in rows),
        lambda: sum(len(torch.from_numpy(stored[row, :2])) for row in rows),
        8 * len(rows),
    )


def test_scattered_rows_of_large_chunks(benchmark, pictures_file):
    rows = np.random.default_rng(0).permutation(PICTURES)[:SCATTERED].tolist()
    loader = H5StreamLoader(pictures_file, 64, sampler=rows, fields="x")
    stored = h5py.File(pictures_file)["x"]
    compare(
        benchmark,
        "a sampler's rows, in chunks of 24 MiB",
        lambda: sum(len(batch) for batch in loader),
        lambda: sum(len(torch.from_numpy(stored[row])) > 0 for row in rows),
        SCATTERED * 3 * 128 * 128,
    )

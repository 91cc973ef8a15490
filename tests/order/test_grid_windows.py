"""Windows that begin a stride apart: blocks by arithmetic are those of each sample, without arrays of samples."""

import tracemalloc

import h5py
import numpy as np
import pytest
import torch
from support.making import write_datasets

from h5stream import Boxes, Field, H5Dataset, H5StreamLoader, Sequences, Take
from h5stream.order import blocks as order_blocks

MANY = 10**9
KINDS = {
    "sequences": lambda: Sequences(4),
    "sequences apart": lambda: Sequences(4, stride=3, tail="shift"),
    "padded": lambda: Sequences(4, pad="edge", pad_rows=(1, 2)),
    "along an axis": lambda: Sequences(4, axis=-1),
    "boxes": lambda: Boxes((4,), at="grid", stride=(1,)),
    "rows": lambda: None,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_million_windows_are_no_array(tmp_path, kind):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (MANY,), "i1", chunks=(1 << 20,))
        file["x"][MANY - 4 :] = 1, 2, 3, 4
    dataset = H5Dataset(tmp_path / "a.h5", {"x": "x"}, samples=KINDS[kind]())
    tracemalloc.start()
    last = dataset[-1]["x"].reshape(-1).tolist()
    blocks = order_blocks.epoch_blocks(dataset.layout, None, shuffle=True, is_drawn=False)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert last[-1] == 4
    assert blocks.total_rows == len(dataset)
    assert blocks.rows is None
    assert most < 256 << 20


@pytest.mark.parametrize("seed", range(12))
def test_blocks_by_arithmetic_are_those_of_each_sample(tmp_path, seed):
    rng, paths = np.random.default_rng(seed), []
    for k in range(int(rng.integers(1, 4))):
        length, chunk = int(rng.integers(6, 90)), int(rng.integers(1, 20))
        stored = {} if seed % 3 == 0 else {"compression": "gzip"} if seed % 3 == 1 else {"chunks": True}
        values = np.arange(2 * length)
        held = {"x": (values.reshape(length, 2), (min(chunk, length), 2)), "t": (values.reshape(2, length), (2, 5))}
        made = {
            name: {"data": data, **stored, **({"chunks": chunks} if stored else {})}
            for name, (data, chunks) in held.items()
        }
        paths.append(write_datasets(tmp_path / f"{k}.h5", **made, q=np.arange((length + 2) // 3)))
    stride, tail = int(rng.integers(1, 9)), "drop" if seed % 2 else "shift"
    pad = {"tail": tail} if seed % 4 else {"pad": "edge", "pad_rows": (1, 2)}
    scaled = {"t": "t", "q": Field("q", take=Take(range(1), axis=0, scale=1 / 3))}
    for fields, samples in (
        ({"x": "x"}, Sequences(4, stride=stride, **pad)),
        ({"t": "t"}, Sequences(3, axis=1, stride=stride, **pad)),
        (scaled, Sequences(3, axis=1, stride=stride)),
    ):
        layout = H5Dataset(paths, fields, samples=samples).layout
        every, blocks = np.arange(layout.samples), order_blocks.blocks_of(layout, None)
        if layout.has_boxes:
            wanted = order_blocks.blocks_by(order_blocks._chunks_of_boxes(layout, layout.space, every))
        else:
            anchors = layout.space.anchors_of(every)
            keys = order_blocks.block_numbers(layout.file_starts, order_blocks.block_rows(layout), anchors)
            wanted = order_blocks.blocks_by(keys, None, anchors)
        assert blocks.edges.tolist() == wanted.edges.tolist()
        assert blocks.rows is wanted.rows is None


@pytest.mark.parametrize("strides", [(2, 2), (1, 3)])
def test_datasets_of_windows_are_read_as_one(tmp_path, strides):
    datasets, wanted = [], []
    for k, stride in enumerate(strides):
        path = write_datasets(tmp_path / f"{k}.h5", x=100 * k + np.arange(30 + k))
        datasets.append(H5Dataset(path, "x", samples=Sequences(3, stride=stride)))
        wanted += [[100 * k + begin + step for step in range(3)] for begin in range(0, 28 + k, stride)]
    with H5StreamLoader(datasets, 4, drop_last=False) as loader:
        assert torch.cat([*loader]).tolist() == wanted

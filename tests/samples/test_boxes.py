"""Boxes of volumes, beside h5py and NumPy: random, on a grid, listed; with halos, padding, channels, several files."""

import threading

import h5py
import numpy as np
import pytest
from support.making import corrupt_chunk, make_file, read_with_h5py, write_datasets

from h5stream import Boxes, Field, H5Dataset, H5StreamLoader, Rows, SampleNumber, Values
from h5stream.errors import CorruptChunkError, FieldLengthError, OptionError

STORED = {"chunks": (8, 8, 8), "compression": "gzip"}


def by_hand(volume, origin, size):
    """Cut a cube out of an array."""
    return volume[tuple(slice(first, first + size) for first in origin)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("volumes")
    paths = [str(folder / f"{k}.h5") for k in range(2)]
    for path, shape in zip(paths, ((20, 24, 30), (16, 40, 17)), strict=True):
        raw, label = rng.random(shape, "f4"), rng.integers(0, 5, shape)
        write_datasets(path, raw={"data": raw, **STORED}, label={"data": label, **STORED})
    return paths


FIELDS = {"raw": "raw", "label": "label", "number": SampleNumber()}


def test_a_chunk_that_several_boxes_of_a_window_touch_is_decoded_once(paths):
    boxes = Boxes((4, 4, 4), at="grid", stride=(2, 2, 2))
    with H5StreamLoader(paths[0], 8, shuffle=True, window="all", fields="raw", samples=boxes) as loader:
        batches = sum(1 for _ in loader)
        assert loader.stats().decoded_bytes <= 24 * 24 * 32 * 4
    assert batches * 8 >= len(loader.dataset)


@pytest.mark.parametrize(
    ("fields", "boxes", "kind", "says"),
    [
        ("raw", Boxes((21, 4, 4), at="grid"), OptionError, r"\(21, 4, 4\) does not fit into .*2 of 2 volumes"),
        ("raw", Boxes((4, 4, 4), at="grid", halo=(1, 1, 1)), OptionError, "a halo leads out"),
        ("raw", Boxes((4, 4, 4, 4), at="grid"), OptionError, "need 4 axes"),
        ("raw", Boxes((4, 4, 4), at=[[0, 0, 0]]), OptionError, "needs 4: the volume's number"),
        ("raw", Boxes((4, 4, 4), at=[[2, 0, 0, 0]]), OptionError, "names volume 2 at 0; there are 2"),
        ("raw", Boxes((4, 4, 4), at=[[0, 17, 0, 0]]), OptionError, r"\(17, 0, 0\) at 0, from where a box"),
        (Field("raw", columns=[1]), Boxes((4, 4, 4), at="grid"), OptionError, "do not lie along, and there is none"),
        (["raw", Values([1, 2])], Boxes((4, 4, 4), at="grid"), FieldLengthError, "needs one for each"),
    ],
)
def test_boxes_that_are_not_there_are_told(paths, fields, boxes, kind, says):
    with pytest.raises(kind, match=says):
        H5Dataset(paths, fields, samples=boxes)


def test_fields_of_unlike_volumes_are_told(tmp_path):
    write_datasets(tmp_path / "a.h5", raw=np.zeros((2, 9, 9)), label=np.zeros((9, 8)))
    with pytest.raises(FieldLengthError, match=r"'label': it has 8 elements along an axis.*, and 'raw' has 9"):
        H5Dataset(tmp_path / "a.h5", ["raw", "label"], samples=Boxes((2, 2), at="grid"))
    drawn = H5Dataset(tmp_path / "a.h5", "raw", samples=Boxes((2, 2), per_epoch=5))
    with pytest.raises(OptionError, match="none to choose from"):
        drawn.subset([1])


def has_enough(label):
    return float((label > 2).double().mean()) > 0.41


@pytest.mark.parametrize("draw", ["rows", "segments"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"rank": 1, "world_size": 2}])
def test_boxes_that_are_refused_are_drawn_again(paths, draw, options):
    boxes = Boxes((4, 4, 4), per_epoch=40, accept=has_enough, accept_on="label", draw=draw)
    everything = Boxes((4, 4, 4), per_epoch=40, draw=draw)
    with H5StreamLoader(paths, 5, shuffle=True, seed=1, fields=FIELDS, samples=everything) as loader:
        assert not all(has_enough(label) for batch in loader for label in batch["label"])
    epochs, (raw, labels) = [], ([read_with_h5py(path, name) for path in paths] for name in ("raw", "label"))
    with H5StreamLoader(paths, 5, shuffle=True, seed=1, fields=FIELDS, samples=boxes, window=10, **options) as loader:
        space = loader.dataset.layout.space
        for _ in range(2):
            seen = []
            for batch in loader:
                of, origins = space.boxes_of(batch["number"].numpy())
                for place in range(len(of)):
                    file, origin = of[place], origins[place].tolist()
                    assert has_enough(batch["label"][place])
                    assert (batch["raw"][place].numpy() == by_hand(raw[file], origin, 4)).all()
                    assert (batch["label"][place].numpy() == by_hand(labels[file], origin, 4)).all()
                seen += batch["number"].tolist()
            epochs.append(seen)
        assert len(epochs[0]) == len(loader.dataset) // options.get("world_size", 1)
        assert epochs[0] != epochs[1]
        if draw == "segments" and not options:
            assert np.bincount(space.boxes_of(np.array(epochs[0]))[0]).tolist() == [20, 20]


def test_a_dataset_alone_gives_boxes_that_are_accepted(paths):
    boxes = Boxes((4, 4, 4), per_epoch=10, accept=lambda sample: has_enough(sample["label"]))
    dataset = H5Dataset(paths, FIELDS, samples=boxes)
    assert all(has_enough(dataset[k]["label"]) for k in range(10))
    with H5StreamLoader(dataset, 10, seed=0) as loader:
        assert next(iter(loader))["number"].tolist() == [dataset[k]["number"].item() for k in range(10)]


def test_a_function_that_refuses_all_is_told_and_can_be_stopped(paths):
    never = Boxes((4, 4, 4), per_epoch=10, accept=lambda label: False, accept_on="label", tries=3)
    with pytest.raises(OptionError, match=r"refused 3 boxes in turn for \d+ of \d+ samples"):
        next(iter(H5StreamLoader(paths, 5, shuffle=True, fields=FIELDS, samples=never)))
    asked = threading.Event()

    def ask(label):
        asked.set()
        return False

    forever = Boxes((4, 4, 4), per_epoch=10, accept=ask, accept_on="label", tries=10**9)
    loader = H5StreamLoader(paths, 5, shuffle=True, fields=FIELDS, samples=forever)
    iterator = iter(loader)
    assert asked.wait(60)
    iterator.close()
    loader.close()


def test_a_function_that_breaks_is_told(paths):
    boxes = Boxes((4, 4, 4), per_epoch=10, accept=lambda label: label.nothing, accept_on="label")
    with pytest.raises(AttributeError, match="nothing"):
        list(H5StreamLoader(paths, 5, shuffle=True, fields=FIELDS, samples=boxes))
    with pytest.raises(OptionError, match="accept_on='labels' is no field of a sample; it has 'raw', 'label'"):
        H5Dataset(paths, FIELDS, samples=Boxes((4, 4, 4), per_epoch=1, accept=has_enough, accept_on="labels"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_chunk_is_told_by_the_batch_that_needs_it_also_where_a_function_looks_first(tmp_path, workers):
    path = tmp_path / "a.h5"
    make_file(path, "x", None, data=np.ones((8, 8), "f4"), chunks=(4, 4), compression="gzip")
    corrupt_chunk(path, 3)
    boxes = Boxes((4, 4), per_epoch=60, accept=lambda x: x.sum() == 16)
    given = {"fields": "x", "samples": boxes, "shuffle": True, "num_workers": workers}
    with pytest.raises(CorruptChunkError, match=r"chunk \(4, 4\)"):
        list(H5StreamLoader(path, 5, **given))
    with H5StreamLoader(path, 5, on_error="skip", **given) as loader:
        assert 0 < sum(len(x) for x in loader) < 60


def test_volumes_of_unlike_sizes_that_lie_as_they_are_share_a_plan(tmp_path):
    volumes = [np.arange(n * n).reshape(n, n) + 100 * n for n in (2, 8, 4)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, volume in enumerate(volumes):
            file[f"g/{k}/x"] = volume
    dataset = H5Dataset(tmp_path / "a.h5", "x", samples=Boxes((2, 2), at="grid", of="g/*"))
    every = dataset[:]
    dataset.close()
    wanted = [
        v[a : a + 2, b : b + 2] for v in volumes for a in range(0, len(v) - 1, 2) for b in range(0, len(v) - 1, 2)
    ]
    assert every.tolist() == np.array(wanted).tolist()


@pytest.mark.parametrize("filters", [{"compression": "szip"}, {"compression": "szip", "fletcher32": True}])
def test_chunks_that_a_library_decodes_give_all_that_boxes_take_however_few_bytes_are_stored(tmp_path, filters):
    path, x = str(tmp_path / "a.h5"), np.zeros((8, 64), "i4")
    x[:, -1], x[-1] = 5, 7  # what is stored has fewer bytes than the elements in front of these
    write_datasets(path, x={"data": x, "chunks": (8, 64), **filters})
    columns, boxes = (H5Dataset(path, "x", samples=kind) for kind in (Rows(axis=-1), Boxes((2, 4), at="grid")))
    assert np.array_equal(columns[:], x.T)
    assert np.array_equal(columns[63], x[:, 63])
    every = x.reshape(4, 2, 16, 4).transpose(0, 2, 1, 3).reshape(64, 2, 4)
    assert np.array_equal(boxes[:], every)
    with H5StreamLoader(boxes, 16, num_workers=1) as loader:
        assert np.array_equal(np.concatenate([batch.numpy() for batch in loader]), every)
    columns.close()
    boxes.close()


def test_a_part_of_a_chunk_that_has_as_many_bytes_as_whole_ones_of_another_volume_is_no_whole_one(tmp_path):
    volumes = [np.arange(4 * n).reshape(4, n).astype("u1") for n in (8, 12)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, volume in enumerate(volumes):
            file.create_dataset(f"g/e{k}/v", data=volume, chunks=(1, volume.shape[1]))
    boxes = Boxes((1, 2), of="g/*", at=[[0, 0, 0], [1, 2, 2], [1, 2, 8]])  # 8 of 12 bytes of one chunk
    dataset = H5Dataset(str(tmp_path / "a.h5"), "v", samples=boxes)
    right = [volumes[0][:1, :2], volumes[1][2:3, 2:4], volumes[1][2:3, 8:10]]
    assert np.array_equal(dataset[:], right)
    with H5StreamLoader(dataset, 3, keep="never") as loader:
        assert np.array_equal(next(iter(loader)), right)
    dataset.close()

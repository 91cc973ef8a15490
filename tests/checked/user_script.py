"""What users write, for type checkers: `mypy` reads it with the package. Nothing runs it."""

from __future__ import annotations

import torch

import h5stream as hs
from h5stream.engine.statistics import LoaderStatistics
from h5stream.monitor import SystemMonitor
from h5stream.order import Blocks, Order, Ranks
from h5stream.results import Packed
from h5stream.structure import Padded
from h5stream.training import find_batch_size, preset_for, track


def show(*values: object) -> None:
    """Take what users print."""


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loader = hs.H5StreamLoader("train-*.h5", 256, shuffle=True, fields=["x", "y"], seed=1, memory_budget="4GiB")
    for x, y in track(loader):
        torch.autograd.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
    statistics: LoaderStatistics = loader.stats()
    waited: float = statistics.wait_share
    torch.save({"loader": loader.state_dict(), "waited": waited}, "state.pt")
    loader.load_state_dict(torch.load("state.pt")["loader"])
    loader.set_epoch(3)
    rows: int = len(loader.dataset) // loader.num_workers
    show(rows, loader.batch_size, loader.window_size.window_rows, len(loader), loader.dataset.layout.row_nbytes)
    loader.close()


def fields(labels: torch.Tensor) -> hs.H5Dataset:
    named = {
        "image": hs.Field("image", decode="jpeg", dtype=torch.float32, normalize={"mean": 0.5, "std": 0.25}),
        "tokens": hs.Field("tokens", lookup=hs.Bounds("offsets"), ragged=hs.Ragged("pad", crop=hs.Crop(128))),
        "boxes": hs.Field("boxes", lookup=hs.Lengths("counts"), ragged="packed"),
        "words": hs.Field("words", lookup=hs.Between("first", "last"), ragged="list", file="words.h5"),
        "step": hs.Field("step", columns=[0, 2], take=hs.Take(range(4), axis=0)),
    }
    dataset = hs.H5Dataset(["a.h5", "b.h5"], named, cache="cache", cache_size="10GiB")
    dataset = dataset.with_fields({"k": hs.SampleNumber(), "source": hs.SourceNumber(), "y": hs.Values(labels)})
    dataset = dataset.with_fields(["x", hs.Padding(range(4))])
    part, rest = dataset.split(0.8, 0.2, seed=1)
    show(dataset.statistics()["image"].normalize(), len(part), rest[0], dataset[[1, 2]], dataset.subset(range(10)))
    return dataset.with_fields("image")


def kinds() -> None:
    hs.H5StreamLoader("a.h5", samples=hs.Sequences(16, of="data/*", stride=2, pad="edge", tail="shift"))
    hs.H5StreamLoader("a.h5", samples=hs.Sequences(16, of=hs.Ids("episode")), keep="never", on_error="skip")
    hs.H5StreamLoader("a.h5", samples=hs.Sequences(of=hs.Ends("terminals", "timeouts")), fields="x")
    hs.H5StreamLoader("a.h5", samples=hs.Rows(of="data/*"), fields={"x": "x", "y": hs.Field("y")})
    hs.H5StreamLoader("a.h5", samples=hs.Objects("samples/*", missing="skip"), window="all")
    hs.H5StreamLoader("a.h5", samples=hs.Table({"row": [0, 4]}, length=3), sample_transform=repr, sample_workers=2)
    hs.H5StreamLoader("a.h5", samples=hs.Boxes((16, 16), per_epoch=100, halo=(2, 2)), batch_transform=repr)


def every_other_row(blocks: Blocks, epoch: int, ranks: Ranks) -> Order:
    raise NotImplementedError(f"{blocks.rows} rows, epoch {epoch}, rank {ranks.rank}")


def draws() -> None:
    hs.H5StreamLoader("a.h5", fields=["x", "y"], draw=hs.Weighted("w", count=10))
    hs.H5StreamLoader("a.h5", fields=["x", "y"], draw=hs.Balanced("y", shares={0: 2.0}))
    hs.H5StreamLoader("a.h5", fields=["x", "y"], draw=hs.Sized(4096, bucket=True, draw=1000))
    hs.H5StreamLoader("a.h5", fields=["x", "y"], draw=every_other_row, rank=0, world_size=1)


def tools() -> None:
    mixed = hs.H5StreamLoader(hs.Mixture({"a": "a.h5", "b": "b.h5"}, weights={"a": 0.5, "b": 0.5}, stop="all"))
    dataset = hs.H5Dataset("a.h5", "x")
    sampler = hs.ChunkBatchSampler(dataset, 64, seed=1)
    show(*torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=hs.collate))
    show(hs.diagnose(mixed, lambda batch: None).answer, hs.tune("a.h5", seconds=1.0).profile, hs.__version__)
    copy = hs.stage(["a.h5"], to="/dev/shm/x")
    with hs.staged("a.h5", to="/dev/shm/x") as paths, SystemMonitor(interval_s=1.0) as monitor:
        show(paths[0].name, copy.bytes_copied, monitor.summary().cpu_ratio, monitor.line())
    one, many = hs.repack("a.h5", "b.h5", compress="lz4"), hs.repack(["a.h5"], "folder")
    show(one.bytes_after, many[0].rewritten, find_batch_size(show, 64).largest, preset_for("A100").setting)
    try:
        show(next(iter(mixed)))
    except (hs.errors.SourceError, hs.H5StreamError) as error:
        raise SystemExit(str(error)) from error


def ragged(batch: Packed | Padded) -> torch.Tensor:
    return batch.values

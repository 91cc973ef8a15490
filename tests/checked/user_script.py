"""What users write, for type checkers: `mypy` reads it with the package. Nothing runs it."""

from __future__ import annotations

import torch

from h5stream import (
    Balanced,
    Between,
    Bounds,
    Boxes,
    ChunkBatchSampler,
    Crop,
    Ends,
    Field,
    H5Dataset,
    H5StreamError,
    H5StreamLoader,
    Ids,
    Lengths,
    Mixture,
    Objects,
    Padding,
    Ragged,
    Rows,
    SampleNumber,
    Sequences,
    Sized,
    SourceNumber,
    Table,
    Take,
    Values,
    Weighted,
    collate,
    diagnose,
    errors,
    repack,
    stage,
    staged,
    tune,
)
from h5stream.monitor import SystemMonitor
from h5stream.order import Blocks, Order, Ranks, Window
from h5stream.results import LoaderStatistics, Packed, Padded
from h5stream.training import find_batch_size, preset_for, track


def show(*values: object) -> None:
    """Take what users print."""


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loader = H5StreamLoader(
        "train-*.h5", 256, shuffle=True, fields=["x", "y"], seed=1, memory_budget="4GiB", device="cuda"
    )
    for _ in range(3):
        for x, y in track(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            torch.autograd.backward(loss)
            optimizer.step()
    statistics: LoaderStatistics = loader.stats()
    waited: float = statistics.wait_share
    torch.save({"loader": loader.state_dict(), "waited": waited}, "state.pt")
    loader.load_state_dict(torch.load("state.pt")["loader"])
    loader.set_epoch(3)
    rows: int = len(loader.dataset) // loader.num_workers
    show(rows, loader.batch_size, loader.window_size.window_rows, len(loader), loader.dataset.layout.row_nbytes)
    loader.close()


def fields(labels: torch.Tensor) -> H5Dataset:
    dataset = H5Dataset(
        ["a.h5", "b.h5"],
        {
            "image": Field("image", decode="jpeg", dtype=torch.float32, normalise={"mean": 0.5, "std": 0.25}),
            "tokens": Field("tokens", lookup=Bounds("offsets"), ragged=Ragged("pad", crop=Crop(128), pad_value=-1)),
            "boxes": Field("boxes", lookup=Lengths("counts"), ragged="packed"),
            "words": Field("words", lookup=Between("first", "last"), ragged="list", file="words.h5"),
            "columns": Field("table", columns=[0, 2], members=("a", "b")),
            "step": Field("step", take=Take(range(4), axis=0)),
            "label": Values(labels, name="label"),
            "number": SampleNumber(),
            "source": SourceNumber(),
            "padding": Padding(range(4)),
        },
        cache="cache",
        cache_size="10GiB",
    )
    part, rest = dataset.split(0.8, 0.2, seed=1)
    show(dataset.statistics()["image"].normalise(), len(part), rest[0], dataset[[1, 2]], dataset.subset(range(10)))
    return dataset.with_fields("image")


def kinds() -> None:
    show(H5StreamLoader("a.h5", samples=Sequences(16, of="data/*", stride=2, pad="edge", tail="shift")))
    show(H5StreamLoader("a.h5", samples=Sequences(16, of=Ids("episode")), keep="never", on_error="skip"))
    show(H5StreamLoader("a.h5", samples=Sequences(of=Ends("terminals", "timeouts")), fields="x"))
    show(H5StreamLoader("a.h5", samples=Rows(of="data/*"), fields={"x": "x", "y": Field("y")}))
    show(H5StreamLoader("a.h5", samples=Objects("samples/*", missing="skip"), window="all"))
    show(H5StreamLoader("a.h5", samples=Table({"row": [0, 4]}, length=3), sample_transform=repr, sample_workers=2))
    show(H5StreamLoader("a.h5", samples=Boxes((16, 16), per_epoch=100, halo=(2, 2)), batch_transform=repr))


def every_other_row(blocks: Blocks, epoch: int, ranks: Ranks) -> Order:
    raise NotImplementedError(f"{blocks.rows} rows, epoch {epoch}, rank {ranks.rank}, {Window}")


def draws() -> None:
    show(H5StreamLoader("a.h5", fields=["x", "y"], draw=Weighted("w", count=10)))
    show(H5StreamLoader("a.h5", fields=["x", "y"], draw=Balanced("y", shares={0: 2.0})))
    show(H5StreamLoader("a.h5", fields=["x", "y"], draw=Sized(4096, bucket=True, draw=1000)))
    show(H5StreamLoader("a.h5", fields=["x", "y"], draw=every_other_row, rank=0, world_size=1))


def tools() -> None:
    mixed = H5StreamLoader(Mixture({"a": "a.h5", "b": "b.h5"}, weights={"a": 0.5, "b": 0.5}, stop="all"))
    sampler = ChunkBatchSampler(H5Dataset("a.h5", "x"), 64, seed=1)
    stock = torch.utils.data.DataLoader(H5Dataset("a.h5", "x"), batch_sampler=sampler, collate_fn=collate)
    show(diagnose(mixed, lambda batch: None).answer, tune("a.h5", seconds=1.0).profile, list(stock))
    copy = stage(["a.h5"], to="/dev/shm/x")
    with staged("a.h5", to="/dev/shm/x") as paths, SystemMonitor(interval_s=1.0) as monitor:
        show(paths[0].name, copy.bytes_copied, monitor.summary().cpu_ratio, monitor.line())
    one, many = repack("a.h5", "b.h5", compress="lz4"), repack(["a.h5"], "folder")
    show(one.bytes_after, many[0].rewritten, find_batch_size(show, 64).largest, preset_for("A100").setting)
    try:
        show(next(iter(mixed)))
    except errors.SourceError as error:
        raise SystemExit(str(error)) from error
    except H5StreamError:
        raise


def ragged(batch: Packed | Padded) -> torch.Tensor:
    return batch.values

"""`h5stream bench`: the main job, measured against the naive loader on a sample file or on yours."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from h5stream.baseline.measure import Measurement
    from h5stream.loader import H5StreamLoader

_MIB = 1024 * 1024

_REPEATED_S = 20.0
"""Seconds; a first epoch shorter than this is followed by another, in memory that has been touched."""


def bench_command(
    file: Annotated[Path | None, typer.Argument(help="Your file; without it a 512 MiB sample is written.")] = None,
    fields: Annotated[str, typer.Option(help="Fields of a sample, with commas between them.")] = "",
    batch_size: Annotated[int, typer.Option(help="Rows of a batch.")] = 8192,
    workers: Annotated[int, typer.Option(help="Worker processes of the naive loader, at most what is allowed.")] = 2,
    threads: Annotated[int | None, typer.Option(help="Reader threads of h5stream.")] = None,
    seconds: Annotated[float, typer.Option(help="Time for the naive loader.")] = 15.0,
    window: Annotated[str, typer.Option(help="Rows of a window, 'auto' or 'all'.")] = "auto",
    check: Annotated[bool, typer.Option(help="Compare every row with h5py.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Stream shuffled epochs, time the naive loader beside them, and check every row against h5py."""
    console = Console(stderr=as_json)
    with tempfile.TemporaryDirectory(prefix="h5stream-bench-") as folder, _progress(console) as progress:
        path = file if file is not None else _sample(Path(folder) / "sample.h5", progress)
        names = [name.strip() for name in fields.split(",") if name.strip()] or None
        report = _measure(str(path), names, batch_size, workers, threads, seconds, window, check, progress)
    if as_json:
        typer.echo(json.dumps(report | {"results": [asdict(m) for m in report["results"]]}, indent=2))
    else:
        _print(console, report, sample=file is None)
    if report["problem"]:
        raise typer.Exit(1)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _sample(path: Path, progress: Progress) -> Path:
    from h5stream.baseline.sample_file import write_sample_file

    rows = 524_288
    task = progress.add_task("writing the sample file", total=rows, unit="rows")
    return write_sample_file(path, rows, progress=lambda done: progress.update(task, completed=done))


def _measure(
    path: str,
    names: list[str] | None,
    batch_size: int,
    workers: int,
    threads: int | None,
    seconds: float,
    window: str,
    check: bool,
    progress: Progress,
) -> dict[str, Any]:
    from h5stream.baseline.measure import check_epoch, measure_naive
    from h5stream.engine.kernels import warm_up
    from h5stream.loader import H5StreamLoader

    task = progress.add_task("compiling kernels (once)", total=1, unit="")
    warm_up()
    progress.update(task, completed=1)
    wanted = int(window) if window.isdigit() else window
    with H5StreamLoader(
        path, batch_size, True, num_workers=threads, fields=names if names is None or len(names) > 1 else names[0],
        window=wanted,
    ) as loader:  # fmt: skip
        rows = len(loader.dataset)
        ours = [_epoch(loader, "first epoch", progress)]
        if ours[0].seconds < _REPEATED_S:
            ours.append(_epoch(loader, "next epoch", progress))
        naive_fields = [field.name for field in loader.dataset.layout.fields]
        naive_task = progress.add_task(f"naive DataLoader, {seconds:.0f} s", total=rows, unit="rows")
        naive = measure_naive(
            path,
            naive_fields,
            batch_size=batch_size,
            workers=workers,
            seconds=seconds,
            row_nbytes=loader.dataset.layout.row_nbytes,
            progress=lambda done: progress.update(naive_task, completed=done),
        )
        problem = ""
        if check:
            check_task = progress.add_task("comparing with h5py", total=rows, unit="rows")
            problem = check_epoch(loader, progress=lambda done: progress.advance(check_task, done))
        return {
            "file": path,
            "file_bytes": Path(path).stat().st_size,
            "rows": rows,
            "row_bytes": loader.dataset.layout.row_nbytes,
            "batch_size": batch_size,
            "window_rows": loader.window_size.window_rows,
            "memory_budget": loader.memory_budget,
            "notice": loader.window_size.notice,
            "results": [naive, *ours],
            "checked": check,
            "problem": problem,
        }


def _epoch(loader: H5StreamLoader, which: str, progress: Progress) -> Measurement:
    from h5stream.baseline.measure import measure_epoch

    task = progress.add_task(f"h5stream, {which}", total=len(loader.dataset), unit="rows")
    return measure_epoch(
        f"h5stream, {loader.num_workers} threads, {which}",
        loader,
        progress=lambda done: progress.update(task, completed=done),
    )


def _print(console: Console, report: dict[str, Any], *, sample: bool) -> None:
    naive, *ours = report["results"]
    what = "sample file" if sample else report["file"]
    console.print(
        f"[bold]{what}[/]: {report['rows']:,} rows of {report['row_bytes']:,} bytes, "
        f"{report['file_bytes'] / _MIB:,.0f} MiB on disk; shuffled batches of {report['batch_size']:,}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("loader", no_wrap=True)
    for name in ("rows/s", "batches/s", "GB/s", "1st batch", "memory", "ratio"):
        table.add_column(name, justify="right")
    for measured in (naive, *ours):
        table.add_row(*_row(measured, measured.rows_per_s / naive.rows_per_s))
    console.print(table)
    console.print(
        f"naive: {naive.rows:,} rows in {naive.seconds:.1f} s; h5stream: first epoch in {ours[0].seconds:.2f} s, "
        f"window {report['window_rows']:,} rows. It touches its memory for the first time, the next one does not.\n"
        "1st batch: seconds to it. memory: growth of resident memory, worker processes included.",
        highlight=False,
        style="dim",
    )
    if report["notice"]:
        console.print(report["notice"])
    if report["problem"]:
        console.print(f"[bold red]WRONG:[/] {report['problem']}")
    elif report["checked"]:
        console.print(f"[green]Checked:[/] each of {report['rows']:,} rows came once, with h5py's bytes.")


def _row(measured: Measurement, ratio: float) -> list[str]:
    return [
        measured.name,
        f"{measured.rows_per_s:,.0f}",
        f"{measured.batches_per_s:,.2f}",
        f"{measured.gigabytes_per_s:.3f}",
        f"{measured.first_batch_s:.2f} s",
        f"{measured.peak_nbytes / _MIB:,.0f} MiB",
        f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x",
    ]

"""`h5stream doctor` and `h5stream diagnose`: is the machine well; is a loader fast enough for a step, and why not."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Column
from rich.text import Text

from h5stream.cli import options
from h5stream.cli.showing import advice, interrupted, print_json, prose, safe_console, table
from h5stream.errors import OptionError
from h5stream.monitor.progress import Bar
from h5stream.units import counted

if TYPE_CHECKING:
    from h5stream.advice.trials import Trial
    from h5stream.engine.statistics import LoaderStatistics
    from h5stream.loader import H5StreamLoader


_NEXT = {"loader alone": "the step alone", "step alone": "both", "both": "half a batch"}
"""What is measured behind each run."""


def diagnose_command(
    files: options.Files,
    step_ms: Annotated[
        float, typer.Option("--step-ms", metavar="MS", help="Milliseconds of a training step on a full batch.")
    ],
    fields: options.Fields = "",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    window: options.Window = "auto",
    memory_budget: options.MemoryBudget = None,
    samples: options.Samples = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time of each of the three runs.")] = 5.0,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure the loader alone, and with a training step of that length, and name what limits them.

    The step is a pause, as for a GPU that computes by itself; `h5stream.diagnose` takes your own step.

    Ctrl-C stops, and prints what was measured so far.
    """
    if not step_ms > 0:
        raise OptionError(f"--step-ms {step_ms:g}: must be more than 0 milliseconds")
    paths = options.files_of(files)
    measured: dict[str, Trial] = {}
    try:
        with Bar(safe_console(stderr=True), "measuring", unit="s") as bar:
            from h5stream.advice.diagnose import diagnose
            from h5stream.loader import H5StreamLoader
            from h5stream.structure import rows_of

            bar.show(total=bar.elapsed_s + 3.2 * seconds, note="the loader alone")

            def show(what: str, trial: Trial) -> None:
                measured[what] = trial
                left = 3 - len(measured) + 0.2  # the step may be tried on half a batch
                bar.show(total=bar.elapsed_s + left * seconds, note=_NEXT[what])

            given = options.loader_of(paths, fields, samples, batch_size, threads, window, memory_budget)
            row_s = step_ms / 1e3 / given["batch_size"]
            with H5StreamLoader(**given) as loader:
                found = diagnose(
                    loader, lambda batch: time.sleep(row_s * (rows_of(batch) or 0)), seconds=seconds, progress=show
                )
                settings = _settings(loader, found.statistics)
    except KeyboardInterrupt:
        _print_interrupted(measured, as_json)
        raise
    if as_json:
        print_json(found.to_dict() | {"interrupted": False})
        return
    console = safe_console()
    console.print(Text(f"{options.named(paths)}: {settings}", style="dim"))
    console.print(advice(found))
    if found.statistics is not None:
        console.print(Text("the loader alone:", style="dim"))
        console.print(Padding(Text(str(found.statistics), style="dim"), (0, 0, 0, 2), expand=False))


def _print_interrupted(measured: dict[str, Trial], as_json: bool) -> None:
    if as_json:
        found = {name: {"batch_s": one.batch_s, "rows_per_s": one.rows_per_s} for name, one in measured.items()}
        print_json({"measured": found, "interrupted": True})
        return
    console = safe_console()
    for name, one in measured.items():
        prose(console, f"{name}: {1e3 * one.batch_s:.2f} ms a batch, {one.rows_per_s:,.0f} rows/s")
    interrupted(console, "there is no verdict" if measured else "nothing was measured")


def _settings(loader: H5StreamLoader, found: LoaderStatistics | None) -> str:
    """Say what is measured, and where a step on a full batch is none that will come; few data need no threads."""
    threads = loader.num_workers if found is None else found.threads
    rows, batch = len(loader.dataset), loader.batch_size or 0
    short = f"; all {rows:,} rows are one batch, with a step as much shorter: try --batch-size {rows}"
    return (
        f"{counted(threads, 'thread')}, window {loader.window_size.window_rows:,} rows, "
        f"batch {batch:,}, {loader.dataset.layout.row_nbytes:,} bytes a row{short if rows < batch else ''}"
    )


# --- a checklist of the machine and, if given, of files on it ---------------------------------------------


_MARKS = {"pass": ("✓ pass", "green"), "warn": ("! warn", "yellow"), "fail": ("✗ fail", "bold red")}


def doctor_command(
    files: Annotated[
        list[str] | None, options.files_argument("HDF5 files, addresses (s3://...), or patterns, to look at as well.")
    ] = None,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Check this machine, and where the files are stored; exit with status 1 if something fails."""
    paths = options.files_of(files or [])
    from h5stream.advice.doctor import examine_file, examine_machine, worst

    checks = examine_machine()
    for path in paths:
        checks += examine_file(path)
    if as_json:
        print_json({"worst": worst(checks), "checks": [asdict(check) for check in checks]})
    else:
        rows = []
        for check in checks:
            mark, colour = _MARKS[check.status]
            found = Text(check.found)
            if check.fix:
                found.append(f"\n→ {check.fix}", style=colour)
            rows.append((Text(mark, style=colour), Text(check.name, style="bold"), found))
        columns = [Column("", no_wrap=True), Column("", no_wrap=True), Column("", overflow="fold")]
        console = safe_console()
        console.print(table(columns, rows, gap=2))
        counts = [f"{sum(check.status == status for check in checks)} {status}" for status in _MARKS]
        console.print(f"\n{', '.join(counts)}", highlight=False)
    if worst(checks) == "fail":
        raise typer.Exit(1)

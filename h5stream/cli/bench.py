"""`h5stream bench`: the main job, measured beside the naive loader on a sample file or on yours."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column

from h5stream.base.filesystem import unfinished
from h5stream.base.texts import counted, text_of_bytes
from h5stream.cli import options
from h5stream.cli.showing import SafeConsole, interrupted, line, notes, print_json, prose, table
from h5stream.monitor.progress import Bar

if TYPE_CHECKING:
    from h5stream.baseline import Measurement
    from h5stream.loader.loader import H5StreamLoader
    from h5stream.storage.layout.layout import SampleLayout

_SAMPLE_ROWS = 524_288

# Column widths: rows are printed one at a time, and have to line up within 80 characters.
_WIDTHS = {"rows/s": 12, "batches/s": 9, "data": 10, "1st batch": 9, "memory": 8}

# What each row of the results means.
_WORDS = {
    "h5stream, first epoch": "as it comes: decodes every row, and touches its memory for the first time",
    "kept": "h5stream as it comes, from the second epoch on, where all rows fit memory_budget",
    "h5stream": 'decodes every row in every epoch, as with keep="never", from the second epoch on',
    "busy loop": "as it comes, with a loop that runs Python for {busy_ms:g} ms a batch: {share:.0%} of its time",
    "naive": "one row per __getitem__ through h5py, {workers}",
}

# Opens a progress bar with a title and a total, and returns the function that reports the rows done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(slots=True)
class Report:
    """The results so far; they are printed even if the command stops early."""

    workers: int = 2
    busy_ms: float = 5.0
    seconds: float = 10.0  # the longest time of each loader
    console: Console = field(default_factory=lambda: Console(quiet=True))  # where rows are printed as they come
    unit: str = "row"  # what a sample is called
    facts: dict[str, object] = field(default_factory=dict)
    results: list[Measurement] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)  # lines of h5stream that are missing, and why
    naive_failed: str = ""
    checked: bool = False
    not_checked: dict[str, str] = field(default_factory=dict)  # fields that h5py cannot give as they are, and why
    checked_rows: int = 0  # that were compared with h5py
    problem: str = ""  # what is wrong with them
    lines: Sequence[str] = ()
    interrupted: bool = False

    def begin(self, loader_arguments: options.LoaderOptions, loader: H5StreamLoader) -> None:
        """Store and print what is going to be measured."""
        from h5stream.storage.source.local import identity_of
        from h5stream.storage.source.one_file import FileIdentity

        paths, layout, samples, window = (
            loader_arguments["dataset"],
            loader.dataset.layout,
            loader_arguments["samples"],
            loader.window_size,
        )
        self.unit = "row" if samples is None else "sample"
        identities = [identity_of(path) for path in paths]
        nbytes = sum(one.size for one in identities)
        where = "on disk" if isinstance(identities[0], FileIdentity) else "in a store"
        self.facts = {
            "file": paths[0] if len(paths) == 1 else paths,
            "file_bytes": nbytes,
            "rows": layout.samples,
            "row_bytes": layout.row_nbytes,
            "samples": "" if samples is None else repr(samples),
            "batch_size": loader.batch_size,
            "threads": loader.num_workers,
            "window_rows": window.window_rows,
            "memory_budget": loader.memory_budget,
            "notice": window.notice,
        }
        batches = f"batches of {counted(loader_arguments['batch_size'], self.unit)}"
        prose(
            self.console,
            f"{options.named(paths)}: {counted(layout.samples, self.unit)} of "
            f"{text_of_bytes(layout.row_nbytes)} in a batch, {text_of_bytes(nbytes)} {where}; shuffled {batches}, "
            f"{counted(loader.num_workers, 'thread')}, windows of {counted(window.window_rows, self.unit)}",
        )
        notes(self.console, filter(None, [window.notice]), set())

    def add(self, measured: Measurement) -> Measurement:
        """Store and print one measurement."""
        self.results.append(measured)
        print_row(self.console, measured, self.unit, header=len(self.results) == 1)
        return measured

    def to_dict(self) -> dict[str, object]:
        """Return the report as a dictionary for ``--json``."""
        results = [asdict(one) | {"rows_per_s": one.rows_per_s} for one in self.results]
        names = (
            "not_measured",
            "naive_failed",
            "checked",
            "checked_rows",
            "not_checked",
            "problem",
            "lines",
            "interrupted",
        )
        return self.facts | {"results": results} | {name: getattr(self, name) for name in names}


def bench_command(
    files: Annotated[
        list[str] | None,
        options.files_argument(
            "Your files, addresses or patterns ('s3://b/day*.h5'); without any a 512 MiB sample is written."
        ),
    ] = None,
    fields: options.Fields = "",
    samples: options.Samples = "",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    window: options.Window = "auto",
    memory_budget: options.MemoryBudget = None,
    workers: Annotated[int, options.number("--workers", "Worker processes of the naive DataLoader.", least=0)] = 2,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.1, help="Longest time of each loader, and of the comparison."),
    ] = 10.0,
    busy_ms: Annotated[
        float,
        typer.Option(
            "--busy-ms",
            metavar="MS",
            min=0.0,
            help="Milliseconds of Python a batch in a loop that is busy; 0: no such loop.",
        ),
    ] = 5.0,
    check: Annotated[bool, options.flag("", "Compare the rows with h5py.")] = True,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Stream shuffled epochs, then time the naive DataLoader, and compare the rows with h5py.

    Each result is printed as soon as it is known; Ctrl-C stops, and keeps these.

    With --samples only h5stream is measured: the naive loader reads rows.
    """
    report, errors = Report(workers, busy_ms, seconds, SafeConsole(quiet=as_json)), SafeConsole(stderr=True)

    @contextlib.contextmanager
    def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
        note = f"(stops after {seconds:g} s)" if title == "naive" else ""
        with Bar(errors, title, unit=f"{report.unit}s") as bar:
            yield lambda done: bar.show(done, total, note)

    with (
        tempfile.TemporaryDirectory(prefix="h5stream-bench-") as folder,
        unfinished(lambda: shutil.rmtree(folder, ignore_errors=True)),
    ):
        try:
            paths = options.files_of(files or [])
            if not files:
                from h5stream.baseline.measure import write_sample_file

                with progress("writing a sample file", _SAMPLE_ROWS) as show:
                    paths = [str(write_sample_file(Path(folder, "sample.h5"), _SAMPLE_ROWS, progress=show))]
            loader_arguments = options.loader_of(paths, fields, samples, batch_size, threads, window, memory_budget)
            names = _measure(report, loader_arguments, seconds, check, progress)
            if files:
                from h5stream.advice.program import loader_lines

                named: Sequence[str] | Mapping[str, str] = names
                if options.is_python(fields):
                    named = {"": fields if fields.strip().startswith("{") else f"({fields})"}
                elif samples:
                    named = options.listed_names(fields) or []
                report.lines = loader_lines(
                    files[0] if len(files) == 1 else files,
                    named,
                    batch_size=loader_arguments["batch_size"],
                    samples=samples,
                )
        except KeyboardInterrupt:
            report.interrupted = True
    if as_json:
        print_json(report.to_dict())
    else:
        print_end(SafeConsole(), report)  # The other one may have been stopped inside a line.
    if report.interrupted:
        raise typer.Exit(130)
    if report.problem:
        raise typer.Exit(1)


def _measure(
    report: Report, loader_arguments: options.LoaderOptions, seconds: float, check: bool, progress: Progress
) -> list[str]:
    """Measure h5stream, then the naive loader, then compare with h5py; return the names of the fields."""
    from h5stream.baseline import measure
    from h5stream.loader.loader import H5StreamLoader

    def epoch(loader: H5StreamLoader, title: str, busy_s: float = 0.0) -> Measurement:
        with progress(title, len(loader.dataset)) as show:
            return measure.measure_epoch(title, loader, seconds=seconds, progress=show, busy_s=busy_s)

    with H5StreamLoader(**loader_arguments) as loader:
        layout = loader.dataset.layout
        names = [one.name for one in layout.fields]
        report.begin(loader_arguments, loader)
        is_kept = _measure_as_it_comes(report, loader, epoch, seconds)
        if report.busy_ms:
            report.add(epoch(loader, "busy loop", report.busy_ms / 1e3))
    if is_kept:
        with H5StreamLoader(keep="never", **loader_arguments) as loader:
            _measure_decoding(report, loader, epoch, seconds)
    if loader_arguments["samples"] is not None:
        report.naive_failed = "naive was not measured, and h5py not compared with: both know rows only"
        return names
    _measure_naive(report, loader_arguments, layout, seconds, progress)
    if check:
        with H5StreamLoader(**loader_arguments) as loader, progress("comparing with h5py", len(loader.dataset)) as show:
            compared = measure.check_epoch(loader, seconds=seconds, progress=show)
            report.checked_rows, report.problem, report.not_checked = compared
            report.checked = True
    return names


def _measure_as_it_comes(
    report: Report, loader: H5StreamLoader, epoch: Callable[[H5StreamLoader, str], Measurement], seconds: float
) -> bool:
    """Measure the first two epochs of a loader with its defaults; return whether the second took all from memory."""
    if report.add(epoch(loader, "h5stream, first epoch")).stopped:
        why = f"the first epoch took longer than {seconds:g} s; give more --seconds"
        report.not_measured = dict.fromkeys(("kept", "h5stream"), why)
        return False
    second, stats = epoch(loader, "kept"), loader.stats()
    is_kept = bool(stats.memory_bytes) and not stats.decoded_bytes + stats.h5py_bytes
    if not is_kept:
        report.not_measured["kept"] = "not all rows stay in memory; the second epoch, which read again, is 'h5stream'"
    report.add(second if is_kept else replace(second, name="h5stream"))
    return is_kept


def _measure_decoding(
    report: Report, loader: H5StreamLoader, epoch: Callable[[H5StreamLoader, str], Measurement], seconds: float
) -> None:
    """Measure the second epoch of a loader that keeps no rows, whose first touches memory, or report why it is not."""
    if len(loader.window_size.kept) == len(loader.dataset.layout.datasets):
        report.not_measured["h5stream"] = "so little data stay in memory with keep='never' as well"
    elif epoch(loader, "h5stream, warming up").stopped:
        report.not_measured["h5stream"] = f"its first epoch took longer than {seconds:g} s; give more --seconds"
    else:
        report.add(epoch(loader, "h5stream"))


def _measure_naive(
    report: Report, loader_arguments: options.LoaderOptions, layout: SampleLayout, seconds: float, progress: Progress
) -> None:
    """Measure the naive loader on the fields that it can read, or report why it is not measured."""
    from h5stream.baseline import RivalError, measure, measure_naive

    alone, why = measure.rows_alone(layout)
    report.naive_failed = f"naive not measured: {why}" if why else ""
    try:
        naive: Measurement | None = None
        with progress("naive", layout.rows) as show:
            if alone:
                naive = measure_naive(
                    loader_arguments["dataset"],
                    alone,
                    batch_size=loader_arguments["batch_size"],
                    workers=report.workers,
                    seconds=seconds,
                    row_nbytes=layout.row_nbytes,
                    starts=layout.file_starts,
                    progress=show,
                )
        if naive is not None:
            report.add(naive)
    except RivalError as error:
        report.naive_failed = str(error)


def print_row(console: Console, measured: Measurement, unit: str = "row", *, header: bool) -> None:
    """Print the measurement of one loader, below the column titles if it is the first."""
    wide, first = max(9, min(24, console.width - sum(_WIDTHS.values()) - len(_WIDTHS))), measured.first_batch_s
    columns = [
        Column(
            name.replace("row", unit) if header else "", width=width, justify="right" if k else "left", overflow="fold"
        )
        for k, (name, width) in enumerate([("loader", wide), *_WIDTHS.items()])
    ]
    row = (
        measured.name,
        f"{measured.rows_per_s:,.0f}",
        f"{measured.batches_per_s:,.2f}" if measured.batches else "none",
        text_of_bytes(measured.nbytes / measured.seconds, "/s"),
        f">{measured.seconds:.1f} s" if first is None else f"{first:.2f} s",
        text_of_bytes(measured.peak_nbytes),
    )
    console.print(table(columns, [row]))


def print_end(console: Console, report: Report) -> None:
    """Print the comparison, what each row means, and the result of the check."""
    own_results = [one for one in report.results if one.name != "naive"]
    naive = next((one for one in report.results if one.name == "naive"), None)
    if naive is not None and naive.rows:
        times = ((one.name, one.rows_per_s / naive.rows_per_s) for one in own_results if not one.busy_s)
        ratios = ", ".join(f"{name} {ratio:,.0f}" if ratio >= 10 else f"{name} {ratio:.2g}" for name, ratio in times)
        # The naive loader read at least the rows that it delivered, so the ratio is a lower bound.
        least = f" It finished no batch in {report.seconds:g} s; the rows that it had read by then count."
        prose(console, f"x naive: {ratios}." if naive.batches else f"x naive, at least: {ratios}.{least}", style="bold")
    elif naive is not None:
        prose(console, f"The naive loader read not one row in {report.seconds:g} s; give more --seconds.")
    missing = [f"no line {name!r}: {why}" for name, why in report.not_measured.items()]
    for one_note in (*missing, *[report.naive_failed] * bool(report.naive_failed)):
        prose(console, f"note: {one_note}", style="yellow")
    workers = counted(report.workers, "worker process", "worker processes")
    for one in report.results:
        words = _WORDS[one.name].format(workers=workers, busy_ms=report.busy_ms, share=one.busy_share)
        prose(console, f"{one.name}: {words}.", style="dim")
    if own_results:
        stopped = "; ".join(one.name for one in report.results if one.stopped)
        legend = "1st batch: time to it. memory: growth of resident memory, worker processes included."
        prose(console, legend + (f" Stopped before the epoch's end: {stopped}." if stopped else ""), style="dim")
    if report.problem:
        prose(console, f"WRONG: {report.problem}", style="bold red")
    elif report.checked:
        rows, total = report.checked_rows, report.facts["rows"]
        checked_text = f"{rows:,}, as many as there was time for, of {total:,} rows"
        if rows == total:
            checked_text = f"each of {total:,} rows" if total != 1 else "the 1 row"
        others = " in the other fields" if report.not_checked else ""
        prose(console, f"Checked: {checked_text} came once, with h5py's bytes{others}.", style="green")
        for name, why in report.not_checked.items():
            prose(console, f"not checked: {name!r} {why}", style="yellow")
    for one_line in ["To stream it:", "", *report.lines] if report.lines else ():
        line(console, one_line.rstrip())
    if report.interrupted:
        interrupted(console, "this is what was measured until then" if own_results else "nothing was measured yet")

"""`h5stream bench`: the main job, measured beside the naive loader on a sample file or on yours."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column

from h5stream.cli.options import (
    FLAG,
    AsJson,
    BatchSize,
    Fields,
    MemoryBudget,
    Samples,
    Threads,
    Window,
    batch_rows_of,
    field_names,
    files_of,
    is_python,
    listed_names,
    sample_kind,
    window_rows,
)
from h5stream.cli.showing import line, print_json, prose, safe_console, table
from h5stream.filesystem import unfinished
from h5stream.monitor.progress import Bar
from h5stream.units import text_of_bytes

if TYPE_CHECKING:
    from h5stream.baseline.measure import Checked, Measurement
    from h5stream.loader import H5StreamLoader

_REPEATED_S = 20.0
"""Seconds; a first epoch shorter than this is followed by another, in memory that has been touched."""

_WIDTHS = {"rows/s": 12, "batches/s": 9, "data": 10, "1st batch": 9, "memory": 8}
"""Of the columns, so that rows that are printed one after the other stand below one another in 80 characters."""


# As the README's table has them.
_WORDS = {
    "h5stream, first epoch": "decodes every row, and touches its memory for the first time",
    "h5stream": 'decodes every row in every epoch (keep="never")',
    "kept": "h5stream as it comes, from the second epoch on, where all rows fit memory_budget",
    "naive": "one row per __getitem__ through h5py, {workers} worker processes",
}


@dataclass(slots=True)
class Report:
    """What is known so far, and is printed even if no more comes."""

    workers: int = 2
    facts: dict[str, Any] = field(default_factory=dict)
    ours: list[Measurement] = field(default_factory=list)
    naive: Measurement | None = None
    naive_failed: str = ""
    checked: Checked | None = None
    lines: Sequence[str] = ()
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON has it."""
        return self.facts | {
            "results": [_as_dict(one) for one in (*self.ours, self.naive) if one is not None],
            "naive_failed": self.naive_failed,
            "checked": self.checked is not None,
            "checked_rows": self.checked.rows if self.checked else 0,
            "problem": self.checked.problem if self.checked else "",
            "lines": self.lines,
            "interrupted": self.interrupted,
        }


def _as_dict(measured: Measurement) -> dict[str, Any]:
    return asdict(measured) | {"rows_per_s": measured.rows_per_s}


def bench_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Your files, or patterns such as 'day*.h5'; without any a 512 MiB sample is written.",
            show_default=False,
        ),
    ] = None,
    fields: Fields = "",
    samples: Samples = "",
    batch_size: BatchSize = None,
    threads: Threads = None,
    window: Window = "auto",
    memory_budget: MemoryBudget = None,
    workers: Annotated[
        int, typer.Option("--workers", min=0, metavar="N", help="Worker processes of the naive DataLoader.")
    ] = 2,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Longest time of each loader, and of the comparison.")
    ] = 10.0,
    check: Annotated[bool, typer.Option(help="Compare the rows with h5py.", metavar=FLAG)] = True,
    as_json: AsJson = False,
) -> None:
    """Stream shuffled epochs, then time the naive DataLoader, and compare the rows with h5py.

    Each result is printed when it is there; Ctrl-C ends with those.

    With --samples only h5stream is measured: the naive loader reads rows.
    """
    report = Report(workers=workers)
    bench = _Bench(report, None if as_json else safe_console(), safe_console(stderr=True), seconds)
    with (
        tempfile.TemporaryDirectory(prefix="h5stream-bench-") as folder,
        unfinished(lambda: shutil.rmtree(folder, ignore_errors=True)),
    ):
        try:
            paths = files_of(files) if files else [str(bench.sample(Path(folder, "sample.h5")))]
            options = {
                "fields": field_names(fields),
                "samples": sample_kind(samples),
                "num_workers": threads,
                "window": window_rows(window),
                "memory_budget": memory_budget,
            }
            bench.measure(paths, batch_size, workers, check, options)
            if files:
                report.lines = _lines(files, fields, samples, bench.names, report.facts["batch_size"])
        except KeyboardInterrupt:
            report.interrupted = True
    if as_json:
        print_json(report.to_dict())
    else:
        print_end(safe_console(), report)
    if report.interrupted:
        raise typer.Exit(130)
    if report.checked is not None and report.checked.problem:
        raise typer.Exit(1)


class _Bench:
    """Measures one thing after the other, ours first, and prints each when it is known."""

    def __init__(self, report: Report, results: Console | None, errors: Console, seconds: float) -> None:
        self._report, self._results, self._errors, self._seconds = report, results, errors, seconds
        self.names: list[str] = []

    def sample(self, path: Path) -> Path:
        """Write the sample file."""
        from h5stream.baseline.sample_file import write_sample_file

        rows = 524_288
        with self._progress("writing a sample file", rows) as show:
            return write_sample_file(path, rows, progress=show)

    @contextlib.contextmanager
    def _progress(self, title: str, total: int, note: str = "") -> Iterator[Callable[[int], None]]:
        """Show a bar of rows; give what takes how many are done."""
        with Bar(self._errors, title, unit="rows") as bar:
            yield lambda done: bar.show(done, total, note)

    def measure(
        self, paths: list[str], batch_size: int | None, workers: int, check: bool, options: dict[str, Any]
    ) -> None:
        """Measure ours, then the naive loader, then compare with h5py."""
        from h5stream.loader import H5StreamLoader

        batch_size = batch_size or batch_rows_of(paths, options["fields"], options["samples"])
        with H5StreamLoader(paths, batch_size, True, seed=0, keep="never", **options) as loader:
            self.names = [one.name for one in loader.dataset.layout.fields]
            self._note_facts(paths, loader, options["samples"])
            self._ours(loader)
        with H5StreamLoader(paths, batch_size, True, seed=0, **options) as loader:
            if not self._report.ours[-1].stopped:
                self._kept(loader)
            if options["samples"] is None:
                self._naive(paths, loader, batch_size, workers)
                if check:
                    self._check(loader)
            else:
                self._report.naive_failed = "naive was not measured, and h5py not compared with: both know rows only"

    def _note_facts(self, paths: Sequence[str], loader: H5StreamLoader, samples: Any) -> None:
        layout = loader.dataset.layout
        self._report.facts = {
            "file": paths[0] if len(paths) == 1 else list(paths),
            "file_bytes": sum(Path(path).stat().st_size for path in paths),
            "rows": layout.samples,
            "row_bytes": layout.row_nbytes,
            "samples": "" if samples is None else repr(samples),
            "batch_size": loader.batch_size,
            "threads": loader.num_workers,
            "window_rows": loader.window_size.window_rows,
            "memory_budget": loader.memory_budget,
            "notice": loader.window_size.notice,
        }
        if self._results is not None:
            _print_facts(self._results, self._report.facts)

    def _ours(self, loader: H5StreamLoader) -> None:
        for name in ("h5stream, first epoch", "h5stream"):
            self._report.ours.append(self._epoch(loader, name))
            self._print(self._report.ours[-1], header=len(self._report.ours) == 1)
            if self._report.ours[-1].stopped or self._report.ours[-1].seconds >= _REPEATED_S:
                return

    def _kept(self, loader: H5StreamLoader) -> None:
        """Measure the loader as it comes, from its second epoch on; nothing where rows do not stay in memory."""
        for name in ("kept, first epoch", "kept"):
            measured = self._epoch(loader, name)
            if measured.stopped:
                return
        found = loader.stats()
        if found.memory_bytes and not found.decoded_bytes + found.h5py_bytes:
            self._report.ours.append(measured)
            self._print(measured)

    def _epoch(self, loader: H5StreamLoader, title: str) -> Measurement:
        from h5stream.baseline.measure import measure_epoch

        with self._progress(title, len(loader.dataset)) as show:
            return measure_epoch(title, loader, seconds=self._seconds, progress=show)

    def _naive(self, paths: Sequence[str], loader: H5StreamLoader, batch_size: int, workers: int) -> None:
        from h5stream.baseline.measure import measure_naive
        from h5stream.baseline.rivals import RivalError

        layout = loader.dataset.layout
        note = f"(stops after {self._seconds:.0f} s)"
        with self._progress("naive", layout.rows, note) as show:
            try:
                self._report.naive = measure_naive(
                    paths,
                    [one.name for one in layout.fields],
                    batch_size=batch_size,
                    workers=workers,
                    seconds=self._seconds,
                    row_nbytes=layout.row_nbytes,
                    progress=show,
                )
            except RivalError as error:
                self._report.naive_failed = str(error)
                return
        self._print(self._report.naive)

    def _check(self, loader: H5StreamLoader) -> None:
        from h5stream.baseline.measure import check_epoch

        with self._progress("comparing with h5py", len(loader.dataset)) as show:
            self._report.checked = check_epoch(loader, seconds=self._seconds, progress=show)

    def _print(self, measured: Measurement, *, header: bool = False) -> None:
        if self._results is not None:
            print_row(self._results, measured, header=header)


def _lines(files: Sequence[str], fields: str, samples: str, names: Sequence[str], batch_size: int) -> Sequence[str]:
    """Return the Python that streams what was measured."""
    from h5stream.advice.program import loader_lines

    source = files[0] if len(files) == 1 else files
    if is_python(fields):
        return loader_lines(source, {"": f"({fields})"}, batch_size=batch_size, samples=samples)
    named = (listed_names(fields) or []) if samples else names
    return loader_lines(source, named, batch_size=batch_size, samples=samples)


def _print_facts(console: Console, facts: dict[str, Any]) -> None:
    name = facts["file"] if isinstance(facts["file"], str) else f"{len(facts['file'])} files"
    what = "samples" if facts["samples"] else "rows"
    prose(
        console,
        f"{name}: {facts['rows']:,} {what} of {text_of_bytes(facts['row_bytes'])}, "
        f"{text_of_bytes(facts['file_bytes'])} on disk; shuffled batches of {facts['batch_size']:,} rows, "
        f"{facts['threads']} thread(s), windows of {facts['window_rows']:,} rows",
    )
    if facts["notice"]:
        prose(console, f"note: {facts['notice']}")


def print_row(console: Console, measured: Measurement, *, header: bool) -> None:
    """Print what was measured of one loader, below the names of the columns if that is the first."""
    wide = max(9, min(24, console.width - sum(_WIDTHS.values()) - len(_WIDTHS)))
    titles = [("loader", wide), *_WIDTHS.items()]
    columns = [
        Column(name if header else "", width=width, justify="right" if k else "left", overflow="fold")
        for k, (name, width) in enumerate(titles)
    ]
    first = measured.first_batch_s
    row = (
        measured.name,
        f"{measured.rows_per_s:,.0f}",
        f"{measured.batches_per_s:,.2f}" if measured.batches else "none",
        f"{text_of_bytes(measured.nbytes / measured.seconds)}/s",
        f">{measured.seconds:.1f} s" if first is None else f"{first:.2f} s",
        text_of_bytes(measured.peak_nbytes),
    )
    console.print(table(columns, [row]))


def print_end(console: Console, report: Report) -> None:
    """Print what the rows come to."""
    if report.naive is not None and report.naive.rows:
        ratios = ", ".join(f"{one.name} {_ratio(one, report.naive)}" for one in report.ours)
        said = f"x naive: {ratios}."
        if not report.naive.batches:
            # Rows read are at least those delivered, so that is what ours is at the least.
            said = (
                f"x naive, at least: {ratios}. It finished no batch in {report.naive.seconds:.0f} s; the rows that it "
                "had read by then count."
            )
        prose(console, said, style="bold")
    elif report.naive is not None:
        prose(console, "The naive loader read not one row in its time.")
    if report.naive_failed:
        prose(console, f"note: {report.naive_failed}", style="yellow")
    if report.ours:
        stopped = [one.name for one in (*report.ours, report.naive) if one is not None and one.stopped]
        said = f" Stopped before the epoch's end: {'; '.join(stopped)}." if stopped else ""
        known = {one.name for one in (*report.ours, report.naive) if one is not None}
        for name, words in _WORDS.items():
            if name in known:
                prose(console, f"{name}: {words.format(workers=report.workers)}.", style="dim")
        prose(
            console,
            f"1st batch: time to it. memory: growth of resident memory, worker processes included.{said}",
            style="dim",
        )
    if (checked := report.checked) is not None:
        _print_checked(console, checked)
    if report.lines:
        prose(console, "To stream it:")
    for one_line in report.lines:
        line(console, f"    {one_line}" if one_line else "")
    if report.interrupted:
        measured = "this is what was measured until then" if report.ours else "nothing was measured yet"
        prose(console, f"Interrupted: {measured}.", style="yellow")


def _ratio(ours: Measurement, naive: Measurement) -> str:
    ratio = ours.rows_per_s / naive.rows_per_s
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _print_checked(console: Console, checked: Checked) -> None:
    if checked.problem:
        prose(console, f"WRONG: {checked.problem}", style="bold red")
    elif checked.rows == checked.total:
        prose(console, f"Checked: each of {checked.rows:,} rows came once, with h5py's bytes.", style="green")
    else:
        prose(
            console,
            f"Checked: {checked.rows:,} of {checked.total:,} rows came once and with h5py's bytes, as many as could be "
            "compared in the time.",
            style="green",
        )

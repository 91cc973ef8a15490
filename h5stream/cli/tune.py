"""`h5stream tune`: measure threads and windows on a file, and write the best setting as a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from h5stream.cli.options import AsJson, BatchSize, Fields, Files, MemoryBudget, check_writable, field_names, files_of
from h5stream.cli.showing import Bar, line, safe_console, verdict

if TYPE_CHECKING:
    from h5stream.advice.tune import Attempt, Tuning

_BAR = 20


def tune_command(
    files: Files,
    fields: Fields = "",
    batch_size: BatchSize = 8192,
    memory_budget: MemoryBudget = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Feed this device; its memory is tried for the window.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Time of each trial; there are some thirty.")] = 1.5,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the curve into this image.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the best setting into this TOML profile.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure shuffled epochs with other threads and windows; print the curve and the best setting."""
    from h5stream.advice.tune import tune
    from h5stream.monitor.plot import check_plot_path
    from h5stream.profiles import write_profile

    if plot is not None:
        check_plot_path(plot)
    check_writable(plot, "--plot")
    check_writable(out, "--out")
    paths = files_of(files)
    errors = safe_console(stderr=True)
    with Bar(errors, "measuring", unit="") as bar:
        tuning = tune(
            paths[0] if len(paths) == 1 else paths,
            fields=field_names(fields),
            batch_size=batch_size,
            memory_budget=memory_budget,
            device=device,
            seconds=seconds,
            progress=lambda attempt: bar.show(note=_said(attempt)),
        )
    if as_json:
        typer.echo(json.dumps(tuning.to_dict(), indent=2, default=str))
    else:
        _print(safe_console(), tuning)
    if out is not None:
        write_profile(tuning.profile, out)
        line(errors, f"profile: {out}")
        line(errors, f"use it:  loader = H5StreamLoader.from_profile({str(out)!r})  # shuffle=True is in it")
    if plot is not None:
        from h5stream.advice.tune_plot import save_tune_plot

        save_tune_plot(tuning, plot)
        line(errors, f"plot: {plot}")


def _said(attempt: Attempt) -> str:
    return f"{attempt.threads} thread(s), window {attempt.window_rows:,}: {attempt.rows_per_s:,.0f} rows/s"


def _print(console: Console, tuning: Tuning) -> None:
    console.print(attempts_table(tuning, console.width))
    verdict(console, tuning)
    console.print(Text(f"The batch size stays {tuning.profile.loader['batch_size']}.", style="dim"))


_TITLES = ("varied", "threads", "window", "blocks", "rows/s", "1st batch")


def attempts_table(tuning: Tuning, width: int) -> Table:
    """Lay the attempts out; the bars take what the numbers leave, since those are never cut."""
    rows = [_numbers(attempt) for attempt in tuning.attempts]
    taken = sum(max(map(len, column)) + 1 for column in zip(_TITLES, *rows, strict=True))
    most = min(_BAR, width - taken - len(" <-"))
    fastest = max(attempt.rows_per_s for attempt in tuning.attempts)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for number, title in enumerate(_TITLES):
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    table.add_column("", overflow="fold")
    for attempt, numbers in zip(tuning.attempts, rows, strict=True):
        chosen = attempt == tuning.best
        length = max(1, round(most * attempt.rows_per_s / fastest)) if fastest and most > 0 else 0
        said = attempt.refused or "█" * length + (" <-" if chosen else "")
        table.add_row(*numbers, said, style="green" if chosen else "")
    return table


def _numbers(attempt: Attempt) -> list[str]:
    ran = [f"{attempt.blocks:,}", f"{attempt.rows_per_s:,.0f}"]
    first = "" if attempt.refused or attempt.first_batch_s is None else f"{1e3 * attempt.first_batch_s:.0f} ms"
    return [
        attempt.knob,
        str(attempt.threads),
        f"{attempt.window_rows:,}",
        *(["", ""] if attempt.refused else ran),
        first,
    ]

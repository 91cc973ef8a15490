"""`h5stream tune`: measure threads and windows on a file, and write the best setting as a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from h5stream.cli import options
from h5stream.cli.showing import advice, interrupted, line, print_json, safe_console, table
from h5stream.monitor.progress import Bar

if TYPE_CHECKING:
    from h5stream.advice.tune import Attempt, Tuning

_BAR = 20


def tune_command(
    files: options.Files,
    fields: options.Fields = "",
    samples: options.Samples = "",
    batch_size: options.BatchSize = None,
    memory_budget: options.MemoryBudget = None,
    device: Annotated[str | None, typer.Option("--device", help="Feed this device.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Time of each trial; there are some thirty.")] = 1.5,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the curve into this image.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the best setting into this TOML profile.")] = None,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure shuffled epochs with other threads and windows; print the curve and the best setting.

    Ctrl-C ends with what was measured until then.
    """
    paths = options.files_of(files)
    options.check_writable(plot, "--plot")
    options.check_writable(out, "--out")
    from h5stream.monitor.screen import check_plot_path

    if plot is not None:
        check_plot_path(plot)
    errors = safe_console(stderr=True)
    measured: list[Attempt] = []
    try:
        with Bar(errors, "measuring", unit="s") as bar:
            from h5stream.advice.tune import tune

            def show(attempt: Attempt) -> None:
                measured.append(attempt)
                setting = f"{attempt.threads} thread(s), window {attempt.window_rows:,}"
                bar.show(
                    total=bar.elapsed_s * (1 + attempt.left / len(measured)),
                    note=f"{setting}: {attempt.rows_per_s:,.0f} rows/s",
                )

            given = options.loader_options(fields, samples)
            given["batch_size"] = batch_size or options.batch_rows_of(paths, **given)
            given |= {"memory_budget": memory_budget, "device": device}
            tuning = tune(paths[0] if len(paths) == 1 else paths, **given, seconds=seconds, progress=show)
    except KeyboardInterrupt:
        _print_interrupted(measured[1:], as_json)  # the first ran cold, and does not count
        raise
    if as_json:
        print_json(tuning.to_dict() | {"interrupted": False})
    else:
        console = safe_console()
        console.print(attempts_table(tuning.attempts, tuning.best, console.width))
        console.print(advice(tuning, with_arithmetic=False))
        console.print(Text(f"The batch size stays {tuning.profile.loader['batch_size']}.", style="dim"))
    if out is not None:
        _write(errors, tuning, out, files if len(paths) > 1 else None, fields, samples)
    if plot is not None:
        from h5stream.advice.tune import save_tune_plot

        save_tune_plot(tuning, plot)
        line(errors, f"plot: {plot}")


def _write(console: Console, tuning: Tuning, out: Path, files: list[str] | None, fields: str, samples: str) -> None:
    """Write the profile, and print how it is used, with what a profile does not hold."""
    from h5stream.profiles import write_profile

    write_profile(tuning.profile, out)
    more = [repr(files)] * bool(files) + [f"samples={samples}"] * bool(samples)
    words = ", ".join([repr(str(out)), *more, *[f"fields=({fields})"] * options.is_python(fields)])
    line(console, f"profile: {out}")
    line(console, f"use it:  loader = H5StreamLoader.from_profile({words})  # shuffle=True is in it")


def _print_interrupted(measured: list[Attempt], as_json: bool) -> None:
    """Print the best run of each setting; which one is the best is not known yet."""
    best: dict[tuple[int, int], Attempt] = {}
    for attempt in sorted(measured, key=lambda attempt: -attempt.rows_per_s):
        best.setdefault(attempt.setting, attempt)
    if as_json:
        print_json({"attempts": [asdict(attempt) for attempt in best.values()], "interrupted": True})
        return
    console, until = safe_console(), "nothing was measured"
    if best:
        console.print(attempts_table([*best.values()], None, console.width))
        until = f"these are the {len(measured)} runs until then, and none is recommended"
    interrupted(console, until)


_TITLES = ("varied", "threads", "window", "blocks", "rows/s", "1st batch")


def attempts_table(attempts: Sequence[Attempt], best: Attempt | None, width: int) -> Table:
    """Lay the attempts out; the bars take what the numbers leave, since those are never cut."""
    rows = []
    for one in attempts:
        ran = ["", "", ""]
        if not one.refused:
            first = "" if one.first_batch_s is None else f"{1e3 * one.first_batch_s:.0f} ms"
            ran = [f"{one.blocks:,}", f"{one.rows_per_s:,.0f}", first]
        rows.append([one.knob, str(one.threads), f"{one.window_rows:,}", *ran])
    taken = sum(max(map(len, column)) + 1 for column in zip(_TITLES, *rows, strict=True))
    most = min(_BAR, width - taken - len(" <-"))
    fastest = max(attempt.rows_per_s for attempt in attempts)
    columns = [Column(title, justify="right" if k else "left", overflow="fold") for k, title in enumerate(_TITLES)]
    found = table([*columns, Column("", overflow="fold")], ())
    for attempt, numbers in zip(attempts, rows, strict=True):
        chosen = attempt == best
        length = max(1, round(most * attempt.rows_per_s / fastest)) if fastest and most > 0 else 0
        said = attempt.refused or "█" * length + (" <-" if chosen else "")
        found.add_row(*numbers, said, style="green" if chosen else "")
    return found

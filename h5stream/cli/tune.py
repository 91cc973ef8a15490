"""`h5stream tune`: measure threads and windows on a file, and write the best setting as a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from h5stream.advice.tune import Attempt, Tuning

_BAR = 20


def tune_command(
    file: Annotated[Path, typer.Argument(help="The HDF5 file that is trained from.")],
    fields: Annotated[str, typer.Option(help="Fields of a sample, with commas between them.")] = "",
    batch_size: Annotated[int, typer.Option(help="Rows of a batch; it is not changed.")] = 8192,
    memory_budget: Annotated[int | None, typer.Option(help="Bytes that the loader may take.")] = None,
    device: Annotated[str | None, typer.Option(help="Feed this device; its memory is tried for the window.")] = None,
    seconds: Annotated[float, typer.Option(help="Time of each trial; there are some thirty.")] = 1.5,
    plot: Annotated[Path | None, typer.Option(help="Draw the curve into this image.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the best setting into this TOML profile.")] = None,
) -> None:
    """Measure shuffled epochs of FILE with other threads and windows; print the curve and the best setting."""
    from h5stream.advice.tune import tune
    from h5stream.engine.kernels import warm_up
    from h5stream.monitor.plot import check_plot_path
    from h5stream.profiles import write_profile

    if plot is not None:
        check_plot_path(plot)
    names = [name.strip() for name in fields.split(",") if name.strip()]
    console, errors = Console(), Console(stderr=True)
    warm_up()
    with errors.status("measuring") as status:
        tuning = tune(
            str(file),
            fields=(names if len(names) > 1 else names[0]) if names else None,
            batch_size=batch_size,
            memory_budget=memory_budget,
            device=device,
            seconds=seconds,
            progress=lambda attempt: status.update(_said(attempt)),
        )
    _print(console, tuning)
    if plot is not None:
        from h5stream.advice.tune_plot import save_tune_plot

        save_tune_plot(tuning, plot)
        errors.print(f"plot: {plot}", highlight=False, markup=False)
    if out is not None:
        write_profile(tuning.profile, out)
        errors.print(f"profile: {out}", highlight=False, markup=False)
        line = f"use it:  loader = H5StreamLoader.from_profile({str(out)!r})  # shuffle=True is in it"
        errors.print(line, highlight=False, markup=False, soft_wrap=True)


def _said(attempt: Attempt) -> str:
    return f"measuring: {attempt.threads} thread(s), window {attempt.window_rows:,}: {attempt.rows_per_s:,.0f} rows/s"


def _print(console: Console, tuning: Tuning) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("varied", no_wrap=True, min_width=8)
    for name in ("threads", "window", "blocks", "rows/s", "1st batch"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    fastest = max(attempt.rows_per_s for attempt in tuning.attempts)
    for attempt in tuning.attempts:
        chosen = attempt == tuning.best
        table.add_row(*_row(attempt, fastest, chosen, min(_BAR, console.width - 67)), style="green" if chosen else "")
    console.print(table)
    console.print(Text(f"{tuning.title}: {tuning.answer}", style="bold"))
    for line in tuning.caveats:
        console.print(Padding(Text(f"note: {line}"), (0, 0, 0, 2), expand=False))
    console.print(Text(f"The batch size stays {tuning.profile.loader['batch_size']}.", style="dim"))


def _row(attempt: Attempt, fastest: float, chosen: bool, bar_width: int) -> list[str]:
    if attempt.refused:
        return [attempt.knob, str(attempt.threads), f"{attempt.window_rows:,}", "", "", "", attempt.refused]
    bar = "█" * max(1, round(bar_width * attempt.rows_per_s / fastest)) if fastest else ""
    first = "" if attempt.first_batch_s is None else f"{1e3 * attempt.first_batch_s:.0f} ms"
    return [
        attempt.knob,
        str(attempt.threads),
        f"{attempt.window_rows:,}",
        f"{attempt.blocks:,}",
        f"{attempt.rows_per_s:,.0f}",
        first,
        bar + (" <-" if chosen else ""),
    ]

"""`h5stream diagnose`: is a file's loader fast enough for a step of so many milliseconds, and if not, why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

if TYPE_CHECKING:
    from h5stream.advice.diagnose import Diagnosis


def diagnose_command(
    file: Annotated[Path, typer.Argument(help="The HDF5 file that is trained from.")],
    step_ms: Annotated[float, typer.Option(help="Milliseconds of a training step on a full batch.")],
    fields: Annotated[str, typer.Option(help="Fields of a sample, with commas between them.")] = "",
    batch_size: Annotated[int, typer.Option(help="Rows of a batch.")] = 8192,
    threads: Annotated[int | None, typer.Option(help="Reader threads; by default as many as are allowed.")] = None,
    window: Annotated[str, typer.Option(help="Rows of a window, 'auto' or 'all'.")] = "auto",
    seconds: Annotated[float, typer.Option(help="Time of each of the three runs.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the loader of FILE alone, and with a step that takes so long, and name what limits the two.

    The step is a pause, as for a GPU that computes by itself; `h5stream.diagnose` takes your own step.
    """
    from h5stream.advice.diagnose import diagnose
    from h5stream.engine.kernels import warm_up
    from h5stream.errors import OptionError
    from h5stream.loader import H5StreamLoader

    if not step_ms > 0:
        raise OptionError(f"--step-ms {step_ms:g}: must be more than 0 milliseconds")
    names = [name.strip() for name in fields.split(",") if name.strip()]
    warm_up()
    with H5StreamLoader(
        str(file),
        batch_size,
        shuffle=True,
        num_workers=threads,
        fields=(names if len(names) > 1 else names[0]) if names else None,
        window=int(window) if window.isdigit() else window,
    ) as loader:
        found = diagnose(loader, pause(step_ms / 1e3 / batch_size), seconds=seconds)
        settings = (
            f"{loader.num_workers} thread(s), window {loader.window_size.window_rows:,} rows, "
            f"batch {batch_size:,}, {loader.dataset.layout.row_nbytes:,} bytes a row"
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found, f"{file}: {settings}")


def pause(seconds_a_row: float) -> Callable[[Any], None]:
    """Give a step that does nothing for a time in proportion to the rows."""
    from h5stream.advice.waiting import rows_of

    return lambda batch: time.sleep(seconds_a_row * (rows_of(batch) or 0))


def _print(found: Diagnosis, settings: str) -> None:
    console = Console()
    console.print(Text(settings, style="dim"))
    console.print(Text(f"{found.title}: {found.answer}", style="bold"))
    for line in found.arithmetic:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    for line in found.caveats:
        console.print(Padding(Text(f"note: {line}"), (0, 0, 0, 2), expand=False))
    if found.statistics is not None:
        console.print(Text("the loader alone:", style="dim"))
        console.print(Padding(Text(str(found.statistics), style="dim"), (0, 0, 0, 2), expand=False))

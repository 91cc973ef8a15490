"""`h5stream diagnose`: is a file's loader fast enough for a step of so many milliseconds, and if not, why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from h5stream.cli.options import (
    AsJson,
    BatchSize,
    Fields,
    Files,
    MemoryBudget,
    Samples,
    Threads,
    Window,
    field_names,
    files_of,
    window_rows,
)
from h5stream.cli.showing import indented, safe_console, verdict

if TYPE_CHECKING:
    from h5stream.advice.diagnose import Diagnosis
    from h5stream.loader import H5StreamLoader


def diagnose_command(
    files: Files,
    step_ms: Annotated[
        float, typer.Option("--step-ms", metavar="MS", help="Milliseconds of a training step on a full batch.")
    ],
    fields: Fields = "",
    batch_size: BatchSize = 8192,
    threads: Threads = None,
    window: Window = "auto",
    memory_budget: MemoryBudget = None,
    samples: Samples = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time of each of the three runs.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Measure the loader of the files alone, and with a step that takes so long, and name what limits the two.

    The step is a pause, as for a GPU that computes by itself; `h5stream.diagnose` takes your own step.
    """
    from h5stream.advice.diagnose import diagnose
    from h5stream.advice.from_text import samples_from_text
    from h5stream.errors import OptionError
    from h5stream.loader import H5StreamLoader

    if not step_ms > 0:
        raise OptionError(f"--step-ms {step_ms:g}: must be more than 0 milliseconds")
    paths = files_of(files)
    with H5StreamLoader(
        paths,
        batch_size,
        shuffle=True,
        num_workers=threads,
        fields=field_names(fields),
        window=window_rows(window),
        memory_budget=memory_budget,
        samples=samples_from_text(samples) if samples else None,
    ) as loader:
        found = diagnose(loader, pause(step_ms / 1e3 / batch_size), seconds=seconds)
        settings = _settings(loader)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found, f"{paths[0] if len(paths) == 1 else f'{len(paths)} files'}: {settings}")


def pause(seconds_a_row: float) -> Callable[[Any], None]:
    """Give a step that does nothing for a time in proportion to the rows."""
    from h5stream.structure import rows_of

    return lambda batch: time.sleep(seconds_a_row * (rows_of(batch) or 0))


def _settings(loader: H5StreamLoader) -> str:
    """Say what is measured, and where a step on a full batch is none that will come."""
    rows, batch = len(loader.dataset), loader.batch_size or 0
    short = f"; all {rows:,} rows are one batch, with a step as much shorter: try --batch-size {rows}"
    return (
        f"{loader.num_workers} thread(s), window {loader.window_size.window_rows:,} rows, "
        f"batch {batch:,}, {loader.dataset.layout.row_nbytes:,} bytes a row{short if rows < batch else ''}"
    )


def _print(found: Diagnosis, settings: str) -> None:
    console = safe_console()
    console.print(Text(settings, style="dim"))
    verdict(console, found, found.arithmetic)
    if found.statistics is not None:
        console.print(Text("the loader alone:", style="dim"))
        indented(console, str(found.statistics), style="dim")

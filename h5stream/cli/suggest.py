"""`h5stream suggest`: settings to try on a GPU, each with its arithmetic; nothing is applied."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from h5stream.advice.suggestion import batch_rows
from h5stream.cli.options import (
    SIZE,
    AsJson,
    Fields,
    MemoryBudget,
    Samples,
    Threads,
    field_names,
    files_of,
    sample_kind,
    size,
    some_size,
)
from h5stream.cli.showing import labelled, print_json, safe_console
from h5stream.errors import OptionError

if TYPE_CHECKING:
    from h5stream.advice.suggestion import Suggestion
    from h5stream.training.presets import Setting

_CHUNK_NBYTES = 1 << 20

_LABEL_COLUMNS = 8
# Which options a suggestion takes, for those who did not give them.
_NEEDED = {
    "preset": "--gpu (a preset)",
    "loader_memory": "FILE or --row-bytes (host memory)",
    "gpu_memory": "--parameters (GPU memory)",
    "accumulation": "--target-batch (accumulation)",
    "learning_rate": "--lr with --lr-batch (learning rate)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """What is known of the data: as it was given, and of files where it was not."""

    row_bytes: int | None
    rows: int | None
    chunk_bytes: int
    block_rows: int | None = None


def _gib(text: str | float) -> float:
    """Return a card's memory in GiB: a plain number is that already, and the makers' "24 GB" are 24 GiB."""
    plain = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(?:GB|GiB|G)?\s*", str(text), re.IGNORECASE)
    return float(plain[1]) if plain else some_size(str(text)) / (1 << 30)


def _data_of(
    files: list[str], fields: str, samples: str, row_bytes: int | None, rows: int | None, chunk_bytes: int | None
) -> _Data:
    if not files:
        if fields or samples:
            raise OptionError(f"--fields {fields!r} names fields of FILE; name a file as well")
        return _Data(row_bytes=row_bytes, rows=rows, chunk_bytes=chunk_bytes or _CHUNK_NBYTES)
    paths = files_of(files)
    from h5stream.storage.opening import open_layout

    layout = open_layout(paths, field_names(fields), samples=sample_kind(samples))
    return _Data(
        row_bytes=row_bytes or layout.row_nbytes,
        rows=rows or layout.samples,
        chunk_bytes=chunk_bytes or layout.leading[0].chunk_nbytes,
        # With a chunk of the user's own the file's no longer say how many rows it has.
        block_rows=None if chunk_bytes else min(layout.block_rows[0], layout.rows),
    )


def _shown(suggestion: Suggestion) -> Group:
    """Lay a suggestion out: its title, then answer, arithmetic, notes and sources beside their labels."""
    parts: list[tuple[str, list[RenderableType]]] = [("answer", [Text(suggestion.answer, style="bold green")])]
    for label, lines, style in (
        ("because", suggestion.arithmetic, ""),
        ("note", suggestion.caveats, "yellow"),
        ("source", suggestion.sources, "dim"),
    ):
        # As padding and not as spaces, an indent also holds where the line is folded.
        indents = [len(line) - len(line.lstrip()) for line in lines]
        texts = zip(lines, indents, strict=True)
        parts.append((label, [Padding(Text(line.lstrip(), style=style), (0, 0, 0, indent)) for line, indent in texts]))
    return Group(Text(suggestion.title, style="bold cyan"), labelled(parts, width=_LABEL_COLUMNS), Text())


def _print_all(console: Console, found: dict[str, Suggestion], batch_size: int | None) -> None:
    for suggestion in found.values():
        console.print(_shown(suggestion))
    more = [options for name, options in _NEEDED.items() if name not in found]
    if more:
        console.print(Text(f"With more numbers: {', '.join(more)}.", style="dim"))
    kept = "" if batch_size is None else f" Your batch size stays {batch_size}."
    console.print(Text(f"Suggestions are printed and never applied.{kept}", style="dim"))


def suggest_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="HDF5 files, or patterns, that give --row-bytes, --rows and --chunk-bytes.",
            show_default=False,
        ),
    ] = None,
    fields: Fields = "",
    samples: Samples = "",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, metavar="ROWS", help="Your batch size; it is never changed.")
    ] = None,
    threads: Threads = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, metavar="N", help="Worker processes of a stock DataLoader.")
    ] = None,
    prefetch: Annotated[int | None, typer.Option("--prefetch", min=1, metavar="N", help="Its prefetch factor.")] = None,
    memory_budget: MemoryBudget = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="The GPU's name, as the driver or you write it.")] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            "--gpu-memory", parser=_gib, metavar=SIZE, help="The GPU's memory, such as 24GiB; 24GB is the same here."
        ),
    ] = None,
    row_bytes: Annotated[
        int | None,
        typer.Option("--row-bytes", parser=some_size, metavar=SIZE, help="Size of a row, all fields, decoded."),
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=1, metavar="N", help="Rows of an epoch.")] = None,
    chunk_bytes: Annotated[
        int | None,
        typer.Option("--chunk-bytes", parser=some_size, metavar=SIZE, help="Size of a decoded chunk; else 1MiB."),
    ] = None,
    parameters: Annotated[
        int | None, typer.Option("--parameters", min=1, metavar="N", help="Parameters of the model, trained.")
    ] = None,
    activation_bytes: Annotated[
        int,
        typer.Option(
            "--activation-bytes", parser=size, metavar=SIZE, help="Activations of a row (measure_activations)."
        ),
    ] = 0,
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="sgd, momentum, adamw, adamw8bit, adafactor ...")
    ] = "adamw",
    target_batch: Annotated[
        int | None, typer.Option("--target-batch", min=1, metavar="ROWS", help="Rows that an optimizer step shall see.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="A learning rate that works ...")] = None,
    lr_batch: Annotated[
        int | None, typer.Option("--lr-batch", min=1, metavar="ROWS", help="... with this batch.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, tf32, fp16 or bf16.")] = "fp32",
    waiting: Annotated[
        float | None, typer.Option("--waiting", help="Measured share of the step that waits for data, 0 to 1.")
    ] = None,
    validation: Annotated[
        Literal["half", "twice"], typer.Option("--validation", help="Rule for the validation batch.")
    ] = "half",
    as_json: AsJson = False,
) -> None:
    """Suggest batch size, reader threads, memory and more, with the arithmetic. Nothing is applied."""
    data = _data_of(files or [], fields, samples, row_bytes, rows, chunk_bytes)
    from h5stream import allowance
    from h5stream.training.gpu_memory import gpu_memory as gpu_memory_of
    from h5stream.training.order_of_knobs import what_to_try_first
    from h5stream.training.presets import Setting, preset_for, validation_batch

    cpus, available_bytes = allowance.cpus(), allowance.memory_available_bytes()
    preset = None if gpu is None and gpu_memory is None else preset_for(gpu, memory_gib=gpu_memory, cpus=cpus)
    # Without a GPU's preset: the default batch of these rows, and the DataLoader's default prefetch.
    usual = batch_rows(data.rows or sys.maxsize, data.row_bytes or 1)
    start = preset.setting if preset else Setting(batch_size=usual, workers=cpus, prefetch_factor=2)
    setting = Setting(
        batch_size=batch_size or start.batch_size,
        workers=start.workers if workers is None else workers,
        prefetch_factor=prefetch or start.prefetch_factor,
    )
    # No more workers than processors, unless the user has more: a preset's are not theirs.
    here = setting if workers is not None else replace(setting, workers=min(setting.workers, cpus))
    found: dict[str, Suggestion] = {} if preset is None else {"preset": preset}
    found["validation_batch"] = validation_batch(setting.batch_size, rule=validation)
    if data.row_bytes is not None:
        found |= _host_memory(data, data.row_bytes, setting, threads or here.workers, memory_budget, available_bytes)
    if parameters is not None:
        if preset is None:
            raise OptionError("--parameters needs --gpu or --gpu-memory: the memory that the model must fit")
        found["gpu_memory"] = gpu_memory_of(
            parameters,
            optimizer=optimizer,
            batch_size=setting.batch_size,
            memory_gib=preset.memory_gib,
            activation_bytes_per_row=activation_bytes,
            row_bytes=data.row_bytes or 0,
        )
    found |= _optimizer_steps(setting.batch_size, target_batch, lr, lr_batch, optimizer, data.rows)
    found["what_to_try_first"] = what_to_try_first(
        here, precision=precision, waiting_share=waiting, preset=preset, cpus=cpus
    )
    if as_json:
        print_json({name: value.to_dict() for name, value in found.items()})
    else:
        _print_all(safe_console(), found, batch_size)


def _optimizer_steps(
    batch_size: int,
    target_batch: int | None,
    lr: float | None,
    lr_batch: int | None,
    optimizer: str,
    rows: int | None,
) -> dict[str, Suggestion]:
    from h5stream.training.accumulation import accumulation_for
    from h5stream.training.learning_rate import learning_rate_for

    found = {}
    if target_batch is not None:
        found["accumulation"] = accumulation_for(target_batch, batch_size, rows=rows)
    if lr is not None:
        if lr_batch is None:
            raise OptionError("--lr needs --lr-batch: the batch that the rate was tuned for")
        found["learning_rate"] = learning_rate_for(
            target_batch or batch_size, old_batch_size=lr_batch, old_lr=lr, optimizer=optimizer, rows=rows
        )
    return found


def _host_memory(
    data: _Data, row_bytes: int, setting: Setting, threads: int, memory_budget: int | None, available_bytes: int | None
) -> dict[str, Suggestion]:
    from h5stream.advice.host_memory import dataloader_memory, loader_memory

    return {
        "loader_memory": loader_memory(
            row_bytes=row_bytes,
            batch_size=setting.batch_size,
            threads=threads,
            chunk_bytes=data.chunk_bytes,
            block_rows=data.block_rows,
            rows=data.rows,
            memory_budget=memory_budget,
        ),
        "dataloader_memory": dataloader_memory(
            row_bytes=row_bytes,
            batch_size=setting.batch_size,
            workers=setting.workers,
            prefetch_factor=setting.prefetch_factor,
            available_bytes=available_bytes,
        ),
    }

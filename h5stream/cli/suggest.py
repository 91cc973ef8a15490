"""`h5stream suggest`: settings to try on a GPU, each with its arithmetic; nothing is applied."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from h5stream import allowance
from h5stream.advice.host_memory import dataloader_memory, loader_memory
from h5stream.advice.suggestion import Suggestion
from h5stream.cli.options import (
    SIZE,
    AsJson,
    Fields,
    MemoryBudget,
    Threads,
    field_names,
    files_of,
    size,
    some_size,
)
from h5stream.cli.printable import safe_console
from h5stream.errors import OptionError
from h5stream.training.accumulation import accumulation_for
from h5stream.training.gpu_memory import gpu_memory, parameter_count
from h5stream.training.learning_rate import learning_rate_for
from h5stream.training.order_of_knobs import what_to_try_first
from h5stream.training.presets import GpuPreset, Setting, preset_for, validation_batch

# Without a GPU's preset: the loader's own default batch, and the DataLoader's default prefetch.
_DEFAULT_BATCH = 8192
_DEFAULT_PREFETCH = 2
_CHUNK_NBYTES = 1 << 20

_LABEL_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What was asked, as it was asked: None where an option was not given."""

    gpu: str | None
    gpu_memory: float | None
    row_bytes: int | None
    batch_size: int | None
    workers: int | None
    threads: int | None
    prefetch: int | None
    rows: int | None
    chunk_bytes: int
    block_rows: int | None
    memory_budget: int | None
    parameters: int | None
    activation_bytes: float
    optimizer: str
    target_batch: int | None
    lr: float | None
    lr_batch: int | None
    precision: str
    waiting: float | None
    validation: Literal["half", "twice"]


def _gib(text: str | float) -> float:
    """Give a card's memory in GiB: a plain number is that already, and the makers' "24 GB" are 24 GiB."""
    plain = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(?:GB|GiB|G)?\s*", str(text), re.IGNORECASE)
    return float(plain[1]) if plain else some_size(str(text)) / (1 << 30)


def _asked_of(
    question: _Question, paths: list[str], fields: str | list[str] | None, chunk_bytes: int | None
) -> _Question:
    """Fill in what files know; what was given on the command line stays."""
    from h5stream.storage.opening import open_layout

    layout = open_layout(paths, fields)
    lead = layout.leading[0]
    return replace(
        question,
        row_bytes=question.row_bytes or layout.row_nbytes,
        rows=question.rows or layout.rows,
        chunk_bytes=chunk_bytes or lead.chunk_nbytes,
        # With a chunk of the user's own the file's no longer say how many rows it has.
        block_rows=None if chunk_bytes else min(layout.block_rows[0], layout.rows),
    )


def suggestions_for(question: _Question, *, cpus: int, available_bytes: int | None) -> dict[str, Suggestion]:
    """Give every suggestion that the question has the numbers for, in the order to read them."""
    preset = _preset(question, cpus)
    setting = _setting(question, preset, cpus)
    found: dict[str, Suggestion] = {} if preset is None else {"preset": preset}
    found["validation_batch"] = validation_batch(setting.batch_size, rule=question.validation)
    if question.row_bytes is not None:
        found |= _host_memory(question, question.row_bytes, setting, cpus, available_bytes)
    if question.parameters is not None:
        found["gpu_memory"] = _gpu_memory(question, question.parameters, setting, preset)
    if question.target_batch is not None:
        found["accumulation"] = accumulation_for(question.target_batch, setting.batch_size, rows=question.rows)
    if question.lr is not None:
        found["learning_rate"] = _learning_rate(question, question.lr, setting)
    found["what_to_try_first"] = what_to_try_first(
        _here(question, setting, cpus),
        precision=question.precision,
        waiting_share=question.waiting,
        preset=preset,
        cpus=cpus,
    )
    return found


def _preset(question: _Question, cpus: int) -> GpuPreset | None:
    if question.gpu is None and question.gpu_memory is None:
        return None
    return preset_for(question.gpu, memory_gib=question.gpu_memory, cpus=cpus)


def _setting(question: _Question, preset: GpuPreset | None, cpus: int) -> Setting:
    """Give what the user said, and where nothing was said the preset or the default."""
    start = (
        preset.setting
        if preset
        else Setting(batch_size=_DEFAULT_BATCH, workers=cpus, prefetch_factor=_DEFAULT_PREFETCH)
    )
    return Setting(
        batch_size=start.batch_size if question.batch_size is None else question.batch_size,
        workers=start.workers if question.workers is None else question.workers,
        prefetch_factor=start.prefetch_factor if question.prefetch is None else question.prefetch,
    )


def _here(question: _Question, setting: Setting, cpus: int) -> Setting:
    """Give the setting with no more workers than processors, unless the user has more: a preset's are not theirs."""
    return setting if question.workers is not None else replace(setting, workers=min(setting.workers, cpus))


def _host_memory(
    question: _Question, row_bytes: int, setting: Setting, cpus: int, available_bytes: int | None
) -> dict[str, Suggestion]:
    return {
        "dataloader_memory": dataloader_memory(
            row_bytes=row_bytes,
            batch_size=setting.batch_size,
            workers=setting.workers,
            prefetch_factor=setting.prefetch_factor,
            available_bytes=available_bytes,
        ),
        "loader_memory": loader_memory(
            row_bytes=row_bytes,
            batch_size=setting.batch_size,
            threads=question.threads or _here(question, setting, cpus).workers,
            chunk_bytes=question.chunk_bytes,
            block_rows=question.block_rows,
            rows=question.rows,
            memory_budget=question.memory_budget,
        ),
    }


def _gpu_memory(question: _Question, parameters: int, setting: Setting, preset: GpuPreset | None) -> Suggestion:
    if preset is None:
        raise OptionError("--parameters needs --gpu or --gpu-memory: the memory that the model must fit")
    return gpu_memory(
        parameter_count(parameters),
        optimizer=question.optimizer,
        batch_size=setting.batch_size,
        memory_gib=preset.memory_gib,
        activation_bytes_per_row=question.activation_bytes,
        row_bytes=question.row_bytes or 0,
    )


def _learning_rate(question: _Question, lr: float, setting: Setting) -> Suggestion:
    if question.lr_batch is None:
        raise OptionError("--lr needs --lr-batch: the batch that the rate was tuned for")
    return learning_rate_for(
        question.target_batch or setting.batch_size,
        old_batch_size=question.lr_batch,
        old_lr=lr,
        optimizer=question.optimizer,
        rows=question.rows,
    )


def _shown(suggestion: Suggestion) -> Group:
    """Lay a suggestion out: its title, then answer, arithmetic, notes and sources beside their labels."""
    body = Table.grid(padding=(0, 1))
    body.add_column(justify="right", style="dim", min_width=_LABEL_COLUMNS)
    body.add_column(overflow="fold")
    body.add_row("answer", Text(suggestion.answer, style="bold green"))
    for label, lines, style in (
        ("because", suggestion.arithmetic, ""),
        ("note", suggestion.caveats, "yellow"),
        ("source", suggestion.sources, "dim"),
    ):
        for place, line in enumerate(lines):
            # As padding and not as spaces, an indent also holds where the line is folded.
            text = line.lstrip()
            shown = Padding(Text(text, style=style), (0, 0, 0, len(line) - len(text)))
            body.add_row(label if place == 0 else "", shown)
    return Group(Text(suggestion.title, style="bold cyan"), body, Text())


def _print_all(console: Console, found: dict[str, Suggestion], question: _Question) -> None:
    for suggestion in found.values():
        console.print(_shown(suggestion))
    more = _not_asked(question)
    if more:
        console.print(Text(f"With more numbers: {', '.join(more)}.", style="dim"))
    kept = "" if question.batch_size is None else f" Your batch size stays {question.batch_size}."
    console.print(Text(f"Suggestions are printed and never applied.{kept}", style="dim"))


def _not_asked(question: _Question) -> list[str]:
    options = {
        "--gpu (a preset)": question.gpu is None and question.gpu_memory is None,
        "FILE or --row-bytes (host memory)": question.row_bytes is None,
        "--parameters (GPU memory)": question.parameters is None,
        "--target-batch (accumulation)": question.target_batch is None,
        "--lr with --lr-batch (learning rate)": question.lr is None,
    }
    return [option for option, missing in options.items() if missing]


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
        typer.Option("--gpu-memory", parser=_gib, metavar=SIZE, help="The GPU's memory, such as 24GB: 24 GiB."),
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
    """Suggest batch size, workers, prefetch and more, with the arithmetic. Nothing is applied."""
    question = _Question(
        gpu=gpu,
        gpu_memory=gpu_memory,
        row_bytes=row_bytes,
        batch_size=batch_size,
        workers=workers,
        threads=threads,
        prefetch=prefetch,
        rows=rows,
        chunk_bytes=chunk_bytes or _CHUNK_NBYTES,
        block_rows=None,
        memory_budget=memory_budget,
        parameters=parameters,
        activation_bytes=activation_bytes,
        optimizer=optimizer,
        target_batch=target_batch,
        lr=lr,
        lr_batch=lr_batch,
        precision=precision,
        waiting=waiting,
        validation=validation,
    )
    if files:
        question = _asked_of(question, files_of(files), field_names(fields), chunk_bytes)
    elif fields:
        raise OptionError(f"--fields {fields!r} names fields of FILE; name a file as well")
    found = suggestions_for(question, cpus=allowance.cpus(), available_bytes=allowance.memory_available_bytes())
    if as_json:
        typer.echo(json.dumps({name: value.to_dict() for name, value in found.items()}, indent=2))
    else:
        _print_all(safe_console(), found, question)

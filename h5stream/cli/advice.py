"""The commands that advise: checks of the machine, what limits a loader, and settings, measured or computed."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from h5stream.advice import batch_rows
from h5stream.base.texts import counted
from h5stream.cli import options
from h5stream.cli.showing import SafeConsole, advice, interrupted, line, print_json, table
from h5stream.errors import OptionError
from h5stream.monitor.progress import Bar

if TYPE_CHECKING:
    from h5stream.advice import Suggestion
    from h5stream.advice.diagnose import Trial
    from h5stream.advice.tune import Tuning, TuningRun

_NEXT = {"loader alone": "the step alone", "step alone": "both", "both": ""}  # the run that follows each run


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
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Time of each of the three runs.")
    ] = 5.0,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure the loader alone, and with a training step of that length, and name what limits them.

    The step is a pause, as for a GPU that computes by itself; `h5stream.diagnose` takes your own step.

    Ctrl-C stops, and prints what was measured so far.
    """
    if not 0 < step_ms <= 3_600_000:
        raise OptionError(f"--step-ms {step_ms:g}: must be more than 0 milliseconds, and at most an hour of them")
    paths = options.files_of(files)
    measured: dict[str, Trial] = {}
    try:
        with Bar(SafeConsole(stderr=True), "measuring", unit="s") as bar:
            from h5stream.advice.diagnose import measure
            from h5stream.advice.loaders import lists_of_fields
            from h5stream.loader.loader import H5StreamLoader

            bar.show(total=bar.elapsed_s + 3 * seconds, note="the loader alone")

            def show(what: str, trial: Trial) -> None:
                measured[what] = trial
                runs_left = 3 - len(measured)
                bar.show(total=bar.elapsed_s + runs_left * seconds, note=_NEXT[what])

            loader_arguments = options.loader_of(paths, fields, samples, batch_size, threads, window, memory_budget)
            row_s = step_ms / 1e3 / loader_arguments["batch_size"]
            with H5StreamLoader(**loader_arguments) as loader:
                pause = functools.partial(_pause, row_s, lists_of_fields(loader))
                diagnosis = measure(loader, pause, seconds, is_pause=True, progress=show)
    except KeyboardInterrupt:
        if as_json:
            runs = {name: {"batch_s": one.batch_s, "rows_per_s": one.rows_per_s} for name, one in measured.items()}
            print_json({"measured": runs, "interrupted": True})
        else:
            _print_until("there is no verdict", [f"{name}: {trial}" for name, trial in measured.items()])
        raise
    if as_json:
        print_json(diagnosis.to_dict() | {"interrupted": False})
        return
    console, rows, alone = SafeConsole(), len(loader.dataset), diagnosis.statistics
    unit = "row" if loader_arguments["samples"] is None else "sample"
    all_rows = f"all {rows:,} {unit}s are" if rows > 1 else f"its 1 {unit} is"
    short = f"; {all_rows} one batch, with a step as much shorter: try --batch-size {rows}"
    settings = (
        f"{options.named(paths)}: {counted(alone.threads if alone else loader.num_workers, 'thread')}, window "
        f"{counted(loader.window_size.window_rows, unit)}, batch {loader_arguments['batch_size']:,}, "
        f"{counted(loader.dataset.layout.row_nbytes, 'byte')} a {unit}{short * (rows < loader_arguments['batch_size'])}"
    )
    console.print(Text(settings, style="dim"))
    console.print(advice(diagnosis))
    if alone is not None:
        # Without their first line: by the loader's own clock the rate differs from that of the diagnosis.
        indented = Padding(Text(str(alone).partition("\n")[2], style="dim"), (0, 0, 0, 2), expand=False)
        console.print(Text("what the loader counted, alone:", style="dim"), indented)


def _pause(row_s: float, of_fields: bool | None, batch: object) -> None:
    """Sleep as long as a training step on this batch takes."""
    from h5stream.structure import rows_of

    time.sleep(row_s * (rows_of(batch, of_fields) or 0))


def _print_until(note: str, results: Sequence[RenderableType]) -> None:
    """Print the measurements made before Ctrl-C, and a note on what they are worth."""
    console = SafeConsole()
    if results:
        console.print(*results, sep="\n", markup=False, highlight=False)
    interrupted(console, note if results else "nothing was measured")


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
            finding = Text(check.found)
            if check.fix:
                finding.append(f"\n→ {check.fix}", style=colour)
            rows.append((Text(mark, style=colour), Text(check.name, style="bold"), finding))
        columns = [Column("", no_wrap=True), Column("", no_wrap=True), Column("", overflow="fold")]
        console = SafeConsole()
        console.print(table(columns, rows, gap=2))
        counts = [f"{sum(check.status == status for check in checks)} {status}" for status in _MARKS]
        console.print(f"\n{', '.join(counts)}", highlight=False)
    if worst(checks) == "fail":
        raise typer.Exit(1)


# --- tune ---------------------------------------------------------------------------------------------------


_BAR = 20


def tune_command(
    files: options.Files,
    fields: options.Fields = "",
    samples: options.Samples = "",
    batch_size: options.BatchSize = None,
    memory_budget: options.MemoryBudget = None,
    device: Annotated[str | None, typer.Option("--device", metavar="DEVICE", help="Feed this device.")] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="Time of each trial; there are about 30.")
    ] = 1.5,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="IMAGE", help="Draw the curve into this image.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the best setting into this TOML profile.")
    ] = None,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure shuffled epochs with several threads and windows; print the curve and the best setting.

    Ctrl-C stops, and prints what was measured so far.
    """
    paths = options.files_of(files)
    options.check_writable(plot, "--plot")
    options.check_writable(out, "--out")
    from h5stream.monitor.export import check_plot_path

    if plot is not None:
        check_plot_path(plot)
    errors = SafeConsole(stderr=True)
    measured: list[TuningRun] = []
    try:
        with Bar(errors, "measuring", unit="s") as bar:
            from h5stream.advice.tune import tune

            def show(attempt: TuningRun) -> None:
                measured.append(attempt)
                setting = f"{counted(attempt.threads, 'thread')}, window {attempt.window_rows:,}"
                bar.show(
                    total=bar.elapsed_s * (1 + attempt.left / len(measured)),
                    note=f"{setting}: {attempt.rows_per_s:,.0f} rows/s",
                )

            sample_options = options.loader_options(fields, samples)
            tuning = tune(
                paths[0] if len(paths) == 1 else paths,
                **sample_options,
                batch_size=batch_size or options.batch_rows_of(paths, **sample_options),
                memory_budget=memory_budget,
                device=device,
                seconds=seconds,
                progress=show,
            )
    except KeyboardInterrupt:
        _print_attempts(measured[1:], as_json)  # the first ran cold, and does not count
        raise
    if as_json:
        print_json(tuning.to_dict() | {"interrupted": False})
    else:
        console = SafeConsole()
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
    """Write the profile, and print the code that uses it, with the arguments that a profile does not store."""
    from h5stream.profiles import write_profile

    write_profile(tuning.profile, out)
    more = [repr(files)] * bool(files) + [f"samples={samples}"] * bool(samples)
    words = ", ".join([repr(str(out)), *more, *[f"fields=({fields})"] * options.is_python(fields)])
    line(console, f"profile: {out}")
    line(console, f"use it:  loader = H5StreamLoader.from_profile({words})  # shuffle=True is in it")


def _print_attempts(measured: list[TuningRun], as_json: bool) -> None:
    """Print the best run of each setting; none is recommended, because the measurement is incomplete."""
    runs = sorted(measured, key=lambda run: run.rows_per_s)
    best = sorted({run.setting: run for run in runs}.values(), key=lambda run: -run.rows_per_s)
    if as_json:
        print_json({"attempts": [asdict(attempt) for attempt in best], "interrupted": True})
        return
    until = f"these are the {len(measured)} runs until then, and none is recommended"
    _print_until(until, [attempts_table(best, None, SafeConsole().width)] if best else [])


_TITLES = ("varied", "threads", "window", "blocks", "rows/s", "1st batch")


def attempts_table(attempts: Sequence[TuningRun], best: TuningRun | None, width: int) -> Table:
    """Return a table of the attempts; the bars get the width that is left beside the numbers."""
    rows = []
    for attempt in attempts:
        figures = ["", "", ""]
        if not attempt.refused:
            first = "" if attempt.first_batch_s is None else f"{1e3 * attempt.first_batch_s:.0f} ms"
            figures = [f"{attempt.blocks:,}", f"{attempt.rows_per_s:,.0f}", first]
        rows.append([attempt.knob, str(attempt.threads), f"{attempt.window_rows:,}", *figures])
    used_width = sum(max(map(len, column)) + 1 for column in zip(_TITLES, *rows, strict=True))
    bar_width = min(_BAR, width - used_width - len(" <-"))
    fastest = max(attempt.rows_per_s for attempt in attempts)
    columns = [Column(title, justify="right" if k else "left", overflow="fold") for k, title in enumerate(_TITLES)]
    result_table = table([*columns, Column("", overflow="fold")], ())
    for attempt, numbers in zip(attempts, rows, strict=True):
        chosen = attempt == best
        length = max(1, round(bar_width * attempt.rows_per_s / fastest)) if fastest and bar_width > 0 else 0
        outcome = attempt.refused or "█" * length + (" <-" if chosen else "")
        result_table.add_row(*numbers, outcome, style="green" if chosen else "")
    return result_table


# --- suggest ----------------------------------------------------------------------------------------------


_CHUNK_NBYTES = 1 << 20

# The options that a suggestion needs, listed where it is missing.
_NEEDED = {
    "preset": "--gpu (a preset)",
    "loader_memory": "FILE or --row-bytes (host memory)",
    "gpu_memory": "--parameters (GPU memory)",
    "accumulation": "--target-batch (accumulation)",
    "learning_rate": "--lr with --lr-batch (learning rate)",
}


def _gib(text: str | float) -> float:
    """Return a card's memory in GiB: a plain number is that already, and the makers' "24 GB" are 24 GiB."""
    plain = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(?:GB|GiB|G)?\s*", str(text), re.IGNORECASE)
    return float(plain[1]) if plain and float(plain[1]) else options.positive_size(str(text)) / (1 << 30)


def suggest_command(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        options.files_argument("HDF5 files, addresses or patterns that give --row-bytes, --rows and --chunk-bytes."),
    ] = None,
    fields: options.Fields = "",
    samples: options.Samples = "",
    batch_size: Annotated[
        int | None, options.number("--batch-size", "Your batch size; it is never changed.", "ROWS")
    ] = None,
    threads: options.Threads = None,
    workers: Annotated[
        int | None, options.number("--workers", "Worker processes of a stock DataLoader.", least=0)
    ] = None,
    prefetch: Annotated[int | None, options.number("--prefetch", "Prefetch factor of that DataLoader.")] = None,
    memory_budget: options.MemoryBudget = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="The GPU's name, as the driver or you write it.")
    ] = None,
    gpu_memory: Annotated[
        float | None, options.nbytes("--gpu-memory", "The GPU's memory, such as 24GiB; 24GB is the same here.", _gib)
    ] = None,
    row_bytes: Annotated[int | None, options.nbytes("--row-bytes", "Size of a row, all fields, decoded.")] = None,
    rows: Annotated[int | None, options.number("--rows", "Rows of an epoch.")] = None,
    chunk_bytes: Annotated[int | None, options.nbytes("--chunk-bytes", "Size of a decoded chunk; else 1MiB.")] = None,
    parameters: Annotated[int | None, options.number("--parameters", "Parameters of the model, trained.")] = None,
    activation_bytes: Annotated[
        int, options.nbytes("--activation-bytes", "Activations of a row (measure_activations).", options.size)
    ] = 0,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="NAME", help="sgd, momentum, adamw, adamw8bit, adafactor ...")
    ] = "adamw",
    target_batch: Annotated[
        int | None, options.number("--target-batch", "Rows that an optimizer step should see.", "ROWS")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", metavar="RATE", help="A learning rate that works ...")] = None,
    lr_batch: Annotated[int | None, options.number("--lr-batch", "... with this batch.", "ROWS")] = None,
    precision: Annotated[str, typer.Option("--precision", metavar="TYPE", help="fp32, tf32, fp16 or bf16.")] = "fp32",
    waiting: Annotated[
        float | None,
        typer.Option("--waiting", metavar="SHARE", help="Measured share of the step that waits for data, 0 to 1."),
    ] = None,
    validation: Annotated[
        Literal["half", "twice"],
        typer.Option("--validation", metavar="half|twice", help="Rule for the validation batch."),
    ] = "half",
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Suggest batch size, reader threads, memory and more, with the arithmetic. Nothing is applied."""
    sources = {name: str(context.get_parameter_source(name)) for name in context.params if name != "as_json"}
    if all(source.endswith("DEFAULT") for source in sources.values()):
        raise OptionError(f"there is nothing to go by; give some of these: {', '.join(_NEEDED.values())}")
    data = _data_of(files or [], fields, samples, row_bytes, rows, chunk_bytes)
    from h5stream.base import limits
    from h5stream.training import Setting, arithmetic, preset_for, validation_batch

    arithmetic.find_optimizer(optimizer)  # a wrong name is told where nothing needs it, too
    cpus = limits.cpus()
    preset = None if gpu is None and gpu_memory is None else preset_for(gpu, memory_gib=gpu_memory, cpus=cpus)
    # Without a GPU's preset: the default batch of these rows, and the DataLoader's default prefetch.
    usual = batch_rows(data["rows"], data["row_bytes"] or 1)
    start = preset.setting if preset else Setting(usual, cpus, prefetch_factor=2)
    # No more workers than processors, unless the user has more: a preset's are not theirs.
    worker_count = workers if workers is not None else min(start.workers, cpus)
    setting = Setting(batch_size or start.batch_size, worker_count, prefetch or start.prefetch_factor)
    suggestions: dict[str, Suggestion] = {} if preset is None else {"preset": preset}
    suggestions["validation_batch"] = validation_batch(setting.batch_size, rule=validation)
    if data["row_bytes"] is not None:
        queue = {"workers": start.workers if workers is None else workers, "prefetch_factor": setting.prefetch_factor}
        suggestions |= _host_memory(data, setting.batch_size, queue, threads or worker_count, memory_budget)
    if parameters is not None:
        if preset is None:
            raise OptionError("--parameters needs --gpu or --gpu-memory: the memory that the model must fit")
        suggestions["gpu_memory"] = arithmetic.gpu_memory(
            parameters,
            optimizer=optimizer,
            batch_size=setting.batch_size,
            memory_gib=preset.memory_gib,
            activation_bytes_per_row=activation_bytes,
            row_bytes=data["row_bytes"] or 0,
        )
    if target_batch is not None:
        suggestions["accumulation"] = arithmetic.accumulation_for(target_batch, setting.batch_size, rows=data["rows"])
    if lr is not None:
        if lr_batch is None:
            raise OptionError("--lr needs --lr-batch: the batch that the rate was tuned for")
        step = {"old_batch_size": lr_batch, "old_lr": lr, "optimizer": optimizer, "rows": data["rows"]}
        suggestions["learning_rate"] = arithmetic.learning_rate_for(target_batch or setting.batch_size, **step)
    suggestions["what_to_try_first"] = arithmetic.what_to_try_first(
        setting, precision=precision, waiting_share=waiting, preset=preset, cpus=cpus, rows=data["rows"]
    )
    _print_suggestions(suggestions, batch_size, as_json)


def _print_suggestions(suggestions: dict[str, Suggestion], batch_size: int | None, as_json: bool) -> None:
    if as_json:
        print_json({name: value.to_dict() for name, value in suggestions.items()})
        return
    console = SafeConsole()
    for suggestion in suggestions.values():
        console.print(advice(suggestion), Text())
    if missing := [needed for name, needed in _NEEDED.items() if name not in suggestions]:
        console.print(Text(f"With more numbers: {', '.join(missing)}.", style="dim"))
    kept = "" if batch_size is None else f" Your batch size stays {batch_size}."
    console.print(Text(f"Suggestions are printed and never applied.{kept}", style="dim"))


def _data_of(
    files: list[str], fields: str, samples: str, row_bytes: int | None, rows: int | None, chunk_bytes: int | None
) -> dict[str, Any]:
    """Return what is known of the data: the options that were given and, for the rest, what the files say."""
    if not files:
        if fields or samples:
            raise OptionError(f"--fields {fields!r} names fields of FILE; name a file as well")
        return {"row_bytes": row_bytes, "rows": rows, "chunk_bytes": chunk_bytes or _CHUNK_NBYTES}
    paths = options.files_of(files)
    from h5stream.order.blocks import block_rows
    from h5stream.storage.open.opening import open_layout

    layout = open_layout(paths, **options.loader_options(fields, samples))
    return {
        "row_bytes": row_bytes or layout.row_nbytes,
        "rows": rows or layout.samples,
        "chunk_bytes": chunk_bytes or layout.leading[0].chunk_nbytes,
        # With a chunk size from the user, the file's chunks no longer tell how many rows one has.
        "block_rows": None if chunk_bytes else min(block_rows(layout)[0], layout.rows),
    }


def _host_memory(
    data: dict[str, Any], batch_size: int, queue: dict[str, int], threads: int, memory_budget: int | None
) -> dict[str, Suggestion]:
    from h5stream.base import limits
    from h5stream.training.arithmetic import dataloader_memory, loader_memory

    both, available = {"row_bytes": data["row_bytes"], "batch_size": batch_size}, limits.memory_available_bytes()
    return {
        "loader_memory": loader_memory(threads=threads, memory_budget=memory_budget, **data | both),
        "dataloader_memory": dataloader_memory(available_bytes=available, **both, **queue),
    }

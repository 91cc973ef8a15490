"""`h5stream monitor`: what GPU, processors, memory and disks do, live, once, or as a record."""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from h5stream.cli.options import check_writable, flag
from h5stream.cli.showing import line

if TYPE_CHECKING:
    from h5stream.monitor import SystemMonitor, SystemSample

_KEPT_SAMPLES = 86_400  # A day at the default interval, about 70 MB.


def monitor_command(
    pid: Annotated[int | None, typer.Option(metavar="PID", help="Watch this process and its children.")] = None,
    interval: Annotated[float, typer.Option(metavar="S", help="Seconds between samples, at least 0.1.")] = 1.0,
    duration: Annotated[float | None, typer.Option(metavar="S", help="Stop after this many seconds.")] = None,
    device: Annotated[
        list[str] | None, typer.Option(metavar="GPU", help="Only this GPU, by CUDA's number or UUID; repeatable.")
    ] = None,
    once: Annotated[bool, flag("--once", "Print one sample and end.")] = False,
    as_json: Annotated[bool, flag("--json", "Print samples as JSON, one a line.")] = False,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write samples to this .jsonl or .csv file as well.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="IMAGE", help="Plot the samples into this image at the end.")
    ] = None,
) -> None:
    """Show what GPU, processors, memory and disks do, until Ctrl-C or until the process ends."""
    from h5stream.errors import OptionError
    from h5stream.monitor import SystemMonitor
    from h5stream.monitor.export import check_plot_path, open_log, save_plot

    if duration is not None and not duration > 0:
        raise OptionError(f"--duration {duration:g}: must be more than 0 seconds")
    # Report what is missing now, not after an hour of watching.
    if plot is not None:
        check_plot_path(plot)
    check_writable(plot, "--plot")
    check_writable(log, "--log")
    arrivals = Arrivals()
    monitor = SystemMonitor(
        interval_s=interval,
        pid=pid,
        devices=[int(one) if one.isdecimal() else one for one in device] if device else None,
        history=_KEPT_SAMPLES,
        sinks=[arrivals, *([open_log(log)] if log is not None else [])],
    )
    with monitor, contextlib.suppress(KeyboardInterrupt):  # The ordinary way to end it.
        _show(monitor, arrivals.until(once, duration), pid, live=not once and not as_json, as_json=as_json)
    if monitor.failure is not None:
        line(Console(stderr=True), f"monitor: {monitor.failure}")
        raise typer.Exit(2)
    if plot is not None:
        save_plot(monitor.history, plot)
        line(Console(stderr=True), f"plot: {plot}")


class Arrivals(queue.SimpleQueue["SystemSample | None"]):
    """A sink that hands the samples over to the main thread, and None after the last."""

    write = queue.SimpleQueue.put

    def close(self) -> None:
        """Add the None that ends the iteration after the samples that have arrived."""
        self.put(None)

    def until(self, once: bool, duration_s: float | None) -> Iterator[SystemSample]:
        """Return the samples as they come, until the time is over, or the sampling or the process ends."""
        end_s = None if duration_s is None else time.monotonic() + duration_s
        wait_s = None  # There is always a first sample, or the news that there is none.
        with contextlib.suppress(queue.Empty):
            while (sample := self.get(timeout=wait_s)) is not None and sample.process is not None:
                yield sample
                wait_s = None if end_s is None else end_s - time.monotonic()
                # If drawing takes longer than the interval, the next sample is always there already.
                if once or (wait_s is not None and wait_s <= 0):
                    return


def _show(
    monitor: SystemMonitor, arrivals: Iterator[SystemSample], pid: int | None, *, live: bool, as_json: bool
) -> None:
    from h5stream.monitor import format_line
    from h5stream.monitor.export import sample_to_json

    if live and sys.stdout.isatty():
        _show_screen(monitor, arrivals, pid)
        return
    reason_shown = as_json
    for sample in arrivals:
        devices = range(max(1, len(sample.gpus)))
        lines = [sample_to_json(sample)] if as_json else [format_line(sample, device) for device in devices]
        sys.stdout.write("\n".join([*lines, ""]))
        sys.stdout.flush()
        if not reason_shown and sample.gpu_reason is not None:
            reason_shown = True
            line(Console(stderr=True), f"GPU: {sample.gpu_reason}")


def _show_screen(monitor: SystemMonitor, arrivals: Iterator[SystemSample], pid: int | None) -> None:
    from rich.live import Live

    from h5stream.monitor.export import render_screen

    console = Console()
    title = "h5stream monitor" if pid is None else f"h5stream monitor: process {pid}"
    # A screen of its own: what stood there before comes back, and the summary stays as ordinary text.
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        for _ in arrivals:
            # Without --pid the watched process is this command itself, which is of no interest.
            picture = render_screen(
                monitor.history, console.width, title=title, note=monitor.note, with_process=pid is not None
            )
            live.update(picture, refresh=True)
    if monitor.history:
        console.print(str(monitor.summary()), highlight=False, markup=False)

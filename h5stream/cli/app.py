"""The `h5stream` command: registers the commands and turns our errors into one clear line."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from h5stream._version import __version__
from h5stream.cli.bench import bench_command
from h5stream.cli.diagnose import diagnose_command
from h5stream.cli.doctor import doctor_command
from h5stream.cli.inspect import inspect_command
from h5stream.cli.monitor import monitor_command
from h5stream.cli.printable import safe_console
from h5stream.cli.repack import repack_command
from h5stream.cli.stage import stage_command
from h5stream.cli.suggest import suggest_command
from h5stream.cli.tune import tune_command
from h5stream.errors import H5StreamError

app = typer.Typer(
    name="h5stream",
    help="Train from plain HDF5 files at the speed of the hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"h5stream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Take the options that stand before the command."""


app.command("bench")(bench_command)
app.command("diagnose")(diagnose_command)
app.command("doctor")(doctor_command)
app.command("monitor")(monitor_command)
app.command("repack")(repack_command)
app.command("stage")(stage_command)
app.command("inspect")(inspect_command)
app.command("suggest")(suggest_command)
app.command("tune")(tune_command)


def main() -> None:
    """Run the command line; an `H5StreamError` prints its message and exits with status 2."""
    try:
        app()
    except H5StreamError as error:
        safe_console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)

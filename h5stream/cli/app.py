"""The `h5stream` command: registers the commands and turns errors into one clear line."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from h5stream._version import __version__
from h5stream.base.filesystem import ended_by_signals
from h5stream.base.hints import DEFAULTS, SAMPLES
from h5stream.cli.advice import diagnose_command, doctor_command, suggest_command, tune_command
from h5stream.cli.bench import bench_command
from h5stream.cli.inspect import inspect_command, statistics_command
from h5stream.cli.monitor import monitor_command
from h5stream.cli.showing import SafeConsole, never_unprintable, print_notices
from h5stream.cli.stage import repack_command, stage_command
from h5stream.errors import H5StreamError, OptionError


def _without_types(parameters: Any) -> Any:
    """Hide Python types in the help: a flag takes no value, and an argument's name is clear enough."""
    for parameter in parameters:
        if parameter.param_type_name == "argument" or parameter.is_flag:
            parameter.display_type_rich = lambda ctx: None
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


app = typer.Typer(
    cls=_Group,
    name="h5stream",
    help="Train from plain HDF5 files at the speed of the hardware.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"h5stream {__version__}", highlight=False)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Train from plain HDF5 files at the speed of the hardware."""
    # These hints are about Python arguments, and `inspect` gives its own advice on samples.
    for name in (DEFAULTS, *[SAMPLES] * (context.invoked_subcommand == "inspect")):
        logger = logging.getLogger(name)
        context.call_on_close(functools.partial(setattr, logger, "disabled", logger.disabled))
        logger.disabled = True
    context.with_resource(print_notices(functools.partial(_as_typed, name=context.invoked_subcommand or "")))
    if context.invoked_subcommand is None:
        Console().print(_start(), highlight=False, soft_wrap=True)


# For each stage of the work: its commands, the arguments to type, and what each command does.
_WORKFLOW: dict[str, dict[str, tuple[Callable[..., None], str, str]]] = {
    "Look": {
        "inspect": (inspect_command, "FILE", "What is in a file, what a batch costs, advice."),
        "doctor": (doctor_command, "FILE", "Check this machine, and a file on it."),
        "statistics": (statistics_command, "FILE", "Mean, deviation, NaNs and classes of fields."),
    },
    "Train": {
        "bench": (bench_command, "FILE", "Compare the speed with a DataLoader."),
        "diagnose": (diagnose_command, "FILE --step-ms 20", "Does the loader keep up with a training step."),
        "tune": (tune_command, "FILE", "Measure threads and windows; write a profile."),
        "suggest": (suggest_command, 'FILE --gpu "A100"', "Settings to try, each with its arithmetic."),
    },
    "Stage": {
        "stage": (stage_command, "FILE --to /dev/shm/x", "Verified copies on faster storage."),
        "repack": (repack_command, "IN OUT", "Rewrite the chunks so that they stream well."),
    },
    "Watch": {"monitor": (monitor_command, "", "GPU, processors, memory and disks, live.")},
}
_COMMANDS = {name: command for panel in _WORKFLOW.values() for name, command in panel.items()}
for _panel, _commands in _WORKFLOW.items():
    for _name, (_command, _, _short) in _commands.items():
        app.command(_name, cls=_Command, short_help=_short, rich_help_panel=_panel)(_command)


def _start() -> str:
    """Return the overview that is shown when no command is given."""
    lines = [f"[bold]h5stream {__version__}[/]: train from plain HDF5 files at the speed of the hardware.", ""]
    for panel, commands in _WORKFLOW.items():
        for place, (name, (_, typed, short)) in enumerate(commands.items()):
            head = f"[bold cyan]{panel}[/]{'':{7 - len(panel)}}" if place == 0 else " " * 7
            description = short[0].lower() + short[1:-1] if short[1].islower() else short[:-1]
            lines.append(f"{head}{f'{name} {typed}':27}{description}")
    return "\n".join([*lines, _MORE])


_MORE = """
FILE may be several, a pattern, or addresses: h5stream inspect 's3://b/day*.h5'
h5stream COMMAND -h explains one; h5stream --install-completion helps to type.

In Python, in place of a DataLoader:
    from h5stream import H5StreamLoader
    for x, y in H5StreamLoader("train.h5", 64, shuffle=True, fields=["x", "y"]):
        ...\
"""

# The base class of typer's errors about wrong input; typer exports only some of its subclasses.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main() -> None:
    """Run the command line: any error that a user can cause is one line, and the exit status is not 0.

    2 stands for an error, 1 for bad news of `doctor`, `bench` and `stage --verify`, 130 for Ctrl-C; SIGHUP and SIGTERM
    end it as they end any program, and what is unfinished is deleted.
    """
    never_unprintable()
    try:
        _refuse_slips(sys.argv[1:])
        with ended_by_signals():
            status = app(prog_name="h5stream", standalone_mode=False)
        sys.stdout.flush()  # Here, where a closed pipe is still handled.
    except BrokenPipeError:  # As other programs do when `head` has read enough; the interpreter flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (H5StreamError, OSError) as error:
        fail(_as_typed(str(error)) if isinstance(error, H5StreamError) else str(error))
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        fail(error.format_message() + (f" (see {context.command_path} -h)" if context is not None else ""))
    except KeyboardInterrupt:
        sys.exit(130)
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _refuse_slips(words: list[str]) -> None:
    """Refuse an option that is given twice (except ``--device``) or followed by an empty text.

    Typer would silently take the last of the two, and an empty path as the current folder.
    """
    names = [word.partition("=")[0] for word in words if re.match(r"--\w", word)]
    for name in dict.fromkeys(names):
        if names.count(name) > 1 and name != "--device":
            raise OptionError(f"{name} is given twice; give it once" + ": --fields a,b" * (name == "--fields"))
    for word, after in zip(words, [*words, None][1:], strict=True):
        if re.match(r"--\w", word) and (word.endswith("=") or (after == "" and "=" not in word)):
            name = word.partition("=")[0]
            raise OptionError(f"{name} is followed by an empty text, as of a variable that is not set; or leave it out")


def _as_typed(message: str, name: str = "") -> str:
    """Replace the Python arguments in a message by the options of the command."""
    command, *_ = _COMMANDS.get(name or "".join(sys.argv[1:2]), (None,))
    options = inspect.signature(command).parameters if command else {}
    message = re.sub(r"samples=(Rows\(of='[^']*'\)) takes", r'--samples "\1" takes', message)
    if "samples" not in options:
        message = re.sub(r"; --samples [^.`]*(?=\. )", "", message)
    for option, text in re.findall(r"\b(fields|samples)=(\S.*?)(?=, samples=| \(|$)", message):
        if option in options and not text.startswith("[...]"):
            message = message.replace(f"{option}={text}", f"--{option} {shlex.quote(text)}").replace(
                ", --samples", " --samples"
            )
    message = message.replace("fields=[...]", "--fields a,b") if "fields" in options else message
    for option in ("memory_budget", "window", "batch_size"):
        if option in options:
            message = re.sub(rf"\b{option}=(?=\d)", f"--{option.replace('_', '-')} ", message)
    return message


def fail(message: str) -> None:
    """Print an error, and end with status 2."""
    console, text = SafeConsole(stderr=True), " ".join(f"error: {message}".split())
    if console.is_terminal:  # Rich would break words; a log or a pipe gets one line, with whole paths.
        text = textwrap.fill(text, console.width, break_long_words=False, break_on_hyphens=False)
    console.print(Text.assemble(("error:", "bold red"), text.removeprefix("error:")), highlight=False, soft_wrap=True)
    sys.exit(2)

"""`h5stream doctor`: a checklist of the machine and, if given, of a file on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Column
from rich.text import Text

from h5stream.cli.options import Anonymous, AsJson, files_argument, files_of
from h5stream.cli.showing import print_json, safe_console, table

_MARKS = {"pass": ("✓ pass", "green"), "warn": ("! warn", "yellow"), "fail": ("✗ fail", "bold red")}


def doctor_command(
    files: Annotated[
        list[str] | None, files_argument("HDF5 files, addresses (s3://...), or patterns, to look at as well.")
    ] = None,
    anonymous: Anonymous = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and how the files lie on it; exit with status 1 if something fails."""
    paths = files_of(files or [])
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
            found = Text(check.found)
            if check.fix:
                found.append(f"\n→ {check.fix}", style=colour)
            rows.append((Text(mark, style=colour), Text(check.name, style="bold"), found))
        columns = [Column("", no_wrap=True), Column("", no_wrap=True), Column("", overflow="fold")]
        console = safe_console()
        console.print(table(columns, rows, gap=2))
        counts = [f"{sum(check.status == status for check in checks)} {status}" for status in _MARKS]
        console.print(f"\n{', '.join(counts)}", highlight=False)
    if worst(checks) == "fail":
        raise typer.Exit(1)

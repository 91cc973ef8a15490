"""`h5stream inspect FILE`: the datasets of a file, what a shuffled batch costs, and advice on the layout."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from h5stream.cli.printable import safe_console
from h5stream.errors import OptionError


def _field_names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise OptionError(f"--fields names datasets, separated by commas, not {text!r}")
    return names


def inspect_command(
    file: Annotated[str, typer.Argument(help="An HDF5 file.")],
    fields: Annotated[
        str | None, typer.Option(help="The fields of a sample, separated by commas: images,labels,obs:cell_type.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows of a batch.", min=1)] = 8192,
    memory_budget: Annotated[int | None, typer.Option(help="H5StreamLoader's memory_budget, bytes.", min=1)] = None,
    workers: Annotated[int | None, typer.Option(help="Reader threads.", min=1)] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every dataset.")] = False,
    allow_external: Annotated[
        bool, typer.Option("--allow-external", help="Follow external storage and virtual sources.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a file's datasets, what a shuffled batch costs, and advice. Nothing is changed."""
    from h5stream.isolation.guard import InChild
    from h5stream.storage.listing import MOST_DATASETS, list_datasets

    names, most = _field_names(fields), None if everything else MOST_DATASETS
    # A child goes through the file first, because libhdf5 crashes at some; meanwhile the rest is imported.
    listing = InChild(f"listing {file!r}", list_datasets, file, most=most, allow_external=allow_external)
    with listing:
        from h5stream.advice.inspection import inspect_file
        from h5stream.cli.inspect_view import print_all

        found = inspect_file(
            file,
            fields=names,
            batch_size=batch_size,
            memory_budget=memory_budget,
            threads=workers,
            allow_external=allow_external,
            listing=listing.result(),
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        print_all(safe_console(), found, everything=everything)

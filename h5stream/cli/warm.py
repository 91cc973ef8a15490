"""`h5stream warm`: compile the kernels before the first training run, as in a container's image."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from h5stream.cli.options import AsJson, Fields, Samples, field_names, files_of, sample_kind
from h5stream.cli.showing import prose, safe_console
from h5stream.cli.temporary import temporary_folder
from h5stream.errors import OptionError

_ROWS = 4096


def warm_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Read a batch of these files too; without any, of a small one that is written and removed.",
            show_default=False,
        ),
    ] = None,
    fields: Fields = "",
    samples: Samples = "",
    as_json: AsJson = False,
) -> None:
    """Compile the kernels, which the first batch on a machine else waits for, and say where they are kept.

    What only other kinds of files or samples need is compiled with FILE, --fields and --samples as for them.

    NUMBA_CACHE_DIR says where kernels are kept: a folder that is there when training runs.
    """
    paths = files_of(files or [])
    if (fields or samples) and not paths:
        raise OptionError("--fields and --samples say what a batch of FILE is; name a file as well")
    began_s = time.perf_counter()
    errors = safe_console(stderr=True)
    with errors.status("compiling kernels (once)"), temporary_folder("h5stream-warm-") as folder:
        from h5stream.advice.doctor import numba_cache_folders
        from h5stream.advice.machine_checks import check_numba_cache
        from h5stream.baseline.sample_file import write_sample_file
        from h5stream.engine.kernels import warm_up

        warm_up()
        if paths:
            _read_batch(paths, field_names(fields), sample_kind(samples))
        else:
            _read_batch([str(write_sample_file(folder / "sample.h5", _ROWS))], None, None)
        kept = check_numba_cache(numba_cache_folders())
    seconds = time.perf_counter() - began_s
    where = kept.found if kept.status == "pass" else ""
    if as_json:
        typer.echo(json.dumps({"seconds": seconds, "folder": where}, indent=2))
        return
    console = safe_console()
    prose(console, f"The kernels are ready after {seconds:.1f} s; {f'kept in {where}' if where else 'not kept'}.")
    if not where:
        prose(console, f"note: {kept.found}; {kept.fix}", style="yellow")


def _read_batch(paths: list[str], fields: Any, samples: Any) -> None:
    """Take one shuffled batch, and another in the order of the file, whose loops are others."""
    from h5stream.loader import H5StreamLoader

    for shuffle in (True, False):
        with H5StreamLoader(paths, 64, shuffle, fields=fields, samples=samples) as loader:
            next(iter(loader))

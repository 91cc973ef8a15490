"""`h5stream repack`: rewrite a file's chunks for streaming, and say what it gained."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from h5stream.cli import options
from h5stream.cli.showing import line, notes, print_json, prose, safe_console
from h5stream.errors import OptionError
from h5stream.monitor.progress import Bar
from h5stream.repacking.recipe import Recipe
from h5stream.units import text_of_bytes

if TYPE_CHECKING:
    from h5stream.repacking.repack import RepackProgress, RepackResult

_SHOWN = 5
DEFAULT = Recipe()

ChunkBytes = Annotated[
    int, options.nbytes("--chunk-bytes", "Decoded size of a chunk; else 1MiB.", options.size, show_default=False)
]
Compress = Annotated[str, typer.Option("--compress", help="none, lz4, zstd or gzip.")]
Contiguous = Annotated[bool, options.flag("--contiguous", "No chunks at all; cannot grow or be compressed.")]
ShuffleRows = Annotated[int | None, options.number("--shuffle-rows", "Shuffle the samples once, for good.", "SEED", 0)]
RepackFields = Annotated[
    str, typer.Option("--fields", help="Rewrite only these datasets, with commas between; copy the others.")
]


def recipe_of(fields: str, chunk_bytes: int, **asked: Any) -> Recipe:
    """Return how files are rewritten, as the options say."""
    return Recipe.of(fields=options.listed_names(fields), chunk_nbytes=chunk_bytes, **asked)


def repack_command(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="The file, or the address, to rewrite.", show_default=False)
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    fields: RepackFields = "",
    chunk_bytes: ChunkBytes = DEFAULT.chunk_nbytes,
    compress: Compress = "none",
    contiguous: Contiguous = False,
    shuffle_rows: ShuffleRows = None,
    overwrite: Annotated[bool, options.flag("--overwrite", "Replace OUT if it exists.")] = False,
    measure: Annotated[bool, options.flag("", "Stream both files afterwards and compare the rates.")] = True,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Rewrite IN as OUT in chunks that stream well; everything else in it is kept, and every row is verified."""
    given = options.files_of([source])
    if len(given) > 1:
        raise OptionError(
            f"repack writes one file, and {source!r} names {len(given)}; to rewrite several into a folder: "
            "h5stream stage FILES --to DIR --repack"
        )
    if not target.exists():
        options.check_writable(target, "OUT")
    recipe = recipe_of(fields, chunk_bytes, compress=compress, contiguous=contiguous, shuffle_rows=shuffle_rows)
    from h5stream.repacking.repack import at_hand, carry_out, plan_repack

    with at_hand(given[0], target):
        plan = plan_repack(given[0], target, recipe, overwrite=overwrite)
        if not as_json:
            notes(safe_console(), plan.notices, set())
        with Bar(safe_console(stderr=True), "repacking") as bar:

            def show(now: RepackProgress) -> None:
                bar.show(now.bytes_done, now.bytes_total, f"{now.step} {now.dataset}")

            result = carry_out(plan, target, overwrite, show)
    rates = None
    if not as_json:
        _print(safe_console(), result, plan.notices)
    if measure and result.samples:
        from h5stream.baseline.measure import fresh_rates

        rates = fresh_rates([str(result.source), str(result.target)], result.samples)
        if not as_json:
            _print_rates(safe_console(), result, *rates)
    if as_json:
        print_json(asdict(result) | {"rows_per_s": rates})


def _print(console: Console, result: RepackResult, said: tuple[str, ...]) -> None:
    for path, why in result.copied[:_SHOWN]:
        line(console, f"  copied as it is: {path} ({why})")
    if len(result.copied) > _SHOWN:
        line(console, f"  ... and {len(result.copied) - _SHOWN} more copied as they are")
    notices = [notice for notice in result.notices if notice not in said]
    notes(console, notices[:_SHOWN] + [f"... and {len(notices) - _SHOWN} more"] * (len(notices) > _SHOWN), set())
    shuffled = f", {len(result.shuffled)} of them shuffled" if result.shuffled else ""
    prose(
        console,
        f"{len(result.rewritten)} dataset(s) rewritten{shuffled}, {len(result.copied)} copied as they are; "
        f"all verified against {result.source} in {result.seconds:.1f} s",
    )


def _print_rates(console: Console, result: RepackResult, before: float, after: float) -> None:
    prose(
        console,
        f"{text_of_bytes(result.bytes_before)} -> {text_of_bytes(result.bytes_after)}, {before:,.0f} -> {after:,.0f} "
        f"rows/s ({after / before:.1f} x), opened anew and shuffled: "
        f"{', '.join(result.samples[:_SHOWN])}{', ...' if len(result.samples) > _SHOWN else ''}",
    )

"""`h5stream repack`: rewrite a file's chunks for streaming, and say what it gained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from h5stream.cli.showing import Bar, line

if TYPE_CHECKING:
    from h5stream.staging.rewrite import RepackProgress, RepackResult

_SHOWN = 5

ChunkMib = Annotated[float, typer.Option("--chunk-mib", min=0.004, max=1024, help="Decoded size of a chunk.")]
Compress = Annotated[str, typer.Option("--compress", help="none, lz4, zstd or gzip.")]
Contiguous = Annotated[bool, typer.Option("--contiguous", help="No chunks at all; cannot grow or be compressed.")]
ShuffleRows = Annotated[
    int | None, typer.Option("--shuffle-rows", min=0, metavar="SEED", help="Shuffle the samples once, for good.")
]
RepackFields = Annotated[
    str, typer.Option("--fields", help="Rewrite only these datasets, with commas between; copy the others.")
]


def repack_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The file to rewrite.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    chunk_mib: ChunkMib = 1.0,
    compress: Compress = "none",
    contiguous: Contiguous = False,
    shuffle_rows: ShuffleRows = None,
    fields: RepackFields = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    measure: Annotated[bool, typer.Option(help="Stream both files afterwards and compare the rates.")] = True,
) -> None:
    """Rewrite IN as OUT in chunks that stream well; everything else in it is kept, and every row is verified."""
    from h5stream.staging.repacking import repack

    console = Console()
    with Bar(console, "repacking") as bar:

        def show(now: RepackProgress) -> None:
            bar.show(now.bytes_done, now.bytes_total, f"{now.step} {now.dataset}")

        result = repack(
            source,
            target,
            **recipe_options(chunk_mib, compress, contiguous, shuffle_rows, fields),
            overwrite=overwrite,
            progress=show,
        )
    _print(console, result)
    if measure and result.samples:
        _print_rates(console, result)


def recipe_options(
    chunk_mib: float = 1.0,
    compress: str = "none",
    contiguous: bool = False,
    shuffle_rows: int | None = None,
    fields: str = "",
) -> dict[str, Any]:
    """Give the options of `h5stream.repack` for those of the command line; without any, the defaults."""
    return {
        "fields": [name.strip() for name in fields.split(",") if name.strip()] or None,
        "chunk_nbytes": int(chunk_mib * (1 << 20)),
        "compress": compress,
        "contiguous": contiguous,
        "shuffle_rows": shuffle_rows,
    }


def _print(console: Console, result: RepackResult) -> None:
    for path, why in result.copied[:_SHOWN]:
        line(console, f"  copied as it is: {path} ({why})")
    if len(result.copied) > _SHOWN:
        line(console, f"  ... and {len(result.copied) - _SHOWN} more copied as they are")
    for notice in result.notices[:_SHOWN]:
        line(console, f"note: {notice}")
    if len(result.notices) > _SHOWN:
        line(console, f"note: ... and {len(result.notices) - _SHOWN} more")
    shuffled = f", {len(result.shuffled)} of them shuffled" if result.shuffled else ""
    line(
        console,
        f"{len(result.rewritten)} dataset(s) rewritten{shuffled}, {len(result.copied)} copied as they are; "
        f"all verified against {result.source} in {result.seconds:.1f} s",
    )


def _print_rates(console: Console, result: RepackResult) -> None:
    from h5stream.baseline.rates import fresh_rates
    from h5stream.staging.space import in_words

    before, after = fresh_rates([str(result.source), str(result.target)], result.samples)
    sizes = f"{in_words(result.bytes_before)} -> {in_words(result.bytes_after)}"
    line(
        console,
        f"{sizes}, {before:,.0f} -> {after:,.0f} rows/s ({after / before:.1f} x), opened anew and shuffled: "
        f"{', '.join(result.samples[:_SHOWN])}{', ...' if len(result.samples) > _SHOWN else ''}",
    )

"""`h5stream repack` and `h5stream stage`: files rewritten so that they stream well, or copied to faster storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column
from rich.text import Text

from h5stream.base.texts import counted, text_of_bytes
from h5stream.cli import options
from h5stream.cli.showing import SafeConsole, line, notes, print_json, prose, table
from h5stream.errors import OptionError, StagingError
from h5stream.monitor.progress import Bar, printable
from h5stream.repacking import Recipe

if TYPE_CHECKING:
    from h5stream.repacking.repack import RepackProgress, RepackResult
    from h5stream.staging import StagedFile, StagingProgress

_SHOWN = 5
_MEASURED_S = 10.0  # about as long as measuring two files takes, in a process of its own each
DEFAULT = Recipe()

ChunkBytes = Annotated[
    int, options.nbytes("--chunk-bytes", "Decoded size of a chunk; else 1MiB.", options.size, show_default=False)
]
Compress = Annotated[
    str, typer.Option("--compress", metavar="FILTER", help="none (also of what is compressed now), lz4, zstd or gzip.")
]
Contiguous = Annotated[bool, options.flag("--contiguous", "No chunks: cannot grow or be compressed.")]
ShuffleRows = Annotated[
    int | None,
    options.number("--shuffle-rows", "Shuffle the samples once, for good: all datasets of their length.", "SEED", 0),
]
RepackFields = Annotated[
    str,
    typer.Option(
        "--fields",
        metavar="NAMES",
        help="Rewrite only these datasets, with commas between. Others are copied; --shuffle-rows also shuffles those "
        "of the same length.",
    ),
]


def recipe_of(fields: str, chunk_bytes: int, *, compress: str, contiguous: bool, shuffle_rows: int | None) -> Recipe:
    """Return the recipe that the options describe."""
    return Recipe.of(
        fields=options.listed_names(fields),
        chunk_nbytes=chunk_bytes,
        compress=compress,
        contiguous=contiguous,
        shuffle_rows=shuffle_rows,
    )


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
    sources = options.files_of([source])
    if len(sources) > 1:
        raise OptionError(
            f"repack writes one file, and {source!r} names {len(sources)}; to rewrite several into a folder: "
            "h5stream stage FILES --to DIR --repack"
        )
    if not target.exists():
        options.check_writable(target, "OUT")
    recipe = recipe_of(fields, chunk_bytes, compress=compress, contiguous=contiguous, shuffle_rows=shuffle_rows)
    from h5stream.repacking.repack import carry_out, plan_repack

    plan, console, seen = (
        plan_repack(sources[0], target, recipe, overwrite=overwrite),
        SafeConsole(quiet=as_json),
        set[str](),
    )
    notes(console, plan.notices, seen)
    with Bar(SafeConsole(stderr=True), "repacking") as bar:

        def show(now: RepackProgress) -> None:
            bar.show(now.bytes_done, now.bytes_total, f"{now.step} {now.dataset}")

        result = carry_out(plan, target, overwrite, show)
    for text in _shortened([f"copied as it is: {path} ({why})" for path, why in result.copied]):
        line(console, f"  {text}")
    notes(console, _shortened([notice for notice in result.notices if notice not in seen]), seen)
    shuffled = f", {len(result.shuffled)} of them shuffled" if result.shuffled else ""
    prose(
        console,
        f"{counted(len(result.rewritten), 'dataset')} rewritten{shuffled}, {len(result.copied)} copied as they are; "
        f"all verified against {result.source} in {result.seconds:.1f} s{_plugin(compress)}",
    )
    larger = ", larger" * (result.bytes_after > result.bytes_before)
    sizes = f"{text_of_bytes(result.bytes_before)} -> {text_of_bytes(result.bytes_after)}{larger}"
    prose(console, f"{plan.filters or 'filters as they were'}, {sizes}")
    rates = _compared(console, result) if measure and result.samples else None
    if as_json:
        print_json(asdict(result) | {"rows_per_s": rates})


def _plugin(compress: str) -> str:
    """Return a note if plain h5py needs hdf5plugin for this filter."""
    return f"; plain h5py reads {compress} after import hdf5plugin" * (compress in ("lz4", "zstd"))


def _compared(console: SafeConsole, result: RepackResult) -> list[float]:
    """Measure both files, and print how they compare."""
    from h5stream.baseline.measure import fresh_rates

    with Bar(SafeConsole(stderr=True), "measuring both files", unit="s") as bar:
        bar.show(total=_MEASURED_S, note="--no-measure leaves this out")
        before, after = rates = fresh_rates([str(result.source), str(result.target)], result.samples)
    ratio, fields = f"{after / before:.1f} x", ", ".join(_shortened(result.samples))
    prose(console, f"{before:,.0f} -> {after:,.0f} rows/s ({ratio}), opened anew and shuffled: {fields}")
    if round(after / before, 1) < 1:
        prose(console, f"slower: {ratio}; keep the old file", style="yellow")
    return rates


def _shortened(texts: Sequence[str]) -> list[str]:
    """Return the first texts, and a line that counts the others."""
    return [*texts[:_SHOWN], *[f"... and {len(texts) - _SHOWN} more"] * (len(texts) > _SHOWN)]


# --- stage ------------------------------------------------------------------------------------------------


def stage_command(
    files: Annotated[
        list[str] | None,
        options.files_argument(
            "Files, addresses or patterns ('s3://b/*.h5') to copy; with --remove, copies to delete."
        ),
    ] = None,
    to: Annotated[Path | None, options.words("--to", "Copy FILES to this folder.", "DIR")] = None,
    list_: Annotated[Path | None, options.words("--list", "Show what is staged in DIR.", "DIR")] = None,
    verify: Annotated[
        Path | None, options.words("--verify", "Read the copies in DIR, compare checksums.", "DIR")
    ] = None,
    remove: Annotated[Path | None, options.words("--remove", "Delete the copies in DIR, all or FILES.", "DIR")] = None,
    follow: Annotated[bool, options.flag("--follow", "Also copy the files that FILES need.")] = False,
    force: Annotated[bool, options.flag("--force", "With --remove: also copies in use.")] = False,
    threads: Annotated[int | None, options.number("--threads", "Threads that copy or verify.")] = None,
    margin_bytes: Annotated[
        int | None, options.nbytes("--margin-bytes", "Memory, and space in DIR, to leave free: 2GiB.", options.size)
    ] = None,
    repack: Annotated[bool, options.flag("--repack", "Rewrite FILES for streaming on the way.")] = False,
    chunk_bytes: ChunkBytes = DEFAULT.chunk_nbytes,
    compress: Compress = "none",
    contiguous: Contiguous = False,
    shuffle_rows: ShuffleRows = None,
    fields: RepackFields = "",
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Copy FILES to faster storage (a RAM disk, an NVMe), verified; list, verify and remove the copies.

    Exactly one of --to, --list, --verify and --remove says what to do.

    Only what the manifest in DIR lists is ever deleted.

    Exit status: 0 when all is well, 1 when --verify finds a damaged copy, 2 for an error.
    """
    folders = {"--to": to, "--list": list_, "--verify": verify, "--remove": remove}
    recipe = recipe_of(fields, chunk_bytes, compress=compress, contiguous=contiguous, shuffle_rows=shuffle_rows)
    what, folder = _chosen(folders, files, recipe, follow=follow, force=force, repack=repack)
    if what == "--to":
        rewriting = asdict(recipe) if repack else None
        _stage(options.files_of(files or []), folder, follow, threads, margin_bytes, rewriting, as_json)
    elif not folder.is_dir():  # An answer about nothing would look like good news.
        why = "is no folder" if folder.exists() else "does not exist"
        raise StagingError(f"{what} {str(folder)!r} {why}, so nothing is staged there. Check the path.")
    elif what == "--list":
        _list(folder, as_json)
    elif what == "--verify":
        _verify(folder, threads, as_json)
    else:
        _remove(folder, files, force, as_json)


def _chosen(
    folders: dict[str, Path | None], files: list[str] | None, recipe: Recipe, *, follow: bool, force: bool, repack: bool
) -> tuple[str, Path]:
    """Return the option that selects the action, and its folder; refuse options that do not belong to it."""
    example = "For example: h5stream stage a.h5 --to /dev/shm/x"
    chosen = [(name, value) for name, value in folders.items() if value is not None]
    if len(chosen) != 1:
        raise OptionError(
            f"stage takes exactly one of --to, --list, --verify and --remove, each with a folder; "
            f"given: {', '.join(name for name, _ in chosen) or 'none'}. {example}"
        )
    ((what, folder),) = chosen
    how = "--chunk-bytes, --compress, --contiguous, --shuffle-rows and --fields say how to rewrite; add --repack"
    for broken, rule in (
        (what == "--to" and not files, f"stage --to needs FILES to copy. {example}"),
        (what in ("--list", "--verify") and files, f"stage {what} is about the whole folder and takes no FILES"),
        (follow and what != "--to", f"--follow belongs to --to, not to {what}"),
        (force and what != "--remove", f"--force belongs to --remove, not to {what}"),
        (repack and what != "--to", f"--repack belongs to --to, not to {what}"),
        (recipe != DEFAULT and not repack, how),
    ):
        if broken:
            raise OptionError(rule)
    return what, folder


def _stage(
    files: list[str],
    folder: Path,
    follow: bool,
    threads: int | None,
    margin_bytes: int | None,
    repack: Mapping[str, object] | None,
    as_json: bool,
) -> None:
    from h5stream.staging import stage

    console, errors, seen = SafeConsole(quiet=as_json), SafeConsole(stderr=True), set[str]()
    with Bar(errors, "staging") as bar:

        def show(now: StagingProgress) -> None:
            notes(errors, now.notices, seen)
            waiting = f"waiting for process {', '.join(map(str, now.waiting_for))}" if now.waiting_for else ""
            bar.show(now.bytes_done, now.bytes_total, waiting or f"{now.files_done}/{now.files_total} files")

        # No lease: it would end with this command, which is about to end.
        result = stage(
            files,
            to=folder,
            follow=follow,
            lease=False,
            threads=threads,
            margin_bytes=margin_bytes,
            repack=repack,
            progress=show,
        )
        notes(errors, result.notices, seen)
        seconds = max(bar.elapsed_s, 1e-6)
    if as_json:
        print_json(asdict(result))
    for path in (*result.paths, *result.followed):
        line(console, f"  {path}{'' if path in result.copied else '  (was there)'}")
    rate = f" in {seconds:.1f} s, {text_of_bytes(result.bytes_copied / seconds)}/s" if result.copied else ""
    done = f"{len(result.copied)} {'copied' if repack is None else 'repacked'}"
    prose(console, f"{done} ({text_of_bytes(result.bytes_copied)}{rate}), {len(result.reused)} reused.")
    line(console, f"Remove with: h5stream stage --remove {result.folder}")


def _list(folder: Path, as_json: bool) -> None:
    from h5stream.staging import list_staged

    console, files = SafeConsole(quiet=as_json), list_staged(folder)
    if as_json:
        print_json([asdict(file) for file in files])
    elif not files:
        line(console, f"nothing is staged in {folder}")
        return
    elif console.is_terminal:
        # What is short as a table, and of a few files what is long (paths, a checksum) below it in lines to copy.
        titles = ("copy", "size", "state", "used by")
        columns = [Column(one, justify="right" if one == "size" else "left", overflow="fold") for one in titles]
        short = ((printable(file.path.name, kept=""), *_cells(file)[1:4]) for file in files)
        console.print(table(columns, (map(Text, cells) for cells in short)))
        for path, _, _, _, digest, source in map(_cells, files if len(files) <= _SHOWN else ()):
            for text in (f"  {path}", f"    of {source}", f"    {digest}"):
                line(console, text)
    else:
        for file in files:
            typer.echo("\t".join(_cells(file)))
    if console.is_terminal and len(files) > _SHOWN:
        line(console, f"in {folder}; through a pipe (| cat), or with --json, paths, sources and checksums as well")
    line(console, f"{counted(len(files), 'file')}, {text_of_bytes(sum(file.size_bytes for file in files))}")


def _cells(file: StagedFile) -> tuple[str, ...]:
    digest = file.checksum.digest if file.checksum else "-"
    users = ", ".join(map(str, file.used_by)) or "-"
    state = f"{file.state}, repacked" if file.recipe else str(file.state)
    cells = (str(file.path), text_of_bytes(file.size_bytes), state, users, digest, str(file.source))
    return tuple(printable(cell, kept="") for cell in cells)


def _verify(folder: Path, threads: int | None, as_json: bool) -> None:
    from h5stream.staging import list_staged, verify_staged

    if not list_staged(folder):
        raise StagingError(f"--verify {str(folder)!r}: nothing is staged there, so nothing could be verified")
    console = SafeConsole(quiet=as_json)
    with Bar(SafeConsole(stderr=True), "verifying") as bar:
        results = verify_staged(folder, threads=threads, progress=lambda done, total: bar.show(done, total))
    bad = [result for result in results if not result.ok]
    if as_json:
        print_json([asdict(result) | {"ok": result.ok} for result in results])
    for result in bad:
        line(console, f"DAMAGED {result.path}: {result.problem}")
    prose(console, f"As they were staged: {len(results) - len(bad)} of {counted(len(results), 'file')}")
    if bad:
        prose(console, "Stage the damaged ones again after: h5stream stage --remove DIR FILES")
        raise typer.Exit(1)


def _remove(folder: Path, files: list[str] | None, force: bool, as_json: bool) -> None:
    from h5stream.staging import remove_staged

    console, result = SafeConsole(quiet=as_json), remove_staged(folder, files or None, force=force)
    if not (as_json or result.removed or result.notices):
        line(console, f"nothing is staged in {folder}, so nothing was removed")
        return
    if as_json:
        print_json(asdict(result))
    notes(console, result.notices, set())
    prose(console, f"{counted(len(result.removed), 'file')} removed, {text_of_bytes(result.bytes_freed)} freed")

"""`h5stream stage`: copy files to faster storage, and look after what lies there."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column
from rich.text import Text

from h5stream.cli.options import FLAG, SIZE, AsJson, files_of, listed_names, size
from h5stream.cli.repack import DEFAULT, ChunkBytes, Compress, Contiguous, RepackFields, ShuffleRows
from h5stream.cli.showing import Notices, line, print_json, prose, safe_console, table
from h5stream.errors import OptionError, StagingError
from h5stream.monitor.progress import Bar, printable
from h5stream.repacking.recipe import Recipe
from h5stream.units import text_of_bytes

if TYPE_CHECKING:
    from h5stream.staging import StagedFile, StagingProgress


_TITLES = ("copy", "size", "state", "used by")


def stage_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Files, or patterns such as 'day*.h5', to copy; with --remove, the copies to delete.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Copy FILES to this folder.", metavar="DIR")] = None,
    list_: Annotated[Path | None, typer.Option("--list", help="Show what is staged in DIR.", metavar="DIR")] = None,
    verify: Annotated[
        Path | None, typer.Option("--verify", help="Read the copies in DIR, compare their checksums.", metavar="DIR")
    ] = None,
    remove: Annotated[
        Path | None, typer.Option("--remove", help="Delete the copies in DIR, all or FILES.", metavar="DIR")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Bring along the files that FILES need.", metavar=FLAG)
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --remove: also what live processes use.", metavar=FLAG)
    ] = False,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads that copy or verify.")] = None,
    margin_bytes: Annotated[
        int | None,
        typer.Option(
            "--margin-bytes", parser=size, metavar=SIZE, help="Leave this much free, in memory and in DIR: 2GiB."
        ),
    ] = None,
    repack: Annotated[
        bool, typer.Option("--repack", help="Rewrite FILES for streaming on the way.", metavar=FLAG)
    ] = False,
    chunk_bytes: ChunkBytes = DEFAULT.chunk_nbytes,
    compress: Compress = "none",
    contiguous: Contiguous = False,
    shuffle_rows: ShuffleRows = None,
    fields: RepackFields = "",
    as_json: AsJson = False,
) -> None:
    """Copy FILES to faster storage (a RAM disk, an NVMe), verified; list, verify and remove the copies.

    Exactly one of --to, --list, --verify and --remove says what to do.

    Only what the manifest in DIR lists is ever deleted.

    Exit status: 0 when all is well, 1 when --verify finds a damaged copy, 2 for an error.
    """
    chosen = _only_one({"--to": to, "--list": list_, "--verify": verify, "--remove": remove})
    recipe = Recipe.of(
        fields=listed_names(fields),
        chunk_nbytes=chunk_bytes,
        compress=compress,
        contiguous=contiguous,
        shuffle_rows=shuffle_rows,
    )
    _check_combination(chosen, bool(files), recipe, follow=follow, force=force, repack=repack)
    if to is not None:
        _stage(files_of(files or []), to, follow, threads, margin_bytes, recipe if repack else None, as_json)
    elif list_ is not None:
        _list(list_, as_json)
    elif verify is not None:
        _verify(verify, threads, as_json)
    elif remove is not None:
        _remove(remove, files, force, as_json)


def _only_one(choices: dict[str, Path | None]) -> str:
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        raise OptionError(
            f"stage takes exactly one of --to, --list, --verify and --remove, each with a folder; "
            f"given: {', '.join(given) or 'none'}. For example: h5stream stage a.h5 --to /dev/shm/x"
        )
    return given[0]


def _check_combination(chosen: str, files: bool, recipe: Recipe, **flags: bool) -> None:
    if chosen == "--to" and not files:
        raise OptionError("stage --to needs FILES to copy; for example: h5stream stage a.h5 --to /dev/shm/x")
    if chosen in {"--list", "--verify"} and files:
        raise OptionError(f"stage {chosen} is about the whole folder and takes no FILES")
    for flag, belongs_to in (("follow", "--to"), ("force", "--remove"), ("repack", "--to")):
        if flags[flag] and chosen != belongs_to:
            raise OptionError(f"--{flag} belongs to {belongs_to}, not to {chosen}")
    if not flags["repack"] and recipe != DEFAULT:
        raise OptionError(
            "--chunk-bytes, --compress, --contiguous, --shuffle-rows and --fields say how to rewrite; add --repack"
        )


def _stage(
    files: list[str],
    to: Path,
    follow: bool,
    threads: int | None,
    margin_bytes: int | None,
    recipe: Recipe | None,
    as_json: bool,
) -> None:
    from h5stream.staging import stage

    console, errors = safe_console(), safe_console(stderr=True)
    begin = time.monotonic()
    with Bar(errors, "staging") as bar:
        shown = Notices(errors)

        def show(now: StagingProgress) -> None:
            shown(now.notices)
            waiting = f"waiting for process {', '.join(map(str, now.waiting_for))}" if now.waiting_for else ""
            bar.show(now.bytes_done, now.bytes_total, waiting or f"{now.files_done}/{now.files_total} files")

        # No lease: it would end with this command, which is about to end.
        result = stage(
            files,
            to=to,
            follow=follow,
            lease=False,
            threads=threads,
            margin_bytes=margin_bytes,
            repack=None if recipe is None else asdict(recipe),
            progress=show,
        )
        shown(result.notices)
    if as_json:
        print_json(asdict(result))
        return
    seconds = max(time.monotonic() - begin, 1e-6)
    for path in (*result.paths, *result.followed):
        line(console, f"  {path}{'' if path in result.copied else '  (was there)'}")
    rate = f" in {seconds:.1f} s, {text_of_bytes(result.bytes_copied / seconds)}/s" if result.copied else ""
    done = "copied" if recipe is None else "repacked"
    prose(
        console,
        f"{len(result.copied)} {done} ({text_of_bytes(result.bytes_copied)}{rate}), {len(result.reused)} reused.",
    )
    line(console, f"Remove with: h5stream stage --remove {result.folder}")


def _there(folder: Path, option: str) -> Path:
    """Refuse a folder that is not there: an answer about nothing would look like good news."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise StagingError(f"{option} {str(folder)!r} {what}; nothing can be staged there. Check the path.")
    return folder


def _list(folder: Path, as_json: bool) -> None:
    from h5stream.staging import list_staged

    console, files = safe_console(), list_staged(_there(folder, "--list"))
    if as_json:
        print_json([asdict(file) for file in files])
    elif not files:
        line(console, f"nothing is staged in {folder}")
    elif console.is_terminal:
        _print_files(console, files)
    else:
        for file in files:
            typer.echo("\t".join(_cells(file)))
    if files and not as_json:
        line(console, f"{len(files)} file(s), {text_of_bytes(sum(file.size_bytes for file in files))}")


def _print_files(console: Console, files: tuple[StagedFile, ...]) -> None:
    """Print what is short as a table, and what is long (paths, a checksum) below it in lines that can be copied."""
    columns = [Column(title, justify="right" if title == "size" else "left", overflow="fold") for title in _TITLES]
    short = ((printable(file.path.name, kept=""), *_cells(file)[1:4]) for file in files)
    console.print(table(columns, (map(Text, cells) for cells in short)))
    for file in files:
        path, _, _, _, digest, source = _cells(file)
        line(console, f"  {path} of {source}")
        line(console, f"    {digest}")


def _cells(file: StagedFile) -> tuple[str, ...]:
    digest = file.checksum.digest if file.checksum else "-"
    users = ", ".join(map(str, file.used_by)) or "-"
    state = f"{file.state}, repacked" if file.recipe else str(file.state)
    cells = (str(file.path), text_of_bytes(file.size_bytes), state, users, digest, str(file.source))
    return tuple(printable(cell, kept="") for cell in cells)


def _verify(folder: Path, threads: int | None, as_json: bool) -> None:
    from h5stream.staging import list_staged, verify_staged

    if not list_staged(_there(folder, "--verify")):
        raise StagingError(f"--verify {str(folder)!r}: nothing is staged there, so nothing could be verified")
    console = safe_console()
    with Bar(safe_console(stderr=True), "verifying") as bar:
        results = verify_staged(folder, threads=threads, progress=lambda done, total: bar.show(done, total))
    bad = [result for result in results if not result.ok]
    if as_json:
        print_json([asdict(result) | {"ok": result.ok} for result in results])
    else:
        for result in bad:
            line(console, f"DAMAGED {result.path}: {result.problem}")
        prose(console, f"{len(results) - len(bad)} of {len(results)} staged file(s) are as they were staged")
        if bad:
            prose(console, "Stage the damaged ones again after: h5stream stage --remove DIR FILES")
    if bad:
        raise typer.Exit(1)


def _remove(folder: Path, files: list[str] | None, force: bool, as_json: bool) -> None:
    from h5stream.staging import remove_staged

    console = safe_console()
    result = remove_staged(_there(folder, "--remove"), files or None, force=force)
    if as_json:
        print_json(asdict(result))
        return
    for notice in result.notices:
        prose(console, f"note: {notice}")
    prose(console, f"{len(result.removed)} file(s) removed, {text_of_bytes(result.bytes_freed)} freed")

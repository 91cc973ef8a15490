"""`h5stream stage`: copy files to faster storage, and look after what lies there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from h5stream.cli.repack import ChunkMib, Compress, Contiguous, RepackFields, ShuffleRows, recipe_options
from h5stream.cli.showing import Bar, Notices, clean, line
from h5stream.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from h5stream.staging import StagedFile, StagingProgress


def stage_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files to copy; with --remove, the copies to delete.", show_default=False),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Copy FILES to this folder.", metavar="DIR")] = None,
    list_: Annotated[Path | None, typer.Option("--list", help="Show what is staged in DIR.", metavar="DIR")] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", help="Read the copies in DIR, compare their checksums.", metavar="DIR"),
    ] = None,
    remove: Annotated[
        Path | None, typer.Option("--remove", help="Delete the copies in DIR, all or FILES.", metavar="DIR")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Bring along the files that FILES need.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --remove: also what live processes use.")] = False,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads that copy or verify.")] = None,
    margin_mib: Annotated[
        int | None, typer.Option("--margin-mib", min=0, help="Leave this much free, in memory and in DIR.")
    ] = None,
    repack: Annotated[bool, typer.Option("--repack", help="Rewrite FILES for streaming on the way.")] = False,
    chunk_mib: ChunkMib = 1.0,
    compress: Compress = "none",
    contiguous: Contiguous = False,
    shuffle_rows: ShuffleRows = None,
    fields: RepackFields = "",
) -> None:
    """Copy FILES to faster storage (a RAM disk, an NVMe), verified; list, verify and remove the copies.

    Exactly one of --to, --list, --verify and --remove says what to do. Only what the manifest in DIR lists is
    ever deleted. Exit status: 0 when all is well, 1 when --verify finds a damaged copy, 2 for an error.
    """
    chosen = _only_one({"--to": to, "--list": list_, "--verify": verify, "--remove": remove})
    _check_combination(chosen, bool(files), follow=follow, force=force)
    recipe = recipe_options(chunk_mib, compress, contiguous, shuffle_rows, fields)
    _check_repack(chosen, repack, recipe)
    if to is not None:
        _stage(files or [], to, follow, threads, margin_mib, recipe if repack else None)
    elif list_ is not None:
        _list(list_)
    elif verify is not None:
        _verify(verify, threads)
    elif remove is not None:
        _remove(remove, files, force)


def _only_one(choices: dict[str, Path | None]) -> str:
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        raise OptionError(
            f"stage takes exactly one of --to, --list, --verify and --remove, each with a folder; "
            f"given: {', '.join(given) or 'none'}. For example: h5stream stage a.h5 --to /dev/shm/x"
        )
    return given[0]


def _check_combination(chosen: str, files: bool, *, follow: bool, force: bool) -> None:
    if chosen == "--to" and not files:
        raise OptionError("stage --to needs FILES to copy; for example: h5stream stage a.h5 --to /dev/shm/x")
    if chosen in {"--list", "--verify"} and files:
        raise OptionError(f"stage {chosen} is about the whole folder and takes no FILES")
    if follow and chosen != "--to":
        raise OptionError(f"--follow belongs to --to, not to {chosen}")
    if force and chosen != "--remove":
        raise OptionError(f"--force belongs to --remove, not to {chosen}")


def _check_repack(chosen: str, repack: bool, recipe: dict[str, Any]) -> None:
    if repack and chosen != "--to":
        raise OptionError(f"--repack belongs to --to, not to {chosen}")
    if not repack and recipe != recipe_options():
        raise OptionError(
            "--chunk-mib, --compress, --contiguous, --shuffle-rows and --fields say how to rewrite; add --repack"
        )


def _stage(
    files: list[Path],
    to: Path,
    follow: bool,
    threads: int | None,
    margin_mib: int | None,
    recipe: dict[str, Any] | None,
) -> None:
    from h5stream.staging import stage
    from h5stream.staging.space import in_words

    console = Console()
    margin_bytes = None if margin_mib is None else margin_mib << 20
    begin = time.monotonic()
    with Bar(console, "staging") as bar:
        shown = Notices(console)

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
            repack=recipe,
            progress=show,
        )
        shown(result.notices)
    seconds = max(time.monotonic() - begin, 1e-6)
    for path in (*result.paths, *result.followed):
        line(console, f"  {path}{'' if path in result.copied else '  (was there)'}")
    rate = f" in {seconds:.1f} s, {in_words(int(result.bytes_copied / seconds))}/s" if result.copied else ""
    done = "copied" if recipe is None else "repacked"
    line(
        console,
        f"{len(result.copied)} {done} ({in_words(result.bytes_copied)}{rate}), {len(result.reused)} reused. "
        f"Remove with: h5stream stage --remove {result.folder}",
    )


def _list(folder: Path) -> None:
    from h5stream.staging import list_staged
    from h5stream.staging.space import in_words

    console, files = Console(), list_staged(folder)
    if not files:
        line(console, f"nothing is staged in {folder}")
        return
    if console.is_terminal:
        console.print(_table(files, in_words))
    else:
        for file in files:
            typer.echo("\t".join(_cells(file, in_words)))
    line(console, f"{len(files)} file(s), {in_words(sum(file.size_bytes for file in files))}")


def _table(files: tuple[StagedFile, ...], in_words: Callable[[int], str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("copy", "size", "state", "used by", "checksum", "source"):
        table.add_column(title, justify="right" if title == "size" else "left", overflow="fold")
    for file in files:
        table.add_row(*(escape(cell) for cell in _cells(file, in_words)))
    return table


def _cells(file: StagedFile, in_words: Callable[[int], str]) -> tuple[str, ...]:
    digest = file.checksum.digest if file.checksum else "-"
    users = ", ".join(map(str, file.used_by)) or "-"
    state = f"{file.state}, repacked" if file.recipe else str(file.state)
    return clean(str(file.path), in_words(file.size_bytes), state, users, digest, str(file.source))


def _verify(folder: Path, threads: int | None) -> None:
    from h5stream.staging import verify_staged

    console = Console()
    with Bar(console, "verifying") as bar:
        results = verify_staged(folder, threads=threads, progress=lambda done, total: bar.show(done, total, ""))
    bad = [result for result in results if not result.ok]
    for result in bad:
        line(console, f"DAMAGED {result.path}: {result.problem}")
    line(console, f"{len(results) - len(bad)} of {len(results)} staged file(s) are as they were staged")
    if bad:
        line(console, "Stage the damaged ones again after: h5stream stage --remove DIR FILES")
        raise typer.Exit(1)


def _remove(folder: Path, files: list[Path] | None, force: bool) -> None:
    from h5stream.staging import remove_staged
    from h5stream.staging.space import in_words

    console = Console()
    result = remove_staged(folder, files or None, force=force)
    for notice in result.notices:
        line(console, f"note: {notice}")
    line(console, f"{len(result.removed)} file(s) removed, {in_words(result.bytes_freed)} freed")

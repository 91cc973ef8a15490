"""`repack`: a file rewritten for streaming, verified row by row, in one step from absent to whole.

# Guarantees:
# - Until it is verified, the copy lies under a name that nothing takes for a whole file, in the target's folder;
#   its writer holds a flock on it. What an error or Ctrl-C interrupts is deleted, and what a kill -9 leaves is
#   deleted by the next call for the same target, which finds no lock on it.
# - The target's name is given with `link`, which fails where the name is taken, or with `replace` where the
#   caller said `overwrite`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from h5stream.errors import H5StreamError, NotEnoughSpaceError, OptionError, StagingError
from h5stream.filesystem import flush_folder, give_name, unfinished
from h5stream.repacking.recipe import Recipe
from h5stream.repacking.rewrite import RepackProgressCallback, RepackResult, rewrite
from h5stream.repacking.survey import RewritePlan, plan_rewrite
from h5stream.repacking.writer import is_full
from h5stream.space import measure, refusal

PathLike = str | os.PathLike[str]


def repack(
    source: PathLike,
    target: PathLike,
    *,
    fields: str | Sequence[str] | None = None,
    chunk_nbytes: int = 1024 * 1024,
    compress: Literal["none", "lz4", "zstd", "gzip"] = "none",
    contiguous: bool = False,
    shuffle_rows: int | None = None,
    overwrite: bool = False,
    progress: RepackProgressCallback | None = None,
) -> RepackResult:
    """Rewrite a file's chunks for streaming; everything else in it is kept.

    Datasets whose elements have a fixed size (numbers, compounds, strings of fixed length) are decoded by
    h5stream's own engine and written in chunks of whole rows. What only libhdf5 can read, virtual datasets,
    variable length, references and single values are copied as they are. Groups, links, attributes, dimension
    scales, fill values and the user block come along, and references are translated. Before the file gets its
    name, every dataset is compared with the source through h5py.

    Parameters
    ----------
    source, target : path
        The file, and the one to write.
    fields : str or sequence of str, optional
        The datasets to rewrite, by path; by default all that can be. The others are copied as they are.
    chunk_nbytes : int
        Decoded bytes of a chunk, as near as whole rows come to it. Default 1 MiB.
    compress : {"none", "lz4", "zstd", "gzip"}
        With numbers of 2, 4 or 8 bytes a byte shuffle comes first. By default nothing is compressed, whatever the
        source does: such rows are read fastest, and the command says beforehand what it will take.
    contiguous : bool
        Store without chunks; such datasets cannot grow and cannot be compressed.
    shuffle_rows : int, optional
        Seed of one offline shuffle, for files whose neighbouring rows resemble each other. Row ``i`` of the
        copy is row ``permutation(rows, seed)[i]`` of the source (`h5stream.order.permutation`), in *every*
        dataset whose first axis is as long as that of `fields`, or of the default fields without them:
        `RepackResult.shuffled` lists them.
    overwrite : bool
        Replace a target that exists.
    progress : callable, optional
        Called with a `RepackProgress` after every chunk, in the caller's thread; what it raises ends the call.

    Returns
    -------
    RepackResult
        Bytes before and after, what was rewritten, and what could not be kept.

    Raises
    ------
    OptionError
        If options contradict each other, or the target is the source.
    SourceError, FieldError
        If the source cannot be opened, changes meanwhile, or has no such field.
    NotEnoughSpaceError
        If the file would not fit, or the disk fills up.
    StagingError
        If the target exists, or cannot be written.
    StagedFileDamagedError
        If the rows written are not those of the source.

    Examples
    --------
    >>> import h5py, tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> with h5py.File(folder / "a.h5", "w") as file:
    ...     _ = file.create_dataset("x", data=np.arange(4096).reshape(1024, 4), chunks=(1, 4), compression="gzip")
    >>> result = repack(folder / "a.h5", folder / "b.h5", chunk_nbytes=8192)
    >>> with h5py.File(folder / "b.h5") as file:
    ...     result.rewritten, file["x"].chunks, int(file["x"][1023, 3])
    (('x',), (256, 4), 4095)
    """
    recipe = Recipe.of(
        fields=fields, chunk_nbytes=chunk_nbytes, compress=compress, contiguous=contiguous, shuffle_rows=shuffle_rows
    )
    return carry_out(plan_repack(source, target, recipe, overwrite=overwrite), target, overwrite, progress)


def plan_repack(source: PathLike, target: PathLike, recipe: Recipe, *, overwrite: bool) -> RewritePlan:
    """Decide what becomes of each dataset; refuse a target that may not be written or does not fit."""
    old, new = _absolute(source), _absolute(target)
    check_target(old, new, overwrite=overwrite)
    plan = plan_rewrite(str(old), recipe)
    _check_space(plan.source, new, plan.estimated_nbytes)
    return plan


def carry_out(
    plan: RewritePlan, target: PathLike, overwrite: bool, progress: RepackProgressCallback | None
) -> RepackResult:
    """Write and verify the new file beside the target, and give it its name."""
    new = _absolute(target)
    with _part_of(new) as part, unfinished(part.unlink):
        with explained(plan.source, new):
            result = rewrite(plan, part, progress)
        _give_name(part, new, overwrite=overwrite)
    return replace(result, target=new)


def _absolute(path: PathLike) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def check_target(source: Path, target: Path, *, overwrite: bool) -> None:
    """Refuse a target that is the source, is no file, exists, or has no folder."""
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
        raise OptionError(f"{target} is the source itself; repack writes a new file, so give it another name")
    if target.is_dir():
        raise StagingError(f"{target} is a folder; name the file to write", file=str(target))
    if os.path.lexists(target) and not overwrite:
        raise StagingError(
            f"{target} exists; nothing was written. Name another file, or pass overwrite=True (--overwrite)",
            file=str(target),
        )
    if not target.parent.is_dir():
        raise StagingError(f"there is no folder {target.parent}; make it first", folder=str(target.parent))


def _check_space(source: str, target: Path, needed: int) -> None:
    problem = refusal(measure(target.parent), [(source, needed)])
    if problem:
        raise NotEnoughSpaceError(problem, file=source, folder=str(target.parent), needed=needed)


@contextlib.contextmanager
def explained(source: str, target: Path) -> Iterator[None]:
    """Turn what the operating system or libhdf5 says of rewriting into ours, with the files' names."""
    try:
        yield
    except H5StreamError:
        raise
    except (OSError, RuntimeError) as error:
        if is_full(error):
            raise NotEnoughSpaceError(
                f"{target.parent} filled up while {source} was rewritten there. What was written is deleted; free "
                "space, compress, or name another folder",
                file=source,
                folder=str(target.parent),
            ) from error
        raise StagingError(
            f"cannot rewrite {source} to {target}: {error}. What was written is deleted",
            file=source,
            folder=str(target.parent),
        ) from error


@contextlib.contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """Return the unfinished file: locked while it is written, and gone afterwards."""
    _sweep(target)
    part = target.with_name(f".{target.name[:200]}.{uuid.uuid4().hex[:8]}.part")
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StagingError(
            f"cannot write to {target.parent}: {error.strerror or error}", folder=str(target.parent)
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield part
    finally:
        part.unlink(missing_ok=True)
        os.close(descriptor)


def _sweep(target: Path) -> None:
    """Delete what dead processes left of the same target."""
    prefix = f".{target.name[:200]}."
    for path in target.parent.iterdir():
        if not (path.name.startswith(prefix) and path.name.endswith(".part") and len(path.name) == len(prefix) + 13):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


def _give_name(part: Path, target: Path, *, overwrite: bool) -> None:
    try:
        if overwrite:
            part.replace(target)
        else:
            give_name(part, target)
        flush_folder(target.parent)
    except OSError as error:
        raise StagingError(
            f"cannot name the finished file {target}: {error.strerror or error}. It was deleted", file=str(target)
        ) from error
